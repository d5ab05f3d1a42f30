"""What a run is compared with: the site's own baseline, or what NVIDIA published, and on which software.

The same configuration on other software is an indication and no more. Between two releases of NVIDIA's container the
step time of one configuration changes by ``RELEASE_SPREAD``: the published rows of Megatron-Bridge that appear with the
same columns in consecutive releases, 5th to 95th percentile (``docs/verdicts.md`` has the method and the figures; a
test recomputes them).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.published import published_results
from llmb_common.platform.engines import container_release, same_release
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.rows import Document, Result


@dataclass(frozen=True)
class Spread:
    """Relative changes of a step time from one release to the next: newer over older, less 1; of so many pairs."""

    fastest: float
    median: float
    slowest: float
    pairs: int


RELEASE_SPREAD = {"dense": Spread(-0.071, -0.011, 0.032, 52), "MoE": Spread(-0.270, -0.009, 0.028, 110)}

Kind: TypeAlias = Literal["baseline", "published", "stated"]
"""``stated``: in the suite of an acceptance campaign."""


@dataclass(frozen=True)
class Reference:
    """``seconds`` a step, measured with ``software``; ``error`` is its relative standard error, 0 where unknown."""

    kind: Kind
    seconds: float
    software: str
    source: str
    same_software: bool
    """Whether the run used the same release of the same framework."""
    error: float = 0.0
    result: Result | None = None
    """The published one."""
    notes: tuple[str, ...] = ()
    """What must be known of it, whatever the verdict."""

    def __str__(self) -> str:
        return f"{self.seconds:g} s ({self.source}; {self.software})"


def by_preference(known: Iterable[Reference]) -> list[Reference]:
    """Those of the same software first, else as given: the first is what a run is compared with."""
    return sorted(known, key=lambda reference: not reference.same_software)


def same_software(image: str | None, document: Document) -> bool:
    """Whether jobs in ``image`` run what ``document`` has measured. Those of LLMB always run Megatron-Bridge."""
    return document.framework == "Megatron-Bridge" and same_release(container_release(image), document.container)


def published_references(plan: JobPlan, recipe: Recipe) -> list[Reference]:
    """What NVIDIA published for exactly the plan's configuration, the nearest software first."""
    found = []
    for result in published_results(plan, recipe):
        document = recipe.document(result)
        release = f" {document.release}" if document.release else ""
        found.append(
            Reference(
                kind="published",
                seconds=result.step_seconds,
                software=document.software,
                source=f"{document.title}{release}, {document.date}",
                same_software=same_software(plan.image, document),
                result=result,
                notes=result.notes,
            )
        )
    return found


def release_spread(plan: JobPlan) -> Spread:
    """How far the step time of the plan's kind of model moves between two releases."""
    return RELEASE_SPREAD["MoE" if plan.has_experts else "dense"]
