"""Questions to a file system that are asked one by one where it answers at once, and together where each must wait."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_AT_ONCE = 500
_FIRST = 5
_SLOW_SECONDS = 0.0003
"""A few questions to a local disk take a tenth of it, and one round trip to a file server about as long."""
_THREADS = 16
"""Git asks with up to 20 where it looks for changed files (its setting core.preloadIndex)."""


def overlapped(ask: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
    """Yield ``ask(item)`` for each of ``items``, in order; several are asked at a time where answers are slow.

    ``ask`` is to do little but wait for a file system. On a local disk it is called in this thread alone, because
    threads then cost more than they save. Some ``items`` are taken, and some asked, before their turn. What ``ask``
    raises comes out at its item's place, and ends it.
    """
    rest = iter(items)
    while some := list(itertools.islice(rest, _AT_ONCE)):
        # Asked again for each part: newer runs may be in the client's cache, and older ones not.
        seconds = []
        for item in some[:_FIRST]:
            start = time.perf_counter()
            answer = ask(item)
            seconds.append(time.perf_counter() - start)
            yield answer
        if len(some) > _FIRST:
            together = statistics.median(seconds) > _SLOW_SECONDS
            yield from _together(ask, some[_FIRST:]) if together else map(ask, some[_FIRST:])


def _together(ask: Callable[[Item], Answer], items: list[Item]) -> Iterator[Answer]:
    """Yield ``ask(item)`` for each of ``items``, in order; all are asked by threads, which have ended at the end."""
    from concurrent.futures import ThreadPoolExecutor  # most file systems answer at once

    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            answers = pool.map(ask, items)
        except RuntimeError:  # the user may start no more threads
            answers = map(ask, items)
        yield from answers
