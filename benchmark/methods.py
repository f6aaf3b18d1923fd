"""The methods that run.py compares and report.py shows: what trains each, its name and colour."""

import functools
import importlib
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import tyro


class Method(NamedTuple):
    command: str  # a script's path from the project's root, and arguments
    name: str  # in print, where "+ SN" follows if there is spectral norm; {} holds an argument
    colour: str  # in every figure


WEIGHTS = "benchmark/variants/weights.py"
ENSEMBLES = "benchmark/variants/ensembles.py"
NO_SN = "--spectral-norm False --variance analytic"
SN = "--spectral-norm True --variance analytic"

# Their order is that of rows and lines. UWAC without more has the closed form of Var[Q].
METHODS = {
    "bear": Method("bear.py", "BEAR", "#000000"),
    "uwac": Method("uwac.py", "UWAC (mc)", "#D55E00"),
    "uwac-analytic": Method("uwac.py --variance analytic", "UWAC", "#0072B2"),
    "bear+sn": Method(f"{WEIGHTS} --weighting none --dropout 0 {SN}", "BEAR + SN", "#009E73"),
    # Without weights Var[Q] is a metric alone, for which the cheap estimate will do.
    "bear+dropout": Method(f"{WEIGHTS} --weighting none {NO_SN}", "BEAR + dropout", "#999933"),
    "bear+dropout+sn": Method(f"{WEIGHTS} --weighting none {SN}", "BEAR + dropout + SN", "#CC79A7"),
    # Not in the paper: do the weights keep Q bounded without the norm that Adroit has?
    "uwac-no-sn": Method(f"uwac.py {NO_SN}", "UWAC", "#8B1A1A"),
    # The authors' configuration: docs/fidelity.md.
    "uwac-code": Method("benchmark/variants/uwac_code.py", "UWAC (authors' code)", "#E69F00"),
    "uwac-std": Method(f"{WEIGHTS} --weighting std", "UWAC (std)", "#56B4E9"),
    "uwac-ensemble": Method(f"{ENSEMBLES} --members ensemble", "UWAC (ensemble)", "#7F5FBF"),
    "uwac-rem": Method(f"{ENSEMBLES} --members rem", "UWAC (REM)", "#8C6D31"),
    # Controls: what of the weights bounds Q?
    "uwac-shuffled": Method(
        f"{WEIGHTS} --weighting shuffled {NO_SN}", "UWAC with w shuffled over states", "#1B9E77"
    ),
    "uwac-constant": Method(
        f"{WEIGHTS} --weighting constant {NO_SN}", "UWAC with w's batch mean", "#7570B3"
    ),
    "uwac-actor-constant": Method(
        f"{WEIGHTS} --weighting actor-constant {NO_SN}",
        "UWAC with w's batch mean in the actor's loss",
        "#3F8FD2",
    ),
    "uwac-critic-only": Method(
        f"{WEIGHTS} --weighting critic-only {NO_SN}",
        "UWAC with w in the critics' loss alone",
        "#E7298A",
    ),
    "uwac-actor-only": Method(
        f"{WEIGHTS} --weighting actor-only {NO_SN}",
        "UWAC with w in the actor's loss alone",
        "#66A61E",
    ),
    "bear-scaled-q": Method(
        f"{WEIGHTS} --weighting scaled-q --dropout 0 {NO_SN}",
        "BEAR with Q over its mean",
        "#A6761D",
    ),
    "bear-fixed-w": Method(
        f"{WEIGHTS} --weighting fixed-w --dropout 0 {NO_SN}",
        "BEAR with w = {fixed_w:g} in the actor's loss",
        "#666666",
    ),
}
SCRIPTS = {Path(path).stem: path for path in (m.command.split()[0] for m in METHODS.values())}
SCRIPTS["what_bounds_q"] = WEIGHTS  # its name in results from before December 2026

# Arguments in which runs of one method may differ,
OF_A_RUN = {"env_id", "seed", "num_seeds", "run_dir", "resume", "total_steps", "warmup_steps"}
OF_A_RUN |= {"dataset_path", "log_every", "cuda_graph"}
# and those that no method has, but that scores depend on.
CONDITIONS = ("matmul_precision", "eval_every", "eval_episodes", "eval_candidates")


def script_of(command: str) -> ModuleType:
    """The script that a command begins with, imported from the project's root."""
    return importlib.import_module(".".join(Path(command.split()[0]).with_suffix("").parts))


def as_today(result: dict) -> tuple[str, dict]:
    """A result's algorithm and arguments, as the scripts have them now. Before December 2026
    uwac.py had --weighting, and a program what_bounds_q had --control for more of them."""
    algorithm, args = result["algorithm"], dict(result["args"])
    weighting = args.get("control", args.get("weighting"))
    args.pop("control", None)
    if weighting == "fixed-w":
        args.setdefault("fixed_w", 0.01)  # it had no argument at first
    if algorithm == "what_bounds_q" or (
        algorithm == "uwac" and weighting in ("none", "std", "exp")
    ):
        return "weights", args | {"weighting": weighting}
    if algorithm != "weights":
        args.pop("weighting", None)
    return algorithm, args


@functools.cache
def usual_args(command: str, env_id: str) -> dict:
    """All arguments of a script in a task, where only those of a command are given."""
    words = [*command.split()[1:], "--env-id", env_id]
    return vars(tyro.cli(script_of(command).Args, args=words))


def usual_of(method: str, algorithm: str, env_id: str) -> dict:
    """The same of a method; of its script, or else of uwac.py, where METHODS does not have it."""
    known = METHODS[method].command if method in METHODS else SCRIPTS.get(algorithm, "uwac.py")
    return usual_args(known, env_id)


def changed(args: dict, usual: dict) -> list[str]:
    """Names of the arguments that make a method and are not as usual."""
    names = [name for name in args if name not in (*OF_A_RUN, *CONDITIONS)]
    return [name for name in names if args[name] != usual.get(name)]


def method_of(algorithm: str, args: dict) -> str:
    """The method of METHODS that is nearest by its arguments, its kind of weights first, of those
    of the same script; the algorithm's name where there is none."""
    differences = {}
    for method, (command, *_) in METHODS.items():
        if Path(command.split()[0]).stem == algorithm:
            names = changed(args, usual_args(command, args["env_id"]))
            differences[method] = len({"weighting", "members"} & {*names}), len(names)
    return min(differences, key=differences.get, default=algorithm)


def name_of(method: str, args: dict) -> str:
    """In print, with SN where the critics have spectral norm."""
    name = METHODS[method].name.format(**args) if method in METHODS else method
    return name.removesuffix(" + SN") + " + SN" * bool(args.get("spectral_norm"))


def label_of(method: str, algorithm: str, args: dict) -> str:
    """The name, and the arguments that are not the method's, as in "UWAC + SN, beta 2.5"."""
    said = ("fixed_w", "spectral_norm")
    names = changed(args, usual_of(method, algorithm, args["env_id"]))
    others = [f"{name.replace('_', ' ')} {args[name]}" for name in names if name not in said]
    return ", ".join([name_of(method, args), *others])
