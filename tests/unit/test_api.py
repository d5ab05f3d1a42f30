"""LLMB from Python: what the reference shows, and what it says of wrong calls."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from llmb_common.base.errors import RequestError
from llmb_common.planning.job_plan import plan_as_dict
from llmb_common.submission.launch import main as launch
from llmb_run.api import LLMBError, measure, plan, submit, wait
from support.run_site import RECIPE, ROOT, RunSite, with_small_code
from support.texts import Texts


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSite:
    with_small_code(tmp_path, monkeypatch)
    monkeypatch.setenv("STANDIN_STEPS", "job")
    return RunSite(tmp_path, "local")


def test_the_example_of_the_reference(
    site: RunSite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLMB_INSTALL", str(site.install))
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "reference.md").read_text(), re.DOTALL)
    exec(compile(example, "docs/reference.md", "exec"), {})
    assert capsys.readouterr().out == "0.1005\n"


def test_a_plan_is_that_of_launch_sh(
    site: RunSite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "2", "GBS": "8", "NCCL_DEBUG": "INFO"}
    planned = plan("pretrain_llama3.1", install=site.install, **said)
    for name, value in {**said, "LLMB_INSTALL": str(site.install), "DRY_RUN": "json"}.items():
        monkeypatch.setenv(name, value)
    assert launch([str(RECIPE)]) == 0
    printed, made = json.loads(capsys.readouterr().out), json.loads(json.dumps(plan_as_dict(planned)))
    del printed["preflight"], made["preflight"]  # notices name variables for one and options for the other
    assert printed == made


def test_a_run_that_goes_on_has_its_state_and_no_time(site: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_GATE", str(site.install / "gate"))
    run = submit(plan("llama3.1", install=site.install, MODEL_SIZE="smoke", JOB_TOTAL_GPUS=1))
    assert wait(run, install=site.install, timeout=0) == {run: "RUNNING"}
    assert measure(run, install=site.install)[0]["step_seconds"] is None
    (site.install / "gate").touch()
    assert wait(run, install=str(site.install)) == {run: "COMPLETED"}


@pytest.mark.parametrize(
    "variables",
    [{"JOB_TOTAL_GPU": 2}, {"GBS": True}, {"tp": 2}, {"HF_TOKEN": "hf_x"}],
    ids=lambda value: next(iter(value)),
)
def test_wrong_variables(site: RunSite, variables: dict[str, object], texts: Texts) -> None:
    with texts.raises(RequestError):
        plan("llama3.1", install=site.install, MODEL_SIZE="smoke", **variables)


def test_what_does_not_exist(site: RunSite, texts: Texts) -> None:
    assert wait(install=site.install) == {}
    with texts.raises(LLMBError):
        wait("nosuch", install=site.install)
    with texts.raises(LLMBError):
        measure("nosuch", install=site.install)
    with texts.raises(LLMBError):
        measure(install=site.install / "nosuch")
