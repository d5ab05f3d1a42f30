"""The unit tests on the other Pythons of this machine: a share of them on each, all with ``tests/run --pythons``."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.repository import REPOSITORY

VERSIONS = os.environ.get("LLMB_TEST_PYTHONS", "").split()
NONE = pytest.param("none", marks=pytest.mark.skip(reason="tests/run found no other Python, or was not asked to"))


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("version", VERSIONS or [NONE])
def test_the_unit_tests_pass(version: str) -> None:
    hidden = ("PYTEST_", "LLMB_TEST_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    if parts := os.environ.get("LLMB_TEST_PYTHONS_SHARE"):
        env["LLMB_TEST_SHARE"] = f"{int(version.partition('.')[2]) % int(parts)}/{parts}"
    python = REPOSITORY / ".test" / "pythons" / version / "bin" / "python"
    # Plain: rewriting every assertion anew for one run takes longer than it helps; pytest on one file shows the values.
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--assert=plain", "tests/unit"]
    # A warning is an error in the programs that tests start, too.
    env["PYTHONWARNINGS"] = "error"
    done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False)
    last = (done.stdout.splitlines() or [""])[-1]
    with Path(os.environ.get("LLMB_TEST_NOTES", os.devnull)).open("a") as notes:
        notes.write(f"unit tests on Python {version}: {last}\n")
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
