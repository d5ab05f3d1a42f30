"""Which installation a command uses when LLMB_INSTALL is not set: never one that somebody has planted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmb_run.main import main
from llmb_run.place import find_install
from support.other_user import OTHER


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose configuration is wrong, so reading it would be noticed."""
    (tmp_path / "cluster_config.yaml").write_text("schema: 1\nengine: {python: relative}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LLMB_INSTALL", raising=False)
    return tmp_path


def test_inside_an_installation_of_ours_it_need_not_be_named(here: Path) -> None:
    assert find_install({}, here) == here
    assert main(["list"]) == 2, "it is read, and wrong"


def test_what_everybody_may_write_to_is_not_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster_config.yaml in /tmp names the Python that trains, and variables of every job."""
    here.chmod(0o777)
    assert main(["list"]) == 0
    printed = capsys.readouterr().err
    assert f"{here}/cluster_config.yaml is not read: the folder is world-writable" in printed
    assert f"export LLMB_INSTALL={here}" in printed
    assert find_install({"LLMB_INSTALL": str(here)}, here) == here, "named, it is meant"
    here.chmod(0o755)
    (here / "cluster_config.yaml").chmod(0o666)
    assert find_install({}, here) is None


def test_in_a_folder_like_tmp_nobody_replaces_a_file_of_ours(here: Path) -> None:
    here.chmod(0o1777)
    assert find_install({}, here) == here


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_only_a_plain_file_counts(here: Path, kind: str) -> None:
    file = here / "cluster_config.yaml"
    other = file.rename(here / "other.yaml")
    if kind == "link":
        file.symlink_to(other)
    else:
        os.mkfifo(file)
    assert find_install({}, here) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user: run tests/run as root")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_another_users_configuration_is_not_read(here: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    os.chown(here if what == "folder" else here / "cluster_config.yaml", OTHER, OTHER)
    assert main(["list"]) == 0
    assert f"belongs to user {OTHER}" in capsys.readouterr().err
