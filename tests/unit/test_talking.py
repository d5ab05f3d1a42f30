"""A program that is told things while it runs: what it says, what it does not take, and its end."""

from __future__ import annotations

import os
import sys
import time

from llmb_common.base.processes import with_variable
from llmb_common.base.talking import Conversation, talk
from support.texts import Texts

ECHO = "import sys\nfor line in sys.stdin: print('heard', line.strip(), flush=True)"


def heard(conversation: Conversation, count: int) -> list[str]:
    lines: list[str] = []
    deadline = time.monotonic() + 60
    while len(lines) < count and not conversation.over and time.monotonic() < deadline:
        lines += conversation.receive(1.0)
    return lines


def test_what_it_is_told_it_hears_and_what_it_says_comes_back() -> None:
    with talk([sys.executable, "-c", ECHO]) as conversation:
        conversation.send("one")
        assert heard(conversation, 1) == ["heard one"]
        long = "x" * 300_000  # more than a pipe holds
        conversation.send(long)
        conversation.send("two")
        assert heard(conversation, 2) == [f"heard {long}", "heard two"]
        assert not conversation.over


def test_nobody_waits_for_one_that_says_nothing() -> None:
    with talk(["sleep", "600"]) as conversation:
        assert conversation.receive(0.05) == []
        assert not conversation.over


def test_one_that_ends_is_over_with_its_complaint() -> None:
    with talk(["bash", "-c", "echo last; echo why >&2; exit 3"]) as conversation:
        assert heard(conversation, 9) == ["last"]
        assert conversation.over
        conversation.send("nobody listens")
        assert conversation.receive(0.05) == []
        assert conversation.complaint.errors == "why\n"


def test_a_line_without_end_is_not_kept() -> None:
    with talk(["bash", "-c", "head -c 8000000 /dev/zero; echo; echo next"]) as conversation:
        lines = heard(conversation, 2)
    assert lines[-1] == "next"
    assert max(map(len, lines)) < 2 << 20


def test_it_ends_with_the_conversation_and_with_all_that_it_has_started() -> None:
    name = f"{os.getpid()}-{time.time_ns()}"
    with talk(["bash", "-c", "sleep 600 & trap '' TERM; wait"], env={**os.environ, "TALKS": name}):
        assert with_variable("TALKS", name)
    assert with_variable("TALKS", name) == []


def test_one_that_cannot_be_started(texts: Texts) -> None:
    with texts.raises(OSError), talk(["/nowhere/program"]):
        pass
