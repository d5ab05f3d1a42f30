"""What a campaign began with. None of it may change before its end: all runs are to show one system.

Suite, version of LLMB, recipes, training code, images with their digests, plans (and with them the site's
configuration and the caller's variables) are compared. References, and how the site's runs differ, are only kept: a run
of the campaign itself may have become a baseline since, and its runs would have a say in how much they may scatter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from llmb_common.planning.job_plan import plan_as_dict
from llmb_common.results.references import Reference
from llmb_common.results.scatter import NOTHING_SEEN, STATED, Scatter, Squares
from llmb_common.runs.manifest import make_manifest, origin_of
from llmb_common.submission import training_code
from llmb_run.acceptance.planned import Workload
from llmb_run.acceptance.suite import Suite

_UNIMPORTANT = ("preflight",)
"""Of a plan: predictions, and warnings, which look at the machine's state."""


class FrozenWorkload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``image``: path, size and the installer's receipt with the digest; None outside containers."""

    title: str
    where: str
    plan: dict[str, Any]
    recipe_sha256: str
    image: dict[str, Any] | None
    reference: dict[str, Any] | None
    scatter: Scatter = STATED
    earlier: Squares = NOTHING_SEEN


class Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``campaign.json``. ``began`` is Unix time, ``id`` is part of the keys of its runs."""

    schema: int = 1
    id: str
    began: float
    user: str
    suite: str
    suite_name: str
    suite_sha256: str
    llmb: str
    git: dict[str, Any] | None
    code_sha256: str
    workloads: tuple[FrozenWorkload, ...]


def freeze(suite: Suite, workloads: Sequence[Workload], *, id: str, began: float, user: str) -> Frozen:
    """What is true now."""
    folder = training_code()
    origins = {item.recipe_folder: origin_of(item.recipe_folder, folder) for item in workloads}
    manifests = [make_manifest(item.plan, folder, folder, origins[item.recipe_folder]) for item in workloads]
    return Frozen(
        id=id,
        began=began,
        user=user,
        suite=str(suite.path),
        suite_name=suite.name,
        suite_sha256=suite.sha256,
        llmb=manifests[0]["llmb"],
        git=manifests[0]["git"],
        code_sha256=manifests[0]["code_sha256"],
        workloads=tuple(
            FrozenWorkload(
                title=item.title,
                where=item.entry.where,
                plan=important(plan_as_dict(item.plan)),
                recipe_sha256=manifest["recipe_sha256"],
                image=manifest["image"],
                reference=_reference(item.reference),
                scatter=item.scatter,
                earlier=item.earlier,
            )
            for item, manifest in zip(workloads, manifests, strict=True)
        ),
    )


def important(plan: dict[str, Any]) -> dict[str, Any]:
    """Of a plan as plain values what must not change."""
    # As JSON gives it back: lists, not tuples.
    kept = {name: value for name, value in plan.items() if name not in _UNIMPORTANT}
    found: dict[str, Any] = json.loads(json.dumps(kept))
    return found


def _reference(reference: Reference | None) -> dict[str, Any] | None:
    if reference is None:
        return None
    names = ("kind", "seconds", "software", "source", "same_software", "error", "notes")
    return {name: getattr(reference, name) for name in names}


def frozen_reference(kept: FrozenWorkload) -> Reference | None:
    """The reference that the campaign began with."""
    if kept.reference is None:
        return None
    return Reference(**kept.reference | {"notes": tuple(kept.reference.get("notes", ()))})


def changes(then: Frozen, now: Frozen) -> list[str]:
    """What is different, a line each, in words that say where to look."""
    found = [*_one("version of LLMB", then.llmb, now.llmb), *_one("training code", then.code_sha256, now.code_sha256)]
    if then.suite_sha256 != now.suite_sha256:
        found.append(f"suite {then.suite}: its content")
    if len(then.workloads) != len(now.workloads):
        found.append(f"number of workloads: {len(then.workloads)} -> {len(now.workloads)}")
        return found
    for before, after in zip(then.workloads, now.workloads, strict=True):
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
