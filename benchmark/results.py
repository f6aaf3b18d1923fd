"""Our pages and pictures, made of the tables in results/.

    python benchmark/results.py                  # writes them
    python benchmark/results.py --check          # says which are not what the tables give
    python benchmark/results.py add runs/RUN     # first takes what programs left into the tables

templates/PAGE.j2 makes PAGE: Markdown with Jinja2's {{ }}, and all of its prose. In it stand
    get("target_q", "forks", "UWAC", at=92_500)    a metric of each agent of a study's method, as a
                pandas Series: after `at` updates, its mean from `start` to `end`, its highest `by`
                so many, or wherever it was measured. A metric is a column of history.csv,
                diagnoses.csv or returns.csv, share (q_share in %), or a policy's score: sample,
                best (of 100), vae. Studies are results/studies.toml's, methods have their names in
                methods.py, several are in a list, and where="beta == 0.8" picks runs. Nothing
                found is an error, unless empty=True.
    x | n, n(2), q, short, fraction, small, excess, pm     how a number is printed, see stats.py;
                pm is a mean ± its standard error, of a series
    x | by_seed         the mean over the runs of each seed, so that one that ran twice counts once
    past_bound(q), past_bound(q, 100)       how many of get's Q are above so many times their bound
    cell(get(...)), gap(get(...), get(...))     a mean, or a difference, with its 95% interval and n
    data("door-human", "bound"), paper_score("UWAC", "pen-expert"), bc("door-human"),
    lunarlander(...), times(...), commands("forks")     of returns.csv, paper/, bc.csv and so on,
                and the lines that make a study again; `t` has all tables
    {% do check(x < 1) %}       fails where the tables no longer say what the words do
    paper("0.845"), setting("0.01"), worked("1.5 β = 2.4")      numbers of the paper, such as
                somebody chose, and arithmetic that the text itself does

Results are never typed: a decimal or a power of ten outside of {{ }}, {% %}, code and links is an
error, unless it is a section ("§5.3") or a version ("2.8.1"). Words that rest on numbers stand
beside a check.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # which `python benchmark/results.py` leaves out

import functools
import re
import tempfile
import traceback
from dataclasses import dataclass
from itertools import zip_longest
from types import SimpleNamespace
from typing import Literal

import jinja2
import numpy as np
import pandas as pd
import tyro
from matplotlib.testing.compare import compare_images
from matplotlib.testing.exceptions import ImageComparisonFailure

from benchmark import drawings, figures, stats, store
from benchmark.files import errors_in_one_line, write

TEMPLATES = ROOT / "benchmark" / "templates"
NOT_PROSE = re.compile(
    r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}|```.*?```|`[^`]*`|\]\([^)]*\)|<[^>]*>|§[\d.]+\d|\d+(\.\d+){2,}",
    re.DOTALL,
)
TYPED = re.compile(r"\d[\d,]*\.\d+(?:e-?\d+)?|\d+e-?\d+|10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+")
TOLERANCE = 1  # of pictures: root mean square of 256 levels, which other fonts do not reach


class Words:
    """What templates may say of the tables."""

    def __init__(self, t: SimpleNamespace):
        self.t = t
        self.runs = functools.cache(self.runs)  # pandas takes its time to read a query
        self.rows = functools.cache(self.rows)

    def runs(self, study: str | None) -> list[str]:
        """Names of a study's runs, or of all runs. Raises ValueError."""
        if study is None:
            return self.t.runs["run"].to_list()
        if study not in self.t.studies:
            raise ValueError(f"{study}: no study; there are {', '.join(self.t.studies)}")
        return self.t.runs.query(self.t.studies[study]["where"])["run"].to_list()

    def rows(self, studies: tuple, names: tuple | None, where: str | None) -> pd.DataFrame:
        """All that is known of the agents of studies' methods. Raises ValueError."""
        runs = [run for one in studies for run in self.runs(one)]
        rows = self.t.agents[self.t.agents["run"].isin(runs)]
        if names:
            for one in {*names} - {*self.t.runs["name"]}:
                raise ValueError(f"{one}: no run has this name")
            rows = rows[rows["name"].isin(names)]
        return rows.query(where) if where else rows

    def get(self, metric, study, name=None, at=None, start=None, end=None, by=None, where=None,
            empty=False) -> pd.Series:  # fmt: skip
        """See the module's words. By run and agent, or by run, agent and step where no time is
        given. Raises ValueError."""
        if metric not in self.t.agents:
            raise ValueError(f"{metric}: no metric of the tables")
        tuple_of = lambda one: tuple(one) if isinstance(one, list) else (one,)
        names = None if name is None else tuple_of(name)
        rows = self.rows(tuple_of(study), names, where)[["run", "agent", "step", metric]]
        first, last = (at, at) if at is not None else (start or 0, end or by or np.inf)
        rows = rows[rows["step"].between(first, last)].dropna()
        if rows.empty and not empty:
            raise ValueError(f"{metric} of {study}, {name}: nothing was measured then")
        groups = rows.groupby(["run", "agent", *([] if at or start or by else ["step"])])[metric]
        return groups.max() if by else groups.mean()

    def of_runs(self, study: str, column: str) -> list:
        """What a study's runs have in a column of runs.csv."""
        return [*self.t.runs[self.t.runs["run"].isin(self.runs(study))][column].unique()]

    def kernel(self, study: str) -> str:
        return " or ".join(self.of_runs(study, "mmd_kernel")).capitalize()

    def warmup(self, study: str) -> float:
        return max(self.of_runs(study, "warmup_steps"), default=np.nan)

    def rise(self, values: pd.Series) -> pd.Series:
        """By 10,000 updates, of a straight line through each agent's values by step."""
        line = lambda some: np.polyfit(some["step"] / 10_000, some.iloc[:, -1], 1)[0]
        return values.reset_index().groupby(["run", "agent"]).apply(line, include_groups=False)

    def by_seed(self, values: pd.Series) -> pd.Series:
        if "run" not in values.index.names:
            return values
        seeds = self.t.runs.set_index("run")["seed"]
        index = values.index
        own = index.get_level_values("run").map(seeds) + index.get_level_values("agent")
        return values.groupby(np.asarray(own)).mean()

    def past_bound(self, q: pd.Series, factor: float = 1) -> int:
        bounds = q.index.get_level_values("run").map(self.t.runs.set_index("run")["bound"])
        if bounds.hasnans:
            raise ValueError(
                f"{', '.join(q.index[bounds.isna()].unique('run'))}: no bound is known"
            )
        return int((q.to_numpy() > factor * bounds).sum())

    def cell(self, values: pd.Series, errors: pd.Series | None = None, digits: int = 1) -> str:
        """A mean over seeds, its 95% interval, and their number: "25.5 [-2.0, 53.0] (3)". Of one
        seed the interval is over its episodes, whose standard error is in `errors`, and marked."""
        if values.empty:
            return "–"
        errors = None if errors is None else self.by_seed(errors)
        return in_brackets(stats.estimate(self.by_seed(values), errors), digits)

    def gap(self, one: pd.Series, other: pd.Series, digits: int = 1) -> str:
        """The difference of two means over seeds, in the same way."""
        if one.empty or other.empty:
            return "–"
        return in_brackets(self.difference(one, other), digits)

    def difference(self, one: pd.Series, other: pd.Series) -> stats.Estimate:
        one, other = self.by_seed(one), self.by_seed(other)
        shared = one.index.intersection(other.index)
        if min(len(one), len(other)) == 1 and len(shared):  # seeds may differ more than methods
            one, other = one[shared], other[shared]
        return stats.difference(one, other)

    def score(self, study, name, policy="sample", **when) -> str:
        """The cell of a policy's score. Seeds that were trained so far but not played count with
        training's own evaluation, and are marked; a dash where there are none. Of one seed a mean
        over checkpoints has no interval: these differ by more than their episodes do."""
        own = "score_sample" if policy == "sample" else policy
        metrics = (policy, f"{policy}_se", own)
        played, errors, trained = (
            self.by_seed(self.get(metric, study, name, empty=True, **when)) for metric in metrics
        )
        values = played.combine_first(trained)
        mark = "†" if len(values) > len(played) else ""
        return self.cell(values, errors if len(played) and "at" in when else None) + mark

    def imitation(self, study: str, **when) -> str:
        """The cell of the score of the runs' own VAE, which imitates the data;
        of behaviour cloning where that was not played."""
        for name in ("UWAC + SN", "UWAC", "BEAR"):
            if len(values := self.get("vae", study, name, empty=True, **when)):
                errors = self.get("vae_se", study, name, **when) if "at" in when else None
                return self.cell(values, errors)
        cloned = self.cell(self.bc(self.of_runs(study, "task")[0]))
        return cloned if cloned == "–" else f"{cloned}‡"

    def any(self, study: str, names: list[str], metrics: list[str], when: dict) -> bool:
        """Whether a study has one of the metrics, for a row of a table."""
        found = (self.get(metric, study, names, empty=True, **when) for metric in metrics)
        return any(len(values) for values in found)

    def span(self, when: dict) -> str:
        """Updates at which a row was measured."""
        ends = [when[name] for name in ("at", "start", "end") if name in when]
        return " to ".join(stats.plain(end) for end in ends)

    def data(self, task: str, column: str) -> float:
        """Of a task's data. Raises ValueError."""
        if task not in self.t.data.index:
            raise ValueError(
                f"{task}: nothing of its data is in returns.csv; true_q.py {task} helps"
            )
        return self.t.data.loc[task, column]

    def bc(self, task: str) -> pd.Series:
        """Scores of behaviour cloning's seeds after its last update; empty where it did not run."""
        rows = self.t.bc[self.t.bc["task"] == task]
        return rows[rows["step"] == rows["step"].max()].set_index("agent")["score"]

    def paper_score(self, method: str, task: str) -> float:
        return store.others_scores().loc[task, f"paper: {method}"]

    def lunarlander(self, removed: str, step: int, beta: float, of: str) -> pd.Series:
        """A column of lunarlander.csv, by agent."""
        rows = self.t.lunarlander.query("removed == @removed and step == @step and beta == @beta")
        return rows.set_index("agent")[of]

    def auroc_over_time(self, removed: str) -> pd.Series:
        """What each of LunarLander's agents has gained by training, on average over it."""
        rows = self.t.lunarlander.query("removed == @removed and beta == 1.6").set_index("agent")
        trained = rows[rows["step"] > 0]["auroc_variance"].groupby("agent").mean()
        return trained - rows[rows["step"] == 0]["auroc_variance"]

    def untrained(self, task: str, column: str) -> float:
        """AUROC of ten networks that are not trained, or of the data alone, on a task."""
        of_task = self.t.agents["run"].isin(self.runs(task)) & (self.t.agents["name"] == "UWAC")
        rows = self.t.agents[of_task | (self.t.agents["run"] == f"{task}_untrained")]
        return rows[column].dropna().mean()

    def ms(self, series: int) -> pd.DataFrame:
        """Milliseconds of an update, by round and version."""
        rows = self.t.speed.query(f"series == {series} and num_seeds == 1")
        return rows.pivot(index="round", columns="version", values="ms")

    def times(self, version: str, series: int) -> float:
        """The median over rounds of how many times as long as BEAR's an update takes."""
        ms = self.ms(series)
        return (ms.get(version, np.nan) / ms["BEAR"]).median()

    def hours(self, version: str, *series: int) -> list[float]:
        """Of 500,000 updates at the median times of series, from the fewest to the most."""
        return sorted(self.ms(one)[version].median() * 500_000 / 3.6e6 for one in series)

    def commands(self, study: str) -> str:
        """Lines of a shell that make a study's runs again."""
        lines = []
        for part in self.t.studies[study]["grid"]:
            words = [f"--tasks {' '.join(part['tasks'])}", f"--methods {' '.join(part['methods'])}"]
            words += [f"--seeds {part['seeds']}", part["options"]]
            lines.append("python benchmark/run.py " + " ".join(words))
        return "\n".join(lines)

    def check(self, condition: bool) -> str:
        """Raises ValueError where the words before or after it no longer hold."""
        if not condition:
            raise ValueError("the tables no longer say what the words here do")
        return ""


def in_brackets(found: stats.Estimate, digits: int) -> str:
    mean, low, high = (stats.plain(value, digits) for value in found[:3])
    interval = "" if low == "–" else f" [{low}, {high}]{'*' * (found.over == 'episodes')}"
    return f"{mean}{interval} ({found.n})"


def environment(t: SimpleNamespace) -> jinja2.Environment:
    """What renders templates of these tables."""
    settings = {"undefined": jinja2.StrictUndefined, "keep_trailing_newline": True}
    settings |= {"trim_blocks": True, "lstrip_blocks": True, "extensions": ["jinja2.ext.do"]}
    env = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), **settings)
    words = Words(t)
    names = {name: getattr(words, name) for name in dir(words) if not name.startswith("_")}
    env.globals |= names | {"np": np, "pd": pd, "len": len}
    env.globals |= dict.fromkeys(["paper", "setting", "worked"], str)
    env.globals |= {"others": store.others_scores, "beside_the_paper": store.beside_the_paper}
    forms = {"q": stats.of_q, "short": stats.short, "fraction": stats.fraction}
    forms |= {"small": stats.small, "excess": stats.excess}
    env.filters |= forms | {"by_seed": words.by_seed}
    env.filters["n"] = lambda value, digits=0: stats.plain(value, digits)
    env.filters["pm"] = lambda some, digits=1: stats.mean_error(some.mean(), some.sem(), digits)
    return env


def place_of(error: Exception) -> str:
    """The template and the line where an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    found = [frame for frame in frames if frame.filename.endswith(".j2")]
    syntax = isinstance(error, jinja2.TemplateSyntaxError)
    name, line = (error.name, error.lineno) if syntax else (found[-1].filename, found[-1].lineno)
    return f"{Path(TEMPLATES, name).relative_to(ROOT)}:{line}"


def pages(t: SimpleNamespace) -> dict[Path, str]:
    """Each page as its template gives it. Raises ValueError that names a template's line."""
    env, found = environment(t), {}
    for file in sorted(TEMPLATES.rglob("*.md.j2")):
        name = file.relative_to(TEMPLATES).as_posix()
        try:
            found[ROOT / name.removesuffix(".j2")] = env.get_template(name).render()
        except (ValueError, KeyError, TypeError, AttributeError, jinja2.TemplateError) as error:
            raise ValueError(f"{place_of(error)}: {error}") from error
    return found


def typed(template: Path) -> list[str]:
    """Decimals and powers of ten in a template's prose, with their lines."""
    text = template.read_text(encoding="utf-8")
    prose = NOT_PROSE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    lines = enumerate(prose.split("\n"), 1)
    name = template.relative_to(ROOT)
    found = [(line, number) for line, words in lines for number in TYPED.findall(words)]
    return [f"{name}:{line}: {number} is typed; see results.py --help" for line, number in found]


def wrong_page(page: Path, right: str) -> list[str]:
    """The first line in which a page is not what its template gives. Raises OSError."""
    lines = zip_longest(page.read_text(encoding="utf-8").split("\n"), right.split("\n"))
    differ = [i for i, (kept, given) in enumerate(lines, 1) if kept != given]
    name = page.relative_to(ROOT)
    template = f"{TEMPLATES.relative_to(ROOT) / name}.j2"
    return [f"{name}:{line}: not what {template} gives" for line in differ[:1]]


def wrong_picture(file: Path, figure) -> list[str]:
    """Raises OSError."""
    with tempfile.TemporaryDirectory() as folder:
        copy, drawn = Path(folder, "kept.png"), Path(folder, "drawn.png")
        copy.write_bytes(file.read_bytes())
        figure.savefig(drawn)
        try:
            wrong = compare_images(str(copy), str(drawn), TOLERANCE)
        except (ImageComparisonFailure, OSError) as error:  # other sizes, no picture
            wrong = str(error)
    return [f"{file.relative_to(ROOT)}: not what figures.py draws of the tables"] * bool(wrong)


@dataclass
class Args:
    do: tyro.conf.Positional[Literal["write", "add"]] = "write"
    paths: tyro.conf.Positional[tuple[Path, ...]] = ()  # to add: folders of runs, JSON files
    hardware: str | None = None  # to add: what trained them, as in "Intel Xeon with AMX, 1 threads"
    study: str | None = None  # to add: a name of studies.toml, where runs like these are there
    check: bool = False  # writes nothing, and says what is wrong


def main(args: Args) -> list[str]:
    """What is wrong. Raises ValueError, and OSError where a file cannot be read or written."""
    if (args.do == "add") != bool(args.paths):
        raise ValueError("name what to add: results.py add runs/RUN")
    if args.do == "add":
        if args.study and args.study not in store.studies():
            raise ValueError(f"--study {args.study}: write it into results/studies.toml first")
        print("\n".join(store.add(args.paths, args.hardware, study=args.study)))
    found = [line for file in sorted(TEMPLATES.rglob("*.j2")) for line in typed(file)]
    t = store.load()
    texts, drawn = pages(t), figures.ours(t) | drawings.ours(t)
    if args.check:
        found += [line for page, text in texts.items() for line in wrong_page(page, text)]
        return found + [line for pair in drawn.items() for line in wrong_picture(*pair)]
    for page, text in texts.items():
        write(page, text.encode())
    for file, figure in drawn.items():
        figure.savefig(file)
    return found


if __name__ == "__main__":
    with errors_in_one_line():
        sys.exit("\n".join(main(tyro.cli(Args, description=__doc__))) or 0)
