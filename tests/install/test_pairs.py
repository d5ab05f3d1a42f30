"""Commands side by side, killed at random instants: nothing is lost, and repeating what was killed makes it whole.

``LLMB_TEST_KILLS`` says how many kills (default 3), ``LLMB_TEST_KILLS_SEED`` which.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import pytest
from install_world import World, fill_registry, make_world

from llmb_install.answers.answers import stored_answers
from llmb_install.parts.belongings import belongings

KILLS = int(os.environ.get("LLMB_TEST_KILLS") or 3)
SEED = int(os.environ.get("LLMB_TEST_KILLS_SEED") or random.randrange(10**6))
MOST_EVENTS = 140
"""About as many as an installation has: see ``fault_driver``."""

State = frozenset[str] | None
"""The workloads of an installation; None where there is none."""

LLAMA, GROK, NEMOTRON, MBRIDGE = (f"pretrain_{name}" for name in ("llama3.1", "grok1", "nemotron4", "mbridge"))
FIRST: State = frozenset({LLAMA, GROK})


@dataclass
class Command:
    """A command, and how it ended."""

    words: tuple[str, ...]
    status: int = 0
    said: str = ""

    def could_leave(self, state: State) -> Iterator[State]:
        """What there may be afterwards if it began with ``state``; nothing if it cannot have ended like that then."""
        word, workloads = self.words[0], set(self.words[1:])
        after: State = None
        if word == "install":
            after = frozenset({LLAMA, NEMOTRON})
        elif state is not None and word != "uninstall":
            after = state | workloads if word == "add" else state - workloads if word == "remove" else state
        if self.status != 0:
            refused = state is None or (word == "remove" and not workloads <= state)
            if self.status == -9 or refused or "removed the installation" in self.said:
                yield state
        if self.status in (0, -9) and (word == "install" or state is not None):
            yield after


COMMANDS = [
    ("install",),
    ("add", NEMOTRON),
    ("add", MBRIDGE),
    ("update",),
    ("remove", LLAMA),
    ("remove", GROK),
    ("uninstall", "--yes"),
]


def begin(world: World, words: tuple[str, ...], kill_at: int = 0) -> subprocess.Popen[str]:
    given = [*world.slurm_flags(workloads=f"{LLAMA},{NEMOTRON}")] if words == ("install",) else [*words]
    given += ["--no-space-check"] if words[0] in ("add", "update") else []
    kind = "kill" if kill_at else "none"
    return subprocess.Popen(
        [*world.driver(kind, kill_at), *given],
        env=world.env | {"LLMB_INSTALL": str(world.install)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str], words: tuple[str, ...]) -> Command:
    _, said = process.communicate(timeout=600)
    assert "Traceback" not in said, (words, said)
    return Command(words, process.returncode, said)


def run(world: World, *words: str) -> Command:
    return end(begin(world, words), words)


def state_of(world: World) -> State:
    answers = stored_answers(world.install)
    return None if answers is None else frozenset(answers.workloads)


def possible(first: State, beside: list[Command], then: list[Command]) -> set[State]:
    """What there may be after ``beside``, in any order, and ``then``."""
    found: set[State] = set()
    for order in permutations(beside):
        states = {first}
        for command in (*order, *then):
            states = {after for state in states for after in command.could_leave(state)}
        found |= states
    return found


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, standins: Path) -> World:
    """An installation of two workloads, beside its copy in ``template``."""
    world = make_world(tmp_path_factory.mktemp("pairs"), standins)
    fill_registry(world)
    assert run(world, "install").status == 0
    assert run(world, "add", GROK).status == 0
    assert run(world, "remove", NEMOTRON).status == 0
    assert state_of(world) == FIRST
    shutil.copytree(world.install, world.root / "template", symlinks=True)
    return world


def again(world: World, *, installed: bool, damaged: bool) -> None:
    shutil.rmtree(world.install, ignore_errors=True)
    if installed:
        shutil.copytree(world.root / "template", world.install, symlinks=True)
    if installed and damaged:  # so that only its hash tells
        before = world.image.stat()
        with world.image.open("r+b") as stream:
            stream.seek(-1, os.SEEK_END)
            stream.write(b"x")
        os.utime(world.image, ns=(before.st_atime_ns, before.st_mtime_ns))


def check_whole(world: World, state: State, *, damaged: bool) -> None:
    """With ``state``: every part is intact and nothing is left over. Without: nothing of ours is there."""
    if state is None:
        assert belongings(world.install) == []
        return
    for _ in range(2 if damaged else 1):
        done = run(world, "update")  # which looks as thoroughly as verify
        assert done.status == 0, done.said
    assert "failed" not in done.said
    state_folder = world.install / ".llmb"
    assert [*(state_folder / "tmp").iterdir(), *state_folder.glob("*.owner*")] == []
    assert len(list((world.install / "venvs").iterdir())) == 2, "the link and one build"
    assert state_of(world) == state


def test_killed_beside_each_other_they_lose_nothing(template: World) -> None:
    chance = random.Random(SEED)
    kills = 0
    while kills < KILLS:
        first = FIRST if chance.random() < 0.8 else None
        damaged = chance.random() < 0.3
        again(template, installed=first is not None, damaged=damaged)
        pair = chance.sample(COMMANDS, 2)
        # Most commands are short: low numbers more often.
        at = [round(MOST_EVENTS ** chance.random()) if chance.random() < 0.7 else 0 for _ in pair]
        processes = [begin(template, words, kill_at) for words, kill_at in zip(pair, at, strict=True)]
        beside = [end(process, words) for process, words in zip(processes, pair, strict=True)]
        killed = [command for command in beside if command.status == -9]
        then = [run(template, *command.words) for command in killed]
        told = f"LLMB_TEST_KILLS_SEED={SEED}, kill {kills}: {first} {damaged} {at} {beside} {then}"
        state = state_of(template)
        assert state in possible(first, beside, then), told
        check_whole(template, state, damaged=damaged)
        kills += len(killed)
        print(f"{kills} kills; {pair}, {at}: {[command.status for command in beside]}")
