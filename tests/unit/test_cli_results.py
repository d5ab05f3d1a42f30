"""results: the published table, the figures derived from it, and a verdict only for comparable runs."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime
from pathlib import Path

import pytest

from llmb_common.planning.published import published_result
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.recipe import Recipe
from llmb_common.results.steps import window_of
from llmb_common.results.verdict import Verdict, judge_result
from llmb_common.runs.record import RunRecord
from llmb_common.runs.timing.log_files import find_runs
from llmb_common.runs.timing.runs import analyse
from support.cli import Cli
from support.iteration_logs import mbridge_line, nemo_log
from support.runs import PUBLISHED, ROOT, cut_log, make_run, plan_for, steady_log

LLAMA = load_recipe(ROOT / "llama3.1")
NEMOTRON = load_recipe(ROOT / "nemotron4")


SAME_SOFTWARE = {"RUN_CONF_IMAGE": "nvcr.io#nvidia/nemo:25.09.00"}
"""The container that the published run of PUBLISHED was measured in."""


def judged(record: RunRecord, recipe: Recipe = LLAMA) -> Verdict:
    timing = analyse(find_runs(record.paths.folder)[0], window_of(record.plan))
    return judge_result(record.plan, recipe, timing)


PASSED = "stated scatter; stalls rarer than 1 step in 13 would not show)"
CLOSE = "stated scatter): too close to the limit to tell"


@pytest.mark.parametrize(
    ("ratio", "kind", "text"),
    [
        (0.90, "pass", f"10.0 % faster ± 6.6 % (limit 5.0 % slower; {PASSED}"),
        (0.97, "pass", f"3.0 % faster ± 7.1 % (limit 5.0 % slower; {PASSED}"),
        (
            *(1.00, "open"),
            "equal ± 7.3 % (limit 5.0 % slower; stated scatter): about 2 more runs, on 2 further days, would decide",
        ),
        (1.04, "open", f"4.0 % slower ± 7.6 % (limit 5.0 % slower; {CLOSE}"),
        (1.05, "open", f"5.0 % slower ± 7.7 % (limit 5.0 % slower; {CLOSE}"),
        (1.13, "fail", "13.0 % slower ± 8.3 % (limit 5.0 % slower; stated scatter)"),
    ],
)
def test_a_run_is_compared_with_the_published_step_time(tmp_path: Path, ratio: float, kind: str, text: str) -> None:
    record = make_run(tmp_path, log=steady_log(5741.47 * ratio), variables=PUBLISHED | SAME_SOFTWARE)
    verdict = judged(record)
    assert (verdict.kind, verdict.text) == (kind, f"{kind}, {text}")
    assert verdict.reference.seconds == 5.74147
    assert verdict.difference == pytest.approx(ratio - 1, abs=1e-6)


MORE = "limit 8.4 % slower; stated scatter): about {0} more runs, on {0} further days, would decide"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.00, f"pass, equal ± 7.3 % (limit 8.4 % slower; {PASSED}"),
        (1.06, f"open, 6.0 % slower ± 7.7 % ({MORE.format(9)}"),
        (1.13, f"open, 13.0 % slower ± 8.3 % ({MORE.format(2)}"),
        (1.17, "fail, 17.0 % slower ± 8.5 % (limit 8.4 % slower; stated scatter)"),
    ],
)
def test_on_other_software_a_verdict_is_an_indication(tmp_path: Path, ratio: float, text: str) -> None:
    """The default image is newer than the published run's container; releases differ by up to 3.2 %."""
    assert judged(make_run(tmp_path, log=steady_log(5741.47 * ratio))).text == f"indication: {text}"


def test_one_fast_last_step_does_not_make_a_slow_run_a_good_one(tmp_path: Path) -> None:
    """The older READMEs state the last step: it is shown, and the window decides."""
    variables = {"MODEL_SIZE": "70b", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "64", "GPU_TYPE": "h100"}
    log = steady_log(20000, 49) + mbridge_line(50, milliseconds=14660.0)
    verdict = judged(make_run(tmp_path, log=log.replace("/      49", "/      50"), variables=variables))
    assert verdict.kind == "fail"
    assert any("14.66 s (+0.0 %)" in text for text in verdict.remarks)


def test_a_stall_costs_what_it_costs(tmp_path: Path) -> None:
    slow = mbridge_line(39, milliseconds=4 * 5741.47)
    log = steady_log(5741.47).replace(mbridge_line(39, milliseconds=5741.47), slow)
    verdict = judged(make_run(tmp_path, log=log))
    assert verdict.text.startswith("indication: open, 7.5 % slower ± ")
    assert "; steady steps pass (equal), stalls cost 7.5 %" in verdict.text, "three steps more in forty"
    assert any("1 of 10 measured steps is an outlier (iteration 39" in text for text in verdict.remarks)


def test_stalls_of_the_window_alone_are_priced_over_all_steps(tmp_path: Path) -> None:
    log = steady_log(5741.47)
    for index in (36, 38, 40):
        log = log.replace(mbridge_line(index, milliseconds=5741.47), mbridge_line(index, milliseconds=9000))
    verdict = judged(make_run(tmp_path, log=log))
    assert verdict.kind == "open"
    assert verdict.difference == pytest.approx(3 * (9000 / 5741.47 - 1) / 40)


def test_a_run_that_failed_before_its_last_step_has_no_figures(cli: Cli) -> None:
    make_run(cli.install, state="FAILED", log=cut_log(5741.47))
    (run,) = cli("results", "--json").data["runs"]
    assert (run["status"], run["verdict"], run["difference"]) == ("Failed", "not judged", None)
    assert {run[name] for name in ("step_seconds", "tokens_per_second", "mfu_percent", "days_1t")} == {None}


def test_the_result_names_what_it_was_compared_with(cli: Cli) -> None:
    make_run(cli.install, log=steady_log(5741.47))
    said = " ".join(cli("results", "--notes", COLUMNS="1000").out.split())
    assert (
        "reference 5.74147 s (NVIDIA DGX Cloud Benchmarking, llama3.1 25.10, 2025-12-04; Megatron-Bridge,"
        " nemo:25.09.00), measured with other software - published result of"
    ) in said
    assert "step time of dense models changes by -7 % to +3 %, so its limit is wider" in said
    assert "± is the 97.7 % interval of the difference" in said
    (run,) = cli("results", "--json").data["runs"]
    assert run["indication"] is True
    assert run["reference"] == {
        "kind": "published",
        "seconds": 5.74147,
        "software": "Megatron-Bridge, nemo:25.09.00",
        "source": "NVIDIA DGX Cloud Benchmarking, llama3.1 25.10, 2025-12-04",
        "same_software": False,
        "notes": [],
    }


DIFFERENT = {
    "a column": {"TP": "4"},
    "the batch": {"GBS": "128"},
    "strong scaling": {"STRONG_SCALING": "true"},
    "the FP8 recipe": {"FP8_RECIPE": "mx"},
    "a profile": {"ENABLE_PROFILE": "true"},
    "a trace": {"ENABLE_NCCLTRACE": "true"},
    "saving": {"ENABLE_CHECKPOINT": "true"},
    "the scale": {"JOB_TOTAL_GPUS": "256"},
    "the GPU": {"GPU_TYPE": "gb300"},
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_configuration_that_differs_in_one_thing_has_no_reference(tmp_path: Path, what: str) -> None:
    assert published_result(plan_for(tmp_path, **PUBLISHED), LLAMA) is not None
    assert published_result(plan_for(tmp_path, **(PUBLISHED | DIFFERENT[what])), LLAMA) is None


def test_balanced_routing_is_not_what_was_published(tmp_path: Path) -> None:
    recipe = load_recipe(ROOT / "grok1")
    result = recipe.results[0]
    published = {"GPU_TYPE": result.gpu, "MODEL_SIZE": result.size, "DTYPE": result.dtype}
    published |= {"JOB_TOTAL_GPUS": str(result.gpus)}
    assert published_result(plan_for(tmp_path, "grok1", **published), recipe) == result
    assert published_result(plan_for(tmp_path, "grok1", **published, MOE_ROUTING="balanced"), recipe) is None


def test_a_loaded_checkpoint_has_no_reference_whatever_its_steps(tmp_path: Path) -> None:
    for more in ({}, {"MAX_STEPS": "100"}):
        loaded = plan_for(tmp_path, **PUBLISHED, LOAD_CHECKPOINT_PATH=str(tmp_path / "checkpoints"), **more)
        assert published_result(loaded, LLAMA) is None
        assert loaded.preflight.reference_step_seconds is None


def test_an_h200_is_not_an_h100(tmp_path: Path) -> None:
    published = {"MODEL_SIZE": "70b", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "64"}
    assert published_result(plan_for(tmp_path, GPU_TYPE="h100", **published), LLAMA) is not None
    assert published_result(plan_for(tmp_path, GPU_TYPE="h200", **published), LLAMA) is None


def test_what_is_never_judged(cli: Cli) -> None:
    smoke = {"GPU_TYPE": "cpu", "MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "2", "CLUSTER_TYPE": "local"}
    runs = {
        "smoke": make_run(cli.install, log=steady_log(100), variables=smoke),
        "dead": make_run(cli.install, state="FAILED", log=steady_log(5741.47)[:4000]),
        "profiled": make_run(cli.install, log=steady_log(5741.47), variables=PUBLISHED | {"ENABLE_PROFILE": "true"}),
        "traced": make_run(cli.install, log=steady_log(5741.47), variables=PUBLISHED | {"ENABLE_NCCLTRACE": "true"}),
    }
    found = {run["run_id"]: run for run in cli("results", "--json").data["runs"]}
    verdicts = {name: found[record.paths.run_id] for name, record in runs.items()}
    assert {run["verdict"] for run in verdicts.values()} == {"not judged"}
    assert all(run["published"] is None and run["difference"] is None for run in verdicts.values())
    assert verdicts["dead"]["step_seconds"] is None
    assert verdicts["smoke"]["mfu_percent"] is None


def test_the_older_documents_measure_the_last_step(cli: Cli) -> None:
    variables = {"MODEL_SIZE": "15b", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "16", "GPU_TYPE": "h100"}
    log = nemo_log(range(49)) + nemo_log([49]).replace("2.693", "2.500")
    make_run(cli.install, "nemotron4", log=log, variables=variables)
    (run,) = cli("results", "--json").data["runs"]
    assert (run["step_seconds"], run["step_seconds_mean"]) == (2.5, pytest.approx(2.693))


def test_the_conclusion_comes_first_and_the_figures_and_the_documented_table_follow(cli: Cli) -> None:
    record = make_run(cli.install, log=steady_log(5741.47))
    first, runs, table, last = cli("results", "--runs", "--timing").out.split("\n\n")
    assert first.splitlines()[0] == "llama3.1 405b fp8 on 128 gb200, 1 run: PASS*, as fast as the reference"
    lines = table.splitlines()
    assert runs.splitlines()[1].split()[0] == record.paths.run_id
    assert last.startswith("next: llmb-run ")
    assert lines[0] == "Elapsed Time (ms) and TFLOPS/GPU Analysis (iterations 35-44)"
    assert lines[1] == "=" * 80
    assert " ".join(lines[2].split()) == (
        "Experiment Status Time Mean (ms) Time Std (ms) TFLOPS_per_GPU Mean TFLOPS_per_GPU Std"
    )
    assert lines[4].split()[-5:] == ["Success", "5741.470", "0.000", "1636.80", "0.00"]


def test_runs_of_two_documents_get_two_tables(cli: Cli) -> None:
    make_run(cli.install, log=steady_log(5741.47))
    grok = {"GPU_TYPE": "h100", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "512"}
    make_run(cli.install, "grok1", log=steady_log(9000), variables=grok)
    out = cli("results", "--timing").out
    assert "Elapsed Time (ms) and TFLOPS/GPU Analysis (iterations 35-44)" in out
    assert "Train Step Timing and TFLOPS Analysis (iterations 11-44)" in out


def test_csv_is_rectangular_and_empty_where_there_is_no_figure(cli: Cli) -> None:
    make_run(cli.install, log=steady_log(5741.47))
    make_run(cli.install, state="FAILED")
    done = cli("results", "--format", "csv")
    assert done.status == 1
    rows = list(csv.reader(io.StringIO(done.out)))
    assert {len(row) for row in rows} == {len(rows[0])}
    by_status = {row[1]: dict(zip(rows[0], row, strict=True)) for row in rows[1:]}
    assert by_status["Success"]["verdict"] == "pass"
    assert by_status["Failed"]["step_s"] == ""
    good = by_status["Success"]
    assert [good[name] for name in ("workload", "model_size", "dtype", "gpu_type", "gpus", "state")] == [
        *("pretrain_llama3.1", "405b", "fp8", "gb200", "128", "COMPLETED")
    ]
    assert float(good["time_mean_s"]) == pytest.approx(5.74147, abs=1e-12), "in full"
    assert datetime.fromisoformat(good["date"]).tzinfo is not None
    assert (good["reference_step_s"], good["reference_software"]) == ("5.74147", "Megatron-Bridge, nemo:25.09.00")
    assert "nan" not in done.out.lower()


def test_runs_are_selected_by_word_and_by_option(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    big = make_run(cli.install, log=steady_log(5741.47))
    with monkeypatch.context() as patch:  # an id whose beginning is no number: that would name a job
        patch.setattr("secrets.token_hex", lambda size: "5ab1e000")
        small = make_run(cli.install, log=steady_log(800), variables=PUBLISHED | {"MODEL_SIZE": "8b"}, job_id="102")

    def found(*arguments: str | Path) -> list[str]:
        return [run["run_id"] for run in cli("results", "--json", *arguments).data["runs"]]

    assert found(small.paths.run_id) == [small.paths.run_id]
    assert found("101") == [big.paths.run_id]
    assert found(small.paths.name) == [small.paths.run_id]
    assert found(small.paths.folder) == [small.paths.run_id]
    assert found("-s", "405b") == [big.paths.run_id]
    assert found("-w", "llama3.1", "--scale", "128", "--since", "1h", "--limit", "1") == [small.paths.run_id]
    none = cli("results", "-s", "70b")
    assert (none.status, "no run matches" in none.err) == (2, True)
    wrong = cli("results", "-w", "lama3.1")
    assert (wrong.status, "did you mean" in wrong.err) == (2, True)
    assert "did you mean 'RUNNING'" in cli("results", "--state", "runing").err
    assert cli("results", "--format", "cvs").err.startswith("error: --format cvs is unknown (did you mean 'csv'?)")


def test_another_window(cli: Cli) -> None:
    make_run(cli.install, log=steady_log(5741.47, steps=20))
    assert cli("results").status == 1
    assert "(iterations 5-14)" in cli("results", "--timing", "--window", "5-14").out
    assert cli("results", "--window", "14-5").status == 2


def test_a_damaged_record_is_reported_and_the_log_is_still_read(cli: Cli) -> None:
    record = make_run(cli.install, log=steady_log(5741.47))
    record.paths.record.write_text("{")
    done = cli("results", record.paths.folder)
    assert "not valid JSON" in done.err
    assert " 5.741 " in done.out


def test_a_record_in_an_unknown_recipe_has_no_figures(cli: Cli) -> None:
    record = make_run(cli.install, log=steady_log(5741.47))
    text = record.paths.record.read_text().replace('"workload": "pretrain_llama3.1"', '"workload": "pretrain_gone"')
    record.paths.record.write_text(text)
    done = cli("results", record.paths.folder)
    assert "no figures: no workload 'pretrain_gone'" in done.err


def test_every_step_as_csv(cli: Cli) -> None:
    first, second = (make_run(cli.install, log=steady_log(5000), job_id=str(number)) for number in (101, 102))
    rows = list(csv.DictReader(io.StringIO(cli("results", "--iterations").out)))
    assert len(rows) == 100
    assert {row["run"] for row in rows} == {first.paths.run_id, second.paths.run_id}
    assert [row["iteration"] for row in rows[:50] if row["measured"] == "true"] == [str(n) for n in range(35, 45)]
    assert (rows[0]["seconds"], rows[0]["loss"], rows[0]["skipped"]) == ("5.0", "6.958428", "false")
    assert cli("results", "--iterations", "--group").status == 2


def test_every_step_as_json(cli: Cli) -> None:
    record = make_run(cli.install, log=steady_log(5000))
    steps = json.loads(cli("results", "--iterations", "--json").out)["data"]["steps"]
    assert steps == json.loads(cli("results", "--iterations", "--format", "json").out)["data"]["steps"]
    assert [step["iteration"] for step in steps if step["measured"]] == [*range(35, 45)]
    assert (steps[0]["run"], steps[0]["seconds"], steps[0]["skipped"]) == (record.paths.run_id, 5.0, False)


def test_no_cell_is_a_formula(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "log-=HYPERLINK(1).out").write_text(nemo_log())
    for arguments in (("--format", "csv"), ("--iterations",)):
        out = cli("results", folder, *arguments).out
        assert "'=HYPERLINK(1)" in out
        assert not any(cell.startswith("=") for row in csv.reader(io.StringIO(out)) for cell in row)
