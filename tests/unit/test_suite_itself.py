"""What the suite promises about itself: golden updates never pass silently, Ctrl-C works anywhere, groups stay
together."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support import engine, processes
from support.groups import FIRST, arrange, group_of, shuffle
from support.texts import Texts

ROOT = Path(__file__).resolve().parents[2]
A_GOLDEN_TEST = ["tests/unit/test_scripts.py", "-k", "test_one_script_in_full"]


def run_pytest(*arguments: str, before: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CI"))}
    return subprocess.run(
        ["bash", "-c", f'{before} exec "$0" "$@"', *command],
        cwd=ROOT,
        env={**environment, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_an_update_of_golden_files_is_announced_at_the_end() -> None:
    done = run_pytest(*A_GOLDEN_TEST, LLMB_TEST_UPDATE_GOLDEN="1")
    assert done.returncode == 0, done.stdout
    *_, announced, _, last = done.stdout.splitlines()
    assert "golden files were written, not compared" in announced
    assert "1 passed" in last


def test_ci_refuses_to_update_golden_files(texts: Texts) -> None:
    done = run_pytest(*A_GOLDEN_TEST, LLMB_TEST_UPDATE_GOLDEN="1", CI="true")
    assert done.returncode == 4
    texts(done.stderr)


@pytest.mark.slow
def test_tests_of_ctrl_c_work_where_it_is_ignored() -> None:
    """As in a background job of a script."""
    done = run_pytest("tests/unit/test_bootstrap_start.py", "-k", "ctrl_c", before="trap '' INT;")
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_group_is_run_by_one_worker() -> None:
    done = run_pytest(
        "--numprocesses=2", "--dist=loadscope", "-v", "tests/unit/test_gpus.py", "tests/unit/test_memory_said.py"
    )
    assert done.returncode == 0, done.stdout
    workers: dict[str, set[str]] = {}
    for worker, file in re.findall(r"^\[(gw\d)\].* PASSED tests/unit/(\w+)\.py", done.stdout, re.MULTILINE):
        workers.setdefault(file, set()).add(worker)
    assert {file: len(names) for file, names in workers.items()} == {"test_gpus": 1, "test_memory_said": 1}


def test_leftovers_of_an_owner_without_a_name_are_not_a_problem(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    theirs, ours = (tmp_path / f"{processes.PREFIX}{gone.pid}-{name}" for name in ("theirs", "ours"))
    theirs.mkdir()
    ours.mkdir()
    if os.geteuid() != 0:
        pytest.skip("giving a folder to somebody else needs root")
    os.chown(theirs, 54321, 54321)
    processes.remove_leftovers()
    assert [path.name for path in tmp_path.iterdir()] == [theirs.name]


@pytest.mark.parametrize(
    ("free", "flags", "memory", "usable"),
    [
        (8 << 30, 0, 16 << 30, True),
        (64 << 20, 0, 16 << 30, False),
        (8 << 30, os.ST_NOEXEC, 16 << 30, False),
        (8 << 30, 0, 4 << 30, False),
    ],
)
def test_folders_are_in_memory_where_it_has_room_and_runs_programs(tmp_path, monkeypatch, free, flags, memory, usable):
    status = SimpleNamespace(f_flag=flags, f_bavail=free // 4096, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda folder: status)
    monkeypatch.setattr(processes, "free_memory", lambda: memory)
    assert processes.has_room(tmp_path) is usable
    assert not processes.has_room(tmp_path / "missing")


def test_the_free_memory_is_read() -> None:
    assert 0 < processes.free_memory() < 1 << 50


def test_files_of_a_folder_share_a_group_and_others_have_their_own() -> None:
    groups = {
        "tests/training/test_switches.py::test_a": "training",
        "tests/training/test_catalogue.py::test_a": "functions",
        "tests/training/test_launched_smoke.py::test_a": "test_launched_smoke",
        "tests/unit/test_files.py::test_a[b@c]": "test_files",
        "tests/lint/test_linters.py::test_a": "tests/lint/test_linters.py::test_a",
    }
    assert {test: group_of(test) for test in groups} == groups


def test_groups_start_in_their_order_with_their_tests_in_theirs() -> None:
    tests = [f"tests/{file}" for file in ("unit/test_a.py::b", "training/test_a.py::a", "unit/test_a.py::a")]
    tests.append("tests/cluster/test_doctor.py::a")
    items: list[Any] = [SimpleNamespace(nodeid=test, path=Path(test.partition("::")[0])) for test in tests]
    arrange(items)
    assert [item.nodeid for item in items] == [tests[3], tests[1], tests[0], tests[2]]


def test_groups_that_need_a_training_engine_start_after_others() -> None:
    """Making the second one begins when the first one is there; a worker that waits for either does nothing else."""
    folders = (ROOT / "tests" / name for name in ("cluster", "install", "training"))
    files = [path for folder in folders for path in folder.glob("test_*.py")]
    for words, others in (("engine_python: Path", 10), ("functions_", 14)):
        groups = {group_of(f"{path.relative_to(ROOT)}::test") for path in files if words in path.read_text()}
        assert groups
        assert not groups & set(FIRST[:others])


def test_an_engine_that_could_not_be_made_fails_the_tests_that_need_it(tmp_path, monkeypatch, texts: Texts):
    monkeypatch.setattr(engine, "WORK", tmp_path)
    monkeypatch.setenv("LLMB_TEST_ENGINES", engine.SECOND)
    assert engine.is_being_made(engine.SECOND)
    assert not engine.is_being_made(engine.FIRST)
    (tmp_path / f"{engine.SECOND}.err").write_text("installer: no space left on device\n")
    (tmp_path / f"{engine.SECOND}.status").write_text("1\n")
    assert not engine.is_being_made(engine.SECOND)
    with texts.raises(pytest.fail.Exception):
        engine.python(engine.SECOND)


def collected() -> list[Any]:
    return [SimpleNamespace(path=Path(f"test_{file}.py"), name=name) for file in range(12) for name in "abc"]


def test_a_shuffled_order_keeps_files_together_and_can_be_had_again() -> None:
    orders = []
    for seed in ("1", "1", "2"):
        items = collected()
        shuffle(items, seed)
        orders.append([(item.path.name, item.name) for item in items])
        files = [file for file, _ in orders[-1]]
        assert [file for number, file in enumerate(files) if files.index(file) == number] == files[::3]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])
