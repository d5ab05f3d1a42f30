"""The small files of an installation: answers, the folders of results, and ``bin/llmb-run`` and ``bin/llmb-install``,
shell scripts that find their installation from anywhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmb_common.base.errors import ConfigError, EnvironmentLacks, LLMBError
from llmb_common.base.strict_yaml import Lines, load_text, read_text
from llmb_install.working.artefact import Artefact, Small
from llmb_install.working.scratch import write

ANSWERS_FILE = Path(".llmb") / "answers.yaml"

CATALOGUES = "catalogues"
"""The folder with what was read in adopted images."""

Loader = Callable[[str, str, type[LLMBError]], tuple[Any, Lines]]
"""``strict_yaml.load_text``, or ``load_flat`` where there is no YAML parser."""


def read_settings(path: Path, load: Loader = load_text) -> tuple[dict[str, Any], Lines]:
    """Return the content, by key, of ``cluster_config.yaml``, answers or a play file, and lines by ``$.key``.

    Lines are numbers from 1. Both are empty for a file that says nothing: emptied by hand, or by a disk that was
    full. Values are not checked, but for ``schema``, which may be absent or 1. ``load`` parses the text: it is
    called with that, the path as text and ``ConfigError``, and returns data and lines as ``load_text`` does.

    Raises:
        ConfigError: the file is missing or unreadable, is no YAML mapping (with the line), or has a ``schema`` that
            is no such number or of a later release
        NotFlatError: ``load`` is ``load_flat``, and the file needs a full YAML parser
    """
    text = read_text(path, ConfigError)
    if all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines()):
        return {}, {}
    data, lines = load(text, str(path), ConfigError)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}:1: not a mapping of keys", remedy="write KEY: VALUE, one on a line")
    schema, line = data.get("schema", 1), f"{path}:{lines.get('$.schema', 1)}"
    if type(schema) is not int or schema < 1:
        raise ConfigError(
            f"{line}: schema {schema!r} is not a valid schema number", remedy="this release writes schema: 1"
        )
    if schema > 1:
        raise ConfigError(
            f"{line}: schema {schema} is from a newer release; this one knows up to 1",
            remedy="git pull in the clone, then run the same command again",
        )
    return data, lines


def no_installation_error(install: Path) -> EnvironmentLacks:
    """Return the error that ``install`` has no installation, for a command that needs one; not raised here."""
    return EnvironmentLacks(
        f"there is no installation in {install}",
        remedy="set LLMB_INSTALL or --install-path to one, or make one with ./installer.py",
    )


def answers_file(path: Path, text: str) -> Small:
    """Return the part that keeps the answers, YAML in ``text``, in the file ``path``; writes nothing yet.

    Its id is ``answers``. Making it replaces the file, and raises RecordError or OSError where that cannot be
    written; it is complete where the file has the same answers in any order. ``path`` is ``.llmb/answers.yaml`` of
    the installation.
    """

    def find_problem() -> str | None:
        """Return a sentence where the answer file is missing, damaged or has other answers; None: it has these.

        The file and these answers are those of the enclosing function. The order of the answers plays no part. The
        sentence is ``PATH is missing or differs from the answers given``.
        """
        with contextlib.suppress(FileNotFoundError, LLMBError):
            # Another release wrote the same answers in another order.
            if read_settings(path)[0] == load_text(text, "the answers")[0]:
                return None
        return f"{path} is missing or differs from the answers given"

    def make() -> None:
        """Write the answer file of the enclosing function, in place of an earlier one; make its folder if missing.

        Raises:
            RecordError: the file cannot be written
            OSError: its folder cannot be made
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path.parents[1], path, text)

    return Small("answers", f"write {path}", find_problem, make)


@dataclass(frozen=True)
class WorkloadFolders(Artefact):
    """The part of an installation that is the folders for the runs of each workload.

    ``Installation.artefacts`` has one; its id is ``workloads``. ``make`` makes those that are missing (OSError: one
    cannot be made). ``is_complete`` tells whether all are there; ``verify`` returns a sentence that names those
    that are missing, or that this user owns and cannot write to, or None. ``show`` returns the line of a dry run,
    ``make PATH, PATH``, with all of them.
    """

    folders: tuple[Path, ...]
    """One for each workload, as an absolute path."""

    id = "workloads"

    def is_complete(self) -> bool:
        """Return whether all these folders for runs are there; whether they are writable is not looked at."""
        return all(folder.is_dir() for folder in self.folders)

    def make(self) -> None:
        """Make those of these folders for runs that are missing, with the folders above them.

        Raises:
            OSError: a folder cannot be made
        """
        for folder in self.folders:
            folder.mkdir(parents=True, exist_ok=True)

    def verify(self) -> str | None:
        """Return a sentence that names folders that are missing, or this user's and not writable; else None.

        It has no full stop: ``missing or not writable: PATH, PATH``.
        """
        bad = [str(folder) for folder in self.folders if not folder.is_dir() or _owner_cannot_write(folder)]
        return f"missing or not writable: {', '.join(bad)}" if bad else None

    def show(self) -> str:
        """Return what ``make`` would do, as a line for a dry run: ``make PATH, PATH``.

        It names all folders for runs, there or not.
        """
        return "make " + ", ".join(map(str, self.folders))


def _owner_cannot_write(folder: Path) -> bool:
    """Return whether this user owns the folder and cannot write to it.

    Colleagues need not: they keep runs in their own folders.

    Raises:
        OSError: the folder is missing
    """
    return folder.stat().st_uid == os.geteuid() and not os.access(folder, os.W_OK)


COMMANDS = {"llmb-run": "llmb_run", "llmb-install": "llmb_install"}

# Not pip's own scripts: their first line cannot carry every path (quotes, a long folder).
_SCRIPT = """\
#!/bin/sh
# Runs {command} of the installation that this file stands in, also through a symbolic link. Written by the installer.
set -eu
self=$0
while [ -L "$self" ]; do
  target=$(readlink "$self")
  case $target in
    /*) self=$target ;;
    *) self=$(dirname "$self")/$target ;;
  esac
done
home=$(CDPATH='' cd -- "$(dirname "$self")/.." && pwd -P)
{which}export LLMB_INSTALL
# Where the link leads now: an update may move it while this runs.
python=$(cd "$home/venvs/llmb" 2>/dev/null && pwd -P || echo "$home/venvs/llmb")/bin/python
if ! [ -x "$python" ]; then
  printf '%s\\n' "error: $python is missing, or you may not run it" >&2
  echo "  -> its owner repairs that: run ./installer.py in the clone again, with a Python that everybody may run" >&2
  quoted=$(printf '%s' "$home" | sed "s/'/'\\\\\\\\''/g")
  printf '%s\\n' "     (where an uninstall was interrupted: ./installer.py uninstall --install-path '$quoted')" >&2
  exit 3
fi
exec "$python" -I -c '{program}' "$home" "$@"
"""

# llmb-run shows and submits, and may be told of another installation. llmb-install changes and removes: the one that it
# stands in, or the one after --install-path.
_WHICH = {
    "llmb-run": "LLMB_INSTALL=${LLMB_INSTALL:-$home}\n",
    "llmb-install": """\
if [ -n "${LLMB_INSTALL:-}" ] && [ "$(CDPATH='' cd -- "$LLMB_INSTALL" 2>/dev/null && pwd -P)" != "$home" ]; then
  printf '%s\\n' "note: this llmb-install belongs to $home and acts on it, not on LLMB_INSTALL=$LLMB_INSTALL" >&2
  LLMB_INSTALL=$home
fi
LLMB_INSTALL=${LLMB_INSTALL:-$home}
""",
}

# Standard library only, and no single quote: it stands in single quotes. An error of our own shows its traceback; one
# of a damaged environment, at its import or later, says what repairs it. A package that lost a file may still import.
_PROGRAM = """
import sys
sys.argv[0], home = "{command}", sys.argv.pop(1)
main = None
try:
    from {package}.main import main
    status = main()
except Exception as error:
    import json, shlex
    from pathlib import Path
    from urllib.parse import unquote, urlsplit
    notes = Path(sys.prefix).glob("lib/python3.*/site-packages/llmb-*.dist-info/direct_url.json")
    clone = next((Path(unquote(urlsplit(json.loads(note.read_text())["url"]).path)) for note in notes), None)
    again = "installer.py update --install-path " + shlex.quote(home)
    if clone is not None and not clone.is_dir():
        gone = " runs from the clone " + str(clone) + ", which is not there any more"
        print("error: " + home + gone, file=sys.stderr)
        print("  -> run ./" + again + " in the clone, where it is now or in a new one", file=sys.stderr)
    else:
        why = None
        try:
            from llmb_common.base.packages import lost_package_file
            why = lost_package_file(error)
        except Exception:
            pass
        if why is None and main is None:
            why = type(error).__name__ + ": " + str(error)
        if why is None:
            raise
        print("error: " + home + " is damaged: " + why, file=sys.stderr)
        start = shlex.quote(str(clone)) + "/" if clone else "./"
        print("  -> its owner repairs that: " + start + again, file=sys.stderr)
    status = 3
sys.exit(status)
"""

_MARK = "of the installation that this file stands in, also through a symbolic link. Written by the installer."


def wrapper_text(command: str) -> str:
    """Return the text of the shell script in ``bin`` that starts ``command``, ``llmb-run`` or ``llmb-install``.

    It ends in a line break, and is the same for every installation.

    Raises:
        KeyError: ``command`` is another
    """
    program = _PROGRAM.format(command=command, package=COMMANDS[command])
    return _SCRIPT.format(command=command, which=_WHICH[command], program=program)


def commands(folder: Path) -> Small:
    """Return the part that is the scripts ``llmb-run`` and ``llmb-install`` in ``folder``; writes nothing yet.

    Its id is ``commands``. ``folder`` is ``bin`` of the installation, and is made with the part. Making it raises
    RecordError or OSError where a script cannot be written.
    """
    paths = [folder / name for name in COMMANDS]

    def find_problem() -> str | None:
        """Return a sentence where a script in the enclosing function's folder is missing or changed; else None.

        The sentence is ``a command in FOLDER is missing or changed``. Changed is one that is not as this release
        writes it, or not executable.

        Raises:
            OSError: a script cannot be read
        """
        return None if all(map(is_current, paths)) else f"a command in {folder} is missing or changed"

    def make() -> None:
        """Write the enclosing function's scripts that are missing or changed; make their folder if missing.

        Raises:
            RecordError: a script cannot be written
            OSError: the folder cannot be made
        """
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            if not is_current(path):
                write(folder.parent, path, wrapper_text(path.name), mode=0o755)

    return Small("commands", f"write {', '.join(map(str, paths))}", find_problem, make)


def is_own_script(path: Path) -> bool:
    """Return whether ``path`` is a script of ``bin`` that the installer wrote, in this release or an earlier one.

    A mark in its text tells, wherever the script lies. False where there is no file.

    Raises:
        OSError: the file cannot be read
    """
    return path.is_file() and _MARK in path.read_text(encoding="utf-8", errors="replace")


def is_current(path: Path) -> bool:
    """Return whether the file ``path`` is as this release writes it to ``bin`` under that name, and executable.

    False where there is no file. The name is that of the file, ``llmb-run`` or ``llmb-install``.

    Raises:
        KeyError: a file is there that is executable and whose name is that of none of the scripts
        OSError: the file cannot be read
    """
    if not path.is_file() or not path.stat().st_mode & 0o100:
        return False
    return path.read_text(encoding="utf-8", errors="replace") == wrapper_text(path.name)
