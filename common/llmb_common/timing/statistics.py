"""Window statistics as the documents give them: mean and sample standard deviation over inclusive iterations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmb_common.errors import RequestError
from llmb_common.timing.records import Iteration


@dataclass(frozen=True)
class Window:
    """The measured iterations, both ends included, numbered as the log numbers them."""

    first: int
    last: int

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and self.first <= index <= self.last

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def after(self, steps: int) -> Window:
        """This window for a run that continues after so many steps."""
        return Window(self.first + steps, self.last + steps)

    def select(self, iterations: Iterable[Iteration]) -> tuple[Iteration, ...]:
        return tuple([item for item in iterations if self.first <= item.index <= self.last])

    def missing(self, iterations: Iterable[Iteration]) -> tuple[int, ...]:
        present = {item.index for item in iterations}
        return tuple(index for index in range(self.first, self.last + 1) if index not in present)


def read_window(text: str) -> Window:
    """``35-44``, as ``--window`` takes it.

    Raises:
        RequestError: it is not a range
    """
    match = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", text)
    if not match or int(match[1]) > int(match[2]):
        raise RequestError(f"--window {text} is not a range", remedy="give the first and the last iteration, as 35-44")
    return Window(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class Summary:
    """Statistics of at least one value; ``std`` is the sample standard deviation (n - 1), 0 for a single value."""

    count: int
    mean: float
    std: float
    median: float
    minimum: float
    maximum: float


def summarize(values: Sequence[float]) -> Summary | None:
    """None if there are no values. Values are finite."""
    if not values:
        return None
    ordered = sorted(values)
    count = len(ordered)
    mean = math.fsum(ordered) / count
    variance = math.fsum((value - mean) ** 2 for value in ordered) / (count - 1) if count > 1 else 0.0
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return Summary(count, mean, math.sqrt(variance), median, ordered[0], ordered[-1])
