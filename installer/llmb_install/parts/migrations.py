"""``cluster_config.yaml`` from earlier releases: a numbered list of changes, each from one schema to the next.

A change to the file's format raises the number in ``llmb_common.site.cluster`` and adds a ``Migration`` here. It edits
the document in place, so that comments stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmb_common.errors import ConfigError
from llmb_common.strict_yaml import load_text, read_text


@dataclass(frozen=True)
class Migration:
    """From schema ``old`` to ``old + 1``. ``apply`` gets the document, a mapping of ruamel.yaml."""

    old: int
    apply: Callable[[Any], None]


def _number_it(document: Any) -> None:
    """Files written by hand may have no ``schema``; apart from that they are like those of schema 1."""


MIGRATIONS: Sequence[Migration] = (Migration(0, _number_it),)


def schema_of(path: Path) -> int:
    """The schema of the file, 0 where it names none or is empty.

    Raises:
        ConfigError: the number is not known here, or the file is not YAML (with the line).
    """
    text = read_text(path, ConfigError)
    if is_blank(text):
        return 0
    data, lines = load_text(text, str(path), ConfigError)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}:1: not a mapping of keys", remedy="write KEY: VALUE, one on a line")
    schema = data.get("schema", 0)
    newest = len(MIGRATIONS)
    place = f"{path}:{lines.get('$.schema', 1)}"
    if isinstance(schema, bool) or not isinstance(schema, int) or schema < 0:
        raise ConfigError(
            f"{place}: schema {schema!r} is not a valid schema number", remedy=f"this release writes schema: {newest}"
        )
    if schema > newest:
        raise ConfigError(
            f"{place}: schema {schema} is from a newer release; this one knows up to {newest}",
            remedy="git pull in the clone, then run the same command again",
        )
    return schema


def is_blank(text: str) -> bool:
    """Whether a file says nothing: emptied by hand, or by a disk that was full."""
    return all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines())


def is_current(path: Path) -> bool:
    """Whether the file has the newest schema.

    Raises:
        ConfigError: as ``schema_of``.
    """
    return schema_of(path) == len(MIGRATIONS)


def migrate(document: Any, schema: int) -> None:
    """Bring ``document`` from ``schema`` to the newest one."""
    for migration in MIGRATIONS[schema:]:
        migration.apply(document)
        document["schema"] = migration.old + 1
