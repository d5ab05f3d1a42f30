"""``llmb-run sweep``: what may be varied, what will run and what will not, and no job twice."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from llmb_common.base.errors import RequestError
from llmb_common.base.structs import from_plain
from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.loading import load_recipe
from llmb_common.results.configuration import configuration_key
from llmb_common.runs.index.search import find_runs
from llmb_run.app import load_command
from llmb_run.main import main
from llmb_run.starting.command_line import command_for
from llmb_run.starting.requests import JobSpec
from llmb_run.starting.spreading import shares_of
from llmb_run.starting.sweeps import MOST, changed_spec, combinations, dimension, dimensions_of, one_value, values_of
from support import instant
from support.cli import Cli
from support.crashes import start
from support.next_lines import next_lines
from support.plans import ROOT, plan
from support.texts import Texts

H100 = ("sweep", "-w", "llama3.1", "-s", "8b", "--dtype", "bf16", "--scale", "8", "--gpu-type", "h100", "--dry-run")
SMOKE = ("sweep", "-w", "llama3.1", "-s", "smoke", "--scale", "2")
WIDE = (*SMOKE, "--vary", "tp=1,2,3", "--vary", "NCCL_ALGO=Ring,Tree")


def test_all_is_planned_before_anything_starts(cli: Cli, texts: Texts) -> None:
    done = cli(*H100, "--vary", "tp=1,2,3", "--vary", "mbs=1,4")
    head, *rows = done.out.splitlines()
    assert head.split() == ["tp", "mbs", "runs", "GPUs", "memory", "GiB", "step", "s", "known", "from"]
    assert [row.split()[:3] for row in rows[:3]] == [["1", "1", "1"], ["2", "1", "1"], ["2", "4", "1"]]
    texts("\n".join(rows))
    texts(done.err)


def test_programs_read_the_same(cli: Cli) -> None:
    data = cli(*H100, "--zip", "tp=2,4 mbs=1,2", "--vary", "cp=2,3", "--repeats", "2", "--json").data
    assert [item["combination"] for item in data["planned"]] == [
        {"cp": "2", "tp": "2", "mbs": "1"},
        {"cp": "2", "tp": "4", "mbs": "2"},
    ]
    assert [item["plan"]["tp"] for item in data["planned"]] == [2, 4]
    assert {item["error"]["code"] for item in data["refused"]} == {"does-not-divide"}


def test_a_combination_that_is_the_same_job_is_refused(cli: Cli, texts: Texts) -> None:
    done = cli(*H100, "--vary", "fsdp=false,0")
    texts(done.out, about="not run")
    texts(done.err)


SUBMIT = ("submit", *H100[1:])


@pytest.mark.parametrize(
    "words",
    [
        ("--vary", "tp=1,2,3", "--vary", "mbs=1,4"),
        ("--zip", "tp=2,4 mbs=1,2", "--vary", "NCCL_ALGO=Ring,Tree", "--repeats", "2", "--spread", "2"),
    ],
)
def test_submit_plans_what_sweep_plans(cli: Cli, words: tuple[str, ...]) -> None:
    swept = cli(*H100, *words, "--json").data
    submitted = cli(*SUBMIT, *words, "--skip-unsupported", "--json").data
    today = [job["plan"] for job in submitted["jobs"] if not job["plan"]["slurm"]["additional"]]
    assert today == [item["plan"] for item in swept["planned"]]
    assert cli(*SUBMIT, *words).status == (2 if swept["refused"] else 0), "without --skip-unsupported all or none"


def test_submit_and_sweep_have_the_same_options() -> None:
    submit, sweep = (
        {name for parameter in load_command(command).params for name in parameter.opts}
        for command in ("submit", "sweep")
    )
    assert submit - sweep == {"--skip-unsupported", "--resume-chain"}
    assert sweep <= submit


def test_submit_starts_no_job_twice(cli: Cli, texts: Texts) -> None:
    done = cli(*SUBMIT, "--vary", "fsdp=false,0")
    assert done.status == 2
    texts(done.err)


def test_a_sweep_over_all_scales_tells_them_apart(cli: Cli) -> None:
    words = ("sweep", "-w", "llama3.1", "-s", "8b", "--dtype", "bf16", "--gpu-type", "h100", "--dry-run", "--json")
    for scales in (("--scale", "all"), ("--max-scale", "32")):
        combinations = [item["combination"] for item in cli(*words, *scales).data["planned"]]
        assert [item["scale"] for item in combinations][:3] == ["8", "16", "32"]


def test_a_sweep_over_days_counts_all_its_runs(cli: Cli, texts: Texts) -> None:
    done = cli(*H100, "--vary", "tp=2,4", "--repeats", "4", "--spread", "2")
    assert [row.split()[:2] for row in done.out.splitlines()[1:]] == [["2", "4"], ["4", "4"]]
    texts(done.err)


def test_nothing_that_can_run_is_an_error(cli: Cli, texts: Texts) -> None:
    done = cli(*H100, "--vary", "tp=3,5")
    assert done.status == 2
    texts(done.err)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing is varied\n  -> --vary"),
        (("--vary", "tp=1,2", "--set", "tp=4"), "tp is varied, and set to 4\n"),
        (("--vary", "scale=8,16"), "scale is varied, and set to 8\n"),
        (("--vary", "tp=1,2", "--vary", "tp=4"), "--vary: tp is given twice\n  -> give all its values at once"),
        (
            ("--zip", "tp=1,2", "pp=1,2"),
            "got unexpected extra argument (pp=1,2)\n  -> llmb-run sweep ",
        ),
        (("--tp", "1,2"), "--vary tp=1,2"),
    ],
)
def test_a_mistake_names_what_to_write(cli: Cli, words: tuple[str, ...], said: str) -> None:
    done = cli(*H100, *words)
    assert (done.status, done.out) == (2, "")
    assert said in done.err


def test_everything_that_may_be_varied_changes_the_job() -> None:
    changes = {"tp": "2", "size": "8b", "engine": "0.6", "image": "/a.sqsh", "NCCL_ALGO": "Ring"}
    spec = changed_spec(JobSpec(settings={"workload": "llama3.1"}), changes)
    options = {"TP": "2", "MODEL_SIZE": "8b", "LLMB_ENGINE": "0.6", "RUN_CONF_IMAGE": "/a.sqsh"}
    assert (spec.options, spec.environment) == (options, {"NCCL_ALGO": "Ring"})
    assert spec.varied == changes
    assert list(spec.settings) == sorted(spec.settings), "rounds and campaigns know a job by it, however it was typed"


NAMES = {
    **{
        "TP": "tp",
        "cuda-graph": "cuda_graph",
        "JOB_TOTAL_GPUS": "scale",
        "MODEL_SIZE": "size",
        "model-size": "size",
        "gpus": "scale",
    },
    **{"LLMB_ENGINE": "engine", "RUN_CONF_IMAGE": "image", "NCCL_ALGO": "NCCL_ALGO", "FP8_RECIPE": "FP8_RECIPE"},
}


@pytest.mark.parametrize("said", NAMES)
def test_a_dimension_has_one_name(said: str) -> None:
    assert dimension(said) == NAMES[said]


WRONG = {
    "tpp=1,2": "'tpp' cannot be varied (did you mean 'tp'?)",
    "fp8_recipe=cs,mx": "'fp8_recipe' cannot be varied (did you mean 'FP8_RECIPE'?)",
    "max_steps=5,10": "'max_steps' cannot be varied",
    "TIME_LIMIT=5,10": "'TIME_LIMIT' cannot be varied",
    "tp": "--vary 'tp' is not NAME=VALUE,VALUE",
    "=1": "--vary '=1' is not NAME=VALUE,VALUE",
    "tp=": "--vary: tp has no value",
    "tp=1,,2": "--vary tp: a value of '1,,2' is empty",
    "tp=1,2,1": "tp: 1 is given twice",
    "HF_TOKEN=a,b": "HF_TOKEN: HF_TOKEN looks like a secret",
    "DRY_RUN=true,false": "DRY_RUN: DRY_RUN cannot be set for a job",
    f"mbs={','.join(map(str, range(MOST + 1)))}": f"{MOST + 1} combinations ({MOST + 1} mbs) are more than {MOST}",
}


@pytest.mark.parametrize("word", WRONG)
def test_what_cannot_be_varied_is_named(word: str) -> None:
    with pytest.raises(RequestError) as caught:
        [changed_spec(JobSpec(), changes) for changes in combinations(dimensions_of([word], "--vary"))]
    assert caught.value.message.startswith(WRONG[word])
    assert caught.value.remedy


def test_values_may_hold_commas() -> None:
    found = dimensions_of(['NCCL_DEBUG_SUBSYS="COLL,NET", ALL', "NCCL_ALGO=[Tree,NVLS],Ring"], "--vary")
    assert found == {"NCCL_DEBUG_SUBSYS": ["COLL,NET", "ALL"], "NCCL_ALGO": ["[Tree,NVLS]", "Ring"]}


@pytest.mark.parametrize("value", ["1", "mlx5_0,mlx5_1", "[a,b]", " x ", 'a "b"', '"a"', '"a",b', 'a,"b"', "", '""'])
def test_a_value_is_written_as_it_is_read_again(value: str) -> None:
    assert values_of(one_value(value), "--change X") == [value]


def test_a_value_that_nobody_can_write_is_refused() -> None:
    with pytest.raises(RequestError):
        one_value('a,b"c,d"')


@pytest.mark.parametrize(
    ("zipped", "said"),
    [
        ({"tp": ["1", "2"], "pp": ["4"]}, "tp has 2, pp has 1"),
        ({"tp": ["1", "2"]}, "tp has 2"),
        ({"tp": ["1", "1"], "pp": ["2", "2"]}, "tp and pp: 1 2 is given twice"),
        ({"mbs": ["1", "2"], "tp": ["1", "2"]}, "mbs: varied twice"),
    ],
)
def test_what_cannot_change_together(zipped: Mapping[str, Sequence[str]], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        combinations({"mbs": ["1", "2"]}, [zipped])
    assert said in caught.value.message


def test_a_list_elsewhere_names_the_sweep(cli: Cli, texts: Texts) -> None:
    single = ("single", "-w", "llama3.1", "--scale", "8")
    texts(cli(*single, "--set", "tp=1", "--set", "tp=2").err)
    texts(cli(*single, "--tp", "1,2").err)


def test_killed_and_run_again_no_job_is_there_twice(site: Cli, texts: Texts) -> None:
    (instant.folder() / "die after").touch()
    child = start(lambda: main([*WIDE]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert 1 <= len(instant.accepted()) < 4
    (instant.folder() / "die after").unlink()
    done = site(*WIDE)
    assert (done.status, len(instant.accepted())) == (0, 4), done.err
    texts(done.err, about="not run")
    runs = find_runs(site.install)
    assert sorted((run.key.count(":"), run.key.rpartition(".")[2]) for run in runs) == [(2, "1")] * 4
    assert site(*WIDE).status == 0
    assert len(instant.accepted()) == 8, "all are on record: the same command is a new request"


SPEEDS = (*SMOKE, "--vary", "tp=1,2", "--vary", "STEP_MS=100,100.1,110,120", "--repeats", "2")


def test_runs_are_ranked_and_ties_are_ties(site: Cli, texts: Texts) -> None:
    assert site(*SPEEDS).status == 0
    (board,) = site("results", "--rank", "--json").data["boards"]
    assert (board["title"], board["differing"]) == ("llama3.1 smoke mbridge bf16", ["tp", "STEP_MS"])
    lines = [(line["place"], line["values"]["STEP_MS"], line["runs"]) for line in board["lines"]]
    assert lines[:4] == [(1, "100", 2)] * 2 + [(1, "100.1", 2)] * 2
    assert lines[4:] == [(5, "110", 2)] * 2 + [(7, "120", 2)] * 2
    assert [round(line["behind"], 2) for line in board["lines"][4::2]] == [0.1, 0.2]
    shown = site("results", "--rank")
    assert shown.status == 0
    first, head, *rows = site("results", "--rank", COLUMNS="200").out.splitlines()
    assert re.search("fastest: tp=[12] STEP_MS=100, 0.100 s a step; 4 tie for first place$", first)
    assert head.split()[:4] == ["place", "tp", "STEP_MS", "runs"]
    assert [row.split()[0] for row in rows[:8]] == ["1="] * 4 + ["5="] * 2 + ["7="] * 2
    assert board["command"].endswith("--env STEP_MS=100")
    some = site("jobs", "--json", "--where", "TP=2", "--where", "STEP_MS=110,120").data["runs"]
    assert {line["run_id"] for line in some} == {
        run for line in board["lines"][4:] for run in line["run_ids"] if line["values"]["tp"] == "2"
    }
    (slow,) = site("results", "--rank", "--json", "--where", "STEP_MS=120").data["boards"]
    assert [line["runs"] for line in slow["lines"]] == [2, 2]
    assert len(site("jobs", "--json", "--where", "STEP_MS=100.1", "--limit", "3").data["runs"]) == 3
    texts(site("jobs", "--where", "tp=8").err)
    head, *rows = site("results", "--rank", "--format", "csv").out.splitlines()
    assert head.startswith("place,tp,STEP_MS,runs,")
    assert len(rows) == 8


def test_on_this_machine_its_jobs_run_and_are_ranked_and_the_winner_is_planned_again(here: Cli) -> None:
    words = ("-s", "smoke", "--max-steps", "4", "--zip", "scale=1,1,1 tp=1,1,2 mbs=2,1,1")
    data = here(
        "sweep", "-w", "grok1", *words, "--megatron", "optimizer.weight_decay=0.2", "--json", STANDIN_STEPS="4"
    ).data
    assert [job["state"] for job in data["jobs"]] == ["COMPLETED"] * 2
    assert [(item["combination"]["tp"], item["error"]["code"]) for item in data["refused"]] == [
        ("2", "does-not-divide")
    ]
    (board,) = here("results", "--rank", "--window", "2-4", "--json").data["boards"]
    assert "mbs" in board["differing"]
    assert {line["values"]["mbs"] for line in board["lines"]} == {"1", "2"}
    program, *command = shlex.split(board["command"])
    again = here(*command, "--dry-run", "--json").data["jobs"][0]["plan"]
    assert (program, str(again["mbs"])) == ("llmb-run", board["lines"][0]["values"]["mbs"])
    assert again["megatron"] == {"optimizer.weight_decay": 0.2}


def test_a_sweep_of_short_runs_says_so_before_it_trains_and_is_ranked_over_what_all_have(
    site: Cli, texts: Texts
) -> None:
    assert site(*SPEEDS).status == 0, "other runs, which are not this sweep's"
    short = (*SMOKE, "--max-steps", "20", "--vary", "STEP_MS=100,120", "--repeats", "2")
    planned = site(*short, "--dry-run")
    texts(planned.err, about="--max-steps 20")
    done = site(*short, "--json")
    assert "--max-steps 20: " in done.err
    sweep = done.data["round"]
    assert re.fullmatch("sweep-[0-9a-f]{8}", sweep)
    ranking = site("results", "--rank", sweep, "--json")
    assert ranking.status == 0
    (board,) = ranking.data["boards"]
    assert board["window"] == {"first": 11, "last": 20}
    lines = [(line["place"], line["values"]["STEP_MS"], line["runs"]) for line in board["lines"]]
    assert lines == [(1, "100", 2), (2, "120", 2)]
    assert {run for line in board["lines"] for run in line["run_ids"]} == {job["run_id"] for job in done.data["jobs"]}
    texts(site("results", "--rank", sweep, COLUMNS="200").out.splitlines()[0])
    assert {line["run_id"] for line in site("jobs", sweep, "--json").data["runs"]} == {
        job["run_id"] for job in done.data["jobs"]
    }
    assert site("wait", sweep).status == 0
    plain = site("results", sweep)
    assert plain.status == 0, "too short is no failure"
    texts(plain.out.splitlines()[0])
    assert plain.out.count("too short") == 1, "what all have in common is said once"
    (after,) = next_lines(plain.out)
    assert site(*shlex.split(after, comments=True)[1:], "--json").data["boards"][0]["lines"][0]["place"] == 1
    none = site("results", "sweep-00000000")
    assert (none.status, "sweep-00000000" in none.err) == (2, True)


def test_short_tries_do_not_change_the_window_of_what_was_measured(site: Cli) -> None:
    assert site(*SMOKE, "--max-steps", "5", "--vary", "STEP_MS=50,60").status == 0
    assert site(*SMOKE, "--vary", "STEP_MS=100,110").status == 0
    (board,) = site("results", "--rank", "--json").data["boards"]
    assert board["window"] is None
    assert [line["place"] for line in board["lines"]] == [1, 2, None, None]
    assert {line["outcome"] for line in board["lines"][2:]} != {None}


@pytest.mark.parametrize(
    ("where", "message"), [("tp", "--where 'tp' is not NAME=VALUE"), ("tpp=2", "(did you mean 'tp'?)")]
)
def test_what_no_job_has_cannot_be_asked_for(cli: Cli, where: str, message: str) -> None:
    done = cli("jobs", "--where", where)
    assert (done.status, message in done.err) == (2, True), done.err


def test_runs_that_verdicts_leave_out_are_ranked_all_the_same(site: Cli) -> None:
    """Nothing is judged by a baseline that it is part of, and verdicts look after certain numbers of runs only."""
    three = (*SMOKE, "--vary", "STEP_MS=100,110", "--repeats", "3")
    assert site(*three).status == 0
    before = site("results", "--rank", "--json").data["boards"][0]["lines"]
    assert site("baseline", "set", before[0]["run_ids"][0]).status == 0
    after = site("results", "--rank", "--json").data["boards"][0]["lines"]
    assert [line["run_ids"] for line in after] == [line["run_ids"] for line in before]
    assert [line["step_seconds"] for line in after] == [line["step_seconds"] for line in before]
    assert None not in [line["spread"] for line in after]


def test_a_configuration_that_failed_is_an_outcome_with_its_cause(site: Cli) -> None:
    assert site(*SPEEDS).status == 0
    first, other, *_ = dict.fromkeys(re.split("[:.]", key)[2] for _, key in instant.accepted())
    for number in (1, 2):
        instant.direct(f"{first}.{number}", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    instant.direct(f"{other}.2", "NODE_FAIL")
    assert site(*SPEEDS).status == 0
    newest = sorted(find_runs(site.install), key=lambda run: run.created)[-16:]
    shown = site("results", "--rank", *[run.run_id for run in newest])
    assert shown.status == 0, "another one has a time"
    rows = shown.out.splitlines()
    assert len([row for row in rows if row.startswith("- ") and "out of memory" in row]) == 1
    assert ("1 of 2 runs: " in shown.out, "2 of 2 runs: " in shown.out) == (True, False)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"TP": "2", "VP": "NA", "NCCL_ALGO": "Ring", "ENABLE_VBOOST": "true", "DTYPE": "bf16"},
        {"MEGATRON_SETTINGS": "model.recompute_modules=[mlp,core_attn];ddp.bucket_size=none"},
        {"LLMB_ENGINE": "0.6", "RUN_CONF_IMAGE": "/images/own image.sqsh", "JOB_TOTAL_GPUS": "24", "FORCE": "true"},
        {"FP8_RECIPE": "ds", "DTYPE": "fp8"},
    ],
)
def test_the_command_of_a_plan_plans_it_again(cli: Cli, asked: dict[str, str]) -> None:
    first = plan(**{"MODEL_SIZE": "8b", "JOB_TOTAL_GPUS": "8", "GPU_TYPE": "h100", "DTYPE": "fp8"} | asked)
    words = shlex.split(command_for(first, load_recipe(ROOT / "llama3.1")))
    done = cli(*words[1:], "--dry-run", "--json")
    assert done.status == 0, done.err
    again = from_plain(done.data["jobs"][0]["plan"], JobPlan)
    assert (configuration_key(again), again.engine) == (configuration_key(first), first.engine)
    assert Path(str(again.image)).name == Path(str(first.image)).name


@pytest.mark.parametrize(
    ("nodes", "repeats", "needed"), [(6, 3, 2), (7, 3, 2), (8, 2, 4), (6, 3, 4), (6, 5, 5), (64, 4, 18), (2, 7, 1)]
)
def test_repeats_avoid_each_others_nodes_and_always_have_enough(nodes: int, repeats: int, needed: int) -> None:
    names = [f"n{number}" for number in range(nodes)]
    left = [set(names) - set(avoided) for avoided in shares_of(names, repeats, needed)]
    assert len(left) == repeats
    assert all(len(own) >= needed for own in left)
    if nodes >= repeats * needed:
        assert not any(one & other for one, other in itertools.combinations(left, 2))
    else:
        assert len({frozenset(own) for own in left}) > 1, "not all on the same"


def test_where_a_job_needs_every_node_all_repeats_have_the_same(
    capsys: pytest.CaptureFixture[str], texts: Texts
) -> None:
    assert shares_of(["n1", "n2"], 3, 2) == [[], [], []]
    texts(capsys.readouterr().err)
