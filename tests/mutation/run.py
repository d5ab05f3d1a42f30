"""How many small defects do the unit tests notice? Usage: .venv/bin/python tests/mutate.py [PACKAGE ...]

Each mutant of a sample is written into a clone of the repository, where the tests run that execute it; one that fails
kills it. Survivors are printed with file, line and change: a missing test, a needless line, or a change without effect,
which tests/mutation/excused.yaml excuses with a reason. How to read the result: tests/README.md.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mutation.excused import Excuses
from mutation.mapping import Coverage, map_tests
from mutation.mutants import Mutant, mutants_of
from mutation.shell import is_shell, shell_files, shell_mutants_of
from mutation.trees import SOURCES, TIMED_OUT, Call, Trees

SHELL = "shell"
"""All shell files, as if they were a package."""

TRAINING = "llmb_train"
ENGINES = ("LLMB_TEST_ENGINE", "LLMB_TEST_ENGINE_0_6")
"""With these, ``llmb_train`` is asked of the training tests too: much of it runs in an engine's Python only."""
LONG = ("layouts", "smoke_recipes", "launched_smoke", "llama_documented_rows", "documented_jobs")
"""Training tests that take a minute or more, of code that the others run as well."""

WHOLE = ("llmb_train", "llmb_run", "llmb_install")
"""Packages that are counted as one; of the library each folder is one, and its own modules are another."""

NO_SUCH_TEST = 4
"""pytest's status: a mutant has changed the parameters of tests, and with them their names."""


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _arguments(arguments)
    root: Path = asked.root.resolve()
    os.nice(asked.nice)
    packages = asked.packages or [*_rooms(root, "llmb_common"), *WHOLE, SHELL]
    excuses = Excuses(root / "tests" / "mutation" / "excused.yaml")
    table = []
    with Trees(root, asked.jobs) as trees:
        coverage = map_tests(trees, asked.tests or default_tests(root, packages), _say)
        for package in packages:
            started = time.monotonic()
            mutants = [mutant for file in _files(root, package) for mutant in _mutants(root, file)]
            for line in excuses.stale(mutants):
                _say(f"excused.yaml: no such mutant any more: {line}")
            counted = [mutant for mutant in mutants if not excuses.excuse(mutant)]
            sample = _sample(counted, asked.sample, asked.seed)
            if asked.again is not None:
                earlier = asked.again.read_text(encoding="utf-8")
                sample = [mutant for mutant in sample if f" {mutant.function}: {mutant.change}   [" in earlier]
            fates = _fates(trees, coverage, sample, asked.budget, asked.most)
            count = Counter(fates)
            table.append((package, len(mutants), len(sample), count, len(mutants) - len(counted)))
            _say(_row(*table[-1]) + f"   ({time.monotonic() - started:.0f} s)")
    print(f"\nseed {asked.seed}\n{'package':26} {'mutants':>7} {'sample':>6} {'killed':>6} {'rate':>5}", flush=True)
    for row in table:
        print(_row(*row), flush=True)
    return 0 if all(_rate(row[2], row[3]) * 100 >= asked.at_least for row in table) else 1


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", help="llmb_common.rendering, a module, a file; default: all")
    parser.add_argument("--sample", type=int, default=40, metavar="N", help="mutants of each package (40); 0: all")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="which sample (1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="mutants at a time")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="PERCENT", help="exit status 1 below this rate")
    parser.add_argument(
        "--budget", type=float, default=10.0, metavar="SECONDS", help="CPU time of the tests tried first (10)"
    )
    parser.add_argument(
        "--most", type=float, default=120.0, metavar="SECONDS", help="CPU time of all tests for one mutant (120)"
    )
    parser.add_argument("--again", type=Path, metavar="FILE", help="only the survivors in this earlier output")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2], help=argparse.SUPPRESS)
    parser.add_argument(
        "--tests",
        action="append",
        metavar="PATH",
        help="ask only this file or folder of tests; again for more (tests/unit)",
    )
    parser.add_argument("--nice", type=int, default=19, metavar="N", help="how far to stand back behind others (19)")
    return parser.parse_args(arguments)


def default_tests(root: Path, packages: Sequence[str]) -> list[str]:
    """The unit tests; of the training code, where both engines are named, the quicker training tests too."""
    if not any(package.partition(".")[0] == TRAINING for package in packages):
        return ["tests/unit"]
    if not all(name in os.environ for name in ENGINES):
        _say(f"{TRAINING}: unit tests only, as not both of {' and '.join(ENGINES)} are set")
        return ["tests/unit"]
    long = {f"test_{name}.py" for name in LONG}
    files = sorted((root / "tests" / "training").glob("test_*.py"))
    return ["tests/unit", *(str(path.relative_to(root)) for path in files if path.name not in long)]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _rooms(root: Path, top: str) -> list[str]:
    """``top``'s own modules as one package, and each folder below it."""
    below = sorted(path.parent.name for path in _place(root, top).glob("*/__init__.py"))
    return [top, *(f"{top}.{name}" for name in below)]


def _mutants(root: Path, file: str) -> list[Mutant]:
    return shell_mutants_of(root, file) if is_shell(file) else mutants_of(root, file)


def _place(root: Path, dotted: str) -> Path:
    relative = Path(*dotted.split("."))
    for source in SOURCES:
        for path in (root / source / relative, root / source / f"{relative}.py"):
            if path.exists():
                return path
    raise SystemExit(f"there is no package or module {dotted}")


def _files(root: Path, dotted: str) -> list[str]:
    """The files of a module, or of a package with all that is in it (the library itself: only its own modules)."""
    if dotted == SHELL:
        return shell_files(root)
    if (root / dotted).is_file():
        return [dotted]
    place = _place(root, dotted)
    if place.is_file():
        return [str(place.relative_to(root))]
    alone = "." not in dotted and dotted not in WHOLE
    return [str(path.relative_to(root)) for path in sorted(place.glob("*.py" if alone else "**/*.py"))]


def _sample(mutants: list[Mutant], number: int, seed: int) -> list[Mutant]:
    """``number`` of them, in order; the same ones again after changes elsewhere in the file."""
    if number == 0 or len(mutants) <= number:
        return mutants

    def lot(mutant: Mutant) -> bytes:
        name = f"{seed} {mutant.place} {mutant.change} {mutant.nth}"
        return hashlib.sha256(name.encode()).digest()

    drawn = set(sorted(map(lot, mutants))[:number])
    return [mutant for mutant in mutants if lot(mutant) in drawn]


def _fates(trees: Trees, coverage: Coverage, mutants: list[Mutant], budget: float, most: float) -> list[str]:
    """``killed``, ``survived`` or ``unexecuted`` for each mutant; all but the killed are printed as they are found.

    In rounds: what reads most about a mutant kills most of them, and starting pytest with few files is quick. Slow
    tests, such as those that kill a command at each of its steps, come last.
    """
    chosen = [_within(coverage, coverage.tests_of(mutant), most) for mutant in mutants]
    fates = ["" for _ in mutants]

    def settle(number: int, fate: str) -> None:
        fates[number] = fate
        if fate != "killed":
            mutant, tests = mutants[number], chosen[number]
            left = len(coverage.tests_of(mutant)) - len(tests)
            tried = f"{len(tests)} tests, {left} more not tried" if left else f"{len(tests)} tests"
            print(f"{fate:10} {mutant.file}:{mutant.line} {mutant.function}: {mutant.change}   [{tried}]", flush=True)

    for number, tests in enumerate(chosen):
        if not tests:
            settle(number, "unexecuted")
    waiting = [(number, _rounds(coverage, tests, budget)) for number, tests in enumerate(chosen) if tests]
    while waiting:
        calls = [_call(coverage, mutants[number], rounds[0]) for number, rounds in waiting]
        next_round = []
        for place, status in trees.run(calls):
            number, (tests, *later) = waiting[place]
            functions = list(dict.fromkeys(test.partition("[")[0] for test in tests))
            if status == NO_SUCH_TEST and tests != functions:
                next_round.append((number, [functions, *later]))
            elif status == 0 and later:
                next_round.append((number, later))
            else:
                settle(number, "killed" if status else "survived")
            if status == TIMED_OUT:
                _say(f"{mutants[number].file}:{mutants[number].line}: out of time, counts as killed")
        waiting = next_round
    return fates


def _rounds(coverage: Coverage, tests: list[str], budget: float) -> list[list[str]]:
    first = _within(coverage, tests, budget)
    slow = tests[len(first) :]
    return [*coverage.in_two_rounds(first), *([slow] if slow else [])]


def _call(coverage: Coverage, mutant: Mutant, tests: list[str]) -> Call:
    seconds = sum(coverage.seconds.get(test, 10.0) for test in tests)
    return Call(["-x", *tests], 180 + 12 * seconds, mutant.files, mutant.text)


def _within(coverage: Coverage, tests: list[str], budget: float) -> list[str]:
    """As many of ``tests`` as take ``budget`` seconds together, the first in any case."""
    taken = []
    spent = 0.0
    for test in tests:
        spent += coverage.seconds.get(test, 0.0)
        if taken and spent > budget:
            break
        taken.append(test)
    return taken


def _rate(sample: int, count: Counter[str]) -> float:
    return count["killed"] / sample if sample else 1.0


def _row(package: str, mutants: int, sample: int, count: Counter[str], excused: int) -> str:
    rest = f"{count['survived']} survived, {count['unexecuted']} never executed, {excused} excused"
    return f"{package:26} {mutants:7} {sample:6} {count['killed']:6} {_rate(sample, count):5.0%}   {rest}"
