"""What commands say of why runs failed, and what the scheduler's and the job's own words count."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from llmb_common.causes.diagnosis import diagnose
from llmb_common.causes.table import signatures
from support.cli import Cli
from support.iteration_logs import mbridge_line, mbridge_log
from support.runs import PUBLISHED, ROOT, make_run, steady_log
from support.texts import Texts

BAD_MOUNT = """\
slurmstepd: error: pyxis: --container-mounts: source path does not exist: /lustre/datta
slurmstepd: error: Failed to invoke spank plugin stack
"""
RANK_OUT_OF_MEMORY = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/opt/Megatron-Bridge/train.py", line 1, in forward
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has 79.11 GiB in use.
[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1251, remote process exited
"""


TRAINED = "every step was trained; after the last one"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "detail", "after", "cause"),
    [
        ("FAILED", "exit code 7", RANK_OUT_OF_MEMORY, "cuda-memory"),
        ("CANCELLED", "", "", "cancelled-by"),
        ("TIMEOUT", "", "", "time-limit"),
        ("FAILED", "exit code 1", "", "unknown"),
    ],
)
def test_what_ends_badly_after_its_last_step_was_trained_and_its_figures_count(
    cli: Cli, state: str, detail: str, after: str, cause: str
) -> None:
    """Neither a failure nor, without a word about its end, a success: in every command."""
    record = make_run(cli.install, state="RUNNING", log=steady_log(50.0) + after)
    record = record.with_state(state, detail)
    record.save()
    word = record.paths.run_id
    done = cli("results", word)
    assert done.status == 0
    assert TRAINED in done.out
    data = cli("results", word, "--json").data["runs"][0]
    assert (data["status"], data["reason"], data["cause"]) == ("Trained", "ended_badly", cause)
    assert data["step_seconds"] is not None
    assert data["verdict"] != "not judged"
    (group,) = cli("results", "--group", "--json").data["groups"]
    assert (group["run_ids"], group["unsuccessful"]) == ([word], 0)
    assert cli("report", word).status == 0
    assert [cli(command, word).status for command in ("wait", "watch")] == [0, 0], "its figures count"
    for command in (("show", word), ("why", word), ("jobs",), ("report", word)):
        said = cli(*command).out
        assert TRAINED in said, command
        assert "after the last one, the last line is" not in said, "that of the last step says nothing"
    assert cli("why", "--since", "30d").status == 0
    parser = ["bash", str(ROOT / "common" / "parse_train_timing_mbridge.sh"), str(record.paths.folder)]
    parsed = subprocess.run(parser, env={"LLMB_PYTHON": sys.executable}, capture_output=True, text=True, check=False)
    assert (parsed.returncode, " Trained " in parsed.stdout) == (0, True)


def test_a_short_run_that_ends_badly_after_its_last_step_had_trained(cli: Cli) -> None:
    variables = PUBLISHED | {"MAX_STEPS": "20"}
    short = make_run(cli.install, state="TIMEOUT", log=steady_log(50.0, steps=20), variables=variables)
    cut = make_run(cli.install, state="TIMEOUT", log="".join(steady_log(50.0).splitlines(True)[:20]))
    for run, status in ((short, 0), (cut, 1)):
        assert [cli(command, run.paths.run_id).status for command in ("wait", "watch", "results")] == [status] * 3


STATES = {
    "FAILED": ("FAILED", mbridge_log(range(1, 9)), {}, 1),
    "RUNNING": ("RUNNING", mbridge_log(range(1, 9)), {}, 0),
    "WAITING": ("PENDING", None, {}, 0),
    "TOO SHORT": ("COMPLETED", steady_log(50.0, steps=20), {"MAX_STEPS": "20"}, 0),
    "NOT COMPARED": ("COMPLETED", steady_log(5741.5), {"ENABLE_PROFILE": "true"}, 0),
    "NO REFERENCE": ("COMPLETED", steady_log(5741.5), {"JOB_TOTAL_GPUS": "256"}, 0),
}


def test_each_state_has_a_word_of_its_own_and_only_failures_fail(cli: Cli) -> None:
    for word, (state, log, variables, status) in STATES.items():
        run = make_run(cli.install, state=state, log=log, variables=PUBLISHED | variables).paths.run_id
        done = cli("results", run)
        assert (done.status, done.out.splitlines()[0].rpartition(": ")[2]) == (status, word)


def test_a_run_that_still_runs_has_not_failed_whatever_its_log_says(cli: Cli) -> None:
    log = mbridge_log(range(1, 9)) + mbridge_line(9, loss="nan")
    assert cli("results", make_run(cli.install, state="RUNNING", log=log).paths.run_id).status == 0
    assert cli("results", make_run(cli.install, state="CANCELLED", log=log).paths.run_id).status == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "log", "reason", "said"),
    [
        ("RUNNING", mbridge_log(range(1, 21)), "still_running", "running, has trained 20 steps"),
        ("RUNNING", None, "still_running", "running, has trained no step yet"),
        ("PENDING", None, "waiting", "it is waiting for nodes"),
        ("RUNNING", steady_log(5700.0), "still_running", "running, has trained 50 steps"),
    ],
)
def test_what_waits_or_runs_is_shown_as_such_and_is_no_failure(
    cli: Cli, state: str, log: str | None, reason: str, said: str
) -> None:
    """It was counted as failed, with exit status 1, by results and report."""
    word = make_run(cli.install, state=state, log=log).paths.run_id
    ended = make_run(
        cli.install, log=steady_log(5700.0, tflops=None), variables=PUBLISHED | {"GBS": "128"}
    ).paths.run_id
    for command in (("results", word), ("results", "--group"), ("results", "--rank", word), ("report", word)):
        done = cli(*command)
        assert done.status == 0, (command, done.err)
        assert "failed" not in done.out
        assert "successful" not in done.out
    first, *others = cli("results", word, "--runs", COLUMNS="200").out.splitlines()
    assert first.endswith(": WAITING" if reason == "waiting" else ": RUNNING")
    assert any(line.startswith(word) and said in line for line in others)
    data = cli("results", word, "--json").data
    assert (data["runs"][0]["status"], data["runs"][0]["reason"]) == ("Running", reason)
    assert [(item["live"], item["unsuccessful"]) for item in data["groups"]] == [(1, 0)]
    report = cli("report", word, "--json").data["report"]
    assert (report["answer"]["word"], report["counts"]["live"], report["counts"]["unsuccessful"]) == ("OPEN", 1, 0)
    compared = cli("compare", word, ended)
    assert (compared.status, said in compared.out) == (4, True)


def test_why_says_what_to_do_and_where_it_is_written(cli: Cli, texts: Texts) -> None:
    record = make_run(cli.install, state="FAILED", log="")
    record.paths.batch_log.write_text(BAD_MOUNT)
    said = cli("why", record.paths.run_id).out
    texts(said)
    texts(cli("show", record.paths.run_id).out, about="why")


def test_a_success_has_no_cause(cli: Cli, texts: Texts) -> None:
    record = make_run(cli.install, log=mbridge_log() + "DeprecationWarning: an Error that is none\n")
    assert "why " not in cli("show", record.paths.run_id).out
    texts(cli("why", record.paths.run_id).out)


@pytest.mark.parametrize(
    ("state", "log", "kind"),
    [
        ("NODE_FAIL", steady_log(50.0, 5), "node-failed"),
        ("TIMEOUT", steady_log(50.0, 5), "time-limit"),
        ("PREEMPTED", steady_log(50.0, 5), "preempted"),
        ("OUT_OF_MEMORY", "", "host-memory"),
        ("TIMEOUT", steady_log(50.0, 5) + RANK_OUT_OF_MEMORY, "cuda-memory"),
        ("CANCELLED", steady_log(50.0, 5), "cancelled-by"),
    ],
)
def test_the_schedulers_word_counts_where_no_line_is_surer(cli: Cli, state: str, log: str, kind: str) -> None:
    assert diagnose(make_run(cli.install, state=state, log=log)).kind == kind


def test_no_remedy_of_a_run_without_slurm_calls_slurm(cli: Cli) -> None:
    slurm = re.compile("sacct|scontrol|sinfo|sacctmgr|srun|sbatch")
    record = make_run(cli.install, state="CANCELLED", log="")
    local = replace(record, plan=msgspec.structs.replace(record.plan, cluster_type="local"))
    under_slurm, alone = diagnose(record).cause, diagnose(local).cause
    assert under_slurm is not None
    assert slurm.search(under_slurm.remedy)
    assert alone is not None
    assert alone.remedy == f"read the run's log: llmb-run logs {record.paths.run_id}"
    local = local.with_state("FAILED")
    for known in signatures():
        if not slurm.search(known.remedy):
            continue
        record.paths.log.write_text(known.examples[0] + "\n")
        found = diagnose(local).cause
        assert found is not None, known.id
        assert found.remedy
        assert not slurm.search(found.remedy)


def test_the_scheduler_knows_which_node_failed_where_the_line_does_not(cli: Cli) -> None:
    line = "slurmstepd: error: *** STEP 7.0 CANCELLED AT 2026-11-20T03:40 DUE TO NODE FAILURE ***\n"
    record = make_run(cli.install, state="NODE_FAIL", log=steady_log(50.0, 5) + line)
    attempts = [{"state": "NODE_FAIL", "nodes": "gpu[1-2]", "failed": "gpu2"}]
    found = diagnose(replace(record, manifest={**record.manifest, "attempts": attempts})).cause
    assert found is not None
    assert (found.kind, found.node, found.keep_out) == ("node-failed", "gpu2", True)
    assert "DUE TO NODE FAILURE" in found.line


def test_no_number_of_ranks_is_too_large(cli: Cli) -> None:
    waited = "[PG ID 2 PG GUID 7(TP) Rank {}] timeout at work: 5, last enqueued work: 6, last completed work: 4\n"
    record = make_run(cli.install, state="FAILED", log="".join(waited.format(rank) for rank in (3, 10**12)))
    plan = msgspec.structs.replace(record.plan, gpus=2**62)
    assert diagnose(replace(record, plan=plan)).cause is None


def test_a_figure_that_is_not_a_number_is_the_cause(cli: Cli) -> None:
    lines = "".join(mbridge_line(index, grad_norm="nan" if index > 3 else "1.0") for index in range(1, 51))
    record = make_run(cli.install, log=lines)
    assert cli("results", record.paths.run_id, "--json").data["runs"][0]["cause"] == "nan"
    assert "every step was trained" not in cli("why", record.paths.run_id).out, "that went on to its last step"


def test_many_runs_are_counted_by_cause_and_node(cli: Cli, texts: Texts) -> None:
    ecc = "gpu17: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    for log in (ecc, ecc.replace("error enc", "error  enc"), RANK_OUT_OF_MEMORY, steady_log(50.0)):
        state = "COMPLETED" if "iteration" in log else "FAILED"
        make_run(cli.install, state=state, log=log)
    found = cli("why", "--since", "7d")
    texts(found.out)
    assert cli("why", "--since", "7d", "--json").data["nodes"] == {"gpu17": 2}


def test_a_bad_node_is_excluded_by_the_same_command_wherever_the_failure_is_shown(cli: Cli) -> None:
    """What is next after ``results`` is to ``show`` a failed run: that is where the command is looked for."""
    ecc = "gpu17: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    word = make_run(cli.install, state="FAILED", log=ecc).paths.run_id
    (line,) = (line for line in cli("why", word).out.splitlines() if line.startswith("keep out"))
    assert "llmb-run exclude add gpu17 " in line
    assert line in cli("show", word).out.splitlines()


@pytest.mark.parametrize(
    ("state", "batch", "command"),
    [
        ("CANCELLED", "", "sacct -j 4711 -o user,state,end"),
        (
            "FAILED",
            "srun: error: Task launch for StepId=77.0 failed on node gpu3: Communication connection failure",
            "scontrol show node gpu3, and slurmd's log there",
        ),
    ],
)
def test_a_remedy_names_the_runs_own_job_and_node(cli: Cli, state: str, batch: str, command: str) -> None:
    record = make_run(cli.install, state=state, log="", job_id="4711")
    record.paths.batch_log.write_text(batch)
    assert f"-> {command}" in cli("why", record.paths.run_id).out


def test_what_was_stopped_has_not_failed_in_any_command(cli: Cli, texts: Texts) -> None:
    for state in ("FAILED", "TIMEOUT", "CANCELLED", "PREEMPTED", "PREEMPTED"):
        make_run(cli.install, state=state, log=mbridge_log(range(1, 9)))
    make_run(cli.install, log=steady_log(50.0))
    texts(cli("why", "--since", "7d").out.splitlines()[0])
    texts(cli("results").out, about="runs failed")
    texts(cli("report").out, about="mostly for")


def test_a_node_on_which_one_job_did_not_fit_is_not_called_the_root(cli: Cli) -> None:
    for host in ("gpu1", "gpu2", "gpu2"):
        make_run(cli.install, state="FAILED", log=f"{host}: {RANK_OUT_OF_MEMORY.splitlines()[2]}\n")
    make_run(cli.install, state="FAILED", log="gpu3: RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    out = cli("why", "--since", "7d").out
    assert re.findall(r"^(\w+) was the root in (\d)", out, re.MULTILINE) == [("gpu2", "2"), ("gpu3", "1")]


def test_the_node_of_the_first_rank_is_no_bad_one(cli: Cli) -> None:
    """All ranks refuse a wrong layout; the first says so first, and small clusters give a job the same nodes again."""
    for _ in range(3):
        record = make_run(cli.install, state="FAILED", log="[rank0]: AssertionError: size 8 is not divisible by 3\n")
        record.paths.batch_log.write_text("srun: error: gpu1: task 0: Exited with exit code 1\n")
    data = cli("why", "--since", "7d", "--json").data
    assert (data["nodes"], data["keep_out"]) == ({"gpu1": 3}, "")


SIGNAL = '{"event":"signal","time":9,"job_id":"101","pid":1,"restart":0,"exit_code":null}\n'
START = '{"event":"start","time":1,"job_id":"101","pid":1,"restart":0,"nodes":"gpu[1-2]","exit_code":null}\n'


@pytest.mark.parametrize(
    ("line", "signalled", "keep_out"),
    [
        ("srun: error: gpu2: task 9: killed by signal: Bus error", False, "gpu2"),
        ("srun: error: gpu2: task 9: killed by signal: Bus error", True, ""),
        ("gpu2 kernel: NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.", True, "gpu2"),
    ],
)
def test_what_fails_after_the_jobs_own_signal_is_no_nodes_fault(
    cli: Cli, line: str, signalled: bool, keep_out: str
) -> None:
    """But no signal makes a GPU fall off the bus."""
    for _ in range(2):
        record = make_run(cli.install, state="FAILED", log=steady_log(50.0, 5))
        record.paths.batch_log.write_text(f"{line}\n")
        record.paths.events.write_text(START + (SIGNAL if signalled else ""))
    assert cli("why", "--since", "7d", "--json").data["keep_out"] == keep_out


@pytest.mark.parametrize(
    "line",
    [
        "gpu4:20:30 [0] NCCL WARN NET/IB: Got completion from peer 10.1.0.3<45678> with status=12 opcode=0",
        "[rank0]: OSError: [Errno 122] Disk quota exceeded: '/lustre/x'",
    ],
)
def test_a_node_that_only_reports_is_not_counted_against(cli: Cli, line: str) -> None:
    for _ in range(3):
        record = make_run(cli.install, state="FAILED", log=f"{line}\n")
        record.paths.batch_log.write_text("srun: error: gpu4: task 0: Exited with exit code 1\n")
    data = cli("why", "--since", "7d", "--json").data
    assert (data["nodes"], data["keep_out"]) == ({"gpu4": 3}, "")


def test_an_earlier_start_of_the_job_is_not_asked(cli: Cli) -> None:
    record = make_run(cli.install, state="FAILED", log=RANK_OUT_OF_MEMORY + "ValueError: of the second start\n")
    start = '{"event":"start","time":1,"job_id":"101","pid":1,"restart":1,"nodes":"gpu1","exit_code":null,"log":%d}\n'
    record.paths.events.write_text(start % (len(RANK_OUT_OF_MEMORY) + 1))
    found = diagnose(record)
    assert found.cause is not None
    assert "second start" in found.cause.line
    preempted = "slurmstepd: error: *** JOB 101 ON gpu1 CANCELLED AT 2026-11-24T07:29:15 DUE TO PREEMPTION ***\n"
    record.paths.batch_log.write_text(preempted)
    assert diagnose(record).kind == "preempted"
    offset = f'"log":{len(RANK_OUT_OF_MEMORY) + 1},"batch":{len(preempted) + 1}}}\n'
    record.paths.events.write_text((start % 1).replace('"log":1}\n', offset))
    assert diagnose(record).kind == "exception"


def test_what_the_run_itself_knows_is_no_riddle(tmp_path: Path, texts: Texts) -> None:
    """Its supervisor ended it, and of a job that never started there is only Slurm's word."""
    hung = make_run(tmp_path, state="FAILED", log="LLMB manifest: {}\n")
    hung.paths.batch_log.write_text("srun: error: gpu2: task 0: Killed\n")
    events = [(210, "start", "null"), (228, "hang", "0"), (230, "end", "124")]
    lines = (f'{{"event":"{what}","time":{at},"job_id":"101","exit_code":{code}}}\n' for at, what, code in events)
    hung.paths.events.write_text("".join(lines))
    texts(diagnose(hung).summary)
    gone = make_run(tmp_path, state="LOST").with_state("LOST", "squeue no longer knows job 7")
    texts(diagnose(gone).summary)
