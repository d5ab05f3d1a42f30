"""The checks of one compute node and of the container on it; like all of them functions from facts to a verdict."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llmb_common.command.printable import size
from llmb_common.platform import gpus
from llmb_install.doctor.facts import Facts, Node

Level = Literal["ok", "doubt", "blocks"]

_CUDA_NEEDED = 13
"""What the NeMo 26.02 image brings; an older driver needs the forward-compatibility package inside it."""

_NOT_UNPACKED = ("overlayfs", "tmpfs", "fuseblk")
"""File systems of a container's root where the image itself is mounted, and what is written stays in memory."""


_NETWORK: dict[str, tuple[str, Level]] = {
    "gpudirect": ("GPUDirect RDMA", "doubt"),
    "memlock": ("locked memory", "blocks"),
}
"""Checks of ``llmb_common.health``, as they are called here."""


@dataclass(frozen=True)
class Check:
    """One line of the report. ``remedy`` says what to do where it is not ok."""

    name: str
    level: Level
    found: str
    remedy: str = ""


def node_checks(facts: Facts, node: Node) -> Iterator[Check]:
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
    if facts.slurm.runtime != "none":
        enroot = node.one("enroot")
        remedy = "" if enroot else "install Enroot on the compute nodes"
        yield Check("Enroot on the node", "ok" if enroot else "blocks", enroot or "not found", remedy)
    sees = node.one("install") == "yes"
    if facts.install.is_dir():
        remedy = "" if sees else "put the installation on a file system that all nodes share"
        yield Check(
            "installation on the node", "ok" if sees else "blocks", "visible" if sees else "not visible", remedy
        )
    if facts.config.image_folder and facts.slurm.runtime != "none":
        reads = node.one("images") == "yes"
        remedy = "" if reads else f"{facts.image_folder} must be on a file system that all nodes share, open to you"
        yield Check("images on the node", "ok" if reads else "blocks", "readable" if reads else "not readable", remedy)
    yield from _workloads(facts, node)
    yield from _hung(node)
    if facts.slurm.runtime == "none":
        yield from _engine(facts, node)
    elif facts.image is None:
        remedy = "import one: llmb-install add WORKLOAD, or update"
        yield Check("the image on the node", "doubt", f"no image of these workloads in {facts.image_folder}", remedy)
    else:
        yield from _container(facts.image, node)
    if node.skew is not None:
        bad = abs(node.skew) > 5
        remedy = "set up time synchronization: Slurm's credentials fail when clocks differ" if bad else ""
        yield Check("clock of the node", "doubt" if bad else "ok", f"{node.skew:+.1f} s from ours", remedy)


def _workloads(facts: Facts, node: Node) -> Iterator[Check]:
    """The folder of runs, in which doctor made one: who sees that sees the same file system."""
    if "probe" not in node.values:
        if facts.install.is_dir():
            remedy = "keep your runs elsewhere: export LLMB_WORKLOAD=/a/folder/of/yours"
            yield Check("workload folder", "doubt", "not yours to write to, so not looked for on the node", remedy)
        return
    remedy = "jobs write their runs there: it must be on a file system that all nodes mount read-write"
    places = {"on the node": "workloads"}
    if node.one("image_started"):
        places["in the container"] = "image_workloads"
    for where, said in places.items():
        found = node.values.get(said, [])
        state = "writable" if "written" in found else "read-only" if found else "not visible"
        fine = state == "writable"
        yield Check(f"workload folder {where}", "ok" if fine else "blocks", state, "" if fine else remedy)


def _hung(node: Node) -> Iterator[Check]:
    hung = dict.fromkeys([*node.values.get("hung", []), *node.values.get("image_hung", [])])
    if hung:
        remedy = f"drain {node.one('host')} and look at its kernel log: a driver that hangs stops every job there"
        yield Check("programs of the node", "blocks", f"{', '.join(hung)}: no answer", remedy)


def _engine(facts: Facts, node: Node) -> Iterator[Check]:
    """Without containers jobs train in the Pythons of cluster_config.yaml."""
    engine = facts.config.engine
    wanted = [*filter(None, [engine.python]), *engine.releases.values()] if engine else []
    lost = [python for python in wanted if python not in node.values.get("python", [])]
    yield Check(
        "training engine on the node",
        "ok" if wanted and not lost else "blocks",
        f"{', '.join(lost)} does not start" if lost else ", ".join(wanted) or "none in cluster_config.yaml",
        "" if wanted and not lost else "set engine.python to one with Megatron-Bridge that all nodes see",
    )


def _container(image: Path, node: Node) -> Iterator[Check]:
    started, seconds = node.one("image_started") == "yes", node.one("image_seconds")
    name = "the image on the node"
    if started:
        yield Check(name, "ok", f"{image.name} started, {seconds or '?'} s in all")
    else:
        remedy = "start it by hand (srun --container-image, or enroot start); llmb-install verify checks the file"
        yield Check(name, "blocks", f"{image.name} {_failure(node)}", remedy)
    free, needed = int(node.one("data_free") or -1), image.stat().st_size if image.is_file() else 0
    if free >= 0 and node.one("image_root") not in _NOT_UNPACKED:
        short = free < needed and not started
        yield Check(
            "room to unpack the image",
            "blocks" if short else "ok",
            f"{size(free)} free at {node.one('data')} of the node, for about {size(needed)}",
            "Pyxis unpacks it there: set ENROOT_DATA_PATH in /etc/enroot/enroot.conf to a larger local disk"
            if short
            else "",
        )
    outside, inside = len(node.values.get("gpu", [])), len(node.values.get("image_gpu", []))
    if started and outside:
        blind = inside < outside
        remedy = "Enroot needs its hook 98-nvidia.sh, and libnvidia-container on the node" if blind else ""
        yield Check("GPUs in the container", "blocks" if blind else "ok", f"{inside} of {outside}", remedy)


def _failure(node: Node) -> str:
    """What became of a container that did not start; srun's own lines only where nobody else says anything."""
    said = node.values.get("said", [])
    own = [line for line in said if not line.startswith("srun: ")] or said
    late = "image_seconds" not in node.values or node.one("image_status") in ("124", "137")
    lines = [line.removeprefix("slurmstepd: error: ") for line in own[-3:]]
    return f"did not start{' in time' if late else ''}: {'; '.join(lines) or 'nothing is said'}"


def _node_gpus(facts: Facts, node: Node) -> Iterator[Check]:
    shown = [line.split(",") for line in node.values.get("gpu", [])]
    expected = facts.config.gpu_type
    if not shown and expected == gpus.CPU:
        return
    if not shown:
        yield Check("GPUs of the node", "blocks", "nvidia-smi shows none", "check the driver, or set slurm.gres: true")
        return
    name, driver = shown[0][0].strip(), shown[0][1].strip() if len(shown[0]) > 1 else "?"
    wrong = expected not in (None, gpus.type_of(name) or gpus.CPU)
    yield Check(
        "GPUs of the node",
        "doubt" if wrong else "ok",
        f"{len(shown)} x {name}, driver {driver}",
        f"cluster_config.yaml says {expected}" if wrong else "",
    )
    cuda = node.one("cuda")
    old = bool(cuda) and release(cuda)[0] < _CUDA_NEEDED
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
        "" if devices else "NCCL would use TCP between nodes, which is many times slower; clouds: docs/clouds.md",
    )
    for name, found, remedy in node.network:
        yield Check(*_NETWORK[name], found, remedy)


def release(text: str) -> tuple[int, int]:
    """The first two numbers of a release; zeros where it is not known."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
