"""Environments are built once, and again whenever the receipt does not fit what is there."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmb_common.errors import EnvironmentLacks
from llmb_install import environments
from llmb_install.environments import RECEIPT, Environment, installed_packages
from llmb_install.reporter import Reporter


@pytest.fixture
def reporter(tmp_path: Path) -> Iterator[Reporter]:
    with Reporter(tmp_path / "logs") as reporter:
        yield reporter


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A real environment with nothing but pip in it, in a folder whose name needs quoting."""
    folder = tmp_path_factory.mktemp('it\'s a "folder"')
    lock = folder / "lock.txt"
    lock.write_text("# nothing\n")
    environment = Environment(folder / "venv", sys.executable, lock, smoke=("json", "pip"))
    assert environments.ensure(environment, Reporter(None))
    return environment


@contextmanager
def taken_away(path: Path) -> Iterator[Path]:
    """``path`` is gone for a while; what stands in its place meanwhile is thrown away."""
    aside = path.with_name("aside")
    path.rename(aside)
    yield aside
    aside.replace(path)


def test_a_complete_environment_is_left_alone(built: Environment) -> None:
    before = (built.folder / RECEIPT).stat().st_mtime_ns
    assert not environments.ensure(built, Reporter(None))
    assert (built.folder / RECEIPT).stat().st_mtime_ns == before


def test_without_a_receipt_or_with_half_of_one_it_is_not_complete(built: Environment) -> None:
    receipt = built.folder / RECEIPT
    with taken_away(receipt) as whole:
        assert not built.is_complete()
        receipt.write_text(whole.read_text()[:20])
        assert not built.is_complete()
    assert built.is_complete()


def test_a_package_that_went_missing_is_noticed(built: Environment) -> None:
    with taken_away(next(built.folder.glob("lib/python3.*/site-packages/pip-*.dist-info"))):
        assert not built.is_complete()


def test_an_interpreter_that_is_gone_is_noticed(built: Environment) -> None:
    with taken_away(built.folder / "bin" / "python"):
        assert not built.is_complete()


def test_an_update_that_fails_leaves_the_old_environment_in_use(built: Environment, tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("./no-such-package-here\n")
    with pytest.raises(EnvironmentLacks, match="no-such-package-here") as caught:
        environments.ensure(Environment(built.link, built.python, lock, built.smoke), Reporter(None))
    assert "run the same command again" in caught.value.remedy
    assert built.is_complete()


def test_the_receipt_says_what_is_inside(built: Environment) -> None:
    receipt = json.loads((built.folder / RECEIPT).read_text())
    assert receipt["packages"] == installed_packages(built.folder)
    assert any(package.startswith("pip-") for package in receipt["packages"])


def test_what_does_not_import_is_no_environment(tmp_path: Path, built: Environment, reporter: Reporter) -> None:
    lacking = Environment(tmp_path / "venv", sys.executable, built.lock, smoke=("no_such_module",))
    with pytest.raises(EnvironmentLacks, match="No module named 'no_such_module'"):
        environments.ensure(lacking, reporter)
    assert not lacking.link.exists()
    assert not (lacking.folder / RECEIPT).exists()


def test_another_lock_builds_beside_and_then_moves_the_link(built: Environment, tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("# other\n")
    changed = Environment(built.link, built.python, lock, built.smoke)
    assert not changed.is_complete()
    assert environments.ensure(changed, Reporter(None))
    assert changed.is_complete()
    assert built.link.resolve() == changed.folder
    # The old one stays for jobs that still use it, until somebody tidies up.
    assert (built.folder / RECEIPT).exists()
    assert environments.prune(changed) == [built.folder]
    assert not built.folder.exists()


@pytest.mark.parametrize(
    ("kind", "program", "arguments"),
    [
        ("uv", "uv", "venv --seed --python {python} {folder}"),
        ("conda", "mamba", "create --yes --prefix {folder} python={v} pip"),
    ],
)
def test_uv_and_conda_make_it_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reporter: Reporter, kind: str, program: str, arguments: str
) -> None:
    """Neither is on every machine: a stand-in notes its arguments and makes the environment with venv."""
    lock = tmp_path / "lock.txt"
    lock.write_text("# nothing\n")
    made = Environment(tmp_path / "made", sys.executable, lock, smoke=("pip",), kind=kind)
    stand_in = tmp_path / "bin" / program
    stand_in.parent.mkdir()
    stand_in.write_text(
        f'#!/bin/sh\necho "$*" >> "{tmp_path}/said"\n'
        f'[ "$1" = pip ] || exec "{sys.executable}" -m venv "{made.folder}"\nexit 1\n'
    )
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}:/usr/bin:/bin")
    assert environments.ensure(made, reporter)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    wanted = arguments.format(python=sys.executable, folder=made.folder, v=version)
    assert (tmp_path / "said").read_text().splitlines()[0] == wanted


def test_an_environment_maker_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("# nothing\n")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for kind, said in (("conda", "neither conda, mamba nor micromamba"), ("uv", "uv was not found")):
        with pytest.raises(EnvironmentLacks, match=said) as caught:
            environments.ensure(Environment(tmp_path / kind, sys.executable, lock, (), kind=kind), Reporter(None))
        assert "venv" in caught.value.remedy


def test_a_python_that_only_its_owner_can_reach_is_told(built: Environment) -> None:
    top = Path(tempfile.mkdtemp())  # tmp_path is closed to others altogether
    top.chmod(0o755)
    home = top / "home"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python3").touch()
    environment = Environment(top / "venv", built.python, built.lock, ())
    (environment.folder / "bin").mkdir(parents=True)
    (environment.folder / "bin" / "python").symlink_to(home / "bin" / "python3")
    assert environments._closed_to_others(environment) is None
    home.chmod(0o700)
    assert environments._closed_to_others(environment) == home
    top.chmod(0o700)
    assert environments._closed_to_others(environment) is None, "nobody else gets to the environment either"
    shutil.rmtree(top)
