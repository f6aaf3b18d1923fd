"""Tables and figures from result files alone: those of benchmark/run.py, or folders of runs.

    python benchmark/report.py
    python benchmark/report.py runs                               # every run in runs/
    python benchmark/report.py runs/RUN runs/OTHER_RUN --metrics mmd alpha
    python benchmark/report.py runs --latex                       # runs.tex and others, for a paper

Runs that differ in the seed alone are averaged. A row and a line name the arguments that are not
the method's defaults, as in "UWAC, beta 2.5", and the script where it was changed between runs. A
run counts once, wherever its files lie; of it and its copies at earlier updates the longest is
shown. Policies that evaluate.py played (evaluation.json) have a table and a figure. A figure's axis
is logarithmic where a metric of no score grows tenfold.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what `python FILE` leaves out

import re
from dataclasses import dataclass
from itertools import combinations

import jinja2
import numpy as np
import pandas as pd
import tyro

import d4rl
import uwac
from benchmark import figures, stats, store
from benchmark.files import errors_in_one_line, new_files, read_json
from benchmark.methods import CONDITIONS, METHODS, as_today, label_of, method_of
from benchmark.policies import POLICIES

SETTING = ["task", "data", "protocol"]  # what runs share that are compared in a table
FIGURE = ["task", "data", "conditions"]  # and in a figure, where lines may differ in length
METHOD = [*SETTING, "method"]
OF_BEST = ["score", "return", "return_std"]  # metrics of the best of N actions
SCORES = ["score", "score_sample"]
# "noisy" is "best" by Q1 with dropout noise, as UWAC's result files from before November 2026 have.
POLICY_NAMES = POLICIES | {"noisy": "best of {}, noisy"}
COLUMNS = {  # of a metric in the table of runs
    "score": "score",
    "score_sample": "sample",
    "target_q": "Q target",
    "mmd": "MMD",
    "weight": "weight",
    "ood_auroc": "AUROC",
}
DIGITS = {"MMD": 3, "weight": 3, "AUROC": 2, "hours": 2}  # of others 1
DIGITS |= dict.fromkeys(("P(improvement)", "P(improvement) low", "P(improvement) high"), 2)
WHOLE = ("seeds", "evaluations", "seeds against", "data sets", "seeds of each")
WHOLE += ("updates", "agents", "episodes", "N")
CAPTIONS = {  # in LaTeX; templates/report.j2 says more
    "runs": "Means over seeds ± standard error",
    "comparisons": "Differences of mean scores of one sample, with 95% intervals",
    "beside": "Scores of one sample beside those that others published",
    "aggregates": "Interquartile means over tasks, with 95% bootstrap intervals",
    "policies": "Mean scores of policies ± standard error",
}
TEMPLATE = Path(__file__).parent / "templates" / "report.j2"


def conditions_of(row: dict, history: pd.DataFrame) -> str:
    """What scores depend on beside the method: the warm-up, and what is not as usual."""
    words = [f"warm-up {row['warmup_steps']:,}"]
    if row["precision"] != store.precision_of("high", row["hardware"]):
        words.append(row["precision"])
    usual = vars(uwac.Args)
    for name in CONDITIONS[1:]:
        if row.get(name, usual[name]) != usual[name]:
            words.append(f"{name.replace('_', ' ')} {row[name]}")
    if history.get("episodes", pd.Series([0])).nunique() > 1:  # as a run was gone on with
        words.append(f"from {history['episodes'].min():g} episodes an evaluation on")
    return ", ".join(words)


def read(file: Path, folder: Path) -> dict:
    """A run, with what evaluate.py found of it. Raises ValueError, KeyError and TypeError."""
    result = read_json(file)
    rows = store.rows_of(result, folder)
    (row,) = rows["runs"]
    algorithm, args = as_today(result)
    history = pd.DataFrame(rows["history"]).drop(columns="run")
    if result.get("score_has_dropout_noise"):
        history = history.drop(columns=OF_BEST, errors="ignore")
    if args.get("dropout") == 0 and "members" not in args:  # there is no Var[Q]
        history["ood_auroc"] = np.nan
    env_id = d4rl.full_id(args["env_id"])
    of_d4rl = d4rl.task_of(env_id) is not None
    sha256, size = row["data_sha256"], f"{row['transitions']:,} transitions"
    conditions = conditions_of(row, history)
    within = " (all in the warm-up)" if row["updates"] <= row["warmup_steps"] else ""
    known = row["max_reward"] is not None and row["gamma"] < 1
    new = {
        "file": file,
        "task": env_id.removesuffix("-v0") if of_d4rl else env_id,  # -v0 as in the paper
        "unit": "normalized score" if of_d4rl else "return",
        "content": f"{sha256 or row['data']}, {size}",
        "data": f"{row['data']}, {size}, sha256 {(sha256 or '?')[:8]}",
        "conditions": conditions,
        "protocol": f"{row['updates']:,} updates{within}, {conditions}",
        "name": method_of(algorithm, args),
        "bound": row["max_reward"] / (1 - row["gamma"]) if known else None,
        "scripts": store.scripts_of(result),
        "history": history,
        "policies": pd.DataFrame(rows["policies"]).drop(columns="run", errors="ignore"),
    }
    new["method"] = label_of(new["name"], algorithm, args)
    same = {name: of for name, of in row.items() if name not in store.GROWS | store.OF_A_PLACE}
    new["identity"] = str([*(same | {"task": new["task"], "content": new["content"]}).items()])
    return {name: row[name] for name in ("seed", "num_seeds", "hardware", "updates")} | row | new


def tell_scripts_apart(runs: list[dict]) -> None:
    """Runs of one label whose scripts differ get labels that say which is whose."""
    of_label: dict[str, list[dict]] = {}
    for run in runs:
        of_label.setdefault(run["method"], []).append(run)
    for several in of_label.values():
        files = [file for file, _ in {item for run in several for item in run["scripts"].items()}]
        for run in several:
            changed = [item for item in run["scripts"].items() if files.count(item[0]) > 1]
            brief = lambda sums: "+".join(sha256[:8] for sha256 in sums.split("+"))
            words = [f"{file} {brief(sums)}" for file, sums in changed]
            run["method"] = ", ".join([run["method"], *words])


def read_all(paths: tuple[Path, ...]) -> pd.DataFrame:
    """A row for each run, in the order of the paper's tasks, of `paths` and of METHODS. Of a run
    and its copies at earlier updates the longest stays. Raises ValueError."""
    runs: dict[str, dict] = {}
    names: dict[str, str] = {}
    for place, path in enumerate(paths):
        for file, folder in store.results_in(path):
            try:
                new = read(file, folder) | {"place": place}
            except (ValueError, KeyError, TypeError) as error:
                print(f"{file}: left out, not a result ({error!r})", file=sys.stderr)
                continue
            new["data"] = names.setdefault(new["content"], new["data"])  # one file has one name
            old = runs.setdefault(new["identity"], new)
            short, long = sorted((old, new), key=lambda run: len(run["history"]))
            columns = [name for name in short["history"] if name in long["history"]]
            begins = long["history"][columns].head(len(short["history"]))
            if not begins.reset_index(drop=True).equals(short["history"][columns]):
                kept = f"{long['file']} has its arguments and seed, and is no shorter"
                print(f"{short['file']}: left out, {kept}", file=sys.stderr)
            both = pd.concat([old["policies"], new["policies"]])
            runs[new["identity"]] = long | {"policies": both, "place": old["place"]}
    if not runs:
        raise ValueError(f"no results in {', '.join(map(str, paths))}")
    tell_scripts_apart([*runs.values()])
    tasks = store.others_scores().index
    order = {name: number for number, name in enumerate([*tasks, *METHODS])}
    rank = lambda run: (order.get(run["task"], 99), *(run[name] for name in SETTING))
    last = lambda run: (run["place"], order.get(run["name"], 99))
    return pd.DataFrame(sorted(runs.values(), key=lambda run: (*rank(run), *last(run))))


def with_runs(runs: pd.DataFrame, table: str) -> pd.DataFrame:
    """Rows of all runs' histories, or policies, with what tells settings and methods apart."""
    about = ["name", "conditions", "warmup_steps", "num_seeds", *METHOD]
    frames = [
        run[table].assign(run=number, **{name: run[name] for name in about})
        for number, run in enumerate(runs.to_dict("records"))
    ]
    return pd.concat(frames, ignore_index=True)


def headline(found: pd.DataFrame) -> pd.Series:
    """What the tables say of an agent, from its evaluations; see templates/report.j2."""
    after = found[found["step"] > found["warmup_steps"]]
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
            found = stats.difference(one, two)
            rows.append(row | {"difference": found.mean, "low": found.low, "high": found.high})
    return pd.DataFrame(rows)


def policy_table(played: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """A row for each method, update and policy: mean score, and its standard error over agents, or
    over the episodes of a single one. Of an agent the evaluation of the most episodes counts."""
    if played.empty:
        return played
    rows = store.best_played(played)
    own = rows["score_std"] / rows["episodes"] ** 0.5
    who = [
        POLICY_NAMES.get(policy, policy).format(N)
        for policy, N in zip(rows["policy"], rows["candidates"])
    ]
    rows = rows.assign(who=who, own=own, N=rows["candidates"], updates=rows["step"])
    groups = rows.groupby([*by, "updates", "policy", "N", "who"], sort=False)
    table = groups.agg(
        episodes=("episodes", "max"),
        agents=("score", "size"),
        score=("score", "mean"),
        error=("score", "sem"),
        own=("own", "first"),
    )
    table["score error"] = table.pop("error").fillna(table.pop("own"))
    return table.reset_index()


def vae_scores(played: pd.DataFrame) -> pd.Series:
    """Of the runs' own VAEs after their last update: the mean of each setting. A VAE that runs of
    two methods have in common, with the same scores, counts once."""
    cloned = played[played["policy"] == "vae"]
    last = cloned["step"] == cloned.groupby(METHOD)["step"].transform("max")
    return cloned[last].drop_duplicates([*SETTING, "score"]).groupby(SETTING)["score"].mean()


def beside_table(table: pd.DataFrame, cloned: pd.Series) -> pd.DataFrame:
    """Paper, reruns, behaviour cloning and our samples, a row for each setting that others have."""
    ours = table.pivot_table("sample", SETTING, "method", sort=False)
    errors = table.pivot_table("sample error", SETTING, "method", sort=False)
    for method in errors:
        ours.insert(ours.columns.get_loc(method) + 1, f"{method} error", errors[method])
    ours = ours.add_prefix("here: ")
    ours.insert(0, f"here: {POLICIES['vae']}", cloned)
    tasks = ours.index.get_level_values("task")
    bc = [store.reference_scores(task).get(store.BC) for task in tasks]
    ours.insert(0, f"here: {store.BC}", pd.Series(bc, ours.index, dtype=float))
    others = store.others_scores()
    rows = ours.reset_index().merge(others, on="task")
    return rows[[*SETTING, *others, *ours]].dropna(axis="columns", how="all")


def aggregate_table(agents: pd.DataFrame) -> pd.DataFrame:
    """Every method and BEAR, over the data sets that have both under the same protocol, with three
    seeds or more."""
    samples = agents["sample"].dropna().groupby(METHOD, sort=False)
    scores = samples.agg(np.array)[samples.size() >= stats.FEW].unstack(sort=False)
    rows = []
    for method in scores.columns.difference(["BEAR"], sort=False) if "BEAR" in scores else ():
        for protocol, both in scores[["BEAR", method]].dropna().groupby("protocol", sort=False):
            ours, theirs = both[method].to_list(), both["BEAR"].to_list()
            row = {"protocol": protocol, "method": method, "data sets": len(both)}
            row["seeds of each"] = min(map(len, ours + theirs))
            row |= stats.bootstrapped("IQM", stats.interquartile_mean, ours)
            row |= stats.bootstrapped("BEAR's IQM", stats.interquartile_mean, theirs)
            pairs = ours + theirs
            row |= stats.bootstrapped("P(improvement)", stats.probability_of_improvement, pairs)
            rows.append(row)
    return pd.DataFrame(rows)


def side_by_side(table: pd.DataFrame) -> pd.DataFrame:
    """Policies with a row for each method and update, and columns for each policy."""
    index = [*METHOD, "updates", "agents", "episodes"]
    wide = table.pivot(index=index, columns="who", values=["score", "score error"])
    columns = {}
    for name in table["who"].unique():
        columns |= {name: wide["score", name], f"{name} error": wide["score error", name]}
    return pd.DataFrame(columns).reset_index()


def in_words(column: str, table: pd.DataFrame) -> list[str]:
    """A column's cells, with errors where the table has them."""
    if not pd.api.types.is_numeric_dtype(table[column]):
        return [*table[column].fillna("–")]
    if column == "Q target":
        return ["–" if np.isnan(value) else stats.of_q(value) for value in table[column]]
    digits = 0 if column in WHOLE else DIGITS.get(column, 1)
    errors = table.get(f"{column} error", pd.Series(np.nan, table.index))
    return [stats.mean_error(*pair, digits) for pair in zip(table[column].astype(float), errors)]


def printed(name: str, table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """A table in words, and what all of its rows have in common."""
    shown = side_by_side(table) if name == "policies" else table
    shown = shown.dropna(axis="columns", how="all")
    settings = [column for column in SETTING if column in shown]
    common = [column for column in settings if shown[column].nunique() == 1]
    columns = [x for x in shown if x not in common and not x.endswith(" error")]
    words = pd.DataFrame({column: in_words(column, shown) for column in columns})
    return words, "; ".join(shown[column].iloc[0] for column in common)


def latex(name: str, table: pd.DataFrame, words: pd.DataFrame, common: str) -> str:
    """The words for \\input with booktabs; the highest score of a setting's methods is bold."""
    words = words.copy()
    for column in {"score", "sample"} & {*words} if name == "runs" else ():
        scores = table.groupby(SETTING)[column]
        best = (scores.transform("max") == table[column]) & (scores.transform("size") > 1)
        words[column] = words[column].mask(best.to_numpy(), "BOLD(" + words[column] + ")")
    caption = f"{CAPTIONS[name]}. {common}".replace("%", r"\%").replace("_", r"\_")
    style = words.style.hide(axis="index").format(escape="latex")
    style = style.format_index(escape="latex", axis="columns")
    about = {"caption": caption, "label": f"tab:{name}", "position_float": "centering"}
    text = re.sub(r"BOLD\((.*?)\)(?= [&\\])", r"\\textbf{\1}", style.to_latex(hrules=True, **about))
    return text.replace("±", r"$\pm$").replace("–", "--")


def draw(runs: pd.DataFrame, found: pd.DataFrame, played: pd.DataFrame, metrics: list[str],
         folder: Path) -> list[str]:  # fmt: skip
    """A figure of metrics for each setting, and one of its policies; returns lines of Markdown."""
    scores = played[played["policy"].isin([*POLICIES])] if len(played) else played
    cloned = vae_scores(played) if len(played) else {}
    text = []
    for number, (setting, here) in enumerate(runs.groupby(FIGURE, sort=False), 1):
        run = here.iloc[0]
        about = f"{run['task']}, {run['conditions']}"
        title = f"{run['task']}, {str(run.get('mmd_kernel')).capitalize()} kernel of the MMD"
        start = f"{number:02}-{re.sub('[/:]', '-', run['task'])}"
        published = store.reference_scores(run["task"])
        if (vae := cloned.get(tuple(run[SETTING]))) is not None:
            published[POLICIES["vae"]] = vae
        references = {"mmd": {"threshold": run["mmd_threshold"]}, "score": published}
        references["ood_auroc"] = {"chance": 0.5, "paper, on walker2d-expert": 0.845}
        references["score_sample"] = published
        if pd.notna(run["bound"]):
            bound = {"largest reward / (1 - γ)": run["bound"]}
            references |= {"target_q": bound, "policy_q": bound}
        rows = found[(found[FIGURE] == list(setting)).all(axis=1)]
        measured = [name for name in metrics if rows[name].notna().any()]
        for name in metrics:
            if name not in measured:
                print(f"{about}: no run has {name}, so no panel shows it", file=sys.stderr)
        if measured and rows["step"].nunique() > 1:  # else there is no line
            picture = folder / f"{start}-{'-'.join(measured)}.png"
            drawn = rows.assign(label=rows["method"], method=rows["name"])
            candidates = run.get("eval_candidates", 100)
            words = {"title": title, "references": references, "unit": run["unit"]}
            figures.save(figures.curves(drawn, measured, candidates=candidates, **words), picture)
            text.append(f"![{about}]({picture.name})")
        if len(scores) and (of_policies := (scores[FIGURE] == list(setting)).all(axis=1)).any():
            table = policy_table(scores[of_policies], [*FIGURE, "method"])
            figure = figures.policies(table, title, published, run["unit"])
            figures.save(figure, folder / f"{start}-policies.png")
            text.append(f"![{run['task']}, who plays]({start}-policies.png)")
    return text


@dataclass
class Args:
    # Folders of result files, folders of runs, or result files.
    results: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs/grid"),)
    metrics: tuple[str, ...] = ("target_q", "score", "score_sample")  # a panel each
    latex: bool = False  # each table as TEX, too, to \input with the package booktabs
    folder: Path = Path("runs/report")  # for report.md, tables as CSV, figures as PNG and PDF


def main(args: Args) -> None:
    """Raises ValueError, and OSError where a file cannot be written."""
    if places := [name for name in args.metrics if Path(name).exists()]:
        raise ValueError(f"{' '.join(places)}: taken for metrics; name runs before --metrics")
    runs = read_all(args.results)
    found, played = with_runs(runs, "history"), with_runs(runs, "policies")
    known = {name for one in runs["history"] for name in one} - {"agent", "step", "seconds"}
    unknown = [name for name in args.metrics if name not in known]
    if unknown or not args.metrics:
        raise ValueError(f"--metrics {' '.join(unknown)}: there are {', '.join(sorted(known))}")
    agents = found.groupby([*METHOD, "run", "agent"], sort=False).apply(headline)
    table = run_table(agents)
    tables = {
        "runs": table,
        "comparisons": comparison_table(agents),
        "beside": beside_table(table, vae_scores(played) if len(played) else np.nan),
        "aggregates": aggregate_table(agents),
        "policies": policy_table(played, METHOD),
    }
    tables = {name: rows for name, rows in tables.items() if len(rows)}
    texts = {name: "" for name in CAPTIONS}
    with new_files(args.folder, "report") as new:
        for name, rows in tables.items():
            rows.to_csv(new / f"{name}.csv", index=False)
            words, common = printed(name, rows)
            texts[name] = words.to_markdown(index=False, disable_numparse=True)
            texts[name] += f"\n\nAll: {common}." if common else ""
            if args.latex:
                source = latex(name, rows, words, common)
                (new / f"{name}.tex").write_text(source, encoding="utf-8")
        pictures = draw(runs, found, played, list(args.metrics), new)
        template = jinja2.Template(TEMPLATE.read_text(encoding="utf-8"), trim_blocks=True)
        hardware = ", ".join(sorted(runs["hardware"].unique()))
        text = template.render(texts, hardware=hardware, pictures=pictures)
        (new / "report.md").write_text(f"{text}\n", encoding="utf-8")
    encoding = sys.stdout.encoding or "utf-8"  # which may lack the ± of a table
    shown = f"{texts['runs']}\n\n{args.folder / 'report.md'}"
    print(shown.encode(encoding, "replace").decode(encoding))


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args, description=__doc__))
