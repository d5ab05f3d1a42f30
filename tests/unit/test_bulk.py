"""Task files: both forms, their sweeps, defaults and overrides, and the errors when one is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.base.errors import ConfigError
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.record import update_record
from llmb_run.starting.requests import JobSpec
from llmb_run.starting.task_files import parse_text, read_tasks
from support import instant
from support.cli import Cli
from support.properties import given, st
from support.texts import Texts


@pytest.fixture
def workspace(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("GPU_TYPE", "h100")
    return Workspace(cli.install)


def read(tmp_path: Path, workspace: Workspace, text: str) -> list[JobSpec]:
    path = tmp_path / "tasks"
    path.write_text(text)
    return read_tasks(path, workspace)


def brief(specs: list[JobSpec]) -> list[tuple[str, str | None, str | None, str | None]]:
    said = (spec.settings for spec in specs)
    return [(it["workload"].removeprefix("pretrain_"), *map(it.get, ("size", "dtype", "scale"))) for it in said]


TEXT = """\
# the short form
pretrain_llama3.1_405b:
(fp8, [512, 1024], 2)
(['fp8', "bf16"], 512, 1, True)   # profiled

pretrain_grok1 314b:
(bf16, all, 1)
pretrain_nemotron4:
(bf16,[16,],1)
"""


def test_the_short_form(tmp_path: Path, workspace: Workspace) -> None:
    specs = read(tmp_path, workspace, TEXT)
    assert brief(specs) == [
        ("llama3.1", "405b", "fp8", "512"),
        ("llama3.1", "405b", "fp8", "512"),
        ("llama3.1", "405b", "fp8", "1024"),
        ("llama3.1", "405b", "fp8", "1024"),
        ("llama3.1", "405b", "fp8", "512"),
        ("llama3.1", "405b", "bf16", "512"),
        ("grok1", "314b", "bf16", "512"),
        ("nemotron4", None, "bf16", "16"),
    ]
    assert [spec.settings.get("profile") for spec in specs] == [None] * 4 + ["true"] * 2 + [None] * 2
    assert [spec.repeat for spec in specs[:4]] == [1, 2, 1, 2]


def test_a_size_may_hold_the_character_before_it(tmp_path: Path, workspace: Workspace) -> None:
    specs = read(tmp_path, workspace, "pretrain_mbridge_deepseek_v3:\n(bf16, 1024, 1)\n")
    assert brief(specs) == [("mbridge", "deepseek_v3", "bf16", "1024")]


def test_one_task_file_has_jobs_of_both_engines(tmp_path: Path, workspace: Workspace) -> None:
    task = "workload: llama3.1, size: 8b, scale: 8"
    specs = read(tmp_path, workspace, f'tasks:\n  - {{{task}}}\n  - {{{task}, engine: "0.6"}}\n')
    assert [spec.settings.get("engine") for spec in specs] == [None, "0.6"]


WRONG_TEXT = (
    (1, "(fp8, 512, 1)\n"),
    (2, "pretrain_grok1:\n(fp8, [512, 1)\n"),
    (2, "pretrain_grok1:\n(fp8, 512)\n"),
    (2, "pretrain_grok1:\n(fp8, 512, 0)\n"),
    (2, "pretrain_grok1:\n('', 512, 1)\n"),
    (2, "pretrain_grok1:\n(fp8, 512, 1, maybe)\n"),
    (2, "pretrain_grok1:\n(fp8, twelve, 1)\n"),
    (3, "pretrain_grok1:\n(fp8, 512, 1)\nfp8 512 1\n"),
    (1, "pretrain_grok2:\n(fp8, 512, 1)\n"),
    (1, "pretrain_grok1_315b:\n(fp8, 512, 1)\n"),
    (2, "pretrain_grok1:\n(__import__('os'), 512, 1)\n"),
)


def refusals(tmp_path: Path, workspace: Workspace, wrong: Sequence[tuple[int, str]]) -> str:
    """What each wrong task file is refused with; a message names the line that is given, and has a remedy."""
    told = []
    for line, text in wrong:
        with pytest.raises(ConfigError) as caught:
            read(tmp_path, workspace, text)
        assert f":{line}: " in caught.value.message
        assert caught.value.remedy
        told.append(str(caught.value))
    return "\n".join(told)


def test_a_mistake_in_the_short_form_has_its_line(tmp_path: Path, workspace: Workspace, texts: Texts) -> None:
    texts(refusals(tmp_path, workspace, WRONG_TEXT))


@given(st.text(alphabet="()[],'\"#:abfp816 \n_.-$\\{}", max_size=60))
def test_the_short_form_only_ever_fails_with_one_of_our_errors(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_text("pretrain_grok1:\n" + text, "tasks", Workspace(Path("/nonexistent")))


YAML = """\
defaults:
  gpu_type: h100
  time_limit: 2:00:00
  max_steps: 60
  env: {NCCL_DEBUG: WARN, UCX_TLS: rc}
tasks:
  - workload: pretrain_llama3.1
    size: [8b, 70b]
    dtype: [fp8, bf16]
    scale: [64, 128]
    repeats: 2
    env: {NCCL_DEBUG: INFO}
    overrides:
      - when: {size: 70b, scale: 128}
        use: {time_limit: 150, set: {gbs: 512, fsdp: false}, slurm: {qos: high, exclusive: null}}
  - workload: [grok1, pretrain_nemotron4]
    min_scale: 512
    max_scale: 512
    profile: true
"""


def test_the_yaml_form(tmp_path: Path, workspace: Workspace) -> None:
    specs = read(tmp_path, workspace, YAML)
    assert len(specs) == 2 * 2 * 2 * 2 + 2
    plain = {"gpu_type": "h100", "time_limit": "2:00:00", "max_steps": "60", "NCCL_DEBUG": "INFO", "UCX_TLS": "rc"}
    assert specs[0].settings.items() > plain.items()
    changed = [spec for spec in specs if "gbs" in spec.settings]
    assert brief(changed) == [("llama3.1", "70b", dtype, "128") for dtype in ("fp8", "fp8", "bf16", "bf16")]
    assert changed[0].settings.items() > {"time_limit": "150", "gbs": "512", "fsdp": "false"}.items()
    assert changed[0].slurm == {"qos=high": "slurm", "exclusive": "slurm"}
    assert brief(specs[-2:]) == [("grok1", None, None, "512"), ("nemotron4", None, None, "512")]
    assert specs[-1].settings["profile"] == "true"


def test_a_list_anywhere_is_a_sweep(tmp_path: Path, workspace: Workspace) -> None:
    text = """\
defaults: {env: {NCCL_ALGO: [Ring, Tree]}, set: {mbs: 2}, scale: 8}
tasks:
  - workload: grok1
    set: {mbs: [1, 2], fsdp: false}
    engine: ["0.3", "0.6"]
    zip: {tp: [4, 8], scale: [512, 1024]}
    overrides:
      - when: {tp: 8, NCCL_ALGO: [Ring], mbs: 1, engine: "0.6"}
        use: {env: {NCCL_ALGO: NVLS}, max_steps: 9}
"""
    specs = read(tmp_path, workspace, text)
    assert len(specs) == 2 * 2 * 2 * 2
    assert {(spec.settings["tp"], spec.settings["scale"]) for spec in specs} == {("4", "512"), ("8", "1024")}
    first, second = specs[:2]
    assert first.varied == {"NCCL_ALGO": "Ring", "engine": "0.3", "mbs": "1", "tp": "4", "scale": "512"}
    assert second.varied == first.varied | {"tp": "8", "scale": "1024"}
    (overridden,) = (spec.settings for spec in specs if "max_steps" in spec.settings)
    wanted = {"NCCL_ALGO": "NVLS", "mbs": "1", "fsdp": "false", "tp": "8", "engine": "0.6"}
    assert overridden.items() > wanted.items()


WRONG_YAML = (
    (1, "tasks: []\n"),
    (3, "tasks:\n  - workload: grok1\n    size: []\n"),
    (3, "tasks:\n  - workload: grok1\n    size: [314b, ' ']\n"),
    (2, "defaults:\n  scale: null\ntasks:\n  - workload: grok1\n"),
    (3, "tasks:\n  - workload: grok1\n    slurm:\n"),
    (2, "tasks:\n  - workload: grok1\n    scale: [512]\n    min_scale: 64\n"),
    (2, "tasks:\n  - workload: grok1\n    set: {tp: 4, TP: 4}\n"),
    (1, "defaults:\n  set: {tpp: 4}\ntasks:\n  - workload: grok1\n"),
    (3, "tasks:\n  - workload: grok1\n    scal: 512\n"),
    (2, "tasks:\n  - workload: grok1\n    set: {tp: [4, 4]}\n"),
    (2, "tasks:\n  - workload: grok1\n    zip: {tp: [1, 2], pp: [4]}\n"),
    (2, "tasks:\n  - workload: grok1\n    set: {tp: 4}\n    zip: {tp: [1, 2], pp: [4, 2]}\n"),
    (4, "tasks:\n  - workload: grok1\n    overrides:\n      - {when: {tpp: 4}, use: {max_steps: 9}}\n"),
    (4, "tasks:\n  - workload: grok1\n    overrides:\n      - {when: {size: 314b}, use: {set: {tp: [1, 2]}}}\n"),
    (2, "tasks:\n  - size: 8b\n"),
    (3, "tasks:\n  - workload: grok1\n    repeats: 0\n"),
    (3, "tasks:\n  - workload: grok1\n    scale: -8\n"),
    (4, "tasks:\n  - workload: grok1\n    scale: 512\n    scale: 256\n"),
    (2, "tasks:\n  - workload: grok1\n    scale: 512\n    env: {HF_TOKEN: abc}\n"),
    (2, "tasks:\n  - workload: grok1\n    scale: 512\n    set: {tpp: 4}\n"),
    (2, "tasks:\n  - workload: grok2\n    scale: 512\n"),
    (
        5,
        "tasks:\n  - workload: grok1\n    scale: 512\n    overrides:\n"
        "      - {when: {scale: 256}, use: {max_steps: 9}}\n",
    ),
)


def test_a_mistake_in_yaml_has_its_line(tmp_path: Path, workspace: Workspace, texts: Texts) -> None:
    texts(refusals(tmp_path, workspace, WRONG_YAML))


def test_a_task_that_says_its_scales_says_all_of_it(tmp_path: Path, workspace: Workspace) -> None:
    own = "  - {workload: grok1, scale: 512}\n"
    bounds = "  - {workload: grok1, max_scale: 512}\n"
    specs = read(tmp_path, workspace, f"defaults: {{min_scale: 1024}}\ntasks:\n{own}")
    specs += read(tmp_path, workspace, f"defaults: {{scale: 8}}\ntasks:\n{own}{bounds}")
    assert [spec.settings["scale"] for spec in specs] == ["512"] * 3
    assert [spec.where.rpartition(":")[2] for spec in specs] == ["3", "3", "4"]


def test_a_variable_of_a_job_may_be_empty(tmp_path: Path, workspace: Workspace) -> None:
    (spec,) = read(tmp_path, workspace, 'tasks:\n  - {workload: grok1, env: {NCCL_ALGO: ""}}\n')
    assert spec.settings["NCCL_ALGO"] == ""


def test_a_job_that_cannot_be_planned_has_its_line(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    path = tmp_path / "tasks.yaml"
    path.write_text("defaults: {gpu_type: h100}\ntasks:\n  - {workload: grok1, scale: 511}\n")
    one = cli("bulk", path, "--dry-run").err
    path.write_text(path.read_text() + "  - {workload: grok1, scale: 512}\n  - {workload: grok1, scale: 513}\n")
    several = cli("bulk", path, "--dry-run").err
    texts(one, about="error: ")
    for line in (f"{path}:3: pretrain_grok1 511 GPUs: --scale 511", f"{path}:5: pretrain_grok1 513 GPUs: --scale 513"):
        assert line in several


def test_a_job_keeps_its_name_when_the_file_grows(tmp_path: Path, workspace: Workspace) -> None:
    tasks = "pretrain_grok1:\n(fp8, 512, 2)\n(fp8, 256, 1)\n"
    before = [spec.digest("tasks") for spec in read(tmp_path, workspace, tasks)]
    after = [spec.digest("tasks") for spec in read(tmp_path, workspace, "pretrain_nemotron4:\n(bf16, 16, 1)\n" + tasks)]
    assert len(set(after)) == 4
    assert after[1:] == before
    assert not set(before) & {spec.digest("tasks", "again") for spec in read(tmp_path, workspace, tasks)}


def test_no_job_is_there_twice_when_one_before_it_is_corrected(site: Cli, tmp_path: Path) -> None:
    path = tmp_path / "tasks.yaml"
    for tp in (3, 2):
        path.write_text(
            "".join(["tasks:\n", *(f"  - {{workload: llama3.1, scale: 2, set: {{tp: {n}}}}}\n" for n in (tp, 1))])
        )
        assert site("bulk", path, "--skip-unsupported").status == 0
    assert len(instant.accepted()) == 2


def test_a_run_that_ended_with_the_command_that_followed_it_is_not_said_to_run(here: Cli, tmp_path: Path) -> None:
    path = tmp_path / "tasks.yaml"
    path.write_text("tasks:\n  - {workload: llama3.1, size: smoke, dtype: bf16, scale: 1}\n")
    assert "  COMPLETED  " in here("bulk", path).out
    (folder,) = here.install.glob("workloads/*/experiments/*/*_*")
    update_record(folder, lambda record: replace(record, states=record.states[:1]).with_state("RUNNING"))
    done = here("bulk", path)
    assert "  COMPLETED  " in done.out


def test_a_dry_run_of_a_file(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    (tmp_path / "sweep.yaml").write_text(YAML)
    done = cli("bulk", tmp_path / "sweep.yaml", "--dry-run")
    assert done.status == 0, done.err
    texts(done.err, about="nothing started")
    assert cli("bulk", tmp_path / "none.yaml").status == 2
