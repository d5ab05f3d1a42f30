"""The page that is sent to a customer, with long names, a slow node, more runs than colors: all of it can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from layout import WIDTHS, hidden, overlaps, pale
from playwright.sync_api import Browser, Page
from test_report_page import THEMES, cells, choose, drawn, resize, shown, themed

from llmb_common.planning.workspace import Workspace
from llmb_run.reporting.forms import page as html_page
from llmb_run.reporting.report import Report, build
from llmb_run.results.selected import selected_runs
from support.customer_site import OPERATOR, REPEATED, SLOW, make_customer_site
from support.report_site import HOSTILE

LONG = "Acceptance_of_the_extension_of_" + "W" * 120


@pytest.fixture(scope="module")
def customer_report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    install = tmp_path_factory.mktemp("customer")
    make_customer_site(install)
    workspace = Workspace(install)
    return build(selected_runs(workspace, (), {}), workspace, f"{LONG} {HOSTILE}")


@pytest.fixture(scope="module")
def file(customer_report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, with a verdict that has much to say."""
    said = "fast, but not training: " + "the loss rises from 5.1 to 54, stalls cost 180 %; " * 8
    groups = tuple(
        {**group, "verdict": "not training", "verdict_text": said, "difference": -0.0004}
        for group in customer_report.groups[:1]
    )
    report = msgspec.structs.replace(customer_report, groups=groups + customer_report.groups[1:])
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html_page(report), encoding="utf-8")
    return path


def repeated_configuration(browser: Browser, file: Path) -> Iterator[Page]:
    with shown(browser, file) as found:
        choose(found, title=REPEATED)
        found.wait_for_function("() => document.getElementById('count').value.startsWith('14 of')")
        found.wait_for_function("() => document.querySelector('#steps svg').textContent.includes('▲')")
        yield found


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    yield from repeated_configuration(browser, file)


@pytest.fixture(scope="module")
def as_drawn(browser: Browser, file: Path) -> Iterator[Page]:
    """For tests that only look: nothing is clicked, chosen or changed."""
    yield from repeated_configuration(browser, file)


def test_the_head_says_what_where_when_who_and_what_follows(as_drawn: Page) -> None:
    page = as_drawn
    head = page.locator("header").inner_text()
    for text in ("Frankfurt 2", "24 nodes with 8 x NVIDIA H100 80GB HBM3", "nemo:26.02.01; driver 580", OPERATOR):
        assert text in head, text
    assert re.search(r"2026-09-\d\d to 2026-09-\d\d", head)
    assert page.locator("#word").inner_text() == "OPEN"
    assert SLOW.partition(".")[0] in page.locator("#todo p").first.inner_text()
    assert page.locator("#todo code").inner_text().startswith(f"llmb-run exclude add {SLOW} ")
    measured, reference = re.findall(r"\d+\.\d+ s", page.locator("#figure").inner_text())
    assert float(measured.split()[0]) > float(reference.split()[0])


def end_of_the_answer(page: Page) -> float:
    """Where the answer ends, in pixels from the top, below a title that has spaces."""
    title = page.locator("#title")
    own = title.inner_text()
    title.evaluate("(one) => { one.textContent = 'Report'; }")
    answer = page.locator("#answer").bounding_box()
    title.evaluate("(one, text) => { one.textContent = text; }", own)
    assert answer
    return answer["y"] + answer["height"]


@pytest.mark.parametrize("width", WIDTHS)
def test_at_every_width_all_of_it_can_be_read(browser: Browser, file: Path, width: int) -> None:
    """And the first screen has the whole answer."""
    with shown(browser, file, width=width) as page:
        assert end_of_the_answer(page) < 900
        for title in ("", REPEATED):
            choose(page, title=title)
            drawn(page)
            for run in page.locator("#evidence details").all()[:3]:
                run.evaluate("(one) => { one.open = true; }")
            assert hidden(page) == []
            assert overlaps(page) == []
            for theme in THEMES:
                with themed(page, theme):
                    assert (theme, pale(page)) == (theme, [])


def test_nothing_has_no_sign_of_less(as_drawn: Page) -> None:
    text = as_drawn.locator("#groups").inner_text()
    assert "+0.0" in text
    assert "\u22120.0" not in text


def test_a_window_made_narrower_draws_the_charts_again(page: Page) -> None:
    resize(page, 390)
    chart = page.locator("#steps svg").bounding_box()
    assert chart
    assert chart["width"] < 390
    label = page.locator("#steps svg text", has_text="iteration").bounding_box()
    assert label
    assert label["height"] > 9, "drawn for this width, not shrunk to it"
    assert hidden(page) == []
    assert overlaps(page) == []


def test_fourteen_lines_differ_without_color_alone(as_drawn: Page) -> None:
    """Each has its label, and a pair of color and dash that no other has."""
    page = as_drawn
    style = "(path) => `${getComputedStyle(path).stroke} ${path.getAttribute('stroke-dasharray')}`"
    lines = page.evaluate(f"[...document.querySelectorAll('#steps .mark-line path')].map({style})")
    assert len(lines) == len(set(lines)) == 14
    assert len({line.rpartition(")")[2] for line in lines}) == 7, "dashes"
    for chart in ("steps", "loss"):
        labels = page.locator(f"#{chart} svg text").all_text_contents()
        for run in cells(page, "#run-table", "run, job"):
            assert any(label.startswith(run[:8]) for label in labels), (chart, run)


def test_the_slow_node_comes_first_and_is_marked(page: Page) -> None:
    first, *others = cells(page, "#node-table", "node")
    assert first.split() == [SLOW, "▲", "slow"]
    assert not any("▲" in other for other in others)
    assert re.fullmatch(r"\+8\.\d", cells(page, "#node-table", "slower than without it %")[0])
    assert cells(page, "#node-table", "runs with problems")[:2] == ["5", "0"], "of runs that had both"
    page.locator("#node-table summary").first.click()
    assert f"clocks held down: {SLOW} GPU 3" in page.locator("#node-table li").first.inner_text()
    marked = [run[:8] for run in cells(page, "#run-table", "run, job") if "▲" in run]
    labels = page.locator("#steps svg text").all_text_contents()
    assert len(marked) == 7
    assert {label[:8] for label in labels if "▲" in label} == set(marked)


def test_each_figure_leads_to_its_evidence(page: Page) -> None:
    targets = page.evaluate("[...document.querySelectorAll('a')].map((link) => link.getAttribute('href'))")
    assert {target[0] for target in targets} == {"#"}, "nothing leads out of the page"
    missing = page.evaluate(
        "(all) => all.filter((one) => !document.getElementById(one.slice(1)))", sorted(set(targets))
    )
    assert missing == []
    for table, columns in (
        ("#groups", ("runs", "steady step s", "spread %", "reference s", "vs. reference %", "passes up to %")),
        ("#run-table", ("step s", "steady step s", "vs. reference %", "tokens/s", "TFLOPS/GPU", "MFU %")),
    ):
        for column in columns:
            figures = [text for text in cells(page, table, column) if text.strip()]
            heads = [head.replace("\n", " ") for head in page.locator(f"{table} th").all_inner_texts()]
            links = page.locator(f"{table} tbody td:nth-child({heads.index(column) + 1}) a")
            assert links.count() == len(figures) > 0, (table, column)
    row = page.locator("#run-table tbody tr", has_text="failed").first
    run = row.locator("a").first.inner_text()
    row.locator("a").first.click()
    evidence = page.locator(f"#run-{run}[open]")
    evidence.get_by_text("run.json", exact=True).wait_for()
    assert re.search(r"log-\S+\.out", evidence.inner_text())
    evidence.get_by_role("link", name=SLOW).click()
    assert page.evaluate("document.querySelector(':target td').textContent").startswith(SLOW)


def test_a_click_on_a_step_leads_to_its_run(page: Page) -> None:
    page.locator("#steps .mark-symbol path").nth(200).click(force=True)
    page.wait_for_function("() => location.hash.startsWith('#run-')")
    page.locator("details:target[open]").wait_for()


def test_the_page_works_without_a_mouse(page: Page) -> None:
    page.locator("#groups tbody button", has_text="llama3.1 8b").focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.getElementById('count').value === '4 of 18 runs'")
    link = page.locator("#run-table tbody a:not([tabindex])").first
    link.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('details:target')?.open")


def test_programs_that_read_the_page_aloud_know_their_way(as_drawn: Page) -> None:
    page = as_drawn
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map((one) => Number(one.localName[1]))")
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(later - sooner <= 1 for sooner, later in pairwise(levels))
    assert page.locator("table:not([aria-label])").count() == 0
    assert page.locator("thead th:not([scope=col])").count() == 0
    assert page.locator("tbody tr:not(:has([role=rowheader]))").count() == 0
    for chart in page.locator(".chart:has(svg)").all():
        assert chart.get_attribute("role") == "img"
        assert chart.get_attribute("aria-label")
    assert page.locator("#filters :is(select, input):not(label *)").count() == 0


def test_a_printer_gets_all_of_it_in_ink(browser: Browser, file: Path) -> None:
    with shown(browser, file, "dark") as page:
        page.emulate_media(media="print")
        assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)", "not on black"
        assert not page.locator("#filters").is_visible()
        page.set_viewport_size({"width": 1032, "height": 700})  # A4 across, less its margins
        assert page.locator("details:not([open])").count() == 0, "what is folded on a screen is printed"
        assert page.locator("#evidence dt", has_text="record").count() == 18
        assert hidden(page) == []
        assert overlaps(page) == []
        assert pale(page) == []
