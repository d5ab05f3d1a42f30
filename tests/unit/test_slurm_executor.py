"""Slurm's executor at its edges: what it needs, what it says to sbatch and scancel, series that fail halfway."""

from __future__ import annotations

import json
import os
import secrets
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from llmb_common.base.errors import AnswerLost, EnvironmentLacks, RecordError, RequestError, SchedulerError
from llmb_common.base.programs import Answer
from llmb_common.executors.base import Executor, executor_for
from llmb_common.executors.slurm import cancel, own_jobs, submit
from llmb_common.executors.slurm.query import JobInfo
from llmb_common.executors.slurm.submit import SUBMIT_SECONDS
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.record import RunRecord, Submission, Turn, load_record, update_record
from llmb_common.runs.timing.job_events import read_events
from llmb_common.submission.single import create_run
from support.slurm_answers import chosen
from support.texts import Texts


class Slurm:
    """What commands answer, each in turn, and how they were called."""

    def __init__(self) -> None:
        self.answers: list[Answer | SchedulerError] = []
        self.called: list[list[str]] = []
        self.queue: list[JobInfo] | None = []

    def queued(self, which: str) -> list[JobInfo]:
        if self.queue is None:
            raise SchedulerError("squeue did not answer")
        return chosen(self.queue, which)

    def run(self, command: Sequence[str], timeout: float) -> Answer:
        self.called.append(list(command))
        answer = self.answers.pop(0) if self.answers else Answer(0)
        if isinstance(answer, SchedulerError):
            raise answer
        return answer


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    slurm = Slurm()
    for module in (submit, cancel):
        monkeypatch.setattr(module, "run_slurm", slurm.run)
    monkeypatch.setattr(own_jobs, "query_queue", slurm.queued)
    return slurm


@pytest.fixture
def record(plan: JobPlan) -> RunRecord:
    return create_run(plan, b"", {})


def series(plan: JobPlan, number: int, series_id: str) -> list[RunRecord]:
    return [create_run(plan, b"", {}, Submission(turn=Turn(series_id, turn, number))) for turn in range(number)]


def executor(plan: JobPlan) -> Executor:
    return executor_for(plan.cluster_type)


# What it needs


@pytest.fixture
def with_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def test_an_image_of_the_installation_is_a_file(plan: JobPlan, with_sbatch: None, tmp_path: Path, texts: Texts) -> None:
    image = tmp_path / "image.sqsh"
    with texts.raises(EnvironmentLacks) as caught:
        executor(plan).check(msgspec.structs.replace(plan, image=str(image)))
    assert (caught.value.code, "RUN_CONF_IMAGE" in caught.value.remedy) == ("no-image", True)
    image.touch()
    executor(plan).check(msgspec.structs.replace(plan, image=str(image)))


@pytest.mark.parametrize("image", ["./none.sqsh", "../none.sqsh"])
def test_so_is_one_named_from_here(plan: JobPlan, with_sbatch: None, image: str, texts: Texts) -> None:
    with texts.raises(EnvironmentLacks):
        executor(plan).check(msgspec.structs.replace(plan, image=image))


def test_an_image_of_a_registry_is_not_looked_for(plan: JobPlan, with_sbatch: None) -> None:
    executor(plan).check(msgspec.structs.replace(plan, image="nvcr.io#nvidia/nemo:25.09", engine_python=None))


def test_without_an_image_there_must_be_an_engine(plan: JobPlan, with_sbatch: None, texts: Texts) -> None:
    executor(plan).check(plan)
    with texts.raises(EnvironmentLacks) as caught:
        executor(plan).check(msgspec.structs.replace(plan, engine_python=None))
    assert caught.value.code == "no-engine"


# What it says on submission


def test_jobs_to_follow_and_nodes_to_avoid_are_options(plan: JobPlan) -> None:
    say = executor(plan).options
    assert say(plan, [], {}) == ()
    assert say(plan, ["7", "8_1"], {"n2": "fan", "n1": "fan"}) == ("--dependency=afterany:7:8_1", "--exclude=n[1-2]")


def with_params(plan: JobPlan, *additional: tuple[str, str | None]) -> JobPlan:
    assert plan.scheduler is not None
    return msgspec.structs.replace(plan, scheduler=msgspec.structs.replace(plan.scheduler, additional=additional))


def test_the_plans_own_list_is_kept_and_its_own_wishes_are_contradicted(plan: JobPlan, texts: Texts) -> None:
    say = executor(plan).options
    assert say(with_params(plan, ("exclude", "n9"), ("exclusive", None)), [], {"n1": "fan"}) == ("--exclude=n[1,9]",)
    with texts.raises(RequestError):
        say(with_params(plan, ("nodelist", "n[1-3],n9")), [], {"n3": "fan", "n2": "slow", "n7": "x"})


@pytest.mark.parametrize("own", ["afterok:5", "singleton"])
def test_what_a_job_follows_is_added_to_its_own_dependency(plan: JobPlan, own: str, texts: Texts) -> None:
    """An option on the command line replaces the script's: the job would start before its data are there."""
    say = executor(plan).options
    assert say(with_params(plan, ("dependency", own)), ["7"], {}) == (f"--dependency={own},afterany:7",)
    assert say(with_params(plan, ("dependency", own)), [], {}) == ()
    with texts.raises(RequestError):
        say(with_params(plan, ("dependency", "afterok:5?afterok:6")), ["7"], {})


def test_a_list_of_nodes_may_be_a_file_as_sbatch_has_it(plan: JobPlan, tmp_path: Path, texts: Texts) -> None:
    """Beside another list Slurm would look for a file of both names, and refuse every job."""
    say, hosts = executor(plan).options, tmp_path / "hosts"
    hosts.write_text("# broken\nn[7-8]  # fans\nn9*4\n")
    assert say(with_params(plan, ("exclude", str(hosts))), [], {"n1": "fan"}) == ("--exclude=n[1,7-9]",)
    with texts.raises(RequestError):
        say(with_params(plan, ("nodelist", str(hosts))), [], {"n8": "fan"})
    hosts.unlink()
    with texts.raises(RequestError):
        say(with_params(plan, ("exclude", str(hosts))), [], {"n1": "fan"})


def test_a_submission_that_hangs_ends_by_itself(record: RunRecord, slurm: Slurm) -> None:
    slurm.answers = [Answer(0, b"17\n", b" a remark \n")]
    started = executor(record.plan).start(record)
    assert (started.job_id, started.state, started.detail) == ("17", "SUBMITTED", "a remark")
    limit = ["timeout", "--kill-after=5", f"{SUBMIT_SECONDS}"]
    assert slurm.called == [[*limit, "sbatch", "--parsable", str(record.paths.script)]]


@pytest.mark.parametrize(("code", "kind"), [("no-program", SchedulerError), ("no-answer", AnswerLost)])
def test_a_program_that_is_not_there_has_submitted_nothing(record, slurm, code, kind, texts: Texts):
    slurm.answers = [SchedulerError("timeout did it", code=code)]
    with texts.raises(SchedulerError) as caught:
        executor(record.plan).start(record)
    assert type(caught.value) is kind


# Series


def test_each_turn_finds_its_run_by_its_number(plan: JobPlan, slurm: Slurm) -> None:
    records = series(plan, 3, "ab000001")
    slurm.answers = [Answer(0, b"7;cluster\n", b"charged to a")]
    started = submit.start_series(records)
    assert [(item.job_id, item.state, item.detail) for item in started] == [("7", "SUBMITTED", "charged to a")] * 3
    assert [load_record(item.paths.folder) for item in started] == started
    folder = records[0].paths.series("ab000001").folder
    assert [(folder / str(index)).resolve() for index in range(3)] == [item.paths.folder for item in records]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "series.sbatch")] == [0o755, 0o755]
    assert slurm.called[0][-1] == str(folder / "series.sbatch")


def test_a_lost_answer_is_on_record_of_each_and_the_folder_stays(plan: JobPlan, slurm: Slurm) -> None:
    records = series(plan, 2, "ab000003")
    slurm.answers = [Answer(124)]
    with pytest.raises(AnswerLost):
        submit.start_series(records)
    assert ["unknown" in load_record(item.paths.folder).detail for item in records] == [True, True]
    assert records[0].paths.series("ab000003").script.is_file()


def test_a_folder_that_cannot_be_made_is_named(plan: JobPlan, slurm: Slurm, texts: Texts) -> None:
    records = series(plan, 2, "ab000004")
    folder = records[0].paths.series("ab000004").folder
    folder.touch()
    with texts.raises(RecordError):
        submit.start_series(records)
    assert slurm.called == []


def test_half_a_folder_is_removed(plan: JobPlan, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    records = series(plan, 2, "ab000005")

    def fail(path: Path, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "symlink_to", fail)
    with texts.raises(RecordError):
        submit.start_series(records)
    assert not records[0].paths.series("ab000005").folder.exists()


@pytest.fixture
def after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the runs took longer than others wait."""
    monkeypatch.setattr(submit, "FRESH_SECONDS", -1)


def test_runs_that_took_long_to_make_are_confirmed_first(plan: JobPlan, slurm: Slurm, after_a_while: None) -> None:
    slurm.answers = [Answer(0, b"7\n")]
    (first, _) = submit.start_series(series(plan, 2, "ab000006"))
    assert [(state.state, state.detail) for state in first.states] == [
        ("SUBMITTING", ""),
        ("SUBMITTING", "confirmed"),
        ("SUBMITTED", ""),
    ]


def test_runs_that_others_gave_up_meanwhile_are_not_submitted(
    plan: JobPlan, slurm: Slurm, after_a_while: None, texts: Texts
) -> None:
    records = series(plan, 2, "ab000007")
    update_record(records[1].paths.folder, lambda found: found.with_state("NOT_SUBMITTED"))
    with texts.raises(AnswerLost):
        submit.start_series(records)
    assert slurm.called == []


def test_a_job_whose_record_cannot_be_written_is_not_denied(plan: JobPlan, slurm: Slurm, texts: Texts) -> None:
    records = series(plan, 2, "ab000008")
    records[1].paths.record.unlink()
    slurm.answers = [Answer(0, b"7\n")]
    with texts.raises(AnswerLost):
        submit.start_series(records)


# Ending


def with_job(record: RunRecord, job: str) -> RunRecord:
    return replace(record, job_id=job)


def test_a_job_is_named_by_id_and_name(record: RunRecord, slurm: Slurm) -> None:
    assert cancel.end_jobs([with_job(record, "6")]) == {}
    assert slurm.called == [["scancel", f"--name={record.job_name}", "6"]]


def queued(record: RunRecord, name: str, script: str = "") -> JobInfo:
    known = script or f"sbatch --parsable {record.submitted_script}"
    return JobInfo(str(record.job_id), name, "RUNNING", record.created, None, None, "n1", script=known)


def test_a_renamed_job_is_ended_by_its_new_name(record: RunRecord, slurm: Slurm) -> None:
    record = with_job(record, "6")
    slurm.queue = [queued(record, "bench_0001")]
    assert cancel.end_jobs([record]) == {}
    assert slurm.called == [["scancel", "--name=bench_0001", "6"]]


def test_where_jobs_share_a_name_only_the_proven_one_is_ended(plan: JobPlan, slurm: Slurm) -> None:
    """The site prescribes the name, and the id may have come round to somebody else's job."""
    record = with_job(create_run(with_params(plan, ("job-name", "bench")), b"", {}), "6")
    slurm.queue = [queued(record, "bench", script="/home/bob/train.sh")]
    assert cancel.end_jobs([record]) == {}
    slurm.queue = None
    (problem,) = cancel.end_jobs([record]).values()
    assert isinstance(problem, SchedulerError)
    assert slurm.called == [], "nothing was cancelled"
    slurm.queue = [queued(record, "bench")]
    assert cancel.end_jobs([record]) == {}
    assert slurm.called == [["scancel", "--name=bench", "6"]]


def test_tasks_of_old_arrays_are_named_by_their_ids_alone(plan: JobPlan, slurm: Slurm) -> None:
    first, second = (create_run(plan, b"", {}, Submission(turn=Turn("ab000009", index))) for index in range(2))
    slurm.answers = [Answer(0), Answer(1, b"", b"Access denied")]
    refused = cancel.end_jobs([with_job(first, "7_0"), with_job(second, "7_1")])
    assert slurm.called == [["scancel", "7_0"], ["scancel", "7_1"]]
    assert list(refused) == [second.paths.run_id]


def test_links_that_lead_to_no_run_keep_no_series_alive(plan: JobPlan, slurm: Slurm) -> None:
    record = create_run(plan, b"", {}, Submission(turn=Turn("ab00000c", 0, 1)))
    assert record.shared is not None
    record.shared.folder.mkdir()
    for name, target in (("0", record.paths.folder), ("1", "removed"), ("2", "2")):
        (record.shared.folder / name).symlink_to(target)
    assert cancel.end_jobs([with_job(record, "8")]) == {}
    assert slurm.called == [["scancel", f"--name={record.job_name}", "8"]]


def waiting_to_go_on(plan: JobPlan, monkeypatch: pytest.MonkeyPatch, left: str = "") -> list[RunRecord]:
    """The runs of a series, whose first was interrupted; ``left``: what its node left behind its start."""
    monkeypatch.setattr(cancel, "steps_of", lambda job: [])
    records = [with_job(record, "8").with_state("PENDING") for record in series(plan, 2, secrets.token_hex(4))]
    first, shared = records[0], records[0].shared
    assert shared is not None
    shared.folder.mkdir()
    for turn, record in enumerate(records):
        (shared.folder / str(turn)).symlink_to(record.paths.folder)
    (first.paths.folder / "claim").write_text("8\n")
    first.paths.events.write_text(json.dumps({"event": "start", "job_id": "8"}) + "\n" + left)
    return records


@pytest.mark.parametrize("left", ["", '{"event":"hang","ti', "\0\0"])
def test_a_run_whose_series_waits_to_go_on_is_over_whatever_its_node_left(plan, slurm, monkeypatch, left):
    first, _ = waiting_to_go_on(plan, monkeypatch, left)
    assert cancel.end_jobs([first]) == {}
    found = read_events(first.paths.events)
    assert (found.cancelled, found.over, found.exit_code) == (True, True, 143)
    assert len(first.paths.events.read_text().splitlines()) == 3 + bool(left)


def test_a_series_goes_on_without_a_run_that_was_cancelled_as_it_waited(plan, slurm, monkeypatch):
    records = waiting_to_go_on(plan, monkeypatch)
    first, second = records
    assert cancel.end_jobs([first]) == {}
    for record in records:
        record.paths.script.write_text(f"echo {record.paths.run_id} >> ran\n")
        record.paths.log.parent.mkdir(exist_ok=True)
    script = submit.render_series(records, first.shared)
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "8"}
    subprocess.run(["bash", "-c", script], cwd=first.shared.folder, env=environment, check=True)
    assert (first.shared.folder / "ran").read_text().split() == [second.paths.run_id]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(0, b"", b"scancel: warning"), None),
        (Answer(1, b"", b"scancel: error: Kill job error on job id 7: Invalid job id specified\n"), None),
        (Answer(1, b"", b"scancel: error: Job/step already completing or completed\n\n"), None),
        (Answer(1, b"", b"scancel: error: Kill job error on job id 7: Job has already finished\n"), None),
        (Answer(1, b"", b"Invalid job id 7\nscancel: error: Access denied\n"), "scancel: error: Access denied"),
        (Answer(1), "exit status 1"),
        (Answer(1, b"on stdout"), "on stdout"),
    ],
)
def test_one_that_has_ended_by_itself_is_no_failure(record, slurm, answer, message, texts: Texts):
    slurm.answers = [answer]
    refused = cancel.end_jobs([with_job(record, "7")])
    if message is None:
        assert refused == {}
    else:
        (error,) = refused.values()
        texts(f"{error.message}\n  -> {error.remedy}")


def test_without_an_answer_each_is_refused(record: RunRecord, slurm: Slurm) -> None:
    problem = SchedulerError("scancel did not answer in 60 s")
    slurm.answers = [problem]
    assert cancel.end_jobs([with_job(record, "7")]) == {record.paths.run_id: problem}
