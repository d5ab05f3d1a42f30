"""The keyboard of a dialogue: keys pressed too early, and the way back."""

from __future__ import annotations

import contextlib
import sys
import termios
from typing import Any


class Back(Exception):
    """The user wants the question before this one."""


def forget_keys() -> None:
    """Drop keys typed before the question was shown: they would answer it, and those after it."""
    with contextlib.suppress(termios.error, OSError, ValueError):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    if "prompt_toolkit" in sys.modules:
        # The keys that came together with the last answer: prompt_toolkit keeps them for the next question.
        from prompt_toolkit.application.current import get_app_session
        from prompt_toolkit.input.typeahead import clear_typeahead

        clear_typeahead(get_app_session().input)


def with_way_back(question: Any) -> Any:
    """The questionary question, with Shift-Tab raising ``Back``."""
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent, merge_key_bindings

    keys = KeyBindings()

    @keys.add("s-tab", eager=True)
    def _back(event: KeyPressEvent) -> None:
        event.app.exit(exception=Back())

    application = question.application
    application.key_bindings = merge_key_bindings([*filter(None, [application.key_bindings]), keys])
    return question
