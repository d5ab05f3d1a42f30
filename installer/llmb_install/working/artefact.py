"""What an installation consists of: artefacts, each of which says what it is, whether it is there, and makes itself.

Standard library only: the first stage makes one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from llmb_common.errors import EnvironmentLacks
from llmb_install.working.reporter import Reporter


class Room(NamedTuple):
    """Space that making something takes while it is made."""

    folder: Path
    bytes: int
    what: str


class Artefact(ABC):
    """One part of an installation. It looks at what is there, not at what was once noted, so that a command that was
    killed is repaired by giving it again."""

    @property
    @abstractmethod
    def id(self) -> str:
        """Its name in messages and in ``--json``."""

    needs: tuple[str, ...] = ()
    """The ids of those that must be there before."""
    download: int = 0
    disk: int = 0
    """Bytes to download, and on disk, estimated."""

    def room(self) -> Sequence[Room]:
        """The space to make it in; its folders must be writable."""
        return ()

    def lacks(self) -> Sequence[EnvironmentLacks]:
        """What else this machine lacks to make it, found in seconds and without writing anything of it."""
        return ()

    @abstractmethod
    def is_complete(self) -> bool:
        """A quick look, without writing, network or lock."""

    @abstractmethod
    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        """Make it unless it is complete. Returns whether anything changed.

        ``anew``: it is damaged where the quick look sees nothing. What is large is made and checked beside the old one,
        which stays as it is until a rename puts the new one into its place.
        """

    @abstractmethod
    def verify(self) -> str | None:
        """The thorough look: what is wrong, or None."""

    @abstractmethod
    def show(self) -> str:
        """What ``ensure`` would do, for a dry run."""
