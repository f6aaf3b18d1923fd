"""Every table, number and picture of RESULTS.md and README.md, made of the tables in results/.

    python benchmark/results.py                  # writes them
    python benchmark/results.py --check          # says which are not what the tables give
    python benchmark/results.py add runs/RUN     # first takes runs, or a grid's folder, into these

The pages are the source of their prose; lib/pages.py says how tables and numbers stand in them. A
number's name is one of these, and says where it is from:
    TABLE / ROW / COLUMN           a cell, or a part of COLUMN that no other has
    highest target_q after 50,000 of door-human, BEAR          or lowest, mean, median, ...
    mean target_q from 60,000 of forks, UWAC                   the mean over steps of each agent
    exploding target_q by 100,000 of door-human, BEAR          the highest until then of each agent
    p of target_q after 70,000 of door-human: UWAC, mc against UWAC
    the name of a function in NUMBERS
It gets as many digits as it is written with. A metric is a column of history.csv, diagnoses.csv or
returns.csv, share (q_share in %), or the score of a policy, sample or vae. After "of" stand names
in RUNS, or queries.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # which `python benchmark/results.py` leaves out

import functools
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace as Tables
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import tyro
from PIL import Image
from scipy.stats import permutation_test

from benchmark.lib import pages, pictures, tidy
from benchmark.lib.files import errors_in_one_line, write
from benchmark.lib.published import beside_the_paper, others_scores
from benchmark.lib.tables import mean_error, of_q, p_values, plain

PAGES = [ROOT / "benchmark" / "RESULTS.md", ROOT / "README.md"]
# Each number of RESULTS.md's sentences that somebody chose, as often as it stands there.
SETTINGS = """
0 0 0 0 0 0 0 0 0 0 0 0 1e-5 1e-5 1e-4 1e-4 1e-3 1e-3 0.007 0.01 0.01 0.01 0.01 0.01 0.01 0.01 0.01
0.01 0.05 0.05 0.07 0.07 0.07 0.2 0.8 0.8 0.845 0.845 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1
1 1 1 1.5 1.5 1.5 1.5 1.5 1.6 1.6 1.6 1.6 2 2 2 2 2 2 2.5 2.5 3 3 3 3 3 3 3 3 3 3 4 4.2 4.2 4.2 5 5
5 5 5.1 5.1 5.1 5.2 5.2 5.3 5.3 5.3 5.4 5.4 5.4 5.4 5.4 5.5 5.5 5.5 5.6 5.6 5.6 5.6 5.6 5.6 5.6 6 6
7 8 8 8 8 9 9 10 10 10 10 10 11 12 12 13 13 14 15 15 15 20 20 20 27 42 42 48 50 50 50 50 100 100 100
100 100 100 105 500 600 1,000 2,500 2,500 2,500 5,000 8,000 8,000 8,000 8,000 10,000 10,000 10,000
10,000 10,000 10,000 10,000 10,000 10,000 15,000 15,000 15,000 15,000 20,000 20,000 20,000 22,026
25,000 25,000 25,000 25,000 25,000 25,000 30,000 30,000 30,000 35,000 40,000 40,000 40,000 40,000
40,000 40,000 40,000 40,000 40,000 42,500 45,000 45,000 45,000 50,000 50,000 50,000 50,000 50,000
50,000 50,000 50,000 50,000 50,000 50,000 50,000 50,000 50,000 50,000 50,000 50,000 50,000 50,000
50,000 50,000 50,000 55,000 60,000 60,000 60,000 60,000 60,000 60,000 60,000 60,000 60,000 60,000
60,000 60,000 60,000 60,000 60,000 60,000 60,000 60,000 60,000 60,000 60,000 60,000 62,500 65,000
65,000 70,000 70,000 70,000 70,000 70,000 70,000 70,000 70,000 70,000 70,000 75,000 80,000 90,000
90,000 90,000 90,000 90,000 90,000 92,500 94,000 95,000 95,000 95,000 95,000 95,000 100,000 100,000
100,000 100,000 100,000 100,000 100,000 100,000 100,000 100,000 100,000 100,000 100,000 100,000
100,000 112,500 150,000 170,000 200,000 250,000 250,000 250,000 250,000 250,000 300,000 500,000
500,000 500,000
"""

RUNS = {  # queries of runs.csv
    "BEAR": "method == 'bear'",
    "BEAR + SN": "method == 'bear+sn'",
    "BEAR + dropout": "method == 'bear+dropout'",
    "BEAR + dropout + SN": "method == 'bear+dropout+sn'",
    "UWAC": "method in ('uwac-analytic', 'uwac-no-sn') and not spectral_norm",
    "UWAC + SN": "method == 'uwac-analytic' and spectral_norm",
    "mc": "method == 'uwac'",
    "batch mean": "method == 'uwac-actor-constant'",
    "batch means": "method == 'uwac-constant'",
    "critics alone": "method == 'uwac-critic-only'",
    "actor alone": "method == 'uwac-actor-only'",
    "shuffled": "method == 'uwac-shuffled'",
    "Q over its mean": "method == 'bear-scaled-q'",
    "w = 0.43": "method == 'bear-fixed-w' and fixed_w == 0.43",
    "w = 0.01": "method == 'bear-fixed-w' and fixed_w == 0.01",
    "w = 0": "method == 'bear-fixed-w' and fixed_w == 0",
    "SN": "spectral_norm",
    "no SN": "not spectral_norm",
    "float32": "precision == 'float32'",
    # tasks, with the arguments of the study
    "door-human": "task == 'door-human' and warmup_steps == 40_000 and actor_lr == 1e-4 "
    "and q_noise != True",
    "forks": "task == 'door-human' and how == 'forks'",
    "early Q": "task == 'door-human' and warmup_steps == 5_000",
    "pen-expert": "task == 'pen-expert' and warmup_steps == 10_000",
    "hammer-expert": "task == 'hammer-expert' and warmup_steps == 10_000",
    "door-expert": "task == 'door-expert' and warmup_steps == 10_000",
    "relocate-expert": "task == 'relocate-expert' and warmup_steps == 10_000",
    "door-expert late": "task == 'door-expert' and warmup_steps == 40_000",
    "relocate-expert late": "task == 'relocate-expert' and warmup_steps == 40_000 and seed == 0",
    "relocate-expert again late": "task == 'relocate-expert' and warmup_steps == 40_000 "
    "and seed == 1",
    "experts": "task in ('hammer-expert', 'door-expert', 'relocate-expert') "
    "and warmup_steps == 10_000",
    "halfcheetah-medium": "task == 'halfcheetah-medium'",
    "Gym-MuJoCo": "task in ('halfcheetah-medium', 'hopper-medium', 'walker2d-expert')",
    "hopper-medium": "task == 'hopper-medium' and mmd_kernel == 'laplacian'",
    "hopper-medium Gaussian": "task == 'hopper-medium' and mmd_kernel == 'gaussian'",
    "walker2d-expert": "task == 'walker2d-expert' and mmd_kernel == 'laplacian'",
    "walker2d-expert Gaussian": "task == 'walker2d-expert' and mmd_kernel == 'gaussian'",
}
LARGE = ("BEAR", "critics alone", "batch mean", "w = 0.43")  # shares of Q, of the forks
RUNS["large share"] = " or ".join(f"({RUNS[name]})" for name in LARGE)
RUNS["small share"] = f"not ({RUNS['large share']})"
SHOWN = "task not in ('door-demo', 'hammer-expert', 'door-expert', 'relocate-expert')"
SHOWN += " and algorithm != 'what_bounds_q' and how != 'forks'"
SHOWN += " and (actor_lr == 1e-4 or warmup_steps == 5_000)"  # in the picture of shares
PHRASE = re.compile(r"(\w+)(?: of)? (\w+)(?: ((?:after|from|by) [\d,]+(?: to [\d,]+)?))? of (.+)")


def query_of(group: str) -> str:
    """Of names in RUNS and of queries, with ", " between them."""
    return " and ".join(f"({RUNS.get(part, part)})" for part in group.split(", "))


def runs_of(t: Tables, group: str) -> list[str]:
    """Found once, as pandas takes its time to read a query."""
    if group not in t.groups:
        t.groups[group] = t.runs.query(query_of(group))["run"].to_list()
    return t.groups[group]


def values(t: Tables, metric: str, when: str | None, group: str) -> pd.Series:
    """A metric of each agent of a group: "after 9" updates, on average "from 9" on or "from 9 to
    20", the highest "by 9", or wherever it was measured (None)."""
    rows = t.agents[["run", "agent", "step", metric]].dropna()
    rows = rows[rows["run"].isin(runs_of(t, group))]
    word, *numbers = re.sub(",| to", "", when or "ever 0").split()
    first, last = [*map(int, numbers), np.inf][:2]
    limits = {"after": (first, first), "from": (first, last), "by": (0, first), "ever": (0, np.inf)}
    rows = rows[rows["step"].between(*limits[word])]
    found = rows.set_index(["run", "agent"])[metric]
    if word == "by":
        return found.groupby(level=[0, 1]).max()
    return found.groupby(level=[0, 1]).mean() if word == "from" else found


def passing(t: Tables, q: pd.Series, factor: float = 1) -> int:
    """How many Q pass their bound, or so many times their bound."""
    bounds = t.runs.set_index("run")["bound"]
    return sum(value > factor * bounds[run] for (run, _), value in q.items())


def by_seed(t: Tables, some: pd.Series) -> pd.Series:
    """The mean over the runs of each seed, so that one which ran twice counts once."""
    first = t.runs.set_index("run")["seed"]
    return some.groupby([first[run] + agent for run, agent in some.index]).mean()


STATISTICS = {
    "lowest": lambda t, some: some.min(),
    "highest": lambda t, some: some.max(),
    "mean": lambda t, some: some.mean(),
    "median": lambda t, some: some.median(),
    "median_by_seed": lambda t, some: by_seed(t, some).median(),
    "each": by_seed,
    "seeds": lambda t, some: len(by_seed(t, some)),
    "number": lambda t, some: len(some),
    "passing": passing,
    "exploding": lambda t, some: passing(t, some, 100),
    "spread": lambda t, some: 100 * (some.max() / some.min() - 1),  # %
    "change": lambda t, some, other: 100 * (some.mean() / other.mean() - 1),  # %
    "p": lambda t, some, other: p_values(by_seed(t, some), by_seed(t, other))[0],
}


def evaluated(t: Tables, name: str) -> tuple[float | pd.Series, str]:
    """A number by its name, and the runs that it is of. Raises ValueError."""
    if name in NUMBERS:
        return NUMBERS[name](t), NUMBERS[name].__doc__
    match = PHRASE.fullmatch(name)
    if not match or match[1] not in STATISTICS or match[2] not in t.agents:
        raise ValueError(f"{name}: neither a cell nor a number that results.py describes")
    groups = [values(t, match[2], match[3], group) for group in match[4].split(" against ")]
    runs = dict.fromkeys(run for some in groups for run, _ in some.index)
    return STATISTICS[match[1]](t, *groups), ", ".join(runs)


def as_written(value: float | pd.Series, like: str) -> str:
    """With the digits that a page has."""
    decimals = len(like.partition(" ")[0].partition(".")[2])
    if isinstance(value, pd.Series):
        return mean_error(value.mean(), value.sem(), decimals)
    return of_q(value) if "e" in like else plain(value, decimals)


# How a cell is printed.


def short(value: float) -> str:
    """Two digits."""
    return plain(value) if value >= 10 else f"{value:.2g}"


def fraction(value: float) -> str:
    """Two digits after the point, one of what is less than 0.01."""
    if value >= 1 or value == 0:
        return short(value)
    return f"{value:.2f}" if value >= 0.01 else f"{value:.1g}"


def two(value: float) -> str:
    return plain(value, 2)


def small(value: float) -> str:
    """With a digit after the point where it is below 10."""
    return plain(value, 1 if abs(value) < 10 else 0)


def with_error(some: pd.Series) -> str:
    return mean_error(some.mean(), some.sem())


def excess(value: float) -> str:
    """One digit of what exceeds 1."""
    return plain(value) if value >= 10 else f"{1 + float(f'{value - 1:.1g}'):g}"


class Table(NamedTuple):
    title: str  # of the first column
    rows: list[tuple]  # name, runs, update, update of runs with SN, where a table needs them
    columns: dict[str, tuple | Callable]  # phrase and format, or of (tables, row) the text


def moment(at: int | str) -> str:
    """When a cell was measured, for a phrase: after an update, or as it stands ("from 9 to 20")."""
    return at if isinstance(at, str) else f"after {at}"


def updates(t: Tables, row: dict) -> str:
    return f"{row['at']:,}" if isinstance(row["at"], int) else row["at"].removeprefix("from ")


def of_data(column: str) -> Callable:
    return lambda t, row: of_q(t.data.loc[row["task"], column])


def cloned(t: Tables, row: dict) -> str:
    """Scores of behaviour cloning's seeds after its last update."""
    return with_error(t.bc.query(f"task == '{row['task']}' and step == 100_000")["score"])


def imitation(t: Tables, row: dict) -> str:
    """Scores of UWAC's VAE, which imitates the data, or of behaviour cloning."""
    text, runs = cell(t, OF_VAE, row)
    return text if runs else cloned(t, row)


def papers(method: str) -> Callable:
    return lambda t, row: plain(others_scores().loc[row["task"], f"paper: {method}"], 1)


def without_training(column: str) -> Callable:
    """AUROC of networks that are not trained, or of the data alone."""

    def text(t: Tables, row: dict) -> str:
        known = f"run == '{row['task']}_untrained' or ({query_of(row['runs'])} and {RUNS['UWAC']})"
        found = t.agents.query(known)[column].dropna()
        return plain(found.iloc[0], 2) if len(found) else "–"

    return text


def lunarlander(clip: str) -> Callable:
    """Mean ± standard error over agents, with as many digits as the error has."""

    def text(t: Tables, row: dict) -> str:
        aurocs = t.lunarlander.query(f"removed == '{clip}' and {row['runs']}")[row["at"]]
        error = aurocs.sem()
        return mean_error(aurocs.mean(), error or np.nan, int(-np.floor(np.log10(error or 0.001))))

    return text


def p_text(p: float) -> str:
    return f"{p:.2f}" if p >= 0.1 else f"{p:.2g}"


def against(rival: str, what: str) -> Callable:
    """By how much the scores of UWAC, as the paper has it, exceed a rival's on average; p of a
    permutation test; and the least p that so few seeds can give."""

    def text(t: Tables, row: dict) -> str:
        ours = "UWAC + SN" if row["task"] in dict(HANDS) else "UWAC"
        groups = [f"{row['runs']}, {method}" for method in (ours, rival)]
        one, other = (by_seed(t, values(t, "sample", moment(row["at"]), group)) for group in groups)
        if min(len(one), len(other)) < 2:
            return "–"
        found = dict(zip(("p", "least p"), p_values(one, other)))
        gap = one.mean() - other.mean()
        return plain(gap, 1) if what == "gap" else p_text(found[what])

    return text


def milliseconds(t: Tables, series: int) -> pd.DataFrame:
    """Of an update, by round and version."""
    rows = t.speed.query(f"series == {series} and num_seeds == 1")
    return rows.pivot(index="round", columns="version", values="ms")


def over_bear(version: str) -> Callable:
    """The median over rounds of how many times as long as BEAR's an update takes."""

    def text(t: Tables, row: dict) -> str:
        ms = milliseconds(t, row["at"])
        ratio = (ms.get(version, np.nan) / ms["BEAR"]).median()
        return "–" if np.isnan(ratio) else short(ratio) if ratio > 3 else plain(ratio, 2)

    return text


def bear_ms(t: Tables, row: dict) -> str:
    ms = milliseconds(t, row["at"])["BEAR"].median()
    return plain(ms) if ms >= 20 else f"{ms:.3g}"


FOUR = ("BEAR", "UWAC", "BEAR + SN", "UWAC + SN")
SCORE_OF = {name: (f"each sample of {{runs}}, {name}", with_error) for name in FOUR}
OF_VAE = ("each vae of {runs}, method == 'uwac-analytic'", with_error)
SEEDS = ("seeds target_q of {runs}, method == 'uwac-analytic'", plain)
BATCH_MEAN = "w's batch mean in the actor's loss, its own in the critics'"
# Runs of the usual warm-up on expert data, and where they were measured, in 1,000 updates.
LATE = {
    "door-expert: UWAC + SN": (40, 45, 50, 60, 70, 80, 90, 95, 100, 150, 200, 250),
    "door-expert: BEAR + SN": (40, 45, 50, 60, 70, 80, 90, 95, 100),
    "door-expert: BEAR": (40, 45, 50),
    "relocate-expert: UWAC + SN": (40, 45, 50, 60, 70, 80, 90, 95, 100),
    "relocate-expert: BEAR + SN": (40, 45, 50, 60, 70, 80, 90, 95, 100),
    "relocate-expert: BEAR + SN with w = 0.01": (45, 50, 60),
    "relocate-expert: BEAR": (40, 45, 50, 60, 80, 100),
    "relocate-expert again: UWAC + SN": (40, 45, 50, 60),
    "relocate-expert again: BEAR + SN": (40, 45, 50, 60),
    "relocate-expert again: BEAR + SN with w = 0.01": (45, 50),
}
LAST = "from 90,000 to 100,000"
USUAL = "warm-up of 40,000"
TABLES = {
    "bounds": Table(
        "three seeds each",
        [
            ("BEAR", "forks, BEAR"),
            ("UWAC with w in the critics' loss alone", "forks, critics alone"),
            (f"UWAC with {BATCH_MEAN}", "forks, batch mean"),
            ("BEAR with w = 0.43 in the actor's loss", "forks, w = 0.43"),
            ("UWAC", "forks, UWAC"),
            ("UWAC, `mc` (the default)", "forks, mc"),
            ("BEAR with w = 0.01 in the actor's loss", "forks, w = 0.01"),
            (
                "BEAR with Q over its mean: 2.5 Q / mean \\|Q\\|, as in TD3+BC",
                "forks, Q over its mean",
            ),
            ("BEAR whose actor never sees Q", "forks, w = 0"),
        ],
        {
            "w in the actor's loss": ("median policy_weight after 50,000", fraction),
            "Q's share of the actor's gradient after 42,500, %": (
                "median share after 42,500",
                fraction,
            ),
            "after 50,000, %": ("median share after 50,000", fraction),
            "Q after 92,500 updates, median": ("median target_q after 92,500", of_q),
            "lowest seed": ("lowest target_q after 92,500", of_q),
            "highest seed": ("highest target_q after 92,500", of_q),
            "seeds past the bound": ("passing target_q after 92,500", plain),
            "that explode": ("exploding target_q after 92,500", plain),
        },
    ),
    "sizes": Table(
        "door-human without SN, after 70,000 updates",
        [
            ("BEAR", "door-human, BEAR"),
            ("BEAR + dropout", "door-human, BEAR + dropout"),
            ("UWAC with w in the critics' loss alone", "door-human, critics alone"),
            (f"UWAC with {BATCH_MEAN}", "door-human, batch mean"),
            ("UWAC", "door-human, UWAC"),
            ("UWAC with w's batch mean in both losses", "door-human, batch means"),
            ("UWAC with w shuffled over states in both losses", "door-human, shuffled"),
            ("UWAC with w in the actor's loss alone", "door-human, actor alone"),
            ("BEAR with w = 0.01 in the actor's loss", "door-human, w = 0.01"),
            ("BEAR whose actor never sees Q", "door-human, w = 0"),
        ],
        {
            "runs": ("number target_q after 70,000", plain),
            "w in the actor's loss, median": ("median policy_weight after 70,000", fraction),
            "Q, median": ("median target_q after 70,000", of_q),
            "lowest run": ("lowest target_q after 70,000", of_q),
            "highest run": ("highest target_q after 70,000", of_q),
            "runs past the bound": ("passing target_q after 70,000", plain),
            "that explode": ("exploding target_q after 70,000", plain),
        },
    ),
    "targets": Table(
        "median Q target on",
        [
            ("door-human", "door-human", 100_000),
            ("pen-expert", "pen-expert", 30_000),
            ("hammer-expert", "hammer-expert", 20_000),
            ("door-expert", "door-expert, float32", 20_000),
            ("relocate-expert", "relocate-expert, float32", 25_000),
            ("hopper-medium, Gaussian kernel", "hopper-medium Gaussian", 80_000),
            ("halfcheetah-medium", "halfcheetah-medium", 100_000),
            ("walker2d-expert", "walker2d-expert", 300_000),
        ],
        {
            "updates": updates,
            "seeds": SEEDS,
            "bound": ("highest bound", of_q),
            "the data's discounted return": of_data("continued"),
            "constant critic, mean reward / (1 - γ)": of_data("constant"),
            **{name: (f"median_by_seed target_q of {{runs}}, {name}", of_q) for name in FOUR},
        },
    ),
    "returns": Table(
        "run (one seed)",
        [
            ("hammer-expert: UWAC + SN", "hammer-expert, UWAC + SN", 60_000),
            ("door-expert: UWAC + SN", "door-expert, UWAC + SN", 60_000),
            ("relocate-expert: UWAC + SN", "relocate-expert, UWAC + SN", 60_000),
            ("hammer-expert: UWAC", "hammer-expert, UWAC", 60_000),
            ("door-expert: UWAC", "door-expert, UWAC", 60_000),
            ("relocate-expert: UWAC", "relocate-expert, UWAC, seed == 0", 25_000),
            ("the same, second seed", "relocate-expert, UWAC, seed == 1", 25_000),
            ("the same, third seed", "relocate-expert, UWAC, seed == 2", 25_000),
            (f"door-expert: UWAC + SN, {USUAL}", "door-expert late, UWAC + SN", 70_000),
            ("the same run, later", "door-expert late, UWAC + SN", 250_000),
            (f"door-expert: BEAR + SN, {USUAL}", "door-expert late, BEAR + SN", 70_000),
            ("the same run, later", "door-expert late, BEAR + SN", 100_000),
            (f"relocate-expert: UWAC + SN, {USUAL}", "relocate-expert late, UWAC + SN", 60_000),
            ("the same run, later", "relocate-expert late, UWAC + SN", 100_000),
            (f"relocate-expert: BEAR + SN, {USUAL}", "relocate-expert late, BEAR + SN", 100_000),
        ],
        {
            "updates": updates,
            "Q on its own states, mean": ("mean q", of_q),
            "Q, standard deviation": ("mean q_std", small),
            "discounted return, mean": ("mean played", of_q),
            "return, standard error": ("mean played_error", small),
            "return, standard deviation": ("mean played_std", small),
        },
    ),
    "normed": Table(
        "on door-human, all with SN",
        [
            ("BEAR + SN", "door-human, BEAR + SN"),
            ("BEAR + dropout + SN", "door-human, BEAR + dropout + SN"),
            ("UWAC + SN", "door-human, UWAC + SN, beta == 1.6"),
            ("UWAC + SN, β = 0.8", "door-human, UWAC + SN, beta == 0.8"),
            ("UWAC + SN, β = 2.5", "door-human, UWAC + SN, beta == 2.5"),
            ("UWAC + SN, `mc`", "door-human, SN, mc"),
            ("UWAC + SN, `std`", "door-human, SN, method == 'uwac-std'"),
            ("UWAC + SN, ensemble in place of dropout", "door-human, method == 'uwac-ensemble'"),
            ("UWAC + SN, REM (random ensemble mixtures)", "door-human, method == 'uwac-rem'"),
        ],
        {
            "seeds": ("number target_q after 50,000", plain),
            "w after 50,000 updates": ("median weight after 50,000", short),
            "Q after 50,000": ("median target_q after 50,000", of_q),
            "Q after 70,000": ("median target_q after 70,000", of_q),
        },
    ),
    "shares": Table(
        "run",
        [
            ("door-human: BEAR + SN", "door-human, BEAR + SN", 100_000),
            ("door-human: BEAR", "door-human, BEAR, precision != 'float32'", 60_000),
            ("hopper-medium: BEAR, Gaussian kernel †", "hopper-medium Gaussian, BEAR", 80_000),
            ("hopper-medium: UWAC, Gaussian kernel †", "hopper-medium Gaussian, UWAC", 80_000),
            ("door-expert: UWAC + SN †", "door-expert, UWAC + SN", 60_000),
        ],
        {
            "updates": updates,
            "runs": ("number share", plain),
            "MMD, mean": ("mean mmd", lambda value: plain(value, 3)),
            "α": ("mean alpha", short),
            "actor's w": ("mean policy_weight", fraction),
            "Q's share, %": ("mean share", fraction),
        },
    ),
    "late": Table(
        "run (warm-up of 40,000; again: a second seed)",
        [
            (name, name.replace(":", " late,").replace("BEAR + SN with ", ""), 1_000 * at)
            for name, steps in LATE.items()
            for at in steps
        ],
        {
            "updates": updates,
            "MMD": ("mean mmd", lambda value: plain(value, 3)),
            "α": ("mean alpha", fraction),
            "Q's share, %": ("mean share", fraction),
            "score": ("mean sample", lambda value: plain(value, 1)),
            "its VAE's score": ("mean vae", lambda value: plain(value, 1)),
            "Q": ("mean target_q", of_q),
        },
    ),
    "unequal": Table(
        "UWAC on",
        [
            ("door-human", "door-human", 100_000, 100_000),
            ("pen-expert", "pen-expert", 30_000, 30_000),
            ("relocate-expert †", "relocate-expert", 25_000, 60_000),
            ("hammer-expert †", "hammer-expert", 60_000, 60_000),
            ("door-expert †", "door-expert", 60_000, 60_000),
            ("walker2d-expert", "walker2d-expert", 300_000, 50_000),
        ],
        {
            "inequality of w, with SN": (
                "median inequality after {at_sn} of {runs}, UWAC + SN",
                lambda value: plain(value, 4),
            ),
            "without SN": ("median inequality of {runs}, UWAC", excess),
            "AUROC, with SN": ("mean ood_auroc after {at_sn} of {runs}, UWAC + SN", two),
            "AUROC, without SN": ("mean ood_auroc of {runs}, UWAC", two),
            "shuffled actions, without SN": ("mean auroc_shuffled of {runs}, UWAC", two),
            "untrained networks, mean": without_training("auroc_untrained"),
            "best of ten": without_training("auroc_untrained_highest"),
            "the action's norm": without_training("auroc_action_norm"),
        },
    ),
    "scores": Table(
        "score on",
        [
            ("door-human", "door-human", 100_000),
            ("pen-expert", "pen-expert", 30_000),
            ("walker2d-expert", "walker2d-expert", 300_000),
            ("hopper-medium", "hopper-medium", 100_000),
            ("halfcheetah-medium", "halfcheetah-medium", 100_000),
            ("walker2d-expert, Gaussian kernel †", "walker2d-expert Gaussian", 100_000),
            ("hopper-medium, Gaussian kernel †", "hopper-medium Gaussian", 80_000),
            ("relocate-expert †", "relocate-expert", 60_000),
            ("hammer-expert †", "hammer-expert", 20_000),
            ("hammer-expert †", "hammer-expert", 60_000),
            ("door-expert †", "door-expert", 60_000),
            ("door-expert, warm-up of 40,000 †", "door-expert late", LAST),
            ("door-expert, warm-up of 40,000 †", "door-expert late", "from 220,000 to 250,000"),
            ("relocate-expert, warm-up of 40,000 †", "relocate-expert late", LAST),
        ],
        {
            "updates": updates,
            "seeds": SEEDS,
            **SCORE_OF,
            "its VAE": OF_VAE,
            "BC": cloned,
            "the paper's BEAR": papers("BEAR"),
            "the paper's UWAC": papers("UWAC"),
        },
    ),
    "rivals": Table(
        "UWAC (+ SN on the hands)",
        [
            ("door-human", "door-human", 100_000),
            ("pen-expert", "pen-expert", 30_000),
            ("hammer-expert †", "hammer-expert", 20_000),
            ("hopper-medium", "hopper-medium", 100_000),
            ("halfcheetah-medium", "halfcheetah-medium", 100_000),
            ("hopper-medium, Gaussian kernel †", "hopper-medium Gaussian", 80_000),
        ],
        {
            "score less BEAR's": against("BEAR", "gap"),
            "p": against("BEAR", "p"),
            "smallest p possible": against("BEAR", "least p"),
            "less BEAR + SN's": against("BEAR + SN", "gap"),
            "p against it": against("BEAR + SN", "p"),
        },
    ),
    "front": Table(
        "score ± standard error",
        [
            ("door-human", "door-human", 100_000),
            ("pen-expert", "pen-expert", 30_000),
            ("hammer-expert", "hammer-expert", 20_000),
            ("door-expert", "door-expert", 60_000),
            ("relocate-expert", "relocate-expert", 60_000),
            ("door-expert, warm-up of 40,000", "door-expert late", LAST),
            ("relocate-expert, warm-up of 40,000", "relocate-expert late", LAST),
        ],
        {
            **SCORE_OF,
            "imitation of the data": imitation,
            "the paper's UWAC": papers("UWAC"),
            "seeds": SEEDS,
            "updates": updates,
        },
    ),
    "lunarlander": Table(
        "AUROC of removed states, five seeds",
        [
            ("Var[Q] of an untrained network", "beta == 1.6 and step == 0", "auroc_variance"),
            ("Var[Q] after 5,600 updates", "beta == 1.6 and step == 5_600", "auroc_variance"),
            ("Var[Q] after 8,000 updates", "beta == 1.6 and step == 8_000", "auroc_variance"),
            (
                "Var[Q] after 8,000 updates, weights off (`--beta 1e9`)",
                "beta == 1e9 and step == 8_000",
                "auroc_variance",
            ),
            ("the state's norm", "beta == 1.6", "auroc_norm"),
            ("distance to the nearest training state", "beta == 1.6", "auroc_distance"),
        ],
        {"left removed": lunarlander("left"), "top removed": lunarlander("top")},
    ),
    "speed": Table(
        "an update, without evaluations",
        [
            ("one thread of a Xeon, float32", "", 11),
            ("one thread of a Xeon with AMX, bfloat16", "", 7),
            ("two threads of an AMD EPYC, float32", "", 1),
            ("H200, one series", "", 12),
            ("H200, another series", "", 13),
            ("H200, `--cuda-graph`", "", 14),
        ],
        {
            "BEAR, ms": bear_ms,
            "UWAC, closed form, times": over_bear("UWAC analytic"),
            "UWAC, `mc`, times": over_bear("UWAC mc"),
            "`mc` at every candidate action (the paper, read literally), times": over_bear(
                "UWAC literal"
            ),
            "d3rlpy's BEAR, times": over_bear("d3rlpy's BEAR"),
        },
    ),
}


# Numbers that are no statistic of one metric. Their first lines say where they are from.


def above_closed_form(estimate: str, agent: int) -> Callable[[Tables], float]:
    def gap(t: Tables) -> float:
        """estimators.csv, `target_q` of one estimate less that of analytic, after 8,000 steps"""
        last = t.estimators.query(f"agent == {agent} and step == 8_000").set_index("estimate")
        return last["target_q"][estimate] - last["target_q"]["analytic"]

    return gap


def in_episode(t: Tables) -> float:
    """returns.csv, `in_episode` of door-human's data"""
    return t.data["in_episode"]["door-human"]


def negative_norm(t: Tables) -> float:
    """diagnoses.csv, 1 less `auroc_action_norm` of door-expert"""
    return 1 - t.agents.query(RUNS["door-expert"])["auroc_action_norm"].dropna().iloc[0]


def lead(t: Tables) -> float:
    """policies.csv and bc.csv, the largest mean score of UWAC (+ SN) less that of its VAE, or of BC
    where no VAE was played, over the table's rows"""
    leads = []
    for _, group, at in TABLES["scores"].rows:
        when = moment(at)
        vae = values(t, "vae", when, f"{group}, method == 'uwac-analytic'")
        vae = by_seed(t, vae).mean()
        cloned = t.bc.query(f"task == '{group.split()[0]}' and step == 100_000")["score"].mean()
        for method in ("UWAC", "UWAC + SN"):
            ours = by_seed(t, values(t, "sample", when, f"{group}, {method}")).mean()
            leads.append(ours - (cloned if np.isnan(vae) else vae))
    return np.nanmax(leads)


def late_error(t: Tables) -> float:
    """policies.csv, the largest `score_std` of sample over the root of `episodes`, of the runs on
    door- and relocate-expert with a warm-up of 40,000"""
    late = runs_of(t, "door-expert late") + runs_of(t, "relocate-expert late")
    rows = t.policies[t.policies["run"].isin(late) & (t.policies["policy"] == "sample")]
    return (rows["score_std"] / rows["episodes"] ** 0.5).max()


def data_score(t: Tables) -> float:
    """bc.csv, `data_score` of pen-expert"""
    return t.bc.query("task == 'pen-expert'")["data_score"].mean()


def one_of(several: Callable[[Tables], pd.Series], which: Callable) -> Callable[[Tables], float]:
    number = lambda t: which(several(t))
    number.__doc__ = several.__doc__
    return number


def above_return(t: Tables) -> float:
    """returns.csv, `q` over `played` less 1, in %, of hammer-expert's uwac-no-sn after 35,000"""
    rows = t.agents.query(query_of("hammer-expert, UWAC, float32")).set_index("step")
    return 100 * (rows["q"][35_000] / rows["played"][35_000] - 1)


def below_return(t: Tables) -> float:
    """returns.csv, `played` less `q` of door-expert's uwac-analytic, warm-up of 40,000, after
    250,000"""
    row = t.agents.query(query_of("door-expert late, UWAC + SN")).set_index("step").loc[250_000]
    return row["played"] - row["q"]


def slopes(t: Tables) -> pd.Series:
    """history.csv, gain of `target_q` from the warm-up's end to the last step, over the steps, of
    all runs with SN on the hands' expert data, by agent"""
    rows = t.agents.query(f"{RUNS['SN']} and ({RUNS['experts']} or {RUNS['pen-expert']})")
    rows = rows[rows["step"].isin([10_000]) | (rows["step"] == rows["updates"])]
    ends = rows.sort_values("step").groupby(["run", "agent"])[["step", "target_q"]]
    gained = ends.last() - ends.first()
    return gained["target_q"] / gained["step"]


def crossings(t: Tables) -> pd.Series:
    """history.csv, where `target_q` of door-expert's runs with SN of 60,000 steps would pass the
    bound with their slopes, to 10,000"""
    rows = t.agents.query(f"{query_of('door-expert, SN')} and step == 60_000")
    rows = rows.set_index(["run", "agent"])
    left = (rows["bound"] - rows["target_q"]) / slopes(t)[rows.index]
    return (60_000 + left).round(-4)


def mean_score(runs: str, *where: tuple[str, int]) -> Callable[[Tables], float]:
    def mean(t: Tables) -> float:
        """policies.csv, `score` of sample: the mean over tasks of the means over seeds"""
        scores = [values(t, "sample", f"after {at}", f"{of}, {runs}") for of, at in where]
        return np.mean([by_seed(t, some).mean() for some in scores])

    return mean


def papers_scores(of: Callable, method: str, *tasks: str) -> Callable[[Tables], float]:
    def number(t: Tables) -> float:
        """table1.csv and table2.csv in paper/, of the same tasks"""
        return of(others_scores().loc[[*tasks], f"paper: {method}"])

    return number


def published_mean(column: str) -> Callable[[Tables], float]:
    def mean(t: Tables) -> float:
        """table1.csv and bear_official_logs.csv in paper/, the mean over twelve tasks"""
        return beside_the_paper()[column].mean()

    return mean


def exceeding(t: Tables) -> int:
    """table1.csv and d4rl_v0_evaluations.csv in paper/"""
    table = beside_the_paper()
    return (table["paper: UWAC"] > table["highest of anyone"]).sum()


def p_of_lunarlander(t: Tables) -> float:
    """lunarlander.csv, left removed: a paired permutation test of the mean of an agent's ten
    measurements against its untrained network"""
    rows = t.lunarlander.query("beta == 1.6 and removed == 'left'").set_index("agent")
    later = rows[rows["step"] > 0].groupby("agent")["auroc_variance"].mean()
    gaps = later - rows[rows["step"] == 0]["auroc_variance"]
    size = lambda gap, axis: np.abs(gap.mean(axis))
    test = permutation_test((gaps,), size, permutation_type="samples", alternative="greater", rng=0)
    return test.pvalue


def hours(version: str, *series: int, of: Callable = min) -> Callable[[Tables], float]:
    def extreme(t: Tables) -> float:
        """speed.csv, 500,000 times the median `ms` of a series"""
        medians = [milliseconds(t, one)[version].median() for one in series]
        return of(medians) * 500_000 / 3.6e6

    return extreme


def ratio_of_mc(of: Callable, *series: int) -> Callable[[Tables], float]:
    number = lambda t: of(float(over_bear("UWAC mc")(t, {"at": one})) for one in series)
    number.__doc__ = f"speed.csv, `ms` of UWAC mc over BEAR's, medians of series {series}"
    return number


GYM = (("walker2d-expert", 300_000), ("hopper-medium", 100_000), ("halfcheetah-medium", 100_000))
HANDS = (("door-human", 100_000), ("pen-expert", 30_000), ("hammer-expert", 20_000))
HANDS += (("relocate-expert", 60_000), ("door-expert", 60_000))
COLLAPSED = ("hammer-expert", "door-expert", "relocate-expert")
NUMBERS = {
    "mc above the closed form, seed 0": above_closed_form("mc", 0),
    "mc above the closed form, seed 1": above_closed_form("mc", 1),
    "mixed above the closed form, seed 0": above_closed_form("mixed", 0),
    "mixed above the closed form, seed 1": above_closed_form("mixed", 1),
    "noise above the closed form, seed 0": above_closed_form("noise", 0),
    "return in the episode of door-human's data": in_episode,
    "Q above hammer-expert's return": above_return,
    "return above Q": below_return,
    "lowest slope with SN": one_of(slopes, min),
    "highest slope with SN": one_of(slopes, max),
    "first crossing": one_of(crossings, min),
    "last crossing": one_of(crossings, max),
    "mean score on Gym-MuJoCo": mean_score("UWAC", *GYM),
    "mean score on hands": mean_score("UWAC + SN", *HANDS),
    "the paper's on Gym-MuJoCo": papers_scores(np.mean, "UWAC", *dict(GYM)),
    "the paper's on hands": papers_scores(np.mean, "UWAC", *dict(HANDS)),
    "the paper's lowest BEAR where ours collapses": papers_scores(min, "BEAR", *COLLAPSED),
    "the paper's highest BEAR where ours collapses": papers_scores(max, "BEAR", *COLLAPSED),
    "published mean of the paper's UWAC": published_mean("paper: UWAC"),
    "published mean of the paper's BEAR": published_mean("paper: BEAR"),
    "published mean of the official BEAR": published_mean("official BEAR, last 50 epochs"),
    "published mean of its best epochs": published_mean("official BEAR, best epoch"),
    "tasks where the paper exceeds all": exceeding,
    "p of training on LunarLander": p_of_lunarlander,
    "fewest hours with mc": hours("UWAC mc", 6, 9, 10, 11),
    "most hours with mc": hours("UWAC mc", 6, 9, 10, 11, of=max),
    "hours with the closed form in bfloat16": hours("UWAC analytic", 7),
    "lowest ratio of mc on an H200": ratio_of_mc(min, 12, 13, 14),
    "highest ratio of mc on an H200": ratio_of_mc(max, 12, 13, 14),
    "highest ratio of mc in float32": ratio_of_mc(max, 6, 9, 10, 11),
    "negative norm on door-expert": negative_norm,
    "largest lead over imitation": lead,
    "largest error of the late scores": late_error,
    "score of pen-expert's data": data_score,
}


# Pages and pictures.


def cell(t: Tables, column: tuple | Callable, row: dict) -> tuple[str, str]:
    """Its text, and the runs that it is of."""
    if callable(column):
        return column(t, row), ""
    phrase, form = column
    metric, _, group = phrase.partition(" of ")
    when = "" if " after " in metric else " " + moment(row["at"])
    value, runs = evaluated(t, f"{metric}{when} of {group or '{runs}'}".format(**row))
    return form(value) if runs else "–", runs


def row_of(t: Tables, table: Table, words: tuple) -> tuple[dict[str, str], str]:
    """Its cells by column, and the runs that they are of, in Markdown."""
    row = dict(zip(("name", "runs", "at", "at_sn"), words))
    row["task"] = row["runs"].split(",")[0].split(" ")[0]
    found = {column: cell(t, of, row) for column, of in table.columns.items()}
    runs = dict.fromkeys(run for _, some in found.values() for run in some.split(", ") if some)
    cells = {column: text for column, (text, _) in found.items()}
    return {table.title: row["name"]} | cells, f"- {row['name']}: {', '.join(runs)}"


def tables_of(t: Tables) -> tuple[dict[str, str], dict[str, str]]:
    """Tables and lists of their rows' runs, and their cells, by name."""
    tables, cells = {}, {}
    for name, table in TABLES.items():
        rows, runs = zip(*[row_of(t, table, words) for words in table.rows])
        tables |= {name: pages.markdown(rows), f"runs of {name}": "\n".join(dict.fromkeys(runs))}
        for row in rows:
            for column, text in row.items():
                cells.setdefault(f"{name} / {row[table.title]} / {column}", text)
    return tables, cells


def sources_of(t: Tables, section: str) -> str:
    """Where the numbers of a page's section are from, a line for each source."""
    lines: dict[str, list[str]] = {}
    for name, like in pages.names(section):
        if " / " not in name:
            value, source = evaluated(t, name)
            text = f"**{as_written(value, like)}** {name}"
            lines.setdefault(" ".join(source.split()), []).append(text)
    return "\n".join(f"- {'; '.join(numbers)}: {source}" for source, numbers in lines.items())


def made(t: Tables, page: str, found: tuple[dict, dict]) -> tuple[dict[str, str], pages.Number]:
    """Tables of a page by name, and what gives its numbers; `found` by `tables_of`."""
    tables, cells = dict(found[0]), found[1]
    for section in re.split(r"(?m)^(?=## )", page):
        for name in re.findall(r"<!-- table (numbers of .+?) -->", section):
            tables[name] = sources_of(t, section)

    @functools.cache
    def number(name: str, like: str) -> str:
        if " / " in name:
            return pages.find(name, cells)
        text = as_written(evaluated(t, name)[0], like)
        if text in ("nan", "–"):
            raise ValueError(f"{name}: nothing has this number")
        return text

    return tables, number


def late(t: Tables, hand: str) -> pictures.Figure:
    """Runs of the usual warm-up on a hand's expert data."""
    rows = t.history.query(RUNS[f"{hand}-expert late"])
    return pictures.bounds(rows, ["score_sample", "alpha"])


def drawn(t: Tables) -> dict[Path, pictures.Figure]:
    """Each picture by its file."""
    forks = t.history.query(RUNS["forks"])
    shown = forks.query("method not in ('uwac', 'bear-scaled-q') and fixed_w != 0")
    of_readme = forks.query("method in ('bear', 'uwac-no-sn')")
    return {
        tidy.FOLDER / "bounds.png": pictures.bounds(shown, ["target_q", "q_share"]),
        tidy.FOLDER / "q-share.png": pictures.q_share(t, SHOWN),
        tidy.FOLDER / "published.png": pictures.published(),
        ROOT / "docs" / "door-human.png": pictures.bounds(of_readme, ["target_q"]),
        **{tidy.FOLDER / f"late-{task}.png": late(t, task) for task in ("door", "relocate")},
    }


def content(figure: pictures.Figure) -> str:
    """A checksum of the points that a figure shows, and of its lines' colours."""
    shown, colours = [], []
    for axes in figure.findobj(pictures.Axes):
        shown += [line.get_xydata() for line in axes.lines]
        shown += [dots.get_offsets() for dots in axes.collections]
        colours += [str(line.get_color()) for line in axes.lines]
    numbers = [f"{x:.5g}" for points in shown for x in np.ma.filled(points, np.nan).flatten()]
    return hashlib.sha256(" ".join(numbers + colours).encode()).hexdigest()


def wrong_on(file: Path, t: Tables, tables: tuple[dict, dict]) -> list[str]:
    """What is not as the tables give it, by line. Raises OSError, and ValueError for a name that
    nothing has."""
    page = file.read_text(encoding="utf-8")
    found = pages.complaints(page, *made(t, page, tables))
    if file.name == "RESULTS.md":
        found += pages.unnamed(page, SETTINGS.split())
    return [f"{file.relative_to(ROOT)}:{line}" for line in found]


def wrong_picture(file: Path, figure: pictures.Figure) -> list[str]:
    """Raises OSError."""
    with Image.open(file) as image:
        same = image.text.get("Content") == content(figure)
    return [] if same else [f"{file.relative_to(ROOT)}: shows other numbers than the tables give"]


@dataclass
class Args:
    do: tyro.conf.Positional[Literal["write", "add"]] = "write"
    runs: tyro.conf.Positional[tuple[Path, ...]] = ()  # to add: folders of runs or of grids
    check: bool = False  # writes nothing, and says what is wrong


def main(args: Args) -> list[str]:
    """What is wrong. Raises ValueError, and OSError where a file cannot be read or written."""
    if args.do == "add":
        if not args.runs:
            raise ValueError("add: name folders of runs or of grids")
        print("\n".join(tidy.add(args.runs, tidy.FOLDER)))
    t = tidy.load(tidy.FOLDER)
    tables = tables_of(t)
    if args.check:
        found = [line for file in PAGES for line in wrong_on(file, t, tables)]
        return found + [line for pair in drawn(t).items() for line in wrong_picture(*pair)]
    for file in PAGES:
        page = file.read_text(encoding="utf-8")
        write(file, pages.written(page, *made(t, page, tables)).encode())
    for file, figure in drawn(t).items():
        figure.savefig(file, metadata={"Content": content(figure)})
    return []


if __name__ == "__main__":
    with errors_in_one_line():
        sys.exit("\n".join(main(tyro.cli(Args, description=__doc__))) or 0)
