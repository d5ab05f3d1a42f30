"""Which unit test executes which line of the code, in itself or in the programs that it starts.

Recorded once for each file of tests, and again when it, the code, or what tests share has changed.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mutation.mutants import Mutant
from mutation.shell import is_shell
from mutation.trees import SOURCES, Call, Trees, tracked_files

SECONDS = 1800.0
"""How long one file of tests may take."""


BEFORE = "*"
"""In place of tests: executed before the first of the file, by importing, or by an engine that serves all of them."""


class Coverage:
    """Tests by line, the CPU seconds of each, and which fail without any mutant."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self._tests: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._texts: dict[str, list[str]] = {}
        self._functions: dict[str, dict[str, str]] = {}
        self._naming: dict[str, str] = {}

    def add(self, recorded: dict[str, Any], root: Path) -> None:
        self.seconds.update(recorded["seconds"])
        self.failed.update(recorded["failed"])
        for file in {_file(test) for test in recorded["seconds"]} - self._functions.keys():
            self._naming[file] = (root / file).read_text(encoding="utf-8")
            self._functions[file] = _functions_of(self._naming[file])
        for file, lines in recorded["lines"].items():
            if file not in self._texts and (root / file).is_file():
                self._texts[file] = (root / file).read_text(encoding="utf-8").splitlines()
            for line, tests in lines.items():
                executing = recorded["seconds"] if tests == [BEFORE] else tests
                self._tests[file][int(line)].update(test for test in executing if test not in self.failed)

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that execute the mutant, the quickest first; of a shell file those in files that name it.

        A constant is executed by importing it: those tests count that execute a line where its name stands or have it
        themselves, or else those of its file.
        """
        found: set[str] = set()
        for line in mutant.lines:
            found |= self._tests[mutant.file][line]
        if mutant.names:
            wanted = re.compile(rf"\b({'|'.join(map(re.escape, mutant.names))})\b")
            for file, lines in self._texts.items():
                for number, text in enumerate(lines, 1):
                    if text[:1].isspace() and wanted.search(text):
                        found |= self._tests[file].get(number, set())
            found |= {test for test in self.seconds.keys() - self.failed if wanted.search(self._text_of(test))}
        if is_shell(mutant.file):
            names = ["/".join(Path(file).parts[-2:]) for file in mutant.files]
            naming = {file for file, text in self._naming.items() if any(name in text for name in names)}
            found = {test for test in self.seconds.keys() - self.failed if _file(test) in naming}
        elif not found and not mutant.lines:
            found.update(*self._tests[mutant.file].values())
        # What a fixture executes for all tests of its file, the first of them has executed.
        sharing = {_file(test) for test in found if 'scope="module"' in self._naming[_file(test)]}
        found |= {test for test in self.seconds.keys() - self.failed if _file(test) in sharing}
        return sorted(found, key=lambda test: (self.seconds.get(test, 0.0), test))

    def _text_of(self, test: str) -> str:
        return self._functions[_file(test)].get(test.partition("[")[0].rpartition("::")[2], "")

    def in_two_rounds(self, tests: list[str]) -> list[list[str]]:
        """``tests`` of the two files of which they are the largest part, and the others; no round is empty."""
        part = Counter(map(_file, tests))
        whole = Counter(map(_file, self.seconds))
        first = sorted(part, key=lambda file: (-part[file] / whole[file], file))[:2]
        rounds = [[test for test in tests if (_file(test) in first) is wanted] for wanted in (True, False)]
        return [tests for tests in rounds if tests]


def _file(test: str) -> str:
    return test.partition("::")[0]


def _functions_of(text: str) -> dict[str, str]:
    """The text of each test function, with its parameters."""
    lines = text.splitlines()
    return {
        node.name: "\n".join(lines[min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1 : node.end_lineno])
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    }


def map_tests(trees: Trees, tests: Sequence[str], say: Callable[[str], None]) -> Coverage:
    """Run each file of tests that ``tests`` name, or that lies below them, where it was not recorded yet; results stay
    in .test/mutation.

    Raises:
        SystemExit: one of ``tests`` is no file of tests and has none
    """
    names = [name for name in tracked_files(trees.root) if name.endswith((".py", ".sh", ".yaml", ".json"))]
    known = [name for name in names if name.startswith("tests/") and Path(name).name.startswith("test_")]
    asked = {path: [name for name in known if name == path or name.startswith(f"{path}/")] for path in tests}
    if nothing := [path for path, found in asked.items() if not found]:
        raise SystemExit(f"there are no tests in {', '.join(nothing)}")
    files = sorted({name for found in asked.values() for name in found})
    ours = ("tests/mutation/", "tests/mutate.py")
    shared = [name for name in names if not Path(name).name.startswith("test_") and not name.startswith(ours)]
    folder = trees.root / ".test" / "mutation" / _digest(trees.root, shared)
    folder.mkdir(parents=True, exist_ok=True)
    records = {name: folder / f"{Path(name).stem}-{_digest(trees.root, [name])}.json" for name in files}
    missing = [name for name in files if not records[name].is_file()]
    if missing:
        say(f"recording which lines {len(missing)} of {len(files)} files of tests execute")
    calls = [
        Call([name], SECONDS, around=lambda tree, to=records[name]: _recorded(trees.root, tree, to)) for name in missing
    ]
    for number, status in trees.run(calls):
        if not records[missing[number]].is_file():
            say(f"{missing[number]}: left out, pytest ended with status {status} before it was recorded")
    coverage = Coverage()
    for path in records.values():
        if path.is_file():
            coverage.add(json.loads(path.read_text()), trees.root)
    if coverage.failed:
        say(f"left out, as they fail while they are recorded: {', '.join(sorted(coverage.failed))}")
    return coverage


def _digest(root: Path, names: list[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode() + b"\0" + (root / name).read_bytes())
    return digest.hexdigest()[:16]


class _Recorder:
    """A plugin of pytest: each test is a context of its own in the recorded lines."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)
        self.seconds[nodeid] = -_cpu_seconds()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] += _cpu_seconds()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.outcome == "failed":
            self.failed.add(report.nodeid)


def _cpu_seconds() -> float:
    """Of this process, the programs that it has waited for, and those that go on (training engines): how long a test
    takes says how busy the machine is."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    running = children.read_text().split() if children.exists() else []  # not every kernel has it
    return sum(os.times()[:4]) + sum(map(_spent_by, running))


def _spent_by(pid: str) -> float:
    """With its own children that have ended; 0 where it has ended itself."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _recorded(root: Path, tree: Path, to: Path) -> Iterator[list[Any]]:
    """Record what this process executes, and its children, whose context pytest tells them in PYTEST_CURRENT_TEST."""
    from coverage import Coverage as Recording

    data = tree.parent / f"coverage-{to.stem}"
    sources = "".join(f"\n  {tree / source}" for source in SOURCES)
    settings = tree.parent / f"{to.stem}.ini"
    # _exit: what forks do that end on the spot, as if they had been killed
    text = f"[run]\ndata_file = {data}\nparallel = true\npatch = _exit\nsource ={sources}\n"
    settings.write_text(text)
    children = settings.with_suffix(".children.ini")
    children.write_text(text + "context = ${PYTEST_CURRENT_TEST-}\n")
    os.environ["COVERAGE_PROCESS_START"] = str(children)
    os.environ["LLMB_TEST_RECORDING"] = str(_for_engines(settings.with_suffix("")))
    recording = Recording(config_file=str(settings))
    recorder = _Recorder(recording)
    recording.start()
    try:
        yield [recorder]
    finally:
        recording.stop()
    recording.save()
    recording.combine()
    lines: dict[str, dict[int, list[str]]] = {}
    found = recording.get_data()
    for file in found.measured_files():
        lines[str(Path(file).relative_to(tree))] = {
            line: sorted({_test(name) for name in names} & recorder.seconds.keys()) or [BEFORE]
            for line, names in found.contexts_by_lineno(file).items()
        }
    value = {"seconds": recorder.seconds, "failed": sorted(recorder.failed), "lines": lines}
    temporary = to.with_suffix(f".{time.time_ns()}")
    temporary.write_text(json.dumps(value))
    temporary.replace(to)


def _for_engines(folder: Path) -> Path:
    """A folder on the path of training engines, whose Pythons have no recorder of their own."""
    import coverage

    folder.mkdir(exist_ok=True)
    (folder / "coverage").symlink_to(Path(coverage.__file__).parent)
    (folder / "sitecustomize.py").write_text("import coverage\ncoverage.process_startup()\n")
    return folder


def _test(context: str) -> str:
    """``file::test[parameter] (call)``, as pytest tells children, is ``file::test[parameter]``."""
    return re.sub(r" \((setup|call|teardown)\)$", "", context.strip("|"))
