"""What one compute node says, in one short job of two steps: the node itself, and the container that jobs run in."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llmb_common.errors import SchedulerError
from llmb_common.executors.holding import Container, Held, Wanted
from llmb_common.executors.slurm.hold import hold
from llmb_common.health.ask import PYTHONS, command, parse_frames
from llmb_common.health.checks import CHECKS
from llmb_common.health.facts import Facts, Folder, Needs, needs_of_site, read_facts
from llmb_common.machine.files import shell_part
from llmb_common.machine.processes import Answer
from llmb_common.platform.cluster_types import SLURM, traits_of
from llmb_common.site.cluster import ClusterConfig

_TOOL_SECONDS = 15
_NODE_SECONDS = 120
_IMAGE_SECONDS = 390
"""Pyxis unpacks the image on the node first: some 25 GB."""
_QUEUE_SECONDS = 60


@dataclass(frozen=True)
class Node:
    """What one compute node reported; ``error`` if it could not be asked."""

    error: str = ""
    values: dict[str, list[str]] = field(default_factory=dict)
    network: tuple[tuple[str, str, str], ...] = ()
    """What ``llmb-run health`` finds of its way to other nodes: check, finding, remedy."""
    skew: float | None = None
    """Its clock minus ours, in seconds, including the second or so that the answer takes."""

    def one(self, name: str) -> str:
        return next(iter(self.values.get(name, [])), "")


def ask_one_node(config: ClusterConfig, install: Path, image_folder: Path, image: Path | None = None) -> Node:
    """Have one node of the GPU partition looked at as ``llmb-run health`` does, with GPUs where jobs ask for them, then
    run ``probe.sh`` in ``image``.

    Nothing is written but files in a folder of their own among the installation's, which goes again.
    """
    needs = needs_of_site(config, install, traits_of(config.cluster_type or SLURM))
    minutes = -(-(_NODE_SECONDS + _IMAGE_SECONDS) // 60)
    count = config.gpus_per_node or 1
    wanted = Wanted(name="llmb-doctor", scheduler=needs.scheduler, gpus=count, minutes=minutes, wait=_QUEUE_SECONDS)
    try:
        with _folder_to_write(install) as probe, hold(wanted) as held:
            return _asked(held, needs, config, (install, image_folder, image, probe))
    except SchedulerError as error:
        return Node(error=f"no node answered: {error.message.removeprefix('Slurm gives no nodes: ')}")


def _asked(held: Held, needs: Needs, config: ClusterConfig, places: tuple[Path, Path, Path | None, str]) -> Node:
    install, image_folder, image, probe = places
    folders = {"installation": str(install), "images": str(image_folder), **({"workload": probe} if probe else {})}
    pythons = [*needs.pythons, *(config.engine.releases.values() if config.engine else ())]
    starts = pythons if config.scheduler(SLURM).runtime == "none" else []
    spec = {"stage": "look", "folders": folders, "written": ["workload"], "starts": starts}
    answer = held.run(command(spec, (*PYTHONS, *pythons)), _NODE_SECONDS)
    now = time.time()
    (node,) = held.nodes
    said = parse_frames(answer.output).get(node)
    if not isinstance(said, dict):
        return Node(
            error=f"no node answered: {'no Python there' if 'no-python' in answer.output else answer.complaint}"
        )
    facts = read_facts(node, said)
    values = values_of(facts, unpacks=config.scheduler(SLURM).runtime == "pyxis")
    values |= {"probe": ["yes"]} if probe else {}
    if image is not None and config.scheduler(SLURM).runtime != "none":
        mounts = [*([f"{install}:{install}"] if install.is_dir() else []), *config.mounts]
        run = ["bash", "-c", shell_part(__file__, "probe.sh"), "probe", str(_TOOL_SECONDS), probe]
        begun = time.monotonic()
        inside = held.run(run, _IMAGE_SECONDS, inside=Container(str(image), mounts))
        values |= _of_image(inside, time.monotonic() - begun)
    return Node(values=values, network=network_of(facts, needs), skew=_skew(said, now))


def network_of(facts: Facts, needs: Needs) -> tuple[tuple[str, str, str], ...]:
    """What ``Node`` says of its network: name, text and remedy of each remark for jobs on several nodes."""
    several, asked = replace(needs, nodes=2), [check for check in CHECKS if check.name in ("gpudirect", "memlock")]
    return tuple((check.name, text, check.remedy) for check in asked for _, text in check.look(facts, several))


def values_of(facts: Facts, *, unpacks: bool = True) -> dict[str, list[str]]:
    """A node's facts as ``checks`` read them: by name, what is not there has none."""
    software, gpus = facts.software, facts.gpus
    installation, images, workload = (
        facts.folders.get(name, Folder()) for name in ("installation", "images", "workload")
    )
    room = software.unpacked if unpacks and software.unpacked else Folder()
    values: dict[str, list[str | None]] = {
        "host": [facts.node],
        "arch": [facts.machine.architecture],
        "infiniband": [port.name for port in facts.machine.adapters],
        "install": ["yes" if installation.there else None],
        "images": ["yes" if images.there else None],
        "workloads": [
            "seen" if workload.there else None,
            "written" if workload.there and not workload.problem else None,
        ],
        "data": [room.path],
        "data_free": [None if room.free is None else str(room.free)],
        "enroot": [software.enroot],
        "gpu": [f"{gpu.product}, {gpus.driver}, {gpu.memory_mib or 0:.0f} MiB" for gpu in gpus.gpus],
        "cuda": [gpus.cuda],
        "python": list(software.starts),
        "hung": ["nvidia-smi" if "did not answer" in (gpus.missing or "") else None, *facts.hung],
    }
    return {name: known for name, found in values.items() if (known := [item for item in found if item])}


def _of_image(answer: Answer, seconds: float) -> dict[str, list[str]]:
    """What the probe said, each name with ``image_`` before it, and what else was said."""
    values = parse_node(answer.output)
    found = {f"image_{name}": known for name, known in values.items() if name in _SAID_INSIDE}
    rest = [line for line in answer.output.splitlines() if line.partition("=")[0] not in _SAID_INSIDE]
    found["said"] = [line for line in (*rest, *answer.errors.splitlines()) if line.strip()]
    if answer.status is not None:
        found |= {
            "image_seconds": [f"{seconds:.0f}"],
            **({"image_status": [str(answer.status)]} if answer.status else {}),
        }
    return {name: known for name, known in found.items() if known}


_SAID_INSIDE = ("started", "root", "workloads", "gpu", "hung")


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


def _skew(said: dict[str, Any], now: float) -> float | None:
    ended = said.get("ended")
    return float(ended) - now if isinstance(ended, float | int) else None
