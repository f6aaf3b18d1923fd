"""UWAC: offline reinforcement learning that down-weights backups whose target is uncertain.

Wu et al., "Uncertainty Weighted Actor-Critic for Offline Reinforcement Learning" (ICML 2021): BEAR
(bear.py) whose critics learn under dropout, with weights beta / Var[Q] in the critics' and the
actor's losses, Var[Q] being the critics' variance under dropout. `update` is Algorithm 1, and
docs/fidelity.md lists where ml-uwac differs. `diff bear.py uwac.py` shows all that UWAC adds.

    python uwac.py --env-id door-demo --warmup-steps 500 --total-steps 1750 --variance analytic

Shapes: S seeds trained side by side, B batch, N sampled actions (M for MMD), D observation size, A
action size, H hidden units, T stochastic passes. Networks and mini-batches begin with S, and twin
critics with 2 and S. Brackets name the source of a number: the paper (with its section), ml-uwac
(its authors' code), BEAR (the code of BEAR's author, which ml-uwac builds on), CORL.
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
from filelock import FileLock
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization
from torch.utils.tensorboard import SummaryWriter
from tqdm.auto import tqdm

import d4rl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GENERATOR = torch.cuda if DEVICE == "cuda" else torch  # has the state of training's random numbers
GPUS = range(torch.cuda.device_count())  # for fork_rng, which warns if several are not named
PACKAGES = {"torch", "numpy", "gymnasium", "gymnasium_robotics", "mujoco"}  # in result.json
# All that may change in a resumed run (the data's path, not the data): the rest shapes training.
MAY_CHANGE = {"total_steps", "eval_every", "eval_episodes", "eval_candidates", "log_every"}
MAY_CHANGE |= {"dataset_path", "run_dir", "resume"}
Probability = Annotated[float, Field(ge=0, le=1)]
STRICT = {"strict": True, "allow_inf_nan": False, "str_min_length": 1}


@dataclass
class Args:
    env_id: str = "door-human"  # D4RL task (v0 if no version is given), or door-demo, included here
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # same machine, same arguments, same numbers
    num_seeds: PositiveInt = 1  # S, independent agents trained side by side (paper: 5)
    # of matmuls: on a CPU with AMX "medium" is bfloat16, on others float32, see docs/usage.md
    matmul_precision: Literal["highest", "high", "medium"] = "high"
    # UWAC
    beta: PositiveFloat = 1.6  # weight beta / Var[Q] (paper, 5.5: 0.8, 1.6 or 2.5)
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1  # rate, after each hidden layer (ml-uwac)
    variance: Literal["mc", "analytic"] = "mc"  # Var[Q] from T passes (Algorithm 1), or closed form
    passes: Annotated[int, Field(ge=2)] = 100  # T, stochastic passes (paper, Algorithm 1)
    q_noise: bool = False  # noise in the targets' and the actor's Q (ml-uwac), see q_values
    weighting: Literal["variance", "std", "exp", "none"] = "variance"  # see uncertainty_weight
    weight_clip: PositiveFloat = 1.5  # upper limit of the weight (paper, 5.5)
    spectral_norm: Literal["auto", True, False] = "auto"  # of the critics; auto: on Adroit (paper)
    # BEAR
    batch_size: PositiveInt = 256  # B, transitions in a mini-batch (BEAR)
    gamma: Probability = 0.99  # discount per step (BEAR)
    tau: Probability = 0.005  # rate of the Polyak targets (BEAR)
    lmbda: Probability = 0.75  # weight of min(Q1, Q2) in a target, the max has the rest (BEAR)
    num_candidates: PositiveInt = 10  # N, Algorithm 1's p: a target takes the best of them (BEAR)
    num_mmd_samples: PositiveInt = 10  # M, Algorithm 1's n: actions per state for MMD (paper)
    mmd_kernel: Literal["auto", "gaussian", "laplacian"] = "auto"  # auto: by the task (BEAR)
    mmd_sigma: PositiveFloat = 20.0  # width of the kernel (BEAR; the paper tried 10 and 20)
    mmd_threshold: NonNegativeFloat = 0.07  # MMD that the actor is held to (paper, 5.5)
    warmup_steps: NonNegativeInt = 40_000  # first updates, where the actor has MMD alone (BEAR)
    actor_lr: NonNegativeFloat = 1e-4  # learning rate of the actor (BEAR)
    critic_lr: NonNegativeFloat = 3e-4  # learning rate of the critics (BEAR)
    vae_lr: NonNegativeFloat = 3e-4  # learning rate of the behaviour VAE (BEAR)
    dual_lr: NonNegativeFloat = 1e-3  # learning rate of log alpha; alpha multiplies MMD (BEAR)
    # Length, evaluation, logging and files
    total_steps: PositiveInt = 500_000  # updates (D4RL's evaluation protocol)
    eval_every: PositiveInt = 5_000  # updates between evaluations, with a checkpoint each (CORL)
    eval_episodes: PositiveInt = 10  # episodes per evaluation and seed (CORL)
    eval_candidates: PositiveInt = 100  # actions per state (paper, 5.5), see Agent.act
    log_every: PositiveInt = 1_000  # updates between lines, and between entries in TensorBoard
    dataset_path: str | None = None  # file in D4RL's format; then any Gymnasium env_id goes
    run_dir: str | None = None  # folder of a new run; None: runs/ENV__SCRIPT__SEED__DATE-TIME
    resume: str | None = None  # run to go on with; its arguments are the command line's defaults

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

    def resolved(self) -> dict:
        """All arguments, with what the task wants in place of "auto"."""
        name = self.env_id.split(":")[-1].split("/")[-1].split("-")[0].lower()
        values = dict(vars(self))
        if self.mmd_kernel == "auto":
            values["mmd_kernel"] = "laplacian" if name in ("hopper", "walker2d") else "gaussian"
        if self.spectral_norm == "auto":
            adroit = ("pen", "hammer", "door", "relocate")
            values["spectral_norm"] = name in adroit or name.startswith("adroithand")
        return values


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

    @torch.no_grad()
    def init_weights(self, output_bound: float) -> None:
        """Initial weights as in BEAR and ml-uwac; the last layer's are U(±output_bound)."""
        for layer in self.layers[:2]:
            bound = layer.bias.shape[-1] ** -0.5  # BEAR counts a layer's outputs, not its inputs
            layer.weight.uniform_(-bound, bound)
            layer.bias.fill_(0.1)
        for parameter in self.layers[2].parameters():
            parameter.uniform_(-output_bound, output_bound)


def concat(obs: Tensor, x: Tensor) -> Tensor:
    """obs (S, B, D) and x (S, B, E) -> (S, B, D + E). For x (S, B, N, E) each state is repeated N
    times -> (S, B * N, D + E)."""
    if x.dim() == 4:
        obs = obs.repeat_interleave(x.shape[2], dim=1)
        x = x.flatten(1, 2)
    return torch.cat([obs, x], dim=-1)


class SpectralNorm(nn.Module):
    """Parametrization W / sigma of each matrix W of a stack, which torch's takes for one matrix.
    sigma is the largest singular value of W, by power iteration (Miyato et al., 2018)."""

    def __init__(self, weight: Tensor):
        super().__init__()
        u = torch.linalg.svd(weight.detach(), full_matrices=False).U  # weight (2, S, in, out)
        self.register_buffer("u", u[..., :1].clone())  # (2, S, in, 1): |u^T W| = sigma

    def forward(self, weight: Tensor) -> Tensor:
        return weight / (self.u.mT @ weight).norm(dim=-1, keepdim=True)


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
                norm.u.copy_(F.normalize(weight @ (norm.u.mT @ weight).mT, dim=-2))


class Actor(MLP):
    """Gaussian policy; an action is the tanh of a sample."""

    def __init__(self, S: int, obs_dim: int, action_dim: int):
        super().__init__((S,), obs_dim, 256, 2 * action_dim)
        self.init_weights(output_bound=1e-3)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-std before the tanh: (S, B, D) -> (S, B, A) each."""
        mean, log_std = super().forward(obs).chunk(2, dim=-1)
        return mean, log_std.clamp(-5, 2)  # ml-uwac

    def sample(self, obs: Tensor, num: int) -> Tensor:
        """Actions before the tanh: (S, B, D) -> (S, B, num, A)."""
        mean, log_std = self(obs)
        noise = torch.randn(*obs.shape[:2], num, mean.shape[-1], device=obs.device)
        return mean.unsqueeze(2) + log_std.exp().unsqueeze(2) * noise


class BehaviorVAE(nn.Module):
    """Conditional VAE that imitates the policy behind the data (BEAR)."""

    def __init__(self, S: int, obs_dim: int, action_dim: int):
        super().__init__()
        self.latent_dim = 2 * action_dim
        self.encoder = MLP((S,), obs_dim + action_dim, 750, 2 * self.latent_dim)
        self.decoder = MLP((S,), obs_dim + self.latent_dim, 750, action_dim)

    def loss(self, obs: Tensor, action: Tensor) -> Tensor:
        """Reconstruction error + 0.5 KL: obs (S, B, D), action (S, B, A) -> (S,)."""
        mean, log_std = self.encoder(concat(obs, action)).chunk(2, dim=-1)
        log_std = log_std.clamp(-4, 15)  # BEAR
        latent = mean + log_std.exp() * torch.randn_like(mean)
        error = self.decoder(concat(obs, latent)).tanh() - action
        kl = -0.5 * (1 + 2 * log_std - mean.square() - (2 * log_std).exp())
        return error.square().mean((1, 2)) + 0.5 * kl.mean((1, 2))

    def sample(self, obs: Tensor, num: int) -> Tensor:
        """Likely actions of the data, before the tanh: (S, B, D) -> (S, B, num, A)."""
        latent = torch.randn(*obs.shape[:2], num, self.latent_dim, device=obs.device)
        latent = latent.clamp(-0.5, 0.5)  # BEAR: likely actions, not all
        return self.decoder(concat(obs, latent)).unflatten(1, (-1, num))


def mmd(x: Tensor, y: Tensor, kernel: str, sigma: float) -> Tensor:
    """Maximum mean discrepancy of two sets of M samples, (..., M, A) each -> (...), under a kernel
    exp(-d / (2 sigma)), d a pair's squared Euclidean distance ("gaussian") or its L1 distance
    ("laplacian") (BEAR). Raises KeyError for another kernel."""
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
    (S, B, D), action (S, B, A) -> (2, S, B). A pass samples one network, with one mask per layer
    for the whole batch. Rounding changes less than 1e-5 of the result up to p = 0.99."""
    first, second, last = critic.layers
    # Units are rows here, all divided by 1 - p as if kept.
    h1 = (first(concat(obs, action)).relu_() / (1 - p)).flatten(0, 1).mT.contiguous()  # (2S, H, B)
    w2 = second.weight.flatten(0, 1)  # (2S, H, H)
    z = w2.mT @ h1 + second.bias.flatten(0, 1).mT  # (2S, H, B), if no unit drops
    drop1, drop2 = (torch.rand(T, 2, *z.shape[:2], device=z.device) < p).unbind(1)  # (T, 2S, H)
    w3 = last.weight.view(z.shape[:2]) * ~drop2 / (1 - p)  # (T, 2S, H)
    q = torch.empty(T, len(z), z.shape[2], device=z.device)
    h2 = torch.empty_like(z[0])  # (H, B), of one critic in one pass
    precision = torch.get_float32_matmul_precision()
    # In a CPU's bfloat16 ("medium") products as small as a pass's are slower.
    torch.set_float32_matmul_precision(precision.replace("medium", "high"))
    for i, (z_i, w_i, h_i) in enumerate(zip(z, w2, h1)):
        for drop, w3_t, q_t in zip(drop1[:, i], w3[:, i], q[:, i]):
            # A pass has z minus what the dropped units would add. A CPU multiplies only their rows,
            # as they are few; a GPU would wait for their number, so it sets the other rows to 0.
            if z.is_cuda:
                w, h = w_i, h_i * drop.unsqueeze(1)
            else:
                units = drop.nonzero().squeeze(1)
                w, h = w_i.index_select(0, units), h_i.index_select(0, units)
            torch.addmm(z_i, w.T, h, alpha=-1, out=h2).relu_()
            torch.mv(h2.T, w3_t, out=q_t)  # the last bias would add no variance
    torch.set_float32_matmul_precision(precision)
    return q.var(0).view(2, -1, z.shape[2])


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


@torch.no_grad()
def uncertainty_weight(variance: Tensor, args: Args) -> Tensor:
    """Weight of a state in a loss, from a variance of any shape (paper, equations 4 and 5)."""
    if args.weighting == "none":
        return torch.ones_like(variance)
    weight = {
        "variance": args.beta / variance,
        "std": args.beta / variance.sqrt(),  # paper, 5.6
        "exp": torch.exp(-args.beta * variance),  # ml-uwac
    }[args.weighting]
    return weight.clamp(max=args.weight_clip)


class Agent(nn.Module):
    """The networks of Algorithm 1 for S seeds, and their optimizers."""

    args_type = Args

    def __init__(self, args: Args, obs_dim: int, action_dim: int):
        super().__init__()
        self.args = args
        self.dims = (obs_dim, action_dim)
        self.mmd_kernel = args.resolved()["mmd_kernel"]
        # Line 1: actor, critics with dropout and their targets; the VAE is for line 10.
        self.actor = Actor(args.num_seeds, obs_dim, action_dim)
        spectral_norm = args.resolved()["spectral_norm"]
        self.critic = Critic(args.num_seeds, obs_dim, action_dim, spectral_norm)
        self.target_actor = copy.deepcopy(self.actor)
        self.target_critic = copy.deepcopy(self.critic)
        self.vae = BehaviorVAE(args.num_seeds, obs_dim, action_dim)
        self.log_alpha = nn.Parameter(torch.zeros(args.num_seeds))
        self.optimizers = {
            "actor": torch.optim.Adam(self.actor.parameters(), args.actor_lr, fused=True),
            "critic": torch.optim.Adam(self.critic.parameters(), args.critic_lr, fused=True),
            "vae": torch.optim.Adam(self.vae.parameters(), args.vae_lr, fused=True),
            "dual": torch.optim.Adam([self.log_alpha], args.dual_lr, fused=True),
        }

    def minimize(self, loss: Tensor, name: str) -> None:
        """A step on the losses (S,). Seeds share no parameters, so their losses may be summed."""
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        loss.sum().backward(inputs=optimizer.param_groups[0]["params"])
        optimizer.step()

    def uncertainty(self, critic: Critic, obs: Tensor, action: Tensor) -> Tensor:
        """Var[Q1] + Var[Q2], 0 without dropout: obs (S, B, D), action (S, B, A) -> (S, B)."""
        p, T = self.args.dropout, self.args.passes
        if p == 0:
            return torch.zeros(action.shape[:-1], device=action.device)
        if self.args.variance == "mc":
            return mc_dropout_variance(critic, obs, action, p, T).sum(0)
        return analytic_dropout_variance(critic, obs, action, p).sum(0)

    def q_values(self, critic: Critic, obs: Tensor, action: Tensor, noise: bool) -> Tensor:
        """Q1 and Q2 without dropout, as a maximum of noisy candidates is biased upwards; shapes as
        Critic.forward. With `noise` they stand for ml-uwac's means of T stochastic passes, with
        masks of their own for each action: nearly normal, with mean Q and variance Var[Q] / T."""
        q = critic(obs, action)
        if not noise or self.args.dropout == 0:
            return q
        variance = analytic_dropout_variance(critic, obs, action, self.args.dropout)
        return q + (variance / self.args.passes).sqrt() * torch.randn_like(q)

    @torch.no_grad()
    def act(self, obs: np.ndarray, num: int = 100, deterministic: bool = False) -> np.ndarray:
        """Each seed's actions in [-1, 1], as `d4rl.make`'s environments take them: the best by a
        noisy Q1 of `num` samples of its actor, or the actor's mean. obs (D,) -> (S, A); obs (B, D),
        or (S, B, D) of each seed's own -> (S, B, A). Raises ValueError for another D."""
        obs = torch.as_tensor(obs, dtype=torch.float32, device=self.log_alpha.device)
        if obs.shape[-1] != self.dims[0]:
            raise ValueError(f"observations have {obs.shape[-1]} numbers, not {self.dims[0]}")
        if obs.dim() == 1:
            return self.act(obs[None], num, deterministic)[:, 0]
        if obs.shape[-2] > 256:  # in pieces, for memory
            parts = [self.act(part, num, deterministic) for part in obs.split(256, dim=-2)]
            return np.concatenate(parts, axis=1)
        obs = obs.expand(self.args.num_seeds, -1, -1)
        if deterministic:
            mean, _ = self.actor(obs)
            return mean.tanh().numpy(force=True)
        candidates = self.actor.sample(obs, num).tanh()
        # As in ml-uwac, Q1 has the noise of T passes. Under spectral norm that is many times Q1's
        # spread over the candidates, so the choice is nearly random.
        q1, _ = self.q_values(self.critic, obs, candidates, noise=True)  # (S, B, N)
        best = q1.argmax(-1)[:, :, None, None]
        return candidates.take_along_dim(best, dim=2).squeeze(2).numpy(force=True)


def update(agent: Agent, data: list[Tensor], step: int | Tensor, args: Args) -> dict[str, Tensor]:
    """One step of all networks, Algorithm 1, lines 3 to 12, on float32 data in this order: obs
    (n, D), action (n, A), reward (n,), next_obs (n, D), done (n,). Returns metrics (S,). `step` is
    a tensor in a CUDA graph (benchmark/gpu.py)."""
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
        q1, q2 = agent.q_values(agent.target_critic, next_obs, candidates, args.q_noise)
        mixture = args.lmbda * torch.minimum(q1, q2) + (1 - args.lmbda) * torch.maximum(q1, q2)
        y, best = mixture.max(-1)  # (S, B)
        target_q = reward + args.gamma * (1 - done) * y
        # Line 7: Var[Q1] + Var[Q2] at the best action stands for Var[y], as in ml-uwac.
        best_action = candidates.take_along_dim(best[:, :, None, None], dim=2).squeeze(2)
        var_y = agent.uncertainty(agent.target_critic, next_obs, best_action)  # (S, B)
        weight = uncertainty_weight(var_y, args)
    # Line 8: weighted regression of both critics, under dropout.
    q = agent.critic(obs, action, args.dropout)  # (2, S, B)
    critic_loss = (weight * (q - target_q).square()).sum(0).mean(1)
    agent.minimize(critic_loss, "critic")

    # Line 10: samples of the actor and of the behaviour VAE, before the tanh, at this state, as in
    # ml-uwac. (The paper: the target actor's, at the next state.)
    actor_samples = agent.actor.sample(obs, args.num_mmd_samples)  # (S, B, M, A)
    with torch.no_grad():
        vae_samples = agent.vae.sample(obs, args.num_mmd_samples)  # (S, B, M, A)
    mmd_loss = mmd(actor_samples, vae_samples, agent.mmd_kernel, args.mmd_sigma)  # (S, B)
    # Line 11: the actor maximizes Q at one of its samples, weighted by its certainty (equation 5),
    # under the constraint on MMD, whose multiplier alpha grows where it is violated.
    policy_action = actor_samples[:, :, 0].tanh()
    q1, q2 = agent.q_values(agent.critic, obs, policy_action, args.q_noise)
    policy_q = torch.minimum(q1, q2)  # (S, B)
    var_q = agent.uncertainty(agent.critic, obs, policy_action)
    policy_weight = uncertainty_weight(var_q, args)
    after_warmup = step > args.warmup_steps  # False counts as 0
    alpha = agent.log_alpha.exp()  # (S,)
    mmd_violation = (mmd_loss - args.mmd_threshold).mean(1)
    actor_loss = alpha.detach() * mmd_violation - after_warmup * (policy_weight * policy_q).mean(1)
    agent.minimize(actor_loss, "actor")
    agent.minimize(-alpha * mmd_violation.detach(), "dual")

    with torch.no_grad():
        agent.log_alpha.clamp_(-5, 10)  # BEAR: alpha is at most e^10 = 22,026
        # Line 12: the targets follow.
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
    """How well Var[Q] tells uniform random actions from the data's at up to 1,000 states (paper,
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
    """The returns of K whole episodes per seed, (S, K), acting by the best of `num` candidates."""
    seed = np.random.SeedSequence(seed).generate_state(1).item()
    S = agent.args.num_seeds
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


def save(run: Path, agent: Agent, result: dict) -> None:
    """RUN/result.json to read; RUN/checkpoint.pt to go on from, to evaluate and to act with. Each
    is renamed when whole, so that there is always a good one. Raises OSError."""
    (run / "result.tmp").write_text(json.dumps(result, indent=2))
    (run / "result.tmp").replace(run / "result.json")
    state = result | {
        "dims": agent.dims,
        "agent": agent.state_dict(),
        "optimizers": {name: opt.state_dict() for name, opt in agent.optimizers.items()},
        "device": DEVICE,
        "generator": GENERATOR.get_rng_state(),
    }
    with open(run / "checkpoint.tmp", "wb") as file:  # given a path, torch raises no OSError
        torch.save(state, file)
    (run / "checkpoint.tmp").replace(run / "checkpoint.pt")


def load_checkpoint(run: str | Path, agent_type: type[Agent] = Agent) -> tuple[Agent, dict]:
    """A run's agent, and all that was saved. Nothing in the file is executed. Raises ValueError."""
    path = Path(run).expanduser() / "checkpoint.pt"
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        args = agent_type.args_type(**saved["args"])
        if args.resolved() != saved["args"]:  # unequal if defaults had to fill in
            raise ValueError("its arguments are another script's")
        agent = agent_type(args, *saved["dims"]).to(DEVICE)
        agent.load_state_dict(saved["agent"])
        for name, optimizer in agent.optimizers.items():
            optimizer.load_state_dict(saved["optimizers"][name])
    except Exception as error:  # damage shows in many ways
        raise ValueError(f"{path}: no checkpoint of this script ({error})") from error
    return agent, saved


def main(args: Args, dataset: dict | None = None, agent_type=Agent, update=update) -> dict:
    """Train on the task's data, or on `dataset`, arrays by D4RL's names; evaluate, and report into
    the run's folder. Another agent and update make another algorithm (benchmark/ensembles.py).
    Returns what it writes into result.json. Raises ImportError for another d4rl, ValueError before
    any training, FloatingPointError where that diverges, OSError for reading or writing a file."""
    if not hasattr(d4rl, "TASKS"):
        raise ImportError(f"{d4rl.__file__} is not the d4rl that comes with this script")
    if args.dropout == 0 and args.weighting != "none":
        raise ValueError("--dropout 0: no variance to weigh by; add --weighting none")
    torch.set_float32_matmul_precision(args.matmul_precision)
    torch.empty(8_000_000)  # 32 MB, freed: glibc then keeps blocks up to this; 7% faster
    num_envs = args.num_seeds * args.eval_episodes
    envs = gym.vector.SyncVectorEnv([lambda: d4rl.make(args.env_id)] * num_envs)
    if dataset is None:
        dataset = args.dataset_path or d4rl.download(args.env_id)
    source = d4rl.describe(dataset)
    transitions = d4rl.qlearning_dataset(envs.envs[0], dataset)
    script = Path(getattr(sys.modules[agent_type.__module__], "__file__", __file__))
    task = args.env_id.replace("/", "-").replace(":", "-")
    new = f"runs/{task}__{script.stem}__{args.seed}__{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
    run = Path(args.resume or args.run_dir or new).expanduser()
    if args.resume:
        agent, saved = load_checkpoint(run, agent_type)
        before = saved["args"] | {"data": saved["data"]["sha256"], "device": saved["device"]}
        now = args.resolved() | {"data": source["sha256"], "device": DEVICE}
        for name, value in before.items():
            if name not in MAY_CHANGE and now[name] != value:
                raise ValueError(f"--resume {run}: {name} is {value} and stays so")
        agent.args = args
        history = saved["history"]
        GENERATOR.set_rng_state(saved["generator"])
    else:
        if run.exists():
            raise ValueError(f"--run-dir {run} exists: choose another, or --resume {run}")
        torch.manual_seed(args.seed)
        dims = (*envs.single_observation_space.shape, *envs.single_action_space.shape)
        agent = agent_type(args, *dims).to(DEVICE)
        run.mkdir(parents=True)
        history = []
    data = [torch.as_tensor(x, device=DEVICE) for x in transitions.values()]  # in update's order
    clipped = (data[1].abs().amax(1) > 1 + 1e-5).sum().item()  # by more than rounding
    data[1] = data[1].clamp(-1, 1)
    imported = sorted(PACKAGES & {*sys.modules})
    result = {
        "algorithm": script.stem,
        "args": args.resolved(),
        "data": source,
        "transitions": len(data[0]),
        "clipped_actions": clipped,
        "versions": {name: str(sys.modules[name].__version__) for name in imported},
        "hardware": f"{DEVICE}, {torch.get_num_threads()} threads",
        "history": history,
    }
    origin = "D4RL's own file" if source["d4rl"] else "not D4RL's own"
    print(f"{len(data[0])} transitions of {source['path']} ({origin}), {clipped} actions clipped")
    print(f"on {DEVICE}; results in {run}: --resume {run} goes on from its last evaluation")
    start, seconds = (history[-1]["step"], history[-1]["seconds"]) if history else (0, 0.0)
    if start > args.total_steps:
        raise ValueError(f"--total-steps {args.total_steps}: {run} has {start} already")
    began = perf_counter() - seconds
    steps = range(start + 1, args.total_steps + 1)
    lock = FileLock(run / "in-use.lock", timeout=0)  # no two processes train one run
    with lock, SummaryWriter(run, purge_step=start + 1) as writer:
        if not history:
            save(run, agent, result)
        bar = tqdm(steps, initial=start, total=args.total_steps, unit=" updates", mininterval=10)
        for step in bar:
            metrics = update(agent, data, step, args)
            evaluating = step % args.eval_every == 0 or step == args.total_steps
            if not evaluating and step % args.log_every != 0:
                continue
            metrics = {name: value.numpy(force=True) for name, value in metrics.items()}  # (S,)
            if evaluating:
                torch.set_float32_matmul_precision("highest")  # scores in full precision
                returns = evaluate(agent, envs, [args.seed, step], args.eval_candidates)
                of_samples = evaluate(agent, envs, [args.seed, step], 1)
                metrics["score"] = d4rl.normalized_score(args.env_id, returns).mean(1)
                metrics["score_sample"] = d4rl.normalized_score(args.env_id, of_samples).mean(1)
                metrics |= {"return": returns.mean(1), "return_std": returns.std(1)}
                metrics["ood_auroc"] = ood_auroc(agent, data, args)
                torch.set_float32_matmul_precision(args.matmul_precision)
            if not np.isfinite([*metrics.values()]).all():
                raise FloatingPointError(f"diverged at update {step}: {metrics}")
            for name, values in metrics.items():
                for i, value in enumerate(values):
                    writer.add_scalar(f"{name}/agent-{i}", value, step)
            if evaluating:
                writer.flush()  # first: a resumed run goes on after the checkpoint
                row = {name: values.tolist() for name, values in metrics.items()}
                history.append({"step": step, "seconds": perf_counter() - began, **row})
                save(run, agent, result)
            means = ", ".join(f"{name} {values.mean():.3g}" for name, values in metrics.items())
            if evaluating and args.weighting != "none":
                weight = metrics["weight"].mean()
                if weight > 0.999 * args.weight_clip:
                    means += "; every weight is clipped, see --beta"
                if weight < 0.01:
                    means += "; the weights are near 0, see --beta"
            phase = "warm-up, " if step <= args.warmup_steps else ""
            with bar.external_write_mode():
                print(f"{step}/{args.total_steps}: {phase}{means}", flush=True)
    return result


if __name__ == "__main__":
    try:
        args = tyro.cli(Args)
        if args.resume:  # arguments that are not given are the run's
            args = tyro.cli(Args, default=load_checkpoint(args.resume)[0].args)
        main(args)
    except KeyboardInterrupt:
        sys.exit("stopped")
    except (ArgumentTypeError, ValueError, ArithmeticError, OSError, ImportError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")  # one line
