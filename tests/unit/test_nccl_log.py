"""Which network NCCL chose, by logs that their users published (tests/data/nccl/README.md), whole and mutilated."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from llmb_common.runs.evidence.nccl_log import MOST_BYTES, NcclLog, parse_nccl_log, read_nccl_log

LOGS = Path(__file__).resolve().parents[1] / "data" / "nccl"

NETWORKS = [
    ("ib_hpcx.log", None, "IB", False),
    ("ib_h20.log", None, "IB", False),  # the report leaves out what was chosen; the channels say it
    ("ib_gb200.log", None, "IB", False),
    ("roce.log", "2.22.3", "RoCE", False),
    ("roce_hpcx.log", None, "RoCE", False),
    ("socket_2.11.log", "2.11.4", "Socket", True),
    ("socket_2.19.log", "2.19.3", "Socket", True),
    ("socket_hpcx.log", None, "Socket", True),
    ("efa.log", "2.23.4", "EFA", False),
    ("efa_2.10.log", "2.10.3", "EFA", False),
    ("ofi_over_tcp.log", "2.4.6", "Socket", True),
    ("nvls_h100.log", None, "", False),
]


@pytest.mark.parametrize(("name", "version", "network", "sockets"), NETWORKS, ids=lambda value: str(value))
def test_published_logs(name: str, version: str | None, network: str, sockets: bool) -> None:
    log = read_nccl_log(LOGS / name)
    assert (log.version, log.network, log.sockets) == (version, network, sockets)


def test_every_published_log_is_tried() -> None:
    assert {path.name for path in LOGS.glob("*.log")} == {name for name, *_ in NETWORKS}


def test_channels_are_counted_by_their_transport() -> None:
    log = read_nccl_log(LOGS / "ib_h20.log")
    assert log.transports == {"NET/IB/GDRDMA": 3, "P2P/CUMEM": 1}
    shared = "n1:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"
    assert parse_nccl_log([shared]).transports == {"SHM": 1}
    nvls = read_nccl_log(LOGS / "nvls_h100.log")
    assert nvls.transports == {"P2P/CUMEM": 1, "NVLS": 1}


def test_sockets_do_not_matter_where_nvlink_reaches_the_other_nodes() -> None:
    lines = ["n1:1:2 [0] NCCL INFO Using network Socket"]
    assert parse_nccl_log(lines).sockets
    lines.append("n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 4[0] via P2P/MNNVL")
    assert not parse_nccl_log(lines).sockets
    lines.append("n1:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 4[0] [send] via NET/Socket/0")
    assert parse_nccl_log(lines).sockets


def test_nvlink_over_nodes_joins_as_many_gpus_as_the_largest_communicator_has() -> None:
    lines = [f"n1:1:2 [0] NCCL INFO MNNVL 1 cliqueId 1{n} cliqueSize {n} cliqueRank 0" for n in (4, 8, 2)]
    assert parse_nccl_log(lines).clique == 8
    assert parse_nccl_log(["n1:1:2 [0] NCCL INFO MNNVL 0 cliqueId 1 cliqueSize 9 cliqueRank 0"]).clique is None


def test_gpudirect_over_c2c_has_another_end() -> None:
    """NCCL 2.27 and later."""
    line = "n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA(PCI)"
    log = parse_nccl_log([line])
    assert (log.transports, log.direct) == ({"NET/IB/GDRDMA": 1}, True)
    assert parse_nccl_log([line.replace("/GDRDMA(PCI)", "")]).direct is False
    assert parse_nccl_log([line.replace("NET/IB/0/GDRDMA(PCI)", "P2P/CUMEM")]).direct is None


def test_a_time_stamp_and_a_launchers_prefix_do_not_hide_a_line() -> None:
    lines = (LOGS / "socket_hpcx.log").read_text().splitlines()
    prefixed = [f"12: [2026-05-05 06:16:47] {line}" for line in lines]
    assert parse_nccl_log(prefixed) == parse_nccl_log(lines)


@pytest.mark.parametrize("name", [name for name, *_ in NETWORKS])
def test_mutilated_logs_never_raise_and_never_invent_sockets(name: str) -> None:
    dice = random.Random(name)
    content = bytearray((LOGS / name).read_bytes())
    for _ in range(300):
        broken = bytearray(content)
        for _ in range(dice.randrange(1, 20)):
            broken[dice.randrange(len(broken))] = dice.randrange(256)
        lines = broken[: dice.randrange(len(broken) + 1)].decode("utf-8", "replace").splitlines()
        dice.shuffle(lines)
        log = parse_nccl_log(lines)
        assert isinstance(log.network, str)
        if log.sockets:
            assert "Socket" in "".join(lines) or "ofi" in "".join(lines)


def test_what_is_no_log_says_nothing(tmp_path: Path) -> None:
    assert read_nccl_log(tmp_path / "missing") is None
    (tmp_path / "other").write_text("iteration 1/50 | lm loss: 6.9\n")
    assert read_nccl_log(tmp_path / "other") is None
    os.mkfifo(tmp_path / "fifo")
    assert read_nccl_log(tmp_path / "fifo") is None
    (tmp_path / "link").symlink_to(LOGS / "roce.log")
    assert read_nccl_log(tmp_path / "link") is None


def test_a_huge_log_of_distinct_names_stays_small(tmp_path: Path) -> None:
    many = (f"n:1:2 [0] NCCL INFO Channel {i}/0 : 0[0] -> 1[0] [send] via NET/name{i}/0\n" for i in range(2000))
    (tmp_path / "log").write_text("".join(many) + "x" * 3_000_000 + "via" * 1000)
    log = read_nccl_log(tmp_path / "log")
    assert len(log.transports) == 64
    assert MOST_BYTES < 1 << 25
    assert parse_nccl_log([]) == NcclLog()
