"""Lock files: every package has hashes, no index is named, and an environment accepts nothing else."""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

import pytest

from llmb_common.errors import EnvironmentLacks
from llmb_install.parts.engine import KINDS, Kind
from llmb_install.parts.environments import Environment
from llmb_install.parts.lock_files import count_for_here, lock_requirements, with_hashes
from llmb_install.working.reporter import Reporter
from support.wheels import locked, tiny_wheel

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "installer" / "locks"
HASH = "--hash=sha256:" + 64 * "0"

TEXT = f"""# made by a program
six==1.17.0 \\
    {HASH} \\
    {HASH}
numpy==2.2.6 ; python_full_version < '3.11' \\
    {HASH}
h11==1.0 ; sys_platform != 'emscripten' \\
    {HASH}
colorama==0.4.6 ; sys_platform == 'win32' \\
    {HASH}
"""


def test_the_requirements_of_a_lock() -> None:
    found = lock_requirements(TEXT)
    assert found[:2] == ["six==1.17.0", "numpy==2.2.6 ; python_full_version < '3.11'"]
    assert len(found) == 4
    assert count_for_here(found) == 2, "six and h11"
    assert lock_requirements("six==1.17.0  # why\n\n") == ["six==1.17.0"]


def test_one_package_of_a_lock() -> None:
    assert with_hashes(TEXT, "six") == f"six==1.17.0 \\\n    {HASH} \\\n    {HASH}\n"
    assert with_hashes(TEXT, "si") == ""


@pytest.mark.parametrize("name", ["tool.txt", "engine-cpu.txt", "engine-cpu-0.6.txt"])
def test_every_package_is_pinned_and_hashed_and_no_index_is_named(name: str) -> None:
    text = (LOCKS / name).read_text()
    requirements = lock_requirements(text)
    assert len(requirements) > 30
    for requirement in requirements:
        package = requirement.partition("==")[0]
        assert "==" in requirement
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", with_hashes(text, package)), package
    assert not re.search(r"https?:|--index|--find-links|--trusted", text)


def test_the_tools_locks_cover_the_project_and_its_build_backend() -> None:
    """A dependency added only to pyproject.toml would be missing from every installation."""
    project = (ROOT / "pyproject.toml").read_text()
    runtime = re.search(r"^dependencies = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    install = re.search(r"^install = \[(.*?)\]", project, re.MULTILINE | re.DOTALL)
    report = re.search(r"^report = \[(.*?)\]", project, re.MULTILINE | re.DOTALL)
    backend = re.search(r"^requires = \[(.*?)\]", project, re.MULTILINE)
    assert runtime
    assert install
    assert report
    assert backend
    for lock, parts in {"tool.txt": runtime[1] + install[1], "tool-build.txt": report[1] + backend[1]}.items():
        wanted = re.findall(r'"([A-Za-z0-9_.-]+?)[><=]', parts)
        assert "msgspec" in wanted or "hatchling" in wanted
        locked = {requirement.partition("==")[0] for requirement in lock_requirements((LOCKS / lock).read_text())}
        assert {re.sub(r"[-_.]+", "-", name).lower() for name in wanted} - locked == set()


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_an_engine_lock_has_no_cuda(kind: Kind) -> None:
    text = (LOCKS / f"{kind.name}.txt").read_text()
    requirements = lock_requirements(text)
    assert [r for r in requirements if r.startswith("torch==")] == ["torch==2.13.0+cpu"]
    assert not [r for r in requirements if r.startswith(("nvidia-cu", "nvidia-nccl", "triton", "wandb", "cwevals"))]
    assert all(with_hashes(text, name) for name in kind.of_newer_python)
    assert with_hashes(text, "torch") == with_hashes((LOCKS / "torch-cpu.txt").read_text(), "torch")


SAID = {"changed": "Hash mismatch", "no hash": "must have their versions pinned|must have a hash"}


@pytest.mark.parametrize("case", ["right", "changed", "no hash"])
def test_a_file_with_another_content_is_not_installed(tmp_path: Path, case: str) -> None:
    """What a compromised index or a damaged download provides under the right name and version."""
    path = tiny_wheel(tmp_path)
    lock = tmp_path / "lock.txt"
    text = locked(path)
    lock.write_text(text.partition(" \\")[0] + "\n" if case == "no hash" else text)
    if case == "changed":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("more.py", "print('not what was locked')")
    environment = Environment(tmp_path / "venv", sys.executable, lock, smoke=("tiny",))
    if case == "right":
        assert environment.ensure(Reporter(None))
        return
    with pytest.raises(EnvironmentLacks, match=SAID[case]):
        environment.ensure(Reporter(None))
    assert not environment.is_complete()
