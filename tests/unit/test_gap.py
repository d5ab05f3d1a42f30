"""``llmb-run why --slow``: what a run has otherwise than the best, what that may be worth, and how to measure it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import msgspec
import pytest

from llmb_common.recipes.loading import load_recipe
from llmb_common.results.references import worth_of
from llmb_common.runs.index.search import find_run
from llmb_common.runs.record import load_record
from support import instant
from support.campaigns import Site
from support.cli import Cli
from support.gpu_nodes import smi_answer, snapshot, write_node
from support.iteration_logs import mbridge_log
from support.plans import ROOT, plan
from support.slow_site import SLOW_NODE, make_slow_site
from support.texts import Texts

JOB = ("single", "-w", "pretrain_llama3.1", "-s", "smoke", "--dtype", "bf16", "--scale", "1")


def started(site: Site, *changes: str) -> str:
    """Run id of a run, with columns (``mbs=2``) and variables (``NCCL_ALGO=Ring``) of its job."""
    words = [word for change in changes for word in ("--set" if change.startswith("mbs=") else "--env", change)]
    run_id: str = site(*JOB, *words, "--json").data["jobs"][0]["run_id"]
    return run_id


# What differs


def test_a_slow_run_is_told_what_the_fastest_has_otherwise(site: Site, texts: Texts) -> None:
    """``why --slow``: each difference with the command that shows what it is worth."""
    ids = []
    for milliseconds, mbs, algorithm in (("100", "1", "Tree"), ("90", "2", "Ring")):
        words = ("single", *JOB[1:], "--env", f"STEP_MS={milliseconds}", "--env", f"NCCL_ALGO={algorithm}")
        ids.append(site(*words, "--set", f"mbs={mbs}", "--json").data["jobs"][0]["run_id"])
    slow, fast = ids
    words = ("single", *JOB[1:], "--env", "STEP_MS=95", "--env", "NCCL_DEBUG=WARN", "--json")
    slower_alone = site(*words).data["jobs"][0]["run_id"]
    (found,) = site("why", "--slow", slow, "--json").data["runs"]
    gap = found["gap"]
    assert (gap["best"], gap["slower"]) == (fast, pytest.approx(100 / 90 - 1, abs=0.002))
    told = {item["name"]: (item["kind"], item["here"], item["there"], item["test"]) for item in gap["differences"]}
    command = f"llmb-run ab --base {slow} --change"
    assert told["mbs"] == ("setting", "1", "2", f"{command} mbs=2")
    assert told["env NCCL_ALGO"] == ("setting", "Tree", "Ring", f"{command} NCCL_ALGO=Ring")
    assert set(told) == {"mbs", "env NCCL_ALGO", "env STEP_MS"}
    (found,) = site("why", "--slow", slower_alone, "--json").data["runs"]
    told = {item["name"]: item["test"] for item in found["gap"]["differences"]}
    assert told["env NCCL_DEBUG"] == f"llmb-run ab --base {slower_alone} --unset NCCL_DEBUG"
    text = site("why", "--slow", slow).out
    texts(text, about="longer")
    assert f"{command} mbs=2" in text
    texts(site("why", "--slow", fast).out, about="no faster run")


def test_the_node_that_slows_a_runs_repeats_is_named_as_in_results(cli: Cli, texts: Texts) -> None:
    """Of a run that had it; nothing else differs, and no other run is told to suspect its nodes."""
    runs = make_slow_site(cli.install)
    slow, fast = runs["slow 11"].paths.run_id, runs["fast 3"].paths.run_id
    (found,) = cli("why", "--slow", slow, "--json").data["runs"]
    assert found["gap"]["slow_node"]["nodes"] == [SLOW_NODE]
    assert found["gap"]["slow_node"]["slow"] == 5
    text = cli("why", "--slow", slow).out
    texts(text, about=SLOW_NODE)
    assert f"-> llmb-run exclude add {SLOW_NODE} --days 7 " in text
    assert "suspect" not in text
    (found,) = cli("why", "--slow", fast, "--json").data["runs"]
    assert found["gap"]["slow_node"] is None


def test_what_failed_or_still_runs_is_not_called_slow(site: Site, texts: Texts) -> None:
    """Without a run, the newest one with a step time is meant; of one that is named, why nothing is compared."""
    fast, slow = started(site, "STEP_MS=90"), started(site, "STEP_MS=100")
    record = load_record(find_run(site.install, started(site, "STEP_MS=101")).folder)
    record.paths.log.write_text(mbridge_log(range(1, 6)))
    record.with_state("FAILED", "exit code 1").save()
    failed = record.paths.run_id
    (found,) = site("why", "--slow", "--json").data["runs"]
    assert (found["run"], found["gap"]["best"]) == (slow, fast)
    (named,) = site("why", "--slow", failed, "--json").data["runs"]
    texts(named["gap"]["unfit"])
    said = site("why", "--slow", failed).out
    assert fast not in said
    texts(said, about="not compared")


def test_each_line_of_ab_can_be_pasted_and_is_what_it_says(site: Site) -> None:
    """Whatever is in a value; side B then has what the fastest run has."""
    odd = "a b;$HOME 'c' \"d\""
    listed = "mlx5_0,mlx5_1"
    fast = started(site, "STEP_MS=90", f"NOTE={odd}", "mbs=2", "NCCL_ALGO=Ring", f"NCCL_IB_HCA={listed}")
    slow = started(site, "STEP_MS=100", "mbs=1", "NCCL_DEBUG=WARN")
    (found,) = site("why", "--slow", slow, "--json").data["runs"]
    assert found["gap"]["best"] == fast
    lines = {item["name"]: item["test"] for item in found["gap"]["differences"]}
    assert set(lines) == {
        "mbs",
        *(f"env {name}" for name in ("STEP_MS", "NOTE", "NCCL_IB_HCA", "NCCL_ALGO", "NCCL_DEBUG")),
    }
    text = site("why", "--slow", slow).out
    for name, line in lines.items():
        assert f"{line}\n" in text
        done = site(*shlex.split(line)[1:], "--dry-run", "--json")
        assert done.status == 0, done.err
        one, other = (item["plan"] for item in done.data["jobs"])
        if name == "mbs":
            assert (one["mbs"], other["mbs"]) == (1, 2)
            continue
        variable = name.removeprefix("env ")
        values = [plan["env"].get(variable, {}).get("value") for plan in (one, other)]
        wanted = {
            "STEP_MS": ["100", "90"],
            "NOTE": [None, odd],
            "NCCL_IB_HCA": [None, listed],
            "NCCL_ALGO": [None, "Ring"],
            "NCCL_DEBUG": ["WARN", None],
        }
        assert values == wanted[variable]


def test_what_ab_cannot_change_says_so(site: Site, texts: Texts) -> None:
    """A driver is no setting of a job; nor is what a run's own nodes found."""
    runs = [site(*JOB, "--env", f"STEP_MS={ms}", "--json").data["jobs"][0] for ms in (100, 90)]
    for run, driver, changes in zip(runs, ("570.86.15", "580.95.05"), ({3: {"limit": "650.00 W"}}, {}), strict=True):
        answer = smi_answer(driver=driver, changes=changes)
        looks = {name: snapshot(at, answer) for name, at in (("before", 1000.0), ("load", 1100.0), ("after", 2000.0))}
        write_node(Path(run["folder"]), "n1", **looks)
    slow = runs[0]["run_id"]
    differences = site("why", "--slow", slow, "--json").data["runs"][0]["gap"]["differences"]
    told = {item["name"]: item for item in differences}
    whys = {name: item["why"] for name, item in told.items() if not item["test"]}
    assert (set(whys), len(set(whys.values()))) == ({"driver", "power_limit"}, 1)
    driver = told["driver"]
    assert (driver["kind"], driver["here"], driver["there"]) == ("software", "570.86.15", "580.95.05")
    text = site("why", "--slow", slow).out
    assert text.count(whys["driver"]) == 2
    texts(text, about=whys["driver"])


def test_what_a_test_of_release_0_2_left_behind_disturbs_nothing(site: Site) -> None:
    """``why --slow --test`` kept campaigns, whose runs have their keys."""
    run = site(*JOB, "--env", "STEP_MS=90", "--json").data["jobs"][0]
    record = Path(run["folder"]) / "run.json"
    content = json.loads(record.read_text())
    content["submission"]["key"] = "why:0a1b2c3d:2.1"
    record.write_text(json.dumps(content))
    left = site.install / "campaigns" / "why-pretrain_llama3.1-0a1b2c3d" / "1"
    left.mkdir(parents=True)
    (left / "campaign.json").write_text('{"schema": 1, "id": "0a1b2c3d", "began": 1.0, "gap": {}, "arms": []}')
    (left / "result.json").write_text('{"schema": 1, "rule": {"precise": true}, "differences": []}')
    slow = started(site, "STEP_MS=100")
    for words in (("jobs", "--all"), ("results",), ("report",), ("show", run["run_id"]), ("rebuild",), ("results",)):
        done = site(*words)
        assert (done.status, done.err.count("error")) == (0, 0), words
    assert run["run_id"] in site("jobs", "--all").out
    assert site("why", "--slow", slow, "--json").data["runs"][0]["gap"]["best"] == run["run_id"]


def test_columns_that_are_not_legal_one_by_one_are_one_difference(site: Site) -> None:
    """On two ranks PP 2 leaves no room for TP 2."""
    two = ("single", *JOB[1:-1], "2", "--json", "--env")
    slow, fast = (
        site(*two, f"STEP_MS={ms}", "--set", f"tp={tp}", "--set", f"pp={pp}").data["jobs"][0]["run_id"]
        for ms, tp, pp in ((100, 2, 1), (90, 1, 2))
    )
    told = site("why", "--slow", slow, "--json").data["runs"][0]["gap"]["differences"]
    assert {item["name"]: item["test"].partition("--change ")[2] for item in told} == {
        "tp, pp": "tp=1 --change pp=2",
        "env STEP_MS": "STEP_MS=90",
    }
    assert site("why", "--slow", fast, "--json").data["runs"][0]["gap"]["best"] is None


# What it is worth by the published rows


def test_published_rows_that_differ_in_one_thing_say_what_it_is_worth(texts: Texts) -> None:
    """On H100, FP8 for BF16; its scaling and, of 70b, the layout go with that."""
    llama = load_recipe(ROOT / "llama3.1")
    asked = {"MODEL_SIZE": "8b", "GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "8", "CONFIG_VARIANT": "nemo2"}
    one, other = (plan("llama3.1", DTYPE=dtype, **asked) for dtype in ("bf16", "fp8"))
    found = worth_of(one, other, llama)
    assert found is not None
    assert (found.pairs, found.median) == (5, pytest.approx(9.43 / 12.32 - 1, abs=1e-4))
    texts(str(found))
    assert worth_of(one, msgspec.structs.replace(one, tp=2), llama) is None, "nobody published that"
    for also in ({"fsdp": True}, {"cuda_graph": True}, {"recompute_layers": 1}, {"vp": 2}):
        assert worth_of(one, msgspec.structs.replace(other, **also), llama) is None, "nor both at once"
    assert worth_of(one, msgspec.structs.replace(other, vp=1, ep=1, etp=1), llama) == found, (
        "what none of it stands for"
    )
    assert worth_of(one, one, llama) is None


def test_another_release_is_worth_what_its_rows_say_or_what_releases_usually_are(texts: Texts) -> None:
    functions = load_recipe(ROOT / "mbridge")
    known = {"MODEL_SIZE": "qwen3_30b_a3b", "GPU_TYPE": "gb200", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "8"}
    now = plan("mbridge", **known)
    before, after, own = (
        msgspec.structs.replace(now, image=f"nvcr.io#nvidia/nemo:{release}") for release in ("26.06", "26.08", "30.01")
    )
    found = worth_of(before, after, functions)
    assert found is not None
    assert found.of == "published rows"
    back = worth_of(after, before, functions)
    assert back is not None
    assert back.median * found.median < 0
    usual, backwards = worth_of(before, own, functions), worth_of(own, before, functions)
    assert usual is not None
    assert backwards is not None
    texts(str(usual))
    assert backwards.high == pytest.approx(1 / 0.73 - 1)


def test_without_a_faster_run_it_is_held_against_what_was_published(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, texts: Texts
) -> None:
    traits = instant.INSTANT._replace(this_machine=False, containers=True)
    instant.install_executor(monkeypatch, tmp_path / "cluster", traits)
    monkeypatch.setattr(instant, "milliseconds_of", lambda _: 9900.0)
    (site.install / "cluster_config.yaml").write_text("schema: 1\ncluster_type: instant\ngpu_type: h100\n")
    job = ("single", "-w", "pretrain_llama3.1", "-s", "8b", "--scale", "8", "--json")
    changes = ("--set", "tp=2", "--env", "NCCL_GRAPH_REGISTER=1")
    (bf16,) = site(*job, "--dtype", "bf16", *changes).data["jobs"]
    gap = site("why", "--slow", bf16["run_id"], "--json").data["runs"][0]["gap"]
    assert (gap["best"], gap["slower"]) == (None, pytest.approx(9.9 / 12.27 - 1, abs=0.01))
    told = {item["name"]: item for item in gap["differences"]}
    assert {name: (item["kind"], item["here"], item["there"]) for name, item in told.items()} == {
        "software": ("software", "nemo:26.02.01", "NeMo 2, nemo:25.02.01"),
        "tp": ("setting", "2", "1"),
        "env NCCL_GRAPH_REGISTER": ("launch", "1", "-"),
        "vboost": ("launch", "false", "true"),
    }
    assert told["vboost"]["test"] == f"llmb-run ab --base {bf16['run_id']} --change ENABLE_VBOOST=true"
    alone = told["env NCCL_GRAPH_REGISTER"]["test"]
    assert alone == f"llmb-run ab --base {bf16['run_id']} --unset NCCL_GRAPH_REGISTER"
    assert site(*alone.split()[1:], "--dry-run").status == 0
    text = site("why", "--slow", bf16["run_id"]).out
    texts(text, about="NCCL_GRAPH_REGISTER")
    texts(text, about="ab cannot")

    (fp8,) = site(*job, "--dtype", "fp8").data["jobs"]
    (only,) = site("why", "--slow", fp8["run_id"], "--json").data["runs"][0]["gap"]["differences"]
    assert (only["here"], only["there"], only["worth"]["pairs"]) == ("nemo:26.02.01", "Megatron-Bridge, nemo:25.11", 52)

    job = ("single", "-w", "pretrain_mbridge", "-s", "qwen3_30b_a3b", "--gpu-type", "gb200", "--scale", "8")
    image = "nvcr.io#nvidia/nemo:26.08.05"
    (later,) = site(*job, "--dtype", "fp8", "--image", image, "--json").data["jobs"]
    (only,) = site("why", "--slow", later["run_id"], "--json").data["runs"][0]["gap"]["differences"]
    assert only["test"] == f"llmb-run ab --base {later['run_id']} --change 'image=nvcr.io#nvidia/nemo:26.08'"
    assert only["worth"]["pairs"] == 110
