"""benchmark/variants/bc.py: behaviour cloning."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import d4rl
import uwac
from benchmark.variants import bc


@pytest.fixture
def data(monkeypatch, tmp_path):
    """door-demo's, with an action of 0.6 everywhere, in a dict that a test may change."""
    monkeypatch.chdir(tmp_path)
    arrays = dict(d4rl.read(d4rl.download("door-demo")))
    arrays["actions"] = np.full_like(arrays["actions"], 0.6)
    monkeypatch.setattr(d4rl, "read", lambda path: arrays)
    return arrays


def test_a_clone_of_the_data(data, monkeypatch):
    score = d4rl.normalized_score("door-demo", data["rewards"].reshape(25, 200).sum(1).mean())
    played = []

    def evaluation(agent, envs, seed, num):
        assert len(envs) == 2
        played.append(agent.act(data["observations"][None, :9].repeat(2, 0), num))
        return np.array([[d4rl.TASKS["door"][2]], [d4rl.TASKS["door"][3]]])

    monkeypatch.setattr(uwac, "evaluate", evaluation)
    bc.main(bc.Args("door-demo", num_seeds=2, total_steps=400, eval_every=250, eval_episodes=1))
    result = json.loads(Path("runs/bc/door-demo.json").read_text())
    assert result["data_score"] == pytest.approx(score)
    assert result["history"][1] == {"step": 400, "scores": [[0], [100]]}
    errors = np.abs(np.array(played) - 0.6).mean((2, 3))  # (evaluations, S)
    assert (errors[1] < errors[0]).all() and errors[1].max() < 0.02
    inner = 256 * 256 + 256, 750 * 750 + 750
    actor = (39 * 256 + 256) + inner[0] + (256 * 56 + 56)
    decoder = ((39 + 56) * 750 + 750) + inner[1] + (750 * 28 + 28)
    assert result["parameters"] == {"actor": actor, "VAE's decoder": decoder}
    with pytest.raises(ValueError, match=r"runs/bc/door-demo.json exists: move it away"):
        bc.main(bc.Args("door-demo", total_steps=1))
    assert json.loads(Path("runs/bc/door-demo.json").read_text()) == result


def test_each_seed_has_mini_batches_of_its_own_and_a_rerun_the_same(data, monkeypatch):
    """Whatever torch has drawn before."""
    monkeypatch.setattr(uwac, "evaluate", lambda *_: np.zeros((3, 1)))
    forward, seen = uwac.Actor.forward, []

    def recorded(self, obs):
        seen.append(obs)
        return forward(self, obs)

    monkeypatch.setattr(uwac.Actor, "forward", recorded)
    for seed in (1, 2):
        torch.manual_seed(seed)
        bc.main(bc.Args("door-demo", num_seeds=3, total_steps=2, eval_episodes=1))
        Path("runs/bc/door-demo.json").unlink()
    assert len(seen) == 4 and torch.equal(seen[0], seen[2]) and torch.equal(seen[1], seen[3])
    batches = [set(map(tuple, one.tolist())) for one in torch.cat(seen[:2])]
    assert all(len(one & other) < 40 for one, other in itertools.combinations(batches, 2))


@pytest.mark.parametrize("timeouts, original, steps", [
    (True, False, 50 + 24 * 200), (False, False, 50 + 24 * 200), (False, True, 50 + 199 + 23 * 200)
])  # fmt: skip
def test_flags_are_taken_as_in_training(timeouts, original, steps, data, monkeypatch):
    """As numbers. Where timeouts are missing time ends an episode after 200 steps, of a file of
    D4RL's own one step earlier after a terminal one. The last steps are no whole episode."""
    about = {"path": "a", "sha256": "b", "d4rl": original}
    monkeypatch.setattr(d4rl, "describe", lambda path: about)
    monkeypatch.setattr(uwac, "evaluate", lambda *_: np.zeros((1, 1)))
    data["rewards"] = np.ones(5_000)
    data["terminals"] = np.float32(np.arange(5_000) == 49)[:, None]
    data["timeouts"] = np.float32(np.arange(5_000) % 200 == 49)
    if not timeouts:
        del data["timeouts"]
    bc.main(bc.Args("door-demo", num_seeds=1, total_steps=1, eval_episodes=1))
    result = json.loads(Path("runs/bc/door-demo.json").read_text())
    assert result["data_score"] == pytest.approx(d4rl.normalized_score("door-demo", steps / 25))
