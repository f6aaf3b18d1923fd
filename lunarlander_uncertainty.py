"""Does dropout variance detect out-of-distribution states? Section 5.1 of the UWAC paper.

Wu et al., "Uncertainty Weighted Actor-Critic for Offline Reinforcement Learning" (ICML 2021): the
last 100,000 steps of an expert (AWR) are the data. All states in a part of the sky are removed, and
agents learn from the rest (Algorithm 1 without MMD). Is Var[Q] larger at the removed states?

    python lunarlander_uncertainty.py

LunarLander-v3 is Gymnasium's successor of the paper's v2. Networks, which begin with torch's
weights, and Var[Q], in closed form, are uwac.py's. Brackets name the source of a number as there.

Shapes: S seeds trained side by side, B batch, N sampled actions, D observation size, A number of
actions (one-hot), H hidden units; of the expert, T steps in E environments.
"""

import copy
import json
import sys
from argparse import ArgumentTypeError
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import Annotated, Literal

import gymnasium as gym
import numpy as np
import pydantic
import torch
import torch.nn.functional as F
import tyro
from gymnasium.wrappers.utils import RunningMeanStd
from matplotlib.figure import Figure
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.distributions import Categorical, OneHotCategorical
from torch.utils.data import default_collate
from tqdm.auto import tqdm

D = 8  # numbers in an observation of LunarLander
A = 4  # actions: no engine, left, main, right
STEPS = 6_250  # of the expert in each of 16 environments: its last 100,000 are the data
SKY = ((-1, 1), (-0.1, 1.6))  # x and y of the pictures
Probability = Annotated[float, Field(ge=0, le=1)]
STRICT = {"strict": True, "allow_inf_nan": False, "str_min_length": 1}


@dataclass
class Args:
    clip: tuple[Literal["left", "top"], ...] = ("left", "top")  # states to remove: x < 0.1, y > 0.8
    expert_seed: NonNegativeInt = 1  # of the expert; with 1 its mean return is 280 (paper: 270)
    expert_iterations: PositiveInt = 900  # of the expert: 2,048 steps each, then an AWR update
    seed: NonNegativeInt = 0  # of the agents; same machine, same arguments, same numbers
    num_seeds: PositiveInt = 5  # S, independent agents trained side by side
    total_steps: PositiveInt = 8_000  # updates of the agents
    run_dir: str | None = None  # folder of results; None: runs/lunarlander__DATE-TIME
    # UWAC
    beta: PositiveFloat = 1.6  # weight beta / Var[Q] (paper, 5.5: 0.8, 1.6 or 2.5); 1e9: no weights
    dropout: Annotated[float, Field(gt=0, lt=1)] = 0.1  # rate, after each hidden layer (ml-uwac)
    weight_clip: NonNegativeFloat = 1.5  # upper limit of the weight (paper, 5.5)
    # The rest of Algorithm 1
    hidden_dim: PositiveInt = 64  # H, units in each of the two hidden layers of actor and critics
    batch_size: PositiveInt = 256  # B, transitions in a mini-batch (BEAR)
    gamma: Probability = 0.99  # discount per step (BEAR)
    tau: Probability = 0.005  # rate of the Polyak targets (BEAR)
    lmbda: Probability = 0.75  # weight of min(Q1, Q2) in a target, the max has the rest (BEAR)
    num_candidates: PositiveInt = 10  # N, Algorithm 1's p: a target takes the best of them (BEAR)
    actor_lr: NonNegativeFloat = 1e-4  # learning rate of the actor (BEAR)
    critic_lr: NonNegativeFloat = 1e-3  # learning rate of the critics (BEAR: 3e-4)

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            try:
                pydantic.TypeAdapter(field.type, config=STRICT).validate_python(value)
            except pydantic.ValidationError as error:
                option = field.name.replace("_", "-")
                problem = error.errors()[0]["msg"]
                # Not a ValueError: tyro would draw a box around it.
                raise ArgumentTypeError(f"--{option} {value}: {problem}") from None


class StackedLinear(nn.Module):
    """Linear layers side by side: (..., B, in) -> (*stack, B, out), `stack` being S, or 2 and S."""

    def __init__(self, stack: tuple[int, ...], in_dim: int, out_dim: int):
        super().__init__()
        bound = in_dim**-0.5  # as torch.nn.Linear
        self.weight = nn.Parameter(torch.empty(*stack, in_dim, out_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(*stack, 1, out_dim).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).add_(self.bias)  # in place, an eighth faster


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
    """obs (S, B, D) and x (S, B, E) -> (S, B, D + E). For x (S, B, N, E) each state is repeated N
    times -> (S, B * N, D + E)."""
    if x.dim() == 4:
        obs = obs.repeat_interleave(x.shape[2], dim=1)
        x = x.flatten(1, 2)
    return torch.cat([obs, x], dim=-1)


class Critic(MLP):
    """Twin Q functions; an action is one-hot."""

    def __init__(self, S: int, hidden_dim: int):
        super().__init__((2, S), D + A, hidden_dim, 1)

    def forward(self, obs: Tensor, action: Tensor, dropout: float = 0.0) -> Tensor:
        """Q1, Q2: obs (S, B, D), action (S, B, A) -> (2, S, B), or (S, B, N, A) -> (2, S, B, N)."""
        return super().forward(concat(obs, action), dropout).view(2, *action.shape[:-1])


@torch.no_grad()
def analytic_dropout_variance(critic: Critic, obs: Tensor, action: Tensor, p: float) -> Tensor:
    """Var[Q1] and Var[Q2] under dropout of rate p without sampling: obs (S, B, D), action (S, B, A)
    -> (2, S, B), or action (S, B, N, A) -> (2, S, B, N). The first masks make the second layer's
    outputs z nearly normal, so the moments of h2 = relu(z) follow (docs/walkthrough.md). Nearly
    exact where every |z| is many std."""
    first, second, last = critic.layers
    w2, w3 = second.weight, last.weight.mT
    mask_variance = p / (1 - p)  # of a mask's elements, whose mean is 1
    h1 = first(concat(obs, action)).relu_()  # (2, S, B or B * N, H)
    z = second(h1)
    std = (mask_variance * h1.square() @ w2.square()).sqrt().clamp(min=1e-12)
    t = (z / std).clamp(-8, 8)  # the density is tiny there; beyond 13 it is denormal, so slow
    slope = torch.special.ndtr(t)  # P(z > 0), the mean slope of the ReLU
    density = torch.exp(-0.5 * t.square()) / (2 * torch.pi) ** 0.5
    mean = z * slope + std * density  # E[h2]
    mean_square = z * mean + std.square() * slope  # E[h2^2]
    # joint: the first mask moves all units together, by their slopes. own: what is left of each
    # unit's Var[mask * h2], summed as if units were independent.
    joint = mask_variance * (h1 * ((w3 * slope) @ w2.mT)).square().sum(-1)
    own = (1 + mask_variance) * mean_square - mean.square() - (slope * std).square()
    variance = (joint + (w3.square() * own).sum(-1)).clamp(min=0)
    return variance.view(2, *action.shape[:-1])


class Agent(nn.Module):
    """The networks of Algorithm 1 for S seeds, without MMD and its VAE, and their optimizers."""

    def __init__(self, args: Args):
        super().__init__()
        self.args = args
        # Line 1: actor, critics with dropout and their targets.
        self.actor = MLP((args.num_seeds,), D, args.hidden_dim, A)
        self.critic = Critic(args.num_seeds, args.hidden_dim)
        self.target_actor = copy.deepcopy(self.actor)
        self.target_critic = copy.deepcopy(self.critic)
        self.optimizers = {
            "actor": torch.optim.Adam(self.actor.parameters(), args.actor_lr, fused=True),
            "critic": torch.optim.Adam(self.critic.parameters(), args.critic_lr, fused=True),
        }

    def minimize(self, loss: Tensor, name: str) -> None:
        """A step on the losses (S,). Seeds share no parameters, so their losses may be summed."""
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        loss.sum().backward(inputs=optimizer.param_groups[0]["params"])
        optimizer.step()

    def uncertainty(self, critic: Critic, obs: Tensor, action: Tensor) -> Tensor:
        """Var[Q1] + Var[Q2]: obs (S, B, D), action (S, B, ..., A) -> (S, B, ...)."""
        return analytic_dropout_variance(critic, obs, action, self.args.dropout).sum(0)


def every_action(obs: Tensor) -> Tensor:
    """All A actions, one-hot, for each state: (S, B, D) -> (S, B, A, A)."""
    return torch.eye(A).expand(*obs.shape[:2], A, A)


def update(agent: Agent, data: list[Tensor], args: Args) -> dict[str, Tensor]:
    """One step of all networks, Algorithm 1, lines 3 to 12, without MMD, on data (n, ...): obs,
    action, reward, next_obs, done. Returns metrics (S,)."""
    # Line 3: a mini-batch of transitions for each seed.
    index = torch.randint(len(data[0]), (args.num_seeds, args.batch_size))
    obs, action, reward, next_obs, done = (array[index] for array in data)  # (S, B, ...)

    with torch.no_grad():
        # Line 5: candidate actions of the target actor.
        target_policy = OneHotCategorical(logits=agent.target_actor(next_obs))
        candidates = target_policy.sample((args.num_candidates,)).movedim(0, 2)  # (S, B, N, A)
        # Line 6: the best of them, by soft clipped double-Q of the target critics.
        q1, q2 = agent.target_critic(next_obs, candidates)  # (S, B, N) each
        mixture = args.lmbda * torch.minimum(q1, q2) + (1 - args.lmbda) * torch.maximum(q1, q2)
        y, best = mixture.max(-1)  # (S, B)
        target_q = reward + args.gamma * (1 - done) * y
        # Line 7: Var[Q1] + Var[Q2] at the best action stands for Var[y], as in ml-uwac.
        best_action = candidates.take_along_dim(best[:, :, None, None], dim=2).squeeze(2)
        var_y = agent.uncertainty(agent.target_critic, next_obs, best_action)  # (S, B)
        weight = (args.beta / var_y).clamp(max=args.weight_clip)
    # Line 8: weighted regression of both critics, under dropout.
    q = agent.critic(obs, action, args.dropout)  # (2, S, B)
    critic_loss = (weight * (q - target_q).square()).sum(0).mean(1)
    agent.minimize(critic_loss, "critic")

    # Line 11: the actor maximizes its expected Q, weighted by its certainty (equation 5).
    with torch.no_grad():
        q1, q2 = agent.critic(obs, every_action(obs))  # (S, B, A) each
        policy_q = torch.minimum(q1, q2)
        var_q = agent.uncertainty(agent.critic, obs, every_action(obs))
        policy_weight = (args.beta / var_q).clamp(max=args.weight_clip)
    policy = agent.actor(obs).softmax(-1)  # (S, B, A)
    actor_loss = -(policy * policy_weight * policy_q).sum(-1).mean(1)
    agent.minimize(actor_loss, "actor")

    # Line 12: the targets follow.
    with torch.no_grad():
        for old, new in zip(agent.target_critic.parameters(), agent.critic.parameters()):
            old.lerp_(new, args.tau)
        for old, new in zip(agent.target_actor.parameters(), agent.actor.parameters()):
            old.lerp_(new, args.tau)

    return {
        "critic_loss": critic_loss.detach(),
        "actor_loss": actor_loss.detach(),
        "target_q": target_q.mean(1),
        "variance": var_y.mean(1),
        "weight": weight.mean(1),
    }


@torch.no_grad()
def state_variance(agent: Agent, obs: Tensor) -> Tensor:
    """Var[Q1] + Var[Q2] at states (n, D), its mean over each seed's policy: (S, n)."""
    obs = obs.expand(agent.args.num_seeds, -1, -1)
    policy = agent.actor(obs).softmax(-1)  # (S, n, A)
    variance = (policy * agent.uncertainty(agent.critic, obs, every_action(obs))).sum(-1)
    return variance.clamp(min=1e-12)  # so that it has a logarithm even where all units are dead


def auroc(known: Tensor, novel: Tensor) -> list[float]:
    """The chance, for each seed, that a value of `novel` (S, m) exceeds one of `known` (S, n)."""
    larger = torch.sign(novel.unsqueeze(2) - known.unsqueeze(1))  # 1, -1, or 0 for a tie
    return (0.5 + 0.5 * larger.mean((1, 2))).tolist()


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


def train_expert(args: Args) -> dict[str, np.ndarray]:
    """An expert's last 100,000 steps, arrays (T, E, ...): obs, action, reward, next_obs, done (1
    where the episode terminated) and ended (whether by that or by the time limit)."""
    torch.manual_seed(args.expert_seed)
    actor = MLP((), D, 128, A)
    value = MLP((), D, 128, 1)
    rates = [{"params": actor.parameters(), "lr": 5e-4}, {"params": value.parameters(), "lr": 1e-3}]
    optimizer = torch.optim.Adam(rates, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, args.expert_iterations)
    envs = gym.make_vec("LunarLander-v3", 16, "sync", {"autoreset_mode": "Disabled"})
    obs, _ = envs.reset(seed=args.expert_seed)
    obs_rms = RunningMeanStd(shape=(D,))  # of all states so far
    replay = []
    bar = tqdm(range(args.expert_iterations), "expert", unit=" iterations", disable=None)
    for _ in bar:
        for _ in range(128):
            action = Categorical(logits=actor(normalized(obs, obs_rms))).sample().numpy()
            next_obs, reward, done, truncated, _ = envs.step(action)
            ended = done | truncated
            step = {"obs": obs, "action": action, "next_obs": next_obs, "ended": ended}
            step |= {"reward": np.float32(reward), "done": np.float32(done)}
            replay.append(step)
            obs = next_obs
            if ended.any():
                obs, _ = envs.reset(options={"reset_mask": ended})
        replay = replay[-STEPS:]
        # It learns from the newest steps alone: the fresher they are, the faster it improves.
        steps = default_collate(replay[-1024:])
        obs_rms.update(steps["obs"][-128:].flatten(0, 1).numpy())
        steps["obs"] = normalized(steps["obs"].numpy(), obs_rms)
        steps["next_obs"] = normalized(steps["next_obs"].numpy(), obs_rms)
        awr_update(actor, value, optimizer, steps)
        schedule.step()
        bar.set_postfix_str(f"mean return {steps['reward'].sum() / steps['ended'].sum():.0f}")
    return {name: tensor.numpy() for name, tensor in default_collate(replay).items()}


def cut(expert: dict[str, np.ndarray], clip: str) -> tuple[dict, np.ndarray, np.ndarray]:
    """Transitions to train on, arrays (n, ...), whose state and next state are not removed. States
    (n, D) of such transitions in two environments, which are held out. Removed states (n, D).
    Raises ValueError where one of the three is empty."""
    states = np.stack([expert["obs"], expert["next_obs"]])  # (2, T, E, D)
    is_removed = states[..., 0] < 0.1 if clip == "left" else states[..., 1] > 0.8  # (2, T, E)
    is_kept = ~is_removed.any(0)  # (T, E)
    known = {name: array[:, 2:][is_kept[:, 2:]] for name, array in expert.items()}
    held_out = expert["obs"][:, :2][is_kept[:, :2]]
    removed = expert["obs"][is_removed[0]]
    if 0 in (len(known["obs"]), len(held_out), len(removed)):
        raise ValueError(f"--clip {clip}: no states on one side of it; raise --expert-iterations")
    return known, held_out, removed


def draw(clip: str, obs: np.ndarray, sky: list[np.ndarray], variances: list[Tensor]) -> Figure:
    """Training states (n, D); log10 Var[Q] over the sky, and at kept and removed states (S, n)."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    data, variance, histogram = figure.subplots(1, 3)
    *_, counts = data.hist2d(obs[:, 0], obs[:, 1], 50, range=SKY, norm="log")
    figure.colorbar(counts, ax=data, label="number of states")
    data.set(title="training states (dashed: the cut)", xlabel="x", ylabel="y")
    figure.colorbar(variance.pcolormesh(*sky), ax=variance, label=r"$\log_{10}$ Var[Q]")
    variance.set(title="over the sky, mean of agents", xlabel="x", ylabel="y")
    for axes in (data, variance):
        edge = axes.axvline(0.1) if clip == "left" else axes.axhline(0.8)
        edge.set(color="#D55E00", linestyle="--")
    for group, values in zip(("kept, held out", "removed"), variances):
        histogram.hist(values.log10().flatten(), 60, density=True, alpha=0.55, label=group)
    histogram.set(title="at the expert's states", xlabel=r"$\log_{10}$ Var[Q]", ylabel="density")
    figure.legend(loc="outside lower right", ncols=2)
    return figure


def study(expert: dict[str, np.ndarray], clip: str, args: Args) -> tuple[dict, Figure]:
    """Trains agents on what the clip leaves. Compares Var[Q] at kept and at removed states, in
    numbers and a picture. Raises ValueError as `cut`, FloatingPointError where a loss diverges."""
    known, held_out, removed = cut(expert, clip)
    obs_rms = RunningMeanStd(shape=(D,))
    obs_rms.update(known["obs"])
    obs = normalized(known["obs"], obs_rms)
    action = F.one_hot(torch.as_tensor(known["action"]), A).float()
    reward = torch.as_tensor(known["reward"])
    next_obs = normalized(known["next_obs"], obs_rms)
    done = torch.as_tensor(known["done"])
    torch.manual_seed(args.seed)
    agent = Agent(args)
    for step in tqdm(range(args.total_steps), f"clip {clip}", unit=" updates", disable=None):
        metrics = update(agent, [obs, action, reward, next_obs, done], args)
        if not (metrics["critic_loss"] + metrics["actor_loss"]).isfinite().all():
            raise FloatingPointError(f"clip {clip}: a loss is not finite at update {step + 1}")

    generator = np.random.default_rng(args.seed)
    kept = normalized(generator.permutation(held_out)[:2000], obs_rms)
    novel = normalized(generator.permutation(removed)[:2000], obs_rms)
    variances = [state_variance(agent, states) for states in (kept, novel)]  # (S, n) each
    distances = [torch.cdist(states, obs).amin(1).unsqueeze(0) for states in (kept, novel)]
    numbers = {
        "states_removed": len(removed),
        "transitions_trained": len(obs),
        "auroc_variance": auroc(*variances),
        "auroc_distance": auroc(*distances),  # to the nearest training state
        "metrics": {name: values.tolist() for name, values in metrics.items()},  # the last update's
    }
    # Over the sky, the other six dimensions are at their training mean.
    x, y = np.meshgrid(np.linspace(*SKY[0]), np.linspace(*SKY[1]))  # (50, 50)
    sky = np.tile(obs_rms.mean, (*x.shape, 1))
    sky[:, :, 0] = x
    sky[:, :, 1] = y
    sky_variance = state_variance(agent, normalized(sky, obs_rms).flatten(0, 1))
    log_variance = sky_variance.log10().mean(0).view(x.shape)
    figure = draw(clip, known["obs"], [x, y, log_variance], variances)
    figure.suptitle(f"LunarLander, clip {clip}: {args.num_seeds} agents, seed {args.seed}")
    return numbers, figure


def main(args: Args, expert: dict[str, np.ndarray] | None = None) -> dict:
    """The whole study into the run's folder: expert.npz, pictures, and result.json, whose contents
    it returns; or on an earlier run's expert, dict(np.load("RUN/expert.npz")). Raises ValueError,
    FloatingPointError where training diverges, OSError where a file cannot be written."""
    start = perf_counter()
    name = f"lunarlander__{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
    run = Path(args.run_dir or f"runs/{name}").expanduser()
    if run.exists():
        raise ValueError(f"--run-dir {run} exists: choose another")
    run.mkdir(parents=True)
    if expert is None:
        expert = train_expert(args)
        np.savez_compressed(run / "expert.npz", **expert)
    mean_return = float(expert["reward"].sum() / expert["ended"].sum())
    print(f"expert: {expert['ended'].size} steps, mean return {mean_return:.1f}; results in {run}")
    result = {
        "args": dict(vars(args)),
        "versions": {package.__name__: package.__version__ for package in (torch, np, gym)},
        "mean_return": mean_return,
        "clips": {},
    }
    for clip in args.clip:
        numbers, figure = study(expert, clip, args)
        figure.savefig(run / f"{clip}.png", dpi=100)
        for key in ("auroc_variance", "auroc_distance"):
            print(f"clip {clip}: {key} {np.mean(numbers[key]):.3f} {np.round(numbers[key], 3)}")
        result["clips"][clip] = numbers
        result["seconds"] = perf_counter() - start
        (run / "result.tmp").write_text(json.dumps(result, indent=2))
        (run / "result.tmp").replace(run / "result.json")
    return result


if __name__ == "__main__":
    try:
        main(tyro.cli(Args))
    except KeyboardInterrupt:
        sys.exit("stopped")
    except (ArgumentTypeError, ValueError, ArithmeticError, OSError, gym.error.Error) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")  # one line
