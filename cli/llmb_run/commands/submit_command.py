"""``llmb-run submit``: the general form of ``single``."""

from __future__ import annotations

from typing import Annotated

import typer

from llmb_run import options
from llmb_run.app import PlainCommand, command_app

app = command_app()


@app.command(cls=PlainCommand)
def submit(
    workload: options.Workloads = None,
    size: options.Sizes = None,
    dtype: options.Dtypes = None,
    scale: Annotated[
        list[str] | None,
        typer.Option("--scale", metavar="GPUS", help="Numbers of GPUs, or 'all' documented ones; repeat it."),
    ] = None,
    min_scale: Annotated[
        int | None, typer.Option("--min-scale", metavar="GPUS", min=1, help="All documented scales from this one on.")
    ] = None,
    max_scale: Annotated[
        int | None, typer.Option("--max-scale", metavar="GPUS", min=1, help="All documented scales up to this one.")
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", min=1, max=10000, help="Runs of each job.")] = 1,
    profile: options.Profile = False,
    gpu_type: options.GpuType = None,
    variant: options.Variant = None,
    max_steps: options.MaxSteps = None,
    time_limit: options.TimeLimit = None,
    env: options.Environment = None,
    columns: options.Columns = None,
    nodelist: Annotated[str | None, typer.Option("--nodelist", metavar="HOSTS", help="Run on these nodes.")] = None,
    exclude: Annotated[str | None, typer.Option("--exclude", metavar="HOSTS", help="Avoid these nodes.")] = None,
    reservation: Annotated[str | None, typer.Option("--reservation", metavar="NAME", help="Slurm reservation.")] = None,
    slurm_arg: options.SlurmArgs = None,
    after: options.After = None,
    resume_chain: Annotated[
        int,
        typer.Option(
            "--resume-chain",
            metavar="N",
            min=1,
            max=1000,
            help="N jobs one after the other, each from the newest checkpoint of the former.",
        ),
    ] = 1,
    skip_unsupported: Annotated[
        bool, typer.Option("--skip-unsupported", help="Leave out combinations that no recipe has.")
    ] = False,
    dry_run: options.DryRun = False,
    force: options.Force = False,
    again: Annotated[
        bool, typer.Option("--again", help="Start all of them, also where an interrupted submission could go on.")
    ] = False,
    detach: options.Detach = False,
    no_array: options.NoArray = False,
    as_json: options.Json = False,
) -> int:
    """Start jobs for several workloads, sizes, dtypes and scales.

    Every combination is planned before the first one is started; one that cannot be planned stops all.

    \b
    llmb-run submit -w pretrain_llama3.1 -s 8b,70b --dtype fp8 --max-scale 128 --repeats 3
    """
    from llmb_run.place import Place
    from llmb_run.starting.requests import Ask, columns_of, environment_of, slurm_of
    from llmb_run.starting.submitting import start
    from llmb_run.starting.sweeps import sweep
    from llmb_run.words import split

    place = Place()
    environment = environment_of(env)
    if resume_chain > 1:
        environment = {"ENABLE_CHECKPOINT": "true", **environment}
    base = Ask(
        workload="",
        profile=profile,
        gpu_type=gpu_type,
        variant=variant,
        max_steps=max_steps,
        time_limit=time_limit,
        environment=environment,
        columns=columns_of(columns),
        slurm=slurm_of(slurm_arg, nodelist=nodelist, exclude=exclude, reservation=reservation),
        force=force,
    )
    asks = sweep(
        base,
        place,
        workloads=split(workload),
        sizes=split(size),
        dtypes=split(dtype),
        scales=split(scale),
        min_scale=min_scale,
        max_scale=max_scale,
        repeats=repeats,
    )
    return start(
        "submit",
        asks,
        place=place,
        again=again,
        after=after,
        chain=resume_chain,
        dry_run=dry_run,
        skip_unsupported=skip_unsupported,
        detach=detach,
        arrays=not no_array,
        as_json=as_json,
    )
