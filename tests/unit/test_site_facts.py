"""What lists need of cluster_config.yaml: known at once, never of another text, never from somebody else's file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from llmb_common.errors import ConfigError
from llmb_common.site import cluster
from llmb_common.site.facts import SiteFacts, read_facts
from support.other_user import OTHER

CONFIG = "schema: 1\ngpu_type: gb200\nrepo: /clone\nworkloads: [pretrain_grok1]\n"
FACTS = SiteFacts("/clone", "gb200", ("pretrain_grok1",))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home with an empty cache folder."""
    home = tmp_path / "home"
    (home / ".cache").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return home


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "cluster_config.yaml").write_text(CONFIG)
    return folder


@pytest.fixture
def kept(home: Path, site: Path) -> Path:
    """The file in which the facts of ``site`` are kept."""
    assert read_facts(site) == FACTS
    return home / ".cache" / "llmb" / "sites.json"


def lie(file: Path) -> None:
    """Other facts for every text."""
    known = json.loads(file.read_text())
    file.write_text(json.dumps({text: ["/evil", "h100", []] for text in known}))


def test_the_file_is_read_in_full_only_once(kept: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cluster, "parse_cluster_config")
    assert read_facts(site) == FACTS
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_another_text_is_read_in_full(kept: Path, site: Path) -> None:
    """Even of the same length, in the same second."""
    file = site / "cluster_config.yaml"
    was = file.stat()
    file.write_text(CONFIG.replace("gb200", "gb300"))
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert read_facts(site) == FACTS._replace(gpu_type="gb300")


@pytest.mark.usefixtures("kept")
def test_a_mistake_is_reported_every_time(site: Path) -> None:
    (site / "cluster_config.yaml").write_text(CONFIG + "gpus_per_node: many\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"cluster_config\.yaml:5: gpus_per_node"):
            read_facts(site)


def test_without_an_installation_or_a_configuration_the_defaults_hold(home: Path, tmp_path: Path) -> None:
    assert read_facts(None) == read_facts(tmp_path) == SiteFacts()
    assert list((home / ".cache").iterdir()) == []


def test_what_is_kept_is_believed(kept: Path, site: Path) -> None:
    """Which the next tests depend on."""
    lie(kept)
    assert read_facts(site).repo == "/evil"


@pytest.mark.parametrize("mode", [0o620, 0o602])
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_others_may_write_to_is_not_believed(kept: Path, site: Path, what: str, mode: int) -> None:
    lie(kept)
    (kept if what == "file" else kept.parent).chmod(mode | 0o100)
    assert read_facts(site) == FACTS


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_link_is_not_followed(kept: Path, site: Path, what: str) -> None:
    lie(kept)
    place = kept if what == "file" else kept.parent
    place.symlink_to(place.rename(place.with_name("elsewhere")))
    assert read_facts(site) == FACTS


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user: run tests/run as root")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_another_users_file_is_not_believed(kept: Path, site: Path, what: str) -> None:
    lie(kept)
    os.chown(kept if what == "file" else kept.parent, OTHER, OTHER)
    assert read_facts(site) == FACTS


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user: run tests/run as root")
def test_root_leaves_nothing_in_another_users_home(home: Path, site: Path) -> None:
    os.chown(home / ".cache", OTHER, OTHER)
    assert read_facts(site) == FACTS
    assert list((home / ".cache").iterdir()) == []


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 1}', '{"x": [1, 2]}', "\x00", '{"x": null}'])
def test_a_damaged_file_is_written_again(kept: Path, site: Path, content: str) -> None:
    good = kept.read_text()
    kept.write_text(content)
    assert read_facts(site) == FACTS
    assert kept.read_text() == good


@pytest.mark.parametrize("cache", ["missing", "file", "relative"])
def test_without_a_cache_folder_it_works_as_well(site: Path, home: Path, cache: str, monkeypatch: pytest.MonkeyPatch):
    (home / ".cache").rmdir()
    if cache == "file":
        (home / ".cache").touch()
    if cache == "relative":
        monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert read_facts(site) == FACTS
    assert not (home / ".cache").is_dir()


def test_the_newest_twenty_texts_are_remembered(kept: Path, site: Path) -> None:
    first = next(iter(json.loads(kept.read_text())))
    for number in range(20):
        (site / "cluster_config.yaml").write_text(f"{CONFIG}# {number}\n")
        read_facts(site)
    known = json.loads(kept.read_text())
    assert len(known) == 20
    assert first not in known
