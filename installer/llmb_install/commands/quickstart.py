"""``--quickstart``: from nothing to a table with the result of a real, tiny training run on this machine."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

from llmb_common.base.errors import CheckFailed
from llmb_common.base.outcome import Result
from llmb_common.base.programs import Answer, run_program
from llmb_common.planning.request.variables import VARIABLES
from llmb_common.runs.timing.records import iterations_in
from llmb_install.answers.answers import complete_answers, load_recipes, stored_answers
from llmb_install.installation import Installation, write_site_config
from llmb_install.parts.engine import TOOL
from llmb_install.working import command
from llmb_install.working.artefact import make_missing
from llmb_install.working.reporter import Reporter
from llmb_install.working.transaction import install_lock, remove_leftovers

WORKLOAD = "pretrain_llama3.1"
STEPS = 50
_ENDING = 45.0
"""Seconds for a training run to end in order after Ctrl-C."""


def quickstart(options: argparse.Namespace, clone: Path, install: Path) -> Result:
    """Run ``install --quickstart``: make a CPU installation, train a tiny model in it, and show the result.

    An installation that is in the folder ``install`` keeps its answers. The result's text is the run's table of step
    times; it has no data. Where the training's exit status is 0, but the table cannot be made or shows no Success, the
    result has a CheckFailed, which is not raised. What was made before an error stays. ``clone`` has the recipes.
    ``options`` is the parsed command line.

    Raises:
        EnvironmentLacks: the machine lacks something
        CheckFailed: the training ended with another status than 0, or left no run
        LLMBError: an answer, recipe or site file is wrong, or a part could not be made
        OSError: a file or folder cannot be used
        Interrupted: this process is ending
    """
    with Reporter(install / ".llmb" / "logs", verbose=options.verbose) as reporter:
        reporter.note(f"LLMB quickstart in {install}")
        try:
            with install_lock(install, reporter):
                given = {"install_path": str(install), "cluster_type": "local", "gpu_type": "cpu"}
                answers = stored_answers(install) or complete_answers(
                    {**given, "workloads": [WORKLOAD]}, load_recipes(clone)
                )
                _make_installation(Installation(clone, answers), reporter, space_check=not options.no_space_check)
            run_folder = _train_tiny_model(clone, install, reporter)
            table = _timing_table(clone, install, run_folder)
        except BaseException:
            reporter.say_where_the_log_is()
            raise
        for line in table.output.splitlines():
            reporter.log(line)
        print(table.errors, end="", file=sys.stderr, flush=True)
        if not table.ok or not re.search(r"\bSuccess\b", table.output):
            reporter.say_where_the_log_is()
            error = CheckFailed("the run did not succeed", remedy=f"look at its log in {run_folder}")
            return Result(text=table.output, error=error)
    folder = shlex.quote(str(install))
    remarks = [
        f"installed in {install}; log: {reporter.log_path}",
        f'next: export LLMB_INSTALL={folder} PATH={folder}/bin:"$PATH"; llmb-run results',
    ]
    return Result(text=table.output, remarks=remarks)


def _make_installation(installation: Installation, reporter: Reporter, *, space_check: bool) -> None:
    """Make what ``installation`` lacks for CPU jobs, and note with ``reporter`` if its CPU engine is there already.

    An existing installation for GPU jobs only gets the CPU engine, which is entered in its ``cluster_config.yaml``;
    no note then. What killed commands have left is removed first. ``space_check``: free disk space is checked before.
    The caller holds the installation's lock.

    Raises:
        LLMBError: this machine lacks something, a part could not be made, or ``cluster_config.yaml`` is wrong
        OSError: a file or folder cannot be used
    """
    remove_leftovers(installation.path)
    if installation.needs_engine():
        if "engine-cpu" not in make_missing(installation.artefacts(), reporter, space_check=space_check):
            reporter.note("    ok  the CPU engine is already there")
        return
    engine = installation.engine()
    make_missing([engine], reporter, space_check=space_check)
    # Through the link, so that it stays right after an update.
    write_site_config(installation.path, {("engine", "python"): str(engine.link / "bin" / "python")})


def _training_environment(clone: Path, install: Path) -> dict[str, str]:
    """Return this process's environment variables for the training run, but none that would change what is trained.

    Left out are those by which jobs are planned, such as ``MODEL_SIZE``. ``LLMB_INSTALL``, ``LLMB_REPO`` and
    ``LLMB_PYTHON`` are set for this installation. PYTHONIOENCODING is left out, too: with ``ascii`` a rank fails to
    print a path such as /home/jürgen. ``clone`` is the repository's folder, ``install`` the installation's.
    """
    left_out = {*VARIABLES, "PYTHONIOENCODING"}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    tool = install / "venvs" / TOOL / "bin" / "python"
    return kept | {"LLMB_INSTALL": str(install), "LLMB_REPO": str(clone), "LLMB_PYTHON": str(tool)}


def _train_tiny_model(clone: Path, install: Path, reporter: Reporter) -> Path:
    """Train a tiny model through the clone's ``launch.sh`` as a user would, wait, and return the new run's folder.

    The installation in ``install`` must be complete. ``clone`` is the repository's folder. ``reporter`` shows the
    steps. There is no limit of time.

    Raises:
        CheckFailed: the training ended with another status than 0, or left no run
        OSError: bash cannot be started
        Interrupted: this process is ending
    """
    experiments = install / "workloads" / WORKLOAD / "experiments"
    # launch.sh does not say where the run is: it is the folder that was not there before.
    before = set(_run_folders(experiments))
    variables = {"MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "1", "CLUSTER_TYPE": "local", "GPU_TYPE": "cpu"}
    shown = " ".join(f"{name}={value}" for name, value in variables.items())
    recipe = clone / "llama3.1"
    reporter.note(f"training: cd {recipe} && {shown} ./launch.sh")
    title = f"training a tiny Llama 3.1, {STEPS} steps"
    with reporter.step(title) as step:
        step.update(lambda: _training_progress(experiments, before))
        env = _training_environment(clone, install) | variables
        done = command.run(["bash", str(recipe / "launch.sh")], reporter, env=env, cwd=recipe, patience=_ENDING)
    new = sorted(set(_run_folders(experiments)) - before)
    if done.status != 0:
        tail = "\n".join(f"    {line}" for line in done.tail[-10:])
        raise CheckFailed(
            f"the training run ended with status {done.status}\n{tail}",
            remedy=f"the run's own files: {new[-1]}" if new else "correct what the message says, then run it again",
        )
    if not new:
        raise CheckFailed(f"launch.sh reported success but left no run under {experiments}")
    return new[-1]


def _training_progress(experiments: Path, before: set[Path]) -> str:
    """Return how far the new run's training is, by its log, for a progress line: ``step 3 of 50, loss 9.123``.

    ``experiments`` is the workload's folder of runs; ``before`` are the folders of earlier runs, which are left out.
    The loss is left out where the log has none. As long as no step is logged it is ``loading Megatron-Bridge``.

    Raises:
        OSError: a log cannot be read
    """
    for folder in set(_run_folders(experiments)) - before:
        for log in folder.glob("*/log-*.out"):
            if found := iterations_in(log.read_bytes()):
                last = found[-1]
                loss = "" if last.loss is None else f", loss {last.loss:.3f}"
                return f"step {last.step} of {last.steps}{loss}"
    return "loading Megatron-Bridge"


def _run_folders(experiments: Path) -> list[Path]:
    """Return the folders of all runs in ``experiments``, a workload's folder of runs; in no order.

    A run's folder lies two levels below and has a ``run.json``. Empty where there are none, or no such folder.
    """
    return [record.parent for record in experiments.glob("*/*/run.json")]


def _timing_table(clone: Path, install: Path, run_folder: Path) -> Answer:
    """Run the clone's ``parse_train_timing_mbridge.sh`` on a run, for at most 120 seconds, and return its answer.

    The table of step times is the answer's ``output``. A script that fails, does not end in time or cannot be
    started is told in the answer, not raised. ``run_folder`` is the run's; ``clone`` is the repository's folder;
    ``install`` has the tool that the script calls.
    """
    parser = clone / "common" / "parse_train_timing_mbridge.sh"
    return run_program(["bash", str(parser), str(run_folder)], 120, env=_training_environment(clone, install))
