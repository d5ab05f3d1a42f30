"""The program that looks at nodes, what travels from it, and what is made of that."""

from __future__ import annotations

import ast
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.health.ask import said_by
from llmb_common.health.facts import Facts, read_facts
from llmb_common.health.needs import needs_of
from llmb_common.health.program import parse_frames
from llmb_common.programs import Answer
from llmb_train.health import children, looks
from llmb_train.health.children import call_all, frames
from support.documented_jobs import documented_rows, plan_of
from support.functions import plan as function_plan


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
    assert parse_frames("LLMB-HEALTH n1 1/1 AAAA\nLLMB-HEALTH n1 1/1 ====") == {}


def test_answers_are_not_believed_to_be_of_the_right_kind() -> None:
    said = {
        "begun": "x",
        "looks": {"gpus": {"value": 7}, "kernel": {"value": {"lines": [[1, "x"]]}}, "system": 5, "y": {}},
    }
    facts = read_facts("n1", said)
    assert facts.kernel.lines == ((1, "x"),)
    assert facts.gpus.missing == "no answer"
    assert list(facts.errors) == ["gpus"]
    assert read_facts("n1", {"looks": []}) == Facts("n1")


def _sleeps() -> None:
    import signal
    import time

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def test_a_look_that_hangs_is_killed_and_the_others_answer() -> None:
    found = call_all({"quick": (lambda: 7, 60.0), "hangs": (_sleeps, 0.2), "wrong": (lambda: 1 / 0, 60.0)})
    assert found["quick"]["value"] == 7
    assert found["hangs"]["hung"] == "killed"
    assert found["wrong"]["error"] == "ZeroDivisionError: division by zero"


def test_a_look_that_cannot_be_killed_is_named_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_KILL_SECONDS", 0.05)
    monkeypatch.setattr(children.os, "waitpid", lambda pid, options: (0, 0))
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
    status = Path(f"/proc/{waiting.pid}/status")
    while "State:\tD" not in status.read_text():
        time.sleep(0.01)
    monkeypatch.setattr(looks, "_APART_SECONDS", 0.05)
    try:
        assert waiting.pid in {item["pid"] for item in looks.stuck()}
        monkeypatch.setattr(looks.os, "getppid", os.getpid)
        assert waiting.pid not in {item["pid"] for item in looks.stuck()}, "as if it were a look beside this one"
    finally:
        (tmp_path / "pipe").open("wb").close()
        waiting.wait()


def test_folders_are_tried_and_what_of_a_path_is_there_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks.folder(str(tmp_path / "none"), written=True)["there"] is False
    seen = looks.folder(str(tmp_path), written=True)
    assert (seen["there"], seen["problem"], list(tmp_path.iterdir())) == (True, None, [])
    assert 0 < seen["free"] <= seen["size"]
    assert "No such" in looks.folder("/proc/self/", written=True)["problem"], "where nothing can be made"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for setting in ("${XDG_DATA_HOME}/enroot", '"$XDG_DATA_HOME/enroot/$UID"'):
        assert looks._unpacked({"ENROOT_DATA_PATH": setting}) == str(tmp_path)
    assert looks._unpacked({}) == str(tmp_path)


def test_counters_of_ports_count_by_how_much_they_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = tmp_path / "sys/class/infiniband/mlx5_1/ports/1/counters"
    counters.mkdir(parents=True)
    (counters / "symbol_error").write_text("100")
    monkeypatch.setattr(looks, "ROOT", tmp_path)
    monkeypatch.setattr(looks.time, "sleep", lambda seconds: (counters / "symbol_error").write_text("107"))
    (port,) = looks.ports()
    assert {name: count for name, count in port["errors"].items() if count} == {"symbol_error": 7}


class Steps:
    """Nodes that are held: what each step says."""

    nodes = ("n1", "n2", "n3")

    def __init__(self, *answers: list[str], dead: Sequence[str] = ()) -> None:
        self.answers, self.dead, self.asked = list(answers), dead, list[Sequence[str]]()

    def run(self, argv: Sequence[str], seconds: float, *, inside: Any = None, nodes: Sequence[str] = ()) -> Answer:
        self.asked.append(nodes)
        lines = [line for node in self.answers.pop(0) for line in frames(node, {"looks": {}})]
        return Answer(0, "\n".join(lines).encode())

    def unreached(self, answer: Answer) -> Sequence[str]:
        return self.dead


def test_nodes_that_lost_their_step_with_that_of_a_dead_one_are_asked_once_more() -> None:
    held: Any = Steps(["n1"], ["n3"], dead=["n2"])
    assert sorted(said_by(held, ["x"], 1.0)[1]) == ["n1", "n3"]
    assert held.asked == [(), ["n3"]]
    held = Steps(["n1"], dead=["n2"])
    assert sorted(said_by(held, ["x"], 1.0, nodes=["n1", "n2"])[1]) == ["n1"]
    assert held.asked == [["n1", "n2"]], "nobody is left to ask"


def test_what_a_plan_needs_is_found_in_it() -> None:
    usual = plan_of(*next(documented_rows()))
    found = needs_of(usual)
    assert (found.gpu_type, found.gpus_per_node, found.nodes) == (usual.gpu_type, usual.gpus_per_node, usual.nodes)
    assert (found.dispatcher, found.image) == ("", usual.image)
    assert (found.device, found.slurm, found.mounts) == (usual.device, usual.slurm, usual.mounts)
    assert found.env == {name: item.value for name, item in usual.env.items()}
    assert {"installation", "workload", "/tmp"} <= set(found.folders)
    beyond = function_plan(MODEL_SIZE="deepseek_v3", DTYPE="fp8", GPU_TYPE="h100", JOB_TOTAL_GPUS="1024")
    assert (beyond.ep, needs_of(beyond).dispatcher) == (64, "hybridep")
    assert needs_of(msgspec.structs.replace(beyond, ep=8)).dispatcher == "", "experts in one NVLink domain"
    rack = function_plan(MODEL_SIZE="deepseek_v3", DTYPE="fp8", GPU_TYPE="gb300", JOB_TOTAL_GPUS="256")
    assert (rack.ep, needs_of(rack).dispatcher) == (32, ""), "the same: 72 GPUs are joined there"


OLD = ("evidence/ask", "evidence/gpus", "evidence/machine", "health/__main__", "health/children", "health/looks")
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
