"""Both scripts from arguments and data to files: what is refused, and what a run leaves."""

import dataclasses
import io
import json
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pydantic
import pytest
import torch
from conftest import ROOT, Point, resumed, scalars, short, words, write_hdf5

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
    ("dropout", 0.0, "Input should be greater than 0"),
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
    ("gymnasium_robotics:AdroitHandPen-v1", "gaussian", False),  # not D4RL's
    ("Pendulum-v1", "gaussian", False),
    ("halfcheetah-expert", "gaussian", False),
    ("hopper-medium", "laplacian", False),  # BEAR's author
    ("module:ns/Walker2d-v4", "gaussian", False),
])  # fmt: skip
def test_auto_is_by_the_task(task, kernel, spectral_norm):
    auto = {"mmd_kernel": kernel, "spectral_norm": spectral_norm}
    args = uwac.Args(task)
    assert args == dataclasses.replace(args, **auto)
    assert uwac.Agent(args, 3, 1).critic.spectral_norm == spectral_norm
    assert bear.Args(task).mmd_kernel == kernel
    given = uwac.Args(task, spectral_norm=False, mmd_kernel="gaussian")
    assert (given.spectral_norm, given.mmd_kernel) == (False, "gaussian")


@pytest.mark.parametrize("device, cpu, name", [
    ("cpu", {"cpu_name": "Z80"}, "Z80, 1 threads"),
    ("cpu", {"cpu_name": "Xeon", "amx_bf16": True}, "Xeon with AMX, 1 threads"),
    ("cpu", {}, "CPU, 1 threads"),
    ("cuda", {"amx_bf16": True}, "H200, 1 threads"),
])  # fmt: skip
def test_the_processor_has_its_name(script, device, cpu, name, monkeypatch):
    monkeypatch.setattr(script, "DEVICE", device)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: cpu)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H200")
    assert script.hardware() == name


def test_what_a_run_leaves(script, capsys):
    args = short(script, num_seeds=2, matmul_precision="highest")
    result = script.main(args)
    left = {path.name.split(".")[0] for path in RUN.iterdir()}
    assert left == {"checkpoint", "events", "result", "in-use"}
    assert json.loads((RUN / "result.json").read_text()) == result
    assert result["algorithm"] == script.__name__
    file = Path("points.hdf5").absolute()
    wanted = dataclasses.replace(args, run_dir=None, dataset_path=file)
    assert script.Args(**result["args"]) == wanted
    assert result["data"] == d4rl.describe(file)
    assert (result["transitions"], result["torch"]) == (40, [torch.__version__])
    assert result["hardware"] == [script.hardware()]
    assert result["updates"] == 6 and result["seconds"] == result["history"][-1]["seconds"]

    first, last = result["history"]
    assert (first["step"], last["step"]) == (3, 6) and 0 < first["seconds"] < last["seconds"]
    names = set(first) - {"step", "seconds", "episodes"}
    assert {"score", "score_sample", "critic_loss", "mmd"} <= names
    curves = scalars(RUN)
    for name in names:
        for seed in (0, 1):
            curve = curves[f"{name}/agent-{seed}"]
            assert list(curve) == ([3, 6] if name.startswith("score") else [2, 3, 4, 6])
            assert curve[3] == pytest.approx(first[name][seed], rel=1e-5)

    place, *lines = capsys.readouterr().out.splitlines()
    assert place == f"40 transitions of {file}, on cpu; results in run"
    assert [re.match(r"(\d)/6: vae_loss \S+, ", line)[1] for line in lines] == [*"2346"]
    assert ["score" in line for line in lines] == [False, True, False, True]
    for line, row in zip(lines[1::2], (first, last)):  # means over the seeds
        means = [f"{name} {np.mean(row[name]):.3g}" for name in row if name in names]
        assert line.split(": ")[1] == ", ".join(means)


def test_folders(refused):
    """A new run has a new one, which is made when all else is in order, named by task and time."""
    args = short(uwac, env_id="test_runs:own/Point-v0", total_steps=1, run_dir=None)
    results = []
    for args.seed in (3, 4, 3):
        results.append(uwac.main(args))
    assert [result["args"]["seed"] for result in results] == [3, 4, 3]  # not the last one's
    runs = sorted(path.parent for path in Path("runs").glob("*/result.json"))
    time = r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-\d{6}"
    for run, seed in zip(runs, (3, 3, 4), strict=True):
        assert re.fullmatch(f"test_runs-own-Point-v0__uwac__{seed}__{time}", run.name)
    assert "runs exists: add --resume" in refused(words(uwac, run_dir="runs"))
    assert "none.hdf5: no such file" in refused(words(uwac, dataset_path="none.hdf5"))
    assert not RUN.exists()


def test_a_file_beside_arrays_is_refused(points):
    with pytest.raises(ValueError, match="--dataset-path points.hdf5: there are arrays already"):
        uwac.main(short(uwac), dataset=points)


def test_arguments_of_another_agent_are_refused():
    """Such a run could not be loaded."""

    @pydantic.dataclasses.dataclass
    class Args(uwac.Args):
        more: int = 1

    class Mine(uwac.Agent):
        args_type = Args

    with pytest.raises(ValueError, match="^uwac takes arguments of type .*Args"):
        uwac.main(short(uwac), agent_type=Mine)
    assert not RUN.exists()


def test_a_resumed_run_takes_the_file_that_it_began_with(tmp_path, monkeypatch):
    """Also from another folder."""
    monkeypatch.setattr(d4rl, "download", lambda env_id: Path("points.hdf5"))
    uwac.main(short(uwac, total_steps=1, dataset_path=None))
    monkeypatch.setattr(d4rl, "download", lambda env_id: Path("other.hdf5"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    result = uwac.main(resumed(uwac, tmp_path / "run", total_steps=2))  # its arguments have it
    assert len(result["history"]) == 2
    assert result["data"]["path"] == str(tmp_path / "points.hdf5")


def test_an_update_runs_in_the_precision_that_was_asked_for():
    found = []

    def update(*given):
        found.append(torch.get_float32_matmul_precision())
        return uwac.update(*given)

    for precision in ("medium", "high"):
        args = short(uwac, matmul_precision=precision, total_steps=1, run_dir=precision)
        uwac.main(args, update=update)
    assert found == ["medium", "high"]


def test_a_line_is_in_a_log_at_once(script, monkeypatch):
    log = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(log))
    script.main(short(script, total_steps=3))
    assert b"\n3/3: " in log.getvalue()


def test_a_metric_of_ones_own_that_is_one_number_for_all_seeds():
    def update(*given):
        metrics = uwac.update(*given)
        return metrics | {"mean": metrics["mmd"].mean()}

    (row, _) = uwac.main(short(uwac, num_seeds=2), update=update)["history"]
    assert row["mean"] == pytest.approx([np.mean(row["mmd"])] * 2)


class Foreign(Point):
    """Whose module, and whose resets, set torch's random state and precision."""

    def __init__(self):
        torch.manual_seed(42)
        torch.set_float32_matmul_precision("medium")

    def reset(self, seed=None, options=None):
        torch.manual_seed(42)
        return super().reset(seed, options)


def test_arguments_that_change_when_they_are_copied_are_refused():
    """A copy is made twice before a run, and again when it goes on."""

    @pydantic.dataclasses.dataclass
    class Args(uwac.Args):
        def __post_init__(self):
            super().__post_init__()
            self.actor_lr *= 2

    class Mine(uwac.Agent):
        args_type = Args

    with pytest.raises(ValueError, match="__post_init__ must leave alone what it has decided"):
        uwac.main(Args("Point-v0", run_dir=RUN), agent_type=Mine)
    assert not RUN.exists()


@pytest.mark.parametrize("name, frozen", [("value", False), ("value", True), ("target_v", False)])
def test_a_network_that_nobody_trains_is_refused(name, frozen, script):
    """Unless its name or itself says that it is meant."""

    class Mine(script.Agent):
        def __init__(self, *given):
            super().__init__(*given)
            setattr(self, name, torch.nn.Linear(1, 1).requires_grad_(not frozen))

    refused = name == "value" and not frozen
    problem = "no optimizer has value.weight, which would learn nothing"
    with pytest.raises(ValueError, match=problem) if refused else nullcontext():
        script.main(short(script, total_steps=1), agent_type=Mine)


def test_autocast_is_refused(script):
    with torch.autocast("cpu"), pytest.raises(ValueError, match="^torch.autocast would change"):
        script.main(short(script))


def test_seeds_are_seeds_whatever_an_environment_does_to_torch(script):
    """The same as without it; other seeds train other agents."""
    gym.register("Foreign-v0", Foreign, max_episode_steps=5)
    found = []
    for env_id, seed in (("Point-v0", 0), ("Foreign-v0", 0), ("Foreign-v0", 1)):
        args = short(script, env_id=env_id, seed=seed, run_dir=f"{env_id}{seed}")
        found.append([row["vae_loss"] for row in script.main(args)["history"]])
    assert found[0] == found[1] and found[1][0] != found[2][0]
    del gym.registry["Foreign-v0"]


@pytest.mark.parametrize("args, ends", [
    ({}, nullcontext()),
    ({"critic_lr": 1e30}, pytest.raises(FloatingPointError)),  # in training
    ({"dataset_path": "no"}, pytest.raises(ValueError)),  # in the set-up
])  # fmt: skip
def test_environments_are_closed_at_the_end(script, args, ends, monkeypatch):
    closed = []
    monkeypatch.setattr(Point, "close", lambda env: closed.append(env))
    with ends:
        script.main(short(script, **args, eval_episodes=3))
    assert len(set(closed)) == 3


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
    update = Mock(wraps=uwac.update, __module__="uwac")
    args = short(uwac, total_steps=1, eval_episodes=2, dataset_path=None)
    with pytest.warns(UserWarning, match="1 actions are out of bounds and were clipped"):
        result = uwac.main(args, dataset=arrays, update=update)
    with pytest.raises(ValueError, match="data was"):
        uwac.main(resumed(uwac), dataset=arrays | {"rewards": np.ones(4)})
    obs, action, reward, next_obs, done = (tensor.tolist() for tensor in update.call_args.args[1])
    np.testing.assert_allclose([obs[2], next_obs[2]], arrays["observations"][2:])
    assert action == [[0.5, -1.0], [0.25, 0.0], [1.0, -1.0]]
    assert (reward, done) == ([0, 1, 2], [0, 1, 0])
    assert result["data"]["path"] == "arrays from Python"
    (row,) = result["history"]
    random, expert = -56.512833, 2880.5693087298737
    assert row["score"] == [pytest.approx(100 * (15 - random) / (expert - random))]


class Scripted:
    """An environment that gives these rewards; then, or in step `limit`, its episode ends."""

    observation_space = gym.spaces.Box(-99, 99, (2,), float)

    def __init__(self, rewards, limit=99):
        self.rewards, self.limit = rewards, limit

    def reset(self, seed):
        self.seed, self.steps = seed, 0
        return np.array([self.limit, 0.0]), {"a": 1}

    def step(self, action):
        assert self.steps < min(len(self.rewards), self.limit), "it has ended"
        assert (action == np.array([self.limit, self.steps]) * [1, -1]).all()
        self.steps += 1
        ended = self.steps == len(self.rewards), self.steps == self.limit
        infos = {"b": [None] * self.steps}  # that cannot be stacked
        return np.array([self.limit, self.steps]), self.rewards[self.steps - 1], *ended, infos


def test_evaluate_sums_the_rewards_of_one_episode_each():
    """Until it ends or time does; seeds act in environments of their own, from seeds in a row."""
    envs = [Scripted([1, 10, 100.0]), Scripted([2, 20.0]), Scripted([3] * 9, 4), Scripted([4.0])]
    asked = []

    def act(obs, num):
        asked.append((obs.shape, num))
        return obs * [1, -1]

    agent = SimpleNamespace(args=SimpleNamespace(num_seeds=2), act=act)
    seeds = []
    for seed in ([3, 5000], [4, 5000], [3, 6000]):
        asked.clear()
        assert uwac.evaluate(agent, envs, seed, 7).tolist() == [[111, 22], [12, 4]]
        assert asked == [((2, 2, 2), 7)] * 4
        first = envs[0].seed
        assert [env.seed - first for env in envs] == [0, 1, 2, 3]
        seeds.append(first)
    assert len(set(seeds)) == 3 and max(seeds) < 2**30


def test_evaluations(monkeypatch):
    """By the best of some actions, and by one sample; each evaluation has random numbers anew."""
    calls, drawn = [], []

    def act(agent, obs, num):
        drawn.append(torch.rand(1).item())
        return act_before(agent, obs, num)

    def spy(function, *args):
        calls.append((function.__name__, *args[2:]))
        return function(*args)

    act_before = uwac.Agent.act
    monkeypatch.setattr(uwac.Agent, "act", act)
    monkeypatch.setattr(uwac, "evaluate", partial(spy, uwac.evaluate))
    update = Mock(side_effect=partial(spy, uwac.update), __module__="uwac")
    uwac.main(short(uwac, seed=5), update=update)
    expected = []
    for step in range(1, 7):
        expected.append(("update", step))
        if step in (3, 6):
            expected += [("evaluate", [5, step], num) for num in (3, 1)]
    assert calls == expected
    assert drawn[0] == drawn[5] != drawn[10] == drawn[15] and len(drawn) == 20


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
    with pytest.raises(FloatingPointError, match="at update 3: .*'critic_loss': .(nan|inf)"):
        uwac.main(short(uwac, critic_lr=1e30, log_every=100))
    assert not Point.played


def test_a_warmup_that_is_the_whole_run_is_said(script, capsys):
    warning = "warning: the actor never sees Q: see --warmup-steps 1"
    for steps in (1, 2):
        script.main(short(script, total_steps=steps, warmup_steps=1, run_dir=f"run{steps}"))
        assert (warning in capsys.readouterr().out) == (steps == 1)


def test_it_trains_without_an_error_output(points):
    """As a daemon's, which is closed."""
    write_hdf5("points.hdf5", points | {"actions": points["actions"][:, :1]})
    line = f"exec {sys.executable} {ROOT / 'uwac.py'} {words(uwac, env_id='Pendulum-v1')} 2>&-"
    subprocess.run(["sh", "-c", line], check=True)
    assert json.loads((RUN / "result.json").read_text())["history"][-1]["step"] == 6


def test_a_copy_of_script_and_d4rl_runs_alone(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "d4rl", copy / "d4rl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "uwac.py", copy)
    line = "--env-id door-demo --total-steps 1 --eval-episodes 1 --eval-candidates 2 --batch-size 4"
    line += " --variance analytic --run-dir copied"
    subprocess.run([sys.executable, copy / "uwac.py", *line.split()], cwd=tmp_path, check=True)
    result = json.loads((tmp_path / "copied" / "result.json").read_text())
    assert result["data"]["path"] == str(copy / "d4rl" / "door-demo.hdf5")


@pytest.mark.parametrize("other, reason", [
    ({"d4rl/__init__.py": "import gym_of_old"}, "No module named 'gym_of_old'"),
    ({"d4rl/data.txt": ""}, "cannot import name 'UnitActions' from 'd4rl' "),
    ({}, "No module named 'd4rl'"),
], ids=["original", "folder", "none"])  # fmt: skip
def test_another_d4rl_is_one_line(other, reason, tmp_path):
    script = shutil.copy(ROOT / "uwac.py", tmp_path)
    for name, text in other.items():
        Path(name).parent.mkdir()
        Path(name).write_text(text)
    alone = [] if other else ["-I"]  # what pip installed here is not to be found
    line = [sys.executable, *alone, script]
    ended = subprocess.run(line, capture_output=True, text=True, env={}, check=False)
    said = f"error: needs this project's folder d4rl/ beside {script}, and requirements.txt "
    assert ended.stderr.startswith(f"{said}installed ({reason}")
    assert len(ended.stderr.splitlines()) == 1


def test_a_file_system_without_locks_is_one_line(monkeypatch, capsys):
    def no_lock(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(uwac.FileLock, "acquire", no_lock)
    monkeypatch.setattr(sys, "argv", ["uwac.py", *words(uwac).split()])
    with pytest.raises(SystemExit, match="^error: .*No locks available$"):
        uwac.command_line()
