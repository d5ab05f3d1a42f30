"""Runs of another user in a shared installation: seen, but never continued, executed, cancelled or written to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmb_common.files import sha256_of_tree
from llmb_common.index import find_runs
from llmb_common.run import Submission, create_run, pack_code
from llmb_common.submission import Options, submit, training_code
from support.fake_slurm import FakeSlurm
from support.other_user import as_other_user, shared_folder
from support.run_site import RECIPE, RunSite

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user: run tests/run as root")


@pytest.fixture
def shared() -> Iterator[Path]:
    with shared_folder() as folder:
        yield folder


@pytest.fixture
def slurm_site(shared: Path, monkeypatch: pytest.MonkeyPatch) -> RunSite:
    """A shared installation, as a group-writable one is: anybody may put folders into ``workloads``."""
    fake = FakeSlurm(shared / "slurm")
    monkeypatch.setenv("PATH", fake.path())
    site = RunSite(shared, "slurm")
    for path in (site.install, shared / "slurm"):
        path.chmod(0o777)
    return site


def let_everybody_write(site: RunSite) -> None:
    for path in [site.install, *site.install.rglob("*")]:
        if path.is_dir() and path.name != ".llmb":
            path.chmod(0o777)


def plant(site: RunSite, loot: Path, key: str = "") -> None:
    """What an attacker does: an interrupted submission of the victim's next job, with a script of his own."""
    code = pack_code(training_code())
    plan = site.plan()

    manifest = {"code_sha256": sha256_of_tree(training_code(), "**/*.py")}

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
    """The exact attack: a folder in workloads/, and the victim gives the same command."""
    site = RunSite(shared, "local")
    (site.install / "workloads").mkdir(mode=0o777)
    let_everybody_write(site)
    plant(site, shared / "loot")
    record = submit(site.plan(), RECIPE)
    assert record.state == "COMPLETED"
    assert not (shared / "loot").exists()
