"""``llmb-install doctor``: is this site ready, and if not, what is to be done? Changes nothing.

The checks are pure functions from facts to ok, doubt or blocks.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from llmb_common.command.outcome import Result
from llmb_common.command.printable import size
from llmb_common.command.words import is_slurm_name
from llmb_common.errors import RequestError
from llmb_common.executors.slurm.script import LOCAL_FILE_SYSTEMS, ROOT_ROOM
from llmb_common.executors.slurm.words import SEGMENT_SLURM
from llmb_common.health.facts import Folder
from llmb_common.machine.files import require_trusted
from llmb_common.platform import gpus
from llmb_common.platform.cluster_types import LOCAL, SLURM, Traits, traits_of
from llmb_common.site.cluster import FILE_NAME, ClusterConfig, load_cluster_config
from llmb_common.site.machine import way_here
from llmb_install.answers.detect import detect_site
from llmb_install.commands.doctor_facts import NodeReport, SiteFacts, WorkloadNeeds, gather, limit_minutes
from llmb_install.parts.files import read_settings
from llmb_install.parts.image import IMAGE_BYTES
from llmb_install.working.reporter import Reporter

_MARKS = {"ok": "ok", "doubt": "doubt", "blocks": "BLOCKS"}

_PYXIS_OPTIONS = ("container-image", "container-mounts", "container-mount-home")
_OLDEST_SLURM = (21, 8)
_LARGE_SEGMENTS = (25, 11)
"""Since then Slurm takes a segment larger than a block (its CHANGELOG); before, such a job is never started."""

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
class DoctorCheck:
    """One line of the report. ``remedy`` says what to do where it is not ok."""

    name: str
    level: Level
    found: str
    remedy: str = ""


def _check(name: str, bad: object, found: str, remedy: str, level: Level = "blocks") -> DoctorCheck:
    """``ok``, or if it is ``bad`` the ``level``, with what to do about it."""
    return DoctorCheck(name, level if bad else "ok", found, remedy if bad else "")


def doctor(options: argparse.Namespace, clone: Path, install: Path) -> Result:
    """The report; exit status 1 when something blocks."""
    if (install / FILE_NAME).is_file():
        require_trusted(install / FILE_NAME, install)
        read_settings(install / FILE_NAME)
    config = _with_flags(load_cluster_config(install), options)
    with Reporter(None, verbose=options.verbose) as reporter, reporter.step("looking at this site") as step:
        if not options.no_compute_node and traits_of(config.cluster_type or LOCAL).slurm_options:
            step.update("this machine, Slurm, one compute node")
        facts = gather(config, install, clone, ask_node=not options.no_compute_node)
    checks = all_checks(facts)
    blocked = any(check.level == "blocks" for check in checks)
    rows = [dataclasses.asdict(check) for check in checks]
    return Result({"checks": rows}, "\n".join([*_lines(checks), ""]), status=int(blocked))


def _with_flags(config: ClusterConfig, options: argparse.Namespace) -> ClusterConfig:
    """The site's settings, with what the command line says and, for an unknown site, what is found."""
    kind = config.cluster_type or (SLURM if detect_site().has_slurm else way_here())
    changes = {"account": options.account, "gpu_partition": options.gpu_partition}
    for field, value in changes.items():
        if value and not is_slurm_name(value):
            raise RequestError(
                f"--{field.replace('_', '-')} {value!r} is not a valid name in Slurm", remedy="correct it"
            )
    slurm = msgspec.structs.replace(config.scheduler(SLURM), **{key: value for key, value in changes.items() if value})
    return msgspec.structs.replace(config, cluster_type=kind, slurm=slurm)


def _lines(checks: list[DoctorCheck]) -> list[str]:
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{_MARKS[check.level]:7} {check.name:{width}}  {check.found}")
        if check.remedy:
            lines.append(f"{'':7} {'':{width}}  -> {check.remedy}")
    counts = {level: sum(check.level == level for check in checks) for level in _MARKS}
    lines.append(f"{counts['ok']} ok, {counts['doubt']} in doubt, {counts['blocks']} block")
    return lines


def all_checks(facts: SiteFacts) -> list[DoctorCheck]:
    """Every check that makes sense for these facts, in the order in which one would fix things."""
    checks = [*_space(facts)]
    traits = traits_of(facts.config.cluster_type or SLURM)
    if not traits.slurm_options:
        return [*checks, *_without_slurm(facts, traits)]
    checks += _slurm(facts)
    if facts.controller_is_up:
        checks += [*_partition(facts), *_account(facts), *_times(facts), *_settings(facts)]
    checks += _containers(facts)
    if facts.node is not None:
        checks += node_checks(facts, facts.node)
    return checks


def _space(facts: SiteFacts) -> Iterator[DoctorCheck]:
    found, small = f"{size(facts.free_install)} free in {facts.install}", facts.free_install < 5_000_000_000
    yield _check("space for the installation", small, found, "results and checkpoints need more", "doubt")
    if facts.slurm.runtime != "none" and traits_of(facts.config.cluster_type or SLURM).containers:
        found, small = f"{size(facts.free_images)} free in {facts.image_folder}", facts.free_images < IMAGE_BYTES
        remedy = f"one NeMo image takes about {size(IMAGE_BYTES)}; choose another image folder"
        yield _check("space for images", small, found, remedy, "doubt")


def _without_slurm(facts: SiteFacts, traits: Traits) -> Iterator[DoctorCheck]:
    """Of this machine, or of a scheduler of which nothing more is known."""
    if traits.this_machine:
        present = ", ".join(facts.site.local_gpus)
        blocked = facts.config.gpu_type not in (None, "cpu") and not present
        remedy = "install NVIDIA's driver, or set gpu_type: cpu in cluster_config.yaml"
        yield _check("GPUs of this machine", blocked, present or "none", remedy)
    else:
        missing = ", ".join(facts.missing_commands)
        found = f"not found: {missing}" if missing else f"{traits.submits_with} found"
        yield _check(traits.name, missing, found, "load the scheduler's module, or use a login node")
    pythons = _engine_pythons(facts)
    remedy = "run ./installer.py --quickstart, or set engine.python to one that has Megatron-Bridge"
    yield _check("training engine", not pythons, ", ".join(pythons) or "none in cluster_config.yaml", remedy)


def _engine_pythons(facts: SiteFacts) -> list[str]:
    """Those in cluster_config.yaml that jobs without a container train in."""
    engine = facts.config.engine
    return [*filter(None, [engine.python]), *engine.releases.values()] if engine else []


def _slurm(facts: SiteFacts) -> Iterator[DoctorCheck]:
    if facts.missing_commands:
        names = ", ".join(facts.missing_commands)
        yield DoctorCheck("Slurm commands", "blocks", f"not found: {names}", "load Slurm's module, or use a login node")
        return
    version, old = facts.site.slurm_version or "unknown", release(facts.site.slurm_version) < _OLDEST_SLURM
    yield _check("Slurm version", old, version, "releases older than 21.08 are untested", "doubt")
    if not facts.controller_is_up:
        yield DoctorCheck(
            "Slurm controller", "blocks", "does not answer", "ask the administrator; look at: scontrol ping"
        )
        return
    yield DoctorCheck("Slurm controller", "ok", "answers")
    yield _mpi(facts)
    yield from _segments(facts)


def _mpi(facts: SiteFacts) -> DoctorCheck:
    """Whether Slurm starts ranks as the site says; without its word, whether it can start those that use MPI."""
    mpi, listed = facts.slurm.mpi, ", ".join(facts.mpi_types) or "nothing listed"
    if mpi is None:
        lacks = not any(name.startswith("pmix") for name in facts.mpi_types)
        remedy = (
            "only jobs with TP above 1 that overlap its communication use it, and only if the image's Transformer "
            "Engine was built with MPI: such a job ends at its start; all others need no PMIx"
        )
        return _check("PMIx", lacks, listed, remedy, "doubt")
    lacks = mpi != "none" and mpi not in facts.mpi_types
    remedy = "remove slurm.mpi from cluster_config.yaml: each job then gets what Slurm has and it needs"
    return _check(f"srun --mpi={mpi}", lacks, listed, remedy)


def _segments(facts: SiteFacts) -> Iterator[DoctorCheck]:
    """Whether Slurm keeps the nodes of a rack together; a segment is as many nodes as one has, or fewer."""
    gpu = gpus.GPUS.get(facts.config.gpu_type or "")
    if gpu is None or gpu.nvlink_nodes == 1:
        return
    name, blocks, version = "Slurm and NVL72 racks", facts.limits.blocks, release(facts.site.slurm_version)
    spread = "jobs may be spread over more racks than needed, which costs speed"
    if version < SEGMENT_SLURM:
        remedy = f"{spread}; Slurm 24.05 or newer keeps segments together"
        yield DoctorCheck(name, "doubt", f"{facts.site.slurm_version} has no --segment", remedy)
    elif blocks is None:
        remedy = f"{spread}; configure topology/block, a block for each rack"
        yield DoctorCheck(name, "doubt", "no topology/block: --segment has no effect", remedy)
    elif min(blocks) < gpu.nvlink_nodes and version < _LARGE_SEGMENTS:
        remedy = (
            f"before Slurm 25.11 a job with larger segments (one of {min(blocks) + 1} nodes, say) never starts: "
            "take another number of nodes, or ADDITIONAL_SLURM_PARAMS=segment=N with a divisor of it"
        )
        yield DoctorCheck(name, "doubt", f"blocks of {min(blocks)} nodes", remedy)
    else:
        yield DoctorCheck(name, "ok", f"{len(blocks)} blocks of {min(blocks)} nodes or more")


def _partition(facts: SiteFacts) -> Iterator[DoctorCheck]:
    name = facts.slurm.gpu_partition
    found = next((p for p in facts.site.partitions if p.name == name), None)
    if name is None:
        yield DoctorCheck("GPU partition", "doubt", "none is set", "set slurm.gpu_partition in cluster_config.yaml")
        return
    if found is None:
        known = ", ".join(p.name for p in facts.site.partitions)
        yield DoctorCheck("GPU partition", "blocks", f"{name} does not exist", f"the partitions are {known}")
        return
    what = f"{name}: {found.nodes} nodes of {found.gpus_per_node} GPUs, limit {found.time_limit}"
    yield _check("GPU partition", not found.up, what, "it is down: choose another, or ask the administrator")
    requested, count = facts.slurm.gres, found.gpus_per_node
    if requested and not count:
        what = "jobs request GPUs, and Slurm has none configured"
        yield DoctorCheck("GRES", "blocks", what, "set slurm.gres: false")
    elif count and not requested:
        what = f"Slurm has {count} GPUs per node, and jobs do not request them"
        remedy = "set slurm.gres: true, unless whole nodes come with their GPUs here"
        yield DoctorCheck("GRES", "doubt", what, remedy)
    else:
        yield DoctorCheck("GRES", "ok", f"{count} GPUs per node" if count else "not used here")


def _account(facts: SiteFacts) -> Iterator[DoctorCheck]:
    account = facts.slurm.account
    if not facts.has_accounting:
        yield DoctorCheck("account", "doubt", "Slurm accounting is not enabled", "a wrong account is accepted silently")
    elif account is None:
        yield DoctorCheck("account", "doubt", "none is set", "set slurm.account in cluster_config.yaml")
    elif facts.site.accounts and account not in facts.site.accounts:
        yours = ", ".join(facts.site.accounts)
        yield DoctorCheck(
            "account", "blocks", f"{account} is not one of your accounts: {yours}", "correct slurm.account"
        )
    else:
        yield DoctorCheck("account", "ok", account)


def _times(facts: SiteFacts) -> Iterator[DoctorCheck]:
    """The shortest limit that Slurm sets against what the workloads ask for, and the time that it leaves for a save."""
    wanted = facts.workloads or (WorkloadNeeds("a benchmark"),)
    name = facts.slurm.gpu_partition
    partition = next((limit_minutes(p.time_limit) for p in facts.site.partitions if p.name == name), None)
    walls = [*([(f"partition {name}", partition)] if partition is not None else []), *facts.limits.walls]
    if walls:
        what, most = min(walls, key=lambda wall: wall[1])
        short = [workload for workload in wanted if workload.longest > most]
        none = [workload for workload in short if workload.shortest > most]
        needs = ", ".join(f"{workload.name} {workload.longest}" for workload in short)
        remedy = f"jobs ask for more minutes ({needs}): choose another partition or QOS, or set TIME_LIMIT"
        level: Level = "blocks" if none else "doubt"
        yield _check("time limit", short, f"{most} minutes, set by {what}", remedy, level)
    longest = max(wanted, key=lambda workload: workload.saving)
    wait = facts.slurm_config.get("KillWait", "").split(" ")[0]
    if longest.saving and wait.isdigit():
        most = max(int(wait), facts.limits.grace)
        preempts = facts.slurm_config.get("PreemptMode", "OFF") != "OFF" and most < longest.saving
        yield _check(
            "time to save",
            preempts,
            f"{most} s when a job is preempted or cancelled; saving takes up to {longest.saving} s ({longest.name})",
            "a preempted job loses what it did since its last checkpoint: set CHECKPOINT_INTERVAL, or ask for a longer "
            "GraceTime of the partition or QOS; at its time limit a job is told early enough",
            "doubt",
        )


def _settings(facts: SiteFacts) -> Iterator[DoctorCheck]:
    task = facts.slurm_config.get("TaskPlugin", "") or "unknown"
    unbound = "" if "affinity" in task else ": CPU_PER_TASK_PINNING has no effect; ranks are bound by numactl"
    yield DoctorCheck("task plug-in", "ok", f"{task}{unbound}")
    if facts.slurm_config.get("EnforcePartLimits") == "NO":
        remedy = "a job over a partition's limit is accepted and waits forever: watch the reason in squeue"
        yield DoctorCheck("limits", "doubt", "EnforcePartLimits=NO", remedy)


def _containers(facts: SiteFacts) -> Iterator[DoctorCheck]:
    runtime = facts.slurm.runtime
    if runtime == "pyxis" and facts.controller_is_up:
        lacking = not {*_PYXIS_OPTIONS} <= {*facts.container_options}
        found = "srun has no --container-image" if lacking else "srun has its options"
        remedy = "install Pyxis for this Slurm release, or set slurm.runtime to enroot or none"
        yield _check("Pyxis", lacking, found, remedy)
    if runtime == "none":
        return
    name = "writing to an image's files"
    if facts.slurm.container_writable:
        options = facts.container_options
        unknown = runtime == "pyxis" and options and "container-writable" not in options
        remedy = "this Pyxis has no --container-writable: update it, or set slurm.container_writable: false"
        yield _check(name, unknown, "jobs may", remedy)
    else:
        remedy = "right only where the site forbids it: libraries in the image build and cache files there"
        yield DoctorCheck(name, "doubt", "slurm.container_writable is false", remedy)
    remedy = "import images on a compute node: --install-method srun"
    yield _check("Enroot on this machine", not facts.local_enroot, facts.local_enroot or "not found", remedy, "doubt")
    if facts.local_enroot and not facts.has_unsquashfs:
        yield DoctorCheck("unsquashfs", "blocks", "not found", "install squashfs-tools: images are checked with it")


def node_checks(facts: SiteFacts, node: NodeReport) -> Iterator[DoctorCheck]:
    if node.error:
        remedy = "look at squeue and sinfo; --no-compute-node leaves this out"
        yield DoctorCheck("a compute node", "doubt", node.error, remedy)
        return
    yield DoctorCheck("a compute node", "ok", node.facts.node)
    yield from _node_hardware(facts, node)
    if facts.slurm.runtime != "none":
        enroot = node.facts.software.enroot
        remedy = "install Enroot on the compute nodes"
        yield _check("Enroot on the node", not enroot, enroot or "not found", remedy)
    if facts.install.is_dir():
        sees = node.folder("installation").there
        remedy = "put the installation on a file system that all nodes share"
        yield _check("installation on the node", not sees, "visible" if sees else "not visible", remedy)
    if facts.config.image_folder and facts.slurm.runtime != "none":
        reads = node.folder("images").there
        remedy = f"{facts.image_folder} must be on a file system that all nodes share, open to you"
        yield _check("images on the node", not reads, "readable" if reads else "not readable", remedy)
    yield from _workload_folder(facts, node)
    silent = ["nvidia-smi"] if "did not answer" in (node.facts.gpus.missing or "") else []
    if hung := dict.fromkeys([*silent, *node.facts.hung, *node.inside.values.get("hung", [])]):
        remedy = f"drain {node.facts.node} and look at its kernel log: a driver that hangs stops every job there"
        yield DoctorCheck("programs of the node", "blocks", f"{', '.join(hung)}: no answer", remedy)
    if facts.slurm.runtime == "none":  # jobs train in the Pythons of cluster_config.yaml
        wanted = _engine_pythons(facts)
        lost = [python for python in wanted if python not in node.facts.software.starts]
        found = f"{', '.join(lost)} does not start" if lost else ", ".join(wanted) or "none in cluster_config.yaml"
        remedy = "set engine.python to one with Megatron-Bridge that all nodes see"
        yield _check("training engine on the node", lost or not wanted, found, remedy)
    elif facts.image is None:
        remedy = "import one: llmb-install add WORKLOAD, or update"
        found = f"no image of these workloads in {facts.image_folder}"
        yield DoctorCheck("the image on the node", "doubt", found, remedy)
    else:
        yield from _image_on(facts, facts.image, node)
    if node.skew is not None:
        remedy = "set up time synchronization: Slurm's credentials fail when clocks differ"
        yield _check("clock of the node", abs(node.skew) > 5, f"{node.skew:+.1f} s from ours", remedy, "doubt")


def _workload_folder(facts: SiteFacts, node: NodeReport) -> Iterator[DoctorCheck]:
    """The folder of runs, in which doctor made one: who sees that sees the same file system."""
    if not node.writes:
        if facts.install.is_dir():
            remedy = "keep your runs elsewhere: export LLMB_WORKLOAD=/a/folder/of/yours"
            yield DoctorCheck(
                "workload folder", "doubt", "not yours to write to, so not looked for on the node", remedy
            )
        return
    remedy = "jobs write their runs there: it must be on a file system that all nodes mount read-write"
    folder, inside = node.folder("workload"), node.inside.values.get("workloads", [])
    looks = {"on the node": (folder.there, not folder.problem)}
    if node.inside.started:
        looks["in the container"] = (bool(inside), "written" in inside)
    for where, (seen, written) in looks.items():
        state = "not visible" if not seen else "writable" if written else "read-only"
        yield _check(f"workload folder {where}", state != "writable", state, remedy)


def _image_on(facts: SiteFacts, image: Path, node: NodeReport) -> Iterator[DoctorCheck]:
    inside, started, name = node.inside, node.inside.started, "the image on the node"
    if started:
        yield DoctorCheck(name, "ok", f"{image.name} started, {inside.seconds:.0f} s in all")
    else:
        # srun's own lines only where nobody else says anything.
        own = [line for line in inside.lines if not line.startswith("srun: ")] or inside.lines
        said = "; ".join(line.removeprefix("slurmstepd: error: ") for line in own[-3:]) or "nothing is said"
        in_time = " in time" if inside.status in (None, 124, 137) else ""
        remedy = "start it by hand (srun --container-image, or enroot start); llmb-install verify checks the file"
        yield DoctorCheck(name, "blocks", f"{image.name} did not start{in_time}: {said}", remedy)
    # Only Pyxis unpacks where Enroot says.
    room = node.facts.software.unpacked if facts.slurm.runtime == "pyxis" else None
    needed = image.stat().st_size if image.is_file() else 0
    if room and room.free is not None and not {*inside.values.get("root", [])} & {*_NOT_UNPACKED}:
        found = f"{size(room.free)} free at {room.path} of the node, for about {size(needed)}"
        remedy = "Pyxis unpacks it there: set ENROOT_DATA_PATH in /etc/enroot/enroot.conf to a larger local disk"
        yield _check("room to unpack the image", room.free < needed and not started, found, remedy)
    if facts.slurm.runtime == "enroot":
        yield _root_for(facts, node.facts.software.roots or Folder(), needed)
    outside, shown = len(node.facts.gpus.gpus), len(inside.values.get("gpu", []))
    if started and outside:
        remedy = "Enroot needs its hook 98-nvidia.sh, and libnvidia-container on the node"
        yield _check("GPUs in the container", shown < outside, f"{shown} of {outside}", remedy)


def _root_for(facts: SiteFacts, roots: Folder, needed: int) -> DoctorCheck:
    """Whether a job unpacks its image on the node, ``needed`` bytes: what Enroot mounts does not outlive the SIGCONT
    with which Slurm announces a preemption."""
    wanted = ROOT_ROOM * needed
    if not roots.there:
        why = "Enroot does not say where it keeps roots (4.0 and later do)"
    elif roots.kind not in LOCAL_FILE_SYSTEMS:
        why = f"{roots.path} is on {roots.kind or 'a file system of an unknown kind'}, which nodes may share"
    elif (roots.free or 0) < wanted:
        why = f"{size(roots.free or 0)} free at {roots.path} of the node, for {size(wanted)}"
    else:
        return DoctorCheck("saving when preempted", "ok", f"jobs unpack the image at {roots.path} of the node")
    preempts = facts.slurm_config.get("PreemptMode", "OFF") != "OFF"
    remedy = (
        "a job that is preempted with grace loses up to one checkpoint interval: set ENROOT_DATA_PATH in "
        "/etc/enroot/enroot.conf to a local disk of the nodes with room for twice the image"
    )
    return _check("saving when preempted", preempts, f"{why}: jobs mount the image", remedy, "doubt")


def _node_hardware(facts: SiteFacts, node: NodeReport) -> Iterator[DoctorCheck]:
    expected, found = facts.config.arch, node.facts.machine.architecture or ""
    remedy = f"cluster_config.yaml says {expected}: images would be built for the wrong architecture"
    yield _check("architecture", expected not in (None, found), found, remedy)
    shown, gpu_type = node.facts.gpus, facts.config.gpu_type
    if shown.gpus:
        name, cuda = shown.gpus[0].product or "?", shown.cuda or ""
        wrong = gpu_type not in (None, gpus.type_of(name) or gpus.CPU)
        found = f"{len(shown.gpus)} x {name}, driver {shown.driver or '?'}"
        yield _check("GPUs of the node", wrong, found, f"cluster_config.yaml says {gpu_type}", "doubt")
        old = bool(cuda) and release(cuda)[0] < _CUDA_NEEDED
        remedy = "older than the image's CUDA 13: it runs only through forward compatibility; update the driver"
        yield _check("CUDA of the driver", old, cuda or "unknown", remedy, "doubt")
    elif gpu_type != gpus.CPU:
        remedy = "check the driver, or set slurm.gres: true"
        yield DoctorCheck("GPUs of the node", "blocks", "nvidia-smi shows none", remedy)
    devices = [port.name for port in node.facts.machine.adapters]
    remedy = "NCCL would use TCP between nodes, which is many times slower; clouds: docs/clouds.md"
    yield _check("InfiniBand or RoCE", not devices, ", ".join(devices) or "no device", remedy, "doubt")
    for name, found, remedy in node.network:
        yield DoctorCheck(*_NETWORK[name], found, remedy)


def release(text: str) -> tuple[int, int]:
    """The first two numbers of a release; zeros where it is not known."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
