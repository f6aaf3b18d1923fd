"""benchmark/make_dataset.py: sets that say what happened, SAC that learns, training that can be killed."""

import copy
import json
import shutil
import sys
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import gymnasium as gym
import h5py
import mujoco
import numpy as np
import pytest
import torch
from conftest import command_line
from torch.testing import assert_close

import bear
import uwac

ROOT = Path(uwac.__file__).parent
sys.path.insert(0, str(ROOT / "benchmark"))
import make_dataset
from make_dataset import Args, InputError

KINDS = ("random", "medium", "medium-replay", "expert", "medium-expert")
SHIPPED = sorted((ROOT / "benchmark" / "policies").glob("*.npz"))
SMALL = {"steps": 700, "train_steps": 800, "learning_starts": 650, "eval_every": 200, "eval_episodes": 2}


def read(file: Path) -> tuple[dict, dict]:
    arrays = {}
    with h5py.File(file) as opened:
        opened.visititems(lambda name, x: arrays.update({name: x[()]} if isinstance(x, h5py.Dataset) else {}))
        return arrays, dict(opened["metadata"].attrs)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    make_dataset.main(Args(env="Hopper-v4", folder=folder, **SMALL))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_set_read_by_h5py_alone_and_by_both_scripts(trained, kind, monkeypatch):
    arrays, about = read(trained / f"hopper-{kind}-rebuilt.hdf5")
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"])
    assert about["steps"] == len(arrays["rewards"]) and (kind == "medium-replay" or about["steps"] == 700)
    assert ends[-1] == about["steps"] - 1 and len(ends) == about["episodes"]
    returns = [part.sum() for part in np.split(arrays["rewards"], ends + 1)[:-1]]
    assert about["mean_return"] == pytest.approx(np.mean(returns), rel=1e-5)
    inside = np.setdiff1d(np.arange(about["steps"]), ends)
    assert (arrays["next_observations"][inside] == arrays["observations"][inside + 1]).all()
    assert not (arrays["terminals"] & arrays["timeouts"]).any()
    assert about["environment"] == "Hopper-v4" and f"mujoco {version('mujoco')}" in about["versions"]
    monkeypatch.setenv("D4RL_DATASET_DIR", str(trained))
    for script in (bear, uwac):
        source, _ = script.find_dataset(f"hopper-{kind}", None)
        loaded, kept = script.load_dataset(source, 11, 3, 1000), np.flatnonzero(~arrays["timeouts"][:-1])
        assert (loaded["obs"] == arrays["observations"][kept]).all()
        assert (loaded["next_obs"] == arrays["next_observations"][kept])[loaded["done"] == 0].all()


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_replay_exactly_from_their_first_state(trained, kind):
    arrays, _ = read(trained / f"hopper-{kind}-rebuilt.hdf5")
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"])
    replay(gym.make("Hopper-v4").unwrapped, arrays, zip([0, *(ends + 1)], ends), set_walker)


def set_walker(env, state):
    mujoco.mj_resetData(env.model, env.data)
    env.set_state(state["qpos"], state["qvel"])
    return env._get_obs()


def replay(env, arrays, episodes, set_to):
    env.reset()
    for begin, end in [*episodes][::3]:
        state = {name.removeprefix("infos/"): x[begin] for name, x in arrays.items() if name.startswith("infos/")}
        obs = set_to(env, state)
        for i in range(begin, end + 1):
            assert (np.float32(obs) == arrays["observations"][i]).all()
            obs, reward, terminated, *_ = env.step(arrays["actions"][i])
            assert np.float32(reward) == arrays["rewards"][i] and terminated == arrays["terminals"][i]


def test_replay_buffer_is_what_the_training_saw(trained):
    """From its first step on, in order, up to the medium policy: the first episode's state and its first actions are the
    random policy's, and the policy of that step is the medium one."""
    arrays, about = read(trained / "hopper-medium-replay-rebuilt.hdf5")
    folder = trained / "training" / "hopper-0"
    first, _ = gym.make("Hopper-v4").reset(seed=int(np.random.default_rng([0, 0]).integers(2**31)))
    assert (arrays["observations"][0] == first.astype(np.float32)).all()
    actor, _ = make_dataset.load_policy(str(folder / "0.npz"), None, 0)
    with torch.no_grad():
        mean, log_std = actor(torch.as_tensor(arrays["observations"][:600]))
        noise = (torch.as_tensor(arrays["actions"][:600]).atanh() - mean) / log_std.exp()
    assert abs(noise.mean()) < 0.1 and abs(noise.std() - 1) < 0.05
    for name, array in arrays.items():
        raw = np.load(folder / f"{name.replace('/', '_')}.npy")
        assert (raw[: len(array) - 1] == array[:-1]).all()
    medium, snapshot = (np.load(folder / f"{name}.npz") for name in ("hopper-medium", about["steps"]))
    assert all((medium[name] == snapshot[name]).all() for name in medium.files)


def test_medium_expert_is_both_halves(trained):
    arrays = [read(trained / f"hopper-{kind}-rebuilt.hdf5")[0] for kind in ("medium", "expert", "medium-expert")]
    for name in ("observations", "actions", "rewards"):
        medium, expert, both = (x[name] for x in arrays)
        assert (both[:350] == medium[:350]).all() and (both[350:] == expert[:350]).all()


@pytest.mark.parametrize(
    "later, medium",
    [
        (
            [[100, -90.0], [200, 40.0], [300, 11.0], [400, 610.0]],
            200,
        ),  # first beyond 10, and nearer than what came before
        ([[100, -90.0], [200, 0.0], [300, 300.0], [400, 610.0], [500, 10.0]], 200),  # the one before is nearer
        ([[100, 610.0], [200, 10.0]], 100),
        ([[100, -300.0], [200, -310.0]], 100),  # nothing learned
    ],
)
def test_choice_of_policies_by_hand(later, medium):
    """Best 610, random -290: a third of the way is 10. A collapse later on is no medium."""
    training = make_dataset.Training.__new__(make_dataset.Training)
    training.history = [[0, -290.0], *later]
    assert training.choose() == {"medium": medium, "expert": max(later, key=lambda row: row[1])[0]}


def test_episodes_come_in_their_order_however_many_environments_there_are():
    actor = make_dataset.random_policy("Hopper-v4", 0)
    one, many = ([*islice(make_dataset.episodes(actor, "Hopper-v4", (3,), False, num_envs), 12)] for num_envs in (1, 8))
    assert len({len(episode["rewards"]) for episode in one}) > 5
    for a, b in zip(one, many):
        assert_close(a["observations"], b["observations"], rtol=1e-3, atol=1e-3)


def test_density_of_a_sample():
    space = gym.spaces.Box(np.float32([-2, 0]), np.float32([2, 1]))
    actor, obs, noise = make_dataset.Actor(space, 3, 8), torch.randn(5, 3), torch.randn(5, 2)
    action, log_prob = actor.sample(obs, noise)
    mean, log_std = actor(obs)
    transforms = [torch.distributions.TanhTransform(), torch.distributions.AffineTransform(actor.middle, actor.reach)]
    law = torch.distributions.TransformedDistribution(torch.distributions.Normal(mean, log_std.exp()), transforms)
    assert_close(log_prob, law.log_prob(action).sum(-1), rtol=1e-3, atol=1e-3)


class Aim(gym.Env):
    """One step an episode; the best action is 1 in a range from -2 to 2, and the worst costs 9."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Box(-2, 2, (1,))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), -float((action[0] - 1) ** 2), True, False, {}


gym.register("Aim-v0", Aim, max_episode_steps=1)
gym.register("Endless-v0", Aim)


def test_sac_learns(tmp_path):
    sizes = {"train_steps": 900, "learning_starts": 200, "eval_every": 900, "eval_episodes": 50}
    training = make_dataset.Training(Args(env="Aim-v0", **sizes), tmp_path)
    training.run()
    (_, before), (_, after) = training.history
    assert before < -1.5 and after > -0.4
    assert training.agent.log_alpha < 0  # less random than at first


def test_medium_is_a_third_of_expert(tmp_path):
    """Of the way from random, by the returns that the files' own rewards add up to."""
    sizes = {"steps": 1000, "train_steps": 900, "learning_starts": 200, "eval_every": 10, "eval_episodes": 100}
    make_dataset.main(Args(env="Aim-v0", folder=tmp_path, **sizes))
    mean = {}
    for kind in KINDS:
        arrays, _ = read(tmp_path / f"Aim-v0-{kind}-rebuilt.hdf5")
        mean[kind] = make_dataset.returns_of(arrays).mean()
    assert 0.15 < (mean["medium"] - mean["random"]) / (mean["expert"] - mean["random"]) < 0.55
    assert mean["medium-expert"] == pytest.approx((mean["medium"] + mean["expert"]) / 2, abs=0.1)


def test_sac_step_by_hand():
    """One parameter of each kind after one Adam step, whose size is the learning rate and whose sign the gradient's."""
    agent = make_dataset.SAC(gym.make("Aim-v0"), 0)
    batch = [torch.zeros(64, 1), torch.rand(64, 1), torch.zeros(64), torch.ones(64), torch.zeros(64, 1)]
    critics, targets = agent.critics.biases[-1].clone(), agent.target_critics.biases[-1].clone()
    q = agent.critics(batch[0], batch[1]).mean(1)
    agent.update(batch)
    moved = agent.critics.biases[-1] - critics
    assert_close(moved.flatten(), -3e-4 * q.sign(), rtol=1e-3, atol=1e-7)  # towards 0, the reward of a last step
    assert_close(agent.target_critics.biases[-1], targets + 0.005 * moved, rtol=0, atol=1e-8)
    assert agent.log_alpha.item() == pytest.approx(-3e-4, rel=1e-3)  # a wide policy: more entropy than -1


def test_sac_gradients_by_hand(monkeypatch):
    """Of every network, from the losses written a second time: soft target of the smaller target critic, soft policy
    gradient through the smaller critic (after its step)."""
    agent = make_dataset.SAC(gym.make("Hopper-v4"), 0)
    torch.manual_seed(0)
    obs, next_obs, action = torch.randn(8, 11), torch.randn(8, 11), torch.rand(8, 3) * 2 - 1
    reward, done, noise = torch.randn(8), (torch.arange(8) % 2).float(), torch.randn(2, 8, 3)
    monkeypatch.setattr(torch, "randn", lambda *_: noise)
    agent.log_alpha.data.fill_(-1.0)
    before = copy.deepcopy(agent)

    def policy(actor, x, z):
        mean, log_std = actor(x)
        u = mean + log_std.exp() * z
        density = torch.distributions.Normal(mean, log_std.exp()).log_prob(u) - (1 - u.tanh() ** 2).log()
        return u.tanh(), density.sum(-1)

    agent.update([obs, action, reward, done, next_obs])
    next_action, next_density = policy(before.actor, next_obs, noise[1])
    smaller = torch.minimum(*before.target_critics(next_obs, next_action))
    target = (reward + 0.99 * (1 - done) * (smaller - np.exp(-1) * next_density)).detach()
    sum(((q - target) ** 2).mean() for q in before.critics(obs, action)).backward()
    for mine, theirs in zip(agent.critics.parameters(), before.critics.parameters()):
        assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    new_action, density = policy(before.actor, obs, noise[0])
    (np.exp(-1) * density - torch.minimum(*agent.critics(obs, new_action))).mean().backward()
    for mine, theirs in zip(agent.actor.parameters(), before.actor.parameters()):
        assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    expected = -np.exp(-1) * (density.mean() - 3)  # target entropy: -A
    assert_close(agent.log_alpha.grad, expected.detach(), rtol=1e-3, atol=1e-5)


def test_a_killed_training_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch):
    sizes = {"train_steps": 500, "learning_starts": 150, "eval_every": 100, "eval_episodes": 1}
    args, update, calls = Args(env="Hopper-v4", **sizes), make_dataset.SAC.update, []
    whole = make_dataset.Training(args, tmp_path / "whole")
    whole.run()

    def interrupted(self, batch):
        calls.append(0)
        if len(calls) == 200:
            raise KeyboardInterrupt
        update(self, batch)

    monkeypatch.setattr(make_dataset.SAC, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_dataset.Training(args, tmp_path / "killed").run()
    torch.manual_seed(1)
    killed = make_dataset.Training(args, tmp_path / "killed")
    assert 0 < killed.step < 350
    killed.run()
    assert killed.history == whole.history
    for name in whole.buffer:
        assert (killed.buffer[name] == whole.buffer[name]).all()
    for mine, others in zip(killed.agent.critics.parameters(), whole.agent.critics.parameters()):
        assert (mine == others).all()
    with pytest.raises(InputError, match="another process trains there"):
        make_dataset.Training(args, tmp_path / "killed")
    killed.lock.close()
    with pytest.raises(InputError, match="eval_every 100 -> 50"):
        make_dataset.Training(Args(**vars(args) | {"eval_every": 50}), tmp_path / "killed")
    (tmp_path / "killed" / "checkpoint.pt").write_bytes(b"not one")
    with pytest.raises(InputError, match="without its folder a training begins again"):
        make_dataset.Training(args, tmp_path / "killed")


def test_cloned_set(tmp_path):
    """Half roll-outs, then the demonstrations, over and over; the clone acts like them."""
    demos = ROOT / "data" / "door-demo.hdf5"
    sizes = {"steps": 11_000, "clone_steps": 400}
    make_dataset.main(Args(env="AdroitHandDoor-v1", demos=demos, folder=tmp_path, **sizes))
    arrays, about = read(tmp_path / "door-cloned-rebuilt.hdf5")
    with h5py.File(demos) as file:
        for name in ("observations", "actions", "rewards", "terminals", "timeouts"):
            theirs = np.resize(file[name][()], (5500, *file[name].shape[1:]))
            assert (arrays[name][5500:-1] == theirs[:-1]).all()
    ends = arrays["terminals"] | arrays["timeouts"]
    following = arrays["next_observations"]
    assert (following[:-1] == arrays["observations"][1:])[~ends[:-1]].all()
    assert np.isfinite(following[:5500]).all() and np.isnan(following[5500:-1][ends[5500:-1]]).all()
    assert np.isfinite(arrays["infos/qpos"][:5500]).all() and np.isnan(arrays["infos/qpos"][5500:]).all()
    assert arrays["timeouts"][5499] and arrays["timeouts"][-1] and "door-demo.hdf5" in about["policy"]
    actor, read_demos = make_dataset.clone(Args(env="AdroitHandDoor-v1", demos=demos, clone_steps=400))
    obs, action = (torch.as_tensor(read_demos[name]) for name in ("observations", "actions"))
    with torch.no_grad():
        error = (actor.squash(actor(obs)[0]) - action).square().mean()
    assert error < 0.3 * action.var(0).mean()
    uwac.load_dataset(tmp_path / "door-cloned-rebuilt.hdf5", 39, 28, 200)
    env = make_dataset.make_env("AdroitHandDoor-v1").unwrapped

    def set_to(env, state):
        mujoco.mj_resetData(env.model, env.data)
        env.set_env_state(state)
        return env._get_obs()

    replay(env, arrays, [(i * 200, i * 200 + 199) for i in range(7)], set_to)


def test_policy_of_a_run(tmp_path):
    """The means of its actor's first seed, as that actor itself gives them."""
    actor, q1 = uwac.Actor(2, 39, 28), uwac.Critic(2, 39, 28)
    saved = {"actor": actor.state_dict(), "critic": q1.state_dict(), "dims": (2, 39, 28), "env_id": "door-human"}
    torch.save(saved | {"step": 7}, tmp_path / "policy.pt")
    args = {"policy": (str(tmp_path / "policy.pt"),), "folder": tmp_path, "steps": 250, "deterministic": True}
    assert make_dataset.main(Args(**args)) == [tmp_path / "door-policy-rebuilt.hdf5"]
    arrays, about = read(tmp_path / "door-policy-rebuilt.hdf5")
    with torch.no_grad():
        mean, _ = actor(torch.as_tensor(arrays["observations"]).expand(2, -1, -1))
    assert_close(torch.as_tensor(arrays["actions"]), mean[0].tanh(), rtol=1e-4, atol=1e-5)
    assert about["policy"] == f"means of policy ({tmp_path / 'policy.pt'})" and list(
        np.flatnonzero(arrays["timeouts"])
    ) == [199, 249]


def test_pen_ends_where_it_falls_and_after_100_steps(tmp_path):
    make_dataset.main(Args(policy=("pen-random",), folder=tmp_path, steps=600))
    arrays, _ = read(tmp_path / "pen-random-rebuilt.hdf5")
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"])
    assert arrays["terminals"].any() and np.diff(ends, prepend=-1).max() <= 100


class Hostile:
    """Makes a file when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("executed"),)


@pytest.mark.parametrize(
    "words, message",
    [
        ("", "say what to make"),
        ("--policy hopper-random --demos x", "say what to make"),
        ("--env Hoper-v4", "--env Hoper-v4: no such environment"),
        ("--env CartPole-v1", "its actions are Discrete"),
        ("--env CartPole-v1 --policy random", "its actions are Discrete"),
        ("--env Endless-v0", "have no limit of steps"),
        ("--env Hopper-v4 --policy FILE", "does not fit Hopper-v4 (another task)"),
        ("--env Pendulum-v1 --policy FILE", "does not fit Pendulum-v1 (it takes 17 numbers and gives 6, not 3 and 1)"),
        ("--env Walker2d-v4 --policy FILE", "does not fit Walker2d-v4 (another task)"),
        ("--env Walker2d-v4 --policy hopper-random", "made for Hopper-v4, not for Walker2d-v4"),
        ("--policy hopper", "not a policy"),
        ("--policy imports.npz", "would import a module"),
        ("--policy hopper-random --steps 0", "--steps 0: must be from 2"),
        ("--env Hopper-v4 --eval-every 0", "--eval-every 0: must be from 1"),
        ("--policy hopper-random --seed -1", "--seed -1: must be from 0"),
        ("--policy nowhere.npz", "not a policy (shipped: TASK-random"),
        ("--policy pickle.npz", "not a policy"),
        ("--policy hopper-random --folder /proc/no", "--folder /proc/no: cannot be written"),
        ("--policy walker2d-random", "walker2d-random-rebuilt.hdf5 exists; --overwrite replaces it"),
        ("--env Hopper-v4 --minari-id rebuilt/b-v0", "needs KIND in it"),
        ("--policy hopper-random --minari-id D4RL/hopper/random-v0", "must be rebuilt/TASK/KIND-v0"),
        ("--policy hopper-random --minari-id rebuilt/hopper", "must be rebuilt/TASK/KIND-v0"),
        ("--policy hopper-random --minari-id rebuilt/there-v0", "rebuilt/there-v0: exists"),
        ("--env AdroitHandDoor-v1 --demos nan.hdf5", "actions is empty, or has NaN"),
        ("--env AdroitHandDoor-v1 --demos walker2d-random-rebuilt.hdf5", "not demonstrations in D4RL's format for"),
        ("--env AdroitHandDoor-v1 --demos nowhere.hdf5", "not demonstrations in D4RL's format for"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(words, message, tmp_path, monkeypatch, capsys):
    make_dataset.random_policy("HalfCheetah-v4", 0).save(tmp_path / "FILE.npz", "HalfCheetah-v4")
    np.savez(tmp_path / "pickle.npz", env="Hopper-v4", w0=np.array([Hostile()], object), b0=np.zeros(1))
    np.savez(tmp_path / "imports.npz", env="this:Hopper-v4", w0=np.zeros((6, 11)), b0=np.zeros(6))
    (tmp_path / "walker2d-random-rebuilt.hdf5").write_bytes(b"mine")
    with h5py.File(tmp_path / "nan.hdf5", "w") as file:
        sizes = {"observations": (3, 39), "actions": (3, 28), "rewards": 3, "terminals": 3, "timeouts": 3}
        file.update({name: np.full(size, np.nan if name == "actions" else 0.0) for name, size in sizes.items()})
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    (tmp_path / "minari" / "rebuilt" / "there-v0").mkdir(parents=True)
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    words = words.replace("FILE", "FILE.npz") + ("" if "--folder" in words else " --folder .")
    words += "" if "--steps" in words else " --steps 300"
    assert command_line(make_dataset, words, monkeypatch) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line
    assert sorted(tmp_path.iterdir()) == before and "this" not in sys.modules
    assert (tmp_path / "walker2d-random-rebuilt.hdf5").read_bytes() == b"mine"


def test_a_set_that_cannot_be_finished_leaves_nothing(tmp_path, monkeypatch):
    def full(file, *rest):
        file.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(make_dataset, "write_set", full)
    with pytest.raises(OSError):
        make_dataset.main(Args(policy=("hopper-random",), folder=tmp_path, steps=100))
    assert not any(tmp_path.iterdir())


def test_overwrite(tmp_path):
    (tmp_path / "hopper-random-rebuilt.hdf5").write_bytes(b"old")
    make_dataset.main(Args(policy=("hopper-random",), folder=tmp_path, steps=100, overwrite=True))
    assert read(tmp_path / "hopper-random-rebuilt.hdf5")[1]["steps"] == 100


def test_minari_set(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    name = "rebuilt/hopper/KIND-v0"
    make_dataset.main(Args(policy=("hopper-random",), folder=tmp_path, steps=300, minari_id=name))
    ours = uwac.load_dataset(tmp_path / "hopper-random-rebuilt.hdf5", 11, 3, 1000)
    minaris = uwac.load_dataset("rebuilt/hopper/random-v0", 11, 3, 1000)
    args = uwac.Args(env_id="rebuilt/hopper/random-v0")
    assert uwac.dataset_origin(args.env_id, args) == {"origin": "rebuilt"}
    args.env_id = "D4RL/door/human-v2"
    assert uwac.dataset_origin(args.env_id, args) == {"origin": "Minari"}
    assert all((ours[name] == minaris[name]).all() for name in ours)


@pytest.fixture()
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    make_dataset.main(Args(policy=("hopper-random",), folder=tmp_path, steps=300))
    return tmp_path


SHORT = {"total_steps": 1, "eval_episodes": 1, "eval_candidates": 1, "batch_size": 8}


def test_a_rebuilt_set_is_found_and_called_so(cache, script, capsys):
    result = script.main(script.Args(env_id="hopper-random", **SHORT))
    assert result["data"]["origin"] == "rebuilt" and result["data"]["policy"] == "samples of random (hopper-random)"
    assert "hopper-random-rebuilt.hdf5 (rebuilt)" in capsys.readouterr().out
    saved = json.loads(next(cache.glob("runs/*/result.json")).read_text())
    assert saved["data"] == result["data"]


def test_a_rebuilt_set_is_never_taken_for_d4rls(cache, script):
    rebuilt = cache / "hopper-random-rebuilt.hdf5"
    assert script.find_dataset("hopper-random", None)[0] == rebuilt
    for name in ("hopper-random-v0", "hopper-random-v2"):  # these are D4RL's, so they are downloaded
        shutil.copy(rebuilt, cache / f"{name}-rebuilt.hdf5")
        assert script.find_dataset(name, None)[0].name == Path(script.task_files()[name]).name
    shutil.copy(rebuilt, cache / "hopper_random.hdf5")  # D4RL's own goes first, if it is that
    source, _ = script.find_dataset("hopper-random", None)
    assert source == cache / "hopper_random.hdf5"
    args = script.Args(env_id="hopper-random")
    assert script.dataset_origin(source, args)["origin"] == "rebuilt"
    with h5py.File(source, "r+") as file:
        file["metadata"].attrs["origin"] = "D4RL"  # does not help
    assert script.dataset_origin(source, args)["origin"] == "rebuilt"
    with h5py.File(source, "r+") as file:
        del file["metadata"]
    assert script.dataset_origin(source, args) == {"origin": "D4RL"}
    args.dataset_path = str(source)
    assert script.dataset_origin(source, args) == {"origin": "--dataset-path"}
    with pytest.raises(script.InputError, match="made in Hopper-v4, while --env-id walker2d-random is Walker2d-v4"):
        script.dataset_origin(rebuilt, script.Args(env_id="walker2d-random"))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_policies(file):
    """Small, of plain numbers, and about as good as their table in benchmark/README.md says."""
    assert file.stat().st_size < 400_000
    actor, env_id = make_dataset.load_policy(file.stem, None, 0)
    assert make_dataset.TASKS[env_id] == file.stem.split("-")[0]
    rows = [line.split("|") for line in (ROOT / "benchmark" / "README.md").read_text().splitlines()]
    row = next(row for row in rows if len(row) > 3 and row[1].strip() == f"`{file.stem}`")
    returns = [ep["rewards"].sum() for ep in islice(make_dataset.episodes(actor, env_id, (1,), False), 6)]
    assert np.mean(returns) == pytest.approx(float(row[2].split("±")[0].replace(",", "")), rel=0.35)
