"""How a front end calls the fields of a request: ``launch.sh`` by their variables, ``llmb-run`` by its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class FieldNames:
    """Names for messages. ``options``: the option for a field, by the field's variable; without one, the variable."""

    options: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, variable: str, value: object = None) -> str:
        """``JOB_TOTAL_GPUS=128`` or ``--scale 128``; a switch that is on is its option alone."""
        option = self.options.get(variable)
        if option is None:
            return variable if value is None else f"{variable}={value}"
        return option if value in (None, "true") else f"{option} {value}"


VARIABLE_NAMES = FieldNames()
"""The columns by the names that ``launch.sh`` uses."""
