"""The supervisor.sh that a batch script reads from its run's folder, by submission/load.sh: this one or none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llmb_common.runs.record import RunRecord
from llmb_common.submission.single import create_run
from support.run_site import RunSite
from support.script_stubs import ScriptStubs
from support.texts import Texts

SLEEP = """#!/bin/bash
if [[ -e $LLMB_RUN_DIR/claim ]]; then exec {sleep} "$1"; fi  # the job has begun
echo "$1" >> {folder}/slept
(($(wc -l < {folder}/slept) != 3)) || {{ {third}; }}
"""


class Job:
    """A Slurm job whose clock stands still: ``third`` (bash) is done in its third pause."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record: RunRecord = create_run(RunSite(folder, "slurm").plan(), b"code", {})
        self.stubs = ScriptStubs(folder / "stubs")
        self.supervisor = self.record.paths.supervisor
        self.whole = self.supervisor.read_text()

    def run(self, script: Path | None = None, third: str = ":") -> tuple[int, str]:
        """The exit status, and what the batch log gets."""
        sleep = self.stubs.bin / "sleep"
        sleep.write_text(SLEEP.format(sleep=shutil.which("sleep"), folder=self.folder, third=third))
        sleep.chmod(0o755)
        done = self.stubs.run(script or self.record.paths.script, self.folder)
        return done.returncode, done.stderr

    @property
    def seconds(self) -> int:
        """How long it has waited."""
        slept = self.folder / "slept"
        return sum(map(int, slept.read_text().split())) if slept.exists() else 0

    @property
    def has_started(self) -> bool:
        """Whether there is anything of the job but what it says."""
        return bool(self.stubs.ranks()) or self.record.paths.events.exists() or self.record.paths.log.exists()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_job_waits_for_nothing_where_all_is_well(job: Job) -> None:
    assert job.run() == (0, "")
    assert (job.seconds, job.has_started) == (0, True)


@pytest.mark.parametrize("damage", ["missing", "changed", "half", "emptied", "a folder"])
def test_without_its_own_supervisor_a_job_ends_before_training_and_says_why(
    job: Job, damage: str, texts: Texts
) -> None:
    if damage in ("missing", "a folder"):
        job.supervisor.unlink()
    if damage == "a folder":
        job.supervisor.mkdir()
    if damage == "changed":
        job.supervisor.write_text(f"touch {job.folder}/evil\n{job.whole}")
    if damage == "half":
        job.supervisor.write_text(job.whole[: len(job.whole) // 2])
    if damage == "emptied":
        job.supervisor.write_text("")
    status, said = job.run()
    assert (status, job.has_started, job.seconds) == (3, False, 60)
    texts(said)
    assert not (job.folder / "evil").exists()


@pytest.mark.parametrize("early", ["nothing", "half of it"])
def test_a_supervisor_that_the_node_sees_late_is_waited_for(job: Job, early: str) -> None:
    (job.folder / "whole").write_text(job.whole)
    job.supervisor.unlink()
    if early == "half of it":
        job.supervisor.write_text(job.whole[: len(job.whole) // 2])
    status, said = job.run(third=f"cp '{job.folder}/whole' '{job.supervisor}'")
    assert (status, said.count("\n"), said.split()[-1]) == (0, 1, str(job.supervisor))
    assert (job.seconds, job.has_started) == (3, True)


def test_a_script_that_was_copied_away_from_its_run_says_what_it_lacks(job: Job, texts: Texts) -> None:
    script = job.folder / "copy.sh"
    shutil.copy(job.record.paths.script, script)
    shutil.rmtree(job.record.paths.folder)
    status, said = job.run(script)
    assert (status, job.stubs.ranks()) == (3, [])
    texts(said)
