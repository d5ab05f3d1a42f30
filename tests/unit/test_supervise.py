"""How a batch script judges the end of its step: really run, with an srun that ends in various ways."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from support.runs import make_run


def run_script(folder: Path, srun: str) -> tuple[int, list[tuple[str, int | None]]]:
    """The exit code of a Slurm job script whose step runs ``srun`` (bash), and its record of events."""
    install = folder / "install"
    install.mkdir()
    record = make_run(install, state="SUBMITTED", log="")
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (("srun", srun), ("scontrol", "echo NodeAddr=localhost")):
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}
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
        (("srun: error: Unable to create step for job 7: Invalid", ENDED), 143),
        ((), 143),
    ],
)
def test_the_rank_that_failed_first_gives_the_exit_code(tmp_path: Path, said: tuple[str, ...], status: int) -> None:
    lines = "\n".join(f"echo '{line}' >&2" for line in said)
    assert run_script(tmp_path, f"{lines}\nexit 143") == (status, [("start", None), ("end", status)])


def test_success_is_success(tmp_path: Path) -> None:
    assert run_script(tmp_path, "exit 0") == (0, [("start", None), ("end", 0)])


def test_a_signal_is_recorded_before_the_end_also_when_the_step_had_it_first(tmp_path: Path) -> None:
    """Slurm signals a step and its script one after the other, with a long gap under load."""
    srun = 'script=$PPID; (sleep 1; kill -TERM "$script") > /dev/null 2>&1 & exit 143'
    assert run_script(tmp_path, srun) == (143, [("start", None), ("signal", None), ("end", 143)])
