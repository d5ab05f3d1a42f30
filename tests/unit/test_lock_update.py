"""``locks/update.sh`` with a stand-in for uv: which locks it writes, and for which machines it asks for wheels."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmb_install.parts.engine import KINDS, MINIMUM_GLIBC

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("tool.txt", "charts.txt", "hub.txt", "uv.txt", "engine-cpu.txt", "engine-cpu-0.6.txt")
UV = """#!/bin/bash
if [[ $2 == compile ]]; then
  echo "$*" >> "$LOG"
  while [[ $# -gt 2 && $1 != --output-file ]]; do shift; done
  echo "locked $2" > "$2"
else
  asked=$(sed 's/^/ /' | tr -d '\\n')
  echo "$*;$asked" >> "$LOG"
  [[ $asked != *"$LACKING"* ]]
fi
"""


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    """A copy of the folder, in a project whose code is the real one."""
    folder = tmp_path / "installer" / "locks"
    shutil.copytree(ROOT / "installer" / "locks", folder)
    (tmp_path / "installer" / "llmb_install").symlink_to(ROOT / "installer" / "llmb_install")
    (tmp_path / "common").symlink_to(ROOT / "common")
    for name in LOCKS:
        (folder / name).write_text("old\n")
    for name, text in {"uv": UV, "python3": f'#!/bin/bash\nexec {sys.executable} "$@"\n'}.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return folder


def update(locks: Path, *arguments: str, lacking: str = "nothing") -> tuple[int, str, list[str]]:
    """Its exit status, what it says, and the calls of uv."""
    log, scratch = locks.parent / "log", locks.parent / "scratch"
    log.write_text("")
    scratch.mkdir(exist_ok=True)
    env = {"PATH": f"{locks.parents[1] / 'bin'}:/usr/bin:/bin", "LOG": str(log), "LACKING": lacking}
    env["TMPDIR"] = str(scratch)
    command = [str(locks / "update.sh"), *arguments]
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=False)
    assert list(scratch.iterdir()) == [], "what it needs meanwhile goes again"
    return done.returncode, done.stdout, log.read_text().splitlines()


def machines() -> list[str]:
    """Each engine on each of its Pythons, on either machine."""
    return [
        f"{kind.name}: Python 3.{minor}, {machine}, glibc {'.'.join(map(str, MINIMUM_GLIBC))}"
        for kind in KINDS.values()
        for minor in range(kind.pythons[0][1], kind.pythons[1][1] + 1)
        for machine in ("x86_64", "aarch64")
    ]


def test_every_lock_is_written_and_its_wheels_are_asked_for(locks: Path) -> None:
    status, said, calls = update(locks, "--upgrade")
    assert status == 0
    assert said.splitlines() == machines()
    torch = (locks / "torch-cpu.txt").read_text()
    for name in LOCKS:
        assert (locks / name).read_text() == f"locked {name}\n" + (torch if name.startswith("engine") else "")
    written = [call for call in calls if call.startswith("pip compile")]
    assert [call.split("--output-file ")[1].split()[0] for call in written] == list(LOCKS)
    assert all("--universal --generate-hashes" in call for call in written)
    assert ["--upgrade" in call for call in written] == [True, True, True, True, False, False]
    pythons = [call.split("--python-version ")[1].split()[0] for call in written]
    assert pythons == ["3.10", "3.10", "3.10", "3.10", "3.10", "3.12"]


def test_a_check_writes_nothing_and_asks_for_packages_of_a_newer_python_there(locks: Path) -> None:
    status, said, calls = update(locks, "--check")
    assert (status, said.splitlines()) == (0, machines())
    assert {(locks / name).read_text() for name in LOCKS} == {"old\n"}
    platform = f"manylinux_{'_'.join(map(str, MINIMUM_GLIBC))}"
    newer = {kind.name: {f"{name}==" for name in kind.of_newer_python} for kind in KINDS.values()}
    for line, plain, other in zip(machines(), calls[::2], calls[1::2], strict=True):
        name, python, machine = re.findall(r"^(.+): Python (.+), (.+), glibc", line)[0]
        assert f"--python-version {python} --python-platform {machine}-{platform} " in plain
        assert f"--python-version 3.12 --python-platform {machine}-{platform} " in other
        asked = [set(re.findall(r" ([a-z0-9-]+==)", call.partition(";")[2])) for call in (plain, other)]
        assert "numpy==" in asked[0]
        assert asked[1] == newer[name]
        assert not asked[0] & newer[name]


@pytest.mark.parametrize("package", ["numpy", "megatron-core"])
def test_a_wheel_that_is_missing_fails_it_after_all_were_asked_for(locks: Path, package: str) -> None:
    status, said, _ = update(locks, "--check", lacking=f" {package}==")
    assert (status, said.splitlines()) == (1, machines())
