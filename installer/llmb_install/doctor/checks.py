"""The checks of ``doctor``: pure functions from facts to ok, warning or error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from llmb_common import gpus
from llmb_common.cluster_types import SLURM, traits_of
from llmb_common.site.machine import SEGMENT_SLURM
from llmb_install.detect import Partition
from llmb_install.doctor.facts import Facts, Node
from llmb_install.parts.images import IMAGE_BYTES
from llmb_install.working.reporter import size

Level = Literal["ok", "doubt", "blocks"]

_PYXIS_OPTIONS = ("container-image", "container-mounts", "container-mount-home")
_OLDEST_SLURM = (21, 8)
_MINUTES_NEEDED = 30
_CUDA_NEEDED = 13
"""What the NeMo 26.02 image brings; an older driver needs the forward-compatibility package inside it."""


@dataclass(frozen=True)
class Check:
    """One line of the report. ``remedy`` says what to do where it is not ok."""

    name: str
    level: Level
    found: str
    remedy: str = ""


def all_checks(facts: Facts) -> list[Check]:
    """Every check that makes sense for these facts, in the order in which one would fix things."""
    checks = [*_space(facts)]
    traits = traits_of(facts.config.cluster_type or SLURM)
    if traits.this_machine:
        return [*checks, *_local(facts)]
    checks += _slurm(facts)
    if facts.controller_is_up:
        checks += [*_partition(facts), *_account(facts), *_settings(facts)]
    checks += _containers(facts)
    if facts.node is not None:
        checks += _node(facts, facts.node)
    return checks


def _space(facts: Facts) -> Iterator[Check]:
    small = facts.free_install < 5_000_000_000
    yield Check(
        "space for the installation",
        "doubt" if small else "ok",
        f"{size(facts.free_install)} free in {facts.install}",
        "results and checkpoints need more" if small else "",
    )
    if facts.config.slurm.runtime != "none" and traits_of(facts.config.cluster_type or SLURM).containers:
        small = facts.free_images < IMAGE_BYTES
        yield Check(
            "space for images",
            "doubt" if small else "ok",
            f"{size(facts.free_images)} free in {facts.image_folder}",
            f"one NeMo image takes about {size(IMAGE_BYTES)}; choose another image folder" if small else "",
        )


def _local(facts: Facts) -> Iterator[Check]:
    present = ", ".join(facts.site.local_gpus)
    wanted = facts.config.gpu_type not in (None, "cpu")
    blocked = wanted and not present
    yield Check(
        "GPUs of this machine",
        "blocks" if blocked else "ok",
        present or "none",
        "install NVIDIA's driver, or set gpu_type: cpu in cluster_config.yaml" if blocked else "",
    )
    engine = facts.config.engine
    pythons = [*filter(None, [engine.python]), *engine.releases.values()] if engine else []
    yield Check(
        "training engine",
        "ok" if pythons else "blocks",
        ", ".join(pythons) or "none in cluster_config.yaml",
        "" if pythons else "run ./installer.py --quickstart, or set engine.python to one that has Megatron-Bridge",
    )


def _slurm(facts: Facts) -> Iterator[Check]:
    if facts.missing_commands:
        names = ", ".join(facts.missing_commands)
        yield Check("Slurm commands", "blocks", f"not found: {names}", "load Slurm's module, or use a login node")
        return
    version = _version(facts.site.slurm_version)
    old = version < _OLDEST_SLURM
    yield Check(
        "Slurm version",
        "doubt" if old else "ok",
        facts.site.slurm_version or "unknown",
        "releases older than 21.08 are untested" if old else "",
    )
    if _in_racks(facts.config.gpu_type) and version < SEGMENT_SLURM:
        yield Check(
            "Slurm and NVL72 racks",
            "doubt",
            f"{facts.site.slurm_version} has no --segment",
            "jobs may be spread over more racks than needed; Slurm 24.05 or newer keeps segments together",
        )
    yield Check(
        "Slurm controller",
        "ok" if facts.controller_is_up else "blocks",
        "answers" if facts.controller_is_up else "does not answer",
        "" if facts.controller_is_up else "ask the administrator; look at: scontrol ping",
    )
    if not facts.controller_is_up:
        return
    mpi = facts.config.slurm.mpi
    has_it = mpi == "none" or mpi in facts.mpi_types
    yield Check(
        f"srun --mpi={mpi}",
        "ok" if has_it else "blocks",
        ", ".join(facts.mpi_types) or "nothing listed",
        "" if has_it else "set slurm.mpi: none in cluster_config.yaml: ranks can find each other without PMIx",
    )


def _in_racks(gpu_type: str | None) -> bool:
    """Whether nodes with these GPUs share NVLink."""
    return gpu_type in gpus.GPUS and gpus.GPUS[gpu_type].nvlink_nodes > 1


def _partition(facts: Facts) -> Iterator[Check]:
    name = facts.config.slurm.gpu_partition
    found = next((p for p in facts.site.partitions if p.name == name), None)
    if name is None:
        yield Check("GPU partition", "doubt", "none is set", "set slurm.gpu_partition in cluster_config.yaml")
        return
    if found is None:
        known = ", ".join(p.name for p in facts.site.partitions)
        yield Check("GPU partition", "blocks", f"{name} does not exist", f"the partitions are {known}")
        return
    yield Check(
        "GPU partition",
        "ok" if found.up else "blocks",
        f"{name}: {found.nodes} nodes of {found.gpus_per_node} GPUs, limit {found.time_limit}",
        "" if found.up else "it is down: choose another, or ask the administrator",
    )
    minutes = limit_minutes(found.time_limit)
    if minutes is not None and minutes < _MINUTES_NEEDED:
        yield Check(
            "time limit of the partition",
            "blocks",
            found.time_limit,
            f"a benchmark asks for {_MINUTES_NEEDED} minutes or more: choose another partition, or set TIME_LIMIT",
        )
    yield _gres(facts, found)


def _gres(facts: Facts, partition: Partition) -> Check:
    asks, has = facts.config.slurm.gres, partition.gpus_per_node > 0
    if asks and not has:
        return Check("GRES", "blocks", "jobs request GPUs, and Slurm has none configured", "set slurm.gres: false")
    if has and not asks:
        return Check(
            "GRES",
            "doubt",
            f"Slurm has {partition.gpus_per_node} GPUs per node, and jobs do not request them",
            "set slurm.gres: true, unless whole nodes come with their GPUs here",
        )
    return Check("GRES", "ok", f"{partition.gpus_per_node} GPUs per node" if has else "not used here")


def _account(facts: Facts) -> Iterator[Check]:
    account = facts.config.slurm.account
    if not facts.has_accounting:
        yield Check("account", "doubt", "Slurm accounting is not enabled", "a wrong account is accepted silently")
    elif account is None:
        yield Check("account", "doubt", "none is set", "set slurm.account in cluster_config.yaml")
    elif facts.site.accounts and account not in facts.site.accounts:
        yours = ", ".join(facts.site.accounts)
        yield Check("account", "blocks", f"{account} is not one of your accounts: {yours}", "correct slurm.account")
    else:
        yield Check("account", "ok", account)


def _settings(facts: Facts) -> Iterator[Check]:
    task = facts.slurm_config.get("TaskPlugin", "")
    affinity = "affinity" in task
    yield Check(
        "task plug-in",
        "ok" if affinity else "doubt",
        task or "unknown",
        "" if affinity else "without task/affinity ranks are not bound to CPUs, which costs speed",
    )
    limits = facts.slurm_config.get("EnforcePartLimits", "")
    if limits == "NO":
        yield Check(
            "limits",
            "doubt",
            "EnforcePartLimits=NO",
            "a job over a partition's limit is accepted and waits forever: watch the reason in squeue",
        )


def _containers(facts: Facts) -> Iterator[Check]:
    runtime = facts.config.slurm.runtime
    if runtime == "pyxis" and facts.controller_is_up:
        lacking = [name for name in _PYXIS_OPTIONS if name not in facts.container_options]
        yield Check(
            "Pyxis",
            "blocks" if lacking else "ok",
            "srun has no --container-image" if lacking else "srun has its options",
            "install Pyxis for this Slurm release, or set slurm.runtime to enroot or none" if lacking else "",
        )
    if runtime == "none":
        return
    writable = facts.config.slurm.container_writable
    known = runtime != "pyxis" or not facts.container_options or "container-writable" in facts.container_options
    yield Check(
        "writing to an image's files",
        ("ok" if known else "blocks") if writable else "doubt",
        "jobs may" if writable else "slurm.container_writable is false",
        ("" if known else "this Pyxis has no --container-writable: update it, or set slurm.container_writable: false")
        if writable
        else "right only where the site forbids it: libraries in the image build and cache files there",
    )
    yield Check(
        "Enroot on this machine",
        "ok" if facts.local_enroot else "doubt",
        facts.local_enroot or "not found",
        "" if facts.local_enroot else "import images on a compute node: --install-method srun",
    )
    if facts.local_enroot and not facts.has_unsquashfs:
        yield Check("unsquashfs", "blocks", "not found", "install squashfs-tools: images are checked with it")


def _node(facts: Facts, node: Node) -> Iterator[Check]:
    if node.error:
        remedy = "look at squeue and sinfo; --no-compute-node leaves this out"
        yield Check("a compute node", "doubt", node.error, remedy)
        return
    yield Check("a compute node", "ok", node.one("host"))
    expected = facts.config.arch
    wrong = expected is not None and node.one("arch") != expected
    yield Check(
        "architecture",
        "blocks" if wrong else "ok",
        node.one("arch"),
        f"cluster_config.yaml says {expected}: images would be built for the wrong architecture" if wrong else "",
    )
    yield from _node_gpus(facts, node)
    yield from _node_network(node)
    if facts.config.slurm.runtime != "none":
        enroot = node.one("enroot")
        remedy = "" if enroot else "install Enroot on the compute nodes"
        yield Check("Enroot on the node", "ok" if enroot else "blocks", enroot or "not found", remedy)
    sees = node.one("install") == "yes"
    if facts.install.is_dir():
        remedy = "" if sees else "put the installation on a file system that all nodes share"
        yield Check(
            "installation on the node", "ok" if sees else "blocks", "visible" if sees else "not visible", remedy
        )
    if facts.config.image_folder and facts.config.slurm.runtime != "none":
        reads = node.one("images") == "yes"
        remedy = "" if reads else f"{facts.image_folder} must be on a file system that all nodes share, open to you"
        yield Check("images on the node", "ok" if reads else "blocks", "readable" if reads else "not readable", remedy)
    if node.skew is not None:
        bad = abs(node.skew) > 5
        remedy = "set up time synchronization: Slurm's credentials fail when clocks differ" if bad else ""
        yield Check("clock of the node", "doubt" if bad else "ok", f"{node.skew:+.1f} s from ours", remedy)


def _node_gpus(facts: Facts, node: Node) -> Iterator[Check]:
    shown = [line.split(",") for line in node.values.get("gpu", [])]
    if not shown:
        yield Check("GPUs of the node", "blocks", "nvidia-smi shows none", "check the driver, or set slurm.gres: true")
        return
    name, driver = shown[0][0].strip(), shown[0][1].strip() if len(shown[0]) > 1 else "?"
    expected = facts.config.gpu_type
    wrong = expected not in (None, gpus.type_of(name) or gpus.CPU)
    yield Check(
        "GPUs of the node",
        "doubt" if wrong else "ok",
        f"{len(shown)} x {name}, driver {driver}",
        f"cluster_config.yaml says {expected}" if wrong else "",
    )
    cuda = node.one("cuda")
    old = bool(cuda) and _version(cuda)[0] < _CUDA_NEEDED
    yield Check(
        "CUDA of the driver",
        "doubt" if old else "ok",
        cuda or "unknown",
        "older than the image's CUDA 13: it runs only through forward compatibility; update the driver" if old else "",
    )


def _node_network(node: Node) -> Iterator[Check]:
    devices = node.values.get("infiniband", [])
    yield Check(
        "InfiniBand or RoCE",
        "ok" if devices else "doubt",
        ", ".join(devices) or "no device",
        "" if devices else "NCCL would use TCP between nodes, which is many times slower",
    )
    if devices and node.one("peermem") != "yes":
        remedy = "load nvidia_peermem (or use DMA-BUF) for GPUDirect RDMA"
        yield Check("GPUDirect RDMA", "doubt", "nvidia_peermem is not loaded", remedy)
    limit = node.one("memlock")
    if devices and limit not in ("unlimited", ""):
        remedy = "set it to unlimited (PropagateResourceLimitsExcept=MEMLOCK): NCCL registers memory"
        yield Check("locked memory", "blocks", f"limit {limit} kB", remedy)


def limit_minutes(text: str) -> int | None:
    """Minutes of a Slurm time limit (``1-00:00:00``, ``30:00``, ``infinite``); None where there is none."""
    found = re.match(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)\Z", text)
    if found is None:
        return None
    days, hours, minutes, _ = (int(part or 0) for part in found.groups())
    return days * 1440 + hours * 60 + minutes


def _version(text: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
