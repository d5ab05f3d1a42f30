"""What nodes say of themselves, of which nothing is believed to be of the right kind; what is said of them; and what a
job needs them to be, by its plan, or by the site where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from llmb_common.decoding.structs import from_plain
from llmb_common.errors import LLMBError
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.scheduler import SchedulerPart
from llmb_common.platform.cluster_types import Traits
from llmb_common.platform.gpus import GPUS, per_node
from llmb_common.recipes.loading import load_recipe, recipe_folders, recipes_root
from llmb_common.runs.evidence.nodes import HostFacts, NodeRecord, Snapshot
from llmb_common.site.cluster import ClusterConfig

Level = Literal["fail", "warn", "unknown"]
"""``fail``: a job would stop there, or its result be wrong. ``warn``: worth a look. ``unknown``:
could not be found out, which is not the same as healthy."""


class Remark(msgspec.Struct, frozen=True):
    """Something found on a node. ``check`` is the name in ``checks.CHECKS``."""

    check: str
    level: Level
    text: str


class Links(msgspec.Struct, frozen=True):
    """NVLinks of one GPU: how many run, which do not, and at which rates."""

    up: int = 0
    down: tuple[int, ...] = ()
    rates: tuple[str, ...] = ()


class Nvlink(msgspec.Struct, frozen=True):
    missing: str | None = None
    gpus: tuple[Links, ...] = ()
    errors: tuple[str, ...] = ()


class Imex(msgspec.Struct, frozen=True):
    missing: str | None = None
    domain: str | None = None
    channels: int = 0


class Port(msgspec.Struct, frozen=True):
    name: str = ""
    phys: str | None = None
    board: str | None = None
    gids: tuple[str, ...] = ()
    errors: dict[str, int | None] = {}  # msgspec copies it


class KernelLog(msgspec.Struct, frozen=True):
    """A node's kernel log. ``lines``: age in seconds, and text. ``missing``: why there are none."""

    missing: str | None = None
    lines: tuple[tuple[float, str], ...] = ()


class System(msgspec.Struct, frozen=True):
    """Sizes in bytes; a limit of None: there is none."""

    memlock: int | None = None
    nofile: int | None = None
    shm_size: int | None = None
    shm_free: int | None = None
    governors: tuple[str, ...] = ()
    idle_states: int | None = None
    idle_disabled: int = 0
    numa_balancing: str | None = None
    numa_nodes: int | None = None
    cmdline: str | None = None
    page_size: int | None = None
    virtual: bool | None = None
    first_outgoing_port: int | None = None
    peermem: bool | None = None
    open_driver: bool | None = None
    peer_mapping: bool | None = None
    gdrcopy: bool | None = None
    clock: float | None = None


class Folder(msgspec.Struct, frozen=True):
    """A folder as a node sees it. ``free``, ``size``: bytes. ``problem``: why nothing can be written there. ``kind``:
    of its file system, in the word of ``stat``, where that is asked."""

    path: str = ""
    there: bool = False
    free: int | None = None
    size: int | None = None
    problem: str | None = None
    kind: str | None = None


class Software(msgspec.Struct, frozen=True):
    """``unpacked``: where Enroot unpacks images for Pyxis. ``roots``: where it does for a job of this user. ``starts``:
    the programs that were to start, and did."""

    os: str | None = None
    ofed: str | None = None
    enroot: str | None = None
    enroot_settings: dict[str, str] = {}
    unpacked: Folder | None = None
    roots: Folder | None = None
    starts: tuple[str, ...] = ()


class Process(msgspec.Struct, frozen=True):
    pid: int
    name: str


class NodeFacts(msgspec.Struct, frozen=True):
    """One node. A look that gave nothing is as by default, and in ``hung`` or ``errors`` with the reason."""

    node: str
    begun: float = 0.0
    machine: HostFacts = HostFacts()
    gpus: Snapshot = Snapshot(missing="no answer")
    nvlink: Nvlink = Nvlink(missing="no answer")
    imex: Imex = Imex()
    services: dict[str, dict[str, str]] = {}
    ports: tuple[Port, ...] = ()
    kernel: KernelLog = KernelLog(missing="no answer")
    system: System = System()
    software: Software = Software()
    stuck: tuple[Process, ...] = ()
    folders: dict[str, Folder] = {}
    hung: dict[str, str] = {}
    errors: dict[str, str] = {}
    seconds: dict[str, float] = {}

    @property
    def evidence(self) -> NodeRecord:
        """As a run's account of a node, taken at one moment."""
        return NodeRecord(self.node, self.machine, before=self.gpus, after=self.gpus)


_LOOKS = ("machine", "gpus", "nvlink", "imex", "services", "ports", "kernel", "system", "software", "stuck")
_KINDS = {field.name: field.type for field in msgspec.structs.fields(NodeFacts) if field.name in _LOOKS}


def read_facts(node: str, said: Mapping[str, Any]) -> NodeFacts:
    """What a node said, by what of it is as it should be."""
    found: dict[str, Any] = {"folders": {}, "hung": {}, "errors": {}, "seconds": {}}
    looks, begun = said.get("looks"), said.get("begun")
    for name, look in looks.items() if isinstance(looks, dict) else ():
        kind = Folder if name.startswith("folder ") else _KINDS.get(name)
        if kind is None or not isinstance(look, dict):
            continue
        if isinstance(look.get("seconds"), float | int):
            found["seconds"][name] = float(look["seconds"])
        if "value" not in look:
            where, how = ("hung", look["hung"]) if "hung" in look else ("errors", look.get("error"))
            found[where][name] = str(how)
            continue
        try:
            value = from_plain(look["value"], kind)
        except msgspec.ValidationError as error:
            found["errors"][name] = f"unreadable: {error}"
            continue
        if kind is Folder:
            found["folders"][name.removeprefix("folder ")] = value
        else:
            found[name] = value
    return NodeFacts(node, float(begun) if isinstance(begun, float | int) else 0.0, **found)


@dataclass(frozen=True, kw_only=True)
class Needs:
    """``runs.evidence.gpu_run.Expected``, and what the checks of ``llmb_common.health`` ask beside that."""

    gpu_type: str = ""
    """Empty: whatever most nodes have."""
    gpus_per_node: int = 0
    """0: as many as most nodes have."""
    nodes: int = 1
    device: Literal["cuda", "cpu"] = "cuda"
    scheduler: SchedulerPart | None = None
    dispatcher: str = ""
    """The dispatcher of tokens to experts on other nodes: ``deepep``, ``hybridep``; empty within one NVLink domain."""
    adapters: str = ""
    """NCCL_IB_HCA of the job."""
    image: str | None = None
    image_bytes: int = 0
    mounts: tuple[str, ...] = ()
    folders: Mapping[str, str] = field(default_factory=dict)
    """To look into, by what they are for; into ``workload`` a file is written."""
    pythons: tuple[str, ...] = ()
    """Pythons of the training engine, if jobs run without a container."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The job's own variables."""

    @property
    def containers(self) -> bool:
        return self.scheduler is not None and self.scheduler.containers

    @property
    def domain_nodes(self) -> int:
        """Nodes that share one NVLink domain."""
        known = GPUS.get(self.gpu_type)
        return known.nvlink_nodes if known else 1


def needs_of_site(config: ClusterConfig, install: Path, traits: Traits, partition: str | None = None) -> Needs:
    """Without a job: what the site's configuration says of ones that run as ``traits`` say."""
    gpu_type = config.gpu_type or ""
    engine = config.engine
    return Needs(
        gpu_type=gpu_type,
        gpus_per_node=config.gpus_per_node or (per_node(gpu_type) if gpu_type in GPUS else 0),
        device="cpu" if gpu_type == "cpu" else "cuda",
        scheduler=config.scheduler(traits.name).site_part(partition),
        adapters=config.environment.get("NCCL_IB_HCA", ""),
        mounts=config.mounts,
        folders={"installation": str(install), "workload": _there(str(install / "workloads")), "/tmp": "/tmp"},
        pythons=tuple(filter(None, [engine.python])) if engine else (),
        env=config.environment,
    )


def needs_of(plan: JobPlan) -> Needs:
    """What the job of ``plan`` needs."""
    image = Path(plan.image) if plan.image and plan.image.startswith("/") else None
    hca = plan.env.get("NCCL_IB_HCA")
    folders = {"installation": plan.install, "workload": _there(plan.workload_folder), "/tmp": "/tmp"}
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


def _there(path: str) -> str:
    """The folder, or what of its path is there already: runs make the rest."""
    return next((str(folder) for folder in (Path(path), *Path(path).parents) if folder.is_dir()), path)


def _dispatcher(plan: JobPlan) -> str:
    """How tokens reach experts beyond one NVLink domain, by the function that the job calls."""
    known = GPUS.get(plan.gpu_type)
    if plan.function is None or known is None or (plan.ep or 1) <= known.per_node * known.nvlink_nodes:
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
