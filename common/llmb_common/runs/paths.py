"""Where a run keeps its files: ``experiments/<experiment_name>/<experiment_name>_<timestamp>/``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

DRY_RUN_STAMP = "TIMESTAMP"
DRY_RUN_ID = "RUNID"
SHARED_PREFIXES = (".array-", ".series-")


class RunPaths(msgspec.Struct, frozen=True):
    """The files and folders of one run. ``stamp`` is ``numbered``: unique within the experiment."""

    experiments: Path
    experiment_name: str
    stamp: str
    run_id: str

    @property
    def name(self) -> str:
        """The name of the run and of its folder: the experiment's, then date and time."""
        return f"{self.experiment_name}_{self.stamp}"

    @property
    def folder(self) -> Path:
        """The run's own folder."""
        return self.experiments / self.experiment_name / self.name

    @property
    def record(self) -> Path:
        """The record of the run."""
        return self.folder / "run.json"

    @property
    def events(self) -> Path:
        """The job's own account of its start and end, one JSON object a line: no accounting database needed."""
        return self.folder / "events.jsonl"

    @property
    def job(self) -> Path:
        """The file that tells the ranks what to train."""
        return self.folder / "job.json"

    @property
    def script(self) -> Path:
        """The batch script."""
        return self.folder / f"{self.experiment_name}.sbatch"

    @property
    def supervisor(self) -> Path:
        """The path of ``supervisor.sh`` in the run's folder: the shell code that the batch script reads on the node
        that runs it, as it was planned.
        """
        return self.folder / "supervisor.sh"

    @property
    def code(self) -> Path:
        """The training code as it was planned; a queued job does not change under an update.

        One file, which each of a thousand ranks reads once (``llmb_train/__init__.py``), not fifty small ones.
        """
        return self.folder / "code.zip"

    @property
    def output(self) -> Path:
        """The folder for what the job writes."""
        return self.folder / self.experiment_name

    @property
    def log(self) -> Path:
        """The log of the ranks."""
        return self.output / f"log-{self.experiment_name}.out"

    @property
    def batch_log(self) -> Path:
        """The log of the batch script."""
        return self.output / f"sbatch_{self.experiment_name}.out"

    @property
    def profiles(self) -> Path:
        """The folder for reports of Nsight Systems."""
        return self.output / "nsys_profile"

    @property
    def checkpoints(self) -> Path:
        """The folder for checkpoints, unless the user names another."""
        return self.output / "checkpoints"

    @property
    def job_name(self) -> str:
        """The Slurm job name: it holds the run id, by which a job is found again after a crash."""
        return f"{self.experiment_name}.{self.run_id}"

    def old_array(self, array_id: str) -> SharedPaths:
        """Return the paths of a job array of runs of this experiment, as releases before 0.3 submitted them."""
        return SharedPaths(self.folder.parent, self.experiment_name, "array", array_id)

    def series(self, series_id: str) -> SharedPaths:
        """The paths that all runs of the series ``series_id`` share; they may be of several experiments."""
        return SharedPaths(self.experiments, "llmb", "series", series_id)


class SharedPaths(msgspec.Struct, frozen=True):
    """A job of several runs: a hidden folder in ``parent``, where a link leads to each run by its number.

    It is in none of the runs' own folders: removing a run must not harm the others.
    """

    parent: Path
    title: str
    kind: Literal["array", "series"]
    shared_id: str

    @property
    def folder(self) -> Path:
        """The folder that several runs share, hidden beside theirs."""
        return self.parent / f".{self.kind}-{self.shared_id}"

    @property
    def script(self) -> Path:
        """The batch script of all these runs."""
        return self.folder / f"{self.kind}.sbatch"

    @property
    def log(self) -> Path:
        """The file for output that is not of a single run."""
        return self.folder / f"{self.kind}.out"

    @property
    def job_name(self) -> str:
        """The name of the Slurm job that runs all of them."""
        return f"{self.title}.{self.kind}-{self.shared_id}"


def numbered(second: int, number: int) -> str:
    """The stamp of the ``number``-th run (from 1) of a second: ``1763776628``, ``1763776628-0002``. Sorts by time."""
    return str(second) if number == 1 else f"{second}-{number:04d}"


def experiments_folder(workload_folder: str) -> Path:
    """The path ``WORKLOAD_FOLDER/experiments``, where a workload's runs lie; ``workload_folder`` is a path. Nothing
    is looked up or made.
    """
    return Path(workload_folder) / "experiments"


def dry_run_paths(workload_folder: str, experiment_name: str) -> RunPaths:
    """Return the paths of a run with placeholders for time and id: the same for every dry run of the same job."""
    return RunPaths(experiments_folder(workload_folder), experiment_name, DRY_RUN_STAMP, DRY_RUN_ID)
