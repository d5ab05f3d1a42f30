"""The command behind ``parse_train_timing.sh`` and ``parse_train_timing_mbridge.sh``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from llmb_common import __version__
from llmb_common.base.errors import RequestError, did_you_mean
from llmb_common.base.outcome import guarded
from llmb_common.base.printable import printable
from llmb_common.runs.timing.log_files import find_runs
from llmb_common.runs.timing.runs import NO_FAILURE, RunTiming, State, analyse, no_garbage
from llmb_common.runs.timing.tables import STYLES, Style, render
from llmb_common.runs.timing.window import read_window

_PROGRAMS = {"mbridge": "parse_train_timing_mbridge.sh", "nemo": "parse_train_timing.sh"}
_FORMATS = ("table", "csv", "json")
_DESCRIPTION = """\
Mean and standard deviation of the training step time ({unit}) and of TFLOP/s per GPU over iterations {window}, for
every run under FOLDER (default: experiments). Reads the logs of Megatron-Bridge and of NeMo 2.
"""
_EPILOG = """\
Status: Success; Trained (every step, but the run ended badly afterwards); Failed (it died, or a loss is NaN or inf);
Incomplete (healthy, but not all of these iterations are there); Running. Why a run is not a Success is printed on
stderr, and in csv and json.

Exit status: 0 no run is Failed or Incomplete; 1 some are; 2 the request is wrong; 3 no suitable Python.
"""


class _Parser(argparse.ArgumentParser):
    """A parser of command lines that reports mistakes as RequestError, which the command layer prints.

    It is made like argparse's own. Its ``error`` always raises RequestError with the message that it gets, in place of
    ending the process.
    """

    def error(self, message: str) -> NoReturn:
        """Raise argparse's ``message`` as an error of LLMB, instead of ending the process.

        Raises:
            RequestError: always
        """
        raise RequestError(message, remedy="--help shows the options")


def _output_format(text: str) -> str:
    """Return the output format that ``--format`` names, in lower case: ``table``, ``csv`` or ``json``.

    ``text`` may be in upper or lower case.

    Raises:
        RequestError: it is none of these
    """
    if text.lower() not in _FORMATS:
        raise RequestError(f"unknown format {text!r}{did_you_mean(text, _FORMATS)}", remedy="use table, csv or json")
    return text.lower()


def _parser(style: Style, program: str) -> argparse.ArgumentParser:
    """Return the parser for the options of ``program``; ``style`` gives the window and the unit for its help.

    What it parses has ``folder`` (a list of paths, may be empty), ``format`` (``table``, ``csv`` or ``json``),
    ``version`` and ``full_names`` (True where given) and ``window`` (a ``Window``, by default that of ``style``).
    Its mistakes are raised as RequestError, but at ``--help`` it ends the process, so callers handle that
    themselves.
    """
    parser = _Parser(
        prog=program,
        usage="%(prog)s [FOLDER] [options]",
        description=_DESCRIPTION.format(unit=style.unit, window=style.window),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("folder", nargs="*", type=Path, metavar="FOLDER", help="the runs, or one log")
    parser.add_argument(
        "--format", type=_output_format, default="table", metavar="table|csv|json", help="default: table"
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("--full-names", action="store_true", help="do not shorten long names (csv and json never do)")
    parser.add_argument(
        "--window",
        type=read_window,
        default=style.window,
        metavar="FIRST-LAST",
        help=f"other iterations, both included (default: {style.window})",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command with ``arguments`` (None: those of the process); return its exit status.

    They are ``mbridge|nemo [FOLDER] [options]``. The table goes to stdout, and why a run is no success to stderr,
    with notes on logs. The status is 0 where every run is Success, Trained or Running, 1 where one is Failed or
    Incomplete, 2 where the request is wrong, 3 where something cannot be read or written, and 130 when interrupted.
    Errors are printed, not raised. No file is written.
    """
    words = sys.argv[1:] if arguments is None else arguments
    return guarded(lambda: _run(words))


def _run(arguments: list[str]) -> int:
    """Print the table of the runs in a folder, and on stderr why some are no success; return the exit status.

    ``arguments`` are those of ``main``. The status is 0 where no run is Failed or Incomplete, and after ``--help``
    and ``--version``; 1 where one is. Nothing is printed where it raises RequestError.

    Raises:
        RequestError: an argument is wrong, or there is no run
        OSError: the folder cannot be looked at, or stdout or stderr cannot be written
    """
    if not arguments or arguments[0] not in STYLES:
        raise RequestError("the first argument is mbridge or nemo", remedy=f"or use common/{_PROGRAMS['mbridge']}")
    style = STYLES[arguments[0]]
    parser = _parser(style, _PROGRAMS[arguments[0]])
    # argparse would end the process.
    if {"-h", "--help"} & set(arguments):
        print(parser.format_help(), end="")
        return 0
    asked, unknown = parser.parse_known_args(arguments[1:])
    if asked.version:
        print(f"{parser.prog} {__version__}")
        return 0
    if unknown:
        known = [f"--{name.replace('_', '-')}" for name in vars(asked) if name != "folder"]
        hint = did_you_mean(unknown[0].partition("=")[0], known)
        raise RequestError(f"unknown option {unknown[0]}{hint}", remedy="--help shows the options")
    folder = _folder(asked.folder)
    runs = find_runs(folder)
    if not runs:
        raise RequestError(
            f"no run under {folder}",
            remedy="name the folder that holds <experiment>/<experiment>_<timestamp>/ or log-*.out files",
        )
    states: set[State] = set()
    complaints: list[str] = []

    def judged() -> Iterator[RunTiming]:
        """Yield each of the enclosing function's ``runs`` with its status, one at a time and in their order.

        It is measured over the window that was asked for. Its state is added to ``states``, its complaints to
        ``complaints``. One at a time, as the steps of thousands of runs take more memory than all the rest.
        """
        for files in runs:
            timing = analyse(files, asked.window)
            states.add(timing.status.state)
            complaints.extend(_complaints(timing))
            yield timing

    with no_garbage():
        text = render(judged(), style, asked.window, asked.format, full_names=asked.full_names)
    sys.stdout.write(text)
    sys.stdout.flush()
    for line in complaints:
        print(line, file=sys.stderr)
    return 0 if states <= {*NO_FAILURE} else 1


def _complaints(timing: RunTiming) -> list[str]:
    """Return lines for stderr about a run: why it is not a Success, then the notices on its log.

    They are ``NAME: STATE: REASON: MESSAGE`` and ``NAME: note: NOTICE``, without line breaks. Empty: it is a
    Success without notices.
    """
    status, name = timing.status, printable(timing.files.name)
    lines = [f"{name}: note: {printable(notice)}" for notice in timing.notices]
    if status.state != "Success":
        lines.insert(0, f"{name}: {status.state}: {status.reason}: {printable(status.message)}")
    return lines


def _folder(named: list[Path]) -> Path:
    """Return the folder to search for runs: the one in ``named``, or ``experiments`` where that is empty.

    It is as it was named, relative to the current folder, and may also be a log.

    Raises:
        RequestError: it does not exist, or several are named
        OSError: whether it exists cannot be found out
    """
    if len(named) > 1:
        raise RequestError(
            f"one folder at a time, not {len(named)}: {' '.join(map(str, named))}", remedy="name their parent"
        )
    folder = named[0] if named else Path("experiments")
    if not folder.exists():
        remedy = "name the folder of the runs" if named else "go to the workload's folder, or name the folder"
        raise RequestError(f"no such folder: {folder}", remedy=remedy)
    return folder


if __name__ == "__main__":
    sys.exit(main())
