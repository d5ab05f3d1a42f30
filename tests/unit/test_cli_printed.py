"""What commands print, to the column: tables as a person reads them, and the names and values that programs rely on."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from llmb_common.runs.finding import Attempt, Finding
from llmb_common.runs.timing.tables import shorten
from llmb_run.actions.watch import LIVE
from llmb_run.columns import table as table_of
from llmb_run.following import observed_runs
from llmb_run.terminal import table
from support.cli import Cli
from support.iteration_logs import mbridge_line
from support.runs import cut_log, make_run, steady_log
from support.texts import Texts

SWEEP = ("submit", "-w", "llama3.1", "-s", "405b", "--gpu-type", "gb200", "--dry-run")


def cells(line: str) -> list[str]:
    """The cells of a line, which are two or more spaces apart."""
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_a_table_aligns_its_columns_and_keeps_each_cell_on_its_line() -> None:
    text = table(["run", "GPUs", "what"], [["a", "8", "x\ny"], ["bcde", "1024", ""]], right=["GPUs"])
    assert text.splitlines() == [
        "run   GPUs  what",
        "a        8  x\\ny",
        "bcde  1024",
    ]


# Plans


def test_a_sweep_is_a_table_of_its_jobs(cli: Cli, texts: Texts) -> None:
    done = cli(*SWEEP, "--dtype", "fp8", "--scale", "128,256", "--repeats", "2")
    header, first, second = done.out.splitlines()
    names = ["job", "runs", "GPUs", "nodes", "TP", "PP", "CP", "EP", "VP", "MBS", "GBS", "steps", "time limit"]
    assert cells(header) == names
    for title in ("runs", "GPUs", "nodes", "TP", "MBS", "GBS", "steps"):
        end = header.index(f" {title} ") + 1 + len(title)
        assert first[end - 1].isdigit(), f"{title} is aligned to the right"
        assert second[end - 1].isdigit()
    assert [cells(line)[1:4] for line in (first, second)] == [["2", "128", "32"], ["2", "256", "64"]]
    texts(done.err, about="nothing started")


# Runs


def test_the_table_of_results(cli: Cli) -> None:
    record = make_run(cli.install, log=steady_log(5741.5))
    good = record.paths.run_id
    bad = make_run(cli.install, log=cut_log(5900), state="FAILED").paths.run_id
    lines = cli("results", "--runs", COLUMNS="250").out.splitlines()
    header = next(line for line in lines if line.startswith("run "))
    assert cells(header) == [
        *("run", "GPUs", "step s", "tokens/s", "TFLOPS/GPU", "MFU %", "log MFU %", "days/1T"),
        *("vs. reference %", "name", "what differs"),
    ]
    first = next(line for line in lines if line.startswith(good))
    second = next(line for line in lines if line.startswith(bad))
    assert cells(first) == [
        *(good, "128", "5.742", "91316", "1800.60", "36.75", "33.40", "126.75", "+0.0"),
        shorten(record.paths.name, 44),
    ]
    assert (cells(second)[0], re.findall(r"\d+|FAILED", cells(second)[-1])) == (bad, ["49", "50", "FAILED"])
    numbers = ("GPUs", "step s", "tokens/s", "TFLOPS/GPU", "log MFU %", "days/1T", "vs. reference %")
    for title in numbers:
        assert first[header.index(title) + len(title) - 1].isdigit(), f"{title} is aligned to the right"


def test_a_result_as_json(cli: Cli) -> None:
    extra = "energy per GPU (J/iter/GPU): 4000.0 | power per GPU (W/GPU): 697.0"
    log = "".join(mbridge_line(i, milliseconds=5741.5 + i - 39.5, tflops=1636.8, extra=extra) for i in range(1, 51))
    record = make_run(cli.install, log=log)
    (run,) = cli("results", "--json").data["runs"]
    plain = {
        **{"run_id": record.paths.run_id, "name": record.paths.name, "folder": str(record.paths.folder)},
        **{"log": str(record.paths.log), "workload": "pretrain_llama3.1", "model_size": "405b", "dtype": "fp8"},
        **{"gpu_type": "gb200", "gpus": 128, "executor": "slurm", "job_id": "101", "state": "COMPLETED"},
        **{"variant": "mbridge", "fp8_recipe": "cs", "nodes": 32, "gbs": 64, "seq_len": 8192},
        **{"status": "Success", "reason": None, "iteration": None, "message": None},
        **{"window": {"first": 35, "last": 44}},
        **{"log_tflops_per_gpu_std": 0.0, "verdict": "pass", "more_runs": None, "remarks": [], "notices": []},
        "not_training": [],
        "findings": [],
    }
    assert plain.items() <= run.items()
    figures = {
        **{"step_seconds_mean": 5.7415, "step_seconds_last": 5.752, "log_tflops_per_gpu_mean": 1636.8},
        **{"step_seconds": 5.7415, "tokens_per_second": 91316.0, "tflops_per_gpu": 1800.6, "mfu_percent": 36.75},
        **{"log_mfu_percent": 33.404, "days_1t": 126.75, "steady_step_seconds": 5.7415, "tolerance": 0.0836},
        **{"difference": 0.0, "difference_low": -0.0684, "difference_high": 0.0734, "step_seconds_std": 0.003},
    }
    assert {name: run[name] for name in figures} == pytest.approx(figures, rel=1e-3, abs=1e-4)
    published = {"step_seconds": 5.74147, "tokens_per_second": 91316, "source": "llama3.1-mbridge.md:86"}  # corrected
    assert published.items() <= run["published"].items()
    figures = {"tokens_per_second", "mfu_percent", "days_1t", "tflops_per_gpu"}
    assert set(run["published"]) == {"step_seconds", *figures, "source"}


def test_groups_as_a_table_and_as_json(cli: Cli, texts: Texts) -> None:
    seconds = (5.7, 5.8, 5.7)
    runs = [make_run(cli.install, log=steady_log(1000 * value)).paths.run_id for value in seconds]
    make_run(cli.install, log=cut_log(5900), state="FAILED")
    header, line = cli("results", "--group").out.splitlines()
    assert cells(header) == [
        *("configuration", "software", "runs", "step s", "± % (97.7 %)", "spread %", "reference s", "verdict")
    ]
    assert cells(line)[:2] == ["llama3.1 405b mbridge fp8 (cs) on 128 gb200", "nemo:26.02.01"]
    assert cells(line)[2:7] == ["3 (1 failed)", "5.733", "5.6", "1.0", "5.74147"]
    (group,) = cli("results", "--group", "--json").data["groups"]
    assert set(runs) == set(group["run_ids"])
    assert (group["unsuccessful"], group["step_seconds"]) == (1, pytest.approx(17.2 / 3))
    assert group["spread"] == pytest.approx(0.0101, abs=1e-4)
    assert group["software"] == "nemo:26.02.01"
    texts(group["title"])
    assert group["verdict"] == "pass"
    assert group["difference"] == pytest.approx((5.7 * 5.8 * 5.7) ** (1 / 3) / 5.74147 - 1)


def test_baselines_as_a_table_and_as_json(cli: Cli) -> None:
    run = make_run(cli.install, log=steady_log(5741.5)).paths.run_id
    header, line = cli("baseline", "set", run).out.splitlines()
    assert cells(header) == ["key", "configuration", "software", "runs", "step s", "± %", "set"]
    key, *rest, when = cells(line)
    assert rest == ["llama3.1 405b mbridge fp8 (cs) on 128 gb200", "nemo:26.02.01", "1", "5.742", "2.7"]
    assert len(when) == len("10:18:33")
    (known,) = cli("baseline", "list", "--json").data["baselines"]
    assert (known["key"], known["seconds"], known["relative_error"]) == (
        *(key, pytest.approx(5.7415), pytest.approx(0.02703, abs=1e-5)),
    )
    assert known["runs"] == [{"run_id": run, "seconds": 5.7415, "error": 0.0}]
    assert known["software"] == "nemo:26.02.01"


def test_a_comparison_as_a_table_and_as_json(cli: Cli) -> None:
    one, other = (make_run(cli.install, log=steady_log(value)).paths for value in (5000, 6000))
    answer, _, _, *lines = cli("compare", one.run_id, other.run_id).out.splitlines()
    assert re.match(r"B\b.*\b20\.0 %", answer)
    assert cells(lines[0]) == ["first run", "successful", "step s", "steady s", "tokens/s"]
    assert cells(lines[1]) == ["A", one.name, "1 of 1", "5.000", "5.000", "104858"]
    assert cells(lines[2]) == ["B", other.name, "1 of 1", "6.000", "6.000", "87381"]
    data = cli("compare", one.run_id, other.run_id, "--json").data
    for side, run, seconds in (("first", one, 5.0), ("second", other, 6.0)):
        times = dict.fromkeys(("step_seconds", "steady_step_seconds"), pytest.approx(seconds))
        assert data[side] == {"run_ids": [run.run_id], "successful": 1, **times}
    assert data["ratio"] == pytest.approx(1.2)
    assert data["ratio_low"] < 1.2 < data["ratio_high"]
    assert data["ratio_low"] * data["ratio_high"] == pytest.approx(1.44)
    assert data["loss"] == {"iteration": 50, "relative_difference": 0.0}


def test_the_table_of_jobs_and_of_one_watched(cli: Cli) -> None:
    followed = observed_runs([make_run(cli.install, log=steady_log(5741.5))])
    followed[0].progress.look()
    header, line = table_of(LIVE, followed).splitlines()
    assert cells(header) == ["run", "state", "for", "step", "s/step", "TFLOPS", "left", "GPUs", "job", "what"]
    assert cells(line)[3:] == ["50/50", "5.742", "1636.8", "128", "101", "pretrain_llama3.1 405b mbridge fp8 (cs)"]
    for title in ("step", "s/step", "TFLOPS", "GPUs"):
        assert line[header.index(f" {title} ") + len(title)].isdigit(), f"{title} is aligned to the right"
    header, line = cli("jobs").out.splitlines()
    assert cells(header) == ["run", "state", "since", "GPUs", "s/step", "job", "what"]
    assert cells(line)[3:] == ["128", "5.742", "101", "pretrain_llama3.1 405b mbridge fp8 (cs)"]


def test_the_catalogue_says_once_whether_a_workload_is_installed(cli: Cli) -> None:
    lines = cli("list", "-w", "grok1").out.splitlines()
    assert cells(lines[0]) == ["workload", "size", "GPU", "dtype", "GPUs", "variant", "layout", "s/step"]
    layout = ["128,256,512", "TP4 EP8", "7.32-7.39"]
    assert cells(lines[1]) == ["pretrain_grok1", "available", "314b", "gb200", "bf16", *layout]
    assert cells(lines[2])[:4] == ["gb200", "fp8", "128,256,512", "TP4 EP8"]
    assert cells(lines[-1]) == ["smoke", "any", "bf16", "1,2,4,8", "DP / EP2"]
    (entry,) = cli("list", "-w", "grok1", "--json").data
    assert (entry["workload"], entry["title"], entry["installed"]) == ("pretrain_grok1", "Grok-1", False)
    assert entry["sizes"] == ["314b", "smoke"]
    assert entry["configurations"][1] == {
        **{"size": "314b", "gpu_type": "gb200", "dtype": "fp8", "fp8_recipe": "ds", "variant": "nemo2"},
        **{"release": None, "scales": [128, 256, 512]},
        "layouts": [{"scales": [128, 256, 512], "layout": "TP4 EP8", "published_step_seconds": [5.193, 5.298]}],
    }


def test_what_the_image_of_a_workload_lacks_is_marked(cli: Cli) -> None:
    """Functions of 0.6.2, of which nemo:26.08 has no more than 0.6.0 has."""
    said = (
        "* not in the workload's image: export RUN_CONF_IMAGE=IMAGE, one with Megatron-Bridge 0.6.2, and give --engine"
    )
    asked = ("list", "-w", "mbridge", "-s", "qwen3_235b_a22b", "--gpu-type", "gb300")
    done = cli(*asked)
    assert re.search(r"  64\*,256\* +full_iteration  ", done.out)
    assert re.search(r"  64,256 +pretrain  ", done.out)
    assert said in done.err
    (entry,) = cli(*asked, "--json").data
    releases = {known["release"]: known["variant"] for known in entry["configurations"]}
    assert releases == {None: "pretrain", "0.6.2": "full_iteration"}
    assert said not in cli("list", "-w", "mbridge", "-s", "deepseek_v3", "--gpu-type", "b300").err


def test_how_runs_ended_that_were_waited_for(cli: Cli, texts: Texts) -> None:
    record = make_run(cli.install, log=steady_log(1000))
    done = cli("wait", record.paths.run_id)
    assert (done.status, done.out) == (0, f"{record.paths.run_id}  COMPLETED  {record.paths.name}\n")
    texts(done.err)
    bad = make_run(cli.install, state="FAILED").paths.run_id
    done = cli("wait", record.paths.run_id, bad, "--json")
    assert done.status == 1
    assert [run["state"] for run in done.data["runs"]] == ["COMPLETED", "FAILED"]


def test_a_run_shown_in_full(cli: Cli, texts: Texts) -> None:
    record = make_run(cli.install, log=steady_log(5741.5))
    lines = cli("show", record.paths.run_id).out.splitlines()
    said = {line[:10].strip(): line[11:] for line in lines if line[:10].strip()}
    assert said["run"] == f"{record.paths.run_id}  {record.paths.name}"
    assert said["state"].startswith("COMPLETED at ")
    assert said["job"] == "101"
    plan = lines.index(f"plan       {said['plan']}")
    texts("\n".join(lines[plan : plan + 3]))
    assert (said["folder"], said["log"]) == (str(record.paths.folder), str(record.paths.log))
    assert said["history"].endswith("  SUBMITTING")
    texts(said["result"])


def test_a_script_that_is_none_is_an_error(cli: Cli, texts: Texts) -> None:
    script = make_run(cli.install).paths.script
    script.write_bytes(b"\xff")
    done = cli("show", "--script")
    assert done.status == 3
    texts(done.err)
    script.unlink()
    assert cli("show", "--script").status == 3
    os.mkfifo(script)
    assert cli("show", "--script").out == ""


def test_groups_as_json_without_the_switch(cli: Cli) -> None:
    make_run(cli.install, log=steady_log(5741.5))
    plain = cli("results", "--group", "--format", "json").data
    assert plain == cli("results", "--group", "--json").data
    head, line, *_ = cli("results", "--group", "--format", "csv").out.splitlines()
    assert head.startswith("title,key,software,runs,")
    assert plain["groups"][0]["key"] in line


def test_where_nobody_can_be_asked_the_last_known_state_is_shown(cli: Cli, texts: Texts) -> None:
    run = make_run(cli.install, state="RUNNING", job_id="7").paths.run_id
    cli.patch.setenv("PATH", "/nonexistent")
    texts(cli("show", run).err)


def test_what_differs_from_a_run_that_is_retried_exactly_is_a_table(cli: Cli) -> None:
    record = make_run(cli.install, log=steady_log(5741.5))
    document = json.loads(record.paths.record.read_text())
    document["manifest"] |= {"llmb": None, "recipe_sha256": "0" * 64}
    record.paths.record.write_text(json.dumps(document))
    done = cli("retry", record.paths.run_id, "--exact")
    assert done.status == 1
    rows = [cells(line) for line in (done.out + done.err).splitlines()]
    assert ["differs", "then", "now"] in rows
    version = next(row for row in rows if row and row[0] == "version of LLMB")
    assert version[1] == "none"
    recipe = next(row for row in rows if row and row[0] == "recipe.yaml")
    assert recipe[1] == "0" * 12
    assert len(recipe[2]) == 12


def test_columns_of_the_csv_that_programs_read(cli: Cli) -> None:
    record = make_run(cli.install, log=steady_log(5741.5))
    (run,) = csv.DictReader(io.StringIO(cli("results", "--format", "csv").out))
    assert {
        **{"experiment": record.paths.name, "status": "Success", "run_id": record.paths.run_id, "gpus": "128"},
        **{"time_mean_s": "5.7415", "time_std_s": "0.0", "step_s": "5.7415", "steady_step_s": "5.7415"},
        **{"published_step_s": "5.74147", "reference_step_s": "5.74147", "more_runs": "", "reason": ""},
        **{"verdict": "pass", "reference_software": "Megatron-Bridge, nemo:25.09.00"},
    }.items() <= run.items()
    assert run["date"].endswith("+00:00")
    (same,) = cli("results", "--json").data["runs"]
    for name in ("tokens_per_second", "tflops_per_gpu", "mfu_percent", "days_1t", "tolerance", "difference_low"):
        assert float(run[name]) == same[name], name
    steps = list(csv.DictReader(io.StringIO(cli("results", "--iterations").out)))
    assert [step["measured"] for step in steps[33:45]] == ["false", *["true"] * 10, "false"]
    assert steps[0] == {
        **{"run": record.paths.run_id, "measured": "false", "iteration": "1", "seconds": "5.7415"},
        **{"tflops_per_gpu": "1636.8", "loss": "6.958428", "grad_norm": "1.019"},
        **{"skipped": "false"},
    }


def test_show_names_the_node_that_failed_before_a_job_was_queued_again(cli: Cli, texts: Texts) -> None:
    attempts = (Attempt("NODE_FAIL", "n[1-2]", "n2", 100.0, 200.0), Attempt("", "n[1-4]", "", 300.0))
    record = make_run(cli.install, state="RUNNING")
    Finding("COMPLETED", attempts=attempts).apply(record).save()
    shown = cli("show", record.paths.run_id).out
    texts(shown, about="n[1-", mask=r"1970-\S+ \S+")


# Runs again


class Slurm:
    """``sinfo`` says ``text`` and ends with ``status``; a run whose job was on ``nodes``."""

    def __init__(self, cli: Cli, tmp_path: Path, text: str, status: int = 0) -> None:
        folder = tmp_path / "slurm"
        folder.mkdir()
        program = folder / "sinfo"
        program.write_text(
            f'#!/bin/sh\necho "$*" >> {folder}/asked\nprintf "{text}"\necho refused >&2\nexit {status}\n'
        )
        program.chmod(0o755)
        cli.patch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        self.asked = folder / "asked"


def with_nodes(cli: Cli, nodes: str) -> str:
    record = make_run(cli.install, state="FAILED")
    record.paths.events.write_text(json.dumps({"event": "start", "job_id": "101", "nodes": nodes}) + "\n")
    return record.paths.run_id


def test_a_retry_avoids_nodes_that_slurm_has_taken_out(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm(cli, tmp_path, "gpu3\\ngpu4\\n")
    run = with_nodes(cli, "gpu[1-8]")
    started: list[Any] = []

    def submit(plan: object, folder: Path, options: Any, on_record: object) -> Any:
        started.append((options.exclude, dict(options.left_out)))
        return make_run(cli.install, state="SUBMITTED")

    monkeypatch.setattr("llmb_run.starting.submitting.submit", submit)
    assert cli("retry", run, "--without-failed", "--exclude", "x7").status == 0
    assert [(given, list(left_out)) for given, left_out in started] == [("x7", ["gpu3", "gpu4"])]
    assert "--nodes=gpu[1-8] --states=down,drain,fail,no_respond" in slurm.asked.read_text()


@pytest.mark.parametrize(
    ("nodes", "text", "status"), [("", "", 0), ("gpu1", "", 0), ("gpu1", "", 1)], ids="unknown fine failing".split()
)
def test_a_retry_that_does_not_know_what_to_avoid(
    cli: Cli, tmp_path: Path, nodes: str, text: str, status: int, texts: Texts
) -> None:
    Slurm(cli, tmp_path, text, status)
    done = cli("retry", with_nodes(cli, nodes), "--without-failed")
    assert done.status == (3 if status else 2)
    texts(done.err)
