"""Environments are built once, and rebuilt whenever the receipt does not match what is there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.errors import EnvironmentLacks
from llmb_install.parts import environments, uv
from llmb_install.parts.environments import RECEIPT, Environment, installed_packages
from llmb_install.working.readiness import require_ready
from llmb_install.working.reporter import Reporter
from support.wheels import MODULE, locked, tiny_wheel


@pytest.fixture
def reporter(tmp_path: Path) -> Iterator[Reporter]:
    with Reporter(tmp_path / "logs") as reporter:
        yield reporter


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A real environment with a tiny package in it, made by the real uv, in a folder whose name needs quoting."""
    folder = tmp_path_factory.mktemp('it\'s a "folder"')
    lock = folder / "lock.txt"
    lock.write_text(locked(tiny_wheel(folder)))
    environment = Environment(folder / "venv", sys.executable, lock, smoke=("json", "tiny"))
    assert environment.ensure(Reporter(None))
    return environment


@contextmanager
def taken_away(path: Path) -> Iterator[Path]:
    """``path`` is gone for a while; whatever is put in its place meanwhile is discarded."""
    aside = path.with_name("aside")
    path.rename(aside)
    yield aside
    aside.replace(path)


def test_a_complete_environment_is_left_alone(built: Environment) -> None:
    before = (built.folder / RECEIPT).stat().st_mtime_ns
    assert not built.ensure(Reporter(None))
    assert (built.folder / RECEIPT).stat().st_mtime_ns == before


def test_without_a_receipt_or_with_half_of_one_it_is_not_complete(built: Environment) -> None:
    receipt = built.folder / RECEIPT
    with taken_away(receipt) as whole:
        assert not built.is_complete()
        receipt.write_text(whole.read_text()[:20])
        assert not built.is_complete()
    assert built.is_complete()


def test_a_missing_package_is_detected(built: Environment) -> None:
    with taken_away(next(built.folder.glob("lib/python3.*/site-packages/tiny-*.dist-info"))):
        assert not built.is_complete()


def test_verify_names_a_module_that_was_deleted_or_changed(built: Environment) -> None:
    module = next(built.folder.glob(f"lib/python3.*/site-packages/{MODULE}"))
    with taken_away(module) as aside:
        assert built.is_complete(), "its quick look does not see it: nobody reads 1.8 GB at each start"
        assert built.verify() == f"{built.link} is damaged: {MODULE} is missing"
        module.write_bytes(aside.read_bytes() + b"\n")
        assert built.verify() == f"{built.link} is damaged: {MODULE} has changed"
    assert built.verify() is None


def test_a_package_without_its_modules_is_rebuilt_if_imports_matter(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(locked(tiny_wheel(tmp_path)))
    made = Environment(tmp_path / "venv", sys.executable, lock, smoke=("tiny",))
    assert made.ensure(Reporter(None))
    damaged = made.folder
    shutil.rmtree(next(damaged.glob("lib/python3.*/site-packages/tiny")))
    assert made.is_complete()
    assert not made.is_usable()
    assert made.ensure_usable(Reporter(None))
    assert made.is_usable()
    assert made.folder != damaged
    assert made.prune() == [damaged]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount what cannot be removed")
def test_leftovers_of_a_killed_build_do_no_harm(built: Environment, tmp_path: Path) -> None:
    """A folder that cannot be removed, such as one that somebody is still writing to, is left for another time."""
    left = built.new_folder()
    (left / "lib").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(left / "lib")], check=True)
    try:
        environments._discard_unfinished(built)
        assert left.exists()
        assert built.is_complete()
    finally:
        subprocess.run(["umount", str(left / "lib")], check=True)
    environments._discard_unfinished(built)
    assert not left.exists()


def test_the_same_folder_by_another_name_is_the_same_environment(built: Environment, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(built.link.parent)
    assert replace(built, link=tmp_path / "elsewhere" / built.link.name).is_complete()


def test_an_unreachable_index_is_named_as_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(f"no-such-package-here==1 --hash=sha256:{64 * '0'}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://localhost:1/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setattr(uv, "on_path", lambda: None)
    made = Environment(tmp_path / "venv", sys.executable, lock, ())
    reason = "the package index http://localhost:1/simple cannot be reached: Connection refused"
    with pytest.raises(EnvironmentLacks, match=reason):
        require_ready([made])
    with Reporter(None) as reporter, pytest.raises(EnvironmentLacks, match=reason):
        made.ensure(reporter)
    assert not list(tmp_path.glob("venv-*")), "a failed build leaves nothing"


def test_a_missing_interpreter_is_detected(built: Environment) -> None:
    with taken_away(built.folder / "bin" / "python"):
        assert not built.is_complete()


def test_an_update_that_fails_leaves_the_old_environment_in_use(built: Environment, tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("./no-such-package-here\n")
    with pytest.raises(EnvironmentLacks, match="no-such-package-here") as caught:
        Environment(built.link, built.python, lock, built.smoke).ensure(Reporter(None))
    assert "run the same command again" in caught.value.remedy
    assert built.is_complete()


def test_the_receipt_says_what_is_inside(built: Environment) -> None:
    receipt = json.loads((built.folder / RECEIPT).read_text())
    assert receipt["packages"] == installed_packages(built.folder)
    assert any(package == "tiny-1.0" for package in receipt["packages"])


def test_an_environment_that_does_not_import_is_not_used(tmp_path, built, reporter):
    lacking = Environment(tmp_path / "venv", sys.executable, built.lock, smoke=("no_such_module",))
    with pytest.raises(EnvironmentLacks, match="No module named 'no_such_module'"):
        lacking.ensure(reporter)
    assert not lacking.link.exists()
    assert not (lacking.folder / RECEIPT).exists()


def test_a_different_lock_file_builds_a_second_environment_and_then_switches_the_link(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(locked(tiny_wheel(tmp_path)))
    made = Environment(tmp_path / "venv", sys.executable, lock, smoke=("tiny",))
    assert made.ensure(Reporter(None))
    old = made.folder
    lock.write_text("# other\n" + lock.read_text())
    assert not made.is_complete()
    assert made.ensure(Reporter(None))
    assert made.is_complete()
    assert made.link.resolve() == made.folder != old
    # The old one stays for jobs that still use it, until somebody tidies up.
    assert (old / RECEIPT).exists()
    assert made.prune() == [old]
    assert not old.exists()


def test_conda_creates_the_environment_on_request(tmp_path, monkeypatch, reporter):
    """Not every machine has it: a stand-in records its arguments and creates the environment with uv."""
    lock = tmp_path / "lock.txt"
    lock.write_text("# nothing\n")
    made = Environment(tmp_path / "made", sys.executable, lock, smoke=("json",), kind="conda")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(EnvironmentLacks, match="neither conda, mamba nor micromamba") as caught:
        require_ready([made])
    assert "--env-type venv" in caught.value.remedy
    stand_in = tmp_path / "bin" / "mamba"
    stand_in.parent.mkdir()
    stand_in.write_text(
        f'#!/bin/sh\necho "$*" >> "{tmp_path}/said"\n'
        f'for w; do case $w in {made.link}-*) exec "{uv.at_hand()}" venv -p "{sys.executable}" "$w";; esac; done\n'
    )
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}:/usr/bin:/bin")
    require_ready([made])
    assert made.ensure(reporter)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert (tmp_path / "said").read_text() == f"create --yes --prefix {made.folder} python={version}\n"


def test_a_python_that_only_its_owner_can_run_is_reported(built: Environment) -> None:
    top = Path(tempfile.mkdtemp())  # tmp_path is closed to others altogether
    top.chmod(0o755)
    home = top / "home"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python3").touch()
    folder = top / "venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(home / "bin" / "python3")
    assert environments._closed_to_others(folder) is None
    home.chmod(0o700)
    assert environments._closed_to_others(folder) == home
    top.chmod(0o700)
    assert environments._closed_to_others(folder) is None, "nobody else gets to the environment either"
    shutil.rmtree(top)
