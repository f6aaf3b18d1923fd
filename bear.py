# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch==2.13.0", "numpy==2.4.6", "gymnasium[mujoco,box2d]==1.4.0",
#     "gymnasium-robotics==1.4.2", "mujoco==3.2.6", "h5py==3.16.0", "tyro==1.0.17", "tqdm==4.70.1",
#     "matplotlib==3.11.2", "tensorboard==2.21.0", "pooch==1.9.0",
# ]
# ///
"""BEAR: offline reinforcement learning that keeps its policy inside the support of the data.

Kumar et al., "Stabilizing Off-Policy Q-Learning via Bootstrapping Error Reduction" (NeurIPS 2019), as the baseline of
Wu et al., "Uncertainty Weighted Actor-Critic for Offline Reinforcement Learning" (ICML 2021). `Agent.update` is Wu's
Algorithm 1 without its coloured parts, which `diff bear.py uwac.py` shows.

    python bear.py --env-id door-demo --total-steps 2000 --eval-every 500

Shapes: S seeds trained together, C critics, B batch, N sampled actions, M samples for MMD, D observation size, A action
size; `stack` is S, or S * C for the critics.
"""

import contextlib
import copy
import difflib
import functools
import io
import json
import math
import os
import signal
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import gymnasium as gym
import h5py
import mujoco
import numpy as np
import pooch
import torch
import tyro
from farama_notifications import notifications
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm


class InputError(Exception):
    """Arguments or data that cannot be used. The command line prints it as one line and exits with 2."""


@contextlib.contextmanager
def input_errors(what: str):
    """Makes an InputError of any exception in here: libraries raise almost anything for input that is not for them."""
    try:
        yield
    except Exception as error:
        raise InputError(f"{what} ({str(error).partition(chr(10))[0]})") from error


@dataclass
class Task:
    env_id: str = "door-human"  # D4RL task, such as pen-cloned (-v0) or hopper-medium-v2; door-demo; a Minari data set
    dataset_path: str | None = None  # HDF5 file in D4RL's format for the task's environment, instead of the task's
    dataset_url: str | None = None  # address to download the task's file from, instead of D4RL's


@dataclass
class Bear:
    batch_size: int = 256  # B, transitions in a mini-batch (BEAR code)
    gamma: float = 0.99  # discount a step (BEAR code)
    tau: float = 0.005  # rate of the Polyak targets (BEAR code)
    lmbda: float = 0.75  # lambda, share of the smaller target critic in a target (BEAR code)
    num_candidates: int = 10  # N, the paper's p: actions a state among which a target takes the best (BEAR code)
    num_mmd_samples: int = 10  # M, the paper's n: actions a state for MMD (paper, Algorithm 1)
    mmd_kernel: Literal["auto", "gaussian", "laplacian"] = "auto"  # auto: laplacian on hopper, walker2d (BEAR's author)
    mmd_sigma: float = 20.0  # width of the kernel (BEAR code; the paper tried 10 and 20)
    mmd_threshold: float = 0.07  # MMD that the actor is held to (paper, section 4.5)
    warmup_steps: int = 40_000  # updates on MMD alone before Q enters the actor's loss (BEAR code)
    actor_lr: float = 1e-4  # learning rate of the actor (BEAR code)
    critic_lr: float = 3e-4  # learning rate of the critics (BEAR code)
    vae_lr: float = 3e-4  # learning rate of the behaviour VAE (BEAR code)
    dual_lr: float = 1e-3  # learning rate of log alpha (BEAR code)


@dataclass
class Evaluation:
    eval_every: int = 5_000  # updates between evaluations (CORL)
    eval_episodes: int = 10  # episodes an evaluation and seed (CORL)
    eval_candidates: int = 100  # sampled actions a state, of which the best by Q1 acts (paper, section 4.5)
    evaluate: str | None = None  # run folder: evaluate its policy.pt over --eval-episodes, train nothing
    capture_video: bool = False  # MP4 of an episode a seed at the end, through moviepy


@dataclass
class Run:
    seed: int = 0  # random seed: same machine, same arguments, same numbers
    num_seeds: int = 1  # S, independent agents trained side by side (the paper reports 5)
    total_steps: int = 500_000  # updates (D4RL's evaluation protocol)
    log_every: int = 1_000  # updates between entries in TensorBoard (ours; a thousandth of a long run or less)
    cuda_graph: bool = True  # on a GPU: launch an update as one graph; without it, to debug
    tf32: bool = True  # on a GPU: matrix products with 10-bit mantissas; without it, to compare
    checkpoint_every: int | None = None  # updates between checkpoints (None: one at each evaluation)
    resume: str | None = None  # run folder: go on from its checkpoint.pt with its arguments; --total-steps may grow
    track: bool = False  # log to Weights & Biases, too (as CleanRL), through wandb
    wandb_project_name: str = "uwac"  # project there
    wandb_entity: str | None = None  # team or user there (None: your own)
    wandb_group: str | None = None  # group of runs there


@dataclass
class Args(Run, Evaluation, Bear, Task):
    def __post_init__(self) -> None:
        ranges = {"seed": (0, 2**32 - 1), "warmup_steps": (0, 10**9), "mmd_sigma": (1e-3, 10**9)}
        ranges |= {"gamma": (0, 1), "tau": (0, 1), "lmbda": (0, 1)}
        for name, value in vars(self).items():
            low, high = ranges.get(name, (1 if isinstance(value, int) else 0, 10**9))
            if type(value) in (int, float) and not low <= value <= high:
                raise InputError(f"--{name.replace('_', '-')} {value}: must be from {low} to {high}")
        if self.mmd_kernel == "auto":
            self.mmd_kernel = "laplacian" if task_name(self.env_id) in ("hopper", "walker2d") else "gaussian"


# Environment, its step limit, and the returns that D4RL scores with 0 (random) and 100 (expert), from d4rl/infos.py.
ENVIRONMENTS = {
    "hopper": ("Hopper-v4", 1000, -20.272305, 3234.3),  # -v4 is the port of D4RL's -v2; -v5 changed rewards
    "halfcheetah": ("HalfCheetah-v4", 1000, -280.178953, 12135.0),
    "walker2d": ("Walker2d-v4", 1000, 1.629008, 4592.3),
    "pen": ("AdroitHandPen-v1", 100, 96.262799, 3076.8331017826877),
    "hammer": ("AdroitHandHammer-v1", 200, -274.856578, 12794.134825156867),
    "door": ("AdroitHandDoor-v1", 200, -56.512833, 2880.5693087298737),
    "relocate": ("AdroitHandRelocate-v1", 200, -6.425911, 4233.877797728884),
}


def task_name(env_id: str) -> str:
    """A key of ENVIRONMENTS: "door" for D4RL's door-human-v1 as for Minari's D4RL/door/human-v2."""
    return env_id.split("/")[1] if "/" in env_id else env_id.split("-")[0]


def task_files() -> dict[str, str]:
    """Every task's file below D4RL's download address (the rule behind d4rl/infos.py)."""
    files = {"door-demo": "door-demo.hdf5"}
    for name in ("hopper", "halfcheetah", "walker2d"):
        for kind in ("random", "medium", "medium-replay", "medium-expert", "expert"):
            file = f"{name}_{kind.replace('-', '_')}"
            files[f"{name}-{kind}-v0"] = f"gym_mujoco/{file.replace('medium_replay', 'mixed')}.hdf5"
            files |= {f"{name}-{kind}-v{v}": f"gym_mujoco_v{v}/{file}-v{v}.hdf5" for v in (1, 2)}
    kinds = {"human": "v0_demos_clipped", "cloned": "demos-v0-bc-combined", "expert": "v0_expert_clipped"}
    for name in ("pen", "hammer", "door", "relocate"):
        files |= {f"{name}-{kind}-v0": f"hand_dapg/{name}-{file}.hdf5" for kind, file in kinds.items()}
        files |= {f"{name}-{kind}-v1": f"hand_dapg_v1/{name}-{kind}-v1.hdf5" for kind in kinds}
    return files | {"walker2d-medium-replay-v0": "gym_mujoco/walker_mixed.hdf5"}  # the one that breaks the rule


def find_dataset(env_id: str, dataset_path: str | None) -> tuple[Path | str, str]:
    """A source for `load_dataset`, and its address: `dataset_path`, else the task's file in `data/` beside this script,
    else in D4RL's cache folder, where it may not be yet, or there for a task without a version what
    benchmark/make_dataset.py made; of a Minari data set, its name. Raises InputError for an unknown task, with the
    nearest names, and where `dataset_path` is no file."""
    if "/" in env_id and task_name(env_id) in ENVIRONMENTS and not dataset_path:
        return env_id, "Minari"
    files = task_files()
    file = files.get(env_id) or files.get(f"{env_id}-v0")
    if file is None:
        near = difflib.get_close_matches(env_id, [*files, *(name[:-3] for name in files if name.endswith("-v0"))])
        raise InputError(f"--env-id {env_id}: no such task; nearest: {', '.join(near) or 'none'}")
    if dataset_path and not Path(dataset_path).is_file():
        raise InputError(f"--dataset-path {dataset_path}: no such file")
    cache, name = Path(os.environ.get("D4RL_DATASET_DIR") or "~/.d4rl/datasets").expanduser(), Path(file).name
    places = [Path(__file__).parent / "data" / name, cache / name]
    places += [] if env_id in files else [cache / f"{env_id}-rebuilt.hdf5"]
    source = Path(dataset_path) if dataset_path else next(filter(Path.is_file, places), cache / name)
    return source, f"http://rail.eecs.berkeley.edu/datasets/offline_rl/{file}"


def fetch_dataset(address: str, path: Path, *expected: int) -> None:
    """Download into a folder of its own, read it whole (`expected` as for `load_dataset`), and only then move it to
    `path`, so that two downloads at once leave one good file. Raises InputError."""
    hint = "--env-id door-demo and the sets of benchmark/make_dataset.py need no download"
    with input_errors(f"{address} cannot be fetched into {path.parent}; {hint}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        pooch.get_logger().setLevel("WARNING")
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty())
            file = Path(pooch.retrieve(address, None, path.name, folder, downloader=downloader))
            load_dataset(file, *expected)
            file.replace(path)


def dataset_origin(source: Path | str, args: Args) -> dict[str, str]:
    """Whose the data are, and what benchmark/make_dataset.py wrote into its files, so that they are never taken for
    D4RL's. Raises InputError for data of another environment."""
    with input_errors(f"{source}: cannot be read as a D4RL data set"):
        metadata = {}
        if isinstance(source, Path):
            with h5py.File(source, "r") as file:
                own = isinstance(file.get("metadata", getlink=True), h5py.HardLink)
                metadata = {name: str(value) for name, value in file["metadata"].attrs.items()} if own else {}
    expected, found = ENVIRONMENTS[task_name(args.env_id)][0], metadata.get("environment")
    if found not in (None, expected):
        raise InputError(f"{source}: made in {found}, while --env-id {args.env_id} is {expected}")
    origin = "--dataset-path" if args.dataset_path else "this project" if args.env_id == "door-demo" else "D4RL"
    if isinstance(source, str):
        origin = "rebuilt" if source.startswith("rebuilt/") else "Minari"
    return {**metadata, "origin": "rebuilt" if "made_by" in metadata else origin}


def read_minari(name: str) -> dict[str, np.ndarray]:
    """A Minari data set, downloaded if need be, as the arrays of a D4RL file: its episodes end to end."""
    with input_errors("Minari's data sets need a package of theirs: pip install 'minari[hdf5,hf]'"):
        import minari
    with input_errors(f"--env-id {name}: no Minari data set of plain arrays"):
        episodes = [*minari.load_dataset(name, download=True)]
        parts = [(e.observations[:-1], e.actions, e.rewards, e.terminations, e.truncations) for e in episodes]
        names = ("observations", "actions", "rewards", "terminals", "timeouts")
        arrays = {key: np.concatenate(column) for key, column in zip(names, zip(*parts))}
        last = np.cumsum([len(e.rewards) for e in episodes]) - 1
        arrays["timeouts"][last] |= ~arrays["terminals"][last]  # an episode may end without a word on why
        return arrays


def read_array(file: h5py.File, name: str) -> np.ndarray:
    """An array of numbers that the file itself holds. HDF5 would follow a link to another file, make room for whatever
    size is claimed, and fill what a damaged chunk lacks with what lies in memory."""
    stored = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
    own = isinstance(stored, h5py.Dataset) and not stored.is_virtual and not stored.external
    if not own or stored.dtype.kind not in "fiub" or stored.dtype.itemsize > 8:
        raise ValueError(f"{name} is not an array of numbers in this file itself")
    size = math.prod(stored.chunks or stored.shape) * stored.dtype.itemsize
    if max(size, stored.nbytes) > 100 * os.path.getsize(file.filename) + 10**8:
        raise ValueError(f"{name} claims {stored.nbytes} bytes in chunks of {size}, more than this file can hold")
    for chunk in stored.iter_chunks() if stored.chunks else ():
        corner = stored.id.get_chunk_info_by_coord(tuple(part.start for part in chunk)).chunk_offset  # None: not there
        mask, data = stored.id.read_direct_chunk(corner)
        if stored.compression == "gzip" and not mask:
            data = zlib.decompressobj().decompress(data, size + 1)
        if len(data) != size or stored.compression not in (None, "gzip") or stored.fletcher32 or stored.scaleoffset:
            raise ValueError(f"{name} has a damaged chunk, or one packed in another way than by gzip")
    return stored[()]


def load_dataset(source: Path | str, obs_dim: int, action_dim: int, max_steps: int) -> dict[str, np.ndarray]:
    """Read a D4RL file (a path) as `d4rl.qlearning_dataset` does, or a Minari data set (a name): float32 arrays obs
    (n, D), action (n, A) clipped to [-1, 1], reward (n,), next_obs (n, D), done (n,). A step that ends its episode by
    timeout has no next observation and is dropped, as is the last of all; a terminal step is kept with done = 1.
    Without `timeouts`, episodes end after `max_steps`. Raises InputError, saying what is wrong, for any other data."""
    columns = {"observations": (obs_dim,), "actions": (action_dim,), "rewards": (), "terminals": (), "timeouts": ()}
    if isinstance(source, str):
        arrays = read_minari(source)
    else:
        with input_errors(f"{source}: cannot be read as a D4RL data set"), h5py.File(source, "r") as file:
            arrays = {k: read_array(file, k) for k in columns if k != "timeouts" or k in file}
    for name, array in arrays.items():
        with input_errors(f"{source}: {name} is not an array of numbers"), np.errstate(all="ignore"):
            arrays[name] = array = array.astype(np.float32)
        shape = (*arrays["observations"].shape[:1], *columns[name])
        if array.shape == (*shape, 1) and not columns[name]:
            arrays[name] = array = array[:, 0]  # D4RL takes a column for a row, too
        if array.shape != shape:
            raise InputError(f"{source}: {name} has shape {array.shape}, this task's environment expects {shape}")
        if not (finite := np.isfinite(array)).all():
            row = np.unravel_index(finite.argmin(), array.shape)[0]
            raise InputError(f"{source}: {name} has {(~finite).sum()} NaN or infinite values, the first in row {row}")
    obs, action, terminal = arrays["observations"], arrays["actions"].clip(-1, 1), arrays["terminals"] != 0
    if clipped := (action != arrays["actions"]).any(1).sum():
        print(f"{source}: {clipped} of {len(action)} actions lie outside [-1, 1] and are clipped", file=sys.stderr)
    timeout, step = arrays.get("timeouts", np.zeros(len(obs))) != 0, 0
    for i in range(0 if "timeouts" in arrays else len(obs)):
        timeout[i] = step == max_steps - 1
        step = 0 if timeout[i] else 1 if terminal[i] else step + 1  # 1, not 0, after a terminal step: D4RL counts so
    kept = np.flatnonzero(~timeout[:-1])
    if not len(kept):
        raise InputError(f"{source}: no usable transition among {len(obs)} steps")
    transitions = {"obs": obs[kept], "action": action[kept], "reward": arrays["rewards"][kept]}
    return transitions | {"next_obs": obs[kept + 1], "done": terminal[kept].astype(np.float32)}


def normalized_score(env_id: str, episode_return: np.ndarray) -> np.ndarray:
    """D4RL's score of returns of any shape: 0 for a random policy's, 100 for an expert's."""
    _, _, random_return, expert_return = ENVIRONMENTS[task_name(env_id)]
    return 100 * (episode_return - random_return) / (expert_return - random_return)


class D4RLHand(gym.Wrapper):
    """D4RL's rewards and ends for a hand of Gymnasium-Robotics 1.4.2.

    That adds 0.1 * |palm - object| to the reward where D4RL subtracts it, and its episode goes on
    when the pen falls below 0.075 m.
    """

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        hand = self.env.unwrapped
        if hand.spec.id == "AdroitHandDoor-v1":
            reward -= 0.2 * np.linalg.norm(obs[35:38])
        elif hand.spec.id == "AdroitHandHammer-v1":
            reward -= 0.2 * np.linalg.norm(obs[33:36] - obs[36:39])
        elif hand.spec.id == "AdroitHandRelocate-v1":
            reward -= 0.2 * np.linalg.norm(obs[30:33])
        elif hand.spec.id == "AdroitHandPen-v1":
            terminated = bool(hand.data.xpos[hand.obj_body_id][2] < 0.075)
        return obs, reward, terminated, truncated, info


def use_d4rl_masses(env: gym.Env) -> None:
    """Give a walker the masses of D4RL's engine: with today's, Hopper is 3.6% heavier.

    MuJoCo up to 2.1.1 weighed a capsule of length L and radius r as a cylinder of length L + r.
    """
    spec = mujoco.MjSpec.from_file(env.unwrapped.fullpath)
    capsules = spec.compile()
    for geom in spec.geoms:
        if geom.type == mujoco.mjtGeom.mjGEOM_CAPSULE:
            capsule = capsules.geom(geom.name)
            radius, half_length, _ = capsule.size
            geom.type = mujoco.mjtGeom.mjGEOM_CYLINDER
            geom.size = [radius, half_length + radius / 2, 0]
            geom.fromto = np.full(6, np.nan)  # its place is said by pos and quat
            geom.pos = capsule.pos
            geom.quat = capsule.quat
    cylinders = spec.compile()
    model = env.unwrapped.model
    for name in ("body_mass", "body_inertia", "body_ipos", "body_iquat"):
        getattr(model, name)[:] = getattr(cylinders, name)
    mujoco.mj_setConst(model, env.unwrapped.data)


def make_env(gym_id: str, max_steps: int | None = None, **settings) -> gym.Env:
    """D4RL's version of a Gymnasium environment, such as AdroitHandDoor-v1 or Hopper-v4.

    An episode has at most `max_steps` (None: as many as Gymnasium says); `settings` are
    gym.make's. Raises InputError for a gymnasium-robotics that may have D4RL's rewards already.
    """
    gym.logger.min_level = gym.logger.ERROR  # no advice to move on to -v5
    if "Adroit" in gym_id:
        if version("gymnasium-robotics") != "1.4.2":
            raise InputError("rewards are D4RL's with one version: install gymnasium-robotics==1.4.2")
        notifications.pop("gymnasium_robotics", None)  # on the rewards that D4RLHand corrects
        gym_id = f"gymnasium_robotics:{gym_id}"
    env = gym.make(gym_id, max_episode_steps=max_steps, **settings)
    if "Adroit" in gym_id:
        return D4RLHand(env)
    use_d4rl_masses(env)
    return env


def make_envs(env_id: str, num: int, video: Path | None = None) -> gym.vector.VectorEnv:
    """`num` copies of the task's environment; their first episode is filmed into `video`."""
    gym_id, max_steps, _, _ = ENVIRONMENTS[task_name(env_id)]
    render_mode = "rgb_array" if video else None
    make = functools.partial(make_env, gym_id, max_steps, render_mode=render_mode)
    envs = gym.vector.SyncVectorEnv([make] * num)
    if video is None:
        return envs
    first = {"step_trigger": lambda step: step == 0, "video_length": max_steps}
    return gym.wrappers.vector.RecordVideo(envs, str(video), **first)


SIGNALS = (signal.SIGINT, signal.SIGTERM)  # after which a run saves a checkpoint and ends


class StackedLinear(nn.Module):
    """`stack` linear layers as one batched matmul: (stack, N, in) -> (stack, N, out)."""

    def __init__(self, stack: int, in_dim: int, out_dim: int):
        super().__init__()
        bound = in_dim**-0.5  # as torch.nn.Linear
        self.weight = nn.Parameter(torch.empty(stack, in_dim, out_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(stack, 1, out_dim).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)

    def on_pairs(self, obs: Tensor, x: Tensor) -> Tensor:
        """The layer on [obs, x] for N rows x a state: obs (stack, B, D), x (stack, B, N, E) -> (stack, B * N, out)."""
        weight_obs, weight_x = self.weight.split((obs.shape[-1], x.shape[-1]), dim=1)
        of_obs = torch.baddbmm(self.bias, obs, weight_obs).unsqueeze(2)  # the same for all N, so it is taken once
        return torch.bmm(x.flatten(1, 2), weight_x).unflatten(1, x.shape[1:3]).add_(of_obs).flatten(1, 2)


class MLP(nn.Module):
    """A stack of networks with two hidden layers of ReLU units."""

    def __init__(self, stack: int, in_dim: int, hidden_dim: int, out_dim: int):
        super().__init__()
        sizes = ((in_dim, hidden_dim), (hidden_dim, hidden_dim), (hidden_dim, out_dim))
        self.layers = nn.ModuleList(StackedLinear(stack, *size) for size in sizes)

    def forward(self, obs: Tensor, x: Tensor | None = None) -> Tensor:
        """obs (stack, B, D) -> (stack, B, out), or with N rows x a state, (stack, B, N, E) -> (stack, B, N, out)."""
        h = (self.layers[0](obs) if x is None else self.layers[0].on_pairs(obs, x)).relu_()
        h = self.layers[2](self.layers[1](h).relu_())
        return h if x is None else h.unflatten(1, x.shape[1:3])


class Critic(MLP):
    """A stack of Q functions."""

    def __init__(self, stack: int, obs_dim: int, action_dim: int, hidden_dim: int = 256):
        super().__init__(stack, obs_dim + action_dim, hidden_dim, 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Q: obs (stack, B, D) with action (stack, B, A) -> (stack, B), or action (stack, B, N, A) -> (stack, B, N)."""
        actions = action.view(*obs.shape[:2], -1, action.shape[-1])
        return super().forward(obs, actions).view(action.shape[:-1])


class Actor(MLP):
    """A stack of Gaussian policies; an action is the tanh of a sample."""

    def __init__(self, stack: int, obs_dim: int, action_dim: int, hidden_dim: int = 256):
        super().__init__(stack, obs_dim, hidden_dim, 2 * action_dim)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """obs (stack, B, D) -> mean and log-std before the tanh, both (stack, B, A)."""
        mean, log_std = super().forward(obs).chunk(2, dim=-1)
        return mean, log_std.clamp(-20, 2)

    def sample(self, obs: Tensor, num: int) -> Tensor:
        """Actions before the tanh: obs (stack, B, D) -> (stack, B, num, A)."""
        mean, log_std = (x.unsqueeze(2) for x in self(obs))
        return mean + log_std.exp() * torch.randn(*obs.shape[:2], num, mean.shape[-1], device=obs.device)


class BehaviorVAE(nn.Module):
    """A stack of conditional VAEs that imitate the policy behind the data (BEAR code)."""

    def __init__(self, stack: int, obs_dim: int, action_dim: int, hidden_dim: int = 750):
        super().__init__()
        self.latent_dim = 2 * action_dim
        self.encoder = MLP(stack, obs_dim + action_dim, hidden_dim, 2 * self.latent_dim)
        self.decoder = MLP(stack, obs_dim + self.latent_dim, hidden_dim, action_dim)

    def loss(self, obs: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        """Reconstruction error + 0.5 KL: obs (stack, B, D), action (stack, B, A), noise (stack, B, 2A) -> (stack,)."""
        mean, log_std = self.encoder(torch.cat([obs, action], dim=-1)).chunk(2, dim=-1)
        log_std = log_std.clamp(-4, 15)
        error = self.decoder(torch.cat([obs, mean + log_std.exp() * noise], dim=-1)).tanh() - action
        kl = -0.5 * (1 + 2 * log_std - mean.square() - (2 * log_std).exp())
        return error.square().mean((1, 2)) + 0.5 * kl.mean((1, 2))


def mmd(x: Tensor, y: Tensor, kernel: str, sigma: float) -> Tensor:
    """Maximum mean discrepancy of two sets of samples, x and y (..., M, A) -> (...), under the kernel
    exp(-d / (2 sigma)), d the squared Euclidean ("gaussian") or the L1 distance ("laplacian") of a pair (BEAR code)."""

    def mean_kernel(a: Tensor, b: Tensor) -> Tensor:
        # From differences, not products: no cancellation, and a gradient of 0 at distance 0.
        d = torch.cdist(a, b, p=2 if kernel == "gaussian" else 1, compute_mode="donot_use_mm_for_euclid_dist")
        return ((d.square() if kernel == "gaussian" else d) / (-2 * sigma)).exp().mean((-2, -1))

    squared = mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)
    return (squared.clamp(min=0) + 1e-6).sqrt()  # 1e-6 keeps the gradient finite where the sets agree


class Agent(nn.Module):
    """S agents and their data on one device. In `update`, nothing waits for a value to reach the host."""

    def __init__(self, args: Args, dataset: dict[str, np.ndarray], device: torch.device):
        super().__init__()
        self.args, self.data = args, [torch.as_tensor(array, device=device) for array in dataset.values()]
        S, self.num_critics, self.dims = args.num_seeds, 2, (dataset["obs"].shape[1], dataset["action"].shape[1])
        self.actor = Actor(S, *self.dims).to(device)
        self.critic = Critic(S * self.num_critics, *self.dims).to(device)
        self.vae, self.q1 = BehaviorVAE(S, *self.dims).to(device), Critic(S, *self.dims).to(device)
        self.log_alpha = nn.Parameter(torch.zeros(S, device=device))
        self.target_actor, self.target_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), args.actor_lr, fused=True, capturable=True)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), args.critic_lr, fused=True, capturable=True)
        self.vae_optimizer = torch.optim.Adam(self.vae.parameters(), args.vae_lr, fused=True, capturable=True)
        self.dual_optimizer = torch.optim.Adam([self.log_alpha], args.dual_lr, fused=True, capturable=True)
        self.register_buffer("step", torch.zeros((), device=device))
        self.metric_sums, self.finite_updates = 0, 0  # (metrics, S)
        torch.empty(8_000_000)  # 32 MB, freed at once: from then on glibc keeps smaller tensors' memory for reuse

    def q_values(self, critic: Critic, obs: Tensor, action: Tensor) -> Tensor:
        """Every critic of every seed: obs (S, B, D), action (S, B, ..., A) -> (S, C, B, ...)."""
        obs, action = (x.repeat_interleave(self.num_critics, 0) for x in (obs, action))
        return critic(obs, action).unflatten(0, (-1, self.num_critics))

    def update(self) -> None:
        """One gradient step of every network: Algorithm 1, lines 3 to 12."""
        args, device = self.args, self.step.device
        # Line 3: a mini-batch of transitions for each seed.
        index = torch.randint(len(self.data[0]), (args.num_seeds, args.batch_size), device=device)
        obs, action, reward, next_obs, done = (array[index] for array in self.data)  # (S, B, ...)
        # The behaviour VAE, which stands for the data where line 10 samples actions from it.
        noise = torch.randn(*action.shape[:2], self.vae.latent_dim, device=device)
        vae_loss = self.vae.loss(obs, action, noise)  # (S,)
        self.minimize(vae_loss, self.vae_optimizer)
        with torch.no_grad():
            # Line 5: candidate actions of the target actor.
            candidates = self.target_actor.sample(next_obs, args.num_candidates).tanh()  # (S, B, N, A)
            # Line 6: the best candidate under the lambda-mixture of the target critics.
            next_q = self.q_values(self.target_critic, next_obs, candidates)  # (S, C, B, N)
            y = (args.lmbda * next_q.amin(1) + (1 - args.lmbda) * next_q.amax(1)).amax(-1)  # (S, B)
            target_q = reward + args.gamma * (1 - done) * y
        # Line 8: regression of the critics.
        q = self.q_values(self.critic, obs, action)  # (S, C, B)
        critic_loss = (q - target_q.unsqueeze(1)).square().mean(2).sum(1)  # (S,)
        self.minimize(critic_loss, self.critic_optimizer)

        # Line 10: actions of the actor and of the data, before the tanh.
        actor_samples = self.actor.sample(obs, args.num_mmd_samples)  # (S, B, M, A)
        with torch.no_grad():
            latent = torch.randn(*obs.shape[:2], args.num_mmd_samples, self.vae.latent_dim, device=device)
            latent.clamp_(-0.5, 0.5)  # likely ones alone (BEAR code)
            parts = 1 if obs.is_cuda else math.ceil(latent[..., 0].numel() / 640)  # small enough for a CPU's cache
            parts = zip(obs.chunk(parts, 1), latent.chunk(parts, 1))
            data_samples = torch.cat([self.vae.decoder(*part) for part in parts], 1)
        mmd_loss = mmd(actor_samples, data_samples, args.mmd_kernel, args.mmd_sigma)  # (S, B)
        # Line 11: the actor maximizes Q, at one of its samples, under the constraint on MMD, whose multiplier is alpha.
        policy_action = actor_samples[:, :, 0].tanh()
        policy_q = self.q_values(self.critic, obs, policy_action).amin(1)  # (S, B)
        use_q = self.step >= args.warmup_steps  # a tensor, not an `if`, so that a graph of the update can hold it
        alpha = self.log_alpha.exp().unsqueeze(1)
        excess = mmd_loss - args.mmd_threshold
        actor_loss = (alpha.detach() * excess - use_q * policy_q).mean(1)  # (S,)
        self.minimize(actor_loss, self.actor_optimizer)
        self.minimize(-(alpha * excess.detach()).mean(1), self.dual_optimizer)

        with torch.no_grad():
            self.log_alpha.clamp_(-5, 10)
            # Line 12: the targets follow.
            targets = [*self.target_critic.parameters(), *self.target_actor.parameters()]
            torch._foreach_lerp_(targets, [*self.critic.parameters(), *self.actor.parameters()], args.tau)
            self.step += 1
            metrics = {"vae_loss": vae_loss, "critic_loss": critic_loss, "actor_loss": actor_loss, "alpha": alpha[:, 0]}
            metrics |= {"mmd": mmd_loss.mean(1), "target_q": target_q.mean(1), "policy_q": policy_q.mean(1)}
            self.metric_names, of_update = [*metrics], torch.stack([*metrics.values()])
            self.metric_sums += of_update  # in place, but for the first time
            self.finite_updates += self.metric_sums.isfinite()  # a sum never gets finite again

    def get_extra_state(self) -> dict:
        """What training goes on from beside the networks. NumPy's generators live for an evaluation, seeded anew."""
        optimizers = {name: value.state_dict() for name, value in vars(self).items() if name.endswith("_optimizer")}
        generators = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
        sums = [torch.as_tensor(value) for value in (self.metric_sums, self.finite_updates)]
        return {"optimizers": optimizers, "generators": generators, "sums": sums}

    def set_extra_state(self, state: dict) -> None:
        for name, optimizer in state["optimizers"].items():
            getattr(self, name).load_state_dict(optimizer)
        torch.set_rng_state(state["generators"][0])
        torch.cuda.set_rng_state_all(state["generators"][1:])
        self.metric_sums, self.finite_updates = (value.to(self.step.device) for value in state["sums"])

    @staticmethod
    def minimize(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
        """A step on the sum of the seeds' losses (S,). Adam works element by element, so no seed feels another."""
        optimizer.zero_grad()
        loss.sum().backward(inputs=optimizer.param_groups[0]["params"])  # no gradients for networks on the way
        optimizer.step()

    def graphed_updates(self) -> Iterator[None]:
        """At each step an `update`, on a GPU, as a CUDA graph: one launch for hundreds of kernels. The first three run
        kernel by kernel, for libraries to allocate what they need; then one is recorded, which runs nothing."""
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        for _ in range(3):
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                self.update()
            torch.cuda.synchronize()
            yield
        with torch.cuda.graph(graph, stream=stream):
            self.update()
        while True:
            yield graph.replay()

    def read_metrics(self, step: int, updates: int) -> dict[str, np.ndarray]:
        """Means (S,) over the last `updates`; raises FloatingPointError, with name and place, if one is not finite."""
        finite = self.finite_updates.cpu()
        if finite.min() < updates:
            metric, seed = divmod(int(finite.argmin()), self.args.num_seeds)
            where = f"{self.metric_names[metric]} of seed {seed}, update {step - updates + int(finite.min()) + 1}"
            raise FloatingPointError(f"{where}: not finite; the run folder keeps what came before")
        means = (self.metric_sums / updates).cpu().numpy()
        self.metric_sums.zero_()
        self.finite_updates.zero_()
        return dict(zip(self.metric_names, means))

    def policy(self) -> tuple[Actor, Critic]:
        """What acts at evaluation: each seed's actor and its first critic, stacks of S. It draws no random numbers."""
        for mine, layer in zip(self.q1.layers, self.critic.layers):
            mine.weight.data, mine.bias.data = (x.data[:: self.num_critics].clone() for x in (layer.weight, layer.bias))
        return self.actor, self.q1


def describe(values: np.ndarray, digits: int = 1) -> str:
    return f"{values.mean():.{digits}f}" + (f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else "")


def write(path: Path, content: bytes | dict) -> None:
    """Whole or not at all: into a temporary file, which is renamed once it is on the disk. A dict is for torch.load."""
    if isinstance(content, dict):
        torch.save(content, buffer := io.BytesIO())  # not into the file: torch hides why writing fails
        content = buffer.getvalue()
    try:
        with open(path.with_name(f"{path.name}.tmp"), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)
    except OSError as error:
        raise OSError(f"{path}: {error.strerror}; --resume goes on from the last whole checkpoint there") from error


@torch.no_grad()
def evaluate(actor: Actor, q1: Critic, envs: gym.vector.VectorEnv, num_candidates: int, seed: list[int]) -> np.ndarray:
    """Returns of S * E whole episodes, one an environment: (S, E). The best candidate by Q1 acts (paper, 4.5)."""
    S, device = len(actor.layers[0].weight), actor.layers[0].weight.device
    seed = int(np.random.SeedSequence(seed).generate_state(1)[0])
    returns, running = np.zeros(envs.num_envs), np.ones(envs.num_envs, bool)
    observations, _ = envs.reset(seed=seed)
    with torch.random.fork_rng():  # a stream of its own, so that how often one evaluates changes nothing else
        torch.manual_seed(seed)
        while running.any():
            obs = torch.as_tensor(observations, dtype=torch.float32, device=device).unflatten(0, (S, -1))
            candidates = actor.sample(obs, num_candidates).tanh()  # (S, E, N, A)
            best = q1(obs, candidates).argmax(-1)[..., None, None]
            action = candidates.take_along_dim(best, 2).flatten(0, 2)
            observations, rewards, terminated, truncated, _ = envs.step(action.cpu().numpy())
            returns += rewards * running  # an environment that ended has begun its next episode
            running &= ~(terminated | truncated)
    return returns.reshape(S, -1)


def evaluate_run(args: Args) -> dict:
    """`--evaluate RUN`: scores of its saved policy; with the run's own seed and episodes, its last evaluation again."""
    with input_errors(f"--evaluate {args.evaluate}: no policy.pt of a run"):
        saved = torch.load(Path(args.evaluate) / "policy.pt", map_location="cpu", weights_only=True)  # runs no code
        env_id, step, actor, q1 = saved["env_id"], saved["step"], Actor(*saved["dims"]), Critic(*saved["dims"])
        actor.load_state_dict(saved["actor"])
        q1.load_state_dict(saved["critic"])
    envs = make_envs(env_id, saved["dims"][0] * args.eval_episodes)
    scores = normalized_score(env_id, evaluate(actor, q1, envs, args.eval_candidates, [args.seed, step]))
    print(f"{env_id} after {step} updates, {args.eval_episodes} episodes: score {describe(scores.mean(1))}")
    return {"env_id": env_id, "step": step, "scores": scores.tolist()}


def plot_curves(history: list[dict], title: str, path: Path) -> None:
    """The paper's curves, score and mean Q target over updates: a thin line a seed, their mean, a band of ± std."""
    figure, steps = Figure(figsize=(9, 3.5), layout="constrained"), [row["step"] / 1000 for row in history]
    for axes, name, label in zip(figure.subplots(1, 2), ("score", "target_q"), ("normalized score", "mean Q target")):
        values = np.array([row[name] for row in history])  # (evaluations, S)
        mean, std = values.mean(1), values.std(1, ddof=min(1, values.shape[1] - 1))
        axes.plot(steps, values, color="0.6", linewidth=0.6)
        axes.fill_between(steps, mean - std, mean + std, color="#0072B2", alpha=0.2, linewidth=0)
        axes.plot(steps, mean, color="#0072B2", marker="o", markersize=3)
        axes.set(title=title, xlabel="thousand updates", ylabel=label)
    figure.savefig(buffer := io.BytesIO(), dpi=150)
    write(path, buffer.getvalue())


def resume(run: Path, arguments: dict, agent: Agent) -> list:
    """`--resume RUN`: bring the agent to the run's last checkpoint, and return its progress: step, history, last_read,
    seconds. Raises InputError where the arguments are not the run's; `total_steps` alone may be larger."""
    with input_errors(f"--resume {run}: cannot go on"):
        began = json.loads((run / "args.json").read_text())
        pairs = {name: (began.get(name), arguments.get(name)) for name in began | arguments}
        changed = [name for name, (a, b) in pairs.items() if a != b and not (name == "total_steps" and b > a)]
        if changed:
            raise InputError("other arguments: " + ", ".join("{} {} -> {}".format(n, *pairs[n]) for n in changed))
        if not (run / "checkpoint.pt").exists():  # stopped before its first
            return [0, [], 0, 0.0]
        saved = torch.load(run / "checkpoint.pt", map_location="cpu", weights_only=True)  # runs no code
        agent.load_state_dict(saved["agent"])
        return saved["progress"]


def main(args: Args) -> dict:
    """Train, evaluate and report into runs/ENV__SCRIPT__SEED__TIME/; returns the contents of its result.json. Raises
    InputError before any training, FloatingPointError where that diverges, OSError where a file cannot be written, and
    SystemExit after a signal; what was written stays."""
    if args.evaluate is not None:
        return evaluate_run(args)
    source, address = find_dataset(args.env_id, args.dataset_path)
    envs = make_envs(args.env_id, args.num_seeds * args.eval_episodes)
    dims = envs.single_observation_space.shape + envs.single_action_space.shape
    expected = (*dims, ENVIRONMENTS[task_name(args.env_id)][1])
    if isinstance(source, Path) and not source.is_file():
        fetch_dataset(args.dataset_url or address, source, *expected)
    dataset, origin = load_dataset(source, *expected), dataset_origin(source, args)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(args.seed)
    agent, script = Agent(args, dataset, device), Path(__file__).stem
    arguments = vars(args) | {"resume": None}
    run = Path(args.resume or f"runs/{args.env_id.replace('/', '-')}__{script}__{args.seed}__{time.time_ns() // 1000}")
    step, history, last_read, seconds = resume(run, arguments, agent) if args.resume else (0, [], 0, 0.0)
    if args.capture_video:
        with input_errors("--capture-video needs moviepy and, without a screen, MUJOCO_GL=egl or osmesa (README.md)"):
            videos = make_envs(args.env_id, args.num_seeds, run)
            videos.reset()
            videos.render()  # fails now if ever, not after hours
    if args.track:
        with input_errors("--track needs wandb (pip install wandb) and a login, or WANDB_MODE=offline"):
            import wandb

            place = {"project": args.wandb_project_name, "entity": args.wandb_entity, "group": args.wandb_group}
            wandb.init(**place, id=run.name, resume="allow", config=arguments, sync_tensorboard=True)
    run.mkdir(parents=True, exist_ok=True)
    write(run / "args.json", json.dumps(arguments, indent=2).encode())
    writer = SummaryWriter(run, purge_step=step + 1)
    signals = []  # one asks for a checkpoint and an end after the update at hand, a second one ends the process at once
    for number in SIGNALS:
        signal.signal(number, lambda number, _: (signals.append(number), signal.signal(number, signal.SIG_DFL)))
    data = f"{len(dataset['obs'])} transitions of {source} ({origin['origin']})"
    print(f"{script}: {args.env_id}, {data}, on {device}, into {run}")
    torch.backends.cuda.matmul.fp32_precision = "tf32" if args.tf32 else "ieee"
    update = agent.graphed_updates().__next__ if device.type == "cuda" and args.cuda_graph else agent.update
    updates = range(step + 1, args.total_steps + 1)
    bar = tqdm(updates, unit="updates", initial=step, total=args.total_steps, disable=None)
    for step in bar:
        start = time.perf_counter()
        update()
        evaluating = step % args.eval_every == 0 or step == args.total_steps
        if step % args.log_every == 0 or evaluating:
            metrics, last_read = agent.read_metrics(step, step - last_read), step  # waits for a GPU
            for name, value in metrics.items():
                writer.add_scalar(f"train/{name}", value.mean(), step)
        seconds += time.perf_counter() - start
        if evaluating:
            actor, q1 = agent.policy()
            returns = evaluate(actor, q1, envs, args.eval_candidates, [args.seed, step])
            metrics = {"score": normalized_score(args.env_id, returns).mean(1), **metrics}
            writer.add_scalar("evaluation/score", metrics["score"].mean(), step)
            history.append({"step": step, **{name: value.tolist() for name, value in metrics.items()}})
            seeds, table = range(args.num_seeds), [["step", "seed", *metrics]]
            table += [[row["step"], s, *(row[name][s] for name in metrics)] for row in history for s in seeds]
            write(run / "metrics.csv", "".join(",".join(map(str, row)) + "\n" for row in table).encode())
            policy = {"actor": actor.state_dict(), "critic": q1.state_dict(), "dims": (args.num_seeds, *dims)}
            write(run / "policy.pt", {"env_id": args.env_id, "step": step, **policy})
            plot_curves(history, f"{script} on {args.env_id}", run / "curves.png")
            writer.flush()  # should training diverge, the events stay, too
            bar.set_postfix_str(f"score {describe(metrics['score'])}")
            line = f"step {step}: score {describe(metrics['score'])}, Q target {describe(metrics['target_q'])}"
            bar.write(f"{line}, {step / seconds:.1f} updates/s")
        if signals or step % (args.checkpoint_every or args.eval_every) == 0 or step == args.total_steps:
            progress = [step, history, last_read, seconds]
            write(run / "checkpoint.pt", {"agent": agent.state_dict(), "progress": progress})
        if signals:
            print(f"stopped after {step} updates; --resume {run} goes on")
            raise SystemExit(128 + signals[0])
    versions = {name: version(name) for name in ("torch", "numpy", "gymnasium", "gymnasium-robotics", "mujoco")}
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    result = {"task": args.env_id, "algorithm": script, "dataset": str(source), "data": origin}
    result |= {"transitions": len(dataset["obs"]), "args": arguments, "versions": versions, "hardware": hardware}
    result |= {"history": history, "ms_per_update": 1000 * seconds / args.total_steps}
    for name, rows in (("last", history[-1:]), ("last_ten", history[-10:])):  # evaluations; no choice of the best
        scores = np.mean([row["score"] for row in rows], axis=0)  # (S,)
        result[name] = {"mean": scores.mean(), "std": scores.std(ddof=1) if len(scores) > 1 else None}
    write(run / "result.json", json.dumps(result, indent=2).encode())
    if args.capture_video:
        evaluate(*agent.policy(), videos, args.eval_candidates, [args.seed, step])
        videos.close()
    writer.close()
    envs.close()
    return result


def parse_args(words: list[str], saved: dict) -> Args:
    """The command line, over the `saved` arguments of the run that --resume names; --help shows the groups apart."""
    groups = {"task": Task, "BEAR": Bear, "evaluation": Evaluation, "run": Run}
    defaults = {title: group(**{k: saved[k] for k in vars(group()) if k in saved}) for title, group in groups.items()}
    given = tyro.cli(dict, args=words, default=defaults, config=(tyro.conf.OmitArgPrefixes,))
    args = Args(**{name: value for group in given.values() for name, value in vars(group).items()})
    if args.resume is not None and not saved:
        with input_errors(f"--resume {args.resume}: no run to go on with"):
            return parse_args(words, json.loads((Path(args.resume) / "args.json").read_text()))
    return args


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # a redirected log shows each line at once
    threading.excepthook = lambda _: None  # what fails in TensorBoard's thread, it raises in this one, too
    try:
        main(parse_args(sys.argv[1:], {}))
    except (InputError, FloatingPointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit({InputError: 2, FloatingPointError: 3}.get(type(error), 1))
