"""What uv prints while it works, as something short for the progress line.

Standard library only, as ``environment_build``, which uses this.
"""

from __future__ import annotations

import re

from llmb_install.working.reporter import Step


class Progress:
    """Called with each line; ``total`` packages are expected, 0: unknown."""

    def __init__(self, step: Step, what: str, total: int = 0) -> None:
        self._step = step
        self._what = f"{what} ({total})" if total else what

    def __call__(self, line: str) -> None:
        text = line.strip()
        if download := re.match(r"Downloading (\S+) \((.*)\)", text):
            self._step.update(f"{self._what}: downloading {download[1]} ({download[2]})")
        elif text.startswith("Building "):
            self._step.update(f"{self._what}: {text.lower()}")
        elif text.startswith("Installed "):
            self._step.update(f"{self._what}: compiling")
