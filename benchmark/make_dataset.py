"""Data in D4RL's format without a download, made as the paper says (sections 5.2 and 5.3).

    python benchmark/make_dataset.py --policy hopper-medium hopper-expert    # roll out, half each
    python benchmark/make_dataset.py --policy runs/RUN --steps 5000          # the policy of a run
    python benchmark/make_dataset.py --env hopper                            # train SAC: 5 sets
    python benchmark/make_dataset.py --env door --demos door-human-v1.hdf5   # clone
    python benchmark/make_dataset.py --minari D4RL/door/human-v2             # convert

Sets lie in D4RL's cache folder as TASK-KIND-rebuilt.hdf5, with `metadata` on what made them. One of
the same name is replaced only with --force. Episode i of a roll-out, from 0 on, begins with
`reset(seed=seed + i)` in `d4rl.make(environment)`, both of which `metadata` names: its actions
replay it exactly. SAC is Haarnoja et al.'s second version (2018b). Shapes: n steps, N environments,
B batch, D observation size, A action size; as in uwac.py, networks have a leading 1 (seed), and
critics a 2 before it.
"""

import copy
import functools
import io
import json
import os
import shlex
import sys
import tempfile
from argparse import ArgumentTypeError
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import gymnasium as gym
import h5py
import numpy as np
import torch
import tyro
from evaluate import load
from lib.files import errors_in_one_line, write
from torch import Tensor, nn
from torch.distributions import Normal
from tqdm import tqdm

import d4rl
import uwac

POLICIES = Path(__file__).parent / "policies"
COLUMNS = ("observations", "actions", "rewards", "terminals", "timeouts")  # (n, D), (n, A), (n,)


@dataclass
class Args:
    policy: tuple[str, ...] = ()  # roll out a shipped TASK-KIND, a .npz of ours, a run; or several
    env: Literal[*d4rl.TASKS] | None = None  # train SAC there, or a BC policy on --demos
    demos: Path | None = None  # demonstrations in D4RL's format, for half of a set
    minari: str | None = None  # Minari data set to convert, downloaded if need be
    steps: int = 1_000_000  # of each set (D4RL; its pen sets have 500,000)
    folder: Path = Path(os.environ.get("D4RL_DATASET_DIR") or "~/.d4rl/datasets")  # sets, trainings
    out: Path | None = None  # file of a set, instead of one with its own name in --folder
    force: bool = False  # replace a set of the same name
    seed: int = 0  # of networks, actions and episodes
    train_steps: int = 1_000_000  # SAC: environment steps, an update each
    learning_starts: int = 5_000  # SAC: steps before the first update (CleanRL)
    eval_every: int = 5_000  # SAC: steps between evaluations, each with a checkpoint
    eval_episodes: int = 10  # SAC: episodes of an evaluation
    clone_steps: int = 20_000  # cloning: updates

    def __post_init__(self):
        counts = [self.train_steps, self.learning_starts, self.eval_every, self.eval_episodes]
        counts += [self.clone_steps, self.seed + 1, self.steps // max(2, len(self.policy))]
        if min(counts) < 1:
            raise ArgumentTypeError("numbers must be positive, with a step for each policy")
        ways = bool(self.policy) + bool(self.env) + bool(self.minari)
        if ways != 1 or (self.demos and not self.env):
            raise ArgumentTypeError("say what to make: --policy, --env (with --demos) or --minari")
        if self.out and self.env and not self.demos:
            raise ArgumentTypeError("--out is for one set; a training makes five, in --folder")


def dimensions(env_id: str) -> tuple[int, int]:
    """D and A."""
    env = d4rl.make(env_id)
    return *env.observation_space.shape, *env.action_space.shape


@torch.no_grad()
def sample(actor: uwac.Actor, obs: np.ndarray) -> np.ndarray:
    """One action a state, as D4RL's data are: obs (N, D) -> (N, A)."""
    x = actor.sample(torch.as_tensor(obs, dtype=torch.float32)[None], 1)  # (1, N, 1, A)
    return x.tanh()[0, :, 0].numpy()


def load_run(run: Path) -> tuple:
    """The first seed of a run, for `load_policy`. Raises ValueError."""
    script, agent, saved = load(run)
    agent.cpu()  # a GPU would wait for the environments
    env_id = saved["args"]["env_id"]
    env_id = d4rl.TASK_OF.get(d4rl.full_id(env_id), env_id)
    # Folders mean nothing elsewhere.
    how = saved["args"] | {"run_dir": None, "resume": None, "dataset_path": None}
    how["data"] = saved["data"] | {"path": None}
    about = f"the actor of {script}.py after {saved['history'][-1]['step']} updates"
    return lambda obs: agent.act(obs, 1)[0], env_id, f"{about} with {json.dumps(how)}"


def load_policy(word: str, seed: int) -> tuple:
    """What `word` names (see Args): a function that gives obs (N, D) actions (N, A), the id of its
    environment, and words about it. Nothing in a file is executed. Raises ValueError."""
    if Path(word).is_dir():
        return load_run(Path(word))
    task = word.removesuffix("-random")
    if word != task in d4rl.TASKS:
        torch.manual_seed(seed)
        actor = uwac.Actor(1, *dimensions(task))
        return functools.partial(sample, actor), task, f"{word}, SAC before training"
    shipped = {file.stem: file for file in POLICIES.glob("*.npz")}
    try:
        file = np.load(shipped.get(word, word), allow_pickle=False)
        task = task_of(file["env"])
        actor = uwac.Actor(1, *dimensions(task))
        actor.load_state_dict({name: torch.from_numpy(file[name]) for name in actor.state_dict()})
        about = f"{Path(word).stem}, SAC after {file['step']} steps"
    except Exception as error:  # damage shows in many ways
        names = ", ".join([*sorted(shipped), "TASK-random"])
        problem = f"neither a run nor a policy; shipped: {names}"
        raise ValueError(f"--policy {word}: {problem} ({error})") from error
    return functools.partial(sample, actor), task, about


def task_of(environment: str) -> str:
    """D4RL's task, of the Gymnasium id that earlier files have, such as AdroitHandDoor-v1."""
    return str(environment).split("-")[0].lower().removeprefix("adroithand")


def play(act, envs: list[d4rl.UnitActions], seeds: range) -> list[dict]:
    """An episode in each of N environments, begun with its seed."""
    observations = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds)]
    rows = [[] for _ in envs]
    running = list(range(len(envs)))
    while running:
        actions = act(np.float32([observations[i] for i in running]))
        for i, action in zip(list(running), actions):
            obs = observations[i]
            observations[i], reward, terminal, truncated, _ = envs[i].step(action)
            action = envs[i].action(action)
            rows[i].append((obs, action, reward, terminal, truncated and not terminal))
            if terminal or truncated:
                running.remove(i)
    return [to_arrays(zip(*episode)) for episode in rows]


def to_arrays(columns) -> dict:
    """Five columns as arrays of D4RL's types; the last step is a timeout if it is not terminal."""
    arrays = {name: np.asarray(column, np.float32) for name, column in zip(COLUMNS, columns)}
    for name in ("rewards", "terminals", "timeouts"):
        arrays[name] = arrays[name].reshape(-1)
    for name in ("terminals", "timeouts"):
        arrays[name] = arrays[name] != 0
    arrays["timeouts"][-1] = not arrays["terminals"][-1]
    return arrays


def join(parts: list[dict]) -> dict:
    return {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}


def roll_out(act, env_id: str, steps: int, seed: int) -> dict:
    """The first `steps` steps of the policy's episodes in the order of their seeds (in that of
    their ends, short ones would come too often); the last one is cut off."""
    envs = [d4rl.make(env_id) for _ in range(16)]  # that share the cost of a call of `act`
    episodes, done = [], 0
    with tqdm(total=steps, unit="steps", desc=env_id) as bar:
        while done < steps:
            first = seed + len(episodes)
            for episode in play(act, envs, range(first, first + len(envs))):
                episodes.append(episode)
                done += len(episode["rewards"])
                bar.update(len(episode["rewards"]))
    return to_arrays(array[:steps] for array in join(episodes).values())


def returns_of(arrays: dict) -> np.ndarray:
    """Of each episode, the last one included even where it was cut off."""
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"])
    return np.diff(np.cumsum(arrays["rewards"], dtype=np.float64)[ends], prepend=0)


class SAC(nn.Module):
    """Soft actor-critic with the networks of uwac.py, for one seed."""

    def __init__(self, obs_dim: int, action_dim: int):
        super().__init__()
        self.actor = uwac.Actor(1, obs_dim, action_dim)
        self.critic = uwac.Critic(1, obs_dim, action_dim)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.adam = torch.optim.Adam(self.parameters(), 3e-4, fused=True)

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """obs (1, B, D) -> actions (1, B, A) and the logarithms of their densities (1, B)."""
        mean, log_std = self.actor(obs)
        normal = Normal(mean, log_std.exp(), validate_args=False)
        x = normal.rsample()
        log_slope = 2 * (np.log(2) - x - nn.functional.softplus(-2 * x))  # of tanh at x
        return x.tanh(), (normal.log_prob(x) - log_slope).sum(-1)

    def minimize(self, loss: Tensor, parameters: list[nn.Parameter]) -> None:
        self.adam.zero_grad()
        loss.backward(inputs=parameters)
        self.adam.step()  # on those with a gradient

    def update(self, batch: list[Tensor], gamma: float = 0.99, tau: float = 0.005) -> None:
        """On rows (1, B, ...) of what `train` returns."""
        obs, action, reward, next_obs, terminal, _ = batch
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = self.sample(next_obs)
            q1, q2 = self.target_critic(next_obs, next_action)  # (1, B) each
            next_value = torch.minimum(q1, q2) - alpha * next_log_prob
            target_q = reward[..., 0] + gamma * (1 - terminal[..., 0]) * next_value
        error = self.critic(obs, action) - target_q  # (2, 1, B)
        self.minimize(error.square().mean(-1).sum(), [*self.critic.parameters()])
        new_action, log_prob = self.sample(obs)
        q1, q2 = self.critic(obs, new_action)
        actor_loss = (alpha * log_prob - torch.minimum(q1, q2)).mean()
        excess = log_prob.detach().mean() - action.shape[-1]  # the target entropy is -A
        alpha_loss = -self.log_alpha.exp() * excess
        self.minimize(actor_loss + alpha_loss, [*self.actor.parameters(), self.log_alpha])
        with torch.no_grad():
            for old, new in zip(self.target_critic.parameters(), self.critic.parameters()):
                old.lerp_(new, tau)


def snapshot(actor: uwac.Actor, envs: list[gym.Env], args: Args, step: int, folder: Path) -> list:
    """Writes the policy as STEP.npz; returns the step and the mean return of sampled actions."""
    np.savez_compressed(folder / f"{step}.npz", env=args.env, step=step, **actor.state_dict())
    seed = args.seed + step
    with torch.random.fork_rng():  # so that evaluations do not change the training
        torch.manual_seed(seed)
        episodes = play(functools.partial(sample, actor), envs, range(seed, seed + len(envs)))
    return [step, float(np.mean([episode["rewards"].sum() for episode in episodes]))]


def train(args: Args, folder: Path) -> tuple[list[Tensor], dict[str, int]]:
    """SAC, from its start or its checkpoint in `folder`. Evaluations and checkpoints are made where
    an episode ends: a training that was killed goes on as if it never was. Returns obs, action,
    reward, next_obs, terminal, timeout of all steps, (n, ...) each, and what `choose` says."""
    torch.set_float32_matmul_precision("medium")  # twice the speed: docs/usage.md
    env = d4rl.make(args.env)
    test_envs = [d4rl.make(args.env) for _ in range(args.eval_episodes)]
    obs_dim, action_dim = dimensions(args.env)
    widths = [obs_dim, action_dim, 1, obs_dim, 1, 1]
    replay = torch.zeros(args.train_steps, sum(widths))
    torch.manual_seed(args.seed)
    agent = SAC(obs_dim, action_dim)
    checkpoint = folder / "checkpoint.pt"
    folder.mkdir(parents=True, exist_ok=True)
    if checkpoint.exists():
        try:
            state = torch.load(checkpoint, weights_only=True)
            agent.load_state_dict(state["agent"])
            agent.adam.load_state_dict(state["adam"])
            torch.set_rng_state(state["generator"])
            step, episode, history = state["progress"]
            replay[:step] = state["replay"]
        except Exception as error:  # damage shows in many ways
            problem = f"not a checkpoint of this training; see --folder ({error})"
            raise ValueError(f"{checkpoint}: {problem}") from error
    else:
        step, episode = 0, 0
        history = [snapshot(agent.actor, test_envs, args, step, folder)]
    bar = tqdm(total=args.train_steps, initial=step, unit="steps", desc="SAC", disable=None)
    while step < args.train_steps:
        before, ended = step, False
        obs, _ = env.reset(seed=args.seed + episode)
        while not ended:
            action = sample(agent.actor, obs[None])[0]
            next_obs, reward, terminal, truncated, _ = env.step(action)
            row = (obs, action, [reward], next_obs, [terminal], [truncated and not terminal])
            replay[step] = torch.from_numpy(np.concatenate(row, dtype=np.float32))
            step += 1
            obs = next_obs
            if step >= args.learning_starts:
                index = torch.randint(step, (1, 256))
                agent.update(replay[index].split(widths, dim=-1))
            ended = terminal or truncated or step == args.train_steps
        episode += 1
        bar.update(step - before)
        if step // args.eval_every > before // args.eval_every or step == args.train_steps:
            history.append(snapshot(agent.actor, test_envs, args, step, folder))
            state = {"agent": agent.state_dict(), "adam": agent.adam.state_dict()}
            state |= {"generator": torch.get_rng_state(), "replay": replay[:step].clone()}
            state["progress"] = [step, episode, history]
            content = io.BytesIO()
            torch.save(state, content)  # to the disk, torch would hide why writing fails
            write(checkpoint, content.getbuffer())
            bar.write(f"step {step}: mean return {history[-1][1]:.1f}")
    return replay.split(widths, dim=1), choose(history)


def choose(history: list) -> dict[str, int]:
    """Steps after which the policy was at its best, and first a third of the way there from random:
    the nearer of the first evaluation beyond that and the one before."""
    (_, random), *rows = history
    expert, best = max(rows, key=lambda row: row[1])
    third = random + (best - random) / 3
    beyond = next((i for i, row in enumerate(rows) if row[1] >= third), 0)
    nearest = rows[max(beyond - 1, 0) : beyond + 1]
    medium, _ = min(nearest, key=lambda row: abs(row[1] - third))
    return {"medium": medium, "expert": expert}


def new_file(args: Args, name: str) -> Path:
    """Where a set is to lie. Raises ValueError where one is already, before the work is done."""
    name = name.replace("/", "-").replace(":", "-")
    path = (args.out or args.folder / f"{name}.hdf5").expanduser()
    if path.is_dir() or (path.exists() and not args.force):
        raise ValueError(f"{path} exists: give --force to replace it, or another --out or --folder")
    return path


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
        "command": f"python benchmark/make_dataset.py {shlex.join(sys.argv[1:])}",
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
    policies, env_ids, abouts = zip(*(load_policy(word, args.seed) for word in words))
    if len(set(env_ids)) > 1:
        raise ValueError(f"--policy {' '.join(words)}: made for {' and '.join(env_ids)}")
    env_id = env_ids[0]
    names = [Path(word).resolve().name.removesuffix(".npz") for word in words]
    kinds = [name.removeprefix(f"{env_id}-") for name in names]
    path = new_file(args, f"{env_id}-{'-'.join(kinds)}-rebuilt")
    torch.manual_seed(args.seed)
    parts, episodes = [], 0
    for i, act in enumerate(policies):
        share = args.steps * (i + 1) // len(words) - args.steps * i // len(words)
        parts.append(roll_out(act, env_id, share, args.seed + episodes))
        episodes += len(returns_of(parts[-1]))
    policy = f"samples of {', then of '.join(abouts)}"
    return write_set(args, path, join(parts), env_id, policy)


def from_training(args: Args) -> None:
    """D4RL's five kinds, of one training of SAC."""
    task = args.env
    folder = args.folder.expanduser() / "training" / f"{task}-{args.seed}"
    if not folder.exists():  # else a training that was killed goes on, and some sets may be there
        for kind in ("random", "medium", "expert", "medium-expert", "medium-replay"):
            new_file(args, f"{task}-{kind}-rebuilt")
    args = replace(args, force=True)
    replay, steps = train(args, folder)
    for kind, step in steps.items():
        (folder / f"{task}-{kind}.npz").write_bytes((folder / f"{step}.npz").read_bytes())
    obs, action, reward, _, terminal, timeout = (x[: steps["medium"]] for x in replay)
    seen = to_arrays((obs, action, reward, terminal, timeout))
    policy = f"replay buffer of the first {steps['medium']} steps of SAC"
    path = new_file(args, f"{task}-medium-replay-rebuilt")
    write_set(args, path, seen, task, policy)
    medium, expert = (str(folder / f"{task}-{kind}.npz") for kind in steps)
    torch.set_float32_matmul_precision("highest")  # so that --policy gives the same numbers
    for words in ((f"{task}-random",), (medium,), (expert,), (medium, expert)):
        from_policies(replace(args, env=None, policy=words))


def behavior_cloning(demos: dict, args: Args) -> uwac.Actor:
    """A Gaussian policy fitted to the actions before the tanh by maximum likelihood."""
    obs, action = (torch.from_numpy(demos[name]) for name in ("observations", "actions"))
    x = action.clamp(-0.999, 0.999).atanh()  # finite
    torch.manual_seed(args.seed)
    actor = uwac.Actor(1, obs.shape[1], action.shape[1])
    adam = torch.optim.Adam(actor.parameters(), 3e-4, fused=True)
    for _ in tqdm(range(args.clone_steps), unit="updates", desc="cloning", disable=None):
        index = torch.randint(len(obs), (256,))
        mean, log_std = actor(obs[index][None])
        loss = -Normal(mean, log_std.exp(), validate_args=False).log_prob(x[index]).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return actor


def from_demonstrations(args: Args) -> Path:
    """As D4RL made its cloned sets: half roll-outs, then the demonstrations over and over
    (hand_dapg_combined.py there). Raises ValueError."""
    path = new_file(args, f"{args.env}-cloned-rebuilt")
    d4rl.qlearning_dataset(d4rl.make(args.env), args.demos)  # checks them
    arrays = d4rl.read(args.demos)
    if "timeouts" not in arrays:
        raise ValueError(f"--demos {args.demos}: timeouts missing")
    demos = to_arrays(arrays[name] for name in COLUMNS)
    act = functools.partial(sample, behavior_cloning(demos, args))
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
    except (ImportError, OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--minari {args.minari}: cannot be converted ({error})") from error
    return write_set(args, path, join(episodes), source.env_spec.id, f"that of {args.minari}")


def main(args: Args) -> Path | None:
    """Returns the file of a lone set. Raises ValueError, and OSError if it cannot be written."""
    folder = (args.out.parent if args.out else args.folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()  # fails now, and not after hours
    if args.env:
        return from_demonstrations(args) if args.demos else from_training(args)
    return from_policies(args) if args.policy else from_minari(args)


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args))
