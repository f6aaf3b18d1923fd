"""Both scripts end to end on door-demo: what a run leaves, that it can be had again, and that every flag counts."""

import csv
import dataclasses
import json
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from conftest import command_line
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import bear
import uwac

# Seconds a run: two evaluations of one episode with few candidates, small batches.
SHORT = {"env_id": "door-demo", "total_steps": 4, "eval_every": 2, "eval_episodes": 1, "eval_candidates": 3}
SHORT |= {"batch_size": 8, "log_every": 1}
BEAR_METRICS = ["vae_loss", "critic_loss", "actor_loss", "alpha", "mmd", "target_q", "policy_q"]
UWAC_METRICS = [*BEAR_METRICS, "variance", "weight", "policy_weight"]

# Every flag has another value than its default in one of these.
ALTERED = {
    "seed": 5,
    "num_seeds": 2,
    "gamma": 0.9,
    "tau": 0.01,
    "lmbda": 0.6,
    "num_candidates": 3,
    "num_mmd_samples": 4,
}
ALTERED |= {"mmd_kernel": "laplacian", "mmd_sigma": 10.0, "mmd_threshold": 0.05, "warmup_steps": 2, "actor_lr": 1e-3}
ALTERED |= {"critic_lr": 1e-3, "vae_lr": 1e-3, "dual_lr": 1e-2, "cuda_graph": False, "tf32": False}
ALTERED |= {"dataset_path": str(Path(bear.__file__).parent / "data" / "door-demo.hdf5")}
CASES = {
    "bear": (bear, ALTERED),
    "uwac": (uwac, ALTERED | {"beta": 0.8, "dropout": 0.2, "passes": 3, "weighting": "std", "weight_clip": 2.0}),
    "uwac exp": (uwac, {"variance": "analytic", "weighting": "exp", "spectral_norm": False, "num_seeds": 2}),
    "uwac ensemble": (uwac, {"critic": "ensemble", "ensemble_size": 3}),
    "uwac none": (uwac, {"variance": "analytic", "weighting": "none", "dropout": 0.0, "spectral_norm": True}),
}


@pytest.fixture(autouse=True)
def cpu_in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def short(script, **changes):
    return script.Args(**SHORT | ({"passes": 2} if script is uwac else {}) | changes)


def train(script, **changes):
    """The result of a short run, and its folder."""
    before = set(Path("runs").glob("*"))
    result = script.main(short(script, **changes))
    (run,) = set(Path("runs").glob("*")) - before
    return result, run


def rows(run):
    with open(run / "metrics.csv") as file:
        return list(csv.DictReader(file))


def weights(run):
    saved = torch.load(run / "policy.pt", weights_only=True)
    return {f"{net}.{name}": value for net in ("actor", "critic") for name, value in saved[net].items()}


def scalars(run):
    events = EventAccumulator(str(run)).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def same(one, two):
    assert one.keys() == two.keys()
    return all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("script, changes", CASES.values(), ids=CASES)
def test_what_a_run_leaves(script, changes, capsys):
    result, run = train(script, **changes)
    args, seeds = short(script, **changes), changes.get("num_seeds", 1)
    names = BEAR_METRICS if script is bear else [*UWAC_METRICS, "ood_auroc"]

    assert json.loads((run / "result.json").read_text()) == json.loads(json.dumps(result))
    assert json.loads((run / "args.json").read_text()) == result["args"] == vars(args)
    assert result["task"] == "door-demo" and result["algorithm"] == script.__name__
    assert result["transitions"] == 25 * 199  # the last step of each of the 25 episodes has no next observation
    assert result["versions"]["torch"] == torch.__version__ and result["ms_per_update"] > 0

    # metrics.csv, the history of result.json and TensorBoard tell the same of every evaluation and seed
    table = rows(run)
    assert [(row["step"], row["seed"]) for row in table] == [(str(t), str(s)) for t in (2, 4) for s in range(seeds)]
    assert list(table[0]) == ["step", "seed", "score", *names]
    assert [row["step"] for row in result["history"]] == [2, 4]
    events = scalars(run)
    tags = {
        name: f"evaluation/{name}" if name in ("score", "ood_auroc") else f"train/{name}" for name in ("score", *names)
    }
    assert set(events) == set(tags.values())
    for name, tag in tags.items():
        history = np.array([evaluation[name] for evaluation in result["history"]])
        assert history.shape == (2, seeds) and np.isfinite(history).all()
        np.testing.assert_allclose(np.reshape([float(row[name]) for row in table], (2, seeds)), history, rtol=1e-6)
        logged = dict(events[tag])
        assert [logged[2], logged[4]] == pytest.approx(history.mean(1), rel=1e-5)
    assert [step for step, _ in events["train/mmd"]] == [1, 2, 3, 4]

    assert torch.backends.cuda.matmul.fp32_precision == ("tf32" if args.tf32 else "ieee")
    scores = np.array([evaluation["score"] for evaluation in result["history"]])
    for name, mean in (("last", scores[-1]), ("last_ten", scores.mean(0))):
        assert result[name]["mean"] == pytest.approx(mean.mean())
        assert result[name]["std"] == (pytest.approx(mean.std(ddof=1)) if seeds > 1 else None)

    image = matplotlib.image.imread(run / "curves.png")[..., :3]
    left, right = np.array_split(image, 2, axis=1)
    blue = [0, 0x72 / 255, 0xB2 / 255]  # the mean's colour: each of the two plots shows its curve
    assert all((np.abs(half - blue).max(-1) < 0.02).sum() > 50 for half in (left, right))

    # The saved policy is loadable and alone enough for the last evaluation
    again = script.main(script.Args(evaluate=str(run), seed=args.seed, eval_episodes=1, eval_candidates=3))
    assert np.mean(again["scores"], 1).tolist() == result["history"][-1]["score"]
    assert again["step"] == 4 and again["env_id"] == "door-demo"
    output = capsys.readouterr().out
    assert f"{np.mean(again['scores']):.1f}" in output.splitlines()[-1]
    assert list(Path("runs").iterdir()) == [run]  # an evaluation writes nothing


def test_every_flag_is_tried():
    """Each argument has another value than its default somewhere above, `evaluate` at the end of each case, or in
    test_checkpoints.py, test_download.py or test_tracking.py."""
    elsewhere = {"resume", "checkpoint_every", "dataset_url", "capture_video", "track"}
    elsewhere |= {"wandb_project_name", "wandb_entity", "wandb_group"}
    for script in (bear, uwac):
        names = {field.name for field in dataclasses.fields(script.Args)}
        tried = {"evaluate", *elsewhere}
        for other, changes in CASES.values():
            if other is script:
                args, default = vars(short(script, **changes)), vars(script.Args())
                tried |= {name for name in args if args[name] != default[name]}
        assert names - tried == set()


def test_same_arguments_same_numbers(script):
    """To the last bit; and another seed trains, evaluates and saves something else."""
    (_, one), (_, two), (_, other) = train(script), train(script), train(script, seed=1)
    assert (one / "metrics.csv").read_bytes() == (two / "metrics.csv").read_bytes()
    assert same(weights(one), weights(two))
    assert (one / "metrics.csv").read_bytes() != (other / "metrics.csv").read_bytes()
    assert not same(weights(one), weights(other))
    again = {seed: script.main(script.Args(evaluate=str(one), seed=seed, eval_episodes=1)) for seed in (0, 1)}
    assert again[0]["scores"] != again[1]["scores"]  # episodes and actions of an evaluation follow from the seed, too


def test_how_often_one_evaluates_and_logs_changes_nothing(script):
    """The policy at the end and its evaluation, after one evaluation, after four, and with other numbers of episodes."""
    results = [train(script, eval_every=4, log_every=3), train(script, eval_every=1)]
    scores = [result["history"][-1]["score"] for result, _ in results]
    assert scores[0] == scores[1]
    results.append(train(script, eval_every=2, eval_episodes=2, eval_candidates=5))
    assert all(same(weights(results[0][1]), weights(run)) for _, run in results[1:])
    assert results[2][0]["history"][-1]["score"] != scores[0]  # while both flags do count


def test_an_evaluation_takes_the_best_candidate_by_q1():
    """A policy of noise under a critic that likes large first components; the returns are the sums of the rewards up to
    each episode's end, without those of the next episode; the generator outside is left alone."""

    class Envs:
        num_envs = 4

        def reset(self, seed):
            self.t, self.actions = 0, []
            return np.zeros((4, 5)), {}

        def step(self, actions):
            self.t += 1
            self.actions.append(actions[:, 0])
            ends = self.t == np.array([1, 2, 3, 3])
            return np.zeros((4, 5)), np.ones(4), ends & (self.t < 3), ends & (self.t == 3), {}

    actor, q1, first = uwac.Actor(2, 5, 2, 8), uwac.Critic(2, 5, 2, 8), []
    with torch.no_grad():
        for parameter in (*actor.parameters(), *q1.parameters()):
            parameter.zero_()
        q1.layers[0].bias.fill_(1)
        q1.layers[0].weight[:, 5] = 1  # 1 + a_1 >= 0: no ReLU is closed
        for layer in q1.layers[1:]:
            layer.weight.fill_(1)
    for candidates in (1, 50):
        envs = Envs()
        before = torch.get_rng_state()
        assert uwac.evaluate(actor, q1, envs, candidates, [0, 1]).tolist() == [[1, 2], [3, 3]]
        assert torch.equal(before, torch.get_rng_state())
        first.append(np.concatenate(envs.actions))
    assert first[0].mean() < 0.3 and first[1].min() > 0.5  # tanh of one normal number, and of the largest of 50


def test_divergence_keeps_what_came_before(script, monkeypatch):
    """A weight of one seed turns NaN before update 3: the error names loss, seed and update, and the first evaluation,
    its row, policy, curves and events stay."""
    update, calls = script.Agent.update, []

    def broken(agent):
        calls.append(1)
        if len(calls) == 3:
            agent.critic.layers[2].bias.data[2] = torch.nan  # the first critic of the second seed
        update(agent)

    monkeypatch.setattr(script.Agent, "update", broken)
    with pytest.raises(FloatingPointError, match="critic_loss.*seed 1, update 3"):
        train(script, num_seeds=2, log_every=4)
    assert len(calls) == 4
    (run,) = Path("runs").iterdir()
    assert [(row["step"], row["seed"]) for row in rows(run)] == [("2", "0"), ("2", "1")]
    assert all(value.isfinite().all() for value in weights(run).values())
    assert [step for step, _ in scalars(run)["evaluation/score"]] == [2]
    assert (run / "curves.png").exists() and (run / "args.json").exists() and not (run / "result.json").exists()


WORDS = "--env-id door-demo --total-steps 2 --eval-episodes 1 --eval-candidates 2 --batch-size 4"


def test_divergence_on_the_command_line(script, monkeypatch, capsys):
    """A learning rate far beyond reason: exit code 3, and one line that names a loss and the update."""
    assert command_line(script, f"{WORDS} --critic-lr 1e9 --total-steps 9 --log-every 9", monkeypatch) == 3
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("AdroitHand")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ") and "_loss" in lines[0] and "update " in lines[0]
    assert len(list(Path("runs").iterdir())) == 1


def test_spectral_norm_on_the_command_line(monkeypatch):
    """--spectral-norm and --no-spectral-norm say yes and no; without a word, Adroit has it."""
    for words, expected in (("--spectral-norm", True), ("--no-spectral-norm", False), ("", True)):
        assert command_line(uwac, f"{WORDS} --variance analytic {words}", monkeypatch) == 0
        run = max(Path("runs").iterdir(), key=lambda path: path.name)
        assert json.loads((run / "args.json").read_text())["spectral_norm"] is expected


def test_a_policy_that_is_none(script, tmp_path):
    """No folder, a folder without policy, and a file that runs code when it is unpickled, which it must not be."""

    class Code:
        def __reduce__(self):
            return Path.touch, (tmp_path / "touched",)

    (tmp_path / "empty").mkdir()
    (tmp_path / "odd").mkdir()
    torch.save({"actor": Code()}, tmp_path / "odd" / "policy.pt")
    for name in ("missing", "empty", "odd"):
        with pytest.raises(script.InputError, match=f"--evaluate .*{name}") as error:
            script.main(script.Args(evaluate=str(tmp_path / name)))
        assert "\n" not in str(error.value)
    assert not (tmp_path / "touched").exists()
