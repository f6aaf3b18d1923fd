"""Data in D4RL's format without a download, made as the paper says (sections 4.2 and 4.3).

    python benchmark/make_dataset.py --policy hopper-medium-expert --steps 1000000   # roll out shipped policies
    python benchmark/make_dataset.py --env Hopper-v4 --steps 1000000                 # train SAC, then all five sets
    python benchmark/make_dataset.py --env AdroitHandDoor-v1 --demos door-human-v1.hdf5   # clone, and mix half and half

The first makes `hopper-medium-expert-rebuilt.hdf5` in D4RL's cache folder, where `uwac.py --env-id hopper-medium-expert`
finds it. Any Gymnasium environment with continuous actions will do. SAC is Haarnoja et al.'s second version (2018b: twin
critics, temperature by a dual step). Shapes: B batch, C critics (2), D observation size, A action size, n steps.
"""

import contextlib
import copy
import fcntl
import functools
import io
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import islice, pairwise
from pathlib import Path

import gymnasium as gym
import h5py
import numpy as np
import torch
import tyro
from numpy.lib.format import open_memmap
from torch import Tensor, nn
from torch.nn.functional import softplus
from tqdm import tqdm

MAKER = "benchmark/make_dataset.py of the UWAC project"
POLICIES = Path(__file__).parent / "policies"
TASKS = {  # D4RL's names, which those of data sets begin with; other environments' names stay as they are
    "Hopper-v4": "hopper",
    "HalfCheetah-v4": "halfcheetah",
    "Walker2d-v4": "walker2d",
    "AdroitHandPen-v1": "pen",
    "AdroitHandHammer-v1": "hammer",
    "AdroitHandDoor-v1": "door",
    "AdroitHandRelocate-v1": "relocate",
}


class InputError(Exception):
    """Arguments or files that cannot be used. The command line prints it as one line and exits with 2."""


@dataclass
class Args:
    env: str | None = None  # Gymnasium environment; without --policy and --demos, SAC is trained in it
    policy: tuple[str, ...] = ()  # roll out: TASK-KIND of a shipped one, or a .npz of ours or a run's policy.pt; or two
    demos: Path | None = None  # demonstrations in D4RL's format: clone their behaviour, roll out, mix with them
    steps: int = 1_000_000  # steps of each set (D4RL; its pen sets have 500,000)
    deterministic: bool = False  # roll out the policy's mean instead of samples (D4RL: samples)
    folder: Path = Path(os.environ.get("D4RL_DATASET_DIR") or "~/.d4rl/datasets")  # for sets and SAC's checkpoints
    overwrite: bool = False  # replace sets that exist; a training goes on all the same
    minari_id: str | None = None  # write a Minari data set rebuilt/TASK/KIND-v0, too; KIND stands for the set's kind
    seed: int = 0  # of networks, of actions, and of episodes' first states
    train_steps: int = 1_000_000  # SAC: environment steps, an update each
    learning_starts: int = 5_000  # SAC: steps of the random policy before the first update (CleanRL)
    eval_every: int = 5_000  # SAC: steps between evaluations, each with a snapshot of the policy and a checkpoint
    eval_episodes: int = 10  # SAC: episodes of an evaluation
    clone_steps: int = 20_000  # cloning: updates

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            low = {"seed": 0, "steps": 2}.get(name, 1)
            if type(value) is int and not low <= value < 2**31:
                raise InputError(f"--{name.replace('_', '-')} {value}: must be from {low} to {2**31 - 1}")


@contextlib.contextmanager
def input_errors(what: str):
    """Makes an InputError of any exception in here."""
    try:
        yield
    except Exception as error:
        raise InputError(f"{what} ({str(error).partition(chr(10))[0]})") from error


class EndWherePenFalls(gym.Wrapper):
    """D4RL's pen task ends where the pen falls below 0.075 m; Gymnasium-Robotics' goes on."""

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        pen = self.env.unwrapped
        return obs, reward, bool(terminated or pen.data.xpos[pen.obj_body_id][2] < 0.075), truncated, info


def make_env(env_id: str) -> gym.Env:
    """Raises InputError for an unknown environment, and one without plain arrays or an end."""
    gym.logger.min_level = gym.logger.ERROR  # no advice to move on to -v5
    if "Adroit" in env_id:
        import gymnasium_robotics  # here, because the walkers do without it

        gym.register_envs(gymnasium_robotics)
    with input_errors(f"--env {env_id}: no such environment"):
        env = gym.make(env_id, max_episode_steps=100 if env_id == "AdroitHandPen-v1" else None)
    spaces = {"observations": env.observation_space, "actions": env.action_space}
    for name, space in spaces.items():
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise InputError(f"--env {env_id}: its {name} are {space}; data sets here need vectors of real numbers")
    if not env.action_space.is_bounded():
        raise InputError(f"--env {env_id}: its actions have no bounds: {env.action_space}")
    if env.spec.max_episode_steps is None:
        raise InputError(f"--env {env_id}: its episodes have no limit of steps; register it with max_episode_steps")
    return EndWherePenFalls(env) if env_id == "AdroitHandPen-v1" else env


def state_of(env: gym.Env) -> dict[str, np.ndarray]:
    """What a MuJoCo environment can be set to again, under D4RL's names (infos/qpos, ...); nothing of others."""
    env = env.unwrapped
    if hasattr(env, "get_env_state"):  # Adroit: where door, board, target or pen are, too
        state = env.get_env_state()
    else:
        data = getattr(env, "data", None)
        state = {"qpos": data.qpos, "qvel": data.qvel} if hasattr(data, "qpos") else {}
    return {f"infos/{name}": np.array(value, np.float64) for name, value in state.items()}


class Actor(nn.Module):
    """A Gaussian policy; an action is the tanh of a sample, stretched to the environment's bounds."""

    def __init__(self, space: gym.spaces.Box, *sizes: int):
        """`sizes`: of observations and hidden layers."""
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(sizes, (*sizes[1:], 2 * space.shape[0])))
        self.register_buffer("middle", torch.as_tensor((space.high + space.low) / 2, dtype=torch.float32))
        self.register_buffer("reach", torch.as_tensor((space.high - space.low) / 2, dtype=torch.float32))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """obs (B, D) -> mean and log-std before the tanh, both (B, A)."""
        for layer in self.layers[:-1]:
            obs = layer(obs).relu_()
        mean, log_std = self.layers[-1](obs).chunk(2, dim=-1)
        return mean, log_std.clamp(-20, 2)

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """obs (B, D), noise (B, A) -> actions (B, A) and the logarithms of their densities (B,)."""
        mean, log_std = self(obs)
        x = mean + log_std.exp() * noise
        gaussian = -0.5 * noise.square() - log_std - 0.5 * np.log(2 * np.pi)
        log_slope = 2 * (np.log(2) - x - softplus(-2 * x)) + self.reach.log()  # of reach * tanh(x)
        return self.squash(x), (gaussian - log_slope).sum(-1)

    def squash(self, x: Tensor) -> Tensor:
        return self.middle + self.reach * x.tanh()

    def save(self, path: Path, env_id: str) -> None:
        arrays = {f"{kind}{i}": x for i, layer in enumerate(self.layers) for kind, x in zip("wb", layer.parameters())}
        np.savez_compressed(buffer := io.BytesIO(), env=env_id, **{k: x.detach().cpu() for k, x in arrays.items()})
        write(path, buffer.getvalue())


class Critics(nn.Module):
    """Two Q functions of three layers, as one batched matrix product a layer."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_dim: int = 256):
        super().__init__()
        sizes = (obs_dim + action_dim, hidden_dim, hidden_dim, 1)
        layers = [[nn.Linear(*pair) for _ in range(2)] for pair in pairwise(sizes)]
        self.weights = nn.ParameterList(torch.stack([layer.weight.mT for layer in pair]).data for pair in layers)
        self.biases = nn.ParameterList(torch.stack([layer.bias[None] for layer in pair]).data for pair in layers)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """obs (B, D), action (B, A) -> (C, B)."""
        x = torch.cat([obs, action], dim=-1).expand(2, -1, -1)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases)):
            x = torch.baddbmm(bias, x if i == 0 else x.relu(), weight)
        return x.squeeze(-1)


def write(path: Path, content: bytes) -> None:
    """Whole or not at all: into a temporary file, which is renamed once it is on the disk."""
    with open(path.with_name(f"{path.name}.tmp"), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


def load_policy(word: str, env_id: str | None, seed: int) -> tuple[Actor, str]:
    """A shipped policy by its name, a file, or `random` or `TASK-random`: the actor and its environment. Nothing in a
    file is executed. Raises InputError, also where it is not for `env_id`."""
    gym_ids = {f"{task}-random": gym_id for gym_id, task in TASKS.items()}
    if word in gym_ids or word == "random" and env_id:
        own_env = gym_ids.get(word, env_id)
        if env_id not in (None, own_env):
            raise InputError(f"--policy {word}: made for {own_env}, not for {env_id}")
        return random_policy(own_env, seed), own_env
    path = POLICIES / f"{word}.npz" if (POLICIES / f"{word}.npz").is_file() else Path(word)
    shipped = ", ".join(["TASK-random", *sorted(file.stem for file in POLICIES.glob("*.npz"))])
    with input_errors(f"--policy {word}: not a policy (shipped: {shipped})"):
        if path.suffix == ".pt":  # of bear.py or uwac.py: the first seed's
            saved = torch.load(path, map_location="cpu", weights_only=True)
            task = saved["env_id"].split("/")[1] if "/" in saved["env_id"] else saved["env_id"].split("-")[0]
            own_env = gym_ids[f"{task}-random"]
            first = {name: x[0] for name, x in saved["actor"].items()}
            layers = [(first[f"layers.{i}.weight"].mT, first[f"layers.{i}.bias"][0]) for i in range(3)]
        else:
            with np.load(path, allow_pickle=False) as file:
                own_env = str(file["env"])
                layers = [tuple(torch.from_numpy(file[f"{k}{i}"]) for k in "wb") for i in range(len(file.files) // 2)]
        sizes = [weight.shape[1] for weight, _ in layers]
        if ":" in own_env:
            raise ValueError(f"its environment {own_env} would import a module")
    env_id = env_id or own_env
    env = make_env(env_id)
    with input_errors(f"--policy {word}: made for {own_env}, does not fit {env_id}"):
        if own_env != env_id and own_env in TASKS and env_id in TASKS:
            raise ValueError("another task")
        found, needed = (sizes[0], len(layers[-1][1]) // 2), env.observation_space.shape + env.action_space.shape
        if found != needed:
            raise ValueError("it takes {} numbers and gives {}, not {} and {}".format(*found, *needed))
        actor = Actor(env.action_space, *sizes)
        for layer, (weight, bias) in zip(actor.layers, layers, strict=True):
            layer.load_state_dict({"weight": weight, "bias": bias})
    return actor, env_id


def random_policy(env_id: str, seed: int) -> Actor:
    """A policy as SAC begins with."""
    env = make_env(env_id)
    torch.manual_seed(seed)
    return Actor(env.action_space, env.observation_space.shape[0], 256, 256)


@torch.no_grad()
def episodes(actor: Actor, env_id: str, seed: tuple, deterministic: bool, num_envs: int = 16) -> Iterator[dict]:
    """Episodes without end, each a dict of arrays (n, ...) in D4RL's format, by several environments side by side.
    Each begins with a seed of its own, and they come in the order of their numbers, not in that of their ends: else
    short ones would come too often."""
    envs, numbers, rngs = [make_env(env_id) for _ in range(num_envs)], [*range(num_envs)], [None] * num_envs
    obs, rows, finished, number = [None] * num_envs, [[] for _ in envs], {}, 0
    while True:
        for i in (i for i in range(num_envs) if not rows[i]):
            rngs[i] = np.random.default_rng([*seed, numbers[i]])
            obs[i], _ = envs[i].reset(seed=int(rngs[i].integers(2**31)))
        mean, log_std = actor(torch.as_tensor(np.stack(obs), dtype=torch.float32))
        noise = np.stack([rng.standard_normal(mean.shape[1], np.float32) for rng in rngs])
        action = actor.squash(mean if deterministic else mean + log_std.exp() * torch.from_numpy(noise)).numpy()
        for i, env in enumerate(envs):
            rows[i].append(row := take_step(env, obs[i], action[i]))
            obs[i] = row["next_observations"]
            if row["terminals"] or row["timeouts"]:
                finished[numbers[i]] = {name: np.stack([row[name] for row in rows[i]]) for name in row}
                numbers[i], rows[i] = max(numbers) + 1, []
        while number in finished:
            yield finished.pop(number)
            number += 1


def take_step(env: gym.Env, obs: np.ndarray, action: np.ndarray) -> dict[str, np.ndarray]:
    """One row of a data set."""
    state = state_of(env)
    next_obs, reward, terminated, truncated, _ = env.step(action)
    row = {"observations": np.float32(obs), "actions": action, "rewards": np.float32(reward)}
    row |= {"terminals": np.bool_(terminated), "timeouts": np.bool_(truncated and not terminated)}
    return row | {"next_observations": np.float32(next_obs)} | state


def roll_out(actor: Actor, env_id: str, steps: int, args: Args, kind: str) -> dict[str, np.ndarray]:
    """The first `steps` steps of the policy's episodes; the last episode is cut off, as by a time limit."""
    arrays, done, seed = {}, 0, (args.seed, zlib.crc32(kind.encode()))  # every kind has episodes of its own
    with tqdm(total=steps, unit="steps", desc=kind, disable=None) as bar:
        for episode in episodes(actor, env_id, seed, args.deterministic):
            for name, values in episode.items():
                arrays.setdefault(name, np.empty((steps, *values.shape[1:]), values.dtype))
                arrays[name][done : done + len(values)] = values[: steps - done]
            bar.update(min(len(values), steps - done))
            done += len(values)
            if done >= steps:
                return end_here(arrays)


def end_here(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    arrays["timeouts"][-1] = not arrays["terminals"][-1]
    return arrays


def concatenate(*parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def returns_of(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Of each episode, the last one included even where it was cut off."""
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"])
    return np.diff(np.cumsum(arrays["rewards"], dtype=np.float64)[ends], prepend=0)


class SAC:
    """Soft actor-critic, and all that its training holds in memory."""

    def __init__(self, env: gym.Env, seed: int):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dims = env.observation_space.shape[0], env.action_space.shape[0]
        self.actor = random_policy(env.spec.id, seed).to(self.device)
        self.critics = Critics(*dims).to(self.device)
        self.target_critics = copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros((), device=self.device, requires_grad=True)
        parameters = [*self.actor.parameters()], [*self.critics.parameters()], [self.log_alpha]
        self.optimizers = [torch.optim.Adam(group, 3e-4, fused=True) for group in parameters]

    def update(self, batch: list[Tensor], gamma: float = 0.99, tau: float = 0.005) -> None:
        """A step of everything on a batch: obs (B, D), action (B, A), reward (B,), done (B,), next_obs (B, D)."""
        obs, action, reward, done, next_obs = batch
        noise, next_noise = torch.randn(2, *action.shape).to(self.device)  # the same on every device
        with torch.no_grad():
            alpha = self.log_alpha.exp()
            next_action, next_log_prob = self.actor.sample(next_obs, next_noise)
            next_value = self.target_critics(next_obs, next_action).amin(0) - alpha * next_log_prob
            target_q = reward + gamma * (1 - done) * next_value
        critic_loss = (self.critics(obs, action) - target_q).square().mean(1).sum()
        new_action, log_prob = self.actor.sample(obs, noise)
        for loss, optimizer in (
            (lambda: critic_loss, self.optimizers[1]),
            (lambda: (alpha * log_prob - self.critics(obs, new_action).amin(0)).mean(), self.optimizers[0]),
            (lambda: -self.log_alpha.exp() * (log_prob.detach().mean() - action.shape[1]), self.optimizers[2]),
        ):
            optimizer.zero_grad()
            loss().backward(inputs=optimizer.param_groups[0]["params"])
            optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_([*self.target_critics.parameters()], [*self.critics.parameters()], tau)


class Training:
    """SAC in one environment. Everything that happened lies in a folder: the replay buffer in files of fixed size that
    memory holds no more of than it has room for, a snapshot of the policy at each evaluation, and a checkpoint. The
    latter are made at ends of episodes, so a training that was killed goes on from one as if it had never stopped."""

    def __init__(self, args: Args, folder: Path):
        self.args, self.env, self.folder = args, make_env(args.env), folder
        self.agent, self.step, self.episode, self.history, self.seconds = SAC(self.env, args.seed), 0, 0, [], 0.0
        fixed = ("env", "seed", "train_steps", "learning_starts", "eval_every", "eval_episodes")
        self.settings = {name: getattr(args, name) for name in fixed}
        folder.mkdir(parents=True, exist_ok=True)
        # Open, and so locked, as long as this process lives.
        self.lock = open(folder / "lock", "w")  # noqa: SIM115
        with input_errors(f"{folder}: another process trains there"):
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if (folder / "checkpoint.pt").exists():
            self.load()
        obs, _ = self.env.reset(seed=0)
        row = take_step(self.env, obs, self.env.action_space.sample())  # for the shapes alone
        mode = "r+" if self.step else "w+"
        self.buffer = {
            name: open_memmap(folder / f"{name.replace('/', '_')}.npy", mode, x.dtype, (args.train_steps, *x.shape))
            for name, x in row.items()
        }

    def load(self) -> None:
        with input_errors(
            f"{self.folder / 'checkpoint.pt'}: not a checkpoint; without its folder a training begins again"
        ):
            saved = torch.load(self.folder / "checkpoint.pt", map_location="cpu", weights_only=True)
            began = saved["settings"]
        if changed := [name for name, value in self.settings.items() if began.get(name) != value]:
            pairs = ", ".join(f"{name} {began.get(name)} -> {self.settings[name]}" for name in changed)
            raise InputError(f"{self.folder} holds a training with other arguments ({pairs}); it may go elsewhere")
        agent = self.agent
        for module, state in zip((agent.actor, agent.critics, agent.target_critics), saved["networks"]):
            module.load_state_dict(state)
        agent.log_alpha.data.copy_(saved["log_alpha"])
        for optimizer, state in zip(agent.optimizers, saved["optimizers"]):
            optimizer.load_state_dict(state)
        torch.set_rng_state(saved["generator"])
        self.step, self.episode, self.history, self.seconds = saved["progress"]
        print(f"going on with {self.folder} after {self.step} steps", file=sys.stderr)

    def save(self) -> None:
        for array in self.buffer.values():
            array.flush()
        agent = self.agent
        networks = [module.state_dict() for module in (agent.actor, agent.critics, agent.target_critics)]
        content = {"networks": networks, "log_alpha": agent.log_alpha.detach(), "settings": self.settings}
        content["optimizers"] = [optimizer.state_dict() for optimizer in agent.optimizers]
        content |= {"generator": torch.get_rng_state()}
        content["progress"] = [self.step, self.episode, self.history, self.seconds]
        torch.save(content, buffer := io.BytesIO())
        write(self.folder / "checkpoint.pt", buffer.getvalue())

    def batch(self, size: int = 256) -> list[Tensor]:
        index = np.random.default_rng([self.args.seed, self.step]).integers(self.step, size=size)
        names = ("observations", "actions", "rewards", "terminals", "next_observations")
        columns = (torch.from_numpy(self.buffer[name][index]) for name in names)
        return [column.to(self.agent.device, torch.float32) for column in columns]

    def snapshot(self) -> None:
        """Mean return of the policy as it is, with sampled actions as in a data set, and its weights."""
        actor = copy.deepcopy(self.agent.actor).cpu()
        some = islice(episodes(actor, self.args.env, (self.args.seed, self.step), False), self.args.eval_episodes)
        self.history.append([self.step, float(np.mean([episode["rewards"].sum() for episode in some]))])
        actor.save(self.folder / f"{self.step}.npz", self.args.env)

    def run(self) -> None:
        args, agent = self.args, self.agent
        bar = tqdm(total=args.train_steps, initial=self.step, unit="steps", desc=f"SAC on {args.env}", disable=None)
        if not self.history:
            self.snapshot()
        while self.step < args.train_steps:
            start, last = time.perf_counter(), self.step
            obs, _ = self.env.reset(seed=int(np.random.default_rng([args.seed, self.episode]).integers(2**31)))
            ended = False
            while not ended:
                with torch.no_grad():
                    noise = torch.randn(1, self.env.action_space.shape[0]).to(agent.device)
                    action, _ = agent.actor.sample(
                        torch.as_tensor(obs[None], dtype=torch.float32).to(agent.device), noise
                    )
                row = take_step(self.env, obs, action[0].cpu().numpy())
                for name, value in row.items():
                    self.buffer[name][self.step] = value
                obs, self.step = row["next_observations"], self.step + 1
                if self.step >= args.learning_starts:
                    agent.update(self.batch())
                ended = row["terminals"] or row["timeouts"] or self.step == args.train_steps
            self.episode += 1
            self.seconds += time.perf_counter() - start
            bar.update(self.step - last)
            if self.step // args.eval_every > last // args.eval_every or self.step == args.train_steps:
                self.snapshot()
                self.save()
                rate = self.step / self.seconds
                bar.write(f"step {self.step}: mean return {self.history[-1][1]:.1f}, {rate:.1f} steps/s")

    def choose(self) -> dict[str, int]:
        """Steps after which the policy was at its best, and after which it first came a third of the way from random to
        there: the nearer of the first evaluation beyond that and the one before."""
        (_, random), *rows = self.history
        expert, best = max(rows, key=lambda row: row[1])
        third = random + (best - random) / 3
        beyond = next((i for i, row in enumerate(rows) if row[1] >= third), 0)
        medium, _ = min(rows[max(beyond - 1, 0) : beyond + 1], key=lambda row: abs(row[1] - third))
        return {"medium": medium, "expert": expert}


def clone(args: Args) -> tuple[Actor, dict[str, np.ndarray]]:
    """Behaviour cloning: a Gaussian policy fitted to the demonstrations' actions by maximum likelihood."""
    env, actor, flags = make_env(args.env), random_policy(args.env, args.seed), ("terminals", "timeouts")
    shapes = {"observations": env.observation_space.shape, "actions": env.action_space.shape, "rewards": ()}
    with input_errors(f"--demos {args.demos}: not demonstrations in D4RL's format for {args.env}"):
        with h5py.File(args.demos, "r") as file:
            demos = {name: np.asarray(file[name][()], np.float32) for name in shapes}
            demos |= {name: file[name][()].ravel() != 0 for name in flags}
            demos |= {f"infos/{name}": array[()] for name, array in file.get("infos", {}).items()}
        for name, array in demos.items():
            if len(array) != len(demos["rewards"]) or array.shape[1:] != shapes.get(name, array.shape[1:]):
                raise ValueError(f"{name} has shape {array.shape}")
            if name in shapes and not (len(array) and np.isfinite(array).all()):
                raise ValueError(f"{name} is empty, or has NaN or infinite values")
    end_here(demos)
    following = np.roll(demos["observations"], -1, 0)
    following[demos["terminals"] | demos["timeouts"]] = np.nan
    demos["next_observations"] = following
    obs = torch.from_numpy(demos["observations"])
    scaled = ((torch.from_numpy(demos["actions"]) - actor.middle) / actor.reach).clamp(-0.999, 0.999)  # finite atanh
    optimizer, action = torch.optim.Adam(actor.parameters(), 3e-4, fused=True), scaled.atanh()
    for _ in tqdm(range(args.clone_steps), unit="updates", desc=f"cloning {args.demos.name}", disable=None):
        index = torch.randint(len(obs), (256,))
        mean, log_std = actor(obs[index])
        loss = (log_std + 0.5 * ((action[index] - mean) / log_std.exp()).square()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return actor, demos


def write_set(path: Path, arrays: dict[str, np.ndarray], attributes: dict) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, compression="gzip")
        file.create_group("metadata").attrs.update(attributes)
        file.flush()
        os.fsync(file.id.get_vfd_handle())


def check_minari(name: str, args: Args) -> None:
    """Raises InputError for a name that cannot be used, before there is any work to lose."""
    with input_errors("--minari-id needs a package: pip install 'minari[hdf5]'"):
        from minari.dataset.minari_dataset import parse_dataset_id
        from minari.storage import get_dataset_path
    with input_errors(f"--minari-id {name}: must be rebuilt/TASK/KIND-v0, of your own TASK and KIND"):
        if (parse_dataset_id(name)[0] or "").split("/")[0] != "rebuilt":
            raise ValueError("so that nobody takes it for an official one")
    if get_dataset_path(name).exists() and not args.overwrite:
        raise InputError(f"--minari-id {name}: exists; --overwrite replaces it")


def write_minari(name: str, path: Path) -> None:
    """The set in the file `path` once more, as a Minari data set."""
    import minari
    from minari.data_collector import EpisodeBuffer
    from minari.storage import get_dataset_path

    columns = ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts")
    with h5py.File(path) as file:
        arrays, attributes = {column: file[column][()] for column in columns}, dict(file["metadata"].attrs)
    env, buffers = make_env(attributes["environment"]), []
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"]) + 1
    for begin, end in zip([0, *ends], ends):
        part = {key: array[begin:end] for key, array in arrays.items()}
        obs = np.concatenate([part["observations"], part["next_observations"][-1:]])
        lists = {"rewards": part["rewards"], "terminations": part["terminals"], "truncations": part["timeouts"]}
        buffers.append(EpisodeBuffer(observations=obs, actions=part["actions"], **lists))
    spaces = {"observation_space": gym.spaces.Box(-np.inf, np.inf, obs.shape[1:]), "action_space": env.action_space}
    about = {"algorithm_name": attributes["policy"], "description": attributes["command"], "author": MAKER}
    if get_dataset_path(name).exists():
        minari.delete_dataset(name)
    minari.create_dataset_from_buffers(name, buffers, env=attributes["environment"], **spaces, **about)


Sets = dict[str, Callable[[], tuple[dict[str, np.ndarray], str]]]  # of each kind: its arrays, and what made them


def mix(args: Args, env_id: str, steps: int, *policies: tuple[str, Actor]) -> tuple[dict[str, np.ndarray], str]:
    """Roll-outs of policies, an equal share of `steps` each, one after the other."""
    shares = [steps * (i + 1) // len(policies) - steps * i // len(policies) for i in range(len(policies))]
    parts = [roll_out(actor, env_id, share, args, name) for (name, actor), share in zip(policies, shares)]
    how = "means" if args.deterministic else "samples"
    return concatenate(*parts), f"{how} of {' and '.join(name for name, _ in policies)}"


def from_policies(args: Args) -> tuple[str, Sets]:
    words, env_id, policies = args.policy, args.env, []
    if len(words) == 1 and words[0].endswith("-medium-expert") and not Path(words[0]).is_file():
        words = (words[0].removesuffix("-expert"), words[0].replace("-medium-expert", "-expert"))
    for word in words:
        actor, env_id = load_policy(word, env_id, args.seed)
        policies.append((Path(word).stem.removeprefix(f"{TASKS.get(env_id)}-"), actor))

    def rolled_out() -> tuple[dict[str, np.ndarray], str]:
        arrays, about = mix(args, env_id, args.steps, *policies)
        return arrays, f"{about} ({' and '.join(words)})"

    return env_id, {"-".join(name for name, _ in policies): rolled_out}


def from_demonstrations(args: Args) -> tuple[str, Sets]:
    """As D4RL made its cloned sets: half roll-outs, then the demonstrations over and over (hand_dapg_combined.py there).
    What these do not say (the last observation of all, perhaps the simulator's states) is NaN."""

    def cloned() -> tuple[dict[str, np.ndarray], str]:
        actor, demos = clone(args)
        own, about = mix(args, args.env, args.steps // 2, ("clone", actor))
        again = np.arange(args.steps - args.steps // 2) % len(demos["rewards"])
        columns = {name: np.full((len(again), *x.shape[1:]), np.nan, x.dtype) for name, x in own.items()}
        for name, array in demos.items():
            if name in columns and array.shape[1:] == columns[name].shape[1:]:
                columns[name][:] = array[again]
        parts = concatenate(own, end_here(columns))
        return parts, f"{about} (mean return {returns_of(own).mean():.1f}), then {args.demos.name} over and over"

    return args.env, {"cloned": cloned}


def from_training(args: Args) -> tuple[str, Sets]:
    task = TASKS.get(args.env, args.env).replace("/", "-")

    @functools.cache
    def training() -> tuple[Training, dict[str, int]]:
        training = Training(args, args.folder.expanduser() / "training" / f"{task}-{args.seed}")
        training.run()
        steps = training.choose()
        for name, step in steps.items():
            shutil.copy(training.folder / f"{step}.npz", training.folder / f"{task}-{name}.npz")  # for --policy
        return training, steps

    def trained(*names: str) -> tuple[dict[str, np.ndarray], str]:
        sac, steps = training()
        if names == ("medium-replay",):
            arrays = {name: np.array(x[: steps["medium"]]) for name, x in sac.buffer.items()}
            return end_here(arrays), f"replay buffer of the first {steps['medium']} steps of SAC"
        files = [sac.folder / f"{steps.get(name, 0)}.npz" for name in names]
        policies = [(name, load_policy(str(file), args.env, args.seed)[0]) for name, file in zip(names, files)]
        arrays, about = mix(args, args.env, args.steps, *policies)
        return arrays, f"{about}, after {' and '.join(file.stem for file in files)} steps of SAC"

    sets = {name: functools.partial(trained, name) for name in ("random", "medium", "medium-replay", "expert")}
    return args.env, sets | {"medium-expert": functools.partial(trained, "medium", "expert")}


def main(args: Args) -> list[Path]:
    """Make the sets, in a folder of their own until all are whole; returns their files. Raises InputError, and OSError
    where a file cannot be written."""
    if args.policy and args.demos or not (args.policy or args.env):
        raise InputError("say what to make by --policy, by --env, or by --env and --demos; --help tells more")
    if args.env:
        make_env(args.env)
    env_id, sets = (from_policies if args.policy else from_demonstrations if args.demos else from_training)(args)
    folder = args.folder.expanduser()
    files = {kind: folder / f"{TASKS.get(env_id, env_id)}-{kind}-rebuilt.hdf5".replace("/", "-") for kind in sets}
    if there := [file for file in files.values() if file.exists() and not args.overwrite]:
        raise InputError(f"{there[0]} exists; --overwrite replaces it")
    if args.minari_id and len(sets) > 1 and "KIND" not in args.minari_id:
        raise InputError(f"--minari-id {args.minari_id}: needs KIND in it, for {', '.join(sets)}")
    minari_ids = {kind: args.minari_id.replace("KIND", kind) for kind in sets} if args.minari_id else {}
    for name in minari_ids.values():
        check_minari(name, args)
    common, versions = {"made_by": MAKER, "environment": env_id, "seed": args.seed}, []
    for package in ("gymnasium", "gymnasium-robotics", "mujoco", "numpy", "torch"):
        with contextlib.suppress(PackageNotFoundError):  # not all are needed in every environment
            versions.append(f"{package} {version(package)}")
    common["command"] = f"python benchmark/make_dataset.py {shlex.join(sys.argv[1:])}"
    common["versions"] = ", ".join(versions)
    with input_errors(f"--folder {folder}: cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        staging = tempfile.TemporaryDirectory(dir=folder, prefix=".make_dataset-")
    with staging as temporary:
        for kind, make in sets.items():
            arrays, policy = make()
            returns = returns_of(arrays)
            attributes = common | {"policy": policy, "steps": len(arrays["rewards"])}
            attributes |= {"episodes": len(returns), "mean_return": float(returns.mean())}
            write_set(Path(temporary) / files[kind].name, arrays, attributes)
            what = f"{attributes['steps']} steps, {len(returns)} episodes, mean return {returns.mean():.1f}"
            print(f"{files[kind].name}: {what}, {policy}")
        for file in files.values():
            os.replace(Path(temporary) / file.name, file)
    for kind, name in minari_ids.items():
        write_minari(name, files[kind])
    return [*files.values()]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as after Ctrl-C
    try:
        main(tyro.cli(Args))
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except KeyboardInterrupt:
        print("stopped; a training goes on from its last checkpoint with the same command", file=sys.stderr)
        sys.exit(130)
