"""The training code that each run takes along."""

from __future__ import annotations

from pathlib import Path

from llmb_common.errors import EnvironmentLacks


def training_code() -> Path:
    """The ``llmb_train`` package of this installation; it is copied, never imported here.

    Raises:
        EnvironmentLacks: it is missing.
    """
    folder = Path(__file__).resolve().parents[2] / "llmb_train"
    if not (folder / "__main__.py").is_file():
        raise EnvironmentLacks(f"the training code {folder} is missing", remedy="reinstall LLMB")
    return folder
