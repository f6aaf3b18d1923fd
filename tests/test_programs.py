"""benchmark/'s programs: what is wrong with their input; what they do with runs; their numbers."""

import csv
import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import Point, command_line, short, write_hdf5, zeroed

import bear
import d4rl
import uwac
from benchmark import make_dataset, report, run
from benchmark.lib import policies
from benchmark.lib.files import commit
from benchmark.measure import diagnose, evaluate, speed, true_q, variance
from benchmark.variants import bc, ensembles

DEMO = Path(d4rl.__file__).with_name("door-demo.hdf5")
CASES = [
    (diagnose, "", "name the folders of one run or more"),
    (diagnose, "arrays", "arrays: learned from arrays from Python, which is no file here"),
    (diagnose, "altered", "altered: points.hdf5 is not the data that it learned from"),
    (evaluate, "nothing", "nothing: not a run's folder"),
    (evaluate, "unfinished", "unfinished: was not evaluated yet"),
    (evaluate, "damaged", "damaged/evaluation.json: damaged, move it away"),
    (evaluate, "other", "other/evaluation.json: not of evaluate.py, move it away"),
    (evaluate, "run", "Point-v0: needs a step limit"),
    (evaluate, "run --film", "--film needs moviepy: pip install moviepy"),
    (make_dataset, "", "say what to make"),
    (make_dataset, "--policy hopper-medium walker2d-medium", "made for hopper and walker2d"),
    (make_dataset, "--policy nowhere.npz", "neither a run nor a policy; shipped: door-expert"),
    (make_dataset, f"--env hopper --demos {DEMO}", "must be numbers of shape (5000, 11), not"),
    (make_dataset, "--env walker2d --train-steps 9", "checkpoint.pt: not a checkpoint"),
    (make_dataset, "--policy hopper-random --out points.hdf5", "exists: give --force"),
    (make_dataset, "--policy hopper-medium hopper-expert --steps 1", "a step for each policy"),
    (report, "run nothing", "no results in nothing; benchmark/run.py makes some"),
    (report, "run --metrics MB", "--metrics MB: there are actor_loss, alpha, "),
    (run, "--cpus 1 word", "word: not an option"),
    (run, "--run_dir a", "--run-dir is given to each run"),
    (run, "--num-seeds 2", "--num-seeds trains seeds 0, 1, ... in one run"),
    (run, "--tasks Point-v0", "Point-v0: no data of it; give"),
    (speed, "--threads 1 --folder=~/damaged", "damaged/speed.json: damaged, move it away"),
    (true_q, "", "name tasks or files of data, or policies"),
    (true_q, "points.hdf5", "points.hdf5: has no timeouts"),
    (uwac, "--env-id door-demo --dropout 0", "--dropout 0: no variance to weigh by; add --weigh"),
    (uwac, "--resume nothing", "nothing/checkpoint.pt"),
    (uwac, "--env-id Nothing-v0", "Nothing-v0"),
    (uwac, "--env-id door-demo --dataset-path missing.hdf5", "missing.hdf5: no such file"),
    (uwac, "--env-id door-demo --run-dir .", "--run-dir . has files: choose another"),
    (uwac, "--env-id door-demo --cuda-graph", "--cuda-graph: there is no GPU"),
    (uwac, "--env-id door-demo --run-dir points.hdf5/run", "points.hdf5/run"),
    (variance, "--folder=~/damaged", "damaged/variance.json exists: choose another --folder"),
]
BOXES = [  # of the parser
    (ensembles, "--ensemble-size 1", "ensemble_size Input should be greater than or equal to 2"),
    (evaluate, "run --episodes 0", "episodes Input should be greater than 0"),
    (evaluate, "run --policies", "policies Tuple should have at least 1 item"),
    (run, "--methods uwac --beta -1", "beta Input should be greater than 0"),
    (run, "--totl-steps 40", "Unrecognized options: --totl-steps"),
    (run, "--legs 0", "legs Input should be greater than 0"),
    (variance, "--rates 0.1 1", "rates.1 Input should be less than 1"),
]


def test_bad_input(points, refused, monkeypatch, capsys):
    bear.main(short(bear, total_steps=1))
    bear.main(short(bear, total_steps=1, run_dir="arrays", dataset_path=None), dataset=points)
    for copy in ("unfinished", "damaged", "other", "altered"):
        shutil.copytree("run", copy)
    checkpoint = torch.load("run/checkpoint.pt", weights_only=True)
    torch.save(checkpoint | {"history": []}, "unfinished/checkpoint.pt")
    altered = {"path": "points.hdf5", "sha256": "another"}
    torch.save(checkpoint | {"data": altered}, "altered/checkpoint.pt")
    for file in ("evaluation.json", "speed.json", "variance.json", "../checkpoint.pt"):
        Path("damaged", file).write_text("[{")
    Path("other/evaluation.json").write_text('{"candidates": {}}')  # an earlier version's
    Path("training/walker2d-0").mkdir(parents=True)
    Path("checkpoint.pt").rename("training/walker2d-0/checkpoint.pt")
    monkeypatch.setenv("HOME", str(Path.cwd()))
    monkeypatch.setattr(evaluate, "find_spec", lambda name: None)
    monkeypatch.setattr(gym.registry["Point-v0"], "max_episode_steps", None)
    before = {path: path.lstat().st_size for path in Path().rglob("*")}
    for program, words, message in CASES:
        words += {make_dataset: " --folder .", uwac: " --total-steps 1"}.get(program, "")
        line = refused(words, program)
        assert line.startswith("error: ") and message in line
        assert {path: path.lstat().st_size for path in Path().rglob("*")} == before
    for program, words, message in BOXES:
        assert command_line(program, words, monkeypatch) == 2
        said = capsys.readouterr().err.replace("│", "")
        assert message in " ".join(said.split())
        assert {path: path.lstat().st_size for path in Path().rglob("*")} == before


def records(file="run/evaluation.json"):
    return {(one["policy"], one["candidates"]): one for one in json.loads(Path(file).read_text())}


@pytest.mark.parametrize("script", [bear, uwac, ensembles], ids=["bear", "uwac", "ensembles"])
def test_the_last_evaluation_again(points, script, monkeypatch, capsys):
    """An environment of one's own has no score, so that is the return."""
    args = short(script, num_seeds=2, seed=3, eval_episodes=4)
    main = getattr(script, "main", uwac.main)
    result = main(args, agent_type=script.Agent, update=script.update)
    last = result["history"][-1]
    capsys.readouterr()
    words = "run --episodes 4 --candidates 3 5 --policies best sample --seed"
    assert command_line(evaluate, f"{words} 3", monkeypatch) == 0
    again = {key: np.array(one["returns"]) for key, one in records().items()}
    assert list(again) == [("best", 3), ("best", 5), ("sample", 1)]
    assert again["best", 3].mean(1).tolist() == last["score"]  # the return
    assert again["sample", 1].mean(1).tolist() == last["score_sample"]
    assert (again["best", 3] != again["best", 5]).all()
    one, two = last["score"]
    numbers = f"return {(one + two) / 2:.1f} ± {abs(one - two) / 2:.1f}"
    where = f"run, {result['algorithm']} on Point-v0, 6 updates, best of 3, 2 agents x 4 episodes"
    assert capsys.readouterr().out.splitlines()[0] == f"{where}: {numbers}"
    assert command_line(evaluate, f"{words} 4", monkeypatch) == 0
    assert (np.array(records()["best", 3]["returns"]) != again["best", 3]).all()


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


def test_a_later_call_adds_to_what_is_there(points, monkeypatch, refused):
    """What goes wrong leaves what was there, and no environment open."""
    closed = []
    monkeypatch.setattr(Point, "close", lambda self: closed.append(1))
    uwac.main(short(uwac, num_seeds=2))
    closed.clear()
    assert command_line(evaluate, "run --episodes 2 --policies sample vae", monkeypatch) == 0
    assert len(closed) == 4
    first = records()
    assert command_line(evaluate, "run --episodes 2 --policies vae mean", monkeypatch) == 0
    assert command_line(evaluate, "run --episodes 1 --policies mean", monkeypatch) == 0
    before = Path("run/evaluation.json").read_bytes()
    found = [(one["policy"], one["episodes"], one["step"]) for one in json.loads(before)]
    assert found == [("sample", 2, 6), ("vae", 2, 6), ("mean", 2, 6), ("mean", 1, 6)]
    assert records().items() >= first.items()

    returns = iter([np.ones((2, 2)), np.full((2, 2), np.nan)])
    monkeypatch.setattr(uwac, "evaluate", lambda *args: next(returns, np.zeros((2, 2))))
    closed.clear()
    words = "run --episodes 2 --policies best sample --candidates 2"
    assert "error: run: a return in Point-v0 is not finite" in refused(words, evaluate)
    assert len(closed) == 4
    *others, last = json.loads(Path("run/evaluation.json").read_text())
    assert (others, last["policy"]) == (json.loads(before), "best")

    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError("No space left on device")))
    before = Path("run/evaluation.json").read_bytes()
    assert "error: No space left" in refused(words, evaluate)
    assert Path("run/evaluation.json").read_bytes() == before


def test_a_report_of_a_run(points, monkeypatch):
    result = uwac.main(short(uwac))
    assert command_line(evaluate, "run --episodes 2 --policies vae", monkeypatch) == 0
    assert command_line(report, "run --metrics target_q weight --latex", monkeypatch) == 0
    with open("runs/report/runs.csv") as file:
        (row,) = csv.DictReader(file)
    assert row["method"].startswith("UWAC, passes 2, batch size 8, ")
    assert float(row["Q target"]) == result["history"][-1]["target_q"][0]
    found = sorted(file.name for file in Path("runs/report").iterdir())
    pictures = "01-Point-v0-policies", "01-Point-v0-target_q-weight"
    files = [f"{name}.{end}" for name in pictures for end in ("pdf", "png")]
    files += ["policies.csv", "policies.tex", "report.md", "runs.csv", "runs.tex"]
    assert found == [*files, "written_by_report.json"]
    text = Path("runs/report/runs.tex").read_text()
    assert text.startswith("\\begin{tabular}") and row["method"] in text


def test_a_clone_of_the_data(points, monkeypatch):
    data = d4rl.read(d4rl.download("door-demo"))
    score = d4rl.normalized_score("door-demo", data["rewards"].reshape(25, 200).sum(1).mean())
    data["actions"] = np.full_like(data["actions"], 0.6)
    monkeypatch.setattr(d4rl, "read", lambda path: data)
    played = []

    def evaluation(agent, envs, seed, num):
        played.append(agent.act(data["observations"][None, :9].repeat(2, 0), num))
        return np.array([[d4rl.TASKS["door"][2]], [d4rl.TASKS["door"][3]]])

    monkeypatch.setattr(uwac, "evaluate", evaluation)
    bc.main(bc.Args("door-demo", num_seeds=2, total_steps=400, eval_every=250, eval_episodes=1))
    result = json.loads(Path("runs/bc/door-demo.json").read_text())
    assert result["data_score"] == pytest.approx(score)
    assert result["history"][1] == {"step": 400, "scores": [[0], [100]]}
    errors = np.abs(np.array(played) - 0.6).mean((2, 3))  # (evaluations, S)
    assert (errors[1] < errors[0]).all() and errors[1].max() < 0.02
    with pytest.raises(ValueError, match=r"runs/bc/door-demo.json exists: move it away"):
        bc.main(bc.Args("door-demo", total_steps=1))
    assert json.loads(Path("runs/bc/door-demo.json").read_text()) == result


def test_value_of_data_by_hand(points):
    """An episode of two steps that is terminal, one of 21 that time ends, and one without an end,
    which is left out."""
    rewards = np.array([5, 7, *range(21), 99.0])
    flags = np.zeros((2, 24), bool)
    flags[0, 1] = flags[1, 22] = True
    write_hdf5("points.hdf5", {"rewards": rewards, "terminals": flags[0], "timeouts": flags[1]})
    ended, cut = true_q.of_data("points.hdf5")
    assert ended["in_episode"] == pytest.approx([5 + 0.99 * 7, 7])
    assert ended["continued"] == pytest.approx(ended["in_episode"])
    assert cut["in_episode"][-2:] == pytest.approx([19 + 0.99 * 20, 20])
    assert cut["continued"][-1] == pytest.approx(20 + 0.99 * 10.5 / 0.01)  # 1 to 20
    assert len(cut["in_episode"]) == 21
    constant = cut["constant"][0]  # such a critic's mean target is itself
    assert constant == pytest.approx(rewards.mean() + 0.99 * constant * 23 / 24)
    assert ended["bound"] == pytest.approx([9900, 9900])  # 99 a step for ever


def test_value_of_a_policy_beyond_its_limit(points, monkeypatch):
    """A reward of 1 a step, for as long as an environment lets it play."""
    player = Mock(env_id="Point-v0")
    monkeypatch.setattr(true_q, "load_player", lambda word, seed: player)

    def play(act, envs, seeds):
        steps = true_q.d4rl.step_limit_of(envs[0])
        return [{"rewards": np.ones(steps), "terminals": np.zeros(steps, bool)}] * len(envs)

    monkeypatch.setattr(true_q, "play", play)
    episodes = true_q.of_policy("any")
    limit = d4rl.step_limit_of(d4rl.make("Point-v0"))
    first = [episodes[0][name][0] for name in ("in_episode", "continued", "played")]
    wanted = [100 * (1 - 0.99**n) for n in (limit, 1e9, limit + true_q.BEYOND)]
    assert first == pytest.approx(wanted) and len(episodes) == true_q.EPISODES
    assert {len(array) for array in episodes[0].values()} == {limit}


def test_q_of_an_episode_in_the_environments_units():
    """Point's actions go to 2, a critic's to 1; the smaller of twins that give 3 times and once the
    first number of an action, of the first of two seeds."""
    agent = uwac.Agent(short(uwac, num_seeds=2), 3, 2)
    zeroed(agent.critic)
    with torch.no_grad():
        agent.critic.layers[0].weight[..., 3, 0] = 1
        agent.critic.layers[1].weight[..., 0, 0] = 1
        agent.critic.layers[2].weight[..., 0, 0] = torch.tensor([[3.0, 9], [1, 9]])
    actions = np.array([[0.5, 2], [2, 0]])
    episode = {"observations": np.ones((2, 3)), "actions": actions}
    assert true_q.q_of(agent, d4rl.make("Point-v0"), episode) == pytest.approx([0.25, 1])


def test_commit_of_a_folder_whose_name_a_shell_would_run(tmp_path):
    folder = tmp_path / "o'brien; touch RAN; #"
    folder.mkdir()
    assert commit(folder) == "" and not Path("RAN").exists()


def test_what_variance_compares(tmp_path, monkeypatch):
    """Estimates are 0.5 and 0.1 off."""
    few = {"total_steps": 3, "batch_size": 4, "states": 7, "repetitions": 3, "rates": (0.2, 0.5)}
    args = variance.Args(passes=(2, 5), reference_passes=50, folder=tmp_path, **few)
    seen = []
    update = Mock(wraps=uwac.update)
    monkeypatch.setattr(uwac, "update", update)

    def estimate(critic, obs, action, p, T, factor):
        seen.append((critic.spectral_norm, p, action))
        truth = 1 + action.sum(-1).square().expand(2, 1, 7)
        return truth * (1 if T == 50 else factor)

    monkeypatch.setattr(uwac, "mc_dropout_variance", lambda *given: estimate(*given, 1.5))
    monkeypatch.setattr(variance, "row_masks_variance", lambda *given: estimate(*given, 0.9))
    variance.main(args)
    settings = [(rate, norm) for rate in (0.2, 0.5) for norm in (True, False)]
    trained = [call.args[0].args for call in update.call_args_list]
    found = [(one.dropout, one.spectral_norm, one.batch_size, one.variance) for one in trained]
    assert found == [(*setting, 4, "analytic") for setting in settings for _ in range(3)]
    rows = json.loads((tmp_path / "variance.json").read_text())
    found = [(row["rate"], row["spectral_norm"], row["actions"]) for row in rows[::5]]
    assert found == [(*setting, actions) for setting in settings for actions in ("data", "random")]
    kinds = [(name, T) for T in (2, 5) for name in ("one mask", "per-sample masks")]
    assert [(row["estimate"], row["passes"]) for row in rows[:5]] == [("analytic", 0), *kinds]
    errors = {"one mask": pytest.approx(0.5), "per-sample masks": pytest.approx(0.1)}
    assert all(row["rmse"] == errors.get(row["estimate"], row["rmse"]) for row in rows)

    data = torch.as_tensor(d4rl.read(d4rl.download("door-demo"))["actions"]).clamp(-1, 1)
    known, uniform = seen[0][-1], seen[13][-1]  # 13 estimates of each kind of actions
    assert seen[0][:2] == seen[13][:2] == (True, 0.2)
    assert all((data - action).abs().sum(1).min() < 1e-5 for action in known[0])
    assert all((data - action).abs().sum(1).min() > 1 for action in uniform[0])
    assert uniform.min() < -0.9 and uniform.max() > 0.9


def test_a_ratio_is_the_median_of_the_rounds_own():
    """Without the rounds that a slow version sat out."""
    row = {"ms": [300.0, None, 1200.0, 900.0]}
    assert speed.ratio(row, [3.0, 4.0, 6.0, 6.0]) == "150.00 (100.00 to 200.00)"


def test_estimates_of_a_known_variance():
    """Q is m2 * (10 + 3 * m1) in every state, under masks m1 and m2 of one unit of each hidden
    layer. At a rate of 0.5 a mask is 0 or 2, and Var[Q] is 2 * (13^2 + 3^2) - 13^2 = 187. The
    closed form is exact here, so its error is that of the reference. Masks are of each row."""
    agent = uwac.Agent(uwac.Args(spectral_norm=False), 39, 28)
    with torch.no_grad():
        zeroed(agent.critic)
        for layer, bias in zip(agent.critic.layers, (3, 10, 0)):
            layer.bias[..., 0] = bias
            layer.weight[..., 0, 0] = float(layer is not agent.critic.layers[0])
    settings = {"passes": (2, 8), "reference_passes": 4_000, "states": 5, "repetitions": 20}
    data = [torch.rand(2_000, 39), torch.rand(2_000, 28) * 2 - 1]
    rows = variance.study(variance.Args(**settings), agent, data, 0.5)
    analytic, *of_passes = (row["rmse"] for row in rows if row["actions"] == "data")
    assert analytic < 0.1 < min(of_passes) and len(of_passes) == 4
    inputs = agent.critic, data[0][None], data[1][None], 0.5, 4
    of_rows = variance.row_masks_variance(*inputs)
    assert uwac.mc_dropout_variance(*inputs).std(-1).max() == 0 and of_rows.std(-1).min() > 50
    assert of_rows.mean().item() == pytest.approx(187, rel=0.1)


def test_errors_by_hand():
    truth = torch.tensor([[[1.0, 10.0, 100.0]]])
    found = variance.compare(truth * torch.tensor([1.5, 0.5, 1.0]), truth)
    assert found["mse"] == pytest.approx(0.5 / 3)
    assert variance.compare(1 / truth, truth)["log_correlation"] == pytest.approx(-1)


def test_a_python_without_d3rlpy_is_named():
    timer = speed.d3rlpy_timer(speed.Args(d3rlpy=Path("false")))
    with pytest.raises(ValueError, match="--d3rlpy false: d3rlpy does not run there"):
        timer(0.1)


def test_known_networks(points, monkeypatch):
    """The critic's variance grows with the action, from 0 at the data's, which are all 0."""
    write_hdf5("points.hdf5", points | {"actions": np.zeros((50, 2))})
    uwac.main(short(uwac, variance="analytic", num_seeds=2))
    agent, saved = uwac.load_checkpoint("run")
    zeroed(agent.actor, agent.vae.decoder, agent.critic)
    with torch.no_grad():
        agent.actor.layers[2].bias[..., :2] = 0.5
        agent.actor.layers[2].bias[..., 2:] = -9  # limited to -5
        agent.vae.decoder.layers[2].bias.fill_(1.5)
        agent.critic.layers[0].weight[..., 3:, :2] = torch.eye(2)
        agent.critic.layers[1].weight[..., :2, :2] = torch.eye(2)
        agent.critic.layers[2].weight[..., :2, :] = 1
    monkeypatch.setattr(diagnose, "load", lambda run: (uwac, agent, saved))
    monkeypatch.setattr(diagnose, "FOR_MEANS", 200)
    both = diagnose.diagnose(Path("run"))
    assert json.loads(Path("run/diagnosis-6.json").read_text()) == both
    assert Path("run/variance-6.png").exists()
    assert len(both["mmd, 4"]) == 2
    found = {name: values[0] for name, values in both.items()}
    assert found["gap"] == found["gap_saturated"] == 1 == found["saturated"]
    for num in (4, 10, 100):
        assert found[f"mmd, {num}"] == pytest.approx((2 - 2 * np.exp(-2 / 40)) ** 0.5, rel=1e-3)
        assert found[f"mmd_of_vae, {num}"] == pytest.approx(1e-3)  # the root of 1e-6
        assert found[f"mmd_centred, {num}"] < 0.005
    assert found["actor_std"] == pytest.approx(np.exp(-5)) and found["vae_std"] == 0
    assert found["actor_error"] == pytest.approx(np.tanh(0.5))
    assert found["vae_error"] == pytest.approx(np.tanh(1.5))
    assert found["auroc_shuffled"] == 0.5
    assert found["auroc_uniform"] == pytest.approx(7 / 8, abs=0.1)  # a quarter has no variance
    assert found["auroc_action_norm"] == 1  # a random action is never shorter than 0
    assert found["auroc_nearest"] == 1
    untrained = both["auroc_untrained"]
    assert len(untrained) == 10 and max(untrained) < 0.75 and np.std(untrained) > 0.01


def test_the_floor_of_mmd_is_of_samples_of_their_own(monkeypatch):
    agent = uwac.Agent(short(uwac), 3, 2)
    with torch.no_grad():
        agent.vae.decoder.layers[2].weight.mul_(30)  # samples that differ
        found = diagnose.constraint(agent, torch.randn(1, 20, 3))
    floors = [found[f"mmd_of_vae, {num}"].item() for num in (4, 10, 100)]
    assert floors == sorted(floors, reverse=True) and floors[2] > 0.01


def test_states_are_drawn_from_all_of_the_data(points, monkeypatch):
    n = 3_000
    arrays = {"observations": np.arange(n)[:, None].repeat(3, axis=1) / n}
    arrays["actions"] = np.repeat(np.linspace(-1, 1, n)[:, None], 2, axis=1)
    write_hdf5("points.hdf5", arrays | dict.fromkeys(("rewards", "terminals"), np.zeros(n)))
    uwac.main(short(uwac, num_seeds=2))
    seen = []
    monkeypatch.setattr(diagnose, "errors", lambda agent, *arrays: seen.extend(arrays) or {})
    monkeypatch.setattr(diagnose, "constraint", lambda agent, obs: {})
    monkeypatch.setattr(diagnose, "WITH_VARIANCE", ())
    diagnose.diagnose(Path("run"))
    state, action = (array[1, :, 0] for array in seen)
    assert len(state.unique()) == 1_000
    assert 0.4 < state.mean() < 0.6 and (state.diff() < 0).any()
    halves = state - 0.5  # of the data's actions, as the environment's go to 2
    torch.testing.assert_close(action, halves, atol=1e-3, rtol=0)


def test_distance_to_the_nearest_row_but_the_own(monkeypatch):
    """In standard deviations, across pieces of the data; a dimension that never changes is 0."""
    monkeypatch.setattr(diagnose, "AT_ONCE", 2)
    data = torch.tensor([[0.0, 0, 7], [3, 0, 7], [0, 40, 7], [9, 40, 7]])
    units = data.std(0)
    rows = torch.tensor([3, 0])
    points = torch.stack([data[3], torch.tensor([2.9, 0.0, 7.0])])
    wanted = [9 / units[0], 0.1 / units[0]]
    torch.testing.assert_close(diagnose.nearest(points, rows, data), torch.stack(wanted))


def test_variances_of_several_actions_have_the_same_masks(monkeypatch):
    agent = uwac.Agent(short(uwac, num_seeds=2, variance="mc"), 3, 2)
    obs, action = torch.rand(20, 3), torch.rand(20, 2)
    one, same, other = diagnose.variances(agent, obs, action, action, -action)
    assert one.shape == (2, 20) and torch.equal(one, same)
    assert not torch.equal(one, other) and not torch.equal(one[0], one[1])


def test_weights(monkeypatch):
    """Var[Q] is 1 or 4 in half of the states each, with w = 0.1 / Var, and Q falls with it."""
    agent = uwac.Agent(short(uwac, beta=0.1), 3, 3)
    variance = torch.tensor([1.0, 4.0]).repeat(200)[None]
    q = torch.stack([3 / variance, 5 + variance])
    monkeypatch.setattr(agent.critic, "forward", lambda obs, action: q)
    monkeypatch.setattr(agent, "uncertainty", lambda critic, obs, action: variance)
    found = diagnose.weights(agent, torch.rand(1, 400, 3))
    assert found["variance_spread"].item() == pytest.approx(1.5 / 2.5, rel=0.01)
    assert found["weight_spread"].item() == pytest.approx(0.375 / 0.625, rel=0.01)
    assert found["equal_weights"].item() == pytest.approx(2.5 * 0.625)
    assert found["rank_with_q2"].item() == pytest.approx(-1)


def test_share_of_q():
    """Twice alpha halves Q's part over MMD's; the other seed and the agent stay as they are."""
    agent = uwac.Agent(short(uwac, num_seeds=2, warmup_steps=1_000), 3, 2)
    data = [torch.randn(50, *shape) for shape in ((3,), (2,), (), (3,), ())]
    with torch.no_grad():
        agent.log_alpha.fill_(-5)  # so that neither part is next to nothing
    before = {name: value.clone() for name, value in agent.state_dict().items()}
    share = diagnose.q_share(uwac, agent, data)
    assert all(torch.equal(value, before[name]) for name, value in agent.state_dict().items())
    with torch.no_grad():
        agent.log_alpha[0] += np.log(2)
    half = diagnose.q_share(uwac, agent, data)
    ratio, halved = (of[0].item() / (1 - of[0].item()) for of in (share, half))
    assert ratio > 0.01 and halved == pytest.approx(ratio / 2, rel=1e-3)
    assert half[1] == share[1]
