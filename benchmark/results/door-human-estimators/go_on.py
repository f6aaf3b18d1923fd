"""Why has Q with `mc` another value than with the closed form? A run goes on with each of them.

    python benchmark/results/door-human-estimators/go_on.py RUN analytic mc noise mixed

RUN is of `python uwac.py --env-id door-human --spectral-norm False --variance analytic`. Each
estimate of Var[Q] trains a copy of its agent for 8,000 updates:
analytic: the closed form.
mc: 100 passes.
noise: the closed form times the relative noise of 100 passes, the same at all states of a batch.
mixed: 100 passes where the closed form of Var[Q1] + Var[Q2] is below 5, else the closed form.
Before, it says how the closed form compares with 4,000 passes, by fifths of Var[Q].

Kept as a record. go_on.json is from an earlier form of this program, with the same estimates. It
began with agents of ../door-human-forks (uwac-no-sn after 94,000 updates; `ratios` also of
uwac-mc-no-sn), of which actor and critics were kept: the optimizers and target networks began anew,
alpha at its limit, and the VAE was another run's after 70,000 updates.
"""

import json
import sys
from pathlib import Path

import torch

sys.path[:0] = [".", "benchmark"]
from lib.data import load_transitions

import d4rl
import uwac

UPDATES, EVERY = 8_000, 1_000
PASSES = 100
SMALL = 5
analytic, mc = uwac.analytic_dropout_variance, uwac.mc_dropout_variance


@torch.no_grad()
def noise(critic, obs, action, p):
    variance = analytic(critic, obs, action, p)  # (2, S, B)
    degrees = PASSES - 1
    chi_square = torch.randn(degrees, *variance.shape[:-1], 1).square().sum(0)
    return variance * chi_square / degrees


@torch.no_grad()
def mixed(critic, obs, action, p):
    closed = analytic(critic, obs, action, p)
    return torch.where(closed.sum(0) < SMALL, mc(critic, obs, action, p, PASSES), closed)


ESTIMATES = {
    "analytic": analytic,
    "mc": lambda *inputs: mc(*inputs, PASSES),
    "noise": noise,
    "mixed": mixed,
}


def ratios(agent, data) -> list[float]:
    """Var[Q] by 4,000 passes over the closed form: geometric means over fifths, from the lowest."""
    index = torch.randint(len(data[0]), (1, 256))
    inputs = (agent.critic, data[0][index], data[1][index], agent.args.dropout)
    closed = analytic(*inputs).sum(0)[0]
    sampled = torch.stack([mc(*inputs, PASSES) for _ in range(40)]).mean(0).sum(0)[0]
    ordered = (sampled / closed).log()[closed.argsort()]
    return [fifth.mean().exp().item() for fifth in ordered.chunk(5)]


def go_on(run: str, estimate: str, data: list[torch.Tensor]) -> list[dict]:
    agent, saved = uwac.load_checkpoint(run)
    uwac.analytic_dropout_variance = ESTIMATES[estimate]
    torch.manual_seed(1000 + agent.args.seed)
    start = saved["history"][-1]["step"]
    rows, sums = [], {}
    for i in range(1, UPDATES + 1):
        metrics = uwac.update(agent, data, start + i)
        for name in ("target_q", "policy_weight", "variance"):
            sums[name] = sums.get(name, 0) + metrics[name].item() / EVERY
        if i % EVERY == 0:
            rows.append({"updates": i, **sums})
            sums = {}
            print(estimate, rows[-1])
    return rows


if __name__ == "__main__":
    run, *estimates = sys.argv[1:]
    agent, _ = uwac.load_checkpoint(run)
    torch.set_float32_matmul_precision(agent.args.matmul_precision)
    data = load_transitions(agent.args.env_id, d4rl.download(agent.args.env_id))
    torch.manual_seed(0)
    found = {"ratios": ratios(agent, data)}
    print(found)
    found |= {estimate: go_on(run, estimate, data) for estimate in estimates}
    Path("go_on.json").write_text(json.dumps(found, indent=1) + "\n")
