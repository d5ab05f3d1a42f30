"""``llmb-install`` of this clone. The first stage starts this file in an environment that may know no clone."""

import signal
import sys
from pathlib import Path

# Ctrl-C simply ends this process as long as nobody is there to say more about it: arguments.py.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

if __name__ == "__main__":
    clone = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(clone / "installer"), str(clone / "common")]
    from llmb_install.main import main

    sys.exit(main())
