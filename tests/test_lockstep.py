"""Updates of the authors' trainers, repeated by bear.py and uwac.py with the same random numbers;
UWAC is BEAR and what Algorithm 1 colours.

tests/golden/*_lockstep*.npz are 14 updates each of the authors' BEAR and UWAC with small networks:
data, weights before and after, all random numbers, all losses. docs/fidelity.md lists what the
recorded trainer and our scripts are changed in for that.

Shapes: S seeds, one of each file, B batch, T passes, H hidden units; "2 layers" are hidden ones.
"""

import ast
import json
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import ROOT
from torch import Tensor
from torch.nn.utils import parameters_to_vector

import bear
import uwac
from benchmark.variants import weights as weightings

GOLDEN = ROOT / "tests" / "golden"
BEAR = GOLDEN / "bear_lockstep.npz"
STRONG = GOLDEN / "bear_lockstep_strong.npz"  # larger weights: log-std meets its limits, Q is not 0
UWAC = GOLDEN / "uwac_lockstep.npz"
METRICS = {"vae_loss", "critic_loss", "actor_loss", "alpha", "mmd", "target_q", "policy_q"}
COLOURED = {"Args", "MLP", "Critic", "Agent", "update"}
# Another value of each argument that shapes training, so close that no greater change can hide.
CHANGES = {"gamma": 0.98, "tau": 0.006, "lmbda": 0.74, "warmup_steps": 7, "mmd_threshold": 0.05}
CHANGES |= {"mmd_kernel": "laplacian", "mmd_sigma": 10.0, "actor_lr": 1.1e-4, "critic_lr": 3.1e-4}
CHANGES |= {"vae_lr": 3.1e-4, "dual_lr": 1.1e-3}
OF_UWAC = {"beta": 0.51, "dropout": 0.11, "weight_clip": 0.9}
# Without these the shapes of random numbers would be others; or they are in other tests.
REST = {"batch_size", "num_candidates", "num_mmd_samples", "passes", "num_seeds"}
REST |= {"variance", "spectral_norm", "env_id", "seed", "matmul_precision"}
REST |= {"cuda_graph", "eval_candidates"}  # these shape no number
METRIC_TOLERANCE = 1e-5  # of a metric, relative to the authors'
WEIGHT_TOLERANCE = 1e-4  # of a network's weights, relative to how far they moved
NETWORKS = {  # names in an agent: names in a file, of twin critics two
    "actor": ["actor"],
    "critic": ["q1", "q2"],
    "target_critic": ["target_q1", "target_q2"],
    "vae.encoder": ["encoder"],
    "vae.decoder": ["decoder"],
}
MC_DROPOUT_VARIANCE = uwac.mc_dropout_variance


def read(path: Path) -> tuple[dict[str, Tensor], dict]:
    arrays = dict(np.load(path))
    settings = json.loads(str(arrays.pop("hyperparameters")))
    recorded = {name: torch.tensor(array) for name, array in arrays.items()}
    return recorded, settings


def weights(recordings: list[dict], when: str, network: str) -> list[Tensor]:
    """Weight and bias of each layer before (`when` is init) or after (final) the recorded updates:
    (S, in, out) and (S, 1, out), of twins with a 2 in front."""
    tensors = []
    for layer in ("w0", "b0", "w1", "b1", "w2", "b2"):
        names = [f"{when}_{name}_{layer}" for name in NETWORKS[network]]
        of_seeds = [torch.stack([recorded[name] for name in names]) for recorded in recordings]
        stacked = torch.stack(of_seeds, 1).squeeze(0)  # of a lone network
        tensors.append(stacked.unsqueeze(-2) if layer.startswith("b") else stacked)
    return tensors


def draws_of(recordings: list[dict], u: int) -> dict[torch.Size, list[Tensor]]:
    """Random numbers of update u by the shape in which the scripts draw them, in their order."""
    draws = defaultdict(list)

    def add(name: str, dim: int, change=lambda x: x) -> None:
        x = change(torch.stack([recorded[name][u] for recorded in recordings], dim))
        draws[x.shape].append(x)

    add("index", 0, lambda x: x + len(recordings[0]["obs"]) * torch.arange(len(x))[:, None])
    for name in ("noise_vae", "noise_candidates", "noise_actor", "noise_decode"):
        add(name, 0)  # (S, B, ...)
    if "mask_critic" in recordings[0]:  # a mask's 0 is below p, and its 1 is not
        for layer in range(2):  # the critics' regression: (2, S, B, H)
            add("mask_critic", 2, lambda x, layer=layer: x[:, layer].float())
        of_layers = lambda x: x.permute(1, 4, 0, 2, 3, 5).flatten(3, 4).float()
        for name in ("mask_target", "mask_policy"):  # the variances: (T, 2, SB, H)
            for layer in range(2):
                add(name, 2, lambda x, layer=layer: of_layers(x)[layer])
    return draws


def row_by_row(critic, obs: Tensor, action: Tensor, rate: float, passes: int) -> Tensor:
    """Var[Q] with masks of each row, as the authors' has: a row (S, B, ...) is taken for a seed."""
    S, B, _ = obs.shape
    layers = []
    for layer in critic.layers:
        repeated = uwac.StackedLinear((2, S * B), *layer.weight.shape[-2:])
        repeated.weight.data = layer.weight.repeat_interleave(B, dim=1)
        repeated.bias.data = layer.bias.repeat_interleave(B, dim=1)
        layers.append(repeated)
    rows = (x.flatten(0, 1).unsqueeze(1) for x in (obs, action))
    return MC_DROPOUT_VARIANCE(SimpleNamespace(layers=layers), *rows, rate, passes).view(2, S, B)


@contextmanager
def replaying(draws: dict[torch.Size, list[Tensor]]):
    """Torch draws these numbers, in any order of shapes, and must draw each of them once."""

    def draw(*shape: int, **_) -> Tensor:
        if not draws[torch.Size(shape)]:
            raise LookupError(f"a draw of shape {shape}, which the authors do not make")
        return draws[torch.Size(shape)].pop(0)

    def dropout(x: Tensor, p: float) -> Tensor:
        return x * (draw(*x.shape) >= p) / (1 - p) if p > 0 else x

    replaced = {"rand": draw, "randn": draw, "randn_like": lambda x: draw(*x.shape)}
    replaced["randint"] = lambda high, shape, **_: draw(*shape)
    noise = mock.patch.multiple(torch, **replaced)
    with noise, mock.patch("torch.nn.functional.dropout", dropout):
        yield
    left = [tuple(shape) for shape, tensors in draws.items() if tensors]
    if left:
        raise LookupError(f"draws that only the authors make, of shapes {left}")


def compare(script, *paths: Path, **changes) -> dict:
    """Repeat the updates of several files side by side, each as one of the seeds. Returns the
    difference over its tolerance of each metric, at its worst update, and of each network's final
    weights: they agree where it is 1 or less, and not where it is NaN."""
    recordings, (settings, *_) = zip(*map(read, paths))
    args = settings["args"] | {"num_seeds": len(paths)} | changes
    if script is weightings and settings["algorithm"] == "bear":
        args |= {"weighting": "none", "dropout": 0.0, "spectral_norm": False}
    agent = script.Agent(script.Args(**args), settings["obs_dim"], settings["action_dim"])
    for name in NETWORKS:
        parameters = agent.get_submodule(name).parameters()
        initial = weights(recordings, "init", name)
        for parameter, weight in zip(parameters, initial, strict=True):
            parameter.data = weight.clone()  # smaller than it was, which the layers do not mind
    agent.target_actor = agent.actor

    names = ("obs", "action", "reward", "next_obs", "done")
    data = [torch.cat([recorded[name] for recorded in recordings]) for name in names]
    history = []
    for u in range(settings["updates"]):
        rows = mock.patch.object(uwac, "mc_dropout_variance", row_by_row)
        with rows, replaying(draws_of(recordings, u)):
            history.append(script.update(agent, data, u + 1))

    differences = {}
    for name in history[0]:
        if f"result_{name}" in recordings[0]:
            ours = torch.stack([metrics[name] for metrics in history], dim=1)  # (S, updates)
            theirs = torch.stack([recorded[f"result_{name}"] for recorded in recordings])
            difference = ((ours - theirs) / theirs).abs().max()
            differences[name] = difference.item() / METRIC_TOLERANCE
    for name in NETWORKS:
        ours = parameters_to_vector(agent.get_submodule(name).parameters())
        theirs = parameters_to_vector(weights(recordings, "final", name))
        origin = parameters_to_vector(weights(recordings, "init", name))
        difference = (ours - theirs).norm() / (theirs - origin).norm()
        differences[f"weights of {name}"] = difference.item() / WEIGHT_TOLERANCE
    return differences


@pytest.mark.parametrize("script, paths", [
    (bear, [BEAR]),
    (bear, [STRONG, BEAR, BEAR]),
    (weightings, [STRONG, BEAR, BEAR]),  # UWAC without weights, dropout and spectral norm
    (weightings, [UWAC] * 2),  # with the authors' weight
])  # fmt: skip
def test_updates_are_the_authors(script, paths):
    differences = compare(script, *paths)
    assert METRICS < set(differences)
    assert UWAC not in paths or {"variance", "weight"} < set(differences)
    assert all(difference <= 1 for difference in differences.values()), differences


def test_every_argument_that_shapes_training_does():
    names = {field.name for field in fields(uwac.Args)}
    assert names - {*uwac.RESUMABLE} == {*CHANGES, *OF_UWAC, *REST}
    for script, path, changes in ((bear, STRONG, CHANGES), (weightings, UWAC, CHANGES | OF_UWAC)):
        for name, value in changes.items():
            differences = compare(script, path, **{name: value})
            assert not all(difference <= 1 for difference in differences.values()), name


def definitions(script):
    source = (ROOT / script).read_text()
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body[1:]:  # without the docstring
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        name = getattr(node, "name", lines[first - 1])
        found[name] = lines[first - 1 : node.end_lineno]
    return found


def test_bear_stands_in_uwac_letter_for_letter():
    """So most tests need to run for one of them."""
    ours, theirs = definitions("bear.py"), definitions("uwac.py")
    assert {name for name in ours if ours[name] != theirs.get(name)} == COLOURED


def test_metrics_are_those_of_earlier_versions(script, tmp_path):
    """After 30 updates on door-demo at commit 443e238, but for another CPU's rounding."""
    recorded = json.loads((GOLDEN / "histories.json").read_text())
    settings = {"total_steps": 30, "warmup_steps": 20, "eval_episodes": 1, "eval_candidates": 1}
    settings |= {"variance": "analytic"} if script is uwac else {}
    args = script.Args("door-demo", run_dir=str(tmp_path / "run"), **settings)
    (row,) = script.main(args)["history"]
    found = {name: row[name][0] for name in recorded[script.__name__]}
    assert found == pytest.approx(recorded[script.__name__], rel=1e-4)
