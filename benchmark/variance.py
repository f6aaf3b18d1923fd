"""How near each estimate of Var[Q] comes to the truth, and at what cost: T stochastic passes against none.

    python benchmark/variance.py

Trains UWAC (analytic variance, batch 64, otherwise the defaults) for each dropout rate, with spectral norm and without it, and
compares the estimates on the trained critics with 20,000 passes, at states of the data with the data's actions and with
random ones. "delta" is the first-order estimate, the delta method in the masks, which uwac.py's analytic estimate goes
beyond. The reference has an error of its own of sqrt(2 / 20,000) = 1%. Shape letters as in uwac.py.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median

import torch
import tyro
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[1]))
import uwac


@dataclass
class Args:
    env_id: str = "door-demo"  # task whose data set the critics are trained on; door-demo needs no download
    dataset_path: str | None = None  # its file, as for uwac.py
    total_steps: int = 5_000  # updates of each critic
    batch_size: int = 64  # B of these
    rates: tuple[float, ...] = (0.1, 0.3, 0.5)  # dropout rates
    passes: tuple[int, ...] = (10, 30, 100, 300, 1000)  # T of the estimates by passes
    reference_passes: int = 20_000  # T of what counts as the truth
    states: int = 256  # states at which the estimates are compared and timed
    seed: int = 0  # random seed
    out: Path = Path("benchmark/results/variance.json")  # all numbers; a figure beside it


@torch.no_grad()
def delta_variance(critic: uwac.Critic, obs: Tensor, action: Tensor, p: float) -> Tensor:
    """p / (1 - p) * sum_j (h_j dQ/dh_j)^2 at the pass without dropout: obs (stack, N, D), action (stack, N, A) ->
    (stack, N)."""
    h1 = critic.layers[0].on_pairs(obs, action.unsqueeze(2)).relu_()
    h2 = critic.layers[1](h1).relu_()
    dq_dh2 = critic.layers[2].weight.mT
    dq_dh1 = torch.bmm((h2 > 0) * dq_dh2, critic.layers[1].weight.mT)
    return p / (1 - p) * ((h1 * dq_dh1).square().sum(-1) + (h2 * dq_dh2).square().sum(-1))


def compare(estimate: Tensor, truth: Tensor) -> dict[str, float]:
    """Relative root mean square error, and correlation of the logarithms."""
    logs = torch.stack([estimate.flatten().log(), truth.flatten().log()])
    error = (estimate / truth - 1).square().mean().sqrt().item()
    return {"relative_rmse": error, "log_correlation": torch.corrcoef(logs)[0, 1].item()}


def train(args: Args, rate: float, spectral_norm: bool) -> uwac.Agent:
    source, _ = uwac.find_dataset(args.env_id, args.dataset_path)
    envs = uwac.make_envs(args.env_id, 1)
    sizes = envs.single_observation_space.shape + envs.single_action_space.shape
    dataset = uwac.load_dataset(source, *sizes, uwac.ENVIRONMENTS[uwac.task_name(args.env_id)][1])
    settings = {"dropout": rate, "spectral_norm": spectral_norm, "variance": "analytic", "seed": args.seed}
    settings |= {"batch_size": args.batch_size}
    torch.manual_seed(args.seed)
    agent = uwac.Agent(uwac.Args(env_id=args.env_id, **settings), dataset, torch.device("cpu"))
    for _ in tqdm(range(args.total_steps), desc=f"p = {rate}, spectral norm {spectral_norm}", disable=None):
        agent.update()
    return agent


def study(args: Args, agent: uwac.Agent) -> list[dict]:
    """A row for each kind of actions and estimate: its errors, and its time in ms for all states, both critics."""
    index = torch.randperm(len(agent.data[0]))[: args.states]
    obs, data_action = (array[index].expand(2, -1, -1) for array in agent.data[:2])
    estimates = {f"mc, T = {T}": lambda *x, T=T: uwac.mc_dropout_variance(*x, T) for T in args.passes}
    estimates |= {"delta": delta_variance, "analytic": uwac.analytic_dropout_variance}
    rows = []
    with nn.utils.parametrize.cached(), torch.no_grad():  # W / sigma(W) once, as in an update
        for actions, action in (("data", data_action), ("random", torch.rand_like(data_action) * 2 - 1)):
            inputs = agent.critic, obs, action.contiguous(), agent.args.dropout
            truth = uwac.mc_dropout_variance(*inputs, args.reference_passes)
            times, values = {name: [] for name in estimates}, {name: [] for name in estimates}
            for _ in range(5):  # in turns, so that what slows the machine slows all of them
                for name, estimate in estimates.items():
                    start = time.perf_counter()
                    values[name].append(estimate(*inputs))
                    times[name].append(1000 * (time.perf_counter() - start))
            for name in estimates:
                row = {"actions": actions, "estimate": name, "ms": median(times[name])}
                rows.append(row | compare(torch.stack(values[name]), truth.expand(5, -1, -1)))
    return rows


def key_of(row: dict) -> tuple:
    return row["rate"], row["spectral_norm"], row["actions"]


def table(rows: list[dict]) -> str:
    """Markdown: relative RMSE and, in brackets, correlation of the logarithms; cost against the analytic estimate's."""
    shown = {"mc, T = 10", "mc, T = 100", "mc, T = 1000", "delta", "analytic"}
    names = [name for name in dict.fromkeys(row["estimate"] for row in rows) if name in shown]
    lines = ["| p | spectral norm | actions | " + " | ".join(names) + " |", "|---" * (3 + len(names)) + "|"]
    for key in dict.fromkeys(map(key_of, rows)):
        of = {row["estimate"]: row for row in rows if key_of(row) == key}
        cells = [f"{100 * of[name]['relative_rmse']:.1f}% ({of[name]['log_correlation']:.4f})" for name in names]
        lines.append(f"| {key[0]} | {'yes' if key[1] else 'no'} | {key[2]} | " + " | ".join(cells) + " |")
    unit = {key_of(row): row["ms"] for row in rows if row["estimate"] == "analytic"}
    costs = [median(row["ms"] / unit[key_of(row)] for row in rows if row["estimate"] == name) for name in names]
    lines.append("| cost | | | " + " | ".join(f"{cost:.2f}" for cost in costs) + " |")
    return "\n".join(lines)


def plot(rows: list[dict], path: Path, reference_error: float) -> None:
    """Error against cost, a panel for each dropout rate: passes buy accuracy at a slope of -1/2; what needs no passes
    stands at the left. The cost of an estimate is the median over all rates, actions and critics."""
    rates = sorted({row["rate"] for row in rows})
    figure = Figure(figsize=(3.6 * len(rates) + 0.6, 4.2), layout="constrained")
    panels = figure.subplots(1, len(rates), sharex=True, sharey=True, squeeze=False)[0]
    colours, markers = {"data": "#0072B2", "random": "#D55E00"}, {"delta": "D", "analytic": "*"}
    names = list(dict.fromkeys(row["estimate"] for row in rows))
    cost = {name: median(row["ms"] for row in rows if row["estimate"] == name) for name in names}
    for axes, rate in zip(panels, rates):
        for (actions, colour), (spectral_norm, line) in product(colours.items(), {True: "-", False: "--"}.items()):
            of = {r["estimate"]: r["relative_rmse"] for r in rows if key_of(r) == (rate, spectral_norm, actions)}
            style = {"color": colour, "linestyle": line, "fillstyle": "full" if spectral_norm else "none"}
            mc = [name for name in names if name not in markers]
            label = f"{actions} actions, {'with' if spectral_norm else 'without'} spectral norm"
            axes.plot([cost[n] for n in mc], [of[n] for n in mc], marker="o", markersize=5, label=label, **style)
            for name, marker in markers.items():
                axes.plot(cost[name], of[name], marker=marker, markersize=13 if name == "analytic" else 6, **style)
        for name in names:
            worst = max(row["relative_rmse"] for row in rows if (row["rate"], row["estimate"]) == (rate, name))
            offset, ha = ((9, -3), "left") if name == "analytic" else ((0, 9), "center")
            settings = {"textcoords": "offset points", "ha": ha, "fontsize": 8}
            axes.annotate(name.removeprefix("mc, "), (cost[name], worst), offset, **settings)
        axes.axhline(reference_error, color="0.5", linewidth=0.8, linestyle=":")
        span = min(cost.values()) / 2, 2 * max(cost.values())
        axes.set(xscale="log", yscale="log", xlim=span, ylim=(None, 3), title=f"dropout rate {rate}")
        axes.grid(alpha=0.3)
    settings = {"transform": panels[-1].get_yaxis_transform(), "ha": "right", "va": "bottom", "fontsize": 8}
    panels[-1].text(0.98, reference_error, "error of the reference", color="0.4", **settings)
    panels[0].set_ylabel("relative RMSE of Var[Q]")
    panels[len(rates) // 2].set_xlabel("cost: ms for all states, both critics")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=150)


def main(args: Args) -> None:
    rows = []
    for rate in args.rates:
        for spectral_norm in (True, False):
            settings = {"rate": rate, "spectral_norm": spectral_norm}
            rows += [settings | row for row in study(args, train(args, **settings))]
            result = {
                "args": asdict(args),
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
                "rows": rows,
            }
            args.out.write_text(json.dumps(result, indent=1, default=str))
    print(table(rows))
    plot(rows, args.out.with_suffix(".png"), (2 / args.reference_passes) ** 0.5)


if __name__ == "__main__":
    main(tyro.cli(Args))
