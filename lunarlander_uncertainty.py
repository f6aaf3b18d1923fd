# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch==2.13.0", "numpy==2.4.6", "gymnasium[mujoco,box2d]==1.4.0", "mujoco==3.2.6",
#     "tyro==1.0.17", "tqdm==4.70.1", "matplotlib==3.11.2",
# ]
# ///
"""Does dropout variance find what the data lacks? Section 4.1 of the UWAC paper, complete.

Wu et al., "Uncertainty Weighted Actor-Critic for Offline Reinforcement Learning" (ICML 2021). An expert learns to land
(AWR), its last 100,000 steps are the data, a part of the sky is cut out of them, an offline agent learns from the rest
(Algorithm 1 without MMD), and then we ask: is the critics' variance under dropout larger where the data was cut out?

    python lunarlander_uncertainty.py

It is Gymnasium's LunarLander-v3, the successor of the paper's LunarLander-v2. Two yardsticks stand beside the dropout
variance: the variance over independently trained agents (an ensemble), and the distance to the nearest training state.

Shapes: S seeds trained together, C critics, B batch, N sampled actions, D observation size, A number of actions,
T stochastic passes, H hidden units; `stack` is S, or S * C for the critics.
"""

import copy
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import gymnasium as gym
import numpy as np
import torch
import tyro
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm


class InputError(Exception):
    """Arguments or data that cannot be used. The command line prints it as one line and exits with 2."""


@dataclass
class Args:
    clip: tuple[str, ...] = ("left", "top")  # data sets: left (x < 0.1 removed), top (y > 0.8), none, left:0.3, top:0.5
    seed: int = 0  # random seed of the offline agents: same machine, same arguments, same numbers
    num_seeds: int = 5  # S, independent agents trained side by side, which are the ensemble, too
    total_steps: int = 8_000  # updates of the offline agents
    batch_size: int = 256  # B, transitions in a mini-batch (BEAR code)
    hidden_dim: int = 64  # H, units in each of the two hidden layers of actor and critics
    gamma: float = 0.99  # discount a step (BEAR code)
    tau: float = 0.005  # rate of the Polyak targets (BEAR code)
    lmbda: float = 0.75  # lambda, share of the smaller target critic in a target (BEAR code)
    num_candidates: int = 10  # N, the paper's p: sampled actions among which a target takes the best (BEAR code)
    actor_lr: float = 1e-4  # learning rate of the actor (BEAR code)
    critic_lr: float = 1e-3  # learning rate of the critics (BEAR code: 3e-4, for far more updates)
    beta: float = 1.6  # weight beta / Var[Q] of a backup (paper, section 4.5: 0.8, 1.6 or 2.5)
    dropout: float = 0.1  # rate after each hidden ReLU of the critics (authors' code)
    variance: Literal["mc", "analytic"] = "analytic"  # Var[Q] from moments, or from stochastic passes (Algorithm 1)
    passes: int = 100  # T, stochastic passes of mc (paper, Algorithm 1)
    weighting: Literal["variance", "std", "exp", "none"] = "variance"  # beta/Var, beta/std, exp(-beta Var) or 1
    weight_clip: float = 1.5  # upper limit of the weight (paper, section 4.5)
    normalize: bool = True  # whether the agents see states with the training data's mean 0 and deviation 1
    expert_seed: int = 1  # random seed of the expert (of 0 and 1, with which it got to 270)
    expert_goal: float = 280.0  # mean return at which the expert is done (paper: 269.7)
    expert_iterations: int = 900  # AWR iterations of 2,048 steps at most, in which learning rates fall to 0
    expert_episodes: int = 100  # episodes that an evaluation of the expert averages

    def __post_init__(self) -> None:
        for clip in self.clip:
            parse_clip(clip)
        ranges = dict.fromkeys(("gamma", "tau", "lmbda"), (0, 1)) | {"dropout": (0, 0.999), "passes": (2, 10**9)}
        ranges |= dict.fromkeys(("seed", "expert_seed"), (0, 2**32 - 1)) | {"expert_goal": (-1000, 1000)}
        for name, value in vars(self).items():
            low, high = ranges.get(name, (1 if isinstance(value, int) else 0, 10**9))
            if type(value) in (int, float) and not low <= value <= high:
                raise InputError(f"--{name.replace('_', '-')} {value}: must be from {low} to {high}")


TRANSITION = ("obs", "action", "reward", "next_obs", "done", "episode")  # (n, 8) where it ends in obs, else (n,)
ACTIONS = ("do nothing", "fire left engine", "fire main engine", "fire right engine")
# Settings of the expert that are no arguments. The AWR release's for LunarLander: layers, 16 * 128 = 2,048 samples an
# iteration, batch, weight clip, normalized advantages and inputs. Ours: Adam, fewer steps, on the newest samples alone,
# and gamma, lambda, temperature (release: 0.99, 0.95, 1.0): with gamma 0.99 the expert hovered until its time was up.
AWR = {"gamma": 0.999, "lmbda": 0.98, "temperature": 0.3, "weight_clip": 20.0, "batch": 256, "critic_steps": 100}
AWR |= {"actor_steps": 200, "critic_lr": 1e-3, "actor_lr": 5e-4, "envs": 16, "rollout": 128, "recent": 16_384}
AWR |= {"replay": 100_000, "evaluate_every": 25}


def three_layers(out_dim: int) -> nn.Sequential:
    """The expert's actor and value network: (B, 8) -> (B, out)."""
    return nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, out_dim))


def td_lambda_returns(reward, next_value, terminated, ended, gamma: float, lmbda: float) -> np.ndarray:
    """TD(lambda) returns of E environments over T steps, all (T, E), `next_value` being V(s'). A terminated episode is
    worth nothing further; one that was truncated (`ended` alone), and the last row, go on with V(s')."""
    ended = np.vstack([ended[:-1], np.ones_like(ended[-1:])])
    returns = reward + gamma * np.where(terminated, 0, np.where(ended, 1, 1 - lmbda) * next_value)
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += gamma * lmbda * ~ended[t] * returns[t + 1]
    return returns


@torch.no_grad()
def value_targets(value: nn.Module, next_states: Tensor, recent: list[np.ndarray]) -> Tensor:
    """TD(lambda) returns (T * E,) of steps, arrays (T, E, ...), by a value network of their next states (T * E, 8)."""
    _, _, reward, _, terminated, ended = recent
    next_value = 100 * value(next_states).view(reward.shape).numpy()
    returns = td_lambda_returns(reward, next_value, terminated, ended, AWR["gamma"], AWR["lmbda"])
    return torch.as_tensor(returns, dtype=torch.float32).flatten()


def awr_weights(advantage: Tensor, temperature: float, clip: float) -> Tensor:
    """exp(A / temperature), clipped, of advantages (n,) that are brought to mean 0 and deviation 1 first."""
    normalized = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-5)
    return (normalized / temperature).exp().clamp(max=clip)


@torch.no_grad()
def evaluate(actor: nn.Module, mean: Tensor, std: Tensor, episodes: int, seed: list[int]) -> np.ndarray:
    """Returns of whole episodes, one an environment, in which the likeliest action is taken: (episodes,)."""
    envs = gym.make_vec("LunarLander-v3", episodes, vectorization_mode="sync")
    obs, _ = envs.reset(seed=int(np.random.SeedSequence(seed).generate_state(1)[0]))
    returns, running = np.zeros(episodes), np.ones(episodes, bool)
    while running.any():
        action = actor((torch.as_tensor(obs) - mean) / std).argmax(-1)
        obs, reward, terminated, truncated, _ = envs.step(action.numpy())
        returns += reward * running  # an environment that ended has begun its next episode
        running &= ~(terminated | truncated)
    return returns


def train_expert(args: Args) -> dict[str, np.ndarray]:
    """Advantage-weighted regression (Peng et al., 2019) up to --expert-goal: the last 100,000 steps, one environment
    after the other, as TRANSITION says, and `returns` (episodes,) of fresh episodes, `iterations` and `seconds`."""
    torch.manual_seed(args.expert_seed)
    # A step that ends an episode also begins the next one, and hands the last observation over in `info`.
    autoreset = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
    envs = gym.make_vec("LunarLander-v3", AWR["envs"], vectorization_mode="sync", vector_kwargs=autoreset)
    actor, value = three_layers(len(ACTIONS)), three_layers(1)  # the value network's unit is 100 points
    rates = {actor: AWR["actor_lr"], value: AWR["critic_lr"]}
    optimizers = [torch.optim.Adam(network.parameters(), rate, fused=True) for network, rate in rates.items()]
    mean, std, moments = torch.zeros(8), torch.ones(8), np.zeros((2, 8))
    schedule = [torch.optim.lr_scheduler.LinearLR(o, 1, 0, args.expert_iterations) for o in optimizers]
    replay, start = None, time.perf_counter()
    obs, _ = envs.reset(seed=args.expert_seed)
    for iteration in (bar := tqdm(range(1, args.expert_iterations + 1), unit="iterations", disable=None)):
        rows = []
        for _ in range(AWR["rollout"]):
            with torch.no_grad():
                logits = actor((torch.as_tensor(obs) - mean) / std)
            action = torch.distributions.Categorical(logits=logits).sample().numpy()
            following, reward, terminated, truncated, info = envs.step(action)
            next_obs, ended = following.copy(), terminated | truncated
            for i in np.flatnonzero(ended):
                next_obs[i] = info["final_obs"][i]
            rows.append((obs, action, reward.astype(np.float32), next_obs, terminated, ended))
            obs = following
        new = [np.stack(column) for column in zip(*rows)]  # (T, E, ...)
        pairs = zip(replay, new) if replay else zip(new)
        replay = [np.concatenate(pair)[-AWR["replay"] // AWR["envs"] :] for pair in pairs]
        # Input normalization, from all steps so far.
        seen = new[0].reshape(-1, 8).astype(np.float64)
        moments += (seen.sum(0), np.square(seen).sum(0))
        first, second = torch.as_tensor(moments / (iteration * len(seen)))
        mean, std = first.float(), ((second - first.square()).sqrt() + 1e-3).float()
        # Train on the newest steps alone: the fresher the data, the faster the policy improves.
        recent = [column[-AWR["recent"] // AWR["envs"] :] for column in replay]
        states, next_states = ((torch.as_tensor(recent[i]).flatten(0, 1) - mean) / std for i in (0, 3))
        actions = torch.as_tensor(recent[1]).flatten()
        returns = value_targets(value, next_states, recent)
        for index in torch.randint(len(states), (AWR["critic_steps"], AWR["batch"])):
            loss = (value(states[index]).squeeze(-1) - returns[index] / 100).square().mean()
            Agent.minimize(loss, optimizers[1])
        with torch.no_grad():
            advantage = value_targets(value, next_states, recent) - 100 * value(states).squeeze(-1)
        weight = awr_weights(advantage, AWR["temperature"], AWR["weight_clip"])
        for index in torch.randint(len(states), (AWR["actor_steps"], AWR["batch"])):
            loss = nn.functional.cross_entropy(actor(states[index]), actions[index], reduction="none")
            Agent.minimize((weight[index] * loss).mean(), optimizers[0])
        for of_network in schedule:
            of_network.step()
        # Done? These episodes choose when to stop, so the result is measured on others, below.
        if iteration % AWR["evaluate_every"] == 0 or iteration == args.expert_iterations:
            score = evaluate(actor, mean, std, args.expert_episodes, [args.expert_seed, iteration]).mean()
            bar.write(f"expert, iteration {iteration}: mean return {score:.1f}, {time.perf_counter() - start:.0f} s")
            if score >= args.expert_goal:
                break
    columns = [column.swapaxes(0, 1).reshape(-1, *column.shape[2:]) for column in replay]  # (E * T, ...)
    ended = columns.pop()
    ended[len(replay[0]) - 1 :: len(replay[0])] = True  # where the next environment's steps begin
    expert = dict(zip(TRANSITION, [*columns, ended.cumsum() - ended])) | {"iterations": np.array(iteration)}
    expert["done"] = expert["done"].astype(np.float32)
    expert["returns"] = evaluate(actor, mean, std, args.expert_episodes, [args.expert_seed, 0])
    return expert | {"seconds": np.array(time.perf_counter() - start)}


def expert_dataset(args: Args) -> dict[str, np.ndarray]:
    """What `train_expert` returns, from runs/ if an earlier call with the same expert arguments left it there. Raises
    InputError for a file that is not such an expert's."""
    settings = json.dumps({name: value for name, value in vars(args).items() if name.startswith("expert")} | AWR)
    name = f"{args.expert_seed}__{args.expert_goal:g}__{args.expert_iterations}__{args.expert_episodes}"
    path = Path("runs") / f"LunarLander-v3__awr__{name}.npz"
    if not path.exists():
        expert = train_expert(args)
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.npz")  # another name until it is whole
        np.savez_compressed(part, settings=settings, **expert)
        part.rename(path)
        return expert
    try:
        with np.load(path) as file:
            expert = {name: file[name] for name in file.files}
        if str(expert.pop("settings")) != settings:
            raise ValueError("it was trained with other settings")
        if {expert[name].shape for name in TRANSITION} != {expert["obs"].shape, expert["obs"].shape[:1]}:
            raise ValueError("its arrays do not fit each other")
    except Exception as error:  # np.load raises almost anything for a file that is not its own
        raise InputError(f"{path}: no saved expert ({str(error).splitlines()[0]}); remove it to train anew") from error
    return expert


def parse_clip(clip: str) -> tuple[int, float]:
    """Dimension of the state and threshold: (0, 0.1) for left, (1, 0.8) for top, other thresholds as in top:0.5."""
    kind, _, number = clip.partition(":")
    try:
        dimension, threshold = {"left": (0, 0.1), "top": (1, 0.8), "none": (0, -np.inf)}[kind]
        return dimension, float(number) if number and kind != "none" else threshold
    except (KeyError, ValueError):
        raise InputError(f"--clip {clip}: must be left, top, none or one with a threshold, as left:0.3") from None


def is_removed(obs: np.ndarray, clip: str) -> np.ndarray:
    """Whether a clip removes a state: x < 0.1 for left, y > 0.8 for top: obs (..., 8) -> (...)."""
    dimension, threshold = parse_clip(clip)
    return obs[..., 0] < threshold if dimension == 0 else obs[..., 1] > threshold


def clip_dataset(dataset: dict[str, np.ndarray], clip: str) -> dict[str, np.ndarray]:
    """The transitions, arrays (n, ...), of which neither the state nor the next state is removed."""
    kept = ~(is_removed(dataset["obs"], clip) | is_removed(dataset["next_obs"], clip))
    return {name: array[kept] for name, array in dataset.items()}


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

    def forward(self, obs: Tensor, x: Tensor | None = None, dropout: float = 0.0) -> Tensor:
        """obs (stack, B, D) -> (stack, B, out), or with N rows x a state, (stack, B, N, E) -> (stack, B, N, out)."""
        h = (self.layers[0](obs) if x is None else self.layers[0].on_pairs(obs, x)).relu_()
        h = h * next(dropout_masks(h, dropout)) / (1 - dropout) if dropout else h
        h = self.layers[1](h).relu_()
        h = self.layers[2](h * next(dropout_masks(h, dropout)) / (1 - dropout) if dropout else h)
        return h if x is None else h.unflatten(1, x.shape[1:3])


class Critic(MLP):
    """A stack of Q functions; a discrete action comes as a one-hot vector."""

    def __init__(self, stack: int, obs_dim: int, action_dim: int, hidden_dim: int = 256):
        super().__init__(stack, obs_dim + action_dim, hidden_dim, 1)

    def forward(self, obs: Tensor, action: Tensor, dropout: float = 0.0) -> Tensor:
        """Q: obs (stack, B, D) with action (stack, B, A) -> (stack, B), or action (stack, B, N, A) -> (stack, B, N)."""
        actions = action.view(*obs.shape[:2], -1, action.shape[-1])
        return super().forward(obs, actions, dropout).view(action.shape[:-1])


def dropout_masks(h: Tensor, p: float) -> Iterator[Tensor]:
    """Masks of h's shape without end, in one place in memory: 1 with probability 1 - p, else 0. Their bits come from a
    xorshift generator for every four units (Marsaglia, 2003): on a CPU several times faster than torch's single one."""
    bits = torch.empty(h.numel() // 4 + 1, dtype=torch.int64, device=h.device).random_(-(2**63), None)
    of_units, mask = bits.view(torch.int16)[: h.numel()].view(h.shape), torch.empty(h.shape, device=h.device)
    while True:
        yield torch.ge(of_units, round(p * 2**16) - 2**15, out=mask)
        bits ^= bits << 13
        bits ^= (bits >> 7) & (2**57 - 1)  # a shift that brings in zeros
        bits ^= bits << 17


@torch.no_grad()
def mc_dropout_variance(critic: Critic, obs: Tensor, action: Tensor, p: float, passes: int) -> Tensor:
    """Sample variance of Q over T passes with fresh dropout of rate p (paper, section 3.1): obs (stack, N, D), action
    (stack, N, A) -> (stack, N). What no mask touches is done once: the first layer and the factors 1 / (1 - p)."""
    weight, bias, last = critic.layers[1].weight, critic.layers[1].bias, critic.layers[2].weight.mT
    h1 = critic.layers[0].on_pairs(obs, action.unsqueeze(2)).relu_().unsqueeze(1) / (1 - p)  # (stack, 1, N, H)
    at_once = min(passes, max(1, (2**25 if h1.is_cuda else 2**17) // h1.numel()))  # fills a GPU, fits a CPU's cache
    q = torch.empty(len(h1), passes + -passes % at_once, h1.shape[2], device=h1.device)  # whole groups of passes
    for group, masks in zip(q.split(at_once, 1), dropout_masks(h1.unsqueeze(1).expand(-1, 2, at_once, -1, -1), p)):
        first, second = masks.unbind(1)  # (stack, at_once, N, H)
        h2 = torch.baddbmm(bias, (h1 * first).flatten(1, 2), weight).relu_().view(first.shape)
        group[:] = torch.linalg.vecdot(h2.mul_(second), last.unsqueeze(1))
    return q[:, :passes].var(1) / (1 - p) ** 2


@torch.no_grad()
def analytic_dropout_variance(critic: Critic, obs: Tensor, action: Tensor, p: float) -> Tensor:
    """Var[Q] under dropout of rate p without sampling: obs (stack, N, D), action (stack, N, A) -> (stack, N). The first
    masks, of variance r = p / (1 - p) each, make the second layer's inputs z nearly normal: mean, mean square and slope
    P(z > 0) of relu(z) follow. What the slopes pass on adds up over units, the rest counts unit by unit, and the second
    masks add r E[relu(z)^2]. Exact where no z comes near 0 under the masks."""
    r, weight, last = p / (1 - p), critic.layers[1].weight, critic.layers[2].weight.mT  # (stack, 1, H)
    h = critic.layers[0].on_pairs(obs, action.unsqueeze(2)).relu_()  # (stack, N, H)
    z, std = critic.layers[1](h), (r * torch.bmm(h.square(), weight.square())).sqrt_().clamp_(min=1e-12)
    t = (z / std).clamp_(-8, 8)  # further out only denormal numbers would change, which are slow
    slope, density = torch.special.ndtr(t), std * (-0.5 * t.square()).exp() / (2 * np.pi) ** 0.5
    mean, slope_std = z * slope + density, slope * std
    passed_on = (h * torch.bmm(slope * last, weight.mT)).square().sum(-1)
    rest = (1 + r) * (z * mean + slope_std * std) - mean.square() - slope_std.square()
    return (r * passed_on + torch.linalg.vecdot(rest, last.square())).clamp(min=0)  # rounding leaves less where p is 0


@torch.no_grad()
def uncertainty_weight(variance: Tensor, beta: float, clip: float, weighting: str) -> Tensor:
    """Weight of a backup from its variance, any shape, clipped to (0, clip), without gradient (paper, equation 4)."""
    weights = {"variance": beta / variance, "std": beta / variance.sqrt(), "exp": (-beta * variance).exp()}
    return weights[weighting].clamp(max=clip) if weighting in weights else torch.ones_like(variance)


class Agent:
    """S agents that learn offline from transitions (n, ...), by Algorithm 1 without MMD for discrete actions."""

    def __init__(self, args: Args, dataset: dict[str, np.ndarray]):
        self.args, S, self.num_critics, A = args, args.num_seeds, 2, len(ACTIONS)
        obs, next_obs, reward, done = (torch.as_tensor(dataset[k]) for k in ("obs", "next_obs", "reward", "done"))
        self.mean, self.std = obs.mean(0), obs.std(0) + 1e-3
        self.points = [((obs - self.mean) / self.std)[dataset["action"] == a] for a in range(A)]
        action = nn.functional.one_hot(torch.as_tensor(dataset["action"]), A).float()
        self.data = self.inputs(obs), action, reward, self.inputs(next_obs), done
        self.actor = MLP(S, 8, args.hidden_dim, A)
        self.critic = Critic(S * self.num_critics, 8, A, args.hidden_dim)
        self.target_actor, self.target_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), args.actor_lr, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), args.critic_lr, fused=True)

    def inputs(self, obs: Tensor) -> Tensor:
        """What the networks see of states (..., 8)."""
        return (obs - self.mean) / self.std if self.args.normalize else obs

    def q_values(self, critic: Critic, obs: Tensor, action: Tensor, dropout: float = 0.0) -> Tensor:
        """Every critic of every seed: obs (S, B, D), action (S, B, ..., A) -> (S, C, B, ...)."""
        obs, action = (x.repeat_interleave(self.num_critics, 0) for x in (obs, action))
        return critic(obs, action, dropout).unflatten(0, (-1, self.num_critics))

    def q_variance(self, critic: Critic, obs: Tensor, action: Tensor) -> Tensor:
        """Var[Q1] + Var[Q2] of every seed, without gradient: obs (S, B, D), action (S, B, A) -> (S, B)."""
        inputs, args = [x.repeat_interleave(self.num_critics, 0) for x in (obs, action)], self.args
        if args.variance == "mc":
            variance = mc_dropout_variance(critic, *inputs, args.dropout, args.passes)
        else:
            variance = analytic_dropout_variance(critic, *inputs, args.dropout)
        return variance.unflatten(0, (-1, self.num_critics)).sum(1)

    def of_all_actions(self, critic: Critic, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Q (S, C, B, A) and Var[Q1] + Var[Q2] (S, B, A) of every action at obs (S, B, D)."""
        S, B, A = *obs.shape[:2], len(ACTIONS)
        actions = torch.eye(A).expand(S, B, A, A)
        variance = self.q_variance(critic, obs.repeat_interleave(A, 1), actions.flatten(1, 2))
        return self.q_values(critic, obs, actions), variance.unflatten(1, (B, A))

    def update(self) -> dict[str, Tensor]:
        """One gradient step of every network: Algorithm 1, lines 3 to 12. Returns metrics, each (S,)."""
        args = self.args
        # Line 3: a mini-batch of transitions for each seed.
        index = torch.randint(len(self.data[0]), (args.num_seeds, args.batch_size))
        obs, action, reward, next_obs, done = (array[index] for array in self.data)  # (S, B, ...)
        with torch.no_grad():
            # Line 5: candidate actions of the target actor.
            probabilities = self.target_actor(next_obs).softmax(-1)  # (S, B, A)
            candidates = probabilities.flatten(0, 1).multinomial(args.num_candidates, True).unflatten(0, index.shape)
            # Line 6: the best candidate under the lambda-mixture of the target critics.
            next_q = self.q_values(self.target_critic, next_obs, torch.eye(len(ACTIONS)).expand(*index.shape, -1, -1))
            mixture = args.lmbda * next_q.amin(1) + (1 - args.lmbda) * next_q.amax(1)  # (S, B, A)
            y, best = mixture.gather(2, candidates).max(-1)  # (S, B)
            target_q = reward + args.gamma * (1 - done) * y
            # Line 7: the variance of y, which is that at the action where the maximum is attained.
            best_action = nn.functional.one_hot(candidates.gather(2, best.unsqueeze(2)).squeeze(2), len(ACTIONS))
            variance = self.q_variance(self.target_critic, next_obs, best_action.float())  # (S, B)
            weight = uncertainty_weight(variance, args.beta, args.weight_clip, args.weighting)
        # Line 8: weighted regression of the critics, under dropout.
        q = self.q_values(self.critic, obs, action, args.dropout)  # (S, C, B)
        critic_loss = (weight.unsqueeze(1) * (q - target_q.unsqueeze(1)).square()).mean(2).sum(1)  # (S,)
        self.minimize(critic_loss, self.critic_optimizer)
        # Lines 10 and 11: the actor maximizes Q, weighted (equation 5), in exact expectation over its four actions.
        with torch.no_grad():
            policy_q, policy_variance = self.of_all_actions(self.critic, obs)
            policy_weight = uncertainty_weight(policy_variance, args.beta, args.weight_clip, args.weighting)
        policy = self.actor(obs).softmax(-1)
        actor_loss = -(policy * policy_weight * policy_q.amin(1)).sum(-1).mean(1)  # (S,)
        self.minimize(actor_loss, self.actor_optimizer)
        # Line 12: the targets follow.
        with torch.no_grad():
            targets = [*self.target_critic.parameters(), *self.target_actor.parameters()]
            torch._foreach_lerp_(targets, [*self.critic.parameters(), *self.actor.parameters()], args.tau)
        metrics = {"critic_loss": critic_loss.detach(), "actor_loss": actor_loss.detach()}
        return metrics | {"target_q": target_q.mean(1), "variance": variance.mean(1), "weight": weight.mean(1)}

    @staticmethod
    def minimize(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
        """A step on the sum of the seeds' losses (S,). Adam works element by element, so no seed feels another."""
        optimizer.zero_grad()
        loss.sum().backward(inputs=optimizer.param_groups[0]["params"])  # no gradients for networks on the way
        optimizer.step()

    @torch.no_grad()
    def measures(self, obs: np.ndarray) -> dict[str, tuple[Tensor, Tensor]]:
        """How unknown states (n, 8) are: values of their actions (S or 1, n, A) and, averaged by the policy, their own
        (S or 1, n), by name: `dropout`, Var[Q1] + Var[Q2]; `ensemble`, the variance of the mean Q over the S agents;
        `distance` to the nearest training state (with that action), in units of the training data's deviations."""
        found = []
        for chunk in torch.as_tensor(obs, dtype=torch.float32).split(64):  # larger tensors are slower
            inputs, point = self.inputs(chunk).expand(self.args.num_seeds, -1, -1), (chunk - self.mean) / self.std
            q, dropout = self.of_all_actions(self.critic, inputs)
            policy = self.actor(inputs).softmax(-1)  # (S, n, A)
            ensemble = q.mean(1).var(0, correction=min(1, self.args.num_seeds - 1), keepdim=True)  # (1, n, A)
            distance = torch.stack([torch.cdist(point, known).amin(1) for known in self.points], -1)[None]
            of_states = (policy * dropout).sum(-1), (policy.mean(0) * ensemble).sum(-1), distance.amin(-1)
            found.append([dropout, ensemble, distance, *of_states])
        values = [torch.cat(chunks, 1) for chunks in zip(*found)]
        return {name: (values[i], values[i + 3]) for i, name in enumerate(("dropout", "ensemble", "distance"))}


def auroc(known: Tensor, novel: Tensor) -> np.ndarray:
    """The chance that a value of `novel` (S, m) is larger than one of `known` (S, n), ties counting half: (S,)."""
    known, novel = known.sort(-1).values.contiguous(), novel.contiguous()
    smaller = [torch.searchsorted(known, novel, right=right).double().mean(-1) for right in (False, True)]
    return (sum(smaller) / (2 * known.shape[-1])).numpy()


def uncertainty_map(agent: Agent, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Dropout variance of each seed, mean over its policy, at x (X,), y (Y,), else the data's mean: (S, Y, X)."""
    obs = agent.mean.repeat(len(y), len(x), 1)
    obs[..., 0], obs[..., 1] = torch.as_tensor(x), torch.as_tensor(y)[:, None]
    return agent.measures(obs.flatten(0, 1).numpy())["dropout"][1].unflatten(1, (len(y), len(x))).numpy()


def train_agent(args: Args, dataset: dict[str, np.ndarray], clip: str) -> tuple[Agent, list[dict]]:
    """Agents trained on the transitions, and the means of the metrics over each twentieth of the updates."""
    torch.manual_seed(args.seed)
    agent, history, sums, every = Agent(args, dataset), [], [], max(1, args.total_steps // 20)
    start = time.perf_counter()
    for step in (bar := tqdm(range(1, args.total_steps + 1), unit="updates", disable=None)):
        sums.append(agent.update())
        if not torch.stack([*sums[-1].values()]).isfinite().all():
            raise FloatingPointError(f"clip {clip}, update {step}: a loss is not finite")
        if step % every == 0 or step == args.total_steps:
            row = {key: torch.stack([metrics[key] for metrics in sums]).mean(0) for key in sums[0]}  # (S,)
            row["seconds"] = torch.tensor(time.perf_counter() - start)
            history.append({"step": step} | {key: value.tolist() for key, value in row.items()})
            bar.write(f"clip {clip}, update {step}: " + ", ".join(f"{k} {v.mean():.4g}" for k, v in row.items()))
            sums = []
    return agent, history


X_EDGES, Y_EDGES = np.linspace(-1, 1, 61), np.linspace(-0.1, 1.6, 52)  # of the figures' cells, in the state's units
COLOURS = ("#0072B2", "#D55E00")  # Okabe and Ito's blue and vermillion


def draw_visits(figure: Figure, axes, obs: np.ndarray, label: str) -> None:
    """How often each cell of (x, y) is visited, on a logarithmic scale."""
    counts, _, _ = np.histogram2d(obs[:, 0], obs[:, 1], (X_EDGES, Y_EDGES))
    mesh = axes.pcolormesh(X_EDGES, Y_EDGES, np.ma.masked_less(counts.T, 1), cmap="cividis", norm="log", vmin=1)
    figure.colorbar(mesh, ax=axes, label=label)


def plot_expert(expert: dict[str, np.ndarray]) -> Figure:
    """Figure (a): where the expert was, for each of its actions and in all."""
    figure = Figure(figsize=(15, 3.2), layout="constrained")
    for a, axes in enumerate(figure.subplots(1, 1 + len(ACTIONS), sharex=True, sharey=True)):
        of_action = expert["action"] == a if a < len(ACTIONS) else slice(None)
        draw_visits(figure, axes, expert["obs"][of_action], "states a cell" if a == len(ACTIONS) else "")
        axes.set(title=(*ACTIONS, "all actions")[a], xlabel="x", ylabel="" if a else "y")
    return figure


def plot_map(clip: str, obs: np.ndarray, agent: Agent) -> Figure:
    """Figure (b): what the agents trained on, and their variance over (x, y), mean of its logarithm over the seeds."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    data_axes, map_axes = figure.subplots(1, 2, sharex=True, sharey=True)
    draw_visits(figure, data_axes, obs, "training states a cell")
    x, y = ((edges[1:] + edges[:-1]) / 2 for edges in (X_EDGES, Y_EDGES))
    mesh = map_axes.pcolormesh(X_EDGES, Y_EDGES, np.log10(uncertainty_map(agent, x, y)).mean(0), cmap="viridis")
    figure.colorbar(mesh, ax=map_axes, label=r"$\log_{10}$ Var[Q], Q in points of return")
    dimension, threshold = parse_clip(clip)
    for axes, title in ((data_axes, f"data, clip {clip}"), (map_axes, "variance of Q under dropout")):
        axes.set(title=title, xlabel="x", ylabel="y")
        if np.isfinite(threshold):  # a line around what is removed
            span, end = (axes.axvspan, X_EDGES[0]) if dimension == 0 else (axes.axhspan, Y_EDGES[-1])
            span(threshold, end, fill=False, edgecolor=COLOURS[1], linestyle="--", linewidth=2)
    return figure


def plot_histograms(variances: dict[str, list[np.ndarray]]) -> Figure:
    """Figure (c): the variance at expert states that were kept (and held out) and at those that were removed."""
    figure = Figure(figsize=(4.5 * len(variances), 3.4), layout="constrained")
    for axes, (clip, groups) in zip(figure.subplots(1, len(variances), squeeze=False)[0], variances.items()):
        logs = [np.log10(values.clip(1e-12)).flatten() for values in groups]
        bins = np.histogram_bin_edges(np.concatenate(logs), 60)
        for values, label, colour in zip(logs, ("kept, held out", "removed"), COLOURS):
            axes.hist(values, bins, density=True, alpha=0.55, label=label, color=colour)
        axes.set(title=f"clip {clip}", xlabel=r"$\log_{10}$ Var[Q], Q in points of return", ylabel="density")
        axes.locator_params(axis="x", nbins=6)
        axes.legend(frameon=False)
    return figure


def study(args: Args, expert: dict[str, np.ndarray], clip: str) -> tuple[dict, Figure, list]:
    """Train on what a clip leaves, and ask what is known: the numbers, figure (b), the variances at kept and at removed
    states, (S, n) each. A tenth of the episodes is held out: a step's neighbours in time are nearly the same state."""
    data = {name: expert[name] for name in TRANSITION}
    kept, generator = clip_dataset(data, clip), np.random.default_rng(args.seed)
    held_out = generator.random(data["episode"].max() + 1) < 0.1  # (episodes,)
    train, test = ({k: v[held_out[kept["episode"]] == part] for k, v in kept.items()} for part in (False, True))
    sizes = len(train["obs"]), len(test["obs"])
    if len(np.unique(train["action"])) < len(ACTIONS) or not sizes[1]:
        raise InputError(f"--clip {clip}: leaves too little, {sizes[0]} transitions to train on and {sizes[1]} to test")
    agent, history = train_agent(args, train, clip)
    removed = data["obs"][is_removed(data["obs"], clip)]
    picked = generator.permutation(len(test["obs"]))[:5000]
    known = agent.measures(test["obs"][picked])
    novel = agent.measures(generator.permutation(removed)[:5000]) if len(removed) else None
    actions = [*map(torch.as_tensor, (test["action"][picked], generator.integers(len(ACTIONS), size=len(picked))))]
    numbers = {"states_kept": len(data["obs"]) - len(removed), "states_removed": len(removed)}
    numbers |= {"transitions_kept": sum(sizes), "transitions_trained": sizes[0], "transitions_held_out": sizes[1]}
    numbers |= {"history": history, "auroc_states": {}, "auroc_random_actions": {}}
    for name, (pairs, states) in known.items():
        if novel is not None:
            numbers["auroc_states"][name] = auroc(states, novel[name][1]).tolist()
        with_action, with_random = (pairs[:, torch.arange(len(a)), a] for a in actions)
        numbers["auroc_random_actions"][name] = auroc(with_action, with_random).tolist()
    variances = [found["dropout"][1].numpy() for found in (known, novel) if found is not None]
    return numbers, plot_map(clip, train["obs"], agent), variances


def main(args: Args) -> dict:
    """The whole study into runs/LunarLander-v3__SCRIPT__SEED__TIME/; returns the contents of its result.json."""
    torch.empty(8_000_000)  # 32 MB, freed at once: from then on glibc keeps smaller tensors' memory for reuse
    start, expert, script = time.perf_counter(), expert_dataset(args), Path(__file__).stem
    returns = expert["returns"]
    run = Path("runs") / f"LunarLander-v3__{script}__{args.seed}__{time.time_ns() // 1000}"
    run.mkdir(parents=True)
    print(f"expert: mean return {returns.mean():.1f} over {len(returns)} fresh episodes; into {run}")
    figures, clips, variances = {"expert": plot_expert(expert)}, {}, {}
    for clip in args.clip:
        clips[clip], figures[f"map_{clip.replace(':', '_')}"], variances[clip] = study(args, expert, clip)
    figures["histograms"] = plot_histograms(variances)
    for name, figure in figures.items():
        for suffix in ("png", "pdf"):
            figure.savefig(run / f"{name}.{suffix}", dpi=150)
    result = {"args": vars(args), "awr": AWR, "versions": {k: version(k) for k in ("torch", "numpy", "gymnasium")}}
    result["hardware"] = f"CPU, {torch.get_num_threads()} threads"
    result["expert"] = {"mean_return": returns.mean(), "std_return": returns.std(ddof=1), "episodes": len(returns)}
    result["expert"] |= {"iterations": int(expert["iterations"]), "seconds": float(expert["seconds"])}
    result |= {"clips": clips, "seconds": time.perf_counter() - start}
    (run / "result.json").write_text(json.dumps(result, indent=2))
    print(f"\n{'AUROC':32}" + "".join(f"{name:>16}" for name in ("dropout", "ensemble", "distance")))
    for clip, numbers in clips.items():
        print(f"clip {clip}: {numbers['states_kept']} states kept of {len(expert['obs'])}")
        for key, label in (("auroc_states", "removed from kept states"), ("auroc_random_actions", "random actions")):
            of_seeds = map(np.array, numbers[key].values())
            cells = [f"{v.mean():.3f}" + (f" ± {v.std(ddof=1):.3f}" if len(v) > 1 else "") for v in of_seeds]
            print(f"  {label:30}" + "".join(f"{cell:>16}" for cell in cells))
    return result


if __name__ == "__main__":
    try:
        main(tyro.cli(Args))
    except (InputError, FloatingPointError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) else 3)
