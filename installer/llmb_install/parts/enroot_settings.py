"""Where Enroot works: its variables, and what the administrator has set in ``enroot.conf``.

As Enroot 4.1.2 reads them (``config::init`` in ``enroot.in``): ``/etc/enroot/enroot.conf``, then the files of
``enroot.conf.d``, ``NAME VALUE`` or ``NAME=VALUE`` a line; a variable that is set already wins. Enroot lets a shell
evaluate the values; here variables are put in, and a value that runs a program is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

CONFIG = Path("/etc/enroot/enroot.conf")

_LINE = re.compile(r"(ENROOT_[A-Z_]+)[ \t=]+(.*\S)")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^{}]*))?\}|([A-Za-z_]\w*))")


def setting(name: str, env: Mapping[str, str]) -> str:
    """The value of an ``ENROOT_`` variable for a caller with ``env``; empty where nobody sets it."""
    if env.get(name):
        return env[name]
    files = [CONFIG, *sorted(CONFIG.with_name(f"{CONFIG.name}.d").glob("*.conf"))]
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            found = _LINE.match(line)
            if found and found[1] == name and (value := expanded(found[2], env)):
                return value
    return ""


def temporary_folder(env: Mapping[str, str]) -> Path:
    """Where layers are unpacked."""
    return Path(setting("ENROOT_TEMP_PATH", env) or env.get("TMPDIR") or "/tmp")


def cache_folder(env: Mapping[str, str]) -> Path:
    """Where downloaded layers are kept."""
    base = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME") or "/") / ".cache")
    return Path(setting("ENROOT_CACHE_PATH", env) or Path(base) / "enroot")


def config_folder(env: Mapping[str, str]) -> Path:
    """The user's own settings: credentials."""
    base = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME") or Path.home()) / ".config")
    return Path(setting("ENROOT_CONFIG_PATH", env) or Path(base) / "enroot")


def expanded(value: str, env: Mapping[str, str]) -> str:
    """A value with its variables put in; empty where it would run a program."""
    if "$(" in value or "`" in value:
        return ""
    text = value.strip("\"'")
    return _VARIABLE.sub(lambda found: env.get(found[1] or found[3]) or found[2] or "", text)
