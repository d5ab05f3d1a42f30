"""The driver's version is read from the kernel, which is visible in a container too; without a driver it is null."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb_train.evidence.machine import driver_version


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 02:03:46 UTC 2026\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.124.06  Release Build  (dvs-builder@U22)\n",
    ],
)
def test_driver_version(tmp_path: Path, line: str) -> None:
    file = tmp_path / "version"
    file.write_text(line + "GCC version:  gcc version 13.3.0 (Ubuntu)\n", encoding="utf-8")
    assert driver_version(file) == "570.124.06"


def test_no_driver(tmp_path: Path) -> None:
    assert driver_version(tmp_path / "absent") is None
