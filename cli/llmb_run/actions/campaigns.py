"""The commands that go on until a question is answered: accept, ab, tune."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmb_common.base.errors import RequestError
from llmb_common.base.outcome import Result
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.record import load_record
from llmb_run.acceptance.run import accept
from llmb_run.acceptance.show import show_campaign
from llmb_run.acceptance.suite import find_suite, suites
from llmb_run.comparing.ab import ab, say_what_changed, spec_of_run
from llmb_run.comparing.strategy import rule_of
from llmb_run.selecting import one_folder
from llmb_run.starting.requests import job_spec, one_job, plan_job
from llmb_run.starting.sweeps import dimension, dimensions_of
from llmb_run.terminal import next_command
from llmb_run.tuning.run import TuneRequest, tune


def show_suites(name: str) -> Result:
    """``llmb-run accept suites``."""
    if name:
        _, text = find_suite(name)
        return Result({"name": name, "text": text}, text, for_programs=True)
    return Result(
        {"suites": list(suites())},
        "".join(f"{known}\n" for known in suites()),
        hint=next_command("accept", "suites", next(iter(suites()))),
    )


def show_pack_or_campaign(folder: Path) -> Result:
    """``llmb-run accept show``."""
    return show_campaign(folder)


def run_campaign(suite: str, again: bool, folder: Path | None, evening: bool, dry_run: bool) -> Result:
    """``llmb-run accept``."""
    return accept(suite, again=again, folder=folder, dry_run=dry_run, evening=evening)


def compare_sides(
    base: str | None,
    workload: str | None,
    change: tuple[str, ...],
    unset: tuple[str, ...],
    resolution: str,
    pairs: int,
    budget: float | None,
    again: bool,
    folder: Path | None,
    dry_run: bool,
    **settings: Any,
) -> Result:
    """``llmb-run ab``."""
    if (base is None) == (workload is None):
        raise RequestError("side A is one job", remedy="--base RUN, or -w NAME and the other options of single")
    dimensions = dimensions_of(change, "--change")
    if several := [name for name, values in dimensions.items() if len(values) > 1]:
        raise RequestError(
            f"--change: {several[0]} has several values", remedy="one at a time; llmb-run sweep tries several"
        )
    workspace = Workspace()
    spec = job_spec(workload=workload or "", dry_run=dry_run, **settings)
    if base is not None:
        record = load_record(one_folder(workspace, base))
        its = spec_of_run(record, workspace.workload(record.plan.workload).recipe)
        spec = replace(its.having(spec.settings), slurm=spec.slurm)
        say_what_changed(record, plan_job(spec, workspace).plan)
    rule = rule_of(resolution, pairs, budget)
    changes: dict[str, str | None] = {name: values[0] for name, values in dimensions.items()}
    for name in map(dimension, unset):
        if name in changes:
            raise RequestError(f"--unset {name}: it is given twice", remedy="give it once, or --change a value")
        changes[name] = None
    return ab(spec, changes, rule, workspace, again=again, folder=folder, dry_run=dry_run)


def find_fastest(
    vary: tuple[str, ...],
    only: bool,
    budget: float | None,
    trial_steps: int,
    set_baseline: bool,
    again: bool,
    folder: Path | None,
    dry_run: bool,
    **settings: Any,
) -> Result:
    """``llmb-run tune``."""
    spec = one_job(**settings)
    values = dimensions_of(vary, "--vary")
    if only and not values:
        raise RequestError("--only: nothing to vary", remedy="--vary NAME=VALUE,VALUE")
    wanted = TuneRequest(spec, values, only, budget or math.inf, trial_steps, set_baseline)
    return tune(wanted, again=again, folder=folder, dry_run=dry_run)
