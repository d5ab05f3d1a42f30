"""What Slurm is told: its section of ``cluster_config.yaml``, and its part of a plan.

``--segment`` says how many nodes of a job Slurm keeps together inside one NVLink domain. Every job on GB200 and GB300
asks for it, as NVIDIA's launchers do (Megatron-Bridge 0.3.1 to 0.6.0, ``scripts/performance/utils/executors.py``;
dgxc-benchmarking 26.06, ``job_launcher.py``): without it a job of 16 nodes may be spread over two racks and lose NVLink
between the halves. Slurm looks at it under topology/block and ignores it elsewhere.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import msgspec

from llmb_common.base import gpus
from llmb_common.base.errors import RequestError
from llmb_common.base.words import SLURM_NAME_REMEDY, clock_text, is_slurm_name, limit_seconds
from llmb_common.executors.slurm.options import limit_in_seconds, listed_nodes, parse_additional
from llmb_common.planning.request.values import gres_type
from llmb_common.planning.request.variables import VARIABLE_NAMES, FieldNames
from llmb_common.planning.scheduler import SchedulerPart, SchedulerSettings, TimeLimit
from llmb_common.recipes.columns import Positive

if TYPE_CHECKING:
    from llmb_common.planning.choose import Case
    from llmb_common.planning.job_plan import JobPlan
    from llmb_common.planning.request.read import Request


SEGMENT_SLURM = (24, 5)
"""First release whose ``sbatch`` knows ``--segment`` (its NEWS); ``sbatch --help`` does not list it."""


def best_segment(nodes: int, rack: int) -> int:
    """Return the largest divisor of ``nodes`` that is at most ``rack``, the number of nodes in a rack; both at least 1.

    So many nodes can form one segment of a job; ``nodes`` itself for a job that fits into a rack.
    """
    return max(size for size in range(1, min(nodes, rack) + 1) if nodes % size == 0)


class Segment(NamedTuple):
    """How many nodes of a job Slurm is to keep together (``--segment``), and a notice for the user on what that costs.

    ``choose_segment`` makes it. ``nodes`` is None where the option is not for this job or this Slurm; ``notice``, a
    sentence without a full stop, is empty where there is nothing to say.
    """

    nodes: int | None = None
    notice: str = ""


def choose_segment(
    gpu_type: str, nodes: int, gpus_per_node: int, *, slurm_segments: bool, say: FieldNames = VARIABLE_NAMES
) -> Segment:
    """Return how many nodes of a job Slurm is to keep together in an NVLink domain (``--segment``), with a notice.

    The job has ``nodes`` nodes and uses ``gpus_per_node`` GPUs on each. ``gpu_type`` is LLMB's name, such as ``gb200``;
    another spelling counts as unknown GPUs. No segment where the GPUs' NVLink joins single nodes only, for unknown
    GPUs, where a node would have more GPUs than a rack's nodes do, and where ``slurm_segments`` is false: this Slurm
    does not have the option. The notice is mostly empty; it says why a job for a rack gets no segment, or that the
    segment is small and which number of nodes would divide into larger ones. ``say`` is called with a variable, and a
    value if there is one, and returns how the user writes that option.
    """
    gpu = gpus.GPUS.get(gpu_type)
    if gpu is None or gpu.nvlink_nodes == 1:
        return Segment()
    if gpus_per_node > gpu.per_node:  # a job may use fewer of them; the rack has as many nodes all the same
        return Segment(
            notice=f"nodes of {gpus_per_node} GPUs do not belong to an NVL72 rack: no --segment; "
            f"{say('ADDITIONAL_SLURM_PARAMS', 'segment=N')} asks for one"
        )
    if not slurm_segments:
        if nodes == 1:
            return Segment()
        return Segment(
            notice="this Slurm has no --segment (24.05 and later have it): it may spread the job over more NVL72 racks "
            "than needed, which costs speed"
        )
    rack = gpu.nvlink_nodes
    segment = best_segment(nodes, rack)
    # Below half a rack Slurm may hand out pieces of three or more racks for what two could hold, and NVLink joins no
    # more GPUs than one segment has for certain.
    if segment >= min(nodes, rack // 2):
        return Segment(segment)
    larger = range(nodes + 1, 2 * nodes + 1)
    better = next(count for count in larger if best_segment(count, rack) >= rack // 2)
    return Segment(
        segment,
        f"{nodes} nodes divide only into segments of {segment}, so NVLink joins no more than "
        f"{segment * gpus_per_node} GPUs for certain; {better} nodes ({better * gpus_per_node} GPUs) would divide "
        f"into segments of {best_segment(better, rack)}",
    )


_OPTIONS = "ADDITIONAL_SLURM_PARAMS"
_SITE_OPTIONS = "cluster_config.yaml: slurm.additional_params"
_PMIX, _NO_MPI = "pmix", "none"

Runtime = Literal["pyxis", "enroot", "none"]


class SlurmPlan(SchedulerPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job asks of Slurm beside nodes, ranks and time: a plan's own part for Slurm.

    ``SlurmSettings`` makes it; unknown fields are refused when it is decoded. ``container_writable``: ranks may write
    to their image's files. ``job_name_prefix`` is what the site puts before names of jobs (empty: nothing). ``time`` is
    among ``additional`` only in records of earlier releases, beside a plan's ``time_limit`` that it overrode.
    Properties: ``queue`` and ``effective_partition`` are the partition that sbatch uses, or several separated by commas
    (None: Slurm's default), ``nodelist`` and ``excluded`` host lists of nodes asked for and excluded, unchecked (None:
    none; ``RequestError`` where a file with the list cannot be read), ``nvlink_nodes`` is ``segment``, and
    ``containers``, ``starts_mpi`` and ``own_limit`` are whether ranks run in an image, srun starts them for MPI, and
    the options say when the job is told to end. ``job_name`` returns the job's name, ``gpus`` a value of ``--gres``
    such as ``gpu:8``, ``variables`` a dict of those of a request, name to value, that ask for the same; ``on_nodes``
    and ``after_days`` return a copy for these nodes, a host list, or one that begins so many days later.
    """

    queue_word: ClassVar[str] = "partition"
    account_variable: ClassVar[str] = "SBATCH_ACCOUNT"
    queue_variable: ClassVar[str] = "SBATCH_PARTITION"

    account: str | None
    """The account that the job is charged to; None: the user's default."""
    partition: str | None
    """The partition that is asked for; None: Slurm's default. An option of sbatch may replace it."""
    gres: bool
    """Whether GPUs are asked for with ``--gres``."""
    gres_type: str | None = None
    """``h100`` in ``--gres=gpu:h100:8``; None: whatever GPUs the partition has."""
    segment: Positive | None
    """Nodes that share an NVLink domain (``--segment``); None: the option is not given."""
    additional: tuple[tuple[str, str | None], ...]
    """Further options of sbatch, each (name, value or None for a flag), in the user's order."""
    runtime: Runtime
    """How ranks enter their container: by ``pyxis``, ``enroot``, or ``none``."""
    container_writable: bool = True
    mpi: str = "pmix"
    """The value of ``srun --mpi``; records from before there was a choice have none."""
    job_name_prefix: str = ""

    @property
    def queue(self) -> str | None:
        """The partition in which the job waits, or several separated by commas; None: Slurm's default partition.

        The same as ``effective_partition``, under the name that all schedulers have.
        """
        return self.effective_partition

    def job_name(self, usual: str) -> str:
        """Return the job's name in Slurm: that among the additional options, else the site's prefix and ``usual``."""
        return dict(self.additional).get("job-name") or self.job_name_prefix + usual

    @property
    def effective_partition(self) -> str | None:
        """The partition that sbatch uses: that among the additional options, else the plan's; None: Slurm's default."""
        return dict(self.additional).get("partition") or self.partition

    @property
    def nodelist(self) -> str | None:
        """The nodes that the job asks for by name, as a host list, unchecked; None: any nodes.

        It is read from a file each time where the user named one.

        Raises:
            RequestError: the user named a file with the list, and it cannot be read
        """
        return self._nodes_of_option("nodelist")

    @property
    def excluded(self) -> str | None:
        """The nodes that the job's additional options exclude, as a host list, unchecked; None: none.

        It is read from a file each time where the user named one.

        Raises:
            RequestError: the user named a file with the list, and it cannot be read
        """
        return self._nodes_of_option("exclude")

    def _nodes_of_option(self, option: str) -> str | None:
        """Return the nodes that the job gives for an option of sbatch, as a host list; None where it is not given.

        The list is not checked. ``option`` is ``nodelist`` or ``exclude``.

        Raises:
            RequestError: the option names a file, and that cannot be read
        """
        value = dict(self.additional).get(option)
        return None if value is None else listed_nodes(value)

    @property
    def containers(self) -> bool:
        """Whether the job's ranks run in its container image, by Pyxis or Enroot."""
        return self.runtime != "none"

    def gpus(self, number: int) -> str:
        """Return the value of ``--gres`` for ``number`` GPUs of a node: ``gpu:8``, or with a type ``gpu:h100:8``."""
        return f"gpu:{self.gres_type}:{number}" if self.gres_type else f"gpu:{number}"

    @property
    def nvlink_nodes(self) -> int | None:
        """How many of the job's nodes are to share an NVLink domain (``--segment``); None: Slurm is not asked to."""
        return self.segment

    @property
    def starts_mpi(self) -> bool:
        """Whether srun starts the job's ranks so that MPI can be used (``--mpi`` is not ``none``)."""
        return self.mpi != _NO_MPI

    @property
    def own_limit(self) -> bool:
        """Whether the job's additional options say when it is told to end (``time``, ``signal``)."""
        return not {"time", "signal"}.isdisjoint(dict(self.additional))

    def variables(self, gpus_per_node: int) -> dict[str, str]:
        """Return the variables of a request, by name, that ask for the same account, partition, GPUs and options.

        They are ``SBATCH_ACCOUNT``, ``SBATCH_PARTITION``, ``SBATCH_GPUS_PER_NODE`` (of a plan with ``gres``, for
        ``gpus_per_node`` GPUs) and ``ADDITIONAL_SLURM_PARAMS``. The time limit is left out, and what the plan leaves
        to Slurm. Empty where that is everything.
        """
        others = ((name, value) for name, value in self.additional if name != "time")  # the limit is asked for apart
        options = [name if value is None else f"{name}={value}" for name, value in others]
        found = super().variables(gpus_per_node)
        if self.gres:
            found["SBATCH_GPUS_PER_NODE"] = self.gpus(gpus_per_node).removeprefix("gpu:")
        if options:
            found[_OPTIONS] = ";".join(options)
        return found

    def on_nodes(self, nodes: str) -> SlurmPlan:
        """Return a copy of the plan that asks for ``nodes``, a host list, in place of any nodes that it names.

        The number of nodes and the excluded ones are not changed.
        """
        return self._with_option("nodelist", nodes)

    def after_days(self, days: int) -> SlurmPlan:
        """Return a copy of the plan by which the job begins ``days`` days after the full hour that is past.

        In this machine's time zone, in place of another ``begin`` among its options; 0 days: at once. A command that is
        repeated within the hour asks for the same.
        """
        # From this hour on: a command that is repeated within it asks for the same.
        return self._with_option(
            "begin", time.strftime("%Y-%m-%dT%H:00:00", time.localtime(time.time() + 86400 * days))
        )

    def _with_option(self, option: str, value: str) -> SlurmPlan:
        """Return a copy of the plan with an option of sbatch set, at the end and in place of the one that it had.

        ``value`` is the option's. ``option`` is a long name without dashes; nothing is checked.
        """
        others = ((name, other) for name, other in self.additional if name != option)
        return msgspec.structs.replace(self, additional=(*others, (option, value)))


class SlurmSettings(SchedulerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How jobs are submitted to Slurm at this site: the section ``slurm`` of cluster_config.yaml.

    Unknown fields are refused when it is decoded; without ``account`` or a partition (None) Slurm's default counts.
    ``problems`` yields what else is wrong, as (key, problem, remedy). ``site_part`` returns what every job asks of
    Slurm, a ``SlurmPlan`` (``queue``, if given, is its partition), ``plan`` what one job does, and adds notices to its
    ``case``, and ``time_limit`` the ``TimeLimit`` that a request or the site gives, None where neither does; these
    raise ``RequestError`` for wrong options. The property ``queue`` is the partition of jobs that name none (None:
    Slurm's default), ``containers``, a property, whether jobs run in images. Docstrings of fields are printed in
    docs/reference.md.
    """

    part: ClassVar[type[SchedulerPart]] = SlurmPlan

    account: str | None = None
    """The account that jobs are charged to."""
    gpu_partition: str | None = None
    """The partition that jobs run in."""
    cpu_partition: str | None = None
    """The partition for installation jobs."""
    gres: bool = False
    """Request GPUs with ``--gres=gpu:N``; clusters without GRES reject that."""
    runtime: Runtime = "pyxis"
    """How jobs start their container."""
    container_writable: bool = True
    """Jobs may write to their image's files; the changes end with the job. Enroot's own default is no."""
    mpi: str | None = None
    """The value for ``srun --mpi``, one of those that ``srun --mpi=list`` shows, for every job. Default: ``pmix`` for
    jobs with TP above 1 that overlap its communication, where this Slurm has it, because only those may start MPI;
    ``none`` for all others."""
    job_name_prefix: str = ""
    """What the names of jobs begin with, where the site asks for that. ``additional_params: job-name=...`` gives all
    jobs one name."""
    additional_params: str = ""
    """Like ``ADDITIONAL_SLURM_PARAMS`` (``key=value`` or flags, separated by semicolons), for every job."""

    @property
    def queue(self) -> str | None:
        """The partition of the site's jobs that name none themselves; None: Slurm's default partition."""
        return self.gpu_partition

    @property
    def containers(self) -> bool:
        """Whether jobs at this site run in container images."""
        return self.runtime != "none"

    def problems(self) -> Iterable[tuple[str, str, str]]:
        """Yield what is wrong in the section ``slurm``, as (key, problem, remedy); nothing where all is right.

        In the order of the keys. The problem is the rest of a sentence that begins with the key. Only the form of
        account, partitions, ``mpi`` and ``job_name_prefix`` (at most 64 characters) is checked: Slurm is not asked, and
        ``additional_params`` is not read.
        """
        for key in ("account", "gpu_partition", "cpu_partition"):
            word = getattr(self, key)
            if word is not None and not is_slurm_name(word):
                yield key, f"{word!r} is not a valid Slurm name", SLURM_NAME_REMEDY
        if self.mpi is not None and not re.fullmatch(r"[a-z0-9_]+", self.mpi):
            yield "mpi", f"{self.mpi!r} is not a type of MPI", "one of those that srun --mpi=list shows"
        if not re.fullmatch(r"[A-Za-z0-9_.:+=@-]{0,64}", self.job_name_prefix):
            yield (
                "job_name_prefix",
                f"{self.job_name_prefix!r} cannot begin a job's name",
                "letters, digits, _ . : + - =",
            )

    def site_part(self, queue: str | None = None) -> SlurmPlan:
        """Return what this site asks of Slurm for every job, with ``queue``, if given, in place of its partition.

        It has no segment, and ``none`` for MPI unless the site says otherwise.

        Raises:
            RequestError: ``additional_params`` of the site's Slurm is wrong
        """
        return SlurmPlan(
            account=self.account,
            partition=queue or self.gpu_partition,
            gres=self.gres,
            segment=None,
            additional=parse_additional(self.additional_params, _SITE_OPTIONS),
            runtime=self.runtime,
            container_writable=self.container_writable,
            mpi=self.mpi or _NO_MPI,
            job_name_prefix=self.job_name_prefix,
        )

    def time_limit(self, request: Request) -> TimeLimit | None:
        """Return the time limit of a job that the request gives, or else the site, also among options of sbatch.

        The request gives it by ``TIME_LIMIT`` or among its options (``ADDITIONAL_SLURM_PARAMS``, which counts as its
        source where both give the same), else the site's ``additional_params`` count. None where neither does.

        Raises:
            RequestError: the request gives two different ones, a limit is no time or has no end, or an option is wrong
        """
        limit = super().time_limit(request)
        options = request.scheduler.get(_OPTIONS, "")
        where = request.say(_OPTIONS)
        among_options = _time_limit_in(options, where)
        if among_options is None:
            usual = _time_limit_in(self.additional_params, _SITE_OPTIONS)
            return limit or (TimeLimit(usual, "") if usual else None)
        if limit is not None and limit_seconds(limit.value) != limit_seconds(among_options):
            raise RequestError(
                f"{request.say('TIME_LIMIT', limit.value)} and the time among {where}, "
                f"{among_options}, contradict each other",
                remedy="leave one of them out",
                field="TIME_LIMIT",
            )
        return TimeLimit(among_options, _OPTIONS)

    def plan(self, case: Case, nodes: int, gpus_per_node: int, *, may_start_mpi: bool) -> SlurmPlan:
        """Return what one job asks of Slurm: what the site asks for every job, changed by the request.

        ``gpus_per_node`` is how many GPUs the job uses on each of its ``nodes`` nodes. An option of sbatch in the
        request replaces the site's of the same name; ``time`` is left out. Notices are added to ``case``: what of the
        request is not passed on to sbatch, a port of its own, what the segment costs, and that this Slurm cannot start
        MPI. ``may_start_mpi``: the training may start MPI.

        Raises:
            RequestError: an option of sbatch is wrong, in the request or the site's configuration
        """
        request, variables = case.request, case.request.scheduler
        usual = self.site_part(variables.get("SBATCH_PARTITION"))
        for name in request.ignored:
            if name in _INSTEAD:
                case.note(f"{name}: not passed to sbatch; use {_INSTEAD[name]}")
        if others := [name for name in request.ignored if name not in _INSTEAD]:
            use = f"use {request.say(_OPTIONS)}, for example {request.say(_OPTIONS, 'qos=high')}"
            case.note(f"{', '.join(others)}: not passed to sbatch; {use}")
        if port := request.tuning.get("MASTER_PORT"):
            case.note(
                f"MASTER_PORT={port}: ranks meet at this port instead of one of the job's own, and two jobs on a node "
                "would collide; unset MASTER_PORT if it was exported for something else"
            )
        given_options = dict(parse_additional(variables.get(_OPTIONS, ""), request.say(_OPTIONS)))
        additional = {name: value for name, value in usual.additional if name not in given_options} | given_options
        additional.pop("time", None)  # the plan's time limit
        segment = Segment()
        if "segment" not in additional:  # the last word of the site or the user
            known = case.machine.release >= SEGMENT_SLURM
            segment = choose_segment(case.gpu_type, nodes, gpus_per_node, slurm_segments=known, say=request.say)
            if segment.notice:
                case.note(segment.notice)
        return msgspec.structs.replace(
            usual,
            account=variables.get("SBATCH_ACCOUNT") or usual.account,
            gres="SBATCH_GPUS_PER_NODE" in variables or usual.gres,
            gres_type=gres_type(variables.get("SBATCH_GPUS_PER_NODE")),
            segment=segment.nodes,
            additional=tuple(additional.items()),
            mpi=self._mpi(case) if may_start_mpi else usual.mpi,
        )

    def _mpi(self, case: Case) -> str:
        """Return the value of ``srun --mpi`` for ranks that may start MPI: the site's, else a PMIx that this Slurm has.

        ``pmix`` where nothing tells what it has; ``none``, with a notice in ``case``, where it has no PMIx.
        """
        if self.mpi is not None:
            return self.mpi
        types = case.machine.mpi_types() or (_PMIX,)
        found = next((name for name in sorted(types) if name.startswith(_PMIX)), _NO_MPI)
        if found == _NO_MPI:
            case.note(
                "this Slurm has no PMIx (srun --mpi=list): the job starts without, and ends at once if the image's "
                f"Transformer Engine was built with MPI; {case.request.say('MEGATRON_SETTINGS')} "
                "comm_overlap.tp_comm_overlap=false needs none"
            )
        return found


def _time_limit_in(options: str, where: str) -> str | None:
    """Return the time limit among the options of sbatch in ``options``, as ``HH:MM:SS``; None: there is none.

    ``options`` is a text for ``parse_additional``; ``where`` names it in messages.

    Raises:
        RequestError: the limit is no time, or one without an end; or the options are wrong
    """
    limit = dict(parse_additional(options, where)).get("time")
    if limit is None:
        return None
    seconds = limit_in_seconds(limit)
    if seconds is None:
        raise RequestError(
            f"{where}: time={limit} is not a time limit, or one without an end",
            remedy="for example time=90 (minutes), time=08:00:00 or time=2-00:00:00",
            field=_OPTIONS,
        )
    return clock_text(seconds)


def slurm_of(plan: JobPlan) -> SlurmPlan:
    """Return the part of ``plan`` that says what the job asks of Slurm.

    Raises:
        RequestError: the plan is for another way of running jobs
    """
    if not isinstance(plan.scheduler, SlurmPlan):
        raise RequestError("this plan was not made for Slurm", remedy="plan the job with CLUSTER_TYPE=slurm")
    return plan.scheduler


_INSTEAD = {
    "SBATCH_TIMELIMIT": "TIME_LIMIT",
    **dict.fromkeys(("SBATCH_GPUS", "SBATCH_GPUS_PER_TASK", "SBATCH_GRES"), "JOB_TOTAL_GPUS and SBATCH_GPUS_PER_NODE"),
}
"""Slurm's variables for what a documented one says; all others have an option for ADDITIONAL_SLURM_PARAMS."""
