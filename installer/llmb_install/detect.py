"""What this machine and its Slurm report. Anything may be unknown; nothing here fails."""

from __future__ import annotations

import platform
import re
import shutil
from dataclasses import dataclass

from llmb_common.machine.files import me, user_name
from llmb_common.machine.processes import ask
from llmb_common.platform import gpus

_SECONDS = 15
_GRES_GPU = re.compile(r"gpu(?::([A-Za-z0-9_.-]+?))?:(\d+)")


@dataclass(frozen=True)
class Partition:
    """One partition. ``gpus_per_node`` is 0 where Slurm knows of no GPU."""

    name: str
    is_default: bool
    up: bool
    time_limit: str
    nodes: int
    gpus_per_node: int
    gpu_name: str


@dataclass(frozen=True)
class Site:
    """What was found out about this site's Slurm; fields are empty where nothing answered."""

    has_slurm: bool
    slurm_version: str
    partitions: tuple[Partition, ...]
    accounts: tuple[str, ...]
    architectures: tuple[str, ...]
    gpu_type: str
    local_gpus: tuple[str, ...]
    has_pyxis: bool = False

    @property
    def gpu_partitions(self) -> tuple[Partition, ...]:
        return tuple(p for p in self.partitions if p.gpus_per_node)

    def has_gres(self, partition: str) -> bool:
        return any(p.gpus_per_node for p in self.partitions if p.name == partition)

    def gpu_type_in(self, partition: str) -> str:
        """The GPU type of a partition, of any where that one does not say; empty when nothing says one that we know."""
        names = [p.gpu_name for p in self.partitions if p.name == partition and p.gpu_name]
        return gpus.type_of(names[0]) or "" if names else self.gpu_type


def detect_site() -> Site:
    """Ask sinfo, sacctmgr, scontrol and nvidia-smi, each with a time limit."""
    has_slurm = shutil.which("sbatch") is not None
    partitions = all_partitions() if has_slurm else ()
    local_gpus = tuple(output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines())
    names = [p.gpu_name for p in partitions if p.gpu_name] + list(local_gpus)
    version = re.search(r"\d+\.\d+(\.\d+)?", output("sinfo", "--version")) if has_slurm else None
    return Site(
        has_slurm=has_slurm,
        slurm_version=version[0] if version else "",
        partitions=partitions,
        accounts=accounts_of_user() if has_slurm else (),
        architectures=_architectures() if has_slurm else (platform.machine(),),
        gpu_type=next((kind for name in names if (kind := gpus.type_of(name))), ""),
        local_gpus=local_gpus,
        has_pyxis=has_slurm and bool(container_options()),
    )


def container_options() -> tuple[str, ...]:
    """Pyxis's options, from the plug-in options in srun's help."""
    return tuple(sorted(set(re.findall(r"--(?:\[no-\])?(container-[a-z-]+)", output("srun", "--help")))))


def mpi_types() -> tuple[str, ...]:
    """What ``srun --mpi=list`` shows; empty where nothing answers."""
    answer = ask(["srun", "--mpi=list"], _SECONDS)
    said = answer.output + answer.errors  # Slurm 22.05 lists them on standard error
    return tuple(sorted(set(re.findall(r"\b(pmix\w*|pmi2|none|openmpi|cray_shasta)\b", said))))


def mpi_type() -> str | None:
    """How jobs start their ranks here: PMIx if Slurm has it, else none. None: unknown."""
    types = mpi_types()
    return next((name for name in types if name.startswith("pmix")), "none") if types else None


def all_partitions() -> tuple[Partition, ...]:
    """Slurm's partitions; none where it does not answer."""
    return parse_sinfo(output("sinfo", "-h", "-o", "%P|%a|%l|%D|%G"))


def parse_sinfo(text: str) -> tuple[Partition, ...]:
    """Partitions from ``sinfo -h -o '%P|%a|%l|%D|%G'``: one line for each kind of node, several for a partition."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) != 5 or not fields[3].isdigit():
            continue
        name = fields[0].rstrip("*")
        gpu_name, gpus = gpus_in(fields[4])
        known = found.get(name)
        found[name] = Partition(
            name=name,
            is_default=fields[0].endswith("*"),
            up=fields[1] == "up",
            time_limit=fields[2],
            nodes=int(fields[3]) + (known.nodes if known else 0),
            gpus_per_node=max(gpus, known.gpus_per_node if known else 0),
            gpu_name=gpu_name or (known.gpu_name if known else ""),
        )
    return tuple(found.values())


def gpus_in(gres: str) -> tuple[str, int]:
    """Name and number of GPUs in a GRES text: ``gpu:h100:8(S:0-1)`` is ``("h100", 8)``."""
    names, total = "", 0
    for name, count in _GRES_GPU.findall(re.sub(r"\([^)]*\)", "", gres)):
        names = names or name
        total += int(count)
    return names, total


def output(*argv: str) -> str:
    """A command's output; empty if it is missing, fails or takes too long."""
    answer = ask(argv, _SECONDS)
    return answer.output if answer.ok else ""


def accounts_of_user() -> tuple[str, ...]:
    """The accounts that this user may charge; none where Slurm keeps no accounts or does not answer."""
    text = output("sacctmgr", "-nP", "show", "associations", f"user={user_name(me())}", "format=account")
    return tuple(sorted(set(filter(None, text.split()))))


def _architectures() -> tuple[str, ...]:
    text = output("scontrol", "--oneliner", "show", "nodes")
    return tuple(sorted(set(re.findall(r"\bArch=(\S+)", text))))
