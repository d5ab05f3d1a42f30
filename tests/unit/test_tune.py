"""A tuning from its space to its winner, with jobs that are over at once."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from llmb_common.results.search import Trial, _proofs
from llmb_common.results.steps import StepTime
from llmb_run.campaigns import conduct
from llmb_run.main import main
from support import instant
from support.campaigns import Site
from support.cli import Cli, Done
from support.crashes import run_and_crash

JOB = ("tune", "-w", "pretrain_llama3.1", "-s", "smoke", "--dtype", "bf16", "--scale", "1")
TUNE = (*JOB, "--env", "STEP_MS=100", "--only", "--vary", "STEP_MS=120,100,91,97")
"""Configurations 1 to 4: the base, 120, 91 and 97 milliseconds a step."""


MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def titles(done: Done) -> dict[str, Any]:
    return {item["title"]: item for item in done.data["arms"]}


def test_the_fastest_is_found_proved_and_can_become_a_baseline(site: Site) -> None:
    done = site(*TUNE, "--json")
    data = done.data
    assert (done.status, data["ended"], data["winner"]["changes"]) == (0, "found", {"STEP_MS": "91"}), done.err
    assert data["gain_low"] < data["gain"] < data["gain_high"]
    assert data["gain"] == pytest.approx(100 / 91 - 1, rel=0.05)
    assert data["winner"]["command"].endswith(" --env STEP_MS=91")
    assert [trial["full"] for trial in data["trials"]].count(True) == 6
    keys = [key.partition(":")[0] for _, key in instant.accepted()]
    assert keys == ["tune"] * len(data["trials"])
    assert data["trials"][0]["configuration"] == "base"

    again = site(*TUNE)
    assert (again.status, len(instant.accepted())) == (0, len(keys))
    assert "this campaign is over" in again.err
    assert data["winner"]["command"] in again.out
    assert data["next"].startswith("next: llmb-run baseline set ")

    assert data["baseline"] is None
    assert "baseline set: " in site(*TUNE, "--set-baseline").out
    assert site(*shlex.split(data["winner"]["command"])[1:]).status == 0
    later = site("results", "--last", "1", "--json").data["runs"][0]
    assert (later["reference"]["kind"], later["reference"]["source"][:36]) == (
        "baseline",
        "this site's baseline of 3 runs, 2026",
    )
    made = site(*data["next"].split()[2:], "--json")
    assert made.status == 0, made.out
    assert len(made.data["baselines"][0]["runs"]) == 3


def test_the_plan_is_shown_before_anything_starts(site: Site) -> None:
    done = site(*TUNE, "--dry-run", "--json")
    assert (done.status, instant.accepted(), done.data["space"]["legal"]) == (0, [], 4)
    assert not (site.install / "campaigns").exists()
    text = site(*TUNE, "--dry-run", "--budget", "3").out
    assert "settings: STEP_MS 120/100/91/97" in text
    assert "budget 3 GPU-hours" in text
    text = site(*JOB, "--only", "--vary", "mbs=1;rm,2", "--budget", "0.01", "--dry-run").out
    assert "for example mbs=1;rm: MBS=1;rm is not a positive whole number" in text
    assert "the budget is less than the " in text


def test_out_of_memory_and_failures_are_outcomes(site: Site) -> None:
    instant.direct("3.1", "FAILED", MEMORY)
    instant.direct("2.1", "FAILED", "ValueError: no")
    done = site(*TUNE, "--json")
    assert (done.status, done.data["winner"]["changes"]) == (0, {"STEP_MS": "97"}), done.err
    assert (titles(done)["STEP_MS=91"]["what"], titles(done)["STEP_MS=91"]["runs"]) == ("out of memory", 1)
    assert "ValueError: no" in titles(done)["STEP_MS=120"]["what"]


def test_who_does_other_work_wins_nothing(site: Site) -> None:
    for number in range(1, 4):
        instant.direct(f"3.{number}", "unlike")
    done = site(*TUNE, "--json")
    assert done.data["winner"]["changes"] == {"STEP_MS": "97"}, done.err
    assert titles(done)["STEP_MS=91"]["what"].startswith("other work than the base: its loss is ")


def test_a_run_that_a_node_ended_is_tried_again(site: Site) -> None:
    instant.direct("3.1", "NODE_FAIL")
    done = site(*TUNE, "--json")
    assert done.data["winner"]["changes"] == {"STEP_MS": "91"}, done.err
    of_it = [item["outcome"] for item in done.data["trials"] if item["configuration"] == "STEP_MS=91"]
    assert (of_it[0], {*of_it[1:]}) == ("no answer", {"timed"})


def test_runs_that_somebody_cancelled_say_nothing(site: Site) -> None:
    """As a local run is where its command is killed, however often."""
    for attempt in range(1, 5):
        instant.direct(f"1.{attempt}", "CANCELLED")
    done = site(*TUNE, "--json")
    assert done.data["winner"]["changes"] == {"STEP_MS": "91"}, done.err
    assert [trial["outcome"] for trial in done.data["trials"][:5]] == ["no answer"] * 4 + ["timed"]


def test_where_nothing_is_faster_the_base_stays(site: Site) -> None:
    done = site(*(word.replace("91,97", "104,109") for word in TUNE), "--json")
    assert (done.status, done.data["ended"], done.data["winner"]["title"]) == (0, "nothing faster", "base")
    assert "nothing within the space is more than" in done.data["conclusion"]
    assert done.data["bound"] < 0.05
    again = site(*(word.replace("91,97", "104,109") for word in TUNE), "--set-baseline")
    assert "no baseline was set: nothing was proved to be faster" in again.err


@pytest.mark.parametrize(("failing", "how"), [((1,), MEMORY), ((2, 3), "ValueError: no")])
def test_a_base_that_fails_more_often_than_it_runs_ends_the_tuning(
    site: Site, failing: tuple[int, ...], how: str
) -> None:
    for attempt in failing:
        instant.direct(f"1.{attempt}", "FAILED", how)
    done = site(*TUNE, "--json")
    runs = [trial for trial in done.data["trials"] if trial["configuration"] == "base"]
    assert (done.status, done.data["ended"], len(runs)) == (1, "base failed", max(failing))
    what = "out of memory" if how == MEMORY else "ValueError: no"
    assert "the base itself does not run: " in done.data["conclusion"]
    assert what in done.data["conclusion"]
    assert done.data["next"].startswith("next: begin with a job that runs (--set, --variant, more GPUs)")


def test_who_fails_in_a_whole_run_does_not_win(site: Site) -> None:
    """A configuration may be out of memory later than in a short trial."""
    for attempt in range(3, 9):
        instant.direct(f"3.{attempt}", "FAILED", MEMORY)
    done = site(*TUNE, "--json")
    assert done.data["winner"]["changes"] == {"STEP_MS": "97"}, done.err
    fastest = [trial for trial in done.data["trials"] if trial["configuration"] == "STEP_MS=91"]
    assert [trial["outcome"] for trial in fastest].count("out of memory") == 1, "a failure is not repeated"


def test_where_all_others_are_out_of_memory_the_base_stays(site: Site) -> None:
    for number in (2, 3, 4):
        instant.direct(f"{number}.1", "FAILED", MEMORY)
    done = site(*TUNE, "--json")
    assert (done.status, done.data["ended"], len(done.data["trials"])) == (0, "nothing faster", 4)
    assert done.data["conclusion"].startswith("nothing else within the space runs here: keep the base")


def test_a_budget_is_kept_and_a_larger_one_goes_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conduct, "held", lambda record: (record.started, 1.0))
    small = site(*TUNE, "--budget", "3", "--json")
    assert (small.status, small.data["ended"]) == (0, "budget")
    assert small.data["spent_hours"] <= 3
    assert "the same command with a larger --budget goes on" in small.data["next"]
    assert site(*TUNE, "--budget", "3").status == 0
    assert len(instant.accepted()) == len(small.data["trials"]), "it was over"
    large = site(*TUNE, "--budget", "60", "--json")
    assert (large.data["ended"], large.data["winner"]["changes"]) == ("found", {"STEP_MS": "91"})
    assert large.data["spent_hours"] <= 60
    assert "this campaign is over" in site(*TUNE, "--budget", "60", "--within", "5").err
    closer = site(*TUNE, "--budget", "200", "--within", "0.2", "--json")
    assert (closer.data["within"], closer.data["winner"]["changes"]) == (0.002, {"STEP_MS": "91"})
    assert len(closer.data["trials"]) >= len(large.data["trials"])


@pytest.mark.parametrize("at", [3, 20, 45, 90])
def test_killed_at_any_step_and_run_again(site: Site, at: int) -> None:
    assert run_and_crash(lambda: main(list(TUNE)), at, site.folder), "it was to be killed"
    done = site(*TUNE, "--json")
    assert (done.status, done.data["winner"]["changes"]) == (0, {"STEP_MS": "91"}), done.err
    keys = [key for _, key in instant.accepted()]
    assert len(set(keys)) == len(keys) == len(done.data["trials"]), "nothing was run twice"


def test_changed_surroundings_are_refused(site: Site) -> None:
    (instant.folder() / "full").touch()
    assert site(*TUNE).status == 3
    (instant.folder() / "full").unlink()
    done = site(*TUNE, GBS="8")
    assert (done.status, instant.accepted()) == (2, [])
    assert "base: gbs: 4 -> 8" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--only",), "--only varies nothing"),
        (("--vary", "mbs"), "--vary 'mbs' is not NAME=VALUE,VALUE"),
        (("--vary", "mbd=1,2"), "'mbd' cannot be varied (did you mean 'mbs'?)"),
        (("--only", "--vary", "mbs=3"), "nothing to choose from: none of 1 combinations can be run"),
        (("--only", "--vary", "mbs=1"), "nothing to choose from"),
        (("--budget", "nan"), "'nan' is not a finite number"),
        (("--within", "nan"), "'nan' is not a finite number"),
        (("--budget", "-1"), "--budget"),
        (("--budget", "0.001"), "--budget 0.001 answers nothing: a single trial takes about 0.0083 GPU-hours"),
        (("--trial-steps", "50"), "--trial-steps 50: a trial is shorter than a whole run of 50 steps"),
        (("--max-steps", "20"), "it ends after step 20"),
        (("--profile",), "profiled, traced or saved"),
        (("--scale", "1,2"), "--scale 1,2"),
    ],
)
def test_what_cannot_be_tuned_is_said_before_anything_starts(site: Site, words: tuple[str, ...], message: str) -> None:
    done = site(*JOB, *words)
    assert (done.status, instant.accepted()) == (2, []), done.out
    assert message in done.err
    assert not list(site.install.rglob("campaign.json"))


def test_layouts_are_found_without_being_asked_for(site: Site, tmp_path: Path) -> None:
    """On 2 ranks: half and double of what is documented, where that divides; by how far it is from the base."""
    done = site(*(word if word != "1" else "2" for word in JOB), "--dry-run", "--json")
    space = done.data["space"]
    values = space["values"]
    assert (values["mbs"], values["tp"]) == (["1", "2"], ["1", "2", "4"])
    assert space["refused"]["do not divide"] > 0
    assert "--scale 2 " in space["first"][0]


def test_settings_without_a_column_are_in_the_space_where_the_model_and_the_gpus_allow_them(cli: Cli) -> None:
    def space(gpu: str, size: str, scale: int) -> Any:
        words = ("-w", "mbridge", "-s", size, "--gpu-type", gpu, "--scale", str(scale), "--dtype", "bf16", "--dry-run")
        return cli("tune", *words, "--json").data["space"]

    moe = space("h100", "qwen3_30b_a3b", 16)
    dispatchers = moe["values"]["model.moe_token_dispatcher_type"]
    assert dispatchers == [
        "alltoall",
        *(f"flex;model.moe_flex_dispatcher_backend={of}" for of in ("deepep", "hybridep")),
    ]
    assert {f"comm_overlap.{name}" for name in ("overlap_moe_expert_parallel_comm", "tp_comm_overlap")} <= {
        *moe["values"]
    }
    assert moe["refused"]["are refused by Megatron"] > 0
    dense = space("b200", "llama31_405b", 256)
    assert any("--megatron model.recompute_granularity=selective --meg" in command for command in dense["first"])
    assert dense["values"]["model.recompute_granularity"] == ["none", "selective;model.recompute_modules=[mlp]"]
    assert not {"model.moe_token_dispatcher_type", "ep", "cuda_graph"} & {*dense["values"]}


@pytest.mark.parametrize(
    ("gain", "whole", "missing"),
    [(0.2, 2, [0, 1]), (0.2, 3, []), (0.0, 3, [0, 1]), (0.0, 7, [0, 1]), (0.0, 8, [])],
)
def test_whole_runs_are_added_while_they_leave_it_open(gain: float, whole: int, missing: list[int]) -> None:
    def trial(option: int, seconds: float) -> Trial:
        return Trial(option, "timed", StepTime(seconds, 0.0, count=10, mean=seconds, steps=40), full=True)

    trials = [trial(*run) for _ in range(whole) for run in ((0, 1.0), (1, 1.0 - gain))]
    assert _proofs(trials, 1) == missing
