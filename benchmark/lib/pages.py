"""Markdown pages whose tables and numbers a program makes, between and before HTML comments:

    <!-- table NAME -->
    | ... |
    <!-- end -->

    BEAR's Q is 4.3e8<!--NAME-->, UWAC's ...

All else is written by hand. There a number without a name is a setting: somebody chose it, and no
result changes it.
"""

import re
from collections import Counter
from itertools import zip_longest

BLOCK = re.compile(r"(<!-- table (.+?) -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
NUMBER = re.compile(r"(-?\d[\d,.]*(?:e\d+)?(?: ± [\d.]+)?)<!--([^ ].*?)-->")
PROGRAMS = r"```.*?```|`[^`]*`|\]\([^)]*\)|<[^>]*>"
CITED = r"\((?:figures?|tables?|\d\.\d|A\.\d)[^)]*\)"  # places in the paper
NOT_PROSE = re.compile(f"{BLOCK.pattern}|{NUMBER.pattern}|{PROGRAMS}|{CITED}", re.DOTALL)
SETTING = re.compile(r"(?<![\w.,])\d[\d,.]*(?:e-?\d+)?(?!\w)")


def markdown(rows: list[dict[str, str]]) -> str:
    """A table, of rows by column."""
    lines = [[*rows[0]], *(row.values() for row in rows)]
    head, *others = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *others])


def number_of(name: str, numbers: dict[str, str]) -> str:
    """TABLE / ROW / COLUMN may have a part of the column. Raises KeyError where there is none of
    the name, or several."""
    place, slash, part = name.rpartition(" / ")
    found = [key for key in numbers if slash and key.startswith(place + slash)]
    found = [name] if name in numbers else [key for key in found if part in key[len(place) :]]
    if len(found) != 1:
        raise KeyError(name)
    return numbers[found[0]]


def written(page: str, tables: dict[str, str], numbers: dict[str, str]) -> str:
    """The page with these tables and numbers. Raises KeyError where there is none of a name."""
    page = BLOCK.sub(lambda match: f"{match[1]}{tables[match[2]]}\n", page)
    return NUMBER.sub(lambda match: f"{number_of(match[2], numbers)}<!--{match[2]}-->", page)


def complaints(page: str, tables: dict[str, str], numbers: dict[str, str]) -> list[str]:
    """What is not as the tables give it, with its line. Raises KeyError as `written` does."""
    found = []
    line_of = lambda place: page.count("\n", 0, place) + 1
    for match in BLOCK.finditer(page):
        pairs = zip_longest(match[3].split("\n"), f"{tables[match[2]]}\n".split("\n"), fillvalue="")
        for line, (old, new) in enumerate(pairs, line_of(match.start(3))):
            if old != new:
                cells = zip_longest(old.split(" | "), new.split(" | "), fillvalue="")
                wrong = [f"{a!r} should be {b!r}" for a, b in cells if a != b]
                found.append(f"{line}: {', '.join(wrong)} (table {match[2]})")
    for match in NUMBER.finditer(page):
        if match[1] != (right := number_of(match[2], numbers)):
            found.append(f"{line_of(match.start())}: {match[1]} should be {right} ({match[2]})")
    return found


def unnamed(page: str, settings: dict[str, int]) -> list[str]:
    """Numbers of the prose that have no name, and stand there more or less often than `settings`
    say."""
    prose = NOT_PROSE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), page)
    lines: dict[str, list[int]] = {}
    for line, text in enumerate(prose.split("\n"), 1):
        for number in SETTING.findall(text):
            lines.setdefault(number.rstrip(",."), []).append(line)
    times = Counter({number: len(some) for number, some in lines.items()})
    wrong = [
        number for number in times | Counter(settings) if times[number] != settings.get(number, 0)
    ]
    return [
        f"{', '.join(map(str, lines.get(number, ['nowhere'])))}: {number} has no name: "
        f"{times[number]} times, as a setting {settings.get(number, 0)}"
        for number in wrong
    ]
