"""``python -m llmb_install``."""

import sys

from llmb_install.main import main

if __name__ == "__main__":
    sys.exit(main())
