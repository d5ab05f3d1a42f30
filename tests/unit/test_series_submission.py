"""A series against the scripted Slurm: what is refused, and what becomes of it where the answer is lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from llmb_common.base.errors import AnswerLost, LLMBError, RecordError, SchedulerError
from llmb_common.executors.slurm import look as slurm_runs
from llmb_common.executors.slurm.submit import render_series, series_conflict
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.runs.timing.job_events import read_events
from llmb_common.submission import many
from llmb_common.submission.jobs import JobToSubmit, Options
from llmb_common.submission.many import submit_series
from llmb_common.submission.observe import observe
from llmb_common.submission.single import new_run
from support.fake_slurm import FakeSlurm
from support.run_site import RECIPE, RunSite, run_folders, with_small_code
from support.texts import Texts


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


def test_a_folder_that_cannot_be_filled_is_not_left(site, fake, monkeypatch, texts: Texts):
    def full(*given: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "symlink_to", full)
    with texts.raises(RecordError):
        submit_series(jobs_of(site))
    assert list(site.install.glob("workloads/*/experiments/*/.series-*")) == []
    assert fake.jobs() == []


def test_a_lost_answer_of_an_accepted_series(site: RunSite, fake: FakeSlurm) -> None:
    fake.say("sbatch", "lost")
    assert [record.job_id for record in start(site)] == ["1"] * 3


def test_a_lost_answer_with_no_scheduler_to_query(site, fake, monkeypatch, texts: Texts):
    fake.say("sbatch", "error")
    fake.say("squeue", "error")
    fake.say("sacct", "disabled")
    assert [type(result) for result in submit_series(jobs_of(site))] == [AnswerLost] * 3
    records = [load_record(folder) for folder in run_folders(site)]
    assert [record.state for record in records] == ["SUBMITTING"] * 3
    texts(records[0].detail)
    for command in ("sbatch", "squeue"):
        fake.say(command, "")
    monkeypatch.setattr(slurm_runs, "LOCAL_GRACE_SECONDS", 0)
    assert [item.record.state for item in observe(records)] == ["NOT_SUBMITTED"] * 3
    assert {record.paths.folder for record in start(site)} == {record.paths.folder for record in records}
    assert len(fake.jobs()) == 1


def changed(record: RunRecord, **fields: Any) -> RunRecord:
    """The run with another plan; ``saves`` seconds to save, if it does."""
    plan = record.plan
    if (saves := fields.pop("saves", None)) is not None:
        checkpoint = msgspec.structs.replace(plan.checkpoint, enabled=True, save_seconds=saves)
        plan = msgspec.structs.replace(plan, checkpoint=checkpoint)
    return replace(record, plan=msgspec.structs.replace(plan, **fields))


def script_of(records: Sequence[RunRecord]) -> str:
    series = records[0].shared
    assert series is not None
    return render_series(records, series)


def in_bash(script: str, command: str) -> list[str]:
    """What ``command`` prints after everything in the script that comes before its runs."""
    head, _, _ = script.partition("for turn in ")
    done = subprocess.run(["bash", "-euc", f"{head}\n{command}"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.fixture
def three(site: RunSite) -> list[RunRecord]:
    return start(site)


def test_each_run_of_a_series_has_its_own_time_and_what_it_needs_to_save(three: list[RunRecord]) -> None:
    limits = ("00:05:00", "00:10:00", "01:00:00")
    records = [changed(record, time_limit=limit) for record, limit in zip(three, limits, strict=True)]
    records[1], records[2] = changed(records[1], saves=30), changed(records[2], saves=200)
    script = script_of(records)
    series = records[0].shared
    assert series is not None
    said = in_bash(script, 'printf "%s\\n" "$folder" "${names[*]}" "${limits[*]}" "${graces[*]}"')
    name = records[0].plan.experiment_name
    assert said == [str(series.folder), f"{name} {name} {name}", "300 570 3400", "120 120 200"]
    lines = script.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert "#SBATCH --time=01:15:00" in lines, "that of all together"
    assert "#SBATCH --signal=B:TERM@200" in lines, "in time for the longest save"
    assert f"#SBATCH --output={series.log}" in lines


def test_a_run_that_has_less_time_than_its_save_takes_is_told_at_once(three: list[RunRecord]) -> None:
    records = [changed(record, time_limit="00:01:00", saves=200) for record in three]
    assert in_bash(script_of(records), 'echo "${limits[*]}"') == ["1 1 1"]


def test_cores_are_each_runs_own_affair(three: list[RunRecord]) -> None:
    assert "cpus-per-task" not in script_of([changed(record, cpu_pinning=4) for record in three])


@pytest.mark.parametrize(
    ("field", "values", "undone"),
    [
        ("vboost", (True, False, True), {1: "boost-slider --vboost 0"}),
        ("vboost", (True, True, True), {}),
        ("vboost", (False, False, False), {}),
        ("memory_clock", (None, 2619, None), {0: "--reset-memory-clocks", 2: "--reset-memory-clocks"}),
        ("memory_clock", (2619, 2619, 2619), {}),
    ],
)
def test_what_one_run_sets_on_the_nodes_is_undone_for_those_that_do_not(
    three: list[RunRecord], field: str, values: tuple[Any, ...], undone: dict[int, str]
) -> None:
    script = script_of([changed(record, **{field: value}) for record, value in zip(three, values, strict=True)])
    for turn in range(3):
        stubs = 'SLURM_JOB_NUM_NODES=1; timeout() { printf "%s\\n" "$*"; }'
        said = in_bash(script, f"{stubs}; reset {turn}")
        assert [line.partition("nvidia-smi ")[2] for line in said] == ([undone[turn]] if turn in undone else [])


@pytest.mark.parametrize("left", ["", '{"event":"hang","ti', "\0\0"])
def test_the_end_of_a_turn_is_a_line_of_its_own(three: list[RunRecord], left: str) -> None:
    events = three[1].paths.events
    events.write_text(json.dumps({"event": "start", "job_id": "7"}) + "\n" + left)
    in_bash(script_of(three), "SLURM_JOB_ID=7; say 1 limit 137; say 1 over 137")
    found = read_events(events)
    assert (found.timed_out, found.over, found.exit_code) == (True, True, 137)
    assert len(events.read_text().splitlines()) == 3 + bool(left)


def of_partition(fake: FakeSlurm, limit: str) -> None:
    (fake.folder / "nodes").write_text(f"batch*|{limit}|1-infinite|4\n")


def test_plans_of_an_earlier_release_with_a_limit_of_their_own_stay_apart(site: RunSite, texts: Texts) -> None:
    plan = site.plan()
    assert plan.scheduler is not None
    limited = msgspec.structs.replace(plan.scheduler, additional=(("time", "5"),))
    texts(series_conflict([msgspec.structs.replace(plan, scheduler=limited)] * 2))


@pytest.mark.parametrize(
    ("changes", "limit", "why"),
    [
        ([{}, {}, {}], "infinite", ""),
        ([{}, {}, {}], "15:00", ""),
        ([{}, {}, {}], "14:00", "together they may take 15 minutes, and the partition allows 14"),
        ([{}, {}, {"GPUS_PER_NODE": "1", "JOB_TOTAL_GPUS": "2"}], "infinite", "they differ in nodes, GPUs per node"),
        ([{}, {"SBATCH_ACCOUNT": "other"}, {}], "infinite", "they differ in account"),
        ([{}, {"SBATCH_GPUS_PER_NODE": "h100:2"}, {}], "infinite", "they differ in gres, gres type"),
        ([{"ADDITIONAL_SLURM_PARAMS": "qos=high"}] * 3, "infinite", ""),
    ],
)
def test_why_runs_cannot_share_an_allocation(
    site: RunSite, fake: FakeSlurm, changes: list[dict[str, str]], limit: str, why: str
) -> None:
    of_partition(fake, limit)
    plans = [site.plan(**{"GPUS_PER_NODE": "2", "JOB_TOTAL_GPUS": "2", **change}) for change in changes]
    said = series_conflict(plans)
    assert (said.startswith(why), bool(said)) == (True, bool(why)), said


def test_a_series_that_is_refused_leaves_nothing(site: RunSite, fake: FakeSlurm) -> None:
    fake.say("sbatch", "limit")
    for _ in range(3):  # more jobs than these are refused
        start(site)
        for folder in run_folders(site):
            shutil.rmtree(folder)
    before = [*site.install.rglob(".series-*")]
    with pytest.raises(SchedulerError) as refused:
        submit_series(jobs_of(site))
    assert refused.value.code == "apart"
    assert run_folders(site) == []
    assert len(before) == 3
    assert [*site.install.rglob(".series-*")] == before
