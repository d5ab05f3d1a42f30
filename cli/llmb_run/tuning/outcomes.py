"""How a run of a tuning ended, and whether it did the base's work."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from llmb_common.results.comparison import SAME_LOSS
from llmb_common.results.training import MATERIAL
from llmb_run.campaigns.conduct import Run, Runs
from llmb_run.tuning.halving import Outcome

_MEMORY = frozenset({"cuda-memory", "nccl-memory", "host-memory"})
"""Causes of failures."""


def outcome_of(number: int, run: Run, runs: Runs) -> Outcome:
    """Return how an ended run of the arm ``number`` counts for the tuning, as one of ``Outcome``; arm 1 is the base.

    ``timed``: its step time counts. A run with a step time that did other work than the base is ``other work``,
    however fast. ``no answer``: a fault that is not the configuration's. Any other run is ``out of memory`` or
    ``failed``. ``runs``: those of every arm.

    Raises:
        OSError: a log is to be read again for its losses, and cannot be
    """
    if run.attempt is not None and run.attempt.time is not None:
        return "other work" if number != 1 and other_work(run, runs[1]) else "timed"
    if run.attempt is not None and run.attempt.fault:
        return "no answer"
    why = run.measured.why if run.measured is not None else None
    short = run.record.state.startswith("OUT_OF_MEMORY") or (why is not None and why.kind in _MEMORY)
    return "out of memory" if short else "failed"


def why_not(number: int, run: Run, runs: Runs) -> str:
    """Return why an ended run of the arm ``number`` has no step time that counts, a fragment; arm 1 is the base.

    The run has none (``outcome_of`` is not ``timed``). Such as ``out of memory``,
    ``not the same work as the base: ...``, or what is known of its failure; where nothing is known of it, the word
    of ``outcome_of``, such as ``failed``. ``runs``: those of every arm.

    Raises:
        OSError: a log is to be read again for its losses, and cannot be
    """
    ended = outcome_of(number, run, runs)
    if ended == "out of memory":
        return ended
    other = other_work(run, runs[1])
    if other:
        return other
    attempt = run.attempt
    known = attempt.failure or attempt.fault if attempt else ""
    return known or ended


def other_work(run: Run, base: Sequence[Run]) -> str:
    """Return why a run cannot have done the work of the base, by their losses, a fragment; empty: nothing says so.

    ``base`` are the base's runs; one that the run is too unlike suffices. Other layouts round otherwise, and may begin
    with other random weights: so the losses of half of the steps may differ by more than those of repeats do
    (``SAME_LOSS``), but none by more than ``MATERIAL``. Steps without a loss in both do not count.

    Raises:
        OSError: a log is to be read again for its losses, and cannot be
    """
    own = _losses_by_iteration(run)
    for other in base:
        of_base = _losses_by_iteration(other)
        shares = {step: abs(own[step] / of_base[step] - 1) for step in own.keys() & of_base.keys()}
        if not shares:
            continue
        worst = max(shares, key=shares.__getitem__)
        if statistics.median(shares.values()) > SAME_LOSS or shares[worst] > MATERIAL:
            return (
                f"not the same work as the base: its loss is {own[worst]:.4g} at step {worst}, not {of_base[worst]:.4g}"
            )
    return ""


def _losses_by_iteration(run: Run) -> dict[int, float]:
    """Return the loss of each iteration of a run that was measured already, by the iteration's number.

    The run's log is read for them, where that was not done before. Iterations without a loss, or with loss 0, are left
    out. Empty: the run was not measured or has no step time.

    Raises:
        OSError: a log is to be read again for its losses, and cannot be
    """
    if run.measured is None or run.attempt is None or run.attempt.time is None:
        return {}
    return {item.index: item.loss for item in run.measured.timing.iterations if item.loss}
