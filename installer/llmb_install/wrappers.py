"""``bin/llmb-run`` and ``bin/llmb-install``: small shell scripts that find their installation from anywhere."""

from __future__ import annotations

from pathlib import Path

from llmb_common.files import write_atomic

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
home=$(cd "$(dirname "$self")/.." && pwd -P)
LLMB_INSTALL=${{LLMB_INSTALL:-$home}}
export LLMB_INSTALL
python=$home/venvs/llmb/bin/python
if ! [ -x "$python" ]; then
  echo "error: $python is missing, or you may not run it" >&2
  echo "  -> its owner repairs that: run ./installer.py in the clone again, with a Python that everybody may run" >&2
  exit 3
fi
exec "$python" -I -c \\
  'import sys; sys.argv[0] = "{command}"; from {package}.main import main; sys.exit(main())' "$@"
"""


def wrapper_text(command: str) -> str:
    return _SCRIPT.format(command=command, package=COMMANDS[command])


def write_wrappers(install: Path) -> bool:
    """Write both commands where they are missing or different. Returns whether anything was written."""
    folder = install / "bin"
    written = False
    for command in COMMANDS:
        path = folder / command
        if not is_current(path):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, wrapper_text(command), mode=0o755)
            written = True
    return written


def is_current(path: Path) -> bool:
    """Whether the file is what this release writes, and executable."""
    if not path.is_file() or not path.stat().st_mode & 0o100:
        return False
    return path.read_text(encoding="utf-8", errors="replace") == wrapper_text(path.name)
