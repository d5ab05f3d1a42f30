"""A series against the scripted Slurm: what is refused, and what becomes of it where the answer is lost."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb_common.errors import AnswerLost, LLMBError, RecordError
from llmb_common.executors.slurm import look as slurm_runs
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission import many
from llmb_common.submission.jobs import JobToSubmit, Options
from llmb_common.submission.many import submit_series
from llmb_common.submission.observe import observe
from llmb_common.submission.single import new_run
from support.fake_slurm import FakeSlurm
from support.run_site import RECIPE, RunSite, run_folders, with_small_code


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: FakeSlurm) -> RunSite:
    with_small_code(tmp_path, monkeypatch)
    return RunSite(tmp_path, "slurm")


def jobs_of(site: RunSite) -> list[JobToSubmit]:
    return [JobToSubmit(site.plan(MAX_STEPS=steps), RECIPE, Options(key=steps)) for steps in ("21", "22", "23")]


def start(site: RunSite) -> list[RunRecord]:
    results: list[RunRecord | LLMBError] = submit_series(jobs_of(site))
    records = [result for result in results if isinstance(result, RunRecord)]
    assert len(records) == 3, results
    return records


@pytest.mark.parametrize("name", ["script", "job"])
def test_a_series_with_a_changed_file_is_not_submitted(site, fake, monkeypatch, name):
    created: list[RunRecord] = []

    def create_and_change(*given: Any) -> RunRecord:
        record = new_run(*given)
        if record.submission.turn is not None and record.submission.turn.index == 1:
            with getattr(record.paths, name).open("a") as file:
                file.write("\n")
        created.append(record)
        return record

    monkeypatch.setattr(many, "new_run", create_and_change)
    with pytest.raises(RecordError) as caught:
        submit_series(jobs_of(site))
    assert (caught.value.code, len(created)) == ("changed", 3)
    assert not any(record.paths.folder.exists() for record in created)
    assert fake.calls("sbatch") == []


def test_a_folder_that_another_series_has_is_left_as_it_is(site, fake, monkeypatch):
    monkeypatch.setattr(many, "secrets", SimpleNamespace(token_hex=lambda count: "ab12cd34"))
    (first, *_) = start(site)
    assert first.shared is not None
    before = sorted(path.name for path in first.shared.folder.iterdir())
    others = [replace(job, options=Options(key=f"another {job.options.key}")) for job in jobs_of(site)]
    with pytest.raises(RecordError):
        submit_series(others)
    assert sorted(path.name for path in first.shared.folder.iterdir()) == before == ["0", "1", "2", "series.sbatch"]
    assert len(run_folders(site)) == 3, "those of the second are withdrawn"


def test_a_folder_that_cannot_be_filled_is_not_left(site, fake, monkeypatch):
    def full(*given: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "symlink_to", full)
    with pytest.raises(RecordError, match="No space left"):
        submit_series(jobs_of(site))
    assert list(site.install.glob("workloads/*/experiments/*/.series-*")) == []
    assert fake.jobs() == []


def test_a_lost_answer_of_an_accepted_series(site: RunSite, fake: FakeSlurm) -> None:
    fake.say("sbatch", "lost")
    assert [record.job_id for record in start(site)] == ["1"] * 3


def test_a_lost_answer_with_no_scheduler_to_query(site, fake, monkeypatch):
    fake.say("sbatch", "error")
    fake.say("squeue", "error")
    fake.say("sacct", "disabled")
    assert [type(result) for result in submit_series(jobs_of(site))] == [AnswerLost] * 3
    records = [load_record(folder) for folder in run_folders(site)]
    assert [("Socket timed out" in record.detail, record.state) for record in records] == [(True, "SUBMITTING")] * 3
    for command in ("sbatch", "squeue"):
        fake.say(command, "")
    monkeypatch.setattr(slurm_runs, "LOCAL_GRACE_SECONDS", 0)
    assert [item.record.state for item in observe(records)] == ["NOT_SUBMITTED"] * 3
    assert {record.paths.folder for record in start(site)} == {record.paths.folder for record in records}
    assert len(fake.jobs()) == 1
