"""A stand-in for PBS: ``qsub``, ``qstat``, ``qdel`` and ``mpirun``, by the name that it is called with.

PBS_HOME is a folder. A job is a file there, which ``qsub`` writes from the script's ``#PBS`` lines and a child of its
own then runs on nodes ``n1``, ``n2``, ...; a file ``stopped`` leaves all jobs in the queue.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count, pairwise
from pathlib import Path
from typing import Any

HOME = Path(os.environ["PBS_HOME"])


def write(job_id: str, job: dict[str, Any]) -> None:
    making = HOME / f".{job_id}"
    making.write_text(json.dumps(job))
    making.rename(HOME / f"{job_id}.json")


def jobs() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in HOME.glob("*.json")}


def next_number() -> int:
    for number in count(1):
        with suppress(FileExistsError):
            (HOME / f"{number}.taken").touch(exist_ok=False)
            return number
    raise AssertionError


def qsub(*arguments: str) -> int:
    *options, script = arguments
    lines = [line.split()[1:] for line in Path(script).read_text().splitlines() if line.startswith("#PBS ")]
    words = [word for line in lines for word in line] + options
    pairs = list(pairwise(words))
    said = {option: value for option, value in pairs if option != "-l"}
    parts = [item.split("=", 1) for option, value in pairs if option == "-l" for item in value.split(":")]
    resources = {name: value for name, *values in parts for value in values}
    if said.get("-q") == "closed":
        print("qsub: Queue is not enabled", file=sys.stderr)
        return 1
    job_id = f"{next_number()}.pbs"
    hosts = [f"n{number + 1}" for number in range(int(resources["select"]))]
    per_node = resources["mpiprocs"]
    write(
        job_id,
        {
            "Job_Name": said["-N"],
            "job_state": "Q",
            "Account_Name": said.get("-A"),
            "queue": said.get("-q"),
            "depend": said.get("-W"),
            "begin": said.get("-a"),
            "exec_host": "+".join(f"{host}/0*{per_node}" for host in hosts),
            "nodes": [host for host in hosts for _ in range(int(per_node))],
            "script": script,
            "output": said["-o"],
        },
    )
    quiet = subprocess.DEVNULL
    command = [sys.executable, __file__, "run", job_id]
    subprocess.Popen(command, start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet)
    print(job_id)
    return 0


def run(job_id: str) -> int:
    while (HOME / "stopped").exists():
        if jobs()[job_id]["job_state"] == "F":
            return 0
        time.sleep(0.05)
    job = jobs()[job_id]
    nodes = HOME / f"{job_id}.nodes"
    nodes.write_text("\n".join(job["nodes"]) + "\n")
    env = {**os.environ, "PBS_JOBID": job_id, "PBS_NODEFILE": str(nodes)}
    with Path(job["output"]).open("a") as output:
        process = subprocess.Popen(["bash", job["script"]], env=env, stdout=output, stderr=output)
    write(job_id, {**job, "job_state": "R", "pid": process.pid})
    status = process.wait()
    job = jobs()[job_id]
    write(job_id, {**job, "job_state": "F", "Exit_status": 256 + signal.SIGTERM if job.get("deleted") else status})
    return 0


def qstat(*arguments: str) -> int:
    print(json.dumps({"Jobs": jobs()}))
    return 0


def qdel(*ids: str) -> int:
    for job_id in ids:
        job = jobs()[job_id]
        if job["job_state"] == "Q":
            write(job_id, {**job, "job_state": "F", "Exit_status": 256 + signal.SIGTERM})
        elif job["job_state"] == "R":
            write(job_id, {**job, "deleted": True})
            os.kill(job["pid"], signal.SIGTERM)
    return 0


def mpirun(*arguments: str) -> int:
    size, hosts = int(arguments[1]), Path(arguments[3]).read_text().split()
    command = arguments[arguments.index("bash") :]
    ranks = []
    for rank in range(size):
        own = {"RANK": rank, "LOCAL_RANK": hosts[:rank].count(hosts[rank]), "SIZE": size}
        env = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in own.items()}
        ranks.append(subprocess.Popen(command, env={**os.environ, **env, "HOSTNAME": hosts[rank]}))
    signal.signal(signal.SIGTERM, lambda *_: [rank.terminate() for rank in ranks])
    return max([abs(rank.wait()) for rank in ranks])


if __name__ == "__main__":
    name, *given = sys.argv[1:]
    sys.exit({"qsub": qsub, "qstat": qstat, "qdel": qdel, "mpirun": mpirun, "run": run}[name](*given))
