"""Writing ``cluster_config.yaml``: only the keys that changed, with everybody's comments kept."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmb_common.errors import ConfigError, RecordError
from llmb_common.machine.files import read_json, require_trusted, write_atomic, write_json
from llmb_common.site.cluster import FILE_NAME, load_cluster_config
from llmb_install.parts.files import read_settings
from llmb_install.working.artefact import Artefact

_RECORD = Path(".llmb") / "site-config.json"
_HEADER = "# What LLMB knows about this machine. Written by the installer; edit freely, comments survive.\n"

Leaves = dict[tuple[str, ...], Any]
"""Values by the keys that lead to them, such as ``("slurm", "account")``."""


@dataclass(frozen=True)
class SiteConfig(Artefact):
    """``cluster_config.yaml``, with ``values`` from the answers.

    What the installer wrote last time is on record. Values that are other now, or that the file has no key for, are
    written, and those that the answers do not name any more are removed. What somebody has changed by hand stays,
    ``null`` included.
    """

    install: Path
    values: Mapping[str, Any]
    needs: tuple[str, ...] = ()

    id = "site-config"

    @property
    def path(self) -> Path:
        return self.install / FILE_NAME

    def is_complete(self) -> bool:
        """Whether there is nothing to do, or to say: ``make`` names a mistake by hand."""
        if not self.path.is_file() or not (data := _read(self.install)):
            return False
        try:
            load_cluster_config(self.install)
        except ConfigError:
            return False
        return self._applied() == leaves(self.values) and not _lacking(data, leaves(self.values))

    def make(self) -> None:
        wanted, applied = leaves(self.values), self._applied()
        dropped = {keys: value for keys, value in (applied or {}).items() if keys not in wanted}
        if applied is not None and self.path.is_file():
            lacking = _lacking(_read(self.install), wanted)
            wanted = {k: v for k, v in wanted.items() if k in lacking or k not in applied or applied[k] != v}
        write_site_config(self.install, wanted, dropped)
        record = self.install / _RECORD
        record.parent.mkdir(parents=True, exist_ok=True)
        write_json(record, self.values)

    def verify(self) -> str | None:
        if not self.path.exists():
            return f"{self.path} is missing"
        data = _read(self.install)
        if not data:
            return f"{self.path} is empty"
        load_cluster_config(self.install)
        if lacking := _lacking(data, leaves(self.values)):
            return f"{self.path} lacks {', '.join(map('.'.join, lacking))} (to do without one, write null)"
        return None if self.is_complete() else f"{self.path} is not up to date"

    def show(self) -> str:
        return f"write {self.path}"

    def _applied(self) -> Leaves | None:
        try:
            applied = read_json(self.install / _RECORD)
        except RecordError:
            return None
        return leaves(applied) if isinstance(applied, dict) else None


def write_site_config(install: Path, values: Leaves, dropped: Leaves | None = None) -> bool:
    """Set ``values`` in the installation's ``cluster_config.yaml``, and remove ``dropped`` where it still says so.

    Returns whether the file had to be written.

    Raises:
        ConfigError: the existing file is wrong. A mistake by hand is shown, not overwritten.
    """
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    path = install / FILE_NAME
    known = _read(install) if path.exists() else {}
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if known:
        load_cluster_config(install)
    document = yaml.load(text if known else f"{text or _HEADER}schema: 1\n")
    document.setdefault("schema", 1)
    for keys, value in values.items():
        _set(document, keys, value)
    for keys, value in (dropped or {}).items():
        _drop(document, keys, value)
    stream = io.StringIO()
    yaml.dump(document, stream)
    if stream.getvalue() == text:
        return False
    install.mkdir(parents=True, exist_ok=True)
    write_atomic(path, stream.getvalue())
    return True


def leaves(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Leaves:
    found: Leaves = {}
    for key, value in values.items():
        found |= leaves(value, (*above, key)) if isinstance(value, Mapping) else {(*above, key): value}
    return found


def _read(install: Path) -> dict[str, Any]:
    require_trusted(install / FILE_NAME, install)
    return read_settings(install / FILE_NAME)[0]


def _lacking(data: Mapping[str, Any], wanted: Leaves) -> list[tuple[str, ...]]:
    """Those of ``wanted`` that ``data`` says nothing of; null, in the place of a whole group too, says something."""

    def lacks(there: Any, keys: tuple[str, ...]) -> bool:
        if not isinstance(there, Mapping) or not keys:
            return False
        return keys[0] not in there or lacks(there[keys[0]], keys[1:])

    return [keys for keys in wanted if lacks(data, keys)]


def _set(document: Any, keys: tuple[str, ...], value: Any) -> None:
    first, *rest = keys
    if not rest:
        if first not in document or document[first] != value:
            document[first] = value
        return
    if not isinstance(document.get(first), Mapping):
        document[first] = {}
    _set(document[first], tuple(rest), value)


def _drop(document: Any, keys: tuple[str, ...], value: Any) -> None:
    """Remove a value, and the group that it leaves empty."""
    first, *rest = keys
    if rest and isinstance(document.get(first), Mapping):
        _drop(document[first], tuple(rest), value)
        if not document[first]:
            del document[first]
    elif not rest and first in document and document[first] == value:
        del document[first]
