"""Lines at the bottom of the terminal that are rewritten, while other lines pass above them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

_PER_SECOND = 2.0


class LiveLines:
    """``lines`` is asked for them, from another thread."""

    def __init__(self, stream: TextIO, lines: Callable[[], Sequence[str]]) -> None:
        self._console = _Console(file=stream, highlight=False)
        self._lines = lines
        self._live = Live(
            console=self._console,
            get_renderable=self._render,
            refresh_per_second=_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def start(self) -> None:
        self._live.start()

    def stop(self) -> None:
        """Remove the lines from the terminal."""
        self._live.stop()

    def print(self, text: str) -> None:
        """Print ``text`` above the live lines."""
        self._console.print(Text(text), soft_wrap=True)

    def _render(self) -> Text:
        return Text("\n".join(self._lines()), no_wrap=True, overflow="ellipsis")


class _Console(Console):
    def show_cursor(self, show: bool = True) -> bool:
        """Leave it: who is killed could not bring it back."""
        return False
