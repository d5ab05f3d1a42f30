"""Options that several commands share, each defined once."""

from __future__ import annotations

from typing import Annotated

import typer

from llmb_run import completion

Workload = Annotated[
    str,
    typer.Option("-w", "--workload", metavar="NAME", help="Workload.", autocompletion=completion.workloads),
]
Workloads = Annotated[
    list[str] | None,
    typer.Option(
        "-w",
        "--workload",
        metavar="NAME",
        help="Workload; repeat it, or separate with commas.",
        autocompletion=completion.workloads,
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        "-s",
        "--size",
        "--model-size",
        metavar="SIZE",
        help="Model size, such as 405b.",
        autocompletion=completion.sizes,
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", metavar="DTYPE", help="bf16, fp8 or nvfp4.", autocompletion=completion.dtypes),
]
Profile = Annotated[bool, typer.Option("-p", "--profile", help="Profile with Nsight Systems.")]
GpuType = Annotated[
    str | None, typer.Option("--gpu-type", metavar="TYPE", help="gb300, gb200, b200, h200, h100 or cpu.")
]
Variant = Annotated[
    str | None, typer.Option("--variant", metavar="NAME", help="Generation of rows, where a recipe has two.")
]
MaxSteps = Annotated[str | None, typer.Option("--max-steps", metavar="N", help="Training steps.")]
TimeLimit = Annotated[
    str | None, typer.Option("--time-limit", metavar="TIME", help="Slurm time limit: HH:MM:SS, or minutes.")
]
Environment = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="A variable of the job, or of launch.sh; repeat it."),
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="COLUMN=VALUE", help="Override one column, such as tp=4; repeat it."),
]
SlurmArgs = Annotated[
    list[str] | None,
    typer.Option("--slurm-arg", metavar="KEY=VALUE", help="A further sbatch option, such as qos=high; repeat it."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Start nothing: print the batch script of one job, a table of several.")
]
Force = Annotated[bool, typer.Option("--force", help="Accept an undocumented scale that divides.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, errors included.")]
After = Annotated[
    list[str] | None,
    typer.Option("--after", metavar="JOB", help="Start when this run or Slurm job has ended; repeat it."),
]
Detach = Annotated[bool, typer.Option("--detach", help="Without Slurm: return at once, let the job run on.")]
NoArray = Annotated[
    bool, typer.Option("--no-array", help="Submit every run alone, also those that one Slurm job array could hold.")
]
Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN", help="Run ids, names, job ids or folders.", autocompletion=completion.runs),
]
Run = Annotated[
    str, typer.Argument(metavar="RUN", help="Run id, name, job id or folder.", autocompletion=completion.runs)
]
Sizes = Annotated[
    list[str] | None,
    typer.Option("-s", "--size", "--model-size", metavar="SIZE", help="Model size; repeat it, or use commas."),
]
Dtypes = Annotated[
    list[str] | None,
    typer.Option("--dtype", metavar="DTYPE", help="bf16, fp8 or nvfp4; repeat it, or use commas."),
]
Scales = Annotated[
    list[str] | None, typer.Option("--scale", metavar="GPUS", help="Number of GPUs; repeat it, or use commas.")
]
States = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help="Slurm's word, such as RUNNING or TIMEOUT; repeat it."),
]
Since = Annotated[str | None, typer.Option("--since", metavar="SPAN", help="Only runs of the last 90m, 2h, 7d.")]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most the N newest runs.")]
OptionalRun = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="Run id, name, job id or folder.", autocompletion=completion.runs),
]
