"""What Ctrl-C, ``kill`` and a terminal that is closed do to a command.

``interruptible`` makes Interrupted of SIGTERM and SIGHUP, wherever the command is (Ctrl-C is a KeyboardInterrupt).
``noted`` only notes all three, for code that must not be left in the middle: it asks.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from llmb_common.errors import Interrupted

_Handler = Callable[[int, FrameType | None], None]


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Around a whole command: SIGTERM and SIGHUP raise Interrupted in it."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted(f"ended by {signal.Signals(number).name}")

    with _handled((signal.SIGTERM, signal.SIGHUP), interrupt):
        yield


@contextlib.contextmanager
def noted() -> Iterator[list[int]]:
    """The signals that have come so far, in a list that grows; nothing else happens by them.

    Outside the main thread, which gets them, the list stays empty.
    """
    numbers: list[int] = []
    with _handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), lambda number, frame: numbers.append(number)):
        yield numbers


@contextlib.contextmanager
def _handled(numbers: tuple[signal.Signals, ...], handler: _Handler) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # What is ignored stays so: nohup, and Ctrl-C for what a script started in the background.
    former = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    for number in former:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)
