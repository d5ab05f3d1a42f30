"""What nodes keep of their kernel's log, made from the signatures of failures: ``python -m tools --write kernel``."""

from __future__ import annotations

import re
from pathlib import Path

from llmb_common.base.errors import RecipeError
from llmb_common.base.strict_yaml import read_text
from llmb_common.causes.table import kernel_patterns

_COMMON = Path(__file__).resolve().parent.parent / "common"
SHELL = _COMMON / "llmb_common" / "submission" / "kernel.sh"
MODULE = _COMMON / "llmb_train" / "nodes" / "kernel_lines.py"

_MODULE = '''"""What a node's kernel says of failures, from causes/signatures.yaml: python -m tools --write kernel."""

PATTERNS = (
{patterns})
'''


def files() -> dict[Path, str]:
    """The script that runs on the nodes of a job that failed, and the module that does on nodes that are looked at."""
    lines = "".join(f"{pattern}\n" for pattern in kernel_patterns())
    head, tail = re.split(r"(?<=<< 'KNOWN'\n)(?:.*\n)*?(?=KNOWN\n)", read_text(SHELL, RecipeError))
    literals = "".join(f"    {_literal(pattern)},\n" for pattern in kernel_patterns())
    return {SHELL: f"{head}{lines}{tail}", MODULE: _MODULE.format(patterns=literals)}


def _literal(pattern: str) -> str:
    """``pattern`` in a Python file, as ruff has it."""
    raw = "r" if "\\" in pattern else ""
    return f'{raw}"{pattern}"'
