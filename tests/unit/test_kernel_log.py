"""submission/kernel.sh, which each node of a job that failed runs: what it keeps, and what ``why`` makes of that."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from llmb_common.causes.diagnosis import diagnose
from llmb_common.causes.lines import parse_line
from llmb_common.causes.table import signature_of
from support.runs import make_run
from tools import kernel_lines
from tools.__main__ import update

KERNEL = (Path(__file__).resolve().parents[2] / "common/llmb_common/submission/kernel.sh").read_text()

XID = "NVRM: Xid (PCI:0000:5d:00): 79, pid=1, GPU has fallen off the bus."
MEANT = {
    XID: "xid-79",
    "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up": "sxid-20034",
    "NVRM: GPU 0000:5d:00.0: RmInitAdapter failed! (0x62:0xffff:2477)": "no-gpu",
    "mlx5_core 0000:9a:00.0 ibp154s0: Link down": "link-lost",
    "mlx5_core 0000:5e:00.0 ib3: lost carrier": "link-lost",
    "ice 0000:3a:00.0 ens2f0: NIC Link is Down": "link-lost",
    "NETDEV WATCHDOG: enp88s0np0 (mlx5_core): transmit queue 3 timed out": "transmit-timeout",
    "mlx5_core 0000:9a:00.0 ibp154s0: NETDEV WATCHDOG: CPU: 7: transmit queue 9 timed out 5012 ms": "transmit-timeout",
    "NETDEV WATCHDOG: eth0: transmit timed out": "transmit-timeout",
    "mlx5_core 0000:9a:00.0 enp154s0np0: TX timeout detected": "transmit-timeout",
    "mlx5_core 0000:9a:00.0: Port module event[error]: module 0, Cable error, Bus stuck": "adapter-note",
    "mlx5_core 0000:5d:00.0: poll_health:955:(pid 0): device's health compromised - reached miss count": "rdma-device",
    "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4711]": "kernel-hung",
    "NMI watchdog: Watchdog detected hard LOCKUP on cpu 12": "kernel-hung",
    "rcu: INFO: rcu_preempt self-detected stall on CPU": "kernel-hung",
    "EXT4-fs (nvme0n1p2): Remounting filesystem read-only": "remounted",
    "mce: [Hardware Error]: Uncorrected error, CPU 3": "hardware",
    "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0": "hardware",
    "mce: [Hardware Error]: Machine check events logged": "kernel-note",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0": "kernel-note",
    "INFO: task python3:4711 blocked for more than 122 seconds.": "kernel-note",
    "Out of memory: Killed process 4711 (python3) total-vm:1048576kB, anon-rss:524288kB": "host-memory",
    "python3[4711]: segfault at 0 ip 00007f sp 00007f error 4 in libtorch.so": "segfault",
    "nfs: server filer1 not responding, still trying": "file-system",
}
"""What a kernel says, and the signature that knows it."""

ORDINARY = [
    "usb 1-1: new high-speed USB device number 2",
    "mlx5_core 0000:9a:00.0 ibp154s0: Link up",
    "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode",
    "nfs: server filer1 OK",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
]


def kept(
    folder: Path, *, journal: str = "", dmesg: str = "", node: str = "n1", into: Path | None = None, grep: str = ""
) -> list[str]:
    """The lines that a node keeps of what its tools say, of a job that started a minute ago; ``grep`` may stand for
    the node's own."""
    programs = {
        "journalctl": f'[[ $* == *"--since @"* ]] && cat {folder}/journalctl.said',
        "dmesg": f"cat {folder}/dmesg.said",
        **({"grep": grep} if grep else {}),
    }
    for name, text in (("journalctl", journal), ("dmesg", dmesg)):
        (folder / f"{name}.said").write_text(text)
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURMD_NODENAME": node}
    where = into or folder
    words = ["bash", "-c", KERNEL, "bash", str(int(time.time()) - 60), str(where)]
    done = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout + done.stderr == ""
    file = where / f"{node}.kernel.log"
    return file.read_text().splitlines() if file.exists() else []


def in_journal(*lines: str) -> str:
    return "".join(f"2026-11-20T03:40:35+0000 n1 kernel: {line}\n" for line in lines)


def test_the_patterns_are_those_of_the_signatures() -> None:
    assert update(kernel_lines.files(), write=False) == 0, "python -m tools --write"


@pytest.mark.parametrize("journal", [True, False])
def test_a_node_keeps_what_its_kernel_said_since_the_start(tmp_path: Path, journal: bool) -> None:
    """Of the journal, or where that may not be read of dmesg, whose times count from the start of the machine."""
    up = float(Path("/proc/uptime").read_text().split()[0])
    said = in_journal(XID, ORDINARY[0]) if journal else ""
    old = f"[{up - 500:12.6f}] {XID.replace('79', '48')}\n"
    (line,) = kept(tmp_path, journal=said, dmesg=f"{old}[{up - 5:12.6f}] {XID}\n")
    assert line.endswith(XID)
    assert line.startswith("2026") == journal


@pytest.mark.parametrize("journal", [True, False])
def test_a_message_of_several_lines_is_kept_as_a_whole(tmp_path: Path, journal: bool) -> None:
    up = float(Path("/proc/uptime").read_text().split()[0])
    first, rest = "NVRM: The NVIDIA GPU 0000:b3:00.0", "          NVRM: fallen off the bus"
    said = in_journal(first) + f"{rest}\n" if journal else ""
    dmesg = f"[{up - 500:12.6f}] {first}\n{rest} long ago\n[{up - 5:12.6f}] {first}\n{rest}\n"
    assert kept(tmp_path, journal=said, dmesg=dmesg)[1:] == [rest]


def test_all_that_a_signature_knows_is_kept_and_nothing_else(tmp_path: Path) -> None:
    lines = kept(tmp_path, journal=in_journal(*ORDINARY, *MEANT))
    found = [parse_line(line) for line in lines]
    assert [line.split(" kernel: ", 1)[1] for line in lines] == list(MEANT)
    assert {line.host for line in found} == {"n1"}
    kinds = [signature.id for line in found if (signature := signature_of(line.text))]
    assert kinds == list(MEANT.values())


def test_a_flood_leaves_the_first_lines_and_the_last(tmp_path: Path) -> None:
    flood = [f"EDAC MC0: 1 CE memory read error {number}" for number in range(1000)]
    lines = [line.split("kernel: ")[1] for line in kept(tmp_path, journal=in_journal(XID, *flood))]
    assert lines == [XID, *flood[:99], *flood[-100:]]
    for count in (100, 101, 199, 200, 201):
        lines = [line.split("kernel: ")[1] for line in kept(tmp_path, journal=in_journal(*flood[:count]))]
        assert lines == list(dict.fromkeys([*flood[:count][:100], *flood[:count][-100:]]))


def test_a_grep_that_knows_too_little_keeps_everything(tmp_path: Path) -> None:
    refuses = 'if [[ $1 == -aP ]]; then echo "grep: Perl matching not supported" >&2; exit 2; fi; exec /bin/grep "$@"'
    assert len(kept(tmp_path, journal=in_journal(*ORDINARY, XID), grep=refuses)) == len(ORDINARY) + 1


ENDED = "srun: error: n2: task 9: Exited with exit code 1\n"
OUT_OF_MEMORY = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/opt/Megatron-Bridge/train.py", line 1, in forward
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has 79.11 GiB in use.
"""


@pytest.mark.parametrize(
    ("line", "kind"),
    [(line, kind) for line, kind in MEANT.items() if kind not in ("kernel-note", "adapter-note", "sxid-20034")],
)
@pytest.mark.parametrize("log", ["", OUT_OF_MEMORY])
def test_why_names_what_a_nodes_kernel_said_where_no_rank_says_more(
    tmp_path: Path, line: str, kind: str, log: str
) -> None:
    """A process that crashed or was killed, and a file system that did not answer, may be another's."""
    record = make_run(tmp_path / "install", state="FAILED", log=log + ENDED)
    nodes = record.paths.folder / "nodes"
    nodes.mkdir()
    assert kept(tmp_path, journal=in_journal(*ORDINARY, line), node="n2", into=nodes)
    cause = diagnose(record).cause
    if log:
        assert cause is not None
        assert cause.kind == "cuda-memory"
    elif kind in ("host-memory", "segfault", "file-system"):
        assert cause is None
    else:
        assert cause is not None
        assert (cause.kind, cause.node) == (kind, "n2")
