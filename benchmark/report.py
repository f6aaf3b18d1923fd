"""Tables and figures from result files alone: those of benchmark/run.py, or folders of runs.

    python benchmark/report.py
    python benchmark/report.py runs                               # every run in runs/
    python benchmark/report.py runs/RUN runs/OTHER_RUN --metrics mmd alpha

Runs that differ in the seed alone are averaged. A row and a line name the arguments that are not
the method's defaults, as in "UWAC, beta 2.5". Of a run and its copies at earlier updates the
longest is shown. Policies that evaluate.py played (evaluation.json) have a table and a figure.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import tyro
from evaluate import POLICIES, SCRIPTS, earlier_results
from lib.curves import draw_curves
from lib.files import errors_in_one_line, read_json
from lib.methods import METHODS
from lib.policies import draw_policies, observations, policy_table, side_by_side
from lib.published import BC, cloned_scores, others_scores
from scipy.stats import bootstrap, trim_mean

import d4rl
import uwac

# Runs of one method may differ in these arguments, of which only old files have the second line's.
OF_A_RUN = {"seed", "num_seeds", "run_dir", "resume", "total_steps", "dataset_path", "log_every"}
OF_A_RUN |= {"exp_name", "checkpoint_every", "cuda_graph", "capture_video", "track", "evaluate"}
CONDITIONS = ("matmul_precision", "eval_every", "eval_episodes", "eval_candidates")
OF_NO_METHOD = {*OF_A_RUN, *CONDITIONS, "env_id", "warmup_steps"}
SETTING = ["task", "data", "protocol"]  # what runs must share to be compared in a table
FIGURE = ["task", "data", "conditions"]  # and in a figure: lines may be of different lengths
METHOD = [*SETTING, "method"]
SCORES = ["score", "score_sample"]
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
CAPTIONS = {
    "runs": """**Runs.** A score is the mean of the last ten evaluations after the warm-up, or the
last evaluation where fewer than ten lie after it ("evaluations" says 10 or 1): so in every table.
"score" is of the best of N actions, "sample" of one sample of the actor; both are returns outside
D4RL's tasks. std is over seeds. Q target, MMD, weight (the critic's) and AUROC are the last. Hours
of wall time are a seed's.""",
    "beside": """**Beside others.** The paper's Tables 1 and 2, reruns that others published
(`benchmark/paper/reruns.csv`), and ours: one sample of the actor, the mean of behaviour cloning
(BC) by the actor's network (bc.py), and one sample of the runs' own VAE.""",
    "aggregates": """**Over tasks**, of one sample of the actor, where a method and BEAR have three
seeds: interquartile mean (IQM), and the probability that a seed scores more than one of BEAR's
(Agarwal et al., 2021), with 95% intervals from 2,000 bootstrap samples of each task's seeds.""",
    "policies": """**Policies.** The error is the standard error over agents, or over the episodes
of a single agent.""",
}


@dataclass
class Args:
    # Folders of result files, folders of runs, or result files.
    results: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs/grid"),)
    metrics: tuple[str, ...] = ("target_q", *SCORES)  # what the figures show, a panel each
    folder: Path = Path("runs/report")  # for report.md, tables as CSV, figures as PNG and PDF


def read(file: Path) -> dict:
    """A run, with what evaluate.py found of it."""
    result = read_json(file)
    if not result["history"]:
        raise ValueError("not evaluated yet")
    args, data, updates = result["args"], result["data"], result["history"][-1]["step"]
    warmup = f"warm-up {args['warmup_steps']:,}"
    conditions = ", ".join([warmup, *named(args, CONDITIONS, vars(uwac.Args))])
    within = " (all in the warm-up)" if updates <= args["warmup_steps"] else ""
    size = f"{result['transitions']:,} transitions"
    env_id = d4rl.full_id(args["env_id"])
    of_d4rl = env_id in d4rl.TASK_OF
    return {
        "task": env_id.removesuffix("-v0") if of_d4rl else env_id,  # -v0 as in the paper
        "unit": "normalized score" if of_d4rl else "return",
        "data": f"{Path(data['path']).name}, {size}, sha256 {(data.get('sha256') or '?')[:8]}",
        "conditions": conditions,
        "protocol": f"{updates:,} updates{within}, {conditions}",
        "name": result.get("method") or result["algorithm"],
        "method": label(result),
        "args": args,
        "history": result["history"],
        "hardware": result["hardware"],
        "mean_reward": data.get("mean_reward"),
        "policies": result.get("policies") or earlier_results(file.parent),
    }


def label(result: dict) -> str:
    """The method with the arguments that are not its defaults."""
    args = result["args"]
    method = result.get("method") or result["algorithm"]
    words = METHODS[method].command.split()[1:] if method in METHODS else []
    script = SCRIPTS.get(result["algorithm"], uwac)
    usual = tyro.cli(script.Args, args=[*words, "--env-id", args["env_id"]]).resolved()
    of_method = [name for name in args if name not in OF_NO_METHOD]
    return ", ".join(
        [METHODS[method].name if method in METHODS else method, *named(args, of_method, usual)]
    )


def named(args: dict, names: list[str] | tuple[str, ...], usual: dict) -> list[str]:
    """Those of the arguments that are not as usual, such as "beta 2.5"."""
    found = [name for name in names if name in args and args[name] != usual.get(name)]
    return [f"{name.replace('_', ' ')} {args[name]}" for name in found]


def read_all(paths: tuple[Path, ...]) -> pd.DataFrame:
    """A row for each run, in the order of the paper's tasks and of METHODS. Raises ValueError."""
    runs: dict[str, dict] = {}
    for path in paths:
        files = [path if path.is_file() else path / "result.json"]
        if not files[0].exists():
            files = sorted([*path.glob("*.json"), *path.glob("*/result.json")])
        for file in files:
            try:
                new = read(file)
                seeds = [new["args"]["seed"], new["args"]["num_seeds"]]
            except (ValueError, KeyError, TypeError) as error:
                print(f"{file}: left out, not a result ({error!r})", file=sys.stderr)
                continue
            key = str([*(new[name] for name in (*FIGURE, "method")), seeds])
            old = runs.setdefault(key, new)
            short, long = sorted((old, new), key=lambda run: len(run["history"]))
            if short["history"] != long["history"][: len(short["history"])]:
                message = "another has its arguments and seed; the longer counts"
                print(f"{file}: {message}", file=sys.stderr)
            runs[key] = long | {"policies": old["policies"] + new["policies"]}
    if not runs:
        raise ValueError(f"no results in {', '.join(map(str, paths))}; benchmark/run.py makes some")
    order = {name: place for place, name in enumerate([*others_scores().index, *METHODS])}
    rank = lambda run: (order.get(run["task"], 99), *(run[name] for name in SETTING))
    ordered = sorted(runs.values(), key=lambda run: (rank(run), order.get(run["name"], 99)))
    return pd.DataFrame(ordered)


def evaluations(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each run, evaluation and agent, with METHOD and all metrics."""
    frames = []
    for run in runs.to_dict("records"):
        args = run["args"]
        frame = pd.DataFrame(run["history"])
        metrics = [name for name in frame if name not in ("step", "seconds")]
        frame = frame.explode(metrics).astype(float)
        if args.get("dropout") == 0 and "members" not in args:  # there is no Var[Q]
            frame["ood_auroc"] = np.nan
        about = {name: run[name] for name in (*METHOD, "conditions")}
        about |= {"run": len(frames), "agent": frame.groupby("step").cumcount()}
        about |= {"warmup": args["warmup_steps"], "num_seeds": args["num_seeds"]}
        frames.append(frame.assign(**about))
    return pd.concat(frames, ignore_index=True)


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
    """A row for each setting and method: means over seeds, and standard deviations."""
    rows = agents.groupby(METHOD, sort=False)
    table = rows.mean()
    table.insert(0, "evaluations", table.pop("evaluations"))
    table.insert(0, "seeds", rows.size())
    for name in ("score", "sample", "Q target"):
        table.insert(table.columns.get_loc(name) + 1, f"{name} std", rows[name].std())
    return table.reset_index()


def vae_scores(played: pd.DataFrame) -> pd.Series:
    """Of the runs' own VAEs after their last update, from observations: the mean of each setting.
    A VAE that runs of two methods have in common, with the same scores, counts once."""
    cloned = played[played["policy"] == "vae"]
    last = cloned["updates"] == cloned.groupby(METHOD)["updates"].transform("max")
    means = cloned[last].groupby([*SETTING, "agent"])["score"].mean().reset_index()
    return means.drop_duplicates([*SETTING, "score"]).groupby(SETTING)["score"].mean()


def beside_table(table: pd.DataFrame, cloned: pd.Series) -> pd.DataFrame:
    """Paper, reruns, behaviour cloning and our samples, a row for each setting that others have."""
    ours = table.pivot_table("sample", SETTING, "method", sort=False).add_prefix("here: ")
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
    samples = agents["sample"].dropna().groupby(METHOD, sort=False)  # old files have none
    scores = samples.agg(np.array)[samples.size() >= 3].unstack(sort=False)
    rows = []
    for method in scores.columns.difference(["BEAR"], sort=False) if "BEAR" in scores else ():
        for protocol, both in scores[["BEAR", method]].dropna().groupby("protocol", sort=False):
            ours, theirs = both[method].to_list(), both["BEAR"].to_list()
            row = {"method": method, "protocol": protocol, "data sets": len(both)}
            row["seeds of each"] = min(map(len, ours + theirs))
            row |= interval("IQM", interquartile_mean, ours)
            row |= interval("BEAR's IQM", interquartile_mean, theirs)
            row |= interval("P(improvement)", probability_of_improvement, ours + theirs)
            rows.append(row)
    return pd.DataFrame(rows)


def main(args: Args) -> None:
    """Raises ValueError, and OSError where a file cannot be written."""
    runs = read_all(args.results)
    found = evaluations(runs)
    known = {name for history in runs["history"] for name in history[0]} - {"step", "seconds"}
    metrics = [name for name in args.metrics if name in known]
    unknown = sorted({*args.metrics} - {*metrics} - {"score_sample"})  # which old files lack
    if unknown or not metrics:
        raise ValueError(f"--metrics {' '.join(unknown)}: there are {', '.join(sorted(known))}")
    folder = args.folder.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "report.md"
    earlier = report.read_text() if report.exists() else ""
    for name in re.findall(r"\]\((.+)\.png\)", earlier):
        for suffix in ("png", "pdf"):
            (folder / f"{name}.{suffix}").unlink(missing_ok=True)
    agents = found.groupby([*METHOD, "run", "agent"], sort=False).apply(headline)
    played = observations(runs, METHOD)
    policies = policy_table(played, METHOD)
    cloned = vae_scores(played)
    table = run_table(agents)
    tables = {"runs": table, "beside": beside_table(table, cloned)}
    tables |= {"aggregates": aggregate_table(agents), "policies": policies}
    text = ["# Report", f"Hardware: {', '.join(sorted(runs['hardware'].unique()))}."]
    for name, rows in tables.items():
        (folder / f"{name}.csv").unlink(missing_ok=True)  # an earlier report's
        if len(rows):
            rows.to_csv(folder / f"{name}.csv", index=False)
            shown = side_by_side(rows, METHOD) if name == "policies" else rows
            shown = shown.dropna(axis="columns", how="all")
            shown = shown.round({column: DIGITS.get(column, 1) for column in shown})
            shown = shown.replace(-0.0, 0.0).astype(object).where(shown.notna(), None)
            table = shown.to_markdown(index=False, missingval="–", floatfmt=".6g")
            text += [CAPTIONS[name], table]
    drawn = observations(runs, [*FIGURE, "method"])
    for number, (setting, here) in enumerate(runs.groupby(FIGURE, sort=False), 1):
        evaluated = drawn[(drawn[FIGURE] == list(setting)).all(axis=1)]
        run = here.iloc[0].copy()
        run["vae_score"] = cloned.get(tuple(run[SETTING]))
        start = f"{number:02}-{re.sub('[/:]', '-', run['task'])}"
        rows = found[(found[FIGURE] == list(setting)).all(axis=1)]
        if rows["step"].nunique() > 1:  # else there is no line
            curves = folder / f"{start}-{'-'.join(metrics)}.png"
            draw_curves(run, rows, metrics, curves)
            text.append(f"![{run['task']}, {run['conditions']}]({curves.name})")
        if len(evaluated):
            draw_policies(run, evaluated, folder / f"{start}-policies.png")
            text.append(f"![{run['task']}, who plays]({start}-policies.png)")
    report.write_text("\n\n".join(text) + "\n")
    print(text[3], report, sep="\n\n")  # the table of runs


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args, description=__doc__))
