"""Fixtures of the unit tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli import Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """llmb-run on an empty installation under ``tmp_path``."""
    install = tmp_path / "install"
    install.mkdir()
    return Cli(install, monkeypatch, capsys)
