"""The training code that a run takes with it."""

from __future__ import annotations

from pathlib import Path

from llmb_common.errors import EnvironmentLacks


def training_code() -> Path:
    """The ``llmb_train`` package that goes with this library; it is copied, never imported here."""
    folder = Path(__file__).resolve().parents[2] / "llmb_train"
    if not (folder / "__main__.py").is_file():
        raise EnvironmentLacks(f"the training code {folder} is missing", remedy="install LLMB again")
    return folder
