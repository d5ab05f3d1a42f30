"""How messages call the fields of a request, where a slip ends and another program's variable begins, and defaults."""

from __future__ import annotations

import msgspec
import pytest

from llmb_common.errors import RequestError
from llmb_common.request.columns import Columns
from llmb_common.request.fields import VARIABLE_NAMES, FieldNames
from llmb_common.request.names import refuse_typos
from llmb_common.request.read import read_request
from llmb_common.request.values import gres_count, gres_type, is_mount
from llmb_common.request.variables import COLUMNS

OPTIONS = FieldNames({"JOB_TOTAL_GPUS": "--scale", "ENABLE_PROFILE": "--profile", "TIME_LIMIT": "--time-limit"})


def test_a_field_is_called_by_its_variable_or_by_its_option() -> None:
    assert VARIABLE_NAMES("DTYPE") == "DTYPE"
    assert VARIABLE_NAMES("DTYPE", "fp9") == "DTYPE=fp9"
    assert OPTIONS("DTYPE", "fp9") == "DTYPE=fp9", "no option has that field"
    assert OPTIONS("JOB_TOTAL_GPUS") == "--scale"
    assert OPTIONS("JOB_TOTAL_GPUS", 128) == "--scale 128"
    assert OPTIONS("ENABLE_PROFILE", "true") == "--profile"
    assert OPTIONS("ENABLE_PROFILE", "maybe") == "--profile maybe"


@pytest.mark.parametrize(
    ("variables", "message", "field"),
    [
        ({"JOB_TOTAL_GPUS": "x"}, "--scale x is not a positive whole number", "JOB_TOTAL_GPUS"),
        ({"ENABLE_PROFILE": "maybe"}, "--profile maybe is neither true nor false", "ENABLE_PROFILE"),
        ({"ENABLE_GPU_METRICS": "1"}, "ENABLE_GPU_METRICS needs --profile", ""),
        ({"PROFILE_RANKS": "0"}, "PROFILE_RANKS needs --profile", ""),
        ({"ENABLE_PROFILE": "1", "ENABLE_NCCLTRACE": "1"}, "--profile and ENABLE_NCCLTRACE exclude each other", ""),
    ],
)
def test_messages_of_a_front_end_with_options(variables: dict[str, str], message: str, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_request(variables, OPTIONS)
    assert (caught.value.message, caught.value.field) == (message, field)
    assert caught.value.remedy


def test_a_dry_run_may_be_json_too() -> None:
    with pytest.raises(RequestError) as caught:
        read_request({"DRY_RUN": "yaml"})
    assert caught.value.remedy == "DRY_RUN=true or DRY_RUN=false, or DRY_RUN=json"


def test_a_line_break_in_a_value_is_refused_with_what_to_do() -> None:
    with pytest.raises(RequestError) as caught:
        read_request({"GPU_TYPE": "h100\nx"})
    assert caught.value.remedy == "write it on one line, in UTF-8"
    assert caught.value.field == "GPU_TYPE"


def test_the_old_name_of_the_installation_has_a_code_of_its_own() -> None:
    with pytest.raises(RequestError) as caught:
        read_request({"STAGE_PATH": "/lustre"})
    assert caught.value.code == "stage-path"
    assert "$LLMB_INSTALL/workloads/<workload>/experiments" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DTYPA", "DTYPE"),  # five characters are long enough to be compared
        ("FORCED", "FORCE"),
        ("MODELSIZE", "MODEL_SIZE"),
        ("force", "FORCE"),
        ("MAX_STEP", "MAX_STEPS"),
        ("FORGE", "FORCE"),
        ("DTYP", None),
        ("MODEL_SIGN", None),
    ],
)
def test_how_near_a_slip_is(name: str, meant: str | None) -> None:
    documented = ["DTYPE", "FORCE", "MODEL_SIZE", "MAX_STEPS", "TP"]
    if meant is None:
        refuse_typos({name: "x"}, documented)
        return
    with pytest.raises(RequestError, match=rf"the variable {name} is unknown \(did you mean {meant}\?\)"):
        refuse_typos({name: "x"}, documented)


def test_a_row_says_only_what_is_not_one_or_off() -> None:
    assert msgspec.to_builtins(msgspec.convert({"mbs": 1, "gbs": 8}, Columns[int])) == {
        **{"tp": 1, "pp": 1, "cp": 1, "ep": None, "etp": None, "vp": None, "mbs": 1, "gbs": 8},
        **{"fsdp": False, "cuda_graph": False, "recompute_layers": 0, "offload_layers": 0},
    }
    assert COLUMNS["RECOMPUTE_LAYERS"] == "recompute_layers"


@pytest.mark.parametrize(
    ("wrong", "problem"), [({"tp": 0}, ">= 1"), ({"offload_layers": -1}, ">= 0"), ({"dp": 1}, "dp")]
)
def test_a_column_that_cannot_be_is_refused(wrong: dict[str, int], problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        msgspec.convert({"mbs": 1, "gbs": 8} | wrong, Columns[int])
    assert msgspec.convert({"mbs": 1, "gbs": 8, "tp": 1, "offload_layers": 0}, Columns[int]).tp == 1


@pytest.mark.parametrize(
    ("text", "count", "kind"),
    [("8", 8, None), ("h100:4", 4, "h100"), ("gpu:9999", 9999, None), ("gpu:a.b-c:1", 1, "a.b-c")],
)
def test_gpus_of_a_node_in_slurms_words(text: str, count: int, kind: str | None) -> None:
    assert (gres_count(text), gres_type(text)) == (count, kind)


@pytest.mark.parametrize("text", ["/a", "/", "/a:/b", "/a:/b:ro", "/a:/b:ro+nosuid=1", "/a b:/c d"])
def test_mounts(text: str) -> None:
    assert is_mount(text)


@pytest.mark.parametrize("text", ["", "a", "a:/b", "/a:b", "/a:/b:", "/a:/b:ro:x", "/a:/b:r o", "/a,/b"])
def test_what_is_no_mount(text: str) -> None:
    assert not is_mount(text)
