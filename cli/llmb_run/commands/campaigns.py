"""The commands that go on until a question is answered: accept, ab, tune."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from llmb_common.base.outcome import Result
from llmb_run import options
from llmb_run.app import Command, VerbCommand


@click.command("suites", cls=Command)
@click.argument(
    "name",
    default="",
    metavar="[NAME]",
    help="Print this one, to start a suite of your own with.",
    shell_complete=options.complete_suites,
)
def show_suites(**settings: Any) -> Result:
    """List the suites that come with LLMB, or print one.

    \b
    llmb-run accept suites exemplar-h100
    """
    from llmb_run.actions.campaigns import show_suites

    return show_suites(**settings)


@click.command("show", cls=Command)
@click.argument(
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="An unpacked evidence pack, or the folder of a campaign.",
)
def show_verb(**settings: Any) -> Result:
    """Show a campaign: what its suite demanded, and its verdict, judged again from its own logs.

    \b
    llmb-run accept show campaigns/exemplar-h100

    Exit status as of accept; 1 also where the campaign says something else than its logs, or a run was replaced that
    had ended well. sha256sum -c SHA256SUMS checks the files of a pack, and ssh-keygen -Y verify its signature.
    """
    from llmb_run.actions.campaigns import show_campaign

    return show_campaign(**settings)


@click.command(cls=VerbCommand, verbs=[show_suites, show_verb])
@click.argument(
    "suite",
    metavar="SUITE",
    help="A suite file, or the name of one of llmb-run accept suites, such as smoke.",
    shell_complete=options.complete_suites,
)
@options.flag("--again", help="Start a new campaign, even if one is over or could be resumed.")
@options.kept_in("campaigns")
@options.flag("--evening", help="Judge this evening alone: no run on another day, and no claim about other days.")
@options.flag("--dry-run", help="Start nothing; show what would run, and what it would be compared with.")
def accept_command(**settings: Any) -> Result:
    """Run an acceptance campaign: a suite of workloads, a verdict, evidence.

    \b
    llmb-run accept exemplar-h100 --dry-run

    Plans everything before anything starts. Workloads are rerun that are open and may be decided, or that met a faulty
    node, up to the suite's limit, and every rerun is listed. After any interruption, run the same command again, and it
    continues.

    Exit status 0: accepted; 1: not accepted; 4: open, more runs would decide, or not judged, for want of a reference.

    accept suites [NAME] shows the suites that come with LLMB; accept show FOLDER judges a campaign or its
    unpacked evidence again.
    """
    from llmb_run.actions.campaigns import run_campaign

    return run_campaign(**settings)


@click.command(cls=Command)
@click.option("--base", metavar="RUN", help="Side A: the job of this run.", shell_complete=options.complete_runs)
@click.option(
    "-w", "--workload", metavar="NAME", help="Or a job, named as in single.", shell_complete=options.complete_workloads
)
@options.size_dtype_scale
@click.option(
    "--change",
    metavar="NAME=VALUE",
    multiple=True,
    help="How side B differs; repeatable.",
    shell_complete=options.complete_settings,
)
@click.option("--unset", metavar="NAME", multiple=True, help="What side A sets and side B does not; repeatable.")
@options.until_clear
@options.job_settings
@options.flag("--again", help="Start a new comparison, even if one could be resumed or is over.")
@options.kept_in("campaigns")
@options.flag("--dry-run", help="Start nothing: show both plans.")
def ab_command(**settings: Any) -> Result:
    """Compare two configurations: alternate runs on the same nodes until the answer is clear.

    \b
    llmb-run ab --base a1b2c3d4 --change tp=4
    llmb-run ab -w grok1 --scale 512 --change NCCL_ALGO=Ring --budget 500

    A change is a column (tp=4), a variable of the job (NCCL_ALGO=Ring), a setting of Megatron-Bridge
    (ddp.overlap_grad_reduce=true), or size, dtype, scale, variant, engine, image.
    Both sides share one allocation if the scheduler allows it. The comparison ends when the interval excludes zero or
    lies within the resolution. The losses show whether both sides did the same work. After any interruption, run the
    same command again to continue.

    Exit status 0: answered; 1: a side failed, or the work differs; 4: open when the budget was spent.
    """
    from llmb_run.actions.campaigns import compare_sides

    return compare_sides(**settings)


@click.command(cls=Command)
@options.one_job
@options.several(
    "--vary",
    metavar="NAME=VALUE,VALUE",
    help="Values to try for a setting, instead of those that tune finds; a single value fixes it; repeatable.",
    shell_complete=options.complete_settings,
)
@options.flag("--only", help="Vary only what --vary names, in all combinations.")
@options.budget
@click.option(
    "--trial-steps",
    metavar="N",
    type=click.IntRange(min=6),
    default=20,
    help="Steps of a trial, of which the second half is measured. Default: 20.",
)
@options.flag("--set-baseline", help="Make the winner this site's baseline.")
@options.flag("--again", help="Start a new tuning, even if one could be resumed or is over.")
@options.kept_in("tunings")
@options.job_settings
@options.flag("--dry-run", help="Start nothing: show the candidates, and how many runs trying them takes.")
def tune_command(**settings: Any) -> Result:
    """Find the fastest configuration of a job on this machine.

    \b
    llmb-run tune -w pretrain_mbridge -s qwen3_30b_a3b --scale 16 --budget 150

    Configurations near the recipe's own are tried in short runs, in rounds: the better half goes on to the next round.
    The best one is then compared with the recipe's own in whole runs, as ab does. One that runs out of memory is out,
    and one that crashes is tried again. After any interruption, run the same command again to continue. Exit status 1
    if the recipe's own configuration does not run.
    """
    from llmb_run.actions.campaigns import find_fastest

    return find_fastest(**settings)
