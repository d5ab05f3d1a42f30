"""A scripted Slurm for what a real one does not do on demand: it hangs, lies, loses answers and stops mid-line.

``FakeSlurm`` puts ``sbatch``, ``squeue``, ``sacct``, ``scancel`` and ``scontrol show config`` into a folder for PATH.
Jobs are files there, named by id; those of an array share one. It shows arrays as Slurm 22.05 does: waiting tasks are
one row unless ``squeue`` is asked with ``--array``; a waiting task that is cancelled leaves no trace, the whole array
one row without a number. ``say(command, how)`` directs the next calls of a command:

==========  =====================================================================================
hang        it never answers
garbage     it prints something that is not an answer, with exit status 0
half        its last line breaks off, with exit status 0
twice       every line comes twice
error       "Socket timed out", exit status 1; ``sbatch`` has NOT accepted the job
lost        ``sbatch`` only: the job is accepted, then "Socket timed out", exit status 1
slow        it works, after a second
noarray     ``sbatch`` only: arrays are refused
silent      exit status 0 and no output; ``sbatch`` has accepted the job
disabled    ``sacct`` only: there is no accounting
==========  =====================================================================================
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

COMMANDS = ("sbatch", "squeue", "sacct", "scancel", "scontrol")

_PROGRAM = r"""#!{python} -ISs
import json, os, re, sys, time
folder = {folder!r}
command = os.path.basename(sys.argv[0])
if sys.argv[1:] == ["--version"]:
    print("slurm 22.05.8")
    sys.exit(0)
with open(os.path.join(folder, "calls"), "a") as calls:
    calls.write(json.dumps([command, *sys.argv[1:]]) + "\n")
try:
    how = open(os.path.join(folder, command + ".how")).read()
except FileNotFoundError:
    how = ""
def jobs():
    names = sorted((n for n in os.listdir(folder) if n.isdigit()), key=int)
    return [job for n in names for job in json.load(open(os.path.join(folder, n)))]
def save(number, jobs):
    path = os.path.join(folder, "." + number)
    json.dump(jobs, open(path, "w"))
    os.replace(path, os.path.join(folder, number))
def fail(text):
    print(text, file=sys.stderr)
    sys.exit(1)
if how == "hang":
    time.sleep(600)
if how == "slow":
    time.sleep(1)
if how == "disabled":
    fail("Slurm accounting storage is disabled")
if how == "error":
    fail(command + ": error: Batch job submission failed: Socket timed out on send/recv operation"
         if command == "sbatch" else "slurm_load_jobs error: Socket timed out on send/recv operation")
if how == "garbage":
    print("<html>502 Bad Gateway</html>")
    sys.exit(0)
lines = []
if command == "sbatch":
    script = open(sys.argv[-1]).read()
    name = re.search(r"^#SBATCH --job-name=(\S+)$", script, re.M)[1]
    array = re.search(r"^#SBATCH --array=0-([0-9]+)$", script, re.M)
    if array and how == "noarray":
        fail("sbatch: error: Batch job submission failed: Invalid job array specification")
    for number in range(1, 10**6):
        try:
            os.close(os.open(os.path.join(folder, str(number)), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        break
    job = dict(name=name, state="PENDING", submitted=int(time.time()), options=sys.argv[1:-1],
               known=["squeue", "sacct"])
    ids = ["%d_%d" % (number, n) for n in range(int(array[1]) + 1)] if array else [str(number)]
    save(str(number), [dict(job, id=i) for i in ids])
    if how == "lost":
        fail("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
    lines = [str(number)]
else:
    names = next((a[7:].split(",") for a in sys.argv if a.startswith("--name=")), None)
    ids = [a for a in sys.argv[1:] if re.fullmatch("[0-9_]+", a)]
    chosen = [j for j in jobs() if (names is None or j["name"] in names)
              and (not ids or j["id"] in ids or j["id"].partition("_")[0] in ids)]
    if command == "scontrol":
        lines, chosen = ["MaxArraySize            = 1001"], []
    if command == "scancel":
        for base in sorted(set(j["id"].partition("_")[0] for j in chosen)):
            kept, rest = [], None
            for job in json.load(open(os.path.join(folder, base))):
                if job not in chosen or job["state"] not in ("PENDING", "RUNNING"):
                    kept.append(job)
                elif job["state"] == "RUNNING" or "_" not in job["id"]:
                    kept.append(dict(job, state="CANCELLED"))
                elif base in ids:
                    rest = dict(job, id=base, state="CANCELLED")
            save(base, kept + [rest] if rest else kept)
    rows = {}
    for job in chosen:
        if command not in job["known"]:
            continue
        base, _, index = job["id"].partition("_")
        together = index and job["state"] == "PENDING" and "--array" not in sys.argv
        rows.setdefault(base if together else job["id"], []).append(job)
    for row_id, [job, *more] in rows.items():
        if more or row_id != job["id"]:
            job = dict(job, id="%s_[%s]" % (row_id, ",".join(j["id"].partition("_")[2] for j in [job, *more])))
        ended = str(job["submitted"] + 9) if job["state"] not in ("PENDING", "RUNNING") else "N/A"
        head = [job["id"], job["state"], str(job["submitted"]), "N/A", ended]
        if command == "squeue":
            lines.append("|".join([*head, "", job["name"], "None"]))
        elif command == "sacct":
            lines.append("|".join([*head, "None assigned", job["name"], job.get("exit_code", "0:0")]))
if how == "twice":
    lines = lines * 2
text = "".join(line + "\n" for line in lines)
if how == "half":
    text = text[: len(text) * 2 // 3]
if how != "silent":
    sys.stdout.write(text)
"""


@dataclass(frozen=True)
class FakeSlurm:
    """The fake in ``folder``; put ``bin`` in front of PATH."""

    folder: Path

    def __post_init__(self) -> None:
        self.bin.mkdir(parents=True)
        text = _PROGRAM.replace("{python}", sys.executable).replace("{folder!r}", repr(str(self.folder)))
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
        return [job for path in self._files() for job in json.loads(path.read_text())]

    def forget(self) -> None:
        """Forget all jobs."""
        for path in self._files():
            path.unlink()

    def _files(self) -> list[Path]:
        return sorted((path for path in self.folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))

    def change(self, job_id: str, **values: object) -> None:
        """Change a job's ``state``, ``exit_code``, ``name``, or the commands to which it is ``known``."""
        path = self.folder / job_id.partition("_")[0]
        jobs = json.loads(path.read_text())
        changed = path.with_name(f".{path.name}")  # in one step: a command may be reading it
        changed.write_text(json.dumps([{**job, **values} if job["id"] == job_id else job for job in jobs]))
        changed.replace(path)

    def calls(self, command: str) -> list[list[str]]:
        """The arguments of every call of ``command``."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call[1:] for call in map(json.loads, lines) if call[0] == command]
