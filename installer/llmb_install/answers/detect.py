"""What this machine and its Slurm report, and answers that it contradicts.

Anything may be unknown: then nothing is wrong. Standard library only: the first stage asks, too.
"""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llmb_common.base import gpus
from llmb_common.base.errors import RequestError, did_you_mean
from llmb_common.base.files import effective_user_id, user_name
from llmb_common.base.programs import run_program
from llmb_install.answers.given import Given, expand_workloads, on_slurm

if TYPE_CHECKING:
    from llmb_common.recipes.recipe import Recipe


_SECONDS = 15
_GRES_GPU = re.compile(r"(?:gres/)?gpu(?::(?!no_consume:)([^:]+))?(?::no_consume)?:(\d+)")


@dataclass(frozen=True)
class Partition:
    """One Slurm partition as sinfo shows it; ``up`` tells whether its state is ``up``, so that jobs can start.

    ``parse_sinfo`` makes it. ``name`` is without sinfo's mark of the default; ``nodes`` is how many it has, in any
    state.
    """

    name: str
    is_default: bool
    """Whether Slurm uses it for jobs that name no partition."""
    up: bool
    time_limit: str
    """As sinfo writes it, such as ``4:00:00`` or ``infinite``."""
    nodes: int
    gpus_per_node: int
    """The most that a node has; 0 where Slurm knows of no GPU."""
    gpu_name: str
    """Slurm's own name of the GPUs; empty where it has none."""
    other_gpus: tuple[str, ...] = ()
    """Slurm's names of further kinds of GPUs that its nodes have; a job that asks for no kind may get them."""
    hidden: bool = False
    """Whether sinfo lists it only if asked for all: the site hides it, or this user's group may not use it."""


@dataclass(frozen=True)
class Site:
    """What the installer found out about this machine and its Slurm; a field is empty where nothing answered.

    ``detect_site`` makes it. The property ``offered`` is a tuple of the partitions that are not hidden, the property
    ``gpu_partitions`` of those among them whose nodes have GPUs, in the order of ``partitions``; ``gpu_type_in``
    returns the GPU type in the partition of that name, such as ``h100``, that of the site where Slurm does not name
    the GPUs or has no such partition, and "" where LLMB does not know them. All only read what was found.
    ``slurm_version`` is text such as ``24.05.3``, ``gpu_type`` "" where LLMB knows none of the GPUs. Without Slurm,
    ``partitions`` and ``accounts`` are empty.
    """

    has_slurm: bool
    """Whether sbatch is on the PATH."""
    slurm_version: str
    partitions: tuple[Partition, ...]
    accounts: tuple[str, ...]
    """Accounts that the user may charge; the default first."""
    architectures: tuple[str, ...]
    """CPU architectures of the nodes, or of this machine without Slurm, such as ``x86_64``; sorted."""
    gpu_type: str
    """The first GPU type that LLMB knows, by partitions, then by this machine's GPUs, such as ``h100``."""
    local_gpus: tuple[str, ...]
    """Product name of each GPU of this machine, as nvidia-smi says."""
    has_pyxis: bool = False
    """Whether srun takes Pyxis's container options."""

    @property
    def offered(self) -> tuple[Partition, ...]:
        """The site's partitions without the hidden ones, which only those name who know them; in their order."""
        return tuple(p for p in self.partitions if not p.hidden)

    @property
    def gpu_partitions(self) -> tuple[Partition, ...]:
        """The offered partitions whose nodes have GPUs, as far as Slurm knows; empty where it knows of none.

        In the order of ``partitions``.
        """
        return tuple(p for p in self.offered if p.gpus_per_node)

    def gpu_type_in(self, partition: str) -> str:
        """Return the GPU type in a partition of this site, such as ``h100``, by Slurm's name for the GPUs.

        Where Slurm names no GPUs there, or has no such partition, it is the type of the whole site. Empty where Slurm
        names GPUs there that LLMB does not know, even if the site has a type.
        """
        names = [p.gpu_name for p in self.partitions if p.name == partition and p.gpu_name]
        return gpus.type_of(names[0]) or "" if names else self.gpu_type


def detect_site() -> Site:
    """Return what sinfo, sacctmgr, scontrol, srun and nvidia-smi say of this site; each has at most 15 seconds.

    A program that is missing or does not answer leaves its fields empty. Without sbatch only nvidia-smi is asked,
    and ``architectures`` has this machine's; with it, only those of the nodes. The nodes' GPUs come before this
    machine's for ``gpu_type``.
    """
    has_slurm = shutil.which("sbatch") is not None
    partitions = all_partitions() if has_slurm else ()
    local_gpus = tuple(command_output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines())
    # The nodes' GPUs first: a login node may have others, or none.
    names = [p.gpu_name for p in partitions if p.gpu_name] + list(local_gpus)
    version = re.search(r"\d+\.\d+(\.\d+)?", command_output("sinfo", "--version")) if has_slurm else None
    # A login node may differ from the compute nodes, so under Slurm only the nodes count.
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
        # srun itself has a --container-id, for OCI containers.
        has_pyxis=has_slurm and "container-image" in container_options(),
    )


def container_options() -> tuple[str, ...]:
    """Return the options on containers that srun takes here, each once, sorted, no dashes: ``container-image``, ...

    Most are of Pyxis; Slurm 23.02 and later have ``container-id`` themselves. Empty where srun is missing or does not
    answer within 15 seconds.
    """
    return tuple(sorted(set(re.findall(r"--(?:\[no-\])?(container-[a-z-]+)", command_output("srun", "--help")))))


def all_partitions() -> tuple[Partition, ...]:
    """Return Slurm's partitions, asked from sinfo now; empty where sinfo is missing or does not answer.

    In the order of sinfo, hidden ones last; each of its two answers has 15 seconds.
    """
    listed = parse_sinfo(command_output("sinfo", *_SINFO))
    names = {partition.name for partition in listed}
    everything = parse_sinfo(command_output("sinfo", "--all", *_SINFO)) if listed else ()
    return *listed, *(replace(one, hidden=True) for one in everything if one.name not in names)


_SINFO = ("-h", "-o", "%P|%a|%l|%D|%G")


def parse_sinfo(text: str) -> tuple[Partition, ...]:
    """Return the partitions in the output of ``sinfo -h -o '%P|%a|%l|%D|%G'``, in the order they first appear.

    The output has a line for each kind of node. The lines of a partition become one: their nodes added, and the GPUs
    of the kind of which it has the most, before those without a name; of a kind the most that a node has. Default
    mark, state and time limit are those of the last line. Lines of another form are left out; empty text gives no
    partition. A name is without the asterisk that marks the default.
    """
    found: dict[str, Partition] = {}
    kinds: dict[str, dict[str, tuple[int, int]]] = {}  # by partition and name: all GPUs, and the most of a node
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) != 5 or not fields[3].isdigit():
            continue
        # sinfo marks the default partition with an asterisk.
        name = fields[0].rstrip("*")
        known = found.get(name)
        own_kinds = kinds.setdefault(name, {})
        for kind, count in _gpu_kinds(fields[4]).items():
            total, most = own_kinds.get(kind, (0, 0))
            own_kinds[kind] = (total + count * int(fields[3]), max(most, count))
        # Name and number of one kind: those of two would be a node that nobody has.
        ranked = sorted(own_kinds, key=lambda kind: (kind == "", -own_kinds[kind][0]))
        gpu_name = ranked[0] if ranked else ""
        found[name] = Partition(
            name=name,
            is_default=fields[0].endswith("*"),
            up=fields[1] == "up",
            time_limit=fields[2],
            nodes=int(fields[3]) + (known.nodes if known else 0),
            gpus_per_node=own_kinds.get(gpu_name, (0, 0))[1],
            gpu_name=gpu_name,
            other_gpus=tuple(filter(None, ranked[1:])),
        )
    return tuple(found.values())


def gpus_in(gres: str) -> tuple[str, int]:
    """Return (name, number) of the GPUs per node in a GRES text: ``gpu:h100:8(S:0-1)`` gives ``("h100", 8)``.

    Of several kinds it is the one with the most GPUs, of equal ones the first. Slices of a GPU (MIG) do not count, nor
    does a kind without a number. The name is empty where Slurm has none; a text without GPUs, such as ``(null)``,
    gives ``("", 0)``.
    """
    return max(_gpu_kinds(gres).items(), key=lambda kind: kind[1], default=("", 0))


def _gpu_kinds(gres: str) -> dict[str, int]:
    """Return the number of GPUs per node of each kind in a GRES text, by Slurm's name ("": none); see ``gpus_in``."""
    kinds: dict[str, int] = {}
    # In parentheses are sockets, whose numbers are no counts.
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        kind = _GRES_GPU.fullmatch(item.strip())
        if kind and not gpus.is_slice(kind[1] or ""):
            kinds[kind[1] or ""] = kinds.get(kind[1] or "", 0) + int(kind[2])
    return kinds


def command_output(*argv: str) -> str:
    """Return the standard output of the program ``argv``, its name and arguments, unstripped.

    Empty if the program is missing, ends with another status than 0, or exceeds 15 seconds.
    """
    answer = run_program(argv, _SECONDS)
    return answer.output if answer.ok else ""


def accounts_of_user() -> tuple[str, ...]:
    """Return the accounts of this cluster that this user may charge jobs to: Slurm's default first, the others by name.

    Each is there once. The user is the effective one of this process. Empty where Slurm keeps no accounts or does
    not answer within 15 seconds.
    """
    accounts = {account for (account,) in own_associations("account") if account}
    if len(accounts) < 2:
        return tuple(accounts)
    user = user_name(effective_user_id())
    default = command_output("sacctmgr", "-nP", "show", "user", user, "format=defaultaccount").strip()
    return tuple(sorted(accounts, key=lambda account: (account != default, account)))


def own_associations(fields: str, *filters: str) -> list[list[str]]:
    """Return the ``fields`` of each association that this user has on this cluster, as sacctmgr orders them.

    ``fields`` are sacctmgr's, separated by commas; ``filters`` are more of its conditions, such as ``account=a``.
    Several clusters may share a slurmdbd, which shows the associations of all: then scontrol is asked for this one's
    name, and those of all count where it does not say. Empty where Slurm keeps none. Each has 15 seconds.
    """
    user = user_name(effective_user_id())
    rows = sacctmgr_rows("associations", f"user={user}", *filters, f"format=cluster,{fields}")
    if len({row[0] for row in rows}) > 1:
        named = re.search(r"(?m)^ClusterName\s*=\s*(\S+)", command_output("scontrol", "show", "config"))
        rows = [row for row in rows if named is None or row[0] == named[1].lower()]
    return [row[1:] for row in rows]


def sacctmgr_rows(*words: str) -> list[list[str]]:
    """Return the lines that ``sacctmgr show`` prints, each split at ``|`` into its fields.

    ``words`` are its further arguments, of which ``format=A,B`` must be the last. Lines with another number of fields
    are left out; empty where the program is missing, fails, or does not end within 15 seconds.
    """
    fields = words[-1].count(",") + 1
    rows = [line.split("|") for line in command_output("sacctmgr", "-nP", "show", *words).splitlines()]
    return [row for row in rows if len(row) == fields]


FLAG = "--no-site-check"
_OVERRIDE = f"or give {FLAG} if this machine cannot query the cluster that it is for"


def has_rows(recipe: Recipe, gpu_type: str) -> bool:
    """Return whether the recipe has a configuration for the GPU type or for the type whose rows that one runs.

    Always True for ``cpu``, for which each recipe has a small test size. Functions of its catalogue count like rows
    of recipe.yaml; rows for ``any`` GPU do not. The type must be in lower case, such as ``h100``.

    Raises:
        RecipeError: the recipe's catalogue cannot be read
    """
    return gpu_type == "cpu" or any(
        known.gpu != "any" and known.gpu in gpus.row_types(gpu_type) for known in recipe.configurations
    )


def without_rows(workloads: Collection[str], recipes: Mapping[str, Recipe], gpu_type: str) -> list[str]:
    """Return those of ``workloads`` whose recipe has no configuration for ``gpu_type``, in their order.

    ``recipes`` are by workload name, the type in lower case. A workload without a recipe is not among them. Empty:
    all can run, as they always can on ``cpu``.

    Raises:
        RecipeError: a recipe's catalogue cannot be read
    """
    return [name for name in workloads if name in recipes and not has_rows(recipes[name], gpu_type)]


def row_problems(given: Given, recipes: Mapping[str, Recipe]) -> Iterator[RequestError]:
    """Yield an error for each chosen workload that has no configuration for the GPU type of the installation.

    ``given`` must answer ``workloads`` and ``gpu_type``; ``recipes`` are by workload name. The errors are yielded,
    not raised, in the order of the workloads' names. Nothing is yielded where the workloads are ``all`` (that text,
    or a list of it alone), which stands for those that can run, or where there are no ``recipes``.

    Raises:
        RequestError: on the first step, if an answer names an unknown workload, or none
        RecipeError: while it is iterated, if a recipe's catalogue cannot be read
    """
    if not recipes or given["workloads"] in ("all", ["all"]):
        return  # all are those that can
    gpu_type = given["gpu_type"]
    for name in without_rows(expand_workloads(given["workloads"], recipes), recipes, gpu_type):
        known = sorted({known.gpu for known in recipes[name].configurations} - {"any"})
        yield RequestError(
            f"{name} has no configuration for {gpu_type}; it has some for {', '.join(known)}",
            remedy="leave it out, or correct gpu_type",
        )


def slurm_problems(given: Given) -> Iterator[RequestError]:
    """Yield an error for each answer that Slurm contradicts: an unknown partition, an account not the user's.

    ``gres`` for a partition without GPUs is one, too. Partitions come first, then ``gres``, then the account. Where
    jobs go to Slurm, ``given`` must have ``gpu_partition`` and ``account``. Asks Slurm while it is iterated; the
    errors are yielded, not raised. Nothing is wrong where jobs do not go to Slurm, or Slurm does not answer, as on
    a laptop where a play file is written.
    """
    if not on_slurm(given) or shutil.which("sinfo") is None:
        return
    partitions = {partition.name: partition for partition in all_partitions()}
    if not partitions:
        return
    listed = ", ".join(name for name, partition in partitions.items() if not partition.hidden)
    for field in ("gpu_partition", "cpu_partition"):
        name = given.get(field)
        if name and name not in partitions:
            yield RequestError(
                f"{field}: Slurm has no partition {name!r}{did_you_mean(name, partitions)}",
                remedy=f"its partitions are {listed}; {_OVERRIDE}",
            )
    partition = partitions.get(given["gpu_partition"])
    if given.get("gres") and partition and not partition.gpus_per_node:
        yield RequestError(
            f"gres: Slurm has no whole GPUs in partition {partition.name}, so no job would get any",
            remedy=f"leave --gres out, or choose another partition, {_OVERRIDE}",
        )
    accounts = accounts_of_user()
    if accounts and given["account"] not in accounts:
        yield RequestError(
            f"account: {given['account']!r} is not one of your accounts",
            remedy=f"yours are {', '.join(accounts)}; {_OVERRIDE}",
        )


def fitting_earlier_answers(last: Given, site: Site) -> Given:
    """Return a copy of ``last``, the user's last answers, without ``install_path``, if they fit ``site``; else {}.

    They do not fit where only they or only the site have Slurm, or where ``site`` lacks one of their partitions or
    their account, also where they name none; with no accounts known, any fits. Another cluster may share the home
    directory.
    """
    if not last or on_slurm(last) != site.has_slurm:
        return {}
    if site.has_slurm:
        wanted = {last.get("gpu_partition"), last.get("cpu_partition") or last.get("gpu_partition")}
        lacking = wanted - {p.name for p in site.partitions}
        is_foreign = bool(site.accounts) and last.get("account") not in site.accounts
        if lacking or is_foreign:
            return {}
    return {field: value for field, value in last.items() if field != "install_path"}
