"""benchmark/evaluate.py on runs."""

import json
from pathlib import Path

import ensembles
import evaluate
import numpy as np
import pytest
import torch
from conftest import command_line, short

import bear
import uwac

pytestmark = pytest.mark.usefixtures("points")


def records(file="run/evaluation.json"):
    """By policy and candidates."""
    return {(one["policy"], one["candidates"]): one for one in json.loads(Path(file).read_text())}


@pytest.mark.parametrize("script", [bear, uwac, ensembles], ids=["bear", "uwac", "ensembles"])
def test_the_last_evaluation_again(script, monkeypatch, capsys):
    """With the run's seed and settings; of other candidates or another seed, other returns. Errors
    are of the two agents' means, and the returns of an environment of one's own no score."""
    last = script.main(short(script, num_seeds=2, seed=3, eval_episodes=4))["history"][-1]
    capsys.readouterr()
    words = "run --episodes 4 --candidates 3 5 --policies best sample --seed"
    assert command_line(evaluate, f"{words} 3", monkeypatch) == 0
    again = {key: np.array(one["returns"]) for key, one in records().items()}
    assert list(again) == [("best", 3), ("best", 5), ("sample", 1)]
    assert again["best", 3].mean(1).tolist() == last["return"]
    assert again["sample", 1].mean(1).tolist() == last["score_sample"]  # the score is the return
    assert (again["best", 3] != again["best", 5]).all()
    one, two = last["return"]
    numbers = f"return {(one + two) / 2:.1f} ± {abs(one - two) / 2:.1f}"
    where = f"run, {script.__name__} on Point-v0, 6 updates, best of 3, 2 agents x 4 episodes"
    assert capsys.readouterr().out.splitlines()[0] == f"{where}: {numbers}"
    assert command_line(evaluate, f"{words} 4", monkeypatch) == 0
    assert (np.array(records()["best", 3]["returns"]) != again["best", 3]).all()


def test_policies_of_known_networks():
    """The actor's mean is 0.5 with a std of exp(-2), the VAE's action 50, all before the tanh; Q1
    is the sum of the actions and 10, and `greedy` takes the candidate of the largest."""
    agent = uwac.Agent(short(uwac, num_seeds=2), 3, 2)
    with torch.no_grad():
        for network in (agent.actor, agent.vae.decoder, agent.critic):
            for parameter in network.parameters():
                parameter.zero_()
        agent.actor.layers[2].bias[:] = torch.tensor([0.5, 0.5, -2, -2])
        agent.vae.decoder.layers[2].bias.fill_(50)
        agent.critic.layers[0].weight[..., 3:, :1] = 1
        agent.critic.layers[0].bias.fill_(10)  # above 0 for every action
        agent.critic.layers[1].weight[..., :1, :1] = 1
        agent.critic.layers[2].weight[..., :1, :] = 1
    obs = np.zeros((2, 40, 3))

    def act(name, num):
        torch.manual_seed(1)
        return evaluate.act(agent, name, obs, num)  # (2, 40, 2)

    numbers = {"mean": 1, "vae": 1, "sample": 1, "best": 50, "greedy": 50}
    actions = {name: act(name, num) for name, num in numbers.items()}
    assert actions["mean"] == pytest.approx(np.full(obs[..., 1:].shape, np.tanh(0.5)))
    samples = np.arctanh(actions["sample"])
    assert (samples.mean(), samples.std()) == pytest.approx((0.5, np.exp(-2)), rel=0.2)
    torch.manual_seed(1)
    candidates = agent.actor.sample(torch.zeros(2, 40, 3), 50).tanh().sum(-1)
    largest = candidates.max(2).values.numpy(force=True)
    assert actions["greedy"].sum(-1) == pytest.approx(largest, abs=1e-6)
    q1 = {name: action.sum(-1).mean() for name, action in actions.items()}
    assert q1["sample"] < q1["best"] < q1["greedy"]  # the noise of passes: nearly as good
    agent.actor.layers[2].bias.data.fill_(50)
    assert all((act(name, num) == 1).all() for name, num in numbers.items())


def test_a_later_call_adds_to_what_is_there(monkeypatch, refused):
    """One record of each policy and number of episodes. What goes wrong leaves what was there."""
    uwac.main(short(uwac, num_seeds=2))
    assert command_line(evaluate, "run --episodes 2 --policies sample vae", monkeypatch) == 0
    first = records()
    assert command_line(evaluate, "run --episodes 2 --policies vae mean", monkeypatch) == 0
    assert command_line(evaluate, "run --episodes 1 --policies mean", monkeypatch) == 0
    before = Path("run/evaluation.json").read_bytes()
    found = [(one["policy"], one["episodes"], one["step"]) for one in json.loads(before)]
    assert found == [("sample", 2, 6), ("vae", 2, 6), ("mean", 2, 6), ("mean", 1, 6)]
    assert records().items() >= first.items()

    writes, write = [], Path.write_bytes

    def full(path, content):
        writes.append(path)
        if len(writes) == 1:
            return write(path, content)
        write(path, content[:9])
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    words = "run --episodes 2 --policies best greedy --candidates 2"
    assert "error: No space left" in refused(words, evaluate)
    *others, last = json.loads(Path("run/evaluation.json").read_text())
    assert (others, last["policy"]) == (json.loads(before), "best")
    monkeypatch.setattr(uwac, "evaluate", lambda *args: np.array([[np.nan]]))
    assert "error: run: a return in Point-v0 is not finite" in refused("run", evaluate)
