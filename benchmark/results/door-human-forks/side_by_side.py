"""Agents of several methods, three of each, trained side by side in one process on an H200: how the
files of this folder and of hammer-expert-three-seeds were made.

    python benchmark/results/door-human-forks/side_by_side.py OUT SECONDS door-human:94000
    python benchmark/results/door-human-forks/side_by_side.py OUT SECONDS hammer-expert:20000

A job is a task and its last update. After SECONDS everything is saved; the same command goes on.
The agents of door-human share a warm-up: after it each is copied, once for each of its methods, and
each copy goes on with random numbers of its own. Nothing is played. It patches uwac.py as of commit
612ccb1, and is kept as a record. `benchmark/run.py` trains each method by itself.
"""

import copy
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from runpy import run_path

import torch

sys.path[:0] = [".", "benchmark"]
from lib.data import load_transitions

import d4rl
import uwac

CUDA = uwac.DEVICE == "cuda"
SEEDS = 3
EVERY = 2_500  # updates between rows of history
SOME = 500  # updates between looks at the clock
# of: whose warm-up it has. Dropout, spectral norm and mc: whether it has them. critic, actor: the
# weights in a loss where they are not a state's own: the batch mean, one, scaled or a number.
HUMAN = {  # warm-up
    "bear": {"dropout": False, "critic": "one", "actor": "one"},
    "uwac": {},
    "uwac-mc": {"mc": True},
}
FORKS = {
    "bear": {"of": "bear", "dropout": False, "critic": "one", "actor": "one"},
    "bear-fixed-w-0.43": {"of": "bear", "dropout": False, "critic": "one", "actor": 0.43},
    "bear-fixed-w-0.01": {"of": "bear", "dropout": False, "critic": "one", "actor": 0.01},
    "bear-no-q": {"of": "bear", "dropout": False, "critic": "one", "actor": 0.0},
    "bear-scaled-q": {"of": "bear", "dropout": False, "critic": "one", "actor": "scaled"},
    "uwac-no-sn": {"of": "uwac"},
    "uwac-actor-constant": {"of": "uwac", "actor": "mean"},
    "uwac-critic-only": {"of": "uwac", "actor": "one"},
    "uwac-mc-no-sn": {"of": "uwac-mc", "mc": True},
}
EXPERT = {
    "bear": {"dropout": False, "critic": "one", "actor": "one"},
    "bear+sn": {"dropout": False, "critic": "one", "actor": "one", "sn": True},
    "uwac-analytic": {"sn": True},
    "uwac-no-sn": {},
}


def broadcast_mmd(x, y, kernel, sigma):
    """As uwac.mmd's Gaussian kernel. On a GPU cdist is slow for many agents."""

    def mean_kernel(a, b):
        d = (a.unsqueeze(-2) - b.unsqueeze(-3)).square().sum(-1)
        return torch.exp(-d / (2 * sigma)).mean((-2, -1))

    squared = mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)
    return (squared.clamp(min=0) + 1e-6).sqrt()


cdist_mmd = uwac.mmd
# The earlier record's norm and dropout are for some agents only: `on` and `drops` say which.
run_path("benchmark/results/door-human-what-bounds-q/side_by_side.py")
WARMUP = 40_000


class Layer:
    def __init__(self, layer, some):
        self.weight, self.bias = layer.weight[:, some], layer.bias[:, some]

    def __call__(self, x):
        return x @ self.weight + self.bias


class CriticOfSome:
    def __init__(self, critic, some):
        self.layers = [Layer(layer, some) for layer in critic.layers]


class Agent(uwac.Agent):
    """SEEDS agents of each method in `groups`, which is HUMAN, FORKS or EXPERT."""

    def __init__(self, args, groups, *dims):
        super().__init__(args, *dims)
        self.names = [name for name in groups for _ in range(SEEDS)]
        each = [groups[name] for name in self.names]

        def flag(test):
            return torch.tensor([test(group) for group in each])

        for module in self.modules():
            if isinstance(module, uwac.SpectralNorm):
                on = flag(lambda g: g.get("sn", False))
                module.register_buffer("on", on[:, None, None], persistent=False)
            if isinstance(module, uwac.Critic):
                drops = flag(lambda g: g.get("dropout", True))
                module.register_buffer("drops", drops[:, None, None], persistent=False)
        fixed = flag(lambda g: g["actor"] if isinstance(g.get("actor"), float) else -1.0)
        flags = {
            "critic_one": flag(lambda g: g.get("critic") == "one"),
            "actor_one": flag(lambda g: g.get("actor") == "one"),
            "actor_mean": flag(lambda g: g.get("actor") == "mean"),
            "actor_scaled": flag(lambda g: g.get("actor") == "scaled"),
            "actor_fixed": fixed,
        }
        for name, value in flags.items():
            self.register_buffer(name, value[:, None], persistent=False)
        mc = flag(lambda g: g.get("mc", False)).nonzero().flatten().tolist()
        self.mc = slice(mc[0], mc[-1] + 1) if mc else None

    @torch.no_grad()
    def uncertainty(self, critic, obs, action):
        self.in_critic_loss = critic is self.target_critic
        if not self.in_critic_loss:
            q = critic(obs, action).amin(0)
            self.scaled = 2.5 / q.abs().mean(-1, keepdim=True)
        p, some = self.args.dropout, self.mc
        var = uwac.analytic_dropout_variance(critic, obs, action, p).sum(0)
        if some is None:
            return var
        sampled = uwac.mc_dropout_variance(
            CriticOfSome(critic, some), obs[some], action[some], p, self.args.passes
        )
        return torch.cat([var[: some.start], sampled.sum(0), var[some.stop :]])

    @torch.no_grad()
    def weigh(self, var, args):
        w = uwac.uncertainty_weight(var, args)
        if self.in_critic_loss:
            return torch.where(self.critic_one, 1.0, w)
        w = torch.where(self.actor_one, 1.0, w)
        w = torch.where(self.actor_mean, w.mean(-1, keepdim=True), w)
        w = torch.where(self.actor_scaled, self.scaled, w)
        return torch.where(self.actor_fixed >= 0, self.actor_fixed.to(w), w)


def dimension(tensor, S):
    """Of the seeds, first or right after the critics' 2."""
    return 1 if tensor.dim() == 4 and tensor.shape[:2] == (2, S) else 0


def state_of(agent):
    moments = {}
    for name, optimizer in agent.optimizers.items():
        moments[name] = [
            {key: value for key, value in optimizer.state[p].items()}
            for p in optimizer.param_groups[0]["params"]
        ]
    return {"agent": dict(agent.state_dict()), "moments": moments}


def put_state(agent, state, index=None, S=None):
    """The state, or with `index` that of some of its S agents, some more than once."""

    def some(tensor):
        if index is None or tensor.dim() == 0:
            return tensor.clone()
        return tensor.index_select(dimension(tensor, S), index.to(tensor.device))

    agent.load_state_dict({name: some(value) for name, value in state["agent"].items()})
    for name, optimizer in agent.optimizers.items():
        for p, moments in zip(optimizer.param_groups[0]["params"], state["moments"][name]):
            optimizer.state[p] = {
                key: some(value).to(uwac.DEVICE) for key, value in moments.items()
            }


def q_share(agent, data):
    """As benchmark/diagnose.py."""
    gradients = []
    devices = [0] if CUDA else []
    with torch.random.fork_rng(devices):
        for step in (0, agent.args.warmup_steps + 1):
            trial = copy.deepcopy(agent)
            trial.args = replace(agent.args, batch_size=1_000)
            torch.manual_seed(0)
            uwac.update(trial, data, torch.full((), step, device=uwac.DEVICE))
            layers = [p.grad.flatten(1) for p in trial.actor.parameters()]
            gradients.append(torch.cat(layers, dim=1))
    of_mmd, of_both = gradients
    norm_of_q = (of_both - of_mmd).norm(dim=1)
    return norm_of_q / (norm_of_q + of_mmd.norm(dim=1))


class Job:
    def __init__(self, name, out, folder):
        self.name, self.out = name, out
        self.file = folder / f"{name}.pt"
        human = name == "door-human"
        self.data = load_transitions(name, d4rl.download(name))
        self.warmup = WARMUP if human else WARMUP // 4
        self.first, self.last = (HUMAN, FORKS) if human else (EXPERT, EXPERT)
        self.history, self.seconds, self.step = [], 0.0, 0
        torch.manual_seed(0)
        saved = None
        if self.file.exists():
            saved = torch.load(self.file, map_location=uwac.DEVICE)
            self.history, self.seconds, self.step = (
                saved[key] for key in ("history", "seconds", "step")
            )
        late = human and self.step >= self.warmup
        self.agent = self.make(self.last if late else self.first)
        if saved:
            put_state(self.agent, saved)
            uwac.RNG.set_rng_state(saved["rng"].cpu())
        self.begin()

    def make(self, groups):
        human = self.name == "door-human"
        args = uwac.Args(
            env_id=self.name,
            num_seeds=SEEDS * len(groups),
            variance="analytic",
            spectral_norm=not human,
            warmup_steps=self.warmup,
            mmd_kernel="gaussian",
        )
        dims = self.data[0].shape[1], self.data[1].shape[1]
        return Agent(args, groups, *dims).to(uwac.DEVICE)

    def begin(self):
        """A new graph, for a new number of agents."""
        self.launch = lambda step: uwac.update(self.agent, self.data, step)
        if CUDA:
            self.launch = uwac.as_cuda_graph(uwac.update, self.agent, self.data)

    def fork(self):
        old, S = state_of(self.agent), self.agent.args.num_seeds
        first = {name: SEEDS * i for i, name in enumerate(self.first)}
        index = [first[group["of"]] + i for group in self.last.values() for i in range(SEEDS)]
        self.agent = self.make(self.last)
        put_state(self.agent, old, torch.tensor(index), S)
        self.begin()

    def row(self, metrics):
        row = {name: value.tolist() for name, value in metrics.items()}
        row["q_share"] = q_share(self.agent, self.data).tolist()
        self.history.append({"step": self.step, "agents": self.agent.names, **row})
        shown = ("target_q", "policy_weight", "q_share", "mmd")
        for name in shown:
            values = torch.tensor(row[name]).view(-1, SEEDS).tolist()
            print(
                self.name, self.step, name, *(f"{a[0]:.3g}/{a[1]:.3g}/{a[2]:.3g}" for a in values)
            )

    def train(self, end, until):
        """Whether it came to its end."""
        began = time.time()
        while self.step < end and time.time() < until:
            for _ in range(min(SOME, end - self.step)):
                self.step += 1
                metrics = self.launch(self.step)
                if self.step % EVERY == 0 or self.step == end:
                    self.row(metrics)
                if self.step == self.warmup and self.name == "door-human":
                    self.fork()
            if not torch.stack(list(metrics.values())).isfinite().all():
                print(self.name, self.step, "not finite")
        self.seconds += time.time() - began
        print(self.name, self.step, f"{self.seconds:.0f} s in all", flush=True)
        self.save()
        return self.step >= end

    def save(self):
        state = state_of(self.agent) | {
            "history": self.history,
            "seconds": self.seconds,
            "step": self.step,
            "rng": uwac.RNG.get_rng_state(),
        }
        torch.save(state, self.file)
        log = self.out / "log.json"
        found = json.loads(log.read_text()) if log.exists() else {}
        found[self.name] = {"step": self.step, "seconds": self.seconds, "history": self.history}
        log.write_text(json.dumps(found))
        weights = {k: v.cpu() for k, v in self.agent.state_dict().items()}
        S = self.agent.args.num_seeds
        acting = {k: v for k, v in weights.items() if k.split(".")[0] in ("actor", "critic")}
        parts = torch.arange(S).chunk(2 if self.name == "door-human" else 1)
        for number, index in enumerate(parts):
            part = {k: v.index_select(dimension(v, S), index) for k, v in acting.items()}
            names = [self.agent.names[i] for i in index.tolist()]
            torch.save({"names": names, **part}, self.out / f"{self.name}-{number}.pt")
        if "uwac-analytic" in self.agent.names:
            index = torch.tensor(
                [i for i, n in enumerate(self.agent.names) if n == "uwac-analytic"]
            )
            vae = {k: v[index] for k, v in weights.items() if k.startswith("vae")}
            torch.save(vae | {"log_alpha": weights["log_alpha"]}, self.out / f"{self.name}-vae.pt")


def main(out, seconds, *jobs):
    began = time.time()
    until = began + float(seconds)
    out = Path(out)
    folder = out / "state"
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    x, y = (torch.randn(5, 7, 10, 28, device=uwac.DEVICE, requires_grad=True) for _ in "xy")
    torch.testing.assert_close(
        broadcast_mmd(x, y, "gaussian", 20.0), cdist_mmd(x, y, "gaussian", 20.0)
    )
    uwac.mmd = broadcast_mmd
    for word in jobs:
        name, end = word.split(":")
        job = Job(name, out, folder)
        done = job.train(int(end), until)
        del job
        if not done:
            sys.exit("out of time")


if __name__ == "__main__":
    main(*sys.argv[1:])
