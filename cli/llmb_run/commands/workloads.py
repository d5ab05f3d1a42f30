"""``llmb-run list``."""

from __future__ import annotations

from typing import Any

import click

from llmb_common.base.outcome import Result
from llmb_run import options
from llmb_run.app import Command


@click.command(cls=Command)
@options.workloads
@options.sizes
@options.gpu_type
@options.flag("--installed", help="Only workloads of this installation.")
def list_command(**settings: Any) -> Result:
    """Show workloads with their sizes, dtypes and numbers of GPUs.

    \b
    llmb-run list -w pretrain_llama3.1 --gpu-type gb200
    """
    from llmb_run.actions.workloads import list_workloads

    return list_workloads(**settings)
