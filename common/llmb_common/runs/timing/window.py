"""The measured iterations of a log, as the documents give them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from llmb_common.base.errors import RequestError
from llmb_common.runs.timing.records import Iteration


@dataclass(frozen=True, slots=True)
class Window:
    """The iterations over which a run is measured, from ``first`` to ``last``, both included.

    They are numbered as the log numbers them. ``len`` is how many they are, ``in`` takes the number of one, and as
    text a window is ``35-44``. That ``first`` is not above ``last`` is not checked; a window from 1 to 0 is empty.
    ``after(n)`` returns a window ``n`` iterations later. ``select`` returns, as a tuple in their order, those of
    the given iterations that are in the window, and ``missing`` the numbers of the window, ascending, that none of
    the given iterations has.
    """

    first: int
    last: int

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and self.first <= index <= self.last

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def after(self, steps: int) -> Window:
        """Return this window moved by ``steps`` iterations, for a run that goes on from a checkpoint of that step."""
        return Window(self.first + steps, self.last + steps)

    def select(self, iterations: Iterable[Iteration]) -> tuple[Iteration, ...]:
        """Return those of ``iterations`` that are in the window, in their order; empty where none is."""
        return tuple([item for item in iterations if self.first <= item.index <= self.last])

    def missing(self, iterations: Iterable[Iteration]) -> tuple[int, ...]:
        """Return the numbers of the window that none of ``iterations`` has, in order; empty: all are there."""
        present = {item.index for item in iterations}
        return tuple(index for index in range(self.first, self.last + 1) if index not in present)


def read_window(text: str) -> Window:
    """Return the window that ``text`` names, as ``--window`` takes it: ``35-44``, both included.

    The two numbers may be equal, and 0, and have at most 9 digits; blanks are not allowed.

    Raises:
        RequestError: it is not a range of two such numbers, or the first is above the last
    """
    match = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", text)
    if not match or int(match[1]) > int(match[2]):
        raise RequestError(f"--window {text} is not a range", remedy="give the first and the last iteration, as 35-44")
    return Window(int(match[1]), int(match[2]))
