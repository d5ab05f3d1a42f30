"""What a rank asks of the run's folder, which all nodes share, while it imports the packed training code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmb_common.runs.manifest import pack_code, training_code

COUNT = """
import os, sys
opened = []
sys.addaudithook(lambda event, words: opened.append(words[0]) if event == "open" else None)
import atexit
@atexit.register
def report():
    print("opens", sum(str(name).endswith("/code.zip") for name in opened), file=sys.stderr)
"""
USAGE = 2
"""The exit status of ``python -m llmb_train`` without a job: all its own modules are imported by then."""


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A run's folder with ``code.zip``, and the folder in which its ranks work."""
    (tmp_path / "work").mkdir()
    (tmp_path / "code.zip").write_bytes(pack_code(training_code()))
    return tmp_path


def start(folder: Path, *words: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Python as a rank starts it; ``before`` runs first."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(before)
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder / "work",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{folder / 'code.zip'}:{site}"},
        capture_output=True,
        text=True,
    )


def test_the_packed_code_is_read_once_and_not_for_each_module(packed: Path) -> None:
    """A few times by Python itself, until it has found the package."""
    done = start(packed, "-m", "llmb_train", before=COUNT)
    assert done.returncode == USAGE, done.stderr
    (opens,) = (int(line.split()[1]) for line in done.stderr.splitlines() if line.startswith("opens "))
    assert 1 <= opens <= 5


def test_nothing_is_imported_from_the_working_folder(packed: Path) -> None:
    (packed / "work" / "platform.py").write_text("raise SystemExit('imported from the working folder')")
    done = start(packed, "-m", "llmb_train")
    assert done.returncode == USAGE, done.stderr


def test_neither_folder_is_left_to_look_in_and_processes_of_the_rank_find_the_code(packed: Path) -> None:
    """Those of a checkpoint are started anew and import what they are to call."""
    program = (
        "import llmb_train, multiprocessing, os, sys\n"
        "from llmb_train.ranks import first_host\n"
        f"assert not any(entry in ('', os.getcwd(), {str(packed / 'code.zip')!r}) for entry in sys.path), sys.path\n"
        f"os.unlink({str(packed / 'code.zip')!r})\n"
        "with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "    print(pool.apply(first_host, ['n[3-4]']))\n"
    )
    done = start(packed, "-c", program)
    assert (done.stdout, done.returncode) == ("n3\n", 0), done.stderr


@pytest.mark.parametrize(
    "lacks",
    [
        "import os; del os.memfd_create",
        "import os\ndef refused(name): raise OSError(38, 'Function not implemented')\nos.memfd_create = refused",
        "import os; os.getpid = lambda: 1",
    ],
)
def test_where_nothing_can_be_kept_in_memory_the_shared_file_is_used(packed: Path, lacks: str) -> None:
    """An old kernel; a /proc that is of another namespace, where our number is another process."""
    program = "import llmb_train.ranks as ranks; print(ranks.__file__)"
    done = start(packed, "-c", program, before=lacks)
    assert done.stdout == f"{packed / 'code.zip'}/llmb_train/ranks.py\n", done.stderr
