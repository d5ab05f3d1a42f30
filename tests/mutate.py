"""Mutation tests: .venv/bin/python tests/mutate.py --help"""

from mutation.run import main

main()
