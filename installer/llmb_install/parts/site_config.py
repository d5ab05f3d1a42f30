"""Writing ``cluster_config.yaml``: only the keys that changed, in its newest schema, with everybody's comments kept."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmb_common.decoding.strict_yaml import load_text, read_text
from llmb_common.errors import ConfigError, RecordError
from llmb_common.machine.files import read_json, write_atomic, write_json
from llmb_common.site.cluster import FILE_NAME, load_cluster_config
from llmb_install.parts import migrations
from llmb_install.working.artefact import Artefact
from llmb_install.working.reporter import Reporter

_RECORD = Path(".llmb") / "site-config.json"
_HEADER = "# What LLMB knows about this machine. Written by the installer; edit freely, comments survive.\n"


def update_site_config(install: Path, values: Mapping[str, Any], dropped: Mapping[str, Any] | None = None) -> bool:
    """Set ``values`` in the installation's ``cluster_config.yaml``, and remove ``dropped`` where it still says so.

    Nested mappings are merged key by key; a file of an earlier release is brought to the newest schema. Returns whether
    the file had to be written.

    Raises:
        ConfigError: the existing file is wrong. A mistake by hand is shown, not overwritten.
    """
    path = install / FILE_NAME
    was_current = not path.exists() or migrations.is_current(path)
    text, new = _edited(path, values, dropped or {})
    if new == text:
        return False
    install.mkdir(parents=True, exist_ok=True)
    write_atomic(path, new)
    try:
        load_cluster_config(install)
    except ConfigError as error:
        if not was_current:
            raise  # a mistake by hand that only the newest schema can tell
        raise AssertionError(f"the installer wrote a cluster_config.yaml that cannot be read: {error}") from error
    return True


def apply_site_values(install: Path, values: Mapping[str, Any]) -> None:
    """Bring ``values`` into the file, but only those that are other than at the last time, or that are not there any
    more, and remove those of the last time that are not among them: what somebody has changed by hand since stays,
    ``null`` included."""
    applied = _applied(install)
    present = (install / FILE_NAME).is_file()
    changes = {**values}
    if present and applied is not None:
        changes = _united(_changes(applied, values), _absent(install, values))
    update_site_config(install, changes, _without_keys_of(values, applied or {}))
    record = install / _RECORD
    record.parent.mkdir(parents=True, exist_ok=True)
    write_json(record, values)


def site_values_are_applied(install: Path, values: Mapping[str, Any]) -> bool:
    """Whether ``apply_site_values`` has nothing to do, or to say: it names a mistake by hand."""
    path = install / FILE_NAME
    if not path.is_file() or not migrations.is_current(path):
        return False
    try:
        load_cluster_config(install)
    except ConfigError:
        return False
    return _applied(install) == values and not _absent(install, values)


@dataclass(frozen=True)
class SiteConfig(Artefact):
    """``cluster_config.yaml``, with ``values`` from the answers."""

    install: Path
    values: Mapping[str, Any]
    needs: tuple[str, ...] = ()

    id = "site-config"

    def is_complete(self) -> bool:
        return site_values_are_applied(self.install, self.values)

    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        if self.is_complete():
            return False
        apply_site_values(self.install, self.values)
        return True

    def verify(self) -> str | None:
        path = self.install / FILE_NAME
        if not path.exists():
            return f"{path} is missing"
        if path.is_file() and migrations.is_blank(read_text(path, ConfigError)):
            return f"{path} is empty"
        complete = self.is_complete()  # first: it tells a file of a later release
        load_cluster_config(self.install)
        if lacking := absent_keys(self.install, self.values):
            return f"{path} lacks {', '.join(lacking)} (to do without one, write null)"
        return None if complete else f"{path} is not up to date"

    def show(self) -> str:
        return f"write {self.install / FILE_NAME}"


def absent_keys(install: Path, values: Mapping[str, Any]) -> list[str]:
    """The keys of ``values`` that the file does not have at all, as ``slurm.account``."""
    return list(_names(_absent(install, values)))


def _names(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _absent(install: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``values`` whose key the file does not have.

    Raises:
        ConfigError: it is not YAML.
    """
    path = install / FILE_NAME
    text = read_text(path, ConfigError)
    data = {} if migrations.is_blank(text) else load_text(text, str(path), ConfigError)[0]
    return _without_keys_of(data if isinstance(data, dict) else {}, values)


def _without_keys_of(data: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key not in data:
            found[key] = value
        elif (
            isinstance(value, Mapping)
            and isinstance(inner := data[key], Mapping)
            and (inside := _without_keys_of(inner, value))
        ):
            found[key] = inside
    return found


def _united(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    both = {**first}
    for key, value in second.items():
        old = both.get(key)
        both[key] = _united(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return both


def _applied(install: Path) -> dict[str, Any] | None:
    try:
        applied = read_json(install / _RECORD)
    except RecordError:
        return None
    return applied if isinstance(applied, dict) else None


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for key, value in new.items():
        if isinstance(value, Mapping):
            inner = old.get(key)
            if inside := _changes(inner if isinstance(inner, Mapping) else {}, value):
                changed[key] = inside
        elif key not in old or old[key] != value:
            changed[key] = value
    return changed


def _edited(path: Path, values: Mapping[str, Any], dropped: Mapping[str, Any]) -> tuple[str, str]:
    """The file's text before and after."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    if path.exists() and migrations.is_blank(path.read_text(encoding="utf-8")):
        text = path.read_text(encoding="utf-8")
        document = yaml.load(f"{text or _HEADER}schema: {len(migrations.MIGRATIONS)}\n")
    elif path.exists():
        schema = migrations.schema_of(path)
        if migrations.is_current(path):
            load_cluster_config(path.parent)
        text = path.read_text(encoding="utf-8")
        document = yaml.load(text)
        migrations.migrate(document, schema)
    else:
        text = ""
        document = yaml.load(f"{_HEADER}schema: {len(migrations.MIGRATIONS)}\n")
    _merge(document, values)
    _drop(document, dropped)
    stream = io.StringIO()
    yaml.dump(document, stream)
    return text, stream.getvalue()


def _merge(document: Any, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(document.get(key), Mapping):
            _merge(document[key], value)
        elif document.get(key) != value:
            document[key] = value


def _drop(document: Any, dropped: Mapping[str, Any]) -> None:
    for key, value in dropped.items():
        found = document.get(key)
        if isinstance(value, Mapping) and isinstance(found, Mapping):
            _drop(found, value)
            if not found:
                del document[key]
        elif key in document and found == value:
            del document[key]
