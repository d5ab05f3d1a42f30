"""A pass needs a training: what no training does is found, and what healthy ones do is left alone."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from llmb_common.results.steps import logged_tflop
from llmb_common.results.training import Training, odd_course, training_of, training_sense, unlike_repeats
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
