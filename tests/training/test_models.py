"""The models are the benchmarked ones: exact parameter counts, and our own layers compute what they claim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from training_jobs import ARCHITECTURES, Engine, make_job


def _write(folder: Path, name: str, job: dict[str, Any]) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def whole_models(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Parameters of each size, on one rank."""
    folder = tmp_path_factory.mktemp("sizes")
    files = [_write(folder, name, make_job(name, device="cuda", gpu_type="gb200")) for name in ARCHITECTURES["sizes"]]
    return {Path(line["file"]).stem: line["total"] for line in engine.json_lines("count_parameters.py", *files)}


@pytest.mark.parametrize("name", ARCHITECTURES["sizes"])
def test_parameter_counts(whole_models: dict[str, int], name: str) -> None:
    assert round(whole_models[name] / 1e9, 4) == ARCHITECTURES["sizes"][name]["parameters"]


def test_the_ranks_of_a_1024_gpu_job_hold_the_whole_model(engine, tmp_path, whole_models):
    layout = {"tp": 8, "pp": 8, "vp": 8, "cp": 2}
    job = make_job(
        "405b", device="cuda", gpu_type="h100", world_size=1024, parallelism=layout, batch={"mbs": 1, "gbs": 512}
    )
    file = _write(tmp_path, "405b", job)
    stages = [
        engine.json_lines("count_parameters.py", "--rank", str(stage * 128), file)[0]["total"] for stage in (0, 1, 7)
    ]
    architecture = job["architecture"]
    embedding = architecture["vocabulary"] * architecture["hidden"] // 8
    # 126 layers in 128 places: the first stage gives one to the embedding, the last one to the loss.
    layer = (stages[1]) // 16
    assert stages[0] == 15 * layer + embedding
    assert stages[2] == 15 * layer + embedding + architecture["hidden"]
    # Norms are on every rank of a tensor-parallel group, matrices are divided among them.
    norms = 2 * architecture["hidden"]
    total = 126 * (8 * (layer - norms) + norms) + 8 * 2 * embedding + architecture["hidden"]
    assert total == whole_models["405b"]


def test_layers_of_our_own_compute_what_they_say(engine: Engine) -> None:
    results = {line["check"]: line["difference"] for line in engine.json_lines("check_layers.py")}
    assert len(results) == 5
    assert all(difference < 1e-5 for difference in results.values()), results
