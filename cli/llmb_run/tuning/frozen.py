"""What a tuning began with: what it chooses from, found once, since predictions change with what was measured."""

from __future__ import annotations

from typing import Any

from llmb_run.campaigns import frozen


class FrozenChoice(frozen.FrozenArm, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A configuration of the space: its command, and what the search knows of it beforehand."""

    command: str
    changes: dict[str, str]
    places: tuple[float | str, ...]
    predicted: float
    memory: float | None
    cost: float
    proof_cost: float


class Frozen(frozen.Frozen, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``campaign.json``. ``space``: what ``outcome.preview`` says of it."""

    about: str
    recipe_folder: str
    space: dict[str, Any]
    choices: tuple[FrozenChoice, ...]
