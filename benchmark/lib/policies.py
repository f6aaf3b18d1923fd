"""The policies that evaluate.py played, over updates: report.py's table and figure of them."""

from pathlib import Path

import pandas as pd
import seaborn as sns
from evaluate import POLICIES, key_of
from matplotlib.ticker import EngFormatter

from lib.figures import mark, save, shade_warmup
from lib.published import BC, cloned_scores, paper_scores


def observations(runs: pd.DataFrame, method: list[str]) -> pd.DataFrame:
    """A row for each score: of an agent, or of an episode where there is but one agent. `method`
    are the columns that tell methods and settings apart."""
    rows = []
    for run, found in enumerate(runs.to_dict("records")):
        unique = {str(key_of(one)): one for one in found["policies"]}
        for one in unique.values():
            about = {name: found[name] for name in method}
            about |= {"updates": one["step"], "episodes": one["episodes"]}
            about |= {"policy": one["policy"], "N": one["candidates"]}
            about["who"] = POLICIES[one["policy"]].format(one["candidates"])
            for agent, scores in enumerate(one["scores"]):
                for score in scores:
                    rows.append({**about, "agent": f"{run}, {agent}", "score": score})
    columns = [*method, "updates", "episodes", "policy", "N", "who", "agent", "score"]
    rows = pd.DataFrame(rows, columns=columns)
    played = [*method, "updates", "policy", "N"]
    most = rows.groupby(played)["episodes"].transform("max")
    rows = rows[rows["episodes"] == most]  # of several evaluations the largest
    agents = rows.groupby(played)["agent"].transform("nunique")
    means = rows[agents > 1].groupby(columns[:-1], sort=False)["score"].mean().reset_index()
    one = rows[agents == 1].assign(over="the episodes of a single seed")
    return pd.concat([one, means.assign(over="seeds")])


def policy_table(rows: pd.DataFrame, method: list[str]) -> pd.DataFrame:
    """A row for each method, update and policy, of observations: mean score, standard error."""
    key = [*method, "updates", "episodes", "policy", "N", "who"]
    rows = rows.groupby(key, sort=False)
    table = rows.agg(agents=("agent", "nunique"), score=("score", "mean"), error=("score", "sem"))
    return table.reset_index()


def side_by_side(table: pd.DataFrame, method: list[str]) -> pd.DataFrame:
    """The table with a row for each method and update, and columns for each policy."""
    index = [*method, "updates", "agents", "episodes", "who"]
    wide = table.set_index(index)[["score", "error"]].unstack(sort=False)
    columns = {}
    for name in table["who"].unique():
        columns[name] = wide["score", name]
        columns[f"{name}: error"] = wide["error", name]
    return pd.DataFrame(columns).reset_index()


def draw_policies(run: pd.Series, rows: pd.DataFrame, path: Path) -> None:
    """A panel for each method, a line for each policy with a band of a standard error; `rows` are
    observations in the setting of `run`."""
    N = sorted(rows["N"].unique())
    order = dict.fromkeys(POLICIES[policy].format(num) for policy in POLICIES for num in N)
    order = [name for name in order if name in set(rows["who"])]
    grid = sns.relplot(
        rows,
        x="updates",
        y="score",
        hue="who",
        style="who",
        hue_order=order,
        style_order=order,
        col="method",
        col_wrap=2,
        kind="line",
        errorbar="se",
        markers=True,
        palette="colorblind",
        height=3.8,
        aspect=1.4,
    )
    for method, axes in grid.axes_dict.items():
        axes.set(title=method, xlabel="updates", ylabel=run["unit"])
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlim(0, rows["updates"].max() * 1.03)
        for name, score in (paper_scores(run["task"]) | cloned_scores(run["task"])).items():
            if method.startswith(name.removeprefix("paper: ")) or name == BC:
                mark(axes, score, name)
        shade_warmup(axes, run["args"]["warmup_steps"])
    grid.figure.suptitle(f"{run['task']}, {run['args'].get('mmd_kernel')} kernel of MMD")
    grid.figure.set_layout_engine("constrained")
    title = f"mean, and standard error over {' or '.join(sorted(set(rows['over'])))}"
    sns.move_legend(grid, "outside lower center", title=title, ncols=3)
    save(grid.figure, path)
