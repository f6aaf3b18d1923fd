"""Updates of the authors' trainers, repeated by bear.py and uwac.py with the same random numbers.

tests/golden/*_lockstep*.npz are 14 updates each of the authors' BEAR and UWAC, changed as below,
with small networks on 64 transitions: data, weights before and after, all random numbers, all
losses. Both scripts must come to the same losses and weights; uwac.py to BEAR's with its parts off.

    python tests/lockstep.py tests/golden/*_lockstep*.npz

prints the largest differences and exits with 1 where one is above its tolerance.

The recorded trainer is the authors', changed to what ours does in this: the critics step before the
actor's loss is taken and, in UWAC, the variance is that at the best candidate, Q comes from a pass
without dropout, and the weight stands outside the square. Three things of theirs are set here: the
backup's candidates come from the current actor, not from a target actor, the target critics have
initial weights of their own, and each row has a dropout mask of its own.

Shapes: S = 1 seed, B batch, T passes, H hidden units; "2 layers" are the two hidden ones.
"""

import argparse
import json
import sys
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import bear
import uwac

METRIC_TOLERANCE = 1e-5  # of a metric, relative to the authors'
WEIGHT_TOLERANCE = 1e-4  # of a network's weights, relative to how far they moved
NETWORKS = {  # names in an agent: names in a file, of twin critics two
    "actor": ["actor"],
    "critic": ["q1", "q2"],
    "target_critic": ["target_q1", "target_q2"],
    "vae.encoder": ["encoder"],
    "vae.decoder": ["decoder"],
    "log_alpha": ["log_alpha"],  # a network of one weight
}
UWAC_AS_BEAR = {"weighting": "none", "dropout": 0.0, "spectral_norm": False}
UWAC_AS_BEAR |= {"variance": "analytic"}
MC_DROPOUT_VARIANCE = uwac.mc_dropout_variance


def read(path: Path) -> tuple[dict[str, Tensor], dict]:
    """Arrays of a file, and its settings."""
    arrays = dict(np.load(path))
    settings = json.loads(str(arrays.pop("hyperparameters")))
    recorded = {name: torch.tensor(array) for name, array in arrays.items()}
    return recorded, settings


def parameters(agent: nn.Module, network: str) -> list[Tensor]:
    """Weight and bias of each layer: (S, in, out) and (S, 1, out), of twins with a 2 in front."""
    if network == "log_alpha":
        return [agent.log_alpha]
    return list(agent.get_submodule(network).parameters())


def weights(recorded: dict[str, Tensor], when: str, network: str) -> list[Tensor]:
    """What `parameters` are before (`when` is init) or after (final) the recorded updates."""
    if network == "log_alpha":
        return [recorded[f"{when}_log_alpha"]]
    names = NETWORKS[network]
    tensors = []
    for layer in range(3):
        weight = torch.stack([recorded[f"{when}_{name}_w{layer}"] for name in names])
        bias = torch.stack([recorded[f"{when}_{name}_b{layer}"] for name in names])
        tensors += [weight, bias.unsqueeze(1)]
    if len(names) == 2:
        tensors = [tensor.unsqueeze(1) for tensor in tensors]
    return tensors


def draws_of(recorded: dict[str, Tensor], u: int) -> dict[torch.Size, list[Tensor]]:
    """Random numbers of update u by the shape in which the scripts draw them, in their order."""
    draws = defaultdict(list)
    index = recorded["index"][u].unsqueeze(0)  # (S, B)
    draws[index.shape].append(index)
    for name in ("noise_vae", "noise_candidates", "noise_actor", "noise_decode"):
        noise = recorded[name][u].unsqueeze(0)  # (S, B, ...)
        draws[noise.shape].append(noise)
    if "mask_critic" not in recorded:
        return draws
    for layer in range(2):  # the critics' regression
        mask = recorded["mask_critic"][u][:, layer].unsqueeze(1)  # (2, S, B, H)
        draws[mask.shape].append(mask.float())
    for name in ("mask_target", "mask_policy"):  # the variances
        masks = recorded[name][u].permute(3, 1, 0, 2, 4).flatten(2, 3)  # (T, 2 layers, 2B, H)
        draws[masks.shape].append(masks.float())  # a mask's 0 is below p, and its 1 is not
    return draws


def row_by_row(critic, obs: Tensor, action: Tensor, p: float, T: int) -> Tensor:
    """uwac.py's variance, which has one mask for all rows, with masks of its own for each of the
    rows (1, B, ...), as the authors' has: each is taken for another seed's."""
    B = obs.shape[1]
    layers = []
    for layer in critic.layers:
        repeated = uwac.StackedLinear((2, B), *layer.weight.shape[-2:])
        repeated.weight.data = layer.weight.repeat(1, B, 1, 1)
        repeated.bias.data = layer.bias.repeat(1, B, 1, 1)
        layers.append(repeated)
    seeds = SimpleNamespace(layers=layers), obs.transpose(0, 1), action.transpose(0, 1)
    return MC_DROPOUT_VARIANCE(*seeds, p, T).mT


@contextmanager
def drawing(source):
    """Torch's random numbers are source(torch.rand, .randn or .randint up to a number, shape)."""
    rand, randn, randint = torch.rand, torch.randn, torch.randint

    def uniform(*shape, **_) -> Tensor:
        return source(rand, torch.Size(shape))

    def normal(*shape, **_) -> Tensor:
        return source(randn, torch.Size(shape))

    def normal_like(x: Tensor) -> Tensor:
        return source(randn, x.shape)

    def integers(high: int, shape: tuple[int, ...], **_) -> Tensor:
        return source(partial(randint, high), torch.Size(shape))

    def dropout(x: Tensor, p: float) -> Tensor:
        return x * (source(rand, x.shape) >= p) / (1 - p) if p > 0 else x

    replaced = {"rand": uniform, "randn": normal, "randn_like": normal_like, "randint": integers}
    noise = mock.patch.multiple(torch, **replaced)
    with noise, mock.patch("torch.nn.functional.dropout", dropout):
        yield


@contextmanager
def replaying(draws: dict[torch.Size, list[Tensor]]):
    """Torch draws these numbers, in any order of shapes, and must draw each of them once."""

    def draw(_, shape: torch.Size) -> Tensor:
        if not draws[shape]:
            raise LookupError(f"a draw of shape {tuple(shape)}, which the authors do not make")
        return draws[shape].pop(0)

    with drawing(draw):
        yield
    left = [tuple(shape) for shape, tensors in draws.items() if tensors]
    if left:
        raise LookupError(f"draws that only the authors make, of shapes {left}")


def compare(script, path: Path, **changes) -> dict:
    """Repeat a file's updates. Returns (relative difference, tolerance) of each metric, at its
    worst update, and of each network's final weights. `changes` of Args serve to see it fail."""
    recorded, settings = read(path)
    parts_off = UWAC_AS_BEAR if script is uwac and settings["algorithm"] == "bear" else {}
    args = script.Args(**(settings["args"] | parts_off | changes))
    agent = script.Agent(args, settings["obs_dim"], settings["action_dim"])
    for name in NETWORKS:
        initial = weights(recorded, "init", name)
        for parameter, weight in zip(parameters(agent, name), initial, strict=True):
            parameter.data = weight.clone()  # smaller than it was, which the layers do not mind
    agent.target_actor = agent.actor

    data = [recorded[name] for name in ("obs", "action", "reward", "next_obs", "done")]
    history = []
    for u in range(settings["updates"]):
        rows = mock.patch.object(uwac, "mc_dropout_variance", row_by_row)
        with rows, replaying(draws_of(recorded, u)):
            history.append(script.update(agent, data, u + 1, args))

    differences = {}
    for name in history[0]:
        if f"result_{name}" in recorded:
            ours = torch.cat([metrics[name] for metrics in history])
            theirs = recorded[f"result_{name}"]
            difference = ((ours - theirs) / theirs).abs().max()
            differences[name] = difference.item(), METRIC_TOLERANCE
    for name in NETWORKS:
        ours = parameters_to_vector(parameters(agent, name))
        theirs = parameters_to_vector(weights(recorded, "final", name))
        origin = parameters_to_vector(weights(recorded, "init", name))
        difference = (ours - theirs).norm() / (theirs - origin).norm()
        differences[f"weights of {name}"] = difference.item(), WEIGHT_TOLERANCE
    return differences


def agree(differences: dict) -> bool:
    """Whether all differences of `compare` are within their tolerances; NaN is not."""
    return all(difference <= tolerance for difference, tolerance in differences.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    files = parser.parse_args().files
    torch.set_num_threads(1)
    failed = False
    for path in files:
        _, settings = read(path)
        for script in [bear, uwac] if settings["algorithm"] == "bear" else [uwac]:
            differences = compare(script, path)
            verdict = "agrees" if agree(differences) else "DIFFERS"
            failed |= verdict == "DIFFERS"
            print(f"{script.__name__}.py {verdict}: {path.name}")
            for name, (difference, tolerance) in differences.items():
                print(f"    {name:24} {difference:.1e} of {tolerance:.0e}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
