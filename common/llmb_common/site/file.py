"""The text of ``cluster_config.yaml``."""

from __future__ import annotations

from pathlib import Path

from llmb_common.errors import ConfigError
from llmb_common.strict_yaml import read_text

FILE_NAME = "cluster_config.yaml"


def config_text(install: Path | None) -> str | None:
    """What the configuration of the installation ``install`` says; None where it has none.

    Raises:
        ConfigError: it cannot be read.
    """
    if install is None:
        return None
    path = install / FILE_NAME
    try:
        if not path.exists():
            return None
    except OSError as error:
        raise ConfigError(
            f"cannot look for {path}: {error.strerror or error}", remedy="correct LLMB_INSTALL, or its permissions"
        ) from error
    return read_text(path)
