"""The drawings of ``docs/images/``, as SVG: small, and readable on light and dark pages alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

_BLUE, _ORANGE, _GREY, _GREEN = "#0072B2", "#D55E00", "#666666", "#009E73"
"""Okabe and Ito's colors, as in the report."""

_VERDICTS = (
    ("pass", _GREEN, -1.5, 3.2),
    ("inconclusive", _GREY, 2.0, 7.6),
    ("fail", _ORANGE, 6.4, 11.0),
)
"""What is decided, and the interval of the difference from the reference in percent."""

_SWEEP = (
    ("tp=2", "1=", 98.9, 101.1),
    ("tp=1", "1=", 99.6, 102.0),
    ("tp=4", "3", 106.0, 108.6),
    ("tp=8", "4", 117.5, 120.1),
)
"""Configuration, place, and the interval of its step time in percent of the fastest's."""

_STAGES = (
    ("request", "launch.sh, llmb-run"),
    ("plan", "fits? divides?"),
    ("script", "batch script, job.json"),
    ("run", "Slurm, or this machine"),
    ("record", "logs, nodes, states"),
    ("verdict", "against a reference"),
    ("report", "table, CSV, JSON, HTML"),
)


def verdict() -> Iterator[str]:
    """How an interval, the reference and the limit make a verdict."""

    def x(percent: float) -> float:
        return 250 + 30 * percent

    yield from _head(
        640,
        190,
        "Three verdicts",
        "An interval within the limit passes, one beyond it fails, one across it is inconclusive.",
    )
    for percent, name in ((0, "reference"), (5, "limit: 5 % slower")):
        yield _line(x(percent), 34, x(percent), 158, _BLUE if percent == 0 else _ORANGE, dashed=percent != 0)
        yield _text(x(percent), 26, name, "middle")
    for row, (name, color, low, high) in enumerate(_VERDICTS):
        y = 62 + 36 * row
        yield _text(30, y + 5, name, "start", bold=True, color=color)
        yield _line(x(low), y, x(high), y, color, width=5)
        yield f'<circle cx="{x((low + high) / 2):g}" cy="{y}" r="6" fill="{color}"/>'
    yield _text(x(-2), 180, "faster", "end", color=_GREY)
    yield _text(x(12), 180, "slower", "end", color=_GREY)
    yield "</svg>"


def sweep() -> Iterator[str]:
    """How the intervals of a sweep's configurations make places."""

    def x(percent: float) -> float:
        return 150 + 18 * (percent - 98)

    yield from _head(
        640,
        214,
        "Places in a sweep",
        "Configurations by step time. Two that cannot be told apart share the first place; one ran out of memory.",
    )
    _, _, low, high = _SWEEP[0]
    yield f'<rect x="{x(low):g}" y="34" width="{x(high) - x(low):g}" height="138" fill="#EAF3F9"/>'
    for row, (name, place, low, high) in enumerate(_SWEEP):
        y, color = 52 + 30 * row, _GREEN if place == "1=" else _BLUE
        yield _text(40, y + 5, place, "end", bold=True, color=color)
        yield _text(64, y + 5, name, "start")
        yield _line(x(low), y, x(high), y, color, width=5)
        yield f'<circle cx="{x((low + high) / 2):g}" cy="{y}" r="6" fill="{color}"/>'
    yield _text(40, 177, "-", "end", bold=True, color=_ORANGE)
    yield _text(64, 177, "mbs=4", "start")
    yield _text(150, 177, "GPU out of memory", "start", color=_ORANGE)
    yield _text(40, 24, "place", "end", size=12, color=_GREY)
    yield _text(150, 24, "faster", "start", size=12, color=_GREY)
    yield _text(600, 24, "slower", "end", size=12, color=_GREY)
    yield _text(150, 204, "shaded: the fastest's interval", "start", size=12, color=_GREY)
    yield "</svg>"


def flow() -> Iterator[str]:
    """From a request to a report: one column, so that a telephone shows its words in full size."""
    yield from _head(
        352,
        24 + 50 * len(_STAGES),
        "From request to report",
        "A request becomes a plan, a script, a run, a record, a verdict and a report.",
    )
    for number, (name, detail) in enumerate(_STAGES):
        top = 16 + 50 * number
        yield f'<rect x="12" y="{top}" width="328" height="36" rx="8" fill="#EAF3F9" stroke="{_BLUE}"/>'
        yield _text(28, top + 23, name, "start", bold=True)
        yield _text(112, top + 23, detail, "start", size=13, color=_GREY)
        if number:
            yield f'<path d="M47 {top - 11} l5 8 l5 -8 z" fill="{_BLUE}"/>'
    yield "</svg>"


def _head(width: int, height: int, title: str, told: str) -> Iterable[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        'font-family="Helvetica, Arial, sans-serif">'
    )
    yield f"<title>{escape(title)}</title><desc>{escape(told)}</desc>"
    yield f'<rect width="{width}" height="{height}" rx="10" fill="#FFFFFF"/>'


def _line(x1: float, y1: float, x2: float, y2: float, color: str, *, width: int = 2, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="6 4"' if dashed else ""
    return f'<line x1="{x1:g}" y1="{y1}" x2="{x2:g}" y2="{y2}" stroke="{color}" stroke-width="{width}"{dash}/>'


def _text(
    x: float, y: float, words: str, anchor: str, *, bold: bool = False, size: int = 14, color: str = "#222222"
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    style = f'text-anchor="{anchor}" font-size="{size}"{weight} fill="{color}"'
    return f'<text x="{x:g}" y="{y}" {style}>{escape(words)}</text>'
