"""Which Python launch.sh and the parsers take, with stand-ins that print how they were called.

Run: ``common/find_python.sh``, by ``llama3.1/launch.sh``, ``common/parse_train_timing.sh`` and
``common/parse_train_timing_mbridge.sh``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.texts import Texts

ROOT = Path(__file__).resolve().parents[2]
LAUNCH, NEMO, MBRIDGE = "llama3.1/launch.sh", "common/parse_train_timing.sh", "common/parse_train_timing_mbridge.sh"
# It is asked for its version with four arguments; nobody tells it to be silent about that.
STAND_IN = '#!/bin/bash\n[[ $# == 4 ]] && { echo question; echo question >&2; exit %d; }\nprintf "%%s\\n" "$0" "$@"\n'


@dataclass(frozen=True)
class Machine:
    """A clone, and a ``PATH`` with nothing else on it."""

    root: Path

    @property
    def pythons(self) -> list[Path]:
        """Where a Python is looked for, in this order."""
        environments = ("active", "conda", "installation/venvs/llmb", "clone/llmb_install/venvs/llmb")
        return [*(self.root / name / "bin" / "python" for name in environments), self.root / "tools/bin/python3"]

    @property
    def variables(self) -> dict[str, str]:
        named = {"VIRTUAL_ENV": "active", "CONDA_PREFIX": "conda", "LLMB_INSTALL": "installation"}
        return {name: str(self.root / python) for name, python in named.items()}

    def put(self, python: Path, *, suits: bool) -> None:
        """A Python, new and with LLMB or neither."""
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(STAND_IN % (0 if suits else 75))
        python.chmod(0o755)
        packages = python.parents[1] / "lib" / "python3.12" / "site-packages"
        (packages / ("llmb-0.1.0.dist-info" if suits else "llmblike-0.1.0.dist-info")).mkdir(parents=True)

    def run(
        self, script: str, *arguments: str, command: tuple[str, ...] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        words = [*command, str(self.root / "clone" / script), *arguments]
        env = {"PATH": str(self.root / "tools" / "bin"), **variables}
        return subprocess.run(words, env=env, capture_output=True, text=True, check=False)


def a_machine(root: Path) -> Machine:
    for name in (LAUNCH, NEMO, MBRIDGE, "common/find_python.sh"):
        (root / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / "clone" / name)
    (root / "tools" / "bin").mkdir(parents=True)
    for name in ("bash", "dirname", "readlink", "env"):
        (root / "tools" / "bin" / name).symlink_to(shutil.which(name) or "")
    return Machine(root)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return a_machine(tmp_path)


@pytest.fixture
def open_machine() -> Iterator[Machine]:
    """One that every user can reach."""
    with tempfile.TemporaryDirectory(prefix="llmb-machine-") as folder:
        Path(folder).chmod(0o755)
        yield a_machine(Path(folder))


@pytest.mark.parametrize("script", [LAUNCH, NEMO])
@pytest.mark.parametrize("number", range(5))
def test_the_first_that_suits_is_taken(machine: Machine, script: str, number: int) -> None:
    """Others before it are too old, or without LLMB where that is needed; some are not there at all."""
    for python in machine.pythons[1 - number % 2 : number]:
        machine.put(python, suits=False)
    for python in machine.pythons[number:]:
        machine.put(python, suits=True)
    done = machine.run(script, **machine.variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == str(machine.pythons[number])


def test_variables_that_are_not_set_name_no_python(machine: Machine) -> None:
    for python in machine.pythons:
        machine.put(python, suits=True)
    assert machine.run(NEMO).stdout.splitlines()[0] == str(machine.pythons[3])


@pytest.mark.parametrize(
    ("script", "options", "words"),
    [
        (LAUNCH, ["-E", "-s", "-c"], ["llmb_common.submission.launch", "launch.sh", "{clone}/llama3.1"]),
        (NEMO, ["-E", "-S", "-c"], ["llmb_common.runs.timing.cli", "parse_train_timing.sh", "nemo"]),
        (MBRIDGE, ["-E", "-S", "-c"], ["llmb_common.runs.timing.cli", "parse_train_timing_mbridge.sh", "mbridge"]),
    ],
)
def test_it_is_given_this_clones_library_and_every_argument(machine, script, options, words):
    machine.put(machine.pythons[0], suits=True)
    clone = machine.root / "clone"
    done = machine.run(script, "a b", "--c=*", VIRTUAL_ENV=machine.variables["VIRTUAL_ENV"])
    said = done.stdout.splitlines()
    assert said[1:4] == options
    expected = [str(clone / "common"), *(word.format(clone=clone) for word in words), "a b", "--c=*"]
    assert said[-len(expected) :] == expected


def test_a_python_that_was_asked_for_is_taken_or_nothing_is(machine: Machine, texts: Texts) -> None:
    asked = machine.root / "asked" / "bin" / "python"
    for python in machine.pythons:
        machine.put(python, suits=True)
    machine.put(asked, suits=False)
    done = machine.run(LAUNCH, LLMB_PYTHON=str(asked), **machine.variables)
    assert (done.returncode, done.stdout) == (3, "")
    texts(done.stderr)

    asked.write_text(STAND_IN % 0)  # LLMB may be where only starting it would tell
    done = machine.run(LAUNCH, LLMB_PYTHON=str(asked), **machine.variables)
    assert done.stdout.splitlines()[0] == str(asked)


@pytest.mark.parametrize(
    ("script", "what", "remedy"),
    [(LAUNCH, "with LLMB", "./installer.py --quickstart"), (NEMO, "3.10 or newer", "set LLMB_PYTHON to one")],
)
@pytest.mark.parametrize("kind", ["open", "absent", "unset"])
def test_without_any_it_says_what_was_tried_and_what_to_do(machine, script, what, remedy, kind):
    given = {name: value for name, value in machine.variables.items() if kind != "unset"}
    for python in machine.pythons if kind == "open" else []:
        machine.put(python, suits=False)
    done = machine.run(script, **given)
    assert (done.returncode, done.stdout) == (3, "")
    tried = [*machine.pythons[0 if given else 3 : 4], "python3"]
    first, second = done.stderr.splitlines()
    assert first == f"error: no Python {what} found (tried: {' '.join(map(str, tried))})"
    assert remedy in second


@pytest.mark.parametrize("mode", [0o700, 0o711, 0o744], ids=oct)
def test_an_installation_that_is_closed_is_said_to_be(open_machine: Machine, mode: int, texts: Texts) -> None:
    installation = open_machine.root / "installation"
    installation.mkdir()
    installation.chmod(mode if os.geteuid() == 0 else (mode & 0o7) << 6)
    another = (shutil.which("setpriv") or "", "--reuid=65534", "--clear-groups", "--") if os.geteuid() == 0 else ()
    done = open_machine.run(LAUNCH, command=another, LLMB_INSTALL=str(installation))
    assert (done.returncode, done.stdout) == (3, "")
    texts(done.stderr, mask=r"/tmp/llmb-machine-\w+")
