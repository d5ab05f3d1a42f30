"""An installation for tests of runs: a configuration, and a stand-in for the training engine, controlled by tests.

The stand-in is the "Python" of ``cluster_config.yaml``; rank 0 prints its NCCL variables and the iteration lines that
the engine prints. Variables of the job control the rest: ``STANDIN_STEPS`` (a number; ``job``: those of job.json),
``STANDIN_SECONDS`` a step, ``STANDIN_MS`` (what its lines say a step took), ``STANDIN_EXIT`` (its exit code),
``STANDIN_BAD`` (a node on which the memory of a GPU fails), ``STANDIN_HANG`` (after which step it hangs),
``STANDIN_LINGER`` (no exit after its last step), ``STANDIN_GATE`` (a file: no third step before it exists, so that a
test can look as long as it needs), ``STANDIN_OTHERS`` and ``STANDIN_OTHERS_EXIT`` (seconds and exit code of the other
ranks). A job that saves checkpoints has one when it exits with 0.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.plan import make_plan
from llmb_common.planning.request.read import read_request
from llmb_common.planning.site.cluster import load_cluster_config
from llmb_common.planning.site.machine import detect_machine
from llmb_common.recipes.loading import load_recipe
from llmb_common.runs.record import RunRecord
from llmb_common.submission import jobs

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "llama3.1"

STANDIN_ENGINE = """#!/bin/bash
# Also serves as torchrun: one rank is enough here.
set -u
trap 'echo "TERM reached rank ${SLURM_PROCID:-0}"; kill $(jobs -p) 2> /dev/null; exit 143' TERM
if [[ -n ${STANDIN_BAD:-} && ${SLURMD_NODENAME:-} == "$STANDIN_BAD" ]]; then
  echo 'RuntimeError: CUDA error: uncorrectable ECC error encountered' >&2
  exit 1
fi
if [[ ${SLURM_PROCID:-0} != 0 ]]; then
  sleep "${STANDIN_OTHERS:-0}" & wait $!
  exit "${STANDIN_OTHERS_EXIT:-0}"
fi
env | grep ^NCCL_
echo 'LLMB manifest: {"driver": "570.1", "nccl": "2.26.2", "torch": "2.9"}'
steps=${STANDIN_STEPS:-3}
if [[ $steps == job ]]; then steps=$(sed -nE 's/.*"train": ?([0-9]+).*/\\1/p' "$LLMB_RUN_DIR/job.json"); fi
for ((step = 1; step <= steps; step++)); do
  while [[ $step == 3 && -n ${STANDIN_GATE:-} && ! -e $STANDIN_GATE ]]; do sleep 0.1 & wait $!; done
  sleep "${STANDIN_SECONDS:-0}" & wait $!
  printf ' [2026-11-20 03:40:35] iteration %8d/%8d | consumed samples: %d | elapsed time per iteration (ms): %s |' \\
    "$step" "$steps" "$step" "${STANDIN_MS:-100.5}"
  printf ' throughput per GPU (TFLOP/s/GPU): 0.0 | lm loss: 6.%04dE+00 | grad norm: 1.0 |\\n' $((9900 - 10 * step))
  if [[ ${STANDIN_HANG:-} == "$step" ]]; then
    trap '' TERM
    sleep 600 & wait $!
  fi
done
if [[ -n ${STANDIN_LINGER:-} ]]; then
  sleep 600 & wait $!
fi
saved=$(sed -nE 's/.*"save": ?"([^"]+)".*/\\1/p' "$LLMB_RUN_DIR/job.json")
if [[ -n $saved && ${STANDIN_EXIT:-0} == 0 ]]; then
  mkdir -p "$saved"
  echo "$steps" > "$saved/latest_checkpointed_iteration.txt"
fi
exit "${STANDIN_EXIT:-0}"
"""


class RunSite:
    """``install`` is made in ``folder``; plans are for ``cluster_type``."""

    def __init__(self, folder: Path, cluster_type: str, partition: str = "batch") -> None:
        self.install = folder / "install"
        self.install.mkdir()
        self.engine = folder / "engine"
        self.engine.write_text(STANDIN_ENGINE)
        self.engine.chmod(0o755)
        slurm = f"slurm: {{runtime: none, gpu_partition: {partition}}}\n" if cluster_type == "slurm" else ""
        (self.install / "cluster_config.yaml").write_text(
            f'schema: 1\ncluster_type: {cluster_type}\ngpu_type: cpu\n{slurm}engine: {{python: "{self.engine}"}}\n'
        )

    def variables(self, **changes: str) -> dict[str, str]:
        """A small job of one node."""
        given = {"LLMB_INSTALL": str(self.install), "MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "1", "TIME_LIMIT": "5"}
        return {**given, **changes}

    def plan(self, **changes: str) -> JobPlan:
        request = read_request(self.variables(**changes))
        cluster = load_cluster_config(self.install)
        return make_plan(load_recipe(RECIPE), cluster, request, detect_machine(cluster, request))


def with_small_code(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Runs get training code of one file, so that one is made in a moment, in few steps."""
    code = folder / "code" / "llmb_train"
    code.mkdir(parents=True)
    (code / "__main__.py").write_text("print('trained')\n")
    patch.setattr(jobs, "training_code", lambda: code)


def run_folders(site: RunSite) -> list[Path]:
    """The folders of all runs that have a record."""
    return [record.parent for record in site.install.glob("workloads/*/experiments/[!.]*/[!.]*/run.json")]


def log_of(record: RunRecord) -> str:
    return record.paths.log.read_text() if record.paths.log.exists() else ""


def events_of(record: RunRecord) -> list[str]:
    text = record.paths.events.read_text() if record.paths.events.exists() else ""
    return [json.loads(line)["event"] for line in text.splitlines()]
