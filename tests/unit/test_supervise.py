"""How a batch script judges the end of its step: really run, with an srun that ends in various ways.

What submission/supervise.sh, slurm/job.sh and local/job.sh do around the step. When one counts as hung is for
test_supervise_clock.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import pytest

from llmb_common.runs.record import RunRecord
from llmb_common.submission.single import create_run
from support.iteration_logs import mbridge_line
from support.processes import wait_until
from support.run_site import RunSite
from support.runs import PUBLISHED, make_run

SCANCEL = """[[ $* == "--signal="*" $(cat "$LLMB_RUN_DIR/claim")" ]] &&
signal=${1#--signal=} && kill -"$signal" "$(cat "$LLMB_RUN_DIR/rank")\""""
"""Signals the rank whose PID is in the run's folder, if the job is named as squeue names it."""
Ended: TypeAlias = tuple[int, list[tuple[str, int | None]]]
"""The exit code of a script, and its events."""


def with_supervisor(record: RunRecord, change: Callable[[str], str]) -> None:
    """Give a run another supervisor, and a script that was made with it."""
    before = record.paths.supervisor.read_text()
    after = change(before)
    assert after != before
    record.paths.supervisor.write_text(after)
    hashes = [hashlib.sha256(text.encode()).hexdigest() for text in (before, after)]
    record.paths.script.write_text(record.paths.script.read_text().replace(*hashes))


def run_script(
    folder: Path,
    srun: str,
    log: str = "",
    *,
    on_nodes: str = "exit 0",
    show_job: str = "exit 1",
    check: str = "",
    **given: str,
) -> Ended:
    """The exit code of a Slurm job script whose step runs ``srun`` (bash), and its record of events.

    ``on_nodes`` is what srun does when the nodes' kernels are to be asked, ``show_job`` what scontrol says of the job,
    ``check`` what checks the nodes before training, if that is asked for. What scontrol is told is in ``told``.
    A step that is told to end is told again every second.
    """
    install = folder / "install"
    install.mkdir()
    asked = PUBLISHED | ({"CHECK_FABRIC": "true"} if check else {})
    record = make_run(install, state="SUBMITTED", log=log, variables=asked)
    programs = folder / "bin"
    programs.mkdir()
    with_supervisor(record, lambda text: text.replace("\ntell_seconds=10\n", "\ntell_seconds=1\n"))
    step = f"if [[ $1 == --overlap ]]; then {on_nodes}; fi\n{srun}"
    scontrol = f"if [[ $* == 'show job 7 --oneliner' ]]; then {show_job}; fi\n"
    scontrol += f'echo "$*" >> {folder}/told\necho NodeAddr=localhost'
    given = {"LLMB_PYTHON": str(programs / "python"), **given}
    for name, text in (("srun", step), ("scontrol", scontrol), ("scancel", SCANCEL), ("python", check)):
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", **given}
    with record.paths.batch_log.open("ab") as output:
        output.write(b"srun: error: n9: task 0: Exited with exit code 55\n")  # of an earlier start of this job
        output.flush()
        script = ["bash", str(record.paths.script)]
        status = subprocess.run(script, env=environment, stdout=output, stderr=output, check=False).returncode
    events = [json.loads(line) for line in record.paths.events.read_text().splitlines()]
    return status, [(event["event"], event["exit_code"]) for event in events]


ENDED = "srun: error: n2: tasks 0-6,8-15: Exited with exit code 143"


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (("srun: error: n1: task 3: Exited with exit code 9", ENDED), 9),
        (("srun: error: n1: tasks 0-7: Exited with exit code 1", ENDED), 1),
        (("srun: error: n1: task 3: Killed", ENDED), 137),
        (("srun: error: n1: task 3: Segmentation fault (core dumped)", ENDED), 139),
        (("srun: error: n1: task 3: Out Of Memory", ENDED), 137),
        (("srun: error: n1: task 3: Aborted", ENDED), 134),
    ],
)
def test_the_rank_that_failed_first_gives_the_exit_code(tmp_path: Path, said: tuple[str, ...], status: int) -> None:
    lines = "\n".join(f"echo '{line}' >&2" for line in said)
    assert run_script(tmp_path, f"{lines}\nexit 143") == (status, [("start", None), ("end", status)])


@pytest.mark.parametrize(("srun", "status"), [(1, 137), (0, 0)])
def test_only_a_failed_step_is_asked_which_rank_it_was(tmp_path: Path, srun: int, status: int) -> None:
    said = f"echo 'srun: error: n1: task 3: Killed' >&2\nexit {srun}"
    assert run_script(tmp_path, said) == (status, [("start", None), ("end", status)])


@pytest.mark.parametrize(("said", "status"), [("srun: error: n1: task 3: Killed", 137), ("", 1)])
def test_a_batch_log_that_is_not_there_at_first_or_at_all(tmp_path: Path, said: str, status: int) -> None:
    record = make_run(tmp_path, state="SUBMITTED", log="")
    write = f"echo '{said}' > {record.paths.batch_log}" if said else ""
    for name, text in (("srun", f"{write}\nexit 1"), ("scontrol", "echo NodeAddr=localhost")):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}
    assert subprocess.run(["bash", str(record.paths.script)], env=environment, check=False).returncode == status


def test_success_is_success(tmp_path: Path) -> None:
    assert run_script(tmp_path, "exit 0") == (0, [("start", None), ("end", 0)])


SOON = {"LLMB_WATCH_SECONDS": "1", "LLMB_START_SECONDS": "3", "LLMB_HANG_SECONDS": "1", "LLMB_TEARDOWN_SECONDS": "1"}
STAYS = "trap 'exit 9' TERM\nfor ((i = 0; i < 300; i++)); do sleep 0.1; done\n"


def printing(*indices: int, steps: int = 5) -> str:
    lines = "".join(mbridge_line(index, steps, milliseconds=10) for index in indices)
    return f"cat >> \"$LLMB_RUN_DIR/$LLMB_EXPERIMENT/log-$LLMB_EXPERIMENT.out\" << 'LINES'\n{lines}LINES\n"


NO_STEP = f"echo 'srun: error: Unable to create step for job 7: Invalid\n{ENDED}' >&2\nexit 143"
LATE = 'script=$PPID; (sleep 1; kill -TERM "$script") > /dev/null 2>&1 & exit 143'
SIGNALLED = """
trap 'exit 9' TERM
bash -c 'trap "trap : TERM; sleep 2; touch $LLMB_RUN_DIR/saved; exit 0" TERM
touch "$LLMB_RUN_DIR/trains"
for ((i = 0; i < 300; i++)); do sleep 0.1; done' &
echo $! > "$LLMB_RUN_DIR/rank"
(until [[ -e $LLMB_RUN_DIR/trains ]]; do sleep 0.1; done; sleep 1; kill -TERM "$PPID") > /dev/null 2>&1 &
wait %1
"""
STARTING = """
trap 'exit 9' TERM
bash -c 'trap "" TERM; sleep 3; trap "touch $LLMB_RUN_DIR/saved; exit 0" TERM
for ((i = 0; i < 300; i++)); do sleep 0.1; done' &
echo $! > "$LLMB_RUN_DIR/rank"
(sleep 0.5; kill -TERM "$PPID") > /dev/null 2>&1 &
wait %1
"""
"""A rank that ignores the signal while it starts."""
EARLIER = mbridge_line(4, 5) + mbridge_line(5, 5)
"""What an earlier start has left in the log, its last iteration too."""
ASKED = """
mkdir -p "$LLMB_RUN_DIR/ranks"
echo $$ > "$LLMB_RUN_DIR/rank"
trap 'echo stack >> "$LLMB_RUN_DIR/ranks/0.txt"' URG
trap 'cp "$LLMB_RUN_DIR/ranks/0.txt" "$LLMB_RUN_DIR/before"; exit 9' TERM
for ((i = 0; i < 300; i++)); do sleep 0.1; done
"""
ARRAY = {"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "3"}

WAITING: dict[str, tuple[str, dict[str, str], int, tuple[tuple[str, int | None], ...]]] = {
    "no step, and a signal may still come": (NO_STEP, {}, 143, ()),
    "no word of srun's": ("exit 143", {}, 143, ()),
    # Slurm signals a step and its script one after the other, with a long gap under load.
    "a signal that the step had first": (LATE, {}, 143, (("signal", None),)),
    # A step that stays is ended, and its end is not what counts.
    "no iteration": (STAYS, SOON, 124, (("hang", 0),)),
    "hung": (printing(1, 2) + STAYS, SOON, 124, (("hang", 2),)),
    "no exit": (printing(4, 5) + STAYS, SOON, 0, (("teardown", 5),)),
    "an end of its own": (printing(1, 2) + "sleep 1\nexit 3", {"LLMB_WATCH_SECONDS": "1"}, 3, ()),
    # By way of Slurm: srun would kill ranks, which may take their time to save.
    "saving": (SIGNALLED, {}, 0, (("signal", None),)),
    # By its number alone, the last task of an array would stand for all.
    "saving, of an array": (SIGNALLED, ARRAY, 0, (("signal", None),)),
    "saving, told while it started": (STARTING, {}, 0, (("signal", None),)),
    "asked where they are": (printing(1, 2) + ASKED, SOON, 124, (("hang", 2),)),
}
"""Steps (bash), variables, the exit code of the script, and its events between start and end."""


@pytest.fixture(scope="module")
def waited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Path, Ended]]]:
    """The folder of each of ``WAITING``, and how it ended: all at once, because they mostly sleep."""
    with ThreadPoolExecutor(len(WAITING)) as pool:
        folders = {name: tmp_path_factory.mktemp("waiting") for name in WAITING}
        ended = {
            name: pool.submit(run_script, folders[name], step, EARLIER, **variables)
            for name, (step, variables, _, _) in WAITING.items()
        }
        yield {name: (folders[name], future.result()) for name, future in ended.items()}


def running(folder: Path) -> list[str]:
    """Processes whose command line names a file in ``folder``: scripts, and parts of them that go on alone."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{folder}/".encode() in file.read_bytes():
                found.append(file.parent.name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", WAITING)
def test_a_step_that_takes_its_time_to_end(waited: dict[str, tuple[Path, Ended]], name: str) -> None:
    folder, found = waited[name]
    _, _, status, events = WAITING[name]
    assert found == (status, [("start", None), *events, ("end", status)])
    assert bool(list(folder.rglob("saved"))) is name.startswith("saving")
    if ("signal", None) in events:
        wait_until(lambda: running(folder) == [], "the end of what tells it to end", timeout=20)
    if name == "asked where they are":
        (answer,) = folder.rglob("before")
        assert answer.read_text() == "stack\n", "before the step is ended"


RUNS = (
    "echo asked >> $LLMB_RUN_DIR/asked; echo JobId=7 JobState=RUNNING Reason=None PreemptTime=2026-11-28T20:35:00 X=1"
)
GONE = "echo JobId=7 JobState=PENDING Reason=BeginTime PreemptTime=None X"
PREEMPTED = f"if [[ -e $LLMB_RUN_DIR/gone ]]; then {GONE}; else {RUNS}; fi; exit 0"
"""What scontrol says of a job that is preempted, until Slurm has taken its nodes."""
SOON_GONE = """
(until grep -q '"preempted"' "$LLMB_RUN_DIR/events.jsonl"; do sleep 0.1; done
sleep 1; kill -TERM "$PPID"; sleep 1; touch "$LLMB_RUN_DIR/gone"; kill -TERM "$PPID") > /dev/null 2>&1 &
"""
"""A signal that is a warning, and one that is the end."""


@pytest.mark.parametrize("status", [0, 1])
def test_a_preempted_job_leaves_its_end_to_slurm(tmp_path: Path, status: int) -> None:
    """It asks once after the step, and once for each signal. Had it ended by itself, it would not be queued again."""
    step = f"{printing(1, 2)}{SOON_GONE}exit {status}"
    ended = run_script(tmp_path, step, EARLIER, show_job=PREEMPTED)
    assert ended == (status, [("start", None), ("preempted", None), ("end", status)])
    (asked,) = tmp_path.rglob("asked")
    assert asked.read_text().split() == ["asked"] * 2, "and a third time, when it was gone"


@pytest.mark.parametrize(
    ("log", "show_job"),
    [
        (printing(4, 5), PREEMPTED),
        (printing(1, 2), f"{RUNS.replace('2026-11-28T20:35:00', 'None')}; exit 0"),
        (printing(1, 2), f"{GONE}; exit 0"),
        (printing(1, 2), "exit 1"),
    ],
    ids=["all steps are trained", "not preempted", "already taken", "no answer"],
)
def test_what_does_not_wait_for_slurm(tmp_path: Path, log: str, show_job: str) -> None:
    assert run_script(tmp_path, f"{log}exit 0", show_job=show_job) == (0, [("start", None), ("end", 0)])


def test_a_second_job_of_the_same_run_does_nothing(tmp_path: Path) -> None:
    found = run_script(tmp_path, 'cp "$LLMB_RUN_DIR/claim" "$LLMB_RUN_DIR/mine"')
    assert found == (0, [("start", None), ("end", 0)])
    (claim,) = tmp_path.rglob("claim")
    assert claim.read_text() == "7\n"
    script = next(tmp_path.rglob("*.sbatch"))
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SLURM_JOB_NUM_NODES": "1"}

    def status(job: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", str(script)], env={**environment, "SLURM_JOB_ID": job}, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr

    code, said = status("8")
    assert (code, said.count("\n"), re.findall(r"\d+", said)) == (125, 1, ["7", "8"]), "whose it is, who asked"
    assert status("7")[0] == 0, "a requeued job keeps it"
    events = [json.loads(line) for line in claim.with_name("events.jsonl").read_text().splitlines()]
    assert [(event["event"], event["job_id"]) for event in events[2:]] == [
        ("duplicate", "8"),
        ("start", "7"),
        ("end", "7"),
    ]


def test_a_task_of_an_array_is_called_as_squeue_calls_it(tmp_path: Path) -> None:
    given = {"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "2"}
    assert run_script(tmp_path, "exit 0", SLURM_JOB_NODELIST="n[1-2]", **given)[0] == 0
    (events,) = tmp_path.rglob("events.jsonl")
    for line in events.read_text().splitlines():
        event = json.loads(line)
        assert (event["job_id"], event["nodes"], event["restart"]) == ("40_3", "n[1-2]", 2)


@pytest.mark.parametrize("exit_code", [0, 143])
def test_a_job_of_this_machine_is_known_by_its_process_and_waits_for_no_signal(tmp_path: Path, exit_code: int) -> None:
    record = create_run(RunSite(tmp_path, "local").plan(), b"", {})
    for name, text in (("hostname", "exit 1"), ("sleep", f"echo $1 >> {tmp_path}/slept")):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "STANDIN_EXIT": str(exit_code), "SLURM_RESTART_COUNT": "2"}
    script = subprocess.Popen(["bash", str(record.paths.script)], env=variables)
    assert script.wait() == exit_code
    events = [json.loads(line) for line in record.paths.events.read_text().splitlines()]
    assert [(event["event"], event["exit_code"]) for event in events] == [("start", None), ("end", exit_code)]
    same = {"job_id": f"local-{script.pid}", "pid": script.pid, "nodes": "", "restart": 2}
    assert all(event.items() >= same.items() for event in events)
    assert "5" not in (tmp_path / "slept").read_text().split()


def test_the_kernels_of_the_nodes_are_asked_after_a_failure_alone(tmp_path: Path) -> None:
    """With the time of the start and the folder for what they say."""
    for number, (status, times) in enumerate(((3, 1), (0, 0))):
        folder = tmp_path / str(number)
        folder.mkdir()
        run_script(folder, f"exit {status}", on_nodes='printf "%s\\n" "${@: -2}" > "$LLMB_RUN_DIR/asked"; exit 0')
        asked = [file.read_text().split() for file in folder.rglob("asked")]
        assert len(asked) == times
        assert all(time.isdigit() and nodes.endswith("/nodes") for time, nodes in asked)


FOLLOWED = """
until ((0x$(sed -n 's/^SigCgt:\\s*//p' /proc/$PPID/status) & 1 << 14)); do sleep 0.1; done
"""
"""Waits until the script has a trap for SIGTERM."""
IN_THE_GRACE: dict[str, tuple[str, str]] = {
    "told to end": (f'{FOLLOWED}kill -TERM "$PPID"; sleep 1; exit 9', "exit 1"),
    "preempted": (f"{printing(1, 2)}{SOON_GONE}exit 9", PREEMPTED),
}


@pytest.mark.parametrize("name", IN_THE_GRACE)
def test_in_the_grace_after_a_signal_nobody_asks_the_kernels(tmp_path: Path, name: str) -> None:
    """It is seconds long: what asking takes of it, the record of the end would lack."""
    step, show_job = IN_THE_GRACE[name]
    status, events = run_script(tmp_path, step, on_nodes="touch $LLMB_RUN_DIR/kernels; exit 0", show_job=show_job)
    assert (status, events[-1]) == (9, ("end", 9))
    assert list(tmp_path.rglob("kernels")) == []


HAS_EXCLUDED = "echo 'JobId=7 JobState=RUNNING PreemptTime=None ExcNodeList=n9 X=1'; exit 0"
HAS_TRAINED = 'touch "$LLMB_RUN_DIR/trained"'
UNFIT_AGAIN = [("start", None), ("check", None), ("unfit", 10), ("end", 69)]


def told(folder: Path) -> list[str]:
    """What scontrol was told to do."""
    file = folder / "told"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line for line in lines if not line.startswith("show ")]


@pytest.mark.parametrize("status", [0, 1, 127])
def test_nodes_that_are_fit_or_not_judged_train(tmp_path: Path, status: int) -> None:
    asked = 'printf "%s\\n" "$@" > "$LLMB_RUN_DIR/asked"'
    ended = run_script(tmp_path, HAS_TRAINED, check=f"{asked}; exit {status}", SLURM_JOB_NODELIST="n[1-32]")
    assert ended == (0, [("start", None), ("check", None), ("checked", status), ("end", 0)])
    assert list(tmp_path.rglob("trained"))
    (words,) = tmp_path.rglob("asked")
    assert words.read_text().split()[-4:] == [str(words.parent), "7", "0", "n[1-32]"]


def test_without_nodes_that_fail_the_job_is_queued_again_and_they_are_on_record(tmp_path: Path) -> None:
    ended = run_script(tmp_path, HAS_TRAINED, check="echo n[2-3]; exit 10", show_job=HAS_EXCLUDED)
    assert ended == (69, UNFIT_AGAIN)
    assert told(tmp_path) == ["requeue 7", "update JobId=7 ExcNodeList=n9,n[2-3]"], "it keeps off the others, too"
    assert not list(tmp_path.rglob("trained"))
    (events,) = tmp_path.rglob("events.jsonl")
    assert [json.loads(line)["nodes"] for line in events.read_text().splitlines()] == ["", "", "n[2-3]", ""]


def test_slurm_ends_the_script_while_it_is_queued_again(tmp_path: Path) -> None:
    """Slurm signals every process of it; the list of nodes must be told all the same."""
    show = f"{HAS_EXCLUDED}; fi; if [[ $1 == requeue ]]; then kill -TERM $PPID $$"
    assert run_script(tmp_path, HAS_TRAINED, check="echo n2; exit 10", show_job=show) == (69, UNFIT_AGAIN)
    assert told(tmp_path) == ["requeue 7", "update JobId=7 ExcNodeList=n9,n2"]


@pytest.mark.parametrize(
    ("check", "show_job", "status"),
    [
        ("echo n2; exit 11", HAS_EXCLUDED, 11),
        ("echo; exit 11", HAS_EXCLUDED, 11),
        ("echo n2; exit 10", HAS_EXCLUDED.replace("RUNNING", "CANCELLED"), 10),
        ("echo n2; exit 10", "exit 1", 10),
        ('rm "$LLMB_RUN_DIR/events.jsonl"; mkdir "$LLMB_RUN_DIR/events.jsonl"; echo n2; exit 10', HAS_EXCLUDED, 10),
    ],
    ids=["not again", "no node is at fault", "cancelled meanwhile", "Slurm does not answer", "not on record"],
)
def test_what_is_not_queued_again_ends_without_training(tmp_path: Path, check: str, show_job: str, status: int) -> None:
    if "mkdir" in check:
        with pytest.raises(IsADirectoryError):
            run_script(tmp_path, HAS_TRAINED, check=check, show_job=show_job)
    else:
        ended = run_script(tmp_path, HAS_TRAINED, check=check, show_job=show_job)
        assert ended == (69, [("start", None), ("check", None), ("unfit", status), ("end", 69)])
    assert told(tmp_path) == []
    assert not list(tmp_path.rglob("trained"))


def test_a_signal_ends_the_check_and_no_rank_starts(tmp_path: Path) -> None:
    waits = "for ((i = 0; i < 300; i++)); do sleep 0.1; done"
    trap = "trap 'touch $LLMB_RUN_DIR/ended; exit 143' TERM"
    check = f"{trap}\nkill -TERM $(cut -d ' ' -f 4 /proc/$PPID/stat)\n{waits}"
    ended = run_script(tmp_path, HAS_TRAINED, check=check)
    assert ended == (143, [("start", None), ("check", None), ("signal", None), ("end", 143)])
    assert list(tmp_path.rglob("ended"))
    assert not list(tmp_path.rglob("trained"))


def test_nodes_that_are_being_taken_away_are_not_judged(tmp_path: Path) -> None:
    check = f"script=$(cut -d ' ' -f 4 /proc/$PPID/stat)\n{SOON_GONE.replace('$PPID', '$script')}echo n2; exit 10"
    ended = run_script(tmp_path, HAS_TRAINED, check=check, show_job=PREEMPTED)
    assert ended == (143, [("start", None), ("check", None), ("preempted", None), ("end", 143)])
    assert told(tmp_path) == []
