"""Soft actor-critic, the second version (Haarnoja et al., 2018b), with the networks of uwac.py.

Shapes: n steps, B batch, D observation size, A action size; networks have a leading 1 (seed), and
critics a 2 before it.
"""

import copy
import functools
import io
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from tqdm import tqdm

import d4rl
import uwac
from benchmark.datasets.episodes import play
from benchmark.datasets.players import dimensions, sample
from benchmark.files import write


class SAC(nn.Module):
    def __init__(self, obs_dim: int, action_dim: int):
        super().__init__()
        self.actor = uwac.Actor(1, obs_dim, action_dim)
        self.critic = uwac.Critic(uwac.Args(spectral_norm=False), obs_dim, action_dim)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.adam = torch.optim.Adam(self.parameters(), 3e-4, fused=True)

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """obs (1, B, D) -> actions (1, B, A) and the logarithms of their densities (1, B)."""
        mean, log_std = self.actor(obs)
        normal = Normal(mean, log_std.exp(), validate_args=False)
        x = normal.rsample()
        log_slope = 2 * (np.log(2) - x - nn.functional.softplus(-2 * x))  # of tanh at x
        return x.tanh(), (normal.log_prob(x) - log_slope).sum(-1)

    def minimize(self, loss: Tensor, parameters: list[nn.Parameter]) -> None:
        self.adam.zero_grad()
        loss.backward(inputs=parameters)
        self.adam.step()  # on those with a gradient

    def update(self, batch: list[Tensor], gamma: float = 0.99, tau: float = 0.005) -> None:
        """On rows (1, B, ...) of what `train` returns."""
        obs, action, reward, next_obs, terminal, _ = batch
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = self.sample(next_obs)
            q1, q2 = self.target_critic(next_obs, next_action)  # (1, B) each
            next_value = torch.minimum(q1, q2) - alpha * next_log_prob
            target_q = reward[..., 0] + gamma * (1 - terminal[..., 0]) * next_value
        error = self.critic(obs, action) - target_q  # (2, 1, B)
        self.minimize(error.square().mean(-1).sum(), [*self.critic.parameters()])
        new_action, log_prob = self.sample(obs)
        q1, q2 = self.critic(obs, new_action)
        actor_loss = (alpha * log_prob - torch.minimum(q1, q2)).mean()
        excess = log_prob.detach().mean() - action.shape[-1]  # the target entropy is -A
        alpha_loss = -self.log_alpha.exp() * excess
        self.minimize(actor_loss + alpha_loss, [*self.actor.parameters(), self.log_alpha])
        with torch.no_grad():
            for old, new in zip(self.target_critic.parameters(), self.critic.parameters()):
                old.lerp_(new, tau)


def snapshot(actor: uwac.Actor, envs: list[gym.Env], args, step: int, folder: Path) -> list:
    """Writes the policy as STEP.npz; returns the step and the mean return of sampled actions."""
    np.savez_compressed(folder / f"{step}.npz", env=args.env, step=step, **actor.state_dict())
    seed = args.seed + step
    with torch.random.fork_rng():  # so that evaluations do not change the training
        torch.manual_seed(seed)
        episodes = play(functools.partial(sample, actor), envs, range(seed, seed + len(envs)))
    return [step, float(np.mean([episode["rewards"].sum() for episode in episodes]))]


def train(args, folder: Path) -> tuple[list[Tensor], dict[str, int]]:
    """Trains by make_dataset.py's arguments, from the start or the checkpoint in `folder`.
    Evaluations and checkpoints are made where an episode ends: a training that was killed goes on
    as if it never was. Returns obs, action, reward, next_obs, terminal, timeout of all steps,
    (n, ...) each, and what `choose` says. Raises ValueError for a checkpoint of another kind."""
    torch.set_float32_matmul_precision("medium")  # twice the speed: docs/usage.md
    env = d4rl.make(args.env)
    test_envs = [d4rl.make(args.env) for _ in range(args.eval_episodes)]
    obs_dim, action_dim = dimensions(args.env)
    widths = [obs_dim, action_dim, 1, obs_dim, 1, 1]
    replay = torch.zeros(args.train_steps, sum(widths))
    torch.manual_seed(args.seed)
    agent = SAC(obs_dim, action_dim)
    checkpoint = folder / "checkpoint.pt"
    asked = {
        name: getattr(args, name) for name in ("learning_starts", "eval_every", "eval_episodes")
    }
    folder.mkdir(parents=True, exist_ok=True)
    if checkpoint.exists():
        try:
            state = torch.load(checkpoint, weights_only=True)
            agent.load_state_dict(state["agent"])
            agent.adam.load_state_dict(state["adam"])
            torch.set_rng_state(state["generator"])
            step, episode, history = state["progress"]
            replay[:step] = state["replay"]
            if state["asked"] != asked:
                raise ValueError(f"of {state['asked']}, not {asked}")
        except Exception as error:  # damage shows in many ways
            problem = f"not a checkpoint of this training; see --folder ({error})"
            raise ValueError(f"{checkpoint}: {problem}") from error
    else:
        step, episode = 0, 0
        history = [snapshot(agent.actor, test_envs, args, step, folder)]
    bar = tqdm(total=args.train_steps, initial=step, unit="steps", desc="SAC", disable=None)
    while step < args.train_steps:
        before, ended = step, False
        obs, _ = env.reset(seed=args.seed + episode)
        while not ended:
            action = sample(agent.actor, obs[None])[0]
            next_obs, reward, terminal, truncated, _ = env.step(action)
            cut_off = truncated or step + 1 == args.train_steps  # where a longer training goes on
            row = (obs, action, [reward], next_obs, [terminal], [cut_off and not terminal])
            replay[step] = torch.from_numpy(np.concatenate(row, dtype=np.float32))
            step += 1
            obs = next_obs
            if step >= args.learning_starts:
                index = torch.randint(step, (1, 256))
                agent.update(replay[index].split(widths, dim=-1))
            ended = terminal or truncated or step == args.train_steps
        episode += 1
        bar.update(step - before)
        if step // args.eval_every > before // args.eval_every or step == args.train_steps:
            history.append(snapshot(agent.actor, test_envs, args, step, folder))
            state = {"agent": agent.state_dict(), "adam": agent.adam.state_dict()}
            state |= {"generator": torch.get_rng_state(), "replay": replay[:step].clone()}
            state |= {"progress": [step, episode, history], "asked": asked}
            content = io.BytesIO()
            torch.save(state, content)  # to the disk, torch would hide why writing fails
            write(checkpoint, content.getbuffer())
            bar.write(f"step {step}: mean return {history[-1][1]:.1f}")
    return replay.split(widths, dim=1), choose(history)


def choose(history: list) -> dict[str, int]:
    """Steps after which the policy was at its best, and first a third of the way there from random:
    the nearer of the first evaluation beyond that and the one before."""
    (_, random), *rows = history
    expert, best = max(rows, key=lambda row: row[1])
    third = random + (best - random) / 3
    beyond = next((i for i, row in enumerate(rows) if row[1] >= third), 0)
    nearest = rows[max(beyond - 1, 0) : beyond + 1]
    medium, _ = min(nearest, key=lambda row: abs(row[1] - third))
    return {"medium": medium, "expert": expert}
