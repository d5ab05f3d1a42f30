"""What Slurm itself tells a job at its time limit, and when it preempts with grace: whether ranks can save.

Slurm's own warning is SIGTERM with SIGCONT, which takes the root away from what ``enroot start`` started of an image
(seen with 4.1.2, and so does the stand-in); ``scancel --signal=TERM`` would not show that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.runs.record import RunRecord
from llmb_common.runs.timing.log_files import RunFiles
from llmb_common.runs.timing.runs import RecordedState, analyse
from llmb_common.runs.timing.window import Window
from llmb_common.submission.observe import observe, wait
from llmb_common.submission.single import submit
from support.images import PROGRAMS, build_image
from support.iteration_logs import TOLD_LINE, mbridge_line, saved_line
from support.processes import PATIENCE, wait_until
from support.run_site import RECIPE, RunSite, events_of
from support.slurm_cluster import SlurmCluster, what_is_missing
from support.slurm_config import SMALL, Partition

ENGINE = f"""#!/usr/bin/env perl
$| = 1;
print "LLMB manifest: {{}}\\n";
until (!$ENV{{LLMB_GATE}} || -e $ENV{{LLMB_GATE}}) {{ select(undef, undef, undef, 0.1) }}
$SIG{{TERM}} = sub {{ $told = 1 }};
print '{mbridge_line(3, 9)}' if $ENV{{SLURM_PROCID}} == 0;
select(undef, undef, undef, 0.1) until $told;
for (1 .. 30) {{ opendir(my $root, "/") or die; select(undef, undef, undef, 0.1) }}
print "saved by $ENV{{SLURM_PROCID}}\\n";
print '{saved_line(3)}{TOLD_LINE}' if $ENV{{SLURM_PROCID}} == 0;
"""
"""Saves for three seconds once it is told to, using the files of its root; before, it waits for the file ``LLMB_GATE``.
Bash could not heed an ignored signal."""

GRACE = replace(
    SMALL,
    partitions=(
        Partition("batch", "gpu[1-4]", "08:00:00 PriorityTier=10 PreemptMode=OFF", default=True),
        Partition("low", "gpu[1-4]", "08:00:00 PriorityTier=1 PreemptMode=REQUEUE GraceTime=20"),
        *(partition for partition in SMALL.partitions if partition.name == "gb200"),
    ),
    extra={"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"},
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
    monkeypatch.setenv("ENROOT_DATA_PATH", str(tmp_path / "roots"))
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


def test_a_warning_that_comes_while_ranks_start_is_not_swallowed(
    runtimes: Runtimes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    monkeypatch.setenv("LLMB_GATE", str(gate / "open"))
    records = [
        runtimes.submit(runtime, **({} if runtime == "none" else {"RUN_CONF_MOUNTS": f"{gate}:{gate}"}))
        for runtime in runtimes.sites
    ]
    for record in records:
        runtimes.cluster.run(["scancel", "--batch", "--signal=TERM", str(record.job_id)])
    wait_until(lambda: all("signal" in events_of(record) for record in records), "scripts that were told", timeout=60)
    (gate / "open").touch()
    for record in wait(records, timeout=90 * PATIENCE):
        log = record.paths.log.read_text()
        assert record.state == "COMPLETED", (record.states, log, record.paths.batch_log.read_text())
        assert {"saved by 0", "saved by 1"} <= set(log.splitlines())


def test_preempted_with_grace_every_runtime_saves_and_is_queued_again(runtimes: Runtimes, tmp_path: Path) -> None:
    nodes = dict(zip(runtimes.sites, ("gpu1", "gpu2", "gpu3"), strict=True))
    records = [
        runtimes.submit(runtime, SBATCH_PARTITION="low", ADDITIONAL_SLURM_PARAMS=f"nodelist={node}")
        for runtime, node in nodes.items()
    ]
    assert [path.name for path in (tmp_path / "roots").glob("[!.]*")] == [f"llmb-{records[-1].job_id}.0.0"]
    for node in nodes.values():
        runtimes.cluster.submit(f"--nodelist={node}", "--exclusive", "--output=/dev/null", "--wrap", "sleep 600")
    for record in records:
        runtimes.cluster.wait_for_state(int(record.job_id or 0), "PENDING", timeout=90)
        log = record.paths.log.read_text()
        assert {"saved by 0", "saved by 1"} <= set(log.splitlines()), (log, record.paths.batch_log.read_text())
        assert events_of(record) == ["start", "preempted", "end"]
    for looked in observe(records):
        assert looked.record.state == "PENDING"
        assert re.search(r"\bPREEMPTED\b.*\bgpu[123]\b", looked.record.detail)
    assert not list((tmp_path / "roots").glob("[!.]*")), "and nothing is left of the root"
