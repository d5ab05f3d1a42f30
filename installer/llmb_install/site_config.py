"""Writing ``cluster_config.yaml``: only the keys that changed, with everybody's comments kept."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmb_common.cluster import FILE_NAME, load_cluster_config
from llmb_common.errors import ConfigError
from llmb_common.files import write_atomic

_HEADER = "# What LLMB knows about this machine. Written by the installer; edit freely, comments survive.\n"


def update_site_config(install: Path, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> bool:
    """Set ``values`` in the installation's ``cluster_config.yaml``, and ``defaults`` where the key is missing.

    Nested mappings are merged key by key. Returns whether the file had to be written. Raises ConfigError where the
    existing file is wrong: a mistake by hand is shown, not overwritten.
    """
    from ruamel.yaml import YAML

    path = install / FILE_NAME
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    if path.exists():
        load_cluster_config(install)
        text = path.read_text(encoding="utf-8")
        document = yaml.load(text)
    else:
        text = ""
        document = yaml.load(_HEADER + "schema: 1\n")
    for key, value in (defaults or {}).items():
        if key not in document:
            document[key] = value
    _merge(document, values)
    stream = io.StringIO()
    yaml.dump(document, stream)
    if stream.getvalue() == text:
        return False
    install.mkdir(parents=True, exist_ok=True)
    write_atomic(path, stream.getvalue())
    try:
        load_cluster_config(install)
    except ConfigError as error:
        raise AssertionError(f"the installer wrote a cluster_config.yaml that cannot be read: {error}") from error
    return True


def _merge(document: Any, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(document.get(key), Mapping):
            _merge(document[key], value)
        elif document.get(key) != value:
            document[key] = value
