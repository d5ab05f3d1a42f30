"""The report's page in Chromium: what a person sees and does, and that nothing leaves it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from layout import WIDTHS, hidden, overlaps, pale
from playwright.sync_api import Browser, Page

from llmb_common.health.verdicts import Fabric
from llmb_common.planning.workspace import Workspace
from llmb_run.reporting.fabric import fabric_part
from llmb_run.reporting.forms import page as html_page
from llmb_run.reporting.report import MOST_POINTS, MOST_RUNS, Report, build
from llmb_run.results.selected import selected_runs
from support.report_site import HOSTILE
from support.runs import make_run, steady_log
from tools.fabric_simulation import REAL, Simulated, hosts_of, measure

THEMES = ("light", "dark")
FAIL = "llama3.1 70b mbridge fp8 (cs) on 64 h100"
LARGE = "llama3.1 405b mbridge fp8 (cs) on 128 gb200"


@contextmanager
def shown(
    browser: Browser, file: Path, theme: str = "light", expected: str = "nothing", width: int = 1440
) -> Iterator[Page]:
    """The page, drawn to its end. Any request, dialog, error or message, but the expected one, fails the test."""
    complaints: list[str] = []
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 900})
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.on("request", lambda request: None if request.url == file.as_uri() else complaints.append(request.url))
    page.on("console", lambda message: complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.goto(file.as_uri())
    page.evaluate("window.drawn")
    yield page
    page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    context.close()
    assert [text for text in complaints if expected not in text] == []


def drawn(page: Page) -> None:
    """Wait for the charts of the newest choice."""
    page.evaluate("new Promise((done) => setTimeout(done, 50))")
    page.evaluate("window.drawn")


RESIZED = """() => {
    window.resized = new Promise((done) => addEventListener("resize", () => setTimeout(done, 300), { once: true }));
}"""
"""Twice as long as the page waits for the window to keep its width."""


def resize(page: Page, width: int) -> None:
    """Give the window this width, and wait until the charts are drawn for it."""
    assert page.viewport_size
    if page.viewport_size["width"] != width:
        page.evaluate(RESIZED)
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("window.resized")
    drawn(page)


@pytest.fixture(scope="module")
def page(browser: Browser, report_file: Path) -> Iterator[Page]:
    """For tests that choose the runs, and set what else they look at."""
    with shown(browser, report_file) as found:
        yield found


@pytest.fixture(scope="module")
def as_drawn(browser: Browser, report_file: Path) -> Iterator[Page]:
    """For tests that only look: nothing is clicked, chosen or changed."""
    with shown(browser, report_file) as found:
        yield found


@contextmanager
def themed(page: Page, theme: str) -> Iterator[Page]:
    """The page where the system has this theme; in the end it has the light one again."""
    page.emulate_media(color_scheme=theme)
    try:
        yield page
    finally:
        page.emulate_media(color_scheme="light")


def require_readable(page: Page) -> None:
    """Nothing is cut off, overlaps or is pale at any of the widths, in the light theme or the dark one."""
    for width, theme in zip(WIDTHS, ("light", "dark", "dark"), strict=True):
        resize(page, width)
        with themed(page, theme):
            assert (width, hidden(page), overlaps(page), pale(page)) == (width, [], [], [])


def cells(page: Page, table: str, column: str) -> list[str]:
    """A column of a table, by its heading, from the top."""
    heads = [head.replace("\n", " ") for head in page.locator(f"{table} th").all_inner_texts()]
    return page.locator(f"{table} tbody td:nth-child({heads.index(column) + 1})").all_inner_texts()


def axis_labels(page: Page, chart: str, title: str) -> list[str]:
    axis = page.locator(f"#{chart} .role-axis").filter(has_text=title)
    return axis.locator(".role-axis-label text").all_text_contents()


def sort(page: Page, table: str, column: str) -> None:
    page.locator(f"{table} th button", has_text=re.compile(column.replace(" ", r"\s"))).click()


def choose(page: Page, **values: str) -> None:
    for name, value in values.items():
        field = page.locator(f"#filters [name={name}]")
        if name == "text":
            field.fill(value)
        else:
            field.select_option(value)


def test_the_page_is_complete_and_asks_nobody(browser: Browser, report_file: Path) -> None:
    with shown(browser, report_file) as page:
        choose(page, title=LARGE)
        page.wait_for_selector("#history svg")
        for chart in ("steps", "loss", "history"):
            assert page.locator(f"#{chart} svg path").count() > 3, chart
        titles = set(page.locator(".chart .role-axis-title text").all_text_contents())
        assert titles >= {"step time (s)", "iteration", "loss (nats per token)", "date (UTC)", "GPUs", "efficiency (%)"}


def test_a_page_without_charts_says_so_and_has_all_else(browser, report, tmp_path, monkeypatch):
    monkeypatch.setattr("llmb_run.reporting.forms.charts_library", lambda: "")
    file = tmp_path / "report.html"
    file.write_text(html_page(report), encoding="utf-8")
    with shown(browser, file) as page:
        assert page.locator("#without-charts").is_visible()
        assert page.locator("#steps").inner_text() == "Step time over iterations, a line for each run"
        page.locator("#filters button").click()
        drawn(page)
        assert page.locator("#run-table tbody tr").count() == len(report.runs)


def test_a_page_has_no_section_of_which_there_is_nothing(browser: Browser, tmp_path: Path) -> None:
    make_run(tmp_path, log=steady_log(5700))
    place, file = Workspace(tmp_path), tmp_path / "report.html"
    file.write_text(html_page(build(selected_runs(place, (), {}), place)), encoding="utf-8")
    with shown(browser, file) as page:
        headings = [text.partition(":")[0] for text in page.locator("h2:visible").all_inner_texts()]
        assert headings == ["Verdicts", "Steps", "Runs", "Evidence"]
        assert page.locator("#contents a").all_inner_texts() == headings
        assert page.locator("#steps").is_visible()
        assert not page.locator("#history-figure").is_visible()


def test_an_interval_that_says_nothing_and_no_tflops_are_not_printed(browser: Browser, tmp_path: Path) -> None:
    """Of two runs of a tiny model that are far apart."""
    smoke = {"CLUSTER_TYPE": "local", "GPU_TYPE": "cpu", "MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "2"}
    for number, milliseconds in enumerate((400, 900)):
        log = re.sub(r"\(TFLOP/s/GPU\): [0-9.]+", "(TFLOP/s/GPU): 0.0", steady_log(milliseconds))
        make_run(tmp_path, log=log, variables=smoke, job_id=str(number))
    place, file = Workspace(tmp_path), tmp_path / "report.html"
    file.write_text(html_page(build(selected_runs(place, (), {}), place)), encoding="utf-8")
    with shown(browser, file) as page:
        assert "too few" in page.locator("#groups").inner_text()
        assert re.search(r"\d{5,}\.\d", page.locator("#groups").inner_text()) is None
        assert "\t0.00\t" not in page.locator("#run-table").inner_text()


def test_hostile_values_are_text(as_drawn: Page) -> None:
    page = as_drawn
    assert HOSTILE in page.locator("#differences").inner_text()
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3, "the data, the library and the page's own"


def test_no_other_script_runs(browser: Browser, report_file: Path) -> None:
    """Markup that got into the page in spite of everything could not do anything."""
    with shown(browser, report_file, expected="Content Security Policy") as page:
        directive = page.evaluate(
            """() => new Promise((done) => {
                document.addEventListener("securitypolicyviolation", (event) => done(event.violatedDirective));
                const script = document.createElement("script");
                script.textContent = "window.hacked = true";
                document.body.append(script);
            })"""
        )
        assert directive.startswith("script-src")
        assert page.evaluate("window.hacked") is None


def test_verdicts_come_first_and_the_worst_is_chosen(as_drawn: Page) -> None:
    page = as_drawn
    headings = page.locator("h2").all_inner_texts()
    assert [heading.partition(":")[0] for heading in headings] == [
        *("Verdicts", "Steps", "Sweeps", "Scaling", "Runs", "Nodes", "Differences", "Evidence")
    ]
    assert cells(page, "#groups", "verdict")[0].startswith("✗ fail")
    assert page.locator("#word").inner_text() == "FAIL"
    sentence = page.locator("#sentence").inner_text()
    assert all(text in sentence for text in ("1 of 7 configurations", "5 are open", "70b", "18.5 %"))
    assert not re.search(r"[()]", sentence)
    assert cells(page, "#run-table", "verdict")[0].split() == ["✗", "fail", "indication"]
    assert headings[1] == f"Steps: {FAIL}"
    bar = page.locator("#groups tbody tr").first.locator(".interval")
    words = r"\+18\.\d %, between \+1\d\.\d and \+2\d\.\d %; up to \+8\.4 % passes"
    assert re.fullmatch(words, bar.get_attribute("title"))


def test_tables_sort_by_number_both_ways_with_the_unknown_last(page: Page) -> None:
    page.locator("#filters button").click()
    page.wait_for_function("() => document.getElementById('count').value === '18 of 18 runs'")
    for downwards in (False, True):
        sort(page, "#run-table", "vs. reference %")
        *known, last = [text.replace("−", "-") for text in cells(page, "#run-table", "vs. reference %")]
        assert last == "", "the failed run has none"
        assert [float(text) for text in known] == sorted(map(float, known), reverse=downwards)
        way = page.locator("#run-table th[aria-sort]").get_attribute("aria-sort")
        assert way == ("descending" if downwards else "ascending")


def test_filters_choose_runs_for_table_and_charts(page: Page) -> None:
    def wait_for(runs: int, note: str) -> None:
        page.wait_for_function("(words) => document.getElementById('count').value === words", arg=f"{runs} of 18 runs")
        assert page.locator("#run-table tbody tr").count() == runs
        assert page.locator("#charts-note").inner_text().startswith(f"{note} with steps.")

    page.locator("#filters button").click()
    wait_for(18, "18 runs")
    choose(page, verdict="fail")
    wait_for(3, "3 runs")
    choose(page, verdict="", text="NODE009")
    wait_for(1, "1 run")
    choose(page, text="no such thing")
    wait_for(0, "0 runs")
    page.locator("#steps", has_text="No step is on record").wait_for()
    page.locator("#groups tbody tr", has_text="nemo:25.11.01").click()
    wait_for(11, "11 runs")  # all of the chosen configuration, whatever their software


def test_spikes_and_warm_up_do_not_flatten_the_rest(page: Page) -> None:
    choose(page, title=LARGE)

    def highest() -> float:
        """Of the labels of the vertical axis; the others are whole numbers."""
        texts = page.locator("#steps svg text").all_text_contents()
        return max(float(text) for text in texts if re.fullmatch(r"\d+\.\d+", text))

    page.wait_for_function("() => document.querySelector('#steps svg').textContent.includes('6.3')")
    assert highest() < 7
    assert page.locator("#steps .mark-symbol path").count() > 500, "beside the steps the marks of those beyond"
    page.locator("#whole-range").check()
    page.wait_for_function("() => document.querySelector('#steps svg').textContent.includes('20')")


def test_no_label_covers_another_whatever_is_chosen(browser: Browser, report_file: Path) -> None:
    """Scales, dates, changes, references: of several configurations and of one."""
    with shown(browser, report_file, width=WIDTHS[0]) as page:
        for width in WIDTHS:
            resize(page, width)
            for title in ("", LARGE, FAIL):
                choose(page, title=title)
                drawn(page)
                assert (width, title, hidden(page), overlaps(page)) == (width, title, [], [])


def luminance(color: str) -> float:
    channels = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


COLOR = """(name) => {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(${name})`;
    const color = getComputedStyle(probe).color;
    probe.remove();
    return color;
}"""


@pytest.mark.parametrize("theme", THEMES)
def test_both_themes_can_be_read(as_drawn: Page, theme: str) -> None:
    with themed(as_drawn, theme) as page:
        paper = page.evaluate(COLOR, "--paper")
        assert (luminance(paper) > 0.5) is (theme == "light")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        for name in ("--ink", "--quiet", "--pass", "--fail", "--open", "--link"):
            assert contrast(page.evaluate(COLOR, name), paper) >= 4.5, name  # WCAG 2, AA, text
        for number in range(1, 8):
            assert contrast(page.evaluate(COLOR, f"--s{number}"), paper) >= 3, number  # graphics


def test_the_theme_can_be_changed_and_charts_follow(page: Page) -> None:
    line: Callable[[], str] = lambda: page.evaluate(  # noqa: E731
        "getComputedStyle(document.querySelector('#steps .mark-line path')).stroke"
    )
    seen = {}
    for theme in ("auto", "light", "dark"):
        assert page.locator("#theme").inner_text() == f"Colors: {theme}"
        seen[theme] = line()
        page.locator("#theme").click()
    assert seen["auto"] == seen["light"] != seen["dark"]


def test_as_many_runs_as_a_page_may_have(browser: Browser, report: Report, tmp_path: Path) -> None:
    """The page stays usable: bounded in size, drawn with all runs chosen, and it says how many there are."""
    most = MOST_POINTS // MOST_RUNS
    runs = []
    for number in range(MOST_RUNS):
        run = report.runs[number % len(report.runs)]
        steps = msgspec.structs.replace(
            run.steps,
            total=5000,
            index=list(range(most)),
            **{name: [value] * most for name, value in (("seconds", 5.71234), ("loss", 8.12345))},
        )
        result = {**run.result, "run_id": f"{number:08x}"}
        runs.append(msgspec.structs.replace(run, name=result["run_id"], result=result, steps=steps))
    file = tmp_path / "many.html"
    counts = msgspec.structs.replace(report.counts, runs=10_000)
    left_out = {name: f"many {name}" for name in ("groups", "runs", "scaling", "history", "nodes")}
    more = msgspec.structs.replace(report, runs=tuple(runs), counts=counts, left_out=left_out)
    file.write_text(html_page(more), encoding="utf-8")
    assert file.stat().st_size < 3_000_000
    with shown(browser, file) as page:
        page.locator("#filters button").click()
        page.wait_for_function("() => document.getElementById('count').value.startsWith('300 of 300 runs')")
        assert page.locator("#run-table tbody tr").count() == MOST_RUNS
        assert "10000 runs" in page.locator("#facts").inner_text()
        for words in left_out.values():
            assert page.get_by_text(words, exact=True).is_visible()
        assert "not every step is drawn" in page.locator("#charts-note").inner_text()
        drawn(page)
        assert len(page.locator("#steps svg text", has_text=re.compile(r"^[0-9a-f]{8}")).all()) == 10, "the slowest"
        assert overlaps(page) == []
        sort(page, "#run-table", "run, job")
        assert cells(page, "#run-table", "run, job")[0].startswith("00000000")
        choose(page, title=LARGE)
        drawn(page)
        (history,) = [item for item in report.histories if item.title == LARGE]
        points = page.locator("#history svg .role-mark.mark-symbol path")
        assert points.count() >= len(history.moments), "runs that no table lists"
        choose(page, verdict="fail")
        page.locator("#history", has_text="No successful run").wait_for()


def test_runs_of_the_same_second_have_a_time_axis_that_can_be_read(browser, report, tmp_path):
    (history,) = [item for item in report.histories if item.title == LARGE]
    noon = 1_795_608_000.0
    moments = tuple(replace(item, started=noon + 0.2 * place) for place, item in enumerate(history.moments))
    close = msgspec.structs.replace(report, histories=(replace(history, moments=moments),))
    file = tmp_path / "close.html"
    file.write_text(html_page(close), encoding="utf-8")
    with shown(browser, file) as page:
        choose(page, title=LARGE)
        page.wait_for_selector("#history svg")
        labels = axis_labels(page, "history", "date (UTC)")
        assert labels
        assert [label for label in labels if not re.fullmatch(r"1[12]:\d\d:\d\d", label)] == [], "a time, not .950"


def test_a_sweep_has_a_table_and_a_chart_for_each_dimension(browser: Browser, tmp_path: Path) -> None:
    swept = {
        "MODEL_SIZE": "8b",
        "JOB_TOTAL_GPUS": "8",
        "GPU_TYPE": "h100",
        "DTYPE": "bf16",
        "LLMB_INSTALL": str(tmp_path),
    }
    timed = (("1", "Ring", 9000), ("1", "Tree", 9010), ("2", "Ring", 11000), ("4", "Ring", 14000))
    for tp, algorithm, milliseconds in timed:
        make_run(tmp_path, log=steady_log(milliseconds), variables=swept | {"TP": tp, "NCCL_ALGO": algorithm})
    make_run(tmp_path, state="NODE_FAIL", variables=swept | {"TP": "2", "NCCL_ALGO": "<b>Tree</b>"})
    place, file = Workspace(tmp_path), tmp_path / "report.html"
    file.write_text(html_page(build(selected_runs(place, (), {}), place)), encoding="utf-8")
    with shown(browser, file) as found:
        for width in (1440, 390):
            resize(found, width)
            assert cells(found, "#sweep-boards table", "place") == ["1=", "1=", "3", "4", "–"]
            assert cells(found, "#sweep-boards table", "NCCL_ALGO")[4] == "<b>Tree</b>"
            assert found.locator("#sweep-boards code").inner_text().endswith("--set tp=1 --env NCCL_ALGO=Ring")
            titles = found.locator("#sweep-boards figcaption").all_inner_texts()
            assert titles == ["tp"], "of two values the table says it"
            names = found.locator("#sweep-boards .chart svg").all()
            assert len(names) == 1
            assert "tp 1, NCCL_ALGO Ring" in found.locator("#answer").inner_text()
            assert hidden(found) == []


@pytest.mark.parametrize("slow", [None, 2.5])
def test_the_course_of_a_tuning_is_drawn(browser: Browser, report: Report, tmp_path: Path, slow: float | None) -> None:
    trial = {"full": False, "outcome": "timed", "hours": 0.1, "started": 1.0}
    seen = [("a", HOSTILE, 2.0), ("b", "base", 1.9), ("c", "mbs=2", slow), ("d", "mbs=4", 1.5)]
    trials = [{**trial, "run_id": run, "configuration": name, "step_seconds": seconds} for run, name, seconds in seen]
    winner = {"title": "mbs=4", "command": HOSTILE}
    about = {"conclusion": "mbs=4 wins", "found": True, "trials": trials, "winner": winner}
    file = tmp_path / "tuning.html"
    file.write_text(html_page(msgspec.structs.replace(report, tuning=about)), encoding="utf-8")
    with shown(browser, file) as page:
        assert HOSTILE in page.locator("#tuning").inner_text()
        marks = page.locator("#course svg .role-mark.mark-symbol path").all()
        another, base, winner = "var(--s3)", "var(--s1)", "var(--s2)"
        expected = [another, base, another, winner] if slow else [another, base, winner, "transparent"]
        assert [mark.get_attribute("fill") for mark in marks] == expected
        assert page.locator("#course svg .role-axis-title text").all_text_contents() == ["trial", "step time (s)"]


def test_a_fabric_is_drawn_with_what_is_slow_marked(browser: Browser, report: Report, tmp_path: Path) -> None:
    source = random.Random(1)
    fleets = (Simulated(hosts_of(66), REAL, {"n7": 0.05}), Simulated(hosts_of(2), REAL))
    fabrics = [fabric_part(Fabric(*measure(fleet, source))) for fleet in fleets]
    (group,) = fabrics[1].groups
    broken = msgspec.structs.replace(group, kind="no figure", busbw_gbps=None, why="a rank hung")
    fabrics[1] = msgspec.structs.replace(fabrics[1], groups=(group, broken), listed=2)
    file = tmp_path / "report.html"
    file.write_text(html_page(msgspec.structs.replace(report, fabrics=tuple(fabrics))), encoding="utf-8")
    with shown(browser, file, width=WIDTHS[0]) as page:
        assert page.locator("#contents a").all_inner_texts()[:2] == ["Fabric", "Verdicts"]
        assert len(page.locator("#fabric-groups-0 .mark-symbol path").all()) >= len(fabrics[0].groups)
        page.locator("#fabric summary").first.click()
        rows = page.locator("#fabric details").first.locator("tbody tr")
        assert len(rows.all()) == fabrics[0].listed
        assert fabrics[0].left_out in page.locator("#fabric details").first.inner_text()
        slow = [line.get_attribute("class") == "slow" for line in rows.all()]
        assert (slow[:4], sum(slow)) == ([True, True, True, False], 3)
        require_readable(page)
