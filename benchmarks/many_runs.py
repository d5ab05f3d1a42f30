"""An installation with thousands of finished runs, for the other benchmarks: records, jobs, events and logs as LLMB
makes them, and node facts kept in the record as when a run's end was seen."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from llmb_common.nodes.summary import NodeSummary
from llmb_common.runs.account import KEY, as_json_values
from llmb_common.runs.paths import RunPaths, experiments_folder
from llmb_common.runs.record import RunRecord
from llmb_common.submission.job_files import job_document
from llmb_common.submission.launch import plan_from_variables

ROOT = Path(__file__).resolve().parent.parent
STEPS = 50
SCALES = (64, 128, 256, 512)

RECORD = (
    "Step Time : {seconds:.2f}s GPU utilization: {tflops:.1f}MODEL_TFLOP/s/GPU\n"
    " [2026-11-20 03:40:35] iteration {index:8d}/{total:8d} | consumed samples: {samples:12d} | "
    "elapsed time per iteration (ms): {milliseconds:.1f} | throughput per GPU (TFLOP/s/GPU): {tflops:.1f} | "
    "learning rate: 1.500000E-04 | global batch size:    64 | lm loss: {loss:.6E} | loss scale: 1.0 | "
    "grad norm: 1.019 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


def log_text(seconds: float, tflops: float, seed: int, steps: int = STEPS) -> str:
    """A small log without trace lines, whose steps scatter by 1 %."""
    source = random.Random(seed)
    lines = [f"LLMB manifest: {json.dumps({'run': seed})}\n"]
    for index in range(1, steps + 1):
        factor = source.gauss(1.0, 0.01) * (1.5 if index < 4 else 1.0)
        lines.append(
            RECORD.format(
                **{"index": index, "total": steps, "samples": 64 * index, "loss": 12.0 - index / 10},
                **{"seconds": seconds * factor, "milliseconds": 1000 * seconds * factor, "tflops": tflops / factor},
            )
        )
    return "".join(lines)


def make_runs(install: Path, count: int, state: str = "COMPLETED", scales: Sequence[int] = SCALES) -> list[Path]:
    """Make ``count`` runs of one experiment for each of ``scales``; returns their folders."""
    folders: list[Path] = []
    for number, gpus in enumerate(scales):
        variables = {"LLMB_INSTALL": str(install), "CLUSTER_TYPE": "slurm", "GPU_TYPE": "gb200"}
        variables |= {"MODEL_SIZE": "70b", "JOB_TOTAL_GPUS": str(gpus)}
        plan = plan_from_variables(ROOT / "llama3.1", variables)[1]
        paths = RunPaths(experiments_folder(plan.workload_folder), plan.experiment_name, "STAMP", "RUNID")
        nodes = as_json_values(
            NodeSummary(nodes=plan.nodes, hosts=("gpu1",), gpus="4 x NVIDIA GB200", driver="580.95.05")
        )
        record = RunRecord(paths, plan, job_id="JOBID", manifest={"job": {"software": {"torch": "2.9.0"}, KEY: nodes}})
        text = json.dumps(record.with_state("SUBMITTED").with_state(state).as_dict())
        job = json.dumps(job_document(plan, paths))
        for index in range(number, count, len(scales)):
            names = {"STAMP": str(1_700_000_000 + index), "RUNID": f"{index:08x}", "JOBID": str(index)}
            folder = paths.folder.with_name(paths.folder.name.replace("STAMP", names["STAMP"]))
            own = folder / plan.experiment_name
            own.mkdir(parents=True)
            (own / f"log-{plan.experiment_name}.out").write_text(log_text(6.0, 1200.0, index))
            for file, content in (("run.json", text), ("job.json", job)):
                for name, value in names.items():
                    content = content.replace(name, value)
                (folder / file).write_text(content)
            events = [{"event": event, "time": 1, "job_id": names["JOBID"]} for event in ("start", "end")]
            events[1]["exit_code"] = 0
            (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
            folders.append(folder)
    return folders
