"""How Slurm is asked, and how its answers are read, with commands that say exactly what a test wants."""

from __future__ import annotations

import os
import time
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmb_common.errors import SchedulerError
from llmb_common.executors.slurm import query
from llmb_common.executors.slurm.query import (
    WRITTEN_OFF,
    JobInfo,
    base_state,
    in_accounting,
    in_queue,
    run_slurm,
    starts_in_accounting,
    unfit_nodes,
)
from llmb_common.platform.run_states import ENDED_STATES, LIVE_STATES, is_live, is_waiting

SHELL = "#!/bin/bash\n"


class Commands:
    """Programs named as Slurm's, in front of PATH; each call's arguments and environment are noted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def answer(self, program: str, text: str = "", errors: str = "", status: int = 0) -> None:
        (self.folder / f"{program}.out").write_text(text)
        (self.folder / f"{program}.err").write_text(errors)
        path = self.folder / program
        path.write_text(
            f'{SHELL}printf "%s\\0" "$@" > "$0.call$(ls "$0".call* 2> /dev/null | wc -l)"\n'
            f'env > "$0.env"\ncat "$0.out"\ncat "$0.err" >&2\nexit {status}\n'
        )
        path.chmod(0o755)

    def calls(self, program: str) -> list[list[str]]:
        found = sorted(self.folder.glob(f"{program}.call*"), key=lambda path: int(path.suffix[5:]))
        return [path.read_text().split("\0")[:-1] for path in found]

    def environment(self, program: str) -> dict[str, str]:
        lines = (self.folder / f"{program}.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setattr(query, "FIRST_DELAY", 0.001)
    return Commands(tmp_path / "bin", monkeypatch)


def test_a_command_that_does_not_answer_is_an_error_of_its_own(commands: Commands) -> None:
    (commands.folder / "squeue").write_text(f"{SHELL}exec sleep 600\n")
    (commands.folder / "squeue").chmod(0o755)
    with pytest.raises(SchedulerError, match=r"squeue did not answer in 0\.2 s") as caught:
        run_slurm(["squeue", "--me"], 0.2)
    assert (caught.value.code, caught.value.remedy) == ("no-answer", "try again later")


def test_its_own_words_say_what_it_waits_for(commands: Commands) -> None:
    words = "squeue: error: s_p_parse_file: cannot stat file /etc/slurm/slurm.conf, retrying in 1sec up to 60sec"
    (commands.folder / "squeue").write_text(f"{SHELL}echo '{words}' >&2\necho more >&2\nexec sleep 600\n")
    (commands.folder / "squeue").chmod(0o755)
    with pytest.raises(SchedulerError) as caught:
        run_slurm(["squeue", "--me"], 0.5)
    assert caught.value.message == f"squeue did not answer in 0.5 s; it said: {words}"
    assert caught.value.code == "no-answer"


def test_so_is_one_that_is_not_there() -> None:
    with pytest.raises(SchedulerError, match=r"cannot run no-such-squeue: No such file or directory") as caught:
        run_slurm(["no-such-squeue"], 5)
    assert (caught.value.code, caught.value.remedy) == ("no-program", "run this on a login node of the cluster")


ROW = "7|RUNNING|100|200|N/A|gpu[1-2]|llmb.a|None"


def test_a_complaint_is_one_line(commands: Commands) -> None:
    commands.answer("squeue", "out", "  first\nsecond\n", status=9)
    with pytest.raises(SchedulerError, match=r"^squeue: first\n  ->"):
        in_queue(["a"])


def test_the_queue_is_asked_once_for_all_names_and_for_ended_jobs_too(commands: Commands) -> None:
    commands.answer(
        "squeue", f"{ROW}\n9|PENDING|300|N/A|N/A||llmb.b|Priority\n8|PENDING|300|900|N/A||llmb.c|JobHeldUser\n"
    )
    assert in_queue(["llmb.b", "llmb.a", "llmb.b"]) == {
        "llmb.a": [JobInfo("7", "llmb.a", "RUNNING", 100.0, 200.0, None, "gpu[1-2]")],
        "llmb.b": [JobInfo("9", "llmb.b", "PENDING", 300.0, None, None, "", reason="Priority")],
        "llmb.c": [JobInfo("8", "llmb.c", "PENDING", 300.0, None, None, "", reason="JobHeldUser")],
    }
    (call,) = commands.calls("squeue")
    assert call == [
        *("--noheader", "--all", "--states=all", "--name=llmb.a,llmb.b"),
        "--format=%i|%T|%V|%S|%e|%N|%j|%r",
    ]
    seen = commands.environment("squeue")
    assert (seen["SLURM_TIME_FORMAT"], seen["SLURM_BITSTR_LEN"], seen["LC_ALL"]) == ("%s", "0", "C")


def test_many_names_are_several_questions(commands: Commands) -> None:
    commands.answer("squeue")
    in_queue(f"llmb.{number:04d}" for number in range(401))
    asked = [call[3].removeprefix("--name=").split(",") for call in commands.calls("squeue")]
    assert [len(names) for names in asked] == [400, 1]
    assert asked[1] == ["llmb.0400"]
    assert in_queue([]) == {}
    assert len(commands.calls("squeue")) == 2


@pytest.mark.parametrize(("state", "said"), [("CANCELLED", True), ("CANCELLED by 1000", False), ("FAILED", False)])
def test_a_job_that_nobody_cancelled_was_written_off(commands: Commands, state: str, said: bool) -> None:
    """What slurmdbd does to all jobs of a controller that starts without its state."""
    commands.answer("sacct", f"7|{state}|100|None|500|None assigned|llmb.a|0:0\n")
    ((info,),) = (in_accounting(["llmb.a"], since=100) or {}).values()
    assert (info.state, info.reason == WRITTEN_OFF) == (state.partition(" ")[0], said)


def test_accounting_is_asked_from_a_little_before_the_submission(commands, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    query.time.tzset()
    commands.answer("sacct", "7|CANCELLED by 0|100|Unknown|500|None assigned|llmb.a|0:15\n")
    assert in_accounting(["llmb.a"], since=1_000_000_300) == {
        "llmb.a": [JobInfo("7", "llmb.a", "CANCELLED", 100.0, None, 500.0, "", exit_code="0:15")]
    }
    (call,) = commands.calls("sacct")
    assert call == [
        *("--allocations", "--parsable2", "--noheader", "--allusers", "--starttime=2001-09-09T00:46:40"),
        *("--name=llmb.a", "--format=JobID,State,Submit,Start,End,NodeList,JobName,ExitCode"),
    ]


def test_every_start_of_a_job_with_the_node_that_failed(commands: Commands) -> None:
    row = "7|NODE_FAIL|100|200|300|n[1-2]|llmb.a|0:0"
    commands.answer("sacct", f"{row}|n2\n7|RUNNING|300|400|Unknown|n[3-4]|llmb.a|0:0|\n")
    first, second = starts_in_accounting(["llmb.a"], 0)
    assert (first.state, first.started, first.ended, first.failed) == ("NODE_FAIL", 200.0, 300.0, "n2")
    assert (second.state, second.ended, second.failed) == ("RUNNING", None, "")
    assert {"--duplicates"} < set(commands.calls("sacct")[0])
    commands.answer("sacct", errors="Slurm accounting storage is disabled", status=1)
    assert starts_in_accounting(["llmb.a"], 0) == []


def test_a_release_that_does_not_name_failed_nodes_is_asked_without_them(commands: Commands) -> None:
    complaint = 'sacct: error: Invalid field requested: "FailedNode"'  # 22.05
    program = commands.folder / "sacct"
    program.write_text(
        f"{SHELL}[[ $* == *FailedNode* ]] && {{ echo '{complaint}' >&2; exit 1; }}\n"
        f"echo call >> $0.asked\necho '7|NODE_FAIL|100|200|300|n1|llmb.a|0:0'\n"
    )
    program.chmod(0o755)
    (start,) = starts_in_accounting(["llmb.a"], 0)
    assert (start.nodes, start.failed) == ("n1", "")
    assert (commands.folder / "sacct.asked").read_text() == "call\n"


def test_nodes_that_are_down_are_named_once(commands: Commands) -> None:
    commands.answer("sinfo", "n2\nn2\nn3\n")
    assert unfit_nodes("n[1-4]") == ["n2", "n3"]
    commands.answer("sinfo", errors="down", status=1)
    with pytest.raises(SchedulerError, match="sinfo: down"):
        unfit_nodes("n1")


def test_a_site_without_accounting_says_so_once(commands: Commands) -> None:
    commands.answer("sacct", errors="Slurm accounting storage is disabled", status=1)
    assert in_accounting(["a"], 0) is None
    assert len(commands.calls("sacct")) == 1


def test_so_does_one_without_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert in_accounting(["a"], 0) is None
    with pytest.raises(SchedulerError, match="cannot run squeue"):
        in_queue(["a"])


def test_a_question_is_asked_three_times_with_growing_delay(commands, monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr(query, "time", SimpleNamespace(sleep=waited.append, monotonic=time.monotonic))
    monkeypatch.setattr(query, "FIRST_DELAY", 1.5)
    commands.answer("squeue", errors="slurm_load_jobs error: Socket timed out\nmore", status=1)
    with pytest.raises(SchedulerError, match=r"^squeue: slurm_load_jobs error: Socket timed out\n") as caught:
        in_queue(["a"])
    assert caught.value.code == "unknown"
    assert "the jobs are not affected" in caught.value.remedy
    assert (len(commands.calls("squeue")), waited) == (3, [1.5, 3.0])


def test_an_answer_at_the_second_try_is_an_answer(commands: Commands) -> None:
    once = commands.folder / "once"
    (commands.folder / "squeue").write_text(f'{SHELL}[[ -e {once} ]] || {{ touch {once}; exit 1; }}\necho "{ROW}"\n')
    (commands.folder / "squeue").chmod(0o755)
    assert "llmb.a" in in_queue(["llmb.a"])


def test_who_waited_long_already_is_not_asked_again(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's own commands try for some ten seconds before they give up."""
    times = chain([100.0], repeat(100.0 + query.RETRY_SECONDS))
    monkeypatch.setattr(query.time, "monotonic", lambda: next(times))
    commands.answer("squeue", status=1)
    with pytest.raises(SchedulerError, match="exit status 1"):
        in_queue(["a"])
    assert len(commands.calls("squeue")) == 1


@pytest.mark.parametrize(
    "line",
    [
        "7|RUNNING|1|1|1|n|name",
        "7|RUNNING|1|1|1|n|name|None|more",
        "x7|RUNNING|1|1|1|n|name|None",
        "7_x|RUNNING|1|1|1|n|name|None",
        "7|not a state|1|1|1|n|name|None",
        "7|R|1|1|1|n|name|None",
        "<html>",
        "",
    ],
)
def test_a_line_that_cannot_be_read_makes_the_whole_answer_none(commands: Commands, line: str) -> None:
    commands.answer("squeue", f"{ROW}\n{line}\n{ROW}\n")
    with pytest.raises(SchedulerError, match=r"cannot parse a line|unreadable state") as caught:
        in_queue(["llmb.a"])
    assert caught.value.code == "unknown"
    assert repr(line.split("|")[1] if "state" in caught.value.message else line) in caught.value.message


def ids_of(commands: Commands, job: str) -> list[str]:
    commands.answer("squeue", f"{job}|PENDING|1|0|0||a|None\n")
    return [info.job_id for found in in_queue(["a"]).values() for info in found]


def test_tasks_of_an_array_that_wait_together_are_told_apart(commands: Commands) -> None:
    assert ids_of(commands, "7_[0-2,5%4]") == ["7_0", "7_1", "7_2", "7_5"]
    assert ids_of(commands, "7_[1-7:3]") == ["7_1", "7_4", "7_7"]
    assert ids_of(commands, "7_12") == ["7_12"]
    assert ids_of(commands, "7") == ["7"]
    assert ids_of(commands, "7+1") == ["7+1"]


def test_jobs_of_one_name_are_in_the_order_of_their_ids_and_the_last_line_counts(commands: Commands) -> None:
    commands.answer("squeue", "".join(f"{job}|{state}|1|0|5||a|None\n" for job, state in (
        ("100", "PENDING"), ("9", "FAILED"), ("20+1", "PENDING"), ("100", "RUNNING"),
    )))  # fmt: skip
    (found,) = in_queue(["a"]).values()
    assert [(info.job_id, info.state, info.started) for info in found] == [
        *(("9", "FAILED", None), ("20+1", "PENDING", None), ("100", "RUNNING", None))
    ]


def test_a_state_of_a_newer_slurm_is_kept_and_counts_as_alive(commands: Commands) -> None:
    commands.answer("squeue", "7|HYPER_RUNNING|1|1|0||a|None\n")
    ((info,),) = in_queue(["a"]).values()
    assert info.state == "HYPER_RUNNING"
    assert is_live(info.state)
    assert not is_waiting(info.state)


# The states of squeue(1) and sacct(1), by what they mean for whoever waits for the job.
WAITING = "PENDING REQUEUED REQUEUE_FED REQUEUE_HOLD SPECIAL_EXIT RESV_DEL_HOLD EXPEDITING"
RUNNING = """CONFIGURING POWER_UP_NODE RUNNING RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED COMPLETING UPDATE_DB
LAUNCH_FAILED RECONFIG_FAIL"""
ENDED = "COMPLETED FAILED BOOT_FAIL CANCELLED DEADLINE NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT"


def test_every_state_means_waiting_running_or_ended() -> None:
    for state in (*WAITING.split(), "SUBMITTING", "SUBMITTED"):
        assert (is_waiting(state), is_live(state)) == (True, True), state
    for state in RUNNING.split():
        assert (is_waiting(state), is_live(state)) == (False, True), state
    for state in (*ENDED.split(), "NOT_SUBMITTED", "LOST"):
        assert (is_waiting(state), is_live(state)) == (False, False), state
    assert {*WAITING.split(), *RUNNING.split(), "SUBMITTING", "SUBMITTED"} == LIVE_STATES
    assert {*ENDED.split(), "NOT_SUBMITTED", "LOST"} == ENDED_STATES


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("CANCELLED by 1000", "CANCELLED"),
        ("CANCELLED+", "CANCELLED"),
        (" running ", "RUNNING"),
        ("OUT_OF_ME+", None),
        ("LOST", None),
        ("", None),
    ],
)
def test_states_are_read_in_all_their_spellings(text: str, state: str | None) -> None:
    assert base_state(text) == state
