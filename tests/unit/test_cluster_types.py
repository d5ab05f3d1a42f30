"""The ways of running jobs that LLMB brings along, and Bash that has files of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmb_common.base import cluster_types
from llmb_common.base.cluster_types import traits_of
from llmb_common.base.errors import ConfigError, RecordError
from llmb_common.base.files import shell_part
from llmb_common.planning.site.cluster import load_cluster_config
from llmb_common.runs.record import load_record
from llmb_common.submission.single import create_run
from support.run_site import ROOT, RunSite
from support.texts import Texts


@pytest.mark.parametrize(
    ("cluster_type", "job_id", "valid"),
    [
        *(("slurm", "17", True), ("slurm", "17_3", True), ("slurm", "17_", False)),
        *(("local", "17", True), ("local", "17_3", False), ("local", "", False)),
    ],
)
def test_a_jobs_id_has_the_form_of_its_scheduler(cluster_type: str, job_id: str, valid: bool) -> None:
    assert bool(re.fullmatch(traits_of(cluster_type).job_id, job_id)) is valid


def test_an_unknown_way_is_named_beside_the_known_ones(texts: Texts) -> None:
    assert cluster_types.names() == ("slurm", "local")
    with texts.raises(ValueError):
        traits_of("flux")
    with texts.raises(ValueError):
        traits_of("x" * 200)


def test_a_part_of_a_script_comes_without_its_directive(tmp_path: Path, texts: Texts) -> None:
    (tmp_path / "part.sh").write_text("# shellcheck shell=bash disable=SC2154\n\necho größe X\n\n", encoding="utf-8")
    assert shell_part(str(tmp_path / "module.py"), "part.sh") == "echo größe X"
    (tmp_path / "none.sh").write_text("echo\n")
    with texts.raises(ValueError):
        shell_part(str(tmp_path / "module.py"), "none.sh")


def test_nothing_asks_for_a_way_by_its_name() -> None:
    """That is what the traits are for: a comparison would have no answer for a third one."""
    asks = re.compile(r"""cluster_type["')\]]* *(?:==|!=|in [({\[])|(?:==|!=) *(?:"slurm"|"local"|SLURM\b|LOCAL\b)""")
    sources = [path for folder in ("common", "cli", "installer") for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 200
    assert [path.name for path in sources if asks.search(path.read_text())] == []


def test_a_run_of_a_way_that_is_not_there_cannot_be_read(tmp_path: Path, texts: Texts) -> None:
    site = RunSite(tmp_path, "local")
    record = create_run(site.plan(), b"", {})
    content = record.paths.record.read_bytes().replace(b'"cluster_type": "local"', b'"cluster_type": "spool"')
    with texts.raises(RecordError):
        load_record(record.paths.folder, content)
    config = site.install / "cluster_config.yaml"
    config.write_text(config.read_text().replace("local", "spool"))
    with texts.raises(ConfigError):
        load_cluster_config(site.install)
