"""The script that draws charts: made once by a program that is fetched for it, kept in the tool's environment."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from llmb_common.base.errors import EnvironmentLacks
from llmb_install.parts import fetching
from llmb_install.parts.charts import Charts
from llmb_install.parts.engine import Tool
from llmb_install.working.artefact import make_missing
from llmb_install.working.reporter import Reporter

NAME = f"vl_convert_python-1.0-cp310-abi3-manylinux_2_17_{platform.machine()}.whl"


@pytest.fixture
def charts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Charts:
    """A folder of packages has what makes the script: two lines of Python."""
    program = 'def javascript_bundle(text):\n    return text + "<p></script>ü"\n'
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("vl_convert/__init__.py", program)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / NAME).write_bytes(content.getvalue())
    lock = tmp_path / "charts.txt"
    lock.write_text(f"vl-convert-python==1.0 --hash=sha256:{hashlib.sha256(content.getvalue()).hexdigest()}\n")
    monkeypatch.setattr(fetching, "has_pip", lambda: False)
    for name, value in {
        "PATH": "",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "UV_FIND_LINKS": str(wheels),
    }.items():
        monkeypatch.setenv(name, value)
    tool_lock = tmp_path / "tool.txt"
    tool_lock.touch()
    tool = Tool(tmp_path / "venvs" / "llmb", sys.executable, tool_lock, smoke=())
    (tool.folder / "bin").mkdir(parents=True)
    (tool.folder / "bin" / "python").symlink_to(sys.executable)
    return Charts(tool, lock)


def test_it_is_made_once_and_what_makes_it_goes(charts: Charts) -> None:
    with Reporter(None) as reporter:
        assert make_missing([charts], reporter) == ["charts"]
        assert make_missing([charts], reporter) == []
    assert charts.path.read_text("utf-8") == "window.vegaEmbed = vegaEmbed;<p><\\/script>ü"
    assert sorted(path.name for path in charts.path.parent.iterdir()) == ["bin", "vega.js"]
    assert list((charts.tool.link.parents[1] / ".llmb" / "tmp").iterdir()) == []
    assert charts.verify() is None
    charts.path.unlink()
    assert charts.verify() == f"{charts.path} is missing"


@pytest.mark.parametrize("what", ["absent", "another", "broken"])
def test_without_it_there_is_none_and_nothing_is_left(charts: Charts, tmp_path: Path, what: str) -> None:
    wheel = tmp_path / "wheels" / NAME
    if what == "absent":
        wheel.unlink()
    elif what == "another":
        wheel.write_bytes(b"")
    else:
        (charts.tool.folder / "bin" / "python").unlink()
        (charts.tool.folder / "bin" / "python").symlink_to("/bin/false")
    with Reporter(None) as reporter, pytest.raises(EnvironmentLacks, match="charts"):
        make_missing([charts], reporter)
    assert sorted(path.name for path in charts.path.parent.iterdir()) == ["bin"]
    assert not charts.is_complete()
