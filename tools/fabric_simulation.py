"""How often the verdict on a fabric is wrong, by simulation: fleets with known faults, measured in rounds.

    python -m tools.fabric_simulation [--trials 1000] [--seed 1] [PART...]

prints the tables of ``docs/fabric.md``, in per cent of the fleets.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product

import msgspec

from llmb_common.nodes.fabric.blame import next_round
from llmb_common.nodes.fabric.expectation import Expectation
from llmb_common.nodes.fabric.grouping import first_groups
from llmb_common.nodes.fabric.halving import next_halves
from llmb_common.nodes.fabric.judging import judge
from llmb_common.nodes.fabric.measurement import FabricMeasurement, GroupMeasurement, NodeMeasurement
from llmb_common.nodes.fabric.rails import rail_groups
from llmb_common.nodes.fabric.verdict import FabricVerdict
from llmb_common.planning.site.cluster import HealthSettings
from tools.markdown import lines, print_tables

BYTES = 4 << 30
BANDWIDTH = 332.7
"""GB/s: what 66 healthy B200 nodes gave, with a standard deviation of 0.24 (a provider's diary, 2026)."""
MATRIX, COPY, WITHIN = 1600.0, 6000.0, 830.0
"""TFLOPS and GB/s; only their scatter matters."""


@dataclass(frozen=True)
class Scatter:
    """How much healthy ones differ: standard deviations as shares."""

    title: str
    figures: float = 0.0007
    """Of one group's figures from time to time."""
    nodes: float = 0.0
    """Between nodes, each time the same. A group is as slow as its slowest node."""
    gpus: float = 0.004
    """Between the matrix products of GPUs, each time the same; of copies and of nodes' own all-reduces a quarter."""
    tail: int = 0
    """Degrees of freedom of Student's t, by which groups' figures differ; 0: normal."""


REAL = Scatter("0.07 %, as measured")
SCATTERS = (
    REAL,
    Scatter("0.5 %, each figure", 0.005, gpus=0.01),
    Scatter("0.5 %, each node", 0.0007, 0.005, gpus=0.01),
    Scatter("1 %, each figure", 0.01, gpus=0.02),
    Scatter("1 %, each node", 0.0007, 0.01, gpus=0.02),
    Scatter("0.5 %, each figure, heavy tails", 0.005, gpus=0.01, tail=5),
)


@dataclass(frozen=True)
class Generation:
    """Machines of one kind."""

    title: str
    gpus: int
    bandwidth: float
    scatter: Scatter
    domain: int = 0
    """Nodes of a switch or NVL72 domain; 0: not known."""


GENERATIONS = (
    Generation("H100, 8 GPUs, 32 nodes a switch", 8, 190.0, Scatter("", 0.002, 0.002, 0.01), 32),
    Generation("B200, 8 GPUs", 8, BANDWIDTH, REAL),
    Generation("GB200, 4 GPUs, 18 nodes an NVL72 domain", 4, 880.0, Scatter("", 0.004, 0.003, 0.008), 18),
)


@dataclass(frozen=True)
class Simulated:
    """A fleet. ``slow``: by how much nodes are slower than healthy ones, as a share."""

    hosts: tuple[str, ...]
    scatter: Scatter
    slow: Mapping[str, float] = field(default_factory=dict)
    rails: Mapping[str, int] = field(default_factory=dict)
    """The GPU whose way to the network makes a node slow, instead of all of them."""
    path: frozenset[str] = frozenset()
    """Two nodes between which the path is slow by 20 %."""
    links: tuple[frozenset[str], ...] = ()
    """Pairs of nodes whose link gives 2 %; a ring uses it where they are next to each other."""
    growth: float = 0.0
    """What it costs healthy groups to be twice as large."""
    topology: Mapping[str, str] = field(default_factory=dict)
    is_told: bool = True
    """Whether whoever measures it knows the topology."""
    crossing: float = 0.0
    """What it costs healthy groups to cross switches."""
    gpus: int = 8
    bandwidth: float = BANDWIDTH
    with_gpus: bool = False


def hosts_of(count: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(1, count + 1))


def domains_of(hosts: Sequence[str], size: int) -> dict[str, str]:
    """The switch of each host; none where it is not known."""
    return {host: f"s{at // size}" for at, host in enumerate(hosts)} if size else {}


class _Measured:
    """A fleet being measured."""

    def __init__(self, fleet: Simulated, source: random.Random) -> None:
        self._fleet = fleet
        self._source = source
        # Healthy nodes differ around 1, whatever is wrong with one.
        self._own = {
            host: (1 + self._draw(fleet.scatter.nodes)) * (1 - fleet.slow.get(host, 0.0)) for host in fleet.hosts
        }

    def _draw(self, deviation: float, tail: int = 0) -> float:
        if not deviation:
            return 0.0
        normal = self._source.gauss(0, deviation)
        if not tail:
            return normal
        chi_squared = self._source.gammavariate(tail / 2, 2)
        return float(normal / (chi_squared / tail) ** 0.5 * ((tail - 2) / tail) ** 0.5)

    def group(self, nodes: Sequence[str]) -> GroupMeasurement:
        fleet = self._fleet
        share = min(self._own[host] for host in nodes)
        if len({fleet.topology.get(host) for host in nodes}) > 1:
            share *= 1 - fleet.crossing
        if fleet.path and fleet.path.issubset(nodes):
            share *= 0.8
        share *= (1 - fleet.growth) ** math.log2(len(nodes))
        if any(frozenset(link) in fleet.links for link in zip(nodes, (*nodes[1:], nodes[0]), strict=True)):
            share *= 0.02
        speed = fleet.bandwidth * share * (1 + self._draw(fleet.scatter.figures, fleet.scatter.tail))
        ranks = len(nodes) * fleet.gpus
        seconds = BYTES / 1e9 / speed * 2 * (ranks - 1) / ranks
        return GroupMeasurement(nodes=tuple(nodes), gpus_per_node=fleet.gpus, bytes=BYTES, seconds=seconds)

    def by_rail(self, nodes: Sequence[str]) -> Iterator[GroupMeasurement]:
        """One GPU of each node at a time, each with its share of the bandwidth."""
        fleet = self._fleet
        for rail in range(fleet.gpus):
            speed = fleet.bandwidth / fleet.gpus * (1 + self._draw(fleet.scatter.figures, fleet.scatter.tail))
            losses = [fleet.slow.get(host, 0.0) for host in nodes if fleet.rails.get(host, rail) == rail]
            speed *= 1 - max(losses, default=0.0)
            seconds = BYTES / 1e9 / speed * 2 * (len(nodes) - 1) / len(nodes)
            yield GroupMeasurement(nodes=tuple(nodes), gpus_per_node=1, bytes=BYTES, seconds=seconds, rail=rail)

    def alone(self) -> dict[str, tuple[NodeMeasurement, ...] | tuple[GroupMeasurement, ...]]:
        if not self._fleet.with_gpus:
            return {"nodes": tuple(NodeMeasurement(host=host, gpu=0) for host in self._fleet.hosts), "within": ()}
        wide = self._fleet.scatter.gpus
        nodes = tuple(
            NodeMeasurement(
                host=host,
                gpu=gpu,
                tflops=MATRIX * (1 + self._draw(wide)),
                copy_gbps=COPY * (1 + self._draw(wide / 4)),
            )
            for host, gpu in product(self._fleet.hosts, range(self._fleet.gpus))
        )
        within = tuple(
            GroupMeasurement(
                nodes=(host,),
                gpus_per_node=self._fleet.gpus,
                bytes=BYTES,
                seconds=BYTES / 1e9 / WITHIN * (1 + self._draw(wide / 4)),
            )
            for host in self._fleet.hosts
        )
        return {"nodes": nodes, "within": within}


def measure(
    fleet: Simulated, source: random.Random, expected: HealthSettings | None = None
) -> tuple[FabricMeasurement, FabricVerdict]:
    """A fleet measured until there is nothing more to ask, and judged by what its site has ``expected``."""
    topology = fleet.topology if fleet.is_told else {}
    measured = _Measured(fleet, source)
    alone = measured.alone()
    rounds: list[tuple[GroupMeasurement, ...]] = []
    groups = first_groups(fleet.hosts, topology)
    while True:
        rounds.append(tuple(measured.group(nodes) for nodes in groups))
        found = FabricMeasurement(device="cuda", rounds=tuple(rounds), **alone)  # type: ignore[arg-type]
        verdict = judge(found, topology, expected)
        groups = next_round(found, verdict)
        if not groups:
            break
    by_rail = chain.from_iterable(map(measured.by_rail, rail_groups(found, verdict)))
    found = msgspec.structs.replace(found, rails=tuple(by_rail))
    state = source.getstate()  # so that what follows changes no other fleet
    found = msgspec.structs.replace(found, whole=measured.group(fleet.hosts))
    while True:
        parts = next_halves(found, topology, Expectation(expected or HealthSettings(), found.device))
        if not parts:
            break
        found = msgspec.structs.replace(found, halves=(*found.halves, tuple(map(measured.group, parts))))
    source.setstate(state)
    return found, judge(found, topology, expected)


def named(verdict: FabricVerdict) -> set[str]:
    """Nodes, switches and rails that are blamed each by itself; those of a path, both."""
    blamed: set[str] = set()
    for finding in verdict.findings:
        if finding.level == "note" or finding.kind == "unknown":
            continue
        if finding.kind == "slow-switch":
            blamed.add("switch")
        elif finding.kind == "slow-rail":
            blamed.update(f"rail {number}" for number in finding.rails)
        else:
            of_rails = product(finding.hosts, finding.rails)
            blamed.update(f"{host} rail {number}" for host, number in of_rails)
            blamed.update(finding.hosts if not finding.rails else ())
    return blamed


@dataclass(frozen=True)
class Rates:
    """Of many fleets, as shares: all that is slow was ``found``, somebody else was named (``wrong``), two ``kinds`` of
    nodes were told, and how many rounds it took on average."""

    found: float
    wrong: float
    kinds: float
    rounds: float


def rates(fleets: Iterable[tuple[Simulated, set[str]]], source: random.Random) -> Rates:
    """Each fleet with whom there is to name."""
    found = wrong = kinds = rounds = count = 0
    for fleet, truth in fleets:
        measured, verdict = measure(fleet, source)
        blamed = named(verdict)
        found += truth <= blamed
        wrong += bool(blamed - truth)
        kinds += any(finding.kind == "two-kinds" for finding in verdict.findings)
        rounds += len(measured.rounds)
        count += 1
    return Rates(found / count, wrong / count, kinds / count, rounds / count)


def healthy(count: int, scatter: Scatter, trials: int) -> Iterator[tuple[Simulated, set[str]]]:
    for _ in range(trials):
        yield Simulated(hosts_of(count), scatter, with_gpus=True), set()


def one_slow(
    count: int, scatter: Scatter, loss: float, trials: int, source: random.Random
) -> Iterator[tuple[Simulated, set[str]]]:
    hosts = hosts_of(count)
    for _ in range(trials):
        host = source.choice(hosts)
        yield Simulated(hosts, scatter, {host: loss}), {host}


def _sample(hosts: Sequence[str], share: float, loss: float) -> dict[str, float]:
    """The first nodes, as a batch stands in racks next to each other."""
    return dict.fromkeys(hosts[: round(share * len(hosts))], loss)


def _spread(hosts: Sequence[str], count: int, source: random.Random) -> dict[str, float]:
    """Some nodes anywhere, 4 to 7 % slow."""
    return {host: source.uniform(0.04, 0.07) for host in source.sample(hosts, count)}


def case(name: str, source: random.Random) -> tuple[Simulated, set[str]]:
    """One fleet of a kind, with whom there is to name: of two kinds of nodes, nobody."""
    few, many = hosts_of(64), hosts_of(128)
    switches = domains_of(many, 16)
    fleet = Simulated(many, REAL)
    if name == "7 of 73 nodes 4 to 7 % slow":
        hosts = hosts_of(73)
        slow = _spread(hosts, 7, source)
        return Simulated(hosts, REAL, slow), set(slow)
    if name == "a switch of 16 nodes 3 % slow":
        slow = dict.fromkeys(many[32:48], 0.03)
        return replace(fleet, slow=slow, topology=switches), {"switch"}
    if name == "the same, and crossing switches costs 10 %":
        slow = dict.fromkeys(many[32:48], 0.03)
        return replace(fleet, slow=slow, topology=switches, crossing=0.1), {"switch"}
    if name == "a node 3 % slow, crossing costs 10 %":
        return replace(fleet, slow={many[20]: 0.03}, topology=switches, crossing=0.1), {many[20]}
    if name == "rail 3 of a node 5 % slow":
        return replace(fleet, slow={many[20]: 0.05}, rails={many[20]: 3}), {f"{many[20]} rail 3"}
    if name == "rail 3 of 8 nodes anywhere 4 to 7 % slow":
        slow = _spread(many, 8, source)
        return replace(fleet, slow=slow, rails=dict.fromkeys(slow, 3)), {"rail 3"}
    if name == "rail 3 of a switch of 16 nodes 5 % slow":
        slow = dict.fromkeys(many[32:48], 0.05)
        return replace(fleet, slow=slow, rails=dict.fromkeys(slow, 3)), {"rail 3"}
    if name == "the path between two of 16 nodes 20 % slow":
        hosts = hosts_of(16)
        return Simulated(hosts, REAL, path=frozenset(hosts[:2])), set(hosts[:2])
    if name == "the link between two of 64 nodes 98 % slow":
        at = source.randrange(64)
        link = frozenset((few[at], few[(at + 1) % 64]))
        # Where both are in one group, that is as slow, and named.
        first = next((set(nodes) for nodes in first_groups(few) if link.issubset(nodes)), set(link))
        return Simulated(few, REAL, links=(link,)), first
    if name == "half of 64 nodes 2 % slower":
        return Simulated(few, REAL, _sample(few, 0.5, 0.02)), set()
    if name == "a third of 64 nodes 5 % slower":
        return Simulated(few, REAL, _sample(few, 1 / 3, 0.05)), set()
    if name == "70 % of 64 nodes 4 % slower":
        return Simulated(few, REAL, _sample(few, 0.7, 0.04)), set()
    if name == "half of 64 nodes 2 % slower, anywhere":
        return Simulated(few, REAL, dict.fromkeys(source.sample(few, 32), 0.02)), set()
    if name == "half of 12 nodes 2 % slower":
        hosts = hosts_of(12)
        return Simulated(hosts, REAL, _sample(hosts, 0.5, 0.02)), set()
    if name == "three kinds of nodes: 0, 7 and 15 % slower":
        slow = dict.fromkeys(few[24:44], 0.07) | dict.fromkeys(few[44:], 0.15)
        return Simulated(few, REAL, slow), set()
    raise ValueError(name)


CASES = (
    "7 of 73 nodes 4 to 7 % slow",
    "a node 3 % slow, crossing costs 10 %",
    "a switch of 16 nodes 3 % slow",
    "the same, and crossing switches costs 10 %",
    "rail 3 of a node 5 % slow",
    "rail 3 of 8 nodes anywhere 4 to 7 % slow",
    "rail 3 of a switch of 16 nodes 5 % slow",
    "the path between two of 16 nodes 20 % slow",
    "the link between two of 64 nodes 98 % slow",
    "half of 64 nodes 2 % slower",
    "half of 64 nodes 2 % slower, anywhere",
    "a third of 64 nodes 5 % slower",
    "70 % of 64 nodes 4 % slower",
    "half of 12 nodes 2 % slower",
    "three kinds of nodes: 0, 7 and 15 % slower",
)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _healthy(trials: int, seed: int) -> Iterator[str]:
    sizes = (12, 16, 24, 64, 128, 512)

    def row(scatter: Scatter) -> list[str]:
        source = random.Random(f"{seed} {scatter.title}")
        return [scatter.title, *(_percent(rates(healthy(n, scatter, trials), source).wrong) for n in sizes)]

    yield from lines(["Scatter", *(f"{n} nodes" for n in sizes)], map(row, SCATTERS))


def _slow(trials: int, seed: int) -> Iterator[str]:
    sizes, losses = (12, 24, 64, 512), (0.02, 0.03, 0.05)

    def row(scatter: Scatter) -> list[str]:
        source = random.Random(f"{seed} {scatter.title}")
        cells = [scatter.title]
        for n in sizes:
            found = [rates(one_slow(n, scatter, loss, trials, source), source) for loss in losses]
            cells.append(" / ".join(_percent(rate.found) for rate in found))
        return cells

    yield from lines(["Scatter", *(f"{n} nodes" for n in sizes)], map(row, SCATTERS))


def _generations(trials: int, seed: int) -> Iterator[str]:
    def row(generation: Generation) -> list[str]:
        source = random.Random(f"{seed} {generation.title}")
        hosts = hosts_of(72)
        fleet = Simulated(
            hosts,
            generation.scatter,
            topology=domains_of(hosts, generation.domain),
            gpus=generation.gpus,
            bandwidth=generation.bandwidth,
            with_gpus=True,
        )
        cells = [_percent(rates(((fleet, set()) for _ in range(trials)), source).wrong)]
        for loss in (0.03, 0.05):
            slow = ((replace(fleet, slow={hosts[30]: loss}, with_gpus=False), {hosts[30]}) for _ in range(trials))
            cells.append(_percent(rates(slow, source).found))
        return [generation.title, *cells]

    yield from lines(["72 nodes of", "wrong", "3 % found", "5 % found"], map(row, GENERATIONS))


def _cases(trials: int, seed: int) -> Iterator[str]:
    def row(name: str) -> list[str]:
        source = random.Random(f"{seed} {name}")
        rate = rates((case(name, source) for _ in range(trials)), source)
        return [name, _percent(rate.found), _percent(rate.wrong), _percent(rate.kinds), f"{rate.rounds:.1f}"]

    yield from lines(["Fleet", "found", "wrong", "two kinds", "rounds"], map(row, CASES))


def _small(trials: int, seed: int) -> Iterator[str]:
    losses = (0.05, 0.10, 0.14, 0.17, 0.20, 0.30)

    def row(count: int) -> list[str]:
        source = random.Random(f"{seed} {count}")
        scatter = Scatter("", 0.005, 0.005)
        cells = [_percent(rates(healthy(count, scatter, trials), source).wrong)]
        found = [rates(one_slow(count, scatter, loss, trials, source), source).found for loss in losses]
        return [str(count), *cells, *map(_percent, found)]

    yield from lines(
        ["Nodes", "healthy, wrong", *(f"{100 * loss:g} % found" for loss in losses)], map(row, range(3, 12))
    )


def main() -> None:
    """Print the tables: healthy fleets, one slow node, machines of three generations, special cases, few nodes."""
    parts = {
        "healthy": _healthy,
        "slow": _slow,
        "generations": _generations,
        "cases": _cases,
        "small": _small,
    }
    print_tables(__doc__ or "", parts, counted="trials")


if __name__ == "__main__":
    main()
