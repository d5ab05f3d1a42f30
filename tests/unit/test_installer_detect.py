"""What is found of this machine and its Slurm: from answers of its programs, some of which say nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.base.programs import Answer
from llmb_install.answers import detect
from llmb_install.answers.detect import Partition, Site, detect_site, parse_sinfo, slurm_problems
from llmb_install.answers.questions import BY_FIELD
from llmb_install.parts import credentials
from llmb_install.parts.credentials import enroot_credentials_path

SAID = {
    "sinfo -h -o %P|%a|%l|%D|%G": "gpu*|up|4:00:00|8|gpu:h100:8(S:0-1)\ncpu|up|infinite|4|(null)\n",
    "sinfo --version": "slurm 24.05.3\n",
    "sacctmgr -nP show associations user=ann format=cluster,account": "k|other\nk|bench\n\nk|other\n"
    "k|d\nk|e\nk|c\nk|a\n",
    "sacctmgr -nP show user ann format=defaultaccount": "other\n",
    "scontrol --oneliner show nodes": "NodeName=a Arch=x86_64\nNodeName=b Arch=aarch64\nNodeName=c Arch=x86_64 C=4\n",
    "srun --help": "  --[no-]container-mount-home  bind\n  --container-image=IMAGE\n  --container-image=x\n  --mem\n",
    "nvidia-smi --query-gpu=name --format=csv,noheader": "NVIDIA B200\nNVIDIA B200\n",
}

Machine = Callable[[dict[str, str], Sequence[str]], None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Its programs say what the test says; those that it does not mention fail, with something on their output."""

    def machine(said: dict[str, str], on_path: Sequence[str]) -> None:
        def ask(argv: Sequence[str], seconds: float) -> Answer:
            assert 1 < seconds < 1000
            text = said.get(" ".join(argv))
            return Answer(1, b"gpu|up|1|1|gpu:h100:8 24.05 Arch=arm") if text is None else Answer(0, text.encode())

        monkeypatch.setattr(detect, "run_program", ask)
        monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name in on_path else None)
        monkeypatch.setattr("llmb_install.answers.detect.user_name", lambda _: "ann")
        monkeypatch.setattr("platform.machine", lambda: "riscv64")

    return machine


def test_a_cluster_says_what_it_has(machine: Machine) -> None:
    machine(SAID, ["sbatch"])
    assert detect_site() == Site(
        has_slurm=True,
        slurm_version="24.05.3",
        partitions=(
            Partition("gpu", is_default=True, up=True, time_limit="4:00:00", nodes=8, gpus_per_node=8, gpu_name="h100"),
            Partition("cpu", is_default=False, up=True, time_limit="infinite", nodes=4, gpus_per_node=0, gpu_name=""),
        ),
        accounts=("other", "a", "bench", "c", "d", "e"),
        architectures=("aarch64", "x86_64"),
        gpu_type="h100",
        local_gpus=("NVIDIA B200", "NVIDIA B200"),
        has_pyxis=True,
    )


def test_a_machine_without_slurm_is_looked_at_itself(machine: Machine) -> None:
    machine(SAID, ["sinfo"])
    assert detect_site() == Site(
        has_slurm=False,
        slurm_version="",
        partitions=(),
        accounts=(),
        architectures=("riscv64",),
        gpu_type="b200",
        local_gpus=("NVIDIA B200", "NVIDIA B200"),
        has_pyxis=False,
    )


def test_where_nothing_answers_everything_is_unknown(machine: Machine) -> None:
    machine({}, ["sbatch"])
    assert detect_site() == Site(
        has_slurm=True, slurm_version="", partitions=(), accounts=(), architectures=(), gpu_type="", local_gpus=()
    )


def test_a_gpu_of_another_kind_has_no_type(machine: Machine) -> None:
    machine({**SAID, "sinfo -h -o %P|%a|%l|%D|%G": "gpu|up|1|1|gpu:8\nold|up|1|1|gpu:a100:8"}, ["sbatch"])
    assert detect_site().gpu_type == "b200", "which this machine has"
    machine({"sinfo -h -o %P|%a|%l|%D|%G": "old|up|1|1|gpu:a100:8"}, ["sbatch"])
    assert detect_site().gpu_type == ""


@pytest.mark.parametrize(
    ("version", "found"), [("slurm 23.11\n", "23.11"), ("slurm 21.08.8-2\n", "21.08.8"), ("slurm\n", "")]
)
def test_releases_of_slurm(machine: Machine, version: str, found: str) -> None:
    machine({**SAID, "sinfo --version": version}, ["sbatch"])
    assert detect_site().slurm_version == found


def test_a_partition_of_several_kinds_of_node_is_one() -> None:
    (found,) = parse_sinfo("a|up|1:00|2|gpu:h100:4\na*|down|2:00|3|gpu:b200:8\na|up|2:00|1|(null)")
    assert found == Partition(
        "a",
        is_default=False,
        up=True,
        time_limit="2:00",
        nodes=6,
        gpus_per_node=8,
        gpu_name="b200",
        other_gpus=("h100",),
    )


@pytest.mark.parametrize(
    "lines",
    [
        "8|gpu:h100:8 4|gpu:a100:8",
        "4|gpu:a100:8 8|gpu:h100:8",
        "5|gpu:h100:8(S:0) 9|gpu:a100:8 5|gpu:h100:8",
        "9|gpu:16 8|gpu:h100:8",
    ],
)
def test_name_and_number_are_of_the_kind_that_a_partition_has_the_most_of(lines: str) -> None:
    (found,) = parse_sinfo("\n".join(f"a|up|1:00|{line}" for line in lines.split()))
    assert (found.gpu_name, found.gpus_per_node) == ("h100", 8)
    assert found.other_gpus == (("a100",) if "a100" in lines else ())


def test_a_hidden_partition_can_be_named_and_is_not_offered(machine: Machine) -> None:
    listed = SAID["sinfo -h -o %P|%a|%l|%D|%G"]
    machine({**SAID, "sinfo --all -h -o %P|%a|%l|%D|%G": f"own|up|1:00|9|gpu:b200:8\n{listed}"}, ["sbatch", "sinfo"])
    site = detect_site()
    assert [(found.name, found.hidden) for found in site.partitions] == [("gpu", False), ("cpu", False), ("own", True)]
    assert [found.name for found in site.offered] == ["gpu", "cpu"]
    assert [found.name for found in site.gpu_partitions] == ["gpu"]
    assert site.gpu_type_in("own") == "b200"
    given = {"cluster_type": "slurm", "gpu_partition": "own", "cpu_partition": "cpu", "gres": True, "account": "a"}
    assert list(slurm_problems(given)) == []
    (found,) = slurm_problems({**given, "gpu_partition": "none"})
    assert "its partitions are gpu, cpu;" in found.remedy


ASSOCIATIONS = "sacctmgr -nP show associations user=ann format=cluster,account"


@pytest.mark.parametrize(
    ("config", "accounts"),
    [("ClusterName             = Alpha\n", ("physics",)), ("", ("chemistry", "physics"))],
)
def test_accounts_of_other_clusters_are_not_ours(machine: Machine, config: str, accounts: tuple[str, ...]) -> None:
    """Two clusters share a slurmdbd, which knows their names in lower case."""
    machine({ASSOCIATIONS: "alpha|physics\nbeta|chemistry\n", "scontrol show config": config}, ["sbatch"])
    assert detect_site().accounts == accounts


def test_slurms_own_containers_are_no_pyxis(machine: Machine) -> None:
    machine({"srun --help": "  --container=path  Container path\n  --container-id=id  Identifier\n"}, ["sbatch"])
    assert not detect_site().has_pyxis


@pytest.mark.parametrize("line", ["a|up|1:00|2", "a|up|1:00|2|gpu:8|more", "a|up|1:00|many|gpu:8", "slurm_load: error"])
def test_a_line_that_is_no_partition_is_passed_over(line: str) -> None:
    assert [found.name for found in parse_sinfo(f"{line}\nb|up|1:00|2|gpu:8")] == ["b"]


def test_what_a_site_knows_of_a_partition(machine: Machine) -> None:
    machine(SAID, ["sbatch"])
    site = detect_site()
    assert [partition.name for partition in site.gpu_partitions] == ["gpu"]
    found = [BY_FIELD["gres"].suggested(site, {"gpu_partition": name}) for name in ("gpu", "cpu", "none")]
    assert found == [True, False, False]
    lines = "new|up|1|1|gpu:b200:8\nold|up|1|1|gpu:8\nother|up|1|1|gpu:a100:8"
    mixed = replace(site, partitions=parse_sinfo(lines), gpu_type="h200")
    assert mixed.gpu_type_in("new") == "b200"
    assert mixed.gpu_type_in("other") == "", "these are no H200, whatever other partitions have"
    assert mixed.gpu_type_in("old") == mixed.gpu_type_in("none") == "h200"


# Enroot's own settings decide where space is needed and where its credentials are.


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "enroot.conf"
    monkeypatch.setattr(credentials, "ENROOT_CONFIG", path)
    return path


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        ("ENROOT_TEMP_PATH /raid/tmp", "/raid/tmp"),
        ("ENROOT_TEMP_PATH=/raid/tmp", "/raid/tmp"),
        ('ENROOT_TEMP_PATH "/raid/${USER}/tmp"', "/raid/ann/tmp"),
        ("ENROOT_TEMP_PATH ${SCRATCH:-/scratch}/$USER", "/scratch/ann"),
        ("#ENROOT_TEMP_PATH /raid/tmp", "/tmp"),
        ("ENROOT_TEMP_PATH $(mktemp -d)", "/tmp"),
        ("ENROOT_CACHE_PATH /raid/cache", "/tmp"),
    ],
)
def test_the_administrators_choice_counts(conf: Path, line: str, folder: str) -> None:
    conf.write_text(f"# site\n{line}\n")
    assert credentials.temporary_folder({"USER": "ann"}) == Path(folder)


def test_a_variable_wins_over_the_file_and_the_file_over_its_drop_ins(conf: Path) -> None:
    (conf.parent / "enroot.conf.d").mkdir()
    (conf.parent / "enroot.conf.d" / "10-site.conf").write_text("ENROOT_CACHE_PATH /b\nENROOT_CONFIG_PATH /c\n")
    conf.write_text("ENROOT_CACHE_PATH /a\n")
    assert credentials.cache_folder({}) == Path("/a")
    assert credentials.cache_folder({"ENROOT_CACHE_PATH": "/x"}) == Path("/x")
    assert enroot_credentials_path({}) == Path("/c/.credentials")
