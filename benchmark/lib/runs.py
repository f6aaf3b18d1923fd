"""Result files as tables: a row for each run, for each evaluation, for each score of a policy."""

import functools
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import tyro

import d4rl
import uwac
from benchmark.lib.files import checksum, read_json
from benchmark.lib.methods import METHODS, SCRIPTS, script_of
from benchmark.lib.policies import POLICIES, earlier_results, key_of
from benchmark.lib.published import others_scores

# Arguments in which runs of one method may differ,
OF_A_RUN = {"env_id", "seed", "num_seeds", "run_dir", "resume", "total_steps", "warmup_steps"}
OF_A_RUN |= {"dataset_path", "log_every", "cuda_graph"}
# and those that no method has, but that scores depend on.
CONDITIONS = ("matmul_precision", "eval_every", "eval_episodes", "eval_candidates")
SETTING = ["task", "data", "protocol"]  # what runs share that are compared in a table
FIGURE = ["task", "data", "conditions"]  # and in a figure, where lines may differ in length
METHOD = [*SETTING, "method"]
OF_BEST = ("score", "return", "return_std")  # metrics of the best of N actions
# "noisy" is "best" by Q1 with dropout noise, as UWAC's result files from before November 2026 have.
POLICY_NAMES = POLICIES | {"noisy": "best of {}, noisy"}


def named(args: dict, usual: dict, names: list[str] | tuple[str, ...] = ()) -> list[str]:
    """Those of the arguments that are not as usual, such as "beta 2.5"; without names, of all that
    make a method."""
    names = names or [name for name in args if name not in (*OF_A_RUN, *CONDITIONS)]
    found = [name for name in names if name in args and args[name] != usual.get(name)]
    return [f"{name.replace('_', ' ')} {args[name]}" for name in found]


@functools.cache
def usual_args(method: str, algorithm: str, env_id: str) -> dict:
    """The arguments of a method's command in a task; where METHODS has none, its algorithm's."""
    command = METHODS[method].command if method in METHODS else SCRIPTS.get(algorithm, "uwac")
    _, *words = command.split()
    args = tyro.cli(script_of(command).Args, args=[*words, "--env-id", env_id])
    return vars(args.resolved())


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


def bound_of(result: dict) -> float | None:
    """Largest reward / (1 - gamma), where both are known."""
    reward, gamma = result.get("max_reward", max_reward(result["data"])), result["args"]["gamma"]
    return reward / (1 - gamma) if reward is not None and gamma < 1 else None


def method_of(result: dict) -> str:
    """Its name in METHODS: as the result says, or by its arguments the nearest of its program's.
    The algorithm's name where METHODS has none of it."""
    algorithm, args = result["algorithm"], result["args"]
    if "method" in result:
        return result["method"]
    differences = {}
    for method, (command, *_) in METHODS.items():
        if command.split()[0].split(".")[-1] == algorithm:
            usual = usual_args(method, algorithm, args["env_id"])
            differences[method] = len(named(args, usual))
    return min(differences, key=differences.get, default=algorithm)


def label(result: dict) -> str:
    """The method's name in print, with SN where the critics have spectral norm, and with the
    arguments that are not the method's."""
    args = result["args"]
    method = method_of(result)
    usual = usual_args(method, result["algorithm"], args["env_id"])
    name = METHODS[method].name.format(**usual | args) if method in METHODS else method
    said = {"fixed_w"}  # arguments that the name says
    if "SN" not in name:
        said.add("spectral_norm")
        if args.get("spectral_norm"):
            name += " + SN"
    others = {key: value for key, value in args.items() if key not in said}
    return ", ".join([name, *named(others, usual)])


def read(file: Path) -> dict:
    """A run, with what evaluate.py found of it. Raises ValueError, KeyError and TypeError."""
    result = read_json(file)
    if not result["history"]:
        raise ValueError("not evaluated yet")
    args, data, updates = result["args"], result["data"], result["history"][-1]["step"]
    warmup = f"warm-up {args['warmup_steps']:,}"
    conditions = ", ".join(
        [warmup, *named(args, vars(uwac.Args) | {"matmul_precision": "high"}, CONDITIONS)]
    )
    within = " (all in the warm-up)" if updates <= args["warmup_steps"] else ""
    size = f"{result['transitions']:,} transitions"
    env_id = d4rl.full_id(args["env_id"])
    of_d4rl = env_id in d4rl.TASK_OF
    if result.get("score_has_dropout_noise"):
        for row in result["history"]:
            for name in OF_BEST:
                row.pop(name, None)
    return {
        "file": file,
        "task": env_id.removesuffix("-v0") if of_d4rl else env_id,  # -v0 as in the paper
        "unit": "normalized score" if of_d4rl else "return",
        "data": f"{Path(data['path']).name}, {size}, sha256 {(data.get('sha256') or '?')[:8]}",
        "content": f"{data.get('sha256') or data['path']}, {size}",
        "conditions": conditions,
        "protocol": f"{updates:,} updates{within}, {conditions}",
        "name": method_of(result),
        "method": label(result),
        "args": args,
        "seeds": (args["seed"], args["num_seeds"]),
        "updates": updates,
        "history": result["history"],
        "hardware": result["hardware"],
        "bound": bound_of(result),
        "scripts": scripts_of(result),
        "policies": result.get("policies") or earlier_results(file.parent),
    }


def scripts_of(result: dict) -> dict[str, str]:
    """SHA-256 of each file that trained it, by its name; of several versions with "+" between."""
    found: dict[str, list[str]] = {}
    for version in result.get("scripts", []):
        for file, sha256 in version.items():
            found.setdefault(file, []).append(sha256)
    return {file: "+".join(dict.fromkeys(several)) for file, several in found.items()}


def files_in(path: Path) -> list[Path]:
    """Result files that a path names. Raises ValueError where it names none."""
    files = [path if path.is_file() else path / "result.json"]
    if not files[0].exists():
        files = []
        for pattern in ("*.json", "**/result.json", "**/grid/*.json"):
            files += sorted(path.glob(pattern))
    if not files:
        raise ValueError(f"no results in {path}; benchmark/run.py makes some")
    return files


def brief(sums: str) -> str:
    return "+".join(sha256[:8] for sha256 in sums.split("+"))


def tell_scripts_apart(runs: list[dict]) -> None:
    """Runs of one label whose scripts differ get labels that say which is whose."""
    of_label: dict[str, list[dict]] = {}
    for run in runs:
        of_label.setdefault(run["method"], []).append(run)
    for several in of_label.values():
        sums = {item for run in several for item in run["scripts"].items()}
        files = [file for file, _ in sums]
        for run in several:
            changed = [x for x in run["scripts"].items() if files.count(x[0]) > 1]
            run["method"] = ", ".join(
                [run["method"], *(f"{file} {brief(several)}" for file, several in changed)]
            )


def read_all(paths: tuple[Path, ...]) -> pd.DataFrame:
    """A row for each run, in the order of the paper's tasks, of `paths` and of METHODS. Of a run
    and its copies at earlier updates the longest stays. Raises ValueError."""
    runs: dict[tuple, dict] = {}
    names: dict[str, str] = {}
    for place, path in enumerate(paths):
        for file in files_in(path):
            try:
                new = read(file) | {"place": place}
            except (ValueError, KeyError, TypeError) as error:
                print(f"{file}: left out, not a result ({error!r})", file=sys.stderr)
                continue
            new["data"] = names.setdefault(new["content"], new["data"])  # one file has one name
            key = tuple(new[name] for name in (*FIGURE, "method", "seeds"))
            key = (*key, *new["scripts"].items())
            old = runs.setdefault(key, new)
            short, long = sorted((old, new), key=lambda run: len(run["history"]))
            if short["history"] != long["history"][: len(short["history"])]:
                kept = f"{long['file']} has its arguments and seed, and is no shorter"
                print(f"{short['file']}: left out, {kept}", file=sys.stderr)
            runs[key] = long | {"policies": old["policies"] + new["policies"]}
            runs[key]["place"] = old["place"]
    if not runs:
        raise ValueError(f"no results in {', '.join(map(str, paths))}")
    tell_scripts_apart([*runs.values()])
    order = {name: number for number, name in enumerate([*others_scores().index, *METHODS])}
    rank = lambda run: (order.get(run["task"], 99), *(run[name] for name in SETTING))
    last = lambda run: (run["place"], order.get(run["name"], 99))
    return pd.DataFrame(sorted(runs.values(), key=lambda run: (*rank(run), *last(run))))


def evaluations(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each run, evaluation and agent, with METHOD and all metrics."""
    frames = []
    for number, run in enumerate(runs.to_dict("records")):
        args = run["args"]
        last = run["history"][-1]  # an earlier version may have begun with other metrics
        frame = pd.DataFrame(run["history"], columns=list(last))
        metrics = [name for name in frame if name not in ("step", "seconds")]
        frame = frame.explode(metrics).astype(float)
        if args.get("dropout") == 0 and "members" not in args:  # there is no Var[Q]
            frame["ood_auroc"] = np.nan
        about = {name: run[name] for name in (*METHOD, "name", "conditions")}
        about |= {"run": number, "agent": frame.groupby("step").cumcount()}
        about |= {"warmup": args["warmup_steps"], "num_seeds": args["num_seeds"]}
        frames.append(frame.assign(**about))
    return pd.concat(frames, ignore_index=True)


def played(runs: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """A row for each score of a policy: of an agent, or of an episode where there is but one agent.
    `by` are the columns that tell methods and settings apart. Of several evaluations of a policy
    those of the most episodes stay."""
    rows = []
    for number, run in enumerate(runs.to_dict("records")):
        unique = {str(key_of(one)): one for one in run["policies"]}
        for one in unique.values():
            about = {name: run[name] for name in by}
            about |= {"updates": one["step"], "episodes": one["episodes"]}
            about |= {"policy": one["policy"], "N": one["candidates"]}
            name = POLICY_NAMES.get(one["policy"], one["policy"])
            about["who"] = name.format(one["candidates"])
            for agent, scores in enumerate(one["scores"]):
                for score in scores:
                    rows.append({**about, "agent": f"{number}, {agent}", "score": score})
    about = [*by, "updates", "episodes", "policy", "N", "who", "agent"]
    rows = pd.DataFrame(rows, columns=[*about, "score"])
    policy = [*by, "updates", "policy", "N"]
    rows = rows[rows["episodes"] == rows.groupby(policy)["episodes"].transform("max")]
    alone = rows.groupby(policy)["agent"].transform("nunique") == 1
    episodes = rows[alone].assign(over="the episodes of a single seed")
    agents = rows[~alone].groupby(about, sort=False)["score"].mean().reset_index()
    return pd.concat([episodes, agents.assign(over="seeds")])
