"""Options of sbatch that need a value: without one sbatch would take the next line of the script for it."""

from __future__ import annotations

import pytest

from llmb_common.errors import RequestError
from llmb_common.slurm.options import parse_additional

# Of sbatch(1) and Pyxis; those of the job script are not here.
NEED_ONE = """
account acctg-freq bb bbf begin chdir cluster-constraint clusters comment constraint container core-spec
cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution exclude export
export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres
gres-flags hint input licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network
nodefile nodelist ntasks-per-core ntasks-per-gpu ntasks-per-socket open-mode partition power prefer priority profile
qos reservation segment signal sockets-per-node switches thread-spec threads-per-core time time-min tmp tres-bind
tres-per-task uid wckey container-env container-image container-mounts container-name container-save container-workdir
"""
DO_NOT = "contiguous exclusive get-user-env hold ignore-pbs no-kill no-requeue overcommit oversubscribe quiet requeue"


@pytest.mark.parametrize("option", NEED_ONE.split())
def test_an_option_that_needs_a_value_is_refused_without(option: str) -> None:
    with pytest.raises(RequestError, match=f"here: --{option} needs a value") as caught:
        parse_additional(f"exclusive;{option}", "here")
    assert caught.value.remedy == f"write {option}=value"
    assert parse_additional(f"{option}=1", "here") == ((option, "1"),)


@pytest.mark.parametrize("option", NEED_ONE.split())
def test_behind_a_comma_it_is_a_second_option(option: str) -> None:
    with pytest.raises(RequestError, match=f"contains a second option, '{option}='"):
        parse_additional(f"nodelist=n1,{option}=1", "here")


@pytest.mark.parametrize("option", DO_NOT.split())
def test_flags_stand_alone(option: str) -> None:
    assert parse_additional(option, "here") == ((option, None),)
