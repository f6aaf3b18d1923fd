"""Numbers as they are printed, tests, and report.py's tables; CAPTIONS say what these hold."""

from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import bootstrap, permutation_test, trim_mean

from benchmark.lib.policies import POLICIES
from benchmark.lib.published import BC, cloned_scores, others_scores
from benchmark.lib.runs import METHOD, SETTING

SCORES = ["score", "score_sample"]
COLUMNS = {  # of a metric in the table of runs
    "score": "score",
    "score_sample": "sample",
    "target_q": "Q target",
    "mmd": "MMD",
    "weight": "weight",
    "ood_auroc": "AUROC",
}
DIGITS = {"MMD": 3, "weight": 3, "AUROC": 2, "hours": 2, "p": 3, "least p": 3}  # of others 1
DIGITS |= dict.fromkeys(("P(improvement)", "P(improvement) low", "P(improvement) high"), 2)
WHOLE = ("seeds", "evaluations", "seeds against", "data sets", "seeds of each")
WHOLE += ("updates", "agents", "episodes", "N")
CAPTIONS = {
    "runs": """**Runs**: means over seeds ± standard error; of Q targets, which may explode, the
median. A score is the mean of the last ten evaluations after the warm-up, or the last evaluation
where fewer than ten lie after it ("evaluations" says 10 or 1): so in every table. "score" is of the
best of N actions, "sample" of one sample of the actor; both are returns outside D4RL's tasks. Q
target, MMD, weight (the critic's) and AUROC are the last. Hours of wall time are a seed's. Best
scores that were chosen with dropout noise are left out.""",
    "comparisons": """**Two methods at a time**, by one sample of the actor: the difference of their
means over seeds, its standard error, and p of a permutation test: the share of all ways to deal
these scores to two methods, as many to each, whose means differ as much or more. "least p" is the
least that so few can give.""",
    "beside": """**Beside others.** The paper's Tables 1 and 2, reruns that others published
(`benchmark/paper/reruns.csv`), and ours: one sample of the actor with its standard error, the mean
of behaviour cloning (BC) by the actor's network (bc.py), and one sample of the runs' own VAE.""",
    "aggregates": """**Over tasks**, of one sample of the actor, where a method and BEAR have three
seeds: interquartile mean (IQM), and the probability that a seed scores more than one of BEAR's
(Agarwal et al., 2021), with 95% intervals from 2,000 bootstrap samples of each task's seeds.""",
    "policies": """**Policies.** The error is the standard error over agents, or over the episodes
of a single agent.""",
}


def plain(value: float, digits: int = 0) -> str:
    """With commas, halves up, and no -0."""
    text = f"{value + np.copysign(1e-9, value):,.{digits}f}"
    return text if text.strip("-0.") else text.removeprefix("-")


def of_q(value: float) -> str:
    """A Q or a return; large ones as 4.3e8."""
    large = f"{value:.1e}".replace("e+0", "e").replace("e+", "e")
    return large if abs(value) >= 1e6 else plain(value)


def mean_error(mean: float, error: float, digits: int = 1) -> str:
    """ "104.4 ± 3.1"; without an error where a single value has none."""
    text = "–" if np.isnan(mean) else plain(mean, digits)
    return text if np.isnan(error) else f"{text} ± {error:.{digits}f}"


def gap(one: np.ndarray, other: np.ndarray, axis: int) -> np.ndarray:
    return np.abs(one.mean(axis) - other.mean(axis))


def p_values(one: pd.Series, other: pd.Series) -> tuple[float, float]:
    """Of a permutation test: the share of all ways to deal the values to two groups, as many to
    each, whose means differ as much or more. And the least that so few values can give."""
    test = permutation_test((one, other), gap, alternative="greater", rng=0)
    largest = np.isclose(test.null_distribution, test.null_distribution.max())
    return test.pvalue, largest.mean()


def headline(found: pd.DataFrame) -> pd.Series:
    """What the tables say of an agent, from its evaluations; see CAPTIONS."""
    after = found[found["step"] > found["warmup"]]
    chosen = after.tail(10) if len(after) >= 10 else found.tail(1)
    last = found.iloc[-1].reindex(COLUMNS)
    last.update(chosen.reindex(columns=SCORES).mean())
    last["hours"] = found["seconds"].iloc[-1] / 3600 / found["num_seeds"].iloc[-1]
    last["evaluations"] = len(chosen)
    return last.rename(COLUMNS).astype(float)


def run_table(agents: pd.DataFrame) -> pd.DataFrame:
    """A row for each setting and method: means over seeds, and standard errors."""
    rows = agents.groupby(METHOD, sort=False)
    table = rows.mean()
    table["Q target"] = rows["Q target"].median()
    table.insert(0, "evaluations", table.pop("evaluations"))
    table.insert(0, "seeds", rows.size())
    for name in ("score", "sample"):
        table.insert(table.columns.get_loc(name) + 1, f"{name} error", rows[name].sem())
    return table.reset_index()


def comparison_table(agents: pd.DataFrame) -> pd.DataFrame:
    """A row for each two methods of a setting that have two seeds or more."""
    rows = []
    for setting, here in agents["sample"].dropna().groupby(SETTING, sort=False):
        scores = {method: some for method, some in here.groupby("method", sort=False)}
        several = [method for method in scores if len(scores[method]) > 1]
        for other, method in combinations(several, 2):
            one, two = scores[method], scores[other]
            row = dict(zip(SETTING, setting)) | {"method": method, "against": other}
            row |= {"seeds": len(one), "seeds against": len(two)}
            row["difference"] = one.mean() - two.mean()
            row["difference error"] = np.hypot(one.sem(), two.sem())
            row["p"], row["least p"] = p_values(one, two)
            rows.append(row)
    return pd.DataFrame(rows)


def vae_scores(played: pd.DataFrame) -> pd.Series:
    """Of the runs' own VAEs after their last update, from `played`: the mean of each setting. A
    VAE that runs of two methods have in common, with the same scores, counts once."""
    cloned = played[played["policy"] == "vae"]
    last = cloned["updates"] == cloned.groupby(METHOD)["updates"].transform("max")
    means = cloned[last].groupby([*SETTING, "agent"])["score"].mean().reset_index()
    return means.drop_duplicates([*SETTING, "score"]).groupby(SETTING)["score"].mean()


def beside_table(table: pd.DataFrame, cloned: pd.Series) -> pd.DataFrame:
    """Paper, reruns, behaviour cloning and our samples, a row for each setting that others have."""
    ours = table.pivot_table("sample", SETTING, "method", sort=False)
    errors = table.pivot_table("sample error", SETTING, "method", sort=False)
    for method in errors:
        ours.insert(ours.columns.get_loc(method) + 1, f"{method} error", errors[method])
    ours = ours.add_prefix("here: ")
    ours.insert(0, f"here: {POLICIES['vae']}", cloned)
    tasks = ours.index.get_level_values("task")
    ours.insert(0, f"here: {BC}", [cloned_scores(task).get(BC) for task in tasks])
    rows = ours.reset_index().merge(others_scores(), on="task")
    return rows[[*SETTING, *others_scores(), *ours]].dropna(axis="columns", how="all")


def interquartile_mean(*scores: np.ndarray) -> float:
    """Of all tasks' seeds together, the mean of the middle half."""
    return float(trim_mean(np.concatenate(scores), 0.25))


def probability_of_improvement(*scores: np.ndarray) -> float:
    """That a seed of the first method scores more than one of the second, a tie counting half,
    averaged over tasks: the first half of `scores` is the first method's, the rest the second's."""
    pairs = zip(scores[: len(scores) // 2], scores[len(scores) // 2 :])
    return float(np.mean([(np.sign(a[:, None] - b).mean() + 1) / 2 for a, b in pairs]))


def interval(name: str, statistic, scores: list[np.ndarray]) -> dict[str, float]:
    """The statistic, and the bounds of its interval."""
    settings = {"vectorized": False, "method": "percentile", "n_resamples": 2000, "rng": 0}
    bounds = bootstrap(scores, statistic, **settings).confidence_interval
    return {name: statistic(*scores), f"{name} low": bounds.low, f"{name} high": bounds.high}


def aggregate_table(agents: pd.DataFrame) -> pd.DataFrame:
    """Every method and BEAR, over the data sets that have both under the same protocol, with three
    seeds or more."""
    samples = agents["sample"].dropna().groupby(METHOD, sort=False)
    scores = samples.agg(np.array)[samples.size() >= 3].unstack(sort=False)
    rows = []
    for method in scores.columns.difference(["BEAR"], sort=False) if "BEAR" in scores else ():
        for protocol, both in scores[["BEAR", method]].dropna().groupby("protocol", sort=False):
            ours, theirs = both[method].to_list(), both["BEAR"].to_list()
            row = {"protocol": protocol, "method": method, "data sets": len(both)}
            row["seeds of each"] = min(map(len, ours + theirs))
            row |= interval("IQM", interquartile_mean, ours)
            row |= interval("BEAR's IQM", interquartile_mean, theirs)
            row |= interval("P(improvement)", probability_of_improvement, ours + theirs)
            rows.append(row)
    return pd.DataFrame(rows)


def policy_table(played: pd.DataFrame) -> pd.DataFrame:
    """A row for each method, update and policy: mean score, standard error."""
    rows = played.groupby([*METHOD, "updates", "episodes", "policy", "N", "who"], sort=False)
    scores = {"score": ("score", "mean"), "score error": ("score", "sem")}
    return rows.agg(agents=("agent", "nunique"), **scores).reset_index()


def side_by_side(policies: pd.DataFrame) -> pd.DataFrame:
    """The same with a row for each method and update, and columns for each policy."""
    index = [*METHOD, "updates", "agents", "episodes", "who"]
    wide = policies.set_index(index)[["score", "score error"]].unstack(sort=False)
    columns = {}
    for name in policies["who"].unique():
        columns[name] = wide["score", name]
        columns[f"{name} error"] = wide["score error", name]
    return pd.DataFrame(columns).reset_index()


def in_words(column: str, table: pd.DataFrame) -> list[str]:
    """A column's cells, with errors where the table has them."""
    if not pd.api.types.is_numeric_dtype(table[column]):
        return [*table[column].fillna("–")]
    if column == "Q target":
        return ["–" if np.isnan(value) else of_q(value) for value in table[column]]
    digits = 0 if column in WHOLE else DIGITS.get(column, 1)
    errors = table.get(f"{column} error", pd.Series(np.nan, table.index))
    return [mean_error(*pair, digits) for pair in zip(table[column].astype(float), errors)]


def printed(name: str, table: pd.DataFrame, form: str) -> tuple[str, str]:
    """A table as text, in one of tabulate's forms, and what all of its rows have in common."""
    shown = side_by_side(table) if name == "policies" else table
    shown = shown.dropna(axis="columns", how="all")
    settings = [column for column in SETTING if column in shown]
    common = [column for column in settings if shown[column].nunique() == 1]
    columns = [x for x in shown if x not in common and not x.endswith(" error")]
    words = pd.DataFrame({column: in_words(column, shown) for column in columns})
    text = words.to_markdown(index=False, tablefmt=form, disable_numparse=True)
    return text, "; ".join(shown[column].iloc[0] for column in common)
