"""How LLMB judges real repeats: the runs of language models that MLPerf Training's submitters have published.

    git clone https://github.com/mlcommons/training_results_v5.1     (likewise v4.0, v4.1 and v5.0)
    python -m tools.public_repeats [--seed 1] [--part PART]... FOLDER...

prints tables of ``docs/benchmarks.md``. A submission has three or ten runs of one job on one system, so that nothing
but chance, or the day, makes them differ. A run with the times of 50 single steps is measured as LLMB measures a run,
over the recorded steps 35 to 44; others have means of the stretches between evaluations, of which the first, where
there are more than three, is warm-up. Submitters choose whom they submit: these systems are tuned, and mostly idle.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from llmb_common.results.comparison import compare_times
from llmb_common.results.decision import decide
from llmb_common.results.odd_runs import odd_runs_clause
from llmb_common.results.scatter import STATED, PastRun, PastRuns, Scatter, batches, squares
from llmb_common.results.steps import StepTime, estimate
from llmb_common.results.training import training_of, unlike_repeats
from llmb_common.runs.timing.records import Iteration
from tools.markdown import table

BENCHMARKS = ("llama2_70b_lora", "llama31_8b", "llama31_405b")
_FILES = "*/results/*/{benchmark}/result_*.txt"
_MARK = ":::MLLOG "
_STEPS = 50
_WARM_UP = 10
_WINDOW = slice(34, 44)
_STRETCHES = 3
"""From so many means of stretches on, the first is taken for warm-up."""
_MORNING = 6 * 3600
"""Days begin at six, as LLMB's do; in UTC, for the logs do not say where they were written."""
_FEWEST = 6
"""Runs of a system whose halves are compared."""
_DRAWS = 10
"""Random choices of runs from each system."""
_SLOWER = (1.0, 1.05, 1.08)
"""True step time over the reference's; 1.05 is the tolerance itself, where either answer is wrong."""


class PublicRun(NamedTuple):
    """One published run: when it began (Unix seconds), and what its log says of its training steps, in their order."""

    start: float
    steps: tuple[float, ...]
    """Seconds of each step that is recorded; each of these is one step."""
    losses: tuple[float, ...]
    """The training loss of each of ``steps``."""
    stretches: tuple[float, ...]
    """Seconds of a step, as the mean of each stretch between evaluations; as a unit, seconds of a sample will do."""

    @property
    def is_stepwise(self) -> bool:
        """Whether it has as many single steps as one of LLMB's runs."""
        return len(self.steps) >= _STEPS

    @property
    def time(self) -> StepTime | None:
        """Its step time as LLMB would have it; None where its log has too few times."""
        if self.is_stepwise:
            found = estimate(self.steps[_WINDOW], self.steps[_WARM_UP:_STEPS])
        elif len(self.stretches) > 1:
            found = estimate(self.stretches[1:] if len(self.stretches) > _STRETCHES else self.stretches)
        else:
            return None
        day = time.strftime("%Y-%m-%d", time.gmtime(self.start - _MORNING))
        return msgspec.structs.replace(found, day=day)


class System(NamedTuple):
    """The runs of one benchmark on one system, in the order of their starts; all are repeats of one job."""

    submitter: str
    name: str
    """Round, submitter, system and benchmark, with slashes between."""
    benchmark: str
    runs: tuple[PublicRun, ...]
    times: tuple[StepTime, ...]
    """The step times of the runs that have one, in order."""


def read_run(log: str) -> PublicRun | None:
    """Return what the text of a result file says of its run; None: it says nothing.

    Lines that are not MLPerf's are left out, and so are those of it that are no JSON.
    """
    start = None
    steps: list[float] = []
    losses: list[float] = []
    stretches: list[float] = []
    for line in log.split("\n"):
        _, mark, text = line.partition(_MARK)
        event = _json_object(text) if mark else None
        if event is None:
            continue
        if start is None or event.get("key") == "run_start":
            start = float(event["time_ms"]) / 1000
        value = event.get("value")
        if event.get("key") != "tracked_stats" or not isinstance(value, dict):
            continue
        seconds = value.get("train_step_time")
        if seconds and "reduced_train_loss" in value:
            steps.append(float(seconds))
            losses.append(float(value["reduced_train_loss"]))
        elif seconds:
            stretches.append(float(seconds))
        elif value.get("throughput"):
            stretches.append(1 / float(value["throughput"]))
    return None if start is None else PublicRun(start, tuple(steps), tuple(losses), tuple(stretches))


def _json_object(text: str) -> dict[str, Any] | None:
    """Return ``text`` as a JSON object; None where it is none, as of two ranks that wrote at once."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def read_systems(folders: Sequence[Path]) -> list[System]:
    """Return the systems whose results lie in ``folders``, clones of rounds of MLPerf Training, by submitter and name.

    Systems without two runs that have a step time are left out.
    """
    together: dict[tuple[str, str, str], list[PublicRun]] = defaultdict(list)
    for folder in folders:
        for benchmark in BENCHMARKS:
            for file in sorted(folder.glob(_FILES.format(benchmark=benchmark))):
                submitter = file.relative_to(folder).parts[0]
                name = f"{folder.name}/{submitter}/{file.parent.parent.name}/{benchmark}"
                if run := read_run(file.read_text(errors="replace")):
                    together[submitter, name, benchmark].append(run)
    found = []
    for (submitter, name, benchmark), runs in sorted(together.items()):
        in_order = tuple(sorted(runs, key=lambda run: run.start))
        times = tuple(filter(None, (run.time for run in in_order)))
        if len(times) > 1:
            found.append(System(submitter, name, benchmark, in_order, times))
    return found


def _quantiles(shares: Sequence[float]) -> str:
    """Return median, 90th percentile and largest of ``shares`` in percent: ``0.12, 0.70, 7.4``; a dash without any."""
    if not shares:
        return "-"
    ordered = sorted(shares)
    picked = (statistics.median(ordered), ordered[math.ceil(0.9 * len(ordered)) - 1], ordered[-1])
    return ", ".join(f"{100 * share:.2f}" for share in picked)


_Judged = list[tuple[tuple[StepTime, ...], Scatter]]
"""Of each system its step times, and how much repeats are assumed to differ."""


def _by_record(systems: Sequence[System]) -> list[tuple[str, _Judged]]:
    """Return the systems with enough runs to compare, first without a record (``no``), then with one (``yes``).

    A record is what their submitter's other systems show. With one, systems are left out whose submitter has too few
    runs.
    """
    able = [system for system in systems if len(system.times) >= _FEWEST]
    recorded = [(system.times, _record(system, able)) for system in able]
    return [
        ("no", [(system.times, STATED) for system in able]),
        ("yes", [(times, scatter) for times, scatter in recorded if scatter.learned]),
    ]


def _record(system: System, systems: Sequence[System]) -> Scatter:
    """Return how much repeats differ on the other ``systems`` of a system's submitter; as stated where they are few."""
    runs: list[PastRun] = []
    for item in systems:
        if item.submitter == system.submitter and item.name != system.name:
            runs += [PastRun(item.name, f"{at}", found) for at, found in enumerate(item.times)]
    return PastRuns(runs).scatter(system.name)


def scatter_table(systems: Sequence[System], source: random.Random) -> Iterator[str]:
    """How much repeats differ: standard deviations of step times, in percent; median, 90th percentile and largest."""
    rows = []
    for benchmark in BENCHMARKS:
        runs, days = [], []
        chosen = [system for system in systems if system.benchmark == benchmark]
        for system in chosen:
            logs = [run.mean_log for run in system.times]
            runs.append(statistics.stdev(logs))
            found = squares(batches(system.times))
            if found.between_degrees:
                days.append(math.sqrt(found.between / found.between_degrees))
        count = sum(len(system.times) for system in chosen)
        rows.append([benchmark, f"{len(chosen)}", f"{count}", _quantiles(runs), f"{len(days)}", _quantiles(days)])
    heads = ["Benchmark", "Systems", "Runs", "Between runs", "Systems on several days", "Between days"]
    yield from table(heads, rows)


def comparisons_table(systems: Sequence[System], source: random.Random) -> Iterator[str]:
    """How often ``compare`` finds a difference between runs of one system, in percent of comparisons.

    Each side is a random choice of its runs, or one has its first and the other its last runs.
    """
    rows = []
    for record, judged in _by_record(systems):
        for count in (1, 2, 3, 5):
            at_random, in_order = [], []
            for times, scatter in judged:
                if len(times) < 2 * count:
                    continue
                in_order.append(compare_times(times[:count], times[-count:], scatter).is_real)
                for _ in range(_DRAWS):
                    drawn = source.sample(times, 2 * count)
                    at_random.append(compare_times(drawn[:count], drawn[count:], scatter).is_real)
            rows.append([record, f"{count}", f"{len(in_order)}", _share(at_random), _share(in_order)])
    yield from table(["Record", "Runs of each", "Systems", "At random", "First and last"], rows)


def _share(found: Sequence[bool]) -> str:
    """Return the share of true ones in percent; a dash without any."""
    return f"{100 * sum(found) / len(found):.1f}" if found else "-"


def verdicts_table(systems: Sequence[System], source: random.Random) -> Iterator[str]:
    """What verdicts say of some of a system's runs against the mean of all of them, in percent.

    *At the limit* the reference is 5 % faster than that mean: either answer is wrong there.
    """
    rows = []
    for record, judged in _by_record(systems):
        for days in ("as they were", "one each"):
            for count in (1, 3, 5):
                found: dict[float, Counter[str]] = defaultdict(Counter)
                for times, scatter in judged:
                    for _ in range(_DRAWS):
                        drawn = source.sample(times, count)
                        if days == "one each":
                            drawn = [msgspec.structs.replace(run, day=f"day {at}") for at, run in enumerate(drawn)]
                        _count_answers(drawn, times, scatter, found)
                rows.append([record, days, f"{count}", *_answers(found)])
    heads = [
        "Record",
        "Days",
        "Runs",
        "Equal: passes, fails",
        "At the limit: passes, fails",
        "8 % slower: passes, fails",
    ]
    yield from table(heads, rows)


def _count_answers(
    runs: Sequence[StepTime], times: Sequence[StepTime], scatter: Scatter, found: dict[float, Counter[str]]
) -> None:
    """Count into ``found`` the answer on ``runs`` at each of ``_SLOWER``, where ``times`` are all of the system's."""
    mean = math.exp(statistics.fmean(run.mean_log for run in times))
    for ratio in _SLOWER:
        found[ratio][decide(runs, mean / ratio, scatter=scatter).answer] += 1


def _answers(found: dict[float, Counter[str]]) -> list[str]:
    """Return, for each of ``_SLOWER``, how many answers are a pass and how many a fail: ``98.0, 0.0`` in percent."""
    cells = []
    for ratio in _SLOWER:
        answers = found[ratio]
        shares = [100 * answers[word] / max(answers.total(), 1) for word in ("pass", "fail")]
        cells.append(", ".join(f"{share:.1f}" for share in shares))
    return cells


def windows_table(systems: Sequence[System], source: random.Random) -> Iterator[str]:
    """How far the step time of steps 35 to 44 is from that of all steps after the 50th, in percent.

    Median, 90th percentile and largest of the runs.
    """
    rows = []
    for benchmark in BENCHMARKS:
        apart = []
        for run in _stepwise(systems, benchmark):
            if run.time is not None and len(run.steps) > 2 * _STEPS:
                rest = estimate(run.steps[_STEPS:])
                apart.append(abs(math.expm1(run.time.mean_log - rest.mean_log)))
        if apart:
            rows.append([benchmark, f"{len(apart)}", _quantiles(apart)])
    yield from table(["Benchmark", "Runs", "Difference"], rows)


def remarks_table(systems: Sequence[System], source: random.Random) -> Iterator[str]:
    """How many runs that trained are said not to train, by their own logs or by their repeats'."""
    rows = []
    for benchmark in BENCHMARKS:
        faults = unlike = runs = odd = 0
        chosen = [system for system in systems if system.benchmark == benchmark]
        for system in chosen:
            odd += bool(odd_runs_clause(system.times))
            trainings = [training_of(_iterations(run)) for run in system.runs if run.is_stepwise]
            runs += len(trainings)
            faults += sum(bool(training.faults) for training in trainings)
            unlike += sum(map(bool, unlike_repeats(trainings)))
        rows.append([benchmark, f"{runs}", f"{faults}", f"{unlike}", f"{odd} of {len(chosen)}"])
    heads = ["Benchmark", "Runs with losses", "Not training", "Unlike their repeats", "Systems with odd runs"]
    yield from table(heads, rows)


def _stepwise(systems: Sequence[System], benchmark: str) -> list[PublicRun]:
    """Return the runs of ``benchmark`` on all ``systems`` that have the times of single steps."""
    runs = chain.from_iterable(system.runs for system in systems if system.benchmark == benchmark)
    return [run for run in runs if run.is_stepwise]


def _iterations(run: PublicRun) -> list[Iteration]:
    """Return the first steps of ``run``, as many as LLMB trains, as a log of Megatron-Bridge would have them."""
    some = list(zip(run.steps, run.losses, strict=True))[:_STEPS]
    return [
        Iteration(at, _STEPS, seconds, loss=loss, figures=("lm loss",)) for at, (seconds, loss) in enumerate(some, 1)
    ]


PARTS: dict[str, Callable[[Sequence[System], random.Random], Iterator[str]]] = {
    "scatter": scatter_table,
    "comparisons": comparisons_table,
    "verdicts": verdicts_table,
    "windows": windows_table,
    "remarks": remarks_table,
}


def main() -> None:
    """Print the parts that the command line names, or all of them."""
    parser = argparse.ArgumentParser(
        description=re.sub(r"``", "", __doc__), formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--part", action="append", choices=sorted(PARTS))
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    systems = read_systems([folder.resolve() for folder in given.folders])
    for part in given.part or PARTS:
        print(f"{part}:\n")
        print("\n".join(PARTS[part](systems, random.Random(given.seed))), end="\n\n")


if __name__ == "__main__":
    main()
