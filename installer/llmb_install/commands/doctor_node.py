"""What ``doctor`` says of one compute node: what the rules about nodes find there, and whether jobs can start in its
container. Pure functions from facts to lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from llmb_common.base import gpus
from llmb_common.base.cluster_types import SLURM, traits_of
from llmb_common.base.printable import size
from llmb_common.executors.slurm.script import LOCAL_FILE_SYSTEMS, ROOT_ROOM
from llmb_common.health.one_node import NodeReport
from llmb_common.nodes.facts import Folder
from llmb_common.nodes.findings import Remark, doctor_remarks
from llmb_common.nodes.needs import needs_of_site
from llmb_install.commands.doctor_check import DoctorCheck, Level, check_line
from llmb_install.commands.doctor_facts import SiteFacts

_LEVELS: dict[str, Level] = {"fail": "blocks", "warn": "doubt"}
"""Doctor's words for those of the rules."""

RUNS_ELSEWHERE = "keep your runs elsewhere: export LLMB_WORKLOAD=/a/folder/of/yours"
"""What a user may do who cannot write to the folder of runs."""

_NOT_UNPACKED = ("overlayfs", "tmpfs", "fuseblk")
"""File systems of a container's root where the image itself is mounted, and what is written stays in memory."""

_SKEW_SECONDS = 5


def node_checks(facts: SiteFacts, node: NodeReport) -> Iterator[DoctorCheck]:
    """Yield the lines of doctor's report about the asked ``node``, in the order of repair.

    They are its name, the hardware, Enroot, folders, what does not answer, the engine or image, and the clock, more
    than five seconds off being a doubt; a clock that is not known is left out. A node that could not be asked gives
    one line, a doubt. ``facts`` are those of ``gather_facts``, of a site with Slurm.

    Raises:
        RequestError: ``additional_params`` of the configuration is wrong
        OSError: the installation's folder may not be looked at
    """
    if node.error:
        remedy = "look at squeue and sinfo; --no-compute-node leaves this out"
        yield DoctorCheck("a compute node", "doubt", node.error, remedy)
        return
    traits = traits_of(facts.config.cluster_type or SLURM)
    needs = needs_of_site(facts.config, facts.install, traits)
    remarks = doctor_remarks(node.facts, replace(needs, nodes=2))
    yield DoctorCheck("a compute node", "ok", node.facts.host)
    yield from _hardware_checks(facts, node, remarks)
    if facts.slurm.runtime != "none":
        software = node.facts.software
        found = software.enroot or software.enroot_missing or "not found"
        yield _rule_check("Enroot on the node", remarks, "runtime", found)
    yield from _folder_checks(facts, node)
    yield from _hung_checks(node)
    if facts.slurm.runtime == "none":  # jobs train in the Pythons of cluster_config.yaml
        yield _engine_check(facts, node)
    elif facts.image is None:
        remedy = "import one: llmb-install add WORKLOAD, or update"
        found = f"no image of these workloads in {facts.image_folder}"
        yield DoctorCheck("the image on the node", "doubt", found, remedy)
    else:
        yield from _image_checks(facts, facts.image, node)
    if node.skew is not None:
        remedy = "set up time synchronization: Slurm's credentials fail when clocks differ"
        is_apart = abs(node.skew) > _SKEW_SECONDS
        yield check_line("clock of the node", is_apart, f"{node.skew:+.1f} s from ours", remedy, "doubt")


def _rule_check(name: str, remarks: Mapping[str, Remark], rule: str, found: str, remedy: str = "") -> DoctorCheck:
    """Return the line ``name`` of doctor's report, as bad as what ``rule`` remarked; ok without a remark.

    ``remarks`` are those on the node, by the name of the rule; level ``fail`` is ``blocks`` here, ``warn`` is
    ``doubt``. ``found`` is what the node has. ``remedy``, if not empty, takes the place of the remark's own; a line
    that is ok has none.

    Raises:
        KeyError: the remark's level is another one
    """
    remark = remarks.get(rule)
    if remark is None:
        return DoctorCheck(name, "ok", found)
    return DoctorCheck(name, _LEVELS[remark.level], found, remedy or remark.remedy)


def _hardware_checks(facts: SiteFacts, node: NodeReport, remarks: Mapping[str, Remark]) -> Iterator[DoctorCheck]:
    """Yield checks of a node's architecture, GPUs, driver and network, each as bad as the rules in ``remarks`` say.

    They come in this order, CUDA with the GPUs. ``remarks`` are by the name of the rule. The GPUs are left out for
    CPU jobs where the node has none; GPUDirect RDMA and locked memory are there only where something is remarked.
    ``facts`` are those of the site, ``node`` is the report of a node that was asked.
    """
    remedy = f"cluster_config.yaml says {facts.config.arch}: images would be built for the wrong architecture"
    yield _rule_check("architecture", remarks, "architecture", node.facts.machine.architecture or "", remedy)
    shown, gpu_type = node.facts.before, facts.config.gpu_type
    if shown.gpus:
        found = f"{len(shown.gpus)} x {shown.gpus[0].product or '?'}, driver {shown.driver or '?'}"
        yield _rule_check("GPUs of the node", remarks, "gpu-type", found, f"cluster_config.yaml says {gpu_type}")
        yield _rule_check("CUDA of the driver", remarks, "cuda", shown.cuda or "unknown")
    elif gpu_type != gpus.CPU:
        yield _rule_check("GPUs of the node", remarks, "no-gpu-facts", "nvidia-smi shows none")
    names = [port.name for port in node.facts.machine.adapters]
    yield _rule_check("InfiniBand or RoCE", remarks, "network", ", ".join(names) or "no device")
    for rule, name in (("gpudirect", "GPUDirect RDMA"), ("memlock", "locked memory")):
        if rule in remarks:
            yield _rule_check(name, remarks, rule, remarks[rule].text)


def _folder_checks(facts: SiteFacts, node: NodeReport) -> Iterator[DoctorCheck]:
    """Yield checks of whether the node sees the installation, the image folder and the folder of runs.

    A folder that it does not see blocks. The first is left out where there is no installation, the second where no
    image folder is set or no container is used. The last is ``_workload_folder``'s. ``facts`` are those of the
    site, ``node`` is the report of a node that was asked.
    """
    if facts.install.is_dir():
        sees = node.folder("installation").there
        remedy = "put the installation on a file system that all nodes share"
        yield check_line("installation on the node", not sees, "visible" if sees else "not visible", remedy)
    if facts.config.image_folder and facts.slurm.runtime != "none":
        reads = node.folder("images").there
        remedy = f"{facts.image_folder} must be on a file system that all nodes share, open to you"
        yield check_line("images on the node", not reads, "readable" if reads else "not readable", remedy)
    yield from _workload_folder(facts, node)


def _workload_folder(facts: SiteFacts, node: NodeReport) -> Iterator[DoctorCheck]:
    """Yield checks of whether the node, and the container on it, can write to the folder of runs; each blocks if not.

    The node's comes first. They look for a folder that doctor has made there: whoever sees it sees the same file
    system. The container's is left out where it did not start. Where this user cannot write to the folder of runs
    there is one doubt instead, or nothing where there is no installation. ``facts`` are those of the site, ``node``
    is the report of a node that was asked.
    """
    if not node.writes:
        if facts.install.is_dir():
            found = "not writable for you, so not checked on the node"
            yield DoctorCheck("workload folder", "doubt", found, RUNS_ELSEWHERE)
        return
    states = {"on the node": node.folder("workload").state}
    if node.inside.started:
        report = node.inside.values.get("workloads", ())
        folder = Folder(there=bool(report), problem=None if "written" in report else "not written")
        states["in the container"] = folder.state
    remedy = "jobs write their runs there: it must be on a file system that all nodes mount read-write"
    for where, state in states.items():
        yield check_line(f"workload folder {where}", state != "writable", state, remedy)


def _hung_checks(node: NodeReport) -> Iterator[DoctorCheck]:
    """Yield one check that blocks and names the node's programs that did not answer; nothing where all did.

    ``node`` is the report of a node that was asked. Each program is named once.
    """
    silent = ["nvidia-smi"] if "did not answer" in (node.facts.before.missing or "") else []
    in_container = node.inside.values.get("hung", ())
    hung = dict.fromkeys([*silent, *node.facts.hung, *in_container])
    if hung:
        remedy = f"drain {node.facts.host} and look at its kernel log: a driver that hangs stops every job there"
        yield DoctorCheck("programs of the node", "blocks", f"{', '.join(hung)}: no answer", remedy)


def _engine_check(facts: SiteFacts, node: NodeReport) -> DoctorCheck:
    """Return the check of whether the Pythons in which jobs train start on the node; it names those that do not.

    It blocks where one does not start, or none is set in ``cluster_config.yaml``. ``facts`` are those of the site,
    ``node`` is the report of a node that was asked.
    """
    wanted = facts.engine_pythons
    lost = [python for python in wanted if python not in node.facts.software.starts]
    found = f"{', '.join(lost)} does not start" if lost else ", ".join(wanted) or "none in cluster_config.yaml"
    remedy = "set engine.python to one with Megatron-Bridge that all nodes see"
    return check_line("training engine on the node", lost or not wanted, found, remedy)


def _image_checks(facts: SiteFacts, image: Path, node: NodeReport) -> Iterator[DoctorCheck]:
    """Yield checks of whether the image starts on the node, has room to be unpacked there, and sees the node's GPUs.

    They come in this order. ``image`` is its file. Each blocks, but what ``enroot`` does about room is a doubt
    (``_unpack_folder_check``). Room is missing for Pyxis where less than the size of the image is free and the
    image did not start. Checks that do not apply are left out: the room where no container runtime unpacks, the
    GPUs where the image did not start or the node has none. ``facts`` are those of the site, ``node`` is the report
    of a node that was asked.
    """
    inside = node.inside
    started = node.inside.started
    name = "the image on the node"
    if started:
        yield DoctorCheck(name, "ok", f"{image.name} started, {inside.seconds:.0f} s in all")
    else:
        # srun's own lines only where nobody else says anything.
        own = [line for line in inside.lines if not line.startswith("srun: ")] or inside.lines
        message = "; ".join(line.removeprefix("slurmstepd: error: ") for line in own[-3:]) or "no message"
        in_time = " in time" if inside.status in (None, 124, 137) else ""
        remedy = "start it by hand (srun --container-image, or enroot start); llmb-install verify checks the file"
        yield DoctorCheck(name, "blocks", f"{image.name} did not start{in_time}: {message}", remedy)
    # Only Pyxis unpacks where Enroot says.
    room = node.facts.software.unpacked if facts.slurm.runtime == "pyxis" else None
    needed = image.stat().st_size if image.is_file() else 0
    stays_packed = bool({*inside.values.get("root", ())} & {*_NOT_UNPACKED})
    if room and room.free is not None and not stays_packed:
        found = f"{size(room.free)} free at {room.path} of the node, for about {size(needed)}"
        remedy = "Pyxis unpacks it there: set ENROOT_DATA_PATH in /etc/enroot/enroot.conf to a larger local disk"
        yield check_line("room to unpack the image", room.free < needed and not started, found, remedy)
    if facts.slurm.runtime == "enroot":
        yield _unpack_folder_check(facts, node.facts.software.roots or Folder(), needed)
    outside = len(node.facts.before.gpus)
    shown = len(inside.values.get("gpu", ()))
    if started and outside:
        remedy = "Enroot needs its hook 98-nvidia.sh, and libnvidia-container on the node"
        yield check_line("GPUs in the container", shown < outside, f"{shown} of {outside}", remedy)


def _unpack_folder_check(facts: SiteFacts, roots: Folder, needed: int) -> DoctorCheck:
    """Return the check of whether jobs unpack their image, of ``needed`` bytes, on a local disk of the node.

    They do where ``roots``, Enroot's folder for unpacked images as the node sees it, is on a local file system with
    room for twice the image (``ROOT_ROOM``). Otherwise Enroot mounts the image, and the mount does not outlive the
    SIGCONT with which Slurm announces a preemption: the job could not save then. It is a doubt where Slurm
    preempts, else ok. ``facts`` are those of the site, whose runtime is Enroot.
    """
    wanted = ROOT_ROOM * needed
    if not roots.there:
        why = "Enroot does not say where it keeps roots (4.0 and later do)"
    elif roots.kind not in LOCAL_FILE_SYSTEMS:
        why = f"{roots.path} is on {roots.kind or 'a file system of unknown type'}, which nodes may share"
    elif (roots.free or 0) < wanted:
        why = f"{size(roots.free or 0)} free at {roots.path} of the node, for {size(wanted)}"
    else:
        return DoctorCheck("saving when preempted", "ok", f"jobs unpack the image at {roots.path} of the node")
    preempts = facts.slurm_config.get("PreemptMode", "OFF") != "OFF"
    remedy = (
        "a job that is preempted with grace loses up to one checkpoint interval: set ENROOT_DATA_PATH in "
        "/etc/enroot/enroot.conf to a local disk of the nodes with room for twice the image"
    )
    return check_line("saving when preempted", preempts, f"{why}: jobs mount the image", remedy, "doubt")
