"""Settings of the framework by name, as ``--megatron`` and ``MEGATRON_SETTINGS`` give them: how they are written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from llmb_common.errors import RequestError

_NAME = re.compile(r"[a-z][a-z0-9_]*\.[A-Za-z][A-Za-z0-9_]*")
_EXAMPLE = "for example model.moe_token_dispatcher_type=flex"


def is_setting(name: str) -> bool:
    """Whether ``name`` is written as one: ``model.attention_dropout``."""
    return _NAME.fullmatch(name) is not None


def settings_of(parts: Iterable[str], said: str) -> dict[str, str]:
    """``section.field=value`` each; ``said`` is where they come from.

    Raises:
        RequestError: one is written otherwise, has no value, or is given twice
    """
    found: dict[str, str] = {}
    for part in parts:
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not is_setting(name):
            raise RequestError(f"{said}: {part!r} is not SECTION.FIELD=VALUE", remedy=_EXAMPLE, code="megatron")
        if not value:
            raise RequestError(f"{said}: {name} has no value", remedy=_EXAMPLE, code="megatron")
        if name in found:
            remedy = f"give it once; llmb-run sweep --vary {name}={found[name]},{value} tries both"
            raise RequestError(f"{said}: {name} is given twice", remedy=remedy, code="megatron")
        found[name] = value
    return found


def settings_in(text: str | None, said: str) -> dict[str, str]:
    """Those of a variable: with semicolons between them."""
    return settings_of((part for part in (text or "").split(";") if part.strip()), said)


def settings_text(settings: Mapping[str, str]) -> str:
    """As ``settings_in`` reads them."""
    return ";".join(f"{name}={value}" for name, value in settings.items())
