"""How the operations for a token follow the length of the sequence, by counting at several lengths.

A token meets the matrices of the model, whatever the length; all tokens before it, or a number of them at most. So its
count is a + b x length + c / length (c: what the first tokens lack of that number), for any model and any way of
counting, from the length on that is more than that number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
    least = own
    formulas = {}
    try:
        for name, count in counts.items():
            model.seq_length = own  # fitting a formula leaves another one
            at_own = count()
            if at_own is not None:
                formulas[name] = _fit_formula(model, own, at_own, count)
        shorter = own // 2
        while shorter >= _SHORTEST and all(
            formula.holds(model, shorter, counts[name]) for name, formula in formulas.items()
        ):
            least = shorter
            shorter //= 2
        # The formulas were fitted to at most four times the length, and have to hold beyond that, too.
        if not all(formula.holds(model, 8 * own, counts[name]) for name, formula in formulas.items()):
            return None
    finally:
        model.seq_length = own
    if not formulas:
        return None
    return {"least": least, **{name: [formula.b, formula.c] for name, formula in formulas.items()}}


@dataclass(frozen=True)
class _Formula:
    """FLOPs per token = a + ``b`` x length + ``c`` / length, through the count ``at_own`` at the length ``own``."""

    own: int
    at_own: float
    b: float
    c: float

    def holds(self, model: Any, length: int, count: Callable[[], float | None]) -> bool:
        """Return whether the formula predicts the count at ``length``, a sequence length in tokens.

        It does if the relative error is at most 1e-9. ``count`` is called without arguments, counts FLOPs per token
        at the model's present length, and must not return None. Changes the model's length; the caller sets it back.
        """
        expected = self.at_own + self.b * (length - self.own) + self.c * (1 / length - 1 / self.own)
        return abs(_count_at(model, length, count) - expected) <= _EXACT * expected


def _count_at(model: Any, length: int, count: Callable[[], float | None]) -> float:
    """Set the sequence length of ``model`` to ``length`` tokens; return the FLOPs per token that ``count`` gives.

    The model keeps that length. ``count`` is called without arguments and must not return None.
    """
    model.seq_length = length
    found = count()
    assert found is not None  # it is counted at the model's own length
    return found


def _fit_formula(model: Any, own: int, at_own: float, count: Callable[[], float | None]) -> _Formula:
    """Return the formula of FLOPs per token through ``at_own`` and the counts at 2 and 4 times the length ``own``.

    ``own`` is the model's own sequence length, ``at_own`` what ``count`` gives there. The formula's ``b`` and ``c``
    are rounded to 3 digits after the point; a ``c`` that is only rounding error is 0. ``count`` counts at the model's
    present length and must not return None. The model keeps four times its own length: the caller sets it back.
    """
    double = _count_at(model, 2 * own, count)
    four = _count_at(model, 4 * own, count)
    c = 4 * own * ((four - double) - 2 * (double - at_own)) / 3
    if abs(c) / own < _EXACT * at_own:  # what is left of rounding
        c = 0.0
    b = ((double - at_own) + c / (2 * own)) / own
    return _Formula(own, at_own, round(b, 3), round(c, 3))
