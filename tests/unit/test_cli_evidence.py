"""show and results say what the run's nodes and its log say beyond the step time."""

from __future__ import annotations

import csv
import io
import json
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.measured import kept
from llmb_common.runs.finding import with_job_facts
from llmb_common.runs.record import RunRecord
from support.cli import Cli
from support.gpu_nodes import smi_answer, snapshot, write_node
from support.iteration_logs import memory_print
from support.runs import make_run, plan_for, steady_log
from support.texts import Texts

SOCKETS = (Path(__file__).resolve().parents[1] / "data" / "nccl" / "socket_hpcx.log").read_text()
CONFIGURATION = {"GPU_TYPE": "h100", "MODEL_SIZE": "8b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "16", "FORCE": "true"}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, monkeypatch, capsys)


def run_over_sockets(install: Path) -> RunRecord:
    """Two nodes of 8 GPUs, the second over TCP and at its power limit."""
    run = make_run(install, variables=CONFIGURATION, log=steady_log(2000.0))
    capped = snapshot(2000.0, smi_answer(changes={index: {"cap_us": "400000000 us"} for index in range(8)}))
    write_node(run.paths.folder, "n1")
    write_node(run.paths.folder, "n2", log=SOCKETS, after=capped)
    receipt = json.dumps({"schema": 1, "sha256": "ab" * 32, "source": "nvcr.io#nvidia/nemo:26.02.01\x1b[31m\nrun"})
    image = {"path": "/images/nemo.sqsh", "receipt": receipt}
    run = replace(with_job_facts(run), manifest={**with_job_facts(run).manifest, "image": image})
    run.save()
    return run


def test_results_name_problems_and_keep_notes_to_themselves(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    run = run_over_sockets(tmp_path)
    done = cli("results", "--notes", COLUMNS="200")
    texts(done.out, about="NCCL")
    assert "power limit" not in done.out
    slow = cli("why", "--slow", run.paths.run_id)
    texts(slow.out, about="NCCL")
    (row,) = cli("results", "--json").data["runs"]
    assert [(finding["kind"], finding["severity"]) for finding in row["findings"]] == [
        ("socket", "problem"),
        ("power-cap", "note"),
    ]


def test_show_says_all_of_it(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    run_over_sockets(tmp_path)
    out = cli("show").out
    texts(out, mask=r"llmb \d.*")
    assert cli("show", "--json").data["evidence"]["network"] == "Socket"


def test_show_names_the_nodes_of_a_run_that_has_ended(cli: Cli, tmp_path: Path) -> None:
    """Of what is too slow ``results`` says that it shows the nodes of its slowest run; the scheduler forgets them."""
    run = run_over_sockets(tmp_path)
    (line,) = (line for line in cli("show", run.paths.run_id).out.splitlines() if line.startswith("job "))
    assert line.endswith(" on n[1-2]")


def test_a_run_without_evidence_says_so(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    make_run(tmp_path)
    texts(cli("show").out, about="ran on")


@pytest.mark.parametrize("image", [None, {}, {"path": 5}, {"path": "/x", "receipt": "{"}, {"receipt": "[]"}, "text"])
def test_a_strange_image_is_no_error(cli: Cli, tmp_path: Path, image: object) -> None:
    run = make_run(tmp_path)
    replace(run, manifest={**run.manifest, "image": image}).save()
    done = cli("show")
    assert done.status == 0
    assert "\nimage " not in done.out or "no digest on record" in done.out


PEAK = {"job": "77", "restart": 0, "rank": 3, "allocated": 52 << 30, "reserved": 60 << 30, "device": 79 << 30}


def test_measured_memory_stands_beside_the_predicted(cli: Cli, tmp_path: Path) -> None:
    run = make_run(tmp_path, variables=CONFIGURATION, log=steady_log(2000.0))
    predicted = run.plan.preflight.memory_gib
    assert predicted is not None
    write_node(run.paths.folder, "n1")
    fuller = {**PEAK, "rank": 4, "allocated": 54 << 30}
    (run.paths.folder / "nodes" / "n1.memory.jsonl").write_text(f"{json.dumps(PEAK)}\n{json.dumps(fuller)}\n")
    (row,) = cli("results", "--json").data["runs"]
    found = [row[name] for name in ("memory_gib", "memory_reserved_gib", "predicted_memory_gib")]
    assert found == [54.0, 60.0, predicted]
    (line,) = csv.DictReader(io.StringIO(cli("results", "--format", "csv").out))
    assert (line["memory_gib"], line["predicted_memory_gib"]) == ("54.0", str(predicted))
    said = f"memory     54.0 GiB at most on a GPU, 60.0 reserved, predicted {predicted:.1f} of 79.1 GiB"
    assert said in cli("show").out
    header = next(line for line in cli("report").out.splitlines() if line.startswith("| run "))
    assert {"memory GiB", "predicted GiB"} <= {cell.strip() for cell in header.split("|")}


def test_memory_of_a_rank_on_a_cpu_is_not_called_a_gpus(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    job = {"GPU_TYPE": "cpu", "MODEL_SIZE": "smoke", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "1"}
    run = make_run(tmp_path, variables=job, log=steady_log(2000.0))
    write_node(run.paths.folder, "n1")
    (run.paths.folder / "nodes" / "n1.memory.jsonl").write_text(f"{json.dumps(PEAK)}\n")
    texts(cli("show").out, about="memory")


def test_without_the_nodes_memory_is_what_the_log_says(cli: Cli, tmp_path: Path) -> None:
    log = steady_log(2000.0).split("\n", 1)
    make_run(tmp_path, variables=CONFIGURATION, log=f"{log[0]}\n{memory_print(0, 1, 58.8, 62.5)}{log[1]}")
    (row,) = cli("results", "--json").data["runs"]
    assert row["memory_gib"] == pytest.approx(58.8e9 / 2**30)
    (again,) = cli("results", "--json").data["runs"]
    assert again == row, "of the index as of the log"


def test_five_runs_of_a_kind_make_it_known_here(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a kind that nobody has validated: from five pairs of this site and software on, its own runs say how well."""
    monkeypatch.setattr(kept, "_COARSE_NS", 0)  # files count as settled at once
    first = make_run(tmp_path, variables=CONFIGURATION, log=steady_log(2000.0))
    predicted = first.plan.preflight.memory
    assert predicted is not None
    assert (predicted.knowledge, predicted.low) == ("not validated", None)
    runs = [
        first,
        *(make_run(tmp_path, variables=CONFIGURATION, log=steady_log(2000.0)) for _ in "1234"),
    ]
    for number, run in enumerate(runs):
        write_node(run.paths.folder, "n1")
        peak = PEAK | {"allocated": int(predicted.peak * (0.80 + 0.002 * number) * 2**30)}
        (run.paths.folder / "nodes" / "n1.memory.jsonl").write_text(f"{json.dumps(peak)}\n")
        cli("results", *(run.paths.run_id for run in runs[: number + 1]))
        planned = plan_for(tmp_path, **CONFIGURATION).preflight.memory
        assert planned is not None
        assert planned.knowledge == ("validated here" if number == 4 else "not validated")
    assert planned.peak == predicted.peak, "else the next pair would be of another prediction"
    assert (planned.pairs, round(planned.factor, 3)) == (5, 0.804)
    assert (planned.low, planned.high) == pytest.approx((23.1, 25.6), abs=0.2)
    assert planned.at_least == pytest.approx(predicted.peak * 0.796, rel=0.01)
    elsewhere = plan_for(tmp_path, **CONFIGURATION, RUN_CONF_IMAGE="/images/nvidia+nemo+26.02.sqsh").preflight.memory
    assert elsewhere is not None
    assert elsewhere.knowledge == "not validated", "other software"
    larger = plan_for(tmp_path, **CONFIGURATION, MBS="4", PREFLIGHT="warn").preflight.warnings
    figures = [re.findall(r"\b\d+ GiB|\b\d+", said) for said in larger]
    assert any({"108 GiB", "136", "2"} <= set(said) for said in figures), "as measured here, predicted, in reserve"


def test_an_archive_has_the_evidence(cli: Cli, tmp_path: Path) -> None:
    run = run_over_sockets(tmp_path)
    assert cli("archive", "--output", tmp_path / "runs.tar.gz").status == 0
    with tarfile.open(tmp_path / "runs.tar.gz") as archive:
        names = {"/".join(name.split("/")[-2:]) for name in archive.getnames()}
    assert {"nodes/n1.json", "nodes/n2.json", "nodes/n2.nccl.log"} <= names, run.paths.name
