"""Mutation tests: .venv/bin/python tests/mutate.py --help"""

import sys

from mutation.run import main

sys.exit(main())
