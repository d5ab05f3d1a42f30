"""What megatron-core starts beside a rank for a save, and a signal to the whole job: a process that serves a queue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import without_engine
from support.processes import wait_until

COMMON = Path(__file__).resolve().parents[2] / "common"
RANK = """
import multiprocessing, os, pathlib, signal, sys, time
from llmb_train.helpers import shield_managers

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda number, frame: (folder / "told").touch())
    shield_managers()
    shield_managers()
    (folder / "starts").touch()
    manager = multiprocessing.get_context(sys.argv[1]).Manager()
    queue = manager.Queue()
    (folder / "manager").write_text(str(manager._process.pid))
    while not (folder / "go").exists():
        time.sleep(0.05)
    queue.put("written")
    print(queue.get())
"""
"""As ``filesystem_async`` of megatron-core has it (0.16, 0.19)."""


@pytest.fixture(params=["spawn", "fork"])
def rank(request: pytest.FixtureRequest, tmp_path: Path) -> subprocess.Popen[str]:
    (tmp_path / "rank.py").write_text(RANK)
    return subprocess.Popen(
        [sys.executable, str(tmp_path / "rank.py"), request.param, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(COMMON)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_signal_to_the_whole_job_does_not_end_it(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    """Neither while it starts nor later, and the rank gets the signal all the same."""
    wait_until((tmp_path / "starts").exists, "a rank that saves", timeout=60)
    while not (tmp_path / "manager").exists():
        os.killpg(rank.pid, signal.SIGTERM)
        time.sleep(0.01)
    os.killpg(rank.pid, signal.SIGTERM)
    wait_until((tmp_path / "told").exists, "a rank that was told", timeout=60)
    (tmp_path / "go").touch()
    assert rank.communicate(timeout=120) == ("written\n", None)
    assert rank.returncode == 0


def test_it_ends_with_a_rank_that_is_killed(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    served = tmp_path / "manager"
    wait_until(lambda: served.exists() and served.read_text() != "", "a queue", timeout=60)
    rank.kill()
    rank.communicate(timeout=60)
    manager = Path("/proc", served.read_text(), "stat")
    wait_until(lambda: not manager.exists() or ") Z " in manager.read_text(), "the end of what served it", timeout=60)


def test_megatron_is_not_imported_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All nodes share it, and what is imported looks for files there."""
    seen: dict[str, Path] = {}
    monkeypatch.setattr(
        without_engine._Finder, "exec_module", lambda finder, module: seen.update({module.__name__: Path.cwd()})
    )
    monkeypatch.chdir(tmp_path)
    with without_engine.without_engine("__main__") as program:
        monkeypatch.setattr(program.engines, "install_patches", lambda engine: seen.update({"patches": Path.cwd()}))
        assert program._import_pretrain(None, None, says=False).__name__ == "megatron.bridge.training.pretrain.pretrain"
    assert {"patches", "megatron.bridge.training.pretrain"} <= seen.keys()
    assert set(seen.values()) == {Path("/")}
    assert Path.cwd() == tmp_path
