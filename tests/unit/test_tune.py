"""A tuning from its space to its winner, with jobs that are over at once."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from llmb_run.campaigns import conduct
from llmb_run.main import main
from support import instant
from support.campaigns import Site
from support.cli import Cli, Done
from support.crashes import run_and_crash
from support.texts import Texts

JOB = ("tune", "-w", "pretrain_llama3.1", "-s", "smoke", "--dtype", "bf16", "--scale", "1")
TUNE = (*JOB, "--env", "STEP_MS=100", "--only", "--vary", "STEP_MS=120,100,91,97")
"""Configurations 1 to 4: the base, 120, 91 and 97 milliseconds a step."""


MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def titles(done: Done) -> dict[str, Any]:
    return {item["title"]: item for item in done.data["arms"]}


def test_the_fastest_is_found_proved_and_can_become_a_baseline(site: Site, texts: Texts) -> None:
    done = site(*TUNE, "--json")
    data = done.data
    assert (done.status, data["ended"], data["winner"]["changes"]) == (0, "found", {"STEP_MS": "91"}), done.err
    assert data["gain_low"] < data["gain"] < data["gain_high"]
    assert data["gain"] == pytest.approx(100 / 91 - 1, rel=0.05)
    assert data["winner"]["command"].endswith(" --env STEP_MS=91")
    assert [trial["full"] for trial in data["trials"]].count(True) == 12, "three blocks of four"
    assert (data["proof"]["answer"], data["proof"]["equal_work"]) == ("faster", True)
    keys = [key.partition(":")[0] for _, key in instant.accepted()]
    assert keys == ["tune"] * len(data["trials"])
    assert data["trials"][0]["configuration"] == "base"

    again = site(*TUNE)
    assert (again.status, len(instant.accepted())) == (0, len(keys))
    texts(again.err, about="campaign is over")
    assert data["winner"]["command"] in again.out
    assert data["next"].startswith("next: llmb-run baseline set ")

    assert data["baseline"] is None
    texts(site(*TUNE, "--set-baseline").out, mask=r"[\d.e-]+ GPU-hours|[0-9a-f]{12}")
    assert site(*shlex.split(data["winner"]["command"])[1:]).status == 0
    later = site("results", "--last", "1", "--json").data["runs"][0]
    assert later["reference"]["kind"] == "baseline"
    assert re.findall(r"\d+", later["reference"]["source"])[0] == "6", "runs"
    made = site(*data["next"].split()[2:], "--json")
    assert made.status == 0, made.out
    assert len(made.data["baselines"][0]["runs"]) == 6


def test_the_plan_is_shown_before_anything_starts(site: Site, texts: Texts) -> None:
    done = site(*TUNE, "--dry-run", "--json")
    space = done.data["space"]
    assert (done.status, instant.accepted(), space["candidates"], space["trials"]) == (0, [], 3, 10)
    assert not (site.install / "campaigns").exists()
    text = site(*TUNE, "--dry-run", "--budget", "3").out
    texts(text)
    text = site(*JOB, "--only", "--vary", "mbs=1;rm,2", "--dry-run").out
    texts(text)


def test_a_single_value_fixes_a_setting(site: Site) -> None:
    """Also where it is not the base's own: no candidate has that."""
    space = site(*JOB[:-1], "2", "--vary", "mbs=2", "--dry-run", "--json").data["space"]
    assert space["values"]["mbs"] == ["2"]
    base, *others = space["first"]
    assert "mbs=2" not in base
    assert len(others) >= 2
    assert all("--set mbs=2" in command for command in others)


def test_a_large_space_is_sampled_evenly_and_the_same_each_time(site: Site, texts: Texts) -> None:
    values = ",".join(str(ms) for ms in range(101, 251))
    words = (*JOB, "--env", "STEP_MS=100", "--only", "--vary", f"STEP_MS={values}", "--dry-run", "--json")
    space = site(*words).data["space"]
    assert (space["combinations"], space["candidates"], space["looked_at"]) == (150, 60, 60)
    tried = [int(command.rpartition("STEP_MS=")[2]) for command in space["first"][1:]]
    assert tried != sorted(tried), "they are drawn"
    assert site(*words).data["space"] == space
    texts(site(*words[:-1]).out, about="candidates")


def test_out_of_memory_and_failures_are_outcomes(site: Site, texts: Texts) -> None:
    instant.direct("3.1", "FAILED", MEMORY)
    instant.direct("2.1", "FAILED", "ValueError: no")
    instant.direct("2.2", "FAILED", "ValueError: no")
    done = site(*TUNE, "--json")
    assert (done.status, done.data["winner"]["changes"]) == (0, {"STEP_MS": "97"}), done.err
    assert (titles(done)["STEP_MS=91"]["what"], titles(done)["STEP_MS=91"]["runs"]) == ("out of memory", 1)
    assert titles(done)["STEP_MS=120"]["runs"] == 2
    texts(titles(done)["STEP_MS=120"]["what"])
    (crashed,) = done.data["crashed"]
    assert (crashed["title"], crashed["ratio"]) == ("STEP_MS=120", None)
    out = site(*TUNE).out
    texts(out, mask=r"[\d.e-]+ GPU-hours")


@pytest.mark.slow
@pytest.mark.parametrize(("fastest", "base"), [("1", "3004"), ("3001", "2")])
def test_one_crash_is_tried_again_and_takes_nobody_out(site: Site, fastest: str, base: str) -> None:
    """Whether in a trial or in a whole run; of the base, too."""
    instant.direct(f"3.{fastest}", "FAILED", "ValueError: no")
    instant.direct(f"1.{base}", "FAILED", "ValueError: no")
    done = site(*TUNE, "--json")
    assert (done.status, done.data["ended"], done.data["winner"]["changes"]) == (0, "found", {"STEP_MS": "91"})
    failed = [trial["configuration"] for trial in done.data["trials"] if trial["outcome"] == "failed"]
    assert sorted(failed) == ["STEP_MS=91", "base"]
    assert done.data["crashed"] == []


def test_who_led_and_crashed_twice_is_named(site: Site) -> None:
    for attempt in ("3001", "3002"):
        instant.direct(f"3.{attempt}", "FAILED", "ValueError: no")
    done = site(*TUNE, "--json")
    assert done.data["winner"]["changes"] == {"STEP_MS": "97"}, done.err
    (crashed,) = done.data["crashed"]
    assert (crashed["title"], crashed["why"]) == ("STEP_MS=91", "crashed twice")
    assert crashed["ratio"] == pytest.approx(0.91, abs=0.01)
    out = site(*TUNE).out
    assert re.search(
        rf"STEP_MS=91 led with -[89]\.\d % a step and crashed twice: llmb-run why {crashed['run_id']}", out
    )


def test_who_does_other_work_wins_nothing(site: Site, texts: Texts) -> None:
    for number in range(1, 4):
        instant.direct(f"3.{number}", "unlike")
    done = site(*TUNE, "--json")
    assert done.data["winner"]["changes"] == {"STEP_MS": "97"}, done.err
    texts(titles(done)["STEP_MS=91"]["what"])


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
    assert {trial["configuration"] for trial in done.data["trials"][:5]} == {"base"}


def test_where_nothing_is_faster_the_base_stays(site: Site, texts: Texts) -> None:
    done = site(*(word.replace("91,97", "104,109") for word in TUNE), "--json")
    assert (done.status, done.data["ended"], done.data["winner"]["title"]) == (0, "nothing faster", "base")
    assert done.data["conclusion"].startswith("keep the base: nothing tried is faster; the best")
    assert [trial["full"] for trial in done.data["trials"]].count(True) == 0, "there is nothing to prove"
    again = site(*(word.replace("91,97", "104,109") for word in TUNE), "--set-baseline")
    texts(again.err, about="baseline")


@pytest.mark.parametrize(
    ("failing", "how"), [((1,), MEMORY), ((1, 2), "ValueError: no"), ((2, 3, 4), "ValueError: no")]
)
def test_a_base_that_fails_more_often_than_it_runs_ends_the_tuning(
    site: Site, failing: tuple[int, ...], how: str
) -> None:
    for attempt in failing:
        instant.direct(f"1.{attempt}", "FAILED", how)
    done = site(*TUNE, "--json")
    runs = [trial for trial in done.data["trials"] if trial["configuration"] == "base"]
    assert (done.status, done.data["ended"], len(runs)) == (1, "base failed", max(failing))
    what = "out of memory" if how == MEMORY else "ValueError: no"
    assert what in done.data["conclusion"]
    assert done.data["next"] == f"next: llmb-run why {runs[-1]['run_id']}"


def test_who_fails_in_a_whole_run_does_not_win(site: Site) -> None:
    """A configuration may be out of memory later than in a short trial."""
    for attempt in range(3001, 3009):
        instant.direct(f"3.{attempt}", "FAILED", MEMORY)
    done = site(*TUNE, "--json")
    assert done.data["winner"]["changes"] == {"STEP_MS": "97"}, done.err
    fastest = [trial for trial in done.data["trials"] if trial["configuration"] == "STEP_MS=91"]
    assert [trial["outcome"] for trial in fastest].count("out of memory") == 1, "it is not repeated"
    assert [(item["title"], item["why"]) for item in done.data["crashed"]] == [("STEP_MS=91", "out of memory")]


def test_where_all_others_are_out_of_memory_the_base_stays(site: Site) -> None:
    for number in (2, 3, 4):
        instant.direct(f"{number}.1", "FAILED", MEMORY)
    done = site(*TUNE, "--json")
    assert (done.status, done.data["ended"], len(done.data["trials"])) == (0, "nothing faster", 4)
    assert done.data["conclusion"].startswith("keep the base: nothing else tried runs here")


def test_a_budget_is_kept_and_a_larger_one_goes_on(site: Site, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    monkeypatch.setattr(conduct, "start_and_gpu_hours", lambda record: (record.started, 1.0))
    least = site(*TUNE, "--budget", "3", "--json")
    assert (least.status, least.data["ended"], least.data["spent_hours"]) == (0, "budget", 1)
    texts(least.data["next"])
    assert site(*TUNE, "--budget", "3").status == 0
    assert len(instant.accepted()) == 1, "it was over"
    # 6 trials of one candidate and the base, and the proof: there is no room for another candidate.
    one = site(*TUNE, "--budget", "19", "--json")
    texts(one.err, about="has room")
    assert (one.data["ended"], one.data["tried"], one.data["spent_hours"]) == ("budget", 1, 6)
    texts(one.data["conclusion"], mask=r"[\d.e-]+ GPU-hours")
    large = site(*TUNE, "--budget", "60", "--json")
    assert (large.data["ended"], large.data["winner"]["changes"]) == ("found", {"STEP_MS": "91"})
    assert large.data["spent_hours"] <= 60
    texts(site(*TUNE, "--budget", "90").err, about="campaign is over")


@pytest.mark.slow
@pytest.mark.parametrize("at", [3, 45, 150])
def test_killed_at_any_step_and_run_again(site: Site, at: int) -> None:
    assert run_and_crash(lambda: main(list(TUNE)), at, site.folder), "it was to be killed"
    done = site(*TUNE, "--json")
    assert (done.status, done.data["winner"]["changes"]) == (0, {"STEP_MS": "91"}), done.err
    keys = [key for _, key in instant.accepted()]
    assert len(set(keys)) == len(keys) == len(done.data["trials"]), "nothing was run twice"


def test_changed_surroundings_are_refused(site: Site, texts: Texts) -> None:
    (instant.folder() / "full").touch()
    assert site(*TUNE).status == 3
    (instant.folder() / "full").unlink()
    done = site(*TUNE, GBS="8")
    assert (done.status, instant.accepted()) == (2, [])
    texts(done.err.partition("error: ")[2])


@pytest.mark.parametrize(
    "words",
    [
        ("--only",),
        ("--vary", "mbs"),
        ("--vary", "mbd=1,2"),
        ("--only", "--vary", "mbs=3"),
        ("--only", "--vary", "mbs=1"),
        ("--budget", "nan"),
        ("--budget", "-1"),
        ("--trial-steps", "50"),
        ("--max-steps", "20"),
        ("--profile",),
        ("--scale", "1,2"),
    ],
)
def test_what_cannot_be_tuned_is_said_before_anything_starts(site: Site, words: tuple[str, ...], texts: Texts) -> None:
    done = site(*JOB, *words)
    assert (done.status, instant.accepted()) == (2, []), done.out
    texts(done.err)
    assert not list(site.install.rglob("campaign.json"))


def test_layouts_are_found_without_being_asked_for(site: Site, tmp_path: Path) -> None:
    """On 2 ranks: half and double of what is documented, where that divides; by how far it is from the base."""
    done = site(*(word if word != "1" else "2" for word in JOB), "--dry-run", "--json")
    space = done.data["space"]
    values = space["values"]
    assert (values["mbs"], values["tp"]) == (["1", "2"], ["1", "2", "4"])
    assert space["refused"]["do not divide"] > 0
    assert "--scale 2 " in space["first"][0]


@pytest.mark.slow
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


def test_a_tuning_of_an_earlier_release_is_shown_or_begun_anew(site: Site, texts: Texts) -> None:
    """It searched by predictions: what it kept of each configuration is a point, and what its answer says a bound."""
    assert site(*TUNE).status == 0
    (folder,) = (site.install / "campaigns").glob("tune-*/1")
    frozen = json.loads((folder / "campaign.json").read_text())
    arms = [{**arm, "option": {"point": {"settings": [2.0], "predicted": 0.0}, "cost": 1.0}} for arm in frozen["arms"]]
    (folder / "campaign.json").write_text(json.dumps({**frozen, "schema": 1, "arms": arms}))
    found = json.loads((folder / "result.json").read_text())
    for name in ("crashed", "proof", "short_of_budget", "tried"):
        del found[name]
    earlier = {**found, "schema": 1, "bound": 0.11, "risk": 0.01, "within": 0.02, "conclusion": "as it was said then"}
    (folder / "result.json").write_text(json.dumps(earlier))
    shown = site(*TUNE)
    assert shown.status == 0
    texts(shown.out)
    assert site(*TUNE, "--json").data["bound"] == 0.11

    (folder / "result.json").unlink()
    before = len(instant.accepted())
    refused = site(*TUNE, "--json")
    assert (refused.status, refused.envelope["error"]["code"]) == (2, "earlier-release")
    assert "--again" in refused.envelope["error"]["remedy"]
    assert len(instant.accepted()) == before
    assert site(*TUNE, "--again").status == 0
