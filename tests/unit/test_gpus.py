"""The table of GPU types, and which type a product is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from llmb_common.base import gpus


@pytest.mark.parametrize("gpu_type", [name for name, gpu in gpus.GPUS.items() if gpu.products])
def test_every_product_of_the_table_is_recognized(gpu_type: str) -> None:
    assert {gpus.type_of(product) for product in gpus.GPUS[gpu_type].products} == {gpu_type}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvidia_h100_80gb_hbm3", "h100"),  # as Slurm's AutoDetect=nvml calls it in a GRES
        ("H100", "h100"),
        ("h100-sxm5", "h100"),
        ("H100SXM", "h100"),
        ("nvidia_gb200", "gb200"),
        ("nvidia_b300_sxm6_ac", "b300"),
        ("NVIDIA H100", "h100"),
    ],
)
def test_other_spellings_of_a_known_gpu(name: str, kind: str) -> None:
    assert gpus.type_of(name) == kind


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e", "gh200"),
        *("NVIDIA H20", "NVIDIA H20-3e", "NVIDIA H800", "NVIDIA A100-SXM4-80GB"),
        *("NVIDIA H100 NVL", "NVIDIA H100 PCIe", "NVIDIA H200 NVL", "h100nvl", "nvidia_h100_pcie", "h200_nvl"),
        *("nvidia_h100_80gb_hbm3_1g.10gb", "NVIDIA B300 SXM6 AC MIG 1g.34gb"),
        "",
    ],
)
def test_relatives_with_a_similar_name_are_not_taken_for_a_known_gpu(name: str) -> None:
    assert gpus.type_of(name) is None


@pytest.mark.parametrize("gpu_type", gpus.GPUS)
def test_a_type_that_borrows_rows_borrows_them_of_its_own_generation(gpu_type: str) -> None:
    lender = gpus.GPUS[gpus.rows_of(gpu_type)]
    assert lender.rows_of is None
    assert lender.generation == gpus.GPUS[gpu_type].generation
    assert lender.memory_gb <= gpus.GPUS[gpu_type].memory_gb
    assert lender.per_node == gpus.GPUS[gpu_type].per_node


def test_peaks() -> None:
    known = {("h100", "bf16"): 989, ("b300", "nvfp4"): 13500, ("h200", "fp8"): 1979, ("b200", "fp8"): 4500}
    known |= {
        ("gb200", "bf16"): 2450,
        ("gb300", "nvfp4"): 14700,
        ("h100", "nvfp4"): None,
        ("vr200", "bf16"): None,
        ("cpu", "bf16"): None,
    }
    assert {key: gpus.peak_tflops(*key) for key in known} == known


def test_a_cpu_has_ranks_and_neither_a_generation_nor_peaks() -> None:
    assert (gpus.generation_of("cpu"), gpus.per_node("cpu"), gpus.peak_tflops("cpu", "bf16")) == (None, 8, None)
    assert gpus.gpu_types() == (*gpus.GPUS, "cpu")


def test_whose_rows_a_gpu_runs() -> None:
    assert [gpus.rows_of(name) for name in ("b300", "b200", "h200", "h100")] == ["b200", "b200", "h100", "h100"]
    assert gpus.row_types("h200") == ("h200", "h100", "any")
    assert gpus.row_types("cpu") == ("cpu", "cpu", "any")


def test_no_gpu_of_the_table_is_among_the_others() -> None:
    assert not gpus.OTHERS & set(gpus.gpu_types())


def test_the_table_needs_nothing_that_is_to_be_installed(tmp_path: Path) -> None:
    library = Path(gpus.__file__).parents[2]
    code = "import sys; sys.path.insert(0, sys.argv[1]); from llmb_common.base import gpus; print(*gpus.gpu_types())"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, library], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.split() == list(gpus.gpu_types()), done.stderr


# A GPU type is one entry in the table: with it, everything that depends on GPU types knows it.


ROOT = Path(__file__).resolve().parents[2]

# What a maintainer would write into gpus.json: racks of 8 nodes of 2, beside an ARM CPU, running GB200's rows.
NEW_ENTRY = """
from llmb_common.base import gpus
gpus.GPUS["x900"] = gpus.Gpu(
    generation="blackwell", per_node=2, nvlink_nodes=8, host="aarch64", memory_gb=900,
    peaks={"bf16": 9000, "fp8": 18000}, products=("NVIDIA X900 Super",), rows_of="gb200",
)
"""
# Everything else is imported after it, as it would be with the entry in the file.
QUESTIONS_TO_THE_HOUSE = """
import contextlib, io, json, os, sys
from pathlib import Path
from llmb_common.base.errors import did_you_mean
from llmb_common.planning.plan import make_plan
from llmb_common.recipes.loading import load_recipe
from tools.readme_tables import defaults
from llmb_common.submission.job_files import job_document
from llmb_common.submission.script import render_script
from llmb_common.planning.request.read import read_request
from llmb_common.planning.request.variables import VARIABLES
from llmb_common.runs.paths import dry_run_paths
from llmb_common.planning.site.cluster import load_cluster_config
from llmb_common.planning.site.machine import Machine
from llmb_install.answers import answers, questions
from llmb_install.answers.detect import Site, parse_sinfo
from llmb_run.main import main

install, root = Path(sys.argv[1]), Path(sys.argv[2])
llama = load_recipe(root / "llama3.1")
request = read_request({"LLMB_INSTALL": str(install), "JOB_TOTAL_GPUS": "128", "FP8_RECIPE": "mx"})
(install / "cluster_config.yaml").write_text("schema: 1\\ngpu_type: x900\\n")
plan = make_plan(llama, load_cluster_config(install), request, Machine(cluster_type="slurm"))
paths = dry_run_paths(plan.workload_folder, plan.experiment_name)
partitions = parse_sinfo("big*|up|1:00:00|4|gpu:nvidia_x900_super:2(S:0)")
site = Site(True, "25.05", partitions, (), (), "", ())
given = {"install_path": "/i", "cluster_type": "slurm", "account": "a", "gpu_partition": "big", "gpu_type": "x900",
         "workloads": "all"}
os.environ["LLMB_INSTALL"] = str(install)

def llmb_run(*words):
    written = io.BytesIO()
    with contextlib.redirect_stdout(io.TextIOWrapper(written)) as out:
        main(list(words))
        out.flush()
        return written.getvalue().decode()

print(json.dumps({
    "nodes": [plan.nodes, plan.gpus_per_node],
    "columns": [plan.tp, plan.pp, plan.offload_layers],
    "variables": {name: value.value for name, value in plan.env.items()},
    "notices": plan.preflight.warnings,
    "job": job_document(plan, paths),
    "segment": plan.scheduler.segment,
    "script": render_script(plan, paths),
    "listed": json.loads(llmb_run("list", "--gpu-type", "x900", "--json"))["data"],
    "help": llmb_run("single", "--help"),
    "variable": VARIABLES["GPU_TYPE"].in_table,
    "readme": "\\n".join(defaults(llama)),
    "choices": questions.BY_FIELD["gpu_type"].choices,
    "arch": answers.complete_answers(given, {llama.workload: llama}).arch,
    "suggested": questions.BY_FIELD["gpu_type"].suggested(site, {"cluster_type": "slurm", "gpu_partition": "big"}),
    "slip": did_you_mean("x90", gpus.gpu_types()),
}))
"""


def test_a_new_type_is_planned_trained_listed_documented_and_installed(tmp_path: Path) -> None:
    script = NEW_ENTRY + QUESTIONS_TO_THE_HOUSE
    done = subprocess.run([sys.executable, "-c", script, tmp_path, ROOT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    house = json.loads(done.stdout)
    assert (house["nodes"], house["columns"]) == ([64, 2], [2, 1, 80]), "GB200's row of 405b on 128 GPUs"
    assert house["variables"]["CUDA_DEVICE_MAX_CONNECTIONS"] == "32", "what a Blackwell needs"
    assert any("no configurations for x900: it runs those of gb200" in note for note in house["notices"])
    assert house["segment"] == 8
    assert "#SBATCH --segment=8" in house["script"]
    assert (house["job"]["gpu_type"], house["job"]["gpu_generation"]) == ("x900", "blackwell")
    llama = next(item for item in house["listed"] if item["workload"] == "pretrain_llama3.1")
    assert {c["gpu_type"] for c in llama["configurations"]} == {"gb200", "any"}
    assert "x900" in house["help"]
    assert "x900" in house["variable"].split()
    assert house["variable"] in house["readme"]
    assert "x900" in house["choices"]
    assert (house["arch"], house["suggested"], house["slip"]) == ("aarch64", "x900", " (did you mean 'x900'?)")
