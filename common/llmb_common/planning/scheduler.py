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
    """A time limit as plans write it, and the variable of the request that gave it; empty: the site's file did."""

    value: str
    variable: str


class SchedulerPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a scheduler is asked for beside nodes, ranks and time: its own part of a plan."""

    queue_word: ClassVar[str] = "queue"
    """What it calls ``queue``."""
    account_variable: ClassVar[str] = ""
    """The variable of a request that says ``account``."""
    queue_variable: ClassVar[str] = ""

    @property
    def account(self) -> str | None:
        """The account that the job is charged to; None where there are no accounts."""
        return None

    @property
    def queue(self) -> str | None:
        """The queue in which the job waits, and whose nodes it gets; None where there are no queues."""
        return None

    def job_name(self, usual: str) -> str:
        """The job's name in the scheduler: ``usual``, which holds the run's id, unless a site prescribes another."""
        return usual

    @property
    def nodelist(self) -> str | None:
        """The nodes that are asked for by name, a host list; None: any."""
        return None

    @property
    def excluded(self) -> str | None:
        """The nodes that the job avoids, a host list; None: none."""
        return None

    @property
    def containers(self) -> bool:
        """Whether the job's ranks run in the image."""
        return False

    @property
    def nvlink_nodes(self) -> int | None:
        """How many nodes are to share an NVLink domain; None: it is not asked."""
        return None

    @property
    def starts_mpi(self) -> bool:
        """Whether ranks are started so that MPI finds the others, by PMIx or the like."""
        return False

    @property
    def own_limit(self) -> bool:
        """Whether the scheduler's own options, which the user gave, say when the job is told to end.

        Its time limit is not checked then.
        """
        return False

    @property
    def variables(self) -> dict[str, str]:
        """The variables of a request, name to value, that ask for the same account and queue."""
        variables = {self.account_variable: self.account, self.queue_variable: self.queue}
        return {name: value for name, value in variables.items() if name and value}

    def on_nodes(self, nodes: str) -> SchedulerPart:
        """The same part of a plan, asking for these nodes, a host list.

        Raises:
            RequestError: the scheduler does not let jobs choose their nodes.
        """
        raise RequestError("this scheduler does not let jobs choose their nodes", remedy="leave the nodes out")

    def after_days(self, days: int) -> SchedulerPart:
        """The same part of a plan, beginning so many days from this hour on.

        Raises:
            RequestError: jobs cannot be told to wait.
        """
        raise RequestError("this scheduler does not let jobs begin later", remedy="repeat the command on other days")


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scheduler's own section of ``cluster_config.yaml``; ways of running jobs that need none have this one."""

    part: ClassVar[type[SchedulerPart]] = SchedulerPart

    @property
    def queue(self) -> str | None:
        """The queue of jobs that name none; None: the scheduler's own default."""
        return None

    @property
    def containers(self) -> bool:
        """Whether jobs run in images where their way of running can."""
        return True

    def problems(self) -> Iterable[tuple[str, str, str]]:
        """What is wrong in the section beyond the types: (key, what it is not, what to do) each; empty: nothing."""
        return ()

    def time_limit(self, request: Request) -> TimeLimit | None:
        """The time limit that the user or the site asks for; None: the recipe has the choice.

        Raises:
            RequestError: there is no such limit, or two that contradict each other.
        """
        return TimeLimit(request.time_limit, "TIME_LIMIT") if request.time_limit else None

    def plan(self, case: Case, nodes: int, gpus_per_node: int, *, may_start_mpi: bool) -> SchedulerPart | None:
        """The scheduler's part of a plan; None: it is told nothing. Notices are added to ``case``.

        ``may_start_mpi``: the job's ranks may start MPI.

        Raises:
            RequestError: the scheduler cannot be asked for that.
        """
        return self.site_part()

    def site_part(self, queue: str | None = None) -> SchedulerPart | None:
        """What every job of this site asks for, in its queue or another; None: the scheduler is told nothing."""
        return None
