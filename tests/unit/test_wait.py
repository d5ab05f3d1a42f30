"""executors/wait.sh: what waits for a child while signals are handled learns how it ended."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import llmb_common.executors

WAIT = Path(llmb_common.executors.__file__).with_name("wait.sh")


def told(script: str) -> list[str]:
    """The words that ``script`` prints, errors too, with ``await`` defined."""
    text = f"set -euo pipefail\nsource '{WAIT}'\n{script}"
    done = subprocess.run(
        ["bash", "-c", text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.split()


SIGNALS_AS_IT_ENDS = """
bash -c '(sleep 0.5; kill -CONT "$PPID") > /dev/null 2>&1 &
kill -STOP "$PPID"
kill -TERM "$PPID"
exit 7' &
await $!
echo $status
"""
"""The end of the child and a signal reach its parent in one instant."""


def test_a_signal_does_not_hide_how_the_child_has_ended() -> None:
    found = told(f"trap 'echo signal >&2' TERM\n{SIGNALS_AS_IT_ENDS * 6}")
    assert found == ["signal", "7"] * 6, "each time: once may be luck"


def test_it_waits_on_after_signals() -> None:
    child = "for i in 1 2 3; do sleep 0.3; kill -TERM $PPID; done; sleep 0.5; exit 7"
    *signals, status = told(f"trap 'echo signal >&2' TERM\nbash -c '{child}' &\nawait $!\necho $status")
    assert (set(signals), status) == ({"signal"}, "7")


@pytest.mark.slow
def test_a_signal_at_any_moment_of_the_wait_is_heard() -> None:
    """With $() instead of backquotes, one in some hundred ended bash 5.2 with a syntax error."""
    quick = "sleep() { command sleep 0.001; }\nheard=0\ntrap 'heard=$((heard + 1))' TERM"
    child = "for ((i = 0; i < 2000; i++)); do kill -TERM $PPID; read -t 0.001 < <(:) || true; done; exit 7"
    heard, status = told(f"{quick}\nbash -c '{child}' &\nawait $!\necho $heard $status")
    assert int(heard) > 100
    assert status == "7"


def test_a_child_that_has_ended_before() -> None:
    ended = "(exit 7) &\nwhile kill -0 $! 2> /dev/null; do sleep 0.1; done"
    assert told(f"{ended}\nawait $!\necho $status") == ["7"]


def test_it_gives_up_where_a_trap_sets_a_verdict() -> None:
    child = "sleep 0.3; kill -USR1 $PPID; exec sleep 600"
    script = f"status=3 verdict=''\ntrap 'verdict=11' USR1\nbash -c '{child}' > /dev/null &\nawait $!"
    assert told(f"{script}\necho $status\nkill $!") == ["3"]


def test_what_ends_its_own_pauses_leaves_no_word() -> None:
    """A log in which something was killed has a cause that is none."""
    child = "for i in 1 2 3; do sleep 0.1; kill -KILL $(pgrep -P $PPID -x sleep) || true; done; exit 7"
    assert told(f"bash -c '{child}' 2> /dev/null &\nawait $!\necho $status") == ["7"]


@pytest.mark.slow
def test_after_ten_seconds_it_looks_once_a_second(tmp_path: Path) -> None:
    pauses = tmp_path / "pauses"
    pauses.touch()
    count = f"sleep() {{ echo $1 >> '{pauses}'; command sleep 0.01; }}"
    child = f"until (($(wc -l < {pauses}) > 101)); do sleep 0.1; done"
    assert told(f"{count}\ntimeout 60 bash -c '{child}' &\nawait $!\necho $status") == ["0"]
    assert pauses.read_text().split()[:102] == ["0.1"] * 100 + ["1"] * 2
