"""What becomes of a command's failures: one message, one exit status, no traceback, whichever command it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from llmb_common.errors import RequestError
from llmb_common.guard import guarded


def raises(error: BaseException) -> object:
    def work() -> int:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (RequestError("no such size", remedy="use 8b"), 2, "error: no such size\n  -> use 8b\n"),
        (FileNotFoundError(2, "No such file or directory", "/x/y"), 3, "error: /x/y: No such file or directory\n  -> "),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
    ],
)
def test_every_failure_is_a_message_and_a_status(
    error: BaseException, status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(raises(error), command="jobs", as_json=True, notices=["look"]) == status
    printed = capsys.readouterr()
    assert printed.err.startswith(message)
    envelope = json.loads(printed.out)
    assert (envelope["command"], envelope["ok"], envelope["notices"]) == ("jobs", False, ["look"])
    assert envelope["error"]["exit_status"] == status


def test_a_signal_ends_it_in_order() -> None:
    def work() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
        return 0

    before = signal.getsignal(signal.SIGTERM)
    assert guarded(work) == 130
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_reader_that_has_gone_ends_it_without_a_word() -> None:
    code = "import sys; from llmb_common.guard import guarded; sys.exit(guarded(lambda: print('x' * 999_999) or 0))"
    command = f'{sys.executable} -c "{code}" | true; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "")
