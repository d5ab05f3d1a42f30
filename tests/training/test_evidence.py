"""A real training run leaves its evidence, and none of a framework that would train something else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from training_jobs import Engine, make_job

from llmb_common.timing.iterations import Iteration, read_log

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def launched(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The smoke size through ``launch.sh`` on two ranks of this machine: the run's folder and the installation."""
    install = tmp_path_factory.mktemp("install")
    (install / "cluster_config.yaml").write_text(f'schema: 1\nengine: {{python: "{engine_python}"}}\n')
    given = {"LLMB_INSTALL": str(install), "CLUSTER_TYPE": "local", "MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "2"}
    done = subprocess.run(
        ["./launch.sh"],
        cwd=ROOT / "llama3.1",
        env={"PATH": os.environ["PATH"], "LLMB_PYTHON": sys.executable, **given, "MAX_STEPS": "7"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return Path(done.stdout.split(": ", 1)[1].strip()).parents[1], install


def test_a_run_leaves_an_account_of_its_node_and_no_finding(launched: tuple[Path, Path]) -> None:
    run, install = launched
    (file,) = (run / "nodes").iterdir()  # one writer, and nothing half written
    content = json.loads(file.read_text())
    assert content["rank"] == 0
    assert content["machine"]["kernel"] == os.uname().release
    assert {"before", "load", "after"} <= content.keys()
    shown = llmb_run(install, "show", "--json")
    assert shown["evidence"]["nodes"] == 1
    assert shown["evidence"]["findings"] == []
    assert llmb_run(install, "results", "--json", status=1)["runs"][0]["findings"] == []  # seven steps are no result
    record = json.loads((run / "run.json").read_text())
    assert record["manifest"]["job"]["evidence"] == shown["evidence"]


def test_the_resolved_configuration_is_beside_the_record(launched: tuple[Path, Path]) -> None:
    run, _ = launched
    resolved = (run / "config.yaml").read_text()
    plan = json.loads((run / "job.json").read_text())
    assert f"global_batch_size: {plan['batch']['gbs']}\n" in resolved
    assert "_target_: megatron.bridge.training.config.ConfigContainer\n" in resolved


def test_show_says_where_it_ran(launched: tuple[Path, Path]) -> None:
    _, install = launched
    done = subprocess.run(command(install, "show"), capture_output=True, text=True, check=True, timeout=120)
    assert "ran on     1 node, " in done.stdout
    assert "findings" not in done.stdout


def command(install: Path, *arguments: str) -> list[str]:
    return ["env", f"LLMB_INSTALL={install}", sys.executable, "-m", "llmb_run.main", *arguments]


def llmb_run(install: Path, *arguments: str, status: int = 0) -> dict[str, Any]:
    done = subprocess.run(command(install, *arguments), capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    data: dict[str, Any] = json.loads(done.stdout)["data"]
    return data


def test_a_framework_that_resolves_something_else_ends_the_job(engine: Engine, tmp_path: Path) -> None:
    """The engine gets another batch and sequence than job.json says: what a changed release would do."""
    job = make_job(steps={"train": 3})
    (tmp_path / "job.json").write_text(json.dumps({**job, "output_dir": str(tmp_path / "output")}))
    status, _, log = engine.cpu.run(
        [str(ROOT / "tests" / "training" / "train_otherwise.py"), str(tmp_path / "job.json")], tmp_path, 1
    )
    assert status == 3, log[-4000:]
    assert "global batch size  8        16" in log
    assert "seed               1234     99" in log
    assert "iteration        1/" not in log


def test_without_contradiction_the_same_job_trains(engine: Engine, tmp_path: Path) -> None:
    run = engine.train(tmp_path, make_job(steps={"train": 3}))
    assert sorted(run.steps) == [1, 2, 3]
    assert (tmp_path / "config.yaml").is_file()


def test_a_folder_that_takes_no_evidence_trains_all_the_same(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("a file")
    (tmp_path / "config.yaml").mkdir()
    run = engine.train(tmp_path, make_job(steps={"train": 2}))
    assert sorted(run.steps) == [1, 2]


def iterations_with_energy(engine: Engine, folder: Path, kind: str) -> tuple[Iteration, ...]:
    job = make_job(steps={"train": 4}, world_size=2)
    (folder / "job.json").write_text(json.dumps({**job, "output_dir": str(folder / "output")}))
    script = ROOT / "tests" / "training" / "train_with_energy.py"
    status, _, log = engine.cpu.run([str(script), kind, str(folder / "job.json")], folder, 2)
    assert status == 0, log[-4000:]
    (folder / "log.out").write_text(log)
    with FileIO(folder / "log.out") as file:
        return read_log(file).iterations


def test_energy_of_each_step_as_the_framework_prints_it(engine: Engine, tmp_path: Path) -> None:
    """Each look at the counter adds 5 J, on both ranks, and each step looks once."""
    steps = iterations_with_energy(engine, tmp_path, "counting")
    assert [step.joules for step in steps] == [5.0] * 4
    for step in steps:
        assert step.watts == pytest.approx(5.0 / step.seconds, abs=0.06)


def test_a_container_without_nvml_trains_all_the_same(engine: Engine, tmp_path: Path) -> None:
    """Megatron's own monitor would end the run in nvmlInit."""
    steps = iterations_with_energy(engine, tmp_path, "broken")
    assert [(step.index, step.joules) for step in steps] == [(1, None), (2, None), (3, None), (4, None)]
