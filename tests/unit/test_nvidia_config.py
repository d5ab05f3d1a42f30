"""``llmb-config_<job id>.yaml``: the sections and fields of NVIDIA's own, and beside every run that has a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from llmb_common.runs.nvidia_config import config_name, config_text
from llmb_common.runs.record import RunRecord, load_record, update_record
from llmb_common.submission import submit
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
