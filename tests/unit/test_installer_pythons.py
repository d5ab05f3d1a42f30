"""Which Python the installer takes, and what it says where there is none."""

from __future__ import annotations

import io
import os
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


@pytest.mark.parametrize(("name", "below"), [("XDG_DATA_HOME", "uv/python"), ("UV_PYTHON_INSTALL_DIR", "")])
def test_wherever_uv_keeps_them(old_python, tmp_path, monkeypatch, name, below):
    stand_in(tmp_path / "data" / below / "cpython-3.12.1-linux" / "bin" / "python3.12", "/uv/python\\n3 12\\n")
    assert pythons.find_python(pythons.is_tool_python) is None
    monkeypatch.setenv(name, str(tmp_path / "data"))
    assert pythons.find_python(pythons.is_tool_python) == "/uv/python"
    assert pythons.version_of(str(tmp_path / "no")) is None
    assert pythons.version_of(sys.executable) == sys.version_info[:2]


@pytest.mark.parametrize(
    ("release", "said"),
    [
        ('ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian 12"\n',
         "get a Python 3.10 to 3.13: 'apt-get install python3' as root (Debian 12 has Python 3.11), or 'module load"),
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04"\n',
         "'apt-get install python3' as root (Ubuntu 24.04 has Python 3.12)"),
        ("ID=ubuntu\nVERSION_ID=22.04\n", "'apt-get install python3' as root (ubuntu has Python 3.10)"),
        ("ID=fedora\nVERSION_ID=43\n", "'dnf install python3.12' as root (fedora has Python 3.12)"),
        ("ID=linuxmint\nID_LIKE='ubuntu debian'\nVERSION_ID=24.04\n", "apt-get install python3"),
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="99.04"\nPRETTY_NAME="Ubuntu 99"\n',
         "modules (no package of Ubuntu 99 is known to have one), or 'uv python install'"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\nPRETTY_NAME="Rocky Linux 9.4"\n',
         "'dnf install python3.12' as root (Rocky Linux 9.4 has Python 3.12)"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"\nPRETTY_NAME="Leap"\n', "'zypper install python311' as root"),
        ("nonsense\n", "get a Python 3.10 to 3.13: 'module load python' on a cluster with modules, or 'uv python"),
        (None, "get a Python 3.10 to 3.13: 'module load python' on a cluster with modules, or 'uv python"),
    ],
    ids=["Debian", "Ubuntu", "older Ubuntu", "Fedora", "Mint", "newer Ubuntu", "Rocky", "openSUSE", "unknown", "none"],
)  # fmt: skip
def test_how_to_get_a_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str | None, said: str) -> None:
    monkeypatch.setattr(pythons, "OS_RELEASE", tmp_path / "os-release")
    if release is not None:
        (tmp_path / "os-release").write_text(release)
    text = pythons.how_to_get((3, 10), (3, 13))
    assert said in text
    assert text.endswith("then run the same command again")


def test_a_package_of_another_version_is_not_recommended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pythons, "OS_RELEASE", tmp_path / "os-release")
    (tmp_path / "os-release").write_text("ID=debian\nVERSION_ID=13\nPRETTY_NAME='Debian 13'\n")
    assert "apt-get" in pythons.how_to_get((3, 10), (3, 13))
    assert "apt-get" in pythons.how_to_get((3, 10))
    assert "no package of Debian 13 is known" in pythons.how_to_get((3, 10), (3, 12))
    assert "no package of Debian 13 is known" in pythons.how_to_get((3, 14))


def test_what_the_environment_lacks_or_names_in_vain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user whom the machine does not know, as in a container, and certificates of an environment that is gone."""
    monkeypatch.delenv("HOME")
    (tmp_path / "ca.pem").touch()
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    monkeypatch.setattr("os.geteuid", lambda: 4_000_000)
    pythons.repair_environment()
    assert os.environ["HOME"] == "/nonexistent"
    assert (os.environ["PIP_CERT"], os.environ.get("SSL_CERT_FILE")) == (str(tmp_path / "ca.pem"), None)
    assert pythons.find_python(lambda version: version == (1, 0)) is None


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The versions that uv was to fetch; it fails."""
    asked: list[str] = []

    def fetch(version: str, folder: Path, env: object) -> str:
        asked.append(version)
        return "no route"

    monkeypatch.setattr(pythons.uv, "fetch_python", fetch)
    return asked


def test_uv_fetches_another_python(old_python: Path, monkeypatch: pytest.MonkeyPatch, fetched: list[str]) -> None:
    calls: list[Any] = []
    monkeypatch.setattr("os.execv", lambda *arguments: calls.append(arguments))
    screen = io.StringIO()
    assert pythons.start_with_another(["/installer.py", "--quickstart"], screen) == 3
    assert (calls, fetched) == ([], ["3.12"])
    what = f"LLMB needs Python 3.10 or newer; this is Python 3.8 ({sys.executable})"
    first, second, third = screen.getvalue().splitlines()
    assert first == f"{what}: fetching Python 3.12 with uv"
    assert second == f"error: {what}, and uv could not fetch another: no route"
    assert third.startswith("  -> get a Python 3.10 or newer: ")
    stand_in(old_python / "python3", "/real/python3\\n3 12\\n")
    pythons.start_with_another(["/installer.py", "--quickstart"], io.StringIO())
    assert calls == [("/real/python3", ["/real/python3", "/installer.py", "--quickstart"])]


def test_for_help_nothing_is_fetched(old_python: Path, fetched: list[str]) -> None:
    screen = io.StringIO()
    assert pythons.start_with_another(["/installer.py", "list", "-h"], screen) == 3
    assert fetched == []
    assert screen.getvalue().startswith("error: LLMB needs Python 3.10 or newer; this is Python 3.8 (")
