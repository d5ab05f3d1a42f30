"""A diagnosis as a person reads it."""

from __future__ import annotations

from llmb_common.causes.answer import Diagnosis, Evidence
from llmb_common.causes.table import signatures
from llmb_common.command.printable import counted


def cause_lines(found: Diagnosis) -> list[str]:
    """What began it, the line that says so, and what to do; of an unknown cause its witnesses."""
    cause = found.cause
    if cause is None:
        return [found.summary, *_suspect(found.suspect)]
    sure = "" if cause.sure == "certain" else f" ({cause.sure})"
    step = f"; the last iteration before it is {cause.step}" if cause.step is not None else ""
    lines = [f"{found.summary}{sure}{step}", cause.cause]
    lines += [f"{_place(cause.file, cause.number)}{cause.line}"] if cause.line else []
    return [*lines, f"next: {cause.remedy}"]


def all_lines(found: Diagnosis) -> list[tuple[str, list[str]]]:
    """The same with everything that was found, each with its name."""
    cause = found.cause
    lines = [("why", cause_lines(found))]
    if cause is not None and cause.keep_out and cause.node:
        reason = cause.what.replace("'", "")
        lines.append(("keep out", [f"llmb-run exclude add {cause.node} --days 7 --reason '{reason}'"]))
    if beside := [_witness(item) for item in found.witnesses if item != found.suspect]:
        lines.append(("besides", beside))
    return lines


def _suspect(item: Evidence | None) -> list[str]:
    if item is None:
        return []
    remedy = next((known.remedy for known in signatures() if known.id == item.signature), "")
    return [_witness(item), *([f"next: {remedy}"] if remedy else [])]


def _witness(item: Evidence) -> str:
    ranks = f", rank {item.ranks[0]}" if item.ranks else ""
    if len(item.ranks) > 1:
        ranks = f", {counted(len(item.ranks), 'rank')}"
    count = f", {item.count} lines" if item.count > 1 else ""
    kind = f"[{item.role}{ranks}{count}] " if item.signature else ""
    return f"{kind}{_place(item.file, item.number)}{item.line}"


def _place(file: str, number: int | None) -> str:
    name = file.rpartition("/")[2]
    return f"{name}:{number}: " if name and number else f"{name}: " if name else ""
