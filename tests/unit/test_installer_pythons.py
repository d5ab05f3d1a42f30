"""Which Python the installer takes, and what it says where there is none."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from llmb_install.parts import pythons


def test_which_pythons_fit() -> None:
    assert [version for version in range(8, 16) if pythons.is_tool_python((3, version))] == list(range(10, 16))
    assert pythons.is_tool_python((4, 0))


@pytest.fixture
def old_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This Python is 3.8, and PATH is a folder with what a test puts there."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", f":{tmp_path / 'nowhere'}:{folder}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(pythons, "running_version", lambda: (3, 8))
    return folder


def stand_in(path: Path, says: str, status: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nprintf '{says}'\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_the_running_python_is_taken_where_it_fits() -> None:
    assert pythons.find_python(lambda version: True) == sys.executable


def test_the_first_python_on_the_path_that_works_is_taken(old_python: Path) -> None:
    assert pythons.find_python(pythons.is_tool_python) is None
    stand_in(old_python / "python3", "/real/python3\\n3 10\\n")
    assert pythons.find_python(pythons.is_tool_python) == "/real/python3"
    stand_in(old_python / "python3.12", "/real/python3.12\\n3 12\\n")
    assert pythons.find_python(pythons.is_tool_python) == "/real/python3.12", "a name with a version comes first"
    stand_in(old_python / "python3.11", "/real/python3.11\\n3 11\\n", status=1)
    assert pythons.find_python(pythons.is_tool_python) == "/real/python3.12", "a shim that refuses to run"
    stand_in(old_python / "python3.11", "one line\\n")
    assert pythons.find_python(pythons.is_tool_python) == "/real/python3.12"
    (old_python / "python3.11").chmod(0o644)
    assert pythons.find_python(pythons.is_tool_python) == "/real/python3.12"
    assert pythons.find_python(lambda version: version == (3, 14)) is None


def test_pythons_of_uv_are_found_too(old_python: Path, tmp_path: Path) -> None:
    folder = tmp_path / ".local/share/uv/python/cpython-3.11.9-linux/bin"
    stand_in(folder / "python3.11", "/uv/python3.11\\n3 11\\n")
    stand_in(folder / "python3.11-config", "/uv/config\\n3 11\\n")
    assert pythons.find_python(pythons.is_tool_python) == "/uv/python3.11"


def test_how_to_get_a_python(old_python: Path) -> None:
    text = pythons.how_to_get("LLMB", "3.10 to 3.12", "./installer.py")
    assert text.startswith("install Python 3.10 to 3.12 for LLMB, for instance 'apt-get install python3.11")
    assert text.endswith("then run again: ./installer.py")
    stand_in(old_python / "uv", "")
    assert pythons.how_to_get("LLMB", "3", "x").startswith("uv is here: run 'uv python install 3.11'")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "started"), [("\n", True), ("y\n", True), ("YES\n", True), ("n\n", False)])
def test_uv_fetches_a_python_when_the_user_agrees(
    old_python: Path, monkeypatch: pytest.MonkeyPatch, answer: str, started: bool
) -> None:
    uv = str(stand_in(old_python / "uv", ""))
    calls: list[Any] = []
    monkeypatch.setattr("os.execv", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr("sys.stdin", Screen(answer))
    screen = Screen()
    assert pythons.offer_uv(["./installer.py", "--quickstart"], screen) == 3
    command = [uv, "run", "--no-project", "--python", "3.11", "./installer.py", "--quickstart"]
    assert calls == ([(uv, command)] if started else [])
    assert f"error: LLMB needs Python 3.10 or newer; this is Python 3.8 ({sys.executable})" in screen.getvalue()
    assert "Do that now? [Y/n]" in screen.getvalue()


def test_without_a_terminal_nothing_is_fetched(old_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(old_python / "uv", "")
    monkeypatch.setattr("os.execv", lambda *arguments: pytest.fail("nobody was asked"))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    screen = Screen()
    assert pythons.offer_uv(["a", "b"], screen) == 3
    assert "  -> uv is here" in screen.getvalue()
    monkeypatch.setattr("sys.stdin", Screen("y\n"))
    assert pythons.offer_uv(["a", "b"], io.StringIO()) == 3
