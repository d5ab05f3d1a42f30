"""The report as JUnit XML, which continuous-integration servers show: a case for each configuration on one software.

*pass* passes and *fail* is a failure. *Inconclusive* and the like are skipped, with the reason: neither green nor red
would be true. A run that did not succeed is a case of its own, an error. An acceptance campaign is the first case: it
passes, fails, or is skipped because it was not judged.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any
from xml.etree import ElementTree

from llmb_common.command.printable import counted, printable
from llmb_run.reporting.report import Report, ReportRun


def junit(report: Report) -> str:
    """The report as JUnit XML: one suite, with a case for each verdict and each run that did not succeed."""
    suite = ElementTree.Element("testsuite", name=_text(report.title))
    cases = [_campaign(suite, report.campaign)] if report.campaign else []
    cases += [_group(suite, group) for group in report.groups if group["run_ids"] or group["verdict"]]
    cases += [_broken(suite, run) for run in report.runs if run.result["status"] != "Success"]
    counts = {
        "tests": len(cases),
        "failures": cases.count("failure"),
        "errors": cases.count("error"),
        "skipped": cases.count("skipped"),
    }
    for name, count in counts.items():
        suite.set(name, str(count))
    suite.set("time", "0")
    suite.set("timestamp", datetime.fromtimestamp(report.made, timezone.utc).isoformat(timespec="seconds")[:19])
    ElementTree.indent(suite)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}\n'


def _campaign(suite: ElementTree.Element, found: dict[str, Any]) -> str:
    case = _case(suite, f"acceptance {found['suite']}", "acceptance")
    text = _text(f"{found['headline']}: {found['why']}")
    kind = {"accepted": "pass", "not accepted": "failure"}.get(found["outcome"], "skipped")
    if kind != "pass":
        ElementTree.SubElement(case, kind, message=text)
    ElementTree.SubElement(case, "system-out").text = text
    return kind


def _group(suite: ElementTree.Element, group: dict[str, Any]) -> str:
    verdict, text = group["verdict"], _text(group["verdict_text"] or "no figures")
    case = _case(suite, group["title"], group["software"])
    kind = {"pass": "pass", "fail": "failure"}.get(verdict, "skipped")
    if kind != "pass":
        ElementTree.SubElement(case, kind, message=text)
    # Also of what passes: by how much, and against what.
    ElementTree.SubElement(case, "system-out").text = "\n".join([text, *_held_against(group)])
    return kind


def _held_against(group: dict[str, Any]) -> list[str]:
    known = group["reference"]
    if known is None or group["step_seconds"] is None:
        return []
    count = counted(len(group["run_ids"]), "run")
    reference = f"{known['seconds']:g} s ({known['source']}; {known['software']})"
    held = f"{group['step_seconds']:.3f} s a steady step, mean of {count}; reference {_text(reference)}"
    return [held, *(_text(note) for note in known["notes"])]


def _broken(suite: ElementTree.Element, run: ReportRun) -> str:
    found = run.result
    case = _case(suite, found["name"], run.software or "unknown software")
    running = found["status"] == "Running"
    kind = "skipped" if running else "error"
    ElementTree.SubElement(
        case,
        kind,
        message=_text(f"{found['status']}: {'; '.join(filter(None, (found['message'], found['cause_text'])))}"),
    )
    return kind


def _case(suite: ElementTree.Element, name: str, software: str) -> ElementTree.Element:
    # Servers split the class's name at dots.
    place = f"llmb.{_text(software).replace('.', '_')}"
    return ElementTree.SubElement(suite, "testcase", name=_text(name), classname=place, time="0")


def _text(value: str) -> str:
    """``value`` without the characters that XML does not have."""
    return printable(value)
