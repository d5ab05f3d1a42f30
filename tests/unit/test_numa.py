"""rendering/numa.sh and rendering/cores.sh: the NUMA node and the cores that each rank is bound to, on made-up trees of
/sys. The text is the real one, with another folder in the place of /sys; one bash binds all ranks of a tree."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

import llmb_common.rendering

NUMA = Path(llmb_common.rendering.__file__).with_name("numa.sh")


def bound(folder: Path, nodes: Mapping[int, str], ranks: int, *, numactl: bool = True) -> list[str]:
    """The command before the training of each of ``ranks``; ``nodes``: what ``cpulist`` says, by number."""
    for number, cpus in nodes.items():
        (folder / f"node{number}").mkdir()
        (folder / f"node{number}" / "cpulist").write_text(f"{cpus}\n")
    (folder / "has_cpu").write_text("")
    text = NUMA.read_text()
    sysfs = "/sys/devices/system/node/"
    assert text.count(sysfs) == 1
    script = "\n".join(
        [
            "set -euo pipefail",
            "numactl() { :; }" if numactl else "",
            f"bind() {{ {text.replace(sysfs, f'{folder}/')}",
            "}",
            f"for ((local_rank = 0; local_rank < {ranks}; local_rank++)); do",
            f'  local_ranks={ranks} prefix=()\n  bind\n  echo "${{prefix[*]}}"',
            "done",
        ]
    )
    bash = shutil.which("bash") or "bash"
    done = subprocess.run([bash, "-c", script], env={"PATH": ""}, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def on(*nodes: int) -> list[str]:
    return [f"numactl --cpunodebind={node} --membind={node}" for node in nodes]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        # DGX H100: GPUs 0 to 3 are beside the first socket.
        ({0: "0-55,112-167", 1: "56-111,168-223"}, on(0, 0, 0, 0, 1, 1, 1, 1)),
        # GB200: two Grace CPUs with two GPUs each, and nodes of GPU memory, which have no CPUs.
        ({0: "0-71", 1: "72-143", **dict.fromkeys(range(2, 34), "")}, on(0, 0, 1, 1)),
        # Four nodes in two sockets (NPS2), eight ranks and four.
        ({0: "0-31", 1: "32-63", 2: "64-95", 3: "96-127"}, on(0, 0, 1, 1, 2, 2, 3, 3)),
        ({0: "0-31", 1: "32-63", 2: "64-95", 3: "96-127"}, on(0, 1, 2, 3)),
        # By number, with gaps: node10 is listed before node2, and one of memory comes between.
        ({0: "0-1", 1: "", 2: "2-3", 10: "4-5", 11: "6-7"}, on(0, 0, 2, 2, 10, 10, 11, 11)),
        ({2: "0-1", 10: "2-3"}, on(2, 2, 10, 10)),
        # A rank alone, and numbers that do not divide.
        ({0: "0-1", 1: "2-3"}, on(0)),
        ({0: "0-1", 1: "2-3"}, on(0, 0, 1)),
        ({0: "0", 1: "1", 2: "2", 3: "3"}, on(0, 2)),
    ],
)
def test_ranks_are_spread_over_the_nodes_that_have_cpus_in_order(tmp_path, nodes, expected):
    assert bound(tmp_path, nodes, len(expected)) == expected


@pytest.mark.parametrize("nodes", [{}, {0: "0-63"}, {0: "0-63", 1: "", 2: ""}])
def test_nothing_is_bound_where_there_is_no_choice(tmp_path: Path, nodes: dict[int, str]) -> None:
    assert bound(tmp_path, nodes, 4) == [""] * 4


def test_nothing_is_bound_without_numactl(tmp_path: Path) -> None:
    assert bound(tmp_path, {0: "0-1", 1: "2-3"}, 4, numactl=False) == [""] * 4


def test_a_node_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "node5").mkdir()  # it was taken away
    assert bound(tmp_path, {0: "0-1", 1: "2-3"}, 2) == on(0, 1)


@pytest.mark.parametrize(
    ("cores", "before", "expected"),
    [
        (128, "numactl --cpunodebind=1", "numactl --cpunodebind=1 --physcpubind=112-113"),
        (114, "", "numactl --physcpubind=112-113"),
        (113, "numactl --cpunodebind=1", "numactl --cpunodebind=1"),  # the last rank's second core does not exist
        (113, "", ""),
    ],
)
def test_a_rank_gets_its_two_cores_where_the_node_has_them(cores: int, before: str, expected: str) -> None:
    text = NUMA.with_name("cores.sh").read_text()
    numactl = f"numactl() {{ (( ${{1##*-}} < {cores} )); }}"
    script = f"set -euo pipefail\n{numactl}\nlocal_rank=7 core_stride=16 core_count=2\nprefix=({before})\n{text}"
    bash = shutil.which("bash") or "bash"
    done = subprocess.run([bash, "-c", f'{script}\necho "${{prefix[*]}}"'], capture_output=True, text=True, check=True)
    assert done.stdout == f"{expected}\n"
