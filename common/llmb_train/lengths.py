"""How the operations for a token follow the length of the sequence, by counting at several lengths.

A token meets the matrices of the model, whatever the length; all tokens before it, or a number of them at most. So its
count is a + b x length + c / length (c: what the first tokens lack of that number), for any model and any way of
counting, from the length on that is more than that number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_SHORTEST = 32
_EXACT = 1e-9
"""Of a count that follows the formula."""


def growth(model: Any, counts: dict[str, Callable[[], float | None]]) -> dict[str, Any] | None:
    """Return how FLOPs per token of ``model`` grow with sequence length: ``[b, c]`` by name for each of ``counts``.

    They are of the formula a + b x length + c / length. ``counts`` are functions, by name, that are called without
    arguments and count FLOPs per token at the model's present length; one that returns None there is left out; any
    other must not return None at other lengths. The further key ``least`` is the shortest length, in tokens, for
    which the formulas were found to hold: the model's own, or that halved a number of times, down to 32. None where
    a count does not follow the formula at eight times the length, or all return None. The model's ``seq_length`` is
    changed meanwhile and set back, also after an error.
    """
    own: int = model.seq_length
    found: dict[str, Any] = {"least": own}
    try:
        for name, count in counts.items():
            if count() is not None:
                found[name] = _fit_formula(model, own, count)
        shorter = own // 2
        while shorter >= _SHORTEST and all(
            _formula_holds(model, own, shorter, count, *found[name]) for name, count in counts.items() if name in found
        ):
            found["least"] = shorter
            shorter //= 2
        # The formula was fitted to at most four times the length, and has to hold beyond that, too.
        longer = 8 * own
        if not all(_formula_holds(model, own, longer, counts[name], *found[name]) for name in counts if name in found):
            return None
    finally:
        model.seq_length = own
    return found if len(found) > 1 else None


def _count_at(model: Any, length: int, count: Callable[[], float | None]) -> float:
    """Set the sequence length of ``model`` to ``length`` tokens; return the FLOPs per token that ``count`` gives.

    The model keeps that length. ``count`` is called without arguments and must not return None.
    """
    model.seq_length = length
    found = count()
    assert found is not None  # it is counted at the model's own length
    return found


def _fit_formula(model: Any, own: int, count: Callable[[], float | None]) -> list[float]:
    """Return ``[b, c]`` of FLOPs per token = a + b x length + c / length, from counts at 1, 2 and 4 times ``own``.

    ``own`` is the model's own sequence length. Rounded to 3 digits after the point; a ``c`` that is only rounding error
    is 0. ``count`` counts at the model's present length and must not return None. The model keeps four times its own
    length: the caller sets it back.
    """
    one = _count_at(model, own, count)
    two = _count_at(model, 2 * own, count)
    four = _count_at(model, 4 * own, count)
    c = 4 * own * ((four - two) - 2 * (two - one)) / 3
    if abs(c) / own < _EXACT * one:  # what is left of rounding
        c = 0.0
    b = ((two - one) + c / (2 * own)) / own
    return [round(b, 3), round(c, 3)]


def _formula_holds(model: Any, own: int, length: int, count: Callable[[], float | None], b: float, c: float) -> bool:
    """Return whether the formula with ``b`` and ``c`` predicts the count at ``length`` from that at ``own``.

    The formula is that of ``growth``. It does if the relative error is at most 1e-9. ``length`` and ``own``, the
    model's, are sequence lengths in tokens. ``count`` is called without arguments, counts FLOPs per token at the
    model's present length, and must not return None. Changes the model's length; the caller sets it back.
    """
    expected = _count_at(model, own, count) + b * (length - own) + c * (1 / length - 1 / own)
    return abs(_count_at(model, length, count) - expected) <= _EXACT * expected
