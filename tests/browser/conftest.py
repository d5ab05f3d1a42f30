"""A real Chromium, and reports to show in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from llmb_common.planning.workspace import Workspace
from llmb_run.reporting.forms import page
from llmb_run.reporting.report import Report, build
from llmb_run.results.selected import selected_runs
from support.report_site import make_site

_PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = next((found for name in _PROGRAMS if (found := shutil.which(name))), None)
    if program is None and os.environ.get("LLMB_TEST_BROWSER") == "required":
        pytest.fail("a browser is required here (LLMB_TEST_BROWSER=required), but there is no chromium-headless-shell")
    if program is None:
        pytest.skip("no browser: install Debian's chromium-headless-shell, or Chromium")
    with sync_playwright() as driver:
        # Root may not use Chromium's sandbox.
        running = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """On the runs of ``support.report_site``."""
    install = tmp_path_factory.mktemp("site")
    make_site(install)
    workspace = Workspace(install)
    return build(selected_runs(workspace, (), {}), workspace)


@pytest.fixture(scope="session")
def report_file(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(page(report), encoding="utf-8")
    return file
