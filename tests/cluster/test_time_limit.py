"""What Slurm itself tells a job at its time limit, and when it preempts with grace: whether ranks can save.

Slurm's own warning is SIGTERM with SIGCONT, which takes the root away from what ``enroot start`` started (seen with
4.1.2, and so does the stand-in); ``scancel --signal=TERM`` would not show that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.runs.record import RunRecord
from llmb_common.submission.observe import observe, wait
from llmb_common.submission.single import submit
from llmb_common.timing.log_files import RunFiles
from llmb_common.timing.runs import RecordedState, analyse
from llmb_common.timing.statistics import Window
from support.images import PROGRAMS, build_image
from support.iteration_logs import TOLD_LINE, mbridge_line, saved_line
from support.processes import PATIENCE, wait_until
from support.run_site import RECIPE, RunSite
from support.slurm_cluster import SlurmCluster, what_is_missing
from support.slurm_config import SMALL, Partition

ENGINE = f"""#!/usr/bin/env perl
$| = 1;
$SIG{{TERM}} = sub {{ $told = 1 }};
print "LLMB manifest: {{}}\\n";
print '{mbridge_line(3, 9)}' if $ENV{{SLURM_PROCID}} == 0;
select(undef, undef, undef, 0.1) until $told;
for (1 .. 30) {{ opendir(my $root, "/") or die; select(undef, undef, undef, 0.1) }}
print "saved by $ENV{{SLURM_PROCID}}\\n";
print '{saved_line(3)}{TOLD_LINE}' if $ENV{{SLURM_PROCID}} == 0;
"""
"""Saves for three seconds once it is told to, using the files of its root. Bash could not heed an ignored signal."""

GRACE = replace(
    SMALL,
    partitions=(
        Partition("batch", "gpu[1-4]", "08:00:00 PriorityTier=10 PreemptMode=OFF", default=True),
        Partition("low", "gpu[1-4]", "08:00:00 PriorityTier=1 PreemptMode=REQUEUE GraceTime=60"),
        *(partition for partition in SMALL.partitions if partition.name == "gb200"),
    ),
    extra={
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "SlurmctldParameters": "preempt_send_user_signal",
    },
)


@pytest.fixture(scope="module")
def cluster(containers: None) -> Iterator[SlurmCluster]:
    assert not what_is_missing(GRACE)
    with SlurmCluster(GRACE) as cluster:
        yield cluster


class Runtimes:
    """Jobs that save, of all three runtimes."""

    def __init__(self, folder: Path, cluster: SlurmCluster, image: Path) -> None:
        self.cluster, self.image = cluster, image
        self.sites = {name: RunSite(_made(folder / name), "slurm") for name in ("none", "pyxis", "enroot")}
        for runtime, site in self.sites.items():
            config = site.install / "cluster_config.yaml"
            config.write_text(config.read_text().replace("runtime: none", f"runtime: {runtime}"))
            site.engine.write_text(ENGINE)

    def submit(self, runtime: str, **variables: str) -> RunRecord:
        image = {} if runtime == "none" else {"RUN_CONF_IMAGE": str(self.image)}
        given = {"JOB_TOTAL_GPUS": "2", "GPUS_PER_NODE": "2", "ENABLE_CHECKPOINT": "true", "MAX_STEPS": "9"}
        record = submit(self.sites[runtime].plan(**given, **image, **variables), RECIPE)

        def trains() -> bool:
            return record.paths.log.exists() and record.paths.log.read_text().count("LLMB manifest") == 2

        wait_until(trains, f"two ranks under {runtime}", timeout=60)
        return record


def status_of(record: RunRecord) -> tuple[str, str, int | None]:
    files = RunFiles(record.paths.name, record.paths.folder, record.paths.log)
    status = analyse(files, Window(1, 9), RecordedState(record.state, record.detail)).status
    return status.state, status.reason, status.iteration


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.fixture
def runtimes(
    cluster: SlurmCluster, standins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runtimes]:
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    monkeypatch.setenv("PATH", f"{standins}:{cluster.env['PATH']}")
    image = build_image(tmp_path / "image.sqsh", (*PROGRAMS, "perl"), {}, {"usr/local/bin/python3": ENGINE})
    yield Runtimes(tmp_path, cluster, image)
    cluster.cancel_everything()


def test_at_its_time_limit_every_runtime_saves(runtimes: Runtimes) -> None:
    records = [runtimes.submit(runtime) for runtime in runtimes.sites]
    for record in records:
        runtimes.cluster.end_job_in(int(record.job_id or 0), seconds=record.plan.checkpoint.save_seconds)
    for record in wait(records, timeout=90 * PATIENCE):
        log = record.paths.log.read_text()
        assert record.state == "COMPLETED", (record.states, log, record.paths.batch_log.read_text())
        assert {"saved by 0", "saved by 1"} <= set(log.splitlines())
        assert status_of(record) == ("Incomplete", "told_to_end", 3), "it can go on, and has not failed"


def test_preempted_with_grace_it_saves_where_the_site_sends_the_users_signal(runtimes: Runtimes) -> None:
    record = runtimes.submit("enroot", SBATCH_PARTITION="low", ADDITIONAL_SLURM_PARAMS="nodelist=gpu1")
    winner = runtimes.cluster.submit("--nodelist=gpu1", "--exclusive", "--output=/dev/null", "--wrap", "true")
    runtimes.cluster.wait_for_state(winner, "COMPLETED", timeout=90)
    log = record.paths.log.read_text()
    assert {"saved by 0", "saved by 1"} <= set(log.splitlines()), (log, record.paths.batch_log.read_text())
    (seen,) = observe([record])
    assert seen.record.state == "COMPLETED", "it ended by itself within its grace"
    assert status_of(seen.record) == ("Incomplete", "told_to_end", 3)
