"""What Ctrl-C, ``kill`` and closing the terminal do to a command.

``interruptible`` turns SIGTERM and SIGHUP into Interrupted wherever the command is (Ctrl-C is a KeyboardInterrupt).
``noted`` only records all three, for code that must not be left halfway and checks for them itself.
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
    """Wrap a whole command: SIGTERM and SIGHUP raise Interrupted in it."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted(f"ended by {signal.Signals(number).name}")

    with _handled((signal.SIGTERM, signal.SIGHUP), interrupt):
        yield


@contextlib.contextmanager
def noted() -> Iterator[list[int]]:
    """Collect signals in a list as they arrive; they have no other effect.

    Only the main thread receives signals; in any other, the list stays empty.
    """
    numbers: list[int] = []
    with _handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), lambda number, frame: numbers.append(number)):
        yield numbers


@contextlib.contextmanager
def _handled(numbers: tuple[signal.Signals, ...], handler: _Handler) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Signals that are ignored stay ignored: SIGHUP under nohup, Ctrl-C for a script's background jobs.
    former = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    for number in former:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)
