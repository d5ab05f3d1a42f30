"""The checks of ``doctor``: pure functions from facts to ok, warning or error."""

from __future__ import annotations

from collections.abc import Iterator

from llmb_common.command.printable import size
from llmb_common.executors.slurm.words import SEGMENT_SLURM
from llmb_common.platform import gpus
from llmb_common.platform.cluster_types import SLURM, Traits, traits_of
from llmb_install.answers.detect import Partition
from llmb_install.doctor.facts import Facts, Workload, limit_minutes
from llmb_install.doctor.node_checks import Check, node_checks, release
from llmb_install.parts.image import IMAGE_BYTES

_PYXIS_OPTIONS = ("container-image", "container-mounts", "container-mount-home")
_OLDEST_SLURM = (21, 8)
_LARGE_SEGMENTS = (25, 11)
"""Since then Slurm takes a segment larger than a block (its CHANGELOG); before, such a job is never started."""


def all_checks(facts: Facts) -> list[Check]:
    """Every check that makes sense for these facts, in the order in which one would fix things."""
    checks = [*_space(facts)]
    traits = traits_of(facts.config.cluster_type or SLURM)
    if not traits.slurm_options:
        return [*checks, *(_gpus_here(facts) if traits.this_machine else _scheduler(facts, traits)), *_engine(facts)]
    checks += _slurm(facts)
    if facts.controller_is_up:
        checks += [*_partition(facts), *_account(facts), *_times(facts), *_settings(facts)]
    checks += _containers(facts)
    if facts.node is not None:
        checks += node_checks(facts, facts.node)
    return checks


def _space(facts: Facts) -> Iterator[Check]:
    small = facts.free_install < 5_000_000_000
    yield Check(
        "space for the installation",
        "doubt" if small else "ok",
        f"{size(facts.free_install)} free in {facts.install}",
        "results and checkpoints need more" if small else "",
    )
    if facts.slurm.runtime != "none" and traits_of(facts.config.cluster_type or SLURM).containers:
        small = facts.free_images < IMAGE_BYTES
        yield Check(
            "space for images",
            "doubt" if small else "ok",
            f"{size(facts.free_images)} free in {facts.image_folder}",
            f"one NeMo image takes about {size(IMAGE_BYTES)}; choose another image folder" if small else "",
        )


def _scheduler(facts: Facts, traits: Traits) -> Iterator[Check]:
    """Of one of which nothing more is known."""
    if facts.missing_commands:
        missing = f"not found: {', '.join(facts.missing_commands)}"
        yield Check(traits.name, "blocks", missing, "load the scheduler's module, or use a login node")
    else:
        yield Check(traits.name, "ok", f"{traits.submits_with} found")


def _gpus_here(facts: Facts) -> Iterator[Check]:
    present = ", ".join(facts.site.local_gpus)
    wanted = facts.config.gpu_type not in (None, "cpu")
    blocked = wanted and not present
    yield Check(
        "GPUs of this machine",
        "blocks" if blocked else "ok",
        present or "none",
        "install NVIDIA's driver, or set gpu_type: cpu in cluster_config.yaml" if blocked else "",
    )


def _engine(facts: Facts) -> Iterator[Check]:
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
    version = release(facts.site.slurm_version)
    old = version < _OLDEST_SLURM
    yield Check(
        "Slurm version",
        "doubt" if old else "ok",
        facts.site.slurm_version or "unknown",
        "releases older than 21.08 are untested" if old else "",
    )
    yield Check(
        "Slurm controller",
        "ok" if facts.controller_is_up else "blocks",
        "answers" if facts.controller_is_up else "does not answer",
        "" if facts.controller_is_up else "ask the administrator; look at: scontrol ping",
    )
    if not facts.controller_is_up:
        return
    mpi = facts.slurm.mpi
    has_it = mpi == "none" or mpi in facts.mpi_types
    yield Check(
        f"srun --mpi={mpi}",
        "ok" if has_it else "blocks",
        ", ".join(facts.mpi_types) or "nothing listed",
        "" if has_it else "set slurm.mpi: none in cluster_config.yaml: ranks can find each other without PMIx",
    )
    yield from _segments(facts)


def _segments(facts: Facts) -> Iterator[Check]:
    """Whether Slurm keeps the nodes of a rack together; a segment is as many nodes as one has, or fewer."""
    gpu = gpus.GPUS.get(facts.config.gpu_type or "")
    if gpu is None or gpu.nvlink_nodes == 1:
        return
    name, blocks, version = "Slurm and NVL72 racks", facts.limits.blocks, release(facts.site.slurm_version)
    spread = "jobs may be spread over more racks than needed, which costs speed"
    if version < SEGMENT_SLURM:
        remedy = f"{spread}; Slurm 24.05 or newer keeps segments together"
        yield Check(name, "doubt", f"{facts.site.slurm_version} has no --segment", remedy)
    elif blocks is None:
        remedy = f"{spread}; configure topology/block, a block for each rack"
        yield Check(name, "doubt", "no topology/block: --segment has no effect", remedy)
    elif min(blocks) < gpu.nvlink_nodes and version < _LARGE_SEGMENTS:
        remedy = (
            f"before Slurm 25.11 a job with larger segments (one of {min(blocks) + 1} nodes, say) never starts: "
            "take another number of nodes, or ADDITIONAL_SLURM_PARAMS=segment=N with a divisor of it"
        )
        yield Check(name, "doubt", f"blocks of {min(blocks)} nodes", remedy)
    else:
        yield Check(name, "ok", f"{len(blocks)} blocks of {min(blocks)} nodes or more")


def _partition(facts: Facts) -> Iterator[Check]:
    name = facts.slurm.gpu_partition
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
    yield _gres(facts, found)


def _gres(facts: Facts, partition: Partition) -> Check:
    asks, has = facts.slurm.gres, partition.gpus_per_node > 0
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
    account = facts.slurm.account
    if not facts.has_accounting:
        yield Check("account", "doubt", "Slurm accounting is not enabled", "a wrong account is accepted silently")
    elif account is None:
        yield Check("account", "doubt", "none is set", "set slurm.account in cluster_config.yaml")
    elif facts.site.accounts and account not in facts.site.accounts:
        yours = ", ".join(facts.site.accounts)
        yield Check("account", "blocks", f"{account} is not one of your accounts: {yours}", "correct slurm.account")
    else:
        yield Check("account", "ok", account)


def _times(facts: Facts) -> Iterator[Check]:
    """The shortest limit that Slurm sets against what the workloads ask for, and the time that it leaves for a save."""
    wanted = facts.workloads or (Workload("a benchmark"),)
    name = facts.slurm.gpu_partition
    partition = next((limit_minutes(p.time_limit) for p in facts.site.partitions if p.name == name), None)
    walls = [*([(f"partition {name}", partition)] if partition is not None else []), *facts.limits.walls]
    if walls:
        what, most = min(walls, key=lambda wall: wall[1])
        short = [workload for workload in wanted if workload.longest > most]
        none = [workload for workload in short if workload.shortest > most]
        needs = ", ".join(f"{workload.name} {workload.longest}" for workload in short)
        yield Check(
            "time limit",
            "blocks" if none else "doubt" if short else "ok",
            f"{most} minutes, set by {what}",
            f"jobs ask for more minutes ({needs}): choose another partition or QOS, or set TIME_LIMIT" if short else "",
        )
    longest = max(wanted, key=lambda workload: workload.saving)
    wait = facts.slurm_config.get("KillWait", "").split(" ")[0]
    if longest.saving and wait.isdigit():
        most = max(int(wait), facts.limits.grace)
        preempts = facts.slurm_config.get("PreemptMode", "OFF") != "OFF" and most < longest.saving
        yield Check(
            "time to save",
            "doubt" if preempts else "ok",
            f"{most} s when a job is preempted or cancelled; saving takes up to {longest.saving} s ({longest.name})",
            "a preempted job loses what it did since its last checkpoint: set CHECKPOINT_INTERVAL, or ask for a longer "
            "GraceTime of the partition or QOS; at its time limit a job is told early enough"
            if preempts
            else "",
        )


def _settings(facts: Facts) -> Iterator[Check]:
    task = facts.slurm_config.get("TaskPlugin", "") or "unknown"
    unbound = "" if "affinity" in task else ": CPU_PER_TASK_PINNING has no effect; ranks are bound by numactl"
    yield Check("task plug-in", "ok", f"{task}{unbound}")
    limits = facts.slurm_config.get("EnforcePartLimits", "")
    if limits == "NO":
        yield Check(
            "limits",
            "doubt",
            "EnforcePartLimits=NO",
            "a job over a partition's limit is accepted and waits forever: watch the reason in squeue",
        )


def _containers(facts: Facts) -> Iterator[Check]:
    runtime = facts.slurm.runtime
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
    writable = facts.slurm.container_writable
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
