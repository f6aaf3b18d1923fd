"""Our results, results/*.csv, which results/README.md describes: to read, and to add runs."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd

from benchmark.lib.files import MODEL, hardware, read_json, write
from benchmark.lib.methods import SCRIPTS
from benchmark.lib.policies import earlier_results
from benchmark.lib.runs import CONDITIONS, OF_A_RUN, max_reward, method_of, scripts_of, usual_args
from uwac import RESUMABLE

FOLDER = Path(__file__).parents[1] / "results"
KEYS = {  # of the rows that `add` adds, or replaces by later ones
    "runs": ["run"],
    "history": ["run", "agent", "step"],
    "policies": ["run", "agent", "step", "policy", "candidates", "episodes", "eval_seed"],
    "diagnoses": ["run", "agent", "step"],
    "returns": ["run", "task", "of", "step"],
}
# Replays on door-human have 60 episodes, but the first seeds of BEAR and of UWAC without SN 100.
COUNTED = "(policy in ('sample', 'vae') or policy == 'best' and candidates == 100) and "
COUNTED += "(task != 'door-human' or episodes == 60 or method in ('bear', 'uwac-no-sn'))"
DIAGNOSED = {"mmd": "mmd_10", "ood_auroc": "auroc_uniform", "q_share": "q_share_diagnosed"}
SHORT = {"warmup_steps": "warmup", "mmd_kernel": "kernel"}  # in names of runs
NO_COLUMNS = {"env_id", "run_dir", "resume", "dataset_path"}  # of arguments
PACKAGES = ("torch", "numpy", "gymnasium", "gymnasium_robotics", "mujoco")
MAY_DIFFER = {*RESUMABLE, *PACKAGES, "updates", "commit", "command", "max_reward"}  # in one run


def load(folder: Path = FOLDER) -> SimpleNamespace:
    """Each table by its name, and `agents`: all that is known of an agent at a step, with its run's
    columns. Raises OSError."""
    t = SimpleNamespace(**{file.stem: pd.read_csv(file) for file in sorted(folder.glob("*.csv"))})
    t.groups = {}  # of runs, by what results.py calls them
    t.data = t.returns[t.returns["of"] == "data"].set_index("task")
    t.runs["bound"] = t.runs["max_reward"] / (1 - t.runs["gamma"])  # else that of a like roll-out
    t.runs["bound"] = t.runs["bound"].fillna(t.runs["task"].map(t.data["bound"]))
    key = ["run", "agent", "step"]
    played = t.policies.merge(t.runs[["run", "task", "method"]], on="run").query(COUNTED)
    played = played.pivot(index=key, columns="policy", values="score").reset_index()
    q = t.returns.query("of == 'run'").assign(agent=0).drop(columns=["task", "of", "bound"])
    agents = t.history.merge(t.diagnoses, "outer", key, suffixes=("", "_diagnosed"))
    for name, diagnosed in DIAGNOSED.items():
        agents[name] = agents[diagnosed].fillna(agents[name])
    agents = agents.merge(played, "outer", key).merge(q, "outer", key)
    t.agents = agents.merge(t.runs, "left", "run", suffixes=("", "_of_run")).copy()
    t.history = t.history.merge(t.runs, on="run", suffixes=("", "_of_run"))
    for table in (t.runs, t.history, t.agents):  # bear.py has no such argument
        table["spectral_norm"] = table["spectral_norm"].eq(True)
    t.agents["share"] = 100 * t.agents["q_share"]
    t.agents["inequality"] = t.agents["weight"] * t.agents["variance"] / t.agents["beta"]
    t.agents.loc[t.agents["method"] == "bear", ["weight", "policy_weight"]] = 1.0
    return t


def device_of(result: dict) -> str:
    """Its model, with AMX where it has that. Where a result says "cpu" or "cuda", or this machine's
    model without more, it is this machine's."""
    line = result["hardware"]
    if line.startswith(("cpu", "cuda")):
        line = hardware(line)
    model, _, threads = line.rpartition(", ")
    here = subprocess.getoutput(MODEL["cpu"])
    amx = model == here and "amx_bf16" in subprocess.getoutput("lscpu")
    return f"{model} with AMX, {threads}" if amx else line


def precision_of(result: dict, device: str) -> str:
    """What matmuls were computed in."""
    asked = result["args"]["matmul_precision"]
    if "NVIDIA" in device or "cuda" in device:
        return "float32" if asked == "highest" else "tf32"
    return "bfloat16" if asked == "medium" and "with AMX" in device else "float32"


def command_of(result: dict) -> str:
    """As the result says, or what would train the run by itself."""
    args, algorithm = result["args"], result["algorithm"]
    usual = usual_args(algorithm, algorithm, args["env_id"])
    module = SCRIPTS[algorithm]
    words = ["python", "-m", module] if "." in module else ["python", f"{module}.py"]
    for name in args:
        if name == "env_id" or (name not in NO_COLUMNS and args[name] != usual.get(name)):
            words += [f"--{name.replace('_', '-')}", str(args[name])]
    return result.get("command", " ".join(words))


def name_of(row: dict, args: dict) -> str:
    """Task, method, arguments that are not the method's, precision and seeds."""
    usual = usual_args(row["method"], row["algorithm"], row["task"])
    names = [name for name in args if name not in {*CONDITIONS, *OF_A_RUN} - {"warmup_steps"}]
    others = [name for name in names if args[name] != usual.get(name)]
    words = [f"{SHORT.get(name, name).replace('_', '-')}-{args[name]}" for name in others]
    first, last = row["seed"], row["seed"] + row["num_seeds"] - 1
    seeds = f"{first}-{last}" if last > first else f"{first}"
    return "_".join([row["task"], row["method"], *words, row["precision"], seeds])


def run_row(result: dict) -> dict:
    """Of runs.csv. Raises ValueError and KeyError for what is no result."""
    if not result["history"]:
        raise ValueError("not evaluated yet")
    args, data, device = result["args"], result["data"], device_of(result)
    row = {"task": args["env_id"], "method": method_of(result), "algorithm": result["algorithm"]}
    row |= {name: value for name, value in args.items() if name not in NO_COLUMNS}
    row |= {"updates": result["history"][-1]["step"], "hardware": device}
    row |= {"precision": precision_of(result, device), "transitions": result["transitions"]}
    row |= {"data": Path(data["path"]).name, "data_sha256": data.get("sha256")}
    row["max_reward"] = result.get("max_reward", max_reward(data))
    row |= {name: result.get(name) for name in ("commit", "score_has_dropout_noise")}
    versions = {name.replace("-", "_"): of for name, of in result.get("versions", {}).items()}
    row |= {name: versions.get(name) for name in PACKAGES}
    row["sha256"] = " ".join(f"{file}:{of}" for file, of in scripts_of(result).items())
    return {"run": name_of(row, args)} | row | {"command": command_of(result)}


def by_agent(values: dict, agents: int) -> Iterator[dict]:
    """A row for each agent, of numbers for each of them or for all."""
    for agent in range(agents):
        of_one = {name: x[agent] if isinstance(x, list) else x for name, x in values.items()}
        yield {"agent": agent} | of_one


def policy_rows(played: list[dict]) -> Iterator[dict]:
    """Of what evaluate.py played: means over episodes, and their standard deviations."""
    for one in played:
        row = {name: one[name] for name in ("step", "policy", "candidates", "episodes")}
        row |= {"eval_seed": one.get("seed"), "matmul_precision": one.get("matmul_precision")}
        for kind in ("score", "return"):
            row[kind] = [pd.Series(of_one).mean() for of_one in one[f"{kind}s"]]
            row[f"{kind}_std"] = [pd.Series(of_one).std() for of_one in one[f"{kind}s"]]
        yield from by_agent(row, len(one["scores"]))


def diagnosis_rows(found: dict, step: int, agents: int) -> Iterator[dict]:
    """Of what diagnose.py found; of ten untrained networks mean and range."""
    row = {name.replace(", ", "_"): values for name, values in found.items()}
    if "auroc_untrained" in row:
        ten = row["auroc_untrained"]
        row |= {"auroc_untrained": float(np.mean(ten))}
        row |= {"auroc_untrained_lowest": min(ten), "auroc_untrained_highest": max(ten)}
        row |= {name: row[name][0] for name in ("auroc_action_norm", "auroc_nearest")}
    yield from by_agent({"step": step} | row, agents)


def rows_of(result: dict, run: Path) -> dict[str, list[dict]]:
    """Of each table, from a run's result and its folder. Raises ValueError and KeyError."""
    row = run_row(result)
    agents = row["num_seeds"]
    rows = {"runs": [row], "diagnoses": [], "returns": []}
    rows["history"] = [one for entry in result["history"] for one in by_agent(entry, agents)]
    rows["policies"] = [*policy_rows(result.get("policies", []) + earlier_results(run))]
    for file in sorted(run.glob("*-[0-9]*.json")):
        kind, _, step = file.stem.rpartition("-")
        if kind == "diagnosis":
            rows["diagnoses"] += diagnosis_rows(read_json(file), int(step), agents)
        if kind == "true-q":
            about = {"task": row["task"], "of": "run", "step": int(step)}
            for one in read_json(file):
                one = {name: of for name, of in one.items() if name not in ("what", "updates")}
                rows["returns"].append(about | one)
    return {name: [{"run": row["run"]} | one for one in some] for name, some in rows.items()}


def results_in(path: Path) -> Iterator[tuple[dict, Path]]:
    """Results and folders of a run, or of a grid. Raises ValueError and OSError."""
    if (path / "result.json").exists():
        yield read_json(path / "result.json"), path
        return
    files = sorted(path.glob("*.json"))
    if not files:
        raise ValueError(f"{path}: has neither result.json nor a grid's results")
    for file in files:
        yield read_json(file), path / "work" / file.stem


def as_texts(rows: list[dict]) -> pd.DataFrame:
    """As a CSV file has them."""
    return pd.DataFrame(rows, dtype=object).map(lambda x: "" if pd.isna(x) else str(x)).fillna("")


def begins_as(long: pd.DataFrame, short: pd.DataFrame) -> bool:
    columns = [name for name in short if name in long]
    return long[columns].head(len(short)).to_numpy().tolist() == short[columns].to_numpy().tolist()


def put(tables: dict[str, pd.DataFrame], rows: dict[str, list[dict]]) -> str:
    """Adds a run, or puts it in the place of its own beginning; of a copy at an earlier update only
    what was found of it. Returns its name and what is new. Raises ValueError where another run has
    its name."""
    new = {name: as_texts(some) for name, some in rows.items() if some}
    run = rows["runs"][0]["run"]
    old = {name: table[table["run"] == run] for name, table in tables.items()}
    if len(old["runs"]):
        pairs = {
            name: (old["runs"][name].iloc[0], new["runs"][name].iloc[0]) for name in new["runs"]
        }
        other = [name for name, (a, b) in pairs.items() if a != b and "" not in (a, b)]
        other = [name for name in other if name not in MAY_DIFFER]
        short, long = sorted((old["history"], new["history"]), key=len)
        if other or not begins_as(long, short):
            why = f"other {', '.join(other)}" if other else "another history"
            raise ValueError(f"the tables have another run of the name {run}, with {why}")
        if len(new["history"]) <= len(old["history"]):
            del new["runs"], new["history"]
    for name, some in new.items():
        both = pd.concat([tables[name], some]).fillna("")
        both = both.drop_duplicates(KEYS[name], keep="last")
        tables[name] = both.sort_values("run", kind="stable")
    return (
        f"{run}: {', '.join(f'{len(some)} of {name}' for name, some in new.items()) or 'no change'}"
    )


def add(paths: list[Path], folder: Path = FOLDER) -> list[str]:
    """Takes runs into the tables, all of them or none; a line for each. Raises ValueError, and
    OSError."""
    read = lambda name: pd.read_csv(folder / f"{name}.csv", dtype=str, keep_default_na=False)
    tables = {name: read(name) for name in KEYS}
    lines = []
    for path in paths:
        for result, run in results_in(path):
            try:
                lines.append(put(tables, rows_of(result, run)))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{run}: nothing is added: {error}") from error
    for name, table in tables.items():
        write(folder / f"{name}.csv", table.to_csv(index=False, lineterminator="\n").encode())
    return lines
