"""Run a job script with stand-ins for every program it starts, each of which records its exact arguments.

``srun`` runs its command once, as rank 0, into the file of ``--output``; ``enroot`` drops the environment as the real
one does; ``torch.distributed.run`` and ``nsys`` run what they are given. The script ends where training would begin.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMANDS = ("srun", "scontrol", "enroot", "nsys", "numactl", "sudo", "nvidia-smi", "python3")

_PROGRAM = r"""#!{python} -ISs
import json, os, sys, time
name, folder = {name!r}, {folder!r}
words = sys.argv[1:]
path = os.path.join(folder, "%d-%d.json" % (time.time_ns(), os.getpid()))
with open(path, "w") as stream:
    json.dump(dict(name=name, program=sys.argv[0], words=words, env=dict(os.environ), cwd=os.getcwd()), stream)
def options(*with_value):
    found = []
    while words and words[0].startswith("-"):
        option, equals, value = words.pop(0).partition("=")
        if not equals and option in with_value:
            value = words.pop(0)
        found.append((option, value))
    return found
def end():
    os.execvp(words[0], words)
if name == "srun":
    given = dict(options())
    if "--output" in given:
        log = os.open(given["--output"].replace("%%", "%"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
    os.environ.update(SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0", SLURM_NTASKS="1")
    end()
elif name == "scontrol":
    print("NodeName=n1 NodeAddr=10.1.2.3 State=IDLE")
elif name == "enroot" and words == ["info"]:
    sys.exit(1)  # as before 4.0: no root is made
elif name == "enroot":
    words.pop(0)
    inside = {"PATH": os.environ["PATH"]}
    for option, value in options("--mount", "-m", "--env", "-e", "--conf", "-c", "--rc"):
        if option in ("--env", "-e"):
            variable, equals, text = value.partition("=")
            inside[variable] = text if equals else os.environ.get(variable, "")
    words.pop(0)
    os.execvpe(words[0], words, inside)
elif name == "nsys":
    words.pop(0)
    options("-s", "-t", "-o")
    end()
elif name in ("numactl", "sudo"):
    options()
    end()
elif "torch.distributed.run" in words:
    words = words[words.index("--no-python") + 1:]
    os.environ.update(RANK="0", LOCAL_RANK="0")
    end()
"""


@dataclass(frozen=True)
class Call:
    """One call of a program, with what it saw."""

    name: str
    program: str
    words: list[str]
    env: dict[str, str]
    cwd: str

    def values(self, option: str) -> list[str]:
        """The value of every ``option``, given as ``option=value`` or as the next word."""
        found = [word.partition("=")[2] for word in self.words if word.startswith(f"{option}=")]
        return found + [self.words[i + 1] for i, word in enumerate(self.words) if word == option]

    def value(self, option: str) -> str:
        (value,) = self.values(option)
        return value


class ScriptStubs:
    """The stand-ins in ``folder``, and what they recorded."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.records = folder / "records"
        self.bin.mkdir(parents=True)
        self.records.mkdir()
        for name in COMMANDS:
            self.write(self.bin / name, name)

    def write(self, path: Path, name: str) -> None:
        """The stand-in for ``name``, under another path."""
        text = _PROGRAM.replace("{python}", sys.executable)
        path.write_text(text.replace("{name!r}", repr(name)).replace("{folder!r}", repr(str(self.records))))
        path.chmod(0o755)

    def run(self, script: Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run ``script`` as a job of Slurm would (a local one ignores that)."""
        slurm = {"SLURM_JOB_ID": "42", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "n1", "SLURMD_NODENAME": "n1"}
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", str(script)],
            env={"PATH": path, "LC_ALL": "C.UTF-8", **slurm, **env},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def calls(self, name: str) -> list[Call]:
        """Every call of ``name``, in order."""
        files = sorted(self.records.iterdir(), key=lambda path: int(path.name.split("-")[0]))
        found: list[dict[str, Any]] = [json.loads(path.read_text()) for path in files]
        return [Call(**call) for call in found if call["name"] == name]

    def ranks(self) -> list[Call]:
        """Every start of the training code."""
        return [call for call in self.calls("python3") if "llmb_train" in call.words]
