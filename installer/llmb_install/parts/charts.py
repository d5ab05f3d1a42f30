"""The script that draws the charts of reports. ``llmb_run`` reads it, and has it fetched for the first page.

vl-convert-python, of 84 MiB, writes it without a network. It is fetched for that, and removed.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from llmb_common.base.errors import EnvironmentLacks
from llmb_install.parts.engine import Tool
from llmb_install.parts.environment_build import child_environment, unavailable_error
from llmb_install.parts.fetching import fetch_package
from llmb_install.parts.package_index import Sources
from llmb_install.parts.pip_settings import read_index_settings
from llmb_install.parts.refusals import Unavailable
from llmb_install.parts.uv import may_know_better
from llmb_install.working import command
from llmb_install.working.artefact import Artefact, Room
from llmb_install.working.reporter import Reporter
from llmb_install.working.scratch import private_folder, root_for

_PROGRAM = """\
import sys
sys.path.append(sys.argv[1])
import vl_convert
script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
open(sys.argv[2], "w", encoding="utf-8").write(script.replace("</script", "<\\\\/script"))
"""


@dataclass(frozen=True)
class Charts(Artefact):
    """The part that draws the charts of reports: one script with Vega and Vega-Lite, 0.9 MB.

    ``Installation.charts`` makes the object; its id is ``charts``. The property ``path`` is the script's, in the
    environment of ``tool``; it goes when that goes. ``is_complete`` tells whether the file is there, ``verify``
    returns ``PATH is missing`` or None; neither looks at its content. ``ensure`` writes it where it is missing, or
    with ``anew`` in any case, for which it fetches vl-convert-python, and returns whether it did; it raises
    EnvironmentLacks where that fails, OSError where a file cannot be written, and Interrupted where this process is
    ending. ``room`` returns the disk space that writing it needs, a list of one ``Room``; ``lacks`` the error that
    no index has what is to be fetched, in a list that is empty otherwise; it is not raised, but an OSError is where
    the folder of certificates cannot be listed. ``show`` returns the line of a dry run.
    """

    tool: Tool
    """The environment of LLMB; ``ensure`` needs it built."""
    lock: Path
    """The lock file that names vl-convert-python."""

    id = "charts"
    needs = (Tool.id,)
    download = 34_000_000
    disk = 900_000

    @property
    def path(self) -> Path:
        """The path of the script in the tool's environment; the file need not exist."""
        return self.tool.folder / "vega.js"

    def show(self) -> str:
        """Return what ``ensure`` would do for the charts, as a line for a dry run, without a full stop.

        It names the lock file, and is the same where the script is there already.
        """
        return f"write the script that draws charts, by what {self.lock} says"

    def room(self) -> list[Room]:
        """Return the disk space, 130 MB beside the tool's environment, that is needed while the script is made.

        It is a list of one, also where the script is there.
        """
        return [Room(self.tool.link.parent, 130_000_000, "what draws charts")]

    def lacks(self) -> list[EnvironmentLacks]:
        """Return the error that no package index has vl-convert-python for this machine, in a list; empty: one has it.

        Empty also where pip or uv may know more than this process, else an index that does not answer is such an error.
        Asks over the network; the error is not raised.

        Raises:
            OSError: the folder of certificates cannot be listed
        """
        try:
            Sources(read_index_settings(child_environment())).links("vl-convert-python", _is_for_here)
        except Unavailable as problem:
            if not may_know_better(problem):
                return [_charts_unavailable_error(problem)]
        return []

    def is_complete(self) -> bool:
        """Return whether the file of the script is there; its content is not looked at."""
        return self.path.is_file()

    def verify(self) -> str | None:
        """Return ``PATH is missing`` where the script's file is not there, else None; its content is not compared."""
        return None if self.is_complete() else f"{self.path} is missing"

    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        """Write the script unless it is there, or in any case if ``anew``; return whether it was written.

        Fetches vl-convert-python for that, into a folder that is removed again. The tool's environment must be there.
        ``reporter`` shows the step and logs what is run. After an error an earlier script is as it was.

        Raises:
            EnvironmentLacks: vl-convert-python could not be had, or did not run
            OSError: a file cannot be written
            Interrupted: this process is ending
        """
        if not anew and self.is_complete():
            return False
        venvs = self.tool.link.parent
        # On the file system of the environment, so that a rename puts the script there.
        root = root_for(venvs, venvs.parent)
        with reporter.step("charts") as step, private_folder(root, "charts") as folder:
            maker, script = folder / "packages", folder / self.path.name
            try:
                step.update("fetching vl-convert-python")
                fetch_package(self.lock, _is_for_here, maker, read_index_settings(child_environment()))
                step.update("writing the script")
                python = str(self.tool.folder / "bin" / "python")
                done = command.run([python, "-I", "-c", _PROGRAM, str(maker), str(script)], reporter)
                if done.status != 0:
                    raise EnvironmentLacks(
                        f"the script that draws charts could not be made: {' '.join(done.tail[-1:])}",
                        remedy="run the same command again",
                    )
                script.replace(self.path)
            except Unavailable as problem:
                raise _charts_unavailable_error(problem) from problem
        return True


def _is_for_here(name: str) -> bool:
    """Return whether the file ``name`` is that of a wheel of vl-convert-python for Linux on this machine.

    Its version does not matter.
    """
    return re.fullmatch(rf"vl_convert_python-.*-abi3-manylinux.*_{platform.machine()}\.whl", name) is not None


def _charts_unavailable_error(problem: Unavailable) -> EnvironmentLacks:
    """Return the error that what draws charts cannot be fetched, because of ``problem``; not raised here."""
    return unavailable_error("what draws the charts of reports cannot be fetched", problem)
