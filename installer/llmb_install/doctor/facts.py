"""What ``doctor`` looks at: facts from this machine, from Slurm and from one compute node. Nothing here judges."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from llmb_common.cluster_types import SLURM, traits_of
from llmb_common.programs import ask
from llmb_common.site.cluster import ClusterConfig
from llmb_install.detect import Site, container_options, detect_site, mpi_types, output
from llmb_install.working.readiness import free_bytes

SLURM_COMMANDS = ("sbatch", "srun", "squeue", "sinfo", "scontrol", "scancel")
_NODE_SECONDS = 150

# Plain sh, so that it runs on any node. Each line is NAME=VALUE; what is not there prints nothing.
_NODE_SCRIPT = r"""
echo "host=$(hostname)"
echo "arch=$(uname -m)"
echo "memlock=$(ulimit -l)"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | sed 's/^/gpu=/'
nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: \([0-9.]*\).*/cuda=\1/p'
command -v enroot >/dev/null 2>&1 && echo "enroot=$(enroot version 2>/dev/null)"
ls /sys/class/infiniband 2>/dev/null | sed 's/^/infiniband=/'
[ -d /sys/module/nvidia_peermem ] && echo "peermem=yes"
[ -d "$1" ] && echo "install=yes"
[ -r "$2" ] && echo "images=yes"
echo "clock=$(date +%s.%N)"
"""


@dataclass(frozen=True)
class Node:
    """What one compute node reported; ``error`` if it could not be asked."""

    error: str = ""
    values: dict[str, list[str]] = field(default_factory=dict)
    skew: float | None = None
    """Its clock minus ours, in seconds, including the second or so that the answer takes."""

    def one(self, name: str) -> str:
        return next(iter(self.values.get(name, [])), "")


@dataclass(frozen=True)
class Facts:
    """Everything that the checks judge."""

    config: ClusterConfig
    install: Path
    image_folder: Path
    site: Site
    missing_commands: tuple[str, ...] = ()
    controller_is_up: bool = False
    mpi_types: tuple[str, ...] = ()
    container_options: tuple[str, ...] = ()
    slurm_config: dict[str, str] = field(default_factory=dict)
    has_accounting: bool = False
    local_enroot: str = ""
    has_unsquashfs: bool = False
    free_install: int = 0
    free_images: int = 0
    node: Node | None = None


def gather(config: ClusterConfig, install: Path, *, ask_node: bool) -> Facts:
    """Gather all facts, each with a time limit. ``ask_node``: run one small job on a node of the GPU partition."""
    image_folder = Path(config.image_folder) if config.image_folder else install / "images"
    site = detect_site()
    use_slurm = site.has_slurm and traits_of(config.cluster_type or SLURM).slurm_options
    is_up = "is UP" in output("scontrol", "ping") if use_slurm else False
    settings = _slurm_settings() if is_up else {}
    return Facts(
        config=config,
        install=install,
        image_folder=image_folder,
        site=site,
        missing_commands=tuple(name for name in SLURM_COMMANDS if shutil.which(name) is None),
        controller_is_up=is_up,
        mpi_types=mpi_types() if is_up else (),
        container_options=container_options() if is_up else (),
        slurm_config=settings,
        has_accounting="slurmdbd" in settings.get("AccountingStorageType", ""),
        local_enroot=output("enroot", "version").strip(),
        has_unsquashfs=shutil.which("unsquashfs") is not None,
        free_install=free_bytes(install),
        free_images=free_bytes(image_folder),
        node=ask_one_node(config, install, image_folder) if is_up and ask_node else None,
    )


def ask_one_node(config: ClusterConfig, install: Path, image_folder: Path) -> Node:
    """Run the small script on one node of the GPU partition, with GPUs where jobs ask for them."""
    argv = ["srun", "--nodes=1", "--ntasks=1", "--time=2", "--job-name=llmb-doctor", "--quiet", "--immediate=60"]
    slurm = config.slurm
    argv += [f"--account={slurm.account}"] if slurm.account else []
    argv += [f"--partition={slurm.gpu_partition}"] if slurm.gpu_partition else []
    argv += [f"--gres=gpu:{config.gpus_per_node or 1}"] if slurm.gres else []
    answer = ask([*argv, "sh", "-c", _NODE_SCRIPT, "sh", str(install), str(image_folder)], _NODE_SECONDS)
    ended = time.time()
    if not answer.ok:
        said = (answer.why or answer.errors).splitlines()
        words = [line.removeprefix("srun: error: ") for line in said if line.strip()]
        return Node(error=f"no node answered: {'; '.join(words[:3]) or 'srun does not say why'}")
    values = parse_node(answer.output)
    return Node(values=values, skew=_skew(values, ended))


def parse_node(text: str) -> dict[str, list[str]]:
    """``NAME=VALUE`` lines; a name may come more than once."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and value:
            values.setdefault(name, []).append(value.strip())
    return values


def _skew(values: dict[str, list[str]], ended: float) -> float | None:
    try:
        clock = float(values["clock"][0])
    except (KeyError, ValueError):
        return None
    return clock - ended


def _slurm_settings() -> dict[str, str]:
    text = output("scontrol", "show", "config")
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}
