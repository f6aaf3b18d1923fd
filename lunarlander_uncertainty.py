"""Does dropout variance detect out-of-distribution states? Section 5.1 of the UWAC paper.

Wu et al., "Uncertainty Weighted Actor-Critic for Offline Reinforcement Learning" (ICML 2021): the
last 100,000 steps of an expert (AWR) are the data. All states in a part of the sky are removed, and
agents learn from the rest (Algorithm 1 without MMD). Is Var[Q] larger at the removed states?

    python lunarlander_uncertainty.py

Shapes. B: batch, N: candidate actions, D: observation, A: actions (one-hot), H: hidden units; of
the expert, T: steps, E: environments. Twin critics lead with a 2. S seeds are trained at once:
tensors also have a dimension S, first or right after the 2, which comments mostly leave out.
"""

import copy
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from filelock import FileLock
from gymnasium.wrappers.utils import RunningMeanStd
from matplotlib.figure import Figure
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.distributions import Categorical, OneHotCategorical
from torch.utils.data import default_collate
from tqdm.auto import tqdm

D = 8  # numbers in an observation of LunarLander
A = 4  # actions: no engine, left, main, right
FIELDS = ("obs", "action", "reward", "next_obs", "done", "ended")
Data = dict[str, np.ndarray]  # the expert's steps: an array (T, E, ...) for each of FIELDS
STEPS = 6_250  # steps of the data in each of 16 environments: 100,000 in all
SKY = ((-1, 1), (-0.1, 1.6))  # x and y of the pictures
Probability = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


@dataclass(config={"allow_inf_nan": False, "extra": "forbid"})
class Args:
    seed: Seed = 0  # seed of the agents; same machine, arguments and expert: same numbers
    num_seeds: PositiveInt = 5  # agents trained at once, S
    total_steps: PositiveInt = 8_000  # updates of the agents
    run_dir: Path = Path("runs/lunarlander")  # folder of results, which must be new
    expert: Path | None = None  # expert.npz of an earlier run, in place of training an expert
    expert_seed: Seed = 1  # seed of the expert; with 1 its mean return is 280 (paper: 270)
    expert_iterations: PositiveInt = 900  # AWR updates of the expert, 2,048 steps before each
    beta: PositiveFloat = 1.6  # numerator of the weight beta / Var[Q] (paper, 5.5); 1e9: no weights
    dropout: Annotated[float, Field(gt=0, lt=1)] = 0.1  # rate, after each hidden layer (ml-uwac)
    weight_clip: PositiveFloat = 1.5  # upper limit of the weight (paper, 5.5; literally 1.5 * beta)
    hidden_dim: PositiveInt = 64  # units per hidden layer, H
    batch_size: PositiveInt = 256  # transitions per update, B (BEAR)
    gamma: Probability = 0.99  # discount per step (BEAR)
    tau: Probability = 0.005  # Polyak rate of the target networks (BEAR)
    lmbda: Probability = 0.75  # target: lmbda * min(Q1, Q2) + (1 - lmbda) * max(Q1, Q2) (BEAR)
    num_candidates: PositiveInt = 10  # actions a target maximizes over, N; Algorithm 1's p (BEAR)
    actor_lr: NonNegativeFloat = 1e-4  # learning rate of the actor (BEAR)
    critic_lr: NonNegativeFloat = 1e-3  # learning rate of the critics (BEAR: 3e-4)


class StackedLinear(nn.Module):
    """S linear maps, or 2 * S with stack (2, S): (S or *stack, B, in) -> (*stack, B, out)."""

    def __init__(self, stack: tuple[int, ...], in_dim: int, out_dim: int):
        super().__init__()
        bound = in_dim**-0.5  # as torch.nn.Linear
        self.weight = nn.Parameter(torch.empty(*stack, in_dim, out_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(*stack, 1, out_dim).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).add_(self.bias)  # in place: an eighth faster


class MLP(nn.Module):
    """Networks side by side with two hidden ReLU layers: (S, B, in) -> (*stack, B, out)."""

    def __init__(self, stack: tuple[int, ...], in_dim: int, hidden_dim: int, out_dim: int):
        super().__init__()
        sizes = ((in_dim, hidden_dim), (hidden_dim, hidden_dim), (hidden_dim, out_dim))
        self.layers = nn.ModuleList(StackedLinear(stack, *size) for size in sizes)

    def forward(self, x: Tensor, dropout: float = 0.0) -> Tensor:
        h = F.dropout(self.layers[0](x).relu_(), dropout)
        h = F.dropout(self.layers[1](h).relu_(), dropout)
        return self.layers[2](h)


def concat(obs: Tensor, x: Tensor) -> Tensor:
    """(B, D), (B, E) -> (B, D + E); or (B, D), (B, N, E) -> (B * N, D + E), repeating each obs."""
    if x.dim() > obs.dim():
        obs = obs.repeat_interleave(x.shape[-2], dim=-2)
        x = x.flatten(-3, -2)
    return torch.cat([obs, x], dim=-1)


class Critic(MLP):
    """Twin Q functions."""

    def __init__(self, S: int, hidden_dim: int):
        super().__init__((2, S), D + A, hidden_dim, 1)

    def forward(self, obs: Tensor, action: Tensor, dropout: float = 0.0) -> Tensor:
        """obs (B, D), action (B, A) -> (2, B), or action (B, N, A) -> (2, B, N)."""
        q = super().forward(concat(obs, action), dropout)
        return q.view(2, *action.shape[:-1])


@torch.no_grad()
def analytic_dropout_variance(critic: Critic, obs: Tensor, action: Tensor, p: float) -> Tensor:
    """Var[Q1], Var[Q2] under dropout without sampling: obs (B, D), action (B, A) -> (2, B), or
    action (B, N, A) -> (2, B, N). Assumes that Z, the second layer's sums, is normal under the
    first mask, and that units' relu(Z) covary in linear parts alone (see docs/walkthrough.md)."""
    first, second, last = critic.layers
    w2 = second.weight
    w3 = last.weight.mT
    mask_variance = p / (1 - p)  # variance of one element of a mask (its mean is 1)
    h1 = F.relu(first(concat(obs, action)))
    z = second(h1)  # mean of Z, whose deviation is std
    std = (mask_variance * h1.square() @ w2.square()).sqrt().clamp(min=1e-12)  # no 0 / 0 below
    t = (z / std).clamp(-8, 8)  # changes nothing in float32, but avoids slow denormal numbers
    cdf = torch.special.ndtr(t)  # P(Z > 0), also the mean slope of relu(Z)
    pdf = torch.exp(-0.5 * t.square()) / (2 * torch.pi) ** 0.5
    relu = z * cdf + std * pdf  # E[relu(Z)]
    relu_square = z * relu + std.square() * cdf  # E[relu(Z)^2]
    # First mask, linear part: a first-layer unit moves all second-layer units together.
    shared = mask_variance * (h1 * ((w3 * cdf) @ w2.mT)).square().sum(-1)
    # Var[mask * relu(Z)] of each unit alone, less its linear part, which `shared` has already.
    unit = (1 + mask_variance) * relu_square - relu.square() - (cdf * std).square()
    variance = (shared + (w3.square() * unit).sum(-1)).clamp(min=0)
    return variance.view(2, *action.shape[:-1])


def pick(candidates: Tensor, index: Tensor) -> Tensor:
    """One action for each state: (B, N, A), (B,) -> (B, A)."""
    return candidates.take_along_dim(index[..., None, None], dim=-2).squeeze(-2)


class Agent(nn.Module):
    """The networks of Algorithm 1, without MMD and its VAE, and their optimizers."""

    def __init__(self, args: Args):
        super().__init__()
        self.args = args
        # Line 1: actor, critics and their targets.
        self.actor = MLP((args.num_seeds,), D, args.hidden_dim, A)
        self.critic = Critic(args.num_seeds, args.hidden_dim)
        self.target_actor = copy.deepcopy(self.actor)
        self.target_critic = copy.deepcopy(self.critic)
        self.optimizers = {
            "actor": torch.optim.Adam(self.actor.parameters(), args.actor_lr, fused=True),
            "critic": torch.optim.Adam(self.critic.parameters(), args.critic_lr, fused=True),
        }

    def minimize(self, loss: Tensor, name: str) -> None:
        """One step for `name` alone. Seeds share no parameters, so their losses are summed."""
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        loss.sum().backward(inputs=optimizer.param_groups[0]["params"])
        optimizer.step()

    def uncertainty(self, critic: Critic, obs: Tensor, action: Tensor) -> Tensor:
        """Var[Q1] + Var[Q2]: obs (B, D), action (B, A) or (B, N, A) -> (B,) or (B, N)."""
        return analytic_dropout_variance(critic, obs, action, self.args.dropout).sum(0)


def every_action(obs: Tensor) -> Tensor:
    """All actions, one-hot, at each state: (B, D) -> (B, A, A)."""
    return torch.eye(A).expand(*obs.shape[:-1], A, A)


def update(agent: Agent, data: list[Tensor]) -> dict[str, Tensor]:
    """One step of Algorithm 1, lines 3 to 12, without MMD, on n transitions: obs (n, D), action
    (n, A), reward (n,), next_obs (n, D), done (n,). Returns metrics, one number per seed."""
    args = agent.args
    # Line 3: a mini-batch (for each seed).
    index = torch.randint(len(data[0]), (args.num_seeds, args.batch_size))
    obs, action, reward, next_obs, done = (array[index] for array in data)  # (B, ...)

    with torch.no_grad():
        # Line 5: candidate actions of the target actor.
        target_policy = OneHotCategorical(logits=agent.target_actor(next_obs))
        candidates = target_policy.sample((args.num_candidates,)).movedim(0, -2)  # (B, N, A)
        # Line 6: the best by soft clipped double-Q, without dropout (ml-uwac: mean of T passes).
        q1, q2 = agent.target_critic(next_obs, candidates)  # (B, N) each
        mixture = args.lmbda * torch.minimum(q1, q2) + (1 - args.lmbda) * torch.maximum(q1, q2)
        y, best = mixture.max(-1)  # (B,)
        target_q = reward + args.gamma * (1 - done) * y
        # Line 7: Var[Q1] + Var[Q2] at the best action stands for Var[y].
        var_y = agent.uncertainty(agent.target_critic, next_obs, pick(candidates, best))  # (B,)
        weight = (args.beta / var_y).clamp(max=args.weight_clip)
    # Line 8: weighted regression of both critics, with dropout.
    q = agent.critic(obs, action, args.dropout)  # (2, B)
    critic_loss = (weight * (q - target_q).square()).sum(0).mean(-1)
    agent.minimize(critic_loss, "critic")

    # Line 11: the actor maximizes its expected Q, weighted by its certainty (equation 5).
    with torch.no_grad():
        q1, q2 = agent.critic(obs, every_action(obs))  # (B, A) each
        policy_q = torch.minimum(q1, q2)
        var_q = agent.uncertainty(agent.critic, obs, every_action(obs))
        policy_weight = (args.beta / var_q).clamp(max=args.weight_clip)
    policy = agent.actor(obs).softmax(-1)  # (B, A)
    actor_loss = -(policy * policy_weight * policy_q).sum(-1).mean(-1)
    agent.minimize(actor_loss, "actor")

    with torch.no_grad():
        # Line 12: the targets follow, target += tau * (source - target).
        for old, new in zip(agent.target_critic.parameters(), agent.critic.parameters()):
            old.lerp_(new, args.tau)
        for old, new in zip(agent.target_actor.parameters(), agent.actor.parameters()):
            old.lerp_(new, args.tau)

    return {
        "critic_loss": critic_loss,
        "actor_loss": actor_loss,
        "target_q": target_q.mean(-1),
        "variance": var_y.mean(-1),
        "weight": weight.mean(-1),
    }


@torch.no_grad()
def state_variance(agent: Agent, obs: Tensor) -> Tensor:
    """Var[Q1] + Var[Q2], its mean over the policy's actions: obs (n, D) -> (S, n)."""
    obs = obs.expand(agent.args.num_seeds, -1, -1)
    policy = agent.actor(obs).softmax(-1)  # (n, A)
    variance = agent.uncertainty(agent.critic, obs, every_action(obs))  # (n, A)
    return (policy * variance).sum(-1)


def auroc(known: Tensor, novel: Tensor) -> list[float]:
    """The chance that a value of `novel` (S, m) exceeds one of `known` (S, n), for each seed."""
    larger = torch.sign(novel.unsqueeze(-1) - known.unsqueeze(-2))  # 1, -1, or 0 for a tie
    return (0.5 + 0.5 * larger.mean((-2, -1))).tolist()


def normalized(obs: np.ndarray, obs_rms: RunningMeanStd) -> Tensor:
    """States (..., D) as the networks get them, by the running mean and variance."""
    std = np.sqrt(obs_rms.var) + 1e-3  # not 0 where a dimension never changes
    return torch.as_tensor((obs - obs_rms.mean) / std, dtype=torch.float32)


@torch.no_grad()
def td_lambda_returns(value: MLP, steps: dict, gamma=0.999, lmbda=0.98) -> Tensor:
    """TD(lambda) returns, in hundreds: (T, E). V(s') stands for what follows the end of an episode
    or of the steps, and 0 for what follows a termination. With AWR's gamma, 0.99, it hovers."""
    next_value = value(steps["next_obs"]).squeeze(-1)
    returns = torch.empty_like(next_value)
    next_return = next_value[-1]
    for t in reversed(range(len(returns))):
        mixture = (1 - lmbda) * next_value[t] + lmbda * next_return
        following = torch.where(steps["ended"][t], next_value[t], mixture)
        returns[t] = steps["reward"][t] / 100 + gamma * (1 - steps["done"][t]) * following
        next_return = returns[t]
    return returns


def awr_update(actor: MLP, value: MLP, optimizer, steps: dict[str, Tensor]) -> None:
    """Advantage-weighted regression (Peng et al., 2019) on steps (T, E, ...). Batch size and limit
    of the weights are its code's for LunarLander. Adam, batch counts and temperature are ours."""

    def minimize(loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    obs = steps["obs"].flatten(0, 1)
    action = steps["action"].flatten()
    returns = td_lambda_returns(value, steps).flatten()
    for index in torch.randint(len(obs), (100, 256)):
        error = value(obs[index]).squeeze(-1) - returns[index]
        minimize(error.square().mean())
    advantage = td_lambda_returns(value, steps).flatten() - value(obs).squeeze(-1).detach()
    advantage = (advantage - advantage.mean()) / advantage.std()
    weight = (advantage / 0.3).exp().clamp(max=20)
    for index in torch.randint(len(obs), (200, 256)):
        loss = F.cross_entropy(actor(obs[index]), action[index], reduction="none")
        minimize((weight[index] * loss).mean())


def train_expert(args: Args) -> Data:
    """An expert's last 100,000 steps. done: terminated. ended: terminated, or at the time limit."""
    torch.manual_seed(args.expert_seed)
    actor = MLP((), D, 128, A)
    value = MLP((), D, 128, 1)
    actor_group = {"params": actor.parameters(), "lr": 5e-4}
    value_group = {"params": value.parameters(), "lr": 1e-3}
    optimizer = torch.optim.Adam([actor_group, value_group], fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, args.expert_iterations)
    obs_rms = RunningMeanStd()  # of all states so far
    replay = []
    vector_kwargs = {"autoreset_mode": "Disabled"}
    with closing(gym.make_vec("LunarLander-v3", 16, "sync", vector_kwargs)) as envs:
        obs, _ = envs.reset(seed=args.expert_seed)
        for _ in tqdm(range(args.expert_iterations), "expert", disable=None):
            for _ in range(128):
                policy = Categorical(logits=actor(normalized(obs, obs_rms)))
                action = policy.sample().numpy()
                next_obs, reward, done, truncated, _ = envs.step(action)
                ended = done | truncated
                replay.append(
                    {
                        "obs": obs,
                        "action": action,
                        "reward": np.float32(reward),
                        "next_obs": next_obs,
                        "done": np.float32(done),
                        "ended": ended,
                    }
                )
                obs = next_obs
                if ended.any():
                    obs, _ = envs.reset(options={"reset_mask": ended})
            replay = replay[-STEPS:]
            steps = default_collate(replay[-1024:])  # fresh ones alone: it improves faster
            obs_rms.update(steps["obs"][-128:].flatten(0, 1).numpy())
            steps["obs"] = normalized(steps["obs"].numpy(), obs_rms)
            steps["next_obs"] = normalized(steps["next_obs"].numpy(), obs_rms)
            awr_update(actor, value, optimizer, steps)
            schedule.step()
    return {name: tensor.numpy() for name, tensor in default_collate(replay).items()}


def load_expert(path: Path) -> Data:
    """What `train_expert` returned in an earlier run. Raises ValueError if it is not that."""
    try:
        with np.load(path.expanduser()) as file:
            return {name: file[name] for name in FIELDS}
    except Exception as error:  # a damaged file can raise almost anything
        raise ValueError(f"--expert {path}: not a run's expert.npz ({error})") from error


def cut(expert: Data, clip: str) -> tuple[Data, np.ndarray, np.ndarray]:
    """Transitions to train on, (n, ...), whose state and next state are kept; such states of two
    more environments, (n, D); removed states, (n, D). Raises ValueError if there are none."""
    states = np.stack([expert["obs"], expert["next_obs"]])  # (2, T, E, D)
    is_removed = states[..., 0] < 0.1 if clip == "left" else states[..., 1] > 0.8  # (2, T, E)
    is_kept = ~is_removed.any(0)  # (T, E)
    known = {name: array[:, 2:][is_kept[:, 2:]] for name, array in expert.items()}
    held_out = expert["obs"][:, :2][is_kept[:, :2]]
    removed = expert["obs"][is_removed[0]]
    if 0 in (len(known["obs"]), len(held_out), len(removed)):
        raise ValueError(f"clip {clip}: no states on one side of it; raise --expert-iterations")
    return known, held_out, removed


def train(agent: Agent, data: list[Tensor], kept: Tensor, novel: Tensor) -> list[dict]:
    """All updates. Measures AUROC of Var[Q] at `kept` and `novel` states (n, D), before the first
    update and ten times on the way. Raises FloatingPointError if a metric is not finite."""
    total = agent.args.total_steps
    measured = {total * tenth // 10 for tenth in range(11)}
    history = []
    for step in tqdm(range(total + 1), "agents", disable=None):
        metrics = update(agent, data) if step > 0 else {}
        if step not in measured:
            continue
        bad = [name for name, values in metrics.items() if not values.isfinite().all()]
        if bad:
            raise FloatingPointError(f"diverged at update {step}: {bad} not finite")
        found = auroc(state_variance(agent, kept), state_variance(agent, novel))
        tqdm.write(f"update {step}: AUROC of Var[Q] {np.round(found, 3)}")
        row = {"step": step, "auroc_variance": found}
        history.append(row | {name: values.tolist() for name, values in metrics.items()})
    return history


def draw(expert: Data, clip: str, obs_rms: RunningMeanStd, agents: list, history: list) -> Figure:
    """The expert's states (paper, figure 2), Var[Q] over the sky (figures 3 and 7), AUROC."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    *maps, course = figure.subplots(2, 2).flatten()
    obs = expert["obs"].reshape(-1, D)
    *_, counts = maps[0].hist2d(obs[:, 0], obs[:, 1], 50, range=SKY, norm="log")
    figure.colorbar(counts, label="number of states")
    x, y = np.meshgrid(np.linspace(*SKY[0]), np.linspace(*SKY[1]))  # (50, 50)
    sky = np.tile(obs_rms.mean, (*x.shape, 1))  # the other six numbers are the data's means
    sky[:, :, 0] = x
    sky[:, :, 1] = y
    for axes, agent in zip(maps[1:], agents):
        variance = state_variance(agent, normalized(sky, obs_rms).flatten(0, 1))
        log_variance = variance.log10().mean(0)
        colours = axes.pcolormesh(x, y, log_variance.view(x.shape))
        figure.colorbar(colours, label=r"$\log_{10}$ Var[Q], mean of agents")
    for axes, title in zip(maps, (f"the expert's states ({clip} removed)", "untrained", "trained")):
        edge = axes.axvline(0.1) if clip == "left" else axes.axhline(0.8)
        edge.set(color="#D55E00", linestyle="--")
        axes.set(title=title, xlabel="x", ylabel="y")
    steps = [row["step"] for row in history]
    values = np.array([row["auroc_variance"] for row in history])  # (11, S)
    course.plot(steps, values, color="0.7")
    course.plot(steps, values.mean(1), color="black")
    course.axhline(0.5, color="0.3", linestyle=":")
    course.set(title="AUROC of Var[Q] (black: mean, dotted: chance)", xlabel="update", ylim=(0, 1))
    return figure


def study(expert: Data, clip: str, args: Args) -> tuple[dict, Figure]:
    """Trains agents on what the clip leaves: numbers and a picture. Raises as `cut` and `train`."""
    known, held_out, removed = cut(expert, clip)
    obs_rms = RunningMeanStd()
    obs_rms.update(known["obs"])
    data = [
        normalized(known["obs"], obs_rms),
        F.one_hot(torch.as_tensor(known["action"]), A).float(),
        torch.as_tensor(known["reward"]),
        normalized(known["next_obs"], obs_rms),
        torch.as_tensor(known["done"]),
    ]
    generator = np.random.default_rng(args.seed)
    kept = normalized(generator.permutation(held_out)[:2000], obs_rms)
    novel = normalized(generator.permutation(removed)[:2000], obs_rms)
    torch.manual_seed(args.seed)
    agent = Agent(args)
    untrained = copy.deepcopy(agent)
    history = train(agent, data, kept, novel)
    nearest = [torch.cdist(states, data[0]).amin(1) for states in (kept, novel)]
    numbers = {
        "states_removed": len(removed),
        "transitions_trained": len(known["obs"]),
        "auroc_variance_untrained": history[0]["auroc_variance"],
        "auroc_variance": history[-1]["auroc_variance"],
        "auroc_norm": auroc(kept.norm(dim=1), novel.norm(dim=1)),  # distance to the data's mean
        "auroc_distance": auroc(*nearest),  # to the nearest training state
        "history": history,
    }
    return numbers, draw(expert, clip, obs_rms, [untrained, agent], history)


def main(args: Args) -> dict:
    """The study, into --run-dir. Returns what result.json holds. Raises OSError, and as `study`."""
    expert = args.expert and load_expert(args.expert)
    run = args.run_dir.expanduser()
    if {file.name for file in run.glob("*")} - {"in-use.lock", "unfinished.npz"}:
        raise ValueError(f"--run-dir {run} has files: choose another")
    run.mkdir(parents=True, exist_ok=True)
    with FileLock(run / "in-use.lock", timeout=0):
        expert = expert or train_expert(args)
        np.savez_compressed(run / "unfinished.npz", **expert)
        (run / "unfinished.npz").replace(run / "expert.npz")
        mean_return = float(expert["reward"].sum() / expert["ended"].sum())
        print(f"expert's mean return: {mean_return:.1f}; results in {run}")
        result = {
            "args": dict(vars(args)),
            "versions": {package.__name__: package.__version__ for package in (torch, np, gym)},
            "mean_return": mean_return,
            "clips": {},
        }
        for clip in ("left", "top"):
            print(f"clip {clip}")
            numbers, figure = study(expert, clip, args)
            figure.savefig(run / f"{clip}.png", dpi=100)
            result["clips"][clip] = numbers
            (run / "unfinished.tmp").write_text(json.dumps(result, indent=2, default=str))
            (run / "unfinished.tmp").replace(run / "result.json")
    return result


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except KeyboardInterrupt:
        sys.exit("stopped")
    except (ValueError, ArithmeticError, OSError, gym.error.Error) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")  # on one line
