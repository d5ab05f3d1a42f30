"""What is shown of an import, from what Enroot's folders show, and what the registry calls the image."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb_install.parts import credentials, enroot

DOWNLOADING = "Downloading 2 missing layers"


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(enroot, "time", clock)
    return clock


def put(folder: Path, name: str, size: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(bytes(size))


def test_what_has_come_and_how_fast_is_shown(tmp_path: Path, clock: Clock) -> None:
    cache = tmp_path / "cache"
    put(cache, "a" * 64, 1_900_000)
    put(cache, "b" * 64 + ".killed", 9_000_000)
    text = enroot.progress_text(DOWNLOADING, tmp_path / "x", cache)
    assert callable(text)
    assert text() == DOWNLOADING, "what was there before has not come now"
    clock.now = 2.0
    put(cache, "b" * 64 + ".x1", 4_000_000)
    assert text() == f"{DOWNLOADING}, 4 MB, 2 MB/s"
    (cache / ("b" * 64 + ".x1")).rename(cache / ("b" * 64))
    put(cache, "c" * 64 + ".x2", 8_000_000)
    assert text() == f"{DOWNLOADING}, 12 MB, 6 MB/s"
    text = enroot.progress_text("Creating squashfs filesystem", tmp_path / "x", cache)
    clock.now = 4.0
    assert callable(text)
    assert text() == "Creating squashfs filesystem", "there is none yet"
    put(tmp_path, "x", 4_000_000)
    assert text() == "Creating squashfs filesystem, 4 MB, 2 MB/s"
    assert enroot.progress_text("Converting whiteouts", tmp_path, tmp_path) == "Converting whiteouts"


@pytest.mark.parametrize(
    ("says", "digest", "why"),
    [
        (f"echo sha256:{'0a' * 32}", f"sha256:{'0a' * 32}", ""),
        # Enroot 3.5, in full
        ("echo 'Usage: enroot COMMAND [ARG...]'; exit 1", None, "this Enroot cannot ask for it"),
        ("echo '[INFO] Authenticating with user: ann' >&2; exit 1", None, "the registry did not tell it"),
        ("echo sha256:0a", None, "the registry did not tell it"),
        ("sleep 100", None, "did not answer"),
    ],
)
def test_enroot_is_asked_for_the_digest(says, digest, why, tmp_path, monkeypatch):
    monkeypatch.setattr(enroot, "_DIGEST_SECONDS", 1.0 if "sleep" in says else 60.0)
    log, program = tmp_path / "log", tmp_path / "enroot"
    program.write_text(f'#!/bin/sh\necho "$ENROOT_TRANSFER_RETRIES $*" >{log}\n{says}\n')
    program.chmod(0o755)
    found, said = enroot.digest_of("nvcr.io#a/b:1", "aarch64", (), {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert (found, why in said) == (digest, True)
    assert log.read_text() == "0 digest --arch aarch64 docker://nvcr.io#a/b:1\n", "the import tries again, not this"


def test_enroot_tries_again_unless_somebody_has_said_how_often(tmp_path, monkeypatch):
    monkeypatch.setattr(credentials, "ENROOT_CONFIG", tmp_path / "enroot.conf")
    assert enroot.retry_variables({}) == {"ENROOT_TRANSFER_RETRIES": "3"}
    assert enroot.retry_variables({"ENROOT_TRANSFER_RETRIES": "0"}) == {}
    (tmp_path / "enroot.conf").write_text("#ENROOT_TRANSFER_RETRIES    0\n")
    assert enroot.retry_variables({}) == {"ENROOT_TRANSFER_RETRIES": "3"}
    (tmp_path / "enroot.conf").write_text("ENROOT_TRANSFER_RETRIES    7\n")
    assert enroot.retry_variables({}) == {}
