"""How Slurm is asked, and how its answers are read, with commands that say exactly what a test wants."""

from __future__ import annotations

import os
import time
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmb_common.base.errors import RequestError, SchedulerError
from llmb_common.base.run_states import ENDED_STATES, LIVE_STATES, is_live, is_waiting
from llmb_common.executors.slurm import query
from llmb_common.executors.slurm.query import (
    WRITTEN_OFF,
    JobInfo,
    base_state,
    nodes_now,
    query_accounting,
    query_queue,
    run_slurm,
    unfit_nodes,
)
from support.texts import Texts

SHELL = "#!/bin/bash\n"


class Commands:
    """Programs named as Slurm's, in front of PATH; each call's arguments and environment are noted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def answer(self, program: str, text: str = "", errors: str = "", status: int = 0) -> None:
        (self.folder / f"{program}.out").write_text(text.replace("|", query.SEPARATOR))
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


def test_a_command_that_does_not_answer_is_an_error_of_its_own(commands: Commands, texts: Texts) -> None:
    (commands.folder / "squeue").write_text(f"{SHELL}exec sleep 600\n")
    (commands.folder / "squeue").chmod(0o755)
    with texts.raises(SchedulerError) as caught:
        run_slurm(["squeue", "--me"], 0.2)
    assert caught.value.code == "no-answer"


def test_its_own_words_say_what_it_waits_for(commands: Commands, texts: Texts) -> None:
    words = "squeue: error: s_p_parse_file: cannot stat file /etc/slurm/slurm.conf, retrying in 1sec up to 60sec"
    (commands.folder / "squeue").write_text(f"{SHELL}echo '{words}' >&2\necho more >&2\nexec sleep 600\n")
    (commands.folder / "squeue").chmod(0o755)
    with texts.raises(SchedulerError) as caught:
        run_slurm(["squeue", "--me"], 0.5)
    assert caught.value.code == "no-answer"


def test_so_is_one_that_is_not_there(texts: Texts) -> None:
    with texts.raises(SchedulerError) as caught:
        run_slurm(["no-such-squeue"], 5)
    assert caught.value.code == "no-program"


SCRIPT = "sbatch --parsable /runs/a.sbatch"
ROW = f"7|RUNNING|100|200|N/A|gpu[1-2]|llmb.a|None|{SCRIPT}"
ROW_END = "|FAILED|200|200|300|n1|a|1:0|None|/c.sh"
A = "--name=llmb.a"


def test_a_complaint_is_one_line(commands: Commands, texts: Texts) -> None:
    commands.answer("squeue", "out", "  first\nsecond\n", status=9)
    with texts.raises(SchedulerError):
        query_queue(A)


def test_the_queue_is_asked_for_ended_jobs_too(commands: Commands) -> None:
    commands.answer(
        "squeue",
        f"{ROW}\n9|PENDING|300|N/A|N/A||llmb.b|Priority|(null)\n8|PENDING|300|900|N/A||llmb.c|JobHeldUser|/c.sh\n",
    )
    assert query_queue("--jobs=7,8,9") == [
        JobInfo("7", "llmb.a", "RUNNING", 100.0, 200.0, None, "gpu[1-2]", script=SCRIPT),
        JobInfo("9", "llmb.b", "PENDING", 300.0, None, None, "", reason="Priority", script="(null)"),
        JobInfo("8", "llmb.c", "PENDING", 300.0, None, None, "", reason="JobHeldUser", script="/c.sh"),
    ]
    (call,) = commands.calls("squeue")
    assert call == [
        *("--noheader", "--all", "--states=all", "--jobs=7,8,9"),
        "--format=%i|%T|%V|%S|%e|%N|%j|%r|%o".replace("|", query.SEPARATOR),
    ]
    seen = commands.environment("squeue")
    assert (seen["SLURM_TIME_FORMAT"], seen["SLURM_BITSTR_LEN"], seen["LC_ALL"]) == ("%s", "0", "C")


def test_an_id_that_the_controller_does_not_know_is_an_answer(commands: Commands) -> None:
    commands.answer("squeue", errors="slurm_load_jobs error: Invalid job id specified\n", status=1)
    assert query_queue("--jobs=7") == []
    assert len(commands.calls("squeue")) == 1, "asking again would say the same"


@pytest.mark.parametrize(("state", "said"), [("CANCELLED", True), ("CANCELLED by 1000", False), ("FAILED", False)])
def test_a_job_that_nobody_cancelled_was_written_off(commands: Commands, state: str, said: bool) -> None:
    """What slurmdbd does to all jobs of a controller that starts without its state."""
    commands.answer("sacct", f"7|{state}|100|None|500|None assigned|llmb.a|0:0|None|{SCRIPT}\n")
    (info,) = query_accounting(A, since=100)
    assert (info.state, info.reason == WRITTEN_OFF) == (state.partition(" ")[0], said)


def test_accounting_is_asked_from_a_little_before_the_submission(commands, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    query.time.tzset()
    commands.answer("sacct", f"7|CANCELLED by 0|100|Unknown|500|None assigned|llmb.a|0:15|None|{SCRIPT}\n")
    assert query_accounting(A, since=1_000_000_300) == [
        JobInfo("7", "llmb.a", "CANCELLED", 100.0, None, 500.0, "", exit_code="0:15", script=SCRIPT)
    ]
    (call,) = commands.calls("sacct")
    assert call == [
        *("--allocations", "--duplicates", "--parsable2", "--delimiter=\x1f", "--noheader", "--allusers"),
        *("--starttime=2001-09-09T00:46:40", A),
        "--format=JobID,State,Submit,Start,End,NodeList,JobName,ExitCode,FailedNode,SubmitLine",
    ]


def test_a_row_that_is_not_complete_yet_is_nobodys(commands: Commands) -> None:
    """A task that was cancelled while it waited: for a moment sacct has it as completed, under no name of its own."""
    commands.answer("sacct", "7_4|COMPLETED|100|100|100|n1|allocation|0:0|None|\n")
    assert [(job.name, job.script) for job in query_accounting(A, 0)] == [("allocation", query.NO_SCRIPT)]


def test_every_start_of_a_job_with_the_node_that_failed(commands: Commands) -> None:
    again = f"7|RUNNING|250|300|Unknown|n[3-4]|llmb.a|0:0||{SCRIPT}"
    commands.answer("sacct", f"{again}\n7|NODE_FAIL|100|200|240|n[1-2]|llmb.a|0:0|n2|{SCRIPT}\n")
    first, second = query_accounting(A, 0)
    assert (first.state, first.started, first.ended, first.failed) == ("NODE_FAIL", 200.0, 240.0, "n2")
    assert (second.state, second.ended, second.failed) == ("RUNNING", None, "")


@pytest.mark.parametrize("lacking", [["FailedNode"], ["SubmitLine", "FailedNode"]], ids=["22.05", "20.11"])
def test_a_release_is_asked_without_the_fields_that_it_lacks(commands: Commands, lacking: list[str]) -> None:
    refuse = "".join(
        f"[[ $* == *{field}* ]] && {{ echo 'sacct: error: Invalid field requested: \"{field}\"' >&2; exit 1; }}\n"
        for field in lacking
    )
    has_script = "SubmitLine" not in lacking
    program = commands.folder / "sacct"
    program.write_text(
        f"{SHELL}{refuse}echo call >> $0.asked\n"
        f"tr '|' '\\037' <<< '7|NODE_FAIL|100|200|300|n1|llmb.a|0:0{f'|{SCRIPT}' if has_script else ''}'\n"
    )
    program.chmod(0o755)
    (start,) = query_accounting(A, 0)
    assert (start.nodes, start.failed, start.script) == ("n1", "", SCRIPT if has_script else "")
    assert (commands.folder / "sacct.asked").read_text() == "call\n"


def test_nodes_that_are_down_are_named_once(commands: Commands, texts: Texts) -> None:
    commands.answer("sinfo", "n2\nn2\nn3\n")
    assert unfit_nodes("n[1-4]") == ["n2", "n3"]
    commands.answer("sinfo", errors="down", status=1)
    with texts.raises(SchedulerError):
        unfit_nodes("n1")


@pytest.mark.parametrize(
    ("nodes", "partition", "told"),
    [
        ("n[1-2]", "gpu", " n[1-2] in partition gpu"),
        ("n1", None, " n1"),
        (None, "gpu", " in partition gpu"),
        (None, None, ""),
    ],
)
def test_nodes_that_slurm_does_not_know_are_named_with_their_partition(
    commands: Commands, nodes: str | None, partition: str | None, told: str
) -> None:
    commands.answer("sinfo")
    with pytest.raises(RequestError) as caught:
        nodes_now(nodes, partition)
    assert caught.value.message == f"Slurm knows no node{told}"


@pytest.mark.parametrize(
    ("state", "why"),
    [
        *[(state, "") for state in ("idle", "planned", "completing", "idle~", "idle#")],
        ("idle*", "idle, but it does not respond"),
        ("idle%", "idle, but it is being powered down"),
        ("completing^", "completing, but it is being rebooted"),
        ("mixed-", "mixed (bad fan)"),
        ("drained*", "drained (bad fan)"),
        ("inval", "inval (bad fan)"),
        ("blocked", "blocked (bad fan)"),
    ],
)
def test_a_job_can_have_an_idle_node_that_slurm_reaches(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, state: str, why: str
) -> None:
    monkeypatch.setattr(query, "SEPARATOR", "|")
    commands.answer("sinfo", f"n1|{state}|gpu*|bad fan\n")
    assert nodes_now("n1", None) == {"n1": why}


def test_a_site_without_accounting_says_so_once(commands: Commands) -> None:
    commands.answer("sacct", errors="Slurm accounting storage is disabled", status=1)
    assert query_accounting(A, 0) == []
    assert len(commands.calls("sacct")) == 1


def test_so_does_one_without_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, texts: Texts) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert query_accounting(A, 0) == []
    with texts.raises(SchedulerError):
        query_queue(A)


def test_a_question_is_asked_three_times_with_growing_delay(commands, monkeypatch, texts: Texts):
    waited: list[float] = []
    monkeypatch.setattr(query, "time", SimpleNamespace(sleep=waited.append, monotonic=time.monotonic))
    monkeypatch.setattr(query, "FIRST_DELAY", 1.5)
    commands.answer("squeue", errors="slurm_load_jobs error: Socket timed out\nmore", status=1)
    with texts.raises(SchedulerError) as caught:
        query_queue(A)
    assert caught.value.code == "unknown"
    assert (len(commands.calls("squeue")), waited) == (3, [1.5, 3.0])


def test_an_answer_at_the_second_try_is_an_answer(commands: Commands) -> None:
    once = commands.folder / "once"
    (commands.folder / "squeue").write_text(
        f'{SHELL}[[ -e {once} ]] || {{ touch {once}; exit 1; }}\ntr "|" "\\037" <<< "{ROW}"\n'
    )
    (commands.folder / "squeue").chmod(0o755)
    assert [job.name for job in query_queue(A)] == ["llmb.a"]


def test_who_waited_long_already_is_not_asked_again(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    """Slurm's own commands try for some ten seconds before they give up."""
    times = chain([100.0], repeat(100.0 + query.RETRY_SECONDS))
    monkeypatch.setattr(query.time, "monotonic", lambda: next(times))
    commands.answer("squeue", status=1)
    with texts.raises(SchedulerError):
        query_queue(A)
    assert len(commands.calls("squeue")) == 1


@pytest.mark.parametrize(
    "line",
    [
        "7|RUNNING|1|1|1|n|name|None",
        "x7|RUNNING|1|1|1|n|name|None|script",
        "7_x|RUNNING|1|1|1|n|name|None|script",
        "7|not a state|1|1|1|n|name|None|script",
        "7|R|1|1|1|n|name|None|script",
        "7|RUNNING|1|1|1|n|name|None|script|more",
    ],
)
def test_a_line_that_cannot_be_read_makes_the_whole_answer_none(commands: Commands, line: str, texts: Texts) -> None:
    commands.answer("squeue", f"{ROW}\n{line}\n{ROW}\n")
    with texts.raises(SchedulerError) as caught:
        query_queue(A)
    assert caught.value.code == "unknown"
    said = line.split("|")[1] if "state" in caught.value.message else line.replace("|", query.SEPARATOR)
    assert repr(said) in caught.value.message


def test_a_command_of_several_lines_is_one_field(commands: Commands) -> None:
    """Of another job of the user: ``sbatch --wrap`` is recorded as it was typed."""
    commands.answer("sacct", f"7|FAILED|100|200|300|n1|a|1:0|None|sbatch --wrap cd /x\n12\n\n8{ROW_END}\n")
    first, second = query_accounting(A, 0)
    assert (first.script, second.job_id) == ("sbatch --wrap cd /x\n12\n", "8")


@pytest.mark.parametrize("text", [f"{ROW}\n{ROW[:-3]}", "<html>502 Bad Gateway</html>\n", "NOTICE: closed\n"])
def test_an_answer_that_is_cut_off_or_has_no_row_at_all_is_none(commands: Commands, text: str, texts: Texts) -> None:
    """It would say that there are no such jobs."""
    commands.answer("squeue", text)
    with texts.raises(SchedulerError):
        query_queue(A)


def test_what_a_sites_wrapper_remarks_is_left_out_and_said_once(commands: Commands, capsys) -> None:
    commands.answer("squeue", f"NOTICE: maintenance on Sunday\n\n{ROW}\n")
    query._note_unknown_line.cache_clear()
    assert [job.job_id for job in query_queue(A) + query_queue(A)] == ["7", "7"]
    assert capsys.readouterr().err.count("maintenance on Sunday") == 1


def ids_of(commands: Commands, job: str) -> list[str]:
    commands.answer("squeue", f"{job}|PENDING|1|0|0||a|None|script\n")
    return [info.job_id for info in query_queue(A)]


def test_tasks_of_an_array_that_wait_together_are_told_apart(commands: Commands) -> None:
    assert ids_of(commands, "7_[0-2,5%4]") == ["7_0", "7_1", "7_2", "7_5"]
    assert ids_of(commands, "7_[1-7:3]") == ["7_1", "7_4", "7_7"]
    assert ids_of(commands, "7_12") == ["7_12"]
    assert ids_of(commands, "7") == ["7"]
    assert ids_of(commands, "7+1") == ["7+1"]


def test_a_state_of_a_newer_slurm_is_kept_and_counts_as_alive(commands: Commands) -> None:
    commands.answer("squeue", "7|HYPER_RUNNING|1|1|0||a|None|script\n")
    (info,) = query_queue(A)
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
    for state in (*ENDED.split(), "NOT_SUBMITTED", "LOST", "UNFIT"):
        assert (is_waiting(state), is_live(state)) == (False, False), state
    assert {*WAITING.split(), *RUNNING.split(), "SUBMITTING", "SUBMITTED"} == LIVE_STATES
    assert {*ENDED.split(), "NOT_SUBMITTED", "LOST", "UNFIT"} == ENDED_STATES


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
