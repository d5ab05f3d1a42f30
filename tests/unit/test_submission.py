"""Submitting with options: order, excluded nodes, chains, many at once."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from llmb_common.base.errors import AnswerLost, EnvironmentLacks, LLMBError, RecordError, RequestError
from llmb_common.runs.finding import stay_submitting
from llmb_common.runs.index.search import find_runs
from llmb_common.runs.manifest import hash_of_packed, make_manifest
from llmb_common.runs.record import RunRecord, Submission, load_record
from llmb_common.submission.excluded_nodes import exclude_nodes
from llmb_common.submission.job_files import check_unchanged
from llmb_common.submission.jobs import JobToSubmit, Options
from llmb_common.submission.many import submit_many
from llmb_common.submission.observe import refresh
from llmb_common.submission.single import create_run, submit
from support.fake_slurm import FakeSlurm
from support.run_site import RECIPE, RunSite
from support.texts import Texts


@pytest.fixture
def site(tmp_path: Path, fake: FakeSlurm) -> RunSite:
    return RunSite(tmp_path, "slurm")


def options_of(fake: FakeSlurm, number: int = -1) -> list[str]:
    """The command line that the job was submitted with."""
    options = fake.jobs()[number]["options"]
    assert isinstance(options, list)
    return [option for option in options if option != "--parsable"]


def test_the_record_says_where_the_code_comes_from(site: RunSite, fake: FakeSlurm) -> None:
    record = submit(site.plan(), RECIPE)
    assert hash_of_packed(record.paths.code.read_bytes()) == record.manifest["code_sha256"]
    assert options_of(fake) == []


def test_after_takes_job_ids_run_ids_and_names(site: RunSite, fake: FakeSlurm) -> None:
    first, second = submit(site.plan(), RECIPE), submit(site.plan(), RECIPE)
    submit(site.plan(), RECIPE, Options(after=(first.paths.run_id, second.paths.name, "777", "777")))
    assert options_of(fake) == ["--dependency=afterany:1:2:777"]


def test_after_a_job_whose_number_begins_the_id_of_a_run(
    site: RunSite, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("secrets.token_hex", lambda size: "77710000")
        submit(site.plan(), RECIPE)
    submit(site.plan(), RECIPE, Options(after=("777",)))
    assert options_of(fake) == ["--dependency=afterany:777"]


def test_after_an_ended_run_is_now(site: RunSite, fake: FakeSlurm) -> None:
    """Slurm refuses a dependency on a job that it has forgotten."""
    first = submit(site.plan(), RECIPE)
    fake.change("1", state="FAILED")
    refresh([first])
    submit(site.plan(), RECIPE, Options(after=(first.paths.run_id,)))
    assert options_of(fake) == []


def test_after_something_that_is_not_a_run(site: RunSite, fake: FakeSlurm, texts: Texts) -> None:
    with texts.raises(RequestError):
        submit(site.plan(), RECIPE, Options(after=("nope",)))
    assert fake.jobs() == []


def test_excluded_nodes_are_avoided(site: RunSite, fake: FakeSlurm) -> None:
    exclude_nodes(site.install, "n[9-10],x7", "slow NVLink")
    plan = site.plan(ADDITIONAL_SLURM_PARAMS="exclude=n1")
    submit(plan, RECIPE, Options(exclude="n11"))
    assert options_of(fake) == ["--exclude=n[1,9-11],x7"], "the list, the option and the plan's own, for it wins"


def test_a_damaged_exclusion_list_stops_submissions(site: RunSite, fake: FakeSlurm, texts: Texts) -> None:
    exclude_nodes(site.install, "n1", "slow")
    (site.install / ".llmb" / "exclude.json").write_text('{"schema": 1}')
    with texts.raises(RecordError):
        submit(site.plan(), RECIPE)
    assert fake.jobs() == []


def test_requeue_is_requested_and_the_user_has_the_last_word(site: RunSite) -> None:
    script = submit(site.plan(), RECIPE).paths.script.read_text()
    assert "#SBATCH --requeue\n" in script
    script = submit(site.plan(ADDITIONAL_SLURM_PARAMS="no-requeue"), RECIPE).paths.script.read_text()
    assert "#SBATCH --no-requeue\n" in script
    assert "#SBATCH --requeue\n" not in script


def test_a_checkpoint_is_looked_at_for_each_number_of_steps(site: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    monkeypatch.setattr("llmb_common.submission.jobs.check_job", lambda plan: checked.append(plan.max_steps))
    submit_many([JobToSubmit(site.plan(MAX_STEPS=steps), RECIPE) for steps in ("60", "61")])
    assert checked == [60], "nothing depends on the steps"
    saving = {"ENABLE_CHECKPOINT": "true", "CHECKPOINT_DIR": str(site.install)}
    submit_many([JobToSubmit(site.plan(MAX_STEPS=steps, **saving), RECIPE) for steps in ("60", "61")])
    assert checked == [60, 60, 61]


def test_a_recipe_that_is_gone_stops_no_other_job(site: RunSite, fake: FakeSlurm, tmp_path: Path) -> None:
    jobs = [JobToSubmit(site.plan(), folder) for folder in (tmp_path / "gone", RECIPE)]
    (_, refused), (_, record) = submit_many(jobs)
    assert isinstance(refused, EnvironmentLacks)
    assert isinstance(record, RunRecord)
    assert len(fake.jobs()) == 1


def test_many_at_once_in_order_and_a_refused_one_stops_nobody(site: RunSite, fake: FakeSlurm) -> None:
    jobs = [
        JobToSubmit(site.plan(MAX_STEPS=str(60 + number)), RECIPE, Options(key=f"sweep#{number}"))
        for number in range(12)
    ]
    jobs[5] = JobToSubmit(jobs[5].plan, RECIPE, Options(after=("nope",)))
    results = submit_many(jobs)
    assert [job for job, _ in results] == jobs
    refused = [result for _, result in results if isinstance(result, LLMBError)]
    assert [error.code for error in refused] == ["no-run"]
    records = [result for _, result in results if isinstance(result, RunRecord)]
    assert len({record.job_id for record in records}) == len(fake.jobs()) == 11
    assert {record.plan.max_steps for record in records} == {60 + number for number in range(12) if number != 5}
    assert len(find_runs(site.install)) == 11
    again = [result for _, result in submit_many([jobs[0], jobs[11]])]
    assert again == [records[0], records[-1]]
    assert len(fake.jobs()) == 11


def test_a_lost_answer_takes_no_job_away_that_somebody_has_found(site: RunSite) -> None:
    record = submit(site.plan(), RECIPE)
    stay_submitting(record, AnswerLost("sbatch did not answer"))
    assert load_record(record.paths.folder) == record


# A run is submitted as it was planned: what was changed in its folder since is noticed, whoever did it.


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    code = tmp_path / "clone" / "llmb_train"
    code.mkdir(parents=True)
    (code / "__main__.py").write_text("print('trains')\n")
    plan = RunSite(tmp_path, "slurm").plan()
    return create_run(plan, code, make_manifest(plan, RECIPE, code), Submission())


def refusal(record: RunRecord) -> str:
    with pytest.raises(RecordError) as caught:
        check_unchanged(record)
    assert caught.value.code == "changed"
    assert f"remove the folder {record.paths.folder}" in caught.value.remedy
    return caught.value.message


def test_another_script_or_job_is_refused(record: RunRecord, texts: Texts) -> None:
    for path in (record.paths.script, record.paths.job):
        before = path.read_bytes()
        path.write_bytes(before + b"\n")
        texts(refusal(record))
        path.write_bytes(before)
    check_unchanged(record)


def test_so_is_another_supervisor_even_if_the_script_was_changed_to_it(record: RunRecord, texts: Texts) -> None:
    before = hashlib.sha256(record.paths.supervisor.read_bytes()).hexdigest()
    record.paths.supervisor.write_text("touch mine\n")
    texts(refusal(record))
    after = hashlib.sha256(b"touch mine\n").hexdigest()
    record.paths.script.write_text(record.paths.script.read_text().replace(before, after))
    texts(refusal(record))


@pytest.mark.parametrize("name", ["script", "job", "supervisor", "code"])
def test_so_is_a_run_without_one_of_its_files(record: RunRecord, name: str, texts: Texts) -> None:
    path = getattr(record.paths, name)
    path.unlink()
    texts(refusal(record))


def test_a_run_keeps_the_supervisor_of_the_release_that_made_it(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmb_common.submission.supervisor.render_supervisor", lambda cluster_type: b"of a later one")
    check_unchanged(record)


@pytest.mark.parametrize(("name", "code"), [("__main__.py", "print('mines')\n"), ("main.py", "print('trains')\n")])
def test_so_is_other_code_unless_nobody_asks(record: RunRecord, name: str, code: str, texts: Texts) -> None:
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr(f"llmb_train/{name}", code)
    record.paths.code.write_bytes(other.getvalue())
    texts(refusal(record))
    check_unchanged(record, code=False)


def test_an_archive_that_is_none_is_an_error_of_its_own(record: RunRecord, texts: Texts) -> None:
    record.paths.code.write_bytes(b"not a zip")
    with texts.raises(RecordError):
        check_unchanged(record)
