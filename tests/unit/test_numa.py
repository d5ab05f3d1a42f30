"""submission/numa.sh and submission/cores.sh: the NUMA node and the cores that each rank is bound to, on made-up trees
of /sys. The text is the real one, with another folder in the place of /sys; one bash binds all ranks of a tree."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import llmb_common.submission

NUMA = Path(llmb_common.submission.__file__).with_name("numa.sh")


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


CORES = NUMA.with_name("cores.sh")
SIBLING = 128
"""What lies between the two threads of a core on DGX B300: two processors of 64 cores."""


@dataclass
class Machine:
    """What the kernel says of a node with eight GPUs; changed to make others of it. As it is: DGX B300, two Xeon 6776P
    whose first two of each sixteen cores have priority."""

    nodes: Mapping[int, Sequence[int]] = field(
        default_factory=lambda: {
            0: [*range(64), *range(SIBLING, SIBLING + 64)],
            1: [*range(64, SIBLING), *range(SIBLING + 64, 2 * SIBLING)],
        }
    )
    threads: Callable[[int], str] = lambda cpu: f"{cpu % SIBLING},{cpu % SIBLING + SIBLING}"
    fastest: Callable[[int], int] = lambda cpu: 46 if cpu % 16 in (0, 1) else 39
    says: str = "acpi_cppc/highest_perf"
    """The file that says it."""
    factor: int = 1
    vendor: str = "GenuineIntel"
    given: Callable[[int], bool] = lambda cpu: True
    """Whether the job has been given a CPU."""

    def bound(self, folder: Path, ranks: int = 8) -> list[str]:
        """The command before the training of each rank."""
        system = folder / "system"
        for node, cpus in self.nodes.items():
            (system / f"node/node{node}").mkdir(parents=True)
            (system / f"node/node{node}/cpulist").write_text(",".join(map(str, cpus)) + "\n")
            for cpu in cpus:
                self._write_cpu(system / f"cpu/cpu{cpu}", cpu)
                (system / f"node/node{node}/cpu{cpu}").symlink_to(system / f"cpu/cpu{cpu}")
        (folder / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {self.vendor}\n")
        (folder / "refused").write_text(
            "".join(f"{cpu}\n" for cpus in self.nodes.values() for cpu in cpus if not self.given(cpu))
        )
        text = f"{NUMA.read_text()}\n{CORES.read_text()}"
        text = text.replace("/sys/devices/system/", f"{system}/").replace("/proc/cpuinfo", f"{folder}/cpuinfo")
        script = f"""
set -euo pipefail
numactl() {{
  local cpus=${{*: -2:1}}
  cpus=${{cpus#--physcpubind=}}
  ! grep -qx -e "${{cpus%-*}}" -e "${{cpus#*-}}" {folder}/refused
}}
core_stride=16 core_count=2
bind() {{ {text}
}}
for ((local_rank = 0; local_rank < {ranks}; local_rank++)); do
  local_ranks={ranks} prefix=()
  unset numa node
  bind
  echo "${{prefix[*]}}"
done
"""
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.split("\n")[:-1]

    def _write_cpu(self, folder: Path, cpu: int) -> None:
        """Without pathlib, which takes most of the time of 256 CPUs."""
        for name, value in (("topology/thread_siblings_list", self.threads(cpu)), (self.says, str(self._speed(cpu)))):
            path = f"{folder}/{name}"
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
            with open(path, "w") as file:  # noqa: PTH123
                file.write(f"{value}\n")

    def _speed(self, cpu: int) -> int:
        return self.fastest(cpu) * self.factor


NODES = on(0, 0, 0, 0, 1, 1, 1, 1)
FAST = [f"{node} --physcpubind={16 * rank}-{16 * rank + 1}" for rank, node in enumerate(NODES)]
"""Each rank on the cores to which NVIDIA's launcher binds it."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (Machine(), FAST),
        (Machine(says="cpufreq/cpuinfo_max_freq", factor=100_000), FAST),
        # Cores numbered round-robin: each rank's two are in different sockets.
        (Machine(nodes={node: range(node, 2 * SIBLING, 2) for node in (0, 1)}), NODES),
        # Sockets of 56 cores: the last rank's are threads of the first socket.
        (
            Machine(
                nodes={0: [*range(56), *range(112, 168)], 1: [*range(56, 112), *range(168, 224)]},
                threads=lambda cpu: f"{cpu % 112},{cpu % 112 + 112}",
            ),
            [*FAST[:7], NODES[7]],
        ),
        # Both threads of a core have numbers side by side: a rank would have one core.
        (Machine(threads=lambda cpu: f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"), NODES),
        (Machine(threads=str), FAST),  # hyper-threading is off
        # No core has priority; or others have: Intel's own guide takes the first four of each 32.
        (Machine(fastest=lambda cpu: 39), NODES),
        (Machine(fastest=lambda cpu: 39, says="cpufreq/cpuinfo_max_freq", factor=100_000), NODES),
        (
            Machine(fastest=lambda cpu: 46 if cpu % 32 < 4 else 39),
            [FAST[0], NODES[1], FAST[2], NODES[3], FAST[4], NODES[5], FAST[6], NODES[7]],
        ),
        (Machine(fastest=lambda cpu: 46 if cpu % 16 == 0 else 39), NODES),
        (Machine(vendor="AuthenticAMD", fastest=lambda cpu: 196), NODES),  # on a scale of its own
        # The kernel does not say how fast cores are: a virtual machine.
        (Machine(says="nothing"), NODES),
        # The job has been given other cores, or a part of them.
        (Machine(given=lambda cpu: cpu % 16 != 1), NODES),
        (Machine(given=lambda cpu: cpu >= 16), [NODES[0], *FAST[1:]]),
    ],
)
def test_a_rank_gets_its_two_cores_where_they_are_beside_its_gpu_and_fast(tmp_path, machine, expected):
    assert machine.bound(tmp_path) == expected


def test_with_one_numa_node_the_cores_alone_are_bound(tmp_path: Path) -> None:
    """With one processor of 64 cores the later ranks' numbers are second threads of the earlier ranks' cores."""
    machine = Machine(nodes={0: range(128)}, threads=lambda cpu: f"{cpu % 64},{cpu % 64 + 64}")
    alone = [f"numactl --physcpubind={16 * rank}-{16 * rank + 1}" for rank in range(4)]
    assert machine.bound(tmp_path) == [*alone, "", "", "", ""]


def test_without_numactl_no_core_is_bound(tmp_path: Path) -> None:
    text = f"set -euo pipefail\nlocal_rank=0 local_ranks=8 core_stride=16 core_count=2 prefix=()\n{NUMA.read_text()}\n"
    bash = shutil.which("bash") or "bash"
    script = f'{text}{CORES.read_text()}\necho "<${{prefix[*]}}>"'
    done = subprocess.run([bash, "-c", script], env={"PATH": ""}, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("<>\n", "")
