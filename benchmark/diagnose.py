"""What the constraint and the variance do in finished runs, at 1,000 states of their data.

    python benchmark/diagnose.py runs/RUN runs/OTHER_RUN

Printed, and kept in RUN/diagnosis.json, means over states for each seed:
  mmd                 of the actor and the behaviour VAE, at 4, 10 and 100 samples
  mmd_of_vae          of the VAE and itself, which is what so few samples give where nothing differs
  mmd_centred         of the two with the actor's mean moved onto the VAE's: what is left is spread
  gap                 between the two means, a dimension, before the tanh (root of the mean square)
  actor_std, vae_std  spreads, likewise
  gap_saturated       that gap where the VAE's mean is beyond 1 (a tanh of 0.76), and
  saturated           how much of all that is
  actor_error         between the actor's mean and the data's action, a dimension in [-1, 1]
  vae_error           between the mean of the VAE's actions and the data's, likewise
  q_share             of Q in the gradient of the actor's loss, were the warm-up over: 0 where the
                      actor only imitates the VAE, 0.5 where Q and MMD balance
Of runs of uwac.py with dropout, besides:
  auroc_uniform       how well Var[Q] tells uniform random actions from the data's own, and
  auroc_shuffled      how well the data's actions shuffled across states
  variance_spread     standard deviation over states of Var[Q] at an action of the actor, over its
                      mean
  weight_spread       the same of the actor's weight: 0 where all states weigh the same
  rank_with_q2        rank correlation of Var[Q] with the square of Q
  equal_weights       E[w] E[Var[Q]] / beta, of the paper's weights: 1 where Var[Q] is the same in
                      all states, and more otherwise (less, where weights are at their limit)
"""

import copy
import dataclasses
from pathlib import Path

import numpy as np
import torch
import tyro
from evaluate import SCRIPTS, load
from lib.files import errors_in_one_line, write_json
from scipy.stats import mannwhitneyu, spearmanr
from torch import Tensor

import d4rl
import uwac

NUM_STATES = 1_000
NUM_SAMPLES = (4, 10, 100)
FOR_MEANS = 1_000  # samples of a state's VAE


def constraint(agent: uwac.Agent, obs: Tensor) -> dict[str, Tensor]:
    """obs (S, B, D) -> (S,) for each name."""
    found = {}
    mmd = lambda x, y: uwac.mmd(x, y, agent.mmd_kernel, agent.args.mmd_sigma).mean(1)
    actor_mean, actor_log_std = agent.actor(obs)  # (S, B, A) each
    vae_samples = [agent.vae.sample(some, FOR_MEANS) for some in obs.split(50, dim=1)]  # for memory
    vae_samples = torch.cat(vae_samples, dim=1)  # (S, B, FOR_MEANS, A)
    vae_mean = vae_samples.mean(2)
    shift = (vae_mean - actor_mean).unsqueeze(2)
    saturated = (vae_mean.abs() > 1).float()
    for num in NUM_SAMPLES:
        of_actor = agent.actor.sample(obs, num)
        of_vae, again = vae_samples[:, :, : 2 * num].chunk(2, dim=2)
        found[f"mmd, {num}"] = mmd(of_actor, of_vae)
        found[f"mmd_of_vae, {num}"] = mmd(again, of_vae)
        found[f"mmd_centred, {num}"] = mmd(of_actor + shift, of_vae)
    squared_gap = (vae_mean - actor_mean).square()
    found["gap"] = squared_gap.mean((1, 2)).sqrt()
    found["actor_std"] = (2 * actor_log_std).exp().mean((1, 2)).sqrt()
    found["vae_std"] = vae_samples.var(2).mean((1, 2)).sqrt()
    of_saturated = (squared_gap * saturated).sum((1, 2)) / saturated.sum((1, 2)).clamp(min=1)
    found["gap_saturated"] = of_saturated.sqrt()
    found["saturated"] = saturated.mean((1, 2))
    return found


def errors(agent: uwac.Agent, obs: Tensor, action: Tensor) -> dict[str, Tensor]:
    """How well actor and VAE fit the data: obs (S, B, D), action (S, B, A) in [-1, 1] -> (S,) for
    each name."""
    actor_mean, _ = agent.actor(obs)
    vae_mean = agent.vae.sample(obs, max(NUM_SAMPLES)).tanh().mean(2)
    found = {"actor_error": actor_mean.tanh() - action, "vae_error": vae_mean - action}
    return {name: error.square().mean((1, 2)).sqrt() for name, error in found.items()}


def q_share(script: str, agent: uwac.Agent, data: list[Tensor]) -> Tensor:
    """Share of Q in the actor's gradient, (S,): the norm of Q's part over the sum of the norms of
    Q's and of MMD's part; data (n, ...). The parts are those of one update, made twice with the
    same random numbers on copies of the agent: in the warm-up, which has no Q, and after it."""
    args = dataclasses.replace(agent.args, batch_size=NUM_STATES)
    gradients = []
    for step in (0, args.warmup_steps + 1):
        trial = copy.deepcopy(agent)
        torch.manual_seed(0)
        SCRIPTS[script].update(trial, data, step, args)
        of_layers = [parameter.grad.flatten(1) for parameter in trial.actor.parameters()]
        gradients.append(torch.cat(of_layers, dim=1))
    of_mmd, of_both = gradients
    norm_of_q = (of_both - of_mmd).norm(dim=1)
    return norm_of_q / (norm_of_q + of_mmd.norm(dim=1))


def aurocs(agent: uwac.Agent, obs: Tensor, action: Tensor) -> dict[str, Tensor]:
    """obs (S, B, D), action (S, B, A) -> (S,) for each name."""
    shuffled = action[:, torch.randperm(action.shape[1])]
    found = {}
    for name, actions in (("uniform", torch.rand_like(action) * 2 - 1), ("shuffled", shuffled)):
        both = torch.cat([action, actions], dim=1)  # at once, under the same masks
        variance = agent.uncertainty(agent.critic, obs.repeat(1, 2, 1), both)
        known, other = np.split(variance.numpy(force=True), 2, axis=1)
        larger = mannwhitneyu(other, known, axis=1).statistic  # pairs, a tie counting half
        found[f"auroc_{name}"] = torch.as_tensor(larger / known.shape[1] ** 2)
    return found


def weights(agent: uwac.Agent, obs: Tensor) -> dict[str, Tensor]:
    """How much the weights of the actor's loss tell states apart: obs (S, B, D) -> (S,) each."""
    action = agent.actor.sample(obs, 1).squeeze(2).tanh()
    q = agent.critic(obs, action).amin(0)  # (S, B)
    variance = agent.uncertainty(agent.critic, obs, action)
    weight = uwac.uncertainty_weight(variance, agent.args)
    ranks = [spearmanr(v, q2).statistic for v, q2 in zip(variance.cpu(), q.square().cpu())]
    found = {
        "variance_spread": variance.std(1) / variance.mean(1),
        "weight_spread": weight.std(1) / weight.mean(1),
        "rank_with_q2": torch.tensor(ranks),
    }
    if agent.args.weighting == "variance":
        found["equal_weights"] = weight.mean(1) * variance.mean(1) / agent.args.beta
    return found


def diagnose(run: Path) -> dict[str, list[float]]:
    """Of each seed of a run. Raises ValueError, and OSError where its data are not found."""
    script, agent, saved = load(run)
    args = agent.args
    path = args.dataset_path or d4rl.download(args.env_id)
    if saved["data"]["sha256"] != d4rl.describe(path)["sha256"]:
        raise ValueError(f"{run}: {path} is not the data that it learned from")
    transitions = d4rl.qlearning_dataset(d4rl.make(args.env_id), path).values()
    data = [torch.as_tensor(array, device=uwac.DEVICE) for array in transitions]
    data[1] = data[1].clamp(-1, 1)
    states = np.random.default_rng(0).permutation(len(data[0]))[:NUM_STATES]
    torch.manual_seed(0)
    obs, action = (array[states].expand(args.num_seeds, -1, -1) for array in data[:2])
    with torch.no_grad():
        found = constraint(agent, obs)
        if script == "uwac" and args.dropout > 0:
            found |= aurocs(agent, obs, action) | weights(agent, obs)
        found |= errors(agent, obs, action)
    found["q_share"] = q_share(script, agent, data)
    return {name: values.tolist() for name, values in found.items()}


def main(runs: tyro.conf.Positional[tuple[Path, ...]]) -> None:
    """Raises ValueError, and OSError where a file cannot be read or written."""
    if not runs:
        raise ValueError("name the folders of one run or more")
    for run in runs:
        found = diagnose(run)
        write_json(run / "diagnosis.json", found)
        print(run)
        for name, values in found.items():
            print(f"  {name}: {', '.join(f'{value:.3g}' for value in values)}")


if __name__ == "__main__":
    with errors_in_one_line():
        tyro.cli(main, description=__doc__)
