"""``cluster_config.yaml`` and answers of earlier releases: for each a list of changes, from one schema to the next.

A change to a format raises the number in its struct (``llmb_common.site.cluster``, ``answers.answers``) and adds a
``Migration`` here. It edits the document in place, so that comments stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmb_common.decoding.strict_yaml import Lines, load_text, read_text
from llmb_common.errors import ConfigError, LLMBError
from llmb_common.machine.files import require_trusted

Loader = Callable[[str, str, type[LLMBError]], tuple[Any, Lines]]
"""``strict_yaml.load_text``, or ``load_flat`` where there is no YAML parser."""


@dataclass(frozen=True)
class Migration:
    """From schema ``old`` to ``old + 1``. ``apply`` gets the document, a mapping: ruamel.yaml's, or a dictionary."""

    old: int
    apply: Callable[[Any], None]


def _number_it(document: Any) -> None:
    """Files written by hand may have no ``schema``; apart from that they are like those of schema 1."""


MIGRATIONS: Sequence[Migration] = (Migration(0, _number_it),)
"""The migrations of ``cluster_config.yaml``, from one schema to the next."""

ANSWERS: Sequence[Migration] = (Migration(0, _number_it),)
"""The migrations of ``answers.yaml`` and of play files."""


def schema_of(path: Path) -> int:
    """The schema of ``cluster_config.yaml``, 0 where it names none or is empty.

    Raises:
        ConfigError: the number is not known here, the file is not YAML (with the line), or nobody's who has a say here.
    """
    require_trusted(path, path.parent)
    text = read_text(path, ConfigError)
    return 0 if is_blank(text) else _mapping(text, path, MIGRATIONS)[2]


def read_newest(path: Path, migrations: Sequence[Migration], load: Loader = load_text) -> tuple[dict[str, Any], Lines]:
    """The mapping in a file, brought to its newest schema, and its lines.

    Raises:
        ConfigError: as ``schema_of``, and for a file that says nothing.
    """
    text = read_text(path, ConfigError)
    if is_blank(text):
        raise ConfigError(
            f"{path}:1: the file is empty",
            remedy="restore it, or remove it and run ./installer.py with the answers again",
        )
    data, lines, schema = _mapping(text, path, migrations, load)
    migrate(data, schema, migrations)
    return data, lines


def _mapping(
    text: str, path: Path, migrations: Sequence[Migration], load: Loader = load_text
) -> tuple[dict[str, Any], Lines, int]:
    """What ``text`` says, its lines and its schema."""
    data, lines = load(text, str(path), ConfigError)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}:1: not a mapping of keys", remedy="write KEY: VALUE, one on a line")
    schema = data.get("schema", 0)
    newest = len(migrations)
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
    return data, lines, schema


def is_blank(text: str) -> bool:
    """Whether a file says nothing: emptied by hand, or by a disk that was full."""
    return all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines())


def is_current(path: Path) -> bool:
    """Whether the file has the newest schema.

    Raises:
        ConfigError: as ``schema_of``.
    """
    return schema_of(path) == len(MIGRATIONS)


def migrate(document: Any, schema: int, migrations: Sequence[Migration] | None = None) -> None:
    """Bring ``document`` from ``schema`` to the newest one."""
    for migration in (MIGRATIONS if migrations is None else migrations)[schema:]:
        migration.apply(document)
        document["schema"] = migration.old + 1
