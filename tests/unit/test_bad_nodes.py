"""Nodes that runs have shown bad: which they are, for how long, and that the next jobs avoid them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.base.errors import EnvironmentLacks, RequestError
from llmb_common.base.hostlist import expand
from llmb_common.causes.answer import Cause, Diagnosis
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.finding import Attempt
from llmb_common.runs.record import RunRecord, load_record, update_record
from llmb_common.submission import bad_nodes, excluded_nodes
from llmb_common.submission.bad_nodes import BadNode, keep_off, nodes_to_leave_out, shown_bad
from llmb_common.submission.excluded_nodes import exclude_nodes, include_nodes
from llmb_common.submission.jobs import JobToSubmit, Options
from llmb_common.submission.many import submit_many
from llmb_common.submission.rounds import digest_of
from llmb_common.submission.single import submit
from llmb_run.campaigns.campaign import Arm, Campaign
from llmb_run.campaigns.conduct import Conduct, Due, Runs
from llmb_run.starting.submitting import on_different_nodes
from support.cli import Cli
from support.fake_slurm import FakeSlurm
from support.gpu_nodes import smi_answer, snapshot, write_node
from support.run_site import RECIPE, RunSite, with_small_code
from support.runs import make_run, steady_log
from support.texts import Texts

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
NO_LIBRARY = "OSError: libcudnn.so.9: cannot open shared object file: No such file or directory"
ONE_NODE = {"GPU_TYPE": "h100", "MODEL_SIZE": "8b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "8"}
TWO_NODES = {**ONE_NODE, "JOB_TOTAL_GPUS": "16"}


def failed(install: Path, *lines: tuple[str, int, str], **more: Any) -> RunRecord:
    """A run of whose ranks, on so many hosts, some have said something."""
    record = make_run(install, **{"state": "FAILED", **more})
    nodes = "n2" if record.plan.nodes == 1 else f"n[1-{record.plan.nodes}]"
    record.paths.events.write_text(json.dumps({"event": "start", "job_id": "101", "nodes": nodes}) + "\n")
    record.paths.log.write_text("".join(f"{host}: [rank{rank}]: {text}\n" for host, rank, text in lines))
    return record


def shown(record: RunRecord) -> list[tuple[str, str]]:
    return [(item.node, item.kind) for item in shown_bad(record)]


@pytest.mark.parametrize(
    ("lines", "more", "found"),
    [
        ([("n2", 2, ECC)], {}, [("n2", "ecc")]),
        ([("n2", 2, ECC)], {"variables": ONE_NODE}, [("n2", "ecc")]),
        ([("n2", 2, NO_LIBRARY)], {}, [("n2", "library-missing")]),
        ([("n2", 2, NO_LIBRARY), ("n3", 3, NO_LIBRARY)], {}, []),
        ([("n2", 2, "torch.OutOfMemoryError: CUDA out of memory.")], {}, []),
        ([("n2", 2, "RuntimeError: No CUDA GPUs are available")], {}, [("n2", "no-gpu")]),
        ([("n2", 2, "RuntimeError: No CUDA GPUs are available")], {"variables": ONE_NODE}, []),
        ([("n2", 2, "RuntimeError: No CUDA GPUs are available")], {"variables": TWO_NODES}, [("n2", "no-gpu")]),
        ([("n2", 2, ECC)], {"state": "RUNNING"}, []),
        ([("n2", 2, ECC)], {"state": "COMPLETED"}, []),
        ([("n2", 2, ECC)], {"state": "TIMEOUT"}, []),
        ([("n2", 2, ECC)], {"variables": {**ONE_NODE, "CLUSTER_TYPE": "local"}}, []),
    ],
    ids=[
        "its memory",
        "a job of one node",
        "its files",
        "the files of all",
        "the run",
        "its GPUs",
        "the job's variables, perhaps",
        "its GPUs, as the other node has no such line",
        "still running",
        "it has survived",
        "its time was over",
        "this machine",
    ],
)
def test_a_node_is_bad_by_what_began_a_failure(
    tmp_path: Path, lines: Sequence[tuple[str, int, str]], more: Mapping[str, Any], found: list[tuple[str, str]]
) -> None:
    assert shown(failed(tmp_path, *lines, **more)) == found


def next_command(cli: Cli) -> str:
    command: str = cli("results", "--json").data["next"]["command"]
    return command


def test_a_bad_node_is_what_results_and_report_do_next(cli: Cli) -> None:
    """Before all that is to be done for a configuration, a pass too, until it is excluded or put back."""
    for milliseconds in (5000, 5010, 5020):
        make_run(cli.install, log=steady_log(milliseconds), variables=TWO_NODES)
    record = failed(cli.install, ("n2", 2, ECC), variables=TWO_NODES)
    command = next_command(cli)
    assert command.startswith("llmb-run exclude add n2 --days 7 --reason ")
    assert record.paths.run_id in command, "where to look"
    assert command in cli("results").out
    answer = cli("report", "--json").data["report"]["answer"]
    assert answer["command"] == command
    assert answer["todo"].startswith("Take n2 out: ")
    assert cli("exclude", "add", "n2", "--reason", "its memory").status == 0
    assert "exclude" not in next_command(cli)
    assert cli("exclude", "remove", "n2").status == 0
    assert "exclude" not in next_command(cli), "whoever put it back has looked at it"


@pytest.mark.parametrize(("host", "node"), [("n2.example.com", ["n2"]), ("n9", [])])
def test_a_bad_node_goes_by_the_name_that_the_scheduler_knows(tmp_path: Path, host: str, node: list[str]) -> None:
    """Slurm refuses a job that is to avoid a node of any other name."""
    assert [name for name, _ in shown(failed(tmp_path, (host, 2, ECC), variables=TWO_NODES))] == node


def test_a_rank_that_never_came_speaks_against_no_node() -> None:
    """Its program may be why, also where ``why`` offers to keep its node out."""
    about = {"what": "2 ranks never came", "cause": "The others waited.", "remedy": "", "node": "n2", "keep_out": True}
    hang = Cause(kind="hang", fault="run", sure="likely", **about)  # type: ignore[arg-type]
    assert Diagnosis(cause=hang, summary="").bad_node is None
    launch = Cause(kind="launch", fault="node", sure="likely", **about)  # type: ignore[arg-type]
    assert Diagnosis(cause=launch, summary="").bad_node == "n2"


def test_memory_errors_that_a_node_has_counted_speak_against_it(tmp_path: Path) -> None:
    """Those of the run, and only where it has failed."""
    before, after = snapshot(1000.0, smi_answer(changes={3: {"uncorrectable": "1"}})), {"uncorrectable": "2"}
    for state, found in (("FAILED", [("n2", "ecc")]), ("COMPLETED", [])):
        record = failed(tmp_path, ("n1", 1, "ValueError: nonsense"), state=state, variables=TWO_NODES)
        write_node(record.paths.folder, "n1", before=before, after=before)
        write_node(record.paths.folder, "n2", before=before, after=snapshot(2000.0, smi_answer(changes={3: after})))
        assert shown(record) == found


def test_a_node_that_failed_under_an_earlier_start_is_bad_whatever_came_of_the_run(tmp_path: Path) -> None:
    record = make_run(tmp_path)
    ends = [Attempt("NODE_FAIL", "n[1-4]", "n[2-3]"), Attempt("", "n[1-4]", "n4"), Attempt("PREEMPTED", "n[1-4]", "")]
    attempts = [msgspec.to_builtins(item) for item in ends]
    record = replace(record, manifest={**record.manifest, "attempts": attempts})
    assert shown(record) == [("n2", "node-failed"), ("n3", "node-failed")], "n4 is out of service, who knows why"


DAY = 86400.0
NOW = 100 * DAY


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [NOW]
    for module in (bad_nodes, excluded_nodes):
        monkeypatch.setattr(module, "time", type("Clock", (), {"time": staticmethod(lambda: now[0])}))
    return now


def bad(node: str, kind: str = "ecc", *, certain: bool = True, ago: float = 1.0, run: str = "r1") -> BadNode:
    return BadNode(node, run, kind, "of its own", certain, NOW - ago)


def left_out(install: Path, *items: BadNode) -> list[str]:
    return [item.node for item in nodes_to_leave_out(items, install)]


def test_the_last_word_about_each_node_counts(tmp_path: Path, clock: list[float]) -> None:
    found = nodes_to_leave_out([bad("n2", run="new"), bad("n2", run="old", ago=60), bad("n1")], tmp_path)
    assert [(item.node, item.run_id) for item in found] == [("n1", "r1"), ("n2", "new")]


def test_what_other_nodes_say_too_is_no_nodes_fault(tmp_path: Path, clock: list[float]) -> None:
    """Unless it is certain: two nodes may have broken parts."""
    mounts = [bad(node, "mount", certain=False) for node in ("n1", "n2")]
    assert left_out(tmp_path, mounts[0], bad("n3")) == ["n1", "n3"]
    assert left_out(tmp_path, mounts[0], mounts[0]) == ["n1"]
    assert left_out(tmp_path, *mounts, bad("n3"), bad("n4")) == ["n3", "n4"]


def test_a_node_is_left_out_for_a_week(tmp_path: Path, clock: list[float]) -> None:
    assert left_out(tmp_path, bad("n1", ago=7 * DAY - 1), bad("n2", ago=7 * DAY + 1)) == ["n1"]


def test_a_node_that_was_put_back_is_used_until_it_fails_again(tmp_path: Path, clock: list[float]) -> None:
    exclude_nodes(tmp_path, "n1", "fan")
    assert include_nodes(tmp_path, "n[1-2]") == ["n1"], "only that one was on the list"
    exclude_nodes(tmp_path, "n9", "another change of the list")
    assert left_out(tmp_path, bad("n1"), bad("n2"), bad("n3")) == ["n3"]
    assert left_out(tmp_path, bad("n2", ago=-60)) == ["n2"], "a minute later"


def test_what_was_put_back_is_forgotten_with_what_runs_have_shown(tmp_path: Path, clock: list[float]) -> None:
    include_nodes(tmp_path, "n1")
    clock[0] += 7 * DAY + 1
    exclude_nodes(tmp_path, "n2", "fan")
    assert "n1" not in (tmp_path / ".llmb" / "exclude.json").read_text()


# Jobs that avoid them


@pytest.fixture
def site(tmp_path: Path, fake: FakeSlurm) -> RunSite:
    return RunSite(tmp_path, "slurm")


def nodes_are(fake: FakeSlurm, states: str) -> None:
    """What sinfo says: ``idle down idle`` of n1, n2, n3."""
    rows = [f"n{number}|{state}|batch*|none" for number, state in enumerate(states.split(), 1)]
    (fake.folder / "nodes").write_text("\n".join(rows) + "\n")


def job(site: RunSite, nodes: int = 1, **changes: str) -> JobToSubmit:
    plan = site.plan(**{"JOB_TOTAL_GPUS": str(nodes), "GPUS_PER_NODE": "1", **changes})
    return JobToSubmit(plan, RECIPE, Options(exclude="n7"))


def test_jobs_avoid_bad_nodes_beside_all_others(site: RunSite, fake: FakeSlurm) -> None:
    nodes_are(fake, "idle idle idle")
    exclude_nodes(site.install, "n9", "fan")
    submit_many(keep_off([job(site)], [bad("n2")]))
    assert "--exclude=n[2,7,9]" in fake.jobs()[0]["options"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("states", "bad_nodes", "enough"),
    [
        ("idle idle idle", ["n3"], True),
        ("idle allocated idle", ["n3"], True),
        ("idle idle", ["n2"], False),
        ("idle down idle", ["n3"], False),
        ("idle idle drained", ["n3"], True),
        ("idle drained idle", ["n3"], False),
        ("idle fail idle", ["n3"], False),
        ("idle maint idle", ["n3"], False),
        ("idle unknown idle", ["n3"], False),
    ],
)
def test_where_too_few_nodes_are_left_that_is_said_before_the_job_waits_for_ever(
    site: RunSite, fake: FakeSlurm, states: str, bad_nodes: list[str], enough: bool
) -> None:
    nodes_are(fake, states)
    jobs, out = [job(site, 2)], [bad(node) for node in bad_nodes]
    if enough:
        (kept,) = (dict(item.options.left_out) for item in keep_off(jobs, out))
        assert (list(kept), "r1" in kept["n3"]) == (["n3"], True)
        return
    with pytest.raises(EnvironmentLacks) as refused:
        keep_off(jobs, out)
    assert refused.value.code == "too-few-nodes"
    assert bad_nodes[0] in refused.value.remedy.split()


def test_nodes_that_are_excluded_otherwise_are_not_left_either(site: RunSite, fake: FakeSlurm, texts: Texts) -> None:
    nodes_are(fake, "idle idle idle idle")
    assert keep_off([job(site, 2)], [bad("n1")])
    exclude_nodes(site.install, "n2", "fan")
    assert keep_off([job(site, 2)], [bad("n1")])
    with texts.raises(EnvironmentLacks):
        keep_off([job(site, 2, ADDITIONAL_SLURM_PARAMS="exclude=n3")], [bad("n1")])


def test_a_job_that_names_the_bad_node_is_refused_with_how_to_put_it_back(
    site: RunSite, fake: FakeSlurm, texts: Texts
) -> None:
    nodes_are(fake, "idle")
    ((_, result),) = submit_many(keep_off([job(site, ADDITIONAL_SLURM_PARAMS="nodelist=n1")], [bad("n1")]))
    assert isinstance(result, RequestError)
    texts(result)


def test_repeats_on_different_nodes_share_those_that_are_left(site: RunSite, fake: FakeSlurm) -> None:
    nodes_are(fake, "idle idle idle")
    for item in on_different_nodes(keep_off([job(site)] * 3, [bad("n1")])):
        assert {"n2", "n3"}.difference(expand(item.options.exclude)), "a node is left for it"


class Once:
    """A campaign's strategy: after the run on record, two that share an allocation on the nodes of that run."""

    def due(self, arms: object, runs: Runs) -> list[Due]:
        if any(run.live for run in runs[1]):
            raise KeyboardInterrupt  # they are submitted, which is all that is asked for here
        return [Due(1, attempt, block=1, nodes="n1") for attempt in (2, 3)]


@pytest.mark.parametrize("more", [{}, {"ADDITIONAL_SLURM_PARAMS": "time=5"}], ids=["together", "apart"])
def test_runs_of_one_block_of_a_campaign_are_kept_off_the_bad_node(
    site: RunSite, fake: FakeSlurm, more: dict[str, str]
) -> None:
    """Where they follow each other, no longer on the nodes of the first."""
    nodes_are(fake, "idle idle")
    campaign = Campaign(site.install, "5eed", "ab")
    plan = site.plan(JOB_TOTAL_GPUS="1", **more)
    record = submit(plan, RECIPE, Options(key=campaign.key(1, 1)))
    record.paths.log.write_text(f"n1: [rank0]: {ECC}\n")
    update_record(record.paths.folder, lambda found: found.with_state("FAILED"))
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        Conduct(campaign, [Arm(plan, RECIPE, "A")], Once(), Workspace(site.install), said.append).to_the_end()
    assert len(fake.jobs()) == 2
    assert excluded(fake) == ["--exclude=n1"]
    assert any(text.startswith("n1 is left out ") for text in said)


def test_where_the_scheduler_does_not_say_which_nodes_there_are_it_will_say_so_itself(
    site: RunSite, fake: FakeSlurm
) -> None:
    nodes_are(fake, "")
    assert keep_off([job(site)], [bad("n1")])[0].options.left_out


def test_nodes_that_are_left_out_make_no_other_round(site: RunSite) -> None:
    plain = job(site)
    assert digest_of([plain]) == digest_of([replace(plain, options=replace(plain.options, left_out=(("n1", "x"),)))])


# Runs that are started again


@pytest.fixture
def cluster(site: RunSite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """llmb-run where a scripted Slurm says of no node that it is down."""
    with_small_code(site.install.parent, monkeypatch)
    return Cli(site.install, monkeypatch, capsys)


def ended(cluster: Cli, fake: FakeSlurm, node: str, said: str = ECC) -> str:
    """The id of a run that has failed on ``node``."""
    (fake.folder / "nodes").write_text("")
    done = cluster("single", "-w", "llama3.1", "-s", "smoke", "--scale", "1", "--json")
    (started,) = done.data["jobs"]
    folder = Path(started["folder"])
    record = load_record(folder)
    record.paths.events.write_text(json.dumps({"event": "start", "job_id": record.job_id, "nodes": node}) + "\n")
    record.paths.log.write_text(f"0: {said}\n")
    return update_record(folder, lambda found: found.with_state("FAILED")).paths.run_id


def excluded(fake: FakeSlurm, count: int = 1) -> list[str]:
    """What the last jobs avoid."""
    options = [job["options"] for job in fake.jobs()[-count:]]
    return [next((word for word in words if word.startswith("--exclude")), "") for words in options]  # type: ignore[attr-defined]


def test_a_retry_without_failed_nodes_avoids_those_that_its_runs_have_shown_bad(
    cluster: Cli, fake: FakeSlurm, texts: Texts
) -> None:
    runs = [ended(cluster, fake, "n1"), ended(cluster, fake, "n2")]
    done = cluster("retry", *runs, "--without-failed")
    assert (done.status, excluded(fake, 2)) == (0, ["--exclude=n[1-2]"] * 2), done.err
    texts(done.err, about="left out")


def test_any_other_retry_says_which_node_is_bad(cluster: Cli, fake: FakeSlurm, texts: Texts) -> None:
    run = ended(cluster, fake, "n1")
    done = cluster("retry", run)
    assert (done.status, excluded(fake)) == (0, [""])
    texts(done.err, about="bad")
    exact = cluster("retry", run, "--exact", "--anyway")
    assert (exact.status, excluded(fake), "n1" in exact.err) == (0, [""], False)


def test_a_node_that_was_put_back_is_not_avoided(cluster: Cli, fake: FakeSlurm, texts: Texts) -> None:
    run = ended(cluster, fake, "n1")
    removed = cluster("exclude", "remove", "n1", "--json")
    assert (removed.status, removed.data["removed"]) == (0, [])
    done = cluster("retry", run, "--without-failed")
    assert (done.status, len(fake.jobs())) == (2, 1)
    texts(done.err, about="names no bad node")


def test_a_retry_that_failed_of_its_own_fault_names_no_node(cluster: Cli, fake: FakeSlurm) -> None:
    run = ended(cluster, fake, "n1", "torch.OutOfMemoryError: CUDA out of memory.")
    done = cluster("retry", run)
    assert (done.status, "n1" in done.err) == (0, False)


def test_nodes_that_come_and_go_make_no_other_round(cluster: Cli, fake: FakeSlurm) -> None:
    """A retry of which two jobs were refused goes on, though another node is down by now."""
    run = ended(cluster, fake, "n1")
    fake.forget()
    words = ("retry", run, "--without-failed", "--repeats", "5")
    fake.say("sbatch", "limit")
    assert cluster(*words).status == 3
    fake.say("sbatch", "")
    (fake.folder / "nodes").write_text("n1\n")
    plain = cluster("retry", run, "--repeats", "5")
    assert (plain.status, len(fake.jobs())) == (0, 3 + 5), "without the option it is another command"
    done = cluster(*words)
    assert (done.status, len(fake.jobs())) == (0, 5 + 5), done.err
