"""submission/supervise.sh under a simulated clock: which steps it ends, when and as what.

The functions are the real ones; only ``pause`` advances a clock instead of sleeping, ``look`` is told which iterations
have ended by then, and ``kill`` and ``event`` print. One bash goes through many runs.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_low

import pytest

import llmb_common.executors
import llmb_common.submission
from llmb_common.runs.timing.job_events import read_events
from support.iteration_logs import mbridge_line, step_time
from support.properties import HealthCheck, given, settings, st
from support.texts import Texts

WAIT = Path(llmb_common.executors.__file__).with_name("wait.sh")
APPEND = WAIT.with_name("append.sh")
SUPERVISE = Path(llmb_common.submission.__file__).with_name("supervise.sh")
FEW = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))

PRELUDE = r"""
set -euo pipefail
export LLMB_RUN_DIR=$PWD
job=1 nodes=n1 restarts=0 late_signals=0 tell_seconds=0 limit_seconds=0 log=$PWD/log
step_status() { echo "$1"; }
preempted() { false; }
source "$3"
source "$2"
source "$1"
begin
"""

SIMULATED = r"""
pause() {
  SECONDS=$RANDOM$RANDOM  # the machine's clock means nothing: it jumps, and a job may be suspended
  clock=$((clock + $1))
  if ((step_ends > 0 && clock >= step_ends)); then echo "step ended"; exit 0; fi
}
look() {
  if ((clock > 200000 || looks++ > 20000)); then echo "never ended"; exit 1; fi
  while ((${#ends[@]} > at && ends[at] <= clock)); do
    iteration "${index[at]}" "$steps_of_run" "${ms[at]}"
    at=$((at + 1))
  done
}
kill() {
  [[ $1 == -0 ]] || echo "$clock $1 $2"
  case $1 in -TERM) told=$clock ;; -KILL) dies_after=0 ;; esac
  ((clock < told + dies_after))  # else there is no such process any more
}
event() { echo "$clock $1 $2"; }
disk_is_full() { ((clock >= ${FULL_FROM:-1} && clock < ${FULL_UNTIL:-0})); }

while read -r LLMB_WATCH_SECONDS start_seconds hang_seconds teardown_seconds step_ends dies_after steps_of_run rest; do
  clock=0 looks=0 at=0 ends=() index=() ms=()
  for word in $rest; do
    IFS=: read -r end number time <<< "$word"
    ends+=("$end") index+=("$number") ms+=("$time")
  done
  supervise 4242 &
  wait "$!" || echo "status $?"
  echo .
done
"""


@dataclass(frozen=True)
class Run:
    """One start of a job. ``iterations``: when each ends, in seconds from the start of the step, its number and the
    milliseconds that it says. ``ends``: when the step ends by itself; 0: never."""

    iterations: tuple[tuple[int, int, int], ...] = ()
    steps: int = 50
    ends: int = 0
    dies_after: int = 5
    """Seconds from SIGTERM to the end of the step."""
    poll: int = 0
    """0: as often as the script does if nobody says otherwise."""
    start: int = 1200
    hang: int = 600
    teardown: int = 300

    @property
    def patience(self) -> int:
        """Seconds from the last iteration in which nothing may be done, as the documentation has it."""
        if not self.iterations:
            return self.start
        if self.iterations[-1][1] == self.steps:
            return self.teardown
        return max(self.hang, 20 * median_low([ms for _, _, ms in self.iterations[:99]]) // 1000)

    @property
    def last_seen(self) -> int:
        return self.iterations[-1][0] if self.iterations else 0

    def line(self) -> str:
        words = [self.poll, self.start, self.hang, self.teardown, self.ends, self.dies_after, self.steps]
        return " ".join([*map(str, words), *(f"{end}:{index}:{ms}" for end, index, ms in self.iterations)])


def bash(folder: Path, script: str, given: str = "", **environment: str) -> str:
    command = ["bash", "-c", PRELUDE + script, "bash", str(SUPERVISE), str(WAIT), str(APPEND)]
    environment = {"PATH": "/usr/bin:/bin", **environment}
    done = subprocess.run(command, cwd=folder, env=environment, input=given, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("supervised")


def outcomes(folder: Path, *runs: Run, **environment: str) -> list[list[str]]:
    """What was done to each of ``runs``, line by line."""
    printed = bash(folder, SIMULATED, "".join(f"{run.line()}\n" for run in runs), **environment)
    return [text.split("\n")[:-1] for text in printed.split(".\n")[:-1]]


def outcome(folder: Path, run: Run) -> list[str]:
    (found,) = outcomes(folder, run)
    return found


@st.composite
def healthy(draw: st.DrawFn) -> Run:
    """Each iteration ends within its patience: slow and quick models, checkpoints between them, requeued and resumed
    at any iteration."""
    run = Run(
        poll=draw(st.sampled_from([15, 70, 400])),
        start=draw(st.integers(1, 3000)),
        hang=draw(st.integers(1, 2000)),
        teardown=draw(st.integers(1, 600)),
        dies_after=draw(st.sampled_from([0, 1, 59, 60, 61, 1000])),
    )
    first = draw(st.integers(1, 40))
    usual = draw(st.sampled_from([50, 5_000, 60_000, 200_000]))
    for number in range(first, first + draw(st.integers(0, 8))):
        gap = draw(st.one_of(st.just(run.patience), st.integers(0, run.patience)))
        ms = draw(st.integers(usual // 2, usual * 2))
        run = replace(run, iterations=(*run.iterations, (run.last_seen + gap, number, ms)))
    finished = bool(run.iterations) and draw(st.booleans())
    run = replace(run, steps=run.iterations[-1][1] if finished else 50)
    return replace(run, ends=run.last_seen + draw(st.integers(1, run.patience)))


@pytest.mark.slow
@FEW
@given(runs=st.lists(healthy(), min_size=20, max_size=30))
def test_no_run_is_ended_whose_next_iteration_comes_within_its_patience(folder: Path, runs: list[Run]) -> None:
    assert outcomes(folder, *runs) == [["step ended"]] * len(runs)


@pytest.mark.slow
@FEW
@given(runs=st.lists(healthy(), min_size=20, max_size=30))
def test_every_run_is_ended_that_has_stopped(folder: Path, runs: list[Run]) -> None:
    runs = [replace(run, ends=0) for run in runs]
    for run, (recorded, term, *rest) in zip(runs, outcomes(folder, *runs), strict=True):
        last = run.iterations[-1][1] if run.iterations else 0
        at, what, number = recorded.split()
        assert (what, int(number)) == ("teardown" if last == run.steps else "hang", last)
        assert run.last_seen + run.patience < int(at) <= run.last_seen + run.patience + 2 * run.poll
        assert term == f"{at} -TERM 4242"
        killed = [f"{int(at) + 60} -KILL 4242"] if run.dies_after > 60 else []
        assert rest == [*killed, f"status {10 if last == run.steps else 11}"]


def test_a_step_is_ended_also_where_that_cannot_be_recorded(tmp_path: Path) -> None:
    """The disk is full: that may be why it hangs."""
    blind = "exec 2> /dev/null; rm events.jsonl; mkdir events.jsonl\n"
    script = blind + SIMULATED.replace('event() { echo "$clock $1 $2"; }', "")
    assert bash(tmp_path, script, f"{Run().line()}\n") == "1215 -TERM 4242\nstatus 11\n.\n"


def steps_of(*ms: int) -> tuple[tuple[int, int, int], ...]:
    """Iterations that end 10 s apart."""
    return tuple((10 * number, number, milliseconds) for number, milliseconds in enumerate(ms, 1))


@pytest.mark.parametrize(
    ("run", "ended"),
    [
        (Run(), 1215),  # what is longer than 1200 s, looked at every 15 s
        (Run(((1195, 1, 50),)), 1815),
        (Run(((1195, 1, 50),), steps=1), 1515),
        # 20 times the median, of an odd and of an even number of iterations, in any order
        (Run(steps_of(90_000, 70_000, 80_000)), 30 + 1600 + 15),
        (Run(steps_of(90_000, 70_000, 80_000, 60_000)), 45 + 1400 + 15),
        (Run(steps_of(30_000, 30_001)), 30 + 600 + 15),
        # one that is slow because it wrote a checkpoint or compiled changes little
        (Run(steps_of(500_000, 40_000, 40_000)), 30 + 800 + 10),
        # later ones are no longer sorted in
        (Run(steps_of(*[40_000] * 50, *[60_000] * 49, 90_000, 90_000), steps=200), 1020 + 800 + 10),
    ],
)
def test_the_end_comes_at_the_next_look_after_its_patience(folder: Path, run: Run, ended: int) -> None:
    recorded, *_ = outcome(folder, run)
    assert ended - 15 < int(recorded.split()[0]) <= ended


def test_an_iteration_that_the_log_repeats_is_no_sign_of_life(folder: Path) -> None:
    again = Run(((30, 7, 1000), (400, 7, 1000), (600, 6, 1000)))
    assert outcome(folder, again)[0] == "645 hang 7"


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("1", "1"),
        ("999999999", "999999999"),
        ("", "7"),
        ("0", "7"),
        ("08", "8"),
        ("1234567890", "7"),
        ("1 ", "1"),
        ("x", "7"),
    ],
)
def test_a_limit_of_the_environment_counts_where_it_is_a_number(folder: Path, given: str, used: str) -> None:
    assert bash(folder, "seconds LLMB_HANG_SECONDS 7", LLMB_HANG_SECONDS=given) == f"{used}\n"


@pytest.mark.parametrize(
    ("name", "run", "ended"),
    [
        ("LLMB_START_SECONDS", Run(), 120),
        ("LLMB_HANG_SECONDS", Run(((15, 1, 50),)), 135),
        ("LLMB_TEARDOWN_SECONDS", Run(((15, 1, 50),), steps=1), 135),
    ],
)
def test_each_limit_can_be_set_before_the_job_is_submitted(folder: Path, name: str, run: Run, ended: int) -> None:
    printed = bash(folder, SIMULATED, f"{run.line()}\n", **{name: "110"})
    assert printed.split()[0] == str(ended)


@pytest.mark.parametrize(
    ("until", "late", "done"),
    [
        # The step has as long again, and again when there is room.
        ("9999", (), "630 disk-full 1, 1245 -TERM 4242, status 12"),
        ("1000", (), "630 disk-full 1, 1245 disk-room 1, 1860 hang 1, 1860 -TERM 4242, status 11"),
        ("1000", ((1400, 9, 50),), "630 disk-full 1, 1245 disk-room 1, 2025 hang 9, 2025 -TERM 4242, status 11"),
        ("600", (), "630 hang 1, 630 -TERM 4242, status 11"),
    ],
)
def test_a_log_that_cannot_grow_is_no_hang(
    folder: Path, until: str, late: tuple[tuple[int, int, int], ...], done: str
) -> None:
    run = Run(((15, 1, 50), *late))
    assert outcomes(folder, run, FULL_FROM="20", FULL_UNTIL=until) == [done.split(", ")]


def test_a_full_disk_has_an_event_all_the_same(tmp_path: Path, texts: Texts) -> None:
    """What cannot be appended is written over room that the start has taken; half a line takes no other with it."""
    script = """trap - EXIT
        disk_is_full || echo room
        ln -s /dev/full .room && disk_is_full && echo full
        printf '{"event":"si' >> events.jsonl
        mv events.jsonl kept; mkdir events.jsonl; event disk-full 12 2> /dev/null
        rmdir events.jsonl; mv kept events.jsonl
        event end 28"""
    assert bash(tmp_path, script) == "room\nfull\n"
    found = read_events(tmp_path / "events.jsonl")
    assert (found.full, found.exit_code) == (True, 28)
    texts(found.problem)
    assert (tmp_path / "events.spare").stat().st_size == len("n1") + 401


@pytest.mark.parametrize(
    ("left", "between"),
    [("", ""), (r"\0\0", "\0\0\n"), ('{"event":"si', '{"event":"si\n'), (r'{"event":"si\0', '{"event":"si\0\n')],
)
def test_an_event_begins_a_line_whatever_a_node_left_that_died(tmp_path: Path, left: str, between: str) -> None:
    assert bash(tmp_path, f"trap - EXIT\nprintf '{left}' >> events.jsonl\nrestarts=1 event start null") == ""
    first, _, second = (tmp_path / "events.jsonl").read_text().partition("\n")
    assert json.loads(first)["restart"] == 0
    assert second.startswith(between)
    assert json.loads(second.removeprefix(between))["restart"] == 1
    assert read_events(tmp_path / "events.jsonl").restarts == 1


@pytest.mark.parametrize(("seen", "status"), [("", 124), (mbridge_line(3, 3), 0)])
def test_nobody_waits_for_a_step_that_not_even_sigkill_ends(tmp_path: Path, seen: str, status: int) -> None:
    """A process that waits for a file server which is away."""
    script = """trap 'echo "$?"; builtin kill "$step"; exit 0' EXIT
        start_seconds=1 hang_seconds=1 teardown_seconds=1 kernel=true LLMB_WATCH_SECONDS=1
        kill() { [[ $1 == -TERM || $1 == -KILL ]] || builtin kill "$@"; }
        gone() { return 1; }
        on_nodes() { :; }
        cat seen >> "$log"
        sleep 60 &> /dev/null & step=$!
        follow "$step" """
    (tmp_path / "seen").write_text(seen)
    assert bash(tmp_path, script) == f"{status}\n"


READING = r"""
iteration() { echo "$*"; }
offset=$first
for part in parts/*; do
  cat "$part" >> "$log"
  look
done
"""


@settings(FEW, max_examples=4)
@given(data=st.data())
def test_each_iteration_is_read_once_it_is_whole_however_the_log_is_cut(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("read")
    noise = ["NCCL INFO iteration 9/ 9 of what\n", step_time(), "x" * 5000 + "\n", "[rank1]: größe ", "\n"]
    text, expected = "", []
    for index in range(4, 12):
        text += "".join(data.draw(st.lists(st.sampled_from(noise), max_size=3)))
        ms = data.draw(st.sampled_from(["7.5", "5741.5", "123456.0", "81"]))
        text += mbridge_line(index, 12, milliseconds=ms)
        expected.append(f"{index} 12 {ms.partition('.')[0]}")
    content = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(content) - 1), max_size=20)))
    (folder / "parts").mkdir()
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(content)], strict=True)):
        (folder / "parts" / f"{number:02}").write_bytes(content[start:end])
    # What an earlier start of the job left, up to a line that its node's death cut.
    (folder / "log").write_text("".join(mbridge_line(index, 12) for index in range(1, 8))[:-50])
    assert list(dict.fromkeys(bash(folder, READING).splitlines())) == expected


def test_a_log_that_cannot_be_read_for_a_moment_is_read_later(folder: Path) -> None:
    script = 'iteration() { echo "$*"; }\noffset=$first\nmv "$log" gone\nlook 2> /dev/null\nmv gone "$log"\n'
    (folder / "line").write_text(mbridge_line(3, 9, milliseconds="5.5"))
    assert bash(folder, script + 'cat line >> "$log"\nlook') == "3 9 5\n"


def test_what_is_far_above_in_a_long_log_is_not_read_again(folder: Path) -> None:
    script = 'iteration() { echo "$*"; }\noffset=$first\ncat line >> "$log"\nlook\nprintf "%05000d\\n" 0 >> "$log"\n'
    (folder / "line").write_text(mbridge_line(3, 9, milliseconds="5.5"))
    assert bash(folder, script + "look; echo again; look") == "3 9 5\n3 9 5\nagain\n"


def test_nobody_waits_for_what_is_gone(folder: Path) -> None:
    processes = 'kill() { return 1; }; pause() { echo "paused $1"; }; '
    assert bash(folder, f"{processes} gone 4242 60 && echo gone") == "gone\n"


def test_pauses_are_real(folder: Path) -> None:
    before = 'exec 9<> <(:); printf -v before "%(%s)T" -1; pause 2; printf -v after "%(%s)T" -1; '
    assert int(bash(folder, f'{before} echo "$((after - before))"')) >= 1


def test_the_record_is_one_object_for_each_event(folder: Path) -> None:
    (folder / "events.jsonl").unlink(missing_ok=True)
    bash(folder, "trap - EXIT; event hang 12", LLMB_X="")
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    kept = [{key: event[key] for key in ("event", "job_id", "nodes", "restart", "exit_code")} for event in events]
    same = {"job_id": "1", "nodes": "n1", "restart": 0}
    assert kept == [{"event": "start", **same, "exit_code": None}, {"event": "hang", **same, "exit_code": 12}]
    assert all(event["time"] > 1_700_000_000 and event["pid"] > 0 for event in events)


@pytest.mark.parametrize(
    ("age", "limit", "last", "idle", "asks"),
    [
        (3550, 3600, 7, 40, True),
        (3550, 3600, 7, 20, False),  # it may still come
        (3550, 3600, 7, 30, False),  # no longer than five iterations
        (3500, 3600, 7, 40, False),  # there is time
        (3550, 3600, 0, 40, False),  # ranks that start wait for each other for long
        (3550, 0, 7, 40, False),  # nobody ends the job, or ranks save
    ],
)
def test_ranks_that_are_stuck_are_asked_before_the_time_limit(
    tmp_path: Path, age: int, limit: int, last: int, idle: int, asks: bool
) -> None:
    state = f"began=$(($(date +%s) - {age})) limit_seconds={limit} last={last} idle={idle} median=6000"
    script = f"{PRELUDE}\n{state}\nif at_the_limit; then echo asked; fi"
    command = ["bash", "-c", script, "bash", SUPERVISE, WAIT, APPEND]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == ("asked\n" if asks else ""), done.stderr


def test_they_are_asked_once(folder: Path) -> None:
    near = 'at_the_limit() { ((clock >= 100)); }\nask_ranks() { echo "$clock asked $1"; }\n'
    printed = bash(folder, near + SIMULATED, f"{Run(ends=200).line()}\n")
    assert printed.partition(".\n")[0].splitlines() == ["105 asked 4242", "step ended"]
