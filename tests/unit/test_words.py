"""Valid Slurm names, single-line values and job variables, wherever they are given."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from llmb_common.base.errors import ConfigError, LLMBError, RequestError
from llmb_common.base.words import (
    is_experiment_name,
    is_node_name,
    is_slurm_name,
    job_variable_problem,
    line_problem,
    mount_problem,
    span_seconds,
)
from llmb_common.planning.request.read import read_request
from llmb_common.planning.request.values import gres_type
from llmb_common.planning.site.cluster import ClusterConfig, load_cluster_config
from llmb_common.recipes.loading import load_recipe
from llmb_common.submission.supervisor import render_supervisor
from llmb_install.answers.checks import check_answers
from llmb_install.commands.doctor import doctor
from llmb_run.starting.command_line import check_job_variable
from support.golden import GOLDEN
from support.texts import Texts

ROOT = Path(__file__).resolve().parents[2]
RECIPES = {load_recipe(ROOT / name).workload: load_recipe(ROOT / name) for name in ("grok1",)}
NO_NAMES = [
    *("a;b", "-x", "a$b", "a b", "a`b", 'a"b', "a'b", "a|b", "a&b", "a\\b", "a(b)", "a#b", "a<b", "a\nb", "a*", "x\t"),
]
NAMES = ["batch", "a-b", "gpu_1", "one,two", "proj.2026", "9", "_x", "a@b", "ü"]


def config(folder: Path, text: str) -> ClusterConfig:
    (folder / "cluster_config.yaml").write_text(text, encoding="utf-8")
    return load_cluster_config(folder)


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


@pytest.mark.parametrize("name", [*NO_NAMES, ""])
def test_text_that_a_shell_or_slurm_would_interpret_is_not_a_name(name: str) -> None:
    assert not is_slurm_name(name)


@pytest.mark.parametrize("name", NAMES)
def test_names_that_sites_use_are_accepted_everywhere(tmp_path: Path, name: str) -> None:
    assert config(tmp_path, f"slurm: {{account: {quoted(name)}}}").slurm.account == name
    assert read_request({"SBATCH_PARTITION": name}).scheduler == {"SBATCH_PARTITION": name}
    check_answers(answers(account=name, cpu_partition=name), RECIPES)


def answers(**changes: str) -> dict[str, object]:
    given = {"install_path": "/x", "cluster_type": "slurm", "gpu_type": "h100", "workloads": "all", "arch": "x86_64"}
    return {**given, "account": "a", "gpu_partition": "p", **changes}


@pytest.mark.parametrize("name", NO_NAMES)
def test_one_rule_refuses_it_everywhere(tmp_path: Path, name: str) -> None:
    for key in ("account", "gpu_partition", "cpu_partition"):
        with pytest.raises(ConfigError) as in_file:
            config(tmp_path, f"slurm: {{{key}: {quoted(name)}}}")
        assert f"slurm.{key}" in in_file.value.message
        with pytest.raises(RequestError) as answered:
            check_answers(answers(**{key: name}), RECIPES)
        assert key in answered.value.message
    for variable in ("SBATCH_ACCOUNT", "SBATCH_PARTITION"):
        if name == name.strip():
            with pytest.raises(RequestError) as requested:
                read_request({variable: name})
            assert requested.value.field == variable
    for flag in ("account", "gpu_partition"):
        asked = argparse.Namespace(**{"account": None, "gpu_partition": None, "verbose": False, flag: name})
        with pytest.raises(RequestError) as given:
            doctor(asked, ROOT, tmp_path / "none")
        assert f"--{flag.replace('_', '-')}" in given.value.message


@pytest.mark.parametrize(
    "key",
    ["repo: {}", "image_folder: {}", "mounts: ['/a', {}]", "workloads: [a, {}]", "engine: {{python: {}}}"]
    + [f"slurm: {{{{{key}: {{}}}}}}" for key in ("account", "gpu_partition", "cpu_partition", "additional_params")],
)
@pytest.mark.parametrize("value", ["/a\\nTASK\\ntouch evil", "/a\\r", "\\x7f/a", "/a\\n"])
def test_every_text_of_the_sites_file_is_one_line(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, key.format(f'"{value}"'))
    name = re.findall(r"[a-z_]{2,}", key)
    assert ".".join(name[: 2 if name[0] in ("slurm", "engine") else 1]) in caught.value.message


def test_lines_hold_any_other_text(texts: Texts) -> None:
    assert line_problem("it's $(x) `y` \\ % ü€ \u2028 ~") == ""
    assert line_problem("a\x1fb") == line_problem("a\x7f")
    texts(line_problem("a\x7f"))
    assert line_problem("a\ud800") == line_problem("\udfff")
    texts(line_problem("\udfff"))
    assert line_problem("\ud7ff\ue000 ") == ""


@pytest.mark.parametrize(
    "name", ["A;touch x", "A B", "1A", "", "Ü", "A-B", "A\n", "A=B", "BASHOPTS", "UID", "IFS", "_"]
)
def test_a_variable_that_would_break_the_script_is_refused_everywhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as in_file:
        config(tmp_path, f"environment: {{{quoted(name)}: x}}")
    assert "environment" in in_file.value.message
    with pytest.raises(RequestError) as given:
        check_job_variable(name, "x", "--env")
    assert given.value.message.startswith("--env")


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "http_proxy", "no_proxy", "MyVar", "PATH2", "OMP_NUM_THREADS", "X"])
def test_ordinary_variables_are_taken(tmp_path: Path, name: str) -> None:
    assert config(tmp_path, f"environment: {{{name}: ' $(x) '}}").environment == {name: " $(x) "}
    check_job_variable(name, "x", "--env")


def test_no_variable_of_the_job_scripts_can_be_set_from_outside(texts: Texts) -> None:
    """Every variable that the scripts assign, except those a job may bring along."""
    text = (GOLDEN / "scripts" / "reference.sbatch").read_text()
    for path in sorted(GOLDEN.glob("scripts/switches/*.txt")):  # their heads, and their differences from the reference
        text += "".join(f"{line.removeprefix('+')}\n" for line in path.read_text().splitlines())
    text += "".join(render_supervisor(cluster_type).decode() for cluster_type in ("slurm", "local"))
    unquoted = re.sub(r"'[^'\n]*'|#.*", "", text)
    assigned = set(re.findall(r"(?:^|[;({]|\blocal|\bexport|\bread -r)\s*([A-Za-z_]\w*)\+?=", unquoted, re.M))
    exported = {name for name in re.findall(r"^export ([A-Z0-9_]+)=", text, re.M) if not name.startswith("LLMB_")}
    names = assigned - (exported - {"MASTER_ADDR"}) - {"PYTHONPATH", "LC_ALL"}  # the last one for a single command
    assert {"log", "step", "prefix", "master", "LLMB_RUN_DIR", "LLMB_EXPERIMENT", "MASTER_ADDR"} <= names
    assert [name for name in sorted(names) if not job_variable_problem(name, "x")] == []
    texts(job_variable_problem("LLMB_RESUME", "1"))
    texts(job_variable_problem("SECONDS", "1"))


BASH = """BASHOPTS BASH_VERSINFO EUID PPID SHELLOPTS UID IFS SECONDS GROUPS DIRSTACK BASHPID BASH_ENV BASH_REMATCH
FUNCNAME LINENO OPTIND PIPESTATUS RANDOM _"""


@pytest.mark.parametrize("name", BASH.split())
def test_variables_that_bash_keeps_itself_cannot_be_set(name: str) -> None:
    assert job_variable_problem(name, "1").startswith(f"{name} ")


def test_names_of_experiments_and_nodes() -> None:
    assert all(map(is_experiment_name, ("a", "9.+-_", "x" * 200)))
    assert not any(map(is_experiment_name, ("x" * 201, "", "-a", "a\n", "a/b", "ü", 7, None)))
    assert all(map(is_node_name, ("n1", "gpu-07.rack_2")))
    assert not any(map(is_node_name, ("-1", "/dev/full", "a b", "*", "")))


@pytest.mark.parametrize("value", ["a\nb", "\x00", "\udc80"])
def test_a_value_of_several_lines_is_refused(value: str, texts: Texts) -> None:
    with texts.raises(LLMBError):
        check_job_variable("A", value, "--env")


def test_what_each_runtime_can_mount() -> None:
    can = {
        "/a b": (True, False),
        **dict.fromkeys(("/it's", "/ü;%j"), (True, True)),
        **dict.fromkeys(("/a,b", "/a:b", "/a$b", "/a`b", '/a"b', "/a\\b", "/a\nb"), (False, False)),
    }
    assert {path: (mount_problem(path, "pyxis") == "", mount_problem(path, "enroot") == "") for path in can} == can


@pytest.mark.parametrize("mount", ["data", "/a:b", "/a:/b:ro:x", "/a:/b:$(x)", "/a:/b:", ":/a", "/a:/b:ro nosuid"])
def test_text_that_is_not_a_mount_is_refused_everywhere(tmp_path: Path, mount: str, texts: Texts) -> None:
    with pytest.raises(ConfigError) as in_file:
        config(tmp_path, f"mounts: [{quoted(mount)}]")
    assert "mounts" in in_file.value.message
    with texts.raises(RequestError):
        read_request({"RUN_CONF_MOUNTS": f"/x,{mount}"})


def test_mounts_in_all_their_forms(tmp_path: Path, texts: Texts) -> None:
    mounts = ("/a", "/a:/b c", "/a:/b:ro", "/a:/b:ro+nosuid", "/a:/b:x-create=dir")
    assert read_request({"RUN_CONF_MOUNTS": ", ".join(mounts)}).mounts == mounts
    with texts.raises(ConfigError):
        config(tmp_path, "mounts: ['/a,b:/c']")


@pytest.mark.parametrize(
    ("text", "kind"),
    [("8", None), ("gpu:8", None), ("h100:8", "h100"), ("gpu:h100:8", "h100"), ("gpuh100:8", "gpuh100")],
)
def test_gres_types(text: str, kind: str | None) -> None:
    assert (gres_type(text), read_request({"SBATCH_GPUS_PER_NODE": text}).gpus_per_node) == (kind, 8)


@pytest.mark.parametrize("text", ["a:b:8", "-x:8", "gpu::8", "a;b:8", "8:gpu", "0", "gpu:a$b:8"])
def test_what_is_no_gres(text: str, texts: Texts) -> None:
    with texts.raises(RequestError):
        read_request({"SBATCH_GPUS_PER_NODE": text})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("30s", 30), ("90m", 5400), (" 2H ", 7200), ("1d", 86400), ("2W", 1209600), ("0s", 0)),
        *(("00:30:00", 1800), ("2-01:00:05", 176405), ("100:00:00", 360000)),
        *((text, None) for text in ("90", "1.5h", "-1h", "1:60:00", "90:00", "h", "1234567d", "1h30m", "")),
    ],
)
def test_spans_of_time(text: str, seconds: int | None) -> None:
    assert span_seconds(text) == seconds
