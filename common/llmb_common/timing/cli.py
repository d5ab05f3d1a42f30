"""The command behind ``parse_train_timing.sh`` and ``parse_train_timing_mbridge.sh``."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from llmb_common.errors import Interrupted, LLMBError, RequestError, did_you_mean
from llmb_common.printable import printable, printable_output
from llmb_common.timing.runs import RunTiming, analyse, find_runs
from llmb_common.timing.statistics import Window
from llmb_common.timing.tables import STYLES, TableFormat, render

_PROGRAMS = {"mbridge": "parse_train_timing_mbridge.sh", "nemo": "parse_train_timing.sh"}
_FORMATS: tuple[TableFormat, ...] = ("table", "csv", "json")
_OPTIONS = ("--format", "--full-names", "--window", "--help")

_HELP = """\
Usage: {program} [FOLDER] [options]

Mean and standard deviation of the training step time ({unit}) and of TFLOP/s per GPU over iterations {window}, for
every run under FOLDER (default: experiments). Reads the logs of Megatron-Bridge and of NeMo 2.

Options:
  --format=table|csv|json  output format (default: table)
  --full-names             do not shorten long names (csv and json never do)
  --window=FIRST-LAST      other iterations, both included (default: {window})
  -h, --help               this text

Status: Success; Failed (it died, or a loss is NaN or inf); Incomplete (healthy, but not all of these iterations are
there); Running. Why a run is not a Success stands on stderr, and in csv and json.

Exit status: 0 all runs are a Success; 1 some are not; 2 the request is wrong; 3 no suitable Python.
"""


@dataclass(frozen=True)
class Options:
    folder: Path
    output: TableFormat
    full_names: bool
    window: Window


def main(arguments: list[str] | None = None) -> int:
    """``mbridge|nemo [FOLDER] [options]``; gives the exit status."""
    with printable_output():
        return _main(arguments)


def _main(arguments: list[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        # A file name need not fit the terminal's encoding.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except BrokenPipeError:
        # The reader (head, less) has gone; let the interpreter's last flush go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return Interrupted.exit_status
    except LLMBError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in STYLES:
        raise RequestError("the first argument is mbridge or nemo", remedy=f"or use common/{_PROGRAMS['mbridge']}")
    style = STYLES[arguments[0]]
    if "-h" in arguments or "--help" in arguments:
        program = _PROGRAMS[arguments[0]]
        print(_HELP.format(program=program, unit=style.unit, window=style.window), end="")
        return 0
    options = parse_options(arguments[1:], style.window)
    runs = find_runs(options.folder)
    if not runs:
        raise RequestError(
            f"no run under {options.folder}",
            remedy="name the folder that holds <experiment>/<experiment>_<timestamp>/ or log-*.out files",
        )
    timings = [analyse(files, options.window) for files in runs]
    sys.stdout.write(render(timings, style, options.window, options.output, full_names=options.full_names))
    sys.stdout.flush()
    _explain(timings, sys.stderr)
    return 0 if all(timing.status.state == "Success" for timing in timings) else 1


def parse_options(arguments: list[str], window: Window) -> Options:
    """:raises RequestError: an unknown option, a wrong value, no such folder"""
    folders: list[str] = []
    output: TableFormat = "table"
    full_names = False
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.partition("=")
        if argument == "--":
            folders += rest
            break
        if not argument.startswith("-"):
            folders.append(argument)
            continue
        if name not in _OPTIONS or (name == "--full-names" and equals):
            hint = did_you_mean(name, _OPTIONS)
            raise RequestError(f"unknown option {argument}{hint}", remedy="--help shows the options")
        if name == "--full-names":
            full_names = True
            continue
        if not equals:
            if not rest:
                raise RequestError(f"{name} needs a value", remedy="--help shows the options")
            value = rest.pop(0)
        if name == "--format":
            output = _output(value)
        else:
            window = _window(value)
    if len(folders) > 1:
        raise RequestError(f"one folder at a time, not {len(folders)}: {' '.join(folders)}", remedy="name their parent")
    folder = Path(folders[0] if folders else "experiments")
    if not folder.exists():
        remedy = "name the folder of the runs" if folders else "go to the workload's folder, or name the folder"
        raise RequestError(f"no such folder: {folder}", remedy=remedy)
    return Options(folder, output, full_names, window)


def _output(value: str) -> TableFormat:
    for known in _FORMATS:
        if value.lower() == known:
            return known
    raise RequestError(f"unknown format {value!r}{did_you_mean(value, _FORMATS)}", remedy="use table, csv or json")


def _window(value: str) -> Window:
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", value, re.ASCII)
    if not match or int(match[1]) > int(match[2]):
        raise RequestError(f"--window={value} is not a range", remedy="give the first and the last iteration, as 35-44")
    return Window(int(match[1]), int(match[2]))


def _explain(timings: list[RunTiming], stream: TextIO) -> None:
    """Why a run is not a Success, and what a reader should know of one that is."""
    for timing in timings:
        status = timing.status
        name = printable(timing.files.name)
        if status.state != "Success":
            print(f"{name}: {status.state}: {status.reason}: {printable(status.message)}", file=stream)
        for notice in timing.notices:
            print(f"{name}: note: {printable(notice)}", file=stream)


if __name__ == "__main__":
    sys.exit(main())
