"""``python -m llmb_train.catalogue OUT.json [--date 2026-11-22]``: write the catalogue of this Python's engine."""

from __future__ import annotations

import argparse
import datetime
import logging
import os
import sys
import warnings
from pathlib import Path

from llmb_train.errors import TrainError


def main(arguments: list[str]) -> int:
    """Write the catalogue. Exit status: 0 written, 3 this Python has no engine with performance recipes."""
    parser = argparse.ArgumentParser(prog="python -m llmb_train.catalogue", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="the date in it (default: today)")
    options = parser.parse_args(arguments)
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    try:
        from llmb_train.catalogue import document, functions
        from llmb_train.no_te import stubs

        functions.names()  # an engine without them is told before torch is imported
        stubs.install()
        found = document.rows()
    except TrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    options.file.write_text(document.text(found, options.date), encoding="utf-8")
    print(f"{len(found)} functions in {options.file}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
