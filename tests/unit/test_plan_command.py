"""``llmb-run plan``: one screen of what a job will take, the same as JSON, and what this site has measured before."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from msgspec.structs import replace

from llmb_common.executors.slurm.words import SlurmPlan
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.outlook import Span, most_gpu_hours
from llmb_common.planning.outlook_lines import range_text
from llmb_common.planning.plan import make_plan
from llmb_common.planning.ranks import coordinates, groups
from llmb_common.planning.request.read import Request
from llmb_common.planning.site.cluster import ClusterConfig
from llmb_common.planning.site.machine import Machine
from llmb_common.recipes.recipe import Recipe
from support.cli import Cli
from support.plans import ROOT, plan
from support.runs import PUBLISHED, make_run, steady_log
from support.texts import Texts

LLAMA = ("plan", "-w", "llama3.1", "-s", "70b", "--dtype", "bf16", "--gpu-type", "h100")
NEMOTRON = ("plan", "-w", "nemotron4", "-s", "340b", "--dtype", "bf16", "--gpu-type", "h100", "--scale", "64")
SLURM = {"CLUSTER_TYPE": "slurm"}
ALL = ("--memory", "--sources", "--ranks")


def section(out: str, name: str) -> list[str]:
    """The lines beside ``name``."""
    lines = out.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith(f"{name} "))
    rest = lines[first + 1 :]
    more = next((at for at, line in enumerate(rest) if not line.startswith(" ")), len(rest))
    return [line[11:] for line in [lines[first], *rest[:more]]]


def test_one_screen_says_where_values_come_from_and_what_the_job_takes(cli: Cli, texts: Texts) -> None:
    (cli.install / "cluster_config.yaml").write_text("gpu_type: h100\nslurm: {account: research}\n")
    job = (*LLAMA[:-2], "--scale", "64", "--set", "gbs=256")
    done = cli(*job, *ALL, MAX_STEPS="100", **SLURM)
    assert done.status == 0, done.err
    assert section(done.out, "job") == [
        "pretrain_llama3.1 70b bf16 on 64 H100 GPUs, 8 nodes of 8",
        "TP 4, PP 4, CP 2, VP 5, MBS 1, GBS 256; 100 steps",
    ]
    short = cli(*job, MAX_STEPS="100", **SLURM).out
    assert done.out.startswith(short.rpartition("more: ")[0])
    assert len(short.splitlines()) <= 10
    for option in short.splitlines()[-1].removeprefix("more: ").split():
        assert cli(*job, option, MAX_STEPS="100", **SLURM).status == 0, option
    origin = section(done.out, "from")
    texts("\n".join(origin))
    assert "--scale: GPUs 64" in origin
    texts(section(done.out, "stages")[0])
    assert section(done.out, "stages")[1].startswith("PP 0 ")
    first = done.out.splitlines()[0].split("; ")
    assert first[0].startswith("fits: "), "the answers come first"
    assert first[1:] == ["no estimate of the time", "at most 32.0 GPU-hours (time limit 00:30:00)"]
    assert section(done.out, "time") == [
        "no estimate: nothing like it has been measured",
        "nearest published result: 14.7 s a step on 64 H100 (NeMo 2, nemo:25.02.01): GBS 128 (here 256)",
    ]
    texts(section(done.out, "ranks")[-1])
    alone = cli(
        "plan", "-w", "llama3.1", "-s", "smoke", "--gpu-type", "cpu", "--dtype", "bf16", "--scale", "1", "--ranks"
    ).out
    texts(section(alone, "ranks")[-1])


def test_the_cores_of_ranks_are_named_with_what_a_node_must_have_for_them(cli: Cli, texts: Texts) -> None:
    job = ("plan", "-w", "mbridge", "-s", "qwen3_30b_a3b", "--dtype", "fp8", "--gpu-type", "b300", "--scale", "8")
    done = cli(*job, "--ranks", **SLURM)
    assert done.status == 0, done.err
    (said,) = (line for line in section(done.out, "ranks") if "cores" in line)
    assert {"0-1", "112-113"} <= set(re.findall(r"\d+-\d+", said))
    texts(said)
    assert not any(
        "cores" in line for line in section(cli(*job, "--ranks", **SLURM, ENABLE_PCT_BINDING="false").out, "ranks")
    )


def test_switches_of_a_layout_are_named_too(cli: Cli, texts: Texts) -> None:
    out = cli("plan", "-w", "llama3.1", "-s", "70b", "--gpu-type", "gb200", "--scale", "64", "--sources", **SLURM).out
    layout = "llama3.1-mbridge.md:25: TP 1, PP 1, CP 1, MBS 2, GBS 128, FSDP yes, OFFLOAD_LAYERS 40"
    assert layout in section(out, "from")
    out = cli(
        *LLAMA, "--scale", "64", "--set", "vp=NA", "--set", "fsdp=false", "--set", "tp=8", "--sources", **SLURM
    ).out
    texts("\n".join(section(out, "from")))


def test_without_gpus_one_command_decides_once_what_it_plans_for_and_the_source_says_so(cli: Cli, texts: Texts) -> None:
    (cli.install / "cluster_config.yaml").write_text("schema: 1\ncluster_type: local\ngpu_type: cpu\n")
    said = cli("plan", "-w", "grok1", "--scale", "512", "--sources")
    assert (said.status, said.err.count("gb200"), "Slurm has no" in said.err) == (0, 1, False)
    types = [line for line in section(said.out, "from") if "GPU type gb200" in line]
    assert types
    assert "cluster_config.yaml" not in types[0], "that has cpu"
    here = section(cli("plan", "-w", "grok1", "--sources").out, "from")
    texts("\n".join(here))
    assert not any(line.startswith("default of") for line in here), "the recipe's defaults are for GPUs"
    # The second job alone would be planned for a cluster with containers; the run refuses it, and so does a dry run.
    smoke = ("ab", "-w", "llama3.1", "-s", "smoke", "--scale", "2", "--change", "image=x")
    codes = [cli(*smoke, *more).status for more in ((), ("--dry-run",))]
    assert codes == [2, 2]
    tuned = cli("tune", "-w", "llama3.1", "-s", "8b", "--scale", "8", "--dry-run")
    assert "cpu" not in tuned.out, "the candidates are for the same machine as the base"


def test_a_time_limit_that_is_long_enough_only_for_a_quick_job_is_doubted(cli: Cli, texts: Texts) -> None:
    times = {
        limit: section(cli(*LLAMA, "--scale", "64", "--time-limit", limit, **SLURM).out, "time")
        for limit in ("17m", "30m")
    }
    texts(times["17m"][-1])
    texts(times["30m"][-1])


def test_json_has_the_plan_and_every_rank(cli: Cli) -> None:
    data = cli(*LLAMA, "--scale", "64", "--json", **SLURM).data
    seconds = data["plan"]["preflight"]["reference_step_seconds"]
    assert data["time_from"] == "published"
    assert data["job_seconds"] == pytest.approx([300 + 50 * seconds] * 2)
    assert data["gpu_hours"] == pytest.approx([(300 + 50 * seconds) * 64 / 3600] * 2)
    assert data["most_gpu_hours"] == 32.0
    assert data["ranks"][63] == {"rank": 63, "node": 7, "tp": 3, "cp": 1, "dp": 1, "pp": 3}
    assert data["groups"][0] == {"name": "TP", "size": 4, "stride": 1, "nodes": 1}


def test_without_a_measured_time_the_limit_bounds_the_gpu_hours(cli: Cli) -> None:
    data = cli(*LLAMA, "--scale", "64", "--set", "tp=8", "--time-limit", "90m", "--json", **SLURM).data
    known = data["plan"]["preflight"]
    names = ("predicted_step_seconds", "predicted_low", "predicted_high", "reference_step_seconds")
    assert [known[name] for name in names] == [None] * 4
    assert (data["time_from"], data["job_seconds"], data["gpu_hours"]) == (None, None, None)
    assert data["most_gpu_hours"] == 96.0
    own = plan("ADDITIONAL_SLURM_PARAMS=signal=USR1@60", MODEL_SIZE="8b", JOB_TOTAL_GPUS="8", GPU_TYPE="h100")
    assert most_gpu_hours(own) is None, "it may end earlier"
    assert isinstance(own.scheduler, SlurmPlan)
    of_old = replace(own, scheduler=replace(own.scheduler, additional=(("time", "04:00:00"), ("qos", "high"))))
    assert most_gpu_hours(of_old) is None, "the plan of a record, beside whose limit Slurm was told another"
    assert of_old.scheduler is not None
    assert of_old.scheduler.variables(8)["ADDITIONAL_SLURM_PARAMS"] == "qos=high", "the limit is asked for apart"
    among = cli(*LLAMA, "--scale", "64", "--set", "tp=8", "--slurm-arg", "time=90", "--json", **SLURM).data
    assert among["most_gpu_hours"] == 96.0
    (limit,) = (item for item in among["sources"] if item["name"] == "time limit")
    assert (limit["value"], limit["source"]) == ("01:30:00", "--slurm-arg")


def test_a_job_that_does_not_fit_is_shown_and_refused(cli: Cli, texts: Texts) -> None:
    done = cli(*NEMOTRON, "--force", "--memory", **SLURM)
    assert done.status == 2
    assert section(done.out, "stages")
    texts(done.err)


def test_an_undocumented_scale_names_those_that_force_takes_and_whether_they_fit(cli: Cli, texts: Texts) -> None:
    done = cli(*LLAMA, "--scale", "96", **SLURM)
    assert done.status == 2
    texts(done.err)
    texts(cli(*NEMOTRON, **SLURM).err)


def test_only_scales_that_the_layout_divides_are_tried_and_few_of_them(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    planned: list[int | None] = []

    def counted(recipe: Recipe, cluster: ClusterConfig, request: Request, machine: Machine) -> JobPlan:
        planned.append(request.gpus)
        return make_plan(recipe, cluster, request, machine)

    monkeypatch.setattr("llmb_common.planning.plan.make_plan", counted)
    said = cli(*LLAMA, "--scale", "1000", **SLURM).err
    texts(said)
    assert planned[0] == 992
    assert len(planned) <= 8
    assert "such as" not in cli(*LLAMA, "--scale", "100", "--set", "gbs=7", **SLURM).err, "none is possible"
    assert len(planned) <= 16


def test_both_ends_of_a_span_have_the_same_decimals() -> None:
    spans = [(9.89, 11.0), (0.0123, 0.0123), (98.6, 1234.5), (3.0, 4.0)]
    assert [range_text(Span(*span)) for span in spans] == ["9.9 to 11.0", "0.0123", "99 to 1,234", "3.00 to 4.00"]


def test_ranks_are_in_megatrons_order_tp_cp_dp_pp_and_experts_in_theirs() -> None:
    """As RankGenerator of megatron-core numbers them: TP varies fastest, PP slowest."""
    p = plan(MODEL_SIZE="70b", DTYPE="bf16", GPU_TYPE="h100", JOB_TOTAL_GPUS="64")
    every = [coordinates(p, rank) for rank in range(p.gpus)]
    assert len({(c["tp"], c["cp"], c["dp"], c["pp"]) for c in every}) == p.gpus
    assert [c["tp"] for c in every[:5]] == [0, 1, 2, 3, 0]
    assert [rank for rank, c in enumerate(every) if (c["tp"], c["dp"], c["pp"]) == (0, 0, 0)] == [0, 4]
    moe = plan("llama4", GPU_TYPE="h100", JOB_TOTAL_GPUS="512", DTYPE="bf16")  # ETP 4, EP 128
    assert {group.name: group.stride for group in groups(moe)} == {"TP": 1, "DP": 4, "ETP": 1, "EP": 4}
    assert [coordinates(moe, rank)["ep"] for rank in (0, 3, 4, 8, 511)] == [0, 0, 1, 2, 127]


def test_only_this_sites_own_runs_of_the_same_job_give_an_interval(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    monkeypatch.setattr("llmb_common.measured.kept._COARSE_NS", 0)
    job = ("plan", "-w", "llama3.1", "-s", "405b", "--dtype", "fp8", "--gpu-type", "gb200", "--scale", "128")
    before = cli(*job, "--json", **SLURM).data
    assert (before["time_from"], before["plan"]["preflight"]["predicted_low"]) == ("published", None)
    for number in range(3):
        make_run(cli.install, job_id=str(number + 1), log=steady_log(6500.0))
    assert cli("results").status in (0, 1)
    data = cli(*job, "--json", **SLURM).data
    known = data["plan"]["preflight"]
    assert (data["time_from"], known["own_runs"]) == ("own runs", 3)
    assert known["predicted_step_seconds"] == pytest.approx(6.5, rel=0.001)
    assert 1.03 < known["predicted_high"] / known["predicted_step_seconds"] < 1.08
    assert known["reference_step_seconds"] == 5.74147
    assert data["gpu_hours"][1] == pytest.approx(128 * (300 + 50 * known["predicted_high"]) / 3600, rel=0.001)
    time = section(cli(*job, **SLURM).out, "time")
    texts(time[0])
    texts(time[1])
    for other in ({"GBS": "128"}, {"LLMB_ENGINE": "0.6"}):  # another job, and the same one in another image
        data = cli(*job, "--json", **SLURM, **other).data
        assert data["plan"]["preflight"]["predicted_step_seconds"] is None, other
    assert PUBLISHED["JOB_TOTAL_GPUS"] == "128"
    # A dry run asks the index alone: records, and all that reads them, take a quarter of its time to import.
    script = "import sys; from llmb_common.submission.launch import main; main(sys.argv[1:]); print(*sys.modules)"
    variables = {"LLMB_INSTALL": str(cli.install), "DRY_RUN": "json", "PATH": os.environ["PATH"], **PUBLISHED, **SLURM}
    command = [sys.executable, "-c", script, str(ROOT / "llama3.1")]
    out = subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout
    assert '"own_runs": 3' in out
    assert "llmb_common.runs.index.database" in out
    assert "llmb_common.runs.record" not in out
    assert "statistics" not in out.split()


@pytest.mark.parametrize("asked", ["8", "h100:8"])
def test_gpus_that_a_run_asked_for_are_asked_for_again(asked: str) -> None:
    job = {"MODEL_SIZE": "8b", "JOB_TOTAL_GPUS": "8", "GPU_TYPE": "h100"}
    made = plan(**job, SBATCH_GPUS_PER_NODE=asked)
    assert made.scheduler is not None
    assert made.scheduler.variables(made.gpus_per_node)["SBATCH_GPUS_PER_NODE"] == asked
    again = plan(**job, **made.scheduler.variables(made.gpus_per_node))
    assert again.scheduler == made.scheduler
    plain = plan(**job)
    assert plain.scheduler is not None
    assert "SBATCH_GPUS_PER_NODE" not in plain.scheduler.variables(8)
