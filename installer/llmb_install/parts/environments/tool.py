"""The tool's own environment: llmb-run, llmb-install and what they import."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from llmb_install.parts.environments.environment import Environment
from llmb_install.parts.packages import pythons
from llmb_install.working.artefact import Room

TOOL = "llmb"
"""The name of the environment in ``venvs``."""

TOOL_BYTES = 245_000_000
"""Free space to ask for: what is left of it, and what makes that."""

TOOL_IMPORTS = (
    *("msgspec", "yaml", "click", "rich"),
    *("questionary", "ruamel.yaml", "requests", "huggingface_hub", "stamina", "packaging"),
)
"""The modules of every dependency in pyproject.toml: one that is missing must show before a command needs it."""


@dataclass(frozen=True)
class Tool(Environment):
    """``venvs/llmb``: the clone itself, editable, with its dependencies as locked."""

    id = "tool"
    download = 67_000_000
    disk = 66_000_000

    def room(self) -> list[Room]:
        return [Room(self.link.parent, TOOL_BYTES, f"environment {self.name}")]

    def show(self) -> str:
        return f"environment {self.link} with LLMB from {self.editable}"


@dataclass(frozen=True)
class SharedTool(Tool):
    """What the tool needs, without a clone: whose lock is the same has the same one. It is used by its folder, because
    the link leads to that of the lock which came last."""

    def show(self) -> str:
        return f"environment {self.link} with what LLMB needs"

    def _is_linked(self) -> bool:
        return True

    def note_use(self) -> None:
        with contextlib.suppress(OSError):
            os.utime(self.folder)

    def earlier_builds(self) -> list[Path]:
        """Builds of other locks that nobody has used for four weeks."""
        before = time.time() - 28 * 86400
        return [folder for folder in super().earlier_builds() if folder.stat().st_mtime < before]


def shared_tool(clone: Path, home: Path) -> SharedTool:
    whole = tool_environment(clone, home)
    return SharedTool(whole.link, whole.python, whole.lock, TOOL_IMPORTS)


def tool_environment(clone: Path, install: Path) -> Tool:
    python = pythons.find_python(pythons.is_tool_python)
    assert python is not None, "the caller runs on such a Python"
    return Tool(
        link=install / "venvs" / TOOL,
        python=python,
        lock=clone / "installer" / "locks" / "tool.txt",
        build_lock=clone / "installer" / "locks" / "tool-build.txt",
        smoke=("llmb_common", "llmb_install", "llmb_run", "llmb_charts", *TOOL_IMPORTS),
        editable=clone,
    )
