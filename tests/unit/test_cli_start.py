"""single and submit: the same plans as launch.sh, with mistakes named in terms of the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmb_common.base import notices
from support.cli import Cli
from support.texts import Texts

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED = ("single", "-w", "pretrain_llama3.1", "-s", "405b", "--dtype", "fp8", "--scale", "128")


def launch(install: Path, recipe: str = "llama3.1", **variables: str) -> str:
    """What ``DRY_RUN=true ./launch.sh`` prints."""
    environment = {"PATH": os.environ["PATH"], "LLMB_PYTHON": sys.executable, "LLMB_INSTALL": str(install)}
    environment |= {"DRY_RUN": "true", **variables}
    done = subprocess.run(["./launch.sh"], cwd=ROOT / recipe, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_documented_command_plans_what_launch_sh_plans(cli: Cli) -> None:
    done = cli(*DOCUMENTED, "--dry-run", GPU_TYPE="gb200")
    assert done.status == 0
    assert done.out == launch(cli.install, GPU_TYPE="gb200", JOB_TOTAL_GPUS="128", MODEL_SIZE="405b", DTYPE="fp8")


def test_profiling_with_gpu_metrics_as_documented(cli: Cli) -> None:
    done = cli(*DOCUMENTED, "-p", "--dry-run", GPU_TYPE="gb200", ENABLE_GPU_METRICS="true")
    variables = {"GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "128", "MODEL_SIZE": "405b", "DTYPE": "fp8"}
    assert done.out == launch(cli.install, **variables, ENABLE_PROFILE="true", ENABLE_GPU_METRICS="true")
    assert '--gpu-metrics-devices="$SLURM_LOCALID"' in done.out


@pytest.mark.parametrize("command", ["single", "submit"])
def test_every_option_reaches_the_script(cli: Cli, command: str) -> None:
    asked = (
        *(command, "-w", "grok1", "--gpu-type", "h100", "--scale", "512", "--max-steps", "60"),
        *("--time-limit", "90", "--env", "MY_FLAG=a b", "--env", "NCCL_DEBUG=INFO", "--set", "gbs=2048"),
        *("--nodelist", "n[1-64]", "--exclude", "n7", "--reservation", "night", "--slurm-arg", "qos=high", "--dry-run"),
    )
    done = cli(*asked)
    assert done.status == 0, done.err
    for line in (
        "#SBATCH --time=01:30:00",
        "export MY_FLAG='a b'",
        "export NCCL_DEBUG=INFO",
        "#SBATCH --nodelist=n[1-64]",
        "#SBATCH --exclude=n7",
        "#SBATCH --reservation=night",
        "#SBATCH --qos=high",
    ):
        assert line in done.out.splitlines()
    plan = cli(*asked, "--json").data["jobs"][0]["plan"]
    assert (plan["gbs"], plan["max_steps"]) == (2048, 60)


def test_a_dry_run_knows_what_it_would_follow(cli: Cli, texts: Texts) -> None:
    asked = (*DOCUMENTED, "--gpu-type", "gb200", "--dry-run", "--after")
    texts(cli(*asked, "nosuch", CLUSTER_TYPE="slurm").err)
    assert cli(*asked, "4711", CLUSTER_TYPE="slurm").status == 0


def test_options_win_over_the_environment(cli: Cli) -> None:
    variables = {"GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "64", "DTYPE": "bf16"}
    done = cli(*DOCUMENTED, "--dry-run", "--gpu-type", "gb300", "--json", **variables)
    plan = done.data["jobs"][0]["plan"]
    assert (plan["gpu_type"], plan["gpus"], plan["dtype"]) == ("gb300", 128, "fp8")


def test_dry_run_of_the_environment_counts(cli: Cli) -> None:
    done = cli(*DOCUMENTED, GPU_TYPE="gb200", DRY_RUN="true")
    assert done.out.startswith("#!/bin/bash")
    assert cli(*DOCUMENTED, GPU_TYPE="gb200", DRY_RUN="json").out.startswith("{")
    assert not (cli.install / "workloads").exists()


MISTAKES = (
    ["--dtpye", "fp8"],
    ["-s", "405"],
    ["--dtype", "fp9"],
    ["--gpu-type", "gb20"],
    ["--scale", "100"],
    ["--env", "ENABLE_VBOST=true"],
    ["--slurm-arg", "nodes=4"],
    ["--env", "tp=4"],
    ["--set", "tp=4", "--set", "TP=4"],
    ["--env", "NCCL_ALGO=a", "--env", "NCCL_ALGO=b"],
    ["--slurm-arg", "-q=a", "--slurm-arg", "qos=b"],
)


def test_a_mistake_is_named_with_its_remedy(cli: Cli, texts: Texts) -> None:
    said = []
    for arguments in MISTAKES:
        done = cli(*DOCUMENTED, "--gpu-type", "gb200", "--dry-run", *arguments)
        assert (done.status, done.out) == (2, "")
        assert "\n  -> " in done.err
        said.append(done.err)
    texts("".join(said))


def test_fields_are_called_as_the_user_wrote_them(cli: Cli, texts: Texts) -> None:
    """An option on the command line, a variable in the environment; and what a user wrote is never rewritten."""
    arguments = ("single", "-w", "pretrain_llama3.1", "--dry-run")
    texts(cli(*arguments, "--gpu-type", "h10").err)
    texts(cli(*arguments, GPU_TYPE="h10").err)
    texts(cli(*arguments, SBATCH_ACCOUNT="DTYPE ;").err)


def test_a_message_names_what_the_value_came_from(cli: Cli, texts: Texts) -> None:
    """The option that was given also where a variable is set, and never a variable that nobody set."""
    job = (*DOCUMENTED, "--gpu-type", "gb200", "--dry-run")
    given = "ADDITIONAL_SLURM_PARAMS"
    two = cli(*job, "--slurm-arg", "nodelist=n1,constraint=gpu", **{given: "qos=high"}).err
    texts(two)
    texts(cli("submit", *job[1:], "--exclude", "n1,constraint=gpu").err)
    texts(cli(*job, **{given: "nodelist=n1,constraint=gpu"}).err)
    broken = cli(*job, "--slurm-arg", "qos=high", **{given: "nodelist"}).err
    texts(broken)
    texts(cli(*job, SBATCH_QOS="high").err, about="SBATCH_QOS")
    here = ("single", "-w", "grok1", "--gpu-type", "cpu", "--dry-run", "--time-limit", "60")
    local = cli(*here, "--slurm-arg", "exclusive", CLUSTER_TYPE="local")
    texts(local.err, about="--slurm-arg")
    texts(cli(*job, "--scale", "100", JOB_TOTAL_GPUS="64").err, about="error: ")
    texts(cli("single", *job[1:5], *job[-3:], "--env", "JOB_TOTAL_GPUS=100").err, about="error: ")


def test_an_error_names_its_field_to_programs(cli: Cli) -> None:
    wrong = cli(*DOCUMENTED, "--gpu-type", "gb200", "--max-steps", "x", "--json").envelope["error"]
    assert (wrong["field"], wrong["message"].split()[:2]) == ("MAX_STEPS", ["--max-steps", "x"])


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        *(("--qos", "--slurm-arg qos=4"), ("-q", "--slurm-arg qos=VALUE"), ("--tp", "--set tp=4")),
        *(("--partition", "--slurm-arg partition=4"), ("--container-image", "--image 4")),
        *(
            ("--nodes", "--scale GPUS"),
            ("-N", "--scale GPUS"),
            ("--time", "--time-limit 4"),
            ("--yes", "leave it out"),
        ),
        *(("--enable-vboost", "--env ENABLE_VBOOST=4"), ("--job-total-gpus", "--scale")),
    ],
)
def test_an_option_of_another_program_is_answered_with_what_does_that_here(cli: Cli, option: str, instead: str) -> None:
    for command in ("single", "submit"):
        done = cli(command, "-w", "pretrain_grok1", f"{option}=4" if option.startswith("--") else option)
        assert (done.status, done.out) == (2, "")
        message, _, remedy = done.err.partition("\n  -> ")
        assert option in message
        assert remedy.removeprefix(f"llmb-run {command} -w pretrain_grok1 ").startswith(instead)


def test_what_is_nothing_elsewhere_gets_no_such_answer(cli: Cli, texts: Texts) -> None:
    texts(cli("cancel", "--yes").err)
    texts(cli("jobs", "--qos", "a").err)


def test_an_unknown_workload_and_an_unknown_command(cli: Cli, texts: Texts) -> None:
    texts(cli("single", "-w", "pretrain_grok").err)
    texts(cli("sinlge").err)
    texts(cli("sinlge", "-w", "grok1").err)
    texts(cli("single", "--scale").err)
    several = cli("single", "-w", "pretrain_llama3.1", "--scale", "64,128", "--dry-run")
    assert several.status == 2
    texts(several.err)
    nothing = cli("submit", "-w", "pretrain_llama3.1", "--gpu-type", "gb200", "--dtype", "fp4", "--scale", "all")
    texts(nothing.err)


@pytest.mark.usefixtures("clone_without_installation")
def test_without_an_installation_the_message_says_how_to_get_one(cli, monkeypatch, tmp_path, texts: Texts):
    monkeypatch.delenv("LLMB_INSTALL")
    monkeypatch.chdir(tmp_path)
    done = cli(*DOCUMENTED)
    assert done.status == 2
    texts(done.err)
    assert "./installer.py" in done.err
    (tmp_path / "cluster_config.yaml").write_text("gpu_type: gb200\n")
    done = cli(*DOCUMENTED, "--dry-run")
    assert f"export LLMB_RUN_DIR={tmp_path}/workloads" in done.out


def test_a_missing_installation_starts_nothing(cli: Cli, texts: Texts) -> None:
    done = cli(*DOCUMENTED, GPU_TYPE="gb200", CLUSTER_TYPE="slurm", LLMB_INSTALL="/nonexistent/install")
    assert (done.status, done.out) == (2, "")
    texts(done.err)


IN_AN_INSTALLATION = (
    DOCUMENTED,
    ("jobs",),
    ("results",),
    ("cancel", "--all"),
    ("wait",),
    ("exclude", "add", "n1", "--reason", "x"),
)


def test_a_folder_that_is_no_installation_stays_as_it_is(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bashrc").touch()
    for words in IN_AN_INSTALLATION:
        done = cli(*words, GPU_TYPE="gb200", CLUSTER_TYPE="slurm", LLMB_INSTALL=str(home))
        assert (done.status, done.out) == (2, ""), words
    texts(done.err)
    assert [path.name for path in home.iterdir()] == [".bashrc"]


@pytest.mark.parametrize("name", [None, ".llmb", "venvs", "workloads", "cluster_config.yaml"])
def test_whatever_an_installation_has_first_makes_it_one(cli: Cli, tmp_path: Path, name: str | None) -> None:
    install = tmp_path / "new"
    install.mkdir()
    if name:
        (install / name).write_text("gpu_type: gb200\n") if "." in name[1:] else (install / name).mkdir()
        (install / "images").mkdir()
    assert cli("jobs", LLMB_INSTALL=str(install)).status == 0


def jobs_of(table: str) -> dict[str, int]:
    """Experiment name -> runs, from a dry run's table."""
    lines = [line.split() for line in table.splitlines()[1:]]
    return {words[0]: int(words[1]) for words in lines}


def test_a_sweep_is_every_combination(cli: Cli, texts: Texts) -> None:
    done = cli(
        *("submit", "-w", "llama3.1", "-s", "8b,70b", "--dtype", "fp8", "--dtype", "bf16", "--gpu-type", "h100"),
        *("--scale", "64,128", "--repeats", "3", "--dry-run"),
    )
    found = jobs_of(done.out)
    assert len(found) == 8
    assert set(found.values()) == {3}
    texts(done.err, about="nothing started")


CHAIN = ("submit", "-w", "llama3.1", "-s", "8b", "--dtype", "fp8", "--gpu-type", "h100", "--scale", "64")


def disk_with(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(total=2 * free, used=free, free=free)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)


def test_a_dry_run_refuses_what_the_run_refuses(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is no checkpoint, and too little space for those to save; a laptop knows neither of a cluster."""
    job = ("-w", "llama3.1", "-s", "8b", "--dtype", "fp8", "--scale", "8", "--gpu-type", "h100")
    loading = (*job, "--env", f"LOAD_CHECKPOINT_PATH={tmp_path}")
    saving = (*job, "--env", "ENABLE_CHECKPOINT=true")
    disk_with(10**9, monkeypatch)
    for refused, said in ((loading, "holds no finished checkpoint"), (saving, " of 8b need")):
        for line in (("plan", *refused), ("single", *refused, "--dry-run"), ("submit", *refused, "--dry-run")):
            done = cli(*line)
            assert done.status in (2, 3)
            assert said in done.err
    (cli.install / "cluster_config.yaml").write_text("schema: 1\ncluster_type: local\ngpu_type: cpu\n")
    for elsewhere in (loading, saving):
        assert cli("single", *elsewhere, "--dry-run").status == 0


def test_a_dry_run_counts_the_jobs_of_a_chain(cli: Cli, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    """As many as would be queued."""
    disk_with(10**15, monkeypatch)
    several = cli(*CHAIN, "--repeats", "5", "--resume-chain", "2", "--dry-run")
    texts(several.err, about="jobs")
    assert sum(jobs_of(several.out).values()) == 10
    asked = (*CHAIN, "--resume-chain", "3", "--dry-run")
    one = cli(*asked)
    assert one.out[:12] == "#!/bin/bash\n"
    texts(one.err, about="chain")
    data = cli(*asked, "--json").data
    assert (data["chain"], len(data["jobs"])) == (3, 1)


def test_a_dry_run_refuses_a_chain_that_would_be_refused(cli: Cli, texts: Texts) -> None:
    done = cli(*CHAIN, "--resume-chain", "2", "--env", "ENABLE_CHECKPOINT=false", "--dry-run")
    assert (done.status, done.out) == (2, "")
    texts(done.err)


SAID_TWICE = [
    ("--env", "JOB_TOTAL_GPUS=64"),
    ("--env", "JOB_TOTAL_GPUS=128"),
    ("--env", "DTYPE=bf16"),
    ("--max-steps", "60", "--env", "MAX_STEPS=50"),
    ("-p", "--env", "ENABLE_PROFILE=false"),
    ("--set", "tp=4", "--env", "TP=8"),
    ("--megatron", "model.attention_dropout=0.1", "--env", "MEGATRON_SETTINGS=model.attention_dropout=0.2"),
    ("--slurm-arg", "qos=a", "--env", "ADDITIONAL_SLURM_PARAMS=exclusive;-q=b"),
    ("--slurm-arg", "partition=a", "--env", "SBATCH_PARTITION=b"),
    ("--slurm-arg", "-A=a", "--env", "SBATCH_ACCOUNT=b"),
    ("--slurm-arg", "-t=60", "--env", "TIME_LIMIT=50"),
    ("--nodelist", "n1", "--env", "ADDITIONAL_SLURM_PARAMS=nodelist=n2"),
]


def test_a_variable_that_is_set_for_a_job_beside_its_option_is_refused(cli: Cli, texts: Texts) -> None:
    said = []
    for words in SAID_TWICE:
        asked = (*DOCUMENTED[1:], "--gpu-type", "gb200", "--dry-run", *words)
        single = cli("single", *asked)
        assert (single.status, single.out) == (2, "")
        assert cli("submit", *asked) == single
        said.append(single.err)
    texts("".join(said), about="error: ")


def test_so_it_is_in_a_task_file_and_beside_a_dimension(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    tasks = tmp_path / "tasks.yaml"
    tasks.write_text("tasks:\n  - {workload: llama3.1, size: 8b, scale: 64, env: {JOB_TOTAL_GPUS: 128}}\n")
    done = cli("bulk", tasks, "--dry-run", GPU_TYPE="h100")
    assert done.status == 2
    texts(done.err)
    varied = cli("sweep", *CHAIN[1:], "--vary", "tp=1,2", "--env", "TP=4", "--dry-run")
    assert varied.status == 2
    texts(varied.err)


def test_bounds_select_documented_scales(cli: Cli, texts: Texts) -> None:
    arguments = ("submit", "-w", "llama3.1", "-s", "70b", "--dtype", "fp8", "--gpu-type", "gb200", "--dry-run")
    assert len(jobs_of(cli(*arguments, "--scale", "all").out)) == 4  # 64 to 512
    assert len(jobs_of(cli(*arguments, "--min-scale", "128", "--max-scale", "256").out)) == 2
    none = cli(*arguments, "--min-scale", "4096")
    assert none.status == 2
    texts(none.err)


def test_one_impossible_combination_stops_all_unless_told_otherwise(cli: Cli, texts: Texts) -> None:
    arguments = ("submit", "-w", "llama3.1,grok1", "-s", "8b,314b", "--gpu-type", "gb200", "--scale", "128")
    done = cli(*arguments, "--dtype", "fp8", "--dry-run")
    assert done.status == 2
    texts(done.err)
    done = cli(*arguments, "--dtype", "fp8", "--dry-run", "--skip-unsupported")
    assert done.status == 0
    assert len(jobs_of(done.out)) == 2
    texts(done.err, about="skipped")


def test_a_size_that_no_workload_has_is_a_mistake_even_with_skip_unsupported(cli: Cli, texts: Texts) -> None:
    done = cli("submit", "-w", "llama3.1", "-s", "8b,71b", "--scale", "64", "--skip-unsupported", "--dry-run")
    assert done.status == 2
    texts(done.err)


def test_one_folder_cannot_serve_two_workloads(cli: Cli, texts: Texts) -> None:
    done = cli("submit", "-w", "llama3.1,grok1", "--scale", "512", "--dry-run", LLMB_WORKLOAD="/w", GPU_TYPE="h100")
    assert done.status == 2
    texts(done.err)


def test_the_envelope_of_a_success_and_of_an_error(cli: Cli) -> None:
    done = cli(*DOCUMENTED, "--dry-run", "--json", GPU_TYPE="gb200")
    assert {key: done.envelope[key] for key in ("schema", "command", "ok", "error")} == {
        "schema": 1,
        "command": "single",
        "ok": True,
        "error": None,
    }
    assert done.data["jobs"][0]["plan"]["gbs"] == 64
    assert (done.data["dry_run"], done.data["jobs"][0]["script"][:12]) == (True, "#!/bin/bash\n")
    done = cli(*DOCUMENTED, "--json", "--dtpye")
    assert done.status == 2
    assert done.envelope["ok"] is False
    assert done.envelope["error"]["code"] == "usage"
    assert done.envelope["error"]["exit_status"] == 2
    assert "--dtype" in done.envelope["error"]["message"]
    assert done.err.startswith("error: ")


def test_the_same_notice_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    notices.recorded_notices.clear()
    for text in ("first", "second", "first"):
        notices.notice(text)
    assert notices.recorded_notices == ["first", "second"]
    notices.recorded_notices.clear()
    notices.notice("first")
    assert (notices.recorded_notices, capsys.readouterr().err) == (
        ["first"],
        "note: first\nnote: second\nnote: first\n",
    )
    notices.recorded_notices.clear()


def test_notices_go_to_stderr_and_into_the_envelope(cli: Cli, texts: Texts) -> None:
    done = cli("single", "-w", "llama3.1", "--gpu-type", "cpu", "--dry-run", "--json", CLUSTER_TYPE="local")
    (noticed,) = done.envelope["notices"]
    assert noticed in done.err
    texts(noticed)
    several = cli("submit", "-w", "llama3.1", "--gpu-type", "cpu", "--repeats", "3", "--dry-run", CLUSTER_TYPE="local")
    assert several.err.count(noticed) == 1
    h100 = ("--gpu-type", "h100", "-s", "8b", "--scale", "8", "--dry-run")
    short = cli("single", "-w", "llama3.1", *h100, "--max-steps", "20", CLUSTER_TYPE="slurm")
    texts(short.err, about="measured")
    set_by_variable = cli("single", "-w", "llama3.1", *h100, CLUSTER_TYPE="slurm", MAX_STEPS="20")
    texts(set_by_variable.err, about="measured")


def test_a_closed_pipe_is_not_an_error(cli: Cli) -> None:
    command = f"set -o pipefail; {sys.executable} -m llmb_run list | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
    assert done.stdout.strip() in ("0", "1")  # 0: it was faster than its reader
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_a_file_that_cannot_be_read_is_named(cli: Cli, tmp_path: Path) -> None:
    done = cli("bulk", tmp_path)
    assert (done.status, str(tmp_path) in done.err) == (2, True)
    assert "Traceback" not in done.err


HOSTILE = ["it's", 'a "b"', "$(touch {mark})", "`touch {mark}`", "a;touch {mark}", "%j", "\\n", "ünïcode", "*", "-x"]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_value_reaches_the_job_unchanged(cli: Cli, tmp_path: Path, text: str) -> None:
    value = text.format(mark=tmp_path / "mark")
    done = cli(*DOCUMENTED, "--dry-run", "--env", f"MY_VALUE={value}", GPU_TYPE="gb200")
    assert done.status == 0
    line = next(line for line in done.out.splitlines() if line.startswith("export MY_VALUE="))
    shown = subprocess.run(["bash", "-c", f'{line}; printf %s "$MY_VALUE"'], capture_output=True, text=True).stdout
    assert shown == value
    assert not (tmp_path / "mark").exists()


def test_list_shows_what_is_documented_and_what_is_installed(cli: Cli) -> None:
    (cli.install / "cluster_config.yaml").write_text("workloads: [pretrain_grok1]\n")
    done = cli("list", "--json")
    by_name = {item["workload"]: item for item in done.data}
    documented = {"pretrain_llama3.1", "pretrain_llama4_maverick", "pretrain_grok1", "pretrain_nemotron4"}
    assert set(by_name) == {*documented, "pretrain_mbridge"}
    assert by_name["pretrain_grok1"]["installed"]
    assert not by_name["pretrain_nemotron4"]["installed"]
    known = {"size": "405b", "gpu_type": "gb200", "dtype": "fp8", "fp8_recipe": "cs", "variant": "mbridge"}
    (listed,) = [item for item in by_name["pretrain_llama3.1"]["configurations"] if known.items() <= item.items()]
    assert listed["scales"] == [128, 256, 512]
    layout = {"scales": [128, 256, 512], "layout": "TP2 FSDP", "published_step_seconds": [5.74147, 5.74147]}
    assert listed["layouts"] == [layout]
    assert [item["workload"] for item in cli("list", "--json", "--installed").data] == ["pretrain_grok1"]
    assert re.search(
        r"128,256,512 +mbridge +TP2 FSDP +5\.74\n", cli("list", "-w", "llama3.1", "--gpu-type", "gb200").out
    )


def test_list_shows_a_workload_of_hundreds_in_one_line_and_searches_it(cli: Cli, texts: Texts) -> None:
    everything = cli("list").out.splitlines()
    (line,) = [line for line in everything if line.startswith("pretrain_mbridge")]
    texts(line)
    found = cli("list", "-w", "mbridge", "-s", "kimi", "--gpu-type", "gb300", "--json").data[0]["configurations"]
    assert [(item["size"], item["dtype"], item["fp8_recipe"], item["scales"]) for item in found] == [
        ("kimi_k2-smoke", "bf16", None, [1, 2, 4, 8]),
        ("kimi_k2", "bf16", None, [256]),
        ("kimi_k2", "fp8", "cs", [256]),
        ("kimi_k2", "fp8", "mx", [256]),
        ("kimi_k2", "nvfp4", None, [256]),
    ]
    for words in (["-s", "deepsek_v3"], ["-w", "grok1", "-s", "314b", "--gpu-type", "b200"]):
        done = cli("list", *words)
        assert done.status == 2
        texts(done.err, about="error: ")


def test_one_job_of_a_function_is_planned_from_the_command_line(cli: Cli) -> None:
    words = ("single", "-w", "mbridge", "-s", "qwen3_235b_a22b", "--gpu-type", "gb200", "--dtype", "bf16")
    done = cli(*words, "--scale", "64", "--dry-run", "--json", CLUSTER_TYPE="slurm")
    assert done.status == 0, done.err
    plan = done.data["jobs"][0]["plan"]
    assert (plan["workload"], plan["gpus"], plan["max_steps"]) == ("pretrain_mbridge", 64, 50)
    refused = cli(*words, "--scale", "64", "--variant", "ncclep", "--dry-run", CLUSTER_TYPE="slurm")
    assert refused.status == 2


def test_the_engine_of_a_job_is_chosen_on_the_command_line(cli: Cli, texts: Texts) -> None:
    done = cli(*DOCUMENTED, "--engine", "0.6", "--dry-run", GPU_TYPE="gb200", CLUSTER_TYPE="slurm")
    assert "nvidia+nemo+26.08.sqsh" in done.out
    refused = cli("single", "-w", "grok1", "--scale", "512", "--gpu-type", "h100", "--engine", "0.6", "--dry-run")
    assert refused.status == 2
    texts(refused.err)


def test_an_unreadable_recipe_is_skipped_with_a_notice(cli: Cli, tmp_path: Path) -> None:
    for name, text in (("good", (ROOT / "grok1" / "recipe.yaml").read_text()), ("bad", "schema: 1\nnmae: x\n")):
        (tmp_path / "repo" / name).mkdir(parents=True)
        (tmp_path / "repo" / name / "recipe.yaml").write_text(text)
    done = cli("list", LLMB_REPO=str(tmp_path / "repo"))
    assert done.status == 0
    assert "pretrain_grok1" in done.out
    assert "bad/recipe.yaml" in done.err
