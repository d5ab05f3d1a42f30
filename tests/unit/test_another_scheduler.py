"""A scheduler with words of its own is one folder: ``support/pbs`` put among the executors, and no file edited.

The rest of the package is as it is: links lead to it. PBS itself is a stand-in (``support/pbs_program.py``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import llmb_common
from support.run_site import RECIPE, ROOT, RunSite
from support.texts import Texts

PACKAGE = Path(llmb_common.__file__).parent
SUPPORT = ROOT / "tests" / "support"
TWO_NODES = {"MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "4", "GPUS_PER_NODE": "2"}
JOB = ("-w", "llama3.1", "-s", "smoke", "--scale", "4", "--env", "GPUS_PER_NODE=2")


class Pbs:
    """A site of PBS with two nodes, and what is called there."""

    def __init__(self, folder: Path) -> None:
        self.packages, self.home, programs = (folder / name for name in ("packages", "pbs", "bin"))
        executors = self.packages / "llmb_common" / "executors"
        for made in (executors, self.home, programs):
            made.mkdir(parents=True)
        for entry in (*PACKAGE.iterdir(), *(PACKAGE / "executors").iterdir()):
            link = self.packages / "llmb_common" / entry.relative_to(PACKAGE)
            if entry.name != "executors":
                link.symlink_to(entry)
        (executors / "pbs").symlink_to(SUPPORT / "pbs")
        for name in ("qsub", "qstat", "qdel", "mpirun"):
            program = programs / name
            called = f"{sys._base_executable} -ISs {SUPPORT / 'pbs_program.py'} {name}"
            program.write_text(f'#!/bin/sh\nexec {called} "$@"\n')
            program.chmod(0o755)
        site = RunSite(folder, "pbs")
        self.install, rank = site.install, folder / "rank"
        rank.write_text(
            '#!/bin/bash\necho "$HOSTNAME $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR" >> "$LLMB_RUN_DIR/seen"\n'
            f'SLURM_PROCID=$RANK exec {site.engine} "$@"\n'
        )
        rank.chmod(0o755)
        self.config = self.install / "cluster_config.yaml"
        self.config.write_text(
            f"cluster_type: pbs\ngpu_type: cpu\npbs: {{account: bench, queue: workq}}\nengine: {{python: {rank}}}\n"
        )
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "LLMB_"))},
            **{"LLMB_INSTALL": str(self.install), "PBS_HOME": str(self.home), "COLUMNS": "100"},
            **{"PYTHONPATH": str(self.packages), "PATH": f"{programs}:{os.environ['PATH']}"},
        }

    def __call__(self, module: str, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *map(str, arguments)]
        env = {**self.env, **variables}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)

    def llmb_run(self, *arguments: str, **variables: str) -> str:
        done = self("llmb_run", *arguments, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def job(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.home / f"{number}.pbs.json").read_text())
        return found


@pytest.fixture
def pbs(tmp_path: Path) -> Pbs:
    return Pbs(tmp_path)


def test_a_job_of_two_nodes_from_its_plan_to_its_results(pbs: Pbs, texts: Texts) -> None:
    told = pbs.llmb_run("plan", *JOB, "--sources", QSUB_QUEUE="fast")
    texts(told, about="cluster_config.yaml:")
    texts(told, about="QSUB_QUEUE:")
    run_id, rest = pbs.llmb_run("single", *JOB, "--env", "STANDIN_STEPS=50", QSUB_QUEUE="fast").split("  ", 1)
    texts(rest.splitlines()[0])
    assert pbs.llmb_run("wait", run_id).split()[1] == "COMPLETED"
    job = pbs.job(1)
    assert (job["Account_Name"], job["queue"], job["exec_host"]) == ("bench", "fast", "n1/0*2+n2/0*2")
    (run,) = json.loads(pbs.llmb_run("jobs", run_id, "--json"))["data"]["runs"]
    assert (run["executor"], run["job_id"]) == ("pbs", "1.pbs")
    seen = sorted((Path(run["folder"]) / "seen").read_text().splitlines())
    assert seen == ["n1 0 0 4 n1", "n1 1 1 4 n1", "n2 2 0 4 n1", "n2 3 1 4 n1"]
    assert '"nodes":"n1,n2"' in (Path(run["folder"]) / "events.jsonl").read_text()
    assert pbs.llmb_run("results", run_id)
    again = pbs("llmb_run", "ab", "--base", run_id, "--change", "mbs=2", "--dry-run")
    assert again.returncode == 0
    assert run_id not in again.stderr, "the base has its queue and its nodes: it would run as it did"


@pytest.mark.slow
def test_jobs_wait_follow_each_other_and_are_cancelled(pbs: Pbs) -> None:
    (pbs.home / "stopped").touch()
    first = pbs.llmb_run("single", *JOB).split()[0]
    pbs.llmb_run("single", *JOB, "--max-steps", "4", "--after", first)
    pbs.llmb_run("submit", *JOB, "--max-steps", "5", "--repeats", "2", "--spread", "2")
    assert pbs.job(2)["depend"] == "depend=afterany:1.pbs"
    assert sorted(bool(pbs.job(number)["begin"]) for number in (3, 4)) == [False, True]
    assert [line.split()[1] for line in pbs.llmb_run("cancel", "--all").splitlines()] == ["CANCELLED"] * 4


def test_launch_sh_prints_and_submits_the_script(pbs: Pbs, texts: Texts) -> None:
    said = {**TWO_NODES, "QSUB_ACCOUNT": "mine", "TIME_LIMIT": "30m"}
    script = pbs("llmb_common.submission.launch", RECIPE, DRY_RUN="true", **said).stdout
    heads = [line for line in script.splitlines() if line.startswith("#PBS")]
    assert heads[1:-1] == [
        "#PBS -A mine",
        "#PBS -q workq",
        "#PBS -l select=2:mpiprocs=2",
        "#PBS -l place=scatter:excl -l walltime=00:30:00",
    ]
    assert pbs("llmb_common.submission.launch", RECIPE, **TWO_NODES).stdout == "Submitted batch job 1.pbs\n"
    refused = pbs("llmb_common.submission.launch", RECIPE, QSUB_QUEUE="closed", **TWO_NODES)
    texts(refused.stderr, about="error: ")


@pytest.mark.parametrize(
    "section",
    ["{acount: bench}", "{queue: 7}", "{queue: workq@head}", '{account: "a\\nb"}'],
    ids="key kind server break".split(),
)
def test_its_section_is_checked_by_its_own_struct(pbs: Pbs, section: str, texts: Texts) -> None:
    pbs.config.write_text(f"cluster_type: pbs\npbs: {section}\n")
    texts(pbs("llmb_common.submission.launch", RECIPE, **TWO_NODES).stderr)


def test_doctor_judges_no_slurm_there(pbs: Pbs) -> None:
    program = (
        "import sys; from llmb_install.main import main; sys.exit(main(['doctor', '--install-path', sys.argv[1]]))"
    )
    command = [sys.executable, "-c", program, str(pbs.install)]
    done = subprocess.run(command, env=pbs.env, capture_output=True, text=True, check=False)
    seen = [line.split()[:2] for line in done.stdout.splitlines()]
    assert seen[:3] == [["ok", "space"], ["ok", "pbs"], ["ok", "training"]]


def test_its_variables_are_documented_and_read(pbs: Pbs, texts: Texts) -> None:
    program = (
        "from llmb_common.planning.request.variables import VARIABLES as v; print(v['QSUB_QUEUE'], v['CLUSTER_TYPE'])"
    )
    done = subprocess.run([sys.executable, "-c", program], env=pbs.env, capture_output=True, text=True, check=True)
    assert "meaning='PBS queue'" in done.stdout
    assert "meaning='pbs or slurm or local', default='`pbs` where `qsub` answers, else `slurm`" in done.stdout
    typed = pbs("llmb_common.submission.launch", RECIPE, QSUB_QEUE="fast", **TWO_NODES).stderr
    assert "QSUB_QEUE" in typed
    assert "QSUB_QUEUE" in typed
    wrong = pbs("llmb_common.submission.launch", RECIPE, QSUB_ACCOUNT="a b", **TWO_NODES).stderr
    texts(wrong)
    unheeded = pbs(
        "llmb_common.submission.launch", RECIPE, DRY_RUN="true", ADDITIONAL_SLURM_PARAMS="qos=x", **TWO_NODES
    ).stderr
    texts(unheeded)
