"""What one compute node says, in one short job of two steps: the node itself, and the container that jobs run in."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from llmb_common.executors.slurm.mounts import for_enroot
from llmb_common.programs import ask
from llmb_common.shell_text import shell_part
from llmb_common.site.cluster import ClusterConfig
from llmb_common.slurm.options import parse_additional

_TOOL_SECONDS = 15
_NODE_SECONDS = 120
_IMAGE_SECONDS = 390
"""Pyxis unpacks the image on the node first: some 25 GB."""
_QUEUE_SECONDS = 60
_ALL_SECONDS = _QUEUE_SECONDS + _NODE_SECONDS + _IMAGE_SECONDS + 30


@dataclass(frozen=True)
class Node:
    """What one compute node reported; ``error`` if it could not be asked."""

    error: str = ""
    values: dict[str, list[str]] = field(default_factory=dict)
    skew: float | None = None
    """Its clock minus ours, in seconds, including the second or so that the answer takes."""

    def one(self, name: str) -> str:
        return next(iter(self.values.get(name, [])), "")

    def bytes(self, name: str) -> int | None:
        """A number of bytes, which ``stat`` gives as blocks and their size."""
        words = self.one(name).split()
        return int(words[0]) * int(words[1]) if len(words) == 2 and all(map(str.isdigit, words)) else None


def ask_one_node(config: ClusterConfig, install: Path, image_folder: Path, image: Path | None = None) -> Node:
    """Run ``probe.sh`` on one node of the GPU partition, with GPUs where jobs ask for them, then in ``image``.

    Nothing is written but files in a folder of their own among the installation's, which goes again.
    """
    with _folder_to_write(install) as probe:
        argv = [*_allocation(config), "bash", "-c", _steps(config, install, image_folder, image, probe)]
        answer = ask(argv, _ALL_SECONDS)
    values = parse_node(answer.output)
    if "host" in values:  # also where a later part hung: what was said is known
        return Node(values=values, skew=_skew(values))
    said = (answer.why or answer.errors).splitlines()
    words = [line.removeprefix("salloc: ").removeprefix("srun: ").removeprefix("error: ") for line in said]
    return Node(error=f"no node answered: {'; '.join([*filter(str.strip, words)][:3]) or 'Slurm does not say why'}")


def parse_node(text: str) -> dict[str, list[str]]:
    """``NAME=VALUE`` lines; a name may come more than once."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and value:
            values.setdefault(name, []).append(value.strip())
    return values


@contextlib.contextmanager
def _folder_to_write(install: Path) -> Iterator[str]:
    """A new folder where runs go, visible to a node only if that sees the same file system; empty: none can be made."""
    folder = install / "workloads"
    try:
        made = tempfile.mkdtemp(prefix=".llmb-doctor-", dir=folder if folder.is_dir() else install)
    except OSError:
        yield ""
        return
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _allocation(config: ClusterConfig) -> list[str]:
    """``salloc`` runs its command here, which starts steps on the node: two, in one job."""
    slurm = config.slurm
    minutes = -(-(_NODE_SECONDS + _IMAGE_SECONDS) // 60)
    argv = ["salloc", "--nodes=1", "--ntasks=1", f"--time={minutes}", "--job-name=llmb-doctor", "--quiet"]
    argv += [f"--immediate={_QUEUE_SECONDS}"]
    argv += [f"--account={slurm.account}"] if slurm.account else []
    argv += [f"--partition={slurm.gpu_partition}"] if slurm.gpu_partition else []
    argv += [f"--gres=gpu:{config.gpus_per_node or 1}"] if slurm.gres else []
    further = dict(parse_additional(slurm.additional_params, "slurm.additional_params"))
    return argv + [f"--{key}={further[key]}" for key in ("qos", "reservation", "constraint") if further.get(key)]


def _steps(config: ClusterConfig, install: Path, image_folder: Path, image: Path | None, probe: str) -> str:
    """Bash text: both steps. What the second says begins with ``image_``, what is said of its failure is ``said``."""
    script = shell_part(__file__, "probe.sh")
    runtime = config.slurm.runtime
    step = ["srun", "--ntasks=1", "--quiet", "--mpi=none"]
    run = ["bash", "-c", script, "probe"]
    engine = config.engine
    pythons = [*filter(None, [engine.python]), *engine.releases.values()] if engine and runtime == "none" else []
    first = [*step, *run, "node", str(_TOOL_SECONDS), str(install), str(image_folder), probe, runtime, *pythons]
    lines = [f"timeout -k 5 {_NODE_SECONDS} {shlex.join(first)}", 'echo "here=$(date +%s.%N)"']
    if probe:
        lines.append("echo probe=yes")
    if image is not None and runtime != "none":
        second = _in_image(config, install, image, step, [*run, "image", str(_TOOL_SECONDS), probe])
        lines += [
            "start=$SECONDS",
            f"{{ timeout -k 5 {_IMAGE_SECONDS} {shlex.join(second)} 2>&1 || echo status=$?; }} |",
            "  sed -uE 's/^(started|root|workloads|gpu|hung|status)=/image_&/; t; s/^/said=/'",
            'echo "image_seconds=$((SECONDS - start))"',
        ]
    return "\n".join(lines)


def _in_image(config: ClusterConfig, install: Path, image: Path, step: list[str], run: list[str]) -> list[str]:
    """The words that start ``run`` in the image as jobs are started in it."""
    mounts = [*([f"{install}:{install}"] if install.is_dir() else []), *config.mounts]
    writable = config.slurm.container_writable
    if config.slurm.runtime == "enroot":
        options = [word for mount in mounts for word in ("--mount", for_enroot(mount))]
        return [*step, "enroot", "start", *(["--rw"] if writable else []), *options, str(image), *run]
    options = ["--no-container-mount-home", *(["--container-writable"] if writable else [])]
    options += [f"--container-image={image}", *([f"--container-mounts={','.join(mounts)}"] if mounts else [])]
    return [*step, *options, *run]


def _skew(values: dict[str, list[str]]) -> float | None:
    try:
        return float(values["clock"][0]) - float(values["here"][0])
    except (KeyError, ValueError):
        return None
