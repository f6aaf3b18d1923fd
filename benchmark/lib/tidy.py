"""Our results: benchmark/results/*.csv, described in its README.md."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd

FOLDER = Path(__file__).parents[1] / "results"
OF_RUNS = ("history", "policies", "diagnoses", "returns", "estimators")  # have a column `run`


def read(folder: Path, name: str) -> pd.DataFrame:
    """Every number as it was written. Raises OSError."""
    return pd.read_csv(folder / f"{name}.csv")


def load(folder: Path = FOLDER) -> SimpleNamespace:
    """Each table by its name. In those of a run's numbers each row has the run's columns, too, with
    `_of_run` where a name is taken."""
    tables = {file.stem: read(folder, file.stem) for file in sorted(folder.glob("*.csv"))}
    runs = tables["runs"]
    runs["bound"] = runs["max_reward"] / (1 - runs["gamma"])
    for name in OF_RUNS:
        tables[name] = tables[name].merge(runs, "left", "run", suffixes=("", "_of_run"))
    for name in ("runs", *OF_RUNS):  # bear.py has no such argument
        tables[name]["spectral_norm"] = tables[name]["spectral_norm"].eq(True)
    return SimpleNamespace(**tables)
