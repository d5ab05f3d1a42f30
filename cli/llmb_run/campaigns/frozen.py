"""What a campaign began with. None of it may change before its end: all runs are to show one system.

Version of LLMB, recipes, training code, images with their digests, and plans (and with them the site's configuration
and the caller's variables) are compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from llmb_common.decoding.structs import from_plain
from llmb_common.errors import RecordError, RequestError
from llmb_common.machine.files import me, read_json, user_name, write_json
from llmb_common.planning.job_plan import JobPlan, plan_as_dict
from llmb_common.runs.manifest import make_manifest, origin_of
from llmb_common.submission import training_code
from llmb_run.campaigns.conduct import Arm
from llmb_run.campaigns.folder import ANEW, Campaign

_UNIMPORTANT = ("preflight",)
"""Of a plan: predictions, and warnings, which look at the machine's state."""


class FrozenArm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``image``: path, size and the installer's receipt with the digest; None outside containers."""

    title: str
    plan: dict[str, Any]
    recipe_sha256: str
    image: dict[str, Any] | None


class Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``campaign.json``. ``began`` is Unix time, ``id`` is part of the keys of its runs."""

    schema: int = 1
    id: str
    began: float
    user: str
    llmb: str
    git: dict[str, Any] | None
    code_sha256: str


F = TypeVar("F", bound=Frozen)


def now(campaign: Campaign, arms: Sequence[Arm]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What is true now: the fields of ``Frozen``, and those of ``FrozenArm`` for each arm."""
    folder = training_code()
    origins = {arm.recipe_folder: origin_of(arm.recipe_folder, folder) for arm in arms}
    manifests = [make_manifest(arm.plan, folder, folder, origins[arm.recipe_folder]) for arm in arms]
    common = {name: manifests[0][name] for name in ("llmb", "git", "code_sha256")}
    return {**common, "id": campaign.id, "began": round(time.time(), 3), "user": user_name(me())}, [
        {
            "title": arm.title,
            "plan": important(plan_as_dict(arm.plan)),
            "recipe_sha256": manifest["recipe_sha256"],
            "image": manifest["image"],
        }
        for arm, manifest in zip(arms, manifests, strict=True)
    ]


def important(plan: dict[str, Any]) -> dict[str, Any]:
    """Of a plan as plain values what must not change."""
    # As JSON gives it back: lists, not tuples.
    kept = {name: value for name, value in plan.items() if name not in _UNIMPORTANT}
    found: dict[str, Any] = json.loads(json.dumps(kept))
    return found


def plan_of(kept: FrozenArm) -> JobPlan:
    """The plan that a campaign began with, without its predictions."""
    plan: JobPlan = from_plain({**kept.plan, "preflight": {}}, JobPlan)
    return plan


def began_with(campaign: Campaign, kind: type[F]) -> F | None:
    """What it began with; None where it has not begun.

    Raises:
        RecordError: the file cannot be read
    """
    if not campaign.frozen_file.exists():
        return None
    try:
        found: F = from_plain(read_json(campaign.frozen_file), kind)
    except msgspec.ValidationError as error:
        raise RecordError(f"{campaign.frozen_file} is not a campaign's: {error}", remedy=ANEW) from error
    return found


def begin_or_go_on(campaign: Campaign, now: F, changes: Callable[[F, F], list[str]]) -> F:
    """What the campaign began with, which is now where it begins.

    Raises:
        RequestError: something is not as it was then; all of that by name
    """
    then = began_with(campaign, type(now))
    if then is None:
        write_json(campaign.frozen_file, msgspec.to_builtins(now))  # from here on there is a campaign
        return now
    if found := changes(then, now):
        raise RequestError(
            "the campaign began with other inputs, and its runs would not show one system:\n  " + "\n  ".join(found),
            remedy=f"restore them and run the same command again, or {ANEW}",
            code="changed-inputs",
        )
    return then


def changes(then: Frozen, now: Frozen) -> list[str]:
    """What is different about the software, a line each, in words that say where to look."""
    return [*_one("version of LLMB", then.llmb, now.llmb), *_one("training code", then.code_sha256, now.code_sha256)]


def arm_changes(then: Sequence[FrozenArm], now: Sequence[FrozenArm]) -> list[str]:
    """What is different about as many arms, a line each."""
    found = []
    for before, after in zip(then, now, strict=True):
        about = [
            *_one("recipe.yaml", before.recipe_sha256, after.recipe_sha256),
            *_image(before.image, after.image),
            *plan_changes(before.plan, after.plan),
        ]
        found += [f"{before.title}: {text}" for text in about]
    return list(dict.fromkeys(found))


def _one(what: str, then: Any, now: Any) -> Iterator[str]:
    if then != now:
        yield f"{what}: {_short(then)} -> {_short(now)}"


def _image(then: dict[str, Any] | None, now: dict[str, Any] | None) -> Iterator[str]:
    before, after = then or {}, now or {}
    yield from _one("image", before.get("path"), after.get("path"))
    if before.get("path") == after.get("path"):
        for name, words in (("receipt", "digest of the image"), ("bytes", "size of the image")):
            yield from _one(words, before.get(name), after.get(name))


def plan_changes(then: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """Where two plans differ, a line each."""
    for name in dict.fromkeys([*then, *now]):
        before, after = then.get(name), now.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            for key in dict.fromkeys([*before, *after]):
                yield from _one(f"{name} {key}", before.get(key), after.get(key))
        else:
            yield from _one(name, before, after)


def _short(value: Any) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    if len(text) == 64 and set(text) <= set("0123456789abcdef"):
        return text[:12]
    return text if len(text) <= 80 else text[:77] + "..."
