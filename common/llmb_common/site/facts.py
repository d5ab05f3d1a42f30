"""The few facts of ``cluster_config.yaml`` that lists and completion need, kept so that they are known at once.

Reading the file in full takes 20 ms, most of it PyYAML's import. So what it said is kept in the user's own cache
folder, together with the whole text: another text is read in full, and nobody else's file is believed. Without a cache
folder everything works as well, only slower. Standard library only.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from llmb_common.errors import RecordError
from llmb_common.site import FILE_NAME
from llmb_common.trust import require_trusted

if TYPE_CHECKING:
    from llmb_common.site.cluster import ClusterConfig

_MOST = 20
"""How many texts are remembered, the oldest forgotten first."""


class SiteFacts(NamedTuple):
    """Keys of ``cluster_config.yaml``, or their defaults."""

    repo: str | None = None
    gpu_type: str | None = None
    workloads: tuple[str, ...] = ()


def read_facts(install: Path | None) -> SiteFacts:
    """The facts of the installation ``install``.

    Raises:
        ConfigError: its configuration is wrong, or cannot be read; with file and line.
    """
    if install is None:
        return SiteFacts()
    try:
        text = (install / FILE_NAME).read_bytes().decode()
    except FileNotFoundError:
        return SiteFacts()
    except (OSError, UnicodeDecodeError):
        from llmb_common.site.cluster import load_cluster_config

        return _facts(load_cluster_config(install))  # which says what is wrong
    require_trusted(install / FILE_NAME, install)
    kept = _kept()
    if text in kept:
        return kept[text]
    from llmb_common.site.cluster import parse_cluster_config

    facts = _facts(parse_cluster_config(text, install / FILE_NAME))
    _keep({**kept, text: facts})
    return facts


def _facts(config: ClusterConfig) -> SiteFacts:
    return SiteFacts(config.repo, config.gpu_type, config.workloads)


def _file(variables: Mapping[str, str] = os.environ) -> Path | None:
    base = variables.get("XDG_CACHE_HOME") or os.path.join(variables.get("HOME", ""), ".cache")  # noqa: PTH118
    return Path(base) / "llmb" / "sites.json" if os.path.isabs(base) else None  # noqa: PTH117


def _kept() -> dict[str, SiteFacts]:
    """Facts by the text that says them; none where the file is missing, damaged or not ours alone."""
    file = _file()
    try:
        if file is None or not (_ours(file.parent, stat.S_IFDIR) and _ours(file, stat.S_IFREG)):
            return {}
        found = json.loads(file.read_bytes())
        return {text: SiteFacts(repo, gpu, tuple(names)) for text, (repo, gpu, names) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _keep(facts: Mapping[str, SiteFacts]) -> None:
    """Remember ``facts`` for the next command, where this user has a folder for that."""
    from llmb_common.files import write_atomic

    file = _file()
    try:
        # Not for root with somebody else's HOME: a folder of root's would be in that user's way.
        if file is None or not _ours(file.parent.parent, stat.S_IFDIR):
            return
        file.parent.mkdir(mode=0o700, exist_ok=True)
        if _ours(file.parent, stat.S_IFDIR):
            newest = dict(list(facts.items())[-_MOST:])
            write_atomic(file, json.dumps(newest) + "\n", mode=0o600, sync_folder=False)
    except (OSError, RecordError):
        return


def _ours(path: Path, kind: int) -> bool:
    """Whether ``path`` is of that kind (no link), ours, and nobody else may write to it."""
    status = path.lstat()
    return stat.S_IFMT(status.st_mode) == kind and status.st_uid == os.geteuid() and not status.st_mode & 0o022
