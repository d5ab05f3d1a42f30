"""``llmb-config_<job id>.yaml``: the sections and fields of NVIDIA's own, and beside every run that has a job."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmb_common.runs.nvidia_config import config_name, config_text
from llmb_common.runs.record import RunRecord, load_record, update_record
from llmb_common.submission.single import submit
from llmb_common.timing.log_files import find_runs
from llmb_common.timing.runs import RunTiming, analyse
from llmb_common.timing.statistics import Window
from support.iteration_logs import mbridge_line, nemo_line, step_time
from support.run_site import RECIPE, RunSite
from support.runs import make_run

# dgxc-benchmarking v26.06.01, cli/llmb-run/src/llmb_run/run_config.py:340-380
FIELDS = {
    "job_info": ["job_id", "launcher_type", "launch_time", "experiment_id"],
    "workload_info": ["framework", "gsw_version", "fw_version", "workload_type", "synthetic_dataset"],
    "model_info": ["model_name", "model_size", "dtype", "scale", "gpu_type"],
    "cluster_info": [
        *("cluster_name", "gpus_per_node", "llmb_install", "llmb_repo"),
        *("slurm_account", "slurm_gpu_partition", "slurm_cpu_partition"),
    ],
    "container_info": ["images"],
    "job_config": ["profile_enabled", "proxy", "strong_scaling", "env_overrides", "model_overrides"],
}

VARIABLES = {
    "GPU_TYPE": "h100",
    "MODEL_SIZE": "405b-proxy",
    "CONFIG_VARIANT": "nemo2",
    "DTYPE": "fp8",
    "JOB_TOTAL_GPUS": "128",
    "SBATCH_ACCOUNT": "bench",
    "SBATCH_PARTITION": "batch",
    "GBS": "256",
    "RUN_CONF_IMAGE": "nvcr.io#nvidia/nemo:26.02.01",
}


def described(record: RunRecord) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = yaml.safe_load(
        config_text(str(record.job_id), record.created, record.plan, record.manifest)
    )
    return found


def config_file(record: RunRecord) -> Path:
    return record.paths.folder / config_name(str(record.job_id))


def test_it_has_the_sections_and_fields_of_the_original_in_its_order(tmp_path: Path) -> None:
    found = described(make_run(tmp_path, variables=VARIABLES))
    assert {section: list(fields) for section, fields in found.items()} == FIELDS
    assert list(found) == list(FIELDS)


def test_what_it_says_of_a_job(tmp_path: Path) -> None:
    record = make_run(tmp_path, variables=VARIABLES, job_id="4711")
    record = replace(record, manifest={**record.manifest, "environment_overrides": {"NCCL_ALGO": "Ring"}})
    found = described(record)
    assert found["job_info"]["job_id"] == "4711"
    assert found["workload_info"]["fw_version"] == "26.02.01"
    assert found["model_info"] == {
        "model_name": "llama3.1",
        "model_size": "405b-proxy",
        "dtype": "fp8",
        "scale": 128,
        "gpu_type": "h100",
    }
    cluster = found["cluster_info"]
    assert (cluster["gpus_per_node"], cluster["slurm_account"], cluster["slurm_gpu_partition"]) == (8, "bench", "batch")
    assert found["container_info"] == {"images": ["nvcr.io#nvidia/nemo:26.02.01"]}
    assert found["job_config"] == {
        "profile_enabled": False,
        "proxy": True,
        "strong_scaling": False,
        "env_overrides": {"NCCL_ALGO": "Ring"},
        "model_overrides": {"gbs": 256},
    }


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("false", False)])
def test_strong_scaling_is_seen_in_the_batch(tmp_path: Path, value: str, expected: bool) -> None:
    variables = {"GPU_TYPE": "gb200", "MODEL_SIZE": "405b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "128"}
    record = make_run(tmp_path, variables={**variables, "STRONG_SCALING": value})
    assert described(record)["job_config"]["strong_scaling"] is expected


def test_the_image_is_what_the_installer_imported(tmp_path: Path) -> None:
    record = make_run(tmp_path)
    receipt = '{"source": "nvcr.io#nvidia/nemo:26.02.01", "sha256": "00"}'
    record = replace(record, manifest={**record.manifest, "image": {"path": "/images/site.sqsh", "receipt": receipt}})
    assert described(record)["container_info"] == {"images": ["nvcr.io#nvidia/nemo:26.02.01"]}


def test_it_appears_with_the_job_id_and_a_full_disk_does_not_matter(tmp_path, monkeypatch):
    record = make_run(tmp_path, job_id=None, state="SUBMITTING")
    folder = record.paths.folder
    assert not list(folder.glob("llmb-config_*"))
    with_job = update_record(folder, lambda found: replace(found, job_id="12"))
    assert yaml.safe_load(config_file(with_job).read_text())["job_info"]["job_id"] == "12"
    config_file(with_job).unlink()
    (folder / "llmb-config_13.yaml").mkdir()
    update_record(folder, lambda found: replace(found, job_id="13"))
    assert load_record(folder).job_id == "13"


def test_a_submitted_run_has_it(tmp_path: Path, fake: object) -> None:
    record = submit(RunSite(tmp_path, "slurm").plan(), RECIPE)
    assert config_file(record).is_file()


# Our figures are those of NVIDIA's own parser, on a real log and on made ones.
# ``tests/data/logs/nvidia_parser.json`` has what ``pretrain_log_parser.parse_pretrain_log`` of dgxc-benchmarking
# 26.06.01 (``cli/llmb-run/src/llmb_run``) returned for these logs; none of its code is here. To ask it again, write
# the logs of ``LOGS`` to files and call it with each file, framework and window.


DATA = Path(__file__).resolve().parents[1] / "data" / "logs"
SAID: list[dict[str, Any]] = json.loads((DATA / "nvidia_parser.json").read_text())["results"]


def bridge(last: int = 50, not_finite: int = 0) -> str:
    """Both ranks' prints of a run whose steps and TFLOPS scatter."""
    noise = random.Random(7)
    lines = []
    for index in range(1, last + 1):
        seconds = round(5.74 * (1 + noise.gauss(0, 0.02)), 4)
        tflops = round(10338 / seconds, 1)
        lines.append(step_time(seconds, tflops))
        grad_norm = "nan" if index == not_finite else "1.019"
        lines.append(mbridge_line(index, 50, milliseconds=f"{1000 * seconds:.1f}", tflops=tflops, grad_norm=grad_norm))
    return "".join(lines)


def nemo() -> str:
    noise = random.Random(8)
    return "".join(
        nemo_line(index, seconds=round(2.69 * (1 + noise.gauss(0, 0.02)), 3), tflops=round(noise.gauss(528, 4), 2))
        for index in range(50)
    )


LOGS: dict[str, Callable[[], str]] = {
    "real, 2 ranks on CPUs": lambda: (DATA / "mbridge_2ranks_cpu.out").read_text(),
    "made, Megatron-Bridge": bridge,
    "made, cut at 47": lambda: bridge(47),
    "made, NaN at 20": lambda: bridge(not_finite=20),
    "made, NeMo 2": nemo,
}


def ours(name: str, window: list[int], folder: Path) -> RunTiming:
    log = folder / "log-run.out"
    log.write_text(LOGS[name]())
    (files,) = find_runs(folder)
    return analyse(files, Window(*window))


@pytest.mark.parametrize("said", SAID, ids=lambda said: f"{said['log']}, {said['window']}")
def test_both_parsers_agree(said: dict[str, Any], tmp_path: Path) -> None:
    found = ours(said["log"], said["window"], tmp_path)
    assert (found.status.state == "Success") is (said["status"] == "success")
    if said["status"] != "success":
        return
    assert found.seconds
    assert found.tflops
    assert (found.seconds.count, found.tflops.count) == (said["time_sample_count"], said["tflops_sample_count"])
    assert found.seconds.mean == pytest.approx(said["time_mean_seconds"], rel=1e-12)
    assert found.seconds.std == pytest.approx(said["time_std_seconds"], rel=1e-9)
    assert found.tflops.mean == pytest.approx(said["tflops_per_gpu_mean"], rel=1e-12)
    assert found.tflops.std == pytest.approx(said["tflops_per_gpu_std"], rel=1e-9)


def test_the_answers_cover_both_engines_and_all_logs() -> None:
    assert {said["log"] for said in SAID} == set(LOGS)
    assert {said["status"] for said in SAID} == {"success", "incomplete", "invalid_grad_norm"}
