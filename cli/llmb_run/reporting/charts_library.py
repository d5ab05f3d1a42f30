"""Vega, Vega-Lite and their embedding as one script, which draws the charts of the page.

vl-convert-python makes it without a network, and is 84 MiB. An installation has what it made, as the package
``llmb_charts``, which ``python -m llmb_run.reporting.charts_library`` installs: 0.9 MB.
"""

from __future__ import annotations

import base64
import hashlib
import sysconfig
from functools import cache
from importlib.resources import files
from pathlib import Path

from llmb_common.errors import EnvironmentLacks

_PACKAGE = "llmb_charts"
_SCRIPT = "vega.js"


@cache
def charts_library() -> str:
    """The script, for an element of a page.

    Raises:
        EnvironmentLacks: neither it nor what makes it is installed
    """
    try:
        return (files(_PACKAGE) / _SCRIPT).read_text(encoding="utf-8")
    except (ModuleNotFoundError, FileNotFoundError):
        pass
    try:
        import vl_convert
    except ImportError as error:
        raise EnvironmentLacks(
            "the HTML report needs the script that draws charts, which is not installed",
            remedy="run ./installer.py update, or: pip install 'llmb[report]'; --markdown needs nothing",
        ) from error
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace("</script", "<\\/script")


def install(packages: Path) -> None:
    """Put the script into ``packages``, a site-packages folder, with the record that the installer verifies."""
    script = charts_library().encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(script).digest()).rstrip(b"=").decode()
    contents = {
        f"{_PACKAGE}/{_SCRIPT}": script,
        f"{_PACKAGE}-1.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {_PACKAGE}\nVersion: 1\n".encode(),
        f"{_PACKAGE}-1.dist-info/RECORD": f"{_PACKAGE}/{_SCRIPT},sha256={digest},{len(script)}\n".encode(),
    }
    for name, content in contents.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_bytes(content)


if __name__ == "__main__":
    install(Path(sysconfig.get_path("purelib")))
