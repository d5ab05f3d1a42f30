"""A job that checks its own nodes before it trains: what it decides, what it writes down, and what is made of that."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.base.errors import EnvironmentLacks, RequestError, SchedulerError
from llmb_common.causes.diagnosis import diagnose
from llmb_common.executors.slurm import look as slurm_look
from llmb_common.executors.slurm import own_jobs
from llmb_common.executors.slurm.query import JobInfo
from llmb_common.executors.slurm.submit import series_conflict
from llmb_common.health import own_nodes
from llmb_common.health.ask import Health
from llmb_common.health.own_nodes import END, MOST_RESTARTS, TRAIN, WITHOUT, Decision, decide
from llmb_common.health.verdicts import Fabric, NodeVerdict
from llmb_common.nodes.fabric.measurement import FabricMeasurement, NodeMeasurement
from llmb_common.nodes.fabric.verdict import FabricFinding, FabricVerdict
from llmb_common.nodes.findings import Remark
from llmb_common.planning.outlook import CHECK_SECONDS, MOST_CHECK_SECONDS, start_seconds
from llmb_common.planning.outlook_lines import time_lines
from llmb_common.planning.request.variables import VARIABLE_NAMES
from llmb_common.planning.time_limit import check_time_limit
from llmb_common.runs.finding import Attempt, Finding, end_of
from llmb_common.runs.record import UNFIT, RunRecord
from llmb_common.runs.timing.job_events import JobEvents, read_events
from llmb_common.submission.bad_nodes import BadNode, shown_bad
from llmb_common.submission.excluded_nodes import exclusions
from llmb_common.submission.observe import Observation
from llmb_run.following import LiveRun
from support.plans import plan, script_of
from support.runs import PUBLISHED, make_run
from support.texts import Texts

NODES = ("n1", "n2", "n3")
SLOW = "n2 slows down every partner"
EXPECTS = "all-reduce of all nodes: 210 GB/s, the site expects at least 300 GB/s"


def run(folder: Path, **variables: str) -> RunRecord:
    return make_run(folder, state="RUNNING", log="", variables={**PUBLISHED, "CHECK_FABRIC": "true", **variables})


def found(
    fails: Mapping[str, str] | None = None, *, of_all: str = "", missing: Mapping[str, str] | None = None
) -> Health:
    """Nodes of which some fail, each with the reason; ``missing`` ones gave no figure."""
    fails = {**(fails or {}), **(missing or {})}
    verdicts = [
        NodeVerdict(
            node, "fail" if node in fails else "ok", (Remark("x", "fail", fails[node]),) if node in fails else ()
        )
        for node in NODES
    ]
    measured = [NodeMeasurement(host=node, gpu=0, tflops=1.0) for node in NODES if node not in (missing or {})]
    findings = [FabricFinding(kind="below-expectation", level="fail", what=of_all)] if of_all else []
    return Health(
        verdicts,
        fabric=Fabric(
            FabricMeasurement(device="cuda", nodes=tuple(measured), missing=dict(missing or {})),
            FabricVerdict(level="ok", answer="ok: all alike", findings=tuple(findings)),
        ),
    )


@pytest.mark.parametrize(
    ("health", "restarts", "variables", "status", "unfit"),
    [
        (found(), 0, {}, TRAIN, []),
        (found({"n2": SLOW}), 0, {}, WITHOUT, ["n2"]),
        (found({"n2": SLOW}), MOST_RESTARTS - 1, {}, WITHOUT, ["n2"]),
        (found({"n2": SLOW}), MOST_RESTARTS, {}, END, ["n2"]),
        (found({"n2": SLOW}, of_all=EXPECTS), 0, {}, WITHOUT, ["n2"]),
        (found(of_all=EXPECTS), 0, {}, END, []),
        (found({"n2": SLOW}), 0, {"ADDITIONAL_SLURM_PARAMS": "nodelist=n[2-9]"}, END, ["n2"]),
        (found({"n2": SLOW}), 0, {"ADDITIONAL_SLURM_PARAMS": "nodelist=n[3-9]"}, WITHOUT, ["n2"]),
        (found(dict.fromkeys(NODES, "/tmp is full")), 0, {}, END, []),
        (found(dict.fromkeys(NODES[:2], "/tmp is full")), 0, {}, WITHOUT, ["n1", "n2"]),
        (found(missing=dict.fromkeys(NODES, "no torch")), 0, {}, TRAIN, []),
        (found(missing={"n3": "it stopped answering"}), 0, {}, WITHOUT, ["n3"]),
        (Health([NodeVerdict(node, "ok") for node in NODES]), 0, {}, TRAIN, []),
    ],
    ids=[
        "all are fit",
        "a slow node",
        "again",
        "not for ever",
        "the node is why all are slow",
        "all are slow",
        "asked for by name",
        "others are asked for by name",
        "a fault that all share",
        "a fault of two",
        "nothing could be measured",
        "a node that died",
        "no fabric",
    ],
)
def test_what_becomes_of_a_job(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    health: Health,
    restarts: int,
    variables: Mapping[str, str],
    status: int,
    unfit: Sequence[str],
) -> None:
    monkeypatch.setattr(own_nodes, "require_enough", lambda plan, bad: None)
    decision = decide(run(tmp_path, **variables), health, ["n8"] * restarts)
    assert (decision.status, sorted(decision.unfit)) == (status, list(unfit))


def test_where_too_few_nodes_are_left_the_job_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    """Queued again it would wait for ever."""
    asked: list[str] = []

    def refuse(plan: Any, bad: Sequence[BadNode]) -> None:
        asked.extend(item.node for item in bad)
        raise EnvironmentLacks("too few nodes are left")

    monkeypatch.setattr(own_nodes, "require_enough", refuse)
    decision = decide(run(tmp_path), found({"n2": SLOW}), ["n[8-9]"])
    assert (decision.status, list(decision.unfit), asked) == (END, ["n2"], ["n8", "n9", "n2"])
    texts(decision.why)


def checked(record: RunRecord, monkeypatch: pytest.MonkeyPatch, health: Health | Exception, restart: int = 0) -> int:
    """The exit status of the program, in a job that the nodes' look gives ``health``."""

    def check(*asked: Any) -> Health:
        assert asked[1:] == ("7", list(NODES))
        if isinstance(health, Exception):
            raise health
        return health

    monkeypatch.setattr(own_nodes, "check", check)
    monkeypatch.setattr(own_nodes, "require_enough", lambda plan, bad: None)
    monkeypatch.setattr(own_nodes.signal, "signal", lambda *words: None)
    return own_nodes.main([str(record.paths.folder), "7", str(restart), "n[1-3]"])


def test_what_was_found_is_on_record_and_other_jobs_keep_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run(tmp_path)
    assert checked(record, monkeypatch, found({"n2": SLOW}), restart=1) == WITHOUT
    said = capsys.readouterr()
    assert said.out == "n2\n", "for the script"
    kept = json.loads((record.paths.folder / "fabric-1.json").read_text())
    assert kept["unfit"] == {"n2": SLOW}
    assert kept["fabric"]["measurement"]["nodes"]
    assert [(item.node, item.reason) for item in exclusions(tmp_path)] == [("n2", f"health: {SLOW}")]
    record.paths.log.write_text(said.err)
    why = diagnose(record.with_state(UNFIT))
    assert why.cause is not None
    assert (why.cause.kind, why.cause.node, why.cause.keep_out) == ("unfit", "n2", True)
    assert SLOW in why.cause.line


def test_it_counts_how_often_the_job_has_queued_itself_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that ended otherwise, such as a preempted one, is not one of these."""
    record = run(tmp_path)
    starts = [[START, UNFIT_EVENT], [START], [START, UNFIT_EVENT]]
    say(record, *(event for start in starts for event in start), START, CHECK)
    assert checked(record, monkeypatch, found({"n2": SLOW})) == END
    say(record, *(event for start in starts[:2] for event in start), START, CHECK)
    assert checked(record, monkeypatch, found({"n2": SLOW})) == WITHOUT


def test_what_cannot_be_asked_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], texts: Texts
) -> None:
    record = run(tmp_path)
    status = checked(record, monkeypatch, SchedulerError("no node answered"))
    assert status not in (TRAIN, WITHOUT, END)
    texts(capsys.readouterr().err)
    assert not exclusions(tmp_path)


def test_where_nothing_can_be_decided_the_job_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run(tmp_path)

    def unreadable(*asked: Any) -> Any:
        raise RequestError("the file with nodes cannot be read")

    monkeypatch.setattr(own_nodes, "decide", unreadable)
    assert checked(record, monkeypatch, found({"n2": SLOW})) == 1


def test_where_the_fabric_cannot_be_measured_the_look_at_the_nodes_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*asked: Any) -> Health:
        raise SchedulerError("the measuring step ended on all nodes")

    looked_at = Health(found({"n2": SLOW}).verdicts)
    held: list[Any] = []
    monkeypatch.setattr(own_nodes, "check_held_nodes", lambda *asked: held.append(asked[0]) or looked_at)
    monkeypatch.setattr(own_nodes, "with_fabric", measure)
    assert own_nodes.check(run(tmp_path), "7", NODES).failed == looked_at.failed
    assert (held[0].job_id, held[0].nodes) == ("7", NODES)


def test_a_full_disk_keeps_no_job_from_being_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run(tmp_path)
    (record.paths.folder / "fabric-0.json").mkdir()
    assert checked(record, monkeypatch, found({"n2": SLOW})) == WITHOUT


def test_the_check_is_planned_and_its_time_counts() -> None:
    text = "GPU_TYPE=gb200 JOB_TOTAL_GPUS=128 TIME_LIMIT=20"
    without, checks = plan(text), plan(f"{text} CHECK_FABRIC=true")
    assert start_seconds(checks) == start_seconds(without) + CHECK_SECONDS
    assert "check_nodes 600 /install/venvs/llmb/bin/python\n" in script_of(checks)
    assert "check_nodes" not in script_of(without)
    assert any("check" in line for line in time_lines(checks))
    assert f"check_nodes {MOST_CHECK_SECONDS} " in script_of(plan(text, TIME_LIMIT="8h", CHECK_FABRIC="true"))
    assert series_conflict([without, without]) != series_conflict([checks, checks]), (
        "no series: which run would the nodes be checked for?"
    )
    short = plan("GPU_TYPE=gb200 JOB_TOTAL_GPUS=128 TIME_LIMIT=10")
    assert not check_time_limit(short, VARIABLE_NAMES)
    assert check_time_limit(plan("GPU_TYPE=gb200 JOB_TOTAL_GPUS=128 TIME_LIMIT=10 CHECK_FABRIC=true"), VARIABLE_NAMES)


def test_on_one_machine_there_is_nothing_between_nodes() -> None:
    local = plan("laptop MODEL_SIZE=smoke JOB_TOTAL_GPUS=1 CHECK_FABRIC=true")
    assert not local.check_fabric
    assert any("CHECK_FABRIC" in text for text in local.preflight.warnings)


START = {"event": "start", "time": 210.0, "nodes": "n[1-3]"}
CHECK = {"event": "check", "time": 211.0, "nodes": "n[1-3]"}
UNFIT_EVENT = {"event": "unfit", "time": 290.0, "nodes": "n2", "exit_code": 10}
OVER = {"event": "end", "time": 291.0, "nodes": "n[1-3]", "exit_code": 69}
AGAIN = {"event": "start", "time": 1210.0, "nodes": "n[1,3-4]", "restart": 1}


def say(record: RunRecord, *events: dict[str, object]) -> None:
    record.paths.events.write_text("".join(json.dumps({"job_id": "7", **event}) + "\n" for event in events))


def looked(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch, *states: tuple[str, float | None], ended: Sequence[JobInfo] = ()
) -> Any:
    """What is made of a run whose job the queue shows in a state, since a time."""
    name = record.job_name
    jobs = [JobInfo("7", name, state, 100.0, since, None, "", reason="") for state, since in states]
    monkeypatch.setattr(own_jobs, "query_queue", lambda which: jobs)
    monkeypatch.setattr(
        own_jobs, "query_accounting", lambda which, since: [msgspec.structs.replace(row, name=name) for row in ended]
    )
    monkeypatch.setattr(slurm_look, "unfit_nodes", lambda nodes: [])
    return slurm_look.poll_slurm([record])[record.paths.run_id]


def job_of(folder: Path) -> RunRecord:
    record = replace(run(folder), job_id="7")
    record.save()
    return record


def test_queued_again_it_says_which_node_was_unfit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = job_of(tmp_path)
    say(record, START, CHECK)
    assert read_events(record.paths.events).checking
    say(record, START, CHECK, UNFIT_EVENT, OVER)
    assert not read_events(record.paths.events).checking
    waiting = looked(record, monkeypatch, ("PENDING", None))
    attempt = Attempt(UNFIT, "n[1-3]", "n2", 210.0)
    assert (waiting.state, waiting.attempts) == ("PENDING", (attempt,))
    say(record, START, CHECK, UNFIT_EVENT, OVER, AGAIN)
    started = looked(record, monkeypatch, ("RUNNING", 1205.0))
    assert (started.state, started.attempts) == ("RUNNING", (attempt,))
    assert [(item.node, item.kind, item.certain) for item in shown_bad(started.apply(record))] == [
        ("n2", "unfit", True)
    ]


def test_accounting_calls_that_start_queued_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = job_of(tmp_path)
    say(record, START, CHECK, UNFIT_EVENT, OVER, AGAIN)
    row = JobInfo("7", "", "REQUEUED", 100.0, 209.0, 292.0, "n[1-3]", exit_code="0:0")
    now = looked(record, monkeypatch, ("RUNNING", 1205.0), ended=[row])
    assert now.attempts == (Attempt(UNFIT, "n[1-3]", "n2", 209.0, 292.0),)


def test_who_watches_is_told_that_the_nodes_are_being_checked(tmp_path: Path) -> None:
    run = LiveRun(Observation(job_of(tmp_path), Finding(nodes="n[1-3]")))
    said = []
    for events in ((START, CHECK), (START, CHECK, {"event": "checked", "exit_code": 1})):
        say(run.record, *events)
        said.append(run.remark())
    assert said == ["n[1-3]: being checked", "n[1-3]"]


@pytest.mark.parametrize(("nodes", "bad"), [("n[2-3]", ["n2", "n3"]), ("", [])])
def test_a_job_that_is_not_queued_again_has_a_state_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str, bad: list[str]
) -> None:
    record = job_of(tmp_path)
    say(record, START, CHECK, {**UNFIT_EVENT, "nodes": nodes, "exit_code": END}, OVER)
    seen = looked(record, monkeypatch, ("FAILED", 205.0))
    assert (seen.state, end_of(read_events(record.paths.events), cancelled=False).state) == (UNFIT, UNFIT)
    assert end_of(JobEvents(problem="no node"), cancelled=False).detail == "no node", "without a code that there is not"
    ended = record.with_state(UNFIT, seen.detail)
    assert [(item.node, item.kind) for item in shown_bad(ended)] == [(node, "unfit") for node in bad]
    assert looked(record, monkeypatch, ("CANCELLED", 205.0)).state == "CANCELLED", "while it waited"
    assert looked(record, monkeypatch, ("FAILED", 410.0)).state == "FAILED", "its next start, which left no record"
    why = diagnose(ended)
    assert why.cause is not None
    assert (why.cause.kind, why.of_machine) == ("unfit", True)


def test_a_decision_without_nodes_prints_an_empty_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run(tmp_path)
    monkeypatch.setattr(
        own_nodes, "decide", lambda *asked: Decision(END, {}, f"the fabric as a whole fails: {EXPECTS}")
    )
    assert checked(record, monkeypatch, found()) == END
    said = capsys.readouterr()
    assert said.out == "\n"
    record.paths.log.write_text(said.err)
    why = diagnose(record)
    assert why.cause is not None
    assert (why.cause.kind, why.cause.node) == ("unfit", None)
