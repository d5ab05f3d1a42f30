"""Two installers never work in the same folder at once, and nobody waits for a dead one."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from llmb_common.errors import EnvironmentLacks
from llmb_install.working import install_lock as module
from llmb_install.working.install_lock import install_lock
from llmb_install.working.reporter import Reporter

HOLD = (
    "import sys, time; from pathlib import Path\n"
    "from llmb_install.working.install_lock import install_lock; from llmb_install.working.reporter import Reporter\n"
    "with install_lock(Path(sys.argv[1]), Reporter(None)): print('held', flush=True); time.sleep(60)\n"
)


def quiet() -> Reporter:
    return Reporter(None, stream=io.StringIO())


def holder(install: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(install)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_installer_waits_names_the_first_and_gives_up(tmp_path: Path) -> None:
    with holder(tmp_path) as other:
        said = io.StringIO()
        with (
            pytest.raises(EnvironmentLacks, match=f"process {other.pid} on {socket.gethostname()}"),
            install_lock(tmp_path, Reporter(None, stream=said), patience=0.5),
        ):
            pytest.fail("two at once")
        assert "another installer is working in" in said.getvalue()
        other.kill()


def test_a_killed_owner_is_replaced_at_once(tmp_path: Path) -> None:
    with holder(tmp_path) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert (tmp_path / ".llmb" / "lock.owner").exists()
    with install_lock(tmp_path, quiet(), patience=0):
        owner = json.loads((tmp_path / ".llmb" / "lock.owner").read_text())
        assert owner["pid"] == os.getpid()
    assert not (tmp_path / ".llmb" / "lock.owner").exists()


class Waited(io.StringIO):
    """Does something when it is said that the lock's holder is waited for."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self._then = then

    def write(self, text: str) -> int:
        self._then()
        return super().write(text)


@pytest.mark.parametrize("installed_again", [False, True])
def test_who_waits_for_an_uninstall_is_told_that_it_is_gone(tmp_path: Path, installed_again: bool) -> None:
    install = tmp_path / "install"

    def uninstall() -> None:
        shutil.rmtree(install)
        if installed_again:
            (install / ".llmb").mkdir(parents=True)
            (install / ".llmb" / "lock").touch()
        other.kill()

    with (
        holder(install) as other,
        pytest.raises(EnvironmentLacks, match=f"another command has removed the installation in {install} meanwhile"),
        install_lock(install, Reporter(None, stream=Waited(uninstall)), create=False),
    ):
        pytest.fail("of another folder")
    assert install.exists() is installed_again
    assert not (install / ".llmb" / "lock.owner").exists()
    shutil.rmtree(install, ignore_errors=True)
    with pytest.raises(EnvironmentLacks, match="has removed"), install_lock(install, quiet(), create=False):
        pytest.fail("there is nothing")
    assert not install.exists()


def write_owner(install: Path, **changes: str | int) -> Path:
    path = install / ".llmb" / "lock.owner"
    path.parent.mkdir()
    owner = {"token": "t", "host": socket.gethostname(), "boot": "b", "pid": 1, "started": "1", "since": "then"}
    path.write_text(json.dumps(owner | changes))
    return path


def test_a_lease_of_another_host_holds_even_where_flock_does_nothing(tmp_path: Path) -> None:
    write_owner(tmp_path, host="login2")
    with pytest.raises(EnvironmentLacks, match="on login2"), install_lock(tmp_path, quiet(), patience=0.3):
        pytest.fail("two at once")


def test_a_stale_lease_of_another_host_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SILENCE", 0.3)
    write_owner(tmp_path, host="login2")
    with install_lock(tmp_path, quiet(), patience=5):
        assert json.loads((tmp_path / ".llmb" / "lock.owner").read_text())["pid"] == os.getpid()


def test_a_lease_from_before_a_reboot_or_of_a_reused_pid_is_dead(tmp_path: Path) -> None:
    write_owner(tmp_path, boot="another boot", pid=os.getpid())
    with install_lock(tmp_path, quiet(), patience=0):
        pass
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    path = tmp_path / ".llmb" / "lock.owner"
    path.write_text(json.dumps({"token": "t", "host": socket.gethostname(), "boot": boot, "pid": os.getpid()}))
    with install_lock(tmp_path, quiet(), patience=0):
        pass


def test_an_unreadable_lease_expires_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SILENCE", 0.3)
    write_owner(tmp_path).write_text("")
    with install_lock(tmp_path, quiet(), patience=5):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_installation_of_another_user_is_reported_as_such(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp())  # tmp_path cannot even be entered by others
    folder.chmod(0o755)
    try:
        os.seteuid(65534)
        with pytest.raises(EnvironmentLacks, match=f"you cannot write to {folder}: .*belongs to root"):
            install_lock(folder, quiet()).__enter__()
        with pytest.raises(EnvironmentLacks, match=r"you cannot write to .*: Permission denied"):
            install_lock(tmp_path / "x", quiet()).__enter__()
    finally:
        os.seteuid(0)
        folder.rmdir()


@pytest.mark.parametrize(
    "text",
    ["in use by ann", '{"pid": "x", "host": "h"}', '{"pid": [1]}', '{"pid": 1e999}', "[" * 99999, "", "\x00\xff"],
)
def test_a_lease_of_rubbish_is_waited_for_like_any_other(tmp_path, text, monkeypatch):
    (tmp_path / ".llmb").mkdir()
    (tmp_path / ".llmb" / "lock.owner").write_text(text, encoding="latin-1")
    with (
        pytest.raises(EnvironmentLacks, match="it has not identified itself"),
        install_lock(tmp_path, quiet(), patience=0),
    ):
        pytest.fail("it may be another installer's")
    monkeypatch.setattr(module, "_SILENCE", -1.0)
    with install_lock(tmp_path, quiet(), patience=0):
        pass
