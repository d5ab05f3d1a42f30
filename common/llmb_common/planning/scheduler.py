"""What a scheduler is told in its own words, and the little of it that the rest of LLMB asks for.

An executor whose scheduler has such words derives both classes, and names its settings in its traits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec

from llmb_common.base.errors import RequestError

if TYPE_CHECKING:  # the site's settings are read where nothing is planned, too
    from llmb_common.planning.choose import Case
    from llmb_common.planning.request.read import Request


class TimeLimit(NamedTuple):
    """A job's time limit, and who gave it; ``SchedulerSettings.time_limit`` makes it."""

    value: str
    """As plans write it, such as ``01:30:00``."""
    variable: str
    """The name of the request's variable that gave it; empty: the site's configuration did."""


class SchedulerPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan's part for its scheduler: what is asked of it besides nodes, ranks and time.

    This base class stands for a scheduler that has no such words; each executor's own derives from it. Properties,
    here None or False: ``account`` and ``queue``, the names of what the job is charged to and waits in;
    ``nodelist`` and ``excluded``, host lists; ``nvlink_nodes``, how many nodes share an NVLink domain;
    ``containers``, ``starts_mpi`` and ``own_limit``: whether ranks run in the image, are started for MPI, and
    whether the user gave the scheduler a limit of its own. Methods: ``job_name`` returns the job's name in the
    scheduler, here the one it is called with; ``variables`` those of a request, name to value, that ask for the
    same account and queue; ``on_nodes`` and ``after_days`` a copy for these nodes, or one that begins later; here
    they raise a RequestError. An unknown key is refused when it is decoded.
    """

    queue_word: ClassVar[str] = "queue"
    """What the scheduler calls a queue."""
    account_variable: ClassVar[str] = ""
    """The variable of a request that names the account; empty: there is none."""
    queue_variable: ClassVar[str] = ""
    """The variable of a request that names the queue; empty: there is none."""

    @property
    def account(self) -> str | None:
        """The account that this job is charged to in its scheduler; None: there are no accounts, or none is named.

        None in this base class.
        """
        return None

    @property
    def queue(self) -> str | None:
        """The queue (in Slurm the partition) in which the job waits and whose nodes it gets.

        None: there are none, or none is named; always in this base class.
        """
        return None

    def job_name(self, usual: str) -> str:
        """Return the job's name in the scheduler: ``usual``, unless the site prescribes another.

        ``usual`` is LLMB's own name for the job, and comes back as it is in this base class.
        """
        return usual

    @property
    def nodelist(self) -> str | None:
        """The nodes that the job asks for by name, as a host list such as ``n[1-4]``; None: any nodes will do.

        None in this base class.
        """
        return None

    @property
    def excluded(self) -> str | None:
        """The nodes that the job must not run on, as a host list such as ``n[1-4]``; None: it may run on all.

        None in this base class.
        """
        return None

    @property
    def containers(self) -> bool:
        """Whether the job's ranks run in its container image; False in this base class."""
        return False

    @property
    def nvlink_nodes(self) -> int | None:
        """How many of the job's nodes are to share an NVLink domain (Slurm's segment).

        None: the scheduler is not asked for it, as always in this base class.
        """
        return None

    @property
    def starts_mpi(self) -> bool:
        """Whether the job's ranks are started so that MPI finds the others, by PMIx or the like; False in this base
        class.
        """
        return False

    @property
    def own_limit(self) -> bool:
        """Whether the user gave options of the scheduler's own that say when the job is told to end.

        The plan's time limit is then not checked. False in this base class.
        """
        return False

    def variables(self, gpus_per_node: int) -> dict[str, str]:
        """Return the variables of a request, name to value, that would ask for the same account and queue.

        Empty: neither is named. ``gpus_per_node`` is the job's; it matters where a scheduler is asked for GPUs, not
        in this base class.
        """
        variables = {self.account_variable: self.account, self.queue_variable: self.queue}
        return {name: value for name, value in variables.items() if name and value}

    def on_nodes(self, nodes: str) -> SchedulerPart:
        """Return a copy of this part of a plan that asks for the nodes of a host list, such as ``n[1-4]``.

        They replace those asked for before. This base class always raises.

        Raises:
            RequestError: the scheduler does not let jobs choose their nodes
        """
        raise RequestError("this scheduler does not let jobs choose their nodes", remedy="leave the nodes out")

    def after_days(self, days: int) -> SchedulerPart:
        """Return a copy of this part of a plan with which the job begins ``days`` days from this hour (the full one
        past), not earlier.

        This base class always raises.

        Raises:
            RequestError: the scheduler does not let jobs wait
        """
        raise RequestError("this scheduler does not let jobs begin later", remedy="repeat the command on other days")


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scheduler's own section of ``cluster_config.yaml``, which makes the scheduler's part of plans.

    This base class is for ways of running jobs without such settings; each executor's own derives from it. ``plan``
    returns the part for one job, ``site_part`` what every job of the site asks for; None from either, as here: the
    scheduler is told nothing. ``time_limit`` returns the job's limit and who gave it (None: nobody; here only the
    user's counts), ``problems`` what is wrong in this section, as (key, problem, remedy), here nothing. ``plan``,
    ``site_part`` and ``time_limit`` of derived classes raise a RequestError for what cannot be asked for. The
    property ``queue`` is the name of that of jobs that name none (None, as here: the scheduler's default), the
    property ``containers`` True, as here, where the site wants jobs in containers. An unknown key is refused when it
    is read; ``ClusterConfig.scheduler`` gives the defaults where the file has no such section.
    """

    part: ClassVar[type[SchedulerPart]] = SchedulerPart
    """The class of its part of a plan."""

    @property
    def queue(self) -> str | None:
        """The queue (in Slurm the partition) of jobs that name none; None: the scheduler's own default.

        None in this base class.
        """
        return None

    @property
    def containers(self) -> bool:
        """Whether the site wants its jobs in containers.

        True in this base class, also where the way of running jobs has none.
        """
        return True

    def problems(self) -> Iterable[tuple[str, str, str]]:
        """Return what is wrong in this section beyond the types, as (key, problem, remedy) each; empty: nothing.

        The problem is the rest of a sentence that begins with the key, without a leading blank. Empty in this base
        class.
        """
        return ()

    def time_limit(self, request: Request) -> TimeLimit | None:
        """Return the job's time limit by the user (``request``), else by this section of the site's configuration.

        None: neither gives one, and the recipe's holds. In this base class only TIME_LIMIT counts, and nothing is
        raised.

        Raises:
            RequestError: there is no such limit, or two contradict each other
        """
        return TimeLimit(request.time_limit, "TIME_LIMIT") if request.time_limit else None

    def plan(self, case: Case, nodes: int, gpus_per_node: int, *, may_start_mpi: bool) -> SchedulerPart | None:
        """Return the scheduler's part of a plan for a job on ``nodes`` nodes; None: the scheduler is told nothing.

        ``gpus_per_node`` is how many GPUs the job uses on each node. Adds notices for the user to ``case``.
        ``may_start_mpi``: the job's ranks may start MPI. In this base class it is what ``site_part`` returns,
        without notices.

        Raises:
            RequestError: the scheduler cannot be asked for what is requested
        """
        return self.site_part()

    def site_part(self, queue: str | None = None) -> SchedulerPart | None:
        """Return what every job of this site asks of the scheduler; None: the scheduler is told nothing.

        ``queue`` replaces the site's own; None: it does not. None in this base class.

        Raises:
            RequestError: the site's own options for the scheduler are wrong
        """
        return None
