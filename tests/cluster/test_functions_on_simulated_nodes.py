"""Every function of the catalogue at its own scale: the response of a large cluster to its script."""

from __future__ import annotations

from pathlib import Path

from llmb_common.base.gpus import GPUS
from llmb_common.planning.site.machine import Machine
from llmb_common.runs.paths import dry_run_paths
from llmb_common.submission.script import render_script
from support.functions import CATALOGUE, IMPOSSIBLE, MEGATRON_REFUSES, NEWEST, asked, plan
from support.slurm_cluster import SlurmCluster

OLDER = Machine(cluster_type="slurm", release=(23, 11))
"""The tests' Slurm, which has no --segment."""

REFUSED = """
for script in "$1"/*.sbatch; do
  answer=$(sbatch --test-only --partition="$2" "$script" 2>&1) || true
  [[ $answer =~ using\\ [0-9]+\\ processors\\ on\\ nodes ]] || printf '%s: %s\\n' "$script" "$answer"
done
"""


def test_slurm_takes_every_function_at_its_own_scale(slurm_simulated: SlurmCluster, tmp_path: Path) -> None:
    for entry in CATALOGUE.index:
        if entry.name in IMPOSSIBLE | MEGATRON_REFUSES:
            continue
        planned = plan(OLDER, **asked(entry), **NEWEST)
        script = tmp_path / ("batch" if GPUS[entry.gpu].host == "x86_64" else "gb200") / f"{entry.name}.sbatch"
        script.parent.mkdir(exist_ok=True)
        script.write_text(render_script(planned, dry_run_paths(planned.workload_folder, planned.experiment_name)))
    for partition in ("batch", "gb200"):
        refused = slurm_simulated.run(["bash", "-c", REFUSED, "_", tmp_path / partition, partition], timeout=600)
        assert refused.stdout == ""
