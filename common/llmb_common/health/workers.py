"""The program on the nodes at work: orders that all of them hear, what each answers, and the watchdog.

A node that does not answer gets no further orders, and holds up nobody: after some medians of what the others took,
ranks are ended where they are, and say how far they came.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeAlias

from msgspec.structs import replace

from llmb_common.base.errors import SchedulerError
from llmb_common.base.talking import Conversation
from llmb_common.executors.base import MOST_GROUPS, Container, Held
from llmb_common.health.answers import readable
from llmb_common.health.ask import PYTHONS, Frames, node_command
from llmb_common.nodes.fabric.measurement import GroupMeasurement
from llmb_common.nodes.nccl import used_adapters_of
from llmb_common.nodes.needs import Needs

START_SECONDS = 300.0
"""For the program to be ready: a container's image is unpacked first."""
ALONE_SECONDS = 90.0
GROUP_SECONDS = {"cuda": 90.0, "cpu": 40.0}
"""At most, for all-reduces among some nodes, with their rendezvous."""
WHOLE_SECONDS = {"cuda": 240.0, "cpu": 60.0}
"""The same among all nodes: thousands of ranks take a minute to find each other."""
_MEDIANS = 5.0
_FLOOR_SECONDS = {"cuda": 20.0, "cpu": 6.0}
"""The watchdog: once half of the nodes have answered, the others get so many medians of what those took."""
_LAST_WORDS = {"cuda": 8.0, "cpu": 3.0}
"""For a node to say what has become of its ranks, after they were ended."""
_NOT_ALONE = ("T", "t", "D", "Z")
"""States of a process in which it does nothing by itself: stopped, waiting in the kernel, dead."""


_PORT_TAKEN = "address already in use"
"""What a rendezvous says whose port another program has."""


Groups: TypeAlias = Sequence[Sequence[str]]
"""Disjoint groups of nodes."""
Measured: TypeAlias = list[list[GroupMeasurement]]
"""The measurements of each of some groups."""


def ranks_of(needs: Needs) -> int:
    """Return the number of ranks that measure on one node of ``needs``: one for each GPU; 1 on CPUs.

    Also 1 where the number of GPUs in a node is not known.
    """
    return (needs.gpus_per_node or 1) if needs.device == "cuda" else 1


class Workers:
    """The nodes on which the measuring program runs, and takes orders, one after the other.

    ``start_workers`` makes it and returns it ready; it takes orders only within that context. ``measure_gpus`` returns
    the nodes' answers by name, dicts with ``alone`` (by GPU, its index as text) and ``load``; ``all_reduce`` for each
    group a list of measurements, one for each of the sizes in bytes, both in their order; ``all_reduce_by_rail`` one
    list of measurements, for each group all its rails; a measurement has an error where a rank gave no time. They, and
    ``require_step``, which checks only that, raise ``SchedulerError`` once the program has ended on all nodes. Nodes
    that fail to answer are in ``lost`` from then on, with the reason by name, and no longer in the property ``nodes``,
    a list of names in the order given. ``logs`` has lines of NCCL's log, by node. ``wait_until_ready`` is for
    ``start_workers`` alone.
    """

    def __init__(self, conversation: Conversation, needs: Needs, nodes: Sequence[str], port: int) -> None:
        self._conversation = conversation
        self._needs = needs
        self._asked = list(nodes)
        self._frames = Frames()
        self._number = 0
        self._first_port = port
        self._taken = 0
        self.heard = False
        """Whether any node has said anything."""
        self.lost: dict[str, str] = {}
        """Why each node answers no more, by its name."""
        self.logs: dict[str, list[str]] = {}
        """Lines of NCCL's log about the way that traffic takes, by node."""

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes that still answer, in the order in which they were given.

        Empty where none does.
        """
        return [node for node in self._asked if node not in self.lost]

    def wait_until_ready(self) -> None:
        """Wait until the measuring program is ready on all nodes, at most five minutes.

        Less, but at least one, once half of them are. Nodes on which it is not ready then are noted in ``lost``;
        nothing is raised.
        """
        self._collect_answers(0, self.nodes, START_SECONDS, 60.0)

    def measure_gpus(self) -> dict[str, dict[str, Any]]:
        """Measure each GPU of all nodes by itself; return each node's answer: ``alone`` by GPU, and looks in ``load``.

        By the node's name, in the form of JSON: a GPU is its index as text. Nodes that cannot measure, or do not answer
        in time, within about 100 s, are noted in ``lost`` and left out; empty where all are.

        Raises:
            SchedulerError: the program has ended on all nodes
        """
        return self._send_order({"work": "alone"}, self.nodes, ALONE_SECONDS)

    def all_reduce(self, groups: Groups, sizes: Sequence[int], seconds: float) -> Measured:
        """Measure all-reduces in disjoint groups of nodes, all at the same time, for at most ``seconds``.

        ``groups`` are lists of node names. Return for each group a list with one measurement for each of ``sizes``, in
        bytes, both in their order; a group of which a rank gave no time has measurements with an error. Groups whose
        port another program has are measured once more. Nodes that do not answer are noted in ``lost``.

        Raises:
            SchedulerError: the program has ended on all nodes
        """
        return self._on_free_ports(groups, lambda some: self._run_all_reduce(some, sizes, seconds))

    def _on_free_ports(self, groups: Groups, measure: Callable[[Groups], Measured]) -> Measured:
        """Return what ``measure`` gives for the groups of nodes; those whose port was taken are measured once more.

        ``measure`` is called with groups, and returns a list of measurements for each, in that order; the second time
        with those alone whose port was taken and none of whose nodes is lost. What it gives then counts, even if the
        port was taken again. The result is in the order of ``groups``. That another program has the port says nothing
        of the nodes.

        Raises:
            SchedulerError: the measuring program has ended on all nodes
        """
        measured = measure(groups)
        again = [
            at
            for at, of_group in enumerate(measured)
            if any(_PORT_TAKEN in item.error.lower() for item in of_group) and self.lost.keys().isdisjoint(groups[at])
        ]
        if again:
            for at, of_group in zip(again, measure([groups[at] for at in again]), strict=True):
                measured[at] = of_group
        return measured

    def _run_all_reduce(self, groups: Groups, sizes: Sequence[int], seconds: float) -> Measured:
        """Measure an all-reduce in each of the disjoint ``groups`` of nodes at once; return a list for each group.

        It has one measurement for each of ``sizes``, in bytes and in their order. It takes at most ``seconds``, and is
        done only once, whatever port is taken. What NCCL logged is added to ``logs``.

        Raises:
            SchedulerError: the measuring program has ended on all nodes
        """
        members = list(chain.from_iterable(groups))
        order = {"work": "reduce", "groups": [list(group) for group in groups], "bytes": list(sizes)}
        answers = self._send_order(
            {**order, "port": self._next_ports(len(groups)), "seconds": seconds}, members, seconds
        )
        count = ranks_of(self._needs)
        for node, answer in answers.items():
            self.logs.setdefault(node, []).extend(_nccl_lines(answer))
        return [_group_measurements(group, range(count), sizes, answers) for group in groups]

    def all_reduce_by_rail(self, groups: Groups, size: int, seconds: float) -> list[GroupMeasurement]:
        """Measure all-reduces among the GPUs with the same index on each node of a group: one for each index (rail).

        All at once, for disjoint ``groups``, lists of node names, and a buffer of ``size`` bytes, for at most
        ``seconds``. Return one list of measurements, for each group all its rails, in their order; with an error where
        a rank gave no time. Groups of which another program has a port are measured once more. Nodes that do not
        answer are noted in ``lost``.

        Raises:
            SchedulerError: the program has ended on all nodes
        """
        measured = self._on_free_ports(groups, lambda some: self._by_rail(some, size, seconds))
        return list(chain.from_iterable(measured))

    def _by_rail(self, groups: Groups, size: int, seconds: float) -> Measured:
        """Measure all-reduces of each rail in ``groups`` of nodes, once; return for each group one measurement a rail.

        The groups are disjoint lists of node names; they and the rails come in their order. A rail is the GPUs with
        the same index on each node. ``size`` is that of the buffer in bytes, and it takes at most ``seconds``.

        Raises:
            SchedulerError: the measuring program has ended on all nodes
        """
        members = list(chain.from_iterable(groups))
        count = ranks_of(self._needs)
        what = {"work": "reduce", "rails": True, "groups": [list(group) for group in groups], "bytes": [size]}
        port = self._next_ports(len(groups) * count)
        answers = self._send_order({**what, "port": port, "seconds": seconds}, members, seconds)
        return [[_of_rail(group, rail, size, answers) for rail in range(count)] for group in groups]

    def _next_ports(self, count: int) -> int:
        """Return the first of ``count`` TCP ports in a row, which count as taken from then on.

        When the range of 4096 is used up it starts over: ports of long ago are free again. Whether they are free is
        not checked. ``count`` is at most 4096.
        """
        if self._taken + count > MOST_GROUPS:
            self._taken = 0
        first = self._first_port + self._taken
        self._taken += count
        return first

    def _send_order(self, order: dict[str, Any], nodes: Sequence[str], seconds: float) -> dict[str, dict[str, Any]]:
        """Give the nodes an order, values for JSON; return the answers by node.

        All nodes get ``order``, with a number that is added here; ``nodes`` are those whose answers are waited for,
        about ``seconds`` long. Those that cannot carry it out, or do not answer in time, are noted in ``lost`` and
        left out.

        Raises:
            SchedulerError: the program has ended on all nodes
        """
        self._number += 1
        self._conversation.send(json.dumps({"order": self._number, **order}))
        answers = self._collect_answers(self._number, nodes, seconds, _FLOOR_SECONDS[self._needs.device])
        self.require_step()
        return answers

    def require_step(self) -> None:
        """Raise if the measuring program has ended on all nodes, which is no node's fault.

        Raises:
            SchedulerError: it has ended on all nodes; the message has its complaint
        """
        if self._conversation.over:
            raise SchedulerError(
                f"the measuring step ended on all nodes: {self._conversation.complaint.complaint}",
                remedy="run it again; the scheduler's log says why",
            )

    def _collect_answers(
        self, number: int, nodes: Sequence[str], seconds: float, floor: float
    ) -> dict[str, dict[str, Any]]:
        """Return the answer of each node to order ``number`` (0: the program's start), by its name, within ``seconds``.

        Nodes that do not answer in time, or cannot carry it out, are noted in ``lost`` with the reason and left out;
        empty where all are. Once half have answered the others get less time, but at least ``floor`` seconds. Ranks
        that still work then are ended, and their nodes have a few seconds more to answer. That the program has ended
        everywhere is not raised here.
        """
        answers: dict[str, dict[str, Any]] = {}
        took: list[float] = []
        begun = time.monotonic()
        ended: float | None = None
        while len(answers) < len(nodes) and not self._conversation.over:
            now = time.monotonic() - begun
            limit = _order_deadline(took, len(nodes), seconds, floor)
            if ended is not None:
                limit = ended + _LAST_WORDS[self._needs.device]
            if now >= limit and ended is not None:
                break
            if now >= limit:
                # Ranks that hang are ended, so that their nodes can still answer, and say which hung.
                self._conversation.send(json.dumps({"order": number, "end": True}))
                ended = now
                continue
            for line in self._conversation.receive(limit - now):
                node, answer = self._frames.take(line)
                answer = answer if answer is not None else {"order": 0, "error": "no Python 3.6 or newer"}
                if node in nodes and answer.get("order") == number:
                    answers[node] = readable(answer)
                    took.append(time.monotonic() - begun)
        self.heard = self.heard or bool(answers)
        for node in nodes:
            if node not in answers:
                self.lost[node] = _why_silent(number)
            elif answers[node].get("error"):
                self.lost[node] = f"nothing can be measured there: {answers.pop(node)['error']}"
        return answers


def _order_deadline(took: Sequence[float], nodes: int, seconds: float, floor: float) -> float:
    """Return after how many seconds from its beginning the ranks that still work on an order are ended.

    It is ``seconds`` until half of the ``nodes`` (a number, at least 1) have answered; then ``_MEDIANS`` (5) times the
    median of what those took (``took``, in seconds), at least ``floor`` (in seconds) and at most ``seconds``.
    """
    if 2 * len(took) < nodes:
        return seconds
    return min(seconds, max(floor, _MEDIANS * statistics.median(took)))


def _why_silent(number: int) -> str:
    """Return why a node is lost, as a clause, by the number of the order that it did not answer; 0: its start.

    Such as "it stopped answering while the fabric was measured", without a full stop.
    """
    if number == 0:
        return "no answer: nothing starts there in the job's image"
    return "it stopped answering while the fabric was measured"


def _nccl_lines(answer: Mapping[str, Any], rank: int | None = None) -> Iterator[str]:
    """Yield the lines of NCCL's log in a node's answer, of all its ranks or only of its rank ``rank`` (None: of all).

    Rank by rank in the order of ``answer``, which has passed ``readable``; ranks count from 0 on each node. Nothing
    where the answer has no such lines.
    """
    for name, result in answer.get("ranks", {}).items():
        if rank is not None and name != str(rank):
            continue
        value = result.get("value") or {}
        yield from (line for line in value.get("log", ()) if isinstance(line, str))


def _group_measurements(
    group: Sequence[str], indexes: Sequence[int], sizes: Sequence[int], answers: Mapping[str, Mapping[str, Any]]
) -> list[GroupMeasurement]:
    """Return the measurement of one group of nodes for each of ``sizes``, in bytes and in their order.

    ``group`` has the nodes' names, and ``answers`` their answers by name, in which nodes may be missing. On each node
    the ranks with these ``indexes`` took part. The time is the median of all ranks. If any rank gave no time, each
    measurement has an error instead, such as ``n1 rank 3: it is stopped``, and ``hung_ranks``, those that hold up the
    others; both count ranks from 0 within the group, node after node.
    """
    count = len(indexes)
    results: list[dict[str, Any] | None] = []
    for node in group:
        ranks = answers.get(node, {}).get("ranks", {})
        results += [ranks.get(str(index)) for index in indexes]
    nothing = GroupMeasurement(nodes=tuple(group), gpus_per_node=count, bytes=0)
    times = [_rank_seconds(result, sizes) for result in results]
    values = [of_rank for of_rank in times if of_rank]
    if len(values) == len(results):
        return [
            replace(nothing, bytes=size, seconds=statistics.median(value[at] for value in values))
            for at, size in enumerate(sizes)
        ]
    culprits = blocking_ranks(results)
    first = culprits[0] if culprits else next(at for at, of_rank in enumerate(times) if not of_rank)
    node = group[first // count]
    error = f"{node} rank {first}: {_rank_problem(results[first])}"[:300]
    return [replace(nothing, bytes=size, error=error, hung_ranks=tuple(culprits)) for size in sizes]


def _of_rail(group: Sequence[str], rail: int, size: int, answers: Mapping[str, Mapping[str, Any]]) -> GroupMeasurement:
    """Return the measurement of a group in which only the GPU with index ``rail`` of each node took part.

    It includes the network adapters that NCCL used, each name once. ``group`` has the nodes' names, ``size`` is that of
    the buffer, in bytes; ``answers`` are by node, in which nodes may be missing: then the measurement has an error.
    """
    (measured,) = _group_measurements(group, [rail], [size], answers)
    # By node: each numbers its adapters itself.
    used = [used_adapters_of(_nccl_lines(answers.get(node, {}), rail)) for node in group]
    adapters = tuple(dict.fromkeys(chain.from_iterable(used)))
    return replace(measured, rail=rail, adapters=adapters)


def _rank_seconds(result: Mapping[str, Any] | None, sizes: Sequence[int]) -> Sequence[float]:
    """Return the seconds that a rank took for each of ``sizes``; empty where it gave no time, or not for all.

    ``result`` is what its node said of it, in the form of ``_Result`` as JSON has it; None: nothing. Its list
    ``seconds`` counts only where it has as many times as there are ``sizes``; it is returned as it is, and its times
    are in the order of ``sizes``.
    """
    value = (result or {}).get("value") or {}
    seconds: Sequence[float] = value.get("seconds", ())
    return seconds if len(seconds) == len(sizes) else ()


def _rank_problem(result: Mapping[str, Any] | None) -> str:
    """Return why a rank gave no time, as a clause (``it is stopped``), by what its node said of it, as JSON has it.

    None for ``result``: its node said nothing.
    """
    if result is None:
        return "its node did not answer"
    if "error" in result:
        return str(result["error"])
    if result.get("state") in ("T", "t"):
        return "it is stopped"
    if "hung" in result:
        return f"it did not come back in time ({result['hung']})"
    return "it gave no time"


def blocking_ranks(results: Sequence[Mapping[str, Any] | None]) -> list[int]:
    """Return which of a group's ranks, counted from 0, hold up the others in a collective that did not end.

    ``results`` are by rank, as JSON has them; None: its node said nothing of it. Those hold up the others of which
    there is no word, which died, or whose process does nothing; without such, those that are behind. Sorted; empty
    where all wait at the same place, so that it cannot be told for whom.
    """
    gone = [at for at, result in enumerate(results) if result is None or _is_stopped_or_dead(result)]
    if gone:
        return gone
    waiting = {at: int(result.get("step", 0)) for at, result in enumerate(results) if result and "hung" in result}
    furthest = max((int(result.get("step", 0)) for result in results if result), default=0)
    behind = min(waiting.values(), default=furthest)
    return [at for at, step in waiting.items() if step == behind < furthest]


def _is_stopped_or_dead(result: Mapping[str, Any]) -> bool:
    """Return whether a rank's process was stopped or dead, so that the others waited for it.

    ``result`` is what its node said of it, as JSON has it. False for a rank that gave a value, or an error of its own.
    """
    if "hung" in result:
        return result.get("state") in _NOT_ALONE or bool(result.get("stuck"))
    return bool(result.get("died"))


@contextmanager
def start_workers(held: Held, needs: Needs, nodes: Sequence[str]) -> Iterator[Workers]:
    """Return a context in which the measuring program runs on ``nodes`` and is ready for orders.

    ``nodes`` are names of held ones. The program ends with the context. It runs in the jobs' image and with their
    variables, as ``needs`` has them. Nodes that the scheduler cannot reach, or on which it does not start, are noted
    in the ``lost`` of what the context gives; all may be. An OSError that is raised within the context comes out of it
    as a ``SchedulerError``.

    Raises:
        SchedulerError: the program cannot be started at all, or the scheduler does not answer
        EnvironmentLacks: a part of LLMB is missing
        OSError: a part of LLMB cannot be read
    """
    addresses = held.addresses
    spec = {
        "stage": "fabric",
        "device": needs.device,
        "gpus": ranks_of(needs),
        "addresses": {node: addresses.get(node, node) for node in nodes},
        "env": dict(needs.env),
    }
    inside = Container(needs.image, needs.mounts) if needs.containers and needs.image else None
    argv = node_command(spec, ("python3",) if inside else (*needs.pythons, *PYTHONS))
    unreached: list[str] = []
    while True:
        left = [node for node in nodes if node not in unreached]
        try:
            with held.talk(argv, inside=inside, nodes=left) as conversation:
                workers = Workers(conversation, needs, left, held.first_port)
                workers.wait_until_ready()
                # A step that cannot be started on one node is not started on the others.
                dead = held.unreached(conversation.complaint) if conversation.over and not unreached else []
                if not dead:
                    if workers.nodes or not workers.heard:
                        workers.require_step()
                    workers.lost |= dict.fromkeys(unreached, "Slurm cannot reach it")
                    yield workers
                    return
                unreached = list(dead)
        except OSError as error:
            raise SchedulerError(
                f"nothing can be started on the nodes: {error.strerror or error}", remedy="run this on a login node"
            ) from error
