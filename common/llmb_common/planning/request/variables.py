"""Every documented variable of ``launch.sh``, once: what it means, what it may be, its default, its name in messages.

Requests, typing errors, the READMEs' tables and the options of ``llmb-run`` are made from ``variables.json``, which has
the fields of a ``Variable``. It imports little: every help text does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from llmb_common.base import gpus
from llmb_common.base.cluster_types import LOCAL, Variable, all_traits

OF_SCHEDULERS = dict(chain.from_iterable(way.variables.items() for way in all_traits().values()))
"""The variables that only schedulers read, each its own."""


_TABLE: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

COLUMNS: dict[str, str] = {name: name.lower() for name in _TABLE["COLUMNS"]["read"]} | {"SEQ_LENGTH": "seq_len"}
"""The variables that override one column of a row, and the column's name in plans. ``Layout`` has the types."""


def column_of(name: str) -> str | None:
    """Return the layout column that ``name`` means: its variable (``SEQ_LENGTH``) or its own name (``seq_len``).

    Any case of letters is taken, and hyphens for underscores. None: it means no column.
    """
    written = name.upper().replace("-", "_")
    column = written.lower()
    return COLUMNS.get(written, column if column in COLUMNS.values() else None)


def variable_of(column: str) -> str:
    """Return the variable that overrides a layout column, ``SEQ_LENGTH`` for ``seq_len``.

    The column must exist, else there is a StopIteration.
    """
    return next(variable for variable, known in COLUMNS.items() if known == column)


PATIENCE = {
    "LLMB_START_SECONDS": "how long a job may take to its first iteration before it is ended",
    "LLMB_HANG_SECONDS": "how long it may take from one iteration to the next",
    "LLMB_TEARDOWN_SECONDS": "how long it may take to exit after its last iteration",
    "LLMB_WATCH_SECONDS": "how often a job checks that it makes progress; 15 by default",
}
"""Variables of the caller that ``supervise.sh`` reads in the job, and what they set."""


def _gpus_per_node_text() -> str:
    """Return how many GPUs a node has by type, for help texts: ``1 for r100, 4 for gb300 and gb200, else 8``.

    The numbers ascend, types are in the order of ``GPUS``.
    """
    few = sorted({gpu.per_node for gpu in gpus.GPUS.values()} - {8})
    parts = []
    for count in few:
        *others, last = [name for name, gpu in gpus.GPUS.items() if gpu.per_node == count]
        names = f"{', '.join(others)} and {last}" if others else last
        parts.append(f"{count} for {names}")
    return ", ".join([*parts, "else 8"])


def _read_variables() -> dict[str, Variable]:
    """Return every documented variable by its name, in the order of ``variables.json``, from whose content it is made.

    Filled in is what only other tables know: GPU types, ways of running jobs, layout columns.
    """
    found: dict[str, Variable] = {}
    schedulers = [
        f"`{way.name}` where `{way.submits_with}` answers" for way in all_traits().values() if way.submits_with
    ]
    known: dict[str, dict[str, Any]] = {
        "GPU_TYPE": {"meaning": gpus.gpu_types()},
        "GPUS_PER_NODE": {"default": _gpus_per_node_text()},
        "CLUSTER_TYPE": {"meaning": " or ".join(all_traits()), "default": ", else ".join([*schedulers, f"`{LOCAL}`"])},
    }
    for name, entry in _TABLE.items():
        values: dict[str, Any] = entry | known.get(name, {})
        # JSON has lists only, and a ``Variable`` does not change.
        values.update({key: tuple(value) for key, value in entry.items() if isinstance(value, list)})
        if name == "OF_SCHEDULERS":
            found |= OF_SCHEDULERS
        elif name == "COLUMNS":
            found |= {column: Variable(**values | {"read": read}) for column, read in entry["read"].items()}
        else:
            found[name] = Variable(**values)
    return found


VARIABLES = _read_variables()


class FieldNames(NamedTuple):
    """What a front end calls the variables of a request in its messages: command-line options, or their own names.

    Each front end makes its own; without ``options`` variables have their own names. An instance is called with a
    variable's name and, if need be, its value, and returns text: ``GPU_TYPE=h100`` (``GPU_TYPE`` without a value), or
    ``--gpu-type h100`` where there is an option. For the text ``true`` or no value the option stands alone. Any name is
    taken.
    """

    options: Mapping[str, str] = MappingProxyType({})
    """The option of the front end by the variable, ``{"GPU_TYPE": "--gpu-type"}``; those without one are called by
    their own names."""

    def __call__(self, variable: str, value: object = None) -> str:
        """``JOB_TOTAL_GPUS=128`` or ``--scale 128``; a switch that is on is its option alone."""
        option = self.options.get(variable)
        if option is None:
            return variable if value is None else f"{variable}={value}"
        return option if value in (None, "true") else f"{option} {value}"


NAMED = ("workload", "size", "dtype", "scale", "gpu_type", "variant", "engine", "image")
"""What differs between jobs of one command besides columns and variables, as options call it."""

VARIABLE_NAMES = FieldNames()
"""The columns by the names that ``launch.sh`` uses."""
