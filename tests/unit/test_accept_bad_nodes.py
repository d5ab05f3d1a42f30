"""An acceptance campaign in which nodes fail: runs are replaced on other nodes, and the record says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmb_common.runs.index.search import find_runs
from llmb_common.runs.record import load_record
from support import instant
from support.campaigns import Site, unpacked
from support.cli import Done


def runs_of(done: Done) -> list[int]:
    return [len(item["runs"]) for item in done.data["workloads"]]


def test_a_run_that_a_bad_node_ended_is_replaced_on_other_nodes_and_both_are_listed(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    instant.install_executor(monkeypatch, tmp_path / "nodes", instant.INSTANT._replace(this_machine=False))
    site.suite()
    instant.direct("1.2", "FAILED", "n7: [rank0]: RuntimeError: CUDA error: uncorrectable ECC error encountered")
    done = site.accept("--json")
    assert (done.status, runs_of(done)) == (0, [4, 3]), done.err
    (rerun,) = done.data["reruns"]
    assert (rerun["run"], rerun["replaces"], rerun["bad_nodes"]) == (4, 2, ["n7"])
    bad = done.data["workloads"][0]["runs"][1]["run_id"]
    options = {
        row.key.rpartition(":")[2]: load_record(row.folder).submission.options for row in find_runs(site.install)
    }
    ((why,),) = (words for words in options.values() if words)
    assert options["1.4"] == (why,)
    assert re.search(rf"\bn7\b.*\b{bad}\b", why)
    assert re.search(rf"\bn7\b.*\b{bad}\b", done.err)
    assert re.search(rf"\brun 4 \({rerun['run_id']}\).*\bn7\b.*\brun 2\b", site.accept().out)
    shown = site("accept", "show", site.campaign, "--json")
    assert (shown.status, shown.data["problems"]) == (0, [])
    assert shown.data["judged"]["reruns"] == done.data["reruns"], "judged again from the logs"
    folder = tmp_path / "pack"
    unpacked(next(site.campaign.glob("two.tar.*")), folder)
    assert site("accept", "show", folder, "--json").data["judged"]["reruns"] == done.data["reruns"]


def test_a_node_that_lacks_a_file_of_its_own_is_no_failure_of_the_workload(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the fault is of, node or site, does not matter, where the log says that one node of several has it."""
    instant.install_executor(monkeypatch, tmp_path / "nodes", instant.INSTANT._replace(this_machine=False))
    site.suite()
    others = [f"n{number}: [rank{number}]: OSError: lost" for number in range(8)]
    missing = "OSError: libcudnn.so.9: cannot open shared object file: No such file or directory"
    instant.direct("2.1", "FAILED", f"n1: [rank1]: {missing}", *others)
    done = site.accept("--json")
    assert (done.status, runs_of(done)) == (0, [3, 4]), done.err
    (rerun,) = done.data["reruns"]
    assert rerun["replaces"] == 1
