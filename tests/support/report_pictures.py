"""The pictures of the report on the pages: ``python -m support.report_pictures`` writes them, with Chromium."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import sync_playwright

from llmb_common.planning.workspace import Workspace
from llmb_run.reporting.forms import page
from llmb_run.reporting.report import build
from llmb_run.results.selected import selected_runs
from support.customer_site import make_customer_site
from support.repository import REPOSITORY

THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        make_customer_site(Path(folder))
        workspace = Workspace(Path(folder))
        file = Path(folder) / "report.html"
        file.write_text(page(build(selected_runs(workspace, (), {}), workspace)), encoding="utf-8")
        program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for theme in THEMES:
            shown = browser.new_page(
                viewport={"width": 1400, "height": 620}, color_scheme=theme, device_scale_factor=0.6
            )
            shown.goto(file.as_uri())
            shown.wait_for_timeout(1000)  # charts are drawn
            shown.screenshot(path=REPOSITORY / "docs" / "images" / f"report-{theme}.png")
        browser.close()
