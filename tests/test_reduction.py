"""UWAC with all of its parts off is BEAR, number for number."""

from conftest import short

import bear
import uwac


def test_uwac_with_its_parts_off_is_bear(points):
    off = {"weighting": "none", "dropout": 0.0, "spectral_norm": False, "variance": "analytic"}
    of_bear = bear.main(short(bear, run_dir="bear", warmup_steps=2))["history"]
    of_uwac = uwac.main(short(uwac, run_dir="uwac", warmup_steps=2, **off))["history"]
    for row, same in zip(of_bear, of_uwac, strict=True):
        del row["seconds"]
        assert {name: same[name] for name in row} == row
