"""Asking nodes how they are: which, in one short job, and what came of it.

The program's code travels as an argument, so that a node needs no file system of ours to answer.
"""

from __future__ import annotations

import base64
import json
import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llmb_common.base.errors import CheckFailed, RequestError, SchedulerError
from llmb_common.base.files import shell_part
from llmb_common.base.hostlist import expand
from llmb_common.base.programs import Answer
from llmb_common.executors.base import Executor, Held, NodeRequest
from llmb_common.health.verdicts import Fabric, NodeVerdict, judge
from llmb_common.nodes.compare import drift
from llmb_common.nodes.facts import NodeFacts
from llmb_common.nodes.needs import Needs
from llmb_common.nodes.reading import read_facts
from llmb_common.runs.manifest import training_code
from llmb_common.submission.excluded_nodes import exclude_nodes, exclusions

_MODULES = (
    "__init__",
    "nodes/__init__",
    "nodes/__main__",
    "nodes/ask",
    "nodes/gpus",
    "nodes/fabric",
    "nodes/kernel_lines",
    "nodes/looks",
    "nodes/machine",
    "nodes/stress",
)
_MOST_BYTES = 32 << 20
_FRAME = re.compile(r"LLMB-HEALTH\s+(\S+)\s+(?:no-python|([0-9]{1,6})/([0-9]{1,6})\s+(\S+))")
PYTHONS = ("python3", "/usr/libexec/platform-python", "python3.12", "python3.11", "python3.10", "python3.9")

_START = """
import importlib.abc, importlib.util, json, sys
SOURCES = json.loads({sources!r})
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            return importlib.util.spec_from_loader(name, self, is_package=name in PACKAGES)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(compile(*SOURCES[module.__name__], "exec"), module.__dict__)
PACKAGES = {{name for name in SOURCES for other in SOURCES if other.startswith(name + ".")}}
sys.meta_path.insert(0, Finder())
from llmb_train.nodes.__main__ import main
main(json.loads(sys.argv[2]))
"""


def node_command(spec: dict[str, Any], pythons: Sequence[str]) -> list[str]:
    """Return the command line that runs the health program on a node, with the first of ``pythons`` that works there.

    The words are not quoted. ``pythons`` are names or paths, in the order in which they are tried; where none works,
    the program prints a frame that says so. ``spec`` says what it is to do, as values for JSON, such as ``{"stage":
    "look"}``. What it prints is for ``Frames``.

    Raises:
        EnvironmentLacks: the training code, a part of LLMB that the program is made of, is missing
        OSError: a module of that cannot be read
    """
    words = [_packed_program(training_code()), json.dumps(spec, separators=(",", ":")), *dict.fromkeys(pythons)]
    return ["bash", "-c", shell_part(__file__, "node.sh"), "llmb-health", *words]


def _packed_program(folder: Path) -> str:
    """Return the health program for the nodes as one argument of a command line: Python packed by zlib, in base 64.

    ``folder`` has its modules. It must stay below the 128 KiB that Linux allows an argument, which is not checked here.

    Raises:
        OSError: a module in ``folder`` cannot be read
    """
    sources = {}
    for name in _MODULES:
        module = f"llmb_train.{name.replace('/', '.')}".removesuffix(".__init__")
        file = folder / f"{name}.py"
        sources[module] = (file.read_text(encoding="utf-8"), str(file))  # the path is for tracebacks
    text = _START.format(sources=json.dumps(sources))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


class Frames:
    """Puts together the answers of nodes, which arrive in frames, one a line and in any order.

    Made without arguments. Each line of output is given to ``take``, which keeps frames until an answer is whole and
    then returns (node, answer), the answer a dict or None for a node without a Python; ``("", None)`` for any other
    line. Nothing is raised.
    """

    def __init__(self) -> None:
        self._parts: dict[str, dict[int, str]] = {}

    def take(self, line: str) -> tuple[str, dict[str, Any] | None]:
        """Take in a line of output; return (node, its answer) where that completes the answer of a node.

        (node, None) where the line says that the node has no Python. ``("", None)`` otherwise: the line is no frame,
        further ones are missing, or the answer is damaged and dropped. A node may answer again and again.
        """
        frame = _FRAME.fullmatch(line.strip())
        if frame is None:
            return "", None
        node, number, total, piece = frame.groups()
        if number is None:
            return node, None
        parts = self._parts.setdefault(node, {})
        parts[int(number)] = piece
        if set(parts) != set(range(1, int(total) + 1)):
            return "", None
        del self._parts[node]
        answer = _unpack_frame("".join(parts[at] for at in sorted(parts)))
        return ("", None) if answer is None else (node, answer)


def parse_frames(output: str) -> dict[str, Any]:
    """Return the answer of each node in ``output``, as ``Frames.take`` decodes it, by the node's name.

    It is None for a node without a Python. Of several answers of a node the last one counts. Lines that are no frames,
    and answers that are damaged or not complete, are left out. Empty: no node answered.
    """
    frames = Frames()
    found: dict[str, Any] = {}
    for line in output.splitlines():
        node, node_answer = frames.take(line)
        if node:
            found[node] = node_answer
    return found


def _unpack_frame(text: str) -> dict[str, Any] | None:
    """Return the answer that a node's program has packed into ``text``, a dict; None for any other or damaged text.

    Of what it unpacks to, at most 32 MiB are read, so that a hostile answer cannot fill the memory; None for a larger
    one.
    """
    try:
        packed = base64.b64decode(text, validate=True)
        value = json.loads(zlib.decompressobj().decompress(packed, _MOST_BYTES))
    except (ValueError, zlib.error, RecursionError):
        return None
    return value if isinstance(value, dict) else None


LOOK_SECONDS = 50.0
"""For all nodes together: they answer at once, each within 35 s whatever hangs there."""
DAYS = 1.0
"""For which a node that failed is left out, unless somebody says otherwise: long enough to have it repaired."""


@dataclass(frozen=True)
class Health:
    """The result of a health check: a verdict and the facts of each node, and the fabric where it was measured.

    ``check_nodes`` and ``check_nodes_under_load`` return one. The property ``failed`` is a list of the verdicts on
    nodes that failed or are silent, in the order of ``verdicts`` (empty: none). ``shared_fault``, a property, is what
    all fail of alike, as text, joined by ``; ``, so that no node is at fault (empty: nothing, or a single node). The
    property ``drift`` tells in what nodes differ: by fact, then by value, the nodes that have it, the value of most
    nodes first (empty: in nothing).
    """

    verdicts: Sequence[NodeVerdict]
    """One for each node that was to be checked, in the order of the held nodes."""
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    """What each node that answered recorded of itself, by its name."""
    seconds: float = 0.0
    """How long the check took, without the wait in the queue."""
    fabric: Fabric | None = None
    """What was measured under load; None: it was not asked for, or no node was fit for it."""
    complaint: str = ""
    """The scheduler's message, if not all nodes answered; empty: all did, or it said nothing."""

    @property
    def failed(self) -> list[NodeVerdict]:
        """The verdicts on the nodes that failed the health check or did not answer; empty: none.

        In the order of ``verdicts``.
        """
        return [verdict for verdict in self.verdicts if verdict.status in ("fail", "silent")]

    @property
    def shared_fault(self) -> str:
        """What all nodes that answered fail of, or all that were put to work, joined by ``; ``; empty: nothing.

        Sorted by alphabet. Only failures with the same text count, no warnings. Then the site is at fault, not a node.
        Empty, too, for a single node.
        """
        answered = [verdict for verdict in self.verdicts if verdict.status != "silent"]
        shared = _in_common(answered)
        if self.fabric is not None and not shared:
            measured = self.fabric.measurement
            at_work = {*measured.hosts, *measured.missing}
            shared = _in_common([verdict for verdict in answered if verdict.node in at_work])
        return shared

    @property
    def drift(self) -> dict[str, dict[str, list[str]]]:
        """What differs between the nodes that answered: by fact (``driver``), then by value, the nodes that have it.

        The value of most nodes comes first. Empty where the nodes are alike.
        """
        return drift([self.facts[verdict.node] for verdict in self.verdicts if verdict.node in self.facts])


def _in_common(verdicts: Sequence[NodeVerdict]) -> str:
    """Return the texts of the remarks of which all nodes in ``verdicts`` fail, sorted and joined by ``; ``.

    Empty: none, or fewer than two nodes. Warnings do not count.
    """
    fails = [{item.text for item in verdict.remarks if item.level == "fail"} for verdict in verdicts]
    return "; ".join(sorted(set.intersection(*fails))) if len(fails) > 1 else ""


def choose_nodes(
    executor: Executor, install: Path, nodes: str | None, partition: str | None, avoided: str | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return (nodes to check, why not the others, by node): those in ``nodes``, else those of ``partition``.

    ``executor`` is asked which nodes there are; ``install`` is the installation. ``nodes`` is a host list; with it and
    ``partition`` None they are those of the scheduler's default partition. In the scheduler's order. Nothing is held or
    asked of the nodes here. Left out are nodes that a job cannot have now or that the scheduler does not know and,
    unless ``nodes`` names the nodes, those on the installation's list of excluded ones and in ``avoided``, a host list
    of what the job in question excludes by itself.

    Raises:
        RequestError: code ``no-nodes``: none can be checked; or there are no such nodes, or no scheduler; or a host
            list is wrong
        SchedulerError: the scheduler does not answer
        RecordError: the list of excluded nodes is damaged
    """
    now = executor.nodes_now(nodes, partition)
    excluded: dict[str, str] = {}
    if not nodes:
        excluded = {item.node: item.reason for item in exclusions(install)}
        excluded |= dict.fromkeys(expand(avoided or ""), "by the job")
    left = {name: why for name, why in now.items() if why}
    left |= {name: f"excluded ({excluded[name]})" for name in now if name in excluded and name not in left}
    chosen = [name for name in now if name not in left]
    if not chosen:
        first = list(left.items())[:4]
        reasons = ", ".join(f"{name}: {why}" for name, why in first)
        raise RequestError(
            f"none of {len(now)} nodes can be checked now: {reasons}",
            remedy="try again when some are idle",
            code="no-nodes",
        )
    return chosen, left


def check_nodes(
    executor: Executor,
    needs: Needs,
    nodes: Sequence[str],
    *,
    wait: int = 60,
    minutes: int = 2,
    continuation: Callable[[Held, Health], Health] = lambda held, found: found,
) -> Health:
    """Hold ``nodes`` in a job, check their health, and return the verdicts with the seconds that it took.

    ``executor`` holds the nodes, of which ``nodes`` are the names, and no other job runs there meanwhile. ``needs`` is
    what jobs need of a node, and how the job is asked for. ``wait`` is in seconds, for the job to start; ``minutes`` is
    its time limit. ``continuation`` is called with the held nodes and what was found, while they are held, and what it
    returns is the result; its time counts, too, the wait does not. What it raises passes. The nodes are given back in
    any case; none is put on a list of excluded ones here.

    Raises:
        RequestError: there is no scheduler, or no partition has all of the nodes
        SchedulerError: the nodes are not given, or none could start anything
        EnvironmentLacks: a part of LLMB is missing
        OSError: a part of LLMB cannot be read
    """
    gpus, part = needs.gpus_per_node or 1, needs.scheduler
    wanted = NodeRequest(
        name="llmb-health", scheduler=part, nodes=nodes, gpus=gpus, minutes=minutes, wait=wait, whole=True
    )
    with executor.hold(wanted) as held:
        begun = time.monotonic()
        found = continuation(held, check_held_nodes(held, needs))
        return replace(found, seconds=time.monotonic() - begun)


def check_held_nodes(held: Held, needs: Needs) -> Health:
    """Check the health of nodes that are held, without load; a node that does not answer gets the status ``silent``.

    Nodes are held against ``needs``, what jobs need of them. Verdicts come in the order of the held nodes; ``seconds``
    stays 0, and ``fabric`` None.

    Raises:
        SchedulerError: none could start anything
        EnvironmentLacks: a part of LLMB is missing
        OSError: a part of LLMB cannot be read
    """
    spec = {"stage": "look", "folders": dict(needs.folders), "written": ["workload"]}
    answer, node_answers = run_on_nodes(held, node_command(spec, (*PYTHONS, *needs.pythons)), LOOK_SECONDS)
    if not node_answers:
        raise SchedulerError(
            f"no node answered: {answer.complaint}",
            remedy="look at the nodes with sinfo, and start one by hand with srun",
        )
    facts = {node: None if value is None else read_facts(node, value) for node, value in node_answers.items()}
    known = {node: found for node, found in facts.items() if found is not None}
    complaint = ""
    if len(facts) != len(held.nodes):
        complaint = (answer.errors.strip() or answer.why)[:500]
    return Health(judge(held.nodes, facts, needs), known, complaint=complaint)


def run_on_nodes(held: Held, argv: Sequence[str], seconds: float) -> tuple[Answer, dict[str, Any]]:
    """Run ``argv`` on all held nodes; return (how the command ended, the answer of each node by its name).

    ``argv`` is from ``node_command``. A node that said nothing is missing there; one without a Python has None. Nodes
    that lost their step because another node is dead are asked once more; how the command ended is of the first time.
    ``seconds`` is the limit for all together, each time.
    """
    answer = held.run(argv, seconds)
    node_answers = parse_frames(answer.output)
    dead = held.unreached(answer)
    if dead and (rest := [node for node in held.nodes if node not in node_answers and node not in dead]):
        node_answers |= parse_frames(held.run(argv, seconds, nodes=rest).output)
    return answer, node_answers


def exclude_failed_nodes(install: Path, found: Health, days: float) -> None:
    """Put the nodes that failed the health check, or were silent, on the installation's list of excluded nodes.

    ``install`` is the installation, ``found`` the result of the check. They are on the list for ``days`` days from now,
    also those that were on it already, with what they fail of as the reason, and submissions keep jobs off them.
    Nothing is done where none failed. After an error from the list some of the nodes may be on it.

    Raises:
        CheckFailed: code ``unhealthy-nodes``: all that answered fail of the same: that is the site's fault, and nothing
            is put on the list
        RequestError: ``days`` is not above 0 and at most 3650
        RecordError: the list cannot be read or written, or is locked for 20 s
        OSError: the list cannot be locked for another reason
    """
    if shared := found.shared_fault:
        common = [item for item in found.failed[0].remarks if item.level == "fail" and item.text in shared]
        remedy = "; ".join(filter(None, (item.remedy for item in common))) or "mend that on all nodes"
        raise CheckFailed(
            f"all nodes fail alike, and none was excluded: {shared}",
            remedy=remedy,
            code="unhealthy-nodes",
        )
    exclude_unfit(install, {verdict.node: verdict.reason for verdict in found.failed}, days)


def exclude_unfit(install: Path, unfit: Mapping[str, str], days: float = DAYS) -> None:
    """Put nodes on the installation's list of excluded nodes for ``days`` days, or parts of days, from now on.

    ``install`` is the installation. ``unfit`` says by the name of a node what it fails of, on one line, which becomes
    the reason, after ``health:``; a node that is on the list already gets the new reason and end. Nothing is done
    where it is empty. They are put there one after the other: after an error those before it are on it.

    Raises:
        RequestError: ``days`` is not above 0 and at most 3650, a reason is not one printable line, or a name is none
        RecordError: the list cannot be read or written, or is locked for 20 s
        OSError: the list cannot be locked for another reason
    """
    for node, why in unfit.items():
        exclude_nodes(install, node, f"health: {why}", days=days)
