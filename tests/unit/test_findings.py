"""What the accounts of a run's nodes say against its result."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.nodes.facts import Adapter, GpuState, HostFacts
from llmb_common.nodes.rules import RULES
from llmb_common.nodes.summary import EXPECTATION, NodeFinding, NodeSummary
from llmb_common.runs.account import account_of, as_json_values, make_account
from llmb_common.runs.finding import with_job_facts
from llmb_common.runs.record import RunRecord
from llmb_train.nodes import gpus, machine
from support.gpu_nodes import adapter, smi_answer, snapshot, write_node
from support.runs import make_run
from support.texts import Texts

LOGS = Path(__file__).resolve().parents[1] / "data" / "nccl"
TWO_NODES = {"GPU_TYPE": "h100", "MODEL_SIZE": "70b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "64"}
"""Of 8 GPUs each: eight nodes, of which the tests write two or more."""

USING = "n1:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.4<0>\n"
IB = USING + (LOGS / "ib_h20.log").read_text()


@pytest.fixture
def run(tmp_path: Path) -> RunRecord:
    return make_run(tmp_path, variables=TWO_NODES)


def write_all(run: RunRecord, odd: dict[str, Any] | None = None, *, nccl: str | None = IB, odd_nccl: str = IB) -> None:
    """Eight healthy nodes, of which the fourth has the ``odd`` facts."""
    for number in range(1, 9):
        strange = number == 4
        write_node(run.paths.folder, f"n{number}", log=odd_nccl if strange else nccl, **(odd or {} if strange else {}))


def findings(run: RunRecord) -> list[NodeFinding]:
    return list(make_account(run).findings)


def only(run: RunRecord) -> NodeFinding:
    (finding,) = findings(run)
    return finding


def looks(**changes: str) -> dict[str, Any]:
    """A node whose GPU 3 is different, at every look."""
    return {
        name: snapshot(at, smi_answer(changes={3: changes}))
        for name, at in (("before", 1000.0), ("load", 1100.0), ("after", 2000.0))
    }


def test_healthy_nodes_have_no_finding(run: RunRecord) -> None:
    write_all(run)
    account = make_account(run)
    assert account.findings == ()
    assert account.lines() == [
        "8 nodes, 8 x NVIDIA H100 80GB HBM3, 641 W each under load, Intel(R) Xeon(R) Platinum 8480C",
        "driver 580.95.05, CUDA 13.0, kernel 5.15.0-1063, network IB",
        "power limit 700 W, clock up to 1980 MHz, 1755 MHz under load, PCIe 16x generation 5",
        "adapters 2 at 400 Gbit/s, GPUDirect RDMA yes",
        "fabric Completed, channels NET/IB/GDRDMA, P2P/CUMEM",
    ]
    assert account.transports == {"NET/IB/GDRDMA": 24, "P2P/CUMEM": 8}


def test_a_run_whose_nodes_wrote_nothing_has_none_either(run: RunRecord) -> None:
    assert make_account(run) == NodeSummary()
    assert make_account(run).lines() == []


def test_a_network_that_nobody_knows(run: RunRecord) -> None:
    missing = {"nccl_missing": "NCCL_DEBUG set by the job"}
    for number in range(1, 9):
        write_node(run.paths.folder, f"n{number}", **missing)
    assert missing["nccl_missing"] in only(run).text
    assert only(run).severity == "note"


GPUS = [
    {"product": "NVIDIA H100 PCIe"},
    {"limit": "650.00 W"},
    {"width": "8x"},
    {"fabric": "In Progress"},
    {"sm": "1095 MHz"},
    {"thermal": "Active"},
]


@pytest.mark.parametrize("changes", GPUS, ids=lambda value: next(iter(value)))
def test_one_gpu_of_64_is_different(run: RunRecord, changes: dict[str, str], texts: Texts) -> None:
    write_all(run, looks(**changes))
    finding = only(run)
    assert finding.severity == "problem"
    assert "n4 GPU 3" in finding.text, "which one"
    texts(finding.text)


@pytest.mark.parametrize("worse", [1, 2])
def test_of_two_nodes_the_worse_one_is_named(run: RunRecord, worse: int) -> None:
    ports = {
        "state": [adapter("mlx5_0"), adapter("mlx5_1", state="DOWN")],
        "rate": [adapter("mlx5_0"), adapter("mlx5_1", rate_gbps=100.0)],
    }
    for what, adapters in ports.items():
        for number in (1, 2):
            changes = {"machine": {"adapters": adapters}} if number == worse else {}
            write_node(run.paths.folder, f"n{number}", log=IB, **changes)
        assert f" on n{worse} mlx5_1" in next(it.text for it in findings(run) if it.kind == "adapter"), what
    for number in (1, 2):
        log = IB.replace(" [1]mlx5_1:1/IB", "") if number == worse else IB
        write_node(run.paths.folder, f"n{number}", log=log)
    (text,) = [it.text for it in findings(run) if it.kind == "adapter-count"]
    assert re.findall(r"\bn\d|\d", text) == ["1", f"n{worse}", "2"]


def test_nodes_of_an_earlier_start_do_not_count(run: RunRecord) -> None:
    """A requeued job may run on others."""
    write_all(run)
    old = snapshot(10.0, smi_answer(7, driver="1.0"))
    write_node(run.paths.folder, "old", started=10.0, restart=-1, before=old)
    assert findings(run) == []
    assert "old" not in make_account(run).hosts


def test_what_a_node_writes_is_what_is_read_of_it(tmp_path: Path) -> None:
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    wrote = machine.facts({}, tmp_path)
    (gpu,) = gpus.parse(smi_answer(1).encode())["gpus"]
    for kind, said in ((GpuState, gpu), (HostFacts, wrote), (Adapter, wrote["adapters"][0])):
        assert {field.name for field in msgspec.structs.fields(kind)} <= set(said)


HOSTILE = {
    "empty": b"",
    "list": b"[]",
    "number": b"1e999",
    "deep": b"[" * 100_000,
    "types": b'{"schema": "one", "host": 5, "started": "now"}',
    "nan": b'{"schema": 1, "host": "n", "started": NaN}',
    "gpus": b'{"schema": 1, "host": "n", "started": 1, "before": {"gpus": {"0": 1}}}',
    "bytes": os.urandom(4096),
    "large": b'{"schema": 1, "host": "' + b"n" * (1 << 20) + b'", "started": 1}',
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_damaged_file_is_named_and_the_rest_counts(run: RunRecord, content: bytes) -> None:
    write_all(run)
    (run.paths.folder / "nodes" / "n4.json").write_bytes(content)
    finding = only(run)
    assert (finding.kind, "n4.json" in finding.text) == ("unreadable", True)
    assert make_account(run).nodes == 7


def test_infinite_numbers_are_no_error(run: RunRecord) -> None:
    """JSON has none, and 1e999 is one."""
    write_all(run)
    file = run.paths.folder / "nodes" / "n4.json"
    text = file.read_text().replace("1755.0", "1e999").replace("641.2", "1e999").replace("2000.0", "1e999")
    file.write_text(text.replace("700.0", "-1e999"))
    account = make_account(run)
    assert {finding.kind for finding in account.findings} == {"different-gpu"}
    json.dumps(as_json_values(account), allow_nan=False)
    assert account.lines()


def test_links_and_fifos_are_not_read(run: RunRecord, tmp_path: Path) -> None:
    write_all(run)
    nodes = run.paths.folder / "nodes"
    secret = tmp_path / "secret.json"
    (nodes / "n1.json").rename(secret)
    (nodes / "n1.json").symlink_to(secret)
    (nodes / "n2.json").unlink()
    os.mkfifo(nodes / "n2.json")
    assert only(run).text.endswith(": n1.json, n2.json")


def test_strange_numbers_and_names_are_printable(run: RunRecord) -> None:
    gpu = {
        "index": 3,
        "sm_mhz": 1e300,
        "power_limit_w": -1e300,
        "product": "\x1b[31mH100\n",
        "throttled_us": {"x": 1e300},
    }
    wild = {"time": -1e300, "gpus": [gpu], "driver": "\x1b]0;title\x07"}
    write_all(run, {"host": "n4\x1b[2J\n" + "x" * 5000, "before": wild, "load": wild, "after": wild})
    found = make_account(run)
    assert found.findings
    for text in [*(item.text for item in found.findings), *found.lines()]:
        assert text.isprintable()
        assert len(text) < 2000


def test_the_record_keeps_the_account(run: RunRecord) -> None:
    """Reading thousands of runs must not read their nodes' files again."""
    write_all(run, looks(limit="650.00 W"))
    ended = with_job_facts(run)
    assert json.loads(json.dumps(ended.manifest["job"]["evidence"])) == as_json_values(make_account(run))
    for file in (run.paths.folder / "nodes").iterdir():
        file.unlink()
    assert [finding.kind for finding in account_of(ended).findings] == ["power-limit"]
    assert account_of(run).findings == ()


def test_a_record_with_a_strange_account_is_no_error(run: RunRecord) -> None:
    for strange in ("text", {"nodes": "many"}, {"findings": [1]}, []):
        assert account_of(replace(run, manifest={"job": {"evidence": strange}})).findings == ()
    assert account_of(replace(run, manifest={"job": 5})).findings == ()


def test_the_page_has_every_kind_of_finding() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "health.md").read_text()
    table = page[page.index("## What is found") : page.index("## Limits")]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert set(re.findall(r"`([a-z-]+)`", " ".join(cells))) == {
        *(rule.name for rule in RULES if rule.level.evidence),
        EXPECTATION,
    }
