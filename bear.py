"""BEAR: offline reinforcement learning that keeps the policy near the actions in the data.

Kumar et al., "Stabilizing Off-Policy Q-Learning via Bootstrapping Error Reduction" (NeurIPS 2019),
as the baseline of Wu et al. (UWAC, ICML 2021), "the paper" from here on. `update` follows its
Algorithm 1 without what UWAC adds, which `diff bear.py uwac.py` shows.

    python bear.py --env-id door-demo --warmup-steps 500 --total-steps 2000

Shapes. S: seeds trained side by side; B: batch; N: candidate actions; M: action samples for the
MMD; D: observation; A: action; H: hidden units. Twin critics lead with a 2.

Sources, in brackets: paper (5.5: a section), ml-uwac (its authors' code), BEAR (the code of BEAR's
author, on which ml-uwac builds), CORL (offline RL in single files), D4RL; see docs/fidelity.md.
"""

import copy
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated, Literal

import numpy as np
import torch
import tyro
from filelock import FileLock, Timeout
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from pydantic_core import to_jsonable_python
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm, trange

import d4rl  # the folder beside this file

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RNG = torch.cuda if DEVICE == "cuda" else torch  # whose random state a checkpoint keeps
GPUS = range(torch.cuda.device_count())  # whose random states `main` and `evaluate` put back
# Arguments that a resumed run may change. All others must stay.
RESUMABLE = {"total_steps", "eval_every", "eval_episodes", "log_every", "dataset_path"}
UnitInterval = Annotated[float, Field(ge=0, le=1)]


@dataclass(config={"allow_inf_nan": False, "extra": "forbid"})
class Args:
    env_id: str = "door-human"  # D4RL task (v0 if no version is given), or door-demo, included here
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # random seed: a rerun repeats the numbers
    num_seeds: PositiveInt = 1  # agents trained at once, S, from the one seed (paper: 5)
    # auto: float32, or on a GPU TF32; medium: bfloat16 on a CPU with AMX
    matmul_precision: Literal["auto", "highest", "high", "medium"] = "auto"
    cuda_graph: bool = False  # faster on a GPU: one launch an update (pip install tensordict)
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
    eval_episodes: PositiveInt = 10  # episodes per evaluation and agent (CORL)
    eval_candidates: PositiveInt = 100  # actions sampled (paper, 5.5); the best by Q1 acts (BEAR)
    log_every: PositiveInt = 1_000  # updates between printed lines, and between TensorBoard entries
    dataset_path: Path | None = None  # HDF5 in D4RL's format; then env_id may be any Gymnasium task
    run_dir: Path | None = None  # folder of a new run; default: runs/ENV__ALGORITHM__SEED__TIME
    resume: Path | None = None  # folder of a run to continue, with its arguments as defaults

    def resolved(self) -> "Args":
        """The arguments with "auto" decided."""
        args = replace(self)
        task = d4rl.kind_of(self.env_id)
        if args.mmd_kernel == "auto":
            args.mmd_kernel = "laplacian" if task in ("hopper", "walker2d") else "gaussian"
        if args.matmul_precision == "auto":
            # "medium" is float32 on x86 without AMX, as "high" is, but by a faster library.
            cpu = torch.cpu.get_capabilities()
            medium_is_float32 = cpu["architecture"] == "x86_64" and not cpu["amx_bf16"]
            args.matmul_precision = "medium" if DEVICE == "cpu" and medium_is_float32 else "high"
        return args


class StackedLinear(nn.Module):
    """A linear map for each place of the stack, (S,) or (2, S): (S, B, in), or after a critic's
    first layer (2, S, B, in) -> (*stack, B, out)."""

    def __init__(self, stack: tuple[int, ...], in_dim: int, out_dim: int):
        super().__init__()
        bound = in_dim**-0.5  # as torch.nn.Linear
        self.weight = nn.Parameter(torch.empty(*stack, in_dim, out_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(*stack, 1, out_dim).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).add_(self.bias)  # in place: an update takes an eighth less time


class MLP(nn.Module):
    """Networks side by side with two hidden ReLU layers: (S, B, in) -> (*stack, B, out)."""

    def __init__(self, stack: tuple[int, ...], in_dim: int, hidden_dim: int, out_dim: int):
        super().__init__()
        sizes = ((in_dim, hidden_dim), (hidden_dim, hidden_dim), (hidden_dim, out_dim))
        self.layers = nn.ModuleList(StackedLinear(stack, *size) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers[0](x).relu_()
        h = self.layers[1](h).relu_()
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


class Critic(MLP):
    """Twin Q functions."""

    def __init__(self, S: int, obs_dim: int, action_dim: int):
        super().__init__((2, S), obs_dim + action_dim, 256, 1)
        self.init_weights(output_bound=3e-3)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """obs (S, B, D), action (S, B, A) -> (2, S, B), or action (S, B, N, A) -> (2, S, B, N)."""
        q = super().forward(concat(obs, action))
        return q.view(2, *action.shape[:-1])


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
    norm = {"gaussian": 2, "laplacian": 1}[kernel]

    def mean_kernel(a: Tensor, b: Tensor) -> Tensor:
        # Above 25 samples cdist would use a matmul, which loses digits where actions are alike.
        d = torch.cdist(a, b, norm, compute_mode="donot_use_mm_for_euclid_dist") ** norm
        return torch.exp(-d / (2 * sigma)).mean((2, 3))

    squared = mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)
    return (squared.clamp(min=0) + 1e-6).sqrt()  # 1e-6 keeps the gradient finite at 0


def pick(candidates: Tensor, index: Tensor) -> Tensor:
    """One action for each state: (S, B, N, A), (S, B) -> (S, B, A)."""
    index = index[:, :, None, None]  # (S, B, 1, 1)
    return candidates.take_along_dim(index, dim=2).squeeze(2)


class Agent(nn.Module):
    """All S agents: the networks of Algorithm 1 and their optimizers."""

    algorithm = "bear"
    args_type = Args

    def __init__(self, args: Args, obs_dim: int, action_dim: int):
        super().__init__()
        self.args = args = args.resolved()
        self.dims = (obs_dim, action_dim)
        # Line 1: actor, critics and their targets. The VAE is for line 10.
        self.actor = Actor(args.num_seeds, obs_dim, action_dim)
        self.critic = Critic(args.num_seeds, obs_dim, action_dim)
        self.target_actor = copy.deepcopy(self.actor)
        self.target_critic = copy.deepcopy(self.critic)
        self.vae = BehaviorVAE(args.num_seeds, obs_dim, action_dim)
        self.log_alpha = nn.Parameter(torch.zeros(args.num_seeds))
        # Adam, as in ml-uwac; the paper says SGD.
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

    @torch.no_grad()
    def act(self, obs: np.ndarray, num: int = 100) -> np.ndarray:
        """Actions in [-1, 1], the range of `d4rl.make`'s environments: the best by Q1 of `num`
        samples. obs (D,) -> (S, A); obs (B, D), the same states for every agent, or (S, B, D), each
        agent's own -> (S, B, A). Raises ValueError for num < 1."""
        if num < 1:
            raise ValueError(f"act: num must be at least 1, not {num}")
        obs = torch.as_tensor(obs, dtype=torch.float32, device=self.log_alpha.device)
        states = torch.atleast_2d(obs).expand(self.args.num_seeds, -1, -1)  # (S, B, D)
        candidates = self.actor.sample(states, num).tanh()  # (S, B, N, A)
        q1, _ = self.critic(states, candidates)  # (S, B, N)
        action = pick(candidates, q1.argmax(-1))  # (S, B, A)
        if obs.dim() == 1:
            action = action.squeeze(1)
        return action.numpy(force=True)


def update(agent: Agent, data: list[Tensor], step: int | Tensor) -> dict[str, Tensor]:
    """One step of Algorithm 1, lines 3 to 12 (4 and 9 are headings). `data` is all n transitions:
    obs (n, D), action (n, A), reward (n,), next_obs (n, D), done (n,). Returns metrics, (S,) each.
    """
    args = agent.args
    # Line 3: a mini-batch for each seed.
    index = torch.randint(len(data[0]), (args.num_seeds, args.batch_size), device=data[0].device)
    obs, action, reward, next_obs, done = (array[index] for array in data)  # (S, B, ...)

    # The behaviour VAE learns the actions of the data, for line 10 (BEAR).
    vae_loss = agent.vae.loss(obs, action)
    agent.minimize(vae_loss, "vae")

    with torch.no_grad():
        # Line 5: candidate actions of the target actor.
        candidates = agent.target_actor.sample(next_obs, args.num_candidates).tanh()  # (S, B, N, A)
        # Line 6: the best of them by soft clipped double-Q of the target critics.
        q1, q2 = agent.target_critic(next_obs, candidates)  # (S, B, N) each
        mixture = args.lmbda * torch.minimum(q1, q2) + (1 - args.lmbda) * torch.maximum(q1, q2)
        y = mixture.amax(-1)  # (S, B); y is the paper's, without the reward
        target_q = reward + args.gamma * (1 - done) * y
    # Line 8: regression of both critics.
    q = agent.critic(obs, action)  # (2, S, B)
    critic_loss = (q - target_q).square().sum(0).mean(-1)
    agent.minimize(critic_loss, "critic")

    # Line 10: M actions of the actor and M of the VAE at s, before the tanh (ml-uwac). The paper
    # takes the target actor's at s', and the data's, which have one action for each state.
    actor_samples = agent.actor.sample(obs, args.num_mmd_samples)  # (S, B, M, A)
    with torch.no_grad():
        vae_samples = agent.vae.sample(obs, args.num_mmd_samples)  # (S, B, M, A)
    distance = mmd(actor_samples, vae_samples, args.mmd_kernel, args.mmd_sigma)  # (S, B)
    # Line 11: the actor maximizes Q of its first sample, subject to MMD <= threshold. The
    # multiplier alpha grows while the MMD exceeds the threshold.
    policy_action = actor_samples[:, :, 0].tanh()  # (S, B, A)
    q1, q2 = agent.critic(obs, policy_action)
    policy_q = torch.minimum(q1, q2)  # (S, B) (ml-uwac; the paper has one Q)
    after_warmup = step > args.warmup_steps  # a factor 0 or 1, as a CUDA graph cannot branch
    alpha = agent.log_alpha.exp()
    violation = (distance - args.mmd_threshold).mean(-1)
    actor_loss = alpha.detach() * violation - after_warmup * policy_q.mean(-1)
    agent.minimize(actor_loss, "actor")
    agent.minimize(-alpha * violation.detach(), "dual")

    with torch.no_grad():
        agent.log_alpha.clamp_(-5, 10)  # BEAR: alpha is at most e^10 = 22,026
        # Line 12: the targets follow, target += tau * (source - target).
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
    }


def evaluate(agent: Agent, envs: list, entropy: list[int], num: int) -> np.ndarray:
    """Play an episode in each of `d4rl.make`'s environments, the first of which are the first
    seed's, by the best of `num` samples. -> sums of rewards (S, episodes)."""
    S = agent.args.num_seeds
    seed = np.random.SeedSequence(entropy).generate_state(1).item()

    def act(obs: np.ndarray) -> np.ndarray:  # (S * episodes, D) -> (S * episodes, A)
        action = agent.act(obs.reshape(S, -1, obs.shape[-1]), num)
        return action.reshape(len(obs), -1)

    with torch.random.fork_rng(GPUS):  # training goes on with its own random numbers
        torch.manual_seed(seed)
        return d4rl.play(act, envs, seed % 2**30).reshape(S, -1)


def save(run: Path, agent: Agent, result: dict) -> None:
    """Write checkpoint.pt (to resume and to act) and result.json (to read). Each is written under
    another name and then renamed: a crash leaves the previous version intact."""
    state = {
        "dims": agent.dims,
        "agent": agent.state_dict(),
        "optimizers": {name: opt.state_dict() for name, opt in agent.optimizers.items()},
        "rng": RNG.get_rng_state(),
    }
    new = run / "unfinished.tmp"
    torch.save(result | state, new)
    new.replace(run / "checkpoint.pt")
    new.write_text(json.dumps(result, indent=2))
    new.replace(run / "result.json")


def load_checkpoint(run: str | Path, agent_type: type[Agent] = Agent) -> tuple[Agent, dict]:
    """A run's agent, and all that was saved. Runs no code from the file. Raises ValueError."""
    path = Path(run) / "checkpoint.pt"
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if saved["algorithm"] != agent_type.algorithm:
            raise ValueError("it is a run of {algorithm}: use {algorithm}.py".format(**saved))
        args = agent_type.args_type(**saved["args"])
        if to_jsonable_python(args) != saved["args"]:  # a missing argument got its default
            raise ValueError("its arguments are another version's")
        agent = agent_type(args, *saved["dims"]).to(DEVICE)
        agent.load_state_dict(saved["agent"])
        for name, optimizer in agent.optimizers.items():
            optimizer.load_state_dict(saved["optimizers"][name])
    except Exception as error:  # a damaged file can raise almost anything
        raise ValueError(f"{path}: no run of {agent_type.algorithm} to load ({error})") from error
    return agent, saved


def checksums(agent_type: type[Agent], update) -> dict[str, str]:
    """SHA-256 of the files that define the agent and the update, by their names."""
    classes = [cls for cls in agent_type.__mro__ if issubclass(cls, Agent)]
    modules = [sys.modules[owner.__module__] for owner in (*classes, update)]
    files = [Path(module.__file__) for module in modules if hasattr(module, "__file__")]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def resume(args: Args, result: dict, agent_type: type[Agent]) -> Agent:
    """A run's agent. Restores its random state, and puts its history into `result`. Raises
    ValueError for other data, another device or other arguments; warns of another script."""
    agent, saved = load_checkpoint(args.resume, agent_type)
    before = saved["args"] | {"data": saved["data"]["sha256"], "device": saved["device"]}
    now = result["args"] | {"data": result["data"]["sha256"], "device": result["device"]}
    for name in before.keys() - RESUMABLE:
        if before[name] != now[name]:
            raise ValueError(f"--resume: {name} was {before[name]} and cannot change")
    scripts = saved.get("scripts") or result["scripts"]  # earlier versions of this file kept none
    if scripts[-1] != result["scripts"][0]:
        print("warning: the script has changed; result.json has the SHA-256 of all that trained")
        scripts.append(result["scripts"][0])
    result |= {"scripts": scripts, "history": saved["history"]}
    RNG.set_rng_state(saved["rng"])  # the next random number is the first update's
    agent.args = args  # with the new --total-steps
    return agent


def as_cuda_graph(train_step):
    """`train_step` recorded as one CUDA graph, which takes the step as a tensor."""
    from tensordict.nn import CudaGraphModule

    graph = CudaGraphModule(train_step)
    return lambda step: graph(torch.full((), step, device=DEVICE))


def set_up(args: Args, dataset: dict | None = None, agent_type=Agent, update=update):
    """All that `train` takes: the run's folder, the agent, the environments, the result so far, and
    the update as a function of the step alone. Raises ValueError, OSError and ImportError for what
    cannot be trained on, and then leaves no folder."""
    if args.cuda_graph and DEVICE != "cuda":
        raise ValueError("--cuda-graph: there is no GPU")
    if args.resume and args.run_dir:
        raise ValueError(f"--run-dir {args.run_dir}: a resumed run stays in {args.resume}")
    if dataset is not None and args.dataset_path:
        raise ValueError(f"--dataset-path {args.dataset_path}: there are arrays already")
    args = args.resolved()
    source = dataset
    if source is None:
        source = (args.dataset_path or d4rl.download(args.env_id)).expanduser().absolute()
        args = replace(args, dataset_path=source)  # for --resume, from any folder
    torch.set_float32_matmul_precision(args.matmul_precision)
    torch.empty(8_000_000)  # freed at once: then glibc keeps large blocks, 7% faster on a CPU
    torch.manual_seed(args.seed)

    envs = [d4rl.make(args.env_id) for _ in range(args.num_seeds * args.eval_episodes)]
    result = {
        "algorithm": agent_type.algorithm,
        "args": to_jsonable_python(replace(args, run_dir=None, resume=None)),
        "data": d4rl.describe(source),
        "scripts": [checksums(agent_type, update)],
        "torch": str(torch.__version__),
        "device": DEVICE,
        "hardware": f"{DEVICE}, {torch.get_num_threads()} threads",
        "history": [],
    }
    dims = (*envs[0].observation_space.shape, *envs[0].action_space.shape)
    if args.resume:
        agent = resume(args, result, agent_type)
    else:
        agent = agent_type(args, *dims).to(DEVICE)
    transitions = d4rl.qlearning_dataset(envs[0], source)
    names = ("observations", "actions", "rewards", "next_observations", "terminals")
    data = [torch.as_tensor(transitions[name], device=DEVICE) for name in names]
    result["transitions"] = len(data[0])
    train_step = partial(update, agent, data)
    if args.cuda_graph:
        train_step = as_cuda_graph(train_step)

    task = args.env_id.replace("/", "-").replace(":", "-")
    name = f"{task}__{agent.algorithm}__{args.seed}__{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
    run = (args.resume or args.run_dir or Path("runs", name)).expanduser()
    run.mkdir(parents=True, exist_ok=bool(args.resume))  # a new run has a new folder
    print(f"{len(data[0])} transitions of {result['data']['path']}, on {DEVICE}; results in {run}")
    if args.warmup_steps >= args.total_steps:
        print(f"warning: the actor never sees Q: see --warmup-steps {args.warmup_steps}")
    return run, agent, envs, result, train_step


def train(run: Path, agent: Agent, envs: list, result: dict, train_step) -> dict:
    """All updates up to --total-steps, with an evaluation and a checkpoint every --eval-every.
    Raises FloatingPointError where they diverge, Timeout where another process trains the run."""
    args, history = agent.args, result["history"]
    last = history[-1] if history else {"step": 0, "seconds": 0.0}
    began = perf_counter() - last["seconds"]
    first = last["step"] + 1
    lock = FileLock(run / "in-use.lock", timeout=0)
    # What an interrupted run logged after its checkpoint is dropped (purge_step).
    with lock, SummaryWriter(run, purge_step=first) as writer:
        save(run, agent, result)  # to resume from; it also mends what a crash left half written
        # A daemon may have no error output to draw a bar on.
        for step in trange(first, args.total_steps + 1, mininterval=10, disable=not sys.stderr):
            metrics = train_step(step)
            evaluating = step % args.eval_every == 0 or step == args.total_steps
            if not evaluating and step % args.log_every != 0:
                continue

            metrics = {name: value.tolist() for name, value in metrics.items()}  # S numbers each
            finite = np.isfinite([*metrics.values()]).all()
            if evaluating and finite:
                # The agent's choice, and one sample of the actor.
                for name, num in (("score", args.eval_candidates), ("score_sample", 1)):
                    returns = evaluate(agent, envs, [args.seed, step], num)
                    metrics[name] = d4rl.normalized_score(args.env_id, returns).mean(1).tolist()
                    finite &= np.isfinite(returns).all()
            if not finite:
                raise FloatingPointError(f"diverged at update {step}: {metrics}")

            for name, values in metrics.items():
                for i, value in enumerate(values):
                    writer.add_scalar(f"{name}/agent-{i}", value, step)
            line = ", ".join(f"{name} {np.mean(values):.3g}" for name, values in metrics.items())
            tqdm.write(f"{step}/{args.total_steps}: {line}")
            if evaluating:
                writer.flush()  # before save: a resumed run logs only what follows its checkpoint
                history.append({"step": step, "seconds": perf_counter() - began, **metrics})
                save(run, agent, result)
    return result


def main(args: Args, dataset=None, agent_type: type[Agent] = Agent, update: Callable = update):
    """Train on the task's data, or on `dataset`, arrays named as in D4RL. `agent_type` and `update`
    may be your own. Returns the contents of result.json. Raises as `set_up` and `train`."""
    precision = torch.get_float32_matmul_precision()
    try:
        with torch.random.fork_rng(GPUS):  # the caller's random numbers go on as without it
            return train(*set_up(args, dataset, agent_type, update))
    finally:
        torch.set_float32_matmul_precision(precision)


def command_line(agent_type=Agent, update=update, description: str = __doc__) -> None:
    """`main` for the command line. Errors of the set-up, mostly a user's, end in one line."""
    try:
        args = tyro.cli(agent_type.args_type, description=description)
        if args.resume:  # the same command line, with the run's own arguments as defaults
            args = load_checkpoint(args.resume, agent_type)[0].args
            args = tyro.cli(agent_type.args_type, default=args)
        ready = set_up(args, None, agent_type, update)
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")  # on one line
    try:
        train(*ready)
    except KeyboardInterrupt:
        last = [0, *(row["step"] for row in ready[3]["history"])][-1]
        sys.exit(f"stopped: python {sys.argv[0]} --resume {ready[0]} goes on from update {last}")
    except (FloatingPointError, Timeout) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    command_line()
