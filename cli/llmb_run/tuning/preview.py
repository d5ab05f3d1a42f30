"""What a tuning is to try: as data, in words, and as its campaign keeps it."""

from __future__ import annotations

import math
from typing import Any

from llmb_common.base.printable import counted
from llmb_common.results.configuration import title_of
from llmb_run.campaigns.campaign import Frozen, FrozenArm
from llmb_run.starting.command_line import command_for
from llmb_run.tuning.halving import trials_of
from llmb_run.tuning.space import MOST, Space
from llmb_run.tuning.strategy import LEAST_PROOF, PAIRS

SCHEMA = 2
"""Of what a tuning keeps: the first searched by predictions."""


class FrozenChoice(FrozenArm, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One configuration that a tuning may try, as ``campaign.json`` keeps it: a ``FrozenArm`` with two more fields.

    So it has title, plan, recipe and image, too; ``frozen_now`` makes it. ``command`` starts it; ``changes`` are the
    settings in which it differs from the base, with its values, empty for the base itself. Decoding refuses unknown
    keys.
    """

    command: str
    changes: dict[str, str]


class FrozenSpace(Frozen, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configurations that a tuning chooses from, as its ``campaign.json`` keeps them, the base first.

    It has the fields of ``Frozen``, too; ``frozen_now`` makes it. The configurations are found once: another
    release, or other documented rows, would find others. ``schema`` is the version of the file's form, ``space``
    what ``preview`` says, ``arms`` the configurations. Decoding refuses unknown keys.
    """

    arm_kind = FrozenChoice
    schema: int = SCHEMA
    space: dict[str, Any]
    arms: tuple[FrozenChoice, ...]


def preview(space: Space, trial_steps: int, budget: float) -> dict[str, Any]:
    """Return what a tuning is going to do, as JSON values: candidates, refusals, number of runs.

    Nothing is started. ``space`` has the base and the candidates. ``trial_steps``: training steps of a trial.
    ``budget``: in GPU-hours, infinite where there is none, which is None in the answer.

    The keys: ``base`` (title), ``values`` (lists by setting), ``combinations``, ``looked_at`` and ``candidates``
    (numbers of them, the base not counted), ``may_not_fit`` (how many candidates are predicted not to fit the
    memory), ``refused`` (how many, by reason), ``example`` (a text on a refusal, empty if none), ``trials`` (all
    runs of the search if none fails, the base's too), ``trial_steps``, ``whole_runs`` (a list of two: the fewest
    and the most), ``budget``, and ``first`` (the commands of the base and the first four candidates).

    Raises:
        RecipeError: a recipe's catalogue cannot be read
    """
    candidates = len(space.arms) - 1
    return {
        "base": title_of(space.base.plan),
        "values": {name: list(values) for name, values in space.values.items()},
        "combinations": space.combinations,
        "looked_at": space.drawn,
        "candidates": candidates,
        "may_not_fit": sum(item.plan.preflight.fits is False for item in space.arms[1:]),
        "refused": space.reasons,
        "example": space.example,
        "trials": trials_of(candidates),
        "trial_steps": trial_steps,
        "whole_runs": [LEAST_PROOF, 2 * PAIRS],
        "budget": budget if math.isfinite(budget) else None,
        "first": [command_for(item.plan, item.entry.recipe) for item in space.arms[:5]],
    }


def preview_text(preview: dict[str, Any]) -> str:
    """Return what ``preview`` says of a tuning as lines for people, with a final newline.

    ``preview`` is the answer of the function of that name. They are its base, settings, candidates, refusals, cost,
    and an example of a refusal where there is one.
    """
    values = ", ".join(f"{name} {'/'.join(values)}" for name, values in preview["values"].items())
    refused = ", ".join(f"{count} {why}" for why, count in preview["refused"].items())
    doubtful = f"; {preview['may_not_fit']} of them may not fit the memory" if preview["may_not_fit"] else ""
    least, most = preview["whole_runs"]
    lines = [
        f"base: {preview['base']}",
        f"settings: {values}",
        f"candidates: {_candidates_text(preview)}{doubtful}",
        f"refused: {refused or 'none'}",
        f"cost: {preview['trials']} trials of {preview['trial_steps']} steps, then {least} to {most} whole runs;"
        f" GPU-hours are known after the base's first run; budget {budget_text(preview['budget'])}",
    ]
    if preview["example"]:
        lines.append(f"for example {preview['example']}")
    return "".join(f"{line}\n" for line in lines)


def _candidates_text(preview: dict[str, Any]) -> str:
    """Return how many candidates a tuning has, and how chosen: ``12, all that can run of 30 combinations``.

    ``preview`` is the answer of the function of that name. Of an even sample, also how many were looked at.
    """
    every = counted(preview["combinations"], "combination")
    if preview["looked_at"] < preview["combinations"] and preview["combinations"] > MOST:
        return f"{preview['candidates']}, an even sample of {every}: {preview['looked_at']} were looked at"
    return f"{preview['candidates']}, all that can run of {every}"


def budget_text(budget: float | None) -> str:
    """Return a budget in GPU-hours as text, with at most four significant digits: ``12 GPU-hours``.

    ``without limit`` for None.
    """
    return f"{budget:.4g} GPU-hours" if budget is not None else "without limit"
