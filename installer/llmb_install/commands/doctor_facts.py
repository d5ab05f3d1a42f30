"""What ``doctor`` looks at: facts from this machine, from Slurm, and from one compute node. Nothing here judges.

The node is asked in one short job of two steps: itself, and the container that jobs run in.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from llmb_common.errors import EnvironmentLacks, SchedulerError
from llmb_common.executors import Container, Held, NodeRequest
from llmb_common.executors.slurm.hold import hold
from llmb_common.executors.slurm.options import parse_additional
from llmb_common.executors.slurm.query import mpi_types
from llmb_common.executors.slurm.words import SlurmSettings
from llmb_common.health.ask import PYTHONS, command, parse_frames
from llmb_common.health.checks import CHECKS
from llmb_common.health.facts import Folder, Needs, NodeFacts, needs_of_site, read_facts
from llmb_common.machine.files import me, shell_part, user_name
from llmb_common.planning.outlook import limit_seconds, save_seconds
from llmb_common.platform.cluster_types import SLURM, traits_of
from llmb_common.platform.engines import image_file_name
from llmb_common.runs.hostlist import expand
from llmb_common.site.cluster import ClusterConfig
from llmb_install.answers.answers import load_recipes
from llmb_install.answers.detect import Site, container_options, detect_site, output
from llmb_install.working.artefact import free_bytes

_TOOL_SECONDS = 15
_NODE_SECONDS = 120
_IMAGE_SECONDS = 390
"""Pyxis unpacks the image on the node first: some 25 GB."""
_QUEUE_SECONDS = 60


@dataclass(frozen=True)
class ContainerProbe:
    """The container that jobs run in, on a node: what ``probe.sh`` said there, by name, and the other lines.
    ``status``: None where it did not end in time."""

    values: dict[str, list[str]] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    status: int | None = None
    seconds: float = 0.0

    @property
    def started(self) -> bool:
        return bool(self.values.get("started"))


@dataclass(frozen=True)
class NodeReport:
    """What one compute node reported; ``error`` if it could not be asked. ``writes``: whether it was to write where
    runs go."""

    error: str = ""
    facts: NodeFacts = field(default_factory=lambda: NodeFacts(""))
    inside: ContainerProbe = ContainerProbe()
    writes: bool = False
    network: tuple[tuple[str, str, str], ...] = ()
    """What ``llmb-run health`` finds of its way to other nodes: check, finding, remedy."""
    skew: float | None = None
    """Its clock minus ours, in seconds, including the second or so that the answer takes."""

    def folder(self, name: str) -> Folder:
        return self.facts.folders.get(name, Folder())


def ask_one_node(config: ClusterConfig, install: Path, image_folder: Path, image: Path | None = None) -> NodeReport:
    """Have one node of the GPU partition looked at as ``llmb-run health`` does, with GPUs where jobs ask for them, then
    run ``probe.sh`` in ``image``.

    Nothing is written but files in a folder of their own among the installation's, which goes again.
    """
    needs = needs_of_site(config, install, traits_of(config.cluster_type or SLURM))
    has_containers = config.scheduler(SLURM).runtime != "none"
    pythons = [*needs.pythons, *(config.engine.releases.values() if config.engine else ())]
    wanted = NodeRequest(
        name="llmb-doctor",
        scheduler=needs.scheduler,
        gpus=config.gpus_per_node or 1,
        minutes=-(-(_NODE_SECONDS + _IMAGE_SECONDS) // 60),
        wait=_QUEUE_SECONDS,
    )
    try:
        with _folder_to_write(install) as probe, hold(wanted) as held:
            folders = {"installation": str(install), "images": str(image_folder)}
            if probe:
                folders["workload"] = probe
            starts = [] if has_containers else pythons
            spec = {"stage": "look", "folders": folders, "written": ["workload"], "starts": starts}
            answer = held.run(command(spec, (*PYTHONS, *pythons)), _NODE_SECONDS)
            now = time.time()
            (node,) = held.nodes
            said = parse_frames(answer.output).get(node)
            if not isinstance(said, dict):
                why = "no Python there" if "no-python" in answer.output else answer.complaint
                return NodeReport(error=f"no node answered: {why}")
            facts, ended = read_facts(node, said), said.get("ended")
            skew = float(ended) - now if isinstance(ended, float | int) else None
            inside = ContainerProbe()
            if image is not None and has_containers:
                mounts = [*([f"{install}:{install}"] if install.is_dir() else []), *config.mounts]
                inside = _look_inside(held, Container(str(image), mounts), probe)
            return NodeReport("", facts, inside, bool(probe), network_of(facts, needs), skew)
    except SchedulerError as error:
        return NodeReport(error=f"no node answered: {error.message.removeprefix('Slurm gives no nodes: ')}")


def _look_inside(held: Held, container: Container, probe: str) -> ContainerProbe:
    begun = time.monotonic()
    argv = ["bash", "-c", shell_part(__file__, "probe.sh"), "probe", str(_TOOL_SECONDS), probe]
    answer = held.run(argv, _IMAGE_SECONDS, inside=container)
    seconds = time.monotonic() - begun
    values = {name: known for name, known in parse_node(answer.output).items() if name in _SAID_INSIDE}
    rest = [line for line in answer.output.splitlines() if line.partition("=")[0] not in _SAID_INSIDE]
    lines = tuple(line for line in (*rest, *answer.errors.splitlines()) if line.strip())
    return ContainerProbe(values, lines, answer.status, seconds)


def network_of(facts: NodeFacts, needs: Needs) -> tuple[tuple[str, str, str], ...]:
    """What ``Node`` says of its network: name, text and remedy of each remark for jobs on several nodes."""
    several, asked = replace(needs, nodes=2), [check for check in CHECKS if check.name in ("gpudirect", "memlock")]
    return tuple((check.name, text, check.remedy) for check in asked for _, text in check.look(facts, several))


_SAID_INSIDE = ("started", "root", "workloads", "gpu", "hung")


def parse_node(text: str) -> dict[str, list[str]]:
    """``NAME=VALUE`` lines; a name may come more than once."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and value:
            values.setdefault(name, []).append(value.strip())
    return values


@contextlib.contextmanager
def _folder_to_write(install: Path) -> Iterator[str]:
    """A new folder where runs go, visible to a node only if that sees the same file system; empty: none can be made."""
    folder = install / "workloads"
    try:
        made = tempfile.mkdtemp(prefix=".llmb-doctor-", dir=folder if folder.is_dir() else install)
    except OSError:
        yield ""
        return
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


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
    limits: Limits = Limits()
    image: Path | None = None
    """An image that jobs run in, and that is there."""
    node: NodeReport | None = None

    @property
    def slurm(self) -> SlurmSettings:
        """What the site says of Slurm, if it has any."""
        settings: SlurmSettings = self.config.scheduler(SLURM)
        return settings


def gather(config: ClusterConfig, install: Path, clone: Path, *, ask_node: bool) -> SiteFacts:
    """Gather all facts, each with a time limit. ``ask_node``: run one small job on a node of the GPU partition.

    ``clone``: where the recipes are.
    """
    image_folder = Path(config.image_folder) if config.image_folder else install / "images"
    site = detect_site()
    traits = traits_of(config.cluster_type or SLURM)
    use_slurm = site.has_slurm and traits.slurm_options
    commands = SLURM_COMMANDS if traits.slurm_options else (traits.submits_with,)
    is_up = "is UP" in output("scontrol", "ping") if use_slurm else False
    text = output("scontrol", "show", "config") if is_up else ""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    settings = {name.strip(): value.strip() for name, _, value in pairs}
    has_accounting = "slurmdbd" in settings.get("AccountingStorageType", "")
    workloads = workloads_here(clone, config)
    images = [image_folder / name for workload in workloads for name in workload.images]
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
        local_enroot=output("enroot", "version").strip(),
        has_unsquashfs=shutil.which("unsquashfs") is not None,
        free_install=free_bytes(install),
        free_images=free_bytes(image_folder),
        workloads=workloads,
        limits=slurm_limits(config, has_accounting=has_accounting) if is_up else Limits(),
        image=image,
        node=ask_one_node(config, install, image_folder, image) if is_up and ask_node else None,
    )


def workloads_here(clone: Path, config: ClusterConfig) -> tuple[WorkloadNeeds, ...]:
    """The workloads of the installation, or all recipes where there is none yet, on this site's GPUs. None without a
    clone, which doctor does not need."""
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
        parameters = [recipe.model(size).parameters or 0 for size in {row.size for row in rows}]
        saving = save_seconds(max(parameters), config.checkpoint_gb_per_second)
        images = tuple(image_file_name(image) for image in recipe.engines.values())
        found.append(WorkloadNeeds(name, min(limits), max(limits), saving, images))
    return tuple(found)


def slurm_limits(config: ClusterConfig, *, has_accounting: bool) -> Limits:
    """What Slurm says of the limits of this site's jobs."""
    slurm: SlurmSettings = config.scheduler(SLURM)
    text = output("scontrol", "show", "partition", slurm.gpu_partition, "--oneliner") if slurm.gpu_partition else ""
    partition = dict(word.split("=", 1) for word in text.split() if "=" in word)
    grace = partition.get("GraceTime", "")
    walls, graces = [], [int(grace) if grace.isdigit() else 0]
    if has_accounting:
        asked = dict(parse_additional(slurm.additional_params, "slurm.additional_params")).get("qos")
        named = {asked or "", partition.get("QoS", "")}
        which = [f"user={user_name(me())}", *([f"account={slurm.account}"] if slurm.account else [])]
        for row in _rows("sacctmgr", "-nP", "show", "associations", *which, "format=partition,maxwall,defaultqos"):
            if row[0] in ("", slurm.gpu_partition):
                walls.append(("your association", row[1]))
                named |= set() if asked else {row[2] or "normal"}
        for name, wall, notice in _rows("sacctmgr", "-nP", "show", "qos", "format=name,maxwall,gracetime"):
            if name in named:
                walls.append((f"QOS {name}", wall))
                graces.append(60 * (limit_minutes(notice) or 0))
    minutes = [(name, found) for name, wall in walls if (found := limit_minutes(wall)) is not None]
    return Limits(tuple(minutes), max(graces), _blocks(output("scontrol", "show", "topology")))


def limit_minutes(text: str) -> int | None:
    """Minutes of a Slurm time limit (``1-00:00:00``, ``30:00``, ``infinite``); None where there is none."""
    found = re.match(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)\Z", text)
    if found is None:
        return None
    days, hours, minutes, _ = (int(part or 0) for part in found.groups())
    return days * 1440 + hours * 60 + minutes


def _blocks(text: str) -> tuple[int, ...] | None:
    """The sizes of the blocks that ``scontrol show topology`` lists; before Slurm 24.11 it lists their nodes only."""
    sizes = []
    for line in text.splitlines():
        if line.startswith("BlockName="):
            words = dict(word.split("=", 1) for word in line.split() if "=" in word)
            size = words.get("BlockSize", "")
            sizes.append(int(size) if size.isdigit() else len(expand(words.get("Nodes", ""))))
    return tuple(sizes) or None


def _rows(*argv: str) -> list[list[str]]:
    """The lines of a parsable answer, as many fields as its ``format=`` names."""
    fields = argv[-1].count(",") + 1
    rows = [line.split("|") for line in output(*argv).splitlines()]
    return [row for row in rows if len(row) == fields]
