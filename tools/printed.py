"""The command line of the simulations: which tables, of how many trials, from which seed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

Table: TypeAlias = Callable[[int, int], Iterable[str]]
"""From the number of trials and the seed to lines of Markdown."""


def print_tables(about: str, parts: Mapping[str, Table], counted: str = "trials", usual: int = 1000) -> None:
    """Print the parts that the command line names, or all of them; one alone has no name there.

    Args:
        about: what the module says of itself, its first line for people
        parts: by name
        counted: what is counted: the option for how many
        usual: how many without it
    """
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    if len(parts) > 1:
        parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    parser.add_argument(f"--{counted}", type=int, default=usual, dest="count", metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    named = vars(asked).get("parts") or list(parts)
    if unknown := [name for name in named if name not in parts]:
        parser.error(f"unknown part {unknown[0]!r}: {', '.join(parts)}")
    for name in named:
        for line in parts[name](asked.count, asked.seed):
            print(line, flush=True)
        if len(parts) > 1:
            print(flush=True)
