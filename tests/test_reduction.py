"""UWAC with all of its additions off is BEAR, number for number."""

import bear
import uwac


def test_uwac_with_everything_off_is_bear(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = {"env_id": "door-demo", "total_steps": 5, "eval_every": 5, "eval_episodes": 1, "warmup_steps": 2}
    off = {"weighting": "none", "dropout": 0.0, "spectral_norm": False, "variance": "analytic"}
    expected = bear.main(bear.Args(**common))["history"][-1]
    found = uwac.main(uwac.Args(**common, **off))["history"][-1]
    assert {name: found[name] for name in expected} == expected
