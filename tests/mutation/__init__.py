"""Mutation tests: the unit tests should notice small defects in a copy of the code. See CONTRIBUTING.md."""
