"""The repository's pages as a site: ``python -m tools.site FOLDER``, with what the extra ``dev`` installs.

The pages are the same files, in the same folders, as on a forge: nothing is written for the site alone. Anything that
MkDocs would warn of is an error: a page that no menu has, a link or an anchor that leads nowhere.
"""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("LICENSE", "docs/llmb.schema.json")
"""What pages link to beside each other and their pictures."""


def anchor(heading: str, separator: str) -> str:
    """The anchor of a heading, as forges make it."""
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).strip().replace(" ", separator)


def pages(root: Path = ROOT) -> list[str]:
    """Everything that the site is made of, by its path in the repository; notes on the tests' data are not."""
    wanted = ["*.md", "docs/images/*", *LINKED, ":!tests/data"]
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *wanted]
    found = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in found if (root / name).is_file()]


def build(folder: Path) -> None:
    """Write the site to ``folder``.

    Raises:
        mkdocs.exceptions.Abort: MkDocs had something to say
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    from mkdocs.commands.build import build as make
    from mkdocs.config import load_config

    with tempfile.TemporaryDirectory() as staged:
        for name in pages():
            target = Path(staged) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
        make(load_config(str(ROOT / "mkdocs.yml"), docs_dir=staged, site_dir=str(folder), strict=True))


if __name__ == "__main__":
    build(Path(sys.argv[1]).absolute())
