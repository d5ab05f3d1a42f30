"""A pass needs a training: what no training does is found, and what healthy ones do is left alone."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
import statistics
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from llmb_common.results.steps import logged_tflop
from llmb_common.results.training import (
    Training,
    _longest_row,
    odd_course,
    training_of,
    training_sense,
    unlike_repeats,
)
from llmb_common.runs.timing.iterations import read_log
from llmb_common.runs.timing.records import Iteration
from llmb_common.runs.timing.window import Window
from support import instant
from support.cli import Cli
from support.iteration_logs import mbridge_line, nemo_line, nemo_log
from support.runs import PUBLISHED, make_run, plan_for, steady_log
from support.texts import Texts

DATA = Path(__file__).resolve().parents[1] / "data" / "logs"
FAST = 5741.47 * 0.9
"""Milliseconds; PUBLISHED takes a tenth longer."""

PLAN = plan_for(Path("/install"), **PUBLISHED)


def run_of(losses: Sequence[float | None], **fields: object) -> list[Iteration]:
    """A run with these losses, whose other figures are healthy."""
    healthy = {"grad_norm": 1.0, "learning_rate": 1e-4, "loss_scale": 1.0} | fields
    return [Iteration(index, len(losses), 1.0, loss=loss, **healthy) for index, loss in enumerate(losses, 1)]  # type: ignore[arg-type]


def sense(iterations: Sequence[Iteration]) -> tuple[str, ...]:
    return training_sense(training_of(iterations), PLAN)


def falling(noise: float = 0.01, end: float = 6.0, seed: int = 1) -> list[float]:
    """As mock data do: from an untrained model's loss towards ``end``, after a warm-up of the learning rate."""
    source = random.Random(seed)
    level = [end + (11.9 - end) * math.exp(-max(0, step - 4) / 12) for step in range(50)]
    return [value + source.gauss(0, noise) for value in level]


def noisy(level: float, noise: float, seed: int = 1) -> list[float]:
    source = random.Random(seed)
    return [level + source.gauss(0, noise) for _ in range(50)]


def with_figures(iterations: Sequence[Iteration], change: Callable[[int], dict[str, object]]) -> list[Iteration]:
    return [item._replace(**change(item.index)) for item in iterations]


@pytest.mark.parametrize(
    "losses",
    [
        falling(),
        falling(noise=0.3, end=0.05),
        falling(end=11.2),
        [11.89, 11.90, 6.21, 12.44, 10.99, 9.05, 8.51, 8.45, 8.59, 8.24] + [8.2 - step / 100 for step in range(40)],
        noisy(0.45, 0.05) and [0.8 - step / 100 + value / 10 for step, value in enumerate(noisy(0.4, 0.3))],
        [value if step not in (20, 21) else 3 * value for step, value in enumerate(falling(end=2.0))],
    ],
    ids=["falling", "memorized, noisy", "slow", "chaotic start", "fine-tuning", "a spike of two steps"],
)
def test_a_healthy_training_has_sense(losses: list[float]) -> None:
    assert sense(run_of(losses)) == ()


def test_a_real_log_has_sense() -> None:
    with FileIO(DATA / "mbridge_2ranks_cpu.out") as file:
        assert sense(read_log(file).iterations) == ()


@pytest.mark.parametrize(
    "losses",
    [
        [5 + step for step in range(50)],
        noisy(11.9, 0.01)[:20] + [11.9 + step for step in range(30)],
        [6.958428] * 50,
        [*falling()[:38], *[7.0] * 12],
        [0.0] * 50,
        [12 - step / 5 for step in range(30)] + [9.0 + step / 100 for step in range(20)],
        noisy(11.9, 0.01),
    ],
    ids=["rising", "late rise", "flat", "frozen at the end", "zero", "learns and forgets", "flat with noise"],
)
def test_what_no_loss_does_is_said(losses: list[float], texts: Texts) -> None:
    (text,) = sense(run_of(losses))
    texts(text)


@pytest.mark.parametrize(("count", "said"), [(9, False), (10, True)])
def test_a_loss_may_stand_still_for_nine_steps(count: int, said: bool) -> None:
    losses = falling()
    losses[30 : 30 + count] = [7.0] * count
    assert bool(sense(run_of(losses))) is said


@pytest.mark.parametrize(
    ("start", "lowest", "end", "said"),
    [
        (10.0, 9.0, 9.95, False),  # what has learned a tenth at most has nothing to forget
        (10.0, 8.99, 9.95, True),
        (12.0, 9.0, 9.95, False),  # a third of what was learned is 1.0
        (12.0, 9.0, 10.05, True),
        (12.0, 10.0, 10.9, False),  # a tenth of the lowest level is 1.0
        (12.0, 10.0, 11.1, True),
    ],
)
def test_how_much_a_loss_may_rise_again(start: float, lowest: float, end: float, said: bool) -> None:
    """Medians of ten steps each, of which nine in a row may be equal."""
    losses = [value for level in (start, lowest, lowest, lowest, end) for value in (*[level] * 9, level - 0.1)]
    assert bool(sense(run_of(losses))) is said


def test_rules_of_the_loss_are_those_of_mtp_too(texts: Texts) -> None:
    iterations = with_figures(run_of(falling()), lambda index: {"mtp_loss": 5.0 + index})
    (said,) = sense(iterations)
    texts(said)


def test_a_gradient_of_zero_moves_nothing(texts: Texts) -> None:
    (said,) = sense(run_of(falling(), grad_norm=0.0))
    texts(said)
    once = with_figures(run_of(falling()), lambda index: {"grad_norm": 0.0 if index == 7 else 0.6})
    assert sense(once) == ()
    tiny = run_of([0.04 * 0.99**step for step in range(50)], grad_norm=0.0)
    assert sense(tiny) == (), "three decimals are too few for what is left to learn"


def test_a_learning_rate_of_zero_moves_nothing(texts: Texts) -> None:
    (said,) = sense(run_of(falling(), learning_rate=0.0))
    texts(said)
    first = with_figures(run_of(falling()), lambda index: {"learning_rate": 0.0 if index < 3 else 1e-4})
    assert sense(first) == ()


def skipping(steps: range, scale: float) -> list[Iteration]:
    return with_figures(
        run_of(falling()), lambda index: {"skipped": True, "loss_scale": scale} if index in steps else {}
    )


def test_skipped_steps_are_counted_but_for_the_first_of_a_scaled_loss() -> None:
    def counted(steps: range, scale: float) -> list[str]:
        (said,) = sense(skipping(steps, scale))
        return re.findall(r"\d+", said)

    assert counted(range(1, 34), 2.0**20) == ["33", "50"]
    assert sense(skipping(range(1, 17), 2.0**20)) == (), "as FP16 does until its scale fits"
    assert counted(range(1, 17), 1.0) == ["16", "50"]
    assert counted(range(25, 35), 2.0**20) == ["10", "50"]
    assert sense(skipping(range(25, 26), 2.0**20)) == (), "one now and then is usual"


@pytest.mark.parametrize(("count", "said"), [(24, False), (25, True)])
def test_a_scaled_loss_fits_after_24_steps(count: int, said: bool) -> None:
    assert bool(sense(skipping(range(1, count + 1), 2.0**20))) is said


@pytest.mark.parametrize(("count", "said"), [(2, False), (3, True)])
def test_a_twentieth_of_the_steps_may_be_skipped(count: int, said: bool) -> None:
    forty = [item._replace(skipped=item.index in range(30, 30 + count)) for item in run_of(falling()[:40])]
    assert bool(sense(forty)) is said


def test_a_loss_that_stands_still_is_usual_where_nothing_can_be_learned(texts: Texts) -> None:
    """NeMo's synthetic tokens are random, and it prints four digits: published logs show 11.87 in every step."""
    items = with_figures(run_of([11.87] * 50, zero_based=True, learning_rate=1e-5), lambda index: {"index": index - 1})
    assert sense(items) == ()
    (text,) = sense([item._replace(loss=5.0) for item in items])
    texts(text)
    assert text.endswith(" 11.8")


def test_a_long_warm_up_is_nearly_flat() -> None:
    losses = [12.9 + value for value in noisy(0, 0.01)]
    warming = [item._replace(learning_rate=1e-8 * item.index) for item in run_of(losses)]
    assert sense(warming) == ()


def test_a_model_that_was_trained_before_need_not_improve() -> None:
    steady = [2.1 + step / 1000 for step in range(50)]
    assert sense(run_of(steady)) != (), "from scratch it would not do"
    assert sense([item._replace(index=item.index + 100) for item in run_of(steady)]) == ()
    loads = plan_for(Path("/install"), **PUBLISHED, LOAD_CHECKPOINT_PATH="/checkpoints/a")
    assert training_sense(training_of(run_of(steady)), loads) == ()


def test_noise_is_no_trend() -> None:
    tuned = [run_of([max(0.05, value) for value in noisy(1.2, 0.5, seed)]) for seed in range(100)]
    assert not any(training_of(run).faults for run in tuned)
    loud = [[8.0 - 1.5 * (step > 10) + value for step, value in enumerate(noisy(0, 1.0, seed))] for seed in range(100)]
    assert sum(training_of(run_of(losses)).falls for losses in loud) >= 98


def test_few_steps_say_nothing_of_a_trend() -> None:
    assert sense(run_of([5.0, 6.0, 9.0])) == ()
    assert training_of(()) == Training()


def test_false_alarms_and_misses_stay_rare() -> None:
    """Of 300 runs each; ``docs/benchmarks.md`` has more."""
    trials = range(300)
    healthy = [sense(run_of(falling(noise, end, seed))) for seed in trials for noise, end in [(0.2, 6.0), (0.02, 11.6)]]
    assert sum(map(bool, healthy)) == 0
    random_tokens = [sense(run_of(noisy(11.77, 0.003, seed), learning_rate=1e-6)) for seed in trials]
    assert sum(map(bool, random_tokens)) == 0
    flat = [sense(run_of(noisy(11.9, 0.05, seed))) for seed in trials]
    assert sum(map(bool, flat)) >= 0.98 * len(trials)
    rising = [sense(run_of([value + step / 25 for step, value in enumerate(noisy(11, 0.2, seed))])) for seed in trials]
    assert sum(map(bool, rising)) == len(trials)


def trained(end: float | None, steps: int = 50, losses: tuple[str, ...] = ("lm loss",)) -> Training:
    return Training(steps=steps, start=11.9, end=end, losses=losses)


def test_a_run_unlike_its_repeats_is_named() -> None:
    found = unlike_repeats([trained(6.2), trained(6.3), trained(9.8), trained(6.25)])
    assert [re.findall(r"\d[\d.]*\d", said) for clauses in found for said in clauses] == [["9.8", "6.275"]]
    assert [bool(clauses) for clauses in found] == [False, False, True, False]
    assert unlike_repeats([trained(6.2), trained(9.8)]) == [(), ()], "of two nobody knows which is wrong"
    assert not any(unlike_repeats([trained(0.02), trained(0.05), trained(0.4)])), "memorized, all of them"
    assert not any(unlike_repeats([trained(6.2), trained(6.3), trained(9.8, steps=20)])), "a shorter run"
    assert not any(unlike_repeats([trained(None)] * 3))
    chain = [trained(end)._replace(begins=end > 6) for end in (6.2, 4.5, 4.2, 4.1)]
    assert not any(unlike_repeats(chain)), "jobs that go on are no repeats of the first"
    assert not any(unlike_repeats([trained(4.0), trained(6.0), trained(8.0), trained(9.5)])), "none is like another"


def test_less_than_one_tflops_is_too_coarse_for_a_count() -> None:
    """A single decimal is printed: 0.2 may be 0.15 to 0.25."""
    assert logged_tflop(run_of([6.0], tflops=0.2)) is None
    assert logged_tflop(run_of([6.0], tflops=1.0)) == 1.0


def test_a_loss_that_repeats_print_is_missing(texts: Texts) -> None:
    both = ("lm loss", "mtp_1 loss")
    found = unlike_repeats([trained(6.2, losses=both), trained(6.2), trained(6.3, losses=both)])
    assert [len(texts) for texts in found] == [0, 1, 0]
    texts(found[1][0])


def flat_log() -> str:
    return steady_log(FAST, loss="6.958428E+00")


@pytest.mark.parametrize("log", [flat_log(), steady_log(FAST, tflops=0.44 * 1636.8 / 0.9)], ids=["flat", "other work"])
def test_a_fast_run_that_does_not_train_is_no_pass(cli: Cli, log: str, texts: Texts) -> None:
    make_run(cli.install, log=log)
    (run,) = cli("results", "--json").data["runs"]
    assert (run["status"], run["verdict"]) == ("Success", "fail")
    texts(run["verdict_text"])
    assert run["not_training"]
    assert run["difference"] == pytest.approx(-0.1, abs=1e-3), "its speed is there all the same"
    (group,) = cli("results", "--group", "--json").data["groups"]
    assert (group["verdict"], group["verdict_text"]) == (run["verdict"], run["verdict_text"])
    (row,) = csv.DictReader(io.StringIO(cli("results", "--format", "csv").out))
    assert (row["verdict"], row["not_training"]) == ("fail", "; ".join(run["not_training"]))
    report = cli.install / "report.xml"
    assert cli("report", "--junit", str(report)).status == 0
    assert '<failure message="' in report.read_text()
    assert "NOT TRAINING" in cli("results").out.splitlines()[0]


def test_the_same_run_with_a_falling_loss_passes(cli: Cli) -> None:
    make_run(cli.install, log=steady_log(FAST))
    (run,) = cli("results", "--json").data["runs"]
    assert (run["verdict"], run["not_training"]) == ("pass", [])


def test_one_run_of_several_that_does_not_train_spoils_the_pass(cli: Cli, texts: Texts) -> None:
    for number, log in enumerate((steady_log(FAST), flat_log(), steady_log(FAST), steady_log(FAST))):
        make_run(cli.install, log=log, job_id=str(101 + number))
    (group,) = cli("results", "--group", "--json").data["groups"]
    assert group["verdict"] == "fail"
    texts(group["verdict_text"])
    assert (len(group["run_ids"]), group["unsuccessful"]) == (3, 1)


def test_one_run_of_several_that_meets_nan_spoils_the_pass(cli: Cli, texts: Texts) -> None:
    """A crash does not: nobody knows what it would have trained."""
    extra = {True: "", False: "mtp_1 loss: 9.0E+00"}
    nan = "".join(mbridge_line(index, milliseconds=FAST, extra=extra[index == 20]) for index in range(1, 51))
    for number in range(3):
        make_run(cli.install, log=steady_log(FAST), job_id=str(101 + number))
    make_run(cli.install, log=steady_log(FAST)[:3000], state="FAILED", job_id="104")
    (group,) = cli("results", "--group", "--json").data["groups"]
    assert group["verdict"] == "pass"
    make_run(cli.install, log=nan, job_id="105")
    (group,) = cli("results", "--group", "--json").data["groups"]
    texts(group["verdict_text"])
    report = cli.install / "report.xml"
    cli("report", "--junit", str(report))
    assert re.search(r'<failure message="[^"]*\b1 of 5\b', report.read_text())


def test_repeats_show_which_run_is_wrong(cli: Cli) -> None:
    """Each alone falls."""
    for number, rate in enumerate((0.98, 0.98, 0.998, 0.98)):
        log = "".join(mbridge_line(n, milliseconds=FAST, loss=f"{12 * rate**n:.6E}") for n in range(1, 51))
        make_run(cli.install, log=log, job_id=str(101 + number))
    runs = cli("results", "--json").data["runs"]
    assert [run["verdict"] for run in sorted(runs, key=lambda run: run["job_id"])] == ["pass", "pass", "fail", "pass"]


def test_a_run_that_does_not_train_is_no_baseline(cli: Cli, texts: Texts) -> None:
    record = make_run(cli.install, log=flat_log())
    done = cli("baseline", "set", record.paths.run_id)
    assert done.status == 2
    texts(done.err)


def test_what_was_kept_says_so_without_the_log(cli: Cli) -> None:
    make_run(cli.install, log=flat_log())
    first, second = (cli("results", "--json").data["runs"] for _ in range(2))
    assert [run["not_training"] for run in first] == [run["not_training"] for run in second] != [[]]


def test_a_figure_that_nemo_prints_as_nan_fails(tmp_path: Path) -> None:
    log = nemo_log().replace(
        nemo_line(40, tflops=527.8), nemo_line(40, tflops=527.8).replace("lr: 4.491e-06", "lr: nan")
    )
    (tmp_path / "log-x.out").write_text(log)
    with FileIO(tmp_path / "log-x.out") as file:
        (odd,) = [item for item in read_log(file).iterations if item.not_finite]
    assert (odd.index, odd.not_finite, odd.learning_rate) == (40, ("lr",), None)


SUITE = """\
name: one
defaults: {size: smoke, dtype: bf16, scale: 1, repeats: 3, reruns: 4}
tests:
  - {workload: pretrain_llama3.1, reference: {seconds: 0.1, source: a contract}, env: {STEP_MS: "50"}}
"""


@pytest.mark.parametrize(
    "directed",
    [
        "diverging",
        "unlike",
    ],
)
def test_a_campaign_fails_where_a_run_does_not_train(site, tmp_path, directed, texts: Texts):
    suite = tmp_path / "one.yaml"
    suite.write_text(SUITE)
    instant.direct("1.2", directed)
    done = site("accept", suite, "--json")
    (item,) = done.data["workloads"]
    assert (done.status, item["verdict"], len(item["runs"])) == (1, "fail", 3)
    texts(item["text"])


def test_without_a_reference_it_fails_all_the_same(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    make_run(cli.install, log=flat_log(), variables=PUBLISHED | {"JOB_TOTAL_GPUS": "1024", "FORCE": "true"})
    (run,) = cli("results", "--json").data["runs"]
    assert (run["verdict"], run["reference"]) == ("fail", None)
    texts(run["verdict_text"])
    asked = [word for form in ("html", "markdown", "junit") for word in (f"--{form}", str(tmp_path / form))]
    assert cli("report", *asked).status == 0
    assert all("not training: " in (tmp_path / form).read_text() for form in ("html", "markdown", "junit"))
    assert cli("results", "--group").status == cli("results", "--history").status == 0


WINDOW = Window(35, 44)


def course(losses: Sequence[float], norms: Sequence[float | None] | None = None) -> tuple[str, ...]:
    iterations = run_of(losses)
    if norms is not None:
        iterations = [item._replace(grad_norm=norm) for item, norm in zip(iterations, norms, strict=True)]
    return odd_course(iterations, WINDOW)


@pytest.mark.parametrize("growth", [1.15, 1.3, 2.0])
def test_a_gradient_norm_that_grows_by_orders_of_magnitude_is_said(growth: float, texts: Texts) -> None:
    (text,) = course(falling(), [0.7 * growth**step for step in range(50)])
    texts(text)


@pytest.mark.parametrize(("last", "said"), [(2, False), (3, True)])
def test_three_of_the_last_five_gradient_norms_tell_where_they_end(last: int, said: bool) -> None:
    """As their median: 40 is thirty times the lowest level, and half of it would not be."""
    assert bool(course(falling(), [1.0] * (50 - last) + [40.0] * last)) is said


@pytest.mark.parametrize(("count", "said"), [(14, False), (15, True)])
def test_fifteen_gradient_norms_show_growth(count: int, said: bool) -> None:
    known = [1.0] * (count - 5) + [40.0] * 5
    assert bool(course(falling(), [None] * (50 - count) + known)) is said


def test_gradient_norms_of_healthy_trainings_are_left_alone() -> None:
    source = random.Random(3)
    early = [30 * math.exp(-step / 4) + 0.5 for step in range(50)]
    late = [0.3 + step / 50 for step in range(50)]
    memorized = [0.001 * (1 + step) for step in range(50)]
    bursts = [norm * source.choice([1, 1, 1, 1, 1, 1, 1, 1, 1, 40]) for norm in early]
    assert [course(falling(), norms) for norms in (early, late, memorized, bursts)] == [()] * 4


@pytest.mark.parametrize(
    ("at", "value", "named"), [(39, 13.0, True), (39, 3.0, True), (36, 8.0, True), (20, 13.0, False)]
)
def test_a_measured_loss_far_from_its_neighbors_is_said(at: int, value: float, named: bool, texts: Texts) -> None:
    losses = falling()
    losses[at] = value
    found = course(losses)
    assert bool(found) is named
    if named:
        texts(found[0])


@pytest.mark.parametrize(("iteration", "named"), [(34, False), (35, True), (44, True), (45, False)])
def test_the_first_and_the_last_measured_loss_are_looked_at(iteration: int, named: bool) -> None:
    losses = falling(noise=0.0)
    losses[iteration - 1] = 13.0
    assert bool(course(losses)) is named


@pytest.mark.parametrize(("value", "named"), [(25.6, False), (25.9, True)])
def test_a_far_loss_lies_ten_standard_deviations_above_all_but_a_quarter_of_those_around_it(
    value: float, named: bool
) -> None:
    """Half of the changes are 0.5, so their robust deviation is 1.4826 * 0.5, and that of a step sqrt(2) less: ten of
    them above 20.5 are 25.74."""
    losses = [20.0, 20.5, 20.5, 20.0] * 13
    losses[39] = value
    assert bool(course(losses[:50])) is named


@pytest.mark.parametrize(("value", "named"), [(0.28, False), (0.30, True)])
def test_a_loss_of_nearly_nothing_may_leap_by_a_fiftieth_of_the_first_three(value: float, named: bool) -> None:
    """Their median is 12: 0.24 above 0.05 are 0.29."""
    losses = [10.0, 12.0, 14.0, 2.0, *[0.05] * 46]
    losses[39] = value
    assert bool(course(losses)) is named


def test_of_several_far_losses_the_farthest_is_named_whether_it_is_high_or_low(texts: Texts) -> None:
    losses = falling(noise=0.0)
    losses[36], losses[40] = 9.0, 1.0
    (text,) = course(losses)
    texts(text)


def test_losses_of_healthy_trainings_are_not_far_from_their_neighbors() -> None:
    source = random.Random(5)
    for number in range(200):
        drop = 20 + number % 25
        abrupt = [12 * math.exp(-max(0, step - drop) / 2) + 0.02 for step in range(50)]
        curves = [falling(seed=number), falling(0.3, 5.0, seed=number), abrupt, [20.0 - step / 3 for step in range(50)]]
        for curve in curves:
            assert course([value * (1 + source.gauss(0, 0.03)) for value in curve]) == ()


def test_a_balancing_loss_below_zero_is_no_training() -> None:
    odd = (("load_balancing_loss", -0.012),)
    iterations = with_figures(run_of(falling()), lambda index: {"negative": odd if index > 20 else ()})
    (said,) = sense(iterations)
    assert (said.split()[0], re.findall(r"-?\d[\d.]*", said)) == ("load_balancing_loss", ["30", "50", "-0.012", "21"])


def test_skipped_steps_are_counted_within_records_of_several(texts: Texts) -> None:
    records = [Iteration(at, 50, 1.0, loss=9.0 - at / 50, grad_norm=1.0, skipped=8) for at in range(10, 51, 10)]
    texts("\n".join(training_of(records).faults))
    few = [item._replace(skipped=int(item.index < 25)) for item in records]
    assert training_of(few).faults == (), "2 of 50 are accidents, 2 of 5 would be none"


def test_a_log_that_llmb_did_not_make_is_looked_at_as_well(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    def results(log: str) -> tuple[dict[str, Any], str]:
        (tmp_path / "log-x.out").write_text(log)
        printed = cli("results", str(tmp_path / "log-x.out"), "--runs", COLUMNS="200")
        document = json.loads(cli("results", str(tmp_path / "log-x.out"), "--json").out)
        return document["data"]["runs"][0], printed.out + printed.err

    losses = falling()
    lines = [mbridge_line(n, loss=f"{losses[n - 1]:.4f}", tflops=612.3) for n in range(1, 51)]
    healthy, screen = results("".join(lines))
    assert (healthy["remarks"], healthy["not_training"]) == ([], [])
    assert "612.30" in screen.partition("\n\n")[2], "in the table of runs, too"
    skipping = [mbridge_line(n, loss=None, skipped=1) if not 35 <= n <= 44 else lines[n - 1] for n in range(1, 51)]
    odd, screen = results("".join(skipping))
    (said,) = odd["not_training"]
    assert re.findall(r"\d+", said) == ["40", "50"]
    texts(screen, about="- x")


def test_a_fall_goes_on_to_the_last_step() -> None:
    steep = [12 * 0.7**step + 0.5 for step in range(50)]
    assert [odd_course(run_of(steep), Window(first, first + 9)) for first in (1, 5, 41)] == [()] * 3


# Rules of the curve


def shaped(*levels: tuple[int, float], noise: float = 0.0) -> list[float]:
    """So many steps at each level, with a wave of which two thirds of the changes are ``noise`` and a third none."""
    wave = (0.0, noise, noise, 0.0, -noise, -noise)
    values = [level for count, level in levels for _ in range(count)]
    return [value + wave[at % 6] for at, value in enumerate(values)]


def error_of(fifth: int, first: int, noise: float) -> float:
    """Standard error of the difference of two medians, of ``first`` and of ``fifth`` steps.

    Changes of neighbors vary by two steps' variances; a median's error is sqrt(pi / 2) of a mean's.
    """
    return math.sqrt(math.pi / 2) * 1.4826 * noise / math.sqrt(2) * math.sqrt(1 / first + 1 / fifth)


def level_difference(losses: Sequence[float], first: int) -> float:
    """The median of so many first losses less that of the last fifth."""
    return statistics.median(losses[:first]) - statistics.median(losses[-(len(losses) // 5) :])


@pytest.mark.parametrize(("share", "falls"), [(1.02, True), (0.98, False)])
def test_a_loss_falls_where_it_does_by_three_standard_errors_of_its_first_three_steps(
    share: float, falls: bool
) -> None:
    """A steep fall, which is over within the first fifth of sixty steps, by less than a fiftieth of the loss."""
    noise, lift = 0.01, share * 3 * error_of(12, 3, 0.01)
    plain = shaped((60, 10.0), noise=noise)
    offset = level_difference(plain, 3)
    losses = [value + (lift - offset) * (at < 3) for at, value in enumerate(plain)]
    assert level_difference(losses, 3) == pytest.approx(lift)
    assert lift < 0.02 * 10
    assert training_of(run_of(losses)).falls is falls


@pytest.mark.parametrize(("share", "falls"), [(1.02, True), (0.98, False)])
def test_or_by_three_of_its_first_fifth(share: float, falls: bool) -> None:
    """A slow fall, by less than three standard errors of its first three steps, which are more uncertain."""
    noise, lift = 0.01, share * 3 * error_of(12, 12, 0.01)
    plain = shaped((60, 10.0), noise=noise)
    offset = level_difference(plain, 12)
    losses = [value + (lift - offset) * (at < 12) - noise * (at < 3) for at, value in enumerate(plain)]
    assert level_difference(losses, 12) == pytest.approx(lift)
    assert level_difference(losses, 3) < min(3 * error_of(12, 3, noise), 0.02 * 10)
    assert training_of(run_of(losses)).falls is falls


@pytest.mark.parametrize(("share", "falls"), [(1.05, True), (0.95, False)])
def test_a_fall_by_a_fiftieth_counts_however_noisy_it_is(share: float, falls: bool) -> None:
    plain = shaped((60, 10.0), noise=0.2)
    assert 3 * error_of(12, 12, 0.2) > 0.02 * 10
    offset, start = level_difference(plain, 3), statistics.median(plain[:3])
    lift = (0.02 * (start - offset) * share) / (1 - 0.02 * share) - offset
    losses = [value + lift * (at < 3) for at, value in enumerate(plain)]
    assert level_difference(losses, 3) == pytest.approx(share * 0.02 * statistics.median(losses[:3]))
    assert training_of(run_of(losses)).falls is falls


@pytest.mark.parametrize(("share", "rises"), [(1.02, True), (0.98, False)])
def test_a_noisy_loss_has_risen_by_six_standard_errors(share: float, rises: bool) -> None:
    noise = 0.5
    limit = 6 * error_of(12, 3, noise)
    plain = shaped((60, 10.0), noise=noise)
    losses = [value + (share * limit + level_difference(plain, 3)) * (at >= 48) for at, value in enumerate(plain)]
    assert -level_difference(losses, 3) == pytest.approx(share * limit)
    assert limit > 0.1 * 10.5
    assert bool(training_of(run_of(losses)).faults) is rises


@pytest.mark.parametrize(("share", "rises"), [(1.02, True), (0.98, False)])
def test_and_so_has_one_that_fell_before(share: float, rises: bool) -> None:
    noise = 0.5
    limit = 6 * error_of(12, 3, noise)
    plain = shaped((12, 9.0), (36, 5.0), (12, 5.0), noise=noise)
    lowest = min(statistics.median(plain[at : at + 12]) for at in range(12, 48, 12))
    end = statistics.median(plain[48:])
    losses = [value + (share * limit - (end - lowest)) * (at >= 48) for at, value in enumerate(plain)]
    assert limit > max(0.1 * lowest, 4.5 / 3)
    assert bool(training_of(run_of(losses)).faults) is rises


@pytest.mark.parametrize(("end", "rises"), [(10.9, False), (11.1, True)])
def test_a_calm_loss_has_risen_by_a_tenth(end: float, rises: bool) -> None:
    losses = shaped((25, 10.0), (25, end), noise=1e-6)
    assert bool(training_of(run_of(losses)).faults) is rises


@pytest.mark.parametrize(("count", "known"), [(14, False), (15, True)])
def test_fifteen_losses_show_where_it_starts_and_ends(count: int, known: bool) -> None:
    losses = [9.0, 12.0, 10.0, *[8.0] * (count - 6), 5.0, 7.0, 6.0]
    found = training_of(run_of(losses))
    assert (found.start, found.end) == ((10.0, 6.0) if known else (None, None))
    assert (found.steps, found.begins, found.learned > 0) == (count, known, known)


def test_a_run_begins_where_its_first_record_is_that_of_its_first_steps() -> None:
    def records(first: int, each: int) -> list[Iteration]:
        return [item._replace(index=first + each * at) for at, item in enumerate(run_of(falling()))]

    begin = [training_of(records(*numbers)).begins for numbers in ((1, 1), (2, 1), (10, 10), (20, 10))]
    assert begin == [True, False, True, False]


def test_what_was_learned_is_the_sum_of_the_learning_rates_that_are_printed() -> None:
    rates = (1e-4, None, 3e-4, *[0.0] * 20)
    items = [item._replace(learning_rate=rate) for item, rate in zip(run_of(falling()), rates, strict=False)]
    assert training_of(items).learned == pytest.approx(4e-4)
    assert training_of([item._replace(zero_based=True) for item in items]).learned == 0, "random tokens"


def flat(**fields: object) -> Training:
    return Training(
        **{"steps": 50, "start": 11.8, "end": 11.8, "falls": False, "begins": True, "learned": 1.0} | fields
    )  # type: ignore[arg-type]


def test_a_loss_that_does_not_fall_counts_only_where_it_should_have() -> None:
    assert PLAN.architecture is not None
    guess = math.log(PLAN.architecture.vocabulary)
    assert len(training_sense(flat(learned=1e-3), PLAN)) == 1
    for start, odd in ((0.89, True), (0.91, False), (1.24, False), (1.26, True)):
        found = training_sense(flat(learned=0.99e-3, start=start * guess, end=start * guess), PLAN)
        assert bool(found) is odd
    unlisted = msgspec.structs.replace(PLAN, architecture=None)
    assert training_sense(flat(learned=0.99e-3, start=1.0), unlisted) == ()
    assert len(training_sense(flat(start=1.0), unlisted)) == 1
    for nothing in ({"falls": True}, {"begins": False}, {"start": None}, {"end": None}):
        assert training_sense(flat(**nothing), PLAN) == ()
    resumes = msgspec.structs.replace(PLAN, checkpoint=msgspec.structs.replace(PLAN.checkpoint, resume=True))
    assert training_sense(flat(), resumes) == ()
    for name, counts in (("llama_pretrain_x", True), ("llama_sft_x", False)):
        called = msgspec.structs.replace(PLAN, function=SimpleNamespace(name=name))
        assert bool(training_sense(flat(), called)) is counts
    assert training_sense(flat(faults=("odd",), begins=False), resumes) == ("odd",)


@pytest.mark.parametrize(
    ("start", "ends", "odd"),
    [
        (12.0, (6.0, 6.0, 7.19), False),  # a tenth of the first loss is 1.2
        (12.0, (6.0, 6.0, 7.21), True),
        (5.0, (8.0, 8.0, 8.79), False),  # and of theirs 0.8
        (5.0, (8.0, 8.0, 8.81), True),
        (5.0, (8.0, 8.0, 7.19), True),
        (1.0, (5.0, 6.0, 7.0, 6.0, 10.4), False),  # three robust deviations are 4.45
        (1.0, (5.0, 6.0, 7.0, 6.0, 10.5), True),
    ],
)
def test_how_far_the_loss_of_a_repeat_may_end_from_the_others(start: float, ends: tuple[float, ...], odd: bool) -> None:
    found = unlike_repeats([Training(steps=50, start=start, end=end) for end in ends])
    assert [bool(texts) for texts in found] == [*[False] * (len(ends) - 1), odd]


def test_a_loss_that_half_of_the_repeats_print_is_not_usual() -> None:
    both, one = ("lm loss", "mtp_1 loss"), ("lm loss",)
    assert not any(unlike_repeats([trained(6.0, losses=losses) for losses in (both, both, one, one)]))
    assert [
        bool(text) for text in unlike_repeats([trained(6.0, losses=losses) for losses in (both, both, both, one)])
    ] == [
        *(False, False, False),
        True,
    ]
    missing = unlike_repeats([trained(6.0, losses=losses) for losses in (("b loss", "a loss"),) * 2 + ((),)])
    assert missing[2] == ("the log has no 'a loss', its repeats' logs do",), "the first by name"
    known = [trained(6.0), trained(6.0), trained(None), trained(9.0)]
    assert [bool(text) for text in unlike_repeats(known)] == [False, False, False, True]


@pytest.mark.parametrize(("count", "zeros", "odd"), [(15, 1, False), (15, 2, True), (40, 2, False), (40, 3, True)])
def test_a_twentieth_of_the_steps_may_be_odd_and_one_always(count: int, zeros: int, odd: bool) -> None:
    losses = falling()[:count]
    marked = range(5, 5 + zeros)
    gone = run_of([0.0 if at in marked else loss for at, loss in enumerate(losses)])
    assert any("is 0 in" in text for text in training_of(gone).faults) is odd
    still = [item._replace(grad_norm=0.0) if at in marked else item for at, item in enumerate(run_of(losses))]
    assert bool(training_of(still).faults) is odd


@pytest.mark.parametrize(("loss", "odd"), [(0.1, False), (0.11, True), (None, True)])
def test_a_gradient_of_zero_counts_above_a_loss_of_a_tenth(loss: float | None, odd: bool) -> None:
    items = [item._replace(loss=loss, grad_norm=0.0) for item in run_of(falling()[:5])]
    assert bool(training_of(items).faults) is odd


@pytest.mark.parametrize(("value", "odd"), [(1e-4, False), (2e-4, True)])
def test_a_loss_of_nearly_nothing_may_stand_still(value: float, odd: bool) -> None:
    losses = [*[12 * 0.7**at + 3e-4 for at in range(30)], *[value] * 12]
    assert any("in a row" in text for text in training_of(run_of(losses)).faults) is odd


def test_of_several_rows_the_longest_counts_and_of_equal_ones_the_largest() -> None:
    assert _longest_row([1.0, 2.0, 2.0, 3.0, 3.0, 3.0, 2.0]) == (3, 3.0)
    assert _longest_row([5.0, 5.0, 1.0, 1.0, 7.0]) == (2, 5.0)
    assert _longest_row([1.0, 2.0, 1.0]) == (0, 0.0)
    assert _longest_row([]) == (0, 0.0)


@pytest.mark.parametrize(("idle", "odd"), [(25, False), (26, True)])
def test_the_learning_rate_may_be_zero_in_half_of_the_steps(idle: int, odd: bool) -> None:
    items = with_figures(run_of(falling()), lambda index: {"learning_rate": 0.0 if index <= idle else 1e-4})
    assert bool(training_of(items).faults) is odd


def test_a_scale_that_never_fits_within_its_first_steps_has_skipped_all_of_a_short_log() -> None:
    def skipped(count: int, scale: float) -> tuple[str, ...]:
        items = [item._replace(skipped=1, loss_scale=scale) for item in run_of(falling()[:count])]
        return training_of(items).faults

    assert skipped(20, 2.0**20) == ()
    assert skipped(20, 1.0) == ("the optimizer skipped 20 of 20 steps",)
    assert skipped(25, 2.0**20) == ("the optimizer skipped 25 of 25 steps",)


@pytest.mark.parametrize(("value", "named"), [(11.4, False), (11.6, True), (8.6, False), (8.4, True)])
def test_a_calm_loss_jumps_where_it_is_15_per_cent_off(value: float, named: bool) -> None:
    losses = shaped((50, 10.0), noise=1e-4)
    losses[39] = value
    assert bool(course(losses)) is named


@pytest.mark.parametrize(("at", "named"), [(0, False), (1, False), (2, True), (47, True), (48, False), (49, False)])
def test_the_first_and_the_last_two_losses_are_not_held_against_others(at: int, named: bool) -> None:
    losses = shaped((50, 10.0), noise=1e-4)
    losses[at] = 20.0
    assert bool(odd_course(run_of(losses), Window(1, 50))) is named


@pytest.mark.parametrize(("count", "named"), [(1, True), (3, True), (4, False), (6, False)])
def test_leaps_in_a_row_are_no_measure_of_each_other_up_to_a_quarter_of_those_around(count: int, named: bool) -> None:
    """Two of the eight around one may be as odd as it is; more of them are another level."""
    losses = shaped((50, 10.0), noise=1e-4)
    losses[37 : 37 + count] = [20.0] * count
    assert bool(odd_course(run_of(losses), Window(1, 50))) is named


@pytest.mark.parametrize(("count", "named"), [(14, False), (15, True)])
def test_fifteen_losses_show_a_leap(count: int, named: bool) -> None:
    losses = shaped((count, 10.0), noise=1e-4)
    losses[7] = 20.0
    assert bool(odd_course(run_of(losses), Window(1, 50))) is named


@pytest.mark.parametrize(
    ("end", "lowest", "named"), [(29.9, 1.0, False), (30.1, 1.0, True), (1.4, 0.01, False), (1.6, 0.01, True)]
)
def test_a_gradient_norm_may_grow_to_thirty_times_its_lowest_level_or_a_twentieth(
    end: float, lowest: float, named: bool
) -> None:
    assert bool(course(falling(), [*[2 * lowest] * 10, *[lowest] * 20, *[end] * 20])) is named
