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
    """The number of ranks that work on a node: one for each GPU; 1 on CPUs."""
    return (needs.gpus_per_node or 1) if needs.device == "cuda" else 1


class Workers:
    """The nodes at work. ``lost`` has those that answer no more, with the reason, and ``logs`` what NCCL said on each
    node of the way that the traffic takes."""

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
        self.logs: dict[str, list[str]] = {}

    @property
    def nodes(self) -> list[str]:
        """The nodes that still answer."""
        return [node for node in self._asked if node not in self.lost]

    def wait_until_ready(self) -> None:
        """Wait until the program is ready on all nodes, at most five minutes; those on which it is not are ``lost``."""
        self._collect_answers(0, self.nodes, START_SECONDS, 60.0)

    def measure_gpus(self) -> dict[str, dict[str, Any]]:
        """What each node's GPUs give by themselves, by node: ``alone`` by GPU, and ``load``. Silent nodes are lost.

        Raises:
            SchedulerError: the program has ended on all nodes
        """
        return self._send_order({"work": "alone"}, self.nodes, ALONE_SECONDS)

    def all_reduce(self, groups: Groups, sizes: Sequence[int], seconds: float) -> Measured:
        """All-reduces in disjoint groups at the same time: for each group one measurement a size, in their order.

        Groups whose port another program has are measured once more. Silent nodes are lost.

        Raises:
            SchedulerError: the program has ended on all nodes
        """
        return self._on_free_ports(groups, lambda some: self._run_all_reduce(some, sizes, seconds))

    def _on_free_ports(self, groups: Groups, measure: Callable[[Groups], Measured]) -> Measured:
        """What ``measure`` gives for the groups; those of which it finds a port taken are measured once more.

        That another program has the port says nothing of the nodes.
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
        """What an all-reduce in each of the groups at once gave, at each size; adds what NCCL said to ``logs``."""
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
        """All-reduces among GPU i of each node of a group, for all i and all of the disjoint groups at once.

        One measurement for each group and rail, in their order. Groups of which another program has a port are measured
        once more. Silent nodes are lost.

        Raises:
            SchedulerError: the program has ended on all nodes
        """
        measured = self._on_free_ports(groups, lambda some: self._by_rail(some, size, seconds))
        return list(chain.from_iterable(measured))

    def _by_rail(self, groups: Groups, size: int, seconds: float) -> Measured:
        """What an all-reduce gave among GPU i of each node of a group: for each group a measurement of each i."""
        members = list(chain.from_iterable(groups))
        count = ranks_of(self._needs)
        what = {"work": "reduce", "rails": True, "groups": [list(group) for group in groups], "bytes": [size]}
        port = self._next_ports(len(groups) * count)
        answers = self._send_order({**what, "port": port, "seconds": seconds}, members, seconds)
        return [[_of_rail(group, rail, size, answers) for rail in range(count)] for group in groups]

    def _next_ports(self, count: int) -> int:
        """The first of ``count`` ports in a row, which are taken from then on; those of long ago are free again."""
        if self._taken + count > MOST_GROUPS:
            self._taken = 0
        first = self._first_port + self._taken
        self._taken += count
        return first

    def _send_order(self, order: dict[str, Any], nodes: Sequence[str], seconds: float) -> dict[str, dict[str, Any]]:
        """Give nodes an order; returns by node what those that answer in time say, and the others are ``lost``.

        Raises:
            SchedulerError: the program has ended on all nodes
        """
        self._number += 1
        self._conversation.send(json.dumps({"order": self._number, **order}))
        answers = self._collect_answers(self._number, nodes, seconds, _FLOOR_SECONDS[self._needs.device])
        self.require_step()
        return answers

    def require_step(self) -> None:
        """Return while the program still runs on some node; else raise: that it ended everywhere is no node's fault.

        Raises:
            SchedulerError: it has ended on all nodes
        """
        if self._conversation.over:
            raise SchedulerError(
                f"the measuring step ended on all nodes: {self._conversation.complaint.complaint}",
                remedy="run it again; the scheduler's log says why",
            )

    def _collect_answers(
        self, number: int, nodes: Sequence[str], seconds: float, floor: float
    ) -> dict[str, dict[str, Any]]:
        """What each node answers to an order; those that do not in time, or cannot do it, are ``lost``."""
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
    """Seconds after an order when ranks are ended; ``took``: seconds of the nodes that have answered so far.

    It is ``seconds`` until half of the ``nodes`` have answered; then some medians of what they took, at least
    ``floor``.
    """
    if 2 * len(took) < nodes:
        return seconds
    return min(seconds, max(floor, _MEDIANS * statistics.median(took)))


def _why_silent(number: int) -> str:
    """Why a node is lost, by the order that it did not answer."""
    if number == 0:
        return "no answer: nothing starts there in the job's image"
    return "it stopped answering while the fabric was measured"


def _nccl_lines(answer: Mapping[str, Any], rank: int | None = None) -> Iterator[str]:
    """Yields the lines of NCCL's log that a node's ranks have given, or only its rank ``rank``."""
    for name, result in answer.get("ranks", {}).items():
        if rank is not None and name != str(rank):
            continue
        value = result.get("value") or {}
        yield from (line for line in value.get("log", ()) if isinstance(line, str))


def _group_measurements(
    group: Sequence[str], indexes: Sequence[int], sizes: Sequence[int], answers: Mapping[str, Mapping[str, Any]]
) -> list[GroupMeasurement]:
    """What came of a group of nodes, with ranks of these indexes on each: a measurement for each size.

    If any rank gave no time, all of them have an error instead, and say which ranks hung.
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
    error = f"{group[first // count]} rank {first}: {_rank_problem(results[first])}"[:300]
    return [replace(nothing, bytes=size, error=error, hung_ranks=tuple(culprits)) for size in sizes]


def _of_rail(group: Sequence[str], rail: int, size: int, answers: Mapping[str, Mapping[str, Any]]) -> GroupMeasurement:
    """What came of a group in which only the GPU ``rail`` of each node took part, with the adapters that NCCL used."""
    (measured,) = _group_measurements(group, [rail], [size], answers)
    # By node: each numbers its adapters itself.
    used = [used_adapters_of(_nccl_lines(answers.get(node, {}), rail)) for node in group]
    adapters = tuple(dict.fromkeys(chain.from_iterable(used)))
    return replace(measured, rail=rail, adapters=adapters)


def _rank_seconds(result: Mapping[str, Any] | None, sizes: Sequence[int]) -> Sequence[float]:
    """The seconds of a rank, for each size; empty where it has none, or not of all."""
    value = (result or {}).get("value") or {}
    seconds: Sequence[float] = value.get("seconds", ())
    return seconds if len(seconds) == len(sizes) else ()


def _rank_problem(result: Mapping[str, Any] | None) -> str:
    """Why a rank gave no figure, in words, by what its node said of it; None: the node said nothing."""
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
    """Which of a group's ranks, from 0, hold up the others: a collective ends nowhere before all have entered it.

    Those of which there is no word, which died, or whose process does nothing; else those that are behind. Empty: all
    wait at the same place, and it cannot be told for whom.
    """
    gone = [at for at, result in enumerate(results) if result is None or _is_stopped_or_dead(result)]
    if gone:
        return gone
    waiting = {at: int(result.get("step", 0)) for at, result in enumerate(results) if result and "hung" in result}
    furthest = max((int(result.get("step", 0)) for result in results if result), default=0)
    behind = min(waiting.values(), default=furthest)
    return [at for at, step in waiting.items() if step == behind < furthest]


def _is_stopped_or_dead(result: Mapping[str, Any]) -> bool:
    """Whether a rank is stopped or dead, so that the others waited for it."""
    if "hung" in result:
        return result.get("state") in _NOT_ALONE or bool(result.get("stuck"))
    return bool(result.get("died"))


@contextmanager
def start_workers(held: Held, needs: Needs, nodes: Sequence[str]) -> Iterator[Workers]:
    """Within the block, the program at work on these nodes, in jobs' image and with their variables.

    It is ready for orders. Nodes that the scheduler cannot reach are ``lost``.

    Raises:
        SchedulerError: it cannot be started
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
                workers = Workers(conversation, needs, left, held.port)
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
