"""The report as Markdown, JUnit and HTML: what other programs read in it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import random
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from junitparser import Error, Failure, JUnitXml, Skipped
from markdown_it import MarkdownIt

from llmb_common.health.verdicts import Fabric
from llmb_common.planning.workspace import Workspace
from llmb_run.reporting import charts_library
from llmb_run.reporting import forms as html_form
from llmb_run.reporting.fabric import fabric_part
from llmb_run.reporting.forms import junit, markdown, page
from llmb_run.reporting.report import Report, build
from llmb_run.results.selected import selected_runs
from support.cli import Cli
from support.report_site import HOSTILE, make_site
from support.runs import make_run, steady_log
from support.texts import Texts
from tools.fabric_simulation import REAL, Simulated, hosts_of, measure

TITLE = "llama3.1 405b mbridge fp8 (cs) on 128 gb200"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    install = tmp_path_factory.mktemp("site")
    make_site(install)
    return build(selected_runs(Workspace(install), (), {}), Workspace(install))


def tables(text: str) -> dict[str, list[list[str]]]:
    """The rows of each table below its heading, as a Markdown reader sees them."""
    found: dict[str, list[list[str]]] = {}
    heading, tokens = "", iter(MarkdownIt("gfm-like", {"linkify": False}).parse(text))
    for token in tokens:
        if token.type == "heading_open":
            heading = shown(next(tokens))
        elif token.type == "tr_open":
            found.setdefault(heading, []).append([])
        elif token.type in ("td_open", "th_open"):
            found[heading][-1].append(shown(next(tokens)))
    return found


def shown(token: Any) -> str:
    """The text of a cell; anything but text in it fails the test."""
    assert {child.type for child in token.children} <= {"text", "text_special"}, token.content
    return "".join(child.content for child in token.children)


def test_markdown_has_what_the_report_has(report: Report) -> None:
    found = tables(markdown(report))
    assert [name.partition(":")[0] for name in found] == [
        *("Verdicts", "Runs", "Remarks", "Scaling", "History", "Nodes", "Differences")
    ]
    assert len(found["Verdicts"]) == 1 + 7
    assert len(found["Runs"]) == 1 + 18
    head, *lines = found["Runs"]
    (spiky,) = [run for line in lines if (run := dict(zip(head, line, strict=True)))["step s"] == "7.600"]
    judged = (spiky["steady step s"], spiky["reference s"])
    assert judged == ("5.805", "5.74147"), "what is judged, and against what, beside the documented mean"
    assert any(run == spiky["run"] and "(iteration 38; 4.1 times" in text for run, text in found["Remarks"][1:])
    assert found["Scaling"][-1][3:6] == ["64", "1024", "1"]
    assert len(found["History"]) == 1 + 10 + 3, "configurations that ran once have no history"


def fabrics() -> tuple[Fabric, ...]:
    """A fleet with a slow node, and one that is too small to be judged."""
    source = random.Random(1)
    hosts = hosts_of(66)
    found = [measure(fleet, source) for fleet in (Simulated(hosts, REAL, {"n7": 0.05}), Simulated(hosts[:2], REAL))]
    return tuple(Fabric(measured, verdict) for measured, verdict in found)


def test_a_measurement_of_the_fabric_is_drawn_if_there_is_one(report: Report) -> None:
    many, few = fabrics()
    measured = msgspec.structs.replace(report, fabrics=(fabric_part(many), fabric_part(few)))
    text = markdown(measured)
    assert text.index("## Fabric: warn") < text.index("## Fabric: not judged") < text.index("## Verdicts")
    assert "Fabric" not in markdown(report)
    head, *rows = tables(text)["Groups of nodes by bus bandwidth"]
    speed, bandwidth = head.index("speed"), head.index("bus bandwidth, GB/s")
    groups = rows[: rows.index(head)]
    assert len(groups) == measured.fabrics[0].listed < len(measured.fabrics[0].groups)
    assert sorted(float(row[bandwidth]) for row in groups) == [float(row[bandwidth]) for row in groups]
    slow = [row for row in groups if row[speed] == "slow"]
    assert groups[: len(slow)] == slow
    assert len(slow) == 3, "the first group of n7, and its two others"
    data = json.loads(Elements(page(measured)).scripts[0][1])
    assert [part["level"] for part in data["fabrics"]] == ["warn", "not judged"]
    assert len(page(measured)) - len(page(report)) < 20_000


def test_a_file_with_a_measurement_is_given(site: Cli, tmp_path: Path) -> None:
    printed, kept = tmp_path / "printed.json", tmp_path / "health.json"
    plain = msgspec.to_builtins(fabrics())
    printed.write_text(json.dumps({"data": {"fabric": plain[0]}}))
    kept.write_text(json.dumps({"schema": 1, "fabric": plain}))
    done = site("report", "--fabric", printed, "--fabric", kept)
    assert re.findall("## Fabric: (.*)", done.out) == ["warn", "warn", "not judged"]
    for text in ("", "[", "[1]", '{"fabric": []}', '{"fabric": {"a": 1}}'):
        printed.write_text(text)
        assert site("report", "--fabric", printed, "--json").envelope["error"]["code"] == "request"
    assert site("report", "--fabric", tmp_path / "none", "--json").envelope["error"]["code"] == "request"


def test_markdown_begins_with_the_answer_and_has_no_empty_section(report: Report, site: Cli) -> None:
    text = markdown(report)
    assert text.partition("\n\n")[2].startswith(f"**{report.answer.word}: ")
    assert f"`{report.answer.command}`" in text
    small = site("report").out
    found = tables(small)
    assert {"Verdicts", "Runs"} <= found.keys()
    assert {"Scaling", "History", "Nodes"}.isdisjoint(found)
    assert small.count("## ") == len(found), "every heading has its table"


def test_markdown_says_no_figure_that_says_nothing(cli: Cli) -> None:
    """Two smoke runs that are far apart: an interval of thousands of per cent, no TFLOPS, and days for a tiny model."""
    smoke = {"CLUSTER_TYPE": "local", "GPU_TYPE": "cpu", "MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "2"}
    for number, milliseconds in enumerate((400, 900)):
        log = re.sub(r"\(TFLOP/s/GPU\): [0-9.]+", "(TFLOP/s/GPU): 0.0", steady_log(milliseconds))
        make_run(cli.install, log=log, variables=smoke, job_id=str(number))
    found = tables(cli("report").out)
    heads, verdict = found["Verdicts"]
    assert verdict[heads.index("± % (97.7 %)")] == "too few"
    heads, *rows = found["Runs"]
    for row in rows:
        cells = dict(zip(heads, row, strict=True))
        assert cells["step s"] in ("0.400", "0.900")
        assert (cells["TFLOPS/GPU"], cells["days/1T"]) == ("", "")


def test_markdown_shows_hostile_text_as_it_is(report: Report) -> None:
    found = tables(markdown(report))
    differing = found["Differences: llama3.1 405b mbridge fp8 (cs) on 128 gb200"]
    assert ["", HOSTILE, "1"] in differing
    title = "# *x* | [a](javascript:b) `c` <b> $d$ ~e~ \n# no"
    text = markdown(msgspec.structs.replace(report, title=title))
    heading = MarkdownIt("gfm-like", {"linkify": False}).parse(text)[1]
    assert shown(heading) == title.replace("\n", r"\n")


def suite_in(text: str) -> Any:
    (suite,) = JUnitXml.fromstring(text.encode())
    return suite


def test_junit_as_a_server_reads_it(report: Report, texts: Texts) -> None:
    suite = suite_in(junit(report))
    cases = list(suite)
    kinds = [type(case.result[0]) if case.result else None for case in cases]
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (8, 1, 1, 5)
    assert [kinds.count(kind) for kind in (None, Failure, Error, Skipped)] == [1, 1, 1, 5]
    failed = cases[kinds.index(Failure)]
    assert (failed.name, failed.classname) == ("llama3.1 70b mbridge fp8 (cs) on 64 h100", "llmb.nemo:26_02_01")
    texts(failed.result[0].message)
    assert failed.system_out is not None
    texts(failed.system_out)
    assert all(str(case.system_out).startswith("indication: pass, ") for case in cases if not case.result)
    texts(cases[kinds.index(Error)].result[0].message)


def test_junit_counts_what_is_not_listed(report: Report, texts: Texts) -> None:
    counts = msgspec.structs.replace(report.counts, failed=11)
    more = msgspec.structs.replace(report, counts=counts, left_out={"groups": "7 of 9"})
    suite, before = suite_in(junit(more)), suite_in(junit(report))
    assert (suite.errors, suite.skipped) == (before.errors + 1, before.skipped + 1)
    texts(junit(more), about="more runs")


def test_junit_has_no_character_that_xml_has_not(report: Report) -> None:
    title = f"\x00\x1b[31m\ud800{HOSTILE}\u2028"
    suite = suite_in(junit(msgspec.structs.replace(report, title=title)))
    assert suite.name == f"\\x00\\x1b[31m\\ud800{HOSTILE}\\u2028"


class Elements(HTMLParser):
    """What a browser makes of the page: start tags, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.in_script = tag == "script"
        if self.in_script:
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self.in_script = False

    def handle_data(self, data: str) -> None:
        if self.in_script:
            attributes, text = self.scripts.pop()
            self.scripts.append((attributes, text + data))


@pytest.fixture(scope="module")
def made(report: Report) -> str:
    return page(msgspec.structs.replace(report, title=f"{HOSTILE}<!--data-->"))


def test_the_page_loads_nothing_and_runs_two_scripts(made: str) -> None:
    found = Elements(made)
    assert [attributes for attributes, _ in found.scripts] == [{"id": "data", "type": "application/json"}, {}, {}]
    outside = {"src", "href", "srcset", "action", "data", "background", "poster"}
    assert [tag for tag, attributes in found.tags if outside & attributes.keys()] == []
    policy = next(
        attributes["content"] for tag, attributes in found.tags if tag == "meta" and "http-equiv" in attributes
    )
    assert policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe-eval" not in policy
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for _, text in found.scripts[1:]]
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert not re.search(r"url\(|@import", html_form._read_page_file("page.css"))


def test_the_page_holds_the_report_whatever_is_in_it(made: str, report: Report) -> None:
    found = Elements(made)
    assert json.loads(found.scripts[0][1])["title"] == f"{HOSTILE}<!--data-->"
    assert len(json.loads(found.scripts[0][1])["runs"]) == len(report.runs)
    assert f"<title>{html.escape(HOSTILE)}&lt;!--data--&gt;</title>" in made
    assert "<" not in found.scripts[0][1], "nothing that a browser could take for the end of the data"


def test_the_page_is_small_enough_to_send(made: str) -> None:
    assert len(made) < 300_000, "beside the library of 900,000"


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tool's environment of an installation, without the script of the charts and what makes it."""
    prefix = tmp_path / "venvs" / "llmb-1"
    prefix.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr("llmb_common.base.notices.recorded_notices", [])
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    monkeypatch.setattr(html_form, "charts_library", charts_library.charts_library.__wrapped__)
    return prefix


def test_the_first_page_has_the_installer_fetch_what_draws_charts(report: Report, prefix: Path) -> None:
    program = prefix.parents[1] / "bin" / "llmb-install"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho x >> {program}.asked; echo "window.vegaEmbed = $1" > {prefix}/vega.js\n')
    program.chmod(0o755)
    for _ in range(2):
        assert "window.vegaEmbed = charts\n" in page(report)
    assert Path(f"{program}.asked").read_text() == "x\n"


@pytest.mark.parametrize("refuses", [True, False])
def test_without_it_a_page_has_no_charts_and_says_so(report, prefix, refuses, capsys, texts: Texts):
    if refuses:
        (prefix.parents[1] / "bin").mkdir()
        (prefix.parents[1] / "bin" / "llmb-install").write_text("#!/bin/sh\nexit 3\n")
        (prefix.parents[1] / "bin" / "llmb-install").chmod(0o755)
    assert "vegaEmbed =" not in page(report)
    texts(capsys.readouterr().err)


def test_an_installer_that_cannot_be_started_leaves_a_page_without_charts(report: Report, prefix: Path) -> None:
    program = prefix.parents[1] / "bin" / "llmb-install"
    program.parent.mkdir()
    program.write_text("#!/gone/python\n")
    program.chmod(0o755)
    assert "vegaEmbed =" not in page(report)


@pytest.fixture
def site(cli: Cli) -> Cli:
    make_run(cli.install, log=steady_log(5700))
    make_run(cli.install, state="FAILED", log=steady_log(5700, 10))
    return cli


def test_report_writes_each_form_where_it_is_told(site: Cli, tmp_path: Path, texts: Texts) -> None:
    files = {form: tmp_path / f"report.{form}" for form in ("html", "markdown", "junit")}
    words = [word for form, file in files.items() for word in (f"--{form}", str(file))]
    done = site("report", *words, "--title", "March")
    assert done.status == 0, "an old run that failed is no failure of the report"
    told = [f"wrote {file}: 2 runs, " for file in files.values()]
    assert [line.startswith(words) for line, words in zip(done.out.splitlines(), told, strict=True)] == [True] * 3
    both = site(
        "report", "--state", "completed,failed", "--title", "March", "--markdown", "-", "--junit", files["junit"]
    )
    assert (both.status, both.out[:1]) == (1, "#"), "a run that was chosen failed"
    texts(both.err, mask=r"\d+ B\b")
    assert "<title>March</title>" in files["html"].read_text()
    assert files["markdown"].read_text().startswith("# March\n\n**PASS: ")
    assert suite_in(files["junit"].read_text()).name == "March"


def test_report_for_programs(site: Cli, tmp_path: Path) -> None:
    file = tmp_path / "report.xml"
    data = site("report", "--junit", file, "--json").data
    assert data["files"] == {"junit": str(file)}
    assert [run["steps"]["total"] for run in data["report"]["runs"]] == [10, 50]


def test_report_takes_the_same_runs_as_results(site: Cli) -> None:
    done = site("report", "--state", "completed")
    assert done.status == 0
    assert len(tables(done.out)["Runs"]) == 1 + 1
    assert site("report", "no-such-run").status == 2


def test_report_refuses_what_it_cannot_do(site: Cli, tmp_path: Path, texts: Texts) -> None:
    assert site("report", "--junit", "-", "--markdown", "-").status == 2
    done = site("report", "--markdown", tmp_path / "no" / "such" / "folder")
    assert done.status == 3
    texts(done.err)


def test_results_over_scales(cli: Cli, texts: Texts) -> None:
    for gpus, seconds in ((8, 12.2), (16, 12.5)):
        small = {"GPU_TYPE": "h100", "MODEL_SIZE": "8b", "DTYPE": "bf16", "JOB_TOTAL_GPUS": str(gpus)}
        make_run(cli.install, variables={**small, "CONFIG_VARIANT": "nemo2"}, log=steady_log(1000 * seconds))
    (line,) = cli("results", "--scaling", "--json").data["scaling"]
    assert [round(point["efficiency"], 4) for point in line["points"]] == [1.0, 0.976]
    text = cli("results", "--scaling").out.splitlines()
    texts(" ".join(text[0].split()))
    assert text[1].split()[-3:] == ["100.0", "100.0", "85459"], "the smallest scale is what the others are held against"
    efficiency, low, _, high, *published = text[2].split()[-6:]
    assert [efficiency, *published] == ["97.6", "99.8", "170500"]
    assert float(low) < 97.6 < float(high)
    header, *rows = cli("results", "--scaling", "--format", "csv").out.splitlines()
    assert header.startswith("configuration,software,scaling,gpus,gbs,runs,step_seconds,tokens_per_second,")
    assert len(rows) == 2
    assert ",0.976," in rows[1]


def test_results_over_time(cli: Cli, texts: Texts) -> None:
    for milliseconds in (6000, 5700):
        make_run(cli.install, log=steady_log(milliseconds))
    said, empty, _, *text = cli("results", "--history").out.splitlines()
    texts(said)
    assert not empty
    assert [line.split()[-1] for line in text] == ["6.000", "-5.0"]
    (history,) = cli("results", "--history", "--json").data["history"]
    assert [moment["seconds"] for moment in history["moments"]] == [6.0, 5.7]
    rows = cli("results", "--history", "--format", "csv").out.splitlines()
    assert float(rows[2].split(",")[7]) == pytest.approx(0.95)


def test_one_scale_is_no_scaling(site: Cli, texts: Texts) -> None:
    texts(site("results", "--scaling").out)
    done = site("results", "--scaling", "--history")
    assert done.status == 2
    texts(done.err)
