"""The command behind every ``launch.sh``: plan, then print or submit.

Only the script or the plan goes to stdout; notices and errors go to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from llmb_common import __version__
from llmb_common.base.cluster_types import SLURM
from llmb_common.base.errors import RequestError
from llmb_common.base.gpus import CPU
from llmb_common.base.outcome import guarded
from llmb_common.base.printable import for_scripts, print_message
from llmb_common.planning.job_plan import JobPlan, plan_as_dict
from llmb_common.planning.outlook_lines import short_lines
from llmb_common.planning.plan import make_plan
from llmb_common.planning.request.read import Request, read_request
from llmb_common.planning.request.variables import VARIABLE_NAMES, FieldNames
from llmb_common.planning.site.cluster import ClusterConfig, load_cluster_config
from llmb_common.planning.site.machine import Machine, detect_machine
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.nearest import plan_command, type_for
from llmb_common.recipes.recipe import Recipe
from llmb_common.results.own_runs import own_runs_lookup
from llmb_common.runs.paths import dry_run_paths
from llmb_common.submission.script import render_script


def plan_from_variables(
    recipe_folder: Path,
    variables: Mapping[str, str],
    job_variables: Mapping[str, str] | None = None,
    say: FieldNames = VARIABLE_NAMES,
    note: Callable[[str], None] | None = None,
) -> tuple[Request, JobPlan]:
    """Return (the request that ``variables`` describe, the plan for it by recipe and site configuration).

    ``recipe_folder`` is the one with ``recipe.yaml``. ``variables`` are environment variables as ``launch.sh``
    takes them, of which an empty or blank one counts as not set; others in the environment are ignored, but one
    that looks misspelled is an error. ``job_variables`` (None: none) go into the job's environment whatever their
    names, and win over those of the same name in ``variables``, of which only ``NCCL_*`` and other tuning variables
    go there. ``say`` is what messages call the variables: their own names, or a command's options. ``note`` (None:
    nobody) is called with a sentence for each key of the site's configuration that no longer has an effect. Nothing
    is written or submitted.

    Raises:
        RequestError: a variable is wrong, or no plan is possible
        ConfigError: the site's configuration is wrong
        RecipeError: the recipe is wrong or cannot be read
        LLMBError: something else that the plan needs is wrong or missing
        OSError: ``recipe_folder`` may not be looked at, or nvidia-smi vanished meanwhile
    """
    request = read_request(variables, say)
    if job_variables:
        request = replace(request, tuning={**request.tuning, **job_variables})
    return request, _plan(load_recipe(recipe_folder), load_cluster_config(request.install, note), request)


def without_gpus(cluster: ClusterConfig, request: Request) -> bool:
    """Return whether jobs of this site would run on a machine without GPUs, though the request does not ask for a CPU.

    True also where the request names no GPU type. False where the request asks for a CPU (``gpu_type``) or names a
    way of running jobs (``cluster_type``). Where nothing is configured, the machine is looked at (nvidia-smi, the
    scheduler's program).

    Raises:
        ValueError: the site or the request names no known way of running jobs
        OSError: nvidia-smi vanished meanwhile
    """
    return not request.cluster_type and _lacks_gpus(detect_machine(cluster, request), request)


def _lacks_gpus(machine: Machine, request: Request) -> bool:
    """Return whether ``machine``, on which jobs would run, has no GPUs, though the request does not ask for a CPU.

    True also where the request names no GPU type. False where the request asks for a CPU (``gpu_type``) or names a
    way of running jobs (``cluster_type``).
    """
    return machine.gpu_type == CPU and not request.cluster_type and request.gpu_type != CPU


def _plan(recipe: Recipe, cluster: ClusterConfig, request: Request) -> JobPlan:
    """Return the plan for this site, or, in a dry run on a machine without GPUs, the plan for a Slurm cluster.

    The latter where the request names a GPU type; where it names none, only if no plan is possible here, and then
    for a GPU type that the recipe has. Outside a dry run no plan for a cluster is returned.

    Raises:
        RequestError: the job cannot be planned; on a machine without GPUs the remedy may give the command that
            plans it for a cluster
        ConfigError: the site's catalogue is of another release than its configuration says
        RecipeError: the recipe's name for experiments is none for a folder, or a file beside it cannot be read
        OSError: nvidia-smi vanished meanwhile
    """
    machine = detect_machine(cluster, request)
    lacking = _lacks_gpus(machine, request)
    if request.gpu_type and request.dry_run and lacking:
        return _plan_elsewhere(recipe, cluster, request)
    try:
        return make_plan(recipe, cluster, request, machine, own_runs_lookup(request.install))
    except RequestError as error:
        if request.gpu_type or not lacking:
            raise
        size = request.model_size or recipe.defaults.model_size
        gpu_type = type_for(recipe, size, request.dtype, request.gpus)
        if gpu_type is None:
            raise
        try:
            plan = _plan_elsewhere(recipe, cluster, replace(request, gpu_type=gpu_type))
        except RequestError as there:
            if not request.dry_run or error.field not in ("GPU_TYPE", "DTYPE"):
                raise error from None
            there.message += f" (there are no GPUs here: planned for {gpu_type})"
            raise there from None
        if request.dry_run:
            return plan
        if "llmb-run plan" not in error.remedy:
            command = plan_command(recipe, size, gpu_type=gpu_type, dtype=plan.dtype, gpus=plan.gpus)
            error.remedy += f"; for a cluster: {command}"
        raise


def _plan_elsewhere(recipe: Recipe, cluster: ClusterConfig, request: Request) -> JobPlan:
    """Return the plan for an assumed Slurm cluster of the GPU type that ``request`` names, whatever this machine is.

    ``request.gpu_type`` is to be set; the GPU type and kind of cluster that ``cluster`` names do not count, its other
    settings do. The plan's first warning says what it was planned for. ``cluster`` stays as it is.

    Raises:
        RequestError: the job cannot be planned
        ConfigError: the site's catalogue is of another release than its configuration says
        RecipeError: the recipe's name for experiments is none for a folder, or a file beside it cannot be read
    """
    cluster = replace(cluster, cluster_type=SLURM, gpu_type=None)
    plan = make_plan(recipe, cluster, request, Machine(cluster_type=SLURM), own_runs_lookup(request.install))
    note = f"there are no GPUs here: planned for {plan.gpu_type} on a Slurm cluster"
    return replace(plan, preflight=replace(plan.preflight, warnings=(note, *plan.preflight.warnings)))


def _print_note(text: str) -> None:
    """Print ``note: `` and ``text`` on stderr, made printable and folded to the terminal's width."""
    print_message(f"note: {text}")


def run(recipe_folder: Path, variables: Mapping[str, str]) -> int:
    """Do all that ``launch.sh`` does: plan the job, then print the plan or script, or submit it; always return 0.

    ``recipe_folder`` has ``recipe.yaml``; ``variables`` is the environment. A dry run prints on stdout the batch
    script, or the plan as JSON where ``json`` is asked for, and submits nothing; unless ``without_gpus`` holds, it
    also checks the checkpoint to load and the space for new ones. Where it is no dry run, a run folder is written
    and the job submitted; without a scheduler the run is followed to its end. Then ``Submitted batch job ID``, or
    ``STATE: LOG`` of a run without a job ID, is printed on stdout. Name and folder of the run, and notes, go to
    stderr.

    Raises:
        LLMBError: the job cannot be planned or submitted, or a run that was followed failed
        OSError: a folder or file that it needs cannot be looked at
    """
    request, plan = plan_from_variables(recipe_folder, variables, note=_print_note)
    for warning in (*plan.preflight.warnings, *short_lines(plan)):
        _print_note(warning)
    checks_disk = request.dry_run and plan.checkpoint.is_used
    if checks_disk and not without_gpus(load_cluster_config(request.install), request):
        # Imported here, because a dry run without checkpoints needs nothing of submission.
        from llmb_common.submission.preflight import check_disk

        check_disk(plan)
    if request.dry_run == "json":
        print(json.dumps(plan_as_dict(plan), indent=2))
        return 0
    if request.dry_run:
        for_scripts(sys.stdout).write(render_script(plan, dry_run_paths(plan.workload_folder, plan.experiment_name)))
        return 0
    from llmb_common.submission.preflight import submission_doubts
    from llmb_common.submission.single import submit

    for doubt in submission_doubts([plan]):
        _print_note(doubt)
    record = submit(
        plan,
        recipe_folder,
        on_record=lambda found: print(f"{found.paths.name}\n  {found.paths.folder}", file=sys.stderr),
    )
    if record.job_id is not None:
        print(f"Submitted batch job {record.job_id}")
    else:
        print(f"{record.state}: {record.paths.log}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run ``launch.sh`` for the recipe folder that is the only word of ``arguments``, and return the exit status.

    ``arguments`` are words without the program's name; None: those of the command line. Settings come from
    environment variables. Where the folder is followed by ``--version``, ``--help`` or ``-h``, it prints that on
    stdout and returns 0; with any other number of words it prints a usage text on stderr and returns 2. Errors of
    LLMB (status ``exit_status``), OSErrors (3) and interruptions (130) are printed, not raised; else the status is 0,
    also for a dry run.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if words[1:] == ["--version"]:
        print(f"launch.sh {__version__}")
        return 0
    if len(words) != 1:
        helps = words[1:] in (["-h"], ["--help"])
        print(
            "launch.sh takes its settings from environment variables, not arguments; for example\n"
            "  JOB_TOTAL_GPUS=128 GPU_TYPE=gb200 ./launch.sh\nREADME.md next to it lists them.",
            file=sys.stdout if helps else sys.stderr,
        )
        return 0 if helps else RequestError.exit_status
    return guarded(lambda: run(Path(words[0]), os.environ))


if __name__ == "__main__":
    sys.exit(main())
