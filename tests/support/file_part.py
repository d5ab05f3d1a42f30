"""The smallest part of an installation."""

from __future__ import annotations

from pathlib import Path

from llmb_install.installation import Installation
from llmb_install.working.artefact import Artefact
from llmb_install.working.reporter import Reporter


class Part(Artefact):
    """A file; ``says`` is what the thorough check finds."""

    def __init__(self, path: Path, download: int = 0, disk: int = 0) -> None:
        self.path, self._download, self._disk = path, download, disk
        self.says: str | None = None
        self.asked_for: list[Installation] = []

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def download(self) -> int:
        return self._download

    @property
    def disk(self) -> int:
        return self._disk

    def is_complete(self) -> bool:
        return self.path.exists()

    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        reporter.log(f"details of {self.id}")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        self.says = None
        return True

    def verify(self) -> str | None:
        return self.says

    def show(self) -> str:
        return f"make {self.id}"
