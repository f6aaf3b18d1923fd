"""Every table and number of RESULTS.md, made of the tables in results/.

    python benchmark/results.py            # writes them into the page
    python benchmark/results.py --check    # says which one is not what the tables give

RESULTS.md is the source of its prose: lib/pages.py says how a table and a number stand in it. A
number's name is its place in one of the tables, TABLE / ROW / COLUMN or a part of it that no other
column has, or the name that one of the functions `of_...` below gives it.
"""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Tables
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import permutation_test

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmark.lib import pages, tidy
from benchmark.lib.published import others_scores
from benchmark.published_context import scores as published_context

PAGES = [ROOT / "benchmark" / "RESULTS.md"]
# Each number of RESULTS.md's sentences that somebody chose, as often as it stands there.
SETTINGS = """
0 1e-5 1e-5 1e-4 1e-4 1e-3 0.01 0.01 0.01 0.05 0.07 0.07 0.2 0.43 0.845 0.845 1 1 1 1 1 1 1 1 1
1 1 1 1.5 1.5 1.5 1.5 1.6 2 2 3 3 3 3 3 3 5 6 8 12 15 20 20 48 50 100 500 600 8,000 8,000 10,000
22,026 25,000 30,000 30,000 30,000 35,000 40,000 40,000 50,000 50,000 50,000 50,000 50,000
50,000 50,000 50,000 55,000 60,000 60,000 60,000 60,000 60,000 65,000 70,000 70,000 70,000
70,000 70,000 92,500 94,000 100,000 100,000 100,000 100,000 100,000 300,000 300,000 500,000
500,000
"""

# Which runs? Queries of runs.csv.
BEAR = "method == 'bear'"
BEAR_SN = "method == 'bear+sn'"
UWAC = "method in ('uwac-analytic', 'uwac-no-sn') and not spectral_norm"
UWAC_SN = "method == 'uwac-analytic' and spectral_norm"
FOUR = {"BEAR": BEAR, "UWAC": UWAC, "BEAR + SN": BEAR_SN, "UWAC + SN": UWAC_SN}
DOOR = "task == 'door-human' and warmup_steps == 40_000 and actor_lr == 1e-4"  # as is usual
FORKS = "task == 'door-human' and how == 'forks'"
PEN = "task == 'pen-expert' and warmup_steps == 10_000"
HAMMER = "task == 'hammer-expert' and warmup_steps == 10_000"
DOOR_EXPERT = "task == 'door-expert' and warmup_steps == 10_000"
RELOCATE = "task == 'relocate-expert' and warmup_steps == 10_000"
CHEETAH = "task == 'halfcheetah-medium'"
HOPPER = "task == 'hopper-medium' and mmd_kernel == 'laplacian'"
HOPPER_GAUSSIAN = "task == 'hopper-medium' and mmd_kernel == 'gaussian'"
WALKER = "task == 'walker2d-expert' and mmd_kernel == 'laplacian'"
WALKER_GAUSSIAN = "task == 'walker2d-expert' and mmd_kernel == 'gaussian'"


class Table(NamedTuple):
    title: str  # of the first column
    rows: list[tuple]  # of each row: its name, and what `cells` takes
    cells: Callable[..., tuple[dict[str, str], list[str]]]  # texts by column, and names of runs
    source: str  # files and columns
    commands: str  # that make the runs


class Number(NamedTuple):
    text: str
    source: str


# Values, and how they are printed.


def at(rows: pd.DataFrame, query: str, step: int, metric: str = "target_q") -> pd.Series:
    """A metric after some updates, of each agent of the runs that a query finds."""
    found = rows.query(f"({query}) and step == {step}").set_index(["run", "agent"])[metric]
    return found.dropna().rename(f"`{metric}` after {step:,} updates")


def since(t: Tables, query: str, step: int, metric: str) -> pd.Series:
    """The mean of a metric from an update on, of each agent."""
    late = t.history.query(f"({query}) and step >= {step}")
    means = late.groupby(["run", "agent"])[metric].mean()
    return means.rename(f"mean `{metric}` from {step:,} updates on")


def runs_of(*values: pd.Series) -> list[str]:
    return list(dict.fromkeys(run for some in values for run, _ in some.index))


def number(text: str, *values: pd.Series, file: str = "history") -> Number:
    """With the rows that it is made of."""
    parts = [f"{some.name} of {', '.join(runs_of(some))}" for some in values]
    return Number(text, f"[{file}.csv](results/{file}.csv), {'; '.join(parts)}")


def plain(value: float, digits: int = 0) -> str:
    """With commas, halves up, and no -0."""
    text = f"{value + np.copysign(1e-9, value):,.{digits}f}"
    return text if text.strip("-0.") else text.removeprefix("-")


def of_q(value: float) -> str:
    """A Q or a return; large ones as 4.3e8."""
    large = f"{value:.1e}".replace("e+0", "e").replace("e+", "e")
    return large if abs(value) >= 1e6 else plain(value)


def extremes(name: str, values: pd.Series, text=of_q, file: str = "history") -> dict[str, Number]:
    ends = {f"{name}, lowest": values.min(), f"{name}, highest": values.max()}
    return {name: number(text(value), values, file=file) for name, value in ends.items()}


def small(value: float) -> str:
    """With a digit after the point where it is below 10."""
    return plain(value, 1 if abs(value) < 10 else 0)


def short(value: float) -> str:
    """Two digits."""
    return plain(value) if value >= 10 else f"{value:.2g}"


def fraction(value: float) -> str:
    """Two digits after the point, one of what is less than 0.01."""
    return (
        short(value)
        if value >= 1 or value == 0
        else f"{value:.2f}"
        if value >= 0.01
        else f"{value:.1g}"
    )


def median(values: pd.Series) -> str:
    return of_q(values.median()) if len(values) else "–"


def with_error(values: pd.Series, digits: int = 1) -> str:
    """Mean ± standard error; the mean alone of a single value."""
    mean = plain(values.mean(), digits) if len(values) else "–"
    return f"{mean} ± {values.sem():.{digits}f}" if len(values) > 1 else mean


def p_value(one: pd.Series, other: pd.Series) -> float:
    """Of a permutation test: the share of all ways to deal the values to two groups, as many to
    each, whose means differ as much or more."""
    gap = lambda a, b, axis: np.abs(a.mean(axis) - b.mean(axis))
    return permutation_test((one, other), gap, alternative="greater", rng=0).pvalue


def passing(t: Tables, values: pd.Series, factor: float = 1) -> int:
    """How many Q pass their bound, or a multiple of it: the largest reward / (1 - gamma)."""
    bounds = t.runs.set_index("run")["bound"]
    return sum(q > factor * bounds[run] for (run, _), q in values.items())


# What bounds Q?


def bounds(t: Tables, query: str) -> tuple[dict, list]:
    query = f"{FORKS} and {query}"
    q = at(t.history, query, 92_500)
    weight = at(t.history, query, 50_000, "policy_weight")
    share = at(t.history, query, 50_000, "q_share")
    return {
        "w in the actor's loss": fraction(weight.median()),
        "Q's share of the actor's gradient, %": fraction(100 * share.median()),
        "Q after 92,500 updates, median": median(q),
        "lowest seed": of_q(q.min()),
        "highest seed": of_q(q.max()),
        "seeds that explode": str(passing(t, q)),
    }, runs_of(q)


BOUNDS = [
    ("BEAR", BEAR),
    ("UWAC with w in the critics' loss alone", "method == 'uwac-critic-only'"),
    ("UWAC with w's batch mean in the actor's loss", "method == 'uwac-actor-constant'"),
    ("BEAR with w = 0.43 in the actor's loss", "method == 'bear-fixed-w' and fixed_w == 0.43"),
    ("UWAC", UWAC),
    ("UWAC, `mc` (the default)", "method == 'uwac'"),
    ("BEAR with w = 0.01 in the actor's loss", "method == 'bear-fixed-w' and fixed_w == 0.01"),
    ("BEAR with Q over its mean: 2.5 Q / mean \\|Q\\|, as in TD3+BC", "method == 'bear-scaled-q'"),
    ("BEAR whose actor never sees Q", "method == 'bear-fixed-w' and fixed_w == 0"),
]


def of_bounds(t: Tables) -> dict[str, Number]:
    rows = [f"{FORKS} and {query}" for _, query in BOUNDS]
    first, others = (f"({' or '.join(some)})" for some in (rows[:4], rows[4:]))
    early = 100 * at(t.history, first, 50_000, "q_share")
    few = 100 * at(t.history, others, 50_000, "q_share")
    ends = at(t.history, first, 92_500)
    found = {
        "runs with a large share": number(str(len(early)), early),
        **extremes("large share", early, plain),
        "runs with a large share that explode": number(str(passing(t, ends)), ends),
        "runs with a small share": number(str(len(few)), few),
        "small share, highest": number(fraction(few.max()), few),
    }
    for name, row in (("UWAC", 4), ("w = 0.01", 6)):
        late = 100 * since(t, rows[row], 60_000, "q_share")
        found |= extremes(f"late share of {name}", late, lambda share: plain(share, 2))
    weight = since(t, rows[4], 60_000, "policy_weight")
    found |= extremes("late w of UWAC", weight, lambda w: plain(w, 1))
    found["late w of UWAC, mean"] = number(plain(weight.mean(), 2), weight)
    rank = at(t.diagnoses, rows[4], 94_000, "rank_with_q2")
    found |= extremes("rank", rank, lambda rank: plain(rank, 2), file="diagnoses")
    return found | of_critics_weights(t) | of_estimators(t)


def of_critics_weights(t: Tables) -> dict[str, Number]:
    """On door-human without SN, after 70,000 updates, on all devices."""
    usual = f"{DOOR} and not spectral_norm and q_noise != True"
    q = lambda query: at(t.history, f"{usual} and {query}", 70_000)
    uwac, mc = q("method == 'uwac-no-sn'"), q("method == 'uwac'")
    alone, shuffled = q("method == 'uwac-actor-only'"), q("method == 'uwac-shuffled'")
    p = lambda one, other, digits=3: number(plain(p_value(one, other), digits), one, other)
    return {
        "Q of UWAC at 70,000": number(median(uwac), uwac),
        "Q with w in the actor's loss alone": number(median(alone), alone),
        "Q with w shuffled": number(median(shuffled), shuffled),
        "p of the critics' weights": p(uwac, alone),
        "p of shuffled weights": p(uwac, shuffled),
        "p of mc": p(mc, uwac),
    }


def of_estimators(t: Tables) -> dict[str, Number]:
    """How much higher Q is than with the closed form, 8,000 updates on."""
    last = t.estimators[t.estimators["step"] == 8_000]
    q = last.pivot(index="agent", columns="estimate", values="target_q")
    gaps = q.sub(q["analytic"], axis=0)
    found = {}
    for agent, row in gaps.iterrows():
        for estimate, gap in row.dropna().items():
            source = f"estimators.csv: agent {agent}, {estimate} and analytic"
            found[f"{estimate} above the closed form, seed {agent}"] = Number(plain(gap), source)
    return found


# Does Q explode without UWAC?


def targets(t: Tables, task: str, query: str, step: int) -> tuple[dict, list]:
    found = {name: at(t.history, f"{query} and {of}", step) for name, of in FOUR.items()}
    data = t.returns.query(f"task == '{task}' and of == 'data'").squeeze()
    known = t.runs.query(query)["bound"].dropna()  # else that of another roll-out
    return {
        "updates": f"{step:,}",
        "seeds": str(max(map(len, found.values()))),
        "bound": of_q(known.iloc[0] if len(known) else data["bound"]),
        "the data's discounted return": of_q(data["continued"]),
        "constant critic, mean reward / (1 - γ)": of_q(data["constant"]),
        **{name: median(values) for name, values in found.items()},
    }, runs_of(*found.values())


FLOAT32 = "precision == 'float32'"  # of two runs of a seed the one on the other methods' CPU
TARGETS = [
    ("door-human", "door-human", DOOR, 100_000),
    ("pen-expert", "pen-expert", PEN, 30_000),
    ("hammer-expert", "hammer-expert", HAMMER, 20_000),
    ("door-expert", "door-expert", f"{DOOR_EXPERT} and {FLOAT32}", 20_000),
    ("relocate-expert", "relocate-expert", f"{RELOCATE} and {FLOAT32}", 25_000),
    ("hopper-medium, Gaussian kernel", "hopper-medium", HOPPER_GAUSSIAN, 80_000),
    ("halfcheetah-medium", "halfcheetah-medium", CHEETAH, 100_000),
    ("walker2d-expert", "walker2d-expert", WALKER, 300_000),
]


def of_targets(t: Tables) -> dict[str, Number]:
    experts = f"({HAMMER} or {DOOR_EXPERT} or {RELOCATE})"
    uwac_sn = at(t.history, f"{experts} and {UWAC_SN}", 60_000)
    bear = at(t.history, f"{experts} and {BEAR}", 60_000)
    in_episode = t.returns.query("task == 'door-human' and of == 'data'")["in_episode"]
    rates = {}
    for rate, step in (("1e-5", "actor_lr == 1e-5"), ("1e-3", "actor_lr == 1e-3")):
        query = f"task == 'door-human' and warmup_steps == 40_000 and {BEAR} and {step}"
        q = at(t.history, query, 70_000)
        rates[f"BEAR, actor at {rate}"] = number(of_q(q.item()), q)
    usual = at(t.history, f"{DOOR} and {BEAR} and {FLOAT32}", 70_000)
    return rates | {
        "BEAR, actor at 1e-4": number(median(usual), usual),
        "experts after 60,000: UWAC + SN, highest": number(of_q(uwac_sn.max()), uwac_sn),
        "experts after 60,000: BEAR, lowest": number(of_q(bear.min()), bear),
        "door-human's return in the episode": Number(of_q(in_episode.item()), "returns.csv"),
    }


# Is Q right?


def returns(t: Tables, query: str, step: int) -> tuple[dict, list]:
    one = t.returns.query(f"{query} and step == {step}").squeeze()
    return {
        "updates": f"{step:,}",
        "Q on its own states, mean": of_q(one["q"]),
        "Q, standard deviation": small(one["q_std"]),
        "discounted return, mean": of_q(one["played"]),
        "return, standard error": small(one["played_error"]),
        "return, standard deviation": small(one["played_std"]),
    }, [one["run"]]


RETURNS = [
    ("hammer-expert: UWAC + SN", f"{HAMMER} and {UWAC_SN}", 60_000),
    ("door-expert: UWAC + SN", f"{DOOR_EXPERT} and {UWAC_SN}", 60_000),
    ("relocate-expert: UWAC + SN", f"{RELOCATE} and {UWAC_SN}", 60_000),
    ("hammer-expert: UWAC", f"{HAMMER} and {UWAC}", 60_000),
    ("door-expert: UWAC", f"{DOOR_EXPERT} and {UWAC}", 60_000),
    ("relocate-expert: UWAC", f"{RELOCATE} and {UWAC} and seed == 0", 25_000),
    ("the same, second seed", f"{RELOCATE} and {UWAC} and seed == 1", 25_000),
    ("the same, third seed", f"{RELOCATE} and {UWAC} and seed == 2", 25_000),
]


def of_returns(t: Tables) -> dict[str, Number]:
    one = t.returns.query(f"{HAMMER} and {UWAC} and step == 35_000").squeeze()
    above = 100 * (one["q"] / one["played"] - 1)
    source = f"returns.csv: `q` over `played` after 35,000 updates of {one['run']}"
    return {"Q above hammer-expert's return, %": Number(plain(above), source)}


# What does spectral norm do?


def normed(t: Tables, query: str) -> tuple[dict, list]:
    query = f"{DOOR} and spectral_norm and q_noise != True and {query}"
    early, late = (at(t.history, query, step) for step in (50_000, 70_000))
    return {
        "seeds": str(len(early)),
        "w after 50,000 updates": short(at(t.history, query, 50_000, "weight").median()),
        "Q after 50,000": median(early),
        "Q after 70,000": median(late),
    }, runs_of(early)


NORMED = [
    ("BEAR + SN", BEAR_SN),
    ("BEAR + dropout + SN", "method == 'bear+dropout+sn'"),
    ("UWAC + SN", "method == 'uwac-analytic' and beta == 1.6"),
    ("UWAC + SN, β = 0.8", "method == 'uwac-analytic' and beta == 0.8"),
    ("UWAC + SN, β = 2.5", "method == 'uwac-analytic' and beta == 2.5"),
    ("UWAC + SN, `mc`", "method == 'uwac'"),
    ("UWAC + SN, `std`", "method == 'uwac-std'"),
    ("UWAC + SN, ensemble in place of dropout", "method == 'uwac-ensemble'"),
    ("UWAC + SN, REM (random ensemble mixtures)", "method == 'uwac-rem'"),
]


def of_normed(t: Tables) -> dict[str, Number]:
    first = f"{DOOR} and {FLOAT32} and seed == 0"  # one seed, as those it is compared with
    bear, early, late = (
        at(t.history, f"{first} and {of}", step)
        for of, step in ((BEAR_SN, 70_000), (UWAC_SN, 50_000), (UWAC_SN, 70_000))
    )
    dropout = at(t.history, f"{DOOR} and method == 'bear+dropout+sn'", 70_000)
    every = at(t.history, f"{DOOR} and spectral_norm and q_noise != True", 50_000)
    hands = f"warmup_steps == 10_000 and spectral_norm and task.str.endswith('-expert')"
    starts, ends = t.history.query(f"{hands} and step == 10_000"), t.history.query(hands)
    last = ends[ends["step"] == ends["updates"]].set_index(["run", "agent"])
    gained = last["target_q"] - starts.set_index(["run", "agent"])["target_q"]
    slopes = (gained / (last["updates"] - 10_000)).rename("gain of `target_q` an update")
    door = last.query("task == 'door-expert' and updates == 60_000")
    left = (door["bound"] - door["target_q"]) / slopes[door.index]
    crossing = (60_000 + left).round(-4).rename("where it passes the bound")
    change = 100 * (dropout.item() / bear.item() - 1)
    return {
        "BEAR + SN, one seed": number(median(bear), bear),
        "UWAC + SN after 50,000, one seed": number(median(early), early),
        "UWAC + SN after 70,000, one seed": number(median(late), late),
        "change of Q by dropout, %": number(plain(change), dropout, bear),
        "spread of Q with SN, %": number(plain(100 * (every.max() / every.min() - 1)), every),
        **extremes("slope of Q with SN", slopes, lambda slope: plain(slope, 3)),
        **extremes("door-expert's crossing", crossing, plain),
    }


# Does Q train the actor?

DIAGNOSED = {"mmd": "mmd_10", "ood_auroc": "auroc_uniform", "q_share": "q_share"}


def measured(t: Tables, query: str, step: int, metric: str) -> pd.Series:
    """As diagnose.py measured it, or where it did not as the training did."""
    trained = at(t.history, query, step, metric)
    return (
        at(t.diagnoses, query, step, DIAGNOSED[metric]).combine_first(trained).rename(trained.name)
    )


def shares(t: Tables, query: str, step: int) -> tuple[dict, list]:
    share = measured(t, query, step, "q_share")
    weight = at(t.history, query, step, "policy_weight")  # BEAR has none
    return {
        "updates": f"{step:,}",
        "runs": str(len(share)),
        "MMD, mean": plain(measured(t, query, step, "mmd").mean(), 3),
        "α": short(at(t.history, query, step, "alpha").mean()),
        "actor's w": fraction(weight.mean()) if len(weight) else "1",
        "Q's share, %": fraction(100 * share.mean()),
    }, runs_of(share)


SHARES = [
    ("door-human: BEAR + SN", f"{DOOR} and {BEAR_SN}", 100_000),
    ("door-human: BEAR", f"{DOOR} and {BEAR} and not {FLOAT32}", 60_000),
    ("hopper-medium: BEAR, Gaussian kernel †", f"{HOPPER_GAUSSIAN} and {BEAR}", 80_000),
    ("hopper-medium: UWAC, Gaussian kernel †", f"{HOPPER_GAUSSIAN} and {UWAC}", 80_000),
    ("door-expert: UWAC + SN †", f"{DOOR_EXPERT} and {UWAC_SN}", 60_000),
]


def of_shares(t: Tables) -> dict[str, Number]:
    bear = 100 * measured(t, f"{DOOR} and {BEAR}", 50_000, "q_share")
    early = f"task == 'door-human' and warmup_steps == 5_000 and {UWAC_SN}"
    early = t.diagnoses.query(early).set_index(["run", "agent"])["q_share"]
    experts = t.diagnoses.query(f"({HAMMER} or {DOOR_EXPERT}) and {UWAC}")
    experts = 100 * experts.set_index(["run", "agent"])["q_share"]
    return {
        **extremes("BEAR's share", bear, plain, "diagnoses"),
        "share with early Q, highest": number(plain(100 * early.max()), early, file="diagnoses"),
        **extremes("share of UWAC on experts", experts, plain, "diagnoses"),
    }


# Do the weights tell states apart?


def unequal(t: Tables, query: str, step: int, digits: int, sn_step: int) -> tuple[dict, list]:
    sn, without = f"{query} and {UWAC_SN}", f"{query} and {UWAC}"
    detected_sn, detected = (
        measured(t, sn, sn_step, "ood_auroc"),
        measured(t, without, step, "ood_auroc"),
    )
    task = detected.index[0][0].split("_")[0]
    data = t.diagnoses.query(f"run == '{task}_untrained' or ({without})")
    data = data[["auroc_untrained", "auroc_action_norm"]].dropna().head(1)
    untrained, norm = [plain(auroc, 2) for auroc in data.to_numpy().flatten()] or ["–", "–"]
    return {
        "inequality of w, with SN": plain(inequality(t, sn, sn_step).median(), 4),
        "without SN": plain(inequality(t, without, step).median(), digits),
        "AUROC, with SN": plain(detected_sn.mean(), 2),
        "AUROC, without SN": plain(detected.mean(), 2),
        "shuffled actions, without SN": plain(
            at(t.diagnoses, without, step, "auroc_shuffled").mean(), 2
        ),
        "untrained networks": untrained,
        "the action's norm": norm,
    }, runs_of(detected_sn, detected)


def inequality(t: Tables, query: str, step: int) -> pd.Series:
    """E[w] E[Var] / beta."""
    weight, variance, beta = (at(t.history, query, step, x) for x in ("weight", "variance", "beta"))
    return weight * variance / beta


UNEQUAL = [
    ("door-human", f"{DOOR} and q_noise != True", 100_000, 0, 100_000),
    ("pen-expert", PEN, 30_000, 0, 30_000),
    ("relocate-expert †", RELOCATE, 25_000, 1, 60_000),
    ("hammer-expert †", HAMMER, 60_000, 1, 60_000),
    ("door-expert †", DOOR_EXPERT, 60_000, 2, 60_000),
    ("walker2d-expert", WALKER, 300_000, 3, 50_000),
]


def of_unequal(t: Tables) -> dict[str, Number]:
    tasks = ("door-human", "pen-expert", "relocate-expert", "hammer-expert", "door-expert")
    rows = t.diagnoses[t.diagnoses["run"].str.startswith(tasks)]
    rows = rows[~rows["method"].isin(["uwac-ensemble", "uwac-rem"])]
    door = rows.query(DOOR_EXPERT)["auroc_action_norm"].iloc[0]
    lowest, highest = rows["auroc_untrained_lowest"].min(), rows["auroc_untrained_highest"].max()
    nearest = rows["auroc_nearest"].min()
    from_ = lambda text: Number(text, "diagnoses.csv")
    return {
        "negative norm on door-expert": from_(plain(1 - door, 2)),
        "untrained, lowest": from_(plain(lowest, 2)),
        "untrained, highest": from_(plain(highest, 2)),
        "distance to the data": from_(plain(nearest, 2)),
    }


# Which scores higher?


def played(t: Tables, query: str, step: int, policy: str = "sample") -> pd.Series:
    """Mean scores. Those of door-human are of 60 episodes, of BEAR's first seed of 100."""
    chosen = f"policy == '{policy}' and (task != 'door-human' or episodes == 60 or {BEAR})"
    return at(t.policies, f"{query} and {chosen}", step, "score")


def cloned(t: Tables, task: str) -> pd.Series:
    """Of behaviour cloning's seeds after its last update."""
    return t.bc.query(f"task == '{task}' and step == 100_000").set_index("agent")["score"]


def scores(t: Tables, task: str, query: str, step: int) -> tuple[dict, list]:
    found = {name: played(t, f"{query} and {of}", step) for name, of in FOUR.items()}
    if task == "door-human":
        found["UWAC"] = found["UWAC"].iloc[:0]  # one seed, with 100 episodes, was played
    of_vae = played(t, f"{query} and method == 'uwac-analytic'", step, "vae")
    return {
        "updates": f"{step:,}",
        "seeds": str(max(map(len, found.values()))),
        **{name: with_error(values) for name, values in found.items()},
        "its VAE": with_error(of_vae),
        "BC": with_error(cloned(t, task)),
        "the paper's UWAC": plain(others_scores().loc[task, "paper: UWAC"], 1),
    }, runs_of(*found.values(), of_vae)


SCORES = [
    ("door-human", "door-human", DOOR, 100_000),
    ("pen-expert", "pen-expert", PEN, 30_000),
    ("walker2d-expert", "walker2d-expert", WALKER, 300_000),
    ("hopper-medium", "hopper-medium", HOPPER, 100_000),
    ("halfcheetah-medium", "halfcheetah-medium", CHEETAH, 100_000),
    ("walker2d-expert, Gaussian kernel †", "walker2d-expert", WALKER_GAUSSIAN, 100_000),
    ("hopper-medium, Gaussian kernel †", "hopper-medium", HOPPER_GAUSSIAN, 80_000),
    ("relocate-expert †", "relocate-expert", RELOCATE, 60_000),
    ("hammer-expert †", "hammer-expert", HAMMER, 20_000),
    ("hammer-expert †", "hammer-expert", HAMMER, 60_000),
    ("door-expert †", "door-expert", DOOR_EXPERT, 60_000),
]


def of_scores(t: Tables) -> dict[str, Number]:
    fall = f"{DOOR_EXPERT} and {UWAC_SN}"
    high, low = (at(t.history, fall, step, "score_sample") for step in (10_000, 30_000))
    fell = [played(t, f"{DOOR} and {BEAR} and seed > 0", step) for step in (40_000, 50_000)]
    late = lambda of: since(t, f"{HOPPER_GAUSSIAN} and {of}", 50_000, "score_sample")
    bear, uwac, scaled = late(BEAR), late(UWAC), late("method == 'bear-scaled-q'")
    return of_paper(t) | {
        "door-expert at the warm-up's end": number(plain(high.item()), high),
        "door-expert after 30,000": number(plain(low.item(), 1), low),
        "BEAR's score after 40,000": number(plain(fell[0].mean(), 1), fell[0], file="policies"),
        "BEAR's score after 50,000": number(plain(fell[1].mean(), 1), fell[1], file="policies"),
        "hopper-medium, late score of BEAR": number(plain(bear.mean(), 1), bear),
        "hopper-medium, late score of UWAC": number(plain(uwac.mean(), 1), uwac),
        "hopper-medium, late score with Q over its mean": number(plain(scaled.mean(), 1), scaled),
        "p of hopper-medium's late scores": number(plain(p_value(bear, uwac), 2), bear, uwac),
    }


def of_paper(t: Tables) -> dict[str, Number]:
    """Means over tasks, beside the paper's; and what others published."""
    paper = others_scores()["paper: UWAC"]
    gym = [(WALKER, 300_000), (HOPPER, 100_000), (CHEETAH, 100_000)]
    hands = [
        (DOOR, 100_000),
        (PEN, 30_000),
        (HAMMER, 60_000),
        (RELOCATE, 60_000),
        (DOOR_EXPERT, 60_000),
    ]
    found = {}
    for name, of, cases in (("Gym-MuJoCo", UWAC, gym), ("hands", UWAC_SN, hands)):
        ours = [played(t, f"{query} and {of}", step) for query, step in cases]
        tasks = [runs_of(values)[0].split("_")[0] for values in ours]
        found[f"mean score on {name}"] = number(
            plain(np.mean([x.mean() for x in ours]), 1), *ours, file="policies"
        )
        found[f"the paper's on {name}"] = Number(
            plain(paper[tasks].mean(), 1), "table1.csv, table2.csv"
        )
    return found | of_others()


def of_others() -> dict[str, Number]:
    """What others published on the paper's tasks."""
    context = published_context()
    found = {
        "tasks where the paper exceeds all": (
            context["paper: UWAC"] > context["highest of anyone"]
        ).sum()
    }
    for name, column in {
        "the paper's UWAC": "paper: UWAC",
        "the paper's BEAR": "paper: BEAR",
        "the official BEAR, last 50 epochs": "official BEAR, last 50 epochs",
        "the official BEAR, best epoch": "official BEAR, best epoch",
    }.items():
        found[f"published mean of {name}"] = context[column].mean()
    source = "table1.csv, bear_official_logs.csv, d4rl_v0_evaluations.csv in paper/"
    text = lambda value: str(value) if isinstance(value, np.integer) else plain(value, 1)
    return {name: Number(text(value), source) for name, value in found.items()}


# Does dropout variance find removed states?


def lunarlander(t: Tables, query: str, column: str) -> tuple[dict, list]:
    found = {}
    for clip, rows in t.lunarlander.query(query).groupby("removed"):
        aurocs = rows[column].drop_duplicates()  # of the agents, or one of the states
        digits = int(-np.floor(np.log10(aurocs.sem()))) if len(aurocs) > 1 else 2
        found[f"{clip} removed"] = with_error(aurocs, digits)
    return found, []


LUNARLANDER = [
    ("Var[Q] of an untrained network", "step == 0 and beta == 1.6", "auroc_variance"),
    ("Var[Q] after 8,000 updates", "step == 8_000 and beta == 1.6", "auroc_variance"),
    (
        "Var[Q] after 8,000 updates, weights off (`--beta 1e9`)",
        "step == 8_000 and beta == 1e9",
        "auroc_variance",
    ),
    ("distance to the nearest training state", "step == 0 and beta == 1.6", "auroc_distance"),
]


def of_lunarlander(t: Tables) -> dict[str, Number]:
    """Paired: the mean of an agent's ten measurements against its untrained network."""
    rows = t.lunarlander.query("beta == 1.6 and removed == 'left'").set_index("agent")
    later = rows[rows["step"] > 0].groupby("agent")["auroc_variance"].mean()
    gaps = later - rows[rows["step"] == 0]["auroc_variance"]
    size = lambda gap, axis: np.abs(gap.mean(axis))
    test = permutation_test((gaps,), size, permutation_type="samples", alternative="greater", rng=0)
    return {"p of training on LunarLander": Number(plain(test.pvalue, 2), "lunarlander.csv")}


# What does an update cost?


def speed(t: Tables, series: int) -> tuple[dict, list]:
    rows = t.speed.query(f"series == {series} and num_seeds == 1")
    ms = rows.pivot(index="round", columns="version", values="ms")
    over = ms.div(ms["BEAR"], axis=0).median()
    bear = ms["BEAR"].median()
    times = lambda name: short(over[name]) if over[name] > 3 else plain(over[name], 2)
    return {
        "BEAR, ms": plain(bear) if bear >= 20 else f"{bear:.3g}",
        "UWAC, closed form": times("UWAC analytic"),
        "UWAC, `mc`": times("UWAC mc"),
        "`mc` at every candidate action (the paper, read literally)": times("UWAC literal")
        if "UWAC literal" in ms
        else "–",
    }, []


SPEED = [
    ("one thread of a Xeon, float32", 11),
    ("one thread of a Xeon with AMX, bfloat16", 7),
    ("[H200](results/speed.csv), one series", 12),
    ("H200, another series", 13),
    ("H200, `--cuda-graph`", 14),
]


def of_speed(t: Tables) -> dict[str, Number]:
    alone = t.speed.query("num_seeds == 1 and batch_size == 256 and passes == 100")
    ms = alone.groupby(["series", "version"])["ms"].median().unstack()
    hours = ms * 500_000 / 3.6e6
    with_mc = hours.loc[[6, 10, 11], "UWAC mc"]
    ratios = [float(speed(t, series)[0]["UWAC, `mc`"]) for series in (12, 13, 14)]
    from_ = lambda text, series: Number(text, f"speed.csv: series {series}")
    return {
        "ratio of mc on an H200, lowest": from_(plain(min(ratios), 1), "12 to 14"),
        "ratio of mc on an H200, highest": from_(plain(max(ratios), 1), "12 to 14"),
        "hours with mc, fewest": from_(plain(with_mc.min()), "6, 10, 11"),
        "hours with mc, most": from_(plain(with_mc.max()), "6, 10, 11"),
        "hours with the closed form in bfloat16": from_(plain(hours.loc[7, "UWAC analytic"]), 7),
    }


HISTORY, POLICIES = "[history.csv](results/history.csv)", "[policies.csv](results/policies.csv)"
DIAGNOSES, DATA = "[diagnoses.csv](results/diagnoses.csv)", "[returns.csv](results/returns.csv)"
SIX = "python benchmark/run.py --tasks hammer-expert door-expert relocate-expert "
SIX += "--methods bear bear+sn uwac-analytic uwac-no-sn --seeds 1 --warmup-steps 10000 "
SIX += "--total-steps 60000  # some stopped before, and two tasks have more seeds"
GYM = "python benchmark/run.py --tasks hopper-medium halfcheetah-medium --methods bear "
GYM += "uwac-analytic --seeds 2 --total-steps 100000  # walker2d-expert: 300000, one seed"
USUAL = "python benchmark/run.py --methods bear bear+sn uwac-analytic uwac-no-sn --seeds 3 "
USUAL += "--total-steps 100000"
OF_PEN = "python benchmark/run.py --tasks pen-expert --methods bear bear+sn uwac-analytic "
OF_PEN += "uwac-no-sn --seeds 3 --warmup-steps 10000 --total-steps 30000"

TABLES = {
    "bounds": Table(
        "three seeds each",
        BOUNDS,
        bounds,
        f"{HISTORY}: `target_q` at step 92500; `policy_weight` and `q_share` at step 50000.",
        """\
python benchmark/run.py --methods bear uwac-no-sn uwac-shuffled uwac-constant uwac-actor-constant \\
    uwac-critic-only uwac-actor-only bear-scaled-q bear-fixed-w --seeds 1 --num-seeds 3 \\
    --total-steps 92500
python benchmark/run.py --methods bear-fixed-w --fixed-w 0.43 --seeds 1 --num-seeds 3 \\
    --total-steps 92500  # 0: the actor never sees Q
python benchmark/run.py --methods uwac --spectral-norm False --seeds 1 --num-seeds 3 \\
    --total-steps 92500""",
    ),
    "targets": Table(
        "median Q target on",
        TARGETS,
        targets,
        f"{HISTORY}: `target_q` at the step; {DATA}: the data's `continued`, `constant`, `bound`.",
        "\n".join([USUAL, OF_PEN, SIX, GYM, "python benchmark/true_q.py door-human hammer-expert"]),
    ),
    "returns": Table(
        "run (one seed)",
        RETURNS,
        returns,
        f"{DATA}: `q`, `q_std`, `played`, `played_error`, `played_std` at the step.",
        f"{SIX}\npython benchmark/true_q.py --policy runs/RUN",
    ),
    "normed": Table(
        "on door-human, all with SN",
        NORMED,
        normed,
        f"{HISTORY}: `target_q` and `weight` at the steps.",
        """\
python benchmark/run.py --methods bear+sn bear+dropout+sn uwac --seeds 1 --total-steps 70000
python benchmark/run.py --methods uwac-std --variance analytic --seeds 1 --total-steps 70000
python benchmark/run.py --methods uwac-analytic --seeds 1 --total-steps 70000 --beta 0.8
python benchmark/run.py --methods uwac-ensemble uwac-rem --seeds 1 --total-steps 50000""",
    ),
    "shares": Table(
        "run",
        SHARES,
        shares,
        f"{DIAGNOSES}: `q_share` and `mmd_10`, where there are none {HISTORY}; `alpha`.",
        """\
python bear.py --env-id door-human --total-steps 60000 --eval-every 2500  # --seed 0, 1, 2
python benchmark/diagnose.py COPY  # of the run's folder at an earlier update""",
    ),
    "unequal": Table(
        "UWAC on",
        UNEQUAL,
        unequal,
        f"{HISTORY}: `weight`, `variance`; {DIAGNOSES}: `auroc_...` of the runs, untrained ones "
        "and those of the data.",
        f"{USUAL}\n{OF_PEN}\n{SIX}\npython benchmark/diagnose.py runs/RUN",
    ),
    "scores": Table(
        "score on",
        SCORES,
        scores,
        f"{POLICIES}: `score` of the policies sample and vae at the step; "
        "[bc.csv](results/bc.csv); [the paper's](paper/table1.csv) [tables](paper/table2.csv).",
        f"{USUAL}\n{OF_PEN}\n{SIX}\n{GYM}\n"
        "python benchmark/evaluate.py runs/RUN --policies sample vae\n"
        "python benchmark/bc.py --env-id door-human",
    ),
    "lunarlander": Table(
        "AUROC of removed states, five seeds",
        LUNARLANDER,
        lunarlander,
        "[lunarlander.csv](results/lunarlander.csv): `auroc_variance`, `auroc_distance`.",
        """\
python lunarlander_uncertainty.py
python lunarlander_uncertainty.py --beta 1e9 --run-dir runs/unweighted \\
    --expert runs/lunarlander/expert.npz""",
    ),
    "speed": Table(
        "an update, without evaluations",
        SPEED,
        speed,
        "[speed.csv](results/speed.csv): series 11, 7, 12, 13, 14; medians over rounds of `ms`, "
        "and of its ratios to BEAR's in the same round.",
        "python benchmark/speed.py --threads 1",
    ),
}
NUMBERS = {
    "bounds": of_bounds,
    "targets": of_targets,
    "returns": of_returns,
    "normed": of_normed,
    "shares": of_shares,
    "unequal": of_unequal,
    "scores": of_scores,
    "lunarlander": of_lunarlander,
    "speed": of_speed,
}


def folded(title: str, lines: list[str]) -> str:
    return "\n".join([f"<details><summary>{title}</summary>\n", *lines, "\n</details>"])


def block_of(table: Table, cells: list[dict], runs: list[list[str]]) -> str:
    """A table, and folded below it where it comes from."""
    lines = [table.source, ""]
    for row, of_row in zip(cells, runs):
        if of_row:
            lines.append(f"- {row[table.title]}: {', '.join(of_row)}")
    lines += ["", "```bash", table.commands, "```"]
    return pages.markdown(cells) + "\n\n" + folded("Source, runs and commands", lines)


def sources_of(numbers: dict[str, Number]) -> str:
    """A line for each source."""
    of_source: dict[str, list[str]] = {}
    for name, one in numbers.items():
        of_source.setdefault(one.source, []).append(f"**{one.text}** {name}")
    lines = [f"- {'; '.join(named)}: {source}" for source, named in of_source.items()]
    return folded("Source of the numbers in sentences", lines)


def everything(t: Tables) -> tuple[dict[str, str], dict[str, str]]:
    """Tables and numbers of the pages, by their names."""
    tables, numbers = {}, {}
    for name, table in TABLES.items():
        cells, runs = [], []
        for label, *args in table.rows:
            row, of_row = table.cells(t, *args)
            cells.append({table.title: label} | row)
            runs.append(of_row)
            for column, text in row.items():
                numbers.setdefault(f"{name} / {label} / {column}", text)
        tables[name] = block_of(table, cells, runs)
    for name, numbers_of in NUMBERS.items():
        found = numbers_of(t)
        tables[f"numbers of {name}"] = sources_of(found)
        numbers |= {of: one.text for of, one in found.items()}
    return tables, numbers


def check(page: Path, tables: dict[str, str], numbers: dict[str, str]) -> list[str]:
    """What is wrong on a page, a line each. Raises OSError."""
    text = page.read_text(encoding="utf-8")
    found = pages.complaints(text, tables, numbers)
    if page.name == "RESULTS.md":
        found += pages.unnamed(text, Counter(SETTINGS.split()))
    return [f"{page.relative_to(ROOT)}:{line}" for line in found]


def main(words: list[str]) -> list[str]:
    """Raises ValueError, and OSError where a file cannot be read or written."""
    tables, numbers = everything(tidy.load())
    if words == ["--check"]:
        return [line for page in PAGES for line in check(page, tables, numbers)]
    for page in PAGES:
        text = pages.written(page.read_text(encoding="utf-8"), tables, numbers)
        page.write_text(text, encoding="utf-8")
    return []


if __name__ == "__main__":
    sys.exit("\n".join(main(sys.argv[1:])) or 0)
