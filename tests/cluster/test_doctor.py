"""Doctor's one job on a real Slurm: nodes, images and containers that are as they should be, and each that is not."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from llmb_common.executors.slurm.words import SlurmSettings
from llmb_common.health import one_node as asking
from llmb_common.planning.site.cluster import cluster_config
from llmb_install.answers.detect import Site, detect_site
from llmb_install.commands.doctor import DoctorCheck, all_checks
from llmb_install.commands.doctor_facts import SiteFacts, WorkloadNeeds, ask_a_node, slurm_limits
from support.gpu_nodes import smi_answer
from support.images import PROGRAMS, build_image
from support.slurm_cluster import SlurmCluster

SMI = f"""#!/bin/bash
if [[ $1 == -L ]]; then printf 'GPU %d: x\\n' 0 1
else cat << 'XML'
{smi_answer(2)}XML
fi
"""


class Place:
    """An installation, and the programs that its nodes have."""

    def __init__(self, path: Path, tools: Path) -> None:
        self.install, self.tools = path, tools
        self.images = path / "images"
        for folder in (path / "workloads", self.images, tools):
            folder.mkdir(parents=True)
        self.tool("nvidia-smi", SMI)

    def tool(self, name: str, text: str) -> None:
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def image(self, name: str = "x.sqsh", smi: str = SMI) -> Path:
        programs = (*PROGRAMS, "stat", "timeout")
        return build_image(self.images / name, programs, files={"usr/bin/nvidia-smi": smi} if smi else None)

    def ask(self, image: Path | None, *, mounts: tuple[str, ...] = (), **slurm: object) -> dict[str, DoctorCheck]:
        settings = SlurmSettings(**{"gpu_partition": "batch", "gres": True, **slurm})  # type: ignore[arg-type]
        config = cluster_config(cluster_type="slurm", gpu_type="h100", slurm=settings, mounts=mounts)
        found = ask_a_node(config, self.install, self.images, image)
        site = Site(True, "", (), (), (), "", ())
        facts = SiteFacts(config, self.install, self.images, site, image=image, node=found)
        return {check.name: check for check in all_checks(facts)}


@pytest.fixture
def place(slurm: SlurmCluster, tmp_path: Path, standins: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    found = Place(tmp_path / "install", tmp_path / "tools")
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{found.tools}:{standins}:{os.environ['PATH']}")
    return found


OF_THE_IMAGE = (
    *("the image on the node", "GPUs in the container", "workload folder on the node"),
    "workload folder in the container",
)


@pytest.mark.parametrize("runtime", ["pyxis", "enroot"])
def test_an_image_that_starts(place: Place, slurm: SlurmCluster, runtime: str) -> None:
    checks = place.ask(place.image(), runtime=runtime)
    assert {name: checks[name].level for name in OF_THE_IMAGE} == dict.fromkeys(OF_THE_IMAGE, "ok")
    assert checks["GPUs in the container"].found == "2 of 2"
    assert checks["clock of the node"].level == "ok"
    assert "programs of the node" not in checks
    assert list((place.install / "workloads").iterdir()) == [], "what was written is gone"
    # COMPLETING, for as long as its node takes to say that it has cleaned up.
    left = slurm.run(["squeue", "-h", "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED"]).stdout
    assert left == "", "and so is the job"


@pytest.mark.parametrize("runtime", ["pyxis", "enroot"])
def test_an_image_that_does_not(place: Place, runtime: str) -> None:
    damaged = place.images / "damaged.sqsh"
    damaged.write_bytes(b"hsqs" + bytes(5000))
    check = place.ask(damaged, runtime=runtime)["the image on the node"]
    assert check.level == "blocks"
    assert "damaged.sqsh" in check.found
    assert ("pyxis: " if runtime == "pyxis" else "[ERROR] Invalid argument") in check.found


def test_a_container_without_gpus_and_with_a_folder_that_is_read_only(place: Place) -> None:
    runs = place.install / "workloads"
    checks = place.ask(place.image(smi=""), mounts=(f"{runs}:{runs}:ro",))
    assert (checks["GPUs in the container"].level, checks["GPUs in the container"].found) == ("blocks", "0 of 2")
    assert checks["workload folder in the container"].found == "read-only"
    assert checks["workload folder on the node"].level == "ok"
    assert checks["the image on the node"].level == "ok"


def test_a_driver_that_hangs_costs_its_own_answers(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_TOOL_SECONDS", 1)
    place.tool("nvidia-smi", "#!/bin/bash\nexec sleep 600\n")
    checks = place.ask(place.image(smi="#!/bin/sh\nexec sleep 600\n"))
    assert checks["programs of the node"].level == "blocks"
    assert re.findall(r"nvidia-smi|nvlink|dmesg", checks["programs of the node"].found) == ["nvidia-smi", "nvlink"]
    assert checks["GPUs of the node"].level == "blocks"
    assert checks["the image on the node"].level == "ok"


def test_an_image_that_never_starts_is_given_up(place, slurm, monkeypatch):
    monkeypatch.setattr(asking, "_IMAGE_SECONDS", 2)
    place.tool("enroot", "#!/bin/bash\n[[ $1 == version ]] && exit\nexec sleep 600\n")
    check = place.ask(place.image(), runtime="enroot")["the image on the node"]
    assert check.level == "blocks"
    assert "x.sqsh" in check.found
    slurm.wait_for_idle_nodes(timeout=120)


def test_a_node_that_never_answers_is_given_up(place, slurm, monkeypatch):
    monkeypatch.setattr(asking, "_NODE_SECONDS", 2)
    place.tool("python3", "#!/bin/bash\nexec sleep 600\n")
    check = place.ask(None)["a compute node"]
    assert check.level == "doubt"
    assert check.found.startswith("no node answered")
    slurm.wait_for_idle_nodes(timeout=120)


def test_limits_of_a_real_accounting(slurm_accounting: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slurm_accounting.env.items():
        monkeypatch.setenv(name, value)
    slurm = SlurmSettings(account="bench", gpu_partition="batch", additional_params="qos=debug")
    config = cluster_config(cluster_type="slurm", gpu_type="h100", slurm=slurm)
    limits = slurm_limits(config, has_accounting=True)
    assert limits.walls == (("QOS debug", 10),)
    assert limits.blocks is None
    facts = SiteFacts(
        config=config,
        install=Path("/"),
        image_folder=Path("/"),
        site=detect_site(),
        controller_is_up=True,
        slurm_config={"KillWait": "2 sec", "PreemptMode": "REQUEUE"},
        workloads=(WorkloadNeeds("grok1", 30, 45, 300),),
        limits=limits,
    )
    checks = {check.name: check for check in all_checks(facts)}
    assert checks["time limit"].level == "blocks"
    assert re.search(r"\b10\b.*\bQOS debug\b", checks["time limit"].found)
    assert checks["time to save"].level == "doubt"
