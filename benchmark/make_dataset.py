"""Data in D4RL's format without a download, made as the paper says (sections 5.2 and 5.3).

    python benchmark/make_dataset.py --policy hopper-medium hopper-expert    # roll out, half each
    python benchmark/make_dataset.py --policy runs/RUN --steps 5000          # the policy of a run
    python benchmark/make_dataset.py --env hopper                            # train SAC: 5 sets
    python benchmark/make_dataset.py --env door --demos door-v0_demos.pickle # replay humans
    python benchmark/make_dataset.py --env door --demos door-human-v1.hdf5   # clone
    python benchmark/make_dataset.py --minari D4RL/door/human-v2             # convert

Sets lie in D4RL's cache folder as TASK-KIND-rebuilt.hdf5, with `metadata` on what made them. One of
the same name is replaced only with --force. Episode i of a roll-out, from 0 on, begins with
`reset(seed=seed + i)` in `d4rl.make(environment)`, both of which `metadata` names: its actions
replay it exactly. door-v0_demos.pickle is the DAPG release's (dapg/demonstrations/ in its
repository, hand_dapg), of which only arrays are unpickled.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # to start from any folder

import functools
import io
import os
import shlex
from dataclasses import replace
from importlib.metadata import version
from typing import Annotated, Literal

import h5py
import numpy as np
import torch
import tyro
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

import d4rl
from benchmark.datasets.demonstrations import behavior_cloning, read_steps, replay
from benchmark.datasets.episodes import join, returns_of, roll_out, to_arrays
from benchmark.datasets.players import load_player, sample
from benchmark.datasets.sac import train
from benchmark.files import errors_in_one_line, try_to_write, write

PLACES = ("--folder", "--out", "--force", "--no-force")  # say where a file goes, not what it is


@dataclass
class Args:
    policy: tuple[str, ...] = ()  # roll out a shipped TASK-KIND, a .npz of ours, a run; or several
    env: Literal[*d4rl.TASKS] | None = None  # train SAC there, or use --demos
    demos: Path | None = None  # .pickle of the DAPG release, or D4RL's format for half of a set
    minari: str | None = None  # Minari data set to convert, downloaded if need be
    steps: PositiveInt = 1_000_000  # of each set (D4RL; its pen sets have 500,000)
    folder: Path = Path(os.environ.get("D4RL_DATASET_DIR") or "~/.d4rl/datasets")  # sets, trainings
    out: Path | None = None  # file of a set, instead of one with its own name in --folder
    force: bool = False  # replace a set of the same name
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # of networks, actions and episodes
    train_steps: PositiveInt = 1_000_000  # SAC: environment steps, an update each
    learning_starts: PositiveInt = 5_000  # SAC: steps before the first update (CleanRL)
    eval_every: PositiveInt = 5_000  # SAC: steps between evaluations, each with a checkpoint
    eval_episodes: PositiveInt = 10  # SAC: episodes of an evaluation
    clone_steps: PositiveInt = 20_000  # cloning: updates


def new_file(args: Args, name: str) -> Path:
    """Where a set is to lie. Raises ValueError where one is already, before the work is done."""
    name = name.replace("/", "-").replace(":", "-")
    path = (args.out or args.folder / f"{name}.hdf5").expanduser()
    if path.is_dir() or (path.exists() and not args.force):
        raise ValueError(f"{path} exists: give --force to replace it, or another --out or --folder")
    return path


def command() -> str:
    """As it was typed, without PLACES: the same data are the same file, wherever it goes."""
    words, option = [], ""
    for word in sys.argv[1:]:
        option = word.split("=")[0] if word.startswith("--") else option
        if option not in PLACES:
            words.append(word)
    return f"python benchmark/make_dataset.py {shlex.join(words)}"


def write_set(args: Args, path: Path, arrays: dict, env_id: str, policy: str) -> Path:
    """A file in D4RL's format, renamed when whole, with `metadata` on how it was made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    packages = ("gymnasium", "gymnasium-robotics", "mujoco", "numpy", "torch")
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise ValueError(f"{env_id}: an observation, action or reward is not finite")
    returns = returns_of(arrays)
    metadata = {
        "origin": "Minari" if args.minari else "rebuilt",
        "made_by": "benchmark/make_dataset.py of the UWAC project",
        "command": command(),
        "versions": ", ".join(f"{package} {version(package)}" for package in packages),
        "environment": env_id,
        "policy": policy,
        "seed": args.seed,
        "steps": len(arrays["rewards"]),
        "episodes": len(returns),
        "mean_return": returns.mean(),
    }
    content = io.BytesIO()  # on a disk that fills up h5py would crash
    with h5py.File(content, "w") as file:
        for column, array in arrays.items():
            file.create_dataset(column, data=array, compression="gzip", shuffle=True)
        file.create_group("metadata").attrs.update(metadata)
    write(path, content.getbuffer())
    size = f"{len(arrays['rewards'])} steps, {path.stat().st_size / 1e6:.1f} MB"
    print(f"{path}: {len(returns)} episodes, {size}, mean return {returns.mean():.1f}")
    return path


def from_policies(args: Args) -> Path:
    """Roll-outs, an equal share of the steps each, one after the other. Raises ValueError."""
    words = args.policy
    if args.steps < len(words):
        raise ValueError(f"--steps {args.steps}: needs a step for each policy")
    players = [load_player(word, args.seed) for word in words]
    env_ids = {player.env_id: None for player in players}
    if len(env_ids) > 1:
        raise ValueError(f"--policy {' '.join(words)}: made for {' and '.join(env_ids)}")
    (env_id,) = env_ids
    names = [Path(word).resolve().name.removesuffix(".npz") for word in words]
    # A run may have the name of a data set, for which its file must not be taken.
    names = [f"run-{one}" if Path(word).is_dir() else one for one, word in zip(names, words)]
    kinds = [name.removeprefix(f"{env_id}-") for name in names]
    path = new_file(args, f"{env_id}-{'-'.join(kinds)}-rebuilt")
    torch.manual_seed(args.seed)
    parts, episodes = [], 0
    for i, player in enumerate(players):
        share = args.steps * (i + 1) // len(words) - args.steps * i // len(words)
        parts.append(roll_out(player.act, env_id, share, args.seed + episodes))
        episodes += len(returns_of(parts[-1]))
    policy = f"samples of {', then of '.join(player.about for player in players)}"
    return write_set(args, path, join(parts), env_id, policy)


def from_training(args: Args) -> None:
    """D4RL's five kinds, of one training of SAC. Raises ValueError."""
    if args.out:
        raise ValueError("--out is for one set; a training makes five, in --folder")
    task = args.env
    folder = args.folder.expanduser() / "training" / f"{task}-{args.seed}"
    for kind in ("random", "medium", "expert", "medium-expert", "medium-replay"):
        new_file(args, f"{task}-{kind}-rebuilt")
    args = replace(args, force=True)
    steps_taken, best = train(args, folder)
    for kind, step in best.items():
        (folder / f"{task}-{kind}.npz").write_bytes((folder / f"{step}.npz").read_bytes())
    obs, action, reward, _, terminal, timeout = (x[: best["medium"]] for x in steps_taken)
    seen = to_arrays((obs, action, reward, terminal, timeout))
    policy = f"replay buffer of the first {best['medium']} steps of SAC"
    path = new_file(args, f"{task}-medium-replay-rebuilt")
    write_set(args, path, seen, task, policy)
    medium, expert = (str(folder / f"{task}-{kind}.npz") for kind in best)
    torch.set_float32_matmul_precision("highest")  # so that --policy gives the same numbers
    for words in ((f"{task}-random",), (medium,), (expert,), (medium, expert)):
        from_policies(replace(args, env=None, policy=words))


def from_release(args: Args) -> Path:
    """As D4RL made its human sets. Raises ValueError and OSError."""
    path = new_file(args, f"{args.env}-human-rebuilt")
    policy = f"the DAPG release's demonstrations in {args.demos.name}, replayed"
    return write_set(args, path, replay(args.demos, args.env), args.env, policy)


def from_demonstrations(args: Args) -> Path:
    """As D4RL made its cloned sets: half roll-outs, then the demonstrations over and over
    (hand_dapg_combined.py there). Raises ValueError."""
    path = new_file(args, f"{args.env}-cloned-rebuilt")
    demos = read_steps(args.demos, args.env)
    act = functools.partial(sample, behavior_cloning(demos, args.clone_steps, args.seed))
    own = roll_out(act, args.env, args.steps // 2, args.seed)
    index = np.arange(args.steps - args.steps // 2) % len(demos["rewards"])
    both = join([own, to_arrays(array[index] for array in demos.values())])
    policy = f"samples of a BC policy, then the demonstrations in {args.demos.name} over and over"
    return write_set(args, path, both, args.env, policy)


def from_minari(args: Args) -> Path:
    """A Minari data set of plain arrays, its episodes end to end. Raises ValueError."""
    path = new_file(args, args.minari)
    try:
        import minari

        source = minari.load_dataset(args.minari, download=True)
        if source.env_spec is None:
            raise ValueError("it names no environment")
        episodes = []
        for e in source.iterate_episodes():
            ends = (e.terminations, e.truncations & ~e.terminations)
            episodes.append(to_arrays((e.observations[:-1], e.actions, e.rewards, *ends)))
    except Exception as error:  # a download fails in many ways
        raise ValueError(f"--minari {args.minari}: cannot be converted ({error})") from error
    return write_set(args, path, join(episodes), source.env_spec.id, f"that of {args.minari}")


def main(args: Args) -> Path | None:
    """Returns the file of a lone set. Raises ValueError, and OSError if it cannot be written."""
    ways = bool(args.policy) + bool(args.env) + bool(args.minari)
    if ways != 1 or (args.demos and not args.env):
        raise ValueError("say what to make: --policy, --env (with --demos) or --minari")
    folder = (args.out.parent if args.out else args.folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    try_to_write(folder)
    if args.demos:
        return from_release(args) if args.demos.suffix == ".pickle" else from_demonstrations(args)
    if args.env:
        return from_training(args)
    return from_policies(args) if args.policy else from_minari(args)


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args, description=__doc__))
