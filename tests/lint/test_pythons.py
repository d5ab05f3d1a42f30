"""The code on the other Pythons of this machine: every module imports, and the tests of what differs by version pass.

The syntax and the names of the oldest version are mypy's and ruff's to check. What is left is what a version removes,
warns of (warnings are errors here) or does otherwise: in the modules that meet the parts of the standard library below.
``tests/run --pythons`` runs all unit tests on each.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.repository import REPOSITORY

VERSIONS = os.environ.get("LLMB_TEST_PYTHONS", "").split()
ALL = os.environ.get("LLMB_TEST_PYTHONS_ALL") == "1"
NONE = pytest.param("none", marks=pytest.mark.skip(reason="tests/run found no other Python, or was not asked to"))

MEET = {
    "argparse, textwrap": ["installer_arguments"],
    "ast, inspect: pages and schemas are written from docstrings": ["columns"],
    "concurrent.futures": ["series_submission"],
    "configparser, email, http, ssl, urllib": ["package_index", "pip_settings"],
    "dataclasses, enum, typing: read by msgspec": ["structs", "strict_yaml", "job_document", "run_records"],
    "importlib, zipfile": ["bootstrap_environments"],
    "multiprocessing": ["train_helpers"],
    "os, pathlib, shutil": ["files", "shared_folder", "trust"],
    "selectors, signal, subprocess": ["talking", "programs", "process_identity", "bootstrap_start"],
    "sqlite3": ["index"],
    "tarfile, gzip, tempfile": ["cli_archive"],
    "termios": ["installer_terminal", "installer_dialogue"],
    "xml": ["gpu_facts"],
}
"""What differs between versions to the unit tests of the modules that meet it."""

IMPORT = """
import importlib, pkgutil
import llmb_common, llmb_install, llmb_run, tools
count = 0
for package in (llmb_common, llmb_install, llmb_run, tools):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            count += 1
assert count > 300, count
"""


def run(version: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    hidden = ("PYTEST_", "LLMB_TEST_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    # A warning is an error, in the programs that tests start, too.
    env["PYTHONWARNINGS"] = "error"
    python = REPOSITORY / ".test" / "pythons" / version / "bin" / "python"
    return subprocess.run([str(python), *arguments], cwd=REPOSITORY, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("version", VERSIONS or [NONE])
def test_every_module_imports(version: str) -> None:
    done = run(version, "-c", IMPORT)
    assert done.returncode == 0, done.stderr[-2_000:]
    # What an engine's Python runs.
    done = run(version, "-m", "compileall", "-q", "-f", "-d", "llmb_train", "common/llmb_train")
    assert done.returncode == 0, done.stdout[-2_000:]


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("version", (VERSIONS if ALL else VERSIONS[:1] + VERSIONS[1:][-1:]) or [NONE])
def test_the_unit_tests_pass(version: str) -> None:
    """On the oldest and on the newest: what a version changes the later ones keep."""
    files = [f"tests/unit/test_{name}.py" for names in MEET.values() for name in names]
    chosen = ["tests/unit"] if ALL else ["-m", "not slow", *files]
    # Plain: rewriting every assertion anew for one run takes longer than it helps; pytest on one file shows the values.
    pytest_options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--assert=plain"]
    done = run(version, *pytest_options, *chosen)
    last = (done.stdout.splitlines() or [""])[-1]
    with Path(os.environ.get("LLMB_TEST_NOTES", os.devnull)).open("a") as notes:
        notes.write(f"unit tests on Python {version}: {last}\n")
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
