"""The life of a run under llmb-run without Slurm: start, jobs, show, wait, cancel, retry, repeat, and task files."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from llmb_common.base.errors import RecordError
from llmb_common.base.hostlist import expand
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission.observe import Observation
from llmb_run.actions import jobs
from llmb_run.following import LiveRun
from llmb_run.terminal import duration_text, local_time_text
from support.cli import Cli
from support.fake_slurm import FakeSlurm
from support.run_site import RunSite, with_small_code
from support.runs import make_run, steady_log
from support.texts import Texts

SMOKE = ("single", "-w", "llama3.1", "-s", "smoke", "--scale", "1")


def started(cli: Cli, *arguments: str, **variables: str) -> str:
    """Start a job and give its run id."""
    done = cli(*SMOKE, "--json", *arguments, **variables)
    assert done.status == 0, done.err
    run_id: str = done.data["jobs"][0]["run_id"]
    return run_id


def state_of(cli: Cli, run: str) -> str:
    (line,) = cli("jobs", run, "--json").data["runs"]
    state: str = line["state"]
    return state


def wait_for_state(cli: Cli, run: str, state: str) -> None:
    deadline = time.monotonic() + 150
    while state_of(cli, run) != state:
        assert time.monotonic() < deadline, state_of(cli, run)
        time.sleep(0.1)


def test_a_job_from_start_to_result(here: Cli, texts: Texts) -> None:
    done = here(*SMOKE, "--env", "STANDIN_STEPS=50")
    assert done.status == 0, done.err
    line, result = done.out.splitlines()
    run_id, state, name = line.split()
    assert state == "COMPLETED"
    assert " s a step, " in result
    assert f"/log-{name.rpartition('_')[0]}.out" in done.err
    jobs = here("jobs").out.splitlines()
    assert jobs[0].split() == ["run", "state", "since", "GPUs", "s/step", "job", "what"]
    assert jobs[1].split()[:2] == [run_id, "COMPLETED"]
    shown = here("show", run_id).out
    texts(shown, about="smoke", mask=r"\d+\.\d+ s a step, \S+ tokens/s")
    assert here("show", run_id, "--script").out.startswith("#!/bin/bash")
    assert here("results", run_id).status == 0
    assert here("show").out == shown  # the newest run


def test_a_sweep_that_was_followed_ends_with_its_ranking_and_names_its_runs_meanwhile(here: Cli, texts: Texts) -> None:
    words = ("--max-steps", "20", "--env", "STANDIN_STEPS=job", "--vary", "STANDIN_MS=200,100")
    done = here("sweep", *SMOKE[1:], *words, "--repeats", "2")
    assert done.status == 0, done.err
    runs = [line["run_id"] for line in here("jobs", "--json").data["runs"]]
    assert len(runs) == 4
    for run in runs:
        assert f"{run}  STANDIN_MS=" in done.err
        assert re.search(rf"{run}  \w+ (1|20) \w+ 20\b", done.err)
    _, ranking = done.out.split("\n\n")[:2]
    best = " ".join(ranking.splitlines()[:2])
    assert "STANDIN_MS=100," in best
    texts(best)


def test_a_job_that_fails(here: Cli, texts: Texts) -> None:
    done = here(*SMOKE, "--env", "STANDIN_EXIT=7")
    assert done.status == 1
    texts(done.err, about="error: ", mask="the last line is .*")
    (line,) = here("jobs", "--json", "--state", "failed").data["runs"]
    assert (line["state"], re.findall(r"\d+", line["detail"])) == ("FAILED", ["7"])
    texts(here("show", line["run_id"]).out, about="exit code")
    assert here("wait", line["run_id"]).status == 1


def test_a_detached_job_is_watched_waited_for_and_ended(here: Cli, texts: Texts) -> None:
    long = ("--env", "STANDIN_STEPS=1000", "--env", "STANDIN_SECONDS=0.2", "--detach")
    run = started(here, *long)
    wait_for_state(here, run, "RUNNING")
    assert [line["run_id"] for line in here("jobs", "--live", "--json").data["runs"]] == [run]
    timeout = here("wait", run, "--timeout", "1s")
    assert timeout.status == 4
    texts(timeout.err)
    assert here("jobs", "--live").out.splitlines()[1].split()[:2] == [run, "RUNNING"]
    alive = here("retry", run)
    assert alive.status == 2
    texts(alive.err)
    with here.patch.context() as patch:
        patch.setattr("llmb_run.actions.jobs.end_runs", lambda records: records)  # a job that takes its time to end
        still = here("cancel", run).out
    ended = here("cancel", run)
    assert ended.out.split()[:2] == [run, "CANCELLED"]
    again = here("cancel", run).out
    texts(again)
    assert again.split()[2:] != still.split()[2:], "which had not ended yet"
    assert here("wait", run).status == 1
    texts(here("watch").err)


def test_retry_takes_the_same_plan(here: Cli) -> None:
    run = started(here)
    done = here("retry", run, "--json")
    (again,) = done.data["jobs"]
    assert again["run_id"] != run
    records = [
        json.loads((Path(row["folder"]) / "run.json").read_text()) for row in here("jobs", "--json").data["runs"]
    ]
    assert len(records) == 2
    assert records[0]["plan"] == records[1]["plan"]


def test_where_nobody_watches_nodes_no_scheduler_is_asked_for_failed_ones(here: Cli, texts: Texts) -> None:
    done = here("retry", started(here), "--without-failed")
    assert done.status == 2
    texts(done.err)


def test_an_exact_retry_starts_the_same_script(here: Cli, texts: Texts) -> None:
    run = started(here)
    texts(here("retry", run, "--check").out)
    done = here("retry", run, "--exact", "--json")
    assert done.status == 0
    scripts = []
    for word in (run, done.data["jobs"][0]["run_id"]):
        name = here("show", word, "--json").data["record"]["name"]
        scripts.append(here("show", word, "--script").out.replace(name, "NAME").replace(word, "ID"))
    assert scripts[0] == scripts[1]


def test_the_log_of_a_run_that_is_seen_to_end_is_read_once(cli: Cli) -> None:
    ended = make_run(cli.install, state="RUNNING", log=steady_log(5740.0)).with_state("COMPLETED")
    read: list[Path] = []

    def last_step(log: Path) -> dict[str, float]:
        read.append(log)
        return {"step": 50, "step_seconds": 5.74}

    cli.patch.setattr(jobs, "observed_runs", lambda folders: [LiveRun(Observation(ended))])
    cli.patch.setattr(jobs, "_last_step", last_step)
    (line,) = cli("jobs", "--json").data["runs"]
    assert (line["state"], line["live"], line["step"]) == ("COMPLETED", False, 50)
    assert read == [ended.paths.log]


def test_json_has_the_last_step_of_a_run_that_has_ended_and_a_table_reads_no_log_for_it(cli: Cli) -> None:
    make_run(cli.install, log=steady_log(5741.5))
    (line,) = cli("jobs", "--json").data["runs"]
    assert (line["step"], line["step_seconds"]) == (50, 5.7415)
    cli.patch.setattr("llmb_run.actions.jobs.Progress", None)
    assert "5.74" in cli("jobs").out, "as results has it"


def tamper(here: Cli, run: str) -> None:
    """Give the run another script and another recipe than there are today."""
    (row,) = here("jobs", run, "--json").data["runs"]
    folder = Path(row["folder"])
    script = next(folder.glob("*.sbatch"))
    script.write_text(script.read_text().replace("OMP_NUM_THREADS=1", "OMP_NUM_THREADS=2"))
    record = json.loads((folder / "run.json").read_text())
    record["manifest"]["recipe_sha256"] = "0" * 64
    (folder / "run.json").write_text(json.dumps(record))


def test_an_exact_retry_starts_nothing_where_something_differs(here: Cli, texts: Texts) -> None:
    run = started(here)
    tamper(here, run)
    done = here("retry", run, "--exact")
    assert done.status == 1
    texts(done.err)
    assert "recipe.yaml" in done.err
    assert len(here("jobs", "--json").data["runs"]) == 1
    checked = here("retry", run, "--check", "--json")
    (found,) = checked.data["runs"]
    assert (checked.status, found["same"]) == (1, False)
    assert [difference["what"] for difference in found["differences"]] == ["batch script", "recipe.yaml"]
    anyway = here("retry", run, "--exact", "--anyway")
    assert anyway.status == 0
    texts(anyway.err, about="OMP_NUM_THREADS")
    assert len(here("jobs", "--json").data["runs"]) == 2


def test_a_run_made_with_another_supervisor_differs_in_that_alone(here: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    run = started(here)
    monkeypatch.setattr(
        "llmb_common.submission.supervisor.render_supervisor", lambda cluster_type: b"of a later release"
    )
    (found,) = here("retry", run, "--check", "--json").data["runs"]
    assert [difference["what"] for difference in found["differences"]] == ["supervisor.sh"]


def test_of_several_runs_each_is_compared_and_all_or_none_start(here: Cli, texts: Texts) -> None:
    same, other = started(here), started(here)
    tamper(here, other)
    checked = here("retry", same, other, "--check")
    assert checked.status == 1
    texts(checked.out)
    texts(checked.err)
    done = here("retry", same, other, "--exact", "--json")
    assert [(run["run_id"], run["same"]) for run in done.data["runs"]] == [(same, True), (other, False)]
    message = f"nothing was started: 1 of 2 runs would differ today: {other} (batch script, recipe.yaml)"
    assert (done.status, done.envelope["error"]["message"]) == (1, message)
    assert len(here("jobs", "--json").data["runs"]) == 2
    assert len(here("retry", same, other, "--exact", "--anyway", "--json").data["jobs"]) == 2


@pytest.mark.parametrize(
    "words", ["results", "report", "why", "show", "wait", "archive", "cancel", "retry", "compare {0}"]
)
def test_a_word_too_long_for_a_file_names_no_run(words: str, cli: Cli) -> None:
    word = "x" * 300
    done = cli(*words.format(word).split(), word, "--json")
    assert (done.status, json.loads(done.out)["error"]["code"]) == (2, "no-run")


def test_a_check_of_a_live_run_only_compares(here: Cli) -> None:
    run = started(here, "--env", "STANDIN_STEPS=1000", "--env", "STANDIN_SECONDS=0.2", "--detach")
    assert here("retry", run, "--check").status == 0
    assert here("retry", run).status == 2
    assert len(here("jobs", "--json").data["runs"]) == 1
    here("cancel", run)


def test_what_would_change_a_run_is_not_exact(cli: Cli, texts: Texts) -> None:
    run = make_run(cli.install).paths.run_id
    said = []
    for option in ("--exact", "--check"):
        for words in (["--exclude", "n1"], ["--spread", "2"], ["--without-failed"], ["--resume"]):
            done = cli("retry", run, option, *words)
            assert done.status == 2
            said.append(done.err)
    texts("".join(said))


@pytest.mark.parametrize("words", [["--repeats", "2"], ["--anyway"], ["--exact", "--anyway"]], ids=str)
def test_what_says_how_to_start_is_refused_where_nothing_starts(cli: Cli, texts: Texts, words: list[str]) -> None:
    done = cli("retry", make_run(cli.install).paths.run_id, "--check", *words)
    assert done.status == 2
    texts(done.err)


def test_only_what_exact_finds_is_overridden(cli: Cli, texts: Texts) -> None:
    done = cli("retry", make_run(cli.install).paths.run_id, "--anyway")
    assert done.status == 2
    texts(done.err)


def test_a_task_file_run_twice_starts_nothing_twice(here: Cli, tmp_path: Path, texts: Texts) -> None:
    tasks = tmp_path / "night.txt"
    tasks.write_text("pretrain_llama3.1_smoke:\n(bf16, 1, 2)\n")
    first = here("bulk", tasks)
    assert first.status == 0, first.err
    texts(first.out.split("\n\n")[1], about="2 runs: ")
    texts(first.err, about="jobs started")
    second = here("bulk", tasks)
    texts(second.err, about="jobs started")
    assert first.out.split() == second.out.split()
    tasks.write_text("pretrain_llama3.1_smoke:\n(bf16, 1, 3)\n")
    texts(here("bulk", tasks).err, about="jobs started")
    assert len(here("jobs", "--json").data["runs"]) == 3
    texts(here("bulk", tasks, "--again").err, about="jobs started")


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fake: FakeSlurm) -> Cli:
    """llmb-run on an installation with a scripted Slurm of four nodes, of which one is down."""
    with_small_code(tmp_path, monkeypatch)
    states = {"n1": "idle", "n2": "mixed", "n3": "idle", "n4": "down*"}
    rows = [f"{name}|{state}|batch*|none\n" for name, state in states.items()]
    (tmp_path / "fake" / "nodes").write_text("".join(rows))
    return Cli(RunSite(tmp_path, "slurm").install, monkeypatch, capsys)


TWICE = ("submit", *SMOKE[1:], "--repeats", "2")


def test_only_what_had_come_to_something_was_started_before(queue: Cli, fake: FakeSlurm, texts: Texts) -> None:
    """Runs on record whose jobs never came are started by the command that submits them."""
    fake.say("sbatch", "error")
    lost = queue(*TWICE)
    assert lost.status == 3
    texts(lost.err, about="jobs started")
    fake.say("sbatch", "")
    time.sleep(0.2)  # of the grace
    done = queue(*TWICE)
    assert done.status == 0, done.err
    texts(done.err, about="jobs started")
    assert [line.split()[1] for line in done.out.splitlines()] == ["Submitted"] * 2
    assert len(fake.jobs()) == 2


def test_links_that_were_submitted_before_one_was_refused_are_told_and_kept(
    queue: Cli, fake: FakeSlurm, texts: Texts
) -> None:
    fake.say("sbatch", "limit")  # the first three jobs are accepted
    chains = ("submit", *SMOKE[1:], "--repeats", "3", "--resume-chain", "2")
    some = queue(*chains)
    assert some.status == 3, some.err
    texts(some.err, about="limit")
    assert [line.split()[1] for line in some.out.splitlines()] == ["Submitted"] * 3
    assert len(fake.calls("sbatch")) == 4, "another chain of the same plan is not tried"
    fake.say("sbatch", "")
    rest = queue(*chains)
    assert rest.status == 0, rest.err
    texts(rest.err, about="already")
    assert len(fake.jobs()) == 6


def test_what_is_in_the_queue_already_is_not_shown_as_submitted(
    queue: Cli, fake: FakeSlurm, tmp_path: Path, texts: Texts
) -> None:
    tasks = tmp_path / "night.txt"
    tasks.write_text("pretrain_llama3.1_smoke:\n(bf16, 1, 2)\n")
    queue("bulk", tasks)
    tasks.write_text("pretrain_llama3.1_smoke:\n(bf16, 1, 3)\n")
    done = queue("bulk", tasks)
    assert [line.split()[1] for line in done.out.splitlines()] == ["Already", "Already", "Submitted"]
    texts(done.err, about="jobs started")


def avoided(fake: FakeSlurm) -> list[set[str]]:
    """The nodes that each job was kept from."""
    options = [word for call in fake.calls("sbatch") for word in call if word.startswith("--exclude=")]
    return [set(expand(word.partition("=")[2])) for word in options]


def test_repeats_are_spread_over_the_nodes_that_are_not_excluded(queue: Cli, fake: FakeSlurm) -> None:
    queue("exclude", "add", "n1", "--reason", "fan")
    done = queue(*TWICE, "--spread-nodes")
    assert done.status == 0, done.err
    assert sorted(map(sorted, avoided(fake))) == [["n1", "n2"], ["n1", "n3"]]


@pytest.mark.parametrize("words", [(), ("--exclude", "n4")])
def test_where_every_node_is_excluded_repeats_are_not_spread(
    queue: Cli, fake: FakeSlurm, words: tuple[str, ...], texts: Texts
) -> None:
    queue("exclude", "add", "n[1-3]" if words else "n[1-4]", "--reason", "fan")
    done = queue(*TWICE, "--spread-nodes", *words)
    assert (done.status, done.out) == (2, "")
    texts(done.err, about="exclude")
    assert fake.jobs() == []


def test_a_job_after_another_waits_for_it(here: Cli, texts: Texts) -> None:
    first = started(here, "--env", "STANDIN_SECONDS=0.3", "--detach")
    second = started(here, "--after", first)
    assert [state_of(here, run) for run in (first, second)] == ["COMPLETED", "COMPLETED"]
    unknown = here(*SMOKE, "--after", "nonsense")
    assert unknown.status == 2
    texts(unknown.err)


def test_jobs_speaks_of_others_only_where_there_are_some(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        make_run(cli.install, job_id=str(number))
    hints: list[str] = []
    monkeypatch.setattr("support.cli.next_lines", lambda text: hints.append(text) or [])
    for limit, others in (("2", True), ("3", False)):
        hints.clear()
        cli("jobs", "--limit", limit)
        assert any("--all" in hint for hint in hints) is others
    assert [len(cli("jobs", "--limit", limit, "--json").data["runs"]) for limit in ("2", "3", "4")] == [2, 3, 3]
    monkeypatch.setattr("llmb_run.options.JOBS_LISTED", 2)
    assert [len(cli("jobs", *words, "--json").data["runs"]) for words in ((), ("0", "1", "2"))] == [2, 3]


@pytest.mark.parametrize("command", ["jobs", "results"])
def test_a_limit_beyond_any_number_of_runs_is_refused(cli: Cli, texts: Texts, command: str) -> None:
    make_run(cli.install)
    assert len(cli(command, "--limit", "999999999", "--json").data["runs"]) == 1
    refused = cli(command, "--limit", str(2**63))
    assert refused.status == 2
    texts(refused.err)


def test_a_live_run_whose_folder_is_out_of_reach_is_listed_as_last_seen(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    runs = [make_run(cli.install, state="RUNNING", job_id=str(number)) for number in range(2)]
    assert len(cli("jobs", "--json").data["runs"]) == 2
    load = load_record

    def refuse(folder: Path, *content: bytes) -> RunRecord:
        if folder == runs[0].paths.folder:
            raise RecordError(f"cannot read {folder}/run.json: Permission denied")
        return load(folder, *content)

    monkeypatch.setattr("llmb_run.selecting.load_record", refuse)
    listed = cli("jobs", "--json")
    (line,) = [line for line in listed.data["runs"] if line["run_id"] == runs[0].paths.run_id]
    assert (line["state"], line["live"], len(listed.data["runs"])) == ("RUNNING", True, 2)
    texts(listed.err)
    assert cli("jobs").out.count("RUNNING") == 2
    followed: list[LiveRun] = []
    monkeypatch.setattr("llmb_run.actions.watch._follow_as_lines", followed.extend)
    cli("watch")
    assert [run.record.paths.run_id for run in followed] == [runs[1].paths.run_id]


def test_jobs_are_selected_by_words_and_options(cli: Cli, texts: Texts) -> None:
    runs = [
        make_run(cli.install, state=state, job_id=str(n)).paths.run_id
        for n, state in enumerate(("FAILED", "COMPLETED"))
    ]

    def found(*arguments: str) -> list[str]:
        return [line["run_id"] for line in cli("jobs", "--json", *arguments).data["runs"]]

    assert found() == runs[::-1]
    assert found("--limit", "1") == runs[1:]
    assert found("--state", "failed") == runs[:1]
    assert found("--live") == []
    assert found("--scale", "64") == []
    assert found("--where", "FP8_RECIPE=cs,mx") == runs[::-1]
    assert found("--where", "FP8_RECIPE=mx") == []
    assert found("--since", "1d", "-w", "llama3.1", "--dtype", "fp8", "-s", "405b") == runs[::-1]
    assert cli("jobs", "--since", "yesterday").status == 2
    texts(cli("jobs", "--live").err)
    nothing = cli("jobs", "zzzz")
    assert nothing.status == 2
    texts(nothing.err)


def test_no_run_yet(cli: Cli, texts: Texts) -> None:
    commands = (["jobs"], ["show"], ["results"], ["report"], ["archive"], ["results", cli.install], ["wait"])
    said = [cli(*words).err for words in (*commands, ["cancel", "--all"])]
    texts("".join(said))


def test_rebuild_counts_the_runs(cli: Cli, texts: Texts) -> None:
    for _ in range(3):
        make_run(cli.install, log=steady_log(1000))
    texts(cli("rebuild").out)
    assert cli("rebuild", "--json").data == {"runs": 3}


def test_nodes_are_excluded_with_a_reason_and_used_again(cli: Cli, texts: Texts) -> None:
    texts(cli("exclude", "list").err)
    assert cli("exclude", "add", "n[1-2]", "--reason", "ECC errors", "--days", "7").status == 0
    lines = cli("exclude", "list").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["n1", "n2"]
    assert lines[1].count("ECC errors") == 1
    nodes = cli("exclude", "list", "--json").data["nodes"]
    assert nodes[0]["expires"] - nodes[0]["added"] == pytest.approx(7 * 86400, abs=5)
    texts(cli("exclude", "remove", "n1").out)
    texts(cli("exclude", "remove", "n9").err)
    assert cli("exclude", "add", "n[1-", "--reason", "x").status == 2
    assert cli("exclude", "add", "n1").status == 2  # no reason


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((-3, "0 s"), (59, "59 s"), (99.4, "99 s"), (100, "1 min"), (119, "1 min"), (120, "2 min"), (5999, "99 min")),
        *(
            (6000, "1 h 40 min"),
            (11100, "3 h 05 min"),
            (172799, "47 h 59 min"),
            (172800, "2 d 0 h"),
            (176400, "2 d 1 h"),
        ),
    ],
)
def test_spans_of_time(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_the_date_is_left_out_today() -> None:
    assert len(local_time_text(time.time())) == 8
    assert len(local_time_text(time.time() - 2 * 86400)) == 19


def test_live_runs_are_those_that_live_now(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index has both as waiting; one has been cancelled since, with scancel."""
    fake = FakeSlurm(tmp_path / "fake")
    monkeypatch.setenv("PATH", fake.path())
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setenv("LLMB_INSTALL", str(RunSite(site, "slurm").install))
    run_ids = [started(cli), started(cli)]
    fake.change("1", state="CANCELLED")
    assert [line["run_id"] for line in cli("jobs", "--live", "--json").data["runs"]] == run_ids[1:]


def test_the_script_in_an_envelope(cli: Cli) -> None:
    record = make_run(cli.install)
    data = cli("show", record.paths.run_id, "--script", "--json").data
    assert data["script"] == cli("show", record.paths.run_id, "--script").out == record.paths.script.read_text()
    assert data["path"] == str(record.paths.script)
