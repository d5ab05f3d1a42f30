"""Where a run keeps its files: ``experiments/<experiment_name>/<experiment_name>_<timestamp>/``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

DRY_RUN_STAMP = "TIMESTAMP"
DRY_RUN_ID = "RUNID"
SHARED_PREFIXES = (".array-", ".series-")


class RunPaths(msgspec.Struct, frozen=True):
    """The paths of one run's folder and of the files in it. None of them is looked up or created.

    ``experiments`` is the folder of all runs of a workload; ``stamp`` is an answer of ``numbered``, unique within
    ``experiment_name`` (in a dry run ``TIMESTAMP``); ``run_id`` is LLMB's own ID of the run. The properties ``name``,
    of the run and its folder (the experiment's, an underscore, the stamp), and ``job_name``, the Slurm job's (the
    experiment's, a dot, the run ID), are texts; all others are paths. ``folder`` is the run's own; ``record``
    (run.json), ``events`` (events.jsonl), ``job`` (job.json), ``script`` (the batch script, EXPERIMENT.sbatch),
    ``supervisor`` (supervisor.sh) and ``code`` (code.zip) are files in it; ``output`` is a folder in it, called like
    the experiment, with the files ``log`` (of training, log-EXPERIMENT.out) and ``batch_log`` (sbatch_EXPERIMENT.out)
    and the folders ``profiles`` (of Nsight Systems) and ``checkpoints``. The methods ``old_array`` and ``series``
    return the ``SharedPaths`` of a job that several runs share, by LLMB's ID of it. ``reserve`` makes those of a new
    run, ``load_record`` those of one on record.
    """

    experiments: Path
    experiment_name: str
    stamp: str
    run_id: str

    @property
    def name(self) -> str:
        """The name of the run and of its folder: the experiment's name, ``_``, and the stamp of its submission."""
        return f"{self.experiment_name}_{self.stamp}"

    @property
    def folder(self) -> Path:
        """The run's own folder, with everything that belongs to it."""
        return self.experiments / self.experiment_name / self.name

    @property
    def record(self) -> Path:
        """The path of run.json, the run's record."""
        return self.folder / "run.json"

    @property
    def events(self) -> Path:
        """The path of events.jsonl: the job's own account of its start and end, one JSON object per line.

        So no accounting database is needed.
        """
        return self.folder / "events.jsonl"

    @property
    def job(self) -> Path:
        """The path of job.json, which tells the ranks what to train."""
        return self.folder / "job.json"

    @property
    def script(self) -> Path:
        """The path of the run's own batch script, which ``sbatch`` gets, or the local executor.

        It is called like the experiment, and lies in the run's folder.
        """
        return self.folder / f"{self.experiment_name}.sbatch"

    @property
    def supervisor(self) -> Path:
        """The path of supervisor.sh in the run's folder: the shell code that the batch script reads on its node.

        It is a copy from the time of planning, so an update does not change a queued job.
        """
        return self.folder / "supervisor.sh"

    @property
    def code(self) -> Path:
        """The path of code.zip, the training code as it was at planning: an update does not change a queued job.

        It is one file, which each of a thousand ranks reads once (``llmb_train/__init__.py``), instead of fifty small
        ones.
        """
        return self.folder / "code.zip"

    @property
    def output(self) -> Path:
        """The folder for what the job writes: logs, profiles and checkpoints."""
        return self.folder / self.experiment_name

    @property
    def log(self) -> Path:
        """The path of the training log, into which all ranks print."""
        return self.output / f"log-{self.experiment_name}.out"

    @property
    def batch_log(self) -> Path:
        """The path of the batch script's own log."""
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
        """The name of the Slurm job. It contains the run ID, by which the job is found again after a crash."""
        return f"{self.experiment_name}.{self.run_id}"

    def old_array(self, array_id: str) -> SharedPaths:
        """Return the paths of the job array ``array_id`` of this experiment, as releases before 0.3 submitted it."""
        return SharedPaths(self.folder.parent, self.experiment_name, "array", array_id)

    def series(self, series_id: str) -> SharedPaths:
        """Return the paths that all runs of the series ``series_id`` share; these may be of several experiments.

        Their folder lies in the experiments folder of this run.
        """
        return SharedPaths(self.experiments, "llmb", "series", series_id)


class SharedPaths(msgspec.Struct, frozen=True):
    """The paths of one Slurm job that runs several runs: a hidden folder, with a link to each run by its number.

    It lies in ``parent`` and in none of the runs' own folders, as removing one run must not harm the others.
    ``shared_id`` is LLMB's own ID of the job. The property ``folder`` is the path of that folder
    (``PARENT/.KIND-ID``), ``script`` and ``log`` are those of the batch script and of its log in it, and
    ``job_name`` is the Slurm job's name, the text ``TITLE.KIND-ID``. Nothing is looked up or created.
    ``RunPaths.series`` and ``RunPaths.old_array`` make it.
    """

    parent: Path
    title: str
    kind: Literal["array", "series"]
    shared_id: str

    @property
    def folder(self) -> Path:
        """The hidden folder, in ``parent``, of the job that several runs share."""
        return self.parent / f".{self.kind}-{self.shared_id}"

    @property
    def script(self) -> Path:
        """The path of the batch script of the job that several runs share."""
        return self.folder / f"{self.kind}.sbatch"

    @property
    def log(self) -> Path:
        """The path of the log for output of the shared job that belongs to no single run."""
        return self.folder / f"{self.kind}.out"

    @property
    def job_name(self) -> str:
        """The name of the Slurm job that several runs share."""
        return f"{self.title}.{self.kind}-{self.shared_id}"


def numbered(second: int, number: int) -> str:
    """Return the stamp of the ``number``-th run, from 1, of a Unix ``second``: ``1763776628``, ``1763776628-0002``.

    As texts, stamps sort by time, with up to 9999 in a second.
    """
    return str(second) if number == 1 else f"{second}-{number:04d}"


def experiments_folder(workload_folder: str) -> Path:
    """Return the path ``WORKLOAD_FOLDER/experiments``, which holds a workload's runs, whether it exists or not."""
    return Path(workload_folder) / "experiments"


def dry_run_paths(workload_folder: str, experiment_name: str) -> RunPaths:
    """Return the paths of a run with placeholders for time and ID: the same for every dry run of the same job.

    They are in ``WORKLOAD_FOLDER/experiments``, under ``experiment_name``, with the stamp ``TIMESTAMP`` and the run
    ID ``RUNID``.
    """
    return RunPaths(experiments_folder(workload_folder), experiment_name, DRY_RUN_STAMP, DRY_RUN_ID)
