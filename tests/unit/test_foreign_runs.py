"""Other users' runs in a shared installation: visible, but never resumed, executed, cancelled or written to."""

from __future__ import annotations

import copy
import functools
import json
import operator
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmb_common.base.errors import RecordError
from llmb_common.base.processes import identify
from llmb_common.runs.finding import with_job_facts
from llmb_common.runs.folders import refusal
from llmb_common.runs.index.runs import RunFilter
from llmb_common.runs.index.search import find_run, find_runs
from llmb_common.runs.manifest import hash_of_packed, pack_code, training_code
from llmb_common.runs.record import RUNNING, RunRecord, Submission, load_record, update_record
from llmb_common.submission.jobs import JobToSubmit, Options
from llmb_common.submission.many import submit_series
from llmb_common.submission.observe import cancel, observe
from llmb_common.submission.single import create_run, submit
from llmb_run.following import observed_runs
from support.cli import Cli
from support.fake_slurm import FakeSlurm
from support.other_user import OTHER, as_other_user, shared_folder
from support.run_site import RECIPE, RunSite
from support.runs import PUBLISHED, make_run, steady_log
from support.texts import Texts

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user: run tests/run as root")


@pytest.fixture
def shared() -> Iterator[Path]:
    with shared_folder() as folder:
        yield folder


@pytest.fixture
def slurm_site(shared: Path, monkeypatch: pytest.MonkeyPatch) -> RunSite:
    """A shared, group-writable installation: anybody may put folders into ``workloads``."""
    fake = FakeSlurm(shared / "slurm")
    monkeypatch.setenv("PATH", fake.path())
    site = RunSite(shared, "slurm")
    for path in (site.install, shared / "slurm"):
        path.chmod(0o1777)
    return site


def let_everybody_write(site: RunSite) -> None:
    for path in [site.install, *site.install.rglob("*")]:
        if path.is_dir() and path.name != ".llmb":
            path.chmod(0o1777)


def plant(site: RunSite, loot: Path, key: str = "") -> None:
    """What an attacker does: fake an interrupted submission of the victim's next job, with the attacker's script."""
    code = pack_code(training_code())
    plan = site.plan()

    manifest = {"code_sha256": hash_of_packed(pack_code(training_code()))}

    def attack() -> None:
        record = create_run(plan, code, manifest, Submission(key=key)).with_state("NOT_SUBMITTED")
        record.save()
        record.paths.script.write_text(f"#!/bin/bash\n#SBATCH --job-name={record.paths.job_name}\nid > {loot}\n")

    as_other_user(attack)


def submitted_scripts(site: RunSite) -> list[str]:
    fake = FakeSlurm.__new__(FakeSlurm)
    object.__setattr__(fake, "folder", site.install.parent / "slurm")
    return [call[-1] for call in fake.calls("sbatch")]


@needs_root
@pytest.mark.parametrize("key", ["", "sweep:1"])
def test_a_planted_run_is_not_adopted_and_its_script_does_not_run(slurm_site: RunSite, shared: Path, key: str) -> None:
    (slurm_site.install / "workloads").mkdir(mode=0o777)
    let_everybody_write(slurm_site)
    plant(slurm_site, shared / "loot", key)
    (planted,) = find_runs(slurm_site.install)
    record = submit(slurm_site.plan(), RECIPE, Options(key=key))
    assert record.paths.folder != planted.folder
    assert record.paths.folder.stat().st_uid == os.geteuid()
    assert submitted_scripts(slurm_site) == [str(record.paths.script)]
    assert len(find_runs(slurm_site.install)) == 2, "it is shown, not hidden"


@needs_root
def test_a_local_run_of_another_user_is_not_executed(shared: Path) -> None:
    """The exact attack: a folder in workloads/, and the victim runs the same command."""
    site = RunSite(shared, "local")
    (site.install / "workloads").mkdir(mode=0o777)
    let_everybody_write(site)
    plant(site, shared / "loot")
    record = submit(site.plan(), RECIPE)
    assert record.state == "COMPLETED"
    assert not (shared / "loot").exists()


@needs_root
def test_cancel_all_ends_ones_own_runs_and_leaves_others(shared: Path, cli: Cli, texts: Texts) -> None:
    fake = FakeSlurm(shared / "slurm")
    own = make_run(cli.install, state="PENDING", job_id="1")
    foreign = make_run(cli.install, state="PENDING", job_id="2")
    os.chown(foreign.paths.folder, OTHER, OTHER)
    os.chown(foreign.paths.record, OTHER, OTHER)
    for number, record in ((1, own), (2, foreign)):
        row = {"id": str(number), "name": record.job_name, "state": "RUNNING", "submitted": 1, "known": ["squeue"]}
        (shared / "slurm" / str(number)).write_text(json.dumps([row]))
    done = cli("cancel", "--all", "--json", PATH=fake.path())
    assert (done.status, [run["run_id"] for run in done.data["runs"]]) == (0, [own.paths.run_id])
    texts(done.err, about="other users")
    assert [job["state"] for job in fake.jobs()] == ["CANCELLED", "RUNNING"]
    named = cli("cancel", foreign.paths.run_id, own.paths.run_id, PATH=fake.path())
    assert named.status == 3
    texts(named.err)
    texts(named.out)
    assert [job["state"] for job in fake.jobs()] == ["CANCELLED", "RUNNING"]


@needs_root
def test_nothing_is_written_into_another_users_run(cli: Cli, shared: Path, texts: Texts) -> None:
    record = make_run(cli.install, state="PENDING", job_id="7")
    for path in (record.paths.folder, record.paths.record):
        os.chown(path, OTHER, OTHER)
    before = record.paths.record.read_bytes()
    with texts.raises(RecordError) as caught:
        update_record(record.paths.folder, lambda found: found.with_state("CANCELLED"))
    assert caught.value.code == "not-yours"
    fake = FakeSlurm(shared / "slurm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", fake.path())
        (seen,) = observe([record])
    assert (seen.finding.unknown, record.paths.record.read_bytes()) == ("", before)
    assert not list(record.paths.folder.glob(".lock"))


@needs_root
@pytest.mark.parametrize("what", ["folder", "record"])
def test_folder_and_record_must_both_be_ours(cli: Cli, what: str) -> None:
    """A record of ours moved into a folder of theirs, and the reverse."""
    record = make_run(cli.install, state="PENDING")
    os.chown(getattr(record.paths, what), OTHER, OTHER)
    with pytest.raises(RecordError) as refused:
        update_record(record.paths.folder, lambda found: found.with_state("CANCELLED"))
    assert f" {OTHER}, " in refused.value.message


@needs_root
def test_retry_starts_nothing_of_another_users_record(cli: Cli, texts: Texts) -> None:
    """Its plan names a Python, an image and mounts, which would be used with our privileges."""
    record = make_run(cli.install)
    os.chown(record.paths.folder, OTHER, OTHER)
    os.chown(record.paths.record, OTHER, OTHER)
    for words in ((), ("--exact",), ("--exact", "--anyway")):
        done = cli("retry", record.paths.run_id, *words)
        assert done.status == 3, done.err
    texts(done.err)
    assert cli("show", record.paths.run_id).status == 0, "it can be looked at"


def test_a_run_id_that_another_record_claims_still_means_ours(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    own = make_run(cli.install)
    claims = make_run(cli.install)
    value = json.loads(claims.paths.record.read_text())
    claims.paths.record.write_text(json.dumps({**value, "run_id": own.paths.run_id}))
    monkeypatch.setattr("llmb_common.runs.index.search.is_ours", lambda folder: folder == own.paths.folder)
    assert find_run(cli.install, own.paths.run_id).folder == own.paths.folder


# Records that were tampered with


def changed(record: RunRecord, **values: object) -> None:
    """As ``sed -i run.json`` would."""
    value = json.loads(record.paths.record.read_text())
    record.paths.record.write_text(json.dumps({**value, **values}))


def test_a_record_that_cannot_be_right_is_shown_as_unreadable(cli: Cli) -> None:
    good, bad, deep, many = (make_run(cli.install) for _ in range(4))
    changed(bad, experiment_name="a\x1b[31mb")
    changed(many, plan={**json.loads(many.paths.record.read_text())["plan"], "gpus": 2**63})
    nested = deep.paths.record.read_text().replace('"results": null', f'"results": {"[" * 100_000}')
    deep.paths.record.write_text(nested)
    runs = cli("jobs", "--json").data["runs"]
    assert {run["folder"]: run["state"] for run in runs} == {
        str(good.paths.folder): "COMPLETED",
        str(bad.paths.folder): "UNREADABLE",
        str(deep.paths.folder): "UNREADABLE",
        str(many.paths.folder): "UNREADABLE",
    }


Keys = tuple[str | int, ...]


def numbers_in(value: Any, *above: str | int) -> Iterator[Keys]:
    """Where in ``value``, plain data, numbers are, each by the keys that lead there."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from numbers_in(item, *above, key)
    if type(value) in (int, float):
        yield above


def with_item(value: Any, keys: Keys, item: object) -> Any:
    *above, last = keys
    value = copy.deepcopy(value)
    functools.reduce(operator.getitem, above, value)[last] = item
    return value


FUNCTION = {"GPU_TYPE": "gb200", "MODEL_SIZE": "deepseek_v3", "JOB_TOTAL_GPUS": "256"}
WHOLE = {**PUBLISHED, "ENABLE_CHECKPOINT": "true", "CHECKPOINT_INTERVAL": "20"}


@pytest.mark.parametrize(("recipe", "variables"), [("mbridge", FUNCTION), ("llama3.1", WHOLE)])
def test_no_number_of_a_plan_ends_a_command(cli: Cli, recipe: str, variables: dict[str, str]) -> None:
    """Either the record is refused, or whatever lists or measures runs can do with it."""
    record = make_run(cli.install, recipe, variables=variables, log=steady_log(6000.0))
    whole = json.loads(record.paths.record.read_text())
    memory = whole["plan"]["preflight"]["memory"] or {"stages": []}
    del memory["stages"][1:]  # their numbers are of the same kind
    refused = 0
    for keys in numbers_in(whole["plan"]):
        for number in (0, -1, 2**63, 10**23, 1e308):
            plan = with_item(whole["plan"], keys, number)
            changed(record, plan=plan)
            try:
                load_record(record.paths.folder)
            except RecordError:
                refused += 1
                continue
            shutil.rmtree(cli.install / ".llmb", ignore_errors=True)
            for words in (("jobs",), ("results", "--json"), ("show", record.paths.run_id)):
                done = cli(*words)
                assert done.status in (0, 1), (keys, number, done.err)
    assert refused > 100


def test_what_is_nested_without_end_ends_no_command(cli: Cli) -> None:
    record = make_run(cli.install, state="RUNNING")
    folder, deep = record.paths.folder, "[" * 100_000
    (folder / "nodes").mkdir()
    (folder / "nodes" / "n1.json").write_text('{"host": "n1"}')
    for name in ("nodes/n1.memory.jsonl", "nodes/n2.json", "events.jsonl", "waits.json"):
        (folder / name).write_text(f'{{"event": {deep}\n')
    record.paths.log.write_text(f"LLMB manifest: {deep}\n")
    with_job_facts(record)
    record.with_state("FAILED").save()
    for command in ("show", "why", "results"):
        done = cli(command, record.paths.run_id)
        assert done.status in (0, 1), done.err
        assert "Traceback" not in done.err


def test_a_copy_of_a_record_does_not_stand_in_for_the_run(cli: Cli) -> None:
    """The row of its folder in the index was replaced by one that points elsewhere."""
    good = make_run(cli.install, state="COMPLETED")
    copy = good.paths.folder.with_name(f"{good.paths.experiment_name}x_1")
    copy.mkdir()
    (copy / "run.json").write_bytes(good.paths.record.read_bytes())
    rows = {row.folder: row.state for row in find_runs(cli.install, RunFilter())}
    assert rows == {good.paths.folder: "COMPLETED", copy: "UNREADABLE"}


def test_a_fifo_in_place_of_a_record_hangs_no_command(cli: Cli, texts: Texts) -> None:
    record = make_run(cli.install)
    record.paths.record.unlink()
    os.mkfifo(record.paths.record)
    (row,) = find_runs(cli.install)
    assert row.state == "UNREADABLE"
    texts(row.detail)


@pytest.mark.parametrize("kind", ["fifo", "link", "hard link"])
def test_the_lock_is_opened_without_following_or_waiting(cli: Cli, tmp_path: Path, kind: str, texts: Texts) -> None:
    record = make_run(cli.install, state="PENDING")
    precious = tmp_path / "precious"
    precious.write_text("data")
    lock = record.paths.folder / ".lock"
    if kind == "fifo":
        os.mkfifo(lock)
    elif kind == "link":
        lock.symlink_to(precious)
    else:
        lock.hardlink_to(precious)
    with texts.raises(RecordError):
        update_record(record.paths.folder, lambda found: found.with_state("RUNNING"))
    assert precious.read_text() == "data"


@needs_root
def test_cancel_signals_no_process_of_another_user(tmp_path: Path, texts: Texts) -> None:
    """The record is ours, as after a restored backup; the process that now has its number is not."""
    site = RunSite(tmp_path, "local")
    record = create_run(site.plan(), pack_code(training_code()), {})
    with subprocess.Popen(["/bin/sleep", "60"], user=OTHER, group=OTHER, cwd="/", start_new_session=True) as other:
        replace(record, process=identify(other.pid)).with_state(RUNNING).save()
        with texts.raises(RecordError, mask=r"process \d+"):
            cancel([load_record(record.paths.folder)])
        assert other.poll() is None
        other.kill()


def test_nobody_else_can_change_what_a_job_will_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the umask of a group that shares everything: folders, a series' links, names in a shared folder."""
    fake = FakeSlurm(tmp_path / "fake")
    monkeypatch.setenv("PATH", fake.path())
    site = RunSite(tmp_path, "slurm")
    former = os.umask(0)
    try:
        plan = site.plan()
        results = submit_series([JobToSubmit(plan, RECIPE), JobToSubmit(plan, RECIPE)])
    finally:
        os.umask(former)
    assert all(isinstance(record, RunRecord) for record in results)
    experiments = site.install / "workloads" / plan.workload / "experiments"
    experiment = experiments / plan.experiment_name
    assert list(experiments.glob(".series-*"))
    for folder in (experiments, experiment):
        assert folder.stat().st_mode & 0o1000, f"{folder} is not sticky"
    below = [path for path in experiments.rglob("*") if not path.is_symlink() and path != experiment]
    assert [path for path in below if path.stat().st_mode & 0o022] == []


def test_a_fifo_in_place_of_a_log_or_of_events_hangs_nobody(cli: Cli) -> None:
    record = make_run(cli.install, state="RUNNING")
    for path in (record.paths.log, record.paths.events):
        os.mkfifo(path)
    (run,) = observed_runs([load_record(record.paths.folder)])
    run.progress.look()
    assert cli("jobs").status == 0


@needs_root
def test_two_ordinary_users_in_one_installation(shared: Path) -> None:
    """One plants the run, the other runs the command; neither is root."""
    site = RunSite(shared, "local")
    (site.install / "workloads").mkdir(mode=0o777)
    let_everybody_write(site)
    site.engine.chmod(0o755)
    plant(site, shared / "loot")
    let_everybody_write(site)
    plan, code = site.plan(), pack_code(training_code())
    (planted,) = find_runs(site.install)
    (shared / "result").touch(mode=0o666)
    (shared / "result").chmod(0o666)

    def victim() -> None:
        assert refusal(planted.folder) is not None
        record = create_run(plan, code, {})
        assert refusal(record.paths.folder) is None
        update_record(record.paths.folder, lambda found: found.with_state("RUNNING"))
        with pytest.raises(RecordError) as refused:
            update_record(planted.folder, lambda found: found.with_state("RUNNING"))
        assert refused.value.code == "not-yours"
        with pytest.raises(RecordError) as refused:
            cancel([load_record(planted.folder)])
        assert refused.value.code == "not-yours"
        (shared / "result").write_text(record.paths.run_id)

    as_other_user(victim, OTHER + 1)
    assert len((shared / "result").read_text()) == 8
    assert not (shared / "loot").exists()
