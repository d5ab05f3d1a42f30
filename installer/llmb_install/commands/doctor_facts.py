"""What ``doctor`` looks at: facts from this machine, from Slurm, and from one compute node. Nothing here judges."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from llmb_common.base.cluster_types import SLURM, traits_of
from llmb_common.base.engines import image_file_name
from llmb_common.base.errors import EnvironmentLacks, RecipeError, RequestError
from llmb_common.base.hostlist import expand
from llmb_common.base.words import assignments, limit_seconds
from llmb_common.executors.base import Container, executor_for
from llmb_common.executors.slurm.options import limit_in_seconds, parse_additional
from llmb_common.executors.slurm.query import mpi_types
from llmb_common.executors.slurm.words import SlurmSettings
from llmb_common.health.one_node import NodeReport, ask_one_node
from llmb_common.nodes.needs import needs_of_site
from llmb_common.planning.site.cluster import ClusterConfig
from llmb_common.planning.time_limit import save_seconds
from llmb_install.answers.answers import load_recipes
from llmb_install.answers.detect import (
    Site,
    command_output,
    container_options,
    detect_site,
    own_associations,
    sacctmgr_rows,
)
from llmb_install.working.artefact import free_bytes


def ask_a_node(config: ClusterConfig, install: Path, image_folder: Path, image: Path | None = None) -> NodeReport:
    """Return what one node of the GPU partition reports of itself, asked by a short Slurm job, which is waited for.

    That no node is given in time, or answers, is in the report's ``error``, not raised. ``image``, an image's file, is
    started there, too, if jobs use containers; None: none is. The folders ``install`` and ``image_folder`` are looked
    for on the node; the report has them as ``installation`` and ``images``. Slurm's controller must be up. ``config``
    are the site's settings.

    Raises:
        RequestError: ``additional_params`` of the configuration is wrong
        EnvironmentLacks: a part of LLMB is missing
        OSError: the installation's folder may not be looked at, or a part of LLMB not be read
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
    """What the jobs of one workload need on this site's GPUs: time limits, time to save, image files.

    ``workloads_here`` makes it; ``name`` is the workload's. The defaults are for a workload of which nothing is known:
    30 minutes, and no time to save.
    """

    name: str
    shortest: int = 30
    """Minutes, the shortest time limit of its configurations."""
    longest: int = 30
    """Minutes, the longest time limit of its configurations."""
    saving: int = 0
    """Seconds to save a checkpoint of its largest model; 0: not known."""
    images: tuple[str, ...] = ()
    """Names, without folder, of the image files that its jobs run in, one for each release that the recipe knows."""


@dataclass(frozen=True)
class Limits:
    """The limits that Slurm sets for this user's jobs, by partition, QOS and association, and its topology.

    ``slurm_limits`` makes it. What Slurm does not answer is as by the defaults: no limit, no grace, no blocks.
    """

    walls: tuple[tuple[str, int], ...] = ()
    """Pairs of what sets a time limit, such as ``QOS normal``, and that limit in minutes, in no particular order;
    the partition's own time limit is not among them.
    """
    grace: int = 0
    """Seconds that a job has left once it is told that it is preempted; the most that any of them allows."""
    blocks: tuple[int, ...] | None = None
    """The numbers of nodes in the blocks of topology/block; None: another topology, or it is not known."""


@dataclass(frozen=True)
class SiteFacts:
    """All facts that doctor's checks look at: settings, folders, Slurm and one node; empty where nothing answered.

    ``gather_facts`` makes it. ``config`` are the site's settings, ``install`` is the installation's folder, which need
    not exist, as ``image_folder`` need not, and ``site`` what was detected. The property ``slurm`` returns the site's
    Slurm settings, with the defaults for those not set. The property ``engine_pythons`` returns, as a list of texts,
    the paths of the Pythons in which the site's jobs without a container train, that of the default release first
    (empty: none).
    """

    config: ClusterConfig
    install: Path
    image_folder: Path
    site: Site
    missing_commands: tuple[str, ...] = ()
    """Names of the scheduler's programs that are not on the PATH."""
    controller_is_up: bool = False
    """Whether Slurm's controller answers; False, too, where jobs do not use Slurm. What Slurm is asked for is
    empty then.
    """
    mpi_types: tuple[str, ...] = ()
    """The types that srun's ``--mpi`` offers, such as ``pmix_v4``."""
    container_options: tuple[str, ...] = ()
    """The options of srun that Pyxis brings, without dashes, such as ``container-image``."""
    slurm_config: dict[str, str] = field(default_factory=dict)
    """What ``scontrol show config`` says, text by key such as ``PreemptMode``; empty: Slurm does not answer."""
    has_accounting: bool = False
    """Whether Slurm keeps accounts, in slurmdbd."""
    local_enroot: str = ""
    """Enroot's version on this machine; empty: it is not here."""
    has_unsquashfs: bool = False
    """Whether ``unsquashfs`` is on this machine's PATH."""
    free_install: int = 0
    """Bytes free where the installation is or would be."""
    free_images: int = 0
    """Bytes free in the image folder."""
    workloads: tuple[WorkloadNeeds, ...] = ()
    """What the installed workloads need or, where none is installed, all that have a configuration for the GPUs."""
    recipe_error: RecipeError | None = None
    """Why the recipes cannot be read, so that there are no ``workloads``; None: they can, or there are none."""
    limits: Limits = Limits()
    """The limits that Slurm sets for this user's jobs; none where it was not asked."""
    image: Path | None = None
    """The file of an image that jobs run in; None: none is there."""
    node: NodeReport | None = None
    """What one node of the GPU partition reported; None: none was asked."""

    @property
    def slurm(self) -> SlurmSettings:
        """The site's Slurm settings in ``cluster_config.yaml``, with the defaults for those that are not set.

        Also where the site's jobs do not use Slurm; then usually all are defaults.
        """
        settings: SlurmSettings = self.config.scheduler(SLURM)
        return settings

    @property
    def engine_pythons(self) -> list[str]:
        """The paths of the Pythons in which this site's jobs without a container train; empty: none.

        ``cluster_config.yaml`` names them. That of the default release comes first.
        """
        engine = self.config.engine
        return [*filter(None, [engine.python]), *engine.releases.values()] if engine else []


def gather_facts(config: ClusterConfig, install: Path, clone: Path, *, ask_node: bool) -> SiteFacts:
    """Return all facts that doctor judges, asked now of this machine, Slurm and one node.

    What does not answer stays empty. ``ask_node``: run one small job on a node of the GPU partition, and wait for it,
    where Slurm's controller is up and jobs use Slurm. ``install`` is the installation's folder, which need not exist;
    ``clone`` has the recipes; that they cannot be read is among the facts. The image is the first one of the
    workloads whose file is there. ``config`` are the site's settings, with the folder of images (None: ``images`` in
    ``install``).

    Raises:
        RequestError: ``slurm.additional_params`` is invalid
        EnvironmentLacks: a part of LLMB is missing
        OSError: the free space of a folder cannot be told, or the installation's or a recipe's folder not be looked
            at
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
    """Return what each workload needs on this site's GPUs: of those named in ``config``, or of all if it names none.

    They are in the order of the recipes' folders. Workloads without a configuration for the GPUs are left out, as are
    names in ``config`` without a recipe; where the site names no GPU type, all configurations count. Empty where
    ``clone`` has no recipes, which doctor does not need.

    Raises:
        RecipeError: a recipe is wrong
        OSError: a recipe's folder may not be looked at
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
        limits = [row.time_limit or recipe.variant(row.variant).time_limit for row in rows]
        minutes = [limit_seconds(limit) // 60 for limit in limits]
        sizes = {row.size for row in rows}
        parameters = [recipe.model(size).parameters or 0 for size in sizes]
        saving = save_seconds(max(parameters), config.checkpoint_gb_per_second)
        images = tuple(image_file_name(image) for image in recipe.engines.values())
        found.append(WorkloadNeeds(name, min(minutes), max(minutes), saving, images))
    return tuple(found)


def slurm_limits(config: ClusterConfig, *, has_accounting: bool) -> Limits:
    """Return the limits that Slurm sets for this user's jobs, by association and QOS; asks Slurm now.

    What does not answer sets no limit; the partition's own time limit is not among them. The QOS are those of
    ``slurm.additional_params``, else the user's default ones, and that of the partition. Without ``has_accounting``
    only the partition's grace time and the topology are asked. ``config`` names the GPU partition and the account.

    Raises:
        RequestError: ``slurm.additional_params`` is invalid
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
        filters = [f"account={slurm.account}"] if slurm.account else []
        for row in own_associations("partition,maxwall,defaultqos", *filters):
            if row[0] in ("", slurm.gpu_partition):
                walls.append(("your association", row[1]))
                # A job that names no QOS runs in the default one of its association, else in Slurm's own.
                named |= set() if qos else {row[2] or "normal"}
        for name, wall, notice in sacctmgr_rows("qos", "format=name,maxwall,gracetime"):
            if name in named:
                walls.append((f"QOS {name}", wall))
                graces.append(limit_in_seconds(notice) or 0)
    minutes = []
    for name, wall in walls:
        seconds = limit_in_seconds(wall)
        if seconds is not None:
            minutes.append((name, seconds // 60))
    return Limits(tuple(minutes), max(graces), _block_sizes(command_output("scontrol", "show", "topology")))


def _block_sizes(text: str) -> tuple[int, ...] | None:
    """Return the number of nodes in each block that ``scontrol show topology`` prints, in order; None: no block.

    Before Slurm 24.11 the text has no size, and the nodes are counted. Blocks whose size cannot be told are left out;
    None, too, where that leaves none.
    """
    sizes = []
    for line in text.splitlines():
        if line.startswith("BlockName="):
            words = assignments(line.split())
            size = words.get("BlockSize", "")
            sizes.append(int(size) if size.isdigit() else _node_count(words.get("Nodes", "")))
    return tuple(filter(None, sizes)) or None


def _node_count(hostlist: str) -> int:
    """Return the number of nodes in a list as Slurm writes it, such as ``n[1-4]``: 4; 0 if it cannot be read.

    A host that comes twice counts once; 0 also for no host, such as ``(null)``.
    """
    try:
        return len(expand(hostlist))
    except RequestError:
        return 0
