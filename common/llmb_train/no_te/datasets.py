"""megatron-core's dataset helpers, without compiling them.

Core runs ``make`` for them, and ends the process when that fails: a wheel has no Makefile, and of a source tree's a
machine may lack the compiler or pybind11. Wheels have them compiled, that of core 0.19 for Python 3.12 only. Where they
are not, numpy computes the sample index, which is all that synthetic data needs.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

_HELPERS = "megatron.core.datasets.helpers_cpp"


def patch() -> None:
    """Take the helpers that are compiled already, else numpy's."""
    from megatron.core.datasets import utils

    if importlib.util.find_spec(_HELPERS) is None:
        helpers: Any = types.ModuleType(_HELPERS)
        helpers.build_sample_idx_int32 = helpers.build_sample_idx_int64 = sample_index
        sys.modules[_HELPERS] = helpers
    utils.compile_helpers = lambda: None


def sample_index(
    sizes: Any, documents: Any, length: int, epochs: int, tokens: int, drop_last: bool = True, extra: int = 1
) -> Any:
    """Where each sample of ``length`` tokens begins: [samples + 1, 2] of position in ``documents`` and offset in it.

    ``sizes``: tokens of each document; ``documents``: the order in which ``epochs`` times ``tokens`` tokens are read;
    ``extra``: tokens that a sample shares with the next one. As core's ``build_sample_idx``.
    """
    import numpy  # type: ignore[import-not-found, unused-ignore]

    total = epochs * tokens - extra
    samples = total // length if drop_last else -(-total // length)
    ends = numpy.cumsum(sizes[documents].astype(numpy.int64))
    starts = numpy.minimum(numpy.arange(samples + 1, dtype=numpy.int64) * length, ends[-1] - 1)
    document = numpy.searchsorted(ends, starts, side="right")
    offset = starts - (ends[document] - sizes[documents[document]])
    return numpy.stack([document, offset], axis=1).astype(documents.dtype)
