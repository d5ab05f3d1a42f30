"""What a browser has laid out: whether all of it can be seen and read. ``layout.js`` looks."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

WIDTHS = (1400, 768, 390)

_LOOKS = Path(__file__).with_name("layout.js").read_text(encoding="utf-8")


def hidden(page: Page) -> list[str]:
    """What lies beyond the right edge, of the page or of a table's box."""
    return _look(page, "hidden")


def overlaps(page: Page) -> list[str]:
    """Texts over each other, in the charts and in the rest, and labels beyond their chart."""
    return _look(page, "overlaps")


def pale(page: Page) -> list[str]:
    """Visible texts with less contrast than WCAG 2 asks for (AA, 4.5), with what lies behind them."""
    return _look(page, "pale")


def _look(page: Page, name: str) -> list[str]:
    return list(page.evaluate(f"{_LOOKS}.{name}()"))
