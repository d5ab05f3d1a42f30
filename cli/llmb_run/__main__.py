"""``python -m llmb_run``."""

import sys

from llmb_run.main import main

sys.exit(main())
