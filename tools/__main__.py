"""Every generated file at once: ``python -m tools [--write]``; without ``--write`` it names those that are out of date.

After a change of a recipe, a GPU type, a column, a signature or a published result.
"""

from __future__ import annotations

import sys

from tools import readme_tables, reference, step_times

if __name__ == "__main__":
    words = sys.argv[1:]
    # Bands come first: tables of READMEs may show what they predict.
    sys.exit(max(step_times.main(words), readme_tables.main(words), reference.main("--write" in words)))
