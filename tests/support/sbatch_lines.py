"""``#SBATCH`` lines as sbatch reads them (22.05, ``_get_argument`` in its opt.c); tests/cluster holds it to that."""

from __future__ import annotations


def words_of(line: str) -> list[str]:
    """The words of a line after ``#SBATCH``: both kinds of quotes, backslashes everywhere, comments after ``#``."""
    words: list[str] = []
    word, quoted, escaped, inside = "", "", False, False
    for c in line:
        if c in " \t\n\v\f\r" and not quoted:  # even after a backslash
            words += [word] if inside else []
            word, inside, escaped = "", False, False
        elif escaped:
            word, escaped = word + c, False
        elif c == "\\":
            escaped, inside = True, True
        elif quoted:
            word, quoted = (word, "") if c == quoted else (word + c, quoted)
        elif c in "\"'":
            quoted, inside = c, True
        elif c == "#":
            break
        else:
            word, inside = word + c, True
    return words + ([word] if inside else [])


def options_of(script: str) -> dict[str, str | None]:
    """Every option in the head of a script, by its long name; the last one wins."""
    found: dict[str, str | None] = {}
    for line in script.split("\n"):
        if line.startswith("#SBATCH"):
            for word in words_of(line.removeprefix("#SBATCH")):
                name, equals, value = word.partition("=")
                found[name.removeprefix("--")] = value if equals else None
        elif not line.startswith("#"):
            break
    return found


def file_of(pattern: str, **values: str) -> str:
    """The file that ``--output=PATTERN`` means, with ``values`` of its letters (``a="3"``); a backslash switches that
    off."""
    if "\\" in pattern:
        return pattern.replace("\\", "")
    result, rest = "", pattern
    while rest:
        if rest[0] != "%":
            result, rest = result + rest[0], rest[1:]
        elif rest[1:2] == "%":
            result, rest = result + "%", rest[2:]
        else:
            result, rest = result + values[rest[1:2]], rest[2:]
    return result
