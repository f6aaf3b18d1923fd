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
from collections.abc import Callable
from itertools import zip_longest

BLOCK = re.compile(r"(<!-- table (.+?) -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
NUMBER = re.compile(r"(-?\d[\d,.]*(?:e\d+)?(?: ± [\d.]+)?)<!--([^ ].*?)-->", re.DOTALL)
PROGRAMS = r"<details>.*?</details>|```.*?```|`[^`]*`|\]\([^)]*\)|<[^>]*>"
NOT_PROSE = re.compile(f"{BLOCK.pattern}|{NUMBER.pattern}|{PROGRAMS}", re.DOTALL)
SETTING = re.compile(r"(?<!\w)(?<!\d[.,])\d[\d,.]*(?:e-?\d+)?(?!\w)")

Number = Callable[[str, str], str]  # by name, and how it is written


def markdown(rows: list[dict[str, str]]) -> str:
    """A table, of rows by column."""
    lines = [[*rows[0]], *(row.values() for row in rows)]
    head, *others = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *others])


def find(name: str, texts: dict[str, str]) -> str:
    """A text by its name, of which the last part, after a " / ", may be shorter. Raises ValueError
    where there is none, or where there are several."""
    place, slash, part = name.rpartition(" / ")
    found = [key for key in texts if slash and key.startswith(place + slash)]
    found = [name] if name in texts else [key for key in found if part in key[len(place) :]]
    if len(found) != 1:
        raise ValueError(f"{name}: {len(found)} tables or numbers have this name")
    return texts[found[0]]


def names(page: str) -> list[tuple[str, str]]:
    """Of its numbers, with how each is written; a name may go over two lines."""
    return [(" ".join(match[2].split()), match[1]) for match in NUMBER.finditer(page)]


def written(page: str, tables: dict[str, str], number: Number) -> str:
    """The page with these tables and numbers. Raises ValueError where there is none of a name."""
    right = [number(*name) for name in names(page)]
    page = NUMBER.sub(lambda match: f"{right.pop(0)}<!--{match[2]}-->", page)
    return BLOCK.sub(lambda match: f"{match[1]}{find(match[2], tables)}\n", page)


def complaints(page: str, tables: dict[str, str], number: Number) -> list[str]:
    """What is not as the tables give it, with its line. Raises ValueError as `written` does."""
    found = []
    line_of = lambda place: page.count("\n", 0, place) + 1
    for match in BLOCK.finditer(page):
        right = f"{find(match[2], tables)}\n".split("\n")
        pairs = zip_longest(match[3].split("\n"), right, fillvalue="")
        for line, (old, new) in enumerate(pairs, line_of(match.start(3))):
            cells = zip_longest(old.split(" | "), new.split(" | "), fillvalue="")
            wrong = [f"{a!r} should be {b!r}" for a, b in cells if a != b]
            found += [f"{line}: {', '.join(wrong)} (table {match[2]})"] * bool(wrong)
    for match, name in zip(NUMBER.finditer(page), names(page)):
        if match[1] != (right := number(*name)):
            found.append(f"{line_of(match.start())}: {match[1]} should be {right} ({name[0]})")
    return found


def unnamed(page: str, settings: list[str]) -> list[str]:
    """Numbers of the prose that have no name, and stand there more or less often than in
    `settings`, with their lines."""
    prose = NOT_PROSE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), page)
    lines: dict[str, list[int]] = {number: [] for number in settings}
    for line, text in enumerate(prose.split("\n"), 1):
        for number in SETTING.findall(text):
            lines.setdefault(number.rstrip(",."), []).append(line)
    times = Counter(settings)
    return [
        f"{', '.join(map(str, at)) or 'nowhere'}: {number} has no name, "
        f"and is {times[number]} times a setting"
        for number, at in lines.items()
        if len(at) != times[number]
    ]
