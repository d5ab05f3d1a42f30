"""``make_plan``: recipe + site + request -> ``JobPlan``, or one error that names the variable and the remedy.

Pure: it reads no file, asks no scheduler and looks at no environment. ``Machine`` carries the few facts of the machine.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from llmb_common.errors import RequestError
from llmb_common.gpus import per_node
from llmb_common.planning.choose import choose_gpu_type, choose_row
from llmb_common.planning.divisibility import Layout, check_layout
from llmb_common.planning.environment import job_environment, recipe_environment
from llmb_common.planning.job_plan import CheckpointPlan, JobPlan, Preflight, SlurmPlan
from llmb_common.planning.naming import experiment_name
from llmb_common.planning.published import published_result
from llmb_common.planning.saving import check_time_to_train, save_seconds
from llmb_common.planning.segments import choose_segment
from llmb_common.planning.switches import (
    checkpoint_notices,
    checkpoint_plan,
    fp8_recipe_for,
    ineffective,
    moe_routing_for,
    profile_plan,
    refuse_on_cpu,
    steps_for,
    steps_notices,
    without_cuda_graph,
)
from llmb_common.recipes.parameters import count_parameters
from llmb_common.recipes.recipe import Recipe, Row
from llmb_common.request.read import Request
from llmb_common.site.cluster import ClusterConfig
from llmb_common.site.machine import Machine
from llmb_common.slurm.options import parse_additional


def make_plan(recipe: Recipe, cluster: ClusterConfig, request: Request, machine: Machine) -> JobPlan:
    """The plan for ``request``. Raises RequestError; notices about choices made are in ``preflight.warnings``."""
    notices: list[str] = []
    install = _install(request)
    gpu_type = choose_gpu_type(recipe, cluster, request, machine, notices)
    model, row, variant, dtype, gpus = choose_row(recipe, cluster, request, gpu_type, machine, notices)
    if row.layers:
        model = msgspec.structs.replace(
            model, architecture=msgspec.structs.replace(model.architecture, layers=row.layers)
        )
    layout = _layout(row, request, gpus)
    moe_routing = moe_routing_for(model, request)
    if moe_routing == "balanced":
        layout = without_cuda_graph(layout, request, notices)
    check_layout(layout, model.architecture, model.sequence_length, recipe.family)
    gpus_per_node = request.gpus_per_node or cluster.gpus_per_node or per_node(gpu_type)
    nodes, gpus_per_node = _nodes(gpus, gpus_per_node, machine)
    fp8_recipe = fp8_recipe_for(variant, request, gpu_type, dtype, notices)
    workload_folder = request.workload or install / "workloads" / recipe.workload
    steps, exit_after = steps_for(request, variant)
    device = "cpu" if gpu_type == "cpu" else "cuda"
    profile = profile_plan(recipe, request, variant, model, dtype, gpus, steps, machine, device, notices)
    notices += steps_notices(request, model, variant, steps)
    refuse_on_cpu(request, layout, dtype, device)
    if request.nccl_trace and device == "cpu":
        notices.append("ENABLE_NCCLTRACE: ranks on CPUs talk over gloo, the log will hold no NCCL lines")
    image = _image(recipe, cluster, request, install, machine)
    notices += checkpoint_notices(model, request, gpus, steps)
    notices += ineffective(request, cluster, machine)
    slurm = _slurm(cluster, request, gpu_type, nodes, gpus_per_node, machine, notices)
    time_limit = request.time_limit or row.time_limit or variant.time_limit
    # Counted, not model.parameters: a proxy row brings its own number of layers.
    parameters = count_parameters(model.architecture)
    checkpoint = checkpoint_plan(request)
    if checkpoint.enabled:
        saving = save_seconds(parameters, cluster.checkpoint_gb_per_second)
        checkpoint = msgspec.structs.replace(checkpoint, save_seconds=saving)
    plan = JobPlan(
        workload=recipe.workload,
        recipe=recipe.name,
        family=recipe.family,
        variant=variant.name,
        model_size=model.size,
        dtype=dtype,
        fp8_recipe=fp8_recipe,
        gpu_type=gpu_type,
        device="cpu" if device == "cpu" else "cuda",
        cluster_type=machine.cluster_type,
        gpus=gpus,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        seq_len=model.sequence_length,
        layers=model.architecture.layers,
        parameters=parameters,
        tp=layout.tp,
        pp=layout.pp,
        cp=layout.cp,
        ep=layout.ep,
        etp=layout.etp,
        dp=layout.dp,
        expert_dp=layout.expert_dp,
        vp=layout.vp,
        mbs=layout.mbs,
        gbs=layout.gbs,
        ga=layout.ga,
        fsdp=layout.fsdp,
        cuda_graph=layout.cuda_graph,
        recompute_layers=layout.recompute_layers,
        offload_layers=layout.offload_layers,
        wgrad_deferral=row.wgrad_deferral if layout.pp > 1 else None,  # one stage has no drain; core refuses it
        overridden=tuple(sorted(request.columns)),
        moe_routing=moe_routing,
        max_steps=steps,
        exit_after=exit_after,
        time_limit=time_limit,
        image=image,
        mounts=(*cluster.mounts, *request.mounts),
        experiment_name=experiment_name(variant, request, _documented(row, gpus), layout, model, dtype, fp8_recipe),
        env=job_environment(
            recipe_environment(
                model=model,
                variant=variant.name,
                gpu_type=gpu_type,
                dtype=dtype,
                fp8_recipe=fp8_recipe,
                tp=layout.tp,
                pp=layout.pp,
                cp=layout.cp,
                fsdp=layout.fsdp,
                nccl_trace=request.nccl_trace,
            ),
            cluster,
            request.tuning,
        ),
        slurm=slurm,
        engine_python=cluster.engine.python if cluster.engine else None,
        profile=profile,
        nccl_trace=request.nccl_trace,
        checkpoint=checkpoint,
        vboost=request.vboost,
        cpu_pinning=request.cpu_pinning,
        measurement=variant.measurement,
        architecture=model.architecture,
        install=str(install),
        workload_folder=str(workload_folder),
        preflight=Preflight(),
    )
    published = published_result(plan, recipe)
    reference = published.step_seconds if published is not None else None
    if checkpoint.enabled and slurm is not None:
        # Not a result to be held against, but what a step takes all the same.
        bare = published_result(msgspec.structs.replace(plan, checkpoint=CheckpointPlan()), recipe)
        seconds = bare.step_seconds if bare is not None else None
        check_time_to_train(checkpoint.save_seconds, time_limit, slurm.additional, steps, seconds, notices)
    preflight = Preflight(reference_step_seconds=reference, warnings=tuple(notices))
    return msgspec.structs.replace(plan, preflight=preflight)


def _install(request: Request) -> Path:
    if request.install is None:
        raise RequestError(
            "LLMB_INSTALL is not set",
            remedy="export LLMB_INSTALL=/path/to/installation; to make one, run ./installer.py",
            code="no-install",
        )
    return request.install


def _layout(row: Row, request: Request, gpus: int) -> Layout:
    columns = dict(request.columns)
    if "gbs" in columns:
        gbs = int(columns.pop("gbs") or 0)
        if request.strong_scaling:
            raise RequestError("STRONG_SCALING and GBS exclude each other", remedy="unset one of them")
    else:
        # Strong scaling holds the batch of the largest documented scale, the only one that divides at all of them.
        gbs = row.global_batch_size(row.gpus_max if request.strong_scaling else gpus)
    return replace(_of_row(row, gpus, gbs), **columns)  # type: ignore[arg-type]


def _documented(row: Row, gpus: int) -> Layout:
    """The layout of ``row`` as it stands; GBS 0 where its formula has none for so many GPUs."""
    try:
        gbs = row.global_batch_size(gpus)
    except RequestError:
        gbs = 0
    return _of_row(row, gpus, gbs)


def _of_row(row: Row, gpus: int, gbs: int) -> Layout:
    return Layout(
        gpus=gpus,
        tp=row.tp,
        pp=row.pp,
        cp=row.cp,
        ep=row.ep,
        etp=row.etp,
        vp=row.vp,
        mbs=row.mbs,
        gbs=gbs,
        fsdp=row.fsdp,
        cuda_graph=row.cuda_graph,
        recompute_layers=row.recompute_layers,
        offload_layers=row.offload_layers,
    )


def _nodes(gpus: int, gpus_per_node: int, machine: Machine) -> tuple[int, int]:
    """Number of nodes and GPUs used on each."""
    if machine.traits.this_machine or gpus <= gpus_per_node:
        return 1, gpus
    if gpus % gpus_per_node:
        raise RequestError(
            f"{gpus} GPUs do not fill nodes of {gpus_per_node} GPUs",
            remedy=f"use a multiple of {gpus_per_node}, or set GPUS_PER_NODE",
        )
    return gpus // gpus_per_node, gpus_per_node


def _image(recipe: Recipe, cluster: ClusterConfig, request: Request, install: Path, machine: Machine) -> str | None:
    if not machine.traits.containers or cluster.slurm.runtime == "none":
        if request.image:
            raise RequestError("RUN_CONF_IMAGE: this site runs without containers", remedy="unset RUN_CONF_IMAGE")
        return None
    if request.image:
        return request.image
    folder = Path(cluster.image_folder) if cluster.image_folder else install / "images"
    return str(folder / image_file_name(recipe.image))


def image_file_name(image: str) -> str:
    """Enroot's default file name of an image: ``nvcr.io#nvidia/nemo:26.02.01`` -> ``nvidia+nemo+26.02.01.sqsh``."""
    path = image.rpartition("#")[2]
    return path.replace("/", "+").replace(":", "+") + ".sqsh"


def _slurm(
    cluster: ClusterConfig,
    request: Request,
    gpu_type: str,
    nodes: int,
    gpus_per_node: int,
    machine: Machine,
    notices: list[str],
) -> SlurmPlan | None:
    if not machine.traits.slurm_options:
        return None
    site = parse_additional(cluster.slurm.additional_params, "cluster_config.yaml: slurm.additional_params")
    asked = parse_additional(request.additional_slurm_params, "ADDITIONAL_SLURM_PARAMS")
    asked_keys = {key for key, _ in asked}
    additional = (*((key, value) for key, value in site if key not in asked_keys), *asked)
    return SlurmPlan(
        account=request.account or cluster.slurm.account,
        partition=request.partition or cluster.slurm.gpu_partition,
        gres=request.gres if request.gres is not None else cluster.slurm.gres,
        gres_type=request.gres_type,
        segment=choose_segment(gpu_type, nodes, gpus_per_node, machine, set(dict(additional)), notices),
        additional=additional,
        runtime=cluster.slurm.runtime,
        container_writable=cluster.slurm.container_writable,
        mpi=cluster.slurm.mpi,
    )
