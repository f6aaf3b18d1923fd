"""Both scripts from arguments and data to files: what is refused, and what a run leaves."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, Point, command_line, resumed, scalars, short, words

import bear
import d4rl
import uwac

pytestmark = pytest.mark.usefixtures("points")
RUN = Path("run")
gym.register("own/Point-v0", Point, max_episode_steps=5)


WRONG = [
    ("gamma", 1.01, "Input should be less than or equal to 1"),
    ("lmbda", float("nan"), "Input should be a finite number"),
    ("seed", -1, "Input should be greater than or equal to 0"),
    ("seed", 2**64, f"Input should be less than {2**63}"),
    ("batch_size", 2.5, "Input should be a valid integer"),
    ("beta", 0.0, "Input should be greater than 0"),
    ("dropout", 1.0, "Input should be less than 1"),
    ("passes", 1, "Input should be greater than or equal to 2"),
    ("spectral_norm", 2.5, "Input should be 'auto', True or False"),
    ("mmd_kernel", "rbf", "Input should be 'auto', 'gaussian' or 'laplacian'"),
]


@pytest.mark.parametrize("name, value, problem", WRONG)
def test_wrong_arguments(name, value, problem):
    for script in (bear, uwac):
        if hasattr(script.Args, name):
            with pytest.raises(ValueError) as error:
                script.Args(**{name: value})
            assert f"\n{name}\n  {problem}" in str(error.value)


def test_every_argument_has_a_type_that_is_checked_and_there_are_no_others(script):
    names = [field.name for field in dataclasses.fields(script.Args)]
    for name in [*names, "clip"]:
        with pytest.raises(ValueError, match=f"\n{name}\n"):
            script.Args(**{name: object()})


def test_numbers_of_numpy_and_paths_are_taken(script):
    args = script.Args(seed=np.int64(3), gamma=np.float32(0.5), dataset_path="a", run_dir=Path("b"))
    assert (type(args.seed), type(args.gamma)) == (int, float)
    assert (args.seed, args.gamma, args.dataset_path) == (3, 0.5, Path("a"))


@pytest.mark.parametrize("task, kernel, spectral_norm", [
    ("hammer-cloned-v1", "gaussian", True),  # on Adroit (paper)
    ("gymnasium_robotics:AdroitHandPen-v1", "gaussian", True),
    ("Pendulum-v1", "gaussian", False),
    ("halfcheetah-expert", "gaussian", False),
    ("hopper-medium", "laplacian", False),  # BEAR's author
    ("module:ns/Walker2d-v4", "laplacian", False),
])  # fmt: skip
def test_auto_is_by_the_task(task, kernel, spectral_norm):
    """Also where another task is put into the arguments of one."""
    auto = {"mmd_kernel": kernel, "spectral_norm": spectral_norm}
    for args in (uwac.Args(task), dataclasses.replace(uwac.Args("door-human"), env_id=task)):
        assert args.resolved() == dataclasses.replace(args, **auto)
    agent = uwac.Agent(args, 3, 1)
    assert (agent.args.mmd_kernel, agent.critic.spectral_norm) == (kernel, spectral_norm)
    assert bear.Agent(bear.Args(task), 3, 1).args.mmd_kernel == kernel
    given = uwac.Args(task, spectral_norm=False, mmd_kernel="gaussian")
    assert given.resolved() == given


def test_what_a_run_leaves(script, capsys):
    args = short(script, num_seeds=2)
    result = script.main(args)
    left = {path.name.split(".")[0] for path in RUN.iterdir()}
    assert left == {"checkpoint", "events", "result", "in-use"}
    assert json.loads((RUN / "result.json").read_text()) == json.loads(json.dumps(result))
    assert result["algorithm"] == script.__name__
    assert script.Args(**result["args"]) == dataclasses.replace(args.resolved(), run_dir=None)
    assert result["data"] == d4rl.describe("points.hdf5")
    assert result["versions"]["torch"] == torch.__version__
    assert result["hardware"] == "cpu, 1 threads"

    first, last = result["history"]
    assert (first["step"], last["step"]) == (3, 6) and 0 < first["seconds"] < last["seconds"]
    names = set(first) - {"step", "seconds"}
    assert {"score", "score_sample", "critic_loss", "mmd"} <= names
    curves = scalars(RUN)
    for name in names:
        for seed in (0, 1):
            curve = curves[f"{name}/agent-{seed}"]
            assert list(curve) == ([3, 6] if name.startswith("score") else [2, 3, 4, 6])
            assert curve[3] == pytest.approx(first[name][seed], rel=1e-5)

    data, place, *lines = capsys.readouterr().out.splitlines()
    assert data == "40 transitions of points.hdf5 (not D4RL's own)"
    assert place.startswith("on cpu; results in run: ")
    found = [re.match(r"(\d)/6: (warm-up, )?vae_loss \S+, ", line).groups() for line in lines]
    assert found == [("2", "warm-up, "), ("3", None), ("4", None), ("6", None)]
    evaluating = [False, True, False, True]
    assert ["score" in line for line in lines] == evaluating
    clipped = ["; nearly every weight is at its limit" in line for line in lines]
    assert clipped == [evaluates and script is uwac for evaluates in evaluating]


def test_folders(monkeypatch):
    """One with nothing to lose is of a run that was killed before its first save."""
    args = short(uwac, env_id="test_runs:own/Point-v0", total_steps=1, run_dir=None)
    results = []
    for args.seed in (3, 4, 3):
        results.append(uwac.main(args))
    assert [result["args"]["seed"] for result in results] == [3, 4, 3]  # not the last one's
    runs = sorted(path.parent for path in Path("runs").glob("*/result.json"))
    time = r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-\d{6}"
    for run, seed in zip(runs, (3, 3, 4), strict=True):
        assert re.fullmatch(f"test_runs-own-Point-v0__uwac__{seed}__{time}", run.name)
    monkeypatch.setenv("HOME", str(Path.cwd()))
    changes = {"dataset_path": "~/points.hdf5", "run_dir": "~/deep/run"}
    Path("deep/run").mkdir(parents=True)
    for file in ("in-use.lock", "unfinished.tmp"):
        Path("deep/run", file).write_text("")
    assert command_line(uwac, words(uwac, total_steps=3, **changes), monkeypatch) == 0
    assert command_line(uwac, "--resume ~/deep/run --total-steps 4", monkeypatch) == 0
    assert Path("deep/run/result.json").exists() and not Path("~").exists()
    Path("empty").mkdir()
    assert uwac.main(short(uwac, total_steps=1, run_dir="empty"))["history"]


def test_a_resumed_run_takes_the_file_that_it_began_with(monkeypatch):
    monkeypatch.setattr(d4rl, "download", lambda env_id: Path("points.hdf5"))
    uwac.main(short(uwac, total_steps=1, dataset_path=None))
    monkeypatch.setattr(d4rl, "download", lambda env_id: Path("other.hdf5"))
    result = uwac.main(resumed(uwac, total_steps=2))
    assert (len(result["history"]), result["data"]["path"]) == (2, "points.hdf5")
    assert result["args"]["dataset_path"] is None


def test_a_folder_that_another_run_made_meanwhile(script, monkeypatch):
    """The other one is done before this one has its data."""
    args = short(script, total_steps=1)
    whole = d4rl.qlearning_dataset

    def slow(*given):
        monkeypatch.setattr(d4rl, "qlearning_dataset", whole)
        script.main(args)
        return whole(*given)

    monkeypatch.setattr(d4rl, "qlearning_dataset", slow)
    with pytest.raises(FileExistsError):
        script.main(args)


def test_what_is_trained_on_and_scored(monkeypatch):
    """Actions in [-1, 1]. On D4RL's tasks those beyond are clipped, and a score is D4RL's."""
    monkeypatch.setitem(d4rl.TASK_OF, "Point-v0", "door")
    arrays = {"observations": np.random.default_rng(0).normal(size=(4, 3))}
    arrays |= {"actions": np.array([[1.0, -2.0], [0.5, 0.0], [2.5, -2.5], [0.0, 0.0]])}
    arrays |= {"rewards": np.arange(4.0), "terminals": np.array([0, 1, 0, 0])}
    monkeypatch.setattr(uwac, "evaluate", lambda *_: np.array([[10.0, 20.0]]))
    update = Mock(wraps=uwac.update)
    args = short(uwac, total_steps=1, eval_episodes=2, dataset_path=None)
    with pytest.warns(UserWarning, match="dataset: 1 actions are out of bounds and were clipped"):
        result = uwac.main(args, dataset=arrays, update=update)
    with pytest.warns(UserWarning, match="clipped"), pytest.raises(ValueError, match="data was"):
        uwac.main(resumed(uwac), dataset=arrays | {"rewards": np.ones(4)})
    obs, action, reward, next_obs, done = (tensor.tolist() for tensor in update.call_args.args[1])
    np.testing.assert_allclose([obs[2], next_obs[2]], arrays["observations"][2:])
    assert action == [[0.5, -1.0], [0.25, 0.0], [1.0, -1.0]]
    assert (reward, done) == ([0, 1, 2], [0, 1, 0])
    assert result["data"]["path"] == "arrays from Python"
    (row,) = result["history"]
    random, expert = -56.512833, 2880.5693087298737
    assert row["score"] == [pytest.approx(100 * (15 - random) / (expert - random))]


# Four environments, for two seeds: in each step their rewards, and which of them end.
REWARDS = np.array([[1, 2, 3, 4], [10, 20, 30, 40], [100, 200, 300, 400.0]])
TERMINATED = np.array([[0, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0]], bool)
TRUNCATED = np.array([[0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]], bool)
RETURNS = [[11, 2], [333, 44]]


def test_evaluate_sums_the_rewards_of_whole_episodes():
    """Of each environment the first one; seeds act in environments of their own."""
    seen = []

    def act(obs, num):
        assert num == 7
        seen.append(obs)
        return obs[..., :2] * np.array([1.0, -1.0])[:, None, None]  # of two agents: (S, E, A)

    def step(actions):
        steps = len(seen) - 1
        assert (actions == obs[:, :2] * np.array([[1], [1], [-1], [-1]])).all()
        return obs, REWARDS[steps], TERMINATED[steps], TRUNCATED[steps], {}

    obs = np.random.default_rng(0).normal(size=(4, 3))
    seeds = []
    envs = SimpleNamespace(num_envs=4, step=step)
    envs.reset = lambda seed: seeds.append(seed) or (obs, {})
    agent = SimpleNamespace(args=SimpleNamespace(num_seeds=2), act=act)
    for seed in ([3, 5000], [4, 5000], [3, 6000]):
        seen.clear()
        assert uwac.evaluate(agent, envs, seed, 7).tolist() == RETURNS
        assert all((given == obs.reshape(2, 2, 3)).all() for given in seen) and len(seen) == 3
    assert len(set(seeds)) == 3 and max(seeds) < 2**30


def test_evaluations(monkeypatch, capsys):
    calls, expected = [], []

    def spy(function, *args):
        calls.append((function.__name__, torch.get_float32_matmul_precision(), *args[2:]))
        return function(*args)

    monkeypatch.setattr(uwac, "evaluate", partial(spy, uwac.evaluate))
    args = short(uwac, matmul_precision="medium", seed=5, weight_clip=0.005)
    uwac.main(args, update=partial(spy, uwac.update))
    for step in range(1, 7):
        expected.append(("update", "medium", step))
        if step in (3, 6):
            expected += [("evaluate", "highest", [5, step], num) for num in (3, 1)]
    assert calls == expected
    assert capsys.readouterr().out.count("; nearly every weight is at its limit") == 2


def test_how_often_one_evaluates_and_logs_changes_nothing():
    """But the seed changes all weights, and what is drawn."""
    rest = {"eval_every": 2, "eval_episodes": 2, "eval_candidates": 5, "log_every": 1}
    weights, drawn = [], []
    for i, changes in enumerate(({}, rest, {"seed": 1})):
        uwac.main(short(uwac, run_dir=f"{i}", **changes))
        agent, saved = uwac.load_checkpoint(f"{i}")
        weights.append(agent.state_dict())
        drawn.append(saved["rng"].tolist())
    one, two, other = weights
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one if "weight" in name)


def test_metrics_are_checked_before_an_evaluation():
    with pytest.raises(FloatingPointError, match="at update 3: .*critic_loss.* not finite"):
        uwac.main(short(uwac, critic_lr=1e30, log_every=100))
    assert not Point.played


def test_the_first_line_comes_after_100_updates(capsys):
    steps = {"total_steps": 101, "eval_every": 1000, "log_every": 1000, "warmup_steps": 200}
    uwac.main(short(uwac, variance="analytic", **steps))
    *_, warmup, first, last = capsys.readouterr().out.splitlines()
    assert "--warmup-steps 200" in warmup
    assert (first[:17], last[:17]) == ("100/101: warm-up,", "101/101: warm-up,")


def test_a_copy_of_script_and_d4rl_runs_alone(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "d4rl", copy / "d4rl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "uwac.py", copy)
    line = "--env-id door-demo --total-steps 1 --eval-episodes 1 --eval-candidates 2 --batch-size 4"
    line += " --variance analytic --run-dir copied"
    subprocess.run([sys.executable, copy / "uwac.py", *line.split()], cwd=tmp_path, check=True)
    result = json.loads((tmp_path / "copied" / "result.json").read_text())
    assert result["data"]["path"] == str(copy / "d4rl" / "door-demo.hdf5")
