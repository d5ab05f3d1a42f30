"""How the real sbatch reads the lines in the head of a job script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmb_common.base.errors import RequestError
from llmb_common.executors.slurm.options import output_pattern, parse_additional, sbatch_line
from support.sbatch_lines import words_of
from support.slurm_cluster import SlurmCluster

VALUES = ("a b", "a#b", '"', "it's", "a\\", '\\"', "$(x) `y` $HOME", "%j %%", "ü€", "a;b", "-x", "~", "a\u2028b", "=")
RAW = ('"a b"', r'"a\\b"', r"a\\b", "'a b'", "a#b", r'"a\tb"', "a'b c'd", r"a\ b")


def held(slurm: SlurmCluster, folder: Path, *lines: str) -> str:
    """Submit a script with ``lines`` in its head; returns the job as scontrol shows it, or sbatch's error message."""
    script = folder / "job.sbatch"
    script.write_text("#!/bin/bash\n" + "".join(f"{line}\n" for line in lines) + "true\n")
    done = slurm.run(["sbatch", "--parsable", "--hold", str(script)], check=False)
    if done.returncode:
        return done.stderr
    return slurm.run(["scontrol", "show", "job", "--oneliner", done.stdout.strip()]).stdout


def comment(shown: str) -> str:
    found = re.search(r" Comment=(.*?) +(?:[A-Z][A-Za-z]*=|$)", shown, re.M)
    assert found, shown
    return found[1]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_arrives_as_it_was_written(slurm: SlurmCluster, tmp_path: Path, value: str) -> None:
    assert comment(held(slurm, tmp_path, sbatch_line("comment", value))) == value


@pytest.mark.parametrize("raw", RAW)
def test_the_tests_own_reading_is_sbatchs(slurm: SlurmCluster, tmp_path: Path, raw: str) -> None:
    word, *more = words_of(f" --comment={raw}")
    shown = held(slurm, tmp_path, f"#SBATCH --comment={raw}")
    if more:
        assert f"Invalid directive found in batch script: {more[0]}" in shown
    else:
        assert comment(shown) == word.removeprefix("--comment=")


def test_output_goes_to_the_file_whatever_its_name(slurm: SlurmCluster, tmp_path: Path) -> None:
    names = ("50%j", "a b%%c", 'it\'s $(x) "q" #ü', "%")
    for name in names:
        script = tmp_path / "job.sbatch"
        lines = [sbatch_line("output", output_pattern(str(tmp_path / "logs" / name))), "echo here"]
        script.write_text("#!/bin/bash\n" + "".join(f"{line}\n" for line in lines))
        (tmp_path / "logs").mkdir(exist_ok=True)
        assert slurm.wait_for_state(slurm.submit(script)) == "COMPLETED"
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == sorted(names)


def test_sbatch_takes_the_beginning_of_an_option_for_it(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Why such abbreviations are refused."""
    assert "JobName=other" in held(slurm, tmp_path, "#SBATCH --job-name=ours", "#SBATCH --job-nam=other")
    with pytest.raises(RequestError, match=r"--job-nam\b"):
        parse_additional("job-nam=other", "here")


def test_every_option_that_takes_a_value_is_refused_without_one(slurm: SlurmCluster) -> None:
    """Without one, sbatch takes the next line as the value. New Slurm releases may have more such options: add them."""
    help_text = slurm.run(["sbatch", "--help"]).stdout
    options = set(re.findall(r"^ +(?:-\w,? +)?--([a-z-]+)=", help_text, re.M))
    assert len(options) > 50
    assert sorted(filter(is_taken_alone, options)) == []


def is_taken_alone(option: str) -> bool:
    try:
        parse_additional(option, "here")
    except RequestError:
        return False
    return True
