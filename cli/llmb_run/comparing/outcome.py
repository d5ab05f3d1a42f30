"""What a comparison has found, as data and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from llmb_common.command.printable import counted
from llmb_common.results.comparison import SAME_LOSS, loss_difference, unequal_work
from llmb_common.results.paired import Comparison
from llmb_run.campaigns.conduct import Run
from llmb_run.comparing.strategy import Block, Standing

CONFIDENCE = 0.95
"""Of the interval, over all looks together."""


def outcome(standing: Standing, changes: Mapping[str, str]) -> dict[str, Any]:
    """The content of ``result.json``. Changes of time are in per cent: -6.1 is B 6.1 % faster."""
    one, other = (arm.plan for arm in standing.arms)
    runs = [run for block in standing.good for run in block.counted if run is not None]
    work = list(unequal_work(one, other))
    loss = None if work else _loss(runs)
    equal = not work and (loss is None or loss["relative_difference"] <= SAME_LOSS)
    return {
        "schema": 1,
        "rule": msgspec.to_builtins(standing.rule),
        "a": standing.arms[0].title,
        "b": standing.arms[1].title,
        "changes": dict(changes),
        "answer": "failed" if standing.failure else standing.answer,
        "why": standing.failure or standing.stopped,
        "difference": _as_dict(standing.comparison, standing.rule.rate) if standing.comparison else None,
        "per_token": one.tokens_per_gpu != other.tokens_per_gpu,
        "equal_work": equal,
        "unequal_work": work,
        "loss": loss,
        "gpu_hours": round(standing.hours, 4),
        "blocks": [_block(block, good=block in standing.good) for block in standing.blocks],
    }


def _as_dict(found: Comparison, rate: float) -> dict[str, Any]:
    percent = {
        name: 100 * math.expm1(getattr(found, name)) for name in ("difference", "low", "high", "stalls", "drift")
    }
    return {
        **{f"{name}_percent": round(value, 3) for name, value in percent.items()},
        "noise_percent": round(100 * found.noise, 3),
        "pairs": found.pairs,
        "confidence": CONFIDENCE,
        "error_rate_each_look": 2 * rate,
    }


def _loss(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Where the loss of any run differs most from that of the first."""
    first, *others = (run.measured.timing.iterations for run in runs if run.measured) if runs else ((),)
    found = [apart for other in others if (apart := loss_difference(first, other)) is not None]
    if not found:
        return None
    iteration, share = max(found, key=lambda item: item[1])
    return {"iteration": iteration, "relative_difference": share}


def _block(block: Block, *, good: bool) -> dict[str, Any]:
    runs = [run.record for run in block.runs if run is not None]
    counted = [run.record for run in block.counted if run is not None] if good else []
    return {
        "block": block.number,
        "order": block.letters,
        "counts": good,
        "nodes": block.nodes,
        "one_allocation": any(record.submission.in_series for record in counted),
        "lost": [record.paths.run_id for record in runs if record not in counted],
        "runs": [record.paths.run_id for record in runs],
    }


def status_of(result: Mapping[str, Any]) -> int:
    """0: answered; 1: a side failed, or the work is not equal; 4: open."""
    if result["answer"] == "failed":
        return 1
    if result["answer"] == "open":
        return 4
    return 0 if result["equal_work"] else 1


def as_text(result: Mapping[str, Any]) -> str:
    """The answer first, then what it rests on."""
    lines = [f"A  {result['a'][3:-1]}", f"B  {result['b'][3:-1]}", "", _answer(result), *_work(result)]
    if found := result["difference"]:
        blocks = [block for block in result["blocks"] if block["counts"]]
        together = sum(block["one_allocation"] for block in blocks)
        nodes = ", ".join(dict.fromkeys(block["nodes"] for block in blocks if block["nodes"]))
        lines.append(
            f"{counted(found['pairs'], 'pair')} in {counted(len(blocks), 'block')} ({together} in one allocation)"
            f"{f' on {nodes}' if nodes else ''}, {result['gpu_hours']:.2g} GPU-hours; a pair scatters by"
            f" {found['noise_percent']:.1f} %, and from one run of a block to the next it drifts by"
            f" {found['drift_percent']:+.1f} %"
        )
        if found["stalls_percent"]:
            lines.append(f"stalled steps make {found['stalls_percent']:+.1f} % of the difference")
    if lost := sum(len(block["lost"]) for block in result["blocks"]):
        lines.append(
            f"{counted(lost, 'run')} did not count: without a step time, or in another allocation than most of a block"
        )
    return "\n".join(lines) + "\n"


def _answer(result: Mapping[str, Any]) -> str:
    resolution = 100 * result["rule"]["resolution"]
    if result["answer"] == "failed":
        return f"no answer: {result['why']}"
    found = result["difference"]
    if found is None:
        return f"no answer: {result['why'] or 'too few runs have ended'}"
    interval = f"({CONFIDENCE:.0%} interval: {found['low_percent']:+.1f} to {found['high_percent']:+.1f} %)"
    match result["answer"]:
        case "no difference":
            return f"no difference larger than {resolution:g} % {interval}"
        case "open":
            most = max(abs(found["low_percent"]), abs(found["high_percent"]))
            return f"no difference larger than {most:.1f} %, and not decided within that {interval}: {result['why']}"
        case answer:
            more = f"{abs(found['difference_percent']):.1f} % {'less' if answer == 'faster' else 'more'}"
            what = "GPU time for each token" if result["per_token"] else "time"
            return f"B takes {more} {what} than A {interval}"


def _work(result: Mapping[str, Any]) -> list[str]:
    if result["difference"] is None:
        return []
    if names := result["unequal_work"]:
        return [
            f"not the same work ({', '.join(names)}): the time is for each token and GPU, and this is no gain"
            " of the same training"
        ]
    if loss := result["loss"]:
        apart = f"loss: at most {loss['relative_difference']:.2%} apart, at iteration {loss['iteration']}"
        if result["equal_work"]:
            return [f"{apart}: the same work"]
        return [f"{apart}: not the same work, so this is no gain"]
    return ["loss: no iteration that both printed, so nothing shows that the work was the same"]
