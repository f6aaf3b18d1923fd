# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = [
#     "torch==2.13.0", "numpy==2.4.6", "gymnasium[mujoco]==1.4.0", "gymnasium-robotics==1.4.2",
#     "mujoco==3.2.6", "h5py==3.16.0", "pooch==1.9.0", "pydantic==2.14.3", "tyro==1.0.17",
#     "tqdm==4.70.1", "tensorboard==2.21.0",
# ]
# ///
"""UWAC: offline reinforcement learning that down-weights backups whose target is uncertain.

Wu et al., "Uncertainty Weighted Actor-Critic for Offline Reinforcement Learning" (ICML 2021): BEAR
(bear.py) with weights beta / Var[Q] in both losses, Var[Q] being the critics' variance under
dropout. `update` is the paper's Algorithm 1, and `diff bear.py uwac.py` shows all that UWAC adds.

    python uwac.py --env-id door-demo --total-steps 4000 --eval-every 1000 --variance analytic

Shapes: S seeds trained side by side, B batch, N sampled actions (M for MMD), D observation size,
A action size, H hidden units. S is every tensor's first dimension, after a 2 of the twin critics.
T is the number of stochastic passes.
"""

import copy
import difflib
import functools
import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from pickle import UnpicklingError
from time import perf_counter
from typing import Annotated, Literal

import gymnasium as gym
import h5py
import numpy as np
import pooch
import pydantic
import torch
import torch.nn.functional as F
import tyro
from farama_notifications import notifications
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization
from torch.utils.tensorboard import SummaryWriter
from tqdm.auto import tqdm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GENERATOR = torch.cuda if DEVICE == "cuda" else torch  # of the random numbers in training
GIT_DESCRIBE = f"git -C '{Path(__file__).parent}' describe --always --dirty --abbrev=40 2>/dev/null"
GPUS = [0] if DEVICE == "cuda" else []  # of several the first is used
PACKAGES = ("torch", "numpy", "gymnasium", "gymnasium-robotics", "mujoco")


class InputError(Exception):
    """Arguments or data that cannot be used. The command line prints it as a line, exit code 2."""


@contextmanager
def input_errors(what: str, *kinds: type[Exception]):
    """Turns errors of these kinds, a library's on input that it cannot use, into an InputError."""
    try:
        yield
    except kinds as error:
        reason = " ".join(str(error).split())  # one line
        raise InputError(f"{what} ({reason})") from error


Probability = Annotated[float, Field(ge=0, le=1)]  # a number from 0 to 1


# Only these may change when a run is resumed: all else shapes its training.
MAY_CHANGE = {"total_steps", "eval_every", "eval_episodes", "eval_candidates", "log_every"}
MAY_CHANGE |= {"dataset_path", "resume"}


@pydantic.dataclasses.dataclass(
    config={"extra": "forbid", "allow_inf_nan": False, "str_min_length": 1}
)
class Args:
    env_id: str = "door-human"  # D4RL task, such as pen-cloned-v1 or hopper-medium-v2; or door-demo
    seed: NonNegativeInt = 0  # same machine, same arguments, same numbers
    num_seeds: PositiveInt = 1  # S, independent agents trained side by side (the paper reports 5)
    matmul_precision: Literal["highest", "high", "medium"] = "high"  # of float32 products (torch)
    # UWAC
    beta: PositiveFloat = 1.6  # weight beta / Var[Q] (paper, section 5.5: 0.8, 1.6 or 2.5)
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1  # after each ReLU (authors' code)
    variance: Literal["mc", "analytic"] = "mc"  # Var[Q] from T passes (Algorithm 1), or closed form
    passes: Annotated[int, Field(ge=2)] = 100  # T, stochastic passes of mc (paper, Algorithm 1)
    q_noise: bool = False  # Q in both losses with the noise of a mean of T passes (authors' code)
    weighting: Literal["variance", "std", "exp", "none"] = "variance"  # std: paper, 5.6; exp: code
    weight_clip: NonNegativeFloat = 1.5  # upper limit of the weight (paper, section 5.5)
    spectral_norm: Literal["auto"] | bool = "auto"  # on the critics; auto: on Adroit (paper, 5.5)
    # BEAR
    batch_size: PositiveInt = 256  # B, transitions in a mini-batch (BEAR code)
    gamma: Probability = 0.99  # discount per step (BEAR code)
    tau: Probability = 0.005  # rate of the Polyak targets (BEAR code)
    lmbda: Probability = 0.75  # weight of min(Q1, Q2) in a target, the max has the rest (BEAR code)
    num_candidates: PositiveInt = 10  # N, Algorithm 1's p: a target takes the best of them (BEAR)
    num_mmd_samples: PositiveInt = 10  # M, Algorithm 1's n: actions per state for MMD (paper)
    mmd_kernel: Literal["auto", "gaussian", "laplacian"] = "auto"  # auto: by the task
    mmd_sigma: PositiveFloat = 20.0  # width of the kernel (BEAR code; the paper tried 10 and 20)
    mmd_threshold: NonNegativeFloat = 0.07  # MMD that the actor is held to (paper, section 5.5)
    warmup_steps: NonNegativeInt = 40_000  # updates on MMD alone, then Q enters, too (BEAR code)
    actor_lr: NonNegativeFloat = 1e-4  # learning rate of the actor (BEAR code)
    critic_lr: NonNegativeFloat = 3e-4  # learning rate of the critics (BEAR code)
    vae_lr: NonNegativeFloat = 3e-4  # learning rate of the behaviour VAE (BEAR code)
    dual_lr: NonNegativeFloat = 1e-3  # learning rate of log alpha (BEAR code)
    # Length, files, evaluation and logging
    total_steps: PositiveInt = 500_000  # updates (D4RL's evaluation protocol)
    dataset_path: str | None = None  # file in D4RL's format; then env_id may be any Gymnasium id
    resume: str | None = None  # run folder to go on with; arguments not given keep its values
    exp_name: str | None = None  # in the name of the run's folder, where the script's name is else
    run_dir: str | None = None  # folder of results; None: runs/ENV__NAME__SEED__DATE-TIME
    eval_every: PositiveInt = 5_000  # updates between evaluations, with a checkpoint each (CORL)
    eval_episodes: PositiveInt = 10  # episodes per evaluation and seed (CORL)
    eval_candidates: PositiveInt = 100  # actions per state, the best by Q1 acts (paper, 5.5; code)
    log_every: PositiveInt = 1_000  # updates between lines, and between entries in TensorBoard

    def __post_init__(self):
        gym_id, *_ = env_spec(self.env_id)
        if self.mmd_kernel == "auto":  # as BEAR's author recommends for D4RL
            laplacian = gym_id.startswith(("Hopper", "Walker2d"))
            self.mmd_kernel = "laplacian" if laplacian else "gaussian"
        if self.spectral_norm == "auto":
            self.spectral_norm = "Adroit" in gym_id
        if self.dropout == 0 and self.weighting != "none":
            raise InputError("--dropout 0 leaves no variance to weigh by: add --weighting none")


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

    @torch.no_grad()
    def init_weights(self, output_bound: float) -> None:
        """Initial weights as in the authors' code (rlkit), the last layer's U(±output_bound)."""
        for layer in self.layers[:2]:
            bound = layer.bias.shape[-1] ** -0.5  # rlkit counts a layer's outputs, not its inputs
            layer.weight.uniform_(-bound, bound)
            layer.bias.fill_(0.1)
        for parameter in self.layers[2].parameters():
            parameter.uniform_(-output_bound, output_bound)


def concat(obs: Tensor, x: Tensor) -> Tensor:
    """[obs, x]: (S, B, D + E) for x (S, B, E); for x (S, B, N, E), where each state is repeated for
    its N rows, (S, B * N, D + E)."""
    if x.dim() == 4:
        obs = obs.repeat_interleave(x.shape[2], dim=1)
        x = x.flatten(1, 2)
    return torch.cat([obs, x], dim=-1)


class SpectralNorm(nn.Module):
    """Parametrization W / sigma, sigma the largest singular value of W (Miyato et al., 2018)."""

    def __init__(self, weight: Tensor):
        super().__init__()
        # Weights are (in, out), the transpose of torch.nn.Linear's: U here is V in the literature.
        u = torch.linalg.svd(weight.detach(), full_matrices=False).U
        self.register_buffer("v", u[..., :1].clone())  # (2, S, in, 1), first singular vectors

    def forward(self, weight: Tensor) -> Tensor:
        return weight / (self.v.mT @ weight).norm(dim=-1, keepdim=True)


class Critic(MLP):
    """Twin Q functions, with spectral norm if wanted."""

    def __init__(self, S: int, obs_dim: int, action_dim: int, spectral_norm: bool = False):
        super().__init__((2, S), obs_dim + action_dim, 256, 1)
        self.init_weights(output_bound=3e-3)
        self.spectral_norm = spectral_norm
        if spectral_norm:
            for layer in self.layers:
                register_parametrization(layer, "weight", SpectralNorm(layer.weight))

    def forward(self, obs: Tensor, action: Tensor, dropout: float = 0.0) -> Tensor:
        """Q1, Q2: obs (S, B, D), action (S, B, A) -> (2, S, B), or (S, B, N, A) -> (2, S, B, N)."""
        return super().forward(concat(obs, action), dropout).view(2, *action.shape[:-1])

    @torch.no_grad()
    def power_iteration(self) -> None:
        """One step of power iteration, once per update, which brings sigma up to date."""
        if self.spectral_norm:
            for layer in self.layers:
                norm = layer.parametrizations.weight[0]
                weight = layer.parametrizations.weight.original
                norm.v.copy_(F.normalize(weight @ (norm.v.mT @ weight).mT, dim=-2))


class Actor(MLP):
    """Gaussian policy; an action is the tanh of a sample."""

    def __init__(self, S: int, obs_dim: int, action_dim: int):
        super().__init__((S,), obs_dim, 256, 2 * action_dim)
        self.init_weights(output_bound=1e-3)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-std before the tanh: (S, B, D) -> (S, B, A) each."""
        mean, log_std = super().forward(obs).chunk(2, dim=-1)
        return mean, log_std.clamp(-5, 2)  # authors' code

    def sample(self, obs: Tensor, num: int) -> Tensor:
        """Actions before the tanh: (S, B, D) -> (S, B, num, A)."""
        mean, log_std = self(obs)
        noise = torch.randn(*obs.shape[:2], num, mean.shape[-1], device=obs.device)
        return mean.unsqueeze(2) + log_std.exp().unsqueeze(2) * noise


class BehaviorVAE(nn.Module):
    """Conditional VAE that imitates the policy behind the data (BEAR code)."""

    def __init__(self, S: int, obs_dim: int, action_dim: int):
        super().__init__()
        self.latent_dim = 2 * action_dim
        self.encoder = MLP((S,), obs_dim + action_dim, 750, 2 * self.latent_dim)
        self.decoder = MLP((S,), obs_dim + self.latent_dim, 750, action_dim)

    def loss(self, obs: Tensor, action: Tensor) -> Tensor:
        """Reconstruction error + 0.5 KL: obs (S, B, D), action (S, B, A) -> (S,)."""
        mean, log_std = self.encoder(concat(obs, action)).chunk(2, dim=-1)
        log_std = log_std.clamp(-4, 15)
        latent = mean + log_std.exp() * torch.randn_like(mean)
        error = self.decoder(concat(obs, latent)).tanh() - action
        kl = -0.5 * (1 + 2 * log_std - mean.square() - (2 * log_std).exp())
        return error.square().mean((1, 2)) + 0.5 * kl.mean((1, 2))

    def sample(self, obs: Tensor, num: int) -> Tensor:
        """Likely actions of the data, before the tanh: (S, B, D) -> (S, B, num, A)."""
        latent = torch.randn(*obs.shape[:2], num, self.latent_dim, device=obs.device)
        return self.decoder(concat(obs, latent.clamp(-0.5, 0.5))).unflatten(1, (-1, num))


def mmd(x: Tensor, y: Tensor, kernel: str, sigma: float) -> Tensor:
    """Maximum mean discrepancy of two sets of M samples, (..., M, A) each -> (...), under a kernel
    exp(-d / (2 sigma)), d a pair's squared Euclidean distance ("gaussian") or its L1 distance
    ("laplacian") (BEAR code). Raises KeyError for another kernel."""
    norm = {"gaussian": 2, "laplacian": 1}[kernel]

    def mean_kernel(a: Tensor, b: Tensor) -> Tensor:
        # Above 25 samples cdist would take matmuls, which --matmul-precision rounds.
        d = torch.cdist(a, b, norm, compute_mode="donot_use_mm_for_euclid_dist") ** norm
        return torch.exp(-d / (2 * sigma)).mean((-2, -1))

    squared = mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)
    return (squared.clamp(min=0) + 1e-6).sqrt()  # 1e-6: a finite gradient where the sets agree


@torch.no_grad()
def mc_dropout_variance(critic: Critic, obs: Tensor, action: Tensor, p: float, T: int) -> Tensor:
    """Sample variance of Q1 and Q2 over T passes under dropout of rate p (paper, section 4.1): obs
    (S, B, D), action (S, B, A) -> (2, S, B). A pass draws one mask per layer for the whole batch,
    as it samples one network. The expectation is that of per-sample masks, but the errors are
    shared by all states, so their ranking is less noisy."""
    first, second, last = critic.layers
    w2, b2, w3 = second.weight, second.bias, last.weight.mT
    h1 = first(concat(obs, action)).relu_()  # (2, S, B, H), the same in all passes
    q = []
    for _ in range(T):
        kept = torch.rand(2, *b2.shape, device=b2.device) >= p
        mask1, mask2 = kept / (1 - p)  # (2, S, 1, H) each
        h2 = ((h1 * mask1) @ w2).add_(b2).relu_()
        q.append((h2 * (mask2 * w3)).sum(-1))  # without the last bias, which no mask changes
    return torch.stack(q).var(0)


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


@torch.no_grad()
def uncertainty_weight(variance: Tensor, args: Args) -> Tensor:
    """Weight in a loss from a variance of any shape (paper, equations 4 and 5)."""
    if args.weighting == "none":
        return torch.ones_like(variance)
    if args.weighting == "variance":
        weight = args.beta / variance
    elif args.weighting == "std":  # paper, section 5.6
        weight = args.beta / variance.sqrt()
    else:  # "exp", authors' code
        weight = torch.exp(-args.beta * variance)
    return weight.clamp(max=args.weight_clip)


class Agent(nn.Module):
    """The networks of Algorithm 1 for S seeds, and their optimizers."""

    args_type = Args

    def __init__(self, args: Args, obs_dim: int, action_dim: int, low=-1.0, high=1.0):
        super().__init__()
        self.args = args
        self.dims = (obs_dim, action_dim)
        # Inside, actions are in [-1, 1]; the environment's are action * scale + offset.
        low, high = (torch.as_tensor(bound).float().expand(action_dim) for bound in (low, high))
        self.register_buffer("action_scale", (high - low) / 2)
        self.register_buffer("action_offset", (high + low) / 2)
        # Line 1: actor, critics with dropout and their targets; the VAE is for line 10.
        self.actor = Actor(args.num_seeds, obs_dim, action_dim)
        self.critic = Critic(args.num_seeds, obs_dim, action_dim, args.spectral_norm)
        self.target_actor = copy.deepcopy(self.actor)
        self.target_critic = copy.deepcopy(self.critic)
        self.vae = BehaviorVAE(args.num_seeds, obs_dim, action_dim)
        self.log_alpha = nn.Parameter(torch.zeros(args.num_seeds))
        adam = functools.partial(torch.optim.Adam, fused=True)
        self.optimizers = {
            "actor": adam(self.actor.parameters(), args.actor_lr),
            "critic": adam(self.critic.parameters(), args.critic_lr),
            "vae": adam(self.vae.parameters(), args.vae_lr),
            "dual": adam([self.log_alpha], args.dual_lr),
        }

    def minimize(self, loss: Tensor, name: str) -> None:
        """A step on the losses (S,). Seeds share no parameters, so their losses may be summed."""
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        loss.sum().backward(inputs=optimizer.param_groups[0]["params"])
        optimizer.step()

    def uncertainty(self, critic: Critic, obs: Tensor, action: Tensor) -> Tensor:
        """Var[Q1] + Var[Q2]: obs (S, B, D), action (S, B, A) -> (S, B)."""
        p, T = self.args.dropout, self.args.passes
        if p == 0:
            return torch.zeros(action.shape[:-1], device=action.device)
        if self.args.variance == "mc":
            return mc_dropout_variance(critic, obs, action, p, T).sum(0)
        return analytic_dropout_variance(critic, obs, action, p).sum(0)

    def q_values(self, critic: Critic, obs: Tensor, action: Tensor, noise: bool) -> Tensor:
        """Q1 and Q2, shapes as Critic.forward. With `noise` they are what the authors' code takes:
        means of T stochastic passes with per-sample masks. The passes are not made: such a mean is
        nearly normal, with mean Q and variance Var[Q] / T."""
        q = critic(obs, action)
        if not noise or self.args.dropout == 0:
            return q
        variance = analytic_dropout_variance(critic, obs, action, self.args.dropout)
        return q + (variance / self.args.passes).sqrt() * torch.randn_like(q)

    @torch.no_grad()
    def act(
        self, obs: np.ndarray, num_candidates: int = 100, deterministic: bool = False
    ) -> np.ndarray:
        """Each seed's actions, in the environment's units: the best by Q1 of `num_candidates`
        samples of its actor (paper, section 5.5), or its mean. obs (D,) -> (S, A); obs (B, D), or
        (S, B, D) of each seed's own -> (S, B, A)."""
        if obs.ndim == 1:
            return self.act(obs[None], num_candidates, deterministic)[:, 0]
        obs = torch.as_tensor(obs, dtype=torch.float32, device=self.log_alpha.device)
        obs = obs.expand(len(self.log_alpha), -1, -1)
        if deterministic:
            mean, _ = self.actor(obs)
            return self.to_env(mean.tanh())
        candidates = self.actor.sample(obs, num_candidates).tanh()
        # The noise of T passes is the authors'. Under spectral norm it is many times Q1's spread
        # over the candidates, so that their choice is nearly a random one.
        q1, _ = self.q_values(self.critic, obs, candidates, noise=True)  # (S, B, N)
        best = q1.argmax(-1)[:, :, None, None]
        return self.to_env(candidates.take_along_dim(best, dim=2).squeeze(2))

    def to_env(self, action: Tensor) -> np.ndarray:
        """Actions (..., A) in [-1, 1] in the environment's units."""
        return (action * self.action_scale + self.action_offset).numpy(force=True)


def update(agent: Agent, data: list[Tensor], step: int | Tensor, args: Args) -> dict[str, Tensor]:
    """One step of all networks, Algorithm 1, lines 3 to 12; data (n, ...). Returns metrics (S,)."""
    # Line 3: a mini-batch of transitions for each seed.
    batches = (args.num_seeds, args.batch_size)
    index = torch.randint(len(data[0]), batches, device=data[0].device)
    obs, action, reward, next_obs, done = (array[index] for array in data)  # (S, B, ...)
    agent.critic.power_iteration()
    agent.target_critic.power_iteration()

    # The behaviour VAE learns the actions of the data.
    vae_loss = agent.vae.loss(obs, action)
    agent.minimize(vae_loss, "vae")

    with torch.no_grad():
        # Line 5: candidate actions of the target actor.
        candidates = agent.target_actor.sample(next_obs, args.num_candidates).tanh()  # (S, B, N, A)
        # Line 6: the best of them, by soft clipped double-Q of the target critics.
        target_critic = agent.target_critic
        q1, q2 = agent.q_values(target_critic, next_obs, candidates, args.q_noise)  # (S, B, N) each
        mixture = args.lmbda * torch.minimum(q1, q2) + (1 - args.lmbda) * torch.maximum(q1, q2)
        y, best = mixture.max(-1)  # (S, B)
        target_q = reward + args.gamma * (1 - done) * y
        # Line 7: as a proxy for Var[y], Var[Q1] + Var[Q2] at the action that attains the maximum.
        best_action = candidates.take_along_dim(best[:, :, None, None], dim=2).squeeze(2)
        var_y = agent.uncertainty(target_critic, next_obs, best_action)  # (S, B)
        weight = uncertainty_weight(var_y, args)
    # Line 8: weighted regression of both critics, under dropout.
    q = agent.critic(obs, action, args.dropout)  # (2, S, B)
    critic_loss = (weight * (q - target_q).square()).sum(0).mean(1)
    agent.minimize(critic_loss, "critic")

    # Line 10: samples of the actor and of the behaviour VAE, before the tanh.
    actor_samples = agent.actor.sample(obs, args.num_mmd_samples)  # (S, B, M, A)
    with torch.no_grad():
        vae_samples = agent.vae.sample(obs, args.num_mmd_samples)  # (S, B, M, A)
    mmd_loss = mmd(actor_samples, vae_samples, args.mmd_kernel, args.mmd_sigma)  # (S, B)
    # Line 11: the actor maximizes Q at one of its samples, under the constraint on MMD,
    # whose multiplier alpha grows where it is violated.
    policy_action = actor_samples[:, :, 0].tanh()
    q1, q2 = agent.q_values(agent.critic, obs, policy_action, args.q_noise)
    policy_q = torch.minimum(q1, q2)  # (S, B)
    var_q = agent.uncertainty(agent.critic, obs, policy_action)
    policy_weight = uncertainty_weight(var_q, args)  # equation 5
    after_warmup = step > args.warmup_steps
    alpha = agent.log_alpha.exp()  # (S,)
    mmd_violation = (mmd_loss - args.mmd_threshold).mean(1)
    actor_loss = alpha.detach() * mmd_violation - after_warmup * (policy_weight * policy_q).mean(1)
    agent.minimize(actor_loss, "actor")
    agent.minimize(-alpha * mmd_violation.detach(), "dual")

    # Line 12: the targets follow.
    with torch.no_grad():
        agent.log_alpha.clamp_(-5, 10)
        for old, new in zip(agent.target_critic.parameters(), agent.critic.parameters()):
            old.lerp_(new, args.tau)
        for old, new in zip(agent.target_actor.parameters(), agent.actor.parameters()):
            old.lerp_(new, args.tau)

    return {
        "vae_loss": vae_loss,
        "critic_loss": critic_loss,
        "actor_loss": actor_loss,
        "alpha": alpha,
        "mmd": mmd_loss.mean(1),
        "target_q": target_q.mean(1),
        "policy_q": policy_q.mean(1),
        "variance": var_y.mean(1),
        "weight": weight.mean(1),
        "policy_weight": policy_weight.mean(1),
    }


def ood_auroc(agent: Agent, data: list[Tensor], args: Args) -> np.ndarray:
    """How well Var[Q] tells uniform random actions from the data's at the same 1,000 states (paper,
    figure 4): the area under the ROC curve, (S,)."""
    with torch.random.fork_rng(GPUS):
        torch.manual_seed(args.seed)
        index = torch.randperm(len(data[0]))[:1000]
        obs, known = (array[index].expand(args.num_seeds, -1, -1) for array in data[:2])
        actions = torch.cat([known, torch.rand_like(known) * 2 - 1], dim=1)
        variance = agent.uncertainty(agent.critic, obs.repeat(1, 2, 1), actions)
    of_data, of_random = variance.chunk(2, dim=1)
    larger = torch.sign(of_random.unsqueeze(2) - of_data.unsqueeze(1))  # 1, -1, or 0 for a tie
    return (0.5 + 0.5 * larger.mean((1, 2))).numpy(force=True)


def evaluate(agent: Agent, envs: gym.vector.VectorEnv, seed: list[int], num: int) -> np.ndarray:
    """Returns (S, E) of E whole episodes per seed, acting by the best of `num` candidates."""
    seed = np.random.SeedSequence(seed).generate_state(1).item()
    S = len(agent.log_alpha)
    returns = np.zeros(envs.num_envs)
    running = np.ones_like(returns, bool)
    obs, _ = envs.reset(seed=seed)
    with torch.random.fork_rng(GPUS):  # so that evaluations do not change training
        torch.manual_seed(seed)
        while running.any():
            action = agent.act(obs.reshape(S, -1, obs.shape[-1]), num)
            obs, reward, terminated, truncated, _ = envs.step(action.reshape(len(obs), -1))
            returns += reward * running  # an environment that ended has begun its next episode
            running &= ~(terminated | truncated)
    return returns.reshape(S, -1)


# Environment, its step limit, and the returns that D4RL scores with 0 (random) and 100 (expert).
ENVIRONMENTS = {
    "hopper": ("Hopper-v4", 1000, -20.272305, 3234.3),  # -v4 is the port of D4RL's -v2
    "halfcheetah": ("HalfCheetah-v4", 1000, -280.178953, 12135.0),
    "walker2d": ("Walker2d-v4", 1000, 1.629008, 4592.3),
    "pen": ("AdroitHandPen-v1", 100, 96.262799, 3076.8331017826877),
    "hammer": ("AdroitHandHammer-v1", 200, -274.856578, 12794.134825156867),
    "door": ("AdroitHandDoor-v1", 200, -56.512833, 2880.5693087298737),
    "relocate": ("AdroitHandRelocate-v1", 200, -6.425911, 4233.877797728884),
}
D4RL = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
MIRROR = "https://huggingface.co/datasets/imone/D4RL/resolve/"
MIRROR += "b9e1985fe28a0d67418c99473874d6a837d6cf94/"  # some of its files are cut off
SECONDS = 20  # until a server that says nothing is given up


def env_spec(env_id: str) -> tuple[str, int | None, float, float]:
    """A row of ENVIRONMENTS for D4RL's tasks, and for `pen` and the like, which want data of your
    own. Any other environment's score is its return."""
    files = task_files()
    if env_id in ENVIRONMENTS or env_id in files or f"{env_id}-v0" in files:
        return ENVIRONMENTS[env_id.split("-")[0]]
    return env_id, None, 0, 100


def normalized_score(env_id: str, returns: np.ndarray) -> np.ndarray:
    """D4RL's score of returns of any shape: 0 for a random policy's, 100 for an expert's."""
    *_, random_return, expert_return = env_spec(env_id)
    return 100 * (returns - random_return) / (expert_return - random_return)


class D4RLAdroit(gym.Wrapper):
    """An Adroit task with D4RL's rewards and ends. Gymnasium-Robotics 1.4.2 adds
    0.1 * |palm - object| to the reward where D4RL subtracts it, and goes on where D4RL's pen has
    fallen below 0.075 m."""

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        adroit = self.env.unwrapped
        palm_to_object = {
            "AdroitHandDoor-v1": obs[35:38],
            "AdroitHandHammer-v1": obs[33:36] - obs[36:39],
            "AdroitHandRelocate-v1": obs[30:33],
        }
        if adroit.spec.id == "AdroitHandPen-v1":
            terminated = bool(adroit.data.xpos[adroit.obj_body_id][2] < 0.075)
        else:
            reward -= 0.2 * np.linalg.norm(palm_to_object[adroit.spec.id])
        return obs, reward, terminated, truncated, info


def use_d4rl_masses(env: gym.Env) -> None:
    """Give a Gym-MuJoCo environment the masses of D4RL's engine, without which Hopper is 3.6%
    heavier: MuJoCo up to 2.1.1 weighed a capsule of length L and radius r as a cylinder of length
    L + r."""
    import mujoco  # here, as other environments do without it

    spec = mujoco.MjSpec.from_file(env.unwrapped.fullpath)
    model = env.unwrapped.model
    for geom in spec.geoms:
        if geom.type == mujoco.mjtGeom.mjGEOM_CAPSULE:
            capsule = model.geom(geom.name)
            radius, half_length, _ = capsule.size
            geom.type = mujoco.mjtGeom.mjGEOM_CYLINDER
            geom.size = [radius, half_length + radius / 2, 0]
            geom.fromto[:] = np.nan  # pos and quat say where it is
            geom.pos = capsule.pos
            geom.quat = capsule.quat
    cylinders = spec.compile()
    for name in ("body_mass", "body_inertia", "body_ipos", "body_iquat"):
        getattr(model, name)[:] = getattr(cylinders, name)
    mujoco.mj_setConst(model, env.unwrapped.data)


def make_env(gym_id: str, **settings) -> gym.Env:
    """D4RL's version of a Gymnasium environment such as AdroitHandDoor-v1 or Hopper-v4, or another
    one as it is. Raises InputError for another gymnasium-robotics."""
    gym.logger.min_level = gym.logger.ERROR  # no advice to move on to -v5
    if "AdroitHand" in gym_id and "Sparse" not in gym_id:  # D4RL's rewards are dense
        if version("gymnasium-robotics") != "1.4.2":
            raise InputError("D4RL's rewards need one version: install gymnasium-robotics==1.4.2")
        notifications.pop("gymnasium_robotics", None)  # on the rewards that D4RLAdroit puts right
        return D4RLAdroit(gym.make(f"gymnasium_robotics:{gym_id.split(':')[-1]}", **settings))
    env = gym.make(gym_id, **settings)
    if gym_id in ("Hopper-v4", "HalfCheetah-v4", "Walker2d-v4"):
        use_d4rl_masses(env)
    return env


def make_envs(env_id: str, num: int) -> gym.vector.SyncVectorEnv:
    """`num` copies of the task's environment. Raises InputError where that cannot be."""
    gym_id, steps, *_ = env_spec(env_id)
    make = functools.partial(make_env, gym_id, max_episode_steps=steps)
    with input_errors(f"--env-id {env_id}: cannot make it", gym.error.Error, ImportError):
        envs = gym.vector.SyncVectorEnv([make] * num)
    for space in (envs.single_observation_space, envs.single_action_space):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise InputError(f"--env-id {env_id}: must have vectors of numbers, not {space}")
    actions = envs.single_action_space
    if not actions.is_bounded() or (actions.low == actions.high).any():
        raise InputError(f"--env-id {env_id}: {actions} must have finite bounds, low below high")
    return envs


def to_unit_actions(
    action: np.ndarray, space: gym.spaces.Box, clip: bool, where: str
) -> tuple[np.ndarray, int]:
    """Actions (n, A), brought from the bounds of their space to [-1, 1], and how many were clipped:
    some of D4RL's demonstrations are out of bounds. With `clip` False that is an InputError."""
    unit = (action - (space.high + space.low) / 2) / ((space.high - space.low) / 2)
    beyond = np.abs(unit).max(1) > 1 + 1e-5  # by more than rounding
    if beyond.any() and not clip:
        row, column = np.unravel_index(np.abs(unit).argmax(), unit.shape)
        bounds = f"[{space.low[column]:g}, {space.high[column]:g}]"
        farthest = f"the farthest is {action[row, column]:g}, whose bounds are {bounds}"
        raise InputError(f"{where}: {beyond.sum()} actions are out of bounds; {farthest}")
    return unit.clip(-1, 1).astype(np.float32), int(beyond.sum())


def task_files() -> dict[str, str]:
    """Every task's file below D4RL's address (the rule behind d4rl/infos.py)."""
    files = {"door-demo": "door-demo.hdf5"}  # ships with this project
    for name in ("hopper", "halfcheetah", "walker2d"):
        for kind in ("random", "medium", "medium-replay", "medium-expert", "expert"):
            file = f"{name}_{kind}".replace("-", "_")
            files[f"{name}-{kind}-v1"] = f"gym_mujoco_v1/{file}-v1.hdf5"
            files[f"{name}-{kind}-v2"] = f"gym_mujoco_v2/{file}-v2.hdf5"
            file = file.replace("medium_replay", "mixed").replace("walker2d_mixed", "walker_mixed")
            files[f"{name}-{kind}-v0"] = f"gym_mujoco/{file}.hdf5"
    for name in ("pen", "hammer", "door", "relocate"):
        files[f"{name}-human-v0"] = f"hand_dapg/{name}-v0_demos_clipped.hdf5"
        files[f"{name}-cloned-v0"] = f"hand_dapg/{name}-demos-v0-bc-combined.hdf5"
        files[f"{name}-expert-v0"] = f"hand_dapg/{name}-v0_expert_clipped.hdf5"
        for kind in ("human", "cloned", "expert"):
            files[f"{name}-{kind}-v1"] = f"hand_dapg_v1/{name}-{kind}-v1.hdf5"
    return files


def d4rl_checksum(name: str) -> str | None:
    """SHA-256 of D4RL's file of this name. None: data/d4rl.sha256 lacks it, or is not there."""
    table = Path(__file__).parent / "data" / "d4rl.sha256"
    lines = table.read_text().splitlines() if table.exists() else []
    return next((line.split()[0] for line in lines if line.endswith(f"  {name}")), None)


def find_dataset(env_id: str) -> Path:
    """The task's file: in data/ beside this script or in D4RL's cache folder, or in the latter what
    benchmark/make_dataset.py made in its place; downloaded if need be. Raises InputError."""
    files = task_files()
    file = files.get(env_id) or files.get(f"{env_id}-v0")  # the paper's are v0
    if not file:
        nearest = ", ".join(difflib.get_close_matches(env_id, files, 3, cutoff=0))
        list_all = f"python -c 'import {Path(__file__).stem} as s; print(*s.task_files())'"
        problem = f"no task of D4RL's; the nearest are {nearest}; {list_all} lists all"
        raise InputError(f"--env-id {env_id}: {problem}; data of your own need --dataset-path")
    cache = Path(os.getenv("D4RL_DATASET_DIR") or "~/.d4rl/datasets").expanduser()
    path = cache / Path(file).name
    beside = Path(__file__).parent / "data" / path.name
    checksum = d4rl_checksum(path.name)
    for place in (beside, path, cache / f"{env_id.removesuffix('-v0')}-rebuilt.hdf5"):
        if place.is_file():
            if checksum and place.name == path.name and pooch.file_hash(place) != checksum:
                problem = "not D4RL's file of this name, by its SHA-256; move it away"
                raise InputError(f"{place}: {problem}, or train on it by --dataset-path {place}")
            return place
    if env_id == "door-demo":
        raise InputError(f"{beside} ships with the project: pass its place by --dataset-path")
    return download(env_id, D4RL + file, checksum, path)


def download(env_id: str, address: str, checksum: str | None, path: Path) -> Path:
    """`path`, with what the address or a mirror has. The mirror is asked only where the checksum is
    known, as some of its files are cut off. Raises InputError where neither has it."""
    not_writable = f"{path.parent}: cannot hold data sets; set D4RL_DATASET_DIR to another folder"
    with input_errors(not_writable, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=path.parent)
    sources = [address]
    if checksum:
        sources.append(MIRROR + path.name)
    said = []
    with folder:
        for source in sources:
            try:
                http = pooch.HTTPDownloader(progressbar=True, timeout=SECONDS)
                aside = pooch.retrieve(source, checksum, path.name, folder.name, downloader=http)
                read_file(aside)  # before it is kept
                os.replace(aside, path)
                return path
            except (OSError, ValueError, InputError) as error:  # those of requests are OSErrors
                said.append(f"{source} says: {' '.join(str(error).split())}")
    instead = f"put it into {path.parent} by hand, or use {without_download(env_id)}"
    reasons = "; ".join(said)
    raise InputError(f"{path.name} could not be downloaded: {instead}. {reasons}")


def without_download(env_id: str) -> str:
    """What trains on a D4RL task, or on one like it, without a download."""
    gym_id, *_ = env_spec(env_id)
    if "Adroit" in gym_id:
        return "--env-id door-demo, which needs no download"
    task = env_id.rpartition("-v")[0] or env_id  # without its version
    name, kind = task.split("-", 1)
    if kind == "medium-replay":
        option = f"--env {gym_id}"
    else:
        policies = [f"{name}-{part}" for part in kind.split("-")]
        option = f"--policy {' '.join(policies)}"
    return f"python benchmark/make_dataset.py {option}, then --env-id {task}"


def read_file(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, str | bool]]:
    """Arrays of a file in D4RL's format; and its path, SHA-256, whether that is D4RL's, and its
    metadata. Raises InputError."""
    names = ["observations", "actions", "rewards", "terminals"]
    damage = (OSError, KeyError, RuntimeError, TypeError, ValueError, MemoryError)
    with input_errors(f"{path}: cannot be read as D4RL's HDF5", *damage), h5py.File(path) as file:
        if "timeouts" in file:
            names.append("timeouts")
        arrays = {name: file[name][()] for name in names}
        metadata = file["metadata"].attrs if "metadata" in file else {}
        source = {name: str(value) for name, value in metadata.items()}
    sha256 = pooch.file_hash(path)
    of_d4rl = sha256 == d4rl_checksum(Path(path).name)
    return arrays, source | {"path": str(path), "sha256": sha256, "d4rl": of_d4rl}


def to_transitions(
    arrays: dict[str, np.ndarray], obs_dim: int, action_dim: int, max_steps: int | None, where: str
) -> list[np.ndarray]:
    """Transitions as `d4rl.qlearning_dataset` makes them of observations (n, D), actions (n, A),
    rewards, terminals and, if there are any, timeouts (n,): float32 obs, action, reward, next_obs,
    done. A step that ends its episode by timeout has no next observation and is dropped, as is the
    last of all; a terminal step is kept with done = 1. Without timeouts, an episode ends after
    `max_steps`. Raises InputError that begins with `where`."""
    widths = {"rewards": (), "observations": (obs_dim,), "actions": (action_dim,), "terminals": ()}
    if "timeouts" in arrays:
        widths["timeouts"] = ()
    data = {}
    for name, width in widths.items():
        not_an_array = f"{where}: {name} must be an array of numbers"
        with input_errors(not_an_array, KeyError, TypeError, ValueError):
            array = np.asarray(arrays[name]).astype(np.float32, casting="same_kind")
            shape = (len(arrays["rewards"]), *width)
        if array.shape not in (shape, (*shape, 1)):
            raise InputError(f"{where}: {name} has shape {array.shape}, expected is {shape}")
        bad = np.argwhere(~np.isfinite(array))
        if bad.size:
            raise InputError(f"{where}: {name} has {len(bad)} NaN or inf, first in row {bad[0, 0]}")
        data[name] = array.reshape(shape)

    reward, obs, action, done, *timeouts = data.values()
    if timeouts:
        timeout = timeouts[0] != 0
    else:
        timeout = np.zeros(len(obs), bool)
        steps = 0
        for i in range(len(obs)):
            steps += 1
            if steps == max_steps:
                timeout[i] = True
                steps = 0
            elif done[i]:
                steps = 1  # not 0: D4RL counts so
    kept = np.flatnonzero(~timeout[:-1])
    if not kept.size:
        raise InputError(f"{where}: no usable transition among {len(obs)} steps")
    done = (done[kept] != 0).astype(np.float32)
    return [obs[kept], action[kept], reward[kept], obs[kept + 1], done]


def save_checkpoint(run: Path, agent: Agent, result: dict) -> None:
    """RUN/checkpoint.pt, to go on from, to evaluate and to act with: the result so far, and what
    training needs. It is renamed when whole, so that there is always a good one."""
    state = result | {
        "dims": agent.dims,
        "agent": agent.state_dict(),
        "optimizers": {name: opt.state_dict() for name, opt in agent.optimizers.items()},
        "generator": GENERATOR.get_rng_state(),
    }
    content = io.BytesIO()
    torch.save(state, content)  # to the disk, torch would hide why writing fails
    aside = run / "checkpoint.tmp"
    aside.write_bytes(content.getbuffer())
    aside.replace(run / "checkpoint.pt")


def load_checkpoint(run: str | Path, agent_type: type[Agent] = Agent) -> tuple[Agent, dict]:
    """A run's agent, and all that was saved. Nothing in the file is executed. Raises InputError."""
    path = Path(run) / "checkpoint.pt"
    damage = (OSError, EOFError, UnpicklingError, RuntimeError, KeyError, TypeError, ValueError)
    with input_errors(f"{path}: no checkpoint of this script", *damage):
        saved = torch.load(path, map_location="cpu", weights_only=True)
        args = agent_type.args_type(**saved["args"])
        if vars(args) != saved["args"]:
            raise ValueError("its arguments are another script's")
        agent = agent_type(args, *saved["dims"]).to(DEVICE)
        agent.load_state_dict(saved["agent"])
        for name, optimizer in agent.optimizers.items():
            optimizer.load_state_dict(saved["optimizers"][name])
    return agent, saved


def hardware() -> str:
    """The GPU, or the CPU and how many of its threads are used."""
    if DEVICE == "cuda":
        return torch.cuda.get_device_name()
    cpu = subprocess.getoutput("lscpu 2>/dev/null | sed -n 's/^ *Model name: *//p'")
    return f"{cpu}, {torch.get_num_threads()} threads"


def train(
    agent: Agent,
    data: list[Tensor],
    envs: gym.vector.VectorEnv,
    run: Path,
    result: dict,
    update: Callable,
    args: Args,
) -> None:
    """Trains from the last evaluation in `result` on, and writes metrics, evaluations and
    checkpoints into the run's folder. Raises as main."""
    history = result["history"]
    start, seconds = (history[-1]["step"], history[-1]["seconds"]) if history else (0, 0.0)
    writer = SummaryWriter(run, purge_step=start + 1)
    bar = tqdm(initial=start, total=args.total_steps, unit=" updates", mininterval=10)
    began = perf_counter() - seconds
    with writer, bar:
        writer.add_text("args", str(args))
        for step in range(start + 1, args.total_steps + 1):
            metrics = update(agent, data, step, args)
            bar.update()
            evaluating = step % args.eval_every == 0 or step == args.total_steps
            if not evaluating and step % args.log_every != 0:
                continue
            metrics = {name: value.numpy(force=True) for name, value in metrics.items()}  # (S,)
            for name, values in metrics.items():
                if not np.isfinite(values).all():
                    raise FloatingPointError(f"{name} is {values} at update {step}: diverged")
            if evaluating:
                torch.set_float32_matmul_precision("highest")  # bfloat16 would blur whose Q is best
                returns = evaluate(agent, envs, [args.seed, step], args.eval_candidates)
                of_samples = evaluate(agent, envs, [args.seed, step], 1)
                metrics["score"] = normalized_score(args.env_id, returns).mean(1)
                metrics["score_sample"] = normalized_score(args.env_id, of_samples).mean(1)
                metrics |= {"return": returns.mean(1), "return_std": returns.std(1)}
                metrics["ood_auroc"] = ood_auroc(agent, data, args)
                torch.set_float32_matmul_precision(args.matmul_precision)
                row = {name: values.tolist() for name, values in metrics.items()}
                history.append({"step": step, "seconds": perf_counter() - began, **row})
                (run / "result.json").write_text(json.dumps(result, indent=2))
                save_checkpoint(run, agent, result)
            for name, values in metrics.items():
                for i, value in enumerate(values):
                    writer.add_scalar(f"{name}/agent-{i}", value, step)
            means = ", ".join(f"{name} {values.mean():.3g}" for name, values in metrics.items())
            phase = "warm-up, " if step <= args.warmup_steps else ""
            bar.write(f"{bar}: {phase}{means}")


def main(
    args: Args,
    dataset: dict[str, np.ndarray] | None = None,
    agent_type: type[Agent] = Agent,
    update: Callable = update,
) -> dict:
    """Train on the task's data, or on `dataset`, arrays by D4RL's names; evaluate, and report into
    the run's folder. Returns what its result.json holds. Raises InputError before any training,
    FloatingPointError where that diverges, OSError where a file cannot be written."""
    if args.resume:
        agent, saved = load_checkpoint(args.resume, agent_type)
        for name, value in saved["args"].items():
            if name not in MAY_CHANGE and getattr(args, name) != value:
                option = name.replace("_", "-")
                raise InputError(f"--resume {args.resume}: --{option} is {value} and stays so")
    torch.set_float32_matmul_precision(args.matmul_precision)
    torch.empty(8_000_000)  # freed at once: from then on glibc keeps memory for reuse
    source = {"path": "arrays from Python", "d4rl": False}
    if dataset is None:
        dataset, source = read_file(args.dataset_path or find_dataset(args.env_id))
    envs = make_envs(args.env_id, args.num_seeds * args.eval_episodes)
    (obs_dim,) = envs.single_observation_space.shape
    space = envs.single_action_space
    max_steps = envs.envs[0].spec.max_episode_steps
    arrays = to_transitions(dataset, obs_dim, *space.shape, max_steps, source["path"])
    of_d4rl = env_spec(args.env_id)[0] != args.env_id
    arrays[1], clipped = to_unit_actions(arrays[1], space, of_d4rl, source["path"])
    data = [torch.as_tensor(array, device=DEVICE) for array in arrays]

    script = Path(inspect.getfile(agent_type)).stem
    result = {
        "algorithm": script,
        "args": vars(args),
        "data": source,
        "transitions": len(data[0]),
        "clipped_actions": clipped,
        "versions": {name: version(name) for name in PACKAGES},
        "hardware": hardware(),
        "commit": subprocess.getoutput(GIT_DESCRIBE),
        "history": [],
    }
    name = f"{args.env_id}__{args.exp_name or script}__{args.seed}"
    moment = f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
    run = Path(args.resume or args.run_dir or f"runs/{name}__{moment}")
    if args.resume:
        if saved["data"].get("sha256") != source.get("sha256"):
            raise InputError(f"--resume {run}: {source['path']} is not what it learned from")
        with input_errors(f"--resume {run}: begun on {saved['hardware']}", RuntimeError, TypeError):
            GENERATOR.set_rng_state(saved["generator"])
        result["history"] = saved["history"]
    else:
        with input_errors(f"--run-dir {run}: choose another, or --resume {run}", FileExistsError):
            run.mkdir(parents=True)
        torch.manual_seed(args.seed)
        agent = agent_type(args, obs_dim, *space.shape, space.low, space.high).to(DEVICE)
        save_checkpoint(run, agent, result)
    start = result["history"][-1]["step"] if result["history"] else 0
    if start > args.total_steps:
        raise InputError(f"--total-steps {args.total_steps}: {run} has {start} already")
    out_of_bounds = f", {clipped} with actions clipped to their bounds" if clipped else ""
    origin = "D4RL's own file" if source["d4rl"] else "unverified"
    print(
        f"{script}: {len(data[0])} transitions of {source['path']} ({origin}){out_of_bounds}, on"
        f" {DEVICE};"
        f" {start} of {args.total_steps} updates done;"
        f" --resume {run} goes on from the last evaluation"
    )
    all_warmup = f"all {args.total_steps} updates are warm-up: the actor only imitates the data"
    if args.total_steps <= args.warmup_steps:
        print(all_warmup)
    try:
        train(agent, data, envs, run, result, update, args)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped: --resume {run} goes on with it") from None
    if args.total_steps <= args.warmup_steps:
        print(all_warmup)
    return result


def parse(words: list[str] | None = None, agent_type: type[Agent] = Agent) -> Args:
    """The command line's arguments, or those in `words`; with --resume, the ones that are not given
    are the run's. Raises InputError."""

    class Typed(agent_type.args_type):  # not checked within tyro, which would draw a box
        def __init__(self, **values):
            vars(self).update(values)

    typed = tyro.cli(Typed, args=words)
    if typed.resume:
        agent, _ = load_checkpoint(typed.resume, agent_type)
        typed = tyro.cli(Typed, args=words, default=Typed(**vars(agent.args)))
    try:
        return agent_type.args_type(**vars(typed))
    except pydantic.ValidationError as error:
        wrong = error.errors()[0]
        option = wrong["loc"][0].replace("_", "-")
        raise InputError(f"--{option} {wrong['input']}: {wrong['msg']}") from None


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # a redirected log shows each line at once
    try:
        main(parse())
    except KeyboardInterrupt as stopped:
        print(str(stopped) or "stopped", file=sys.stderr)
        sys.exit(130)
    except (InputError, FloatingPointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit({InputError: 2, FloatingPointError: 3}.get(type(error), 1))
