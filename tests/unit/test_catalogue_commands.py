"""Functions of the catalogue in every command of llmb-run, as a user calls them."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from click import Context

from llmb_run import options
from llmb_run.actions.workloads import _next_step
from llmb_run.commands.start import single_command
from llmb_train import catalogue, perf_recipes
from support.cli import Cli, Done
from support.functions import RECIPE, ROOT, UNCHECKED
from support.runs import make_run, steady_log
from support.texts import Texts

DEEPSEEK = {"MODEL_SIZE": "deepseek_v3", "GPU_TYPE": "gb300", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "256"}
"""Published with nemo:26.08, which is what its jobs run: 10.422 s. With nemo:26.06: 10.34 s."""

GPT_OSS = {"MODEL_SIZE": "gpt_oss_120b", "GPU_TYPE": "gb300", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "64"}
"""Published with nemo:26.04.01: 4.267 s, with another count of FLOPs."""


def experiments(done: Done) -> list[str]:
    """What a dry run with ``--json`` would start, without layouts."""
    return sorted(re.sub(r"_tp.*", "", job["plan"]["experiment_name"]) for job in done.data["jobs"])


# What can be asked for


@pytest.mark.parametrize(
    ("recipe", "names"),
    [
        ({}, ["pretrain_llama3_8b_fp8_mx_gpus8", "pretrain_llama3_8b_fp8_cs_gpus32"]),
        ({"FP8_RECIPE": "cs"}, ["pretrain_llama3_8b_fp8_cs_gpus8", "pretrain_llama3_8b_fp8_cs_gpus32"]),
        ({"FP8_RECIPE": "mx"}, ["pretrain_llama3_8b_fp8_mx_gpus8"]),
    ],
)
def test_all_scales_are_those_of_the_fp8_scaling(cli: Cli, recipe: dict[str, str], names: list[str]) -> None:
    words = ("submit", "-w", "mbridge", "-s", "llama3_8b", "--gpu-type", "gb200", "--dtype", "fp8", "--scale", "all")
    done = cli(*words, "--dry-run", "--json", CLUSTER_TYPE="slurm", **recipe)
    assert (done.status, experiments(done)) == (0, sorted(names))
    said = "mbridge llama3_8b fp8 on gb200 has no mx on this number of GPUs: planned with FP8_RECIPE=cs" in done.err
    assert said == (recipe == {})


def test_a_combination_that_no_scale_has_is_not_left_out_in_silence(cli: Cli, texts: Texts) -> None:
    words = ("submit", "-w", "mbridge", "-s", "gpt_oss_120b,kimi_k2", "--gpu-type", "gb300", "--dtype", "bf16,nvfp4")
    done = cli(*words, "--scale", "all", "--dry-run", CLUSTER_TYPE="slurm")
    assert done.status == 2
    texts(done.err, about="gpt_oss_120b nvfp4")
    done = cli(*words, "--scale", "all", "--dry-run", "--json", "--skip-unsupported", CLUSTER_TYPE="slurm")
    assert (done.status, len(experiments(done))) == (0, 3)
    texts(done.err, about="gpt_oss_120b nvfp4")


@pytest.mark.parametrize(
    ("size", "gpu_type"),
    [
        ("deepseek_v3", "gb300"),
        ("glm51", "gb200"),
        ("nemotronh_56b", "gb200"),
        ("wan_14b", None),
        ("gpt_oss_20b", None),
    ],
)
def test_the_command_that_list_suggests_can_be_planned(cli: Cli, size: str, gpu_type: str | None) -> None:
    known = cli("list", "-w", "mbridge", "-s", size, "--json", *(["--gpu-type", gpu_type] if gpu_type else [])).data
    suggested = _next_step(known, gpu_type, None).removeprefix("next: llmb-run ").split()
    done = cli(*suggested, CLUSTER_TYPE="slurm")
    assert done.status == 0, done.err


def test_list_suggests_nothing_that_the_image_lacks(cli: Cli) -> None:
    known = cli("list", "-w", "mbridge", "-s", "lightning", "--gpu-type", "gb300", "--json").data
    assert known[0]["configurations"]
    assert _next_step(known, "gb300", None) == ""


def test_list_names_the_only_variant_of_a_model(cli: Cli) -> None:
    assert "sft" in cli("list", "-w", "mbridge", "-s", "glm51", "--gpu-type", "gb200").out


@pytest.mark.parametrize("workload", ["mbridge", "pretrain_mbridge"])
def test_the_shell_completes_models_and_variants_of_the_workload_that_is_named(cli: Cli, workload: str) -> None:
    context, parameter = Context(single_command, info_name="single"), single_command.params[0]
    context.params["workload"] = workload
    assert options.complete_sizes(context, parameter, "k") == ["kimi_k2-smoke", "kimi_k2"]
    assert options.complete_sizes(context, parameter, "405b") == []
    assert options.complete_variants(context, parameter, "par") == ["partial_cg_dev"]
    (option,) = (found for found in single_command.params if found.name == "variant")
    assert [item.value for item in option.shell_complete(context, "l")] == ["large_scale"]


# A published row, as a user checks it


def test_a_dry_run_shows_what_is_published_and_with_which_software(cli: Cli) -> None:
    words = ("single", "-w", "mbridge", "-s", "deepseek_v3", "--gpu-type", "gb300", "--dtype", "fp8", "--scale", "256")
    done = cli(*words, "--dry-run", CLUSTER_TYPE="slurm")
    assert "# published: 10.422 s a step (Megatron-Bridge, nemo:26.08)\n" in done.out
    (job,) = cli(*words, "--dry-run", "--json", CLUSTER_TYPE="slurm").data["jobs"]
    preflight = job["plan"]["preflight"]
    assert preflight["reference_step_seconds"] == 10.422
    assert preflight["reference_software"] == "Megatron-Bridge, nemo:26.08"
    assert "# published" not in cli(*words, "--set", "ep=64", "--dry-run", CLUSTER_TYPE="slurm").out


def checked(cli: Cli, performance: float, runs: int, image: str = "") -> dict[str, Any]:
    """The group of that many runs of DeepSeek-V3 at ``performance`` of what is published for nemo:26.08."""
    chosen = DEEPSEEK | ({"RUN_CONF_IMAGE": image} | UNCHECKED if image else {})
    for _ in range(runs):
        make_run(cli.install, "mbridge", log=steady_log(10422 / performance, tflops=None), variables=chosen)
    (group,) = cli("results", "--group", "--json").data["groups"]
    return dict(group)


@pytest.mark.parametrize(
    ("performance", "runs", "verdict"), [(1.00, 1, "open"), (1.03, 3, "pass"), (0.93, 1, "open"), (0.88, 6, "fail")]
)
def test_runs_are_held_against_the_row_of_their_own_container(cli, performance, runs, verdict, texts: Texts):
    group = checked(cli, performance, runs)
    assert group["verdict"] == verdict
    texts(group["verdict_text"])
    assert (group["software"], group["reference"]["software"]) == ("nemo:26.08", "Megatron-Bridge, nemo:26.08")
    assert group["reference"]["same_software"]


@pytest.mark.parametrize(("container", "reference"), [("26.06", "26.06"), ("26.10", "26.08")])
def test_a_container_without_a_row_of_its_own_gets_an_indication(cli, container, reference, texts: Texts):
    group = checked(cli, 1.00, 3, f"nvcr.io#nvidia/nemo:{container}")
    assert group["reference"]["software"] == f"Megatron-Bridge, nemo:{reference}"
    texts(group["verdict_text"])


def test_a_row_whose_tflops_bridge_counts_otherwise_says_so(cli: Cli, texts: Texts) -> None:
    make_run(cli.install, "mbridge", log=steady_log(4267, tflops=None), variables=GPT_OSS)
    texts(cli("results", "--notes", COLUMNS="1000").out, about="corrected here")
    (run,) = cli("results", "--json").data["runs"]
    assert run["published"]["tflops_per_gpu"] == 626.5
    assert run["tflops_per_gpu"] == pytest.approx(626.5, rel=0.001)
    (line,) = csv.DictReader(io.StringIO(cli("results", "--format", "csv").out))
    assert line["published_tflops_per_gpu"] == "626.5"


def test_show_names_the_function_and_what_the_verdict_is_held_against(cli: Cli, texts: Texts) -> None:
    run = make_run(cli.install, "mbridge", log=steady_log(4267, tflops=None), variables=GPT_OSS).paths.run_id
    shown = cli("show", run).out
    texts(shown, about="config of Megatron-Bridge")
    texts(shown, about="reference")


# Many kinds of jobs side by side

TWINS = [
    {"FP8_RECIPE": "cs", "JOB_TOTAL_GPUS": "64"},
    {"FP8_RECIPE": "mx", "JOB_TOTAL_GPUS": "64"},
    {"FP8_RECIPE": "cs", "JOB_TOTAL_GPUS": "32"},
    {"FP8_RECIPE": "cs", "JOB_TOTAL_GPUS": "32", "CONFIG_VARIANT": "sft"},
]
"""Jobs that differ in nothing but the FP8 scaling, or the variant."""


def test_jobs_of_another_scaling_or_variant_have_another_title(cli: Cli, texts: Texts) -> None:
    for chosen in TWINS:
        common = {"MODEL_SIZE": "llama3_70b", "GPU_TYPE": "gb200", "DTYPE": "fp8"}
        make_run(cli.install, "mbridge", log=steady_log(8000, tflops=None), variables=common | chosen)
    wanted = [
        *(f"mbridge llama3_70b pretrain fp8 ({scaling}) on 64 gb200" for scaling in ("cs", "mx")),
        *(f"mbridge llama3_70b {variant} fp8 (cs) on 32 gb200" for variant in ("pretrain", "sft")),
    ]
    assert sorted(group["title"] for group in cli("results", "--group", "--json").data["groups"]) == sorted(wanted)
    written = cli.install / "report.xml"
    assert cli("report", "--junit", written).status == 0
    assert sorted(case.get("name", "") for case in ElementTree.parse(written).iter("testcase")) == sorted(wanted)
    (line,) = cli("results", "--scaling", "--json").data["scaling"]
    texts(line["title"])


ADAPTED = {"CONFIG_VARIANT": "peft", "LOAD_CHECKPOINT_PATH": "/checkpoints/llama3_70b"}
UNKNOWN = [
    {"MODEL_SIZE": "wan_14b", "GPU_TYPE": "gb200", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "16"},
    {"MODEL_SIZE": "qwen35_vl_35b_a3b", "GPU_TYPE": "gb200", "DTYPE": "fp8", "FP8_RECIPE": "cs", "JOB_TOTAL_GPUS": "8"},
    {"MODEL_SIZE": "llama3_8b", "GPU_TYPE": "vr200", "DTYPE": "nvfp4", "JOB_TOTAL_GPUS": "8"},
    {"MODEL_SIZE": "llama3_70b", "GPU_TYPE": "h100", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "8", **ADAPTED},
]
"""Without a count of FLOPs, of parameters; without a peak; another task than pretraining. None has been published."""


def test_what_is_not_known_of_a_model_is_left_empty_everywhere(cli: Cli) -> None:
    runs = [make_run(cli.install, "mbridge", log=steady_log(9000, tflops=None), variables=chosen) for chosen in UNKNOWN]
    ids = [run.paths.run_id for run in runs]
    lines = {line["model_size"]: line for line in csv.DictReader(io.StringIO(cli("results", "--format", "csv").out))}
    assert (lines["wan_14b"]["tflops_per_gpu"], lines["wan_14b"]["mfu_percent"]) == ("", "")
    assert lines["llama3_8b"]["mfu_percent"] == ""
    assert (lines["llama3_70b"]["variant"], lines["qwen35_vl_35b_a3b"]["fp8_recipe"]) == ("peft", "cs")
    for command in (
        ["results"],
        ["results", "--history"],
        ["show", ids[0]],
        ["compare", ids[0], ids[2]],
        ["baseline", "set", *ids],
        ["baseline", "list"],
        ["archive", *ids, "-o", cli.install / "runs.tar.gz"],
        ["report", "--html", cli.install / "r.html", "--markdown", cli.install / "r.md"],
    ):
        done = cli(*command)
        assert (done.status, re.search(r"\bNone\b", done.out)) == (0, None), (command, done.out, done.err)
    assert "| mbridge wan\\_14b pretrain bf16 on 16 gb200 |" in (cli.install / "r.md").read_text()
    assert {item["verdict"] for item in cli("results", "--json").data["runs"]} == {"no reference"}


# From jobs to their acceptance, with jobs that are over at once

TASKS = """\
pretrain_mbridge_kimi_k2-smoke:
(bf16, [1, 2], 2)
pretrain_mbridge_gpt_oss_120b-smoke:
(bf16, 1, 1)
"""

SUITE = """\
name: families
prescreen:
  - {workload: pretrain_mbridge, size: smoke, scale: 1, max_steps: 5}
defaults: {dtype: bf16, scale: 1, reference: {seconds: 0.1, source: a contract}}
tests:
  - {workload: pretrain_mbridge, size: [deepseek_v3-smoke, qwen3_30b_a3b-smoke]}
"""


def test_task_files_retries_and_groups_take_functions(site: Cli, tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text(TASKS)
    assert site("bulk", tmp_path / "tasks").status == 0
    runs = site("jobs", "--json").data["runs"]
    assert sorted((run["model_size"], run["gpus"], run["state"]) for run in runs) == [
        ("gpt_oss_120b-smoke", 1, "COMPLETED"),
        *[("kimi_k2-smoke", gpus, "COMPLETED") for gpus in (1, 1, 2, 2)],
    ]
    (chosen,) = [run["run_id"] for run in runs if run["model_size"] == "gpt_oss_120b-smoke"]
    again = site("retry", chosen)
    assert again.status == 0, again.err
    groups = site("results", "--group", "--json").data["groups"]
    assert {(group["title"], len(group["run_ids"])) for group in groups} == {
        ("mbridge kimi_k2-smoke pretrain bf16 on 1 cpu", 2),
        ("mbridge kimi_k2-smoke pretrain bf16 on 2 cpu", 2),
        ("mbridge gpt_oss_120b-smoke pretrain bf16 on 1 cpu", 2),
    }


def test_functions_are_accepted_with_evidence(site: Cli, tmp_path: Path) -> None:
    suite = tmp_path / "families.yaml"
    suite.write_text(SUITE)
    done = site("accept", suite, "--json")
    assert done.status == 0, done.err
    titles = [item["title"] for item in done.data["workloads"]]
    assert titles == [
        "mbridge smoke pretrain bf16 on 1 cpu (pre-screen)",
        *(f"mbridge {size}-smoke pretrain bf16 on 1 cpu" for size in ("deepseek_v3", "qwen3_30b_a3b")),
    ]
    assert [item["verdict"] for item in done.data["workloads"]][1:] == ["pass", "pass"]


# Catalogues as they are written: what is left out, what is named, and what a reader makes of a base.


MBRIDGE = ROOT / "mbridge"


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Megatron-Bridge with four definitions that look like recipes, and one that does not."""
    names = [
        "a_pretrain_8gpu_h100_bf16",
        "a_pretrain_8gpu_h100_fp8ds",
        "a_pretrain_8gpu_h100_fp7",
        "b_sft_8gpu_h100_bf16",
    ]
    text = "\n".join(f"def {name}_config():\n    ..." for name in names)
    folder = tmp_path / perf_recipes.PACKAGE.rpartition(".")[2]
    folder.mkdir()
    (folder / "a.py").write_text(f"{text}\n\ndef common_config():\n    ...\n")
    there = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: there)
    perf_recipes.names.cache_clear()
    perf_recipes._defined.cache_clear()
    yield
    perf_recipes.names.cache_clear()
    perf_recipes._defined.cache_clear()


def call(name: str) -> Any:
    if name.startswith("b_"):
        raise RuntimeError("no such\n   device")
    perf_recipes.asked.append("openai/gpt-oss-120b")
    return lambda: None


def test_no_function_is_left_out_in_silence(recipes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_recipes, "find", call)
    monkeypatch.setattr(catalogue, "row", lambda name, config: {"columns": {}})
    found, missing = catalogue.rows()
    assert list(found) == ["a_pretrain_8gpu_h100_bf16_config", "a_pretrain_8gpu_h100_fp8ds_config"]
    assert list(missing) == ["a_pretrain_8gpu_h100_fp7_config", "b_sft_8gpu_h100_bf16_config"]
    assert "precision" in missing["a_pretrain_8gpu_h100_fp7_config"]
    assert missing["b_sft_8gpu_h100_bf16_config"] == "RuntimeError: no such device"
    written = json.loads(catalogue.catalogue_text(found, missing, "2026-11-22"))
    assert (written["missing"], list(written["functions"])) == (missing, list(found))
    assert list(written["assumed"]) == ["openai/gpt-oss-120b"]


def test_a_base_changes_the_file_and_nothing_that_is_read() -> None:
    older = RECIPE.releases["0.6.0"].catalogue
    assert older is not None
    own = json.loads((MBRIDGE / "catalogue-0.6.0.json").read_text())
    base = json.loads((MBRIDGE / own["base"]).read_text())["functions"]
    names = [entry.name for entry in older.index]
    assert (own["release"], own["core"], len(names)) == ("0.6.0", "0.19.0", len(own["index"]))
    assert 0 < len(own["functions"]) < len(names) / 4
    whole = {name: own["functions"].get(name) or base[name] for name in names}
    lines = (f"{json.dumps(name)}:{catalogue._json_line(whole[name])}" for name in names)
    assert hashlib.sha256(",\n".join(lines).encode()).hexdigest() == older.sha256 == own["sha256"]
    found, date = {name: dict(row) for name, row in whole.items()}, own["date"]
    again = json.loads(catalogue.catalogue_text(found, {}, date, catalogue.read_base(MBRIDGE / own["base"])))
    assert {name: again[name] for name in ("base", "index", "functions", "sha256", "assumed")} == {
        name: own[name] for name in ("base", "index", "functions", "sha256", "assumed")
    }
