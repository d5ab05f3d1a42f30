"""The fabric in the commands: what ``health`` prints of it, and ``accept``, which measures it first."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.health.ask import Health
from llmb_common.health.verdicts import Fabric, NodeVerdict
from llmb_common.nodes.fabric.judging import judge
from llmb_common.nodes.fabric.measurement import FabricMeasurement, GroupMeasurement, bus_factor
from llmb_common.planning.site.cluster import HealthSettings
from llmb_common.runs.record import RunRecord
from llmb_common.submission.excluded_nodes import exclusions, include_nodes
from llmb_run import under_load
from llmb_run.actions import health
from llmb_run.fabric_text import fabric_text
from llmb_run.starting import submitting
from support import instant
from support.campaigns import SUITE, Site, unpacked
from support.cli import Cli, Done
from support.gpu_nodes import write_node
from support.programs import needs_zstd
from support.report_site import dated
from support.runs import make_run, steady_log
from support.texts import Texts

NODES = [f"n{number}" for number in range(1, 13)]
GIB = 1 << 30


def group(nodes: Sequence[str], rate: float, size: int = GIB) -> GroupMeasurement:
    seconds = size * bus_factor("all_reduce", 8 * len(nodes)) / 1e9 / rate
    return GroupMeasurement(nodes=tuple(nodes), gpus_per_node=8, bytes=size, seconds=seconds)


def fabric(first: float = 332.7, expected: HealthSettings | None = None) -> Fabric:
    """Six pairs, of which the first gives that; again with others so does its first node."""
    pairs = [NODES[at : at + 2] for at in range(0, 12, 2)]
    again = [["n1", "n3"], ["n2", "n4"]], [["n1", "n5"]]
    asked = [[group(of, first if "n1" in of else 332.7) for of in groups] for groups in again]
    measurement = FabricMeasurement(
        device="cuda",
        rounds=(tuple(group(of, first if "n1" in of else 332.7) for of in pairs), *map(tuple, asked)),
        whole=group(NODES, min(first, 330.0)),
        sizes=tuple(group(NODES, 100.0, size) for size in (1 << 20, 1 << 30)),
    )
    return Fabric(measurement, judge(measurement, {}, expected), ("12 nodes, 8 x H100",))


def found(of: Fabric, bad: Sequence[str] = ()) -> Health:
    verdicts = [NodeVerdict(node, "fail" if node in bad else "ok") for node in NODES]
    return Health(verdicts, fabric=of, seconds=90.0)


def test_the_answer_is_the_first_line_in_the_fields_words(texts: Texts) -> None:
    text = fabric_text(fabric(318.0))
    first = text.splitlines()[0]
    texts(first)
    (row,) = [line for line in text.splitlines() if line.startswith("all-reduce, bus bandwidth")]
    texts(row)
    (row,) = [line for line in text.splitlines() if line.split()[:1] == ["1048576"]]
    assert row.split()[2:] == [f"{100 / (2 * 95 / 96):.2f}", "100.00"]


class Asked:
    """``llmb-run health --fabric``, as if nodes were measured as they are told."""

    def __init__(self, cli: Cli, patch: pytest.MonkeyPatch) -> None:
        self.cli, self.patch = cli, patch
        patch.setattr(health, "choose_nodes", lambda *words: (NODES, {}))

    def __call__(self, of: Health, *words: str) -> Any:
        def measured(*words: Any, **more: Any) -> Health:
            self.more = more
            return of

        self.patch.setattr(under_load, "check_nodes_under_load", measured)
        return self.cli("health", "--fabric", *words, CLUSTER_TYPE="slurm", GPU_TYPE="h100")


@pytest.fixture
def asked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(cli, monkeypatch)


def test_a_warning_is_no_failure(asked: Asked) -> None:
    done = asked(found(fabric(318.0)))
    assert done.status == 0
    assert done.out.splitlines()[0].startswith("warn: n1 ")
    done = asked(found(fabric(318.0)), "--json", "--sizes")
    assert done.data["fabric"]["verdict"]["level"] == "warn"
    assert done.data["fabric"]["measurement"]["rounds"][0][0]["nodes"] == ["n1", "n2"]
    assert asked.more["sizes"] is True


def test_less_of_all_nodes_than_the_site_expects_is(asked: Asked) -> None:
    of = fabric(expected=HealthSettings(all_reduce_gb_per_s=500))
    done = asked(found(of))
    assert done.status == 1
    assert done.out.splitlines()[0].startswith("fail: ")


def test_sizes_are_of_the_fabric(cli: Cli) -> None:
    assert cli("health", "--sizes", "--json").envelope["error"]["code"] == "request"


def test_what_was_called_stress_says_what_it_is_now(cli: Cli, texts: Texts) -> None:
    error = cli("health", "--stress", "--json").envelope["error"]
    assert error["code"] == "removed"
    texts(error["remedy"])


@pytest.fixture
def campaign(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A suite that asks for the fabric, on nodes that are measured as a test says (``check_nodes_under_load``)."""
    text = SUITE.replace("FIRST", "80").replace("SECOND", "80").replace("name: two", "name: two\nhealth: fabric")
    site.suite(text=text)
    monkeypatch.setattr(submitting, "choose_nodes", lambda *words: (NODES, {}))
    return site


def measures(patch: pytest.MonkeyPatch, of: Health) -> None:
    patch.setattr(under_load, "check_nodes_under_load", lambda *words, **more: of)


@needs_zstd
def test_an_acceptance_begins_with_it_and_a_warned_node_fails_none(
    campaign: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measures(monkeypatch, found(fabric(318.0)))
    done = campaign.accept()
    assert done.status == 0
    assert done.out.startswith("fabric: warn: n1 ")
    inside = unpacked(campaign.campaign / "two.tar.zst", tmp_path / "out")
    kept = json.loads(inside["campaign/health.json"])["fabric"]
    assert [item.measurement for item in msgspec.convert(kept, list[Fabric])] == [fabric(318.0).measurement]
    assert inside["campaign/verdicts.txt"].decode().startswith("fabric: warn: n1 ")
    assert '"fabrics":[{"level":"warn",' in inside["campaign/report.html"].decode()
    shown = campaign("accept", "show", tmp_path / "out")
    assert (shown.status, shown.out.startswith("fabric: warn: n1 ")) == (0, True)
    expected = HealthSettings(all_reduce_gb_per_s=330, tolerance_percent=1)
    kept = [msgspec.to_builtins(fabric(318.0, expected))]
    (tmp_path / "out" / "campaign" / "health.json").write_text(json.dumps({"schema": 1, "fabric": kept}))
    assert campaign("accept", "show", tmp_path / "out").status == 0, "what the site expects is not in the pack"
    kept[0]["measurement"]["rounds"][0][0]["seconds"] /= 2
    (tmp_path / "out" / "campaign" / "health.json").write_text(json.dumps({"schema": 1, "fabric": kept}))
    shown = campaign("accept", "show", tmp_path / "out", "--json")
    assert shown.envelope["error"]["code"] == "pack-refuted"


def test_what_cannot_be_judged_fails_none(campaign: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    few = FabricMeasurement(device="cuda", rounds=((group(["n1", "n2"], 300.0),),))
    measures(monkeypatch, found(Fabric(few, judge(few))))
    done = campaign.accept("--json")
    assert (done.status, done.data["fabric"][0]["level"]) == (0, "not judged")


def test_less_of_all_nodes_than_the_site_expects_ends_it_before_it_begins(
    campaign: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    measures(monkeypatch, found(fabric(expected=HealthSettings(all_reduce_gb_per_s=500))))
    done = campaign.accept("--json")
    assert done.envelope["error"]["code"] == "unhealthy-fabric"


WITH_N1 = [(1.10, "n1 n2"), (1.11, "n1 n3"), (1.09, "n1 n4"), (1.10, "n1 n5")]
WITHOUT = [(1.0, "n2 n3"), (1.01, "n3 n4"), (0.99, "n4 n5"), (1.0, "n2 n5")]
"""Runs of one configuration: seconds of a step, and nodes."""


class AtSite:
    """``llmb-run health --fabric`` on nodes that are measured as a slow n1, at a site with runs on record."""

    def __init__(self, cli: Cli) -> None:
        self.cli = cli
        self.recorded: list[RunRecord] = []

    def record(self, of: Iterable[tuple[float, str]], hours_ago: float = 1) -> None:
        for number, (seconds, nodes) in enumerate(of):
            run = make_run(self.cli.install, log=steady_log(1000 * seconds))
            self.recorded.append(dated(run, time.time() - 3600 * hours_ago + number, nodes.split()))

    def __call__(self, *words: str) -> Done:
        return self.cli("health", "--fabric", *words, CLUSTER_TYPE="slurm", GPU_TYPE="h100")


@pytest.fixture
def at_site(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> AtSite:
    monkeypatch.setattr(health, "choose_nodes", lambda *words: (NODES, {}))
    monkeypatch.setattr(under_load, "check_nodes_under_load", lambda *words, **more: found(fabric(318.0)))
    return AtSite(cli)


def test_health_fails_a_node_by_the_runs_on_record(at_site: AtSite) -> None:
    at_site.record([*WITH_N1, *WITHOUT])
    done = at_site("--exclude-failed")
    assert done.status == 1
    first = done.out.splitlines()[0]
    assert first.startswith("fail: n1 ")
    assert re.search(r"\b4 training runs\b", first)
    (out,) = exclusions(at_site.cli.install)
    assert out.node == "n1"
    assert "training runs" in out.reason
    include_nodes(at_site.cli.install, "n1")
    done = at_site("--json")
    assert (done.status, done.data["fabric"]["verdict"]["level"]) == (0, "warn"), "put back: these runs are forgotten"


def test_runs_of_last_month_do_not_say_how_a_node_is(at_site: AtSite) -> None:
    at_site.record([*WITH_N1, *WITHOUT], hours_ago=24 * 30)
    done = at_site("--json")
    assert (done.status, done.data["fabric"]["verdict"]["level"]) == (0, "warn")


@needs_zstd
def test_a_campaign_whose_runs_are_slower_with_the_node_is_not_accepted(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def log_on_nodes(record: RunRecord) -> str:
        """Every other run of a workload has n1, and takes a tenth longer: fast enough all the same."""
        number = int(record.submission.key.rpartition(".")[2])
        slow = number % 2 == 1
        write_node(record.paths.folder, "n1" if slow else f"n{number + 1}")
        write_node(record.paths.folder, f"n{number + 2}")
        instant.direct(record.submission.key.rpartition(":")[2], "88" if slow else "80")
        return log_of(record)

    log_of = instant.log_of
    monkeypatch.setattr(instant, "log_of", log_on_nodes)
    monkeypatch.setattr(submitting, "choose_nodes", lambda *words: (NODES, {}))
    monkeypatch.setattr(under_load, "check_nodes_under_load", lambda *words, **more: found(fabric(318.0)))
    text = SUITE.replace("FIRST", "80").replace("SECOND", "80").replace("name: two", "name: two\nhealth: fabric")
    site.suite(text=text.replace("repeats: 3", "repeats: 8"))
    done = site.accept("--json")
    assert (done.status, done.data["outcome"]) == (1, "not accepted"), done.err
    assert {item["verdict"] for item in done.data["workloads"]} == {"pass"}
    assert "n1" in done.data["why"]
    assert done.data["fabric"][0]["level"] == "fail"
    (out,) = exclusions(site.install)
    assert (out.node, "training runs" in out.reason) == ("n1", True)
    inside = unpacked(site.campaign / "two.tar.zst", tmp_path / "out")
    assert inside["campaign/verdicts.txt"].decode().startswith("fabric: fail: n1 ")
    assert '"fabrics":[{"level":"fail",' in inside["campaign/report.html"].decode()
    kept = msgspec.json.decode(inside["campaign/health.json"])["fabric"]
    assert msgspec.convert(kept, list[Fabric])[0].verdict.level == "warn", "as it was before the runs"
    shown = site("accept", "show", tmp_path / "out", "--json")
    assert (shown.status, shown.data["problems"]) == (1, []), "judged again from the logs, and the same"
