"""./installer.py --quickstart for real: environments, training, the table. The longest test of the installer."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from install_world import CLONE, World, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A folder whose name needs quoting, and no Slurm, GPU, container or token."""
    return make_world(tmp_path_factory.mktemp("quick start"), Path("/nowhere"))


def engine(world: World) -> Path:
    return world.install / "venvs" / "engine-cpu"


def test_killed_while_pip_works_nothing_goes_on_and_nothing_looks_complete(world: World) -> None:
    argv = [sys.executable, str(CLONE / "installer.py"), "--quickstart", "--install-path", str(world.install)]
    with subprocess.Popen(argv, env=world.env, stderr=subprocess.PIPE) as installer:
        deadline = time.monotonic() + 1500
        while not list(world.install.glob("venvs/engine-cpu-*/lib/python3.*/site-packages/torch/_C*")):
            assert installer.poll() is None, installer.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        installer.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 100
    while any(str(engine(world)) in line for line in command_lines()):
        assert time.monotonic() < deadline, "pip goes on without its installer"
        time.sleep(0.1)
    assert not engine(world).exists()


def command_lines() -> list[str]:
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # noqa: PERF203  (processes come and go)
            continue
    return lines


def test_it_ends_in_a_table_of_a_real_run(world: World) -> None:
    # A leftover of another day must not steer what the quickstart shows.
    done = world.run("--quickstart", "--install-path", str(world.install), env={"TP": "8", "STAGE_PATH": "/old"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Elapsed Time (ms) and TFLOPS/GPU Analysis (iterations 35-44)\n")
    assert re.search(r"^pretrain_llama3.1_smoke_bf16_gpus2_tp2\S* +Success +[0-9.]+", done.stdout, re.MULTILINE)
    log = next(world.install.glob("workloads/pretrain_llama3.1/experiments/*/*/*/log-*.out"))
    steps = re.findall(r"iteration +(\d+)/ +50 .*lm loss: ([0-9.E+-]+)", log.read_text())
    assert [int(step) for step, _ in steps] == list(range(1, 51))
    assert float(steps[-1][1]) < float(steps[0][1]) - 1, "it learned nothing"


def test_the_engine_is_for_cpus(world: World) -> None:
    packages = json.loads((engine(world) / ".llmb-receipt.json").read_text())["packages"]
    assert "torch-2.13.0+cpu" in packages
    assert not [name for name in packages if name.startswith(("nvidia_cu", "nvidia_nccl", "triton"))]


def test_a_second_run_reuses_everything_but_trains_again(world: World) -> None:
    receipt = (engine(world) / ".llmb-receipt.json").stat().st_ctime_ns
    done = world.run("--quickstart", "--install-path", str(world.install), env={"PIP_INDEX_URL": "http://localhost:1"})
    assert done.returncode == 0, done.stderr
    assert "the CPU engine is there already" in done.stderr
    assert (engine(world) / ".llmb-receipt.json").stat().st_ctime_ns == receipt
    assert len(list(world.install.glob("workloads/pretrain_llama3.1/experiments/*/*/run.json"))) == 2


def test_what_was_installed_works_from_anywhere(world: World) -> None:
    listed = subprocess.run(
        [str(world.install / "bin" / "llmb-run"), "list"], env=world.env, cwd="/", capture_output=True, text=True
    )
    assert listed.returncode == 0, listed.stderr
    assert "pretrain_llama3.1" in listed.stdout
    done = world.run("verify", program=[str(world.install / "bin" / "llmb-install")])
    assert done.returncode == 0, done.stderr
    assert "parts are right" in done.stdout
