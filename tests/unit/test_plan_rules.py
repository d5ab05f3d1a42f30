"""Each arithmetic rule of a layout at its edge: the last value that Megatron takes, and the first that it does not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llmb_common.base.errors import RequestError
from llmb_common.planning.divisibility import Layout, broken_rules, refuse_first
from llmb_common.recipes.loading import load_recipe
from support.plans import ROOT, check_answers, rows

MODELS = {
    "dense": load_recipe(ROOT / "llama3.1").model("405b").listed,  # 128 heads, 8 query groups, 126 layers
    "experts": load_recipe(ROOT / "llama4").model("400b").listed,  # 128 experts
    "chunks": load_recipe(ROOT / "llama4").model("smoke").listed,  # attention in chunks of 64 tokens
}
OF_EXPERTS = {"expert_ffn": "ffn", "shared_ffn": "shared_ffn"}


def layout(**columns: int | bool | None) -> Layout:
    return Layout(**{"gpus": 128, "mbs": 1, "gbs": 128, "seq_len": 8192, **columns})  # type: ignore[arg-type]


def check(words: str) -> None:
    """``experts tp=2 length=24 heads=4``: the model, its changed numbers, the columns, the sequence, the family."""
    model, length, family, columns = MODELS["dense"], 8192, "llama3", dict[str, int | None]()
    for word in words.split():
        name, _, value = word.partition("=")
        if name in MODELS:
            model = MODELS[name]
        elif name == "family":
            family = value
        elif name == "length":
            length = int(value)
        elif name in OF_EXPERTS:
            model = replace(model, moe=replace(model.moe, **{OF_EXPERTS[name]: int(value)}))
        elif name in Layout.__struct_fields__:
            columns[name] = None if value == "none" else int(value)
        else:
            model = replace(model, **{name: int(value)})
    refuse_first(broken_rules(layout(**columns, seq_len=length), model, family))


DIVIDES = """
    tp=1; tp=2; tp=8; tp=16; tp=32;             tp=4 pp=2 cp=2;                       length=8191
    tp=4 cp=2;                                  length=24 tp=4 cp=2;                  length=24 cp=4; length=21 cp=1
    experts cp=2 ep=64 etp=1;                   chunks length=64 cp=2 ep=1;           chunks length=128 ep=1
    gbs=256 mbs=2; gbs=64 tp=2;                 pp=8 vp=8 gbs=128; pp=8 vp=8 gbs=256; pp=8 vp=none gbs=192
    pp=8 vp=1 gbs=192; vp=1;                    pp=8 gbs=128; pp=2 gbs=128; pp=2;     experts ep=128 etp=1
    experts ep=64 etp=2 tp=2;                   experts ep=32 etp=1 pp=4;             ep=1 etp=1
    experts expert_ffn=1001 ep=1 etp=7 gpus=112 gbs=112;                              offload_layers=125; fsdp=1
    cuda_graph=1 recompute_layers=4;            layers=126 pp=8 vp=8 gbs=1024 recompute_layers=16
    layers=80 pp=8 vp=5 gbs=1024 recompute_layers=10;                                 gbs=1024 recompute_layers=126
"""


@pytest.mark.parametrize("words", [words.strip() for words in DIVIDES.strip().replace("\n", ";").split(";")])
def test_a_layout_that_divides_is_taken(words: str) -> None:
    check(words)


REFUSED = {
    "": """
        gpus=24 tp=4 pp=2 cp=2 gbs=24 -> 24 GPUs are not divisible by TP*PP*CP = 4*2*2 = 16 & use a multiple of 16 GPUs
        length=25 tp=2 -> is not divisible by TP*CP = 2
        length=20 tp=4 cp=2 -> sequence of 20 tokens is not divisible by TP*CP = 8
        length=20 cp=4 -> CP=4 needs a sequence length divisible by 2*CP = 8; it is 20
        chunks length=128 cp=2 ep=1 -> attention chunks of 64 tokens
        query_groups=12 heads=96 ffn=49152 tp=8 -> neither divides the 12 query groups
        gbs=192 mbs=2 -> GBS=192 is not divisible by MBS*DP = 2*128 = 256 & use a multiple of 256 as GBS
        pp=8 vp=8 gbs=192 -> GBS/(MBS*DP) = 12) must be divisible by PP = 8
        pp=8 vp=8 gbs=64 -> set VP=NA
        vp=2 -> VP=2 needs PP > 1
        vp=4 -> set VP=NA
        gpus=160 pp=5 gbs=160 -> neither 126 layers nor 128 (with embedding and loss) are divisible by PP = 5
        pp=8 vp=3 gbs=128 -> divisible by PP*VP = 8*3
        ep=2 -> EP=2: this model has no experts
        etp=2 -> ETP=2: this model has no experts
        offload_layers=126 -> OFFLOAD_LAYERS=126 is not less than the 126 layers
        offload_layers=1 recompute_layers=1 -> cannot be combined
        offload_layers=1 pp=2 -> needs PP=1
        offload_layers=4 pp=2 -> set OFFLOAD_LAYERS=0
        fsdp=1 pp=2 -> FSDP needs PP=1 & set FSDP=false
        layers=126 pp=8 vp=8 gbs=1024 recompute_layers=17 -> more than the 16 layers
        layers=80 pp=8 vp=5 gbs=1024 recompute_layers=11 -> more than the 10 layers
        gbs=1024 recompute_layers=127 -> more than the 126 layers
        cuda_graph=1 offload_layers=40 -> OFFLOAD_LAYERS=40 cannot be combined & CUDA_GRAPH=false
        cuda_graph=1 recompute_layers=4 family=nemotron4 -> cannot be combined
    """,
    "cuda_graph=1 fsdp=1": "\n".join(
        f"family={family} -> CUDA_GRAPH and FSDP cannot be combined & set CUDA_GRAPH=false, or FSDP=false"
        for family in ("llama3", "llama4", "grok1", "nemotron4")
    ),
    "experts": """
        ep=128 etp=2 tp=2 -> 128 GPUs are not divisible by ETP*EP*PP = 2*128*1 = 256
        ep=128 tp=2 -> ETP*EP*PP = 2*128*1
        ep=64 etp=1 pp=4 -> ETP*EP*PP = 1*64*4 = 256
        gpus=96 gbs=96 ep=3 etp=1 -> EP=3 does not divide the 128 experts
        expert_ffn=1001 ep=1 etp=2 -> ETP=2 does not divide the experts' FFN size 1001
    """,
    "experts tp=8 ep=1": """
        heads=4 -> attention heads of 4
        ffn=1001 -> FFN size of 1001
        vocabulary=202049 -> vocabulary of 202049
        shared_ffn=1001 -> shared expert's FFN size of 1001
    """,
}


@pytest.mark.parametrize(("words", "answers"), rows(REFUSED))
def test_one_that_does_not_is_refused_with_the_column_and_what_turns_it_off(words: str, answers: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        check(words)
    assert caught.value.code == "does-not-divide"
    assert caught.value.remedy
    check_answers(str(caught.value), answers)


def test_sizes_of_groups() -> None:
    columns = {"gpus": 256, "tp": 2, "pp": 2, "cp": 2, "ep": 8, "mbs": 2, "gbs": 512}
    assert (layout(**columns).dp, layout(**columns).ga) == (32, 8)
    assert layout(**columns).expert_dp == 8  # 256 / (2 stages * 8 experts' ranks * TP 2)
    assert layout(**columns, etp=1).expert_dp == 16
    assert layout().expert_dp is None
