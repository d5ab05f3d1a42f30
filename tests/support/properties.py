"""Hypothesis as the tests of properties use it: ``given``, ``settings``, ``st``.

Without Hypothesis those tests are skipped and say so, and the rest of their files runs; ``tests/run`` installs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

try:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st
except ImportError:

    class _Absent:
        """What every strategy is then: each attribute and each call gives it back, and it holds nothing."""

        def __getattr__(self, name: str) -> _Absent:
            return self

        def __call__(self, *_: object, **__: object) -> _Absent:
            return self

        def __iter__(self) -> Iterator[object]:
            return iter(())

    def given(*_: object, **__: object) -> Any:
        return pytest.mark.skip(reason="Hypothesis is not installed here")

    def settings(*_: object, **__: object) -> Callable[[Any], Any]:
        return lambda test: test

    HealthCheck = st = _Absent()
else:
    # The time an example takes mostly shows how busy the machine is.
    settings.register_profile("llmb", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("llmb")

__all__ = ["HealthCheck", "given", "settings", "st"]
