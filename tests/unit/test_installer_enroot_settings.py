"""Enroot's own settings decide where space is needed and where its credentials are."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb_install.parts import enroot_settings
from llmb_install.parts.credentials import enroot_credentials_path


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "enroot.conf"
    monkeypatch.setattr(enroot_settings, "CONFIG", path)
    return path


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        ("ENROOT_TEMP_PATH /raid/tmp", "/raid/tmp"),
        ("ENROOT_TEMP_PATH=/raid/tmp", "/raid/tmp"),
        ('ENROOT_TEMP_PATH "/raid/${USER}/tmp"', "/raid/ann/tmp"),
        ("ENROOT_TEMP_PATH ${SCRATCH:-/scratch}/$USER", "/scratch/ann"),
        ("#ENROOT_TEMP_PATH /raid/tmp", "/tmp"),
        ("ENROOT_TEMP_PATH $(mktemp -d)", "/tmp"),
        ("ENROOT_CACHE_PATH /raid/cache", "/tmp"),
    ],
)
def test_the_administrators_choice_counts(conf: Path, line: str, folder: str) -> None:
    conf.write_text(f"# site\n{line}\n")
    assert enroot_settings.temporary_folder({"USER": "ann"}) == Path(folder)


def test_a_variable_wins_over_the_file_and_the_file_over_its_drop_ins(conf: Path) -> None:
    (conf.parent / "enroot.conf.d").mkdir()
    (conf.parent / "enroot.conf.d" / "10-site.conf").write_text("ENROOT_CACHE_PATH /b\nENROOT_CONFIG_PATH /c\n")
    conf.write_text("ENROOT_CACHE_PATH /a\n")
    assert enroot_settings.cache_folder({}) == Path("/a")
    assert enroot_settings.cache_folder({"ENROOT_CACHE_PATH": "/x"}) == Path("/x")
    assert enroot_credentials_path({}) == Path("/c/.credentials")
