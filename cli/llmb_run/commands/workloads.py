"""``llmb-run list``."""

from __future__ import annotations

import click

from llmb_common.command.outcome import Result
from llmb_run import options
from llmb_run.app import Command


@click.command(cls=Command)
@options.workloads
@options.sizes
@options.gpu_type
@options.flag("--installed", help="Only workloads of this installation.")
def list_command(workload: tuple[str, ...], size: tuple[str, ...], gpu_type: str | None, installed: bool) -> Result:
    """Show workloads with their sizes, dtypes and numbers of GPUs.

    \b
    llmb-run list -w pretrain_llama3.1 --gpu-type gb200
    """
    from llmb_run.actions.workloads import list_workloads

    return list_workloads(workload=workload, size=size, gpu_type=gpu_type, installed=installed)
