"""What NVIDIA itself says is wrong with a release, of jobs that may meet it: notices, which refuse nothing."""

from __future__ import annotations

from collections.abc import Mapping

from llmb_common.planning.choose import Case
from llmb_common.planning.job_plan import JobPlan
from llmb_common.platform.engines import container_release, same_release
from llmb_common.platform.gpus import GPUS

_PLUGINS = ("NCCL_NET_PLUGIN", "NCCL_NET")


def known_defects(case: Case, plan: JobPlan) -> list[str]:
    """A notice for each known defect of the plan's release that its job may meet; empty where none is known.

    Source: Megatron-Bridge 0.6.2, ``docs/releases/known-issues.md`` (26.08); its release page says the same.
    """
    if _exchanges_over_spectrum_x(case, plan):
        return [
            "the image's NCCL 2.30.5 with its Spectrum-X plug-in (SPCX) may lose or corrupt what experts exchange by"
            " all-to-all at high EP (known to NVIDIA: Megatron-Bridge issue 5462): on InfiniBand or RoCE,"
            " NCCL_NET_PLUGIN=none NCCL_NET=IB avoids it; so does hybridep, and on other networks their own plug-in"
        ]
    return []


def _exchanges_over_spectrum_x(case: Case, plan: JobPlan) -> bool:
    """Whether NCCL itself exchanges the experts' tokens beyond NVLink, by the plug-in that the image of 26.08 names."""
    release = container_release(plan.image)
    affected = plan.engine == "0.6" and (release is None or same_release(release, "26.08"))
    if not affected or plan.device == "cpu" or not plan.has_experts or any(name in plan.env for name in _PLUGINS):
        return False
    layout = plan.layout
    ranks = (layout.ep or 1) * (layout.etp or layout.tp)
    return ranks > GPUS[plan.gpu_type].nvlink_gpus and _dispatcher(case, plan.megatron) == "alltoall"


def _dispatcher(case: Case, asked: Mapping[str, object]) -> str:
    """What carries tokens to their experts; rows without a function train with the all-to-all."""
    own = case.function.settings.get("moe_token_dispatcher_type", "alltoall") if case.function else "alltoall"
    return str(asked.get("model.moe_token_dispatcher_type", own))
