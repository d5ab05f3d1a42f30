"""Questions to a file system are asked in order and by one thread, or by several where answers are slow."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import pytest

from llmb_common.base.overlap import overlapped

MANY = 1_200
"""More than are taken at a time, twice."""


class Asked:
    """A function that answers with its number, and remembers by whom it was asked."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.seconds = seconds
        self.threads: dict[int, int] = {}

    def __call__(self, number: int) -> str:
        self.threads[number] = threading.get_ident()
        if wait := self.seconds(number):
            time.sleep(wait)
        return f"answer {number}"


def test_one_thread_asks_a_local_disk() -> None:
    ask = Asked(lambda _: 0.0)
    assert list(overlapped(ask, iter(range(MANY)))) == [f"answer {number}" for number in range(MANY)]
    assert set(ask.threads.values()) == {threading.get_ident()}


def test_threads_wait_together_for_a_file_server_and_end() -> None:
    before = threading.active_count()
    ask = Asked(lambda _: 0.002)
    # None could end before all have begun: only threads that wait together get past.
    together = threading.Barrier(8, timeout=30)

    def meet(number: int) -> str:
        if 10 <= number < 18:
            together.wait()
        return ask(number)

    assert list(overlapped(meet, range(40))) == [f"answer {number}" for number in range(40)]
    assert threading.active_count() == before


def test_each_part_is_looked_at_anew() -> None:
    """The newest runs are in the client's cache, and the older ones are not."""
    ask = Asked(lambda number: 0.002 if number >= 500 else 0.0)
    assert list(overlapped(ask, range(600))) == [f"answer {number}" for number in range(600)]
    here = threading.get_ident()
    assert {ask.threads[number] for number in range(500)} == {here}
    assert here not in {ask.threads[number] for number in range(510, 600)}


@pytest.mark.parametrize("seconds", [0.0, 0.002], ids=["disk", "server"])
def test_an_error_comes_out_at_its_place(seconds: float) -> None:
    def ask(number: int) -> int:
        time.sleep(seconds)
        if number == 12:
            raise ValueError("item 12")
        return number

    answers = overlapped(ask, range(40))
    assert list(itertools.islice(answers, 12)) == list(range(12))
    with pytest.raises(ValueError, match="item 12"):
        next(answers)


def test_where_no_thread_may_be_started_one_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login node limits the processes of a user, and threads are such."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    ask = Asked(lambda _: 0.002)
    assert list(overlapped(ask, range(40))) == [f"answer {number}" for number in range(40)]
    assert set(ask.threads.values()) == {threading.get_ident()}


@pytest.mark.parametrize("count", [0, 1, 5])
def test_few_items(count: int) -> None:
    assert list(overlapped(str, range(count))) == [str(number) for number in range(count)]
