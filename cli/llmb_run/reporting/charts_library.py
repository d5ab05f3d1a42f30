"""Vega, Vega-Lite and their embedding as one script, which draws the charts of the page.

vl-convert-python makes it without a network, and is 84 MiB. An installation keeps what it made, in 0.9 MB, beside the
Python that runs this. ``llmb-install charts`` puts it there, which is asked for with the first page.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from llmb_common.base.notices import notice


@cache
def charts_library() -> str:
    """Return the JavaScript that draws charts, as the text of a script element, without its tags.

    Empty, after a notice, where the script cannot be had. Where it is missing, it is made from an installed
    package, or fetched by the installer, which may take a download. The answer, an empty one too, is kept for this
    process.
    """
    kept = Path(sys.prefix) / "vega.js"
    if not kept.is_file():
        try:
            import vl_convert

            # ``</script`` in a text of the library would end the element that holds it.
            return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace("</script", "<\\/script")
        except ImportError:
            _fetch(kept.parents[2] / "bin" / "llmb-install")
    try:
        return kept.read_text(encoding="utf-8")
    except OSError:
        notice("this report has no charts, because what draws them is not installed; llmb-install charts fetches it")
        return ""


def _fetch(program: Path) -> None:
    """Have the installer ``program`` download what draws charts, and wait for it; a notice says so.

    Does nothing where there is no such program that can be executed; one that does not start, or fails, is ignored.
    """
    if not os.access(program, os.X_OK):
        return
    notice("fetching what draws charts, once: a download of 34 MB")
    with contextlib.suppress(OSError):  # such as a first line whose Python is gone
        subprocess.run([str(program), "charts"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
