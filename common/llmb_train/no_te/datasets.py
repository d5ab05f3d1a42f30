"""megatron-core 0.16's dataset helpers, as the wheel has them.

The wheel ships the helpers compiled and leaves the Makefile out; core runs ``make`` all the same, and ends the process
when it fails. A container's source tree has both.
"""

from __future__ import annotations

import importlib.util


def patch() -> None:
    """Do not compile what is compiled already."""
    from megatron.core.datasets import utils

    if importlib.util.find_spec("megatron.core.datasets.helpers_cpp") is not None:
        utils.compile_helpers = lambda: None
