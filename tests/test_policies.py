"""benchmark/policies.py: who plays, and runs that go on from another's checkpoint."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import short, zeroed

import bear
import uwac
from benchmark import policies
from benchmark.variants import weights


def test_policies_of_known_networks(points, monkeypatch):
    """The actor's mean is 0.5 with a std of exp(-2), the VAE's action 50, all before the tanh."""
    monkeypatch.setattr(policies, "AT_ONCE", 7)
    agent = uwac.Agent(short(uwac, num_seeds=2), 3, 2)
    zeroed(agent.actor, agent.vae.decoder)
    with torch.no_grad():
        agent.actor.layers[2].bias[:] = torch.tensor([0.5, 0.5, -2, -2])
        agent.vae.decoder.layers[2].bias.fill_(50)
    obs = np.zeros((2, 40, 3))
    mean, vae, sample = (policies.act(agent, who, obs, 1) for who in ("mean", "vae", "sample"))
    assert mean == pytest.approx(np.full((2, 40, 2), np.tanh(0.5)))
    assert (vae == 1).all()
    samples = np.arctanh(sample)
    assert (samples.mean(), samples.std()) == pytest.approx((0.5, np.exp(-2)), rel=0.2)
    assert len(np.unique(samples)) == 160  # no piece twice


def history(run):
    rows = json.loads(Path(run, "result.json").read_text())["history"]
    return [{name: of for name, of in row.items() if name != "seconds"} for row in rows]


def go_on(source, run, script, **changes):
    """A copy of a run after three updates, trained to the sixth."""
    args = short(script, run_dir=run, resume=True, **changes)
    policies.fork(Path(source), Path(run), script.Agent, args)
    uwac.main(args, agent_type=script.Agent, update=script.update)
    return history(run)


def test_a_copy_with_the_same_arguments_goes_on_bit_for_bit(points):
    uwac.main(short(uwac, run_dir="whole"))
    uwac.main(short(uwac, run_dir="half", total_steps=3))
    assert go_on("half", "copy", uwac) == history("whole")
    found = json.loads(Path("copy/forked_from.json").read_text())
    assert (found["run"], found["algorithm"], found["updates"]) == ("half", "uwac", 3)
    assert found["args"]["total_steps"] == 3


def test_methods_share_a_warm_up_and_differ_after_it(points):
    """BEAR's, of three updates, with two weights in the actor's loss, one of them BEAR's 1."""
    bear.main(short(bear, run_dir="whole", warmup_steps=3))
    bear.main(short(bear, run_dir="warm-up", warmup_steps=3, total_steps=3))
    whole = history("whole")
    settings = {"warmup_steps": 3, "weighting": "fixed-w", "dropout": 0, "spectral_norm": False}
    same = go_on("warm-up", "a", weights, fixed_w=1, **settings)
    other = go_on("warm-up", "b", weights, fixed_w=0.1, **settings)
    assert same[0] == other[0] == whole[0]
    assert {name: same[1][name] for name in whole[1]} == whole[1]
    assert other[1]["actor_loss"] != whole[1]["actor_loss"]
    assert other[1]["score_sample"] != whole[1]["score_sample"]


def test_a_copy_learns_at_its_own_rates(points):
    uwac.main(short(uwac, run_dir="half", total_steps=3))
    go_on("half", "copy", uwac, critic_lr=0.01)
    agent, _ = uwac.load_checkpoint("copy")
    assert agent.optimizers["critic"].param_groups[0]["lr"] == 0.01


@pytest.mark.parametrize("changes, problem", [
    ({"seed": 1}, "seed was 0 and cannot change"),
    ({"spectral_norm": True}, "has other networks than uwac with these arguments"),
    ({"total_steps": 3}, "has 3 updates; give more --total-steps"),
])  # fmt: skip
def test_what_cannot_go_on_from_a_run_is_refused(changes, problem, points):
    uwac.main(short(uwac, run_dir="half", total_steps=3))
    with pytest.raises(ValueError, match=f"^half: {problem}"):
        policies.fork(Path("half"), Path("copy"), uwac.Agent, short(uwac, **changes))
    assert not Path("copy").exists()
