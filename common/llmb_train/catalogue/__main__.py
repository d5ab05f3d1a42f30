"""``python -m llmb_train.catalogue OUT.json [--validation | --fields] [--date 2026-11-22] [--base BASE.json]``: write
the catalogue of this Python's engine, what Megatron's own validation says of each function in it, or every field of the
framework's configuration (of a release without functions, too)."""

from __future__ import annotations

import argparse
import datetime
import logging
import sys
import warnings
from pathlib import Path

from llmb_train.errors import TrainError


def main(arguments: list[str]) -> int:
    """Write the file. Exit status: 0 written, 3 this Python has no engine with performance recipes."""
    parser = argparse.ArgumentParser(prog="python -m llmb_train.catalogue", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--validation", action="store_true", help="validate the functions instead of listing them")
    parser.add_argument("--fields", action="store_true", help="list the fields of the configuration instead")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="the date in it (default: today)")
    parser.add_argument("--base", type=Path, help="another release's catalogue beside it: write what differs only")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    missing: dict[str, str] = {}
    try:
        from llmb_train import cpu
        from llmb_train.catalogue import document, fields, functions

        if options.fields:
            cpu.install()
            options.file.write_text(fields.fields_text(), encoding="utf-8")
            return 0
        functions.names()  # an engine without them is reported before torch is imported
        cpu.install()  # some functions ask what GPU there is
        if options.validation:
            from llmb_train.catalogue import validation

            found = {name: validation.validate(name) for name in functions.names()}
            text = validation.text(found, options.date)
        else:
            found, missing = document.rows()
            text = document.text(found, missing, options.date, options.base)
    except TrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    options.file.write_text(text, encoding="utf-8")
    for name, why in missing.items():
        print(f"left out: {name}: {why}", file=sys.stderr)
    print(f"{len(found)} functions in {options.file}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
