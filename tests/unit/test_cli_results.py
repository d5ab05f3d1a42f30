"""results: the published table, the figures derived from it, and a verdict only for comparable runs."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from llmb_common.planning.published import published_result
from llmb_common.recipes.loading import load_recipe
from llmb_common.results.verdict import BAND, judge_result, window_of
from llmb_common.timing.runs import analyse, find_runs
from support.cli import Cli
from support.iteration_logs import nemo_log
from support.runs import PUBLISHED, ROOT, make_run, plan_for, steady_log

LLAMA = load_recipe(ROOT / "llama3.1")
NEMOTRON = load_recipe(ROOT / "nemotron4")


@pytest.mark.parametrize(
    ("milliseconds", "kind", "text"),
    [
        (5741.47, "as published", "as published (+0.0%)"),
        (5741.00, "as published", "as published (+0.0%)"),
        (5741.47 * 1.049, "as published", "as published (+4.9%)"),
        (5741.47 * 1.08, "slower", "slower by 8.0%"),
        (5741.47 * 0.90, "faster", "faster by 10.0%"),
    ],
)
def test_a_run_is_compared_with_its_published_step_time(
    tmp_path: Path, milliseconds: float, kind: str, text: str
) -> None:
    record = make_run(tmp_path, log=steady_log(milliseconds))
    timing = analyse(find_runs(record.paths.folder)[0], window_of(record.plan))
    verdict = judge_result(record.plan, LLAMA, timing)
    assert (verdict.kind, verdict.text) == (kind, text)
    assert verdict.published is not None
    assert verdict.published.step_seconds == 5.74147
    assert verdict.difference == pytest.approx(milliseconds / 5741.47 - 1, abs=1e-6)


def test_the_band_is_what_the_words_say() -> None:
    assert BAND == 0.05


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


@pytest.mark.parametrize(
    ("boost", "text"),
    [
        ("true", "as published (+1.2%)"),
        ("false", "as published (+1.2%), without the published run's clock boost"),
    ],
)
def test_a_run_without_the_published_clock_boost_says_so(tmp_path: Path, boost: str, text: str) -> None:
    variables = {"MODEL_SIZE": "15b", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "16", "GPU_TYPE": "h100"}
    record = make_run(tmp_path, "nemotron4", log=nemo_log(range(50)), variables=variables | {"ENABLE_VBOOST": boost})
    timing = analyse(find_runs(record.paths.folder)[0], window_of(record.plan))
    # The log's steps take 2.693 s, the published ones 2.66 s.
    assert judge_result(record.plan, NEMOTRON, timing).text == text


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


def test_the_figures_of_the_documented_example(cli: Cli) -> None:
    """The example in the 25.10 README of Llama 3.1: 5.74147 s per step, 91,316 tokens/s (corrected), 36.75 % MFU,
    126.75 days."""
    record = make_run(cli.install, log=steady_log(5741.47))
    done = cli("results", "--json")
    (run,) = done.data["runs"]
    assert done.status == 0
    assert run["run_id"] == record.paths.run_id
    assert run["tokens_per_second"] == pytest.approx(91316, abs=1)
    assert run["mfu_percent"] == pytest.approx(36.75, abs=0.01)
    assert run["days_1t"] == pytest.approx(126.75, abs=0.01)
    assert run["tflops_per_gpu"] == pytest.approx(1800.6, abs=0.1)
    assert run["published"]["tokens_per_second"] == 91316  # the corrected value, not the printed one
    assert run["verdict"] == "as published"


def test_the_older_documents_measure_the_last_step(cli: Cli) -> None:
    variables = {"MODEL_SIZE": "15b", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "16", "GPU_TYPE": "h100"}
    log = nemo_log(range(49)) + nemo_log([49]).replace("2.693", "2.500")
    make_run(cli.install, "nemotron4", log=log, variables=variables)
    (run,) = cli("results", "--json").data["runs"]
    assert (run["step_seconds"], run["step_seconds_mean"]) == (2.5, pytest.approx(2.693))


def test_the_table_is_the_documented_one_and_the_figures_follow(cli: Cli) -> None:
    record = make_run(cli.install, log=steady_log(5741.47))
    done = cli("results")
    lines = done.out.splitlines()
    assert lines[0] == "Elapsed Time (ms) and TFLOPS/GPU Analysis (iterations 35-44)"
    assert lines[1] == "=" * 80
    assert " ".join(lines[2].split()) == (
        "Experiment Status Time Mean (ms) Time Std (ms) TFLOPS_per_GPU Mean TFLOPS_per_GPU Std"
    )
    assert lines[4].split()[-5:] == ["Success", "5741.470", "0.000", "1636.80", "0.00"]
    assert lines[-1].split() == [
        *(record.paths.run_id, "128", "5.741", "91316", "1800.61", "36.75", "126.75", "5.74147"),
        *("as", "published", "(+0.0%)"),
    ]


def test_runs_of_two_documents_get_two_tables(cli: Cli) -> None:
    make_run(cli.install, log=steady_log(5741.47))
    grok = {"GPU_TYPE": "h100", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "512"}
    make_run(cli.install, "grok1", log=steady_log(9000), variables=grok)
    out = cli("results").out
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
    assert by_status["Success"]["verdict"] == "as published"
    assert by_status["Failed"]["step_s"] == ""
    assert "nan" not in done.out.lower()


def test_runs_are_selected_by_word_and_by_option(cli: Cli) -> None:
    big = make_run(cli.install, log=steady_log(5741.47))
    small = make_run(cli.install, log=steady_log(800), variables=PUBLISHED | {"MODEL_SIZE": "8b"}, job_id="102")

    def found(*arguments: str | Path) -> list[str]:
        return [run["run_id"] for run in cli("results", "--json", *arguments).data["runs"]]

    assert found(small.paths.run_id[:5]) == [small.paths.run_id]
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


def test_a_log_of_another_launcher_is_read_but_not_judged(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "log-old.out").write_text(nemo_log())
    done = cli("results", folder)
    assert done.status == 0
    assert "Train Step Timing and TFLOPS Analysis (iterations 11-44)" in done.out
    assert "not an LLMB run: no figures" in done.out


def test_another_window(cli: Cli) -> None:
    make_run(cli.install, log=steady_log(5741.47, steps=20))
    assert cli("results").status == 1
    assert "(iterations 5-14)" in cli("results", "--window", "5-14").out
    assert cli("results", "--window", "14-5").status == 2


def test_a_damaged_record_is_reported_and_the_log_is_still_read(cli: Cli) -> None:
    record = make_run(cli.install, log=steady_log(5741.47))
    record.paths.record.write_text("{")
    done = cli("results", record.paths.folder)
    assert "not valid JSON" in done.err
    assert "5741.470" in done.out


def test_a_record_in_an_unknown_recipe_has_no_figures(cli: Cli) -> None:
    record = make_run(cli.install, log=steady_log(5741.47))
    text = record.paths.record.read_text().replace('"workload": "pretrain_llama3.1"', '"workload": "pretrain_gone"')
    record.paths.record.write_text(text)
    done = cli("results", record.paths.folder)
    assert "no figures: no workload 'pretrain_gone'" in done.err
