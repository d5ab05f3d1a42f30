"""Files appear complete and with the right mode, or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from llmb_common.base.errors import RecordError
from llmb_common.base.files import (
    fsync_folder,
    json_text,
    open_plain,
    read_json,
    read_plain,
    read_some,
    sha256_of,
    sha256_of_tree,
    try_lock,
    write_atomic,
    write_json,
    write_output,
)
from support.texts import Texts


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_mode_is_as_requested_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_atomic(tmp_path / "f", "x", mode=0o600)
        write_atomic(tmp_path / "g", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "g").stat().st_mode & 0o777 == 0o644


def test_a_failed_write_keeps_the_old_file_and_leaves_no_temporary_file(tmp_path: Path, texts: Texts) -> None:
    target = tmp_path / "f"
    target.write_text("old")
    with texts.raises(RecordError):
        write_atomic(target / "below-a-file", "new")
    with pytest.raises(ValueError):  # noqa: PT011
        write_json(target, {"loss": float("nan")})
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_an_output_goes_into_a_fifo_and_does_not_replace_it(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    write_output(fifo, "report\n")
    assert os.read(reader, 100) == b"report\n"
    os.close(reader)
    assert fifo.is_fifo()


def test_an_output_that_nobody_takes_is_refused(tmp_path: Path, texts: Texts) -> None:
    taken = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(taken))
        with pytest.raises(RecordError) as caught:
            write_output(taken, "x")
    texts(caught.value)
    assert taken.is_socket()


def test_a_fifo_without_another_end_is_not_waited_for(tmp_path: Path, texts: Texts) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with texts.raises(RecordError):
        write_output(fifo, "report")
    assert read_some(fifo, 9) == b""
    assert read_some(Path("/dev/zero"), 9) == bytes(9)
    both_ends = os.open(fifo, os.O_RDWR)
    os.write(both_ends, b"tasks")
    assert read_some(fifo, 5) == b"tasks"
    os.close(both_ends)


def test_an_output_replaces_a_file_and_is_refused_where_a_folder_is(tmp_path: Path, texts: Texts) -> None:
    (tmp_path / "report").write_text("old")
    write_output(tmp_path / "report", "new")
    assert (tmp_path / "report").read_text() == "new"
    for folder in (tmp_path, Path("/"), Path()):
        with pytest.raises(RecordError) as refused:
            write_output(folder, "new")
    texts(refused.value)


def test_a_name_that_is_not_utf8_is_spelt_out_in_files(tmp_path: Path) -> None:
    write_output(tmp_path / "report", "log-\udcff.out")
    assert (tmp_path / "report").read_text() == "log-\\udcff.out"
    write_json(tmp_path / "json", "log-\udcff.out")
    assert read_json(tmp_path / "json") == "log-\udcff.out"


# What is written survives a power cut, and nobody can make a write or a read go elsewhere, or wait for ever.


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a write does to the disk, in order."""
    seen: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        seen.append("fsync folder" if stat.S_ISDIR(status.st_mode) else f"fsync {status.st_size} bytes")
        fsync(descriptor)

    def noted_replace(path: Path, target: Any) -> Path:
        seen.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    return seen


def test_the_content_is_on_disk_before_it_gets_its_name_and_the_name_before_the_write_is_done(tmp_path, steps):
    write_atomic(tmp_path / "run.json", "twelve bytes")
    assert steps == ["fsync 12 bytes", "rename", "fsync folder"]


def test_the_folder_alone_may_wait(tmp_path: Path, steps: list[str]) -> None:
    write_atomic(tmp_path / "run.json", b"12", sync_folder=False)
    assert steps == ["fsync 2 bytes", "rename"]


def test_a_folder_that_cannot_be_synced_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    before = open_files()
    monkeypatch.setattr(os, "fsync", refuse)
    fsync_folder(tmp_path)
    assert open_files() == before


def test_a_write_that_cannot_reach_the_disk_is_an_error_and_leaves_nothing(tmp_path, monkeypatch, texts: Texts):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "run.json").write_text("old")
    before = open_files()
    monkeypatch.setattr(os, "fsync", full)
    with texts.raises(RecordError):
        write_atomic(tmp_path / "run.json", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert (tmp_path / "run.json").read_text() == "old"
    assert open_files() == before


def test_a_planted_link_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    """Whoever guesses the temporary name in a shared folder must not choose which file we overwrite."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "shared"
    folder.mkdir()
    opened = os.open

    def just_before(path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            Path(path).symlink_to(victim)
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", just_before)
    with texts.raises(RecordError):
        write_atomic(folder / "f", "x")
    assert victim.read_text() == "precious"
    assert not (folder / "f").exists()


def test_nobody_reads_a_private_file_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    opened = os.open

    def noted(path: Any, flags: int, mode: int = 0o777) -> int:
        descriptor = opened(path, flags, mode)
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    umask = os.umask(0)
    try:
        monkeypatch.setattr(os, "open", noted)
        write_json(tmp_path / "token", {"a": 1}, mode=0o600)
    finally:
        os.umask(umask)
    assert modes[0] == 0o600
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


def test_two_writers_never_share_a_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    replace = Path.replace

    def noted(path: Path, target: Any) -> Path:
        names.append(path.name)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", noted)
    for _ in range(3):
        write_atomic(tmp_path / "f", "x")
    assert len(set(names)) == 3
    assert all(name.startswith(".f.") for name in names), "hidden, and beside the file, where a rename is one step"


def test_json_is_the_same_text_where_there_is_no_msgspec(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"größe": [1, 2.5, None, True], "name": "log-\udcff\n", "empty": [{}, [], ""]}
    text = json_text(value)
    monkeypatch.setitem(sys.modules, "msgspec.json", None)
    assert json_text(value) == text
    with pytest.raises(ValueError, match="JSON"):
        json_text(float("inf"))


def test_json_is_indented_utf8_with_a_last_line(tmp_path: Path) -> None:
    write_json(tmp_path / "f", {"größe": [1]})
    assert (tmp_path / "f").read_bytes() == '{\n  "größe": [\n    1\n  ]\n}\n'.encode()
    assert read_json(tmp_path / "f") == {"größe": [1]}
    assert read_json(tmp_path / "f", b'{"read": "before"}') == {"read": "before"}
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o644


def test_what_cannot_be_read_is_said_with_its_reason_and_a_remedy(tmp_path: Path, texts: Texts) -> None:
    with texts.raises(RecordError):
        read_json(tmp_path / "gone")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with texts.raises(RecordError):
        read_json(tmp_path / "zero")
    for content in (b"\xff\xfe", b"", b"[" * 100_000, b"{"):
        with pytest.raises(RecordError) as caught:
            read_json(tmp_path / "f", content)
    texts(caught.value)


def test_a_fifo_or_device_is_not_waited_for_and_a_folder_leaves_no_file_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    before = open_files()
    for path in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"not a (plain|regular) file") as caught:
            open_plain(path)
        assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, str(path))
    assert open_files() == before


def test_a_link_is_followed_only_where_that_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("content")
    (tmp_path / "link").symlink_to("f")
    with open_plain(tmp_path / "link") as stream:
        assert stream.read() == b"content"
    with pytest.raises(OSError, match="symbolic link"):
        open_plain(tmp_path / "link", follow=False)
    with pytest.raises(OSError, match="symbolic link"):
        read_plain(tmp_path / "link")
    assert read_plain(tmp_path / "f") == b"content"


def test_a_lock_is_taken_once_and_never_waited_for(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as one, (tmp_path / "lock").open("w") as other:
        assert try_lock(one.fileno())
        assert not try_lock(other.fileno())
        fcntl.flock(one.fileno(), fcntl.LOCK_UN)
        assert try_lock(other.fileno())


def test_a_file_system_without_locks_locks_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(number: int) -> None:
        def flock(descriptor: int, operation: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", flock)

    for number in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
        answer(number)
        assert try_lock(0)
    answer(errno.EIO)
    with pytest.raises(OSError) as raised:  # noqa: PT011
        try_lock(0)
    assert raised.value.errno == errno.EIO


def test_hashes_are_those_of_sha256sum(tmp_path: Path) -> None:
    content = bytes(range(256)) * 8192 + b"more than one block"
    (tmp_path / "f").write_bytes(content)
    assert sha256_of(tmp_path / "f") == hashlib.sha256(content).hexdigest()


def test_the_hash_of_a_tree_is_one_of_names_and_hashes_in_order(tmp_path: Path) -> None:
    for name in ("b/two", "a", "b/one", "b/__pycache__/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    listed = "".join(f"{name}\0{sha256_of(tmp_path / name)}\n" for name in ("a", "b/one", "b/two"))
    assert sha256_of_tree(tmp_path) == hashlib.sha256(listed.encode()).hexdigest()
    assert sha256_of_tree(tmp_path, "*") == hashlib.sha256(listed.splitlines(True)[0].encode()).hexdigest()
