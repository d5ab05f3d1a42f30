"""The recorded commit: of your own clone, of a colleague's, or without any clone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from llmb_common.runs.manifest import git_state


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    recipe = folder / "recipe"
    recipe.mkdir(parents=True)
    (recipe / "recipe.yaml").write_text("a: 1\n")
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True)
    return recipe


def head_of(folder: Path) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True
    ).stdout.strip()


def test_ones_own_clone(clone: Path) -> None:
    assert git_state(clone) == {"commit": head_of(clone), "dirty": False}
    (clone / "recipe.yaml").write_text("a: 2\n")
    assert git_state(clone) == {"commit": head_of(clone), "dirty": True}


def test_a_colleagues_clone_has_a_commit_and_runs_nothing(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``git status`` would run programs that the clone's configuration names."""
    commit, ran = head_of(clone), clone.parent / "ran"
    subprocess.run(["git", "-C", str(clone), "config", "core.fsmonitor", f"touch {ran}; false"], check=True)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own switch for this
    assert git_state(clone) == {"commit": commit, "dirty": None}
    assert not ran.exists()


def test_no_clone(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None


def test_a_clone_without_a_commit(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert git_state(tmp_path) is None


def test_a_git_that_says_nothing(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text("#!/bin/sh\nexit 0\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(git.parent), prepend=":")
    assert git_state(clone) is None
