"""What signals do to a command: an error that it can clean up after, or a note for code that must not stop halfway."""

from __future__ import annotations

import signal
import threading

import pytest

from llmb_common.errors import Interrupted
from llmb_common.interruption import interruptible, noted


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_ended_raises_and_names_the_signal(number: signal.Signals) -> None:
    before = handlers()
    with pytest.raises(Interrupted, match=f"ended by {number.name}"), interruptible():
        signal.raise_signal(number)
    assert handlers() == before


def test_ctrl_c_stays_a_keyboard_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGINT)


def test_code_that_must_not_stop_halfway_sees_each_signal_in_a_list() -> None:
    before = handlers()
    with noted() as numbers:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGINT):
            signal.raise_signal(number)
        assert numbers == [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGINT]
    assert handlers() == before


def test_under_nohup_a_closed_terminal_is_still_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible(), noted() as numbers:
            signal.raise_signal(signal.SIGHUP)
        assert numbers == []
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_nothing_is_handled() -> None:
    """Python refuses handlers there; the thread's work is done all the same."""
    before, seen = handlers(), []

    def work() -> None:
        with interruptible(), noted() as numbers:
            seen.append((numbers, handlers()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [([], before)]
