"""A performance engineer's week: every command of that part of ``docs/fastest.md``, on a made-up cluster of H100."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.index.runs import name_of_round
from llmb_common.runs.index.search import find_runs
from support import instant
from support.campaigns import Site
from support.plans import ROOT
from support.texts import Texts

SITE = "schema: 1\ncluster_name: Example\ncluster_type: instant\ngpu_type: h100\n"
PAGE = (ROOT / "docs" / "fastest.md").read_text().partition("## A week, command by command")[2].partition("\n## ")[0]
COMMANDS = re.findall(r"^llmb-run (.+?)(?: +#.*)?$", PAGE, re.MULTILINE)


def milliseconds(plan: JobPlan) -> float:
    """The truth about this cluster: TP costs 5 %, trees 4 %, a larger micro-batch wins 9 %, the new image 6 %."""
    algorithm = plan.env["NCCL_ALGO"].value if "NCCL_ALGO" in plan.env else ""
    share = {1: 1.0, 2: 1.05}[plan.tp] * {1: 1.0, 2: 0.91}[plan.mbs]
    return 9050 * share * (1.04 if algorithm == "Tree" else 1.0) * (0.94 if "26.08" in str(plan.image) else 1.0)


def slowest(site: Site) -> str:
    runs = site("jobs", "--all", "--json").data["runs"]
    return next(run["run_id"] for run in runs if "tp=2, NCCL_ALGO=Tree" in (run["differing"] or ""))


def swept(site: Site) -> str:
    """What the sweep of the page is called here."""
    (beginning,) = {":".join(run.key.split(":")[:2]) for run in find_runs(site.install) if run.key.startswith("sweep:")}
    return name_of_round(beginning)


def test_every_command_of_the_page_does_what_the_page_says(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, texts: Texts
) -> None:
    traits = instant.INSTANT._replace(this_machine=False, containers=True)
    instant.install_executor(monkeypatch, tmp_path / "cluster", traits)
    monkeypatch.setattr(instant, "milliseconds_of", milliseconds)
    monkeypatch.chdir(tmp_path)
    (site.install / "cluster_config.yaml").write_text(SITE)

    said: list[str] = []
    for command in COMMANDS:
        words = [slowest(site) if word == "RUN" else word for word in shlex.split(command)]
        done = site(*(swept(site) if word.startswith("sweep-") else word for word in words))
        assert done.status == 0, f"{command}\n{done.err}"
        said.append(done.out + done.err)
    planned, started, jobs, _, ranked, images, why, tested, tuned, groups, _ = said

    texts(planned, about="nothing started")
    texts(started, about="jobs started")
    assert all(f"tp={tp}, NCCL_ALGO={how}" in jobs for tp in "12" for how in ("Ring", "Tree"))
    assert re.search(r"^1 +1 +Ring +3 +9\.0", ranked, re.MULTILINE)
    assert "--set tp=1 --env NCCL_ALGO=Ring" in ranked
    assert re.search(r"B takes [56]\.\d % less time than A", images)
    assert "--change tp=1" in why, "which is what the page tests next"
    assert re.search(r"B takes 4\.\d % less time than A", tested)
    assert re.search(r"mbs=2 is (9|10)\.\d % faster than the base", tuned)
    texts(groups.splitlines()[0])
    assert "tp=2, NCCL_ALGO=Tree" in Path("week.html").read_text()
