"""The fabric judged by its own spread: who is named, who is not, and what so few nodes can show."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from llmb_common.base.errors import RecordError
from llmb_common.base.files import json_text
from llmb_common.nodes.fabric.blame import ASKED, MOST_ROUNDS, next_round
from llmb_common.nodes.fabric.expectation import Expectation
from llmb_common.nodes.fabric.grouping import first_groups
from llmb_common.nodes.fabric.halving import next_halves
from llmb_common.nodes.fabric.judging import judge
from llmb_common.nodes.fabric.measurement import (
    FabricMeasurement,
    GroupMeasurement,
    NodeMeasurement,
    measurement_from_json,
)
from llmb_common.nodes.fabric.rails import rail_groups
from llmb_common.nodes.fabric.spread import FLOOR, usual
from llmb_common.nodes.fabric.verdict import FabricVerdict
from llmb_common.planning.site.cluster import HealthSettings
from support.texts import Texts
from tools import fabric_simulation as simulation
from tools.fabric_simulation import REAL, Simulated, case, domains_of, hosts_of, measure, named, one_slow, rates

GROUP = 340.0
"""GB/s."""


def group(nodes: Sequence[str], speed: float | None = GROUP, **more: Any) -> GroupMeasurement:
    """An all-reduce of 8 GPUs on each of these nodes with this bus bandwidth."""
    ranks = len(nodes) * 8
    seconds = None if speed is None else 1.0 / speed * 2 * (ranks - 1) / ranks
    return GroupMeasurement(nodes=tuple(nodes), gpus_per_node=8, bytes=10**9, seconds=seconds, **more)


def fleet(*rounds: Sequence[GroupMeasurement], **more: Any) -> FabricMeasurement:
    hosts = dict.fromkeys(node for measured in rounds for item in measured for node in item.nodes)
    nodes = tuple(NodeMeasurement(host=host, gpu=0) for host in hosts)
    return FabricMeasurement(device="cuda", **{"nodes": nodes, "rounds": tuple(map(tuple, rounds)), **more})


def kinds(verdict: FabricVerdict) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(finding.kind, finding.level, finding.hosts) for finding in verdict.findings]


def to_the_end(speeds: Mapping[str, float | None], topology: Mapping[str, str] | None = None) -> FabricVerdict:
    """Nodes by their speed, measured until there is nothing to ask; a group is as slow as its slowest node."""
    rounds: list[list[GroupMeasurement]] = []
    groups = first_groups(list(speeds), topology)
    nodes = tuple(NodeMeasurement(host=host, gpu=0) for host in speeds)
    while groups:
        rounds.append([])
        for members in groups:
            values = [speeds[host] for host in members]
            known = [value for value in values if value is not None]
            is_dead = len(known) < len(values)
            rounds[-1].append(group(members, None if is_dead else min(known), error="it hung" if is_dead else ""))
        found = fleet(*rounds, nodes=nodes)
        verdict = judge(found, topology)
        groups = next_round(found, verdict)
    return verdict


def speeds(count: int, **slow: float | None) -> dict[str, float | None]:
    """Healthy nodes that scatter by 0.07 %, but for those named."""
    source = random.Random(count)
    return {host: GROUP * source.gauss(1, 0.0007) for host in hosts_of(count)} | slow


# The file


def test_a_measurement_is_the_same_after_it_was_written() -> None:
    found = fleet(
        [group(["n1", "n2"])], whole=group(["n1", "n2"], None, error="hung", hung_ranks=(3,)), missing={"n3": "died"}
    )
    assert measurement_from_json(json_text(msgspec.to_builtins(found)).encode()) == found


@pytest.mark.parametrize("text", [b"{}", b"[]", b"{", b'{"device": "cuda", "schema": 2}', b'{"device": "tpu"}'])
def test_another_file_is_refused(text: bytes) -> None:
    with pytest.raises(RecordError):
        measurement_from_json(text, "a.json")


def test_bandwidths_are_those_of_nccl_tests() -> None:
    measured = GroupMeasurement(nodes=("a", "b"), gpus_per_node=8, bytes=8 << 30, seconds=0.0233401)
    assert measured.algbw_gbps == pytest.approx(368.03, abs=0.01)
    assert measured.busbw_gbps == pytest.approx(690.06, abs=0.01)
    assert msgspec.structs.replace(measured, error="a wrong sum").busbw_gbps is None


# Groups


@pytest.mark.parametrize("count", [*range(1, 40), 64, 73, 512])
def test_first_groups_are_disjoint_and_of_one_size(count: int) -> None:
    hosts = hosts_of(count)
    groups = first_groups(hosts)
    grouped = [host for members in groups for host in members]
    assert len(grouped) == len(set(grouped))
    assert {len(members) for members in groups} <= {4 if count >= 24 else 2}
    assert len(hosts) - len(grouped) < (4 if count >= 24 else 2)


def test_first_groups_follow_the_network() -> None:
    hosts = hosts_of(72)
    topology = domains_of(hosts, 18)
    groups = first_groups(random.Random(1).sample(hosts, len(hosts)), topology)
    assert all(len({topology[host] for host in members}) == 1 for members in groups)
    assert len(groups) == 4 * (18 // 4)
    scattered = first_groups(hosts, domains_of(hosts, 3))  # no switch has four of them
    assert len(scattered) == 18


@pytest.mark.parametrize(
    "switches", [[2, 1], [2, 2], [3, 2], [3, 3], [5, 1, 1], [4, 1, 1, 1, 1], [6, 6, 6, 6], [18, 7]]
)
def test_switches_leave_enough_groups_to_compare(switches: list[int]) -> None:
    """Few nodes on each of them, by which groups within one would be too few."""
    hosts = hosts_of(sum(switches))
    names = [f"s{at}" for at, count in enumerate(switches) for _ in range(count)]
    topology = dict(zip(hosts, names, strict=True))
    loss = 0.04 if len(hosts) >= 24 else 0.2
    _, verdict = measure(Simulated(hosts, REAL, {hosts[1]: loss}, topology=topology), random.Random(1))
    assert kinds(verdict) == [("slow-node", "warn", (hosts[1],))]
    again = measure(Simulated(hosts, REAL, topology=topology, crossing=0.1), random.Random(1))[1]
    assert again.level == "ok"
    assert {host for item in again.groups if item.slow is not None for host in item.nodes} == set(hosts)


# Who is named


@pytest.mark.parametrize("count", [12, 13, 24, 26, 66, 73])
@pytest.mark.parametrize("at", [0, 7, -1])
def test_a_slow_node_is_named_and_warned_of(count: int, at: int) -> None:
    slow = hosts_of(count)[at]
    verdict = to_the_end(speeds(count, **{slow: 0.96 * GROUP}))
    assert kinds(verdict) == [("slow-node", "warn", (slow,))]
    assert verdict.level == "warn"
    assert slow in verdict.answer
    assert verdict.findings[0].deviations == pytest.approx(8, abs=0.5)
    assert verdict.excludable == []  # slower than others is no failure


def test_each_suspect_is_asked_twice_with_other_partners_that_are_fast() -> None:
    verdict = to_the_end(speeds(64, n7=0.96 * GROUP))
    again = [set(item.nodes) - {"n7"} for item in verdict.groups if "n7" in item.nodes and item.round]
    assert len(again) == ASKED
    assert again[0].isdisjoint(again[1])
    assert len({item.round for item in verdict.groups}) == 1 + ASKED


def test_asked_once_is_not_enough_to_be_named() -> None:
    """A measurement that ended early, by its time limit."""
    found, _ = measure(Simulated(hosts_of(64), REAL, {"n7": 0.05}), random.Random(1))
    early = msgspec.structs.replace(found, rounds=found.rounds[:2])
    assert kinds(judge(early)) == [("unknown", "warn", ("n5", "n6", "n7", "n8"))]
    assert "n[5-6,8]" in judge(early).findings[0].what  # they are fast with others
    assert [members[0] for members in next_round(early, judge(early)) if "n7" in members] == ["n7"]


def test_a_slow_node_fails_by_the_sites_expectation_only() -> None:
    found, _ = measure(Simulated(hosts_of(64), REAL, {"n7": 0.05}), random.Random(1))
    assert judge(found).excludable == []
    expected = HealthSettings(four_nodes_all_reduce_gb_per_s=330.0, tolerance_percent=3)
    assert judge(found, expectation=expected).excludable == ["n7"]
    assert judge(found, expectation=HealthSettings(four_nodes_all_reduce_gb_per_s=330.0)).excludable == []
    assert judge(found, expectation=HealthSettings(all_reduce_gb_per_s=330.0, tolerance_percent=3)).excludable == []


@pytest.mark.parametrize("count", [3, 5, 8, 11, 12, 24])
def test_less_than_the_site_expects_fails_where_the_fleet_alone_would_not_say_so(count: int) -> None:
    slow = hosts_of(count)[1]
    loss = 0.02 if count >= 12 else 0.1
    expected = HealthSettings(
        all_reduce_gb_per_s=332.7, four_nodes_all_reduce_gb_per_s=332.7, tolerance_percent=100 * loss / 2
    )
    for by, found in ((None, []), (expected, [("slow-node", "fail", (slow,))])):
        fleet_of = Simulated(hosts_of(count), REAL, {slow: loss})
        assert kinds(measure(fleet_of, random.Random(1), by)[1]) == found


def test_less_than_expected_by_all_is_nobodys_own_fault() -> None:
    found, _ = measure(Simulated(hosts_of(64), REAL), random.Random(1))
    verdict = judge(found, expectation=HealthSettings(four_nodes_all_reduce_gb_per_s=400.0, tolerance_percent=5))
    assert kinds(verdict) == [("below-expectation", "fail", ())]
    assert verdict.excludable == []


def test_a_node_that_gives_no_figure_with_anybody_fails() -> None:
    verdict = to_the_end(speeds(26, n9=None))
    assert kinds(verdict) == [("no-figure", "fail", ("n9",))]
    assert verdict.excludable == ["n9"]


def test_whoever_dies_changes_the_size_of_no_group() -> None:
    hosts = hosts_of(24)
    first = [group(hosts[at : at + 4]) for at in range(0, 24, 4)]
    first[1] = group(hosts[4:8], 0.9 * GROUP)
    found = fleet(first, missing={"n24": "died"})
    assert {len(members) for members in next_round(found, judge(found))} == {4}


def test_where_nothing_was_sent_there_is_no_figure() -> None:
    nothing = [msgspec.structs.replace(group(nodes), bytes=0) for nodes in (["a", "b"], ["c", "d"], ["e", "f"])]
    assert judge(fleet(nothing)).level == "fail"


def test_the_node_of_a_rank_that_hung_is_named_at_once() -> None:
    hosts = hosts_of(12)
    first = [group(hosts[at : at + 2]) for at in range(0, 12, 2)]
    first[2] = group(hosts[4:6], None, error="no answer in 20 s", hung_ranks=(11,))
    found = fleet(first)
    assert kinds(judge(found)) == [("hung", "fail", ("n6",))]
    asked = [host for members in next_round(found, judge(found)) for host in members]
    assert "n5" in asked  # it may be slow itself
    assert "n6" not in asked


def test_a_slow_path_is_named_by_both_ends() -> None:
    source = random.Random(2)
    hosts = hosts_of(16)
    found, verdict = measure(Simulated(hosts, REAL, path=frozenset({"n1", "n2"})), source)
    assert kinds(verdict) == [("slow-path", "warn", ("n1", "n2"))]
    assert sum(set(item.nodes) == {"n1", "n2"} for of_round in found.rounds for item in of_round) == 3
    assert verdict.excludable == []


def by_rail(nodes: Sequence[str], slow: Mapping[int, float | None], rails: int = 8) -> list[GroupMeasurement]:
    """One GPU of each node at a time, which gives 40 GB/s but for the slow ones."""
    figures = [slow.get(rail, 40.0) for rail in range(rails)]
    groups = [group(nodes, figure and figure * 8, rail=rail) for rail, figure in enumerate(figures)]
    return [msgspec.structs.replace(item, gpus_per_node=1) for item in groups]


SLOW_NODES = ("n3", "n9", "n14")
THREE_SLOW = [[group(hosts_of(24)[at : at + 2], 300.0 if at in (2, 8, 12) else GROUP) for at in range(0, 24, 2)]]
THREE_SLOW += [
    [group([host, f"n{at}"], 300.0) for host, at in zip(SLOW_NODES, partners, strict=True)]
    for partners in ((1, 2, 5), (6, 7, 8))
]


def test_each_slow_node_has_its_slow_rail_said() -> None:
    rails = [*by_rail(["n3", "n6"], {3: 30.0}), *by_rail(["n9", "n7"], {}), *by_rail(["n14", "n8"], {1: 30.0, 5: 1.0})]
    verdict = judge(fleet(*THREE_SLOW, rails=tuple(rails)))
    assert kinds(verdict) == [("slow-node", "warn", (host,)) for host in SLOW_NODES]
    assert [finding.rails for finding in verdict.findings] == [(3,), (), (1, 5)]


def test_three_nodes_with_the_same_slow_rail_are_one_finding() -> None:
    groups = [[host, partner] for host, partner in zip(SLOW_NODES, ("n6", "n7", "n8"), strict=True)]
    rails = [rail for nodes in groups for rail in by_rail(nodes, {3: 30.0})]
    verdict = judge(fleet(*THREE_SLOW, rails=tuple(rails)))
    assert kinds(verdict) == [("slow-rail", "warn", SLOW_NODES)]
    assert verdict.findings[0].rails == (3,)
    assert verdict.excludable == []
    two = judge(fleet(*THREE_SLOW, rails=tuple(rails[:16])))
    assert kinds(two) == [("slow-node", "warn", (host,)) for host in SLOW_NODES], "two may have it by chance"


@pytest.mark.parametrize("slow", [dict.fromkeys(range(4), 30.0), {3: None}, {3: 39.8}], ids=["half", "none", "little"])
def test_what_is_no_rails_fault_is_not_said_of_one(slow: Mapping[int, float | None]) -> None:
    """Half of them, one without a figure, and what healthy ones differ by."""
    verdict = judge(fleet(*THREE_SLOW, rails=tuple(by_rail(["n3", "n6"], slow))))
    assert [finding.rails for finding in verdict.findings] == [(), (), ()]


def test_a_rail_that_is_slow_everywhere_shows_against_what_the_site_expects() -> None:
    measured = fleet([group(hosts_of(24)[at : at + 2], 300.0) for at in range(0, 24, 2)])
    expected = HealthSettings(all_reduce_gb_per_s=360, tolerance_percent=5)
    groups = rail_groups(measured, judge(measured, {}, expected))
    assert len(groups) == 4
    rails = [rail for nodes in groups for rail in by_rail(nodes, {3: 30.0})]
    verdict = judge(msgspec.structs.replace(measured, rails=tuple(rails)), {}, expected)
    assert kinds(verdict) == [("below-expectation", "fail", ()), ("slow-rail", "warn", ())]
    assert rail_groups(measured, judge(measured)) == [], "nobody is slow, and nothing is expected"


def test_groups_are_measured_by_rail_with_their_suspect_alone() -> None:
    measured = fleet(*THREE_SLOW)
    groups = rail_groups(measured, judge(measured))
    assert len(groups) == 3
    assert all(len({*SLOW_NODES} & {*nodes}) == 1 for nodes in groups)
    gone = msgspec.structs.replace(measured, missing={"n3": "it stopped answering"})
    left = rail_groups(gone, judge(gone))
    assert len(left) == 2
    assert "n3" not in {host for nodes in left for host in nodes}


def test_slow_once_is_a_note() -> None:
    hosts = hosts_of(12)
    first = [group(hosts[at : at + 2]) for at in range(0, 12, 2)]
    first[0] = group(hosts[:2], 0.9 * GROUP)
    again = [group(["n1", "n3"]), group(["n2", "n4"]), group(["n5", "n7"])]
    found = fleet(first, again, [group(hosts[:2])])
    verdict = judge(found)
    assert kinds(verdict) == [("slow-once", "note", ("n1", "n2"))]
    assert verdict.level == "ok"
    assert next_round(found, verdict) == []


@pytest.mark.parametrize("crossing", [0.0, 0.1])
def test_a_slow_switch_is_one_finding(crossing: float) -> None:
    hosts = hosts_of(128)
    topology = domains_of(hosts, 16)
    slow = dict.fromkeys(hosts[32:48], 0.03)
    found, verdict = measure(Simulated(hosts, REAL, slow, topology=topology, crossing=crossing), random.Random(3))
    assert kinds(verdict) == [("slow-switch", "warn", hosts[32:48])]
    assert "s2" in verdict.answer
    healthy = [item.nodes for item in found.rounds[1] if slow.keys().isdisjoint(item.nodes)]
    crossing_ones = [nodes for nodes in healthy if len({topology[host] for host in nodes}) > 1]
    assert len(crossing_ones) == 3  # what crossing costs by itself
    assert all(len({topology[host] for host in item.nodes}) == 1 for item in found.rounds[0])


def test_crossing_switches_makes_no_node_slow() -> None:
    """The only group of a switch has no partners at home."""
    hosts = hosts_of(36)
    topology = domains_of(hosts[:32], 16) | dict.fromkeys(hosts[32:], "s9")
    fleet_of = Simulated(hosts, REAL, {hosts[33]: 0.05}, topology=topology, crossing=0.1)
    _, verdict = measure(fleet_of, random.Random(4))
    assert named(verdict) == {hosts[33]}


def test_half_of_a_fleet_is_no_fault(texts: Texts) -> None:
    half = dict.fromkeys(hosts_of(32), 0.98 * GROUP)
    verdict = to_the_end(speeds(64, **half))
    assert kinds(verdict) == [("two-kinds", "note", hosts_of(32))]
    assert verdict.level == "ok"
    texts(verdict.answer)


def test_more_rounds_than_worth_it_are_not_asked() -> None:
    hosts = hosts_of(24)
    rounds = [[group(hosts[at : at + 4]) for at in range(0, 24, 4)] for _ in range(MOST_ROUNDS + 1)]
    rounds[0][0] = group(hosts[:4], 0.5 * GROUP)
    found = fleet(*rounds)
    assert next_round(found, judge(found)) == []


def test_whatever_was_measured_is_judged_and_asked_on() -> None:
    """Groups of all kinds, hung, dead, and not what anybody would measure."""
    source = random.Random(7)
    for _ in range(150):
        hosts = hosts_of(source.randint(0, 29))
        rounds = []
        for _ in range(source.randint(0, 4)):
            size = source.choice((1, 2, 4))
            order = source.sample(hosts, len(hosts))
            rounds.append([anything(order[at : at + size], source) for at in range(0, len(order) - size + 1, size)])
        missing = dict.fromkeys(source.sample(hosts, min(len(hosts), source.choice((0, 0, 2)))), "died")
        found = fleet(*rounds, missing=missing)
        topology = {host: source.choice(("", "s1", "s2")) for host in hosts}
        verdict = judge(found, topology)
        asked = [host for members in next_round(found, verdict) for host in members]
        assert len(asked) == len(set(asked))
        assert missing.keys().isdisjoint(asked)
        assert verdict.answer.startswith(verdict.level)
        assert msgspec.json.decode(msgspec.json.encode(verdict), type=FabricVerdict) == verdict


def anything(nodes: Sequence[str], source: random.Random) -> GroupMeasurement:
    return GroupMeasurement(
        nodes=tuple(nodes),
        gpus_per_node=source.choice((1, 8)),
        bytes=10**9,
        seconds=source.choice((None, 0.0, source.uniform(1e-6, 1e-3), 1e-3)),
        error=source.choice(("", "", "", "it broke")),
        hung_ranks=tuple(source.sample(range(40), source.choice((0, 0, 1, 3)))),
    )


# All nodes together far slower than any group


def ring(count: int, *links: tuple[int, int], **more: Any) -> Simulated:
    """A fleet in which only rings through these links, of nodes by their numbers, are slow."""
    hosts = hosts_of(count)
    pairs = tuple(frozenset((hosts[one - 1], hosts[other - 1])) for one, other in links)
    return Simulated(hosts, REAL, links=pairs, **more)


@pytest.mark.parametrize("switch", [0, 8])
@pytest.mark.parametrize("count", [8, 9, 13, 16, 24, 32, 128, 512])
def test_a_link_that_no_group_used_is_found(count: int, switch: int) -> None:
    middle = count // 8 * 4
    for link in ((middle, middle + 1), (1, count)):
        topology = domains_of(hosts_of(count), switch)
        found, verdict = measure(ring(count, link, topology=topology), random.Random(1))
        assert kinds(verdict) == [("slow-path", "warn", tuple(f"n{number}" for number in link))]
        assert len(found.halves) < 2 * math.ceil(math.log2(count))
        for parts in found.halves:
            nodes = [host for part in parts for host in part.nodes]
            assert len(nodes) == len(set(nodes))


@pytest.mark.parametrize("count", [8, 9, 13, 16])
def test_links_in_both_halves_are_each_found(count: int) -> None:
    verdict = measure(ring(count, (2, 3), (6, 7)), random.Random(1))[1]
    assert sorted(kinds(verdict)) == [("slow-path", "warn", ("n2", "n3")), ("slow-path", "warn", ("n6", "n7"))]


@pytest.mark.slow
@pytest.mark.parametrize("count", [8, 9, 16, 24, 50, 512])
@pytest.mark.parametrize("switch", [0, 4, 6, 16])
def test_what_larger_rings_and_fewer_uplinks_cost_is_no_fault(count: int, switch: int) -> None:
    hosts = hosts_of(count)
    topology = domains_of(hosts, switch)
    for growth, crossing in ((0.15, 0.0), (0.5, 0.0), (0.0, 0.5), (0.0, 0.8), (0.1, 0.75)):
        healthy = Simulated(hosts, REAL, growth=growth, crossing=crossing, topology=topology)
        assert measure(healthy, random.Random(2))[1].level == "ok"


@pytest.mark.parametrize("count", [12, 64, 512])
def test_halves_are_not_asked_where_all_together_are_half_as_fast(count: int) -> None:
    found, verdict = measure(Simulated(hosts_of(count), REAL, growth=0.07), random.Random(3))
    assert (found.halves, verdict.findings) == ((), ())


def test_switches_that_nobody_knows_are_no_fault() -> None:
    """One half has no border between switches, the other has."""
    hosts = hosts_of(16)
    topology = {host: "s1" if at < 8 else "s2" if at < 12 else "s3" for at, host in enumerate(hosts)}
    for is_told in (True, False):
        fewer_uplinks = Simulated(hosts, REAL, crossing=0.8, topology=topology, is_told=is_told)
        assert measure(fewer_uplinks, random.Random(1))[1].level == "ok"


def test_a_path_between_two_of_four_switches_is_found() -> None:
    """As slow as uplinks can be by design; but others cross switches at full speed."""
    hosts = hosts_of(16)
    topology = domains_of(hosts, 4)

    def all_reduce(nodes: Sequence[str]) -> GroupMeasurement:
        return group(nodes, GROUP * (0.2 if {"s0", "s1"} <= {topology[host] for host in nodes} else 1.0))

    found = fleet([all_reduce(pair) for pair in first_groups(hosts, topology)], whole=all_reduce(hosts))
    while parts := next_halves(found, topology, Expectation(HealthSettings(), "cuda")):
        found = msgspec.structs.replace(found, halves=(*found.halves, tuple(map(all_reduce, parts))))
    (finding,) = judge(found, topology).findings
    assert (finding.kind, finding.level) == ("slow-path", "warn")
    assert "n[1-4] 340" in finding.what


@pytest.mark.parametrize("first", [8, 9])
def test_two_switches_with_a_broken_uplink(first: int) -> None:
    hosts = hosts_of(16)
    topology = {host: "s1" if at < first else "s2" for at, host in enumerate(hosts)}
    verdict = measure(Simulated(hosts, REAL, crossing=0.97, topology=topology), random.Random(1))[1]
    (finding,) = verdict.findings
    assert (finding.kind, finding.level, finding.hosts) == ("slow-path", "warn", ())
    assert all(part in finding.what for part in (f"n[1-{first}] 33", f"n[{first + 1}-16] 33", " 9.9"))


def test_without_time_for_halves_the_slow_part_is_said() -> None:
    found = measure(ring(16, (2, 3)), random.Random(1))[0]
    for rounds, part in ((0, "n[1-16]"), (1, "n[1-8]"), (2, "n[1-4]")):
        (finding,) = judge(msgspec.structs.replace(found, halves=found.halves[:rounds])).findings
        assert (finding.kind, finding.level, finding.hosts) == ("unfinished", "warn", ())
        assert part in finding.what
        assert finding.remedy.endswith(f"--nodes {part}")


def test_a_whole_without_a_figure_is_halved_and_one_with_lost_nodes_is_not() -> None:
    hosts = hosts_of(16)
    found = fleet([group(pair) for pair in first_groups(hosts)], whole=group(hosts, None, error="hung"))
    expected = Expectation(HealthSettings(), "cuda")
    assert next_halves(found, {}, expected) == [list(hosts[:8]), list(hosts[8:])]
    assert next_halves(msgspec.structs.replace(found, missing={"n3": "died"}), {}, expected) == []


def test_where_a_node_was_lost_meanwhile_nothing_is_said_of_the_halves() -> None:
    found = measure(ring(16, (2, 3)), random.Random(1))[0]
    lost = msgspec.structs.replace(found, missing={"n3": "died"})
    assert "halves" not in [finding.kind for finding in judge(lost).findings]


def test_on_cpus_nodes_may_be_far_slower_together() -> None:
    hosts = hosts_of(8)
    for share, asked in ((0.15, 0), (0.05, 2)):
        found = fleet([group(pair) for pair in first_groups(hosts)], whole=group(hosts, share * GROUP))
        assert len(next_halves(found, {}, Expectation(HealthSettings(), "cpu"))) == asked


# Few nodes


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_are_not_judged(count: int) -> None:
    hosts = hosts_of(count)
    found = fleet(*[[group(members)] for members in first_groups(hosts)], whole=group(hosts))
    verdict = judge(found)
    assert (verdict.level, verdict.findings) == ("not judged", ())
    assert ("1 group," in verdict.answer, "0 group" in verdict.answer) == (count == 2, False)
    assert next_round(found, verdict) == []


@pytest.mark.parametrize("count", range(3, 12))
def test_few_nodes_are_judged_by_ratios(count: int) -> None:
    for slow in hosts_of(count):
        assert kinds(to_the_end(speeds(count, **{slow: 0.8 * GROUP}))) == [("slow-node", "warn", (slow,))]
        assert kinds(to_the_end(speeds(count, **{slow: 0.88 * GROUP}))) == []


@pytest.mark.parametrize("count", [3, 4, 5])
def test_so_few_are_each_measured_with_each(count: int) -> None:
    verdict = to_the_end(speeds(count))
    assert len({frozenset(item.nodes) for item in verdict.groups}) == count * (count - 1) // 2
    assert verdict.level == "ok"


def test_on_cpus_only_a_quarter_is_slow() -> None:
    hosts = hosts_of(24)
    for share, expected in ((0.3, []), (0.2, [("unknown", "warn", hosts[:4])])):
        first = [group(hosts[at : at + 4], (1 + at / 240) * GROUP) for at in range(0, 24, 4)]
        first[0] = group(hosts[:4], share * GROUP)
        assert kinds(judge(msgspec.structs.replace(fleet(first), device="cpu"))) == expected


# GPUs and nodes by themselves


def gpus(count: int, **slow: float) -> tuple[NodeMeasurement, ...]:
    source = random.Random(5)
    return tuple(
        NodeMeasurement(host=host, gpu=gpu, tflops=1600 * source.gauss(1, 0.003), copy_gbps=6000.0)
        if host not in slow or gpu != 3
        else NodeMeasurement(host=host, gpu=gpu, tflops=1600 * slow[host], copy_gbps=6000.0)
        for host in hosts_of(count)
        for gpu in range(8)
    )


def test_a_slow_gpu_is_warned_of_by_the_spread() -> None:
    verdict = judge(FabricMeasurement(device="cuda", nodes=gpus(8, n3=0.96)))
    assert kinds(verdict) == [("slow-gpu", "warn", ("n3",))]
    assert "GPU 3" in verdict.findings[0].what
    assert kinds(judge(FabricMeasurement(device="cuda", nodes=gpus(8, n3=0.985)))) == []
    expected = HealthSettings(matrix_tflops=1600, tolerance_percent=2)
    assert judge(FabricMeasurement(device="cuda", nodes=gpus(8, n3=0.96)), expectation=expected).excludable == ["n3"]
    of_all = judge(FabricMeasurement(device="cuda", nodes=gpus(8)), expectation=HealthSettings(matrix_tflops=2000))
    assert kinds(of_all) == [("below-expectation", "fail", ())]


def test_an_all_reduce_within_a_node_and_errors() -> None:
    within = [group([host], 800.0) for host in hosts_of(8)]
    within[2] = group(["n3"], 700.0)
    within[5] = group(["n6"], None, error="hung")
    nodes = (NodeMeasurement(host="n1", gpu=4, error="a matrix product is wrong"),)
    verdict = judge(FabricMeasurement(device="cuda", nodes=nodes, within=tuple(within), missing={"n9": "died"}))
    assert sorted(kinds(verdict)) == [
        ("missing", "fail", ("n9",)),
        ("no-figure", "fail", ("n1",)),
        ("no-figure", "fail", ("n6",)),
        ("slow-within", "warn", ("n3",)),
    ]
    assert sorted(verdict.excludable) == ["n1", "n6"]


# The spread itself


def test_the_floor_is_half_a_per_cent() -> None:
    values = [100 + 0.01 * at for at in range(12)]
    own = usual(values, times=4, ratio=0.85)
    assert own is not None
    assert own.deviation == pytest.approx(FLOOR * own.median)
    assert own.limit == pytest.approx(0.98 * own.median)
    assert usual(values[:2], times=4, ratio=0.85) is None
    few = usual(values[:5], times=4, ratio=0.85)
    assert few is not None
    assert (few.deviation, few.limit) == (None, pytest.approx(0.85 * statistics.median(values[:5])))


@pytest.mark.parametrize("count", [6, 7, 8, 12, 16, 32, 128])
def test_a_spread_that_is_small_by_chance_names_nobody(count: int) -> None:
    """Among few values the robust deviation is often far too small: the limit allows for that."""
    source = random.Random(count)
    below = 0
    for _ in range(1000):
        values = [source.gauss(100, 2) for _ in range(count)]
        own = usual(values, times=5, ratio=0.85)
        assert own is not None
        below += min(values) < own.limit
    assert below <= 10


# By simulation: small and seeded; docs/fabric.md has the large one


@pytest.mark.parametrize("count", [12, 24, 64])
def test_healthy_fleets_name_nobody_and_three_per_cent_are_found(count: int) -> None:
    source = random.Random(count)
    assert rates(simulation.healthy(count, REAL, 20), source).wrong == 0
    slow = rates(one_slow(count, REAL, 0.03, 20, source), source)
    assert (slow.found, slow.wrong) == (1, 0)


@pytest.mark.parametrize("scatter", simulation.SCATTERS, ids=lambda scatter: scatter.title)
def test_wide_scatter_names_nobody_either(scatter: simulation.Scatter) -> None:
    assert rates(simulation.healthy(24, scatter, 20), random.Random(6)).wrong == 0


@pytest.mark.parametrize("name", simulation.CASES)
def test_cases(name: str) -> None:
    source = random.Random(name)
    rate = rates((case(name, source) for _ in range(3)), source)
    assert (rate.found, rate.wrong) == (1, 0)
