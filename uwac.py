"""UWAC: offline reinforcement learning that gives less weight to uncertain Q values.

Wu et al., "Uncertainty Weighted Actor-Critic for Offline Reinforcement Learning" (ICML 2021). UWAC
is BEAR (bear.py) plus critics trained with dropout (and, on Adroit, with spectral norm), the
variance of Q under that dropout, and losses weighted by beta / Var[Q]. `update` names the lines of
Algorithm 1; `diff bear.py uwac.py` shows what UWAC adds.

    python uwac.py --env-id door-demo --warmup-steps 500 --total-steps 2000 --variance analytic

Shapes. S: seeds trained side by side; B: batch (the paper's N); N: candidate actions (the paper's
p); M: actions in a set of the MMD (the paper's m and n); D: observation; A: action; H: hidden
units; T: dropout passes. Twin critics: a leading 2.

Brackets name the source of a choice: paper (5.5: a section), ml-uwac (its authors' code), BEAR (the
code of BEAR's author, on which ml-uwac builds), CORL (offline RL in single files), D4RL. "Unlike X"
marks where we differ from X; docs/fidelity.md says why.
"""

import copy
import hashlib
import io
import json
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import fields, replace
from datetime import datetime
from functools import partial
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
from tqdm import tqdm, trange

try:
    import d4rl
    from d4rl import UnitActions  # which no other package of that name has
except ImportError as error:
    needed = f"this project's folder d4rl/ beside {__file__}, and requirements.txt installed"
    sys.exit(f"error: needs {needed} ({error})")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RANDOM = torch.cuda if DEVICE == "cuda" else torch.random  # its state goes into checkpoints
# Arguments that may change when a run goes on.
RESUMABLE = {"total_steps", "eval_every", "eval_episodes", "log_every"}
RESUMABLE |= {"dataset_path", "run_dir", "resume"}  # the data must be the same by their SHA-256
UnitInterval = Annotated[float, Field(ge=0, le=1)]


@dataclass(config={"allow_inf_nan": False, "extra": "forbid"})
class Args:
    env_id: str = "door-human"  # D4RL task (v0 if no version is given), or door-demo, included here
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # random seed: a rerun repeats the numbers
    num_seeds: PositiveInt = 1  # agents trained at once, S, all drawn from this seed (paper: 5)
    # highest: float32; high: float32, but TF32 on a GPU; medium: bfloat16 on a CPU with AMX
    matmul_precision: Literal["highest", "high", "medium"] = "high"
    cuda_graph: bool = False  # faster on a GPU: one launch an update (pip install tensordict)
    # UWAC
    beta: PositiveFloat = 1.6  # weight: beta / (Var[Q1] + Var[Q2]) (paper, 5.5: 0.8, 1.6 or 2.5)
    # rate after each hidden layer (ml-uwac; unlike the paper, 4.1, which drops inputs, too)
    dropout: Annotated[float, Field(gt=0, lt=1)] = 0.1
    # Var[Q] by sampling (Algorithm 1), or approximated in closed form (ours)
    variance: Literal["mc", "analytic"] = "mc"
    passes: Annotated[int, Field(ge=2)] = 100  # dropout passes of "mc", T (paper, Algorithm 1)
    weight_clip: PositiveFloat = 1.5  # largest weight (unlike the paper, 5.5, which limits 1 / Var)
    spectral_norm: Literal["auto", True, False] = "auto"  # in critics; auto: Adroit (paper, 5.5)
    # BEAR
    batch_size: PositiveInt = 256  # transitions per update, B (BEAR)
    gamma: UnitInterval = 0.99  # discount per step (BEAR)
    tau: UnitInterval = 0.005  # Polyak rate of the target networks (BEAR)
    lmbda: UnitInterval = 0.75  # target: lmbda * min(Q1, Q2) + (1 - lmbda) * max(Q1, Q2) (BEAR)
    num_candidates: PositiveInt = 10  # actions a target maximizes over, N; Algorithm 1's p (BEAR)
    num_mmd_samples: PositiveInt = 10  # actions per state in the MMD, M; Algorithm 1's n (paper)
    # auto: laplacian on hopper and walker2d, else gaussian (BEAR; the paper searched)
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
    eval_episodes: PositiveInt = 10  # episodes per evaluation, agent and score (CORL)
    eval_candidates: PositiveInt = 100  # actions sampled (paper, 5.5); the best by Q1 acts (BEAR)
    log_every: PositiveInt = 1_000  # updates between printed lines, and between TensorBoard entries
    dataset_path: Path | None = None  # HDF5 in D4RL's format; then env_id may be any Gymnasium task
    run_dir: Path | None = None  # folder of the run; default: runs/ENV__ALGORITHM__SEED__TIME
    resume: bool = False  # go on with the run in --run-dir, or begin it if there is none

    def __post_init__(self):
        """Decides "auto"."""
        task = d4rl.task_of(self.env_id)
        if self.mmd_kernel == "auto":
            self.mmd_kernel = "laplacian" if task in ("hopper", "walker2d") else "gaussian"
        if self.spectral_norm == "auto":
            self.spectral_norm = task in ("pen", "hammer", "door", "relocate")


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

    @torch.no_grad()
    def init_weights(self, output_bound: float) -> None:
        """Initial weights of BEAR and ml-uwac."""
        for layer in self.layers[:2]:
            bound = layer.bias.shape[-1] ** -0.5  # fan-out, where fan-in is usual
            layer.weight.uniform_(-bound, bound)
            layer.bias.fill_(0.1)
        for parameter in self.layers[2].parameters():
            parameter.uniform_(-output_bound, output_bound)


def concat(obs: Tensor, x: Tensor) -> Tensor:
    """obs (S, B, D) beside an action or latent, x (S, B, X) -> (S, B, D + X); or beside N of them
    for each state, x (S, B, N, X) -> (S, B * N, D + X)."""
    if x.dim() == 4:
        obs = obs.repeat_interleave(x.shape[2], dim=1)
        x = x.flatten(1, 2)
    return torch.cat([obs, x], dim=-1)


class SpectralNorm(nn.Module):
    """Parametrization W -> W / sigma; sigma is the largest singular value, estimated by power
    iteration (Miyato et al., 2018). torch's own version cannot handle stacked matrices."""

    def __init__(self, weight: Tensor):
        super().__init__()
        u = torch.linalg.svd(weight.detach(), full_matrices=False).U[..., :1]
        self.register_buffer("u", u.clone())  # (2, S, in, 1), first left singular vector

    def forward(self, weight: Tensor) -> Tensor:
        sigma = (self.u.mT @ weight).norm(dim=-1, keepdim=True)  # (2, S, 1, 1)
        return weight / sigma

    def power_iteration(self, weight: Tensor) -> None:
        v = weight.mT @ self.u
        self.u.copy_(F.normalize(weight @ v, dim=-2))


class Critic(MLP):
    """Twin Q functions."""

    def __init__(self, args: Args, obs_dim: int, action_dim: int):
        super().__init__((2, args.num_seeds), obs_dim + action_dim, 256, 1)
        self.init_weights(output_bound=3e-3)
        self.spectral_norm = args.spectral_norm
        if args.spectral_norm:  # of all layers (ml-uwac)
            for layer in self.layers:
                register_parametrization(layer, "weight", SpectralNorm(layer.weight))

    def forward(self, obs: Tensor, action: Tensor, dropout: float = 0.0) -> Tensor:
        """obs (S, B, D), action (S, B, A) -> (2, S, B), or action (S, B, N, A) -> (2, S, B, N)."""
        q = super().forward(concat(obs, action), dropout)
        return q.view(2, *action.shape[:-1])

    @torch.no_grad()
    def power_iteration(self) -> None:
        """One step for each layer, once per update (in torch: once per forward pass)."""
        if self.spectral_norm:
            for layer in self.layers:
                weight = layer.parametrizations.weight
                weight[0].power_iteration(weight.original)  # of W, not W / sigma


class Actor(MLP):
    """Gaussian policy before a tanh: action = tanh(sample)."""

    def __init__(self, S: int, obs_dim: int, action_dim: int):
        super().__init__((S,), obs_dim, 256, 2 * action_dim)
        self.init_weights(output_bound=1e-3)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-std: (S, B, D) -> (S, B, A) each."""
        mean, log_std = super().forward(obs).chunk(2, dim=-1)
        return mean, log_std.clamp(-5, 2)  # ml-uwac

    def sample(self, obs: Tensor, num: int) -> Tensor:
        """Actions before the tanh: (S, B, D) -> (S, B, num, A)."""
        mean, log_std = self(obs)
        S, B, A = mean.shape
        noise = torch.randn(S, B, num, A, device=obs.device)
        std = log_std.exp()
        return mean[:, :, None] + std[:, :, None] * noise


class BehaviorVAE(nn.Module):
    """Conditional VAE that models the actions in the data (BEAR)."""

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
        reconstruction = self.decoder(concat(obs, latent)).tanh()
        error = (reconstruction - action).square()
        variance = (2 * log_std).exp()
        kl = 0.5 * (mean.square() + variance - 1 - 2 * log_std)  # from N(0, 1)
        return error.mean((1, 2)) + 0.5 * kl.mean((1, 2))

    def sample(self, obs: Tensor, num: int) -> Tensor:
        """Likely actions of the data, before the tanh: (S, B, D) -> (S, B, num, A)."""
        S, B, _ = obs.shape
        latent = torch.randn(S, B, num, self.latent_dim, device=obs.device)
        latent = latent.clamp(-0.5, 0.5)  # BEAR: likely actions only
        action = self.decoder(concat(obs, latent))  # (S, B * num, A)
        return action.view(S, B, num, -1)


def mmd(x: Tensor, y: Tensor, kernel: str, sigma: float) -> Tensor:
    """Maximum mean discrepancy of two sets of M actions, (S, B, M, A) each -> (S, B). The kernel is
    exp(-d / (2 sigma)), d being the squared Euclidean ("gaussian") or L1 distance ("laplacian")."""
    p = {"gaussian": 2, "laplacian": 1}[kernel]

    def mean_kernel(a: Tensor, b: Tensor) -> Tensor:
        # Above 25 samples cdist would use a matmul, which is inaccurate for close actions.
        d = torch.cdist(a, b, p, compute_mode="donot_use_mm_for_euclid_dist") ** p
        return torch.exp(-d / (2 * sigma)).mean((2, 3))

    squared = mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)
    return (squared.clamp(min=0) + 1e-6).sqrt()  # 1e-6 keeps the gradient finite at 0


@torch.no_grad()
def mc_dropout_variance(
    critic: Critic, obs: Tensor, action: Tensor, rate: float, passes: int
) -> Tensor:
    """Var[Q1], Var[Q2] over dropout passes (paper, 4.1); shapes as in Critic. It is

        torch.stack([critic(obs, action, rate) for _ in range(passes)]).var(0)

    except that all states share the masks of a pass, so that a pass samples one network (unlike
    ml-uwac). `var` divides by T - 1 (ml-uwac; unlike the paper)."""
    first, second, last = critic.layers
    h1 = F.relu(first(concat(obs, action))) / (1 - rate)  # (2, S, B, H), scaled as by F.dropout
    w2 = second.weight
    shape = (passes, *h1.shape[:2], h1.shape[-1])  # of a hidden layer's masks, (T, 2, S, H)
    keep1 = torch.rand(*shape, device=h1.device) >= rate
    keep2 = torch.rand(*shape, device=h1.device) >= rate
    w3 = last.weight.squeeze(-1) * (keep2 / (1 - rate))  # (T, 2, S, H); no bias: it is constant
    if h1.is_cuda:
        h2 = F.relu((h1 * keep1.unsqueeze(-2)) @ w2 + second.bias)  # (T, 2, S, B, H)
        q = (h2 @ w3.unsqueeze(-1)).squeeze(-1)  # (T, 2, S, B)
    else:
        # The same, four times faster at a rate of 0.1: the second layer's sums over all units of
        # the first are made once, and each pass subtracts the part of the few that keep1 drops.
        sums = h1 @ w2 + second.bias  # (2, S, B, H)
        columns = h1.mT.contiguous()  # (2, S, H, B)
        q = h1.new_empty(passes, *h1.shape[:-1])  # (T, 2, S, B)
        for t, c, s in np.ndindex(q.shape[:3]):  # each pass of each critic of each seed
            dropped = (~keep1[t, c, s]).nonzero().squeeze(1)
            part = columns[c, s].index_select(0, dropped).T @ w2[c, s].index_select(0, dropped)
            q[t, c, s] = (sums[c, s] - part).relu_() @ w3[t, c, s]
    return q.var(0).view(2, *action.shape[:-1])


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


class Agent(nn.Module):
    """All S agents: the networks of Algorithm 1 and their optimizers. A checkpoint keeps these,
    buffers and torch's random state. Other state that a subclass changes in training, or
    numpy's random state, is not saved."""

    # For subclasses to replace, as those in benchmark/variants/ do.
    algorithm = "uwac"  # in results; a checkpoint loads into the same algorithm only
    args_type = Args
    critic_type = Critic  # `uncertainty` reads its layers: replace both, or neither

    def __init__(self, args: Args, obs_dim: int, action_dim: int):
        super().__init__()
        self.args = args
        self.dims = (obs_dim, action_dim)
        # Line 1: actor, critics and their targets. The VAE is for line 10.
        self.actor = Actor(args.num_seeds, obs_dim, action_dim)
        self.critic = self.critic_type(args, obs_dim, action_dim)
        self.target_actor = copy.deepcopy(self.actor)
        self.target_critic = copy.deepcopy(self.critic)
        self.vae = BehaviorVAE(args.num_seeds, obs_dim, action_dim)
        self.log_alpha = nn.Parameter(torch.zeros(args.num_seeds))
        # Adam (ml-uwac; unlike the paper's SGD) ignores a loss's scale: with the weights of all
        # samples multiplied by a constant, the critics learn the same.
        adam = partial(torch.optim.Adam, fused=True, capturable=args.cuda_graph)
        self.optimizers = {
            "actor": adam(self.actor.parameters(), args.actor_lr),
            "critic": adam(self.critic.parameters(), args.critic_lr),
            "vae": adam(self.vae.parameters(), args.vae_lr),
            "dual": adam([self.log_alpha], args.dual_lr),
        }

    def minimize(self, loss: Tensor, name: str) -> None:
        """One step for `name` alone: no other network gets a gradient. loss (S,): seeds share no
        parameters, so their losses are summed."""
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        loss.sum().backward(inputs=optimizer.param_groups[0]["params"])
        optimizer.step()

    def uncertainty(self, critic: Critic, obs: Tensor, action: Tensor) -> Tensor:
        """Var[Q1] + Var[Q2] (ml-uwac; unlike the paper's one Q): obs (S, B, D), action (S, B, A) ->
        (S, B)."""
        args = self.args
        if args.variance == "mc":
            return mc_dropout_variance(critic, obs, action, args.dropout, args.passes).sum(0)
        return analytic_dropout_variance(critic, obs, action, args.dropout).sum(0)

    def weigh(self, variance: Tensor, q: Tensor, loss: Literal["critic", "actor"]) -> Tensor:
        """Weight of each sample, by its Var[Q1] + Var[Q2] (paper, equations 4 and 5): (S, B) ->
        (S, B). `q` (S, B), y or the policy's Q, and `loss` are for subclasses."""
        weight = self.args.beta / variance
        return weight.clamp(max=self.args.weight_clip)

    @torch.no_grad()
    def act(self, obs: np.ndarray, num: int | None = None) -> np.ndarray:
        """Actions in [-1, 1], the range of `d4rl.make`'s environments: the best by Q1 of `num`
        samples, by default --eval-candidates. obs (D,) -> (S, A); obs (B, D), the same states for
        every agent, or (S, B, D), each agent's own -> (S, B, A)."""
        obs = torch.as_tensor(obs, dtype=torch.float32, device=self.log_alpha.device)
        states = torch.atleast_2d(obs).expand(self.args.num_seeds, -1, -1)  # (S, B, D)
        candidates = self.actor.sample(states, num or self.args.eval_candidates).tanh()
        q1, _ = self.critic(states, candidates)  # (S, B, N)
        action = pick(candidates, q1.argmax(-1))  # (S, B, A)
        if obs.dim() == 1:
            action = action.squeeze(1)
        return action.numpy(force=True)


def update(agent: Agent, data: list[Tensor], step: Tensor) -> dict[str, Tensor]:
    """One step of Algorithm 1, lines 3 to 12 (4 and 9 are headings). `data` has a row for each
    transition: obs (rows, D), action (rows, A), reward, next_obs, done (0 or 1). `step` is from 1.
    Returns metrics, (S,) each."""
    args = agent.args
    # Line 3: a mini-batch for each seed.
    index = torch.randint(len(data[0]), (args.num_seeds, args.batch_size), device=data[0].device)
    obs, action, reward, next_obs, done = (array[index] for array in data)  # (S, B, ...)

    # Spectral norm: follow the layers' largest singular values.
    agent.critic.power_iteration()
    agent.target_critic.power_iteration()

    # The behaviour VAE learns the actions of the data, for line 10 (BEAR).
    vae_loss = agent.vae.loss(obs, action)
    agent.minimize(vae_loss, "vae")

    with torch.no_grad():
        # Line 5: candidate actions of the target actor.
        candidates = agent.target_actor.sample(next_obs, args.num_candidates).tanh()  # (S, B, N, A)
        # Line 6: the best by soft clipped double-Q, without dropout (unlike ml-uwac).
        q1, q2 = agent.target_critic(next_obs, candidates)  # (S, B, N) each
        mixture = args.lmbda * torch.minimum(q1, q2) + (1 - args.lmbda) * torch.maximum(q1, q2)
        y, best = mixture.max(-1)  # (S, B); the paper's y, which has no reward
        target_q = reward + args.gamma * (1 - done) * y
        # Line 7: Var[Q1] + Var[Q2] at the best action stands for Var[y] (unlike ml-uwac, which has
        # the largest of all candidates). A terminal step is weighted, too (ml-uwac).
        var_y = agent.uncertainty(agent.target_critic, next_obs, pick(candidates, best))  # (S, B)
        weight = agent.weigh(var_y, y, "critic")
    # Line 8: weighted regression of both critics, with dropout.
    q = agent.critic(obs, action, args.dropout)  # (2, S, B)
    critic_loss = (weight * (q - target_q).square()).sum(0).mean(-1)
    agent.minimize(critic_loss, "critic")

    # Line 10: M actions of the actor and M of the VAE, both at s and before the tanh (ml-uwac).
    # Unlike the paper, which takes the target actor's at s', and the data's, one for each state.
    actor_samples = agent.actor.sample(obs, args.num_mmd_samples)  # (S, B, M, A)
    with torch.no_grad():
        vae_samples = agent.vae.sample(obs, args.num_mmd_samples)  # (S, B, M, A)
    distance = mmd(actor_samples, vae_samples, args.mmd_kernel, args.mmd_sigma)  # (S, B)
    # Line 11: the actor maximizes the weighted Q (equation 5) of its first sample, without dropout
    # (unlike ml-uwac), subject to MMD <= threshold. The multiplier alpha grows while the MMD
    # exceeds the threshold.
    policy_action = actor_samples[:, :, 0].tanh()  # (S, B, A)
    q1, q2 = agent.critic(obs, policy_action)
    policy_q = torch.minimum(q1, q2)  # (S, B) (ml-uwac; unlike the paper's one Q)
    var_q = agent.uncertainty(agent.critic, obs, policy_action)  # (S, B), no gradient (ml-uwac)
    policy_weight = agent.weigh(var_q, policy_q, "actor").detach()
    after_warmup = step > args.warmup_steps  # a factor 0 or 1, as a CUDA graph cannot branch
    alpha = agent.log_alpha.exp()
    violation = (distance - args.mmd_threshold).mean(-1)
    actor_loss = alpha.detach() * violation - after_warmup * (policy_weight * policy_q).mean(-1)
    agent.minimize(actor_loss, "actor")
    agent.minimize(-alpha * violation.detach(), "dual")

    with torch.no_grad():
        agent.log_alpha.clamp_(-5, 10)  # BEAR: alpha is at most e^10 = 22,026
        # Line 12: target += tau * (source - target); the paper prints target = tau * source.
        targets = [*agent.target_critic.parameters(), *agent.target_actor.parameters()]
        sources = [*agent.critic.parameters(), *agent.actor.parameters()]
        for target, source in zip(targets, sources):
            target.lerp_(source, args.tau)

    return {
        "vae_loss": vae_loss,
        "critic_loss": critic_loss,
        "actor_loss": actor_loss,
        "alpha": alpha,
        "mmd": distance.mean(-1),
        "target_q": target_q.mean(-1),
        "policy_q": policy_q.mean(-1),
        "variance": var_y.mean(-1),
        "weight": weight.mean(-1),
        "policy_variance": var_q.mean(-1),
        "policy_weight": policy_weight.mean(-1),
    }


def evaluate(agent: Agent, envs: list[UnitActions], seeds: list[int], num: int) -> np.ndarray:
    """Play an episode in each environment, in the order of the agents, by the best of `num`
    samples. -> returns (S, episodes). Raises as d4rl.play."""
    S = agent.args.num_seeds
    seed = np.random.SeedSequence(seeds).generate_state(1).item() % 2**30  # env i has seed + i

    def act(obs: np.ndarray) -> np.ndarray:  # (S * episodes, D) -> (S * episodes, A)
        action = agent.act(obs.reshape(S, -1, obs.shape[-1]), num)
        return action.reshape(len(obs), -1)

    with torch.random.fork_rng(range(torch.cuda.device_count())):  # training keeps its own
        torch.manual_seed(seed)
        return d4rl.play(act, envs, seed).reshape(S, -1)


def save(run: Path, agent: Agent, result: dict) -> None:
    """Write checkpoint.pt (to resume and to act) and result.json (to read). Each is written under
    another name and then renamed: a crash leaves the previous version intact."""
    state = {
        "dims": agent.dims,
        "agent": agent.state_dict(),
        "optimizers": {name: opt.state_dict() for name, opt in agent.optimizers.items()},
        "rng": RANDOM.get_rng_state(),
    }
    new = run / "unfinished.tmp"
    content = io.BytesIO()
    torch.save(result | state, content)  # to a full disk, torch would raise a RuntimeError
    new.write_bytes(content.getbuffer())
    new.replace(run / "checkpoint.pt")
    new.write_text(json.dumps(result, indent=2))
    new.replace(run / "result.json")


def load_checkpoint(run: str | Path, agent_type: type[Agent] = Agent) -> tuple[Agent, dict]:
    """A run's agent, and all that was saved. Runs no code from the file. Raises ValueError unless
    it is a checkpoint of this algorithm and version."""
    path = Path(run).expanduser() / "checkpoint.pt"
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        algorithm, names = saved["algorithm"], saved["args"].keys()
    except Exception as error:  # damage shows in many ways
        raise ValueError(f"{path}: missing, damaged, or not a run's") from error
    if algorithm != agent_type.algorithm:
        raise ValueError(f"{path}: a run of {algorithm}, not of {agent_type.algorithm}")
    # An argument that the file lacks would get today's default.
    if names != {field.name for field in fields(agent_type.args_type)}:
        raise ValueError(f"{path}: a run of another version of {algorithm}")
    args = agent_type.args_type(**saved["args"] | {"run_dir": run})
    agent = agent_type(args, *saved["dims"]).to(DEVICE)
    agent.load_state_dict(saved["agent"])
    for name, optimizer in agent.optimizers.items():
        optimizer.load_state_dict(saved["optimizers"][name])
    return agent, saved


def checksums(agent_type: type[Agent], update: Callable) -> dict[str, str | None]:
    """SHA-256 of the files that define the agent and the update, by file name; None for code typed
    in, as in a notebook. For an update of the user's also its name, and numbers and strings bound
    by a `partial`."""
    partly = isinstance(update, partial)
    function = update.func if partly else update
    given = [*enumerate(update.args), *update.keywords.items()] if partly else []
    code = [cls for cls in agent_type.__mro__ if cls not in nn.Module.__mro__]
    code += [agent_type.critic_type, function]
    sums = {}
    for module in (sys.modules[one.__module__] for one in code):
        file = Path(getattr(module, "__file__", None) or "typed in")
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
        same = sums.get(file.name, sha256) == sha256  # else two files have one name
        sums[file.name if same else f"{file.parent.name}/{file.name}"] = sha256
    known = (int, float, str, np.generic)
    words = [getattr(function, "__name__", "update")]
    words += [f"{name}={value}" for name, value in given if isinstance(value, known)]
    if words != ["update"]:
        sums["update"] = " ".join(words)
    return sums


def hardware() -> str:
    """The processor's name, and how many threads compute."""
    cpu = torch.cpu.get_capabilities()
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else cpu.get("cpu_name", "CPU")
    amx = " with AMX" * (DEVICE == "cpu" and cpu.get("amx_bf16", False))  # where medium is bfloat16
    return f"{name}{amx}, {torch.get_num_threads()} threads"


def resume(args: Args, result: dict, agent_type: type[Agent]) -> tuple[Agent, dict]:
    """The agent of the run in `args.run_dir`, and `result` with that run's progress and versions.
    Restores the random state. Raises ValueError for other data, another device or other arguments;
    warns of another script, torch or processor."""
    agent, saved = load_checkpoint(args.run_dir, agent_type)
    before = saved["args"] | {"data": saved["data"]["sha256"], "device": saved["device"]}
    now = result["args"] | {"data": result["data"]["sha256"], "device": result["device"]}
    for name in now.keys() - RESUMABLE:
        if before[name] != now[name]:
            problem = f"{name} was {before[name]} and cannot change"
            if name == "data":
                problem += f"; they are in {saved['data']['path']}"
            raise ValueError(f"{args.run_dir}: {problem}")
    for name in ("scripts", "torch", "hardware"):  # each a list, of all that trained
        if saved[name][-1] != result[name][0]:
            print(f"warning: another {name} than before; result.json has both")
            saved[name] += result[name]
    RANDOM.set_rng_state(saved["rng"])  # nothing may draw before the next update
    agent.args = args  # with the new --total-steps
    kept = ("scripts", "torch", "hardware", "updates", "seconds", "history")
    return agent, result | {name: saved[name] for name in kept}


def set_up(
    args: Args, dataset: Mapping | None, agent_type: type[Agent], update: Callable, stack: ExitStack
) -> tuple:
    """All that `train` takes: the agent, environments, which `stack` closes, the result so far, and
    the update as a function of the step alone. Makes the run's folder. Raises ValueError, OSError
    and ImportError if training cannot start, and then leaves no folder."""
    if type(args) is not agent_type.args_type:
        raise ValueError(f"{agent_type.algorithm} takes arguments of type {agent_type.args_type}")
    if replace(args) != args:
        raise ValueError(f"{type(args)}: __post_init__ must leave alone what it has decided")
    if torch.is_autocast_enabled(DEVICE):
        raise ValueError("torch.autocast would change the numbers; see --matmul-precision")
    if args.cuda_graph and DEVICE != "cuda":
        raise ValueError("--cuda-graph: there is no GPU")
    if args.resume and args.run_dir is None:
        raise ValueError("--resume: which run? Add --run-dir")
    if dataset is not None and args.dataset_path:
        raise ValueError(f"--dataset-path {args.dataset_path}: there are arrays already")
    task = args.env_id.replace("/", "-").replace(":", "-")
    name = f"{task}__{agent_type.algorithm}__{args.seed}__{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
    run = (args.run_dir or Path("runs", name)).expanduser()
    if run.exists() and not args.resume:
        raise ValueError(f"{run} exists: add --resume to go on there, or choose another --run-dir")
    args = replace(args, run_dir=run)

    num_envs = args.num_seeds * args.eval_episodes
    envs = [stack.enter_context(closing(d4rl.make(args.env_id))) for _ in range(num_envs)]
    source = dataset
    if source is None:
        source = (args.dataset_path or d4rl.download(args.env_id)).expanduser().absolute()
        args = replace(args, dataset_path=source)  # for --resume, from any folder
    transitions = d4rl.qlearning_dataset(envs[0], source)
    transitions["actions"] = envs[0].unit(transitions["actions"])  # from -1 to 1
    names = ("observations", "actions", "rewards", "next_observations", "terminals")
    data = [torch.as_tensor(transitions[name], device=DEVICE) for name in names]
    result = {
        "algorithm": agent_type.algorithm,
        "args": to_jsonable_python(replace(args, run_dir=None, resume=False)),
        "data": d4rl.describe(source),
        "transitions": len(data[0]),
        "scripts": [checksums(agent_type, update)],
        "torch": [str(torch.__version__)],
        "device": DEVICE,
        "hardware": [hardware()],
        "updates": 0,
        "seconds": 0.0,
        "history": [],
    }

    # After `d4rl.make`, as an environment's module may change both.
    torch.set_float32_matmul_precision(args.matmul_precision)
    torch.manual_seed(args.seed)
    # Freed at once: glibc then reuses blocks of up to 32 MB, 14% less time for an update on a CPU.
    torch.empty(8_000_000)
    if (run / "checkpoint.pt").exists():
        agent, result = resume(args, result, agent_type)
        print(f"{run}: goes on from update {result['updates']}")
    else:
        if (run / "result.json").exists():
            raise ValueError(f"{run}: has result.json, but no checkpoint.pt to go on from")
        agent = agent_type(args, data[0].shape[1], data[1].shape[1]).to(DEVICE)
        if args.resume:
            print(f"no run in {run}: begins")
    trained = {x for one in agent.optimizers.values() for x in one.param_groups[0]["params"]}
    for name, parameter in agent.named_parameters():
        if parameter.requires_grad and not (parameter in trained or name.startswith("target_")):
            raise ValueError(f"{agent_type}: no optimizer has {name}, which would learn nothing")
    train_step = partial(update, agent, data)
    if args.cuda_graph:
        from tensordict.nn import CudaGraphModule

        train_step = CudaGraphModule(train_step)
    run.mkdir(parents=True, exist_ok=args.resume)
    print(f"{len(data[0])} transitions of {result['data']['path']}, on {DEVICE}; results in {run}")
    if args.warmup_steps >= args.total_steps:
        print(f"warning: the actor never sees Q: see --warmup-steps {args.warmup_steps}")
    return agent, envs, result, train_step


def train(
    agent: Agent, envs: list, result: dict, train_step: Callable, stopped_by: Sequence = ()
) -> dict:
    """All updates up to --total-steps, with an evaluation and a checkpoint every --eval-every. If a
    signal handler appends to `stopped_by`, the current update is the last, and is saved. Raises
    FloatingPointError if the numbers diverge, and OSError; filelock's Timeout among these means
    that another process trains the run."""
    args, run, history = agent.args, agent.args.run_dir, result["history"]
    first = result["updates"] + 1
    began = perf_counter() - result["seconds"]
    with ExitStack() as stack:
        stack.enter_context(FileLock(run / "in-use.lock", timeout=0))
        file = run / "result.json"
        if file.exists() and json.loads(file.read_text())["updates"] > result["updates"]:
            raise OSError(f"{run}: another process trained it meanwhile; start again")
        # What an interrupted run logged after its checkpoint is dropped (purge_step).
        writer = stack.enter_context(SummaryWriter(run, purge_step=first))
        save(run, agent, result)  # to resume from; it also mends what a crash left half written
        # A daemon may have no stderr.
        for step in trange(first, args.total_steps + 1, mininterval=10, disable=not sys.stderr):
            metrics = train_step(torch.full((), step, device=DEVICE))
            evaluating = step % args.eval_every == 0 or step == args.total_steps
            logging = evaluating or step % args.log_every == 0
            if logging or stopped_by:
                # One number for each seed, if the user's own has one for all.
                metrics = {k: value.expand(args.num_seeds).tolist() for k, value in metrics.items()}
                if not np.isfinite([*metrics.values()]).all():
                    raise FloatingPointError(f"diverged at update {step}: {metrics}")
            if evaluating:
                # The agent's choice, and one sample of the actor.
                for name, num in (("score", args.eval_candidates), ("score_sample", 1)):
                    returns = evaluate(agent, envs, [args.seed, step], num)
                    scores = d4rl.normalized_score(args.env_id, returns)
                    metrics[name] = scores.mean(1).tolist()
            if logging:
                for name, values in metrics.items():
                    for i, value in enumerate(values):
                        writer.add_scalar(f"{name}/agent-{i}", value, step)
                means = [f"{name} {np.mean(values):.3g}" for name, values in metrics.items()]
                with tqdm.external_write_mode():
                    print(f"{step}/{args.total_steps}: {', '.join(means)}", flush=True)

            if evaluating or stopped_by:
                result["updates"], result["seconds"] = step, perf_counter() - began
                if evaluating:
                    about = {"step": step, "seconds": result["seconds"]}
                    history.append(metrics | about | {"episodes": args.eval_episodes})
                writer.flush()  # before save: a resumed run logs only what follows its checkpoint
                save(run, agent, result)
            if stopped_by:
                break
    return result


def main(
    args: Args,
    dataset: Mapping | None = None,
    agent_type: type[Agent] = Agent,
    update: Callable = update,
) -> dict:
    """Train on the task's data, or on `dataset`, arrays named as in D4RL. `agent_type` and `update`
    may be your own. Returns the contents of result.json. Changes torch's random state and matmul
    precision, so call it once at a time in a process. Raises as `set_up` and `train`."""
    with ExitStack() as stack:
        return train(*set_up(args, dataset, agent_type, update, stack))


def command_line(
    agent_type: type[Agent] = Agent, update: Callable = update, description: str = __doc__
) -> None:
    """`main` for the command line. A set-up error, mostly a user's, is one line. After Ctrl-C or
    SIGTERM (a cluster's time limit) the last line is the command to resume."""
    args = tyro.cli(agent_type.args_type, description=description)
    stopped_by: list[int] = []

    def stop(number: int, _) -> None:
        stopped_by.append(number)
        signal.signal(number, signal.SIG_DFL)  # a second one kills

    with ExitStack() as stack:
        try:
            agent, envs, result, train_step = set_up(args, None, agent_type, update, stack)
        except KeyboardInterrupt:
            sys.exit("stopped")
        except (ValueError, OSError, ImportError) as error:
            sys.exit(f"error: {' '.join(str(error).split())}")  # on one line
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, stop)
        try:
            train(agent, envs, result, train_step, stopped_by)
        except (FileNotFoundError, ConnectionError):  # from the user's code: show where
            raise
        except (FloatingPointError, OSError) as error:  # of a full disk, or a lock
            sys.exit(f"error: {' '.join(str(error).split())}")
    if stopped_by and result["updates"] < args.total_steps:
        command = [*sys.orig_argv]
        if not args.run_dir:
            command += ["--run-dir", str(agent.args.run_dir)]
        if not args.resume:
            command += ["--resume"]
        line = f"stopped; from update {result['updates']} goes on: {shlex.join(command)}"
        print(line, file=sys.stderr)
        sys.exit(128 + stopped_by[0])  # as after the signal itself


if __name__ == "__main__":
    command_line()
