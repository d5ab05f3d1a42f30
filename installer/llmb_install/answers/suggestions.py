"""What the dialogue offers: choices with what they mean, and the answer that this site suggests."""

from __future__ import annotations

import shutil

from llmb_common.platform import gpus
from llmb_common.site.machine import way_here
from llmb_install.answers.detect import Partition, Site
from llmb_install.answers.questions import Given, Question, default_architecture, on_slurm

OTHER = "another one"
"""The choice after which an answer is typed."""

_LABELS = {
    "slurm": "slurm    jobs on a cluster",
    "local": "local    jobs on this machine",
    "pyxis": "pyxis    srun --container-image",
    "enroot": "enroot   without Slurm's plug-in",
    "none": "none     no container: an environment of your own",
}
_METHODS = {"local": "local    here, on this machine", "srun": "srun     on a compute node"}


def choices_of(question: Question, site: Site) -> dict[str, str]:
    """What there is to choose from, by value, with what the list shows; empty for a free answer."""
    if question.field == "account":
        found = {name: name for name in site.accounts}
    elif question.field in ("gpu_partition", "cpu_partition"):
        gpus_only = question.field == "gpu_partition" and bool(site.gpu_partitions)
        partitions = site.gpu_partitions if gpus_only else site.partitions
        width = max((len(p.name) for p in partitions), default=0)
        found = {p.name: f"{p.name:{width}}  {_describe(p)}" for p in partitions}
    else:
        labels = _METHODS if question.field == "install_method" else _LABELS
        return {choice: labels.get(choice, choice) for choice in question.choices}
    return {**found, OTHER: OTHER} if found else {}


def earlier(last: Given, site: Site) -> Given:
    """The user's last answers, without the folder, where they fit what is here: another cluster may share the home."""
    if not last or on_slurm(last) != site.has_slurm:
        return {}
    if site.has_slurm:
        wanted = {last.get("gpu_partition"), last.get("cpu_partition") or last.get("gpu_partition")}
        if wanted - {p.name for p in site.partitions} or (site.accounts and last.get("account") not in site.accounts):
            return {}
    return {field: value for field, value in last.items() if field != "install_path"}


def suggestions(site: Site, given: Given) -> Given:
    """What Enter accepts, by field: what was detected, else the documented default."""
    partition = str(given.get("gpu_partition"))
    default_partition = next((p.name for p in site.partitions if p.is_default), "")
    without_gpus = next((p.name for p in site.partitions if p.up and not p.gpus_per_node), None)
    has_enroot = shutil.which("enroot") is not None
    return {
        "cluster_type": "slurm" if site.has_slurm else way_here(),
        "account": site.accounts[0] if site.accounts else "",
        "gpu_partition": max(site.gpu_partitions, key=_fits).name if site.gpu_partitions else default_partition,
        "cpu_partition": without_gpus or given.get("gpu_partition"),
        "gres": site.has_gres(partition),
        "gpu_type": site.gpu_type_in(partition) or ("h100" if on_slurm(given) else "cpu"),
        "arch": _architecture(site, given),
        "runtime": _runtime(site, given, has_enroot=has_enroot),
        "install_method": "local" if has_enroot else "srun",
        "mpi": "pmix",
        "container_writable": True,
        "env_type": "venv",
        "hugging_face": False,
    }


def _fits(partition: Partition) -> tuple[bool, bool, bool]:
    """Which of several with GPUs: one of a type that there are configurations for, then that of Slurm."""
    return bool(gpus.type_of(partition.gpu_name)), partition.up, partition.is_default


def _runtime(site: Site, given: Given, *, has_enroot: bool) -> str:
    if given.get("gpu_type") == "cpu":
        return "none"
    return "enroot" if has_enroot and not site.has_pyxis else "pyxis"


def _architecture(site: Site, given: Given) -> str:
    if len(site.architectures) == 1:
        return site.architectures[0]
    return default_architecture(str(given.get("gpu_type", "")))


def _describe(partition: Partition) -> str:
    gpus = f", {partition.gpus_per_node} GPUs each" if partition.gpus_per_node else ""
    state = "" if partition.up else ", down"
    return f"{partition.nodes} nodes{gpus}, limit {partition.time_limit}{state}"
