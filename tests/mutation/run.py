"""How many small defects do the unit tests notice? Usage: .venv/bin/python tests/mutate.py PATH ...

Each mutant of a sample from each PATH is written into a clone of the repository, where the files of tests run that
execute it; one that fails kills it. Survivors are printed with file, line and change: a missing test, a needless line,
or a change without effect, which tests/mutation/excused.yaml excuses with a reason.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections import Counter
from pathlib import Path

from mutation.excused import Excuses
from mutation.mapping import Coverage, map_tests
from mutation.mutants import Mutant, mutants_of
from mutation.shell import is_shell, shell_mutants_of
from mutation.trees import TIMED_OUT, Call, Trees, tracked_files

ROOT = Path(__file__).parents[2]

MOST = 120.0
"""CPU seconds of all tests that are asked about one mutant."""


def main() -> None:
    asked = _arguments()
    found = {path: [mutant for file in _files(path) for mutant in _mutants(file)] for path in asked.paths}
    os.nice(19)
    excuses = Excuses(ROOT / "tests" / "mutation" / "excused.yaml")
    rows = []
    with Trees(ROOT, asked.jobs) as trees:
        coverage = map_tests(trees, asked.tests or ["tests/unit"], _say)
        for path, mutants in found.items():
            for line in excuses.stale(mutants):
                _say(f"excused.yaml: no such mutant any more: {line}")
            counted = [mutant for mutant in mutants if not excuses.excuse(mutant)]
            sample = _sample(counted, asked.sample, asked.seed)
            count = Counter(_fates(trees, coverage, sample))
            rows.append(_row(path, len(mutants), len(sample), count, len(mutants) - len(counted)))
            _say(rows[-1])
    print(f"\nseed {asked.seed}\n{'path':34} {'mutants':>7} {'sample':>6} {'killed':>6} {'rate':>5}")
    print("\n".join(rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a file or folder: common/llmb_common/submission")
    parser.add_argument("--sample", type=int, default=40, metavar="N", help="mutants of each path (40); 0: all")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="which sample (1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="mutants at a time")
    parser.add_argument(
        "--tests",
        action="append",
        metavar="PATH",
        help="ask only this file or folder of tests; again for more (tests/unit)",
    )
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _mutants(file: str) -> list[Mutant]:
    return shell_mutants_of(ROOT, file) if is_shell(file) else mutants_of(ROOT, file)


def _files(path: str) -> list[str]:
    """The Python and shell files at ``path`` or below it."""
    place = os.path.relpath(Path(path).resolve(), ROOT)
    below = [name for name in tracked_files(ROOT) if name == place or name.startswith(f"{place}/")]
    found = [name for name in below if name.endswith(".py") or is_shell(name)]
    if not found:
        raise SystemExit(f"there is no Python or shell file at {path}")
    return found


def _sample(mutants: list[Mutant], number: int, seed: int) -> list[Mutant]:
    """``number`` of them, in order; the same ones again after changes elsewhere in the file."""
    if number == 0 or len(mutants) <= number:
        return mutants

    def lot(mutant: Mutant) -> bytes:
        name = f"{seed} {mutant.place} {mutant.change} {mutant.nth}"
        return hashlib.sha256(name.encode()).digest()

    drawn = set(sorted(map(lot, mutants))[:number])
    return [mutant for mutant in mutants if lot(mutant) in drawn]


def _fates(trees: Trees, coverage: Coverage, mutants: list[Mutant]) -> list[str]:
    """``killed``, ``survived`` or ``unexecuted`` for each mutant; all but the killed are printed as they are found."""
    fates = []
    executed = []
    for mutant in mutants:
        if coverage.tests_of(mutant):
            executed.append(mutant)
        else:
            fates.append(_settled(mutant, "unexecuted", ""))
    for ended in trees.run([_call(coverage, mutant) for mutant in executed]):
        mutant = executed[ended.number]
        if ended.status == TIMED_OUT:
            _say(f"{mutant.file}:{mutant.line}: out of time, counts as killed")
        if ended.status:
            fates.append("killed")
            continue
        known = coverage.tests_of(mutant)
        asked = _affordable(coverage, known)
        left = f", {len(known) - len(asked)} more not tried" if len(asked) < len(known) else ""
        fates.append(_settled(mutant, "survived", f"   [{len(asked)} files of tests{left}]"))
    return fates


def _settled(mutant: Mutant, fate: str, tried: str) -> str:
    print(f"{fate:10} {mutant.file}:{mutant.line} {mutant.function}: {mutant.change}{tried}", flush=True)
    return fate


def _call(coverage: Coverage, mutant: Mutant) -> Call:
    names = _affordable(coverage, coverage.tests_of(mutant))
    seconds = [coverage.files[name].seconds for name in names]
    failing = [f"--deselect={test}" for name in names for test in coverage.files[name].failed]
    endless = f"--timeout={60 + 12 * max(seconds):.0f}"  # of one test: a change may leave a loop without an end
    command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", endless, *failing, *names]
    return Call(command, 180 + 12 * sum(seconds), mutant.files, mutant.text)


def _affordable(coverage: Coverage, names: list[str]) -> list[str]:
    """As many of these files of tests as take ``MOST`` seconds together, the first in any case."""
    taken = names[:1]
    spent = sum(coverage.files[name].seconds for name in taken)
    for name in names[1:]:
        spent += coverage.files[name].seconds
        if spent > MOST:
            break
        taken.append(name)
    return taken


def _row(path: str, mutants: int, sample: int, count: Counter[str], excused: int) -> str:
    rate = count["killed"] / sample if sample else 1.0
    rest = f"{count['survived']} survived, {count['unexecuted']} never executed, {excused} excused"
    return f"{path:34} {mutants:7} {sample:6} {count['killed']:6} {rate:5.0%}   {rest}"
