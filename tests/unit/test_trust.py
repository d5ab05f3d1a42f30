"""Whose files are believed: a planted answers.yaml, a foreign cluster_config.yaml, images in somebody's home."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmb_common.base import files
from llmb_common.base.errors import ConfigError
from llmb_common.base.files import require_trusted, why_not_trusted
from llmb_common.planning.site.cluster import load_cluster_config
from llmb_common.planning.workspace import find_install
from llmb_install.answers.answers import ANSWERS_FILE, stored_answers
from llmb_install.bootstrap import bootstrap
from llmb_install.parts.image import Image
from llmb_run.main import main
from support.other_user import OTHER
from support.texts import Texts

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give away files: run tests/run as root")


@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "why"),
    [
        (0o755, 0o644, ""),
        (0o775, 0o664, ""),
        (0o757, 0o644, "the folder is world-writable"),
        (0o1777, 0o644, ""),
        (0o755, 0o646, "it is world-writable"),
    ],
)
def test_what_anybody_may_write_is_not_trusted(tmp_path: Path, folder_mode: int, file_mode: int, why: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(file_mode)
    tmp_path.chmod(folder_mode)
    assert why_not_trusted(tmp_path, "file") == why


def test_nor_is_what_belongs_to_another_user_or_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    (tmp_path / "folder").mkdir()
    no_file = why_not_trusted(tmp_path, "folder")
    texts(no_file)
    texts(why_not_trusted(tmp_path, "none"))
    if os.geteuid() == 0:
        os.chown(tmp_path / "folder", 4_000_001, -1)
        assert why_not_trusted(tmp_path, "folder") not in ("", no_file)
        monkeypatch.setattr(files, "effective_user_id", lambda: 4_000_001)
        assert why_not_trusted(tmp_path, "folder") == no_file, "root is trusted"


@pytest.fixture
def install(tmp_path: Path) -> Path:
    install = tmp_path / "install"
    (install / ".llmb").mkdir(parents=True)
    (install / "cluster_config.yaml").write_text("environment: {LD_PRELOAD: /home/mallory/evil.so}\n")
    (install / ANSWERS_FILE).write_text("engine_python: /home/mallory/python\n")
    return install


@as_root
def test_a_foreign_configuration_decides_nothing(install: Path, texts: Texts) -> None:
    os.chown(install / "cluster_config.yaml", OTHER, -1)
    with texts.raises(ConfigError) as caught:
        load_cluster_config(install)
    assert caught.value.code == "not-trusted"


@as_root
@pytest.mark.parametrize("what", [ANSWERS_FILE, Path(".llmb")])
def test_planted_answers_are_refused_before_anything_is_started(install, what, capsys, texts: Texts):
    os.chown(install / what, OTHER, -1)
    with texts.raises(ConfigError):
        stored_answers(install)
    clone = Path(__file__).resolve().parents[2]
    assert bootstrap(clone, ["update", "--install-path", str(install)]) == 2
    texts(capsys.readouterr().err)


@as_root
def test_the_administrator_who_owns_the_installation_has_the_say_there(install, monkeypatch, texts: Texts):
    monkeypatch.setattr(files, "effective_user_id", lambda: OTHER + 1)
    for path in (install, install / ".llmb", install / "cluster_config.yaml", install / ANSWERS_FILE):
        os.chown(path, OTHER, -1)
    assert load_cluster_config(install).environment
    with texts.raises(ConfigError):
        stored_answers(install)
    os.chown(install / "cluster_config.yaml", OTHER + 2, -1)
    with texts.raises(ConfigError):
        load_cluster_config(install)


def test_what_everybody_can_write_is_refused_and_what_a_group_can_is_not(install: Path, texts: Texts) -> None:
    config = install / "cluster_config.yaml"
    config.chmod(0o664)
    assert load_cluster_config(install).environment
    config.chmod(0o666)
    with texts.raises(ConfigError) as caught:
        load_cluster_config(install)
    assert "chmod o-w" in caught.value.remedy


def image(install: Path, folder: Path) -> Image:
    return Image("nvcr.io#a:1", folder / "a.sqsh", "x86_64", install / ".llmb" / "receipts")


@as_root
def test_images_are_not_taken_from_somebodys_home(install: Path, tmp_path: Path, texts: Texts) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "a.sqsh").touch()
    (install / "images").symlink_to(home)
    assert not image(install, install / "images").is_complete(), "our own home: there is no receipt"
    os.chown(home, OTHER, -1)
    with texts.raises(ConfigError) as caught:
        image(install, install / "images").is_complete()
    assert "--image-folder" in caught.value.remedy
    assert not image(install, home).is_complete(), "a folder that the settings name"


@as_root
def test_a_named_image_folder_is_its_groups_where_the_group_may_write(install, tmp_path, monkeypatch, texts: Texts):
    shared, file = tmp_path / "shared", tmp_path / "shared" / "a.sqsh"
    shared.mkdir()
    file.touch()
    os.chown(shared, 0, 4_000_007)
    os.chown(file, OTHER, -1)
    shared.chmod(0o2775)
    with texts.raises(ConfigError):
        require_trusted(file, install, shared)
    monkeypatch.setattr(files.pwd, "getpwuid", lambda user: SimpleNamespace(pw_name="guest", pw_gid=4_000_001))
    monkeypatch.setattr(files.os, "getgrouplist", lambda name, group: [4_000_007])
    require_trusted(file, install, shared)
    shared.chmod(0o2755)
    with texts.raises(ConfigError):
        require_trusted(file, install, shared)


def test_what_is_missing_or_no_file_is_for_the_reader_to_say(install: Path) -> None:
    require_trusted(install / "none", install)
    require_trusted(install / ".llmb", install)


def test_links_in_a_circle_are_left_to_whoever_reads(tmp_path: Path, texts: Texts) -> None:
    (tmp_path / "cluster_config.yaml").symlink_to("other")
    (tmp_path / "other").symlink_to("cluster_config.yaml")
    require_trusted(tmp_path / "cluster_config.yaml", tmp_path)
    with texts.raises(ConfigError):
        load_cluster_config(tmp_path)


# Which installation a command uses when LLMB_INSTALL is not set: never one that somebody has planted.


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


def test_what_everybody_may_write_to_is_not_read(here: Path, capsys: pytest.CaptureFixture[str], texts: Texts) -> None:
    """A cluster_config.yaml in /tmp names the Python that trains, and variables of every job."""
    here.chmod(0o777)
    assert main(["list"]) == 0
    printed = capsys.readouterr().err
    texts(printed, about="is not read")
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
def test_another_users_configuration_is_not_read(
    here: Path, capsys: pytest.CaptureFixture[str], what: str, texts: Texts
) -> None:
    os.chown(here if what == "folder" else here / "cluster_config.yaml", OTHER, OTHER)
    assert main(["list"]) == 0
    texts(capsys.readouterr().err, about="is not read")
