"""Can a run be repeated exactly? What its record says, against what is here today."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmb_common.decoding.strict_yaml import read_text
from llmb_common.rendering.script import render_script
from llmb_common.runs.manifest import make_manifest
from llmb_common.runs.record import RunRecord
from llmb_common.submission import training_code
from llmb_run.terminal import table

_COMPARED = ("llmb", "git", "recipe_sha256", "code_sha256", "image")
_WORDS = {
    "llmb": "version of LLMB",
    "git": "commit of the clone",
    "recipe_sha256": "recipe.yaml",
    "code_sha256": "training code",
    "image": "container image",
}


@dataclass(frozen=True)
class Difference:
    """``then`` and ``now`` are short; ``detail`` is a diff, or empty."""

    what: str
    then: str
    now: str
    detail: str = ""


def differences(record: RunRecord, recipe_folder: Path) -> list[Difference]:
    """What would not be the same if the run were started again today; empty: the script is the same to the byte."""
    found = []
    then = read_text(record.paths.script)
    now = render_script(record.plan, record.paths)
    if then != now:
        lines = difflib.unified_diff(then.splitlines(), now.splitlines(), "then", "now", lineterm="", n=1)
        found.append(Difference("batch script", "as submitted", "as rendered today", "\n".join(lines)))
    today = make_manifest(record.plan, recipe_folder, training_code())
    for key in _COMPARED:
        before, after = record.manifest.get(key), today.get(key)
        if before != after:
            found.append(Difference(_WORDS[key], _short(before), _short(after)))
    return found


def _short(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict) and "commit" in value:
        return f"{value['commit'][:12]}{' with changes' if value['dirty'] else ''}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items() if key in ("path", "bytes"))
    text = str(value)
    return text[:12] if len(text) == 64 else text


def in_words(found: Sequence[Difference]) -> list[str]:
    """A table of the differences and then their diffs; nothing where there is none."""
    if not found:
        return []
    rows = [[difference.what, difference.then, difference.now] for difference in found]
    diffs = [f"\n{difference.detail}\n" for difference in found if difference.detail]
    return [table(["differs", "then", "now"], rows).rstrip("\n"), *diffs]
