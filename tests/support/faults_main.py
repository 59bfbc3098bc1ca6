"""CHILD SIDE: stands for the user's main script, which workers import."""

from tests.support.faults import at_import

at_import()
