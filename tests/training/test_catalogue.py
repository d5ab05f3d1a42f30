"""The catalogue of performance recipes, written by real engines."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from training_jobs import training_environment

SHIPPED = Path(__file__).resolve().parents[2] / "mbridge" / "catalogue-0.6.2.json"


def write(python: Path, file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "llmb_train.catalogue", str(file), *options]
    return subprocess.run(command, env=training_environment(), capture_output=True, text=True, timeout=1200)


def test_the_shipped_catalogue_is_what_the_engine_writes_byte_for_byte(functions_python: Path, tmp_path: Path) -> None:
    """All functions, called without a GPU, a network or a token."""
    done = write(functions_python, tmp_path / "again.json", "--date", json.loads(SHIPPED.read_text())["date"])
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"450 functions in {tmp_path / 'again.json'}\n"
    assert (tmp_path / "again.json").read_bytes() == SHIPPED.read_bytes()


def test_an_engine_without_functions_says_so(engine_python: Path, tmp_path: Path) -> None:
    done = write(engine_python, tmp_path / "none.json")
    assert done.returncode == 3
    assert "this Megatron-Bridge has no megatron.bridge.perf_recipes" in done.stderr
    assert "release 0.6 and later have it" in done.stderr
    assert not (tmp_path / "none.json").exists()
