"""How near each estimate of Var[Q] comes to 20,000 stochastic passes, on a critic with random weights.

    python benchmark/variance.py

Relative root mean square errors over 64 states and actions of door-human's sizes. "delta" is the first-order estimate,
the delta method in the masks, p / (1 - p) * sum_j (h_j dQ/dh_j)^2 at the pass without dropout, which uwac.py's analytic
estimate goes beyond. The reference has an error of its own of sqrt(2 / 20,000) = 1%.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
import uwac


@torch.no_grad()
def delta_variance(critic: uwac.Critic, obs: Tensor, action: Tensor, p: float) -> Tensor:
    """obs (stack, N, D), action (stack, N, A) -> (stack, N)."""
    h1 = critic.layers[0].on_pairs(obs, action.unsqueeze(2)).relu_()
    h2 = critic.layers[1](h1).relu_()
    dq_dh2 = critic.layers[2].weight.mT
    dq_dh1 = torch.bmm((h2 > 0) * dq_dh2, critic.layers[1].weight.mT)
    return p / (1 - p) * ((h1 * dq_dh1).square().sum(-1) + (h2 * dq_dh2).square().sum(-1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| dropout rate | mc, T = 100 | delta | analytic |\n|---|---|---|---|")
    for p in (0.1, 0.3, 0.5):
        torch.manual_seed(0)
        inputs = uwac.Critic(2, 39, 28), torch.randn(2, 32, 39), torch.rand(2, 32, 28) * 2 - 1, p
        reference = uwac.mc_dropout_variance(*inputs, 20_000)
        estimates = (
            uwac.mc_dropout_variance(*inputs, 100),
            delta_variance(*inputs),
            uwac.analytic_dropout_variance(*inputs),
        )
        errors = [((estimate / reference - 1).square().mean().sqrt()).item() for estimate in estimates]
        print(f"| {p} | " + " | ".join(f"{100 * error:.1f}%" for error in errors) + " |")
