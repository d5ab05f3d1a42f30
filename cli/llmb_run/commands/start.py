"""The commands that start jobs: single, submit, sweep, bulk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from llmb_common.command.outcome import Result
from llmb_common.command.printable import counted, first_few
from llmb_common.errors import RequestError
from llmb_common.planning.job_plan import JobPlan, plan_as_dict
from llmb_common.planning.outlook import known_from, ranged, step_seconds
from llmb_run import options
from llmb_run.app import Command
from llmb_run.starting.requests import JobSpec, PlannedJob, Refused, one_job, plan_each
from llmb_run.starting.submitting import StartOptions, check_followed, start, start_planned
from llmb_run.starting.sweeps import Dimensions, check_apart, dimensions_of, many_jobs, once_each, sweep
from llmb_run.starting.task_files import read_tasks
from llmb_run.terminal import say, table
from llmb_run.workspace import Workspace


@click.command(cls=Command)
@options.one_job
@options.job_settings
@options.after
@options.flag("--health", help="Check the nodes first, and keep the job off those that fail.")
@options.dry_run
@options.detach
def single_command(**settings: Any) -> Result:
    """Start one job.

    \b
    llmb-run single -w pretrain_llama3.1 -s 405b --dtype fp8 --scale 128

    All variables of launch.sh work here too; options take precedence.
    """
    how = StartOptions.taken(settings)
    return start("single", [one_job(**settings)], Workspace(), how)


_FROM_1 = click.IntRange(min=1)


@click.command(cls=Command)
@options.many_jobs
@click.option("--min-scale", metavar="GPUS", type=_FROM_1, help="The recipe's numbers of GPUs, from this one up.")
@click.option("--max-scale", metavar="GPUS", type=_FROM_1, help="The recipe's numbers of GPUs, up to this one.")
@click.option("--repeats", metavar="N", type=click.IntRange(1, 10000), default=1, help="Runs of each job.")
@click.option("--spread", metavar="DAYS", type=click.IntRange(1, 365), default=1, help="Days to spread repeats over.")
@options.spread_nodes
@options.job_settings
@options.after
@click.option(
    *("--resume-chain", "chain"),
    metavar="N",
    type=click.IntRange(1, 1000),
    default=1,
    help="N jobs in a row, each from the previous one's newest checkpoint.",
)
@options.skip_unsupported
@options.dry_run
@options.flag("--again", help="Start all of them, even if an interrupted submission could continue.")
@options.detach
def submit_command(min_scale: int | None, max_scale: int | None, repeats: int, spread: int, **settings: Any) -> Result:
    """Start jobs for several workloads, sizes, dtypes and numbers of GPUs.

    Every combination is planned before the first one is started; one that cannot be planned stops them all.

    \b
    llmb-run submit -w pretrain_llama3.1 -s 8b,70b --dtype fp8 --max-scale 128 --repeats 3
    """
    how, workspace = StartOptions.taken(settings), Workspace()
    base, lists = many_jobs(**settings)
    check_apart(repeats, how.apart)
    if how.chain > 1:
        base = base.having({"ENABLE_CHECKPOINT": "true", **base.settings})
    specs = sweep(base, workspace, lists, min_scale=min_scale, max_scale=max_scale, repeats=repeats, spread=spread)
    return start("submit", specs, workspace, how)


def dimensions_said(
    vary: Sequence[str], zipped: Sequence[str], base: JobSpec, lists: Dimensions
) -> tuple[Dimensions, list[Dimensions]]:
    """What ``--vary`` and ``--zip`` say, beside ``lists`` that have options of their own.

    Raises:
        RequestError: nothing is varied, or something that another option sets
    """
    groups: list[Dimensions] = [dimensions_of(vary, "--vary")]
    groups += (dimensions_of(text.split(), "--zip") for text in zipped)
    for name in (name for group in groups for name in group):
        value = ",".join(lists.get(name, [])) or base.settings.get(name)
        if value is not None:
            raise RequestError(f"{name} is varied, and set to {value}", remedy="leave one of them out")
    if not any(groups) and not any(len(values) > 1 for values in lists.values()):
        raise RequestError(
            "nothing is varied", remedy="--vary tp=1,2 --vary NCCL_ALGO=Ring,Tree, or --zip 'tp=1,2 pp=4,2'"
        )
    return {**lists, **groups[0]}, groups[1:]


def start_sweep(specs: Sequence[JobSpec], workspace: Workspace, how: StartOptions) -> Result:
    """Plan all, show what will run and what will not, and start the former, the first repeats of all before the second.

    Raises:
        RequestError: nothing of it can be planned
    """
    planned, refused = once_each(plan_each([replace(spec, dry_run=how.dry_run) for spec in specs], workspace))
    if not planned:
        raise RequestError(
            f"none of {counted(len(refused), 'combination')} can be planned:\n{_reasons(refused)}".rstrip(),
            remedy=refused[0].error.remedy,
            code=refused[0].error.code,
        )
    found = {
        "planned": [{"combination": item.spec.varied, "plan": plan_as_dict(item.plan)} for item in _once(planned)],
        "refused": [{"combination": item.spec.varied, "error": item.error.as_dict()} for item in refused],
    }
    shown = _table(planned) + _reasons(refused)
    if planned[0].request.dry_run:
        check_followed(planned, workspace, how)
        remark = f"{counted(len(planned), 'job')}, nothing started (dry run)"
        return Result({"dry_run": True, **found}, shown, remarks=[remark])
    say(shown)
    in_turn = sorted(planned, key=lambda item: item.spec.repeat)
    done = start_planned("sweep", in_turn, workspace, how, swept=specs)
    hint = f"{done.hint}\nwhen they are over: llmb-run results --rank".lstrip()
    return replace(done, data={**found, **done.data}, hint=hint)


def _once(planned: Sequence[PlannedJob]) -> list[PlannedJob]:
    return [item for item in planned if item.spec.repeat == 1]


def _table(planned: Sequence[PlannedJob]) -> str:
    """A row for each combination: its values, its runs, and what is known of its memory and time."""
    runs = Counter(id(item.plan) for item in planned)
    names = list(dict.fromkeys(name for item in planned for name in item.spec.varied))
    heads = [*names, "runs", "GPUs", "memory GiB", "step s", "known from"]
    rows = [
        [*(item.spec.varied.get(name, "") for name in names), str(runs[id(item.plan)]), *_known(item.plan)]
        for item in _once(planned)
    ]
    shown = [
        at
        for at, head in enumerate(heads)
        if any(row[at] for row in rows) and (head, "scale" in names) != ("GPUs", True)
    ]
    right = [heads[at] for at in shown if all(row[at][:1].isdigit() for row in rows)]
    return table([heads[at] for at in shown], [[row[at] for at in shown] for row in rows], right)


def _known(plan: JobPlan) -> list[str]:
    memory, step = plan.preflight.memory, step_seconds(plan)
    room = "" if memory is None else f"{memory.peak + memory.reserve:.0f} of {memory.limit:.0f}"
    doubt = "" if memory is None or memory.fits else f", {memory.verdict}"
    return [str(plan.gpus), room + doubt, "" if step is None else ranged(step), known_from(plan)]


def _reasons(refused: Sequence[Refused]) -> str:
    """One line for each reason, with the combinations that it is of."""
    together: dict[str, dict[str, None]] = {}
    for item in refused:
        together.setdefault(item.error.message, {})[item.spec.combination] = None
    return "".join(f"not run: {first_few([*who], between='; ')}: {why}\n" for why, who in together.items())


@click.command(cls=Command)
@options.many_jobs
@options.several(
    "--vary",
    metavar="NAME=VALUE,VALUE",
    help="A column, a variable of the job, or size, dtype, scale (GPUs), engine, image, variant; repeatable.",
)
@options.several("--zip", "zipped", metavar="'NAME=V,V NAME=V,V'", help="Settings that change together; repeatable.")
@click.option("--repeats", metavar="N", type=click.IntRange(1, 100), default=1, help="Runs of each combination.")
@options.spread_nodes
@options.job_settings
@options.after
@options.dry_run
@options.flag("--again", help="Start all of them, even if an interrupted sweep could be continued.")
@options.detach
def sweep_command(vary: tuple[str, ...], zipped: tuple[str, ...], repeats: int, **settings: Any) -> Result:
    """Try every combination of settings, and rank them with `results --rank`.

    All are planned before anything starts. Combinations that cannot run (the batch does not divide, the model does not
    fit) are listed with the reason, the others with the memory and time they are expected to take.

    \b
    llmb-run sweep -w llama3.1 -s 8b --dtype bf16 --scale 8 --vary tp=1,2,4 --vary NCCL_ALGO=Ring,Tree
    llmb-run sweep -w llama3.1 -s 8b --dtype bf16 --scale 8 --zip 'tp=1,2 mbs=1,2' --repeats 3 --dry-run
    """
    how, workspace = StartOptions.taken(settings), Workspace()
    base, lists = many_jobs(**settings)
    dimensions, groups = dimensions_said(vary, zipped, base, lists)
    check_apart(repeats, how.apart)
    return start_sweep(sweep(base, workspace, dimensions, groups, repeats=repeats), workspace, how)


@click.command(cls=Command)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path), help="Task file, in YAML or the short form.")
@options.flag("--again", help="Start all jobs of this file again, even those already started.")
@options.after
@options.skip_unsupported
@options.dry_run
@options.detach
def bulk_command(file: Path, **settings: Any) -> Result:
    """Start the jobs of a task file.

    After an interruption run it again: recorded jobs are not started twice, and tasks added to the file
    since then are started.
    """
    workspace = Workspace()
    return start(
        "bulk", read_tasks(file, workspace), workspace, StartOptions.taken(settings), task_file=str(file.resolve())
    )
