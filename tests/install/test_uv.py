"""An environment that the real uv makes from a lock with hashes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from llmb_common.base.errors import EnvironmentLacks
from llmb_install import by_click
from llmb_install.arguments import parse
from llmb_install.commands import bundle as bundle_module
from llmb_install.parts import bundles
from llmb_install.parts.engine import hub_environment
from llmb_install.parts.environment import Environment, installed_packages
from llmb_install.parts.environment_build import lock_requirements, write_partial_lock
from llmb_install.working.reporter import Reporter

LOCKS = Path(__file__).resolve().parents[2] / "installer" / "locks"


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lock of one package; uv is in the development environment."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    lock = write_partial_lock(LOCKS / "tool.txt", "click", tmp_path)
    assert lock is not None
    return lock


def test_it_has_what_the_lock_says_byte_code_for_all_and_files_of_its_own(tmp_path: Path, lock: Path) -> None:
    made = Environment(tmp_path / "venvs" / "made", sys.executable, lock, smoke=("click",), kind="uv")
    with Reporter(tmp_path / "logs") as reporter:
        assert made.ensure(reporter)
    assert [name for name in installed_packages(made.folder) if name.startswith("click-")]
    (log,) = (tmp_path / "logs").iterdir()
    assert " -m pip " not in log.read_text(), "uv failed, and pip did it"
    (module,) = made.folder.glob(
        "lib/python3.*/site-packages/click/testing.py"
    )  # which importing click does not compile
    assert list(module.parent.glob("__pycache__/testing.*.pyc"))
    assert module.stat().st_nlink == 1
    assert not list(tmp_path.glob("cache*")), "a home folder may have a quota"
    assert not list(tmp_path.glob("venvs/.uv-*"))
    assert not (made.folder / ".lock").exists()


def test_another_content_than_the_locks_is_refused(tmp_path: Path, lock: Path) -> None:
    lock.write_text(re.sub(r"sha256:[0-9a-f]{8}", "sha256:00000000", lock.read_text()))
    made = Environment(tmp_path / "venvs" / "made", sys.executable, lock, smoke=("click",), kind="uv")
    with Reporter(tmp_path / "logs") as reporter, pytest.raises(EnvironmentLacks, match=r"(?i)hash"):
        made.ensure(reporter)
    assert not made.is_complete()


def test_what_fetches_from_hugging_face_is_whole_and_of_the_tools_releases(tmp_path, monkeypatch):
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    made = hub_environment(LOCKS.parents[1], tmp_path)
    with Reporter(tmp_path / "logs") as reporter:
        assert made.ensure(reporter)
    assert made.verify() is None
    tool = set(lock_requirements((LOCKS / "tool.txt").read_text()))
    shared = [pin for pin in lock_requirements((LOCKS / "hub.txt").read_text()) if pin.partition("==")[0] in str(tool)]
    assert {"packaging", "pyyaml"} <= {pin.partition("==")[0] for pin in shared}
    assert set(shared) <= tool, "both are imported into one process"


def test_an_environment_is_made_of_a_bundle_alone(tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither an index nor a cache has anything; its folder has a name that uv would split."""
    clone = tmp_path / "clone"
    (clone / "installer" / "locks").mkdir(parents=True)
    for name in ("uv.txt", "tool.txt", "charts.txt", "hub.txt"):
        (clone / "installer" / "locks" / name).write_text(lock.read_text())
    folder = tmp_path / "a bundle, for one"
    asked = parse(["bundle", "--to", str(folder), "--python", "{}.{}".format(*sys.version_info)], by_click.read)
    monkeypatch.setattr(bundle_module, "_wanted_content", lambda *_: ([], []))
    bundle_module.bundle(asked, clone, tmp_path)
    for name in ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_FIND_LINKS", "LLMB_BUNDLE", "PIP_CONFIG_FILE", "PIP_NO_INDEX"):
        monkeypatch.setenv(name, "https://127.0.0.1:1" if "INDEX" in name else "")
    bundles.use_bundle(folder, clone)
    made = Environment(tmp_path / "venvs" / "made", sys.executable, lock, smoke=("click",))
    with Reporter(tmp_path / "logs") as reporter:
        assert made.ensure(reporter)
    assert [name for name in installed_packages(made.folder) if name.startswith("click-")]
