"""What NVIDIA itself says is wrong with a release, of jobs that may meet it: notices, which refuse nothing.

``known_issues.json`` has the issues of the releases that LLMB's jobs run in, with the day of looking them up; here is
which jobs meet those that any job can meet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmb_common.base.engines import bridge_release, minor
from llmb_common.base.gpus import GPUS
from llmb_common.planning.choose import Case
from llmb_common.planning.job_plan import JobPlan

_FACTS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

ISSUES: list[dict[str, str]] = _FACTS["issues"]
"""Each with the minor release that has it (``megatron_bridge``), ``what`` is wrong, how to ``avoid`` it, which jobs
``here`` meet it, an ``id`` where any do, and a ``source`` of its own where it is not ``SOURCE``."""

LOOKED_UP: str = _FACTS["looked_up"]
SOURCE: str = _FACTS["source"]

_PLUGINS = ("NCCL_NET_PLUGIN", "NCCL_NET")


def known_issues(case: Case, plan: JobPlan) -> list[str]:
    """Return a notice for each known issue of Megatron-Bridge that the plan's job may meet, in the table's order.

    They are those of the release in the plan's image, if that is known, else of the plan's. Each says what is wrong
    and how to avoid it: ``WHAT: HOW``. Empty: none is known. ``case`` is what ``plan`` was made of.
    """
    # The job runs what its image has, whatever release it was planned for.
    release = minor(bridge_release(plan.image) or plan.engine)
    return [
        f"{issue['what']}: {issue['avoid']}"
        for issue in ISSUES
        if issue["megatron_bridge"] == release and "id" in issue and MEETS[issue["id"]](case, plan)
    ]


def _exchanges_over_spectrum_x(case: Case, plan: JobPlan) -> bool:
    """Return whether NCCL itself sends a job's expert tokens beyond NVLink, by the network plug-in that its image sets.

    It does where EP times ETP is more than the GPUs that NVLink joins, and the dispatcher is ``alltoall``. False
    where the job's variables name a plug-in, on CPUs, and without experts. Whether the image sets a plug-in is not
    looked at. ``case`` is what ``plan`` was made of.
    """
    if plan.device == "cpu" or not plan.has_experts or any(name in plan.env for name in _PLUGINS):
        return False
    layout = plan.layout
    ranks = (layout.ep or 1) * (layout.etp or layout.tp)
    return ranks > GPUS[plan.gpu_type].nvlink_gpus and _dispatcher(case, plan.megatron) == "alltoall"


MEETS: dict[str, Callable[[Case, JobPlan], bool]] = {"spectrum-x-all-to-all": _exchanges_over_spectrum_x}
"""By an issue's ``id``, whether a job may meet it."""


def _dispatcher(case: Case, requested: Mapping[str, Any]) -> str:
    """Return what carries a job's tokens to their experts: ``alltoall``, also where nothing says it, or ``flex``.

    ``requested`` are the framework's settings that the user changed, by section and field; they win over those of the
    function of ``case``, if there is one. Another value comes back as text.
    """
    own = case.function.settings.get("moe_token_dispatcher_type", "alltoall") if case.function else "alltoall"
    return str(requested.get("model.moe_token_dispatcher_type", own))
