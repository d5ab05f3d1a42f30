"""Which jobs are started for MPI: those that may start it, TP above 1 with its exchange overlapped, and no others."""

from __future__ import annotations

import pytest

from llmb_common.executors.slurm.words import SlurmSettings, slurm_of
from llmb_common.planning.site.cluster import ClusterConfig, cluster_config
from llmb_common.planning.site.machine import Machine
from support import functions
from support.plans import EIGHT, notes, plan, refusal
from support.texts import Texts

TP2 = "GPU_TYPE=gb200 MODEL_SIZE=405b JOB_TOTAL_GPUS=128"
TP1 = "GPU_TYPE=gb200 MODEL_SIZE=8b JOB_TOTAL_GPUS=8"
OFF = "comm_overlap.tp_comm_overlap=false"
BACKEND = "comm_overlap.tp_comm_bootstrap_backend"


def never() -> tuple[str, ...]:
    raise AssertionError("a plan asked that need not know")


def having(*types: str) -> Machine:
    """A Slurm that starts ranks in these ways."""
    return Machine(cluster_type="slurm", release=(24, 5), mpi_types=lambda: types)


NOT_ASKED = Machine(cluster_type="slurm", release=(24, 5), mpi_types=never)


def site(mpi: str | None) -> ClusterConfig:
    return cluster_config(slurm=SlurmSettings(mpi=mpi))


def mpi_of(*given: str | Machine | ClusterConfig, **variables: str) -> str:
    return slurm_of(plan(*given, **variables)).mpi


@pytest.mark.parametrize(
    ("machine", "found"),
    [
        (having(), "pmix"),  # it does not say
        (having("none", "pmi2", "pmix", "pmix_v4"), "pmix"),
        (having("none", "pmix_v3"), "pmix_v3"),
        (having("none", "pmi2"), "none"),
        (Machine(cluster_type="slurm"), "pmix"),  # no Slurm here to ask
    ],
)
def test_a_job_that_may_start_mpi_gets_pmix_where_slurm_has_it(machine: Machine, found: str) -> None:
    assert mpi_of(TP2, machine) == found
    assert ("PMIx" in notes(TP2, machine)) is (found == "none")


@pytest.mark.parametrize("words", [TP1, "GPU_TYPE=cpu MODEL_SIZE=smoke DTYPE=bf16 JOB_TOTAL_GPUS=2 TP=2"])
def test_every_other_job_gets_none_and_nobody_is_asked(words: str) -> None:
    assert mpi_of(words, NOT_ASKED) == "none"


def test_the_users_settings_decide_whether_it_overlaps() -> None:
    assert mpi_of(TP2, NOT_ASKED, MEGATRON_SETTINGS=OFF) == "none"
    assert mpi_of(TP2, having("pmix"), MEGATRON_SETTINGS="comm_overlap.tp_comm_overlap=true") == "pmix"
    # Where both are set the section comm_overlap has the last word; alone, the model's counts.
    assert mpi_of(TP2, having("pmix"), MEGATRON_SETTINGS="model.tp_comm_overlap=false") == "pmix"


@pytest.mark.parametrize("mpi", ["none", "pmix", "pmi2"])
def test_the_sites_own_word_is_for_all_jobs(mpi: str) -> None:
    for words in (TP1, TP2):
        assert mpi_of(words, site(mpi), NOT_ASKED) == mpi
    assert "PMIx" not in notes(TP2, site(mpi), NOT_ASKED)


@pytest.mark.parametrize(
    ("name", "tp", "overlaps", "mpi"),
    [
        ("llama31_405b_pretrain_128gpu_b200_bf16_config", 4, True, "pmix"),
        ("llama3_70b_pretrain_32gpu_gb200_bf16_config", 1, True, "none"),
        ("deepseek_v3_pretrain_1024gpu_h100_bf16_config", 2, False, "none"),
    ],
)
def test_a_function_says_itself_whether_it_overlaps(name: str, tp: int, overlaps: bool, mpi: str) -> None:
    entry, settings = functions.CATALOGUE.entry(name), functions.CATALOGUE.function(name).settings
    made = functions.plan(**functions.asked(entry), **functions.NEWEST)
    assert (made.tp, bool(settings.get("tp_comm_overlap")), slurm_of(made).mpi) == (tp, overlaps, mpi)
    if tp > 1 and not overlaps:
        asked = {"MEGATRON_SETTINGS": "comm_overlap.tp_comm_overlap=true"}
        assert slurm_of(functions.plan(**functions.asked(entry), **functions.NEWEST, **asked)).mpi == "pmix"


@pytest.mark.parametrize("backend", ["mpi", "none"])
def test_mpi_as_a_named_backend_needs_ranks_that_are_started_for_it(backend: str, texts: Texts) -> None:
    """Without a backend, Transformer Engine takes MPI where PyTorch has it."""
    asked = {"MEGATRON_SETTINGS": f"{BACKEND}={backend}"}
    assert plan(TP2, having("pmix"), **asked).megatron[BACKEND] == (None if backend == "none" else backend)
    assert mpi_of(TP1, site("pmix"), **asked) == "pmix"
    for given in ((TP2, site("none")), (TP2, having("none")), (TP1,), ("MODEL_SIZE=8b JOB_TOTAL_GPUS=8", EIGHT)):
        said = refusal(*given, **asked)
        texts(said)
    assert mpi_of(TP1, MEGATRON_SETTINGS=f"{BACKEND}=nccl") == "none"
