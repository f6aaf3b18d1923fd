"""Tables and figures from result files alone: those of benchmark/run.py, or folders of runs.

    python benchmark/report.py
    python benchmark/report.py runs                               # every run in runs/
    python benchmark/report.py runs/RUN runs/OTHER_RUN --metrics mmd alpha
    python benchmark/report.py runs --latex                       # runs.tex and others, for a paper

Runs that differ in the seed alone are averaged. A row and a line name the arguments that are not
the method's defaults, as in "UWAC, beta 2.5", and the script where it was changed between runs. Of
a run and its copies at earlier updates the longest is shown. Policies that evaluate.py played
(evaluation.json) have a table and a figure. A figure's axis is logarithmic where a metric of no
score grows tenfold.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what `python FILE` leaves out

import re
from dataclasses import dataclass

import pandas as pd
import tyro

from benchmark.lib.curves import curves_of, policies_of
from benchmark.lib.figures import save
from benchmark.lib.files import errors_in_one_line, new_files
from benchmark.lib.policies import POLICIES
from benchmark.lib.runs import FIGURE, METHOD, SETTING, evaluations, played, read_all
from benchmark.lib.tables import (
    CAPTIONS,
    aggregate_table,
    beside_table,
    comparison_table,
    headline,
    policy_table,
    printed,
    run_table,
    vae_scores,
)


@dataclass
class Args:
    # Folders of result files, folders of runs, or result files.
    results: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs/grid"),)
    metrics: tuple[str, ...] = ("target_q", "score", "score_sample")  # a panel each
    latex: bool = False  # each table as TEX, too, to \input with the package booktabs
    folder: Path = Path("runs/report")  # for report.md, tables as CSV, figures as PNG and PDF


def draw(runs: pd.DataFrame, found: pd.DataFrame, metrics: list[str], folder: Path) -> list[str]:
    """A figure of metrics for each setting, and one of its policies; returns lines of Markdown."""
    cloned = vae_scores(played(runs, METHOD))
    scores = played(runs, [*FIGURE, "method"])
    scores = scores[scores["policy"].isin([*POLICIES])]
    text = []
    for number, (setting, here) in enumerate(runs.groupby(FIGURE, sort=False), 1):
        run = here.iloc[0].copy()
        run["vae_score"] = cloned.get(tuple(run[SETTING]))
        about = f"{run['task']}, {run['conditions']}"
        start = f"{number:02}-{re.sub('[/:]', '-', run['task'])}"
        rows = found[(found[FIGURE] == list(setting)).all(axis=1)]
        measured = [name for name in metrics if rows[name].notna().any()]
        for name in metrics:
            if name not in measured:
                print(f"{about}: no run has {name}, so no panel shows it", file=sys.stderr)
        if measured and rows["step"].nunique() > 1:  # else there is no line
            picture = folder / f"{start}-{'-'.join(measured)}.png"
            save(curves_of(run, rows, measured), picture)
            text.append(f"![{about}]({picture.name})")
        of_policies = scores[(scores[FIGURE] == list(setting)).all(axis=1)]
        if len(of_policies):
            save(policies_of(run, of_policies), folder / f"{start}-policies.png")
            text.append(f"![{run['task']}, who plays]({start}-policies.png)")
    return text


def main(args: Args) -> None:
    """Raises ValueError, and OSError where a file cannot be written."""
    if places := [name for name in args.metrics if Path(name).exists()]:
        raise ValueError(f"{' '.join(places)}: taken for metrics; name runs before --metrics")
    runs = read_all(args.results)
    found = evaluations(runs)
    known = {name for history in runs["history"] for name in history[0]} - {"step", "seconds"}
    unknown = [name for name in args.metrics if name not in known]
    if unknown or not args.metrics:
        raise ValueError(f"--metrics {' '.join(unknown)}: there are {', '.join(sorted(known))}")
    agents = found.groupby([*METHOD, "run", "agent"], sort=False).apply(headline)
    policies = played(runs, METHOD)
    table = run_table(agents)
    tables = {
        "runs": table,
        "comparisons": comparison_table(agents),
        "beside": beside_table(table, vae_scores(policies)),
        "aggregates": aggregate_table(agents),
        "policies": policy_table(policies),
    }
    tables = {name: rows for name, rows in tables.items() if len(rows)}
    text = ["# Report", f"Trained on: {', '.join(sorted(runs['hardware'].unique()))}."]
    with new_files(args.folder, "report") as new:
        for name, rows in tables.items():
            rows.to_csv(new / f"{name}.csv", index=False)
            words, common = printed(name, rows, "pipe")
            text += [CAPTIONS[name], words] + [f"All: {common}."] * bool(common)
            if args.latex:
                words, _ = printed(name, rows, "latex_booktabs")
                (new / f"{name}.tex").write_text(f"{words}\n", encoding="utf-8")
        text += draw(runs, found, list(args.metrics), new)
        (new / "report.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    words, common = printed("runs", table, "pipe")
    encoding = sys.stdout.encoding or "utf-8"  # which may lack the ± of a table
    shown = "\n\n".join(
        [words, *[f"All: {common}."] * bool(common), str(args.folder / "report.md")]
    )
    print(shown.encode(encoding, "replace").decode(encoding))


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args, description=__doc__))
