"""A scripted Slurm for what a real one does not do on demand: it hangs, lies, loses answers and stops mid-line.

``FakeSlurm`` puts ``sbatch``, ``squeue``, ``sacct`` and ``scancel`` into a folder for PATH, and a ``sinfo`` whose only
node is this machine (a file ``nodes`` in the folder names others).

Jobs are files there, named by id; those of an array share one. It shows arrays as Slurm 22.05 does: waiting tasks are
one row; a waiting task that is cancelled leaves no trace, the whole array one row without a number.

``say(command, how)`` directs the next calls of a command:

==========  =====================================================================================
hang        it never answers
garbage     it prints something that is not an answer, with exit status 0
half        its last line breaks off, with exit status 0
twice       every line comes twice
error       "Socket timed out", exit status 1; ``sbatch`` has NOT accepted the job
lost        ``sbatch`` only: the job is accepted, then "Socket timed out", exit status 1
slow        it works, after a second
limit       ``sbatch`` only: all but the first three jobs are refused, as by a site's limit
silent      exit status 0 and no output; ``sbatch`` has accepted the job
disabled    ``sacct`` only: there is no accounting
==========  =====================================================================================
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from support.fake_slurm_program import SEPARATOR, read_jobs, write_jobs

COMMANDS = ("sbatch", "squeue", "sacct", "scancel", "sinfo")

# Python takes ten times as long to start as sh, which answers what is asked most.
_PROGRAM = f"""#!/bin/sh
if [ "$*" = --version ]; then echo 'slurm 22.05.8'; exit; fi
folder=FOLDER IFS='{SEPARATOR}'
if [ "${{0##*/}}" = sinfo ]; then
    printf '%s\\n' "sinfo$IFS$*" >>"$folder/calls"
    cat "$folder/nodes" 2>/dev/null || echo 'localhost|127.0.0.1'
    exit
fi
exec {shlex.quote(sys._base_executable)} -ISs -c '
import sys
sys.path.append(sys.argv[1])
from fake_slurm_program import main
main(*sys.argv[2:])' {shlex.quote(str(Path(__file__).parent))} "$folder" "${{0##*/}}" "$@"
"""


@dataclass(frozen=True)
class FakeSlurm:
    """The fake in ``folder``; put ``bin`` in front of PATH."""

    folder: Path

    def __post_init__(self) -> None:
        self.bin.mkdir(parents=True)
        text = _PROGRAM.replace("FOLDER", shlex.quote(str(self.folder)))
        for command in COMMANDS:
            path = self.bin / command
            path.write_text(text)
            path.chmod(0o755)

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    def path(self) -> str:
        """PATH with the fake in front."""
        return f"{self.bin}{os.pathsep}{os.environ['PATH']}"

    def say(self, command: str, how: str) -> None:
        """Direct all further calls of ``command``; with an empty ``how`` it works."""
        (self.folder / f"{command}.how").write_text(how)

    def jobs(self) -> list[dict[str, object]]:
        """All jobs that were ever accepted, by id."""
        return [job for path in self._files() for job in read_jobs(str(path))]

    def forget(self) -> None:
        """Forget all jobs."""
        for path in self._files():
            path.unlink()

    def _files(self) -> list[Path]:
        return sorted((path for path in self.folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))

    def change(self, job_id: str, **values: object) -> None:
        """Change a job's ``state``, ``exit_code``, ``name``, or the commands to which it is ``known``."""
        path = self.folder / job_id.partition("_")[0]
        jobs = [{**job, **values} if job["id"] == job_id else job for job in read_jobs(str(path))]
        write_jobs(str(path), jobs)

    def calls(self, command: str) -> list[list[str]]:
        """The arguments of every call of ``command``."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [words for name, *words in (line.split(SEPARATOR) for line in lines) if name == command]
