"""Every generated file: ``python -m tools [--write] [PART ...]``.

After a change of a recipe, a GPU type, a column, a signature or a published result. Without ``--write``
it names those that are out of date. The parts are ``recipes``, ``readmes``, ``reference`` and ``kernel``; by default,
all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from llmb_common.base.files import write_atomic
from llmb_common.base.outcome import guarded
from llmb_common.recipes.folders import recipe_folders, recipes_root
from llmb_common.recipes.loading import COMPILED, compiled
from tools import kernel_lines, readmes, reference


def compiled_recipes() -> dict[Path, str]:
    """The ``recipe.json`` of all recipes."""
    return {folder / COMPILED: compiled(folder / "recipe.yaml") for folder in recipe_folders(recipes_root())}


PARTS: dict[str, Callable[[], dict[Path, str]]] = {
    "recipes": compiled_recipes,
    "readmes": readmes.files,
    "reference": reference.files,
    "kernel": kernel_lines.files,
}


def main(words: list[str]) -> int:
    """The exit status: 1 where a file was out of date and was not written."""
    parser = argparse.ArgumentParser(prog="python -m tools", description="write the generated files")
    parser.add_argument("--write", action="store_true", help="write them; else they are only compared")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    asked = parser.parse_args(words)
    return max(update(PARTS[name](), write=asked.write) for name in asked.parts or PARTS)


def update(wanted: dict[Path, str], *, write: bool) -> int:
    """Write the files that are not as wanted, or only name them; 1 if there was one to name."""
    old = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in old:
        if write:
            write_atomic(path, wanted[path])
        print(f"{path}: {'written' if write else 'out of date; run python -m tools --write'}")
    return int(bool(old) and not write)


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
