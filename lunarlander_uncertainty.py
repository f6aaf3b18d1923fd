# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = [
#     "torch==2.13.0", "numpy==2.4.6", "gymnasium[box2d]==1.4.0", "pydantic==2.14.3",
#     "tyro==1.0.17", "tqdm==4.70.1", "matplotlib==3.11.2",
# ]
# ///
"""Does dropout variance detect out-of-distribution states? Section 5.1 of the UWAC paper.

Wu et al., "Uncertainty Weighted Actor-Critic for Offline Reinforcement Learning" (ICML 2021): the
last 100,000 steps of an expert lander (AWR) are the data; a part of the sky is cut out of them; and
agents learn offline from the rest (Algorithm 1 without MMD). Are they less certain of that part?

    python lunarlander_uncertainty.py

It is Gymnasium's LunarLander-v3, the successor of the paper's v2. Networks and variance are those
of uwac.py, to the letter, but the weights begin as torch's. The variance is the closed form: 100
passes would take an hour.

Shapes: S seeds trained side by side, B batch, N sampled actions, D size of a state, A number of
actions (one-hot), H hidden units; of the expert, T steps in E environments.
"""

import copy
import json
import sys
import time
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
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
from tqdm.auto import tqdm

D = 8  # numbers of a state of LunarLander
A = 4  # actions: nothing, left, main or right engine
SKY = ((-1, 1), (-0.1, 1.6))  # x and y of the pictures


class InputError(Exception):
    """Arguments or data that cannot be used. The command line prints it as a line, exit code 2."""


Probability = Annotated[float, Field(ge=0, le=1)]


@pydantic.dataclasses.dataclass(config={"extra": "forbid", "allow_inf_nan": False})
class Args:
    clip: tuple[Literal["left", "top"], ...] = ("left", "top")  # what is cut out: x < 0.1, y > 0.8
    expert_seed: NonNegativeInt = 1  # with which it comes to 277 (paper: 270)
    expert_iterations: PositiveInt = 900  # of 2,048 steps each, in which learning rates fall to 0
    seed: NonNegativeInt = 0  # of the agents; same machine, same arguments, same numbers
    num_seeds: PositiveInt = 5  # S, independent agents trained side by side
    total_steps: PositiveInt = 8_000  # updates
    run_dir: str | None = None  # folder of results; None: runs/lunarlander__DATE-TIME
    # UWAC
    beta: PositiveFloat = 1.6  # weight beta / Var[Q] (paper: 0.8, 1.6, 2.5); 1e9: as if none
    dropout: Annotated[float, Field(gt=0, lt=1)] = 0.1  # after each ReLU (authors' code)
    weight_clip: NonNegativeFloat = 1.5  # upper limit of the weight (paper, section 5.5)
    # The rest of Algorithm 1
    hidden_dim: PositiveInt = 64  # H, units in each of the two hidden layers of actor and critics
    batch_size: PositiveInt = 256  # B, transitions in a mini-batch (BEAR code)
    gamma: Probability = 0.99  # discount a step (BEAR code)
    tau: Probability = 0.005  # rate of the Polyak targets (BEAR code)
    lmbda: Probability = 0.75  # weight of min(Q1, Q2) in a target, the max has the rest (BEAR code)
    num_candidates: PositiveInt = 10  # N, Algorithm 1's p: a target takes the best of them (BEAR)
    actor_lr: NonNegativeFloat = 1e-4  # learning rate of the actor (BEAR code)
    critic_lr: NonNegativeFloat = 1e-3  # of the critics (BEAR code: 3e-4, for far more updates)


class StackedLinear(nn.Module):
    """Linear layers side by side: (S, B, in) -> (*stack, B, out), `stack` being S, or 2 and S."""

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
    """[obs, x]: (S, B, D + E) for x (S, B, E); for x (S, B, N, E), where each state is repeated for
    its N rows, (S, B * N, D + E)."""
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
    outputs z nearly normal, so the moments of h2 = relu(z) follow. Exact where no z comes near 0
    under the masks."""
    first, second, last = critic.layers
    w2, w3 = second.weight, last.weight.mT
    r = p / (1 - p)  # variance of a mask's elements, whose mean is 1
    h1 = first(concat(obs, action)).relu_()  # (2, S, B, H)
    z = second(h1)
    std = (r * h1.square() @ w2.square()).sqrt().clamp(min=1e-12)
    t = (z / std).clamp(-8, 8)  # further out the density is next to 0, and slow to compute with
    slope = torch.special.ndtr(t)  # P(z > 0), the mean slope of the ReLU
    density = torch.exp(-0.5 * t.square()) / (2 * torch.pi) ** 0.5
    mean = z * slope + std * density  # E[h2]
    mean_square = z * mean + std.square() * slope  # E[h2^2]
    # The first mask perturbs all units jointly (linearized); the second mask and the residual
    # perturb each unit independently.
    together = r * (h1 * ((w3 * slope) @ w2.mT)).square().sum(-1)
    by_itself = (1 + r) * mean_square - mean.square() - (slope * std).square()
    variance = (together + (w3.square() * by_itself).sum(-1)).clamp(min=0)
    return variance.view(2, *action.shape[:-1])


class Agent(nn.Module):
    """The networks of Algorithm 1 for S seeds, without MMD and its VAE, and their optimizers."""

    def __init__(self, args: Args):
        super().__init__()
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


def dropout_variance(critic: Critic, obs: Tensor, action: Tensor, args: Args) -> Tensor:
    """Var[Q1] + Var[Q2]: obs (S, B, D), action (S, B, ..., A) -> (S, B, ...)."""
    return analytic_dropout_variance(critic, obs, action, args.dropout).sum(0)


def every_action(obs: Tensor) -> Tensor:
    """All actions, one-hot, for each state: (S, B, D) -> (S, B, A, A)."""
    return torch.eye(A).expand(*obs.shape[:2], A, A)


def update(agent: Agent, data: list[Tensor], args: Args) -> dict[str, Tensor]:
    """One step of every network: Algorithm 1, lines 3 to 12, without MMD. Returns metrics (S,)."""
    # Line 3: a mini-batch of transitions for each seed.
    index = torch.randint(len(data[0]), (args.num_seeds, args.batch_size))
    obs, action, reward, next_obs, done = (array[index] for array in data)  # (S, B, ...)

    with torch.no_grad():
        # Line 5: candidate actions of the target actor.
        policy = OneHotCategorical(logits=agent.target_actor(next_obs))
        candidates = policy.sample((args.num_candidates,)).movedim(0, 2)  # (S, B, N, A)
        # Line 6: the best of them, by soft clipped double-Q of the target critics.
        q1, q2 = agent.target_critic(next_obs, candidates)  # (S, B, N) each
        mixture = args.lmbda * torch.minimum(q1, q2) + (1 - args.lmbda) * torch.maximum(q1, q2)
        y, best = mixture.max(-1)  # (S, B)
        target_q = reward + args.gamma * (1 - done) * y
        # Line 7: the variance of y, which is that at the action where the maximum is attained.
        best_action = candidates.take_along_dim(best[:, :, None, None], dim=2).squeeze(2)
        variance = dropout_variance(agent.target_critic, next_obs, best_action, args)  # (S, B)
        weight = (args.beta / variance).clamp(max=args.weight_clip)  # (S, B)
    # Line 8: weighted regression of both critics, under dropout.
    q = agent.critic(obs, action, args.dropout)  # (2, S, B)
    critic_loss = (weight * (q - target_q).square()).sum(0).mean(1)
    agent.minimize(critic_loss, "critic")

    # Lines 10 and 11: the actor maximizes Q, weighted (equation 5), its mean over all actions.
    with torch.no_grad():
        q1, q2 = agent.critic(obs, every_action(obs))  # (S, B, A) each
        policy_q = torch.minimum(q1, q2)
        policy_variance = dropout_variance(agent.critic, obs, every_action(obs), args)
        policy_weight = (args.beta / policy_variance).clamp(max=args.weight_clip)
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
        "variance": variance.mean(1),
        "weight": weight.mean(1),
    }


@torch.no_grad()
def state_variance(agent: Agent, obs: Tensor, args: Args) -> Tensor:
    """Var[Q1] + Var[Q2] of states (n, D), mean over each seed's policy: (S, n), not below 1e-12."""
    obs = obs.expand(args.num_seeds, -1, -1)
    policy = agent.actor(obs).softmax(-1)  # (S, n, A)
    variance = (policy * dropout_variance(agent.critic, obs, every_action(obs), args)).sum(-1)
    return variance.clamp(min=1e-12)  # it has a logarithm where all units are dead, too


def auroc(known: Tensor, novel: Tensor) -> list[float]:
    """The chance, for each seed, that a value of `novel` (S, m) exceeds one of `known` (S, n)."""
    larger = torch.sign(novel.unsqueeze(2) - known.unsqueeze(1))  # 1, -1, or 0 for a tie
    return (0.5 + 0.5 * larger.mean((1, 2))).tolist()


def normalized(obs: np.ndarray, seen: RunningMeanStd) -> Tensor:
    """What networks see of states (..., D): mean 0 and deviation 1 over the states `seen`."""
    return torch.as_tensor((obs - seen.mean) / (np.sqrt(seen.var) + 1e-3), dtype=torch.float32)


@torch.no_grad()
def td_lambda_returns(value, steps: dict, gamma: float = 0.999, lmbda: float = 0.98) -> Tensor:
    """TD(lambda) returns of T steps in E environments, in hundreds: (T, E). V(s') stands for what
    follows where an episode or the steps end, and 0 where it terminated. With AWR's gamma of 0.99
    the expert hovers until its time is up."""
    next_value = value(steps["next_obs"]).squeeze(-1)
    returns = torch.empty_like(next_value)
    following = next_value[-1]
    for t in reversed(range(len(returns))):
        going_on = (1 - lmbda) * next_value[t] + lmbda * following
        following = torch.where(steps["ended"][t], next_value[t], going_on)
        following = steps["reward"][t] / 100 + gamma * (1 - steps["done"][t]) * following
        returns[t] = following
    return returns


def awr_update(actor, value, optimizer, steps: dict[str, Tensor]) -> None:
    """Advantage-weighted regression (Peng et al., 2019) on steps (T, E, ...). Batches and limit of
    the weights are as released for LunarLander; Adam, numbers of steps and temperature are ours."""

    def minimize(loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    obs = steps["obs"].flatten(0, 1)
    action = steps["action"].flatten()
    returns = td_lambda_returns(value, steps).flatten()
    for index in torch.randint(len(obs), (100, 256)):
        minimize((value(obs[index]).squeeze(-1) - returns[index]).square().mean())
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
    # A step that ends an episode also begins the next one; `info` has the last observation.
    settings = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
    envs = gym.make_vec("LunarLander-v3", 16, "sync", vector_kwargs=settings)
    obs, _ = envs.reset(seed=args.expert_seed)
    seen = RunningMeanStd(shape=(D,))  # all states so far
    replay = []
    bar = tqdm(range(args.expert_iterations), "expert", unit="iterations", disable=None)
    for _ in bar:
        for _ in range(128):
            with torch.no_grad():
                logits = actor(normalized(obs, seen))
            action = Categorical(logits=logits).sample().numpy()
            after, reward, done, truncated, info = envs.step(action)
            ended = done | truncated
            next_obs = after.copy()
            for i in np.flatnonzero(ended):
                next_obs[i] = info["final_obs"][i]
            replay.append((obs, action, np.float32(reward), next_obs, np.float32(done), ended))
            obs = after
        replay = replay[-6250:]
        # It learns from the newest steps alone: the fresher they are, the faster it improves.
        steps = stacked(replay[-1024:])
        seen.update(steps["obs"][-128:].reshape(-1, D))
        batch = {name: torch.as_tensor(array) for name, array in steps.items()}
        batch["obs"] = normalized(steps["obs"], seen)
        batch["next_obs"] = normalized(steps["next_obs"], seen)
        awr_update(actor, value, optimizer, batch)
        schedule.step()
        bar.set_postfix_str(f"mean return {steps['reward'].sum() / steps['ended'].sum():.0f}")
    return stacked(replay)


def stacked(replay: list[tuple[np.ndarray, ...]]) -> dict[str, np.ndarray]:
    """Arrays (E, ...) of each of T steps as arrays (T, E, ...) by name."""
    names = ("obs", "action", "reward", "next_obs", "done", "ended")
    return {name: np.stack(arrays) for name, arrays in zip(names, zip(*replay))}


def cut(expert: dict[str, np.ndarray], clip: str) -> tuple[dict, dict, np.ndarray]:
    """Transitions without a removed state or next state, to train on and of two environments held
    out, arrays (n, ...); and the removed states (n, D). Raises InputError for a side without."""

    def is_removed(obs: np.ndarray) -> np.ndarray:
        return obs[..., 0] < 0.1 if clip == "left" else obs[..., 1] > 0.8

    removed = is_removed(expert["obs"])  # (T, E)
    kept = ~removed & ~is_removed(expert["next_obs"])
    held_out = np.arange(kept.shape[1]) < 2  # (E,)
    known = {name: array[kept & ~held_out] for name, array in expert.items()}
    test = {name: array[kept & held_out] for name, array in expert.items()}
    if len(known["obs"]) == 0 or len(test["obs"]) == 0 or not removed.any():
        raise InputError(f"clip {clip}: the expert was on one side of it only; train it longer")
    return known, test, expert["obs"][removed]


def draw(clip: str, obs: np.ndarray, sky: list[np.ndarray], groups: dict[str, Tensor]) -> Figure:
    """Training states (n, D), log10 Var[Q] over the sky, and its histogram by groups (S, n)."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    data, variance, histogram = figure.subplots(1, 3)
    _, _, _, counts = data.hist2d(obs[:, 0], obs[:, 1], 50, range=SKY, norm="log")
    figure.colorbar(counts, ax=data, label="states")
    data.set(title=f"training states, clip {clip}", xlabel="x", ylabel="y")
    colours = variance.pcolormesh(*sky)
    figure.colorbar(colours, ax=variance, label=r"$\log_{10}$ Var[Q]")
    variance.set(title="Var[Q], other dimensions at their mean", xlabel="x", ylabel="y")
    for axes in (data, variance):
        edge = axes.axvline(0.1) if clip == "left" else axes.axhline(0.8)  # of what was cut out
        edge.set(color="#D55E00", linestyle="--")
    for label, values in groups.items():
        histogram.hist(values.log10().flatten(), 60, density=True, alpha=0.55, label=label)
    histogram.set(title="states of the expert", xlabel=r"$\log_{10}$ Var[Q]", ylabel="density")
    histogram.legend()
    return figure


def study(expert: dict[str, np.ndarray], clip: str, args: Args) -> tuple[dict, Figure]:
    """Agents learn from what a clip leaves: are they less certain of what it removed? Numbers and
    picture. Raises FloatingPointError where training diverges."""
    known, test, removed = cut(expert, clip)
    seen = RunningMeanStd(shape=(D,))
    seen.update(known["obs"])
    obs = normalized(known["obs"], seen)
    action = F.one_hot(torch.as_tensor(known["action"]), A).float()
    reward = torch.as_tensor(known["reward"])
    next_obs = normalized(known["next_obs"], seen)
    done = torch.as_tensor(known["done"])
    torch.manual_seed(args.seed)
    agent = Agent(args)
    for step in tqdm(range(args.total_steps), f"clip {clip}", unit="updates", disable=None):
        metrics = update(agent, [obs, action, reward, next_obs, done], args)
        if not (metrics["critic_loss"] + metrics["actor_loss"]).isfinite().all():
            raise FloatingPointError(f"clip {clip}: a loss is not finite at update {step + 1}")

    generator = np.random.default_rng(args.seed)
    variances, distances = {}, {}
    for group, states in (("kept, held out", test["obs"]), ("removed", removed)):
        some = normalized(generator.permutation(states)[:2000], seen)
        variances[group] = state_variance(agent, some, args)
        distances[group] = torch.cdist(some, obs).amin(1).unsqueeze(0)  # (1, n)
    numbers = {
        "states_removed": len(removed),
        "transitions_trained": len(obs),
        "auroc_variance": auroc(*variances.values()),
        "auroc_distance": auroc(*distances.values()),  # to the nearest training state
        "metrics": {name: values.tolist() for name, values in metrics.items()},
    }
    # Over the sky, the other six dimensions are fixed at their training mean.
    x, y = np.meshgrid(np.linspace(*SKY[0]), np.linspace(*SKY[1]))  # (50, 50)
    sky = np.tile(seen.mean, (*x.shape, 1))
    sky[:, :, 0] = x
    sky[:, :, 1] = y
    of_sky = state_variance(agent, normalized(sky, seen).flatten(0, 1), args)
    log_variance = of_sky.log10().mean(0).view(x.shape)
    return numbers, draw(clip, known["obs"], [x, y, log_variance], variances)


def main(args: Args, expert: dict[str, np.ndarray] | None = None) -> dict:
    """The whole study into the run's folder: expert.npz, pictures, and result.json, whose contents
    it returns; or on an earlier run's expert, dict(np.load("RUN/expert.npz")). Raises InputError,
    FloatingPointError where training diverges, OSError where a file cannot be written."""
    start = time.perf_counter()
    run = Path(args.run_dir or f"runs/lunarlander__{datetime.now():%Y-%m-%d_%H-%M-%S-%f}")
    if run.exists():
        raise InputError(f"--run-dir {run} exists: choose another")
    run.mkdir(parents=True)
    if expert is None:
        expert = train_expert(args)
        np.savez_compressed(run / "expert.npz", **expert)
    mean_return = float(expert["reward"].sum() / expert["ended"].sum())
    print(f"{expert['ended'].size} steps of an expert, mean return {mean_return:.1f}; into {run}")
    result = {
        "args": vars(args),
        "versions": {name: version(name) for name in ("torch", "numpy", "gymnasium")},
        "mean_return": mean_return,
        "clips": {},
    }
    for clip in args.clip:
        numbers, figure = study(expert, clip, args)
        figure.savefig(run / f"{clip}.png", dpi=100)
        result["clips"][clip] = numbers
        of_variance, (of_distance,) = numbers["auroc_variance"], numbers["auroc_distance"]
        print(
            f"clip {clip}: AUROC of removed states by Var[Q] {np.mean(of_variance):.3f} (agents"
            f" {np.round(of_variance, 3)}), by distance to the training states {of_distance:.3f}"
        )
        result["seconds"] = time.perf_counter() - start
        (run / "result.json").write_text(json.dumps(result, indent=2))
    return result


def parse() -> Args:
    """The command line's arguments. Raises InputError."""

    class Typed(Args):  # not checked within tyro, which would draw a box
        def __init__(self, **values):
            vars(self).update(values)

    try:
        return Args(**vars(tyro.cli(Typed)))
    except pydantic.ValidationError as error:
        wrong = error.errors()[0]
        option = wrong["loc"][0].replace("_", "-")
        raise InputError(f"--{option} {wrong['input']}: {wrong['msg']}") from None


if __name__ == "__main__":
    try:
        main(parse())
    except KeyboardInterrupt:
        sys.exit(130)
    except (InputError, FloatingPointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit({InputError: 2, FloatingPointError: 3}.get(type(error), 1))
