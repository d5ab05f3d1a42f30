"""What pip and uv print while they work, as something short for the progress line.

Standard library only, as ``environment_build``, which uses this.
"""

from __future__ import annotations

import re
from pathlib import Path

from llmb_install.working.reporter import Step

_BROKEN = re.compile(
    r"after connection broken by '.*?(?P<why>Cannot connect to proxy|\[SSL[^\]]*\][^(')]*|\[Errno[^\]]*\] [^(')\"]+"
    r"|[Rr]ead timed out|Tunnel connection failed: [^(')\"]+|Remote end closed connection)"
)
"""pip's warning before it tries again, of which it says nothing more at the end."""


class Progress:
    """Called with each line; ``total`` packages are expected, 0: unknown."""

    def __init__(self, folder: Path, step: Step, what: str, total: int = 0) -> None:
        self._folder, self._step, self._what, self._total = folder, step, what, total
        self._seen = 0
        self.unreachable = ""
        """Why pip could not reach an index, in the system's words: pip itself then speaks of versions."""

    def __call__(self, line: str) -> None:
        text = line.strip()
        if broken := _BROKEN.search(text):
            self.unreachable = broken["why"]
        of_total = f" of {self._total}" if self._total else ""
        if text.startswith(("Collecting ", "Processing ", "Obtaining ", "Requirement already satisfied")):
            self._seen += 1
            self._step.update(f"{self._what} {self._seen}{of_total}")
        elif download := re.match(r"Downloading (\S+?)-[0-9]\S* \((.*)\)", text):
            self._step.update(f"{self._what} {self._seen}{of_total}, downloading {download[1]} ({download[2]})")
        elif text.startswith("Installing collected packages"):
            self._step.update(lambda: f"unpacked {self._unpacked()}{of_total} packages")
        elif text.startswith(("Installing build dependencies", "Building ", "Preparing ")):
            self._step.update(f"{self._what}: {text.rstrip('. ').lower()}")
        else:
            self._uv(text)

    def _uv(self, text: str) -> None:
        if download := re.match(r"Downloading (\S+) \((.*)\)", text):
            self._step.update(f"{self._what}: downloading {download[1]} ({download[2]})")
        elif text.startswith("Installed "):
            self._step.update(f"{self._what}: compiling")

    def _unpacked(self) -> int:
        return sum(1 for _ in self._folder.glob("lib/python3.*/site-packages/*.dist-info"))
