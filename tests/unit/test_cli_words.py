"""Words and numbers as commands take and print them."""

from __future__ import annotations

import pytest

from llmb_run.words import span, split


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0 s"), (99, "99 s"), (119, "1 min"), (120, "2 min"), (6000, "1 h 40 min"), (172799, "47 h 59 min")),
        *((172800, "2 d 0 h"), (176400, "2 d 1 h")),
    ],
)
def test_where_spans_change_their_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_an_option_may_be_repeated_and_hold_commas() -> None:
    assert split(["a,b", " c ,", "a"]) == ["a", "b", "c"]
