"""Results as tidy rows: what runs and measuring programs leave, and results/*.csv, which keep it.

results/README.md describes the tables. A run is told by its algorithm, arguments, data and scripts,
and not by where it lies.
"""

import functools
import glob
import itertools
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd

import d4rl
import lunarlander_uncertainty
from benchmark.files import checksum, read_json, write
from benchmark.measure import variance
from benchmark.methods import as_today, changed, method_of, name_of, usual_of
from benchmark.policies import earlier_results

HERE = Path(__file__).parent
FOLDER = HERE / "results"
PAPER = HERE / "paper"
BC = "BC, the actor's network"
KEYS = {  # of the rows that `add` adds, or replaces by later ones
    "runs": ["run"],
    "history": ["run", "agent", "step"],
    "policies": ["run", "agent", "step", "policy", "candidates", "episodes", "eval_seed"],
    "diagnoses": ["run", "agent", "step"],
    "returns": ["run", "task", "of", "step"],
    "bc": ["task", "agent", "step"],
    "speed": ["group", "version", "num_seeds", "batch_size", "passes", "date", "round", "ms"],
    "variance": ["rate", "spectral_norm", "actions", "estimate", "passes", "hardware"],
    "lunarlander": ["beta", "removed", "agent", "step"],
}
WHOLE = {"bc": ["task"], "lunarlander": ["beta", "removed"]}  # replaced by later ones as a whole
PLAYED = ["agent", "step", "policy", "candidates", "episodes", "score", "score_std"]
STEP = ["run", "agent", "step"]
DIAGNOSED = {"mmd": "mmd_10", "ood_auroc": "auroc_uniform", "q_share": "q_share_diagnosed"}
SHORT = {"warmup_steps": "warmup", "mmd_kernel": "kernel"}  # in names of runs
NO_COLUMNS = {"env_id", "run_dir", "resume", "dataset_path"}  # of arguments
OF_A_RESULT = ("study", "commit", "command", "score_has_dropout_noise")
PACKAGES = ("torch", "numpy", "gymnasium", "gymnasium_robotics", "mujoco")
# What may differ between a run and its beginning,
GROWS = {*PACKAGES, "total_steps", "updates", "log_every", "cuda_graph", "commit", "command"}
GROWS |= {"max_reward", "study"}
# and what one place says of a run and another does not.
OF_A_PLACE = {"run", "data", "hardware", "precision"}


# What others published.


def others_scores() -> pd.DataFrame:
    """A row for each task, without its version: the paper's and reruns', as printed. The paper's
    are of D4RL's first versions (v0), a rerun's of those that reruns.csv names, and these come from
    several sources."""
    paper = pd.concat([pd.read_csv(PAPER / f"table{number}.csv") for number in (1, 2)])
    paper = paper.set_index("task")[["UWAC", "UWAC_std", "BEAR", "BC"]].add_prefix("paper: ")
    reruns = pd.read_csv(PAPER / "reruns.csv", comment="#")
    reruns["task"] = reruns["task"].str.replace(r"-v\d$", "", regex=True)
    reruns = reruns.pivot(index="task", columns="source", values=["UWAC", "BC"])
    reruns.columns = [f"{source}: {method}" for method, source in reruns]
    return paper.join(reruns)


def beside_the_paper() -> pd.DataFrame:
    """A row for each of the paper's Gym-MuJoCo tasks that all have, all on D4RL's own v0 files: its
    scores; three runs of the official BEAR; the highest of 65,000 evaluations of eleven others."""
    paper = pd.read_csv(PAPER / "table1.csv").set_index("task")
    logs = pd.read_csv(PAPER / "bear_official_logs.csv", comment="#")
    others = pd.read_csv(PAPER / "d4rl_v0_evaluations.csv", comment="#")
    official = logs.groupby("task")[["score_last50", "score_best_epoch"]].mean()
    official.columns = ["official BEAR, last 50 epochs", "official BEAR, best epoch"]
    table = paper[["UWAC", "UWAC_std", "BEAR"]].add_prefix("paper: ").join(official, how="inner")
    table["highest of anyone"] = others.groupby("task")["highest"].max()
    return table.sort_values("paper: UWAC")


def reference_scores(task: str) -> dict[str, float]:
    """The paper's UWAC and BEAR on a task, and our behaviour cloning (results/bc.csv), if any."""
    bc = pd.read_csv(FOLDER / "bc.csv").query("task == @task")
    found = others_scores().reindex([task])[["paper: UWAC", "paper: BEAR"]].add_suffix(" (v0)")
    found[BC] = bc[bc["step"] == bc["step"].max()]["score"].mean()
    return found.loc[task].dropna().to_dict()


# What a run leaves.


@functools.cache
def largest_in(path: Path, sha256: str) -> float | None:
    """A file's largest reward, if it is the one of this checksum and can be read."""
    try:
        known = checksum(path) == sha256
        return float(d4rl.read(path)["rewards"].max()) if known else None
    except (OSError, ValueError, KeyError):  # gone, locked, damaged: the run is as it was
        return None


def max_reward(data: dict) -> float | None:
    """The data's largest reward, if a result says it or the very file is here."""
    if data.get("max_reward") is not None:
        return data["max_reward"]
    return largest_in(Path(data["path"]), data.get("sha256"))


def bound_of(max_reward, gamma):
    """What no return exceeds: the largest reward for ever, or 0 where that is less, as where
    episodes of negative rewards end. Of numbers or of columns."""
    return np.maximum(max_reward, 0) / (1 - gamma)


def scripts_of(result: dict) -> dict[str, str]:
    """SHA-256 of each file that trained it, by its name; of several versions with "+" between."""
    found: dict[str, list[str]] = {}
    for version in result.get("scripts", []):
        for file, sha256 in version.items():
            found.setdefault(file, []).append(sha256)
    return {file: "+".join(dict.fromkeys(several)) for file, several in found.items()}


def precision_of(asked: str, hardware: str) -> str:
    """What matmuls were computed in, by what the result or who added it says of the hardware."""
    if "NVIDIA" in hardware or "cuda" in hardware:
        return "float32" if asked == "highest" else "tf32"
    amx = "AMX" in hardware and "without AMX" not in hardware
    return "bfloat16" if asked == "medium" and amx else "float32"


def run_name(row: dict, args: dict, apart: str | None = None) -> str:
    """Task, method, arguments that are not the method's, what sets it apart, precision, seeds."""
    usual = usual_of(row["method"], row["algorithm"], row["task"])
    names = {"warmup_steps", *changed(args, usual)}
    others = [name for name in args if name in names and args[name] != usual.get(name)]
    words = [f"{SHORT.get(name, name).replace('_', '-')}-{args[name]}" for name in others]
    words += [apart] if apart else []
    first, last = row["seed"], row["seed"] + row["num_seeds"] - 1
    seeds = f"{first}-{last}" if last > first else f"{first}"
    return "_".join([row["task"], row["method"], *words, row["precision"], seeds])


def run_row(result: dict, hardware: str | None = None) -> dict:
    """Of runs.csv. Raises ValueError and KeyError for what is no result."""
    if not result["history"]:
        raise ValueError("not evaluated yet")
    algorithm, args = as_today(result)
    trained_on = result["hardware"]  # all that did; earlier versions kept the last
    trained_on = [trained_on] if isinstance(trained_on, str) else trained_on
    data, hardware = result["data"], hardware or "; ".join(trained_on)
    row = {"task": args["env_id"], "method": method_of(algorithm, args), "algorithm": algorithm}
    row |= {name: value for name, value in args.items() if name not in NO_COLUMNS}
    row |= {"updates": result["history"][-1]["step"], "hardware": hardware}
    row["precision"] = precision_of(args.get("matmul_precision", "high"), hardware)
    row |= {"transitions": result["transitions"], "data": Path(data["path"]).name}
    row |= {"data_sha256": data.get("sha256")}
    row["max_reward"] = result.get("max_reward", max_reward(data))
    row |= {name: result.get(name) for name in OF_A_RESULT}
    if "forked_from" in result:
        row["forked_from"] = result["forked_from"]
    torch = result.get("torch")  # one version, or several in their order
    versions = {"torch": " ".join(torch) if isinstance(torch, list) else torch}
    versions |= {name.replace("-", "_"): of for name, of in result.get("versions", {}).items()}
    row |= {name: versions.get(name) for name in PACKAGES}
    row["sha256"] = " ".join(f"{file}:{of}" for file, of in scripts_of(result).items())
    return {"run": run_name(row, args, result.get("apart"))} | row


def by_agent(values: dict, agents: int) -> Iterator[dict]:
    """A row for each agent, of numbers for each of them or for all."""
    for agent in range(agents):
        of_one = {name: x[agent] if isinstance(x, list) else x for name, x in values.items()}
        yield {"agent": agent} | of_one


def over_episodes(name: str, values: list[list[float]]) -> dict[str, list[float]]:
    """Of each agent's episodes mean and standard deviation, NaN where there are none."""
    agents = [pd.Series(of_one, dtype=float) for of_one in values]
    return {name: [of.mean() for of in agents], f"{name}_std": [of.std() for of in agents]}


def policy_rows(played: list[dict]) -> Iterator[dict]:
    """Of what evaluate.py played."""
    for one in played:
        agents = len(one["scores"])
        row = {name: one[name] for name in ("step", "policy", "candidates", "episodes")}
        row |= {"eval_seed": one.get("seed"), "matmul_precision": one.get("matmul_precision")}
        row |= over_episodes("score", one["scores"])
        row |= over_episodes("return", one.get("returns", [[]] * agents))
        yield from by_agent(row, agents)


def diagnosis_rows(found: dict, step: int, agents: int) -> Iterator[dict]:
    """Of what diagnose.py found; of ten untrained networks mean and range."""
    row = {name.replace(", ", "_"): values for name, values in found.items()}
    if "auroc_untrained" in row:
        ten = row["auroc_untrained"]
        row |= {"auroc_untrained": float(np.mean(ten))}
        row |= {"auroc_untrained_lowest": min(ten), "auroc_untrained_highest": max(ten)}
        row |= {name: row[name][0] for name in ("auroc_action_norm", "auroc_nearest")}
    yield from by_agent({"step": step} | row, agents)


def without_source(result: dict, folder: Path) -> dict:
    """A fork's result, named after what it began as, with its own evaluations alone; of another run
    what was given."""
    copied = folder / "forked_from.json"
    source = read_json(copied) if copied.exists() else result.get("forked_from")
    if not source:
        return result
    own = [one for one in result["history"] if one["step"] > source["updates"]]
    apart = f"from-{source['algorithm']}-{source['updates']}"
    if "apart" in result:
        apart = f"{result['apart']}-{apart}"
    name = f"{source['algorithm']} at {source['updates']:,}"
    return result | {"forked_from": name, "history": own, "apart": apart}


def rows_of(result: dict, folder: Path, hardware: str | None = None) -> dict[str, list[dict]]:
    """Of each table, from a run's result and its folder. Raises ValueError and KeyError."""
    result = without_source(result, folder)
    row = run_row(result, hardware)
    agents = row["num_seeds"]
    rows = {"runs": [row], "diagnoses": [], "returns": []}
    rows["history"] = [one for entry in result["history"] for one in by_agent(entry, agents)]
    rows["policies"] = [*policy_rows(result.get("policies", []) + earlier_results(folder))]
    for file in sorted(folder.glob("*-[0-9]*.json")):
        kind, _, step = file.stem.rpartition("-")
        if kind == "diagnosis":
            rows["diagnoses"] += diagnosis_rows(read_json(file), int(step), agents)
        if kind == "true-q":
            about = {"task": row["task"], "of": "run", "step": int(step)}
            for one in read_json(file):
                one = {name: of for name, of in one.items() if name not in ("what", "updates")}
                rows["returns"].append(about | one)
    return {name: [{"run": row["run"]} | one for one in some] for name, some in rows.items()}


def results_in(path: Path) -> Iterator[tuple[Path, Path]]:
    """Files and folders of the runs that a path names: a result, a run's folder, or a folder of
    runs or of a grid. Raises ValueError where it names none."""
    files = [path] if path.is_file() else [path / "result.json"]
    if not files[0].exists():
        patterns = ("*.json", "**/result.json", "**/grid/*.json")
        found = [sorted(glob.glob(str(path / one), recursive=True)) for one in patterns]
        files = [Path(file) for file in dict.fromkeys(itertools.chain(*found))]  # links, too
    if not files:
        raise ValueError(f"no results in {path}; benchmark/run.py makes some")
    of_grid = {file: file.parent / "work" / file.stem for file in files}
    for file in files:
        if file.parent not in of_grid.values():  # else the grid's own file has more
            yield file, of_grid[file] if of_grid[file].exists() else file.parent


# What other programs leave.


def refuse_others(file: Path, given: dict, usual: dict, free: set[str]) -> None:
    """Raises ValueError for arguments that a table has no column for, and that are not as usual."""
    names = sorted(({*given} & {*usual}) - free)
    if other := [name for name in names if given[name] != usual[name]]:
        raise ValueError(f"{file}: its table has no column for another {', '.join(other)}")


def other_rows(found: dict | list, file: Path) -> dict[str, list[dict]]:
    """Of speed.json, variance.json, bc.py's file of a task, true_q.py's of data and policies, and
    lunarlander_uncertainty.py's result. Raises ValueError for anything else."""
    if isinstance(found, dict) and "clips" in found:
        free = {"beta", "num_seeds", "total_steps", "run_dir", "expert"}
        refuse_others(file, found["args"], vars(lunarlander_uncertainty.Args), free)
        rows = []
        for removed, study in found["clips"].items():
            about = {"beta": found["args"]["beta"], "removed": removed}
            names = ("auroc_norm", "auroc_distance", "states_removed", "transitions_trained")
            about |= {name: study[name] for name in names}
            for entry in study["history"]:
                rows += [about | one for one in by_agent(entry, len(entry["auroc_variance"]))]
        return {"lunarlander": rows}
    if isinstance(found, dict) and "data_score" in found:
        about = {"task": found.get("task", file.stem), "data": Path(found["data"]["path"]).name}
        about |= {"data_sha256": found["data"].get("sha256")}
        about |= {name: found[name] for name in ("data_score", "command")}
        rows = []
        for entry in found["history"]:
            row = about | {"step": entry["step"], "episodes": len(entry["scores"][0])}
            row |= over_episodes("score", entry["scores"])
            rows += by_agent(row, len(entry["scores"]))
        return {"bc": rows}
    first = found[0] if isinstance(found, list) and found else {}
    if "version" in first:
        rounds = [pd.DataFrame(one).rename_axis("round").reset_index() for one in found]
        return {"speed": pd.concat(rounds).dropna(subset="ms").to_dict("records")}
    if "log_correlation" in first:
        refuse_others(file, first, vars(variance.Args), {"folder", "rates", "passes"})
        return {"variance": found}
    if "what" in first:
        of = lambda one: "data" if "bound" in one else "policy"
        task = lambda one: one["what"].removesuffix(", played")
        rows = pd.DataFrame([{"task": task(one), "of": of(one)} | one for one in found])
        return {"returns": rows.drop(columns="what").to_dict("records")}
    raise ValueError(f"{file}: not what a program of this project leaves")


# The tables.


def as_texts(rows: list[dict]) -> pd.DataFrame:
    """As a CSV file has them."""
    return pd.DataFrame(rows, dtype=object).map(lambda x: "" if pd.isna(x) else str(x)).fillna("")


def begins_as(long: pd.DataFrame, short: pd.DataFrame) -> bool:
    """Whether a history has all of another that is no longer, in the columns of both."""
    columns = [name for name in short if name in long]
    first = long[columns].head(len(short)).reset_index(drop=True)
    return first.equals(short[columns].reset_index(drop=True))


def put_run(tables: dict[str, pd.DataFrame], new: dict[str, pd.DataFrame]) -> None:
    """Takes out of `new` what the tables know better: of a copy of a run at an earlier update only
    what was measured of it is new. Raises ValueError where another run has its name."""
    (about,) = new["runs"].to_dict("records")
    of_run = lambda name: tables[name][tables[name]["run"] == about["run"]]
    for old in of_run("runs").to_dict("records"):  # one or none
        both = {name: {old.get(name, ""), of} - {""} for name, of in about.items()}
        other = [name for name, values in both.items() if len(values) > 1 and name not in GROWS]
        short, long = sorted((new["history"], of_run("history")), key=len)
        if other or not begins_as(long, short):
            why = f"other {', '.join(other)}" if other else "another history"
            raise ValueError(f"the tables have another run of the name {about['run']}, with {why}")
        if long is not new["history"]:
            del new["runs"], new["history"]
        else:  # what the longer one does not say is as it was
            new["runs"] = as_texts([{name: of or old.get(name, "") for name, of in about.items()}])


def put(tables: dict[str, pd.DataFrame], rows: dict[str, list[dict]], about: str) -> str:
    """Adds rows, in the place of those with the same keys; returns what is new."""
    new = {name: as_texts(some) for name, some in rows.items() if some}
    if "runs" in new:
        about = new["runs"]["run"].iloc[0]
        put_run(tables, new)
    for name, some in new.items():
        old = tables[name]
        if name == "speed":  # what one call measured is a series
            series = pd.to_numeric(old["series"]).max() + 1
            some = some.merge(old[[*KEYS[name], "series"]], "left", KEYS[name])
            some["series"] = some["series"].fillna(str(series))
        if name in WHOLE:
            kept, added = (table.set_index(WHOLE[name]).index for table in (old, some))
            old = old[~kept.isin(added)]
        columns = dict.fromkeys([*old, *(some if "run" in old else ())])  # a run may have new ones
        both = pd.concat([old, some]).reindex(columns=[*columns]).fillna("")
        both = both.drop_duplicates(KEYS[name], keep="last")
        tables[name] = both.sort_values("run", kind="stable") if "run" in both else both
    added = ", ".join(f"{len(some)} of {name}" for name, some in new.items())
    return f"{about}: {added or 'no change'}"


def add(
    paths: list[Path],
    hardware: str | None = None,
    folder: Path = FOLDER,
    study: str | None = None,
) -> list[str]:
    """Takes what programs left into the tables, all of it or none; a line for each. `hardware` says
    where a result does not what trained it. `study` becomes a part of the runs' names, to keep them
    apart from others of the same arguments. Raises ValueError, and OSError."""
    read = lambda name: pd.read_csv(folder / f"{name}.csv", dtype=str, keep_default_na=False)
    tables = {name: read(name) for name in KEYS}
    lines = []
    for path in paths:
        for file, run in results_in(path.expanduser()):
            try:
                found = read_json(file)
                of_a_run = isinstance(found, dict) and "args" in found and "clips" not in found
                if of_a_run and study:
                    found["study"] = found["apart"] = study
                rows = rows_of(found, run, hardware) if of_a_run else other_rows(found, file)
                lines.append(put(tables, rows, file.name))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{file}: nothing is added: {error!s}") from error
    for name, table in tables.items():
        write(folder / f"{name}.csv", table.to_csv(index=False, lineterminator="\n").encode())
    return lines


def studies(folder: Path = FOLDER) -> dict[str, dict]:
    """What each study asks, which runs it has, and the commands that make them again."""
    return tomllib.loads((folder / "studies.toml").read_text(encoding="utf-8"))


def best_played(policies: pd.DataFrame) -> pd.DataFrame:
    """Of several evaluations of an agent's policy at a step the one of the most episodes, with the
    standard error over these."""
    key = [*STEP, "policy", "candidates"]
    ordered = policies.sort_values("episodes", ascending=False, kind="stable")
    found = ordered.drop_duplicates(key).sort_index()
    return found.assign(score_se=found["score_std"] / found["episodes"] ** 0.5)


def load(folder: Path = FOLDER) -> SimpleNamespace:
    """Each table by its name, and `agents`: all that is known of an agent at a step, with its run's
    columns. Raises OSError."""
    t = SimpleNamespace(**{file.stem: pd.read_csv(file) for file in sorted(folder.glob("*.csv"))})
    t.studies = studies(folder)
    of_run = {run: name for name, one in t.studies.items() for run in one.get("runs", [])}
    t.runs["study"] = t.runs["run"].map(of_run).astype(object).fillna(t.runs["study"])
    t.data = t.returns[t.returns["of"] == "data"].set_index("task")
    t.runs["spectral_norm"] = t.runs["spectral_norm"].eq(True)  # bear.py has no such argument
    t.runs["bound"] = bound_of(t.runs["max_reward"], t.runs["gamma"])  # else of a like roll-out
    t.runs["bound"] = t.runs["bound"].fillna(t.runs["task"].map(t.data["bound"]))
    t.runs["name"] = [name_of(row["method"], row) for row in t.runs.to_dict("records")]
    of_one = best_played(t.policies[t.policies["policy"].isin(["sample", "vae", "best"])])
    of_one = of_one[(of_one["policy"] != "best") | (of_one["candidates"] == 100)]
    played = of_one.pivot(index=STEP, columns="policy", values=["score", "score_se"])
    played.columns = [f"{policy}{kind.removeprefix('score')}" for kind, policy in played]
    played = played.reset_index()
    q = t.returns.query("of == 'run'").assign(agent=0).drop(columns=["task", "of", "bound"])
    agents = t.history.merge(t.diagnoses, "outer", STEP, suffixes=("", "_diagnosed"))
    for name, diagnosed in DIAGNOSED.items():
        agents[name] = agents[diagnosed].fillna(agents[name])
    agents = agents.merge(played, "outer", STEP).merge(q, "outer", STEP)
    t.agents = agents.merge(t.runs, "left", "run", suffixes=("", "_of_run")).copy()
    t.agents["share"] = 100 * t.agents["q_share"]
    t.agents["inequality"] = t.agents["weight"] * t.agents["variance"] / t.agents["beta"]
    t.agents.loc[t.agents["method"] == "bear", ["weight", "policy_weight"]] = 1.0
    return t
