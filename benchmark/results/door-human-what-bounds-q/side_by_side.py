"""20 agents of ten methods, trained side by side in one process: how the files of this folder and
of door-human-ablations with the commit 0e9cd38 were made, in 12 minutes of an H200.

    python benchmark/results/door-human-what-bounds-q/side_by_side.py RUN SECONDS OPTIONS...

SECONDS: when to save and stop; the same command goes on. It patches uwac.py as of that commit, and
is kept as a record. `benchmark/run.py` trains each method by itself.

A check on the same GPU, on door-demo after 1,750 updates, Q target here (and of agents that were
trained alone): UWAC 268 (281), shuffled 230 (230), actor only 322 (337), fixed w 125 (121).
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import tyro

sys.path.insert(0, ".")
import uwac

GROUPS = {  # agents; beta and weighting; w of another state; w = 1 or 0.01 in a loss; networks
    "uwac-no-sn": {"n": 2},
    "uwac-shuffled": {"n": 5, "shuffled": True},
    "uwac-actor-only": {"n": 3, "critic_one": True},
    "bear-fixed-w": {"n": 3, "critic_one": True, "fixed": True, "dropout": False},
    "bear+dropout+sn": {"n": 1, "critic_one": True, "actor_one": True, "sn": True},
    "uwac-std": {"n": 1, "std": True, "sn": True},
    "uwac-beta-0.8": {"n": 1, "beta": 0.8, "sn": True},
    "uwac-beta-2.5": {"n": 1, "beta": 2.5, "sn": True},
    "uwac": {"n": 2, "sn": True, "mc": True},
    "uwac-mc-no-sn": {"n": 1, "mc": True},
}
S = sum(group["n"] for group in GROUPS.values())
EVERY = 10_000  # updates between evaluations: each row of history has metrics, these have scores


def flag(name, default=False):
    values = [group.get(name, default) for group in GROUPS.values() for _ in range(group["n"])]
    return torch.tensor(values)


first_mc, last_mc = flag("mc").nonzero().flatten()[[0, -1]].tolist()
MC = slice(first_mc, last_mc + 1)


def norm_some(self, weight):
    sigma = (self.u.mT @ weight).norm(dim=-1, keepdim=True)
    on = getattr(self, "on", None)
    return weight / (sigma if on is None else torch.where(on, sigma, 1.0))


def drop_some(self, x, dropout=0.0):
    def drop(h):
        return h if dropout == 0 else torch.where(self.drops, F.dropout(h, dropout), h)

    h = drop(self.layers[0](x).relu_())
    h = drop(self.layers[1](h).relu_())
    return self.layers[2](h)


uwac.SpectralNorm.forward = norm_some
uwac.MLP.forward = drop_some


class Layer:
    def __init__(self, layer):
        self.weight, self.bias = layer.weight[:, MC], layer.bias[:, MC]

    def __call__(self, x):
        return x @ self.weight + self.bias


class CriticOfSome:
    def __init__(self, critic):
        self.layers = [Layer(layer) for layer in critic.layers]


class Agent(uwac.Agent):
    def __init__(self, args, *dims):
        super().__init__(args, *dims)
        for module in self.modules():
            if isinstance(module, uwac.SpectralNorm):
                module.register_buffer("on", flag("sn")[:, None, None], persistent=False)
            if isinstance(module, uwac.Critic):
                drops = flag("dropout", True)[:, None, None]
                module.register_buffer("drops", drops, persistent=False)
        for name in ("std", "shuffled", "critic_one", "actor_one", "fixed"):
            self.register_buffer(name, flag(name)[:, None], persistent=False)
        self.register_buffer("beta", flag("beta", 1.6)[:, None], persistent=False)

    @torch.no_grad()
    def uncertainty(self, critic, obs, action):
        self.in_critic_loss = critic is self.target_critic
        p, passes = self.args.dropout, self.args.passes
        var = uwac.analytic_dropout_variance(critic, obs, action, p).sum(0)
        some = uwac.mc_dropout_variance(CriticOfSome(critic), obs[MC], action[MC], p, passes)
        return torch.cat([var[: MC.start], some.sum(0), var[MC.stop :]])

    @torch.no_grad()
    def weigh(self, var, args):
        w = torch.where(self.std, self.beta / var.sqrt(), self.beta / var)
        w = w.clamp(max=args.weight_clip)
        order = torch.rand(w.shape[-1], device=w.device).argsort()
        w = torch.where(self.shuffled, w[..., order], w)
        if self.in_critic_loss:
            return torch.where(self.critic_one, 1.0, w)
        return torch.where(self.fixed, 0.01, torch.where(self.actor_one, 1.0, w))


whole_evaluate, whole_save = uwac.evaluate, uwac.save
began = time.time()


def evaluate(agent, envs, seed, num):
    if seed[1] % EVERY and seed[1] != agent.args.total_steps:
        return np.zeros((S, agent.args.eval_episodes))
    return whole_evaluate(agent, envs, seed, num)


def save(run, agent, result):
    step = result["history"][-1]["step"] if result["history"] else 0
    late = time.time() - began > SECONDS
    if step % EVERY and step != agent.args.total_steps and not late:
        (run / "result.json").write_text(json.dumps(result))
        return
    whole_save(run, agent, result)
    if late:
        sys.exit(f"stopped at {step}")


uwac.evaluate, uwac.save = evaluate, save

if __name__ == "__main__":
    run, SECONDS = Path(sys.argv[1]), float(sys.argv[2])
    base, where = uwac.Args(num_seeds=S, variance="analytic", spectral_norm=True), "run_dir"
    if (run / "checkpoint.pt").exists():
        base, where = uwac.load_checkpoint(run, Agent)[0].args, "resume"
    args = tyro.cli(uwac.Args, default=base, args=sys.argv[3:])
    uwac.main(replace(args, **{where: run}), agent_type=Agent)
