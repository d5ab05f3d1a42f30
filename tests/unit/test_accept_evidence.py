"""The evidence of an acceptance campaign: complete, the same every time, and without secrets."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from llmb_common.base.errors import RecordError
from llmb_run.acceptance.health import HEALTH, fabric_of
from support import instant
from support.campaigns import SUITE, Site, unpacked
from support.packs import sums_hold
from support.programs import needs_zstd
from support.texts import Texts


@needs_zstd
def test_the_evidence_holds_suite_plans_verdicts_report_and_every_run(site: Site, tmp_path: Path, texts: Texts) -> None:
    site.suite(80, 80)
    instant.direct("1.2", "NODE_FAIL")
    done = site.accept("--json")
    names = {path.name for path in site.campaign.iterdir()}
    assert names == {"suite.yaml", "campaign.json", "result.json", "report.html", "two.tar.zst"}
    pack = site.campaign / "two.tar.zst"
    assert hashlib.sha256(pack.read_bytes()).hexdigest() == done.data["pack_sha256"]
    inside = unpacked(pack, tmp_path / "out")
    assert sums_hold(tmp_path / "out")
    for name in ("suite.yaml", "campaign.json", "report.html"):
        assert inside[f"campaign/{name}"] == (site.campaign / name).read_bytes(), name
    verdicts = json.loads(inside["campaign/verdicts.json"])
    assert (verdicts["accepted"], len(verdicts["reruns"])) == (True, 1)
    texts(inside["campaign/verdicts.txt"].decode(), about="ACCEPTED")
    cases = ElementTree.fromstring(inside["campaign/report.xml"]).findall("testcase")
    assert (cases[0].get("name"), cases[0].find("failure"), cases[0].find("skipped")) == ("acceptance two", None, None)
    begun_with = json.loads(inside["campaign/campaign.json"])
    assert begun_with["suite_sha256"] == hashlib.sha256(inside["campaign/suite.yaml"]).hexdigest()
    assert [item["plan"]["gpus"] for item in begun_with["arms"]] == [1, 2]
    runs = [run["run_id"] for item in verdicts["workloads"] for run in item["runs"]]
    records = [json.loads(content)["run_id"] for name, content in inside.items() if name.endswith("/run.json")]
    assert sorted(records) == sorted(runs)
    for kind in (".sbatch", "/job.json", "/code.zip", ".out"):
        assert sum(name.endswith(kind) for name in inside) >= 7, f"{kind} of each run"


def test_the_same_campaign_makes_the_same_evidence(site: Site) -> None:
    site.suite(80, 80)
    first = site.accept("--json").data["pack_sha256"]
    (site.campaign / "result.json").unlink()  # as if it had been killed just before its end
    assert site.accept("--json").data["pack_sha256"] == first


@needs_zstd
def test_a_suite_may_ask_for_the_health_of_its_nodes_first(site: Site, tmp_path: Path, texts: Texts) -> None:
    """Here nobody knows of nodes, as where all are busy: the campaign goes on, and says so. On nodes: cluster tests."""
    site.suite(
        text=SUITE.replace("FIRST", "80").replace("SECOND", "80").replace("name: two", "name: two\nhealth: true")
    )
    done = site.accept()
    assert done.status == 0
    texts(done.err, about="health:")
    inside = unpacked(site.campaign / "two.tar.zst", tmp_path / "out")
    assert json.loads(inside["campaign/health.json"])["nodes"] == []
    assert sums_hold(tmp_path / "out")


@needs_zstd
def test_a_secret_is_not_in_the_evidence(site: Site, tmp_path: Path) -> None:
    site.suite(
        text=SUITE.replace("FIRST", "100")
        .replace("SECOND", "100", 1)
        .replace("env: {", "env: {NOTE: 'x=correct-horse-battery', ")
    )
    instant.direct("1.1", "FAILED", "RuntimeError: token=correct-horse-battery")
    site.accept(WANDB_API_KEY="correct-horse-battery")
    inside = unpacked(site.campaign / "two.tar.zst", tmp_path / "out")
    assert [name for name, content in inside.items() if b"correct-horse" in content] == []
    assert any(b"token=****" in content for content in inside.values())


@pytest.mark.parametrize("text", ['{"fabric": {}}', '{"fabric": [{}]}', "[]", "{"])
def test_a_health_file_that_is_damaged_is_named(tmp_path: Path, text: str, texts: Texts) -> None:
    (tmp_path / HEALTH).write_text(text)
    with texts.raises(RecordError):
        fabric_of(tmp_path)
