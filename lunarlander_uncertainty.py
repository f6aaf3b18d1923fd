"""Does dropout variance detect out-of-distribution states? Section 5.1 of the UWAC paper.

Wu et al., "Uncertainty Weighted Actor-Critic for Offline Reinforcement Learning" (ICML 2021): the
last 100,000 steps of an expert (AWR) are the data. All states in a part of the sky are removed, and
agents learn from the rest (Algorithm 1 without MMD). Is Var[Q] larger at the removed states?

    python lunarlander_uncertainty.py

The paper shows maps of Var[Q]; AUROC at states that no agent saw is added here. Var[Q] has a closed
form here, where the paper samples T = 100 passes. docs/fidelity.md lists all that is different.

UWAC is from `StackedLinear` to `update`; what follows is the expert, its data and the picture.

Shapes. B: batch, N: candidate actions, D: observation, A: actions (one-hot), H: hidden units. S
seeds are trained at once; twin critics lead with a 2. Of the expert, T: steps, E: environments.
"""

import copy
import json
import os
import sys
from pathlib import Path
from typing import Annotated

if __name__ == "__main__":
    os.environ["MPLBACKEND"] = "agg"  # files need no display; a notebook's may be missing

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from gymnasium.wrappers.utils import RunningMeanStd
from matplotlib.figure import Figure
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.distributions import Categorical, OneHotCategorical
from torch.utils.data import default_collate

D = 8  # numbers in an observation of LunarLander
A = 4  # actions: no engine, left, main, right
FIELDS = ("obs", "action", "reward", "next_obs", "done", "ended")
Data = dict[str, np.ndarray]  # an array for each of FIELDS; all the expert's: (T, E, ...)
STEPS = 6_250  # steps of the data in each of 16 environments: 100,000 in all
HELD_OUT_ENVS = 2  # of these 16; agents do not learn from them
X_EDGE = 0.1  # clip "left" removes the states with a smaller x (paper, figure 3)
Y_EDGE = 0.8  # clip "top" removes the states with a larger y (paper, figure 7)
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
    beta: PositiveFloat = 1.6  # weight = beta / (Var[Q1] + Var[Q2]) (paper, 5.5, with one Var)
    dropout: Annotated[float, Field(gt=0, lt=1)] = 0.1  # rate; none on the input (ml-uwac)
    weight_clip: PositiveFloat = 1.5  # largest weight (paper, 5.5, where 1.5 limits 1 / Var)
    hidden_dim: PositiveInt = 64  # units per hidden layer, H
    batch_size: PositiveInt = 256  # transitions per update, B (BEAR)
    gamma: Probability = 0.99  # discount per step (BEAR)
    tau: Probability = 0.005  # Polyak rate of the target networks (BEAR)
    lmbda: Probability = 0.75  # target: lmbda * min(Q1, Q2) + (1 - lmbda) * max(Q1, Q2) (BEAR)
    num_candidates: PositiveInt = 10  # actions a target maximizes over, N; Algorithm 1's p (BEAR)
    actor_lr: NonNegativeFloat = 1e-4  # learning rate of the actor (BEAR)
    critic_lr: NonNegativeFloat = 1e-3  # learning rate of the critics (BEAR: 3e-4)


class StackedLinear(nn.Module):
    """A linear map for each network in the stack, (S,) or (2, S). The input broadcasts against it:
    (S, B, in) or (2, S, B, in) -> (*stack, B, out)."""

    def __init__(self, stack: tuple[int, ...], in_dim: int, out_dim: int):
        super().__init__()
        bound = in_dim**-0.5  # as torch.nn.Linear
        self.weight = nn.Parameter(torch.empty(*stack, in_dim, out_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(*stack, 1, out_dim).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class MLP(nn.Module):
    """Networks side by side with two hidden ReLU layers: (S, B, in) -> (*stack, B, out). Dropout is
    an argument of the call; `train()` and `eval()` do not matter."""

    def __init__(self, stack: tuple[int, ...], in_dim: int, hidden_dim: int, out_dim: int):
        super().__init__()
        sizes = ((in_dim, hidden_dim), (hidden_dim, hidden_dim), (hidden_dim, out_dim))
        self.layers = nn.ModuleList(StackedLinear(stack, *size) for size in sizes)

    def forward(self, x: Tensor, dropout: float = 0.0) -> Tensor:
        h = F.dropout(self.layers[0](x).relu_(), dropout)
        h = F.dropout(self.layers[1](h).relu_(), dropout)
        return self.layers[2](h)


def concat(obs: Tensor, x: Tensor) -> Tensor:
    """obs (S, B, D) beside an action or latent, x (S, B, X) -> (S, B, D + X); or beside N of them
    for each state, x (S, B, N, X) -> (S, B * N, D + X)."""
    if x.dim() == 4:
        obs = obs.repeat_interleave(x.shape[2], dim=1)
        x = x.flatten(1, 2)
    return torch.cat([obs, x], dim=-1)


class Critic(MLP):
    """Twin Q functions."""

    def __init__(self, S: int, hidden_dim: int):
        super().__init__((2, S), D + A, hidden_dim, 1)

    def forward(self, obs: Tensor, action: Tensor, dropout: float = 0.0) -> Tensor:
        """obs (S, B, D), action (S, B, A) -> (2, S, B), or action (S, B, N, A) -> (2, S, B, N)."""
        q = super().forward(concat(obs, action), dropout)
        return q.view(2, *action.shape[:-1])


@torch.no_grad()
def analytic_dropout_variance(critic: Critic, obs: Tensor, action: Tensor, rate: float) -> Tensor:
    """Var[Q1], Var[Q2] without sampling (ours; see docs/walkthrough.md); shapes as in Critic.
    Q is the sum over the second layer's units j of w3_j mask_j relu(Z_j), plus a bias. Z_j, a sum
    over the first layer's units, is taken as normal. For i != j, Cov[relu(Z_i), relu(Z_j)] is taken
    as P(Z_i > 0) P(Z_j > 0) Cov[Z_i, Z_j]."""
    first, second, last = critic.layers
    w2 = second.weight
    w3 = last.weight.mT
    mask_variance = rate / (1 - rate)  # variance of one element of a mask (its mean is 1)
    h1 = F.relu(first(concat(obs, action)))
    mean = second(h1)  # of Z
    std = ((mask_variance * h1.square()) @ w2.square()).sqrt().clamp(min=1e-12)  # of Z
    ratio = (mean / std).clamp(-8, 8)  # changes nothing, and avoids slow denormals
    cdf = torch.special.ndtr(ratio)  # P(Z > 0), also the mean slope of relu(Z)
    pdf = torch.exp(-0.5 * ratio.square()) / (2 * torch.pi) ** 0.5
    mean_relu = mean * cdf + std * pdf  # E[relu(Z)]
    mean_square = mean * mean_relu + std.square() * cdf  # E[relu(Z)^2]
    # Var[sum_j w3_j cdf_j Z_j], over the first layer's masks; the second's are independent.
    shared = mask_variance * (h1 * ((w3 * cdf) @ w2.mT)).square().sum(-1)
    # What each unit adds: Var[mask_j relu(Z_j)] less Var[cdf_j Z_j], which is in `shared`.
    alone = (1 + mask_variance) * mean_square - mean_relu.square() - (cdf * std).square()
    variance = (shared + (w3.square() * alone).sum(-1)).clamp(min=0)
    return variance.view(2, *action.shape[:-1])


def pick(candidates: Tensor, index: Tensor) -> Tensor:
    """One action for each state: (S, B, N, A), (S, B) -> (S, B, A)."""
    index = index[:, :, None, None]  # (S, B, 1, 1)
    return candidates.take_along_dim(index, dim=2).squeeze(2)


class Agent:
    """The networks of Algorithm 1, without MMD and its VAE, and their optimizers (paper: SGD)."""

    def __init__(self, args: Args):
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
        """One step for `name` alone: no other network gets a gradient. loss (S,): seeds share no
        parameters, so their losses are summed."""
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        loss.sum().backward(inputs=optimizer.param_groups[0]["params"])
        optimizer.step()

    def uncertainty(self, critic: Critic, obs: Tensor, action: Tensor) -> Tensor:
        """Var[Q1] + Var[Q2] (paper: of one Q); shapes as in Critic, without the 2."""
        return analytic_dropout_variance(critic, obs, action, self.args.dropout).sum(0)


def every_action(obs: Tensor) -> Tensor:
    """All A actions, one-hot, as the N = A candidates at each state: (S, B, D) -> (S, B, N, A)."""
    return torch.eye(A).expand(*obs.shape[:-1], A, A)


def update(agent: Agent, data: list[Tensor]) -> dict[str, Tensor]:
    """One step of Algorithm 1, lines 3 to 12, without MMD, on n transitions: obs (n, D), action
    (n, A), reward (n,), next_obs (n, D), done (n,). Returns metrics, one number per seed."""
    args = agent.args
    # Line 3: a mini-batch (for each seed).
    index = torch.randint(len(data[0]), (args.num_seeds, args.batch_size))
    obs, action, reward, next_obs, done = (array[index] for array in data)  # (S, B, ...)

    with torch.no_grad():
        # Line 5: candidate actions of the target actor.
        target_policy = OneHotCategorical(logits=agent.target_actor(next_obs))
        candidates = target_policy.sample((args.num_candidates,)).movedim(0, -2)  # (S, B, N, A)
        # Line 6: the best by soft clipped double-Q, without dropout (ml-uwac: mean of T passes).
        q1, q2 = agent.target_critic(next_obs, candidates)  # (S, B, N) each
        mixture = args.lmbda * torch.minimum(q1, q2) + (1 - args.lmbda) * torch.maximum(q1, q2)
        y, best = mixture.max(-1)  # (S, B)
        target_q = reward + args.gamma * (1 - done) * y
        # Line 7: Var[Q1] + Var[Q2] at the best action stands for Var[y].
        var_y = agent.uncertainty(agent.target_critic, next_obs, pick(candidates, best))  # (S, B)
        weight = (args.beta / var_y).clamp(max=args.weight_clip)
    # Line 8: weighted regression of both critics, with dropout.
    q = agent.critic(obs, action, args.dropout)  # (2, S, B)
    critic_loss = (weight * (q - target_q).square()).sum(0).mean(-1)
    agent.minimize(critic_loss, "critic")

    # Line 11: the actor maximizes its expected weighted Q (equation 5, with a sampled action).
    with torch.no_grad():
        q1, q2 = agent.critic(obs, every_action(obs))  # (S, B, A) each
        policy_q = torch.minimum(q1, q2)  # (paper: one Q)
        var_q = agent.uncertainty(agent.critic, obs, every_action(obs))  # (S, B, A)
        policy_weight = (args.beta / var_q).clamp(max=args.weight_clip)
    policy = agent.actor(obs).softmax(-1)  # (S, B, A)
    actor_loss = -(policy * policy_weight * policy_q).sum(-1).mean(-1)
    agent.minimize(actor_loss, "actor")

    with torch.no_grad():
        # Line 12: the targets follow, target += tau * (source - target).
        targets = [*agent.target_critic.parameters(), *agent.target_actor.parameters()]
        sources = [*agent.critic.parameters(), *agent.actor.parameters()]
        for target, source in zip(targets, sources):
            target.lerp_(source, args.tau)

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
    policy = agent.actor(obs).softmax(-1)  # (S, n, A)
    variance = agent.uncertainty(agent.critic, obs, every_action(obs))  # (S, n, A)
    return (policy * variance).sum(-1)


def auroc(kept: Tensor, removed: Tensor) -> Tensor:
    """The chance that one of `removed` (..., m) exceeds one of `kept` (..., n), half for a tie."""
    larger = torch.sign(removed.unsqueeze(-1) - kept.unsqueeze(-2))  # (..., m, n): 1, 0 or -1
    return 0.5 + 0.5 * larger.mean((-2, -1))


def normalized(obs: np.ndarray, obs_rms: RunningMeanStd) -> Tensor:
    """States (..., D) as the networks get them, by the running mean and variance."""
    std = np.sqrt(obs_rms.var) + 1e-3  # not 0 where a dimension never changes
    return torch.as_tensor((obs - obs_rms.mean) / std, dtype=torch.float32)


@torch.no_grad()
def td_lambda_returns(value: MLP, steps: dict, gamma=0.999, lmbda=0.98) -> Tensor:
    """TD(lambda) returns, in hundreds: (T, E). Beyond the end of an episode, or of the steps, V(s')
    is used; after a termination, 0. AWR's own gamma, 0.99, makes an expert that hovers and does
    not land."""
    next_value = value(steps["next_obs"]).squeeze(-1)
    returns = torch.cat([next_value, next_value[-1:]])  # (T + 1, E), filled from the end
    for t in reversed(range(len(next_value))):
        mixture = (1 - lmbda) * next_value[t] + lmbda * returns[t + 1]
        following = torch.where(steps["ended"][t], next_value[t], mixture)
        returns[t] = steps["reward"][t] / 100 + gamma * (1 - steps["done"][t]) * following
    return returns[:-1]


def awr_update(actor: MLP, value: MLP, optimizer, steps: dict[str, Tensor]) -> None:
    """Advantage-weighted regression (Peng et al., 2019) on steps (T, E, ...). Batch size and limit
    of the weights are its code's for LunarLander. Adam, batch counts, lambda, temperature, layers
    and the number of steps are ours."""
    obs = steps["obs"].flatten(0, 1)  # (T * E, D)
    action = steps["action"].flatten()
    returns = td_lambda_returns(value, steps).flatten()
    for index in torch.randint(len(obs), (100, 256)):  # 100 batches
        error = value(obs[index]).squeeze(-1) - returns[index]
        optimizer.zero_grad()
        error.square().mean().backward()
        optimizer.step()
    returns = td_lambda_returns(value, steps).flatten()  # by the new values
    advantage = returns - value(obs).squeeze(-1).detach()
    advantage = (advantage - advantage.mean()) / advantage.std()
    weight = (advantage / 0.3).exp().clamp(max=20)
    for index in torch.randint(len(obs), (200, 256)):
        loss = F.cross_entropy(actor(obs[index]), action[index], reduction="none")
        optimizer.zero_grad()
        (weight[index] * loss).mean().backward()
        optimizer.step()


def train_expert(args: Args, envs: gym.vector.VectorEnv) -> Data:
    """An expert's last 100,000 steps. done: terminated. ended: terminated, or at the time limit."""
    torch.manual_seed(args.expert_seed)
    actor = MLP((), D, 128, A)
    value = MLP((), D, 128, 1)
    optimizer = torch.optim.Adam(actor.parameters(), lr=5e-4, fused=True)
    optimizer.add_param_group({"params": value.parameters(), "lr": 1e-3})
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, args.expert_iterations)
    obs_rms = RunningMeanStd()  # of all states so far
    replay = []  # a dict of arrays (E, ...) for each step
    obs, _ = envs.reset(seed=args.expert_seed)
    for iteration in range(args.expert_iterations):
        for _ in range(128):
            policy = Categorical(logits=actor(normalized(obs, obs_rms)))
            action = policy.sample().numpy()
            next_obs, reward, done, truncated, _ = envs.step(action)
            ended = done | truncated
            step = (obs, action, np.float32(reward), next_obs, np.float32(done), ended)
            replay.append(dict(zip(FIELDS, step)))
            obs = next_obs
            if ended.any():
                obs, _ = envs.reset(options={"reset_mask": ended})
        replay = replay[-STEPS:]
        # The last 1,024 alone: it improves faster. They become one dict of tensors (T, E, ...).
        steps = default_collate(replay[-1024:])
        if iteration % 100 == 0:
            mean_return = steps["reward"].sum() / steps["ended"].sum()
            print(f"expert, iteration {iteration}: mean return {mean_return:.0f}", flush=True)
        obs_rms.update(steps["obs"][-128:].flatten(0, 1).numpy())
        # All are normalized by the new statistics, though the actor saw them by older ones.
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
    """Transitions between kept states, (n, ...); such states of held-out environments, (n, D);
    removed states, (n, D). Raises ValueError if one is empty: there is no AUROC then."""
    states = np.stack([expert["obs"], expert["next_obs"]])  # (2, T, E, D)
    is_removed = states[..., 0] < X_EDGE if clip == "left" else states[..., 1] > Y_EDGE
    is_kept = ~is_removed.any(0)  # (T, E)
    is_held_out = np.arange(is_kept.shape[1]) < HELD_OUT_ENVS  # (E,)
    transitions = {name: array[is_kept & ~is_held_out] for name, array in expert.items()}
    kept = expert["obs"][is_kept & is_held_out]
    removed = expert["obs"][is_removed[0]]
    if min(len(transitions["obs"]), len(kept), len(removed)) == 0:
        raise ValueError(f"clip {clip}: no state on one side; raise --expert-iterations")
    return transitions, kept, removed


def train(agent: Agent, data: list[Tensor], kept: Tensor, removed: Tensor) -> list[dict]:
    """All updates. Measures AUROC of Var[Q] at `kept` and `removed` states (n, D), before the first
    update and ten times on the way. Raises FloatingPointError if a metric is not finite."""
    measured = {agent.args.total_steps * tenth // 10 for tenth in range(11)}
    history = []
    for step in range(agent.args.total_steps + 1):
        metrics = update(agent, data) if step > 0 else {}
        bad = [name for name, values in metrics.items() if not values.isfinite().all()]
        if bad:
            raise FloatingPointError(f"diverged at update {step}: {', '.join(bad)} not finite")
        if step in measured:
            found = auroc(state_variance(agent, kept), state_variance(agent, removed))  # (S,)
            print(f"update {step}: AUROC of Var[Q] {found.numpy().round(3)}", flush=True)
            row = {"auroc_variance": found} | metrics
            history.append({"step": step} | {name: row[name].tolist() for name in row})
    return history


def draw(expert: Data, clip: str, obs_rms: RunningMeanStd, history: list, **agents) -> Figure:
    """The expert's states (paper, figure 2), Var[Q] of two named agents (figures 3, 7), AUROC."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    *maps, course = figure.subplots(2, 2).flatten()
    obs = expert["obs"].reshape(-1, D)
    *_, counts = maps[0].hist2d(obs[:, 0], obs[:, 1], 50, range=SKY, norm="log")
    maps[0].set(title=f"the expert's states ({clip} removed)")
    figure.colorbar(counts, label="number of states")
    x, y = np.meshgrid(np.linspace(*SKY[0]), np.linspace(*SKY[1]))  # (50, 50)
    sky = np.tile(obs_rms.mean, (*x.shape, 1))  # other numbers: the data's means (paper: its speed)
    sky[..., :2] = np.stack([x, y], -1)
    states = normalized(sky, obs_rms).flatten(0, 1)  # (2500, D)
    for axes, (name, agent) in zip(maps[1:], agents.items()):
        log_variance = state_variance(agent, states).log10().mean(0)  # of S agents
        colours = axes.pcolormesh(x, y, log_variance.view(x.shape))
        axes.set(title=name)
        figure.colorbar(colours, label=r"$\log_{10}$ Var[Q], mean of agents")
    for axes in maps:
        edge = axes.axvline(X_EDGE) if clip == "left" else axes.axhline(Y_EDGE)
        edge.set(color="#D55E00", linestyle="--")
        axes.set(xlabel="x", ylabel="y")
    steps = [row["step"] for row in history]
    values = np.array([row["auroc_variance"] for row in history])  # (11, S)
    course.plot(steps, values, color="0.7")
    course.plot(steps, values.mean(1), color="black")
    course.axhline(0.5, color="0.3", linestyle=":")
    course.set(title="AUROC of Var[Q] (black: mean, dotted: chance)", xlabel="update", ylim=(0, 1))
    return figure


def study(expert: Data, clip: str, args: Args) -> tuple[dict, Figure]:
    """Trains agents on the kept states: numbers and a picture. Raises as `cut` and `train`."""
    transitions, kept, removed = cut(expert, clip)
    obs_rms = RunningMeanStd()
    obs_rms.update(transitions["obs"])
    data = [
        normalized(transitions["obs"], obs_rms),
        F.one_hot(torch.as_tensor(transitions["action"]), A).float(),
        torch.as_tensor(transitions["reward"]),
        normalized(transitions["next_obs"], obs_rms),
        torch.as_tensor(transitions["done"]),
    ]
    generator = np.random.default_rng(args.seed)
    kept = normalized(generator.permutation(kept)[:2000], obs_rms)  # AUROC compares all pairs
    removed_sample = normalized(generator.permutation(removed)[:2000], obs_rms)
    torch.manual_seed(args.seed)
    agent = Agent(args)
    untrained = copy.deepcopy(agent)
    history = train(agent, data, kept, removed_sample)
    nearest = [torch.cdist(states, data[0]).amin(1) for states in (kept, removed_sample)]
    numbers = {
        "states_removed": len(removed),
        "transitions_trained": len(data[0]),
        "auroc_variance_untrained": history[0]["auroc_variance"],
        "auroc_variance": history[-1]["auroc_variance"],
        "auroc_norm": auroc(kept.norm(dim=1), removed_sample.norm(dim=1)).item(),
        "auroc_distance": auroc(*nearest).item(),  # and norm: to the data's mean
        "history": history,
    }
    return numbers, draw(expert, clip, obs_rms, history, untrained=untrained, trained=agent)


def main(args: Args) -> dict:
    """The study. Returns what result.json holds. Raises as `study`; wrong arguments exit."""
    try:
        run = args.run_dir.expanduser()
        if run.exists():
            raise ValueError(f"--run-dir {run} exists: choose another")
        expert = load_expert(args.expert) if args.expert else None
        envs = gym.make_vec("LunarLander-v3", 16, "sync", {"autoreset_mode": "Disabled"})
        run.mkdir(parents=True)
    except (ValueError, OSError, RuntimeError, gym.error.Error) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")  # on one line
    if expert is None:
        expert = train_expert(args, envs)
    np.savez_compressed(run / "expert.npz", **expert)
    mean_return = float(expert["reward"].sum() / expert["ended"].sum())
    print(f"expert's mean return: {mean_return:.1f}; results in {run}")
    versions = {package.__name__: package.__version__ for package in (torch, np, gym)}
    result = {"args": vars(args), "versions": versions, "mean_return": mean_return, "clips": {}}
    clips = ("left", "top")
    try:
        for clip in clips:
            cut(expert, clip)
    except ValueError as error:
        sys.exit(f"error: {error}")
    for clip in clips:
        print(f"clip {clip}")
        result["clips"][clip], figure = study(expert, clip, args)
        figure.savefig(run / f"{clip}.png", dpi=100)
        (run / "unfinished.tmp").write_text(json.dumps(result, indent=2, default=str))
        (run / "unfinished.tmp").replace(run / "result.json")
    return result


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except KeyboardInterrupt:
        sys.exit("stopped")
    except FloatingPointError as error:
        sys.exit(f"error: {error}")
