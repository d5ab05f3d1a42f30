"""Where the limits of ``llmb-run health`` are, and which numbers and words of nodes are held against the others'."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmb_common.health.verdicts import judge
from llmb_common.nodes.compare import drift
from llmb_common.nodes.facts import Folder, Port
from support.health_fleets import PLANNED, Change, checked, fleet, gpu, logged, needs, part, port, whole

ROOM = [((500_000_000, 1), (499_999_999, 1)), ((10**10, 500_000_000_000), (10**10 - 1, 500_000_000_000))]
OF_DRIVER = ["NVRM: Xid (PCI:0000:02:00): 79, fell", "NVRM: fallen off the bus and is not responding to commands."]
OF_DRIVER += ["NVRM: Xid (PCI:0000:02:00): 63, Row Remapper"]


def _direct(kernel: str) -> Change:
    return lambda f: part("machine", kernel=kernel)(part("system", peermem=False, open_driver=True)(f))


def _room(path: str, free: int, size: int) -> Change:
    return whole(folders={path: Folder(path=path, there=True, free=free, size=size)})


def _unpacks(free: int) -> Change:
    return part("software", unpacked=Folder(path="/e", there=True, free=free))


def _flaps(times: int) -> Change:
    return logged("mlx5_core 0000:5e:00.0 ib3: lost carrier", times=times)


LIMITS: list[tuple[Change, Change, str]] = [
    (gpu(utilization=20.0), gpu(utilization=20.1), "gpu-in-use"),
    (gpu(memory_used_mib=2047.0), gpu(memory_used_mib=2048.0), "gpu-in-use"),
    (part("system", nofile=65_536), part("system", nofile=65_535), "open-files"),
    (part("system", memlock=32 << 30), part("system", memlock=(32 << 30) - 1), "memlock"),
    (part("system", first_outgoing_port=30_000), part("system", first_outgoing_port=29_999), "ports"),
    (part("system", idle_states=3), part("system", idle_states=2), "cpu-speed"),
    (part("system", shm_size=8 << 30, shm_free=8 << 30), part("system", shm_free=(8 << 30) - 1), "shared-memory"),
    (part("system", shm_free=64 << 20), part("system", shm_free=(64 << 20) - 1), "shared-memory"),
    (_direct("5.12.0"), _direct("5.11.9"), "gpudirect"),
    *((_room("/w", *fine), _room("/w", *wrong), "folders") for fine, wrong in ROOM),
    (_room("/tmp", 64 << 20, 1), _room("/tmp", (64 << 20) - 1, 1), "folders"),
    *((_unpacks(free), _unpacks(free - 1), "folders") for free in (60_000_000_000, 20_000_000_000)),
    (logged("mlx5_core 0000:5e:00.0 ib3: x"), logged("mlx5_core 0000:5e:00.0 ib3: lost carrier"), "link-flaps"),
    (_flaps(4), _flaps(5), "link-flaps"),
    *((logged(text, age=7201), logged(text, age=7200), "xid") for text in OF_DRIVER),
]
"""What just passes, and what does not any more."""


@pytest.mark.parametrize(("fine", "wrong", "check"), LIMITS)
def test_limits_are_where_they_are_said_to_be(fine: Change, wrong: Change, check: str) -> None:
    before, after = (
        {remark.level for remark in checked(change, PLANNED)["n2"].remarks if remark.check == check}
        for change in (fine, wrong)
    )
    assert after
    assert before != after


UNLIKE: list[tuple[Callable[[float], Change], float, float, float]] = [
    (lambda x: part("machine", memory_gib=x), 2000, 1900, 1899),
    (lambda x: part("machine", cpus=int(x)), 200, 190, 189),
    (lambda x: part("system", numa_nodes=int(x)), 2, 2, 1),
    (lambda x: gpu(temperature_c=x), 60, 80, 80.5),
    (lambda x: part("system", clock=x), 100, 130, 130.5),
    (lambda x: part("system", clock=x), 100, 70, 69.5),
    (lambda x: whole(seconds={"gpus": x}), 1, 8, 8.5),
    (lambda x: whole(seconds={"gpus": x}), 4, 12, 12.5),
]


@pytest.mark.parametrize(("change", "usual", "fine", "wrong"), UNLIKE)
def test_numbers_are_held_against_those_of_the_others(
    change: Callable[[float], Change], usual: float, fine: float, wrong: float
) -> None:
    nodes = {name: change(usual)(facts) for name, facts in fleet(nodes=3).items()}
    two = {name: nodes[name] for name in ("n1", "n2")}
    remarks = [
        [
            remark
            for verdict in judge(list(those), {**those, "n2": change(value)(nodes["n2"])}, needs())
            for remark in verdict.remarks
        ]
        for those, value in ((nodes, fine), (nodes, wrong), (two, wrong))
    ]
    assert [len(said) for said in remarks] == [0, 1, 0], "two nodes do not say what is usual"


DRIFTING: list[tuple[str, Change, str]] = [
    ("CUDA of the driver", part("before", cuda="12.8"), "12.8"),
    ("operating system", part("software", os="Rocky 9"), "Rocky 9"),
    ("OFED", part("software", ofed="24.10"), "24.10"),
    ("Enroot", part("software", enroot="3.5.0"), "3.5.0"),
    ("settings of Enroot", part("software", enroot_settings={"B": "2", "A": "1"}), "A=1 B=2"),
    ("CPU", part("machine", cpu="another"), "another"),
    ("kernel parameters", part("system", cmdline="ro"), "ro"),
    ("kernel parameters", part("system", cmdline="x" * 300), "x" * 200),
    ("page size", part("system", page_size=65536), "65536"),
    ("virtual machine", part("system", virtual=True), "True"),
    ("VBIOS", gpu(vbios="97"), "97"),
    ("firmware of adapters", port("mlx5_1", firmware="28.1"), "MT4129 28.1"),
    ("model of adapters", whole(ports=(Port(name="a", board="MT_2"), Port(name="b", board="MT_1"))), "MT_1 MT_2"),
]


@pytest.mark.parametrize(("name", "change", "value"), DRIFTING)
def test_what_should_be_the_same_on_all_nodes_is_compared(name: str, change: Change, value: str) -> None:
    usual = {n: part("software", ofed="24.07", enroot_settings={"A": "1"})(f) for n, f in fleet(nodes=3).items()}
    usual = {n: whole(ports=(Port(name="a", board="MT_0"),))(part("machine", cpu="x")(f)) for n, f in usual.items()}
    found = drift([usual["n1"], usual["n2"], change(usual["n3"])])
    assert list(found) == [name]
    ((_, most), (odd, one)) = found[name].items()
    assert (most, one) == (["n1", "n2"], ["n3"])
    assert value in odd
    assert len(odd) <= 200
