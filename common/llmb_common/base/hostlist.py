"""Slurm's host lists: expand ``rack[1-2]n[01-12]-ib,login`` to names, and compress names again.

Numbers are zero-padded like the first number of the range (``n[09-10]``: n09, n10; ``n[9-10]``: n9, n10). Several
brackets in a name form a product in which the last one varies fastest.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable

from llmb_common.base.errors import RequestError

_MOST = 100_000
_TOKEN = re.compile(r"[^\[\],\s]+|\[[0-9,-]*\]")


def expand(text: str) -> list[str]:
    """Return the host names in Slurm's host list ``text``: n01 and n02 of ``n[01-02]``.

    In the order of the text and without duplicates. Commas separate names; blanks may stand around them only. A name
    can have several brackets, of which the last varies fastest. Empty for what Slurm writes where there are no hosts:
    ``(null)``, ``None``, ``None assigned``, ``N/A`` or blanks.

    Raises:
        RequestError: part of ``text`` is not a host list (the message shows that part), as where a range runs backward;
            or it has over 100,000 hosts
    """
    if text.strip() in ("", "(null)", "None", "None assigned", "N/A"):
        return []
    names: dict[str, None] = {}
    # Commas within brackets separate numbers, not names.
    for part in re.split(r",(?![^\[]*\])", text):
        part = part.strip()
        tokens = _TOKEN.findall(part)
        if not part or "".join(tokens) != part:
            raise _hostlist_error(text, part)
        choices = [_bracket_numbers(text, token) if token.startswith("[") else [token] for token in tokens]
        # Counted before they are made: a few brackets can stand for billions.
        if len(names) + math.prod(map(len, choices)) > _MOST:
            raise RequestError(f"the host list {text[:80]!r} has more than {_MOST} hosts", remedy="shorten it")
        names.update(dict.fromkeys(map("".join, itertools.product(*choices))))
    return list(names)


def expand_known(text: str) -> list[str]:
    """Return the host names in a host list that a scheduler or a record has given, as ``expand`` does.

    In the order of the text, each once. Empty where it is damaged, or there are no hosts; never raises.
    """
    try:
        return expand(text)
    except RequestError:
        return []


def compress(names: Iterable[str]) -> str:
    """Return host names as one host list in Slurm's form: ``n[01-03,07]`` of n01, n02, n03 and n07.

    Without duplicates, with ranges over the last number in each name; n1 and n01 stay two hosts. Names without
    a number come first, then the others by what stands around the number, and by the number. An empty text of no names.
    """
    found: dict[tuple[str, str], set[str]] = {}
    plain: set[str] = set()
    for name in names:
        # Split at the last number: "a1b2-ib" -> "a1b", "2", "-ib".
        parts_of = re.fullmatch(r"(.*?)([0-9]{1,18})([^0-9]*)", name, re.ASCII | re.DOTALL)
        if parts_of is None:
            plain.add(name)
        else:
            found.setdefault((parts_of[1], parts_of[3]), set()).add(parts_of[2])
    groups: dict[tuple[str, str, int], list[int]] = {}
    for (head, tail), digits in found.items():
        # Leading zeros fix the width, also for neighbours (09 with 10); without any, 9 and 10 share a range.
        padded = {len(number) for number in digits if len(number) > 1 and number.startswith("0")}
        for number in digits:
            width = len(number) if len(number) in padded else 0
            groups.setdefault((head, tail, width), []).append(int(number))
    parts = sorted(plain)
    for (head, tail, width), numbers in sorted(groups.items()):
        ranges = list(_range_texts(sorted(numbers), width))
        single = len(ranges) == 1 and "-" not in ranges[0]
        middle = ranges[0] if single else f"[{','.join(ranges)}]"
        parts.append(f"{head}{middle}{tail}")
    return ",".join(parts)


def _bracket_numbers(text: str, token: str) -> list[str]:
    """Return the numbers that ``token``, one bracket of a host list, stands for: 08, 09 and 10 of ``[08-10]``.

    As text, with the leading zeros of the range's first number. ``text`` is the whole host list, for the error's
    message.

    Raises:
        RequestError: an item is no number or range, or a range runs backward or is longer than 100,000
    """
    numbers: list[str] = []
    for item in token[1:-1].split(","):
        found = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", item)
        if found is None:
            raise _hostlist_error(text, token)
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first) or int(last) - int(first) > _MOST:
            raise _hostlist_error(text, token)
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def _range_texts(numbers: list[int], width: int) -> Iterable[str]:
    """Yield sorted numbers, each once, as a host list writes them: ``1-3`` for consecutive ones, else ``7``.

    Each is padded with zeros to ``width`` digits; 0 means no padding.
    """
    start = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            first = str(numbers[start]).zfill(width)
            last = str(numbers[end - 1]).zfill(width)
            yield first if first == last else f"{first}-{last}"
            start = end


def _hostlist_error(text: str, part: str) -> RequestError:
    """Return, without raising it, the error that says that ``part`` of ``text`` is not a host list."""
    shown = f"{part[:80]!r} in {text[:80]!r}" if part != text else f"{part[:80]!r}"
    return RequestError(f"{shown} is not a host list", remedy="for example node[01-12,20],login1")
