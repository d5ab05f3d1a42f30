"""What a job needs its nodes to be: by its plan, or by the site where there is none yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llmb_common.base.cluster_types import Traits
from llmb_common.base.errors import LLMBError
from llmb_common.base.gpus import GPUS, per_node
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.scheduler import SchedulerPart
from llmb_common.planning.site.cluster import ClusterConfig
from llmb_common.recipes.folders import recipe_folders, recipes_root
from llmb_common.recipes.loading import load_recipe


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a job, or the jobs of a site, need of each node; rules hold nodes against it.

    ``needs_of`` makes it of a plan, ``needs_of_site`` of a site's configuration, ``needs_of_run`` of a finished
    run's plan. What is left at its default is not asked of nodes; all fields are given by keyword. ``device`` is
    ``cpu`` for jobs without GPUs. The property ``containers`` is True where the job runs in a container (False
    without a scheduler); the property ``domain_nodes`` is how many nodes NVLink joins for its GPU type (1: each is
    by itself, or the type is unknown).
    """

    gpu_type: str = ""
    """A key of ``GPUS`` such as ``h100``, or ``cpu``; empty: whatever most nodes have."""
    gpus_per_node: int = 0
    """0: as many as most nodes have."""
    nodes: int = 1
    """Nodes of the job; 1 for a site."""
    device: Literal["cuda", "cpu"] = "cuda"
    scheduler: SchedulerPart | None = None
    """What is asked of the scheduler; None: there is none."""
    dispatcher: str = ""
    """What sends tokens to experts on other nodes: ``deepep`` or ``hybridep``; empty: another one, or experts stay
    within one NVLink domain."""
    adapters: str = ""
    """The job's NCCL_IB_HCA, as it is set; empty: it is not."""
    architecture: str = ""
    """Of the CPUs, as the kernel calls it (``x86_64``); empty: any."""
    image: str | None = None
    """The container image, a file or a name in a registry; None: there is none, or it is not known."""
    image_bytes: int = 0
    """Size of the image's file; 0: it is no file, or missing."""
    mounts: tuple[str, ...] = ()
    """Container mounts, ``SOURCE:TARGET[:ro]``; empty: none, or they are not asked for."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """Paths of the folders to look into, by what they are for: ``installation``, ``workload`` (a file is written into
    it), ``/tmp``, and ``images`` where the container image is a file. A path is one of this machine's. Empty: none
    is looked into.
    """
    pythons: tuple[str, ...] = ()
    """Paths of the training engine's Python interpreters, if jobs run without a container; empty: none is asked for."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The job's own environment variables, values by name."""

    @property
    def containers(self) -> bool:
        """Whether the job runs in a container, as it asks its scheduler; False without a scheduler."""
        return self.scheduler is not None and self.scheduler.containers

    @property
    def domain_nodes(self) -> int:
        """How many nodes NVLink joins into one domain, by the GPU type of the job.

        1: each node is by itself, or the type is not known.
        """
        known = GPUS.get(self.gpu_type)
        return known.nvlink_nodes if known else 1


def needs_of_run(plan: JobPlan) -> Needs:
    """Return what a run needed of its nodes, by its plan alone: GPU type, GPUs of a node, nodes, device and scheduler.

    No file is looked at. All else, such as folders, images, variables and the dispatcher of experts, is as by
    default.
    """
    return Needs(
        gpu_type=plan.gpu_type,
        gpus_per_node=plan.gpus_per_node,
        nodes=plan.nodes,
        device=plan.device,
        scheduler=plan.scheduler,
    )


def needs_of_site(config: ClusterConfig, install: Path, traits: Traits, partition: str | None = None) -> Needs:
    """Return what jobs of the site need of a node, by the site's configuration, where there is no job yet.

    ``config`` is that configuration, ``install`` the installation's folder. ``traits`` is the way of running jobs,
    whose section of the configuration counts; ``partition`` is the queue that replaces the site's own (None: it
    does not). No image is asked for, and ``nodes`` is 1. Looks which folder for workloads exists, and writes
    nothing.

    Raises:
        RequestError: ``additional_params`` of the configuration is wrong
        OSError: the installation's folder may not be looked at
    """
    gpu_type = config.gpu_type or ""
    engine = config.engine
    return Needs(
        gpu_type=gpu_type,
        gpus_per_node=config.gpus_per_node or (per_node(gpu_type) if gpu_type in GPUS else 0),
        device="cpu" if gpu_type == "cpu" else "cuda",
        scheduler=config.scheduler(traits.name).site_part(partition),
        adapters=config.environment.get("NCCL_IB_HCA", ""),
        architecture=config.arch or "",
        mounts=config.mounts,
        folders={
            "installation": str(install),
            "workload": _nearest_existing(str(install / "workloads")),
            "/tmp": "/tmp",
        },
        pythons=tuple(filter(None, [engine.python])) if engine else (),
        env=config.environment,
    )


def needs_of(plan: JobPlan) -> Needs:
    """Return what the job of a plan needs of each of its nodes.

    Looks up the image's size (0 where the file is missing, or the image is a name in a registry) and the nearest folder
    to the workload's that exists; writes nothing.

    Raises:
        OSError: the folder of the image or the workload may not be looked at
    """
    # Any other image is a name in a registry, without a file here.
    image = Path(plan.image) if plan.image and plan.image.startswith("/") else None
    hca = plan.env.get("NCCL_IB_HCA")
    folders = {"installation": plan.install, "workload": _nearest_existing(plan.workload_folder), "/tmp": "/tmp"}
    return Needs(
        gpu_type=plan.gpu_type,
        gpus_per_node=plan.gpus_per_node,
        nodes=plan.nodes,
        device=plan.device,
        scheduler=plan.scheduler,
        dispatcher=_dispatcher(plan),
        adapters=hca.value if hca else "",
        image=plan.image,
        image_bytes=image.stat().st_size if image and image.is_file() else 0,
        mounts=plan.mounts,
        folders=folders | ({"images": str(image.parent)} if image else {}),
        pythons=(plan.engine_python,) if plan.engine_python else (),
        env={name: item.value for name, item in plan.env.items()},
    )


def _nearest_existing(path: str) -> str:
    """Return the folder ``path`` if it exists, else the nearest one above it that does: runs make the rest.

    ``path`` itself where none of them exists; a file of that name does not count.

    Raises:
        OSError: a folder may not be looked at
    """
    for folder in (Path(path), *Path(path).parents):
        if folder.is_dir():
            return str(folder)
    return path


def _dispatcher(plan: JobPlan) -> str:
    """Return the dispatcher that sends tokens to experts on other nodes in a plan's job: ``deepep`` or ``hybridep``.

    Empty: the job has another one or calls no function, its experts stay within one NVLink domain, or the recipe as it
    is today does not say. No error comes out.
    """
    known = GPUS.get(plan.gpu_type)
    if plan.function is None or known is None:
        return ""
    nvlink_domain = known.per_node * known.nvlink_nodes
    if (plan.ep or 1) <= nvlink_domain:
        return ""
    try:
        folders = {folder.name: folder for folder in recipe_folders(recipes_root())}
        catalogue = load_recipe(folders[plan.recipe]).catalogue
        settings = catalogue.function(plan.function.name).settings if catalogue else {}
    except (LLMBError, KeyError):
        return ""  # the recipe is another one today: what is not known is not asked for
    if settings.get("moe_token_dispatcher_type") != "flex":
        return ""
    return str(settings.get("moe_flex_dispatcher_backend") or "")
