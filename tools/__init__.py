"""Maintainers' generators, run from the top folder of a clone; none of it is in the wheel."""
