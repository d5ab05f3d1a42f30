"""What PBS is told: its section of ``cluster_config.yaml``, and its part of a plan."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import msgspec

from llmb_common.planning.scheduler import SchedulerPart, SchedulerSettings

if TYPE_CHECKING:
    from llmb_common.planning.choose import Case


class PbsPlan(SchedulerPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What PBS is asked for. ``begin`` as ``qsub -a`` takes it; None: at once."""

    account_variable: ClassVar[str] = "QSUB_ACCOUNT"
    queue_variable: ClassVar[str] = "QSUB_QUEUE"

    account: str | None
    queue: str | None
    begin: str | None = None

    def after_days(self, days: int) -> PbsPlan:
        when = time.strftime("%Y%m%d%H00", time.localtime(time.time() + 86400 * days))
        return msgspec.structs.replace(self, begin=when)


class PbsSettings(SchedulerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How jobs are submitted at this site."""

    part: ClassVar[type[SchedulerPart]] = PbsPlan

    account: str | None = None
    """The account that jobs are charged to."""
    queue: str | None = None
    """The queue that jobs wait in."""

    def problems(self) -> Iterable[tuple[str, str, str]]:
        if self.queue and "@" in self.queue:
            yield "queue", f"{self.queue!r} names a server", "leave out what follows the @"

    def site_part(self, queue: str | None = None) -> PbsPlan:
        return PbsPlan(account=self.account, queue=queue or self.queue)

    def plan(self, case: Case, nodes: int, gpus_per_node: int, *, may_start_mpi: bool) -> PbsPlan:
        said = case.request.scheduler
        usual = self.site_part(said.get("QSUB_QUEUE"))
        return msgspec.structs.replace(usual, account=said.get("QSUB_ACCOUNT") or usual.account)
