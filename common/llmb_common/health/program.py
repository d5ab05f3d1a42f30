"""The program of the nodes: its code travels as an argument, so that a node needs no file system of ours to answer."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmb_common.machine.files import shell_part
from llmb_common.runs.manifest import training_code

_PACKAGE = "llmb_train"
_MODULES = (
    *("__init__", "evidence/__init__", "evidence/ask", "evidence/gpus", "evidence/machine", "evidence/nccl"),
    *("health/__init__", "health/__main__", "health/children", "health/looks", "health/stress", "health/ranks"),
)
PYTHONS = ("python3", "/usr/libexec/platform-python", "python3.12", "python3.11", "python3.10", "python3.9")

_START = """
import importlib.abc, importlib.util, json, sys
SOURCES = json.loads({sources!r})
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            return importlib.util.spec_from_loader(name, self, is_package=name in PACKAGES)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(compile(*SOURCES[module.__name__], "exec"), module.__dict__)
PACKAGES = {{name for name in SOURCES for other in SOURCES if other.startswith(name + ".")}}
sys.meta_path.insert(0, Finder())
from llmb_train.health.__main__ import main
main(json.loads(sys.argv[2]))
"""


def command(spec: dict[str, Any], pythons: Sequence[str]) -> list[str]:
    """The words that run ``spec`` on a node, with the first of ``pythons`` that works there."""
    words = [_code(training_code()), json.dumps(spec, separators=(",", ":")), *dict.fromkeys(pythons)]
    return ["bash", "-c", shell_part(__file__, "node.sh"), "llmb-health", *words]


def _code(folder: Path) -> str:
    """The modules as one argument, which must stay below the 128 KiB that Linux allows."""
    sources = {}
    for name in _MODULES:
        module = f"{_PACKAGE}.{name.replace('/', '.')}".removesuffix(".__init__")
        file = folder / f"{name}.py"
        sources[module] = (file.read_text(encoding="utf-8"), str(file))  # the path is for tracebacks
    text = _START.format(sources=json.dumps(sources))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def parse_frames(output: str) -> dict[str, Any]:
    """What each node said, by its name; None for one without a Python. Lines that are no frames, and frames that are
    damaged or not complete, say nothing."""
    parts: dict[str, dict[int, str]] = {}
    totals: dict[str, int] = {}
    found: dict[str, Any] = {}
    for line in output.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "LLMB-HEALTH" and words[2] == "no-python":
            found[words[1]] = None
        if len(words) != 4 or words[0] != "LLMB-HEALTH":
            continue
        number, _, total = words[2].partition("/")
        if number.isdigit() and total.isdigit():
            totals[words[1]] = int(total)
            parts.setdefault(words[1], {})[int(number)] = words[3]
    for node, pieces in parts.items():
        if set(pieces) == set(range(1, totals[node] + 1)):
            value = _decoded("".join(pieces[number] for number in sorted(pieces)))
            if value is not None:
                found[node] = value
    return found


_MOST_BYTES = 32 << 20


def _decoded(text: str) -> Any:
    """None for what is not ours; a bomb is cut, and no JSON."""
    try:
        raw = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        value = json.loads(raw)
    except (ValueError, zlib.error, RecursionError):
        return None
    return value if isinstance(value, dict) else None
