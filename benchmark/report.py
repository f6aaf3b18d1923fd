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
from benchmark.files import checksum, errors_in_one_line, new_files, read_json
from benchmark.measure import true_q
from benchmark.methods import CONDITIONS, METHODS, as_today, label_of
from benchmark.policies import POLICIES

SETTING = ["task", "data", "protocol"]  # what runs share that are compared in a table
FIGURE = ["task", "data", "conditions"]  # and in a figure, where lines may differ in length
METHOD = [*SETTING, "method"]
SCORES = ["score", "score_sample"]
COLUMNS = {  # of the table of runs: what stands in it, and how agents are summed up
    "seeds": ("score_sample", "size"),
    "evaluations": ("evaluations", "first"),
    "score": ("score", "mean"),
    "score error": ("score", "sem"),
    "sample": ("score_sample", "mean"),
    "sample error": ("score_sample", "sem"),
    "Q target": ("target_q", "median"),
    "MMD": ("mmd", "mean"),
    "weight": ("weight", "mean"),
    "AUROC": ("ood_auroc", "mean"),
    "hours": ("hours", "mean"),
}
DIGITS = {"MMD": 3, "weight": 3, "AUROC": 2, "hours": 2}  # of others 1
DIGITS |= dict.fromkeys(("P(improvement)", "P(improvement) low", "P(improvement) high"), 2)
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
    elif row.get("matmul_precision", "high") != "high":  # float32 by another library
        words.append(f"matmul precision {row['matmul_precision']}")
    usual = vars(uwac.Args)
    for name in CONDITIONS[1:]:
        if row.get(name, usual[name]) != usual[name]:
            words.append(f"{name.replace('_', ' ')} {row[name]}")
    if history.get("episodes", pd.Series([0])).nunique() > 1:  # as a run was gone on with
        words.append(f"from {history['episodes'].min():g} episodes an evaluation on")
    if history["step"].drop_duplicates().diff().iloc[1:-1].nunique() > 1:  # another --eval-every
        words.append("evaluated at uneven steps")
    return ", ".join(words)


def read(file: Path, folder: Path) -> dict:
    """A run, with what evaluate.py found of it. Raises ValueError, KeyError and TypeError."""
    result = read_json(file)
    rows = store.rows_of(result, folder)
    (row,) = rows["runs"]
    algorithm, args = as_today(result)
    source = row.get("forked_from")
    history = pd.DataFrame(rows["history"]).drop(columns="run")
    if result.get("score_has_dropout_noise"):
        history = history.drop(columns=["score", "return", "return_std"], errors="ignore")
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
        "name": row["method"],
        "method": label_of(row["method"], algorithm, args) + (f", from {source}" if source else ""),
        "path": Path(result["data"]["path"]),
        "bound": store.bound_of(row["max_reward"], row["gamma"]) if known else None,
        "scripts": store.scripts_of(result),
        "history": history,
        "policies": pd.DataFrame(rows["policies"], columns=store.PLAYED),
    }
    same = {name: of for name, of in row.items() if name not in store.GROWS | store.OF_A_PLACE}
    new["identity"] = str([*(same | {"task": new["task"], "content": new["content"]}).items()])
    return row | new


def tell_scripts_apart(runs: pd.DataFrame) -> None:
    """Runs of one label whose scripts differ get labels that say which is whose."""
    for _, several in runs.groupby("method"):
        sums = pd.DataFrame([*several["scripts"]], several.index)  # a column for each file
        known = sums.dropna(how="all")  # one's own file beside none counts, too
        for file in sums.columns[known.nunique(dropna=False) > 1]:
            brief = sums[file].dropna().str.replace(r"(\w{8})\w*", r"\1", regex=True)
            runs.loc[brief.index, "method"] += f", {file} " + brief


def read_all(paths: tuple[Path, ...]) -> pd.DataFrame:
    """A row for each run, in the order of the paper's tasks, of `paths` and of METHODS. Of a run
    and its copies at earlier updates the longest stays. Raises ValueError."""
    order = {name: i for i, name in enumerate([*store.others_scores().index, *METHODS])}
    runs: dict[str, dict] = {}
    names: dict[str, str] = {}
    for place, path in enumerate(paths):
        for file, folder in store.results_in(path):
            try:
                new = read(file, folder)
            except (ValueError, KeyError, TypeError) as error:
                print(f"{file}: left out, not a result ({error!r})", file=sys.stderr)
                continue
            new["data"] = names.setdefault(new["content"], new["data"])  # one file has one name
            new["rank"] = (order.get(new["task"], 99), *(new[name] for name in SETTING))
            new["rank"] += (place, order.get(new["name"], 99))
            old = runs.setdefault(new["identity"], new)
            short, long = sorted((old, new), key=lambda run: len(run["history"]))
            both = pd.concat([old["policies"], new["policies"]])
            if not store.begins_as(long["history"], short["history"]):
                kept = f"{long['file']} has its arguments and seed, and is no shorter"
                print(f"{short['file']}: left out, {kept}", file=sys.stderr)
                both = long["policies"]
            runs[new["identity"]] = long | {"policies": both, "rank": old["rank"]}
    if not runs:
        raise ValueError(f"no results in {', '.join(map(str, paths))}")
    table = pd.DataFrame(runs.values()).sort_values("rank", kind="stable", ignore_index=True)
    tell_scripts_apart(table)
    return table


def with_runs(runs: pd.DataFrame, table: str) -> pd.DataFrame:
    """Rows of all runs' histories, or policies, with what tells settings and methods apart."""
    about = ["name", "conditions", "warmup_steps", "num_seeds", *METHOD]
    frames = [
        run[table].assign(run=number, **{name: run[name] for name in about})
        for number, run in enumerate(runs.to_dict("records"))
    ]
    return pd.concat(frames, ignore_index=True).infer_objects()  # as an empty one has none


def headline(found: pd.DataFrame) -> pd.Series:
    """What the tables say of an agent, from its evaluations; see templates/report.j2."""
    after = found[found["step"] > found["warmup_steps"]]
    chosen = after.tail(10) if len(after) >= 10 else found.tail(1)
    last = found.iloc[-1].reindex([metric for metric, _ in COLUMNS.values()])
    last.update(chosen.reindex(columns=SCORES).mean())
    last["hours"] = found["seconds"].iloc[-1] / 3600 / found["num_seeds"].iloc[-1]
    last["evaluations"] = len(chosen)
    return last[~last.index.duplicated()].astype(float)


def run_table(agents: pd.DataFrame) -> pd.DataFrame:
    """A row for each setting and method: means over seeds, and standard errors."""
    table = agents.groupby(METHOD, sort=False).agg(**COLUMNS)
    return table.astype({"evaluations": int}).reset_index()


def comparison_table(agents: pd.DataFrame) -> pd.DataFrame:
    """A row for each two methods of a setting that have two seeds or more."""
    rows = []
    for setting, here in agents["score_sample"].dropna().groupby(SETTING, sort=False):
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
    over the episodes of a single one."""
    rows = store.best_played(played).rename(columns={"step": "updates"})
    names = [POLICIES.get(policy, f"{policy}, N = {{}}") for policy in rows["policy"]]
    rows["policy"] = [name.format(n) for name, n in zip(names, rows["candidates"])]
    table = rows.groupby([*by, "updates", "policy"], sort=False).agg(
        episodes=("episodes", "max"),
        agents=("score", "size"),
        score=("score", "mean"),
        error=("score", "sem"),
        own=("score_se", "first"),
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
    others = store.others_scores()
    rows = []
    for setting, here in table[table["task"].isin(others.index)].groupby(SETTING, sort=False):
        row = dict(zip(SETTING, setting)) | others.loc[setting[0]].to_dict()
        row[f"here: {store.BC}"] = store.reference_scores(setting[0]).get(store.BC)
        row[f"here: {POLICIES['vae']}"] = cloned.get(setting)
        for one in here.to_dict("records"):
            row[f"here: {one['method']}"] = one["sample"]
            row[f"here: {one['method']} error"] = one["sample error"]
        rows.append(row)
    return pd.DataFrame(rows).dropna(axis="columns", how="all")


def aggregate_table(agents: pd.DataFrame) -> pd.DataFrame:
    """Every method and BEAR, over the data sets that have both under the same protocol, with three
    seeds or more."""
    samples = agents["score_sample"].dropna().groupby(METHOD, sort=False)
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


def in_words(column: str, table: pd.DataFrame) -> list[str]:
    """A column's cells, with errors where the table has them."""
    values = table[column]
    if not pd.api.types.is_numeric_dtype(values):
        return [*values.fillna("–")]
    if column == "Q target":
        return ["–" if np.isnan(value) else stats.of_q(value) for value in values]
    digits = 0 if pd.api.types.is_integer_dtype(values) else DIGITS.get(column, 1)
    errors = table.get(f"{column} error", pd.Series(np.nan, table.index))
    return [stats.mean_error(*pair, digits) for pair in zip(values.astype(float), errors)]


def printed(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """A table in words, and what all of its rows have in common."""
    shown = table.dropna(axis="columns", how="all")
    common = [column for column in SETTING if column in shown and shown[column].nunique() == 1]
    columns = [x for x in shown if x not in common and not x.endswith(" error")]
    words = pd.DataFrame({column: in_words(column, shown) for column in columns})
    if "policy" in words:  # side by side
        rest = [column for column in words if column not in ("policy", "score")]
        words = words.pivot_table("score", rest, "policy", "first", "–", sort=False).reset_index()
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


def return_of_data(run: pd.Series) -> dict[str, float]:
    """The mean discounted return over all steps of the file that a run learned from, as critics
    count it (true_q.py's `continued`); empty where it is not there any more, or says no ends of
    episodes."""
    try:
        if run["gamma"] == true_q.GAMMA and checksum(run["path"]) == run["data_sha256"]:
            found = true_q.summary(true_q.of_data(str(run["path"])))
            return {"mean return of the data": found["continued"]}
    except (OSError, ValueError, IndexError):  # gone, without timeouts, without an end
        pass
    return {}


def references_of(runs: pd.DataFrame, published: dict[str, float]) -> dict[str, dict[str, float]]:
    """Lines of comparison, by metric and name, where they are those of all runs of a figure."""
    run = runs.iloc[0]
    references = {"score": published, "score_sample": published}
    references["ood_auroc"] = {"chance": 0.5, "paper, on walker2d-expert": 0.845}
    if runs["mmd_threshold"].nunique() == 1:
        references["mmd"] = {"threshold": run["mmd_threshold"]}
    if runs["bound"].nunique(dropna=False) == 1 and pd.notna(run["bound"]):
        bound = {"largest reward / (1 - γ)": run["bound"]}
        references |= dict.fromkeys(["target_q", "policy_q"], bound | return_of_data(run))
    return references


def draw(runs: pd.DataFrame, found: pd.DataFrame, played: pd.DataFrame, metrics: list[str],
         folder: Path) -> list[str]:  # fmt: skip
    """A figure of metrics for each setting, and one of its policies; returns lines of Markdown."""
    played = played[played["policy"].isin([*POLICIES])]
    cloned = vae_scores(played)
    text = []
    for number, (setting, here) in enumerate(runs.groupby(FIGURE, sort=False), 1):
        run = here.iloc[0]
        about = f"{run['task']}, {run['conditions']}"
        title = f"{run['task']}, {str(run.get('mmd_kernel')).capitalize()} kernel of the MMD"
        start = f"{number:02}-{re.sub('[/:]', '-', run['task'])}"
        published = store.reference_scores(run["task"])
        if (vae := cloned.get(tuple(run[SETTING]))) is not None:
            published[POLICIES["vae"]] = vae
        rows = found[(found[FIGURE] == list(setting)).all(axis=1)]
        measured = [name for name in metrics if rows[name].notna().any()]
        for name in metrics:
            if name not in measured:
                print(f"{about}: no run has {name}, so no panel shows it", file=sys.stderr)
        if measured and rows["step"].nunique() > 1:  # else there is no line
            picture = folder / f"{start}-{'-'.join(measured)}.png"
            drawn = rows.assign(label=rows["method"], method=rows["name"])
            references, candidates = references_of(here, published), run.get("eval_candidates", 100)
            words = {"title": title, "references": references, "unit": run["unit"]}
            figures.save(figures.curves(drawn, measured, candidates=candidates, **words), picture)
            text.append(f"![{about}]({picture.name})")
        of_setting = played[(played[FIGURE] == list(setting)).all(axis=1)]
        if len(of_setting):
            table = policy_table(of_setting, [*FIGURE, "method"])
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
    known = {name for one in runs["history"] for name in one}
    known -= {"agent", "step", "seconds", "episodes"}
    unknown = [name for name in args.metrics if name not in known]
    if unknown or not args.metrics:
        raise ValueError(f"--metrics {' '.join(unknown)}: there are {', '.join(sorted(known))}")
    agents = found.groupby([*METHOD, "run", "agent"], sort=False).apply(headline)
    table = run_table(agents)
    tables = {
        "runs": table,
        "comparisons": comparison_table(agents),
        "beside": beside_table(table, vae_scores(played)),
        "aggregates": aggregate_table(agents),
        "policies": policy_table(played, METHOD),
    }
    tables = {name: rows for name, rows in tables.items() if len(rows)}
    texts = {}
    with new_files(args.folder, "report") as new:
        for name, rows in tables.items():
            rows.to_csv(new / f"{name}.csv", index=False)
            words, common = printed(rows)
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
