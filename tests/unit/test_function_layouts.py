"""PP, VP and FSDP of jobs that call a function, and what jobs do otherwise than NVIDIA's runner."""

from __future__ import annotations

import re

import pytest

from llmb_common.planning.deviations import TABLE
from llmb_common.planning.job_plan import plan_as_dict
from support import plans
from support.functions import MEGATRON_REFUSES, RECIPE, ROOT
from support.plans import check_answers, check_fields, rows

BLACKWELL = "MODEL_SIZE=deepseek_v3 GPU_TYPE=gb300 JOB_TOTAL_GPUS=256"
HOPPER = "MODEL_SIZE=deepseek_v3 GPU_TYPE=h100 JOB_TOTAL_GPUS=1024"
PARTIAL_GRAPHS = f"{BLACKWELL} DTYPE=fp8 CONFIG_VARIANT=partial_cg_dev"
KIMI = "MODEL_SIZE=kimi_k2 DTYPE=bf16"
DENSE = "MODEL_SIZE=llama3_70b GPU_TYPE=h100 JOB_TOTAL_GPUS=64 DTYPE=bf16 PREFLIGHT=off"
CAPTURED = "MODEL_SIZE=llama3_70b GPU_TYPE=b200 JOB_TOTAL_GPUS=64 DTYPE=bf16 PREFLIGHT=off"

PLANNED = {
    BLACKWELL: """
        PP=4 VP=2 -> pp=4 vp=2
        PP=8 VP=2 -> pp=8 vp=2
        PP=1 -> pp=1 vp=None
    """,
    HOPPER: """
        PP=4 -> pp=4 vp=4
        PP=4 VP=NA -> pp=4 vp=None
        PP=4 VP=8 -> pp=4 vp=8
        PP=8 VP=2 -> pp=8 vp=2
    """,
    KIMI: """
        GPU_TYPE=h100 JOB_TOTAL_GPUS=1024 PP=8 VP=4 -> pp=8 vp=4
        GPU_TYPE=gb300 JOB_TOTAL_GPUS=256 PP=8 VP=2 EP=32 -> pp=8 vp=2
    """,
    PARTIAL_GRAPHS: "PP=4 VP=4 -> pp=4 vp=4",  # its own VP=2 is what Megatron refuses
    DENSE: """
        PP=1 -> vp=None
        PP=1 FSDP=true -> fsdp=True vp=None
    """,
    CAPTURED: "PP=1 FSDP=true CUDA_GRAPH=false -> fsdp=True cuda_graph=False",
}


@pytest.mark.parametrize(("words", "fields"), rows(PLANNED))
def test_columns_that_nvidias_runner_can_change_are_planned(words: str, fields: list[str]) -> None:
    check_fields(plans.plan("mbridge", words, PREFLIGHT="off"), *fields)


REFUSED = {
    HOPPER: "PP=5 -> no layout & PP=4 VP=2, PP=4 VP=4, PP=4 VP=8 & PP=16 VP=NA & nearest: PP 4 or 8",
    BLACKWELL: "VP=2 -> PP=2 VP=2 & no layout",
    f"{KIMI} GPU_TYPE=h100 JOB_TOTAL_GPUS=1024": "PP=16 VP=NA -> it has layouts for PP=2 VP=16 & PP=32 VP=NA",
    "MODEL_SIZE=nemotron_3_nano GPU_TYPE=h100 JOB_TOTAL_GPUS=16 DTYPE=bf16": "PP=2 -> assigns & !no layout & unset PP",
    DENSE: """
        FSDP=true -> FSDP needs PP=1
        PP=1 VP=5 -> VP=5 needs PP > 1
    """,
    CAPTURED: "PP=1 FSDP=true -> CUDA_GRAPH and FSDP cannot be combined & set CUDA_GRAPH=false",
    f"{KIMI} GPU_TYPE=gb300 JOB_TOTAL_GPUS=256": "PP=1 FSDP=true CUDA_GRAPH=false -> its optimizer (dist_muon)",
    f"{BLACKWELL} DTYPE=bf16 JOB_TOTAL_GPUS=64 CONFIG_VARIANT=fsdp": "FSDP=false -> CONFIG_VARIANT without fsdp",
}


@pytest.mark.parametrize(("words", "answers"), rows(REFUSED))
def test_what_it_cannot_is_refused_with_what_there_is(words: str, answers: list[str]) -> None:
    check_answers(plans.refusal("mbridge", words), answers)


@pytest.mark.parametrize("release", RECIPE.releases)
def test_every_layout_places_every_layer_in_as_many_chunks_as_its_stages_have(release: str) -> None:
    catalogue = RECIPE.releases[release].catalogue
    assert catalogue is not None
    for entry in catalogue.index:
        function = catalogue.function(entry.name)
        own = (function.columns.pp, function.columns.vp or 1)
        pairs = [(known.pp, known.vp) for known in function.layouts]
        assert len(pairs) == len(set(pairs)), entry.name
        assert not pairs or function.stages
        if function.stages and entry.model in ("deepseek_v3", "kimi_k2"):
            assert own in pairs or entry.name in MEGATRON_REFUSES
        for known in function.layouts:
            assert (len(known.layers), sum(known.layers)) == (known.pp * known.vp, function.architecture.layers)
            assert known.pp > 1 or known.vp == 1


def test_the_memory_of_other_stages_is_that_of_their_layers() -> None:
    made = plans.plan("mbridge", HOPPER, "PP=4 VP=2", PREFLIGHT="warn")
    memory = made.preflight.memory
    assert memory is not None
    layers = [stage.layers for stage in memory.stages for _ in range(stage.first, stage.last + 1)]
    # Bridge's table: eight chunks of eight layers, the last of five; of each stage, every fourth chunk.
    assert layers == [16, 16, 16, 13]


def test_fsdp_has_several_hardware_queues_where_the_function_has_one() -> None:
    for words, queues in (("PP=1", "1"), ("PP=1 FSDP=true", "32")):
        assert plans.plan("mbridge", DENSE, words).env["CUDA_DEVICE_MAX_CONNECTIONS"].value == queues


SAVING = "ENABLE_CHECKPOINT=true"
RUBIN = "MODEL_SIZE=llama3_8b GPU_TYPE=r100 JOB_TOTAL_GPUS=8"
DIFFERS = {
    CAPTURED: f"""
        -> gather-under-graph
        PP=1 CUDA_GRAPH=false -> gather-without-chunks
        {SAVING} -> saving
        LOAD_CHECKPOINT_PATH=/c -> saving
        CUDA_GRAPH=false -> nothing
        RUN_CONF_IMAGE=/images/newest.sqsh LLMB_ENGINE=0.6.2 -> nothing
        RUN_CONF_IMAGE=/images/newest.sqsh LLMB_ENGINE=0.6.2 JOB_TOTAL_GPUS=128 FORCE=true -> gather-under-graph
    """,
    DENSE: f"""
        -> nothing
        PP=1 FSDP=true -> gather-without-chunks fsdp-queues
        RECOMPUTE_LAYERS=1 -> recompute-layers
        ENABLE_PROFILE=true -> profile
        {SAVING} ENABLE_PROFILE=true -> saving profile
    """,
    RUBIN: """
        DTYPE=bf16 -> r100-segment
        DTYPE=bf16 TP=2 -> r100-queues r100-segment
        DTYPE=fp8 ENABLE_CHECKPOINT=true -> r100-segment
    """,
    "MODEL_SIZE=llama3_70b GPU_TYPE=h100 JOB_TOTAL_GPUS=8 DTYPE=bf16 CONFIG_VARIANT=peft LOAD_CHECKPOINT_PATH=/c": """
        -> adapters-timeout
    """,
    "MODEL_SIZE=llama31_405b GPU_TYPE=b300 JOB_TOTAL_GPUS=512 DTYPE=fp8 FORCE=true PREFLIGHT=off": "-> queue-pairs",
    "laptop": "ENABLE_CHECKPOINT=true -> nothing",
}


@pytest.mark.parametrize(("words", "answers"), rows(DIFFERS))
def test_a_plan_says_what_it_does_otherwise_than_nvidias_runner(words: str, answers: list[str]) -> None:
    made = plans.plan("mbridge", words)
    said = plan_as_dict(made)["preflight"]
    names = [one["name"] for one in said["deviations"]]
    assert names == (answers[0].split() if answers != ["nothing"] else [])
    for one in said["deviations"]:
        (notice,) = [text for text in said["warnings"] if one["here"] in text]
        assert one["why"] in notice


def test_the_documented_recipes_say_it_too() -> None:
    job = "MODEL_SIZE=70b GPU_TYPE=h100 JOB_TOTAL_GPUS=64 DTYPE=fp8"
    for words, expected in (("", []), ("CUDA_GRAPH=true", ["gather-under-graph"]), (SAVING, ["saving"])):
        assert [one.name for one in plans.plan(job, words, PREFLIGHT="off").preflight.deviations] == expected


def test_pages_count_functions_only_where_the_count_is_generated() -> None:
    counts = "|".join({str(len(of.catalogue.index)) for of in RECIPE.releases.values() if of.catalogue})
    for page in (ROOT / "README.md", ROOT / "mbridge" / "README.md", ROOT / "docs" / "catalogue.md"):
        by_hand = re.sub(r"<!-- table: .*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
        assert not re.search(rf"\b({counts})\b (functions|performance recipes)", by_hand), page


def test_each_deviation_has_a_name_of_its_own() -> None:
    names = [one.name for one, _ in TABLE]
    assert len(names) == len(set(names))
