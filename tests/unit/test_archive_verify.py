"""``archive verify``: what was changed, is missing or was added is named, whatever the archive is made of."""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from llmb_run.results import verifying
from llmb_run.results.verifying import verify_archive
from support.cli import Cli
from support.programs import needs_zstd
from support.runs import make_run, steady_log

pytestmark = needs_zstd

FILES = {"run/run.json": b"{}", "run/log.out": b"iteration 1\n", "campaign/suite.yaml": b"name: x\n"}


def sums(files: dict[str, bytes]) -> bytes:
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items()).encode()


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    return info, content


def write(path: Path, members: list[tuple[tarfile.TarInfo, bytes]], *, after: bytes = b"") -> Path:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return compress(path, raw.getvalue() + after)


def compress(path: Path, data: bytes) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(data))
    else:
        path.write_bytes(subprocess.run(["zstd", "-q", "-c"], input=data, capture_output=True, check=True).stdout)
    return path


def pack(path: Path, files: dict[str, bytes], recorded: dict[str, bytes] = FILES, *more: object) -> Path:
    members = [member(f"top/{name}", content) for name, content in files.items()]
    return write(path, [*members, *more, member("top/SHA256SUMS", sums(recorded))])  # type: ignore[list-item]


@pytest.fixture(params=[".tar.gz", ".tar.zst"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"pack{request.param}"


def test_an_untouched_pack_is_as_it_was_written(path: Path) -> None:
    found = verify_archive(pack(path, FILES))
    assert (found.ok, found.files) == (True, 3)


def test_a_file_that_lies_beside_the_archives_folder_is_named(path: Path) -> None:
    """Also in an archive of an older release, which does not say what its folder is."""
    other = member("elsewhere/run/log.out", FILES["run/log.out"])
    files = {name: content for name, content in FILES.items() if name != "run/log.out"}
    found = verify_archive(pack(path, files, FILES, other))
    assert found.moved == ["run/log.out (it lies in elsewhere)"]
    assert "does not say what its files' modes were" in found.notes[0]


def test_what_archive_json_says_of_folder_and_modes_counts(path: Path) -> None:
    about = b'{"folder": "night", "modes": {"run/log.out": "0600"}, "runs": []}'
    files = {**FILES, "archive.json": about}
    found = verify_archive(pack(path, files, files))
    assert [name.partition(" ")[0] for name in found.moved] == [*files, "SHA256SUMS"]
    assert found.modes == ["run/log.out (0600 -> 0644)"]
    for odd in (b"[", b'{"modes": 3}', b"[" * 100_000, b"\xff"):
        files["archive.json"] = odd
        assert verify_archive(pack(path, files, files)).damaged == ["archive.json is not valid JSON"], odd


def test_a_changed_a_missing_and_an_added_file_are_named(path: Path) -> None:
    files = {**FILES, "run/log.out": b"iteration 2\n", "run/extra": b"x"}
    del files["campaign/suite.yaml"]
    found = verify_archive(pack(path, files))
    assert (found.changed, found.missing, found.added) == (["run/log.out"], ["campaign/suite.yaml"], ["run/extra"])
    assert not found.ok


@pytest.mark.parametrize(
    ("odd", "named"),
    [
        (member("../../etc/passwd", b"root"), "../../etc/passwd (outside the archive's folder)"),
        (member("/etc/passwd", b"root"), "/etc/passwd (outside the archive's folder)"),
        (member("top/../x", b"root"), "top/../x (outside the archive's folder)"),
        (member("top/link", b"", tarfile.SYMTYPE), "top/link (not a plain file)"),
        (member("top/hard", b"", tarfile.LNKTYPE), "top/hard (not a plain file)"),
        (member("top/pipe", b"", tarfile.FIFOTYPE), "top/pipe (not a plain file)"),
        (member("top/disk", b"", tarfile.BLKTYPE), "top/disk (not a plain file)"),
        (member("top/run/log.out", b"another"), "run/log.out (a second time)"),
        (member("top/runs", b"", tarfile.DIRTYPE), "top/runs (a folder)"),
        (member("top/../run", b"", tarfile.DIRTYPE), "top/../run (a folder)"),
        (member("/top", b"", tarfile.DIRTYPE), "/top (a folder)"),
    ],
)
def test_what_does_not_belong_in_a_pack_is_named(path, odd, named, monkeypatch):
    monkeypatch.chdir(path.parent)
    before = sorted(path.parent.rglob("*"))
    found = verify_archive(pack(path, FILES, FILES, odd))
    assert found.added == [named]
    assert sorted(path.parent.rglob("*")) == [*before, path], "nothing is unpacked"


def test_folders_of_known_files_are_no_addition(path: Path) -> None:
    """Whoever unpacked a pack and packed it again with tar has them in it."""
    folders = [member(name, kind=tarfile.DIRTYPE) for name in ("top", "top/run", "top/campaign/")]
    found = verify_archive(pack(path, FILES, FILES, *folders))
    assert (found.ok, found.files) == (True, 3)


def test_a_pack_that_is_cut_off_is_damaged(path: Path) -> None:
    pack(path, {**FILES, "run/noise": hashlib.sha256(b"x").digest() * 4000})
    whole = path.read_bytes()
    for share in (0.0, 0.3, 0.9):
        path.write_bytes(whole[: int(len(whole) * share)])
        assert verify_archive(path).damaged


def test_every_flipped_byte_is_noticed(path: Path) -> None:
    pack(path, FILES)
    whole = path.read_bytes()
    unnoticed = []
    # The header of gzip and its stored time say nothing about the content.
    for at in range(10 if path.suffix == ".gz" else 6, len(whole), 23):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        if verify_archive(path).ok:
            unnoticed.append(at)
    assert unnoticed == []


def test_a_second_archive_behind_the_first_is_noticed(path: Path) -> None:
    members = [member(f"top/{name}", content) for name, content in FILES.items()]
    write(path, [*members, member("top/SHA256SUMS", sums(FILES))], after=b"secret" * 3000)
    assert verify_archive(path).damaged == ["there is something after its end"]


@pytest.mark.parametrize(("name", "limit"), [("MOST_BYTES", 1 << 20), ("MOST_FILES", 2), ("MOST_SUMS", 100)])
def test_an_endless_pack_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch, name: str, limit: int) -> None:
    pack(path, {**FILES, "run/zeros": bytes(4 << 20)})
    monkeypatch.setattr(verifying, name, limit)
    assert "truncated or damaged" in verify_archive(path).damaged[0]


def test_a_header_of_a_gigabyte_is_not_read(path: Path) -> None:
    header = tarfile.TarInfo("top/pax")
    header.type, header.size = tarfile.XHDTYPE, 1 << 30
    compress(path, header.tobuf(tarfile.USTAR_FORMAT) + bytes(1 << 20))
    assert "a header that is too long" in verify_archive(path).damaged[0]


def test_other_files_are_no_archives(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    assert verify_archive(tmp_path / "text").damaged[0] == "it is neither a .tar.zst nor a .tar.gz file"


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    make_run(cli.install, log=steady_log(5741.47))
    assert cli("archive", "-o", tmp_path / "a.tar.gz").status == 0
    done = cli("archive", "verify", tmp_path / "a.tar.gz", "--json")
    assert (done.status, done.data["ok"], done.envelope["command"]) == (0, True, "archive verify")
    digest = hashlib.sha256((tmp_path / "a.tar.gz").read_bytes()).hexdigest()
    assert cli("archive", "verify", tmp_path / "a.tar.gz", "--sha256", digest).status == 0
    done = cli("archive", "verify", tmp_path / "a.tar.gz", "--sha256", "0" * 64)
    assert (done.status, digest in done.out) == (1, True)
    assert cli("archive", "verify", tmp_path / "none").status == 3
    assert "Name every file" in cli("archive", "verify", "--help").out


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.zst"])
def test_the_same_runs_make_the_same_archive(cli: Cli, tmp_path: Path, suffix: str) -> None:
    make_run(cli.install, log=steady_log(5741.47))
    contents: list[Callable[[], bytes]] = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        target = tmp_path / folder / f"runs{suffix}"
        assert cli("archive", "-o", target).status == 0
        contents.append(target.read_bytes)
    assert contents[0]() == contents[1]()


@pytest.mark.parametrize("command", ["archive", "accept"])
def test_what_cannot_be_read_is_answered_with_what_can(cli: Cli, tmp_path: Path, command: str) -> None:
    for path, problem in ((tmp_path / "nosuch", "No such file or directory"), (tmp_path, "not a regular file")):
        done = cli(command, "verify", path)
        assert (done.status, done.out) == (3, "")
        assert done.err.startswith(f"error: cannot read {path}: {problem}\n  -> give the .tar.zst or .tar.gz file")
