"""What this machine and its Slurm report, and answers that it contradicts.

Anything may be unknown: then nothing is wrong. Standard library only: the first stage asks, too.
"""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmb_common.base import gpus
from llmb_common.base.errors import RequestError, did_you_mean
from llmb_common.base.files import effective_user_id, user_name
from llmb_common.base.processes import run_program
from llmb_install.answers.given import Given, expand_workloads, on_slurm

if TYPE_CHECKING:
    from llmb_common.recipes.recipe import Recipe


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
        """Those of the partitions that have GPUs, as far as Slurm knows."""
        return tuple(p for p in self.partitions if p.gpus_per_node)

    def gpu_type_in(self, partition: str) -> str:
        """The GPU type of a partition, such as ``h100``, by the name that Slurm has for its GPUs.

        That of the whole site where Slurm names none there; empty where LLMB knows no type of that name.
        """
        names = [p.gpu_name for p in self.partitions if p.name == partition and p.gpu_name]
        return gpus.type_of(names[0]) or "" if names else self.gpu_type


def detect_site() -> Site:
    """Ask sinfo, sacctmgr, scontrol, srun and nvidia-smi what is here, each for at most 15 seconds.

    What does not answer leaves its fields empty; nothing is raised. Without Slurm, ``architectures`` has this
    machine's.
    """
    has_slurm = shutil.which("sbatch") is not None
    partitions = all_partitions() if has_slurm else ()
    local_gpus = tuple(command_output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines())
    names = [p.gpu_name for p in partitions if p.gpu_name] + list(local_gpus)
    version = re.search(r"\d+\.\d+(\.\d+)?", command_output("sinfo", "--version")) if has_slurm else None
    architectures = {platform.machine()}
    if has_slurm:
        architectures = set(re.findall(r"\bArch=(\S+)", command_output("scontrol", "--oneliner", "show", "nodes")))
    return Site(
        has_slurm=has_slurm,
        slurm_version=version[0] if version else "",
        partitions=partitions,
        accounts=accounts_of_user() if has_slurm else (),
        architectures=tuple(sorted(architectures)),
        gpu_type=next(filter(None, map(gpus.type_of, names)), ""),
        local_gpus=local_gpus,
        has_pyxis=has_slurm and bool(container_options()),
    )


def container_options() -> tuple[str, ...]:
    """The options of Pyxis that this site's srun takes, sorted, without dashes: ``container-image``.

    Empty where srun does not answer or has no Pyxis.
    """
    return tuple(sorted(set(re.findall(r"--(?:\[no-\])?(container-[a-z-]+)", command_output("srun", "--help")))))


def all_partitions() -> tuple[Partition, ...]:
    """Slurm's partitions, asked from sinfo now; empty where it does not answer."""
    return parse_sinfo(command_output("sinfo", "-h", "-o", "%P|%a|%l|%D|%G"))


def parse_sinfo(text: str) -> tuple[Partition, ...]:
    """Partitions from the output of ``sinfo -h -o '%P|%a|%l|%D|%G'``, in which each kind of node has a line.

    The lines of a partition become one: their nodes added, the most GPUs per node. Other lines are left out.
    """
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
    """Name and number of GPUs in a GRES text: ``gpu:h100:8(S:0-1)`` is ``("h100", 8)``.

    Of several kinds the first name and the sum. The name is empty where Slurm has none; no GPUs are ``("", 0)``.
    """
    names, total = "", 0
    for name, count in _GRES_GPU.findall(re.sub(r"\([^)]*\)", "", gres)):
        names = names or name
        total += int(count)
    return names, total


def command_output(*argv: str) -> str:
    """What a command prints to standard output; empty if it is missing, fails or takes more than 15 seconds."""
    answer = run_program(argv, _SECONDS)
    return answer.output if answer.ok else ""


def accounts_of_user() -> tuple[str, ...]:
    """The accounts that this user may charge, Slurm's own default first and the others in order.

    Empty where Slurm keeps no accounts or does not answer.
    """
    user = user_name(effective_user_id())
    accounts = set(command_output("sacctmgr", "-nP", "show", "associations", f"user={user}", "format=account").split())
    if len(accounts) < 2:
        return tuple(accounts)
    default = command_output("sacctmgr", "-nP", "show", "user", user, "format=defaultaccount").strip()
    return tuple(sorted(accounts, key=lambda account: (account != default, account)))


FLAG = "--no-site-check"
_OVERRIDE = f"or give {FLAG} if this machine cannot query the cluster that it is for"


def has_rows(recipe: Recipe, gpu_type: str) -> bool:
    """Whether the recipe has a configuration for the GPU type; True for ``cpu``, for which each has its smoke size."""
    return gpu_type == "cpu" or any(
        known.gpu != "any" and known.gpu in gpus.row_types(gpu_type) for known in recipe.configurations
    )


def without_rows(workloads: Collection[str], recipes: Mapping[str, Recipe], gpu_type: str) -> list[str]:
    """Those of ``workloads`` whose recipe has no configuration for ``gpu_type``.

    One without a recipe is not among them.
    """
    return [name for name in workloads if name in recipes and not has_rows(recipes[name], gpu_type)]


def row_problems(given: Given, recipes: Mapping[str, Recipe]) -> Iterator[RequestError]:
    """Yields an error for each chosen workload that has no configuration for the GPU type of the installation.

    Nothing where the workloads are ``all``: those are the ones that can run.

    Raises:
        RequestError: an answer names an unknown workload.
    """
    if not recipes or given["workloads"] in ("all", ["all"]):
        return  # all are those that can
    gpu_type = str(given["gpu_type"]).lower()
    for name in without_rows(expand_workloads(given["workloads"], recipes), recipes, gpu_type):
        known = sorted({known.gpu for known in recipes[name].configurations} - {"any"})
        yield RequestError(
            f"{name} has no configuration for {gpu_type}; it has some for {', '.join(known)}",
            remedy="leave it out, or correct gpu_type",
        )


def slurm_problems(given: Given) -> Iterator[RequestError]:
    """Yields an error for a partition, an account or a GRES in the answers that Slurm does not have.

    Asks Slurm now. If it does not answer, as on a laptop where a play file is written, nothing is wrong.
    """
    if not on_slurm(given) or shutil.which("sinfo") is None:
        return
    partitions = {partition.name: partition for partition in all_partitions()}
    if not partitions:
        return
    for field in ("gpu_partition", "cpu_partition"):
        name = given.get(field)
        if name and name not in partitions:
            yield RequestError(
                f"{field}: Slurm has no partition {name!r}{did_you_mean(name, partitions)}",
                remedy=f"its partitions are {', '.join(partitions)}; {_OVERRIDE}",
            )
    partition = partitions.get(given["gpu_partition"])
    if given.get("gres") and partition and not partition.gpus_per_node:
        yield RequestError(
            f"gres: Slurm has no GPUs in partition {partition.name} and would reject every job",
            remedy=f"leave --gres out, or choose another partition, {_OVERRIDE}",
        )
    accounts = accounts_of_user()
    if accounts and given["account"] not in accounts:
        yield RequestError(
            f"account: {given['account']!r} is not one of your accounts",
            remedy=f"yours are {', '.join(accounts)}; {_OVERRIDE}",
        )


def fitting_earlier_answers(last: Given, site: Site) -> Given:
    """The user's last answers, without the folder, where they fit what is here: another cluster may share the home.

    Empty where they do not fit: with Slurm on one side only, or a partition or account that ``site`` lacks.
    """
    if not last or on_slurm(last) != site.has_slurm:
        return {}
    if site.has_slurm:
        wanted = {last.get("gpu_partition"), last.get("cpu_partition") or last.get("gpu_partition")}
        if wanted - {p.name for p in site.partitions} or (site.accounts and last.get("account") not in site.accounts):
            return {}
    return {field: value for field, value in last.items() if field != "install_path"}
