"""Functions of Megatron-Bridge through mbridge/launch.sh, trained for real: from the request to the verdict's sentence.

One family on Slurm by default; ``LLMB_TEST_FAMILIES=all`` runs all nine on two ranks, on Slurm and without it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from support.functions import RECIPE

ROOT = Path(__file__).resolve().parents[2]
EVERYTHING = os.environ.get("LLMB_TEST_FAMILIES") == "all"
FAMILIES = [model.size for model in RECIPE.listed_models] if EVERYTHING else ["deepseek_v3-smoke"]
EXECUTORS = ["slurm", "local"] if EVERYTHING else ["slurm"]
SITES = {
    "slurm": "cluster_type: slurm\nslurm: {runtime: none, gpu_partition: batch}\n",
    "local": "cluster_type: local\n",
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("size", FAMILIES)
def test_a_family_trains_from_the_request_to_the_verdict(slurm, functions_python, tmp_path, size, executor):
    site = f'schema: 1\ngpu_type: cpu\n{SITES[executor]}engine: {{releases: {{"0.6": "{functions_python}"}}}}\n'
    (tmp_path / "cluster_config.yaml").write_text(site)
    common = {"LLMB_PYTHON": sys.executable, "LLMB_INSTALL": str(tmp_path)}
    ranks = {"JOB_TOTAL_GPUS": "2", "GPUS_PER_NODE": "1"} if EVERYTHING else {"JOB_TOTAL_GPUS": "1"}

    def llmb_run(*words: str) -> Any:
        command = [sys.executable, "-m", "llmb_run", *words, "--json"]
        return json.loads(slurm.run(command, env=common, check=False, timeout=600).stdout)["data"]

    job = {**common, **ranks, "MODEL_SIZE": size, "MAX_STEPS": "5"}
    done = slurm.run(["./launch.sh"], cwd=ROOT / "mbridge", env=job, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    llmb_run("wait")
    (run,) = llmb_run("jobs")["runs"]
    logs = "\n".join(path.read_text()[-3000:] for path in Path(run["folder"]).glob("*/*.out"))
    assert run["state"] == "COMPLETED", logs
    (result,) = llmb_run("results", "--window", "2-5")["runs"]
    assert (result["status"], result["model_size"], result["dtype"]) == ("Success", size, "bf16")
    assert result["step_seconds"] > 0
    assert result["verdict"] == "not judged"
    function = llmb_run("show", run["run_id"])["record"]["plan"]["function"]
    script = llmb_run("show", run["run_id"], "--script")["script"]
    assert re.search(rf"(?m)^# {function['name']} .*\b0\.6\.2$", script)
