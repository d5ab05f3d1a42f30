"""Which Python the installer takes, and what it says where there is none."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from llmb_install.parts import uv
from support.texts import Texts


def test_which_pythons_fit() -> None:
    assert [version for version in range(8, 16) if uv.is_tool_python((3, version))] == list(range(10, 16))
    assert uv.is_tool_python((4, 0))


@pytest.fixture
def old_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This Python is 3.8, and PATH is a folder with what a test puts there."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", f":{tmp_path / 'nowhere'}:{folder}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(uv, "running_version", lambda: (3, 8))
    return folder


def stand_in(path: Path, says: str, status: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nprintf '{says}'\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_the_running_python_is_taken_where_it_fits() -> None:
    assert uv.find_python(lambda version: True) == sys.executable


def test_the_first_python_on_the_path_that_works_is_taken(old_python: Path) -> None:
    assert uv.find_python(uv.is_tool_python) is None
    stand_in(old_python / "python3", "/real/python3\\n3 10\\n")
    assert uv.find_python(uv.is_tool_python) == "/real/python3"
    stand_in(old_python / "python3.12", "/real/python3.12\\n3 12\\n")
    assert uv.find_python(uv.is_tool_python) == "/real/python3.12", "a name with a version comes first"
    stand_in(old_python / "python3.11", "/real/python3.11\\n3 11\\n", status=1)
    assert uv.find_python(uv.is_tool_python) == "/real/python3.12", "a shim that refuses to run"
    stand_in(old_python / "python3.11", "one line\\n")
    assert uv.find_python(uv.is_tool_python) == "/real/python3.12"
    (old_python / "python3.11").chmod(0o644)
    assert uv.find_python(uv.is_tool_python) == "/real/python3.12"
    assert uv.find_python(lambda version: version == (3, 14)) is None


def test_pythons_of_uv_are_found_too(old_python: Path, tmp_path: Path) -> None:
    folder = tmp_path / ".local/share/uv/python/cpython-3.11.9-linux/bin"
    stand_in(folder / "python3.11", "/uv/python3.11\\n3 11\\n")
    stand_in(folder / "python3.11-config", "/uv/config\\n3 11\\n")
    assert uv.find_python(uv.is_tool_python) == "/uv/python3.11"


@pytest.mark.parametrize(("name", "below"), [("XDG_DATA_HOME", "uv/python"), ("UV_PYTHON_INSTALL_DIR", "")])
def test_wherever_uv_keeps_them(old_python, tmp_path, monkeypatch, name, below):
    stand_in(tmp_path / "data" / below / "cpython-3.12.1-linux" / "bin" / "python3.12", "/uv/python\\n3 12\\n")
    assert uv.find_python(uv.is_tool_python) is None
    monkeypatch.setenv(name, str(tmp_path / "data"))
    assert uv.find_python(uv.is_tool_python) == "/uv/python"
    assert uv.version_of(str(tmp_path / "no")) is None
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    (tmp_path / "bücher").symlink_to(sys.executable)
    assert uv.version_of(str(tmp_path / "bücher")) == sys.version_info[:2]


@pytest.mark.parametrize(
    "wanted",
    [((3, 10),), ((3, 10), (3, 13)), ((3, 12), (3, 12))],
)
def test_how_to_get_a_python(wanted: tuple[tuple[int, int], ...], texts: Texts) -> None:
    text = uv.how_to_get(*wanted)
    texts(text)


@pytest.mark.slow
def test_what_the_environment_lacks_or_names_in_vain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user whom the machine does not know, as in a container, and certificates of an environment that is gone."""
    monkeypatch.delenv("HOME")
    (tmp_path / "ca.pem").touch()
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    monkeypatch.setattr("os.geteuid", lambda: 4_000_000)
    uv.repair_environment()
    assert os.environ["HOME"] == "/nonexistent"
    assert (os.environ["PIP_CERT"], os.environ.get("SSL_CERT_FILE")) == (str(tmp_path / "ca.pem"), None)
    assert uv.find_python(lambda version: version == (1, 0)) is None


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The versions that uv was to fetch; it fails."""
    asked: list[str] = []

    def fetch(version: str, folder: Path, env: object) -> str:
        asked.append(version)
        return "no route"

    monkeypatch.setattr(uv, "fetch_python", fetch)
    return asked


def test_uv_fetches_another_python(
    old_python: Path, monkeypatch: pytest.MonkeyPatch, fetched: list[str], texts: Texts
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr("os.execv", lambda *arguments: calls.append(arguments))
    screen = io.StringIO()
    assert uv.start_with_another(["/installer.py", "--quickstart"], screen) == 3
    assert (calls, fetched) == ([], ["3.12"])
    texts(screen.getvalue())
    stand_in(old_python / "python3", "/real/python3\\n3 12\\n")
    uv.start_with_another(["/installer.py", "--quickstart"], io.StringIO())
    assert calls == [("/real/python3", ["/real/python3", "/installer.py", "--quickstart"])]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("", "exit status 2"),
        ("error: No download found", "error: No download found"),
        ("error: x\\n  cause: Failed to download `https://me:word@get.example/a/b.tar.gz`\\n  cause: no route",
         "get.example: no route"),
    ],
)  # fmt: skip
def test_why_uv_fetched_none_names_the_host(tmp_path: Path, said: str, why: str) -> None:
    stand_in(tmp_path / "uv", said, status=2)
    assert uv.fetch_python("3.12", tmp_path, os.environ) == why


def test_a_folder_that_takes_no_uv_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, told: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "uv"))

    monkeypatch.setattr(uv, "get_uv", full)
    assert uv.fetch_python("3.12", tmp_path, {}) == f"{tmp_path}/uv: No space left on device"


def test_for_help_nothing_is_fetched(old_python: Path, fetched: list[str], texts: Texts) -> None:
    screen = io.StringIO()
    assert uv.start_with_another(["/installer.py", "list", "-h"], screen) == 3
    assert fetched == []
    texts(screen.getvalue())


def test_what_is_kept_lies_in_a_folder_that_does_not_depend_on_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert uv.cache_folder({"XDG_CACHE_HOME": "/scratch"}) == Path("/scratch/llmb")
    for ignored in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert uv.cache_folder(ignored) == Path("/home/ann/.cache/llmb")
