"""launch.sh against a real Slurm: training on several nodes, containers, switches, and how it responds to big jobs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.images import PROGRAMS, build_image
from support.processes import wait_until
from support.run_site import STANDIN_ENGINE
from support.slurm_cluster import ENDED, SlurmCluster

ROOT = Path(__file__).resolve().parents[2]
STANDIN_NSYS = ROOT / "tests" / "support" / "bin" / "nsys"
ITERATION = re.compile(r"iteration +(\d+)/ *\d+ \|")


class Site:
    """An installation for the test cluster, and launch.sh in it."""

    def __init__(self, cluster: SlurmCluster, install: Path, engine: Path, runtime: str = "none") -> None:
        self.cluster = cluster
        self.install = install
        install.mkdir()
        (install / "cluster_config.yaml").write_text(
            f"schema: 1\ncluster_type: slurm\ngpu_type: cpu\nslurm: {{runtime: {runtime}, gpu_partition: batch}}\n"
            f'engine: {{python: "{engine}"}}\n'
        )

    def launch(self, recipe: str = "llama3.1", **variables: str) -> subprocess.CompletedProcess[str]:
        given = {"LLMB_PYTHON": sys.executable, "LLMB_INSTALL": str(self.install), "MODEL_SIZE": "smoke"}
        return self.cluster.run(
            ["./launch.sh"], cwd=ROOT / recipe, env={**given, **variables}, check=False, timeout=600
        )

    def run(self, recipe: str = "llama3.1", **variables: str) -> Path:
        """Launch, wait for the end, and return the run's folder."""
        done = self.launch(recipe, **variables)
        assert done.returncode == 0, done.stderr
        found = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)
        assert found, done.stdout
        folder = Path(done.stderr.splitlines()[-1].strip())
        try:
            self.cluster.wait_for_state(int(found[1]), "COMPLETED", timeout=240)
        except AssertionError as error:
            logs = "\n".join(p.read_text(errors="replace")[-3000:] for p in folder.glob("*/*.out"))
            raise AssertionError(f"{error}\n{logs}") from error
        return folder


def log_of(folder: Path) -> str:
    (log,) = folder.glob("*/log-*.out")
    return log.read_text()


def iterations(folder: Path) -> list[int]:
    return [int(step) for step in ITERATION.findall(log_of(folder))]


def events(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def accounts(folder: Path) -> dict[str, dict[str, object]]:
    """What each node's first rank wrote, by the node's name."""
    return {file.stem: json.loads(file.read_text()) for file in (folder / "nodes").glob("*.json")}


def standin_engine(folder: Path) -> Path:
    """That of ``support/run_site.py``."""
    engine = folder / "engine"
    engine.write_text(STANDIN_ENGINE)
    engine.chmod(0o755)
    return engine


@pytest.fixture
def site(slurm: SlurmCluster, engine_python: Path, tmp_path: Path) -> Site:
    return Site(slurm, tmp_path / "it's an install", engine_python)


@pytest.fixture
def quick_site(slurm: SlurmCluster, tmp_path: Path) -> Site:
    """For what is decided before training begins."""
    return Site(slurm, tmp_path / "it's an install", standin_engine(tmp_path))


def test_nccl_trace_runs_five_steps_with_the_debug_variables(quick_site: Site) -> None:
    folder = quick_site.run(JOB_TOTAL_GPUS="1", ENABLE_NCCLTRACE="true", STANDIN_STEPS="job")
    assert iterations(folder) == [1, 2, 3, 4, 5]
    assert "NCCL_DEBUG_SUBSYS=COLL,P2P,NET\n" in log_of(folder)
    (script,) = folder.glob("*.sbatch")
    assert "export NCCL_DEBUG_SUBSYS=COLL,P2P,NET\n" in script.read_text()


@pytest.fixture
def training_image(engine_python: Path, tmp_path: Path) -> Path:
    """A real squashfs image whose python3 is the engine's, mounted from outside, and whose nsys is the stand-in.

    Its python3 writes into the image first, as Triton's cache does, and keeps the environment that it found.
    """
    python = (
        "#!/bin/bash\nset -euo pipefail\nmkdir -p /opt/cache/triton\n"
        f'env > "$LLMB_RUN_DIR/environment-$SLURM_PROCID"\nexec "{engine_python}" "$@"\n'
    )
    files = {"usr/local/bin/python3": python, "usr/local/bin/nsys": STANDIN_NSYS.read_text()}
    image = tmp_path / "image with engine.sqsh"
    return build_image(image, PROGRAMS, {"IN_IMAGE": "yes", "TOKENIZERS_PARALLELISM": "of the image"}, files)


def engine_mounts(engine_python: Path) -> str:
    """What a dynamically linked Python outside the image needs inside it, where that has its own /usr/bin."""
    program = Path(os.path.realpath(engine_python))
    engine = engine_python.parents[1]
    folders = (program.parents[1] / "lib", engine, Path("/usr/lib"), Path("/lib"), Path("/lib64"))
    mounts = {str(folder): folder for folder in folders if folder.exists()}
    link = engine_python
    while link.is_symlink():
        link = link.parent / link.readlink()
        if engine not in link.parents:
            mounts[str(link)] = program
    return ",".join(f"{source}:{target}:ro" for target, source in sorted(mounts.items()))


def test_profiled_training_in_a_container(slurm, engine_python, training_image, tmp_path):
    site = Site(slurm, tmp_path / "install", engine_python, runtime="pyxis")
    folder = site.run(
        JOB_TOTAL_GPUS="1",
        MAX_STEPS="4",
        ENABLE_PROFILE="true",
        PROFILE_START_STEP="2",
        PROFILE_STOP_STEP="3",
        RUN_CONF_IMAGE=str(training_image),
        RUN_CONF_MOUNTS=engine_mounts(engine_python),
    )
    assert iterations(folder) == [1, 2, 3, 4]
    job_id = json.loads((folder / "run.json").read_text())["job_id"]
    (report,) = folder.glob("*/nsys_profile/*.nsys-rep")
    assert report.name == f"profile_{job_id}_0_0.nsys-rep"
    arguments = report.read_text().split("\n")
    assert arguments[1:5] == ["-s", "none", "-t", "nvtx,cuda"]
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop"} <= set(arguments)
    assert accounts(folder).keys() == {"gpu1"}, "written from inside the container"


def test_real_training_on_two_nodes_in_an_image_that_enroot_starts_is_saved_and_resumed_on_one(
    slurm: SlurmCluster, standins: Path, engine_python: Path, training_image: Path, tmp_path: Path
) -> None:
    """Enroot drops the environment: unless ours is passed by name, no rank would know which one it is.

    And a signal to the whole step, which reaches what serves the image too, saves. The one that resumes has no image.
    """
    site = Site(slurm, tmp_path / "install", engine_python, runtime="enroot")
    done = site.launch(
        JOB_TOTAL_GPUS="2",
        GPUS_PER_NODE="1",
        MAX_STEPS="100000",
        ENABLE_CHECKPOINT="true",
        RUN_CONF_IMAGE=str(training_image),
        RUN_CONF_MOUNTS=engine_mounts(engine_python),
        PATH=f"{standins}:{slurm.env['PATH']}",
        NCCL_DEBUG="WARN",
        HF_TOKEN="hf_canary",
    )
    assert done.returncode == 0, done.stderr
    job, folder = int(done.stdout.split()[-1]), Path(done.stderr.splitlines()[-1].strip())

    def trains() -> bool:
        started = slurm.state(job) in ENDED or any(folder.glob("*/log-*.out"))
        return started and (3 in iterations(folder) or slurm.state(job) in ENDED)

    wait_until(trains, "the third iteration", timeout=240)
    slurm.run(["scancel", "--signal=TERM", str(job)])
    slurm.wait_for_state(job, "COMPLETED", timeout=120)
    steps = iterations(folder)
    assert steps == list(range(1, len(steps) + 1))
    (saved,) = folder.glob("*/checkpoints/iter_*")
    assert saved.name == f"iter_{steps[-1]:07d}"

    inside = dict(line.split("=", 1) for line in (folder / "environment-1").read_text().splitlines() if "=" in line)
    expected = {"SLURM_NODEID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2", "IN_IMAGE": "yes", "NCCL_DEBUG": "WARN"}
    # Ours win over the image's own.
    assert expected.items() | {("TOKENIZERS_PARALLELISM", "False"), ("HF_TOKEN", "hf_canary")} <= inside.items()
    assert not {"NGC_API_KEY", "CUDA_VISIBLE_DEVICES"} & inside.keys(), "set nowhere, and so not empty either"
    (script,) = folder.glob("*.sbatch")
    assert "hf_canary" not in script.read_text()
    # A run that saves leaves Megatron-Bridge by SystemExit.
    written = {
        node: (account["rank"], account["job"], "after" in account) for node, account in accounts(folder).items()
    }
    assert written == {"gpu1": (0, str(job), True), "gpu2": (1, str(job), True)}, "from inside the images"
    assert "ConfigContainer" in (folder / "config.yaml").read_text()
    start, *_, end = events(folder)
    assert (start["event"], start["nodes"]) == ("start", "gpu[1-2]")
    assert (end["event"], end["exit_code"], end["job_id"]) == ("end", 0, str(job))
    record = json.loads((folder / "run.json").read_text())
    assert (record["job_id"], record["plan"]["nodes"]) == (str(job), 2)

    (tmp_path / "plain").mkdir()
    plain = Site(slurm, tmp_path / "plain" / "it's an install", engine_python)
    resumed = plain.run(JOB_TOTAL_GPUS="1", LOAD_CHECKPOINT_PATH=str(saved.parent))
    assert iterations(resumed) == [steps[-1] + 1]


def test_a_refused_job_shows_slurms_words_and_leaves_nothing(site: Site) -> None:
    done = site.launch(JOB_TOTAL_GPUS="2", SBATCH_PARTITION="nosuch")
    assert done.returncode == 3
    assert "invalid partition specified: nosuch" in done.stderr
    assert "sinfo" in done.stderr
    assert not (site.install / "workloads" / "pretrain_llama3.1" / "experiments").exists()


def test_variables_of_an_outer_job_do_not_leak_into_the_submission(quick_site: Site) -> None:
    folder = quick_site.run(
        JOB_TOTAL_GPUS="1",
        MAX_STEPS="2",
        STANDIN_STEPS="job",
        SBATCH_RESERVATION="nosuch",
        SLURM_EXPORT_ENV="NONE",
        SLURM_JOB_ID="1",
    )
    assert iterations(folder) == [1, 2]


@pytest.mark.parametrize(
    ("parameters", "field", "value"),
    [
        (
            'comment=it\'s "quoted" $(touch /tmp/evil) \\ %j;nice=7',
            "Comment",
            'it\'s "quoted" $(touch /tmp/evil) \\ %j',
        ),
        ("nodelist=gpu2,gpu3;exclusive", "ReqNodeList", "gpu[2-3]"),
        ("constraint=h100&h100", "Features", "h100&h100"),
        ("begin=now+1hour", "JobState", "PENDING"),
    ],
)
def test_additional_parameters_reach_slurm_unchanged(site: Site, parameters: str, field: str, value: str) -> None:
    done = site.launch(JOB_TOTAL_GPUS="2", GPUS_PER_NODE="1", ADDITIONAL_SLURM_PARAMS=f"{parameters};hold")
    assert done.returncode == 0, done.stderr
    job = int(done.stdout.split()[-1])
    assert site.cluster.job(job)[field].strip() == value
    assert not Path("/tmp/evil").exists()


def test_the_scheduler_refuses_a_job_that_the_cluster_cannot_hold(slurm_simulated, tmp_path):
    given = {"LLMB_PYTHON": sys.executable, "LLMB_INSTALL": "/x", "DRY_RUN": "true", "SBATCH_PARTITION": "h100x128"}
    job = {"GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "2048"}
    script = tmp_path / "job.sbatch"
    script.write_text(slurm_simulated.run(["./launch.sh"], cwd=ROOT / "llama3.1", env={**given, **job}).stdout)
    assert slurm_simulated.run(["sbatch", "--test-only", script], check=False).returncode == 1
