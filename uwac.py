"""UWAC: offline reinforcement learning that down-weights backups with uncertain targets.

Wu et al., "Uncertainty Weighted Actor-Critic for Offline Reinforcement Learning" (ICML 2021). UWAC
is BEAR (bear.py) plus critics trained with dropout (on Adroit with spectral norm, too), the
variance of Q under that dropout, and losses weighted by beta / Var[Q]. `update` names the lines of
Algorithm 1; `diff bear.py uwac.py` shows what UWAC adds; docs/fidelity.md compares with the
authors' code.

    python uwac.py --env-id door-demo --warmup-steps 500 --total-steps 1750 --variance analytic

Shapes. B: batch, N: candidate actions, M: action samples for the MMD, D: observation, A: action,
H: hidden units. Twin critics lead with a 2. S seeds are trained at once: tensors also have a
dimension S, first or right after the 2, which comments mostly leave out.
T: dropout passes.

Sources of defaults, in brackets: paper (5.5: a section), ml-uwac (its authors' code), BEAR (the
code of BEAR's author, on which ml-uwac builds), CORL (offline RL in single files), D4RL.
"""

import copy
import io
import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from filelock import FileLock
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from pydantic_core import to_jsonable_python
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization
from torch.utils.tensorboard import SummaryWriter
from tqdm.auto import tqdm

import d4rl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RNG = torch.cuda if DEVICE == "cuda" else torch  # whose random state a checkpoint keeps
GPUS = range(torch.cuda.device_count())  # an evaluation leaves their generators as they were
PACKAGES = ("torch", "numpy", "gymnasium", "gymnasium-robotics", "mujoco")  # in result.json

# Arguments that a resumed run may change. All others must stay.
RESUMABLE = {
    "total_steps",
    "eval_every",
    "eval_episodes",
    "eval_candidates",
    "log_every",
    "dataset_path",  # the file may move, but its checksum may not change
}
Probability = Annotated[float, Field(ge=0, le=1)]


@dataclass(config={"allow_inf_nan": False, "extra": "forbid"})
class Args:
    env_id: str = "door-human"  # D4RL task (v0 if no version is given), or door-demo, included here
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # random seed: a rerun repeats the numbers
    num_seeds: PositiveInt = 1  # agents trained at once, S, from the one seed (paper: 5)
    # precision of matrix products in training; high: TF32 on a GPU, float32 on most CPUs
    matmul_precision: Literal["highest", "high", "medium"] = "high"
    cuda_graph: bool = False  # faster on a GPU: one launch an update (pip install tensordict)
    # UWAC
    beta: PositiveFloat = 1.6  # weight = beta / (Var[Q1] + Var[Q2]) (paper, 5.5, with one Var)
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1  # rate in critics' hidden layers (ml-uwac)
    variance: Literal["mc", "analytic"] = "mc"  # Var[Q] by sampling (Algorithm 1) or in closed form
    passes: Annotated[int, Field(ge=2)] = 100  # dropout passes of "mc", T (paper, Algorithm 1)
    # weight: beta / Var, beta / std, exp(-beta * Var), or 1, where Var is Var[Q1] + Var[Q2]
    weighting: Literal["variance", "std", "exp", "none"] = "variance"
    weight_clip: PositiveFloat = 1.5  # largest weight (paper, 5.5, where 1.5 limits 1 / Var)
    spectral_norm: Literal["auto", True, False] = "auto"  # in critics; auto: Adroit (paper, 5.5)
    # BEAR
    batch_size: PositiveInt = 256  # transitions per update, B (BEAR)
    gamma: Probability = 0.99  # discount per step (BEAR)
    tau: Probability = 0.005  # Polyak rate of the target networks (BEAR)
    lmbda: Probability = 0.75  # target: lmbda * min(Q1, Q2) + (1 - lmbda) * max(Q1, Q2) (BEAR)
    num_candidates: PositiveInt = 10  # actions a target maximizes over, N; Algorithm 1's p (BEAR)
    num_mmd_samples: PositiveInt = 10  # actions per state in the MMD, M; Algorithm 1's n (paper)
    # kernel of the MMD; auto: laplacian on hopper and walker2d, else gaussian (BEAR)
    mmd_kernel: Literal["auto", "gaussian", "laplacian"] = "auto"
    mmd_sigma: PositiveFloat = 20.0  # width of the MMD's kernel (BEAR; the paper tried 10 and 20)
    mmd_threshold: NonNegativeFloat = 0.07  # constraint on the actor: MMD <= threshold (paper, 5.5)
    warmup_steps: NonNegativeInt = 40_000  # updates in which the actor minimizes MMD alone (BEAR)
    actor_lr: NonNegativeFloat = 1e-4  # learning rate of the actor (BEAR)
    critic_lr: NonNegativeFloat = 3e-4  # learning rate of the critics (BEAR)
    vae_lr: NonNegativeFloat = 3e-4  # learning rate of the behaviour VAE (BEAR)
    dual_lr: NonNegativeFloat = 1e-3  # learning rate of log alpha; alpha multiplies the MMD (BEAR)
    # Length, evaluation, logging and files
    total_steps: PositiveInt = 500_000  # updates, warm-up included (D4RL)
    eval_every: PositiveInt = 5_000  # updates between evaluations, each with a checkpoint (CORL)
    eval_episodes: PositiveInt = 10  # episodes per evaluation and agent (CORL)
    eval_candidates: PositiveInt = 100  # actions sampled (paper, 5.5); the best by Q1 is played
    log_every: PositiveInt = 1_000  # updates between printed lines, and between TensorBoard entries
    dataset_path: Path | None = None  # HDF5 in D4RL's format; then env_id may be any Gymnasium task
    run_dir: Path | None = None  # folder of a new run; default: runs/ENV__ALGORITHM__SEED__TIME
    resume: Path | None = None  # folder of a run to continue; its arguments become the defaults

    def resolved(self) -> "Args":
        """The arguments with "auto" decided by the task, "door" of "d4rl:door-human"."""
        task = self.env_id.split(":")[-1].split("/")[-1].split("-")[0].lower()
        kernel, norm = self.mmd_kernel, self.spectral_norm
        if kernel == "auto":
            kernel = "laplacian" if task in ("hopper", "walker2d") else "gaussian"
        if norm == "auto":
            adroit = ("pen", "hammer", "door", "relocate")
            norm = task in adroit or task.startswith("adroithand")
        return replace(self, mmd_kernel=kernel, spectral_norm=norm)


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

    @torch.no_grad()
    def init_weights(self, output_bound: float) -> None:
        """Initial weights of BEAR and ml-uwac."""
        for layer in self.layers[:2]:
            bound = layer.bias.shape[-1] ** -0.5  # BEAR takes fan-out for fan-in
            layer.weight.uniform_(-bound, bound)
            layer.bias.fill_(0.1)
        for parameter in self.layers[2].parameters():
            parameter.uniform_(-output_bound, output_bound)


def concat(obs: Tensor, x: Tensor) -> Tensor:
    """(B, D), (B, E) -> (B, D + E); or (B, D), (B, N, E) -> (B * N, D + E), repeating each obs."""
    if x.dim() > obs.dim():
        obs = obs.repeat_interleave(x.shape[-2], dim=-2)
        x = x.flatten(-3, -2)
    return torch.cat([obs, x], dim=-1)


class SpectralNorm(nn.Module):
    """Parametrization W -> W / sigma; sigma is the largest singular value, estimated by power
    iteration (Miyato et al., 2018). torch's own version cannot handle stacked matrices."""

    def __init__(self, weight: Tensor):
        super().__init__()
        u = torch.linalg.svd(weight.detach(), full_matrices=False).U[..., :1]
        self.register_buffer("u", u.clone())  # (2, in, 1), first left singular vector

    def forward(self, weight: Tensor) -> Tensor:
        sigma = (self.u.mT @ weight).norm(dim=-1, keepdim=True)
        return weight / sigma

    def power_iteration(self, weight: Tensor) -> None:
        v = weight.mT @ self.u
        self.u.copy_(F.normalize(weight @ v, dim=-2))


class Critic(MLP):
    """Twin Q functions."""

    def __init__(self, S: int, obs_dim: int, action_dim: int, spectral_norm: bool = False):
        super().__init__((2, S), obs_dim + action_dim, 256, 1)
        self.init_weights(output_bound=3e-3)
        self.spectral_norm = spectral_norm
        if spectral_norm:
            for layer in self.layers:
                register_parametrization(layer, "weight", SpectralNorm(layer.weight))

    def forward(self, obs: Tensor, action: Tensor, dropout: float = 0.0) -> Tensor:
        """obs (B, D), action (B, A) -> (2, B), or action (B, N, A) -> (2, B, N)."""
        q = super().forward(concat(obs, action), dropout)
        return q.view(2, *action.shape[:-1])

    @torch.no_grad()
    def power_iteration(self) -> None:
        """One step for each layer, once per update (in torch: once per forward pass)."""
        if self.spectral_norm:
            for layer in self.layers:
                parametrization = layer.parametrizations.weight
                parametrization[0].power_iteration(parametrization.original)


class Actor(MLP):
    """Gaussian policy before a tanh: action = tanh(sample)."""

    def __init__(self, S: int, obs_dim: int, action_dim: int):
        super().__init__((S,), obs_dim, 256, 2 * action_dim)
        self.init_weights(output_bound=1e-3)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-std: (B, D) -> (B, A) each."""
        mean, log_std = super().forward(obs).chunk(2, dim=-1)
        return mean, log_std.clamp(-5, 2)  # ml-uwac

    def sample(self, obs: Tensor, num: int) -> Tensor:
        """Actions before the tanh: (B, D) -> (B, num, A)."""
        mean, log_std = self(obs)
        noise = torch.randn(*mean.shape[:-1], num, mean.shape[-1], device=obs.device)
        return mean.unsqueeze(-2) + log_std.exp().unsqueeze(-2) * noise


class BehaviorVAE(nn.Module):
    """Conditional VAE that models the actions in the data (BEAR)."""

    def __init__(self, S: int, obs_dim: int, action_dim: int):
        super().__init__()
        self.latent_dim = 2 * action_dim
        self.encoder = MLP((S,), obs_dim + action_dim, 750, 2 * self.latent_dim)
        self.decoder = MLP((S,), obs_dim + self.latent_dim, 750, action_dim)

    def loss(self, obs: Tensor, action: Tensor) -> Tensor:
        """Reconstruction error + 0.5 KL: obs (B, D), action (B, A) -> ()."""
        mean, log_std = self.encoder(concat(obs, action)).chunk(2, dim=-1)
        log_std = log_std.clamp(-4, 15)  # BEAR
        latent = mean + log_std.exp() * torch.randn_like(mean)
        reconstruction = self.decoder(concat(obs, latent)).tanh()
        error = (reconstruction - action).square()
        kl = -0.5 * (1 + 2 * log_std - mean.square() - (2 * log_std).exp())
        return error.mean((-2, -1)) + 0.5 * kl.mean((-2, -1))

    def sample(self, obs: Tensor, num: int) -> Tensor:
        """Likely actions of the data, before the tanh: (B, D) -> (B, num, A)."""
        latent = torch.randn(*obs.shape[:-1], num, self.latent_dim, device=obs.device)
        latent = latent.clamp(-0.5, 0.5)  # BEAR: likely actions only
        return self.decoder(concat(obs, latent)).unflatten(-2, (-1, num))


def mmd(x: Tensor, y: Tensor, kernel: str, sigma: float) -> Tensor:
    """Maximum mean discrepancy between two sets of M actions, (B, M, A) each -> (B,). The kernel is
    exp(-d / (2 sigma)), d being the squared Euclidean ("gaussian") or L1 distance ("laplacian")."""
    norm = {"gaussian": 2, "laplacian": 1}[kernel]

    def mean_kernel(a: Tensor, b: Tensor) -> Tensor:
        # Above 25 samples cdist would use a matmul, which --matmul-precision would round.
        d = torch.cdist(a, b, norm, compute_mode="donot_use_mm_for_euclid_dist") ** norm
        return torch.exp(-d / (2 * sigma)).mean((-2, -1))

    squared = mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)
    return (squared.clamp(min=0) + 1e-6).sqrt()  # 1e-6 keeps the gradient finite at 0


@torch.no_grad()
def mc_dropout_variance(critic: Critic, obs: Tensor, action: Tensor, p: float, T: int) -> Tensor:
    """Var[Q1], Var[Q2] over T dropout passes (paper, 4.1): obs (B, D), action (B, A) -> (2, B).
    It is `torch.stack([critic(obs, action, p) for _ in range(T)]).var(0)`, except that a pass draws
    one mask per layer for the whole batch, so that it samples one network."""
    first, second, last = critic.layers
    w2 = second.weight  # (2, H, H)
    w3 = last.weight.squeeze(-1)  # (2, H)
    h1 = F.relu(first(concat(obs, action))) / (1 - p)  # (2, B, H), scaled, no unit dropped yet
    drop1, drop2 = torch.rand(2, T, *w3.shape, device=h1.device) < p  # each layer's, (T, 2, H)
    w3_masked = w3 * ~drop2 / (1 - p)  # (T, 2, H); the last bias adds no variance
    if h1.is_cuda:
        at_once = max(1, 2**28 // h1.numel())  # passes: at most 1 GB in each tensor
        q = []
        for drop, w in zip(drop1.split(at_once), w3_masked.split(at_once)):
            h2 = F.relu((h1 * ~drop.unsqueeze(-2)) @ w2 + second.bias)  # (at_once, 2, B, H)
            q.append((h2 @ w.unsqueeze(-1)).squeeze(-1))
        return torch.cat(q).var(0)
    # The same, faster on a CPU: z sums over all units, and a pass subtracts the few that it drops.
    z = h1 @ w2 + second.bias  # (2, B, H)
    q = torch.empty(T, *z.shape[:-1])
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # for products this small "medium" is slower
    for i in np.ndindex(z.shape[:-2]):  # each critic (of each seed)
        rows = h1[i].T.contiguous()  # (H, B): a row is a unit
        w2_i, z_i = w2[i], z[i]
        for drop, w, q_t in zip(drop1[:, *i], w3_masked[:, *i], q[:, *i]):  # (H,), (H,), (B,)
            units = drop.nonzero().squeeze(1)
            h1_dropped = rows.index_select(0, units)
            w2_dropped = w2_i.index_select(0, units)
            h2 = z_i.addmm(h1_dropped.T, w2_dropped, alpha=-1).relu_()  # (B, H)
            torch.mv(h2, w, out=q_t)
    torch.set_float32_matmul_precision(precision)
    return q.var(0)


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


@torch.no_grad()
def uncertainty_weight(variance: Tensor, args: Args) -> Tensor:
    """Weight of each sample in a loss, (B,) -> (B,) (paper, equations 4 and 5)."""
    if args.weighting == "none":
        return torch.ones_like(variance)
    if args.weighting == "variance":
        weight = args.beta / variance
    elif args.weighting == "std":  # paper, 5.6
        weight = args.beta / variance.sqrt()
    else:  # "exp", as ml-uwac
        weight = torch.exp(-args.beta * variance)
    return weight.clamp(max=args.weight_clip)


def pick(candidates: Tensor, index: Tensor) -> Tensor:
    """One action for each state: (B, N, A), (B,) -> (B, A)."""
    return candidates.take_along_dim(index[..., None, None], dim=-2).squeeze(-2)


class Agent(nn.Module):
    """All S agents: the networks of Algorithm 1 and their optimizers."""

    algorithm = "uwac"
    args_type = Args
    weigh = staticmethod(uncertainty_weight)  # a subclass may weigh otherwise

    def __init__(self, args: Args, obs_dim: int, action_dim: int):
        super().__init__()
        self.args = args = args.resolved()
        self.dims = (obs_dim, action_dim)
        # Line 1: actor, critics and their targets. The VAE is for line 10.
        self.actor = Actor(args.num_seeds, obs_dim, action_dim)
        self.critic = Critic(args.num_seeds, obs_dim, action_dim, args.spectral_norm)
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
        """One step for `name` alone. Seeds share no parameters, so their losses are summed."""
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        loss.sum().backward(inputs=optimizer.param_groups[0]["params"])
        optimizer.step()

    def uncertainty(self, critic: Critic, obs: Tensor, action: Tensor) -> Tensor:
        """Var[Q1] + Var[Q2]: obs (B, D), action (B, A) -> (B,)."""
        p = self.args.dropout
        if p == 0:
            return torch.zeros(action.shape[:-1], device=action.device)
        if self.args.variance == "mc":
            return mc_dropout_variance(critic, obs, action, p, self.args.passes).sum(0)
        return analytic_dropout_variance(critic, obs, action, p).sum(0)

    @torch.no_grad()
    def act(self, obs: np.ndarray, num: int = 100) -> np.ndarray:
        """Actions in [-1, 1], the range of `d4rl.make`'s environments: the best by Q1 of `num`
        samples. Shapes: (D,) -> (S, A); (B, D), the same states for every agent, or (S, B, D),
        each agent's own -> (S, B, A). Raises ValueError for other shapes."""
        S, D = self.args.num_seeds, self.dims[0]
        obs = torch.as_tensor(obs, dtype=torch.float32, device=self.log_alpha.device)
        if obs.shape[-1:] != (D,) or obs.shape[:-2] not in ((), (S,)):
            shape = tuple(obs.shape)
            raise ValueError(f"observations {shape} are not ({D},), (B, {D}) or ({S}, B, {D})")
        states = torch.atleast_2d(obs).expand(S, -1, -1)
        candidates = self.actor.sample(states, num).tanh()  # (B, N, A)
        q1, _ = self.critic(states, candidates)  # (B, N)
        action = pick(candidates, q1.argmax(-1))
        return (action[:, 0] if obs.dim() == 1 else action).numpy(force=True)


def update(agent: Agent, data: list[Tensor], step: int | Tensor) -> dict[str, Tensor]:
    """One step of Algorithm 1, lines 3 to 12. `data` is the whole data set: obs (n, D), action
    (n, A), reward (n,), next_obs (n, D), done (n,). Returns metrics, one number per seed."""
    args = agent.args
    # Line 3: a mini-batch (for each seed).
    index = torch.randint(len(data[0]), (args.num_seeds, args.batch_size), device=data[0].device)
    obs, action, reward, next_obs, done = (array[index] for array in data)  # (B, ...)
    agent.critic.power_iteration()
    agent.target_critic.power_iteration()

    # The behaviour VAE learns the actions of the data (BEAR).
    vae_loss = agent.vae.loss(obs, action)
    agent.minimize(vae_loss, "vae")

    with torch.no_grad():
        # Line 5: candidate actions of the target actor.
        candidates = agent.target_actor.sample(next_obs, args.num_candidates).tanh()  # (B, N, A)
        # Line 6: the best by soft clipped double-Q, without dropout (ml-uwac: mean of T passes).
        q1, q2 = agent.target_critic(next_obs, candidates)  # (B, N) each
        mixture = args.lmbda * torch.minimum(q1, q2) + (1 - args.lmbda) * torch.maximum(q1, q2)
        y, best = mixture.max(-1)  # (B,)
        target_q = reward + args.gamma * (1 - done) * y
        # Line 7: Var[Q1] + Var[Q2] at the best action stands for Var[y] (ml-uwac: the maximum over
        # the candidates). A terminal step is weighted, too, though its target has no y.
        var_y = agent.uncertainty(agent.target_critic, next_obs, pick(candidates, best))  # (B,)
        weight = agent.weigh(var_y, args)
    # Line 8: weighted regression of both critics, with dropout.
    q = agent.critic(obs, action, args.dropout)  # (2, B)
    critic_loss = (weight * (q - target_q).square()).sum(0).mean(-1)
    agent.minimize(critic_loss, "critic")

    # Line 10: samples of the actor and of the VAE at obs, before the tanh (ml-uwac). The paper has
    # the target actor's at next_obs, and the data's, of which there is one for each state.
    actor_samples = agent.actor.sample(obs, args.num_mmd_samples)  # (B, M, A)
    with torch.no_grad():
        vae_samples = agent.vae.sample(obs, args.num_mmd_samples)  # (B, M, A)
    mmd_loss = mmd(actor_samples, vae_samples, args.mmd_kernel, args.mmd_sigma)  # (B,)
    # Line 11: the actor maximizes the weighted Q (equation 5) of its first sample, without dropout,
    # subject to MMD <= threshold. The multiplier alpha grows while the MMD exceeds the threshold.
    policy_action = actor_samples[..., 0, :].tanh()  # (B, A)
    q1, q2 = agent.critic(obs, policy_action)
    policy_q = torch.minimum(q1, q2)  # (B,)
    var_q = agent.uncertainty(agent.critic, obs, policy_action)  # (B,), no gradient
    policy_weight = agent.weigh(var_q, args)
    after_warmup = step > args.warmup_steps  # a factor 0 or 1, as a CUDA graph cannot branch
    alpha = agent.log_alpha.exp()
    mmd_violation = (mmd_loss - args.mmd_threshold).mean(-1)
    actor_loss = alpha.detach() * mmd_violation - after_warmup * (policy_weight * policy_q).mean(-1)
    agent.minimize(actor_loss, "actor")
    agent.minimize(-alpha * mmd_violation.detach(), "dual")

    with torch.no_grad():
        agent.log_alpha.clamp_(-5, 10)  # BEAR: alpha is at most e^10 = 22,026
        # Line 12: the targets follow, target += tau * (source - target).
        targets = [*agent.target_critic.parameters(), *agent.target_actor.parameters()]
        sources = [*agent.critic.parameters(), *agent.actor.parameters()]
        torch._foreach_lerp_(targets, sources, args.tau)

    return {
        "vae_loss": vae_loss,
        "critic_loss": critic_loss,
        "actor_loss": actor_loss,
        "alpha": alpha,
        "mmd": mmd_loss.mean(-1),
        "target_q": target_q.mean(-1),
        "policy_q": policy_q.mean(-1),
        "variance": var_y.mean(-1),
        "weight": weight.mean(-1),
        "policy_weight": policy_weight.mean(-1),
    }


def evaluate(
    agent: Agent, envs: list[d4rl.UnitActions], entropy: list[int], num: int
) -> np.ndarray:
    """One episode per environment, S * episodes of them, agent after agent, playing the best of
    `num` samples: returns, (S, episodes)."""
    seed = np.random.SeedSequence(entropy).generate_state(1).item()
    S = agent.args.num_seeds
    returns = np.zeros(len(envs))
    running = [*range(len(envs))]
    with torch.random.fork_rng(GPUS):  # evaluations must not change training
        torch.manual_seed(seed)
        obs = np.stack([env.reset(seed=seed % 2**30 + i)[0] for i, env in enumerate(envs)])
        while running:
            actions = agent.act(obs.reshape(S, -1, obs.shape[-1]), num).reshape(len(envs), -1)
            for i in [*running]:
                obs[i], reward, terminated, truncated, _ = envs[i].step(actions[i])
                returns[i] += reward
                if terminated or truncated:
                    running.remove(i)
    return returns.reshape(S, -1)


def save(run: Path, agent: Agent, result: dict) -> None:
    """Write checkpoint.pt (to resume and to act) and result.json (to read). Each is written under
    another name and then renamed: a crash leaves the previous version intact. Raises OSError."""
    checkpoint = io.BytesIO()  # to a full disk torch.save raises RuntimeError, not OSError
    state = result | {
        "dims": agent.dims,
        "agent": agent.state_dict(),
        "optimizers": {name: opt.state_dict() for name, opt in agent.optimizers.items()},
        "rng": RNG.get_rng_state(),
    }
    torch.save(state, checkpoint)
    files = {
        "checkpoint.pt": checkpoint.getbuffer(),
        "result.json": json.dumps(result, indent=2).encode(),
    }
    for name, content in files.items():
        (run / "unfinished.tmp").write_bytes(content)
        (run / "unfinished.tmp").replace(run / name)


def load_checkpoint(run: str | Path, agent_type: type[Agent] = Agent) -> tuple[Agent, dict]:
    """A run's agent, and all that was saved. Runs no code from the file. Raises ValueError."""
    path = Path(run).expanduser() / "checkpoint.pt"
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if saved.get("algorithm") != agent_type.algorithm:
            raise ValueError(f"it is a run of {saved.get('algorithm')}")
        args = agent_type.args_type(**saved["args"])
        if to_jsonable_python(args) != saved["args"]:  # a missing one got its default
            raise ValueError("its arguments are another version's")
        agent = agent_type(args, *saved["dims"]).to(DEVICE)
        agent.load_state_dict(saved["agent"])
        for name, optimizer in agent.optimizers.items():
            optimizer.load_state_dict(saved["optimizers"][name])
    except Exception as error:  # a damaged file can raise almost anything
        raise ValueError(f"{path}: no run of {agent_type.algorithm} to load ({error})") from error
    return agent, saved


def resume(saved: dict, result: dict) -> None:
    """Put a saved run's history into `result` and restore its random state. Raises ValueError if
    the data, the device or an argument that shapes training has changed."""
    before = saved["args"] | {"data": saved["data"]["sha256"], "device": saved["device"]}
    now = result["args"] | {"data": result["data"]["sha256"], "device": result["device"]}
    for name in before.keys() - RESUMABLE:
        if before[name] != now[name]:
            raise ValueError(f"--resume: {name} was {before[name]} and cannot change")
    done = saved["history"][-1]["step"] if saved["history"] else 0
    if done > now["total_steps"]:
        raise ValueError(f"--total-steps {now['total_steps']}: the run has {done} already")
    result["history"] = saved["history"]
    RNG.set_rng_state(saved["rng"])


def main(args: Args, dataset: dict | None = None, agent_type=Agent, update=update) -> dict:
    """Train on the task's data, or on `dataset`, a dict of arrays named as in D4RL. Returns the
    contents of result.json. Programs in benchmark/ pass an agent and an update of their own.
    Raises ImportError for another d4rl, ValueError before any training, FloatingPointError where
    it diverges, OSError where a file cannot be read or written."""
    if not hasattr(d4rl, "TASKS"):
        raise ImportError(f"{d4rl.__file__} is not the d4rl that comes with this script")
    if args.dropout == 0 and args.weighting != "none":
        raise ValueError("--dropout 0: no variance to weigh by; add --weighting none")
    if args.cuda_graph and DEVICE != "cuda":
        raise ValueError("--cuda-graph: there is no GPU")
    if args.resume and args.run_dir:
        raise ValueError(f"--run-dir {args.run_dir}: a resumed run stays in {args.resume}")
    args = args.resolved()
    time = f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
    name = f"{args.env_id}__{agent_type.algorithm}__{args.seed}__{time}"
    name = name.replace("/", "-").replace(":", "-")
    run = (args.resume or args.run_dir or Path("runs") / name).expanduser()
    files = {file.name for file in run.glob("*")}
    if not args.resume and files - {"in-use.lock", "unfinished.tmp"}:
        raise ValueError(f"--run-dir {run} has files: choose another")
    torch.set_float32_matmul_precision(args.matmul_precision)
    torch.empty(8_000_000)  # its free raises glibc's mmap threshold to 32 MB: 7% faster on CPUs
    torch.manual_seed(args.seed)
    num_envs = args.num_seeds * args.eval_episodes
    lock = FileLock(run / "in-use.lock", timeout=0)  # no two processes train one run
    with (
        lock if run.exists() else nullcontext(),  # an old run is locked before it is read
    ):
        envs = [d4rl.make(args.env_id) for _ in range(num_envs)]
        agent, saved = load_checkpoint(args.resume, agent_type) if args.resume else (None, None)
        if dataset is None:
            file = saved["data"]["path"] if saved else None
            dataset = args.dataset_path or file or d4rl.download(args.env_id)
        transitions = d4rl.qlearning_dataset(envs[0], dataset)
        # In this order: obs, action, reward, next_obs, done.
        data = [torch.as_tensor(array, device=DEVICE) for array in transitions.values()]
        result = {
            "algorithm": agent_type.algorithm,
            "args": to_jsonable_python(replace(args, run_dir=None, resume=None)),
            "data": d4rl.describe(dataset),
            "transitions": len(data[0]),
            "versions": {package: version(package) for package in PACKAGES},
            "device": DEVICE,
            "hardware": f"{DEVICE}, {torch.get_num_threads()} threads",
            "history": [],
        }
        if saved:
            resume(saved, result)
            agent.args = args  # with the new --total-steps
        else:
            dims = (*envs[0].observation_space.shape, *envs[0].action_space.shape)
            agent = agent_type(args, *dims).to(DEVICE)
        run.mkdir(parents=True, exist_ok=lock.is_locked)  # fails if another made it meanwhile
        with lock:  # a new run: now that it has a folder
            origin = "D4RL's own file" if result["data"]["d4rl"] else "not D4RL's own"
            print(f"{len(data[0])} transitions of {result['data']['path']} ({origin})")
            print(f"on {DEVICE}; results in {run}: --resume {run} goes on from its last evaluation")
            if args.warmup_steps >= args.total_steps:
                print(f"warning: the actor never sees Q: see --warmup-steps {args.warmup_steps}")
            train(run, agent, data, envs, result, update)
    return result


def as_cuda_graph(update, agent: Agent, data: list[Tensor]):
    """`update` recorded as one CUDA graph, and called with the step alone."""
    from tensordict.nn import CudaGraphModule

    for optimizer in agent.optimizers.values():
        optimizer.param_groups[0]["capturable"] = True  # its step count stays on the GPU
    graph = CudaGraphModule(partial(update, agent, data))
    return lambda step: graph(torch.full((), step, device=DEVICE))  # takes tensors alone


def train(run: Path, agent: Agent, data: list[Tensor], envs, result: dict, update) -> None:
    """The updates that `result` lacks, with an evaluation and a checkpoint every --eval-every."""
    args, history = agent.args, result["history"]
    start, seconds = (history[-1]["step"], history[-1]["seconds"]) if history else (0, 0.0)
    began = perf_counter() - seconds
    launch = partial(update, agent, data)
    if args.cuda_graph:
        launch = as_cuda_graph(update, agent, data)
    steps = range(start + 1, args.total_steps + 1)
    save(run, agent, result)  # so it can be resumed at once
    with SummaryWriter(run, purge_step=start + 1) as writer:
        writer.add_text("arguments", json.dumps(result["args"], indent=4), start)
        bar = tqdm(steps, initial=start, total=args.total_steps, unit=" updates", mininterval=10)
        for step in bar:
            metrics = launch(step)
            evaluating = step % args.eval_every == 0 or step == args.total_steps
            logging = evaluating or step % args.log_every == 0 or step == 100  # an early line
            if not logging:
                continue

            metrics = {name: value.numpy(force=True) for name, value in metrics.items()}  # (S,)
            bad = [name for name, values in metrics.items() if not np.isfinite(values).all()]
            if bad:
                raise FloatingPointError(f"diverged at update {step}: {', '.join(bad)} not finite")
            if evaluating:
                torch.set_float32_matmul_precision("highest")  # scores in full precision
                returns = evaluate(agent, envs, [args.seed, step], args.eval_candidates)
                returns_sample = evaluate(agent, envs, [args.seed, step], 1)  # not picked by Q1
                if not np.isfinite([returns, returns_sample]).all():
                    raise FloatingPointError(f"diverged at update {step}: a return is not finite")
                torch.set_float32_matmul_precision(args.matmul_precision)
                metrics["score"] = d4rl.normalized_score(args.env_id, returns).mean(1)
                metrics["score_sample"] = d4rl.normalized_score(args.env_id, returns_sample).mean(1)

            for name, values in metrics.items():
                for i, value in enumerate(values):
                    writer.add_scalar(f"{name}/agent-{i}", value, step)
            line = ", ".join(f"{name} {values.mean():.3g}" for name, values in metrics.items())
            if step <= args.warmup_steps:
                line = f"warm-up, {line}"
            elif evaluating and metrics["weight"].mean() > 0.999 * args.weight_clip:
                line += "; nearly every weight is at its limit"
            with bar.external_write_mode():
                print(f"{step}/{args.total_steps}: {line}", flush=True)
            if evaluating:
                writer.flush()  # before save: a resumed run logs only what follows its checkpoint
                row = {name: values.tolist() for name, values in metrics.items()}
                history.append({"step": step, "seconds": perf_counter() - began, **row})
                save(run, agent, result)


if __name__ == "__main__":
    try:
        args = tyro.cli(Args, description=__doc__)
        if args.resume:  # the run's own arguments become the defaults
            args = tyro.cli(Args, default=load_checkpoint(args.resume)[0].args)
        main(args)
    except KeyboardInterrupt:
        sys.exit("stopped: --resume RUN goes on from its last evaluation")
    except (ValueError, ArithmeticError, OSError, ImportError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")  # on one line
