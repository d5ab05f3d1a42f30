"""What the commands of ``FakeSlurm`` do. They are started thousands of times, so this imports next to nothing."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Job = dict[str, Any]

SEPARATOR = "\x02"
"""Between the words of a call in the file ``calls``."""

_FIELD = "\x1f"
"""Between the fields of a row, as squeue and sacct are asked for them."""

_TIMED_OUT = "Socket timed out on send/recv operation"
_MOST_JOBS = 3
_LIMIT = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


def main(folder: str, command: str, *words: str) -> None:
    """Run ``command`` with the arguments ``words``; jobs and calls are in ``folder``."""
    with open(os.path.join(folder, "calls"), "a") as calls:
        calls.write(SEPARATOR.join([command, *words]) + "\n")
    how = _read(os.path.join(folder, command + ".how"))
    if how == "hang":
        time.sleep(600)
    if how == "slow":
        time.sleep(1)
    if how == "disabled":
        _fail("Slurm accounting storage is disabled")
    if how == "error":
        error = "error: Batch job submission failed" if command == "sbatch" else "slurm_load_jobs error"
        _fail(f"{command}: {error}: {_TIMED_OUT}" if command == "sbatch" else f"{error}: {_TIMED_OUT}")
    if how == "garbage":
        print("<html>502 Bad Gateway</html>")
        return
    lines = _submit(folder, how, words) if command == "sbatch" else _answer(folder, command, words)
    if how == "twice":
        lines = lines * 2
    text = "".join(line + "\n" for line in lines)
    if how == "half":
        text = text[: len(text) * 2 // 3]
    if how != "silent":
        sys.stdout.write(text)


def read_jobs(path: str) -> list[Job]:
    """The jobs of a file that this program has written."""
    return eval(_read(path) or "[]", {})  # our own repr; ast.literal_eval takes ten times as long


def write_jobs(path: str, jobs: list[Job]) -> None:
    """In one step: a command may be reading it."""
    new = os.path.join(os.path.dirname(path), "." + os.path.basename(path))
    with open(new, "w") as file:
        file.write(repr(jobs))
    os.replace(new, path)


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _fail(text: str) -> NoReturn:
    print(text, file=sys.stderr)
    sys.exit(1)


def _submit(folder: str, how: str, words: tuple[str, ...]) -> list[str]:
    options = [line[len("#SBATCH --") :] for line in _read(words[-1]).splitlines() if line.startswith("#SBATCH --")]
    values = dict(option.partition("=")[::2] for option in options)
    last = values["array"].removeprefix("0-") if "array" in values else ""
    for number in range(1, 10**6):
        try:
            os.close(os.open(os.path.join(folder, str(number)), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        break
    if how == "limit" and number > _MOST_JOBS:  # its number is taken first: several are submitted at once
        os.unlink(os.path.join(folder, str(number)))
        _fail(f"sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: {_LIMIT}")
    job: Job = {"name": values["job-name"], "state": "PENDING", "submitted": int(time.time())}
    job |= {"options": list(words[:-1]), "known": ["squeue", "sacct"], "script": words[-1]}
    ids = [f"{number}_{index}" for index in range(int(last) + 1)] if last else [str(number)]
    write_jobs(os.path.join(folder, str(number)), [{**job, "id": job_id} for job_id in ids])
    if how == "lost":
        _fail(f"sbatch: error: Batch job submission failed: {_TIMED_OUT}")
    return [str(number)]


def _answer(folder: str, command: str, words: tuple[str, ...]) -> list[str]:
    names = next((word[7:].split(",") for word in words if word.startswith("--name=")), None)
    ids = [word for word in words if word.replace("_", "").isdigit()]
    ids += [job_id for word in words if word.startswith("--jobs=") for job_id in word[7:].split(",")]
    numbers = sorted((name for name in os.listdir(folder) if name.isdigit()), key=int)
    jobs = [job for number in numbers for job in read_jobs(os.path.join(folder, number))]
    chosen = [job for job in jobs if names is None or job["name"] in names]
    chosen = [job for job in chosen if not ids or job["id"] in ids or job["id"].partition("_")[0] in ids]
    if command == "scancel":
        _cancel(folder, chosen, ids)
        return []
    rows = _rows([job for job in chosen if command in job["known"]])
    if command == "squeue" and len(ids) == 1 and not rows:
        _fail("slurm_load_jobs error: Invalid job id specified")
    return [_line(command, row_id, jobs) for row_id, jobs in rows.items()]


def _cancel(folder: str, chosen: list[Job], ids: list[str]) -> None:
    for base in sorted({job["id"].partition("_")[0] for job in chosen}):
        kept: list[Job] = []
        rest: list[Job] = []
        for job in read_jobs(os.path.join(folder, base)):
            if job not in chosen or job["state"] not in ("PENDING", "RUNNING"):
                kept.append(job)
            elif job["state"] == "RUNNING" or "_" not in job["id"]:
                kept.append({**job, "state": "CANCELLED"})
            elif base in ids:
                rest = [{**job, "id": base, "state": "CANCELLED"}]
        write_jobs(os.path.join(folder, base), kept + rest)


def _rows(jobs: list[Job]) -> dict[str, list[Job]]:
    """The jobs of each row: waiting tasks of an array share one."""
    rows: dict[str, list[Job]] = {}
    for job in jobs:
        base, _, index = job["id"].partition("_")
        together = index and job["state"] == "PENDING"
        rows.setdefault(base if together else job["id"], []).append(job)
    return rows


def _line(command: str, row_id: str, jobs: list[Job]) -> str:
    job = jobs[0]
    if len(jobs) > 1 or row_id != job["id"]:
        row_id = f"{row_id}_[{','.join(job['id'].partition('_')[2] for job in jobs)}]"
    ended = str(job["submitted"] + 9) if job["state"] not in ("PENDING", "RUNNING") else "N/A"
    head = [row_id, job["state"], str(job["submitted"]), "N/A", ended]
    if command == "squeue":
        return _FIELD.join([*head, "", job["name"], job.get("reason", "None"), job.get("script", "(null)")])
    head[1] += f" by {os.getuid()}" * (job["state"] == "CANCELLED")  # accounting knows who it was
    rest = ["None assigned", job["name"], job.get("exit_code", "0:0"), "None", job.get("script", "")]
    return _FIELD.join([*head, *rest])
