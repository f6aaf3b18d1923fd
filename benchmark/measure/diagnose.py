"""What the constraint and the variance do in finished runs, at 1,000 states of their data.

    python benchmark/measure/diagnose.py runs/RUN runs/OTHER_RUN
    python benchmark/measure/diagnose.py runs/RUN --dataset-path FILE   # where its data lie now

Printed, and kept in RUN/diagnosis-STEP.json, means over states for each seed:
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

Of runs with a variance, besides:
  auroc_uniform       how well Var[Q] tells uniform random actions from the data's own, and
  auroc_shuffled      how well the data's actions shuffled across states
  variance_spread     standard deviation over states of Var[Q] at an action of the actor, over its
                      mean
  weight_spread       the same of the actor's weight: 0 where all states weigh the same
  rank_with_q2        rank correlation of Var[Q] with the square of Q
  equal_weights       E[w] E[Var[Q]] / beta, of the paper's weights: 1 where Var[Q] is the same in
                      all states, and more otherwise (less, where weights are at their limit)

To compare auroc_uniform with, how well the same random actions are told apart by
  auroc_untrained     Var[Q] of ten fresh agents of the same arguments
  auroc_action_norm   the norm of an action (its negative has 1 minus this)
  auroc_nearest       the distance of (s, a) to the nearest one of the data but its own

RUN/variance-STEP.png shows Var[Q] at both kinds of actions, as the paper's figure 4.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # to start from any folder

import copy
from dataclasses import replace
from types import ModuleType

import numpy as np
import torch
import tyro
from scipy.stats import mannwhitneyu, spearmanr
from torch import Tensor

import d4rl
import uwac
from benchmark.figures import new_figure, save
from benchmark.files import errors_in_one_line, try_to_write, write_json
from benchmark.policies import load, load_transitions

NUM_STATES = 1_000
NUM_SAMPLES = (4, 10, 100)
FOR_MEANS = 1_000  # samples of a state's VAE
NUM_UNTRAINED = 10  # agents
AT_ONCE = 10_000  # rows of the data


def rms(values: Tensor) -> Tensor:
    """Root of the mean square over states and dimensions: (S, B, A) -> (S,)."""
    return values.square().mean((1, 2)).sqrt()


def constraint(agent: uwac.Agent, obs: Tensor) -> dict[str, Tensor]:
    """obs (S, B, D) -> (S,) for each name."""
    found = {}
    actor_mean, actor_log_std = agent.actor(obs)  # (S, B, A) each
    vae_samples = [agent.vae.sample(some, FOR_MEANS) for some in obs.split(50, dim=1)]  # for memory
    vae_samples = torch.cat(vae_samples, dim=1)  # (S, B, FOR_MEANS, A)
    vae_mean = vae_samples.mean(2)
    gap = vae_mean - actor_mean
    kernel = agent.args.mmd_kernel, agent.args.mmd_sigma
    for num in NUM_SAMPLES:
        of_actor = agent.actor.sample(obs, num)
        of_vae, again = vae_samples[:, :, : 2 * num].chunk(2, dim=2)
        centred = of_actor + gap.unsqueeze(2)
        found[f"mmd, {num}"] = uwac.mmd(of_actor, of_vae, *kernel).mean(1)
        found[f"mmd_of_vae, {num}"] = uwac.mmd(again, of_vae, *kernel).mean(1)
        found[f"mmd_centred, {num}"] = uwac.mmd(centred, of_vae, *kernel).mean(1)
    saturated = (vae_mean.abs() > 1).float()
    share = saturated.mean((1, 2))
    found["gap"] = rms(gap)
    found["actor_std"] = rms(actor_log_std.exp())
    found["vae_std"] = rms(vae_samples.std(2))
    found["gap_saturated"] = rms(gap * saturated) / share.sqrt().clamp(min=1e-6)
    found["saturated"] = share
    return found


def errors(agent: uwac.Agent, obs: Tensor, action: Tensor) -> dict[str, Tensor]:
    """How well actor and VAE fit the data: obs (S, B, D), action (S, B, A) in [-1, 1] -> (S,) for
    each name."""
    actor_mean, _ = agent.actor(obs)
    vae_mean = agent.vae.sample(obs, max(NUM_SAMPLES)).tanh().mean(2)
    return {"actor_error": rms(actor_mean.tanh() - action), "vae_error": rms(vae_mean - action)}


def q_share(script: ModuleType, agent: uwac.Agent, data: list[Tensor]) -> Tensor:
    """Share of Q in the actor's gradient, (S,): the norm of Q's part over the sum of the norms of
    Q's and of MMD's part; data (n, ...). The parts are those of one update, made twice with the
    same random numbers on copies of the agent: in the warm-up, which has no Q, and after it."""
    gradients = []
    for step in (0, agent.args.warmup_steps + 1):
        trial = copy.deepcopy(agent)
        trial.args = replace(agent.args, batch_size=NUM_STATES)
        torch.manual_seed(0)
        script.update(trial, data, torch.tensor(step))
        of_layers = [parameter.grad.flatten(1) for parameter in trial.actor.parameters()]
        gradients.append(torch.cat(of_layers, dim=1))
    of_mmd, of_both = gradients
    norm_of_q = (of_both - of_mmd).norm(dim=1)
    return norm_of_q / (norm_of_q + of_mmd.norm(dim=1))


def variances(agent: uwac.Agent, obs: Tensor, *actions: Tensor) -> list[Tensor]:
    """Var[Q1] + Var[Q2] of each seed at the same states and several actions: obs (B, D), actions
    (B, A) -> (S, B) for each. At once, so under the same masks."""
    S, several = agent.args.num_seeds, len(actions)
    obs = obs.repeat(several, 1).expand(S, -1, -1)
    action = torch.cat(actions).expand(S, -1, -1)
    return agent.uncertainty(agent.critic, obs, action).chunk(several, dim=1)


def auroc(known: Tensor, other: Tensor) -> Tensor:
    """How often a number of `other` is larger than one of `known`, a tie counting half: the area
    under the ROC curve, (..., B), (..., B) -> (...)."""
    known, other = known.numpy(force=True), other.numpy(force=True)
    larger = mannwhitneyu(other, known, axis=-1).statistic
    return torch.as_tensor(larger / known.shape[-1] ** 2)


def nearest(points: Tensor, rows: Tensor, data: Tensor) -> Tensor:
    """Distance to the nearest row of the data, (n, E), but the one that a point, (B, E), is made
    of, whose numbers are `rows`, (B,) -> (B,). The unit is a dimension's standard deviation."""
    mean, scale = data.mean(0), data.std(0).clamp(min=1e-6)
    points = (points - mean) / scale  # centred, as cdist's matmuls round what is large
    found = torch.full((len(points),), torch.inf, device=data.device)
    for start in range(0, len(data), AT_ONCE):
        part = (data[start : start + AT_ONCE] - mean) / scale
        distance = torch.cdist(points, part)
        numbers = torch.arange(start, start + len(part), device=data.device)
        distance[rows[:, None] == numbers] = torch.inf
        found = torch.minimum(found, distance.amin(1))
    return found


def detection(agent: uwac.Agent, data: list[Tensor], rows: Tensor) -> tuple[dict, dict]:
    """How well random actions at these rows of the data, (B,), are told from the data's: AUROCs,
    and for two of them the variances that they are of."""
    torch.manual_seed(0)  # the same random actions for every run on these data
    obs, known = data[0][rows], data[1][rows]
    uniform = torch.rand_like(known) * 2 - 1
    shuffled = known[torch.randperm(len(known), device=known.device)]
    trained = variances(agent, obs, known, uniform, shuffled)
    fresh_args = replace(agent.args, num_seeds=NUM_UNTRAINED)
    fresh = type(agent)(fresh_args, *agent.dims).to(uwac.DEVICE)
    untrained = variances(fresh, obs, known, uniform)
    pairs = torch.cat(data[:2], dim=1)
    distances = [nearest(torch.cat([obs, action], 1), rows, pairs) for action in (known, uniform)]
    found = {
        "auroc_uniform": auroc(trained[0], trained[1]),
        "auroc_shuffled": auroc(trained[0], trained[2]),
        "auroc_untrained": auroc(*untrained),
        "auroc_action_norm": auroc(known.norm(dim=1), uniform.norm(dim=1))[None],
        "auroc_nearest": auroc(*distances)[None],
    }
    return found, {"auroc_uniform": trained[:2], "auroc_untrained": untrained}


def draw(run: Path, step: int, found: dict[str, Tensor], shown: dict[str, list[Tensor]]) -> None:
    """Histograms over states and seeds of the variances that an AUROC is of, a panel for each."""
    titles = {"auroc_uniform": f"after {step:,} updates", "auroc_untrained": "untrained"}
    kinds = {"the data's actions": "#009E73", "random actions": "#D55E00"}
    figure = new_figure(10, 4)
    for axes, (name, title) in zip(figure.subplots(1, 2), titles.items()):
        logs = [variance.flatten().clamp(min=1e-12).log10().cpu() for variance in shown[name]]
        both = torch.cat(logs)
        bins = np.linspace(both.min().item(), both.max().item(), 51)
        for values, (kind, colour) in zip(logs, kinds.items()):
            axes.hist(values, bins, alpha=0.6, label=kind, color=colour)
        area, seeds = found[name].mean(), len(found[name])
        axes.set_title(f"{title}: AUROC {area:.2f}, {seeds} seeds")
        axes.set(xlabel="log10 of Var[Q1] + Var[Q2]", ylabel="states")
    axes.legend()
    save(figure, run / f"variance-{step}.png")


def weights(agent: uwac.Agent, obs: Tensor) -> dict[str, Tensor]:
    """How much the weights of the actor's loss tell states apart: obs (S, B, D) -> (S,) each."""
    action = agent.actor.sample(obs, 1).squeeze(2).tanh()
    q = agent.critic(obs, action).amin(0)  # (S, B)
    variance = agent.uncertainty(agent.critic, obs, action)
    weight = agent.weigh(variance, q, "actor")
    ranks = [spearmanr(v, q2).statistic for v, q2 in zip(variance.cpu(), q.square().cpu())]
    found = {
        "variance_spread": variance.std(1) / variance.mean(1),
        "weight_spread": weight.std(1) / weight.mean(1),
        "rank_with_q2": torch.tensor(ranks),
    }
    if getattr(agent.args, "weighting", "variance") == "variance":
        found["equal_weights"] = weight.mean(1) * variance.mean(1) / agent.args.beta
    return found


def data_of(run: Path, saved: dict, dataset_path: Path | None = None) -> list[Tensor]:
    """The transitions that a run learned from. Raises ValueError, and OSError of a download."""
    env_id, learned_from = saved["args"]["env_id"], saved["data"]
    path = dataset_path or Path(learned_from["path"])
    if dataset_path and not path.is_file():
        raise ValueError(f"--dataset-path {path}: no such file")
    if not path.is_file():
        if d4rl.full_id(env_id) not in d4rl.DATASETS:
            problem = f"learned from {path}, which is no file here: give --dataset-path"
            raise ValueError(f"{run}: {problem}")
        path = d4rl.download(env_id)
    if d4rl.describe(path)["sha256"] != learned_from["sha256"]:
        raise ValueError(f"{run}: {path} is not the data that it learned from")
    return load_transitions(env_id, path)


def diagnose(run: Path, dataset_path: Path | None = None) -> dict[str, list[float]]:
    """Of each seed of a run. Raises ValueError, and OSError where its data are not found."""
    script, agent, saved = load(run)
    data = data_of(run, saved, dataset_path)
    if len(data[0]) < 2:
        raise ValueError(f"{run}: learned from one transition, which has no spread")
    try_to_write(run)
    step = saved["updates"]
    rows = torch.as_tensor(np.random.default_rng(0).permutation(len(data[0]))[:NUM_STATES])
    rows = rows.to(uwac.DEVICE)
    torch.manual_seed(0)
    obs, action = (array[rows].expand(agent.args.num_seeds, -1, -1) for array in data[:2])
    with torch.no_grad():
        found = constraint(agent, obs) | errors(agent, obs, action)
        if isinstance(agent, uwac.Agent) and agent.args.dropout > 0:
            aurocs, shown = detection(agent, data, rows)
            found |= aurocs | weights(agent, obs)
            draw(run, step, found, shown)
    found["q_share"] = q_share(script, agent, data)
    found = {name: values.tolist() for name, values in found.items()}
    write_json(run / f"diagnosis-{step}.json", found)
    return found


def main(runs: tyro.conf.Positional[tuple[Path, ...]], dataset_path: Path | None = None) -> None:
    """Raises ValueError, and OSError where a file cannot be read or written."""
    if not runs:
        raise ValueError("name the folders of one run or more")
    for run in runs:
        found = diagnose(run, dataset_path)
        print(run)
        for name, values in found.items():
            print(f"  {name}: {', '.join(f'{value:.3g}' for value in values)}")


if __name__ == "__main__":
    with errors_in_one_line():
        tyro.cli(main, description=__doc__)
