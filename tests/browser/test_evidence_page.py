"""The page in a campaign's evidence, taken out of the pack and opened: the campaign's own verdicts come first."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from layout import WIDTHS, overlaps
from playwright.sync_api import Browser
from test_report_page import cells, require_readable, shown, sort

from llmb_common.planning.request.variables import VARIABLES
from llmb_run.main import main
from support import instant
from support.run_site import RunSite
from support.site_record import plant

SUITE = """\
name: night
defaults: {size: smoke, dtype: bf16, scale: 1, repeats: 3, reruns: 4}
tests:
  - workload: pretrain_llama3.1
    reference: {seconds: 0.1, source: "contract <b>4711</b>"}
    env: {STEP_MS: "100"}
  - workload: pretrain_grok1
    scale: 2
    reference: {seconds: 0.1, source: "contract <b>4711</b>"}
    env: {STEP_MS: "112"}
"""


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a campaign in which one workload passes after a rerun and one is 12 % too slow."""
    folder = tmp_path_factory.mktemp("campaign")
    with pytest.MonkeyPatch.context() as patch:
        instant.install_executor(patch, folder / "instant")
        plant(patch)
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        patch.setenv("LLMB_INSTALL", str(RunSite(folder, "instant").install))
        instant.direct("1.2", "NODE_FAIL")
        (folder / "night.yaml").write_text(SUITE)
        assert main(["accept", str(folder / "night.yaml")]) == 1
    (pack,) = (folder / "install" / "campaigns").glob("night-*/1/night.tar.zst")
    subprocess.run(["tar", "--zstd", "-xf", pack, "-C", folder], check=True)
    return folder / "night" / "campaign" / "report.html"


def test_the_campaigns_verdicts_come_first(browser: Browser, evidence: Path) -> None:
    with shown(browser, evidence) as page:
        assert [text.partition(":")[0] for text in page.locator("h2").all_inner_texts()][:3] == [
            *("Acceptance", "Verdicts", "Steps")
        ]
        section = page.locator("#acceptance")
        assert "✗ NOT ACCEPTED workloads: 1 of 2 fail" in section.inner_text()
        assert cells(page, "#workloads", "verdict") == ["✓ pass", "✗ fail"]
        assert cells(page, "#workloads", "runs") == ["4", "3"]
        assert cells(page, "#workloads", "reference s") == ["0.1", "0.1"]
        low, high = cells(page, "#workloads", "interval %")[1].split(" to ")
        assert 80 < float(low) < float(high) < 95
        sort(page, "#workloads", "verdict")
        assert cells(page, "#workloads", "verdict") == ["✗ fail", "✓ pass"]
        assert "run 2: a node failed (NODE_FAIL)" in section.inner_text(), "reruns are not folded away"
        for summary in section.locator("summary").all()[1:]:
            summary.click()
        text = section.inner_text()
        assert "contract <b>4711</b>" in text
        assert "97.7 % intervals of the performance" in text
        assert page.locator("#run-table tbody tr").count() > 0
        for chart in ("steps", "loss"):
            assert page.locator(f"#{chart} svg path").count() > 3, chart


def test_it_can_be_read_at_every_width(browser: Browser, evidence: Path) -> None:
    with shown(browser, evidence, width=WIDTHS[0]) as page:
        assert page.locator("#word").inner_text() == "FAIL"
        assert page.locator("#sentence").inner_text().startswith("NOT ACCEPTED: workloads: ")
        assert re.search(r"\d+\.\d % .*\n?.*\d+\.\d % required", page.locator("#figure").inner_text())
        for summary in page.locator("summary").all():
            summary.evaluate("(one) => { one.parentElement.open = true; }")
        require_readable(page)
        targets = page.evaluate("[...document.querySelectorAll('a')].map((link) => link.getAttribute('href').slice(1))")
        assert page.evaluate("(all) => all.filter((one) => !document.getElementById(one))", targets) == []
        assert page.locator("#workloads tbody tr").first.locator("a").count() > 4, "figures lead to their runs"


def test_a_time_at_the_edge_of_the_history_is_not_cut_off(browser: Browser, evidence: Path) -> None:
    before, tag, rest = evidence.read_text().partition('<script id="data" type="application/json">')
    data, end, after = rest.partition("</script>")
    content = json.loads(data)
    moments = [moment for history in content["histories"] for moment in history["moments"]]
    for start, apart in ((1.48, 1.17), (7.03, 3.67), (9.62, 4.83)):
        for number, moment in enumerate(moments):
            moment["started"] = 1_795_000_000 + start + number * apart
        page_file = evidence.with_name("edge.html")
        page_file.write_text(before + tag + json.dumps(content).replace("<", "\\u003c") + end + after)
        with shown(browser, page_file, width=390) as page:
            assert overlaps(page) == []
