"""The commands that compare step times: results, compare."""

from __future__ import annotations

from typing import Any

import click

from llmb_common.base.outcome import Result
from llmb_run import options
from llmb_run.app import Command

_SIDE = "Run id, name, job id or folder; several with commas are repeats."


@click.command(cls=Command)
@options.runs
@options.filters
@click.option("--format", "output", metavar="FORMAT", help="table (the default), csv or json.")
@options.flag("--runs", "single_runs", help="Also a line for each run, and what differs between repeats.")
@options.flag("--timing", help="Also the published documents' table of step times.")
@options.flag("--notes", help="All notes, not the three weightiest.")
@options.flag("--full-names", help="With --runs or --timing: whole names, and all columns.")
@click.option("--last", metavar="N", type=click.IntRange(min=1), help="List the N newest runs, not 50.")
@options.flag("--all", "everything", help="List every configuration and run.")
@click.option("--window", metavar="FIRST-LAST", help="Measure these iterations instead of the recipe's.")
@options.flag("--iterations", help="Print every step of every run instead, as CSV or JSON.")
@options.flag("--group", help="One line and one verdict for the repeats of each configuration.")
@options.flag("--rank", help="Configurations by speed, which of them tie, and the command of the fastest.")
@options.flag("--scaling", help="Efficiency relative to the smallest number of GPUs, next to the published one.")
@options.flag("--history", help="Each configuration over time: since when it has been slower, and what changed.")
@options.flag("--alarm", help="For cron: print nothing, or a line and exit status 1 if one became slower.")
def results_command(**settings: Any) -> Result:
    """Say how fast each configuration is, against its reference, and what to do next.

    \b
    llmb-run results -w pretrain_llama3.1 --since 7d
    llmb-run results ~/logs --format csv

    RUNS are run ids, names, job ids, folders or outputs of nccl-tests (all_reduce_perf); without any, all runs of the
    installation that match the options.
    Exit status 1 if a run failed; with --rank, if a model has no run with a time. Runs that wait, run or were too short
    to be measured have not failed.
    """
    from llmb_run.actions.results import results

    return results(**settings)


@click.command(cls=Command)
@click.argument("first", metavar="A", help=_SIDE, shell_complete=options.complete_runs)
@click.argument("second", metavar="B", help=_SIDE, shell_complete=options.complete_runs)
def compare_command(**settings: Any) -> Result:
    """Compare two runs, or repeats of two: step time, loss, and what differs.

    \b
    llmb-run compare a1b2c3d4 e5f6a7b8
    llmb-run compare monday.json friday.json

    Files are measurements of the fabric: of health --fabric --json, or outputs of nccl-tests. The interval holds the
    true difference in 97.7 % of such comparisons. Exit status 1 if a side has no successful run,
    4 if it has none yet.
    """
    from llmb_run.actions.results import compare

    return compare(**settings)
