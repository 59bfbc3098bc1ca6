"""What the tests of pools past one machine share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import slurm


@pytest.fixture(scope="session")
def slurm_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.Slurm]:
    """A SLURM of two nodes, for all tests of this process."""
    with slurm.running_slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture
def slurm_here(slurm_daemons: slurm.Slurm, monkeypatch: pytest.MonkeyPatch) -> slurm.Slurm:
    """The same, known to this process's commands."""
    for name, value in slurm_daemons.environment.items():
        monkeypatch.setenv(name, value)
    return slurm_daemons
