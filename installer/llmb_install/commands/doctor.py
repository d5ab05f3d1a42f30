"""``llmb-install doctor``: is this site ready, and if not, what is to be done? Changes nothing.

The checks are pure functions from facts to ok, doubt or blocks.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from llmb_common.base import gpus
from llmb_common.base.cluster_types import LOCAL, SLURM, Traits, traits_of
from llmb_common.base.errors import RequestError
from llmb_common.base.files import require_trusted
from llmb_common.base.outcome import Result
from llmb_common.base.printable import counted, size
from llmb_common.base.words import SLURM_NAME_REMEDY, is_slurm_name
from llmb_common.executors.slurm.options import limit_in_seconds
from llmb_common.executors.slurm.words import SEGMENT_SLURM
from llmb_common.planning.site.cluster import FILE_NAME, ClusterConfig, load_cluster_config
from llmb_common.planning.site.machine import detect_cluster_type
from llmb_install.answers.detect import detect_site
from llmb_install.commands.doctor_check import DoctorCheck, Level, check_line
from llmb_install.commands.doctor_facts import SiteFacts, WorkloadNeeds, gather_facts
from llmb_install.commands.doctor_node import RUNS_ELSEWHERE, node_checks
from llmb_install.parts.files import read_settings
from llmb_install.parts.image import IMAGE_BYTES
from llmb_install.working.reporter import Reporter

_MARKS = {"ok": "ok", "doubt": "doubt", "blocks": "BLOCKS"}

_PYXIS_OPTIONS = ("container-image", "container-mounts", "container-mount-home")
_OLDEST_SLURM = (21, 8)
_LARGE_SEGMENTS = (25, 11)
"""Since then Slurm takes a segment larger than a block (its CHANGELOG); before, such a job is never started."""


def doctor(options: argparse.Namespace, clone: Path, install: Path) -> Result:
    """Run the command ``doctor``: return a report on whether jobs can run at this site.

    The result's exit status is 1 where something blocks them, else 0. Its data has ``checks``, a list in the
    report's order with a dictionary for each line: ``name``, ``level`` (``ok``, ``doubt`` or ``blocks``), ``found``
    and ``remedy`` (empty where it is ok). One small job runs on a compute node where Slurm answers, unless
    ``options.no_compute_node``; ``options.account`` and ``options.gpu_partition``, names or None, replace the
    site's; ``options.verbose`` is only for the reporter that shows the progress on stderr. An installation in
    ``install`` is not needed, and not changed but for a test folder among its runs, which is removed. ``clone`` has
    the recipes; a wrong one is a line of the report.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong or not to be trusted
        RequestError: an account, a partition or ``additional_params`` is invalid
        EnvironmentLacks: a part of LLMB is missing
        OSError: the free space of a folder cannot be told, or the installation's folder not be looked at
    """
    if (install / FILE_NAME).is_file():
        require_trusted(install / FILE_NAME, install)
        read_settings(install / FILE_NAME)
    config = _with_flags(load_cluster_config(install), options)
    with Reporter(None, verbose=options.verbose) as reporter, reporter.step("looking at this site") as step:
        if not options.no_compute_node and traits_of(config.cluster_type or LOCAL).slurm_options:
            step.update("this machine, Slurm, one compute node")
        facts = gather_facts(config, install, clone, ask_node=not options.no_compute_node)
    checks = all_checks(facts)
    blocked = any(check.level == "blocks" for check in checks)
    rows = [dataclasses.asdict(check) for check in checks]
    return Result({"checks": rows}, "\n".join([*_report_lines(checks), ""]), status=int(blocked))


def _with_flags(config: ClusterConfig, options: argparse.Namespace) -> ClusterConfig:
    """Return a copy of the site's settings with ``options.account`` and ``options.gpu_partition``, where given.

    ``config`` are the site's settings, and stay as they are. None or empty: not given, and the site's stays. Where
    the settings have no ``cluster_type``, the copy has the one detected here: ``slurm`` where sbatch is on the
    PATH, else that of another scheduler whose program is here, else ``local``.

    Raises:
        RequestError: the account or partition is no valid name in Slurm
    """
    kind = config.cluster_type or (SLURM if detect_site().has_slurm else detect_cluster_type())
    changes = {"account": options.account, "gpu_partition": options.gpu_partition}
    for field, value in changes.items():
        if value and not is_slurm_name(value):
            raise RequestError(
                f"--{field.replace('_', '-')} {value!r} is not a valid name in Slurm", remedy=SLURM_NAME_REMEDY
            )
    given = {field: value for field, value in changes.items() if value}
    slurm = msgspec.structs.replace(config.scheduler(SLURM), **given)
    return msgspec.structs.replace(config, cluster_type=kind, slurm=slurm)


def _report_lines(checks: list[DoctorCheck]) -> list[str]:
    """Return the report's lines: each of ``checks``, in their order, its remedy below it, and last a line of counts.

    The line of a check has its level (``ok``, ``doubt`` or, in capitals, ``BLOCKS``), its name and what was found,
    in columns; that of a remedy, if it has one, begins with ``->`` in the last column. The last line is, for
    example, ``12 ok, 2 in doubt, 1 block``. Lines have no line break. ``checks`` must not be empty.
    """
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{_MARKS[check.level]:7} {check.name:{width}}  {check.found}")
        if check.remedy:
            lines.append(f"{'':7} {'':{width}}  -> {check.remedy}")
    counts = Counter(check.level for check in checks)
    lines.append(f"{counts['ok']} ok, {counts['doubt']} in doubt, {counts['blocks']} block")
    return lines


def all_checks(facts: SiteFacts) -> list[DoctorCheck]:
    """Return every check of the site that makes sense for ``facts``, in the order of repair; never empty.

    Space and unreadable recipes come first, then Slurm, containers and the node; without Slurm, this machine's GPUs or
    the scheduler's commands, and the engine. What blocks is not put before the rest. Partition, account, time and
    settings are left out where Slurm's controller does not answer, the node where none was asked. A site without
    ``cluster_type`` counts as one with Slurm.

    Raises:
        RequestError: ``additional_params`` of the configuration is wrong
        OSError: the installation's folder may not be looked at
    """
    checks = [*_space_checks(facts)]
    if facts.recipe_error is not None:
        checks.append(DoctorCheck("recipes", "blocks", facts.recipe_error.message, facts.recipe_error.remedy))
    traits = traits_of(facts.config.cluster_type or SLURM)
    if not traits.slurm_options:
        return [*checks, *_checks_without_slurm(facts, traits)]
    checks += _slurm_checks(facts)
    if facts.controller_is_up:
        checks += [*_partition_checks(facts), *_account_checks(facts), *_time_checks(facts), *_setting_checks(facts)]
    checks += _container_checks(facts)
    if facts.node is not None:
        checks += node_checks(facts, facts.node)
    return checks


def _space_checks(facts: SiteFacts) -> Iterator[DoctorCheck]:
    """Yield checks of the free space for the installation and, where jobs use containers, for images.

    Less than 5 GB for the installation is a doubt, as is less than one image takes (``IMAGE_BYTES``) in the folder
    of images; none of them blocks. That of the installation comes first, and is always there. ``facts`` are those
    of ``gather_facts``.
    """
    found = f"{size(facts.free_install)} free in {facts.install}"
    small = facts.free_install < 5_000_000_000
    yield check_line("space for the installation", small, found, "results and checkpoints need more", "doubt")
    if facts.slurm.runtime != "none" and traits_of(facts.config.cluster_type or SLURM).containers:
        found = f"{size(facts.free_images)} free in {facts.image_folder}"
        small = facts.free_images < IMAGE_BYTES
        remedy = f"one NeMo image takes about {size(IMAGE_BYTES)}; choose another image folder"
        yield check_line("space for images", small, found, remedy, "doubt")


def _checks_without_slurm(facts: SiteFacts, traits: Traits) -> Iterator[DoctorCheck]:
    """Yield checks of a site without Slurm: its GPUs or scheduler's commands, training engine, and folder of runs.

    ``traits`` are those of the site's ``cluster_type``: on this machine its GPUs are looked at, else the commands.
    The first two block: no GPU here where ``gpu_type`` in ``cluster_config.yaml`` is one of GPUs, a missing command, or
    no Python in that file to train with. That this user cannot write to the folder of runs is a doubt: it may be
    elsewhere. They come in this order. ``facts`` are those of ``gather_facts``.
    """
    if traits.this_machine:
        present = ", ".join(facts.site.local_gpus)
        blocked = facts.config.gpu_type not in (None, "cpu") and not present
        remedy = "install NVIDIA's driver, or set gpu_type: cpu in cluster_config.yaml"
        yield check_line("GPUs of this machine", blocked, present or "none", remedy)
    else:
        missing = ", ".join(facts.missing_commands)
        found = f"not found: {missing}" if missing else f"{traits.submits_with} found"
        yield check_line(traits.name, missing, found, "load the scheduler's module, or use a login node")
    pythons = facts.engine_pythons
    remedy = "run ./installer.py --quickstart, or set engine.python to one that has Megatron-Bridge"
    yield check_line("training engine", not pythons, ", ".join(pythons) or "none in cluster_config.yaml", remedy)
    runs = facts.install / "workloads"
    if runs.is_dir():
        closed = not os.access(runs, os.W_OK)
        found = f"{runs} is {'not writable for you' if closed else 'writable'}"
        yield check_line("workload folder", closed, found, RUNS_ELSEWHERE, "doubt")


def _slurm_checks(facts: SiteFacts) -> Iterator[DoctorCheck]:
    """Yield checks of missing Slurm commands, Slurm's version, controller, MPI and topology, in this order.

    Ends after commands that are missing or a controller that does not answer, which block: nothing else can be
    asked then. There is no line on commands where all are here. A Slurm before 21.08, or of unknown version, is a
    doubt. The last two are those of ``_mpi_check`` and ``_segment_checks``. ``facts`` are those of a site with
    Slurm, by ``gather_facts``.
    """
    if facts.missing_commands:
        names = ", ".join(facts.missing_commands)
        yield DoctorCheck("Slurm commands", "blocks", f"not found: {names}", "load Slurm's module, or use a login node")
        return
    version = facts.site.slurm_version or "unknown"
    old = release_numbers(facts.site.slurm_version) < _OLDEST_SLURM
    yield check_line("Slurm version", old, version, "releases older than 21.08 are untested", "doubt")
    if not facts.controller_is_up:
        yield DoctorCheck(
            "Slurm controller", "blocks", "does not answer", "ask the administrator; look at: scontrol ping"
        )
        return
    yield DoctorCheck("Slurm controller", "ok", "answers")
    yield _mpi_check(facts)
    yield from _segment_checks(facts)


def _mpi_check(facts: SiteFacts) -> DoctorCheck:
    """Return the check of whether srun can start ranks with the type ``slurm.mpi``, or PMIx where that is not set.

    A type that is set and missing blocks, but ``none`` is never missing; a missing PMIx, of any version, is a
    doubt. ``facts`` are those of ``gather_facts``, from a Slurm whose controller answers: without, no type is
    known.
    """
    mpi, listed = facts.slurm.mpi, ", ".join(facts.mpi_types) or "nothing listed"
    if mpi is None:
        lacks = not any(name.startswith("pmix") for name in facts.mpi_types)
        remedy = (
            "only jobs with TP above 1 that overlap its communication use it, and only if the image's Transformer "
            "Engine was built with MPI: such a job ends at its start; all others need no PMIx"
        )
        return check_line("PMIx", lacks, listed, remedy, "doubt")
    lacks = mpi != "none" and mpi not in facts.mpi_types
    remedy = "remove slurm.mpi from cluster_config.yaml: each job then gets what Slurm has and it needs"
    return check_line(f"srun --mpi={mpi}", lacks, listed, remedy)


def _segment_checks(facts: SiteFacts) -> Iterator[DoctorCheck]:
    """Yield one check of whether Slurm keeps a job's nodes together in NVLink racks; at worst a doubt.

    It does from 24.05 on with topology/block; an unknown version counts as older. Before 25.11, blocks that are
    smaller than a rack are a doubt, too. Nothing for GPU types whose NVLink ends at the node, or of unknown type.
    ``facts`` are those of ``gather_facts``.
    """
    gpu = gpus.GPUS.get(facts.config.gpu_type or "")
    if gpu is None or gpu.nvlink_nodes == 1:
        return
    name = "Slurm and NVL72 racks"
    blocks = facts.limits.blocks
    version = release_numbers(facts.site.slurm_version)
    spread = "jobs may be spread over more racks than needed, which costs speed"
    if version < SEGMENT_SLURM:
        remedy = f"{spread}; Slurm 24.05 or newer keeps segments together"
        known = facts.site.slurm_version
        said = f"{known} has no --segment" if known else "Slurm does not say its version, so --segment is not used"
        yield DoctorCheck(name, "doubt", said, remedy)
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
        yield DoctorCheck(name, "ok", f"{counted(len(blocks), 'block')} of {min(blocks)} nodes or more")


def _partition_checks(facts: SiteFacts) -> Iterator[DoctorCheck]:
    """Yield checks of the GPU partition, that it exists and is up, and of whether jobs request its GPUs.

    They come in this order. A partition that does not exist or is down blocks; that none is set is a doubt. Jobs
    that request GPUs where Slurm has none block; that they do not request those that Slurm has is a doubt. So is, in a
    third check that is there only then, that the partition has several kinds of GPUs. The second check is left out
    where no partition is set, or the set one does not exist. ``facts`` are those of ``gather_facts``, from a Slurm
    whose controller answers.
    """
    name = facts.slurm.gpu_partition
    found = next((p for p in facts.site.partitions if p.name == name), None)
    if name is None:
        yield DoctorCheck("GPU partition", "doubt", "none is set", "set slurm.gpu_partition in cluster_config.yaml")
        return
    if found is None:
        known = ", ".join(p.name for p in facts.site.offered)
        yield DoctorCheck("GPU partition", "blocks", f"{name} does not exist", f"the partitions are {known}")
        return
    what = f"{name}: {found.nodes} nodes of {found.gpus_per_node} GPUs, limit {found.time_limit}"
    yield check_line("GPU partition", not found.up, what, "it is down: choose another, or ask the administrator")
    requested, count = facts.slurm.gres, found.gpus_per_node
    if requested and not count:
        what = "jobs request GPUs, but Slurm has no whole ones in that partition"
        remedy = "set slurm.gres: false; where it has slices of GPUs (MIG), choose another partition"
        yield DoctorCheck("GRES", "blocks", what, remedy)
    elif count and not requested:
        what = f"Slurm has {count} GPUs per node, but jobs do not request them"
        remedy = "set slurm.gres: true, unless whole nodes come with their GPUs here"
        yield DoctorCheck("GRES", "doubt", what, remedy)
    else:
        yield DoctorCheck("GRES", "ok", f"{count} GPUs per node" if count else "not used here")
    if found.other_gpus:
        what = f"{name} has {', '.join((found.gpu_name, *found.other_gpus))}: a job may get any of them"
        remedy = f"SBATCH_GPUS_PER_NODE={found.gpu_name}:{count} asks for one kind; or choose another partition"
        yield DoctorCheck("kinds of GPU", "doubt", what, remedy)


def _account_checks(facts: SiteFacts) -> Iterator[DoctorCheck]:
    """Yield one check of the account that jobs are charged to; it blocks where it is none of the user's accounts.

    It is a doubt where Slurm keeps no accounts or none is set, and ok where the user's accounts are not known.
    ``facts`` are those of ``gather_facts``, from a Slurm whose controller answers.
    """
    account = facts.slurm.account
    if not facts.has_accounting:
        yield DoctorCheck("account", "doubt", "Slurm accounting is not enabled", "a wrong account is accepted silently")
    elif account is None:
        yield DoctorCheck("account", "doubt", "none is set", "set slurm.account in cluster_config.yaml")
    elif facts.site.accounts and account not in facts.site.accounts:
        own_accounts = ", ".join(facts.site.accounts)
        yield DoctorCheck(
            "account", "blocks", f"{account} is not one of your accounts: {own_accounts}", "correct slurm.account"
        )
    else:
        yield DoctorCheck("account", "ok", account)


def _time_checks(facts: SiteFacts) -> Iterator[DoctorCheck]:
    """Yield checks of the time limit that jobs get, and of the time left to save a checkpoint on preemption.

    They come in this order. The limit is the shortest that Slurm sets; without any, that check is left out. It is a
    doubt where some jobs of a workload ask for more, and blocks where all jobs of one do; where no workload is
    known, a job of 30 minutes counts. The second, a doubt where Slurm preempts jobs and leaves them less time than
    saving takes, is left out where the checkpoint size or Slurm's ``KillWait`` is unknown. ``facts`` are those of
    ``gather_facts``, from a Slurm whose controller answers.
    """
    wanted = facts.workloads or (WorkloadNeeds("a benchmark"),)
    name = facts.slurm.gpu_partition
    seconds = next((limit_in_seconds(p.time_limit) for p in facts.site.partitions if p.name == name), None)
    walls = list(facts.limits.walls)
    if seconds is not None:
        walls.insert(0, (f"partition {name}", seconds // 60))
    if walls:
        what, most = min(walls, key=lambda wall: wall[1])
        short = [workload for workload in wanted if workload.longest > most]
        none = [workload for workload in short if workload.shortest > most]
        needs = ", ".join(f"{workload.name} {workload.longest}" for workload in short)
        remedy = f"jobs ask for more minutes ({needs}): choose another partition or QOS, or set TIME_LIMIT"
        level: Level = "blocks" if none else "doubt"
        yield check_line("time limit", short, f"{most} minutes, set by {what}", remedy, level)
    longest = max(wanted, key=lambda workload: workload.saving)
    wait = facts.slurm_config.get("KillWait", "").split(" ")[0]
    if longest.saving and wait.isdigit():
        most = max(int(wait), facts.limits.grace)
        preempts = facts.slurm_config.get("PreemptMode", "OFF") != "OFF" and most < longest.saving
        yield check_line(
            "time to save",
            preempts,
            f"{most} s when a job is preempted or cancelled; saving takes up to {longest.saving} s ({longest.name})",
            "a preempted job loses its work since the last checkpoint: set CHECKPOINT_INTERVAL, or ask for a longer "
            "GraceTime of the partition or QOS; at its time limit a job is told early enough",
            "doubt",
        )


def _setting_checks(facts: SiteFacts) -> Iterator[DoctorCheck]:
    """Yield checks of Slurm settings that change what jobs do: the task plug-in, and limits that are not enforced.

    The first is always ok. The second, a doubt, is there only where Slurm accepts jobs over a partition's limit.
    ``facts`` are those of ``gather_facts``, from a Slurm whose controller answers.
    """
    task = facts.slurm_config.get("TaskPlugin", "") or "unknown"
    unbound = "" if "affinity" in task else ": CPU_PER_TASK_PINNING has no effect; ranks are bound by numactl"
    yield DoctorCheck("task plug-in", "ok", f"{task}{unbound}")
    if facts.slurm_config.get("EnforcePartLimits") == "NO":
        remedy = "a job over a partition's limit is accepted and waits forever: watch the reason in squeue"
        yield DoctorCheck("limits", "doubt", "EnforcePartLimits=NO", remedy)


def _container_checks(facts: SiteFacts) -> Iterator[DoctorCheck]:
    """Yield checks of what runs containers here, Pyxis and Enroot; nothing where the runtime is ``none``.

    The order is Pyxis, writing to images, Enroot, unsquashfs. These block: one of the options that jobs need of
    Pyxis, such as ``--container-image``, missing from srun where the runtime is Pyxis; a Pyxis that cannot make
    containers writable where ``slurm.container_writable`` is true; and an Enroot on this machine without
    ``unsquashfs``. No Enroot here is a doubt, as is ``slurm.container_writable: false``. srun's options are judged
    only where Slurm's controller answers. ``facts`` are those of a site with Slurm, by ``gather_facts``.
    """
    runtime = facts.slurm.runtime
    if runtime == "pyxis" and facts.controller_is_up:
        lacking = not {*_PYXIS_OPTIONS} <= {*facts.container_options}
        found = "srun has no --container-image" if lacking else "srun has its options"
        remedy = "install Pyxis for this Slurm release, or set slurm.runtime to enroot or none"
        yield check_line("Pyxis", lacking, found, remedy)
    if runtime == "none":
        return
    name = "writing to an image's files"
    if facts.slurm.container_writable:
        options = facts.container_options
        unknown = runtime == "pyxis" and options and "container-writable" not in options
        remedy = "this Pyxis has no --container-writable: update it, or set slurm.container_writable: false"
        yield check_line(name, unknown, "jobs may", remedy)
    else:
        remedy = "right only where the site forbids it: libraries in the image build and cache files there"
        yield DoctorCheck(name, "doubt", "slurm.container_writable is false", remedy)
    remedy = "import images on a compute node: --install-method srun"
    yield check_line(
        "Enroot on this machine", not facts.local_enroot, facts.local_enroot or "not found", remedy, "doubt"
    )
    if facts.local_enroot and not facts.has_unsquashfs:
        yield DoctorCheck("unsquashfs", "blocks", "not found", "install squashfs-tools: images are checked with it")


def release_numbers(text: str) -> tuple[int, int]:
    """Return the first two numbers of a release: ``(24, 5)`` for ``24.05.3``; ``(0, 0)`` where ``text`` has none.

    The text must begin with them; ``slurm 24.05`` gives ``(0, 0)``, as does an empty text.
    """
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
