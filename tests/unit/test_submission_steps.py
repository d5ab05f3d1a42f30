"""Each step of a submission with an executor that answers as it is told: what is continued, settled, noted, removed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmb_common.base.errors import AnswerLost, Interrupted, RecordError, RequestError, SchedulerError
from llmb_common.base.processes import identify
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.finding import Finding
from llmb_common.runs.index.search import find_runs
from llmb_common.runs.record import NOT_SUBMITTED, RUNNING, RunRecord, load_record, update_record
from llmb_common.submission import jobs, many, single
from llmb_common.submission.jobs import JobToSubmit, Options
from llmb_common.submission.many import submit_many
from llmb_common.submission.single import recover, submit
from support.run_site import RECIPE, RunSite, with_small_code
from support.texts import Texts
from support.told_executor import Told, told_executor


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Told:
    with_small_code(tmp_path, monkeypatch)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        assert len(pauses) < 100, "it waits for ever"

    monkeypatch.setattr(single, "time", SimpleNamespace(monotonic=time.monotonic, time=time.time, sleep=sleep))
    return told_executor(monkeypatch)


@pytest.fixture
def site(tmp_path: Path) -> RunSite:
    return RunSite(tmp_path, "waits")


def folders(site: RunSite) -> list[Path]:
    return sorted(path.parent for path in site.install.glob("workloads/*/experiments/*/[!.]*/run.json"))


def raises(error: Exception) -> Callable[[object], object]:
    def start(given: object) -> object:
        raise error

    return start


def interrupted(told: Told, site: RunSite, plan: JobPlan, options: Options | None = None) -> RunRecord:
    """A run of which nobody knows whether it has a job."""
    told.starts = raises(AnswerLost("no answer"))
    with pytest.raises(AnswerLost):
        submit(plan, RECIPE, options)
    told.starts = lambda record: None
    return load_record(folders(site)[-1])


# One job


def test_a_run_is_on_record_before_it_starts_and_in_the_index_afterwards(site: RunSite, told: Told) -> None:
    seen: list[RunRecord] = []
    told.starts = lambda record: [seen[0], *folders(site)]
    record = submit(site.plan(), RECIPE, on_record=seen.append)
    assert [item.state for item in (*seen, record)] == ["SUBMITTING", "SUBMITTED"]
    assert [(row.folder, row.job_id) for row in find_runs(site.install)] == [(record.paths.folder, "1")]
    assert told.started == [(seen[0], False)]


def test_whether_to_follow_it_is_the_executors_affair(site: RunSite, told: Told) -> None:
    submit(site.plan(), RECIPE, Options(detach=True))
    assert [detach for _, detach in told.started] == [True]


def test_a_refused_run_is_removed_and_any_other_failure_leaves_it(site: RunSite, told: Told) -> None:
    told.starts = raises(SchedulerError("the queue is full"))
    with pytest.raises(SchedulerError):
        submit(site.plan(), RECIPE)
    assert folders(site) == []
    told.starts = raises(RecordError("the disk is full"))
    with pytest.raises(RecordError):
        submit(site.plan(), RECIPE)
    assert len(folders(site)) == 1


def test_a_lost_answer_is_on_record_with_its_reason(site: RunSite, told: Told) -> None:
    record = interrupted(told, site, site.plan())
    assert (record.state, record.detail, record.job_id) == ("SUBMITTING", "no answer", None)


def test_a_lost_answer_of_a_job_that_shows_is_none(site: RunSite, told: Told) -> None:
    told.starts = raises(AnswerLost("no answer"))
    told.sees = lambda record: Finding(RUNNING, job_id="8")
    record = submit(site.plan(), RECIPE)
    assert (record.state, record.job_id) == ("RUNNING", "8")


def test_a_script_that_was_changed_is_not_started(site: RunSite, told: Told) -> None:
    def change(record: RunRecord) -> None:
        record.paths.script.write_text("rm -rf /\n")

    with pytest.raises(RecordError):
        submit(site.plan(), RECIPE, on_record=change)
    assert told.started == []


# Continuing


def test_a_key_that_is_on_record_is_returned_as_it_is(site: RunSite, told: Told) -> None:
    first = submit(site.plan(), RECIPE, Options(key="night"))
    seen: list[RunRecord] = []
    assert submit(site.plan(), RECIPE, Options(key="night"), on_record=seen.append) == first
    assert seen == [first]
    submit(site.plan(), RECIPE, Options(key="day"))
    submit(site.plan(), RECIPE)
    assert len(told.started) == 3


def test_the_key_of_another_users_run_is_not_taken(site: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    first = submit(site.plan(), RECIPE, Options(key="night"))
    monkeypatch.setattr(jobs, "is_ours", lambda folder: folder != first.paths.folder)
    assert submit(site.plan(), RECIPE, Options(key="night")).paths.folder != first.paths.folder


def test_another_users_interrupted_run_is_not_continued(site, monkeypatch, told):
    record = interrupted(told, site, site.plan())
    update_record(record.paths.folder, lambda found: found.with_state(NOT_SUBMITTED))
    monkeypatch.setattr(jobs, "is_ours", lambda folder: False)
    assert submit(site.plan(), RECIPE).paths.folder != record.paths.folder


@pytest.mark.parametrize("key", ["", "night"])
def test_the_same_job_continues_an_interrupted_one(site: RunSite, key: str, told: Told) -> None:
    record = interrupted(told, site, site.plan(), Options(key=key))
    update_record(record.paths.folder, lambda found: replace(found, submitter=None).with_state(NOT_SUBMITTED))
    again = submit(site.plan(), RECIPE, Options(key=key, detach=True))
    assert (again.paths, again.state, again.submitter) == (record.paths, "SUBMITTED", identify())
    states = [(state.state, state.detail) for state in again.states]
    assert states[1:] == [
        ("SUBMITTING", "no answer"),
        ("NOT_SUBMITTED", ""),
        ("SUBMITTING", "again"),
        ("SUBMITTED", ""),
    ]
    assert told.started[-1][1] is True
    assert submit(site.plan(), RECIPE).paths.folder != record.paths.folder, "it is continued once"


def test_one_whose_process_has_ended_is_continued_too(site: RunSite, told: Told) -> None:
    record = interrupted(told, site, site.plan())
    assert record.submitter is not None
    ended = replace(record.submitter, start="1")
    update_record(record.paths.folder, lambda found: replace(found, submitter=ended))
    told.sees = lambda record: Finding(NOT_SUBMITTED)
    assert submit(site.plan(), RECIPE).paths == record.paths


def test_another_job_or_another_day_begins_a_new_one(site, monkeypatch, told):
    record = interrupted(told, site, site.plan())
    update_record(record.paths.folder, lambda found: found.with_state(NOT_SUBMITTED))
    assert submit(site.plan(MAX_STEPS="60"), RECIPE).paths != record.paths
    assert submit(site.plan(), RECIPE, Options(after=("4711",))).paths != record.paths
    monkeypatch.setattr(jobs, "LEFTOVER_SECONDS", -1)
    assert submit(site.plan(), RECIPE).paths != record.paths


def test_one_that_a_live_process_is_submitting_is_left_to_it(site: RunSite, told: Told) -> None:
    record = interrupted(told, site, site.plan())
    assert record.submitter == identify()
    assert submit(site.plan(), RECIPE).paths != record.paths
    update_record(record.paths.folder, lambda found: replace(found, submitter=None))
    assert submit(site.plan(), RECIPE).paths != record.paths, "nor where nobody knows"


def test_settling_waits_until_it_is_certain(site: RunSite, told: Told) -> None:
    record = interrupted(told, site, site.plan())
    answers = iter([Finding(), Finding(), Finding(NOT_SUBMITTED)])
    told.sees = lambda record: next(answers)
    assert recover(record).state == "SUBMITTED"
    assert len(told.started) == 2
    assert told.started[-1][1] is False


def test_a_job_that_is_found_is_adopted(site: RunSite, told: Told) -> None:
    record = interrupted(told, site, site.plan())
    told.sees = lambda record: Finding(RUNNING, job_id="8")
    assert recover(record).job_id == "8"
    assert len(told.started) == 1


@pytest.mark.parametrize(
    ("sees", "patience"),
    [
        (Finding(unknown="squeue did not answer"), 360.0),
        (Finding(), -1.0),
    ],
)
def test_what_cannot_be_settled_says_why_and_is_not_submitted_twice(
    site, monkeypatch, sees, patience, told, texts: Texts
):
    record = interrupted(told, site, site.plan())
    monkeypatch.setattr(single, "PATIENCE_SECONDS", patience)
    told.sees = lambda record: sees
    looked = told.looked
    with texts.raises(AnswerLost):
        recover(record)
    assert (told.looked - looked, len(told.started)) == (1, 1)


def test_of_two_that_settle_a_run_one_submits_it(site: RunSite, told: Told, texts: Texts) -> None:
    record = interrupted(told, site, site.plan())

    def settled_meanwhile(found: RunRecord) -> Finding:
        update_record(found.paths.folder, lambda here: here.with_state("SUBMITTING", "by another"))
        return Finding()

    given_up = update_record(record.paths.folder, lambda found: found.with_state(NOT_SUBMITTED))
    told.sees = settled_meanwhile
    with texts.raises(AnswerLost):
        recover(given_up)
    assert len(told.started) == 1


# Following others


def test_a_run_to_follow_needs_a_job(site: RunSite, told: Told, texts: Texts) -> None:
    record = interrupted(told, site, site.plan())
    with texts.raises(RequestError):
        submit(site.plan(), RECIPE, Options(after=(record.paths.run_id,)))


# Many


def test_jobs_that_wait_are_in_the_index_when_all_are_submitted(site: RunSite, told: Told) -> None:
    jobs = [JobToSubmit(site.plan(MAX_STEPS=str(steps)), RECIPE) for steps in (60, 61, 62)]
    told.checks = lambda plan: time.sleep(0.2)  # long enough for the others to ask the same
    results = [result for _, result in submit_many(jobs)]
    assert {row.folder for row in find_runs(site.install)} == set(folders(site))
    assert [result.plan.max_steps for result in results if isinstance(result, RunRecord)] == [60, 61, 62]
    assert len(told.checked) == 1, "what differs in steps alone needs the same of the site"


def test_what_the_site_lacks_is_looked_for_again_by_the_next_job(site: RunSite, told: Told) -> None:
    jobs = [JobToSubmit(site.plan(MAX_STEPS=str(steps)), RECIPE) for steps in (60, 61, 62)]
    told.checks = raises(RequestError("the image is not there"))
    results = [result for _, result in submit_many(jobs)]
    assert [str(result) for result in results] == ["the image is not there"] * 3
    assert (len(told.checked), told.started) == (3, [])


def test_without_a_queue_jobs_run_one_after_the_other_and_a_failure_stops_none(tmp_path: Path, told: Told) -> None:
    site = RunSite(tmp_path, "follows")
    plan = site.plan()
    told.starts = lambda record: raises(RecordError("the disk is full"))(record) if len(told.started) == 2 else None
    results = [result for _, result in submit_many([JobToSubmit(plan, RECIPE)] * 3)]
    assert [type(result) for result in results] == [RunRecord, RecordError, RunRecord]
    assert [row.state for row in find_runs(site.install)] == ["COMPLETED", "SUBMITTING", "COMPLETED"]


def test_ctrl_c_begins_no_further_one(tmp_path: Path, told: Told) -> None:
    site = RunSite(tmp_path, "follows")
    told.starts = raises(Interrupted("ended by SIGINT"))
    with pytest.raises(Interrupted):
        submit_many([JobToSubmit(site.plan(), RECIPE)] * 3)
    assert len(told.started) == 1


def test_identical_jobs_with_keys_that_are_on_record_are_returned(site: RunSite, told: Told) -> None:
    plan = site.plan()
    jobs = [JobToSubmit(plan, RECIPE, Options(key=key)) for key in "abc"]
    ((_, second),) = submit_many([jobs[1]])
    results = [result for _, result in submit_many(jobs)]
    assert results[1] == second
    assert [result.submission.key for result in results if isinstance(result, RunRecord)] == ["a", "b", "c"]
    assert len(told.started) == 3


def refuse_after(told: Told, accepted: int, error: SchedulerError) -> None:
    """The scheduler takes so many jobs and no more."""

    def start(record: RunRecord) -> None:
        if len(told.started) > accepted:
            raise error

    told.starts = start


def test_what_was_refused_once_is_not_tried_again(site: RunSite, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "AT_ONCE", 1)
    repeat, other = JobToSubmit(site.plan(), RECIPE), JobToSubmit(site.plan(MAX_STEPS="60"), RECIPE)
    refuse_after(told, 2, SchedulerError("no more", remedy="wait", code="refused"))
    results = [result for _, result in submit_many([repeat, repeat, repeat, repeat, other, repeat])]
    refused = [result for result in results if isinstance(result, SchedulerError)]
    assert [str(error) for error in refused] == ["no more\n  -> wait"] * 4
    assert [record.plan for record, _ in told.started] == [repeat.plan] * 3 + [other.plan]
    assert len(folders(site)) == 2


def test_after_a_lost_answer_identical_jobs_are_not_tried(site, told, monkeypatch, texts: Texts):
    """Where the queue is full sbatch waits for two minutes, and then nobody knows."""
    monkeypatch.setattr(many, "AT_ONCE", 1)
    job = JobToSubmit(site.plan(), RECIPE)
    refuse_after(told, 1, AnswerLost("it is unknown"))
    results = [result for _, result in submit_many([job] * 4)]
    assert [type(result) for result in results] == [RunRecord, AnswerLost, SchedulerError, SchedulerError]
    texts(str(results[2]))
    assert len(told.started) == 2
    assert len(folders(site)) == 2, "the one of which nobody knows stays on record"


def test_a_job_on_record_is_found_whatever_was_refused_before_it(site, told, monkeypatch):
    monkeypatch.setattr(many, "AT_ONCE", 1)
    first, second = (JobToSubmit(site.plan(), RECIPE, Options(key=key)) for key in "ab")
    ((_, record),) = submit_many([second])
    refuse_after(told, 1, SchedulerError("no more", code="refused"))
    results = [result for _, result in submit_many([first, second])]
    assert [isinstance(results[0], SchedulerError), results[1]] == [True, record]
