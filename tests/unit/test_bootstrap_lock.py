"""Two installers never work in the same folder at once, and nobody waits for a dead one."""

from __future__ import annotations

import errno
import io
import json
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb_common.base.errors import EnvironmentLacks
from llmb_install.working import transaction as module
from llmb_install.working.reporter import Reporter
from llmb_install.working.scratch import root_for, unfinished, write
from llmb_install.working.transaction import _Lease, install_lock, remove_leftovers
from support.texts import Texts

HOLD = (
    "import sys, time; from pathlib import Path\n"
    "from llmb_install.working.transaction import install_lock; from llmb_install.working.reporter import Reporter\n"
    "with install_lock(Path(sys.argv[1]), Reporter(None)): print('held', flush=True); time.sleep(60)\n"
)


def quiet() -> Reporter:
    return Reporter(None, stream=io.StringIO())


def holder(install: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(install)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_installer_waits_names_the_first_and_gives_up(tmp_path: Path, texts: Texts) -> None:
    with holder(tmp_path) as other:
        said = io.StringIO()
        with (
            texts.raises(EnvironmentLacks, mask=r"process \d+ on [^\s,]+"),
            install_lock(tmp_path, Reporter(None, stream=said), patience=0.5),
        ):
            pytest.fail("two at once")
        assert f"process {other.pid} on {socket.gethostname()}" in said.getvalue()
        other.kill()


def test_a_killed_owner_is_replaced_at_once(tmp_path: Path) -> None:
    with holder(tmp_path) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert lease_file(tmp_path).exists()
    with install_lock(tmp_path, quiet(), patience=0):
        assert json.loads(lease_file(tmp_path).read_text())["pid"] == os.getpid()
    assert not lease_file(tmp_path).exists()


class Waited(io.StringIO):
    """Does something when it is said that the lock's holder is waited for."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self._then = then

    def write(self, text: str) -> int:
        self._then()
        return super().write(text)


@pytest.mark.parametrize("installed_again", [False, True])
def test_who_waits_for_an_uninstall_is_told_that_it_is_gone(
    tmp_path: Path, installed_again: bool, texts: Texts
) -> None:
    install = tmp_path / "install"

    def uninstall() -> None:
        shutil.rmtree(install)
        if installed_again:
            (install / ".llmb").mkdir(parents=True)
            (install / ".llmb" / "lock").touch()
        other.kill()

    with (
        holder(install) as other,
        texts.raises(EnvironmentLacks),
        install_lock(install, Reporter(None, stream=Waited(uninstall)), create=False),
    ):
        pytest.fail("of another folder")
    assert install.exists() is installed_again
    assert not lease_file(install).exists()
    shutil.rmtree(install, ignore_errors=True)
    with texts.raises(EnvironmentLacks), install_lock(install, quiet(), create=False):
        pytest.fail("there is nothing")
    assert not install.exists()


def lease_file(install: Path) -> Path:
    return install / ".llmb" / "lock.owner"


def foreign(install: Path, **changes: Any) -> Path:
    """The lease of somebody on another host, of whom nobody knows whether he lives."""
    path = lease_file(install)
    path.parent.mkdir(parents=True, exist_ok=True)
    owner = {"token": "t", "host": "login2", "boot": "b", "pid": 7, "started": "1", "since": "noon"}
    path.write_text(json.dumps(owner | changes))
    return path


def test_a_lease_from_before_a_reboot_or_of_a_reused_pid_is_dead(tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for at in ("another boot", boot):
        foreign(tmp_path, host=socket.gethostname(), boot=at, pid=os.getpid())
        with install_lock(tmp_path, quiet(), patience=0):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_installation_of_another_user_is_reported_as_such(tmp_path: Path, texts: Texts) -> None:
    folder = Path(tempfile.mkdtemp())  # tmp_path cannot even be entered by others
    folder.chmod(0o755)
    try:
        os.seteuid(65534)
        with texts.raises(EnvironmentLacks, mask=r"/tmp/tmp\w+|(?<=\()\S+(?= belongs)"):
            install_lock(folder, quiet()).__enter__()
        with texts.raises(EnvironmentLacks, mask=r"/tmp/tmp\w+|(?<=\()\S+(?= belongs)"):
            install_lock(tmp_path / "x", quiet()).__enter__()
    finally:
        os.seteuid(0)
        folder.rmdir()


@pytest.mark.parametrize(
    "text",
    ["in use by ann", '{"pid": "x", "host": "h"}', '{"pid": [1]}', '{"pid": 1e999}', "[" * 99999, "", "\x00\xff"],
)
def test_a_lease_of_rubbish_is_waited_for_like_any_other(tmp_path, text, monkeypatch):
    lease = foreign(tmp_path)
    lease.write_text(text, encoding="latin-1")
    with (
        pytest.raises(EnvironmentLacks),
        install_lock(tmp_path, quiet(), patience=0),
    ):
        pytest.fail("it may be another installer's")
    assert lease.read_text(encoding="latin-1") == text
    monkeypatch.setattr(module, "_SILENCE", -1.0)
    with install_lock(tmp_path, quiet(), patience=0):
        pass


# The lease beside the lock, and what killed installers leave: small cases, in this process.


@pytest.fixture
def time_stands_still(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """``now`` is the clock; every wait moves it on."""
    clock = {"now": 1000.0, "waits": 0.0}

    def sleep(seconds: float) -> None:
        clock["now"] += seconds
        clock["waits"] += 1

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock["now"], sleep=sleep,
                                                        strftime=time.strftime))  # fmt: skip
    return clock


def test_a_lease_says_who_has_it_and_goes_with_its_owner(tmp_path: Path) -> None:
    with install_lock(tmp_path, quiet()):
        owner = json.loads(lease_file(tmp_path).read_text())
        assert set(owner) == {"token", "host", "boot", "pid", "started", "since"}
        assert owner["pid"] == os.getpid()
        assert sorted(path.name for path in (tmp_path / ".llmb").iterdir()) == ["lock", "lock.owner"]
    assert [path.name for path in (tmp_path / ".llmb").iterdir()] == ["lock"]


def test_a_lease_that_somebody_else_has_now_is_left_to_him(tmp_path: Path) -> None:
    with install_lock(tmp_path, quiet()):
        foreign(tmp_path)
    assert lease_file(tmp_path).exists()
    lease_file(tmp_path).unlink()
    with install_lock(tmp_path, quiet()):
        lease_file(tmp_path).unlink()


def test_a_lease_of_another_host_is_waited_for_a_minute_without_a_sign(tmp_path, time_stands_still, texts: Texts):
    foreign(tmp_path)
    shown = io.StringIO()
    with install_lock(tmp_path, Reporter(None, stream=shown)):
        assert 60 < time_stands_still["now"] - 1000 < 61
    texts(shown.getvalue())


def test_a_sign_of_life_begins_the_minute_anew(tmp_path, time_stands_still, monkeypatch):
    path = foreign(tmp_path)
    sleep = module.time.sleep

    def beat(seconds: float) -> None:
        sleep(seconds)
        if time_stands_still["now"] < 1050:
            os.utime(path, ns=(0, int(time_stands_still["now"] * 1e9)))

    monkeypatch.setattr(module.time, "sleep", beat)
    with install_lock(tmp_path, quiet()):
        assert 109 < time_stands_still["now"] - 1000 < 111


def test_waiting_ends(tmp_path: Path, time_stands_still: dict[str, float], texts: Texts) -> None:
    foreign(tmp_path).write_text("{")
    with (
        texts.raises(EnvironmentLacks),
        install_lock(tmp_path, quiet(), patience=20),
    ):
        pytest.fail("two at once")
    assert 20 < time_stands_still["now"] - 1000 < 21
    assert lease_file(tmp_path).exists()


@pytest.mark.parametrize("locks", [True, False, OSError(errno.ENOLCK, "no locks")])
def test_the_kernels_lock_counts_as_well(tmp_path, monkeypatch, time_stands_still, locks):
    """A file system whose lock cannot be had, for whatever reason, is not one to write to."""

    def try_lock(descriptor: int) -> bool:
        if isinstance(locks, OSError):
            raise locks
        return bool(locks)

    monkeypatch.setattr(module, "try_lock", try_lock)
    if locks is True:
        with install_lock(tmp_path, quiet(), patience=1):
            return
    with pytest.raises(EnvironmentLacks), install_lock(tmp_path, quiet(), patience=1):
        pytest.fail("without its lock")


def test_the_lease_is_touched_while_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HEARTBEAT", 0.001)
    lease = _Lease(tmp_path / "lease")
    assert lease.acquire()
    os.utime(tmp_path / "lease", ns=(1, 1))
    with lease.kept_alive():
        deadline = time.monotonic() + 100
        while (tmp_path / "lease").stat().st_mtime_ns == 1:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        lease.release()
    assert not [thread for thread in threading.enumerate() if "_beat" in thread.name]


def test_of_several_who_see_a_dead_owner_one_gets_the_lease(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    first, second = _Lease(path), _Lease(path)
    path.write_text(json.dumps({"token": "dead", "host": socket.gethostname(), "boot": "another", "pid": 1}))
    assert first.acquire()
    second._remove_stale("dead")
    taken = json.loads(path.read_text())
    assert taken["token"] == first._token, "it was put back"
    assert not second.acquire()
    assert [found.name for found in tmp_path.iterdir()] == ["lease"]
    path.unlink()
    second._remove_stale("dead")
    assert list(tmp_path.iterdir()) == []


def test_a_lease_that_vanishes_while_it_is_judged_is_not_dead(tmp_path: Path) -> None:
    assert not _Lease(tmp_path / "lease")._is_dead({"host": "login2", "token": "t", "boot": "b", "pid": 7})


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_folder_that_is_not_ours_is_said_to_be_so(tmp_path, monkeypatch, number):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, "")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(EnvironmentLacks) as caught:
        install_lock(tmp_path / "x", quiet()).__enter__()
    assert caught.value.message.endswith(f" {tmp_path / 'x'}: {os.strerror(number)}")
    assert "--install-path" in caught.value.remedy
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    owner = pwd.getpwuid(os.getuid()).pw_name
    with pytest.raises(EnvironmentLacks) as caught:
        install_lock(tmp_path / "x", quiet()).__enter__()
    assert caught.value.message.rpartition("(")[2].split()[::3] == [str(tmp_path), f"{owner})"]
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
    with pytest.raises(EnvironmentLacks) as caught:
        install_lock(tmp_path / "x", quiet()).__enter__()
    assert caught.value.message.endswith(f" {os.getuid()})")


def test_a_full_disk_is_another_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(OSError) as raised:  # noqa: PT011
        install_lock(tmp_path, quiet()).__enter__()
    assert raised.value.errno == errno.ENOSPC


# Leftovers


def test_what_is_not_finished_lies_in_one_folder_and_goes_with_the_next_command(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "theirs").touch()
    (tmp_path / "bin").mkdir()
    left = [unfinished(tmp_path, name) for name in ("a.sqsh", "enroot", "llmb")]
    left[0].touch()
    (left[1] / "below").mkdir(parents=True)
    left[2].symlink_to(elsewhere)
    assert {path.parent for path in left} == {tmp_path / ".llmb" / "tmp"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, tmp_path / "bin" / "llmb-run", "x")
    assert not list((tmp_path / "bin").iterdir())
    assert len(remove_leftovers(tmp_path)) == 4
    assert not list((tmp_path / ".llmb" / "tmp").iterdir())
    assert (elsewhere / "theirs").exists(), "links are not followed"


def test_a_folder_that_leads_elsewhere_is_not_swept(tmp_path: Path) -> None:
    elsewhere, install = tmp_path / "elsewhere", tmp_path / "install"
    for linked in (install / ".llmb", install / ".llmb" / "tmp", install / "venvs", install / "images"):
        (elsewhere / ".llmb" / "tmp").mkdir(parents=True)
        theirs = [elsewhere / name for name in ("theirs", ".llmb/tmp/theirs", "tmp/theirs", ".a.sqsh.1.0123abcd.part")]
        for path in theirs:
            path.parent.mkdir(exist_ok=True)
            path.touch()
        linked.parent.mkdir(parents=True, exist_ok=True)
        linked.symlink_to(elsewhere)
        goes = [linked] if linked.name == "tmp" else []
        assert remove_leftovers(install) == goes, "our own link to where nothing would ever be removed"
        assert all(path.exists() for path in theirs)
        shutil.rmtree(install)
        shutil.rmtree(elsewhere)


def test_owners_that_did_not_get_the_lock_are_left_a_minute(tmp_path: Path) -> None:
    state = tmp_path / ".llmb"
    state.mkdir()
    for name in ("lock", "lock.owner", "lock.owner.0123456789abcdef", "lock.owner.stale.0123456789abcdef"):
        (state / name).touch()
    assert remove_leftovers(tmp_path) == [], "somebody may be about to link it"
    dead = {"token": "x", "host": socket.gethostname(), "boot": "another", "pid": 1, "started": "0", "since": ""}
    (state / "lock.owner.0000456789abcdef").write_text(json.dumps(dead))
    assert [path.name for path in remove_leftovers(tmp_path)] == ["lock.owner.0000456789abcdef"]
    for path in state.iterdir():
        os.utime(path, (0, 0))
    assert [path.name for path in sorted(remove_leftovers(tmp_path))] == [
        *("lock.owner.0123456789abcdef", "lock.owner.stale.0123456789abcdef")
    ]
    assert sorted(path.name for path in state.iterdir()) == ["lock", "lock.owner"]


def test_images_that_an_earlier_release_was_importing_go(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for name in (".a.sqsh.17.0123abcd.part", "a.sqsh.17.0123abcd.part", ".a.sqsh.part", "a.sqsh"):
        (images / name).touch()
    assert remove_leftovers(tmp_path) == [images / ".a.sqsh.17.0123abcd.part"]


@pytest.mark.parametrize("apart", ["", "images", "tmp"])
def test_what_is_on_another_file_system_is_finished_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: str):
    folder = tmp_path / "images"
    folder.mkdir()
    (tmp_path / ".llmb" / "tmp").mkdir(parents=True)
    real = Path.stat

    def other(self: Path, **more: Any) -> Any:
        return SimpleNamespace(st_dev=-1, st_mode=stat.S_IFDIR) if apart == self.name else real(self, **more)

    monkeypatch.setattr(Path, "stat", other)
    assert root_for(folder, tmp_path) == (folder if apart else tmp_path)
    assert root_for(tmp_path / "none", tmp_path) == tmp_path
    write(tmp_path, folder / "x", "text")
    assert (folder / "x").read_text() == "text"


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt
