"""``python -m llmb_train.catalogue OUT.json [--validation] [--date 2026-11-22]``: write the catalogue of this Python's
engine, or what Megatron's own validation says of each function in it."""

from __future__ import annotations

import argparse
import datetime
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmb_train.errors import TrainError


def main(arguments: list[str]) -> int:
    """Write the file. Exit status: 0 written, 3 this Python has no engine with performance recipes."""
    parser = argparse.ArgumentParser(prog="python -m llmb_train.catalogue", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--validation", action="store_true", help="validate the functions instead of listing them")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="the date in it (default: today)")
    options = parser.parse_args(arguments)
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    try:
        from llmb_train.catalogue import document, functions
        from llmb_train.no_te import stubs

        functions.names()  # an engine without them is reported before torch is imported
        if options.validation:
            found, text = _validated()
        else:
            stubs.install()
            found, text = document.rows(), document.text
    except TrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    options.file.write_text(text(found, options.date), encoding="utf-8")
    print(f"{len(found)} functions in {options.file}", file=sys.stderr)
    return 0


def _validated() -> tuple[dict[str, Any], Callable[[dict[str, Any], str], str]]:
    from llmb_train import cpu

    cpu.install()
    from llmb_train.catalogue import functions, validation

    return {name: validation.validate(name) for name in functions.names()}, validation.text


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
