"""Bash that becomes a part of a script and lies in a file of its own, where shellcheck and an editor can read it."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def shell_part(beside: str, name: str) -> str:
    """The text of the file ``name`` in the folder of the module file ``beside``, without its directive for shellcheck.

    Ends without a line break.
    """
    text = (Path(beside).parent / name).read_text(encoding="utf-8")
    directive, _, rest = text.partition("\n")
    if not directive.startswith("# shellcheck shell=bash"):
        raise ValueError(f"{name} does not begin with a directive for shellcheck")
    return rest.strip("\n")
