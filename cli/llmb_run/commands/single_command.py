"""``llmb-run single``: the documented command."""

from __future__ import annotations

from typing import Annotated

import typer

from llmb_run import options
from llmb_run.app import PlainCommand, command_app

app = command_app()


@app.command(cls=PlainCommand)
def single(
    workload: options.Workload,
    size: options.Size = None,
    dtype: options.Dtype = None,
    scale: Annotated[
        str | None, typer.Option("--scale", metavar="GPUS", help="Number of GPUs; ranks on a CPU.")
    ] = None,
    profile: options.Profile = False,
    gpu_type: options.GpuType = None,
    variant: options.Variant = None,
    max_steps: options.MaxSteps = None,
    time_limit: options.TimeLimit = None,
    env: options.Environment = None,
    columns: options.Columns = None,
    slurm_arg: options.SlurmArgs = None,
    after: options.After = None,
    dry_run: options.DryRun = False,
    force: options.Force = False,
    detach: options.Detach = False,
    as_json: options.Json = False,
) -> int:
    """Start one job.

    \b
    llmb-run single -w pretrain_llama3.1 -s 405b --dtype fp8 --scale 128

    Everything that launch.sh reads from the environment works here too; options win.
    """
    from llmb_run.starting.requests import Ask, columns_of, environment_of, refuse_several, slurm_of
    from llmb_run.starting.submitting import start

    refuse_several({"-w": workload, "-s": size, "--dtype": dtype, "--scale": scale})
    ask = Ask(
        workload=workload,
        size=size,
        dtype=dtype,
        scale=scale,
        profile=profile,
        gpu_type=gpu_type,
        variant=variant,
        max_steps=max_steps,
        time_limit=time_limit,
        environment=environment_of(env),
        columns=columns_of(columns),
        slurm=slurm_of(slurm_arg),
        force=force,
    )
    return start("single", [ask], after=after, dry_run=dry_run, detach=detach, as_json=as_json)
