"""./installer.py --quickstart for real: environments, training, the table. The longest test of the installer."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from install_world import CLONE, World, make_world

from support import engine


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A folder whose name needs quoting, and no Slurm, GPU, container or token."""
    return make_world(tmp_path_factory.mktemp("quick start"), Path("/nowhere"))


@dataclass(frozen=True)
class Quickstart:
    install: Path
    stdout: str
    stderr: str

    @property
    def receipt(self) -> Path:
        return self.install / "venvs" / "engine-cpu" / ".llmb-receipt.json"

    def runs(self) -> list[Path]:
        """Folders of its training runs, the oldest first."""
        records = self.install.glob("workloads/pretrain_llama3.1/experiments/*/*/run.json")
        return sorted((record.parent for record in records), key=lambda folder: folder.name)


@pytest.fixture(scope="module")
def quickstart(world: World) -> Quickstart:
    """From nothing to the table: the one by which ``tests/run`` makes the training engine, if it does.

    Else one in ``world``, where another one may have been killed.
    """
    engine.wait_for(engine.SECOND)  # making it changes the installation of the first one
    made = engine.output()
    if made is not None:
        return Quickstart(CLONE / ".test" / "install", *made)
    # A leftover of another day must not steer what the quickstart shows.
    done = world.run("--quickstart", "--install-path", str(world.install), env={"TP": "8", "STAGE_PATH": "/old"})
    assert done.returncode == 0, done.stderr
    return Quickstart(world.install, done.stdout, done.stderr)


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
    engine = world.install / "venvs" / "engine-cpu"
    while any(str(engine) in line for line in command_lines()):
        assert time.monotonic() < deadline, "pip goes on without its installer"
        time.sleep(0.1)
    assert not engine.exists()


def trains_in(run: Path) -> bool:
    """Whether a rank of the run is there."""
    return any(str(run) in line and "llmb_train" in line for line in command_lines())


def command_lines() -> list[str]:
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # noqa: PERF203  (processes come and go)
            continue
    return lines


def test_it_ends_in_a_table_of_a_real_run(quickstart: Quickstart) -> None:
    shown = quickstart.stdout
    assert shown.startswith("Elapsed Time (ms) and TFLOPS/GPU Analysis (iterations 35-44)\n"), quickstart.stderr
    assert re.search(r"^pretrain_llama3.1_smoke_bf16_gpus1_tp1\S* +Success +[0-9.]+", shown, re.MULTILINE)
    (log,) = quickstart.runs()[-1].glob("*/log-*.out")
    steps = re.findall(r"iteration +(\d+)/ +50 .*lm loss: ([0-9.E+-]+)", log.read_text())
    assert [int(step) for step, _ in steps] == list(range(1, 51))
    assert float(steps[-1][1]) < float(steps[0][1]) - 1, "it learned nothing"


def test_the_engine_is_for_cpus(quickstart: Quickstart) -> None:
    packages = json.loads(quickstart.receipt.read_text())["packages"]
    assert "torch-2.13.0+cpu" in packages
    assert not [name for name in packages if name.startswith(("nvidia_cu", "nvidia_nccl", "triton"))]


def test_a_second_run_reuses_everything_but_trains_again(world: World, quickstart: Quickstart) -> None:
    """Interrupted as soon as its ranks are there: what they do then the first run has shown."""
    made, runs = quickstart.receipt.stat().st_ctime_ns, quickstart.runs()
    argv = [sys.executable, str(CLONE / "installer.py"), "--quickstart", "--install-path", str(quickstart.install)]
    env = world.env | {"PIP_INDEX_URL": "http://localhost:1"}
    with subprocess.Popen(argv, env=env, cwd=world.root, stderr=subprocess.PIPE, text=True) as again:
        deadline = time.monotonic() + 1500
        while quickstart.runs() == runs or not trains_in(quickstart.runs()[-1]):
            assert again.poll() is None, again.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        again.send_signal(signal.SIGINT)
        _, stderr = again.communicate()
    assert again.returncode == 130, stderr
    assert quickstart.receipt.stat().st_ctime_ns == made
    assert len(quickstart.runs()) == len(runs) + 1
    assert not trains_in(quickstart.runs()[-1]), "it trains on"


def test_the_tool_is_small_and_reports_without_what_makes_its_charts(world: World, quickstart: Quickstart) -> None:
    tool = quickstart.install / "venvs" / "llmb"
    assert sum(path.lstat().st_blocks for path in tool.resolve().rglob("*")) * 512 < 90_000_000
    page = world.root / "report.html"
    argv = [str(quickstart.install / "bin" / "llmb-run"), "report", "--html", str(page)]
    subprocess.run(argv, env=world.env, cwd="/", check=False)
    assert "window.vegaEmbed=" in page.read_text().replace(" ", "")


def test_what_was_installed_works_from_anywhere(world: World, quickstart: Quickstart) -> None:
    commands = quickstart.install / "bin"
    done = subprocess.run([str(commands / "llmb-run"), "list"], env=world.env, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pretrain_llama3.1" in done.stdout
    done = world.run("verify", "--json", program=[str(commands / "llmb-install")])
    assert done.returncode == 0, done.stderr
    parts = json.loads(done.stdout)["data"]["parts"]
    assert (len(parts) > 1, any(parts.values())) == (True, False)
