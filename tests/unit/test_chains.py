"""Chains: jobs in sequence, each from the newest checkpoint of the one before."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from llmb_common.base.errors import CheckFailed, EnvironmentLacks, RequestError
from llmb_common.runs.index.runs import RunFilter
from llmb_common.runs.index.search import find_runs
from llmb_common.runs.record import load_record
from llmb_common.submission.jobs import Options
from llmb_common.submission.single import resuming_plan, submit, submit_chain
from llmb_train.steps import StartingPoint, has_random_state
from support.cli import Cli
from support.fake_slurm import FakeSlurm
from support.iteration_logs import mbridge_log, saved_line
from support.run_site import RECIPE, RunSite
from support.runs import make_run
from support.texts import Texts

SAVING = {"ENABLE_CHECKPOINT": "true"}


@pytest.fixture
def site(tmp_path: Path, fake: FakeSlurm) -> RunSite:
    return RunSite(tmp_path, "slurm")


def test_two_jobs_are_a_chain_and_each_knows_its_place_in_it(site: RunSite, fake: FakeSlurm) -> None:
    first, second = submit_chain(site.plan(**SAVING), RECIPE, 2)
    assert [job["options"] for job in fake.jobs()] == [["--parsable"], ["--parsable", "--dependency=afterany:1"]]
    for link, record in enumerate((first, second), 1):
        assert load_record(record.paths.folder) == record
        assert (record.submission.chain, record.submission.link) == (first.paths.run_id, link)
    # The index alone says so too, without a look at the folders.
    rows = find_runs(site.install, RunFilter(chain=first.paths.run_id))
    assert {row.folder for row in rows} == {first.paths.folder, second.paths.folder}


def test_without_a_key_the_same_chain_again_is_another_chain(site: RunSite, fake: FakeSlurm) -> None:
    first = submit_chain(site.plan(**SAVING), RECIPE, 2)
    again = submit_chain(site.plan(**SAVING), RECIPE, 2)
    assert len({record.paths.run_id for record in (*first, *again)}) == len(fake.jobs()) == 4
    assert [record.submission.key for record in first] == ["", ""]


def test_each_link_of_a_chain_with_a_key_has_its_own(site: RunSite, fake: FakeSlurm) -> None:
    """So the same command again submits only the links that are missing."""
    keys = [record.submission.key for record in submit_chain(site.plan(**SAVING), RECIPE, 2, Options(key="night"))]
    assert keys == ["night#1", "night#2"]
    longer = submit_chain(site.plan(**SAVING), RECIPE, 3, Options(key="night"))
    assert [record.submission.key for record in longer] == [*keys, "night#3"]
    assert len(fake.jobs()) == 3


def test_a_chain_saves_where_it_was_told_to(site: RunSite, tmp_path: Path) -> None:
    records = submit_chain(site.plan(**SAVING, CHECKPOINT_DIR=str(tmp_path / "saved")), RECIPE, 2)
    assert [record.plan.checkpoint.save for record in records] == [str(tmp_path / "saved")] * 2


def test_only_the_first_link_loads_what_was_asked_for(site: RunSite, tmp_path: Path) -> None:
    """The others start from what the chain itself has saved."""
    (tmp_path / "old" / "iter_0000020").mkdir(parents=True)
    (tmp_path / "old" / "iter_0000020" / "__0_0.distcp").touch()
    (tmp_path / "old" / "latest_checkpointed_iteration.txt").write_text("20")
    plan = site.plan(**SAVING, LOAD_CHECKPOINT_PATH=str(tmp_path / "old"), MAX_STEPS="60")
    first, second = submit_chain(plan, RECIPE, 2)
    assert (first.plan.checkpoint.load, first.plan.checkpoint.resume) == (str(tmp_path / "old"), False)
    assert (second.plan.checkpoint.load, second.plan.checkpoint.resume) == (None, True)


@pytest.mark.parametrize(
    ("links", "variables", "remedy"), [(1, SAVING, "--resume-chain 2 or more"), (2, {}, "ENABLE_CHECKPOINT=true")]
)
def test_what_is_not_a_chain_says_what_to_change(site, fake, links, variables, remedy, texts: Texts):
    with texts.raises(RequestError) as caught:
        submit_chain(site.plan(**variables), RECIPE, links)
    assert remedy in caught.value.remedy
    assert fake.jobs() == []


def test_a_job_that_ends_after_one_step_has_nothing_to_chain(site: RunSite, tmp_path: Path, texts: Texts) -> None:
    """Loading a checkpoint without MAX_STEPS trains one step, to time the loading."""
    plan = site.plan(**SAVING, LOAD_CHECKPOINT_PATH=str(tmp_path))
    assert plan.exit_after == 1
    with texts.raises(RequestError):
        submit_chain(plan, RECIPE, 2)


@pytest.mark.parametrize("links", [1, 2])
def test_what_is_missing_is_said_before_anything_is_on_disk(site: RunSite, links: int, texts: Texts) -> None:
    plan = site.plan(**SAVING)
    site.engine.unlink()
    with texts.raises(EnvironmentLacks):
        submit(plan, RECIPE) if links == 1 else submit_chain(plan, RECIPE, links)
    assert not (site.install / "workloads").exists()


# Going on


SAVING_HERE = {"GPU_TYPE": "cpu", "MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "1", "CLUSTER_TYPE": "local", **SAVING}


def told_to_end(cli: Cli, state: str = "TIMEOUT", tracker: str = "20"):
    """A run of 50 steps that was told to end after 20, and has a checkpoint where ``tracker`` says so."""
    log = mbridge_log(range(1, 21)) + saved_line(20)
    record = make_run(cli.install, state=state, job_id=None, log=log, variables=SAVING_HERE)
    if tracker:
        record.paths.checkpoints.mkdir()
        (record.paths.checkpoints / "latest_checkpointed_iteration.txt").write_text(tracker)
    return record


def test_a_run_that_was_told_to_end_goes_on_from_its_checkpoint(here: Cli, texts: Texts) -> None:
    record = told_to_end(here)
    shown = here("show", record.paths.run_id).out
    texts(shown, about="stopped early")
    assert "log says" not in shown, "nothing went wrong"
    with here.patch.context() as patch:
        patch.setattr(sys.stderr, "isatty", lambda: True)
        texts(here("show", record.paths.run_id).err, about="next: ")
    done = here("retry", "--resume", record.paths.run_id, "--json", STANDIN_STEPS="50")
    assert done.status == 0, done.err
    again = load_record(Path(done.data["jobs"][0]["folder"]))
    checkpoint = again.plan.checkpoint
    assert (checkpoint.save, checkpoint.load, checkpoint.resume) == (str(record.paths.checkpoints), None, True)
    assert msgspec.structs.replace(again.plan, checkpoint=record.plan.checkpoint) == record.plan
    whole = here("retry", "--resume", again.paths.run_id)
    assert whole.status == 2
    texts(whole.err)


def test_where_nothing_was_saved_nothing_goes_on(here: Cli, texts: Texts) -> None:
    done = here("retry", "--resume", told_to_end(here, tracker="").paths.run_id)
    assert done.status == 2
    texts(done.err)
    plain = make_run(here.install, log=mbridge_log(), variables={**SAVING_HERE, "ENABLE_CHECKPOINT": "false"})
    done = here("retry", "--resume", plain.paths.run_id)
    assert done.status == 2
    texts(done.err)


def test_two_jobs_never_go_on_from_the_same_checkpoint(site, fake, monkeypatch, capsys, texts: Texts):
    first, second = submit_chain(site.plan(**SAVING), RECIPE, 2)
    first.paths.checkpoints.mkdir()
    (first.paths.checkpoints / "latest_checkpointed_iteration.txt").write_text("20")
    fake.change("1", state="TIMEOUT")
    cli = Cli(site.install, monkeypatch, capsys)
    done = cli("retry", "--resume", first.paths.run_id)
    assert done.status == 2
    texts(done.err)
    fake.change("2", state="CANCELLED")  # which nobody has looked at
    submit(site.plan(**SAVING, CHECKPOINT_DIR=str(site.install / "elsewhere")), RECIPE)
    again = cli("retry", "--resume", first.paths.run_id, "--json").data["jobs"][0]["run_id"]
    done = cli("retry", "--resume", second.paths.run_id)
    assert (done.status, done.err.startswith(f"error: {again} ")) == (2, True), done.err


def test_a_link_whose_chain_has_saved_nothing_says_so_on_record(here: Cli, texts: Texts) -> None:
    failed = told_to_end(here, tracker="")
    with texts.raises(CheckFailed, mask="no earlier job.*"):
        submit(resuming_plan(failed.plan, failed.paths), RECIPE)
    (row,) = find_runs(here.install, RunFilter(states=("FAILED",)))
    record = load_record(row.folder)
    assert (record.state, re.findall(r"\d+", record.detail), "checkpoint" in record.detail) == ("FAILED", ["3"], True)
    shown = here("show", row.run_id).out
    texts(shown, about="before its first iteration")
    texts(here("logs", row.run_id).out)
    assert here("retry", row.run_id).status == 2, "it would only end again"


# Which random state a checkpoint has, by the keys of its index, and whether a job's ranks look for the same.


def job(world_size: int, **layout: int) -> Any:
    p = SimpleNamespace(**{"tp": 1, "pp": 1, "cp": 1, "ep": None, **layout})
    return SimpleNamespace(parallelism=p, data_parallel=world_size // (p.tp * p.pp * p.cp))


def saved(folder: Path, layout: str) -> StartingPoint:
    """A checkpoint whose index has the random states of ``layout`` ("PP.TP" or "PP.TP.DP") among other keys."""
    content = folder / "iter_0000050"
    content.mkdir()
    first = ".".join("0" for _ in layout.split("."))
    (content / ".metadata").write_bytes(
        b"\x8c\x1brng_state/shard_%s_%s\x94 optimizer/shard_0_9\x94" % (first.encode(), layout.encode())
    )
    return StartingPoint(folder, 50)


@pytest.mark.parametrize(
    ("layout", "asked", "found"),
    [
        ("1.1", job(1), True),
        ("1.1", job(8), True),  # every data-parallel rank takes the same
        ("1.1", job(2, ep=2), False),
        ("1.1.2", job(2, ep=2), True),
        ("1.1.2", job(4, ep=2), False),
        ("1.1.2", job(4, ep=2, cp=2), False),
        ("1.1.4", job(4, ep=2, cp=2), True),
        ("1.1.2", job(2, ep=1), False),
        ("2.4", job(8, pp=2, tp=4), True),
        ("2.4", job(8, pp=4, tp=2), False),
    ],
)
def test_the_ranks_take_the_state_that_was_saved_for_them(tmp_path: Path, layout: str, asked: Any, found: bool) -> None:
    assert has_random_state(asked, saved(tmp_path, layout)) is found


def test_a_checkpoint_of_another_format_is_left_to_the_framework(tmp_path: Path) -> None:
    assert has_random_state(job(8, ep=8), StartingPoint(tmp_path, 50))
    loaded = saved(tmp_path, "1.1")
    (tmp_path / "iter_0000050" / ".metadata").write_bytes(b"no such key")
    assert has_random_state(job(8, ep=8), loaded)
