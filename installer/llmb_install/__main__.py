"""``python -m llmb_install``."""

import signal
import sys

# Ctrl-C simply ends this process as long as nobody is there to say more about it: guard.py.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from llmb_install.main import main

if __name__ == "__main__":
    sys.exit(main())
