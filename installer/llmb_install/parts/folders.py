"""The answers on disk, and the folders of the workloads' results."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from llmb_common.machine.files import write_atomic
from llmb_install.working.artefact import Artefact
from llmb_install.working.reporter import Reporter

ANSWERS_FILE = Path(".llmb") / "answers.yaml"


@dataclass(frozen=True)
class AnswersFile(Artefact):
    """``.llmb/answers.yaml``: the answers that later commands use."""

    path: Path
    text: str

    id = "answers"

    def is_complete(self) -> bool:
        try:
            return self.path.read_text(encoding="utf-8") == self.text
        except (FileNotFoundError, UnicodeDecodeError):
            return False

    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        if self.is_complete():
            return False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path, self.text)
        return True

    def verify(self) -> str | None:
        return None if self.is_complete() else f"{self.path} is missing or differs from the answers given"

    def show(self) -> str:
        return f"write {self.path}"


@dataclass(frozen=True)
class WorkloadFolders(Artefact):
    """The folders that hold the runs of each workload."""

    folders: tuple[Path, ...]

    id = "workloads"

    def is_complete(self) -> bool:
        return all(folder.is_dir() for folder in self.folders)

    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        if self.is_complete():
            return False
        for folder in self.folders:
            folder.mkdir(parents=True, exist_ok=True)
        return True

    def verify(self) -> str | None:
        bad = [str(folder) for folder in self.folders if not folder.is_dir() or _owner_cannot_write(folder)]
        return f"missing or not writable: {', '.join(bad)}" if bad else None

    def show(self) -> str:
        return "make " + ", ".join(map(str, self.folders))


def _owner_cannot_write(folder: Path) -> bool:
    """Whether we own it and cannot write to it. Colleagues need not: they keep runs in folders of their own."""
    return folder.stat().st_uid == os.geteuid() and not os.access(folder, os.W_OK)
