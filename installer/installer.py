#!/usr/bin/env python3
"""Install LLMB: ``./installer.py --quickstart``, or ``./installer.py`` for the questions, ``--help`` for all options.

Standard library only. This file, ``uv`` and what that imports start on Python 3.6 (the python3 of RHEL 8), to go on
with a newer Python that is already there or that uv fetches; everything else may use what Python 3.10 has.
"""

import os
import signal
import sys
from pathlib import Path

CLONE = Path(__file__).resolve().parent.parent


def main() -> int:  # no "from __future__ import annotations" here: Python 3.6 does not know it
    """Run the installer with the command line of this process and return its exit status.

    Under a Python that is too old, this process is replaced by a newer one, fetched where none is found. The status
    is 3, with an error printed, where Python's standard library is incomplete, where a newer Python cannot be had,
    or where only help was asked for and no newer Python is installed; else it is that of ``bootstrap``. Changes
    ``sys.path`` and environment variables, and makes Ctrl-C end the process.

    Raises:
        SystemExit: after ``--help`` or ``--version``
        OSError: the newer Python cannot be started
    """
    # Ctrl-C simply ends this process as long as nobody is there to say more about it: arguments.py.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.path[:0] = [str(CLONE / "installer"), str(CLONE / "common")]
    try:
        from llmb_install.parts import uv
    except ImportError as error:  # Debian's python3-minimal, or a Python that was built without OpenSSL
        print(f"error: {sys.executable} lacks a part of Python's standard library: {error}", file=sys.stderr)
        print("  -> install all of it (as root: apt-get install python3), or use another Python", file=sys.stderr)
        return 3
    uv.repair_environment()
    if sys.version_info < uv.TOOL_MINIMUM:
        newer = uv.find_python(uv.is_tool_python)
        if newer is None:
            return uv.start_with_another([str(CLONE / "installer" / "installer.py"), *sys.argv[1:]], sys.stderr)
        os.execv(newer, [newer, str(CLONE / "installer" / "installer.py"), *sys.argv[1:]])
    from llmb_install.bootstrap import bootstrap

    return bootstrap(CLONE, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
