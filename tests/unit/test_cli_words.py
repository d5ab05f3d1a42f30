"""Words and numbers as commands take and print them."""

from __future__ import annotations

import click
import pytest

from llmb_run.terminal import span, split
from support.cli import Cli
from support.runs import make_run


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


def test_words_for_the_shell(cli: Cli) -> None:
    from llmb_run import completion

    some = click.Context(click.Command("single"))
    assert completion.workloads(some, some.command, "pretrain_g") == ["pretrain_grok1"]  # type: ignore[arg-type]
    assert completion.dtypes(some, some.command, "") == ["bf16", "fp8", "nvfp4"]  # type: ignore[arg-type]
    some.params["workload"] = "pretrain_grok1"
    assert completion.dtypes(some, some.command, "f") == ["fp8"]  # type: ignore[arg-type]
    assert completion.sizes(some, some.command, "") == ["314b", "smoke"]  # type: ignore[arg-type]
    record = make_run(cli.install)
    run = record.paths.run_id
    assert completion.runs(some, some.command, run[:3]) == [run]  # type: ignore[arg-type]
    assert completion.runs(some, some.command, "pret") == [record.paths.name]  # type: ignore[arg-type]
    assert completion.runs(some, some.command, "pre") == [], "of a name, more than a little must be there"  # type: ignore[arg-type]
    cli.patch.setenv("LLMB_REPO", "/nonexistent")
    assert completion.workloads(some, some.command, "") == []  # type: ignore[arg-type]
