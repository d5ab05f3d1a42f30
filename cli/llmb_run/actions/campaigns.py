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
from llmb_run.acceptance.show import show_campaign as show_campaign
from llmb_run.acceptance.suite import find_suite, suites
from llmb_run.comparing.ab import ab, say_what_changed, spec_of_run
from llmb_run.comparing.strategy import rule_of
from llmb_run.selecting import one_folder
from llmb_run.starting.requests import job_spec, one_job, plan_job
from llmb_run.starting.sweeps import dimension, dimensions_of
from llmb_run.terminal import next_command
from llmb_run.tuning.run import TuneRequest, tune


def show_suites(name: str) -> Result:
    """Return what ``llmb-run accept suites`` shows: the YAML text of the suite ``name``; if empty, all names.

    ``name`` may also be the path of a file. The names are those of suites that come with LLMB, a line each. As
    JSON: ``name`` and ``text``, or ``suites``, a list of names.

    Raises:
        ConfigError: there is no such suite, or its file cannot be read
        RecipeError: a recipe, from which suites are made, is wrong
        RequestError: ``LLMB_REPO`` is set and contains no recipe
        OSError: a folder of recipes, or of the file, may not be looked at
    """
    if name:
        _, text = find_suite(name)
        return Result({"name": name, "text": text}, text, for_programs=True)
    return Result(
        {"suites": list(suites())},
        "".join(f"{known}\n" for known in suites()),
        hint=next_command("accept", "suites", next(iter(suites()))),
    )


def run_campaign(suite: str, again: bool, folder: Path | None, evening: bool, dry_run: bool) -> Result:
    """Begin, continue or show an acceptance campaign, as ``llmb-run accept`` does, and return its result.

    ``suite``: a name or a path; ``again``: begin another one; ``folder``: where campaigns are kept, None: in the
    installation; ``evening``: judge the day of the runs alone; ``dry_run``: only show what would be started, with exit
    status 0. Data and exit status are those of ``accept``: 0 where it is accepted, 1 where not, 4 where that stays open
    or was not judged.

    Raises:
        LLMBError: the campaign cannot be planned, begun or continued
        OSError: a file of the campaign or of a run, or one that a submission needs, cannot be read or written
    """
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
    """Begin, continue or show a comparison of two configurations, A and B, as ``llmb-run ab`` does.

    Side A is the job of the run ``base`` (a word that names one), or that of ``workload`` (exactly one of them is
    given), with ``settings``, the other options of a job as ``job_spec`` takes them; of a run, these replace its own,
    notices say what today's plan changes, and how to queue is not taken over. B differs by ``change`` (``NAME=VALUE``,
    each name once and with one value) and by leaving the names in ``unset`` to the recipe; without these, both sides
    are the same. ``resolution``, a text such as ``1%``, is in percent, ``pairs`` how many pairs of runs at most,
    ``budget`` in GPU-hours (None: no limit), ``folder`` where campaigns are kept (None: in the installation).
    ``again``: begin another one; ``dry_run``: start nothing, only show the plan, with exit status 0. Data and exit
    status are those of ``ab``: 0 with an answer, 4 where that is open, 1 where a side failed or the work was unequal.

    Raises:
        RequestError: an option is wrong, options exclude each other, or there is no such run
        LLMBError: the comparison cannot be planned, begun or continued
        OSError: a file of the campaign or of a run, or one that a submission needs, cannot be read or written
    """
    if base is None and workload is None:
        raise RequestError("no job is given: --base RUN, or -w and its other options", complete={"WORKLOAD": ""})
    if base is not None and workload is not None:
        raise RequestError("side A is given twice: by --base and by -w", remedy="leave one of them out")
    dimensions = dimensions_of(change, "--change")
    if several := [name for name, values in dimensions.items() if len(values) > 1]:
        raise RequestError(
            f"--change: {several[0]} has several values", remedy="one at a time; llmb-run sweep tries several"
        )
    workspace = Workspace()
    spec = job_spec(workload=workload or "", dry_run=dry_run, **settings)
    if base is not None:
        record = load_record(one_folder(workspace, base))
        run_spec = spec_of_run(record, workspace.workload(record.plan.workload).recipe)
        # How to queue is today's choice, not the run's.
        spec = replace(run_spec.with_settings(spec.settings), slurm=spec.slurm)
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
    """Begin, continue or show a search for faster settings, as ``llmb-run tune`` does.

    ``settings`` are the options of the job to improve, as ``one_job`` takes them. ``vary``: values to try
    (``NAME=VALUE,VALUE``), and with ``only`` nothing else; ``budget``: in GPU-hours, None or 0: no limit;
    ``trial_steps``: training steps of a trial; ``set_baseline``: make the result this site's baseline; ``again``: begin
    another search; ``folder``: where these are kept, None: in the installation; ``dry_run``: start nothing, only say
    what would be tried, with exit status 0. Data and exit status are those of ``tune``: 1 where the job itself does not
    run, else 0.

    Raises:
        RequestError: an option is wrong, or ``only`` is given without ``vary``
        LLMBError: the search cannot be planned, begun or continued
        OSError: a file of the campaign or of a run, or one that a submission needs, cannot be read or written
    """
    spec = one_job(**settings)
    values = dimensions_of(vary, "--vary")
    if only and not values:
        raise RequestError("--only: nothing to vary", remedy="--vary NAME=VALUE,VALUE")
    wanted = TuneRequest(spec, values, only, budget or math.inf, trial_steps, set_baseline)
    return tune(wanted, again=again, folder=folder, dry_run=dry_run)
