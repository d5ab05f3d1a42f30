"""Which runs ``results`` and ``report`` are about, measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmb_common.errors import RequestError
from llmb_common.timing.statistics import Window
from llmb_run.place import Place
from llmb_run.results.measuring import Measured, measure
from llmb_run.selecting import in_words, run_filter, select_rows


def selected(
    place: Place, runs: Sequence[str], filters: dict[str, Any], window: Window | None = None
) -> list[Measured]:
    """The runs that ``runs`` name, or without any all that match the options; at least one.

    Raises:
        RequestError: there is none
    """
    folders = [Path(word) for word in runs if Path(word).exists()]
    names = [word for word in runs if not Path(word).exists()]
    if names or not runs:
        folders += [row.folder for row in select_rows(place, names, run_filter(place, **filters))]
    found = measure(folders, place, window)
    if not found:
        raise RequestError(
            f"no run matches{in_words(filters)}",
            remedy="llmb-run jobs lists the recorded runs; llmb-run single starts one",
        )
    return found
