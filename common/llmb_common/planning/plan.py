"""``make_plan``: recipe + site + request -> ``JobPlan``, or one error that names the variable and the remedy.

It asks no scheduler and looks at no environment: ``Machine`` carries the few facts of the machine. The only files that
it reads are LLMB's own tables and those that the recipe names, which are the same for every caller.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec

from llmb_common.base.errors import RecipeError, RequestError
from llmb_common.base.words import is_experiment_name
from llmb_common.planning import environment
from llmb_common.planning.choose import Case, PlanningInput, documented_scales
from llmb_common.planning.deviations import as_notices, deviations
from llmb_common.planning.divisibility import Layout, with_nearest
from llmb_common.planning.engine import choose_engine, choose_in_release, engine_notices
from llmb_common.planning.environment import job_environment, recipe_environment
from llmb_common.planning.functions import check_columns, planned_function
from llmb_common.planning.job_plan import JobPlan, Preflight
from llmb_common.planning.known_issues import known_issues
from llmb_common.planning.memory import check_memory, estimate_of
from llmb_common.planning.own_runs import Look, OwnRuns
from llmb_common.planning.published import published_result, published_time
from llmb_common.planning.request.read import Request
from llmb_common.planning.scheduler import SchedulerSettings
from llmb_common.planning.settings import planned_settings
from llmb_common.planning.site import DEFAULT_FOLDER, FILE_NAME
from llmb_common.planning.site.cluster import ClusterConfig
from llmb_common.planning.site.machine import Machine
from llmb_common.planning.switches import (
    checkpoint_plan,
    fp8_recipe_for,
    ineffective,
    profile_plan,
    refuse_on_cpu,
    routing_for,
    steps_for,
)
from llmb_common.planning.tensor_overlap import check_bootstrap, overlaps_tensors
from llmb_common.planning.time_limit import check_time_limit
from llmb_common.recipes.columns import Columns
from llmb_common.recipes.folders import recipes_root
from llmb_common.recipes.model import count_parameters
from llmb_common.recipes.recipe import Recipe

_SHORT = {"fsdp": "fsdp", "cuda_graph": "cg", "recompute_layers": "rl", "offload_layers": "ol", "seq_len": "seq"}
"""Columns in a suffix, as the documents' tables head them; the others go by their own names."""

_LONGEST = 60
"""Of settings of the framework, in characters."""


def experiment_name(
    case: Case, documented: Layout, layout: Layout, fp8_recipe: str | None, settings: Mapping[str, object]
) -> str:
    """Return the name of a run's experiment, also of its folder: the variant's pattern and what is undocumented.

    What differs from the recipe's row is appended, ``_tp4_cg0``: another FP8 scaling, columns of the job's
    ``layout`` unlike those of ``documented`` (the row's at the job's number of GPUs), balanced routing, the
    framework's ``settings`` (by section and field), profiles and traces, in this order. ``fp8_recipe`` is the job's
    FP8 scaling; None: it is not in FP8. The same job always has the same name.

    Raises:
        RecipeError: the name cannot be a folder's
    """
    variant = case.variant
    request = case.request
    dtype = case.dtype
    values = {
        **msgspec.structs.asdict(layout),
        "model_size": case.model.size,
        "dtype": dtype,
        "precision": f"fp8_{fp8_recipe}" if dtype == "fp8" else dtype,
        "ep": layout.ep or 1,
        "etp": layout.etp or layout.tp,
    }
    name = variant.experiment_name.format(**values)
    if dtype == "fp8" and fp8_recipe != variant.fp8_recipe and "{precision}" not in variant.experiment_name:
        name += f"_{fp8_recipe}"
    if request.moe_routing == "balanced":
        # Its graphs are off, whether or not the user asked for that.
        documented = msgspec.structs.replace(documented, cuda_graph=layout.cuda_graph)
    for column in Layout.__struct_fields__:  # _tp4_cg0: those that differ from the row's, and that it does not hold
        value = getattr(layout, column)
        if value != getattr(documented, column) and f"{{{column}}}" not in variant.experiment_name:
            name += f"_{_SHORT.get(column, column)}{0 if value is None else int(value)}"
    if request.moe_routing == "balanced":
        name += "_balanced"  # another benchmark than the published one: never under one name
    name += _settings_suffix(settings)
    if request.profile:
        name += variant.profiling.suffix
    if request.nccl_trace:
        name += variant.nccl_trace.suffix
    if not is_experiment_name(name):
        raise RecipeError(
            f"the experiment name {name!r} would not stay in the folder of experiments",
            remedy="correct experiment_name in recipe.yaml: letters, digits, and _ . + - between them",
        )
    return name


def _settings_suffix(settings: Mapping[str, object]) -> str:
    """Return an experiment's name's part for the framework's settings: ``_model.moe_token_dispatcher_type-flex``.

    ``settings`` are by section and field, and sorted here. Characters that names must not have become ``-``, and it
    is cut after 60 characters; where either happened, ``-`` and six digits of a digest follow. Empty without
    settings.
    """
    words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in settings.items()}
    suffix = "".join(f"_{name}-{word}" for name, word in sorted(words.items()))
    kept = re.sub(r"[^A-Za-z0-9_.+-]+", "-", suffix)[:_LONGEST]
    if kept == suffix:
        return kept
    digest = hashlib.sha256(suffix.encode()).hexdigest()
    return f"{kept}-{digest[:6]}"


_TRIED = 8
"""Scales around an undocumented one that are planned, of which so many are named."""
_NEAREST = 4


def make_plan(
    recipe: Recipe,
    cluster: ClusterConfig,
    request: Request,
    machine: Machine,
    measured: Look = lambda plan: OwnRuns(),
) -> JobPlan:
    """Return the plan of the job that ``request`` asks for; notices for the user are in its ``preflight.warnings``.

    ``recipe`` is as ``load_recipe`` returns it, ``cluster`` is the site's configuration. ``machine`` says how jobs run
    (``cluster_type``), and, where they run here, which GPUs there are. ``measured`` is called once with the plan, whose
    ``preflight`` is empty yet, and returns what this site's runs of such a job tell; by default there are none; what it
    raises comes out. Nothing is written, and no scheduler is asked but for the kinds of MPI.

    Raises:
        RequestError: there can be no such job, LLMB_INSTALL is not set (code ``no-install``), or the job does not
            fit in memory (code ``does-not-fit``)
        ConfigError: the site's catalogue is of another release than its configuration says
        RecipeError: the recipe's name for experiments is none for a folder, or a file beside it cannot be read
    """
    if request.install is None:
        raise no_install_error("LLMB_INSTALL is not set")
    install = request.install
    given = PlanningInput(recipe=recipe, cluster=cluster, request=request, machine=machine)
    try:
        case = choose_in_release(given)
    except RequestError as error:
        if error.code == "undocumented-scale":
            error.remedy += _forced_scales(given)
        raise
    engine = choose_engine(case)
    case.note(*ineffective(case))
    moe_routing, layout = routing_for(case, _layout(case))
    architecture = case.model.architecture
    function = planned_function(case, layout.seq_len)
    try:
        check_columns(case, layout)
    except RequestError as error:
        raise with_nearest(error, layout, request.columns, lambda c: check_columns(case, c)) from None
    nodes, gpus_per_node = _node_counts(case)
    fp8_recipe = fp8_recipe_for(case)
    steps, exit_after = steps_for(case)
    profile = profile_plan(case, steps, engine)
    refuse_on_cpu(case, layout)
    image = _image(case, engine, install)
    site: SchedulerSettings = cluster.scheduler(machine.cluster_type)
    limit = site.time_limit(request)
    time_limit = limit.value if limit else case.row.time_limit or case.variant.time_limit
    scheduler = site.plan(case, nodes, gpus_per_node, may_start_mpi=overlaps_tensors(case, layout))
    family = case.entry.model if case.entry is not None else recipe.family
    layers = function.reduced.layers if function and function.reduced else case.shape.layers
    # Counted, not model.parameters: a proxy row brings its own number of layers.
    parameters = count_parameters(architecture) if architecture is not None else case.model.parameters
    variables = recipe_environment(case, layout, fp8_recipe, engine)
    settings = planned_settings(case, engine, layout)
    check_bootstrap(case, settings, scheduler)
    plan = JobPlan(
        **msgspec.structs.asdict(layout),
        workload=recipe.workload,
        recipe=recipe.name,
        family=family,
        variant=case.variant.name,
        model_size=case.model.size,
        dtype=case.dtype,
        fp8_recipe=fp8_recipe,
        gpu_type=case.gpu_type,
        device="cpu" if case.on_cpu else "cuda",
        cluster_type=machine.cluster_type,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        layers=layers,
        parameters=parameters,
        dp=layout.dp,
        expert_dp=layout.expert_dp,
        ga=layout.ga,
        wgrad_deferral=case.row.wgrad_deferral if layout.pp > 1 else None,  # one stage has no drain; core refuses it
        overridden=tuple(sorted(request.columns)),
        megatron=settings,
        moe_routing=moe_routing,
        max_steps=steps,
        exit_after=exit_after,
        time_limit=time_limit,
        image=image,
        mounts=(*cluster.mounts, *request.mounts),
        experiment_name=experiment_name(case, _documented_layout(case), layout, fp8_recipe, settings),
        env=job_environment(variables, cluster, request.tuning),
        scheduler=scheduler,
        engine=engine,
        engine_python=cluster.engine.of_release(engine) if cluster.engine else None,
        profile=profile,
        nccl_trace=request.nccl_trace,
        checkpoint=checkpoint_plan(case, parameters, steps),
        vboost=request.vboost,
        cpu_pinning=request.cpu_pinning,
        fast_cores=environment.fast_cores(case),
        memory_clock=environment.memory_clock(case),
        check_fabric=request.check_fabric and "CHECK_FABRIC" not in machine.traits.unheeded,
        measurement=case.variant.measurement,
        architecture=architecture,
        function=function,
        install=str(install),
        workload_folder=str(request.workload or install / "workloads" / recipe.workload),
        preflight=Preflight(),
    )
    return _with_preflight(plan, case, recipe, measured(plan))


def _with_preflight(plan: JobPlan, case: Case, recipe: Recipe, own: OwnRuns) -> JobPlan:
    """Return ``plan`` with what can be said of the job before it runs: memory, time, published result and notices.

    ``plan`` was made for ``case``; its own ``preflight`` is not read. ``recipe`` is as it was read: that of ``case``
    may have another release's functions. ``own`` is what this site's runs of such a job tell.

    Raises:
        RequestError: the job does not fit in memory (code ``does-not-fit``)
        RecipeError: a file beside the recipe cannot be read
    """
    published = published_result(plan, recipe)
    memory = estimate_of(case, plan, own.memory)
    time = own.time
    known: dict[str, Any] = {}
    if memory is not None:
        known["memory"] = memory
        known["memory_gib"] = round(memory.peak, 2)
        known["memory_limit_gib"] = round(memory.limit, 1)
        known["fits"] = memory.fits
    if time is not None:
        known["predicted_step_seconds"] = _four_digits(time.seconds)
        known["predicted_low"] = _four_digits(time.low)
        known["predicted_high"] = _four_digits(time.high)
        known["own_runs"] = time.runs
        known["knowledge"] = "own runs"
    if published is not None:
        known["reference_step_seconds"] = published.step_seconds
        known["reference_software"] = recipe.document(published).software
    preflight = Preflight(**known, published=published_time(plan, recipe))
    plan = msgspec.structs.replace(plan, preflight=preflight)
    differs = deviations(case, plan)
    notices = [*case.notices, *engine_notices(recipe, case, plan.engine, published)]
    if published is not None:
        notices += [f"published result of {published.source}: {note}" for note in published.notes]
    notices += known_issues(case, plan)
    notices += as_notices(differs)
    notices += check_time_limit(plan, case.request.say)
    notices += check_memory(case, memory)
    preflight = msgspec.structs.replace(preflight, deviations=differs, warnings=tuple(notices))
    return msgspec.structs.replace(plan, preflight=preflight)


def _four_digits(value: float) -> float:
    """Return ``value`` rounded to four significant digits."""
    return float(f"{value:.4g}")


def _forced_scales(given: PlanningInput) -> str:
    """Return the nearest numbers of GPUs that FORCE accepts, as a remedy's end: ``, such as 96 (fits), 192 (fits)``.

    They are near to the number of GPUs that the request in ``given`` names. Each is planned as a trial, nearest first,
    until four are found. In parentheses is ``MemoryEstimate.verdict``; without an estimate the number is alone.
    Numbers of another verdict than ``fits`` are named only where none fits, or where they are requested. Empty: FORCE
    accepts none of those tried.

    Raises:
        RequestError: the request is wrong whatever its number of GPUs
        ConfigError: the site's catalogue is of another release than its configuration says
        RecipeError: a file beside the recipe cannot be read
    """
    requested = given.request.gpus or 0
    # Trials must not fail for what the user did not ask about: scale and memory.
    forced = msgspec.structs.replace(given.request, force=True, preflight="warn")
    case = choose_in_release(msgspec.structs.replace(given, request=forced))
    layout = _row_layout(case, **{"gbs": 0, **given.request.columns})
    # Whole nodes, and whole replicas of the model.
    unit = math.lcm(case.gpus_per_node, layout.tp * layout.pp * layout.cp)
    documented = documented_scales(case)
    below = requested // unit
    reach = _TRIED + len(documented)  # so many multiples on either side are enough
    first = max(below - reach, 1)
    last = min(below + reach, 2 * below + 1)
    multiples = range(first * unit, last * unit + unit, unit)
    others = [gpus for gpus in multiples if gpus not in documented]
    nearest_first = sorted(others, key=lambda gpus: abs(gpus - requested))
    found: dict[int, str] = {}
    for gpus in nearest_first[:_TRIED]:
        trial = msgspec.structs.replace(forced, gpus=gpus)
        try:
            memory = make_plan(given.recipe, given.cluster, trial, given.machine).preflight.memory
        except RequestError:
            continue
        found[gpus] = "" if memory is None else memory.verdict
        if len(found) == _NEAREST:
            break
    fitting = [gpus for gpus, verdict in found.items() if verdict in ("", "fits")]
    chosen = [gpus for gpus in found if gpus == requested or gpus in (fitting or found)]
    named = [f"{gpus} ({found[gpus]})" if found[gpus] else str(gpus) for gpus in chosen]
    return f", such as {', '.join(named)}" if named else ""


def no_install_error(problem: str) -> RequestError:
    """Return a RequestError with the code ``no-install``, for the caller to raise: a command does not know its
    installation.

    ``problem`` is its message. The remedy is the command that sets LLMB_INSTALL, to the installation in the clone
    if it has one, else to a path to fill in, with how to make an installation.

    Raises:
        RequestError: ``LLMB_REPO`` is set and contains no recipe
    """
    here = recipes_root() / DEFAULT_FOLDER
    there = "/path/to/installation; to make one, run ./installer.py"
    if (here / FILE_NAME).is_file():
        there = quote(str(here))
    return RequestError(problem, remedy=f"export LLMB_INSTALL={there}", code="no-install")


def _layout(case: Case) -> Layout:
    """Return the layout of a job: the columns of its row as the request changes them.

    Without a requested GBS it is what the row's formula gives, with STRONG_SCALING at the row's largest scale. A job of
    a function with EP and without ETP has an ETP of 1. Adds a notice to ``case`` for what was decided for the user.

    Raises:
        RequestError: the formula of the global batch gives no whole number, or the batch is requested in two ways
    """
    request, row = case.request, case.row
    columns = dict(request.columns)
    if "gbs" not in columns:
        # Strong scaling holds the batch of the largest documented scale, the only one that divides at all of them.
        columns["gbs"] = row.global_batch_size(row.gpus_max if request.strong_scaling else case.gpus)
    elif request.strong_scaling:
        raise RequestError("STRONG_SCALING and GBS cannot be combined", remedy="unset one of them")
    if columns.get("pp") == 1 and "vp" not in columns and (row.vp or 1) > 1:
        columns["vp"] = None
        case.note(f"PP=1 has no stages to interleave: planned with VP=NA, where the configuration has VP={row.vp}")
    layout = _row_layout(case, **columns)
    # With EP, Megatron-Bridge's models take 1 where core takes TP (0.6.2: models/transformer_config.py).
    whole = case.function is not None and layout.etp is None and (layout.ep or 1) > 1
    return msgspec.structs.replace(layout, etp=1) if whole else layout


def _documented_layout(case: Case) -> Layout:
    """Return the layout of a job's row as the recipe documents it, at the job's number of GPUs.

    GBS is 0 where its formula gives no whole number for so many GPUs.
    """
    try:
        return _row_layout(case, gbs=case.row.global_batch_size(case.gpus))
    except RequestError:
        return _row_layout(case, gbs=0)


def _row_layout(case: Case, **changes: int | bool | None) -> Layout:
    """Return the layout of a job's row at the job's number of GPUs, with ``changes`` by column (``tp=4``).

    ``changes`` must have ``gbs``, which is a formula in the row. Nothing is checked.
    """
    columns: dict[str, Any] = {name: getattr(case.row, name) for name in Columns.__struct_fields__}
    columns["seq_len"] = case.model.sequence_length
    return Layout(gpus=case.gpus, **(columns | changes))


def _node_counts(case: Case) -> tuple[int, int]:
    """Return (number of nodes, number of GPUs used on each) of a job.

    It is one node with all the GPUs where the job runs on this machine, or needs no more than a node has. Any other
    job fills its nodes.

    Raises:
        RequestError: the GPUs do not fill whole nodes
    """
    gpus, gpus_per_node = case.gpus, case.gpus_per_node
    if case.machine.traits.this_machine or gpus <= gpus_per_node:
        return 1, gpus
    if gpus % gpus_per_node:
        raise RequestError(
            f"{gpus} GPUs do not fill nodes of {gpus_per_node} GPUs",
            remedy=f"use a multiple of {gpus_per_node}, or set GPUS_PER_NODE",
        )
    return gpus // gpus_per_node, gpus_per_node


def _image(case: Case, engine: str, install: Path) -> str | None:
    """Return the container image of a job: the requested one, or the file that the installation has of the recipe's.

    None where jobs run without containers. The requested one, a path or a registry's name, comes back as it is, and
    whether the file exists is not looked at. ``engine`` is the minor release to run in, one of the recipe's
    ``engines``; ``install`` is the installation's folder.

    Raises:
        RequestError: an image is requested where jobs run without containers
    """
    request, cluster = case.request, case.cluster
    if not case.containers:
        if request.image:
            variable_text = request.say("RUN_CONF_IMAGE")
            raise RequestError(
                f"{variable_text}: this site runs without containers", remedy=f"leave {variable_text} out"
            )
        return None
    if request.image:
        return request.image
    return cluster.image_file(install, case.recipe.engines[engine])
