"""Where tables and displays are drawn."""

from __future__ import annotations

from rich.console import Console


class TerminalConsole(Console):
    """A console that goes silent when its reader is gone. Rich's own would end the program and its output."""

    def on_broken_pipe(self) -> None:
        """Write nothing from here on."""
        self.quiet = True
