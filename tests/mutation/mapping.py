"""Which file of tests executes which line of the code, in itself or in the programs that it starts.

Recorded once for each file of tests, and again when it, a file of the code of which it executes more than an import
does, or what tests share has changed.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coverage import CoverageData

from mutation.mutants import Mutant
from mutation.shell import is_shell
from mutation.trees import SOURCES, Call, Trees, tracked_files

SECONDS = 1800.0
"""How long one file of tests may take."""

UNSEEN = "tests/training/"
"""Tests here run the code in an engine's Python, where nothing records lines: they are asked about all of it."""

OF_ENGINES = "common/llmb_train/"


@dataclass
class TestFile:
    """A file of tests: its text, the CPU seconds it takes, tests that fail without any mutant, and what it executes."""

    text: str
    seconds: float
    failed: list[str]
    lines: dict[str, set[int]]


@dataclass
class Coverage:
    """Files of tests by name."""

    root: Path
    files: dict[str, TestFile] = field(default_factory=dict)

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The files of tests that execute the mutant, those first that execute most of its file for their time.

        A constant is executed by importing it: those count that execute a line in which its name stands or have it
        themselves, or else all that execute any line of its file. Of a shell file those that name it.
        """
        if is_shell(mutant.file):
            shells = ["/".join(Path(file).parts[-2:]) for file in mutant.files]
            found = {name for name, file in self.files.items() if any(shell in file.text for shell in shells)}
        elif mutant.lines:
            found = self._executing(mutant.file, set(mutant.lines))
        else:
            found = self._naming(mutant.names) or {
                name for name, file in self.files.items() if mutant.file in file.lines
            }
        if mutant.file.startswith(OF_ENGINES):
            found |= {name for name in self.files if name.startswith(UNSEEN)}

        def order(name: str) -> float:
            return self.files[name].seconds / max(len(self.files[name].lines.get(mutant.file, ())), 1)

        return sorted(found, key=order)

    def _executing(self, source: str, numbers: set[int]) -> set[str]:
        return {name for name, file in self.files.items() if file.lines.get(source, set()) & numbers}

    def _naming(self, names: Sequence[str]) -> set[str]:
        if not names:
            return set()
        wanted = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
        found = {name for name, file in self.files.items() if wanted.search(file.text)}
        for source in {source for file in self.files.values() for source in file.lines}:
            texts = enumerate((self.root / source).read_text(encoding="utf-8").splitlines(), 1)
            # What is not indented is executed by importing it.
            found |= self._executing(source, {at for at, text in texts if text[:1].isspace() and wanted.search(text)})
        return found


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
    code = [name for name in shared if name.endswith(".py") and name.split("/")[0] in SOURCES]
    now = {name: _digest(trees.root, [name]) for name in code}
    in_functions = {name: _lines_in_functions((trees.root / name).read_text(encoding="utf-8")) for name in code}
    others = [name for name in shared if name not in code]
    folder = trees.root / ".test" / "mutation" / _digest(trees.root, others, "\n".join(code))
    folder.mkdir(parents=True, exist_ok=True)
    records = {name: folder / f"{Path(name).stem}-{_digest(trees.root, [name])}.json" for name in files}
    missing = [name for name in files if not _is_of_this_code(records[name], now)]
    if missing:
        say(f"recording which lines {len(missing)} of {len(files)} files of tests execute")
    for ended in trees.run([_recording(trees, name) for name in missing]):
        name = missing[ended.number]
        found = {"seconds": ended.seconds, **_recorded(trees, name)}
        found["code"] = {
            file: now[file]
            for file in code
            if name.startswith(UNSEEN) or not in_functions[file].isdisjoint(found["lines"].get(file, ()))
        }
        records[name].write_text(json.dumps(found), encoding="utf-8")
    coverage = Coverage(trees.root)
    for name, path in records.items():
        value = json.loads(path.read_text(encoding="utf-8"))
        lines = {file: set(numbers) for file, numbers in value["lines"].items()}
        text = (trees.root / name).read_text(encoding="utf-8")
        coverage.files[name] = TestFile(text, value["seconds"], value["failed"], lines)
    failed = sorted(test for file in coverage.files.values() for test in file.failed)
    if failed:
        say(f"left out, as they fail while they are recorded: {', '.join(failed)}")
    return coverage


def _is_of_this_code(record: Path, now: Mapping[str, str]) -> bool:
    """Whether there is a record, and each file of the code that was executed then is as it is ``now``."""
    return record.is_file() and json.loads(record.read_text(encoding="utf-8"))["code"].items() <= now.items()


def _lines_in_functions(text: str) -> set[int]:
    """The lines that importing a file of this text does not execute."""
    return {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for statement in node.body
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    }


def _digest(root: Path, names: list[str], text: str = "") -> str:
    digest = hashlib.sha256(text.encode())
    for name in names:
        digest.update(name.encode() + b"\0" + (root / name).read_bytes())
    return digest.hexdigest()[:16]


def _recording(trees: Trees, name: str) -> Call:
    """pytest on one file of tests, recorded by coverage with all its children, also those that end by ``_exit``."""
    folder = _folder(trees, name)
    folder.mkdir()
    sources = "".join(f"\n  {tree / source}" for tree in trees.all for source in SOURCES)
    text = f"[run]\ndata_file = {folder / 'data'}\nparallel = true\npatch = _exit, subprocess\nsource ={sources}\n"
    (folder / "settings").write_text(text)
    command = ["-m", "coverage", "run", f"--rcfile={folder / 'settings'}", "-m", "pytest", "-q"]
    return Call([*command, f"-ocache_dir={folder / 'cache'}", f"--basetemp={folder / 'tmp'}", name], SECONDS)


def _recorded(trees: Trees, name: str) -> dict[str, Any]:
    folder = _folder(trees, name)
    lines: dict[str, set[int]] = {}
    for path in folder.glob("data.*"):
        data = CoverageData(str(path))
        data.read()
        for file in data.measured_files():
            relative = Path(*Path(file).relative_to(trees.folder).parts[1:])
            if executed := data.lines(file):
                lines.setdefault(str(relative), set()).update(executed)
    failed = folder / "cache" / "v" / "cache" / "lastfailed"
    return {
        "failed": sorted(json.loads(failed.read_text())) if failed.exists() else [],
        "lines": {file: sorted(numbers) for file, numbers in sorted(lines.items())},
    }


def _folder(trees: Trees, name: str) -> Path:
    return trees.folder / f"recording-{Path(name).stem}"
