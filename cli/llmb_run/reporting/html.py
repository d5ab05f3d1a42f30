"""The report as one HTML page that asks no network for anything: data, style and scripts are in it.

``page/`` holds what a browser runs. The data is JSON in an element that browsers do not execute; the page's scripts put
every value into the document as text, and its content security policy runs no other script and loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files

import msgspec

from llmb_run.reporting.charts_library import charts_library
from llmb_run.reporting.report import Report

_SCRIPTS = (
    *("dom.js", "theme.js", "sorting.js", "head.js", "acceptance.js", "verdicts.js", "filters.js", "charts.js"),
    *("tuning.js", "steps.js", "history.js", "sweep.js", "scaling.js", "runs.js", "evidence.js", "page.js"),
)
"""In the order in which they run."""


def page(report: Report) -> str:
    """The report as one HTML page, complete with data, styles and scripts.

    Raises:
        EnvironmentLacks: the script that draws the charts is not installed
    """
    # In a function of their own: the library, minified, has taken most short names of the page.
    own = "\n".join(_resource(name) for name in _SCRIPTS)
    scripts = [charts_library(), f"(() => {{\n{own}\n}})();"]
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    parts = {
        "title": html.escape(report.title),
        "policy": html.escape(policy),
        "style": _resource("page.css"),
        "data": _embedded(report),
        "library": scripts[0],
        "script": scripts[1],
    }
    text = _resource("page.html")
    for name, part in parts.items():
        before, _, after = text.partition(f"<!--{name}-->")
        text = before + part + after
    return text


def _embedded(report: Report) -> str:
    """JSON in which nothing can end the element that holds it, and no character may surprise an editor or a browser."""
    plain = json.dumps(msgspec.to_builtins(report), allow_nan=False, separators=(",", ":"))
    return plain.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _resource(name: str) -> str:
    return (files("llmb_run.reporting") / "page" / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
