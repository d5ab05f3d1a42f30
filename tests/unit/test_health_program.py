"""The program that looks at nodes, what travels from it, and what is made of that."""

from __future__ import annotations

import ast
import base64
import contextlib
import os
import random
import re
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.base.cluster_types import traits_of
from llmb_common.base.errors import CheckFailed, RequestError, SchedulerError
from llmb_common.base.programs import Answer
from llmb_common.executors.base import NodeRequest
from llmb_common.executors.slurm.options import parse_additional
from llmb_common.executors.slurm.words import SlurmPlan, SlurmSettings
from llmb_common.health.ask import (
    PYTHONS,
    Health,
    check_nodes,
    choose_nodes,
    exclude_failed_nodes,
    node_command,
    parse_frames,
    run_on_nodes,
)
from llmb_common.health.verdicts import NodeVerdict
from llmb_common.nodes.facts import Folder, NodeFacts, System
from llmb_common.nodes.findings import Remark
from llmb_common.nodes.needs import Needs, needs_of, needs_of_site
from llmb_common.nodes.reading import read_facts
from llmb_common.planning.site.cluster import Engine, cluster_config
from llmb_common.submission.excluded_nodes import exclude_nodes, exclusions
from llmb_train.nodes import ask, looks
from llmb_train.nodes.__main__ import main
from llmb_train.nodes.ask import call_all, frames
from support.documented_jobs import documented_rows, plan_of
from support.functions import plan as function_plan
from support.texts import Texts


def test_frames_survive_the_output_of_many_nodes() -> None:
    dice = random.Random(3)
    value = {"node": "n1", "looks": {"x": {"value": [dice.random() for _ in range(2000)]}}}
    mine, yours = frames("n1", value), frames("n2", {**value, "node": "n2"})
    assert len(mine) > 3
    assert max(map(len, mine)) < 1000
    mixed = [line for pair in zip(mine, yours, strict=True) for line in pair]
    random.Random(4).shuffle(mixed)
    found = parse_frames("\n".join(["srun: warning", *mixed, "LLMB-HEALTH n3 no-python", "LLMB-HEALTH n4 1/2 xx"]))
    assert found == {"n1": value, "n2": {**value, "node": "n2"}, "n3": None}
    assert parse_frames(mine[0]) == {}, "half of an answer is none"
    assert parse_frames(frames("n1", {})[0].replace("LLMB-HEALTH", "LLMB-OTHER")) == {}
    for odd in ("x/1", "1/x", "\u00b2/1", f"1/{'9' * 5000}", f"1/{10**12}"):
        assert parse_frames(f"LLMB-HEALTH n1 {odd} AAAA") == {}
    assert parse_frames("LLMB-HEALTH n1 1/1 AAAA\nLLMB-HEALTH n1 1/1 ====") == {}


def test_answers_are_not_believed_to_be_of_the_right_kind() -> None:
    said = {
        "begun": "x",
        "looks": {"gpus": {"value": 7}, "kernel": {"value": {"lines": [[1, "x"]]}}, "system": 5, "y": {}},
    }
    facts = read_facts("n1", said)
    assert facts.kernel.lines == ((1, "x"),)
    assert facts.before.missing == "no answer"
    assert list(facts.errors) == ["gpus"]
    assert read_facts("n1", {"looks": []}) == NodeFacts("n1")
    said = {
        "machine": {"hung": "killed", "seconds": 10},
        "stuck": {"error": "OSError: x"},
        "folder w": {"value": {"path": "/w", "there": True}, "seconds": 0.5},
    }
    assert read_facts("n1", {"begun": 7, "looks": said}) == NodeFacts(
        "n1",
        begun=7.0,
        folders={"w": Folder("/w", there=True)},
        hung={"machine": "killed"},
        errors={"stuck": "OSError: x"},
        seconds={"machine": 10.0, "folder w": 0.5},
    )


def test_all_that_a_node_needs_travels() -> None:
    code = zlib.decompress(base64.b64decode(node_command({}, [])[4])).decode()
    said = set(re.findall(r'"(llmb_train[.\w]*)": \[', code.replace("\\", "")))
    assert {name.removeprefix("llmb_train") for name in said} == {
        *("", ".nodes", ".nodes.__main__", ".nodes.ask", ".nodes.fabric", ".nodes.gpus", ".nodes.kernel_lines"),
        *(".nodes.looks", ".nodes.machine", ".nodes.stress"),
    }


def _sleeps() -> None:
    import signal
    import time

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def test_a_look_that_hangs_is_killed_and_the_others_answer() -> None:
    found = call_all({"quick": (lambda: 7, 60.0), "hangs": (_sleeps, 0.2), "wrong": (lambda: 1 / 0, 60.0)})
    assert found["quick"]["value"] == 7
    assert found["hangs"]["hung"] == "killed"
    assert found["hangs"]["seconds"] >= 0.2
    assert found["wrong"]["error"] == "ZeroDivisionError: division by zero"


def test_a_look_that_cannot_be_killed_is_named_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "_KILL_SECONDS", 0.05)

    def not_waited_for(pid: int, options: int) -> tuple[int, int]:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # dead, however busy the machine is, and still a zombie
        return 0, 0

    monkeypatch.setattr(ask.os, "waitpid", not_waited_for)
    found = call_all({"hangs": (_sleeps, 0.1), "quick": (lambda: 7, 60.0)})
    assert found["hangs"]["hung"] == "cannot be killed: state Z", "in truth it is only not waited for"


def test_a_process_that_hangs_in_the_kernel_is_found_and_our_own_looks_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In state D is who has started a process that is not yet there: it waits to open a pipe."""
    os.mkfifo(tmp_path / "pipe")
    opening = "[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]"
    text = f"import os, sys; os.posix_spawn('/bin/true', ['true'], {{}}, file_actions={opening})"
    waiting = subprocess.Popen([sys.executable, "-c", text, str(tmp_path / "pipe")])
    status, begun = (Path(f"/proc/{waiting.pid}/{name}") for name in ("status", f"task/{waiting.pid}/children"))
    while not begun.read_text() or "State:\tD" not in status.read_text():  # before, it may wait for a disk
        time.sleep(0.01)
    monkeypatch.setattr(looks, "_APART_SECONDS", 0.05)
    try:
        assert waiting.pid in {item["pid"] for item in looks.stuck()}
        monkeypatch.setattr(looks.os, "getppid", os.getpid)
        assert waiting.pid not in {item["pid"] for item in looks.stuck()}, "as if it were a look beside this one"
    finally:
        (tmp_path / "pipe").open("wb").close()
        waiting.wait()


D = {"Name": "x", "State": "D (disk sleep)", "PPid": "1", "VmSize": "1 kB"}
SWITCHES = "voluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t{}\n"


def test_who_has_run_meanwhile_was_not_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def status(pid: int, switches: int, **lines: str | None) -> None:
        (tmp_path / f"proc/{pid}").mkdir(parents=True, exist_ok=True)
        text = "".join(f"{name}:\t{value}\n" for name, value in {**D, **lines}.items() if value)
        (tmp_path / f"proc/{pid}/status").write_text(text + SWITCHES.format(switches))

    status(11, 1, Name="stuck one")
    status(5, 1, Name=None)
    status(12, 1)
    status(13, 1, VmSize=None)
    status(14, 1, State="S (sleeping)")
    monkeypatch.setattr(looks, "ROOT", tmp_path)
    monkeypatch.setattr(looks.time, "sleep", lambda seconds: status(12, 2))
    assert looks.stuck() == [{"pid": 5, "name": "?"}, {"pid": 11, "name": "stuck one"}]


def test_folders_are_tried_and_what_of_a_path_is_there_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks.folder(str(tmp_path / "none"), written=True)["there"] is False
    seen = looks.folder(str(tmp_path), written=True)
    assert (seen["there"], seen["problem"], list(tmp_path.iterdir())) == (True, None, [])
    assert 0 < seen["free"] <= seen["size"]
    assert "No such" in looks.folder("/proc/self/", written=True)["problem"], "where nothing can be made"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for setting in ("${XDG_DATA_HOME}/enroot", '"$XDG_DATA_HOME/enroot/$UID"'):
        assert looks._unpack_folder({"ENROOT_DATA_PATH": setting}) == str(tmp_path)
    assert looks._unpack_folder({}) == str(tmp_path)


def test_counters_of_ports_count_by_how_much_they_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = tmp_path / "sys/class/infiniband/mlx5_1/ports/1/counters"
    counters.mkdir(parents=True)
    grown = {"symbol_error": 7, "link_error_recovery": 1, "link_downed": 2, "port_rcv_errors": 0}
    for name in grown:
        (counters / name).write_text("100")
    monkeypatch.setattr(looks, "ROOT", tmp_path)

    def meanwhile(seconds: float) -> None:
        for name, count in grown.items():
            (counters / name).write_text(str(100 + count))

    monkeypatch.setattr(looks.time, "sleep", meanwhile)
    assert looks.ports() == [{"name": "mlx5_1", "phys": None, "board": None, "gids": [], "errors": grown}]


def test_totals_of_years_are_no_growth_of_a_port_that_comes_nor_of_counters_seen_once_or_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters = tmp_path / "sys/class/infiniband"

    def write(adapter: str, **totals: int) -> None:
        counters = adapters / adapter / "ports/1/counters"
        counters.mkdir(parents=True, exist_ok=True)
        for name, total in totals.items():
            (counters / name).write_text(str(total))

    write("mlx5_1", symbol_error=5000, link_downed=3)
    monkeypatch.setattr(looks, "ROOT", tmp_path)

    def meanwhile(seconds: float) -> None:
        write("mlx5_0", symbol_error=9000)
        write("mlx5_1", symbol_error=5002, link_downed=0, port_rcv_errors=70)

    monkeypatch.setattr(looks.time, "sleep", meanwhile)
    unknown = {"link_error_recovery": None, "port_rcv_errors": None}
    came, stayed = looks.ports()
    assert came["errors"] == {"symbol_error": None, "link_downed": None, **unknown}
    assert stayed["errors"] == {"symbol_error": 2, "link_downed": None, **unknown}


def test_what_a_look_says_too_much_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "MOST_SAID", 20)
    calls = {
        "just": (lambda: "x" * 7, 60.0),
        "much": (lambda: "x" * 200_000, 60.0),
        "dies": (lambda: os._exit(1), 60.0),
    }
    found = call_all({**calls, "prints": (lambda: os.write(1, b"x"), 60.0), "strange": (lambda: {1, 2}, 60.0)})
    assert all(0 <= found[name].pop("seconds") < 60 for name in found)
    lost = {"error": "it died, or its answer cannot be read", "died": True}
    assert found.pop("strange")["error"].startswith("TypeError: Object of type set")
    assert found == {"just": {"value": "x" * 7}, "much": lost, "dies": lost, "prints": {"value": 1}}
    assert (ask._process_state(os.getpid()), ask._process_state(1 << 23)) == ("R", "unknown")


def test_a_stage_that_cannot_begin_says_why(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    monkeypatch.setitem(sys.modules, "torch", None)
    main({"stage": "fabric"})
    said = parse_frames(capfd.readouterr().out)["n7"]
    why = "ModuleNotFoundError: import of torch halted; None in sys.modules"
    assert said == {"order": 0, "node": "n7", "error": why}


class Steps:
    """Nodes that are held: what each step says."""

    nodes = ("n1", "n2", "n3")

    def __init__(self, *answers: list[str], dead: Sequence[str] = (), complaint: bytes = b"") -> None:
        self.answers, self.dead, self.asked, self.complaint = list(answers), dead, list[Sequence[str]](), complaint

    def run(self, argv: Sequence[str], seconds: float, *, inside: Any = None, nodes: Sequence[str] = ()) -> Answer:
        self.asked.append(nodes)
        self.argv = argv
        lines = [line for node in self.answers.pop(0) for line in frames(node, {"looks": {}})]
        return Answer(0, "\n".join(lines).encode(), self.complaint)

    def unreached(self, answer: Answer) -> Sequence[str]:
        return self.dead


def test_nodes_that_lost_their_step_with_that_of_a_dead_one_are_asked_once_more() -> None:
    held: Any = Steps(["n1"], ["n3"], dead=["n2"])
    assert sorted(run_on_nodes(held, ["x"], 1.0)[1]) == ["n1", "n3"]
    assert held.asked == [(), ["n3"]]
    held = Steps(["n1", "n3"], dead=["n2"])
    assert sorted(run_on_nodes(held, ["x"], 1.0)[1]) == ["n1", "n3"]
    assert held.asked == [()], "nobody is left to ask"


def test_what_a_plan_needs_is_found_in_it(tmp_path: Path) -> None:
    usual = plan_of(*next(documented_rows()))
    image = tmp_path / "nemo.sqsh"
    image.write_bytes(b"image")
    hca = msgspec.structs.replace(next(iter(usual.env.values())), value="mlx5_0")
    paths = {
        "image": str(image),
        "install": str(tmp_path),
        "workload_folder": f"{tmp_path}/workloads/x",
        "mounts": ("/m:/m",),
    }
    usual = msgspec.structs.replace(usual, env={**usual.env, "NCCL_IB_HCA": hca}, engine_python="/a/python", **paths)
    assert needs_of(usual) == Needs(
        gpu_type=usual.gpu_type,
        gpus_per_node=usual.gpus_per_node,
        nodes=usual.nodes,
        scheduler=usual.scheduler,
        adapters="mlx5_0",
        image=str(image),
        image_bytes=5,
        mounts=("/m:/m",),
        folders={**dict.fromkeys(("installation", "workload", "images"), str(tmp_path)), "/tmp": "/tmp"},
        pythons=("/a/python",),
        env={name: item.value for name, item in usual.env.items()},
    )
    assert needs_of(msgspec.structs.replace(usual, image=f"{image}.none")).image_bytes == 0
    beyond = function_plan(MODEL_SIZE="deepseek_v3", DTYPE="fp8", GPU_TYPE="h100", JOB_TOTAL_GPUS="1024")
    assert (beyond.ep, needs_of(beyond).dispatcher) == (64, "hybridep")
    assert needs_of(msgspec.structs.replace(beyond, ep=8)).dispatcher == "", "experts in one NVLink domain"
    rack = function_plan(MODEL_SIZE="deepseek_v3", DTYPE="fp8", GPU_TYPE="gb300", JOB_TOTAL_GPUS="256")
    assert (rack.ep, needs_of(rack).dispatcher) == (32, ""), "the same: 72 GPUs are joined there"


def test_what_a_site_needs_is_what_its_configuration_says(tmp_path: Path) -> None:
    slurm = SlurmSettings(account="a", gpu_partition="gpu", gres=True, mpi="none", additional_params="qos=high")
    env, engine = {"NCCL_IB_HCA": "mlx5_0"}, Engine(python="/a/python")
    config = cluster_config(gpu_type="gb200", slurm=slurm, environment=env, engine=engine, mounts=("/m:/m",))
    common = Needs(
        gpu_type="gb200",
        gpus_per_node=4,
        adapters="mlx5_0",
        mounts=("/m:/m",),
        folders={"installation": str(tmp_path), "workload": str(tmp_path), "/tmp": "/tmp"},
        pythons=("/a/python",),
        env=env,
    )
    found = needs_of_site(config, tmp_path, traits_of("slurm"), "other")
    assert replace(found, scheduler=None) == needs_of_site(config, tmp_path, traits_of("local")) == common
    assert found.scheduler == SlurmPlan(
        account="a",
        partition="other",
        gres=True,
        segment=None,
        additional=tuple(parse_additional("qos=high", "x")),
        runtime="pyxis",
        container_writable=True,
        mpi="none",
    )
    cpus = needs_of_site(cluster_config(gpu_type="cpu"), tmp_path, traits_of("slurm"))
    assert (cpus.device, cpus.pythons, cpus.scheduler and cpus.scheduler.partition) == ("cpu", (), None)


class Queue:
    """A scheduler that knows these nodes, and why some cannot be had; it gives what a test holds."""

    def __init__(self, now: Mapping[str, str], held: Any = None) -> None:
        self.now, self.held, self.wanted = now, held, list[NodeRequest]()

    def nodes_now(self, nodes: str | None, partition: str | None) -> Mapping[str, str]:
        return self.now

    @contextlib.contextmanager
    def hold(self, wanted: NodeRequest) -> Iterator[Any]:
        self.wanted.append(wanted)
        yield self.held


def test_nodes_that_can_be_asked_are_neither_busy_nor_excluded(tmp_path: Path, texts: Texts) -> None:
    exclude_nodes(tmp_path, "n2", "it burns", days=1)
    queue: Any = Queue({"n1": "", "n2": "", "n3": "down"})
    assert choose_nodes(queue, tmp_path, None, None) == (["n1"], {"n2": "excluded (it burns)", "n3": "down"})
    assert choose_nodes(queue, tmp_path, "n2", None) == (["n1", "n2"], {"n3": "down"}), "who names a node means it"
    queue = Queue({f"n{number}": "down" for number in range(1, 6)})
    with texts.raises(RequestError) as caught:
        choose_nodes(queue, tmp_path, None, None)
    assert caught.value.code == "no-nodes"


def test_nodes_are_held_whole_and_judged_by_what_they_say(texts: Texts) -> None:
    queue: Any = Queue({}, Steps(["n1", "n3"], complaint=b" srun: n2 is lost \n"))
    needs = Needs(device="cpu", folders={"images": "/i"}, pythons=("/a/python",))
    found = check_nodes(queue, needs, ["n1", "n2", "n3"], wait=7, minutes=3)
    assert queue.wanted == [
        NodeRequest(name="llmb-health", scheduler=None, nodes=["n1", "n2", "n3"], gpus=1, minutes=3, wait=7, whole=True)
    ]
    assert [item.status for item in found.verdicts] == ["ok", "silent", "ok"]
    spec, *pythons = queue.held.argv[5:]
    assert msgspec.json.decode(spec) == {"stage": "look", "folders": {"images": "/i"}, "written": ["workload"]}
    assert pythons == [*PYTHONS, "/a/python"]
    assert (found.complaint, list(found.facts)) == ("srun: n2 is lost", ["n1", "n3"])
    assert [item.node for item in found.failed] == ["n2"]
    queue = Queue({}, Steps(["n1", "n2", "n3"]))
    assert check_nodes(queue, Needs(gpus_per_node=8), []).complaint == ""
    assert [(wanted.gpus, wanted.minutes, wanted.wait) for wanted in queue.wanted] == [(8, 2, 60)]
    with texts.raises(SchedulerError):
        check_nodes(Queue({}, Steps([])), Needs(), ["n1"])  # type: ignore[arg-type]


def verdict(node: str, status: str, *texts: str) -> NodeVerdict:
    remarks = tuple(Remark("gpus", "warn" if text.startswith("maybe") else "fail", text) for text in texts)
    return NodeVerdict(node, status, remarks)  # type: ignore[arg-type]


SILENT = verdict("n9", "silent", "it does not answer")
SHARED = [
    ((verdict("n1", "fail", "b", "a"), verdict("n2", "fail", "a", "c", "b")), "a; b"),
    ((verdict("n1", "fail", "a"), verdict("n2", "fail", "a"), SILENT), "a"),
    ((verdict("n1", "fail", "a"), verdict("n2", "fail", "b")), ""),
    ((verdict("n1", "fail", "a"), verdict("n2", "ok")), ""),
    ((verdict("n1", "warn", "maybe a"), verdict("n2", "warn", "maybe a")), ""),
    ((verdict("n1", "fail", "a"),), ""),
    ((verdict("n1", "fail", "a"), SILENT), ""),
    ((SILENT,), ""),
    ((), ""),
]


@pytest.mark.parametrize(("verdicts", "shared"), SHARED)
def test_a_fault_is_the_sites_where_several_nodes_answer_and_all_have_it(
    tmp_path: Path, verdicts: Sequence[NodeVerdict], shared: str
) -> None:
    found = Health(verdicts)
    assert found.shared_fault == shared
    bad = [item.node for item in verdicts if item.status in ("fail", "silent")]
    before = time.time()
    if shared:
        with pytest.raises(CheckFailed) as caught:
            exclude_failed_nodes(tmp_path, found, days=3)
        assert caught.value.code == "unhealthy-nodes"
        assert exclusions(tmp_path) == []
    else:
        exclude_failed_nodes(tmp_path, found, days=3)
        assert [item.node for item in exclusions(tmp_path)] == bad
        assert all(0 <= (item.expires or 0) - before - 3 * 86400 < 60 for item in exclusions(tmp_path))


def test_drift_is_of_the_nodes_that_answered() -> None:
    """One that did not has no facts, and differs in nothing."""
    facts = {node: NodeFacts(node, system=System(page_size=size)) for node, size in (("n1", 4096), ("n2", 65536))}
    found = Health([verdict("n1", "ok"), verdict("n2", "warn"), SILENT], facts)
    assert found.drift == {"page size": {"4096": ["n1"], "65536": ["n2"]}}


OLD = ("nodes/__main__", "nodes/ask", "nodes/gpus", "nodes/looks", "nodes/machine")
"""What a node's own Python runs, which may be 3.6."""


@pytest.mark.parametrize("name", OLD)
def test_what_looks_at_nodes_starts_on_python_3_6(name: str) -> None:
    file = Path(__file__).resolve().parents[2] / "common" / "llmb_train" / f"{name}.py"
    tree = ast.parse(file.read_text(), feature_version=(3, 6))
    future = [node.names[0].name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert "annotations" not in future, "Python 3.6 refuses that import"
    said = [node.annotation for node in ast.walk(tree) if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation]
    said += [node.returns for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.returns]
    words = [ast.unparse(item) for item in said if not isinstance(item, ast.Constant)]
    assert [text for text in words if re.search(r" \| |\b(dict|list|tuple|set)\[", text)] == [], "it evaluates them"
