"""One node of a site, asked in one short job of two steps: itself, and the container that jobs run in there."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llmb_common.base.errors import SchedulerError
from llmb_common.base.files import shell_part
from llmb_common.base.words import assigned
from llmb_common.executors.base import Container, Executor, Held, NodeRequest
from llmb_common.health.ask import PYTHONS, node_command, parse_frames
from llmb_common.nodes.facts import Folder, NodeFacts
from llmb_common.nodes.needs import Needs
from llmb_common.nodes.reading import read_facts

_TOOL_SECONDS = 15
_NODE_SECONDS = 120
_IMAGE_SECONDS = 390
"""Pyxis unpacks the image on the node first: some 25 GB."""
_QUEUE_SECONDS = 60
_SAID_INSIDE = ("started=", "root=", "workloads=", "gpu=", "hung=")


@dataclass(frozen=True)
class ContainerProbe:
    """What the container that jobs run in showed on a node, where ``probe.sh`` was started in it.

    ``_probe_container`` makes it; it is empty, without ``status``, where no container was to be started. The property
    ``started`` is True where the container started, whatever became of it then.
    """

    values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What ``probe.sh`` printed as ``NAME=VALUE``, by name; a name may come more than once, so the values are a list.
    """
    lines: tuple[str, ...] = ()
    """All other lines of output, with those on standard error."""
    status: int | None = None
    """The exit status; None: it did not end in time, or was not started."""
    seconds: float = 0.0
    """How long it took, start of the container included."""

    @property
    def started(self) -> bool:
        """Whether the container started on the node: the program in it said so, whatever became of it then."""
        return bool(self.values.get("started"))


@dataclass(frozen=True)
class NodeReport:
    """What one node of the site reported of itself, for ``llmb-install doctor``.

    ``ask_one_node`` makes it; with an ``error`` all else is empty. ``folder`` returns what the node sees of one of the
    folders that were asked for, by the name that the request gave it; a ``Folder`` that says there is none for any
    other name.
    """

    error: str = ""
    """Why the node could not be asked; empty: it was."""
    facts: NodeFacts = field(default_factory=lambda: NodeFacts(""))
    """What the node recorded of itself."""
    inside: ContainerProbe = ContainerProbe()
    """What the container that jobs run in showed on it."""
    writes: bool = False
    """Whether the node was to try to write where runs go; what came of it is in the facts."""
    skew: float | None = None
    """Its clock minus ours, in seconds, including the second or so that the answer takes; None: it did not tell its
    time.
    """

    def folder(self, name: str) -> Folder:
        """Return what the node sees of the folder that the request called ``name``, such as ``installation``.

        Of one that was not asked for it says that there is none.
        """
        return self.facts.folders.get(name, Folder())


def ask_one_node(
    executor: Executor, needs: Needs, folders: Mapping[str, str], container: Container | None = None
) -> NodeReport:
    """Return what any one node of the site reports of itself, and of ``container`` on it.

    ``executor`` holds the node in a job, with GPUs where jobs ask for them, and it reports as for ``llmb-run health``;
    ``needs`` is what jobs need of it. ``folders`` are the paths to look into, by a name for each; ``installation`` must
    be among them, and ``workload`` is replaced by a folder for trials. Without a ``container`` none is started. Nothing
    is written but files in that folder, a new one among the installation's runs, which is removed again. Where no node
    is given or answers, the report's ``error`` says so.

    Raises:
        RequestError: there is no scheduler that knows of nodes
        EnvironmentLacks: a part of LLMB is missing
        OSError: a part of LLMB cannot be read
    """
    wanted = NodeRequest(
        name="llmb-doctor",
        scheduler=needs.scheduler,
        gpus=needs.gpus_per_node or 1,
        # Rounded up: a job's time limit is in whole minutes.
        minutes=-(-(_NODE_SECONDS + _IMAGE_SECONDS) // 60),
        wait=_QUEUE_SECONDS,
    )
    try:
        with _trial_folder(Path(folders["installation"])) as trial, executor.hold(wanted) as held:
            return _held_node_report(held, needs, folders, container, trial)
    except SchedulerError as error:
        return NodeReport(error=f"no node answered: {error.message.removeprefix('Slurm gives no nodes: ')}")


def _held_node_report(
    held: Held, needs: Needs, folders: Mapping[str, str], container: Container | None, trial: str
) -> NodeReport:
    """Return the report of the one node that is held, and of ``container`` on it, if one is given.

    ``needs`` is what jobs need of it. ``held`` must have exactly one node. ``folders`` are paths by a name for each;
    ``trial`` is the path of a folder in which the node is to write, and which it looks into as ``workload``, in place
    of such a one among ``folders``; empty: none. The report's ``error`` says where the node did not answer.

    Raises:
        EnvironmentLacks: a part of LLMB is missing
        OSError: a part of LLMB cannot be read
    """
    seen = {**folders, "workload": trial} if trial else dict(folders)
    starts = [] if needs.containers else list(needs.pythons)
    spec = {"stage": "look", "folders": seen, "written": ["workload"], "starts": starts}
    answer = held.run(node_command(spec, (*PYTHONS, *needs.pythons)), _NODE_SECONDS)
    # At once, as the skew of the node's clock is measured against it.
    now = time.time()
    (node,) = held.nodes
    node_answer = parse_frames(answer.output).get(node)
    if not isinstance(node_answer, dict):
        why = "no Python there" if "no-python" in answer.output else answer.complaint
        return NodeReport(error=f"no node answered: {why}")
    ended = node_answer.get("ended")
    skew = float(ended) - now if isinstance(ended, float | int) else None
    inside = _probe_container(held, container, trial) if container else ContainerProbe()
    return NodeReport("", read_facts(node, node_answer), inside, bool(trial), skew)


def _probe_container(held: Held, container: Container, trial: str) -> ContainerProbe:
    """Return what ``probe.sh`` shows in ``container`` on the held node.

    It has no ``status`` where it did not end in time, or could not be started. ``trial`` is the path of a folder in
    which it tries to write; empty: none.
    """
    begun = time.monotonic()
    argv = ["bash", "-c", shell_part(__file__, "probe.sh"), "probe", str(_TOOL_SECONDS), trial]
    answer = held.run(argv, _IMAGE_SECONDS, inside=container)
    seconds = time.monotonic() - begun
    output_lines = answer.output.splitlines()
    own = [line for line in output_lines if line.startswith(_SAID_INSIDE)]
    rest = [line for line in output_lines if not line.startswith(_SAID_INSIDE)]
    lines = tuple(line for line in (*rest, *answer.errors.splitlines()) if line.strip())
    return ContainerProbe(parse_values(own), lines, answer.status, seconds)


def parse_values(lines: Iterable[str]) -> dict[str, list[str]]:
    """Return the values in lines ``NAME=VALUE``, by name, in their order; a name may come more than once.

    Without blanks around either; the first ``=`` counts. Lines without ``=``, or with nothing at all behind it, are
    left out; blanks alone are an empty value.
    """
    values: dict[str, list[str]] = {}
    for line in lines:
        name, value = assigned(line) or ("", "")
        if value:
            values.setdefault(name, []).append(value.strip())
    return values


@contextlib.contextmanager
def _trial_folder(install: Path) -> Iterator[str]:
    """Return a context with the path of a new folder where runs go, which is removed at its end.

    ``install`` is the installation. An empty text where no folder can be made. A node sees the folder only if it has
    the same file system.
    """
    folder = install / "workloads"
    try:
        made = tempfile.mkdtemp(prefix=".llmb-doctor-", dir=folder if folder.is_dir() else install)
    except OSError:
        yield ""
        return
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
