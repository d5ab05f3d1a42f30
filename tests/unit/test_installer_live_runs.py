"""Nothing is removed that a run trains in, or will when it starts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_installer_commands import Installer, given, install, installer  # noqa: F401  (fixtures)

from llmb_common.errors import RecordError
from llmb_common.index import find_runs, note
from llmb_common.process import identify
from llmb_common.runs.record import RunRecord, load_record
from llmb_install.answers.stored import ANSWERS_FILE
from llmb_install.commands import live_runs
from support.runs import make_run

# ruff: noqa: F811  (fixtures)

SMOKE = {"MODEL_SIZE": "smoke", "GPU_TYPE": "cpu", "JOB_TOTAL_GPUS": "1", "CLUSTER_TYPE": "local"}


@pytest.fixture
def training() -> Iterator[subprocess.Popen[bytes]]:
    """What plays the script of a run."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def live_run(install: Path, process: subprocess.Popen[bytes]) -> RunRecord:
    record = make_run(install, state="RUNNING", job_id=None, variables=SMOKE)
    record = replace(record, process=identify(process.pid))
    record.save()
    note(record)
    return record


@pytest.mark.parametrize("words", [("remove", "llama3.1"), ("remove", "all"), ("uninstall", "--yes")])
def test_it_is_refused_until_the_run_has_ended(installer, install, training, words):
    given(install)
    record = live_run(install, training)
    answers = (install / ANSWERS_FILE).read_text()
    status, _, err = installer(*words)
    assert (status, (install / ANSWERS_FILE).read_text()) == (3, answers)
    assert f"a run has not ended: {record.paths.run_id} (pretrain_llama3.1, RUNNING)\n" in err
    assert "  -> wait for them or end them with llmb-run cancel, then try again; --despite-runs removes anyway" in err
    training.kill()
    training.wait()
    assert installer(*words)[0] == 0
    assert load_record(record.paths.folder).state == "FAILED", "it was looked for where it ran"


@pytest.mark.parametrize("words", [("remove", "llama3.1"), ("uninstall", "--yes")])
def test_it_is_done_on_demand(installer, install, training, words):
    given(install)
    live_run(install, training)
    assert installer(*words, "--despite-runs")[0] == 0
    assert training.poll() is None


def test_runs_of_other_workloads_and_ended_ones_do_not_matter(installer, install, training):
    given(install)
    live_run(install, training)
    make_run(install, "grok1", variables=SMOKE)
    assert {row.workload for row in find_runs(install)} == {"pretrain_llama3.1", "pretrain_grok1"}
    assert installer("remove", "grok1")[0] == 0


def test_many_are_counted_and_some_are_named(installer: Installer, install: Path) -> None:
    """Of a Slurm that does not answer: nobody can tell, so they count."""
    given(install)
    for number in range(7):
        note(make_run(install, state="PENDING", job_id=str(100 + number)))
    status, out, _ = installer("uninstall", "--yes", "--json")
    error = json.loads(out)["error"]
    assert (status, error["code"]) == (3, "live-runs")
    assert f"cannot uninstall {install}: 7 runs have not ended: " in error["message"]
    assert error["message"].count("(pretrain_llama3.1, PENDING)") == 5
    assert error["message"].endswith(", ...")


def test_records_that_cannot_be_read_do_not_keep_a_damaged_installation(installer, install, monkeypatch):
    def refuse(*_: object) -> None:
        raise RecordError("the index \x1b[31m is gone")

    given(install)
    monkeypatch.setattr(live_runs, "find_runs", refuse)
    status, _, err = installer("uninstall", "--yes")
    assert status == 0, err
    assert err.startswith("note: not known whether runs use it: the index ")
    assert "\x1b" not in err
    assert not install.exists()
