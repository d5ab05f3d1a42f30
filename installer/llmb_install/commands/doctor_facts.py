"""What ``doctor`` looks at: facts from this machine, from Slurm, and from one compute node. Nothing here judges."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from llmb_common.base.cluster_types import SLURM, traits_of
from llmb_common.base.engines import image_file_name
from llmb_common.base.errors import EnvironmentLacks, RecipeError, RequestError
from llmb_common.base.files import effective_user_id, user_name
from llmb_common.base.hostlist import expand
from llmb_common.base.words import assignments, limit_seconds
from llmb_common.executors.base import Container, executor_for
from llmb_common.executors.slurm.options import parse_additional
from llmb_common.executors.slurm.query import mpi_types
from llmb_common.executors.slurm.words import SlurmSettings
from llmb_common.health.one_node import NodeReport, ask_one_node
from llmb_common.nodes.needs import needs_of_site
from llmb_common.planning.site.cluster import ClusterConfig
from llmb_common.planning.time_limit import save_seconds
from llmb_install.answers.answers import load_recipes
from llmb_install.answers.detect import Site, command_output, container_options, detect_site
from llmb_install.working.artefact import free_bytes


def ask_a_node(config: ClusterConfig, install: Path, image_folder: Path, image: Path | None = None) -> NodeReport:
    """What one node of the GPU partition reports, asked by a short job; an error is in the report, not raised.

    With ``image``, where jobs use containers, it is started there, too.
    """
    releases = tuple(config.engine.releases.values()) if config.engine else ()
    needs = needs_of_site(config, install, traits_of(config.cluster_type or SLURM))
    needs = replace(needs, gpus_per_node=config.gpus_per_node or 0, pythons=(*needs.pythons, *releases))
    folders = {"installation": str(install), "images": str(image_folder)}
    container = None
    if image is not None and needs.containers:
        own = [f"{install}:{install}"] if install.is_dir() else []
        container = Container(str(image), [*own, *config.mounts])
    return ask_one_node(executor_for(SLURM), needs, folders, container)


SLURM_COMMANDS = ("sbatch", "srun", "salloc", "squeue", "sinfo", "scontrol", "scancel")


@dataclass(frozen=True)
class WorkloadNeeds:
    """What the jobs of a workload need here: minutes, seconds to save its largest model, image files."""

    name: str
    shortest: int = 30
    longest: int = 30
    saving: int = 0
    images: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """What Slurm sets of the partition, the QOS and the association of jobs. ``walls``: minutes, by what sets them."""

    walls: tuple[tuple[str, int], ...] = ()
    grace: int = 0
    """Seconds that a job has before it is preempted."""
    blocks: tuple[int, ...] | None = None
    """The numbers of nodes in the blocks of topology/block; None: another topology, or it is not known."""


@dataclass(frozen=True)
class SiteFacts:
    """Everything that doctor's checks look at: settings, folders, Slurm and one node."""

    config: ClusterConfig
    install: Path
    image_folder: Path
    site: Site
    missing_commands: tuple[str, ...] = ()
    controller_is_up: bool = False
    mpi_types: tuple[str, ...] = ()
    container_options: tuple[str, ...] = ()
    slurm_config: dict[str, str] = field(default_factory=dict)
    has_accounting: bool = False
    local_enroot: str = ""
    has_unsquashfs: bool = False
    free_install: int = 0
    free_images: int = 0
    workloads: tuple[WorkloadNeeds, ...] = ()
    recipe_error: RecipeError | None = None
    """Why the recipes cannot be read, so that there are no ``workloads``; None: they can, or there are none."""
    limits: Limits = Limits()
    image: Path | None = None
    """An image that jobs run in, and that is there."""
    node: NodeReport | None = None

    @property
    def slurm(self) -> SlurmSettings:
        """The settings of the site's Slurm, from the configuration that this object was made with."""
        settings: SlurmSettings = self.config.scheduler(SLURM)
        return settings

    @property
    def engine_pythons(self) -> list[str]:
        """The paths of the Pythons in cluster_config.yaml in which jobs without a container train; empty: none is
        named.
        """
        engine = self.config.engine
        return [*filter(None, [engine.python]), *engine.releases.values()] if engine else []


def gather_facts(config: ClusterConfig, install: Path, clone: Path, *, ask_node: bool) -> SiteFacts:
    """Gather all facts that doctor judges, from this machine, Slurm and one node; what does not answer stays empty.

    ``ask_node``: run one small job on a node of the GPU partition. ``clone``: where the recipes are.
    """
    image_folder = Path(config.image_folder) if config.image_folder else install / "images"
    site = detect_site()
    traits = traits_of(config.cluster_type or SLURM)
    use_slurm = site.has_slurm and traits.slurm_options
    commands = SLURM_COMMANDS if traits.slurm_options else (traits.submits_with,)
    is_up = "is UP" in command_output("scontrol", "ping") if use_slurm else False
    text = command_output("scontrol", "show", "config") if is_up else ""
    settings = assignments(text.splitlines())
    has_accounting = "slurmdbd" in settings.get("AccountingStorageType", "")
    workloads: tuple[WorkloadNeeds, ...] = ()
    recipe_error = None
    try:
        workloads = workloads_here(clone, config)
    except RecipeError as error:
        recipe_error = error
    names = chain.from_iterable(workload.images for workload in workloads)
    images = [image_folder / name for name in names]
    image = next(filter(Path.is_file, images), None)
    return SiteFacts(
        config=config,
        install=install,
        image_folder=image_folder,
        site=site,
        missing_commands=tuple(name for name in commands if name and shutil.which(name) is None),
        controller_is_up=is_up,
        mpi_types=mpi_types() if is_up else (),
        container_options=container_options() if is_up else (),
        slurm_config=settings,
        has_accounting=has_accounting,
        local_enroot=command_output("enroot", "version").strip(),
        has_unsquashfs=shutil.which("unsquashfs") is not None,
        free_install=free_bytes(install),
        free_images=free_bytes(image_folder),
        workloads=workloads,
        recipe_error=recipe_error,
        limits=slurm_limits(config, has_accounting=has_accounting) if is_up else Limits(),
        image=image,
        node=ask_a_node(config, install, image_folder, image) if is_up and ask_node else None,
    )


def workloads_here(clone: Path, config: ClusterConfig) -> tuple[WorkloadNeeds, ...]:
    """What each workload of the installation needs on this site's GPUs, or each recipe where nothing is installed
    yet.

    Those without a configuration for the GPUs are left out. Empty without a clone, which doctor does not need.

    Raises:
        RecipeError: a recipe cannot be read
    """
    try:
        recipes = load_recipes(clone)
    except EnvironmentLacks:
        return ()
    found = []
    for name, recipe in recipes.items():
        rows = recipe.rows_for(config.gpu_type) if config.gpu_type else recipe.rows
        if (config.workloads and name not in config.workloads) or not rows:
            continue
        limits = [limit_seconds(row.time_limit or recipe.variant(row.variant).time_limit) // 60 for row in rows]
        sizes = {row.size for row in rows}
        parameters = [recipe.model(size).parameters or 0 for size in sizes]
        saving = save_seconds(max(parameters), config.checkpoint_gb_per_second)
        images = tuple(image_file_name(image) for image in recipe.engines.values())
        found.append(WorkloadNeeds(name, min(limits), max(limits), saving, images))
    return tuple(found)


def slurm_limits(config: ClusterConfig, *, has_accounting: bool) -> Limits:
    """The limits that Slurm sets for this site's jobs, by partition, association and QOS; asks Slurm now.

    What does not answer sets no limit. Without ``has_accounting`` only the partition and the topology are asked.
    """
    slurm: SlurmSettings = config.scheduler(SLURM)
    text = (
        command_output("scontrol", "show", "partition", slurm.gpu_partition, "--oneliner")
        if slurm.gpu_partition
        else ""
    )
    partition = assignments(text.split())
    grace = partition.get("GraceTime", "")
    walls, graces = [], [int(grace) if grace.isdigit() else 0]
    if has_accounting:
        qos = dict(parse_additional(slurm.additional_params, "slurm.additional_params")).get("qos")
        named = {qos or "", partition.get("QoS", "")}
        filters = [f"user={user_name(effective_user_id())}"]
        if slurm.account:
            filters.append(f"account={slurm.account}")
        for row in _slurm_rows(
            "sacctmgr", "-nP", "show", "associations", *filters, "format=partition,maxwall,defaultqos"
        ):
            if row[0] in ("", slurm.gpu_partition):
                walls.append(("your association", row[1]))
                named |= set() if qos else {row[2] or "normal"}
        for name, wall, notice in _slurm_rows("sacctmgr", "-nP", "show", "qos", "format=name,maxwall,gracetime"):
            if name in named:
                walls.append((f"QOS {name}", wall))
                graces.append(60 * (limit_minutes(notice) or 0))
    minutes = []
    for name, wall in walls:
        found = limit_minutes(wall)
        if found is not None:
            minutes.append((name, found))
    return Limits(tuple(minutes), max(graces), _block_sizes(command_output("scontrol", "show", "topology")))


def limit_minutes(text: str) -> int | None:
    """Whole minutes of a Slurm time limit, ``1-00:00:00`` or ``30:00``; None for ``infinite`` and any other text."""
    found = re.match(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)\Z", text)
    if found is None:
        return None
    days, hours, minutes, _ = (int(part or 0) for part in found.groups())
    return days * 1440 + hours * 60 + minutes


def _block_sizes(text: str) -> tuple[int, ...] | None:
    """The number of nodes in each block of ``scontrol show topology``'s output; None where it lists no blocks.

    Before Slurm 24.11 there is no size in it, and the nodes are counted.
    """
    sizes = []
    for line in text.splitlines():
        if line.startswith("BlockName="):
            words = assignments(line.split())
            size = words.get("BlockSize", "")
            sizes.append(int(size) if size.isdigit() else _node_count(words.get("Nodes", "")))
    return tuple(filter(None, sizes)) or None


def _node_count(hostlist: str) -> int:
    """The number of nodes in a list of Slurm's such as ``n[1-4]``; 0 if it is written in another way."""
    try:
        return len(expand(hostlist))
    except RequestError:
        return 0


def _slurm_rows(*argv: str) -> list[list[str]]:
    """Run a command of Slurm and return its lines, each split at ``|`` into as many fields as its ``format=`` names.

    Other lines are left out; empty where it does not answer.
    """
    fields = argv[-1].count(",") + 1
    rows = [line.split("|") for line in command_output(*argv).splitlines()]
    return [row for row in rows if len(row) == fields]
