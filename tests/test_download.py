"""Data sets that arrive over a network: from a real server on this machine, which does all that servers do."""

import http.server
import re
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium as gym
import h5py
import numpy as np
import pooch
import pytest

import bear
import uwac

DEMO = Path(bear.__file__).parent / "data" / "door-demo.hdf5"
NAME = "door-v0_demos_clipped.hdf5"
WORDS = "--env-id door-human --total-steps 1 --eval-episodes 1 --eval-candidates 2 --batch-size 4"
PASSES = {bear: [], uwac: ["--passes", "2"]}


class Server(http.server.BaseHTTPRequestHandler):
    """GET /good and its misbehaving kin."""

    def do_GET(self):
        data, kind = DEMO.read_bytes(), self.path.split("/")[1]
        self.server.asked.append(self.path)
        if kind == "missing":
            return self.send_error(404)
        if kind == "moved":
            self.send_response(302)
            self.send_header("Location", f"/good/{NAME}")
            return self.end_headers()
        if kind == "html":
            data = b"<html><body>Please sign in to the wireless network</body></html>"
        self.send_response(200)
        if kind != "unannounced":  # a connection that is closed early is then no error for HTTP
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if kind in ("cut", "unannounced"):
            self.wfile.write(data[: len(data) // 2])
        elif kind == "stalled":
            self.wfile.write(data[:1000])
            self.server.waiting.wait(20)
        elif kind == "drip":
            for i in range(0, len(data), len(data) // 20):
                self.wfile.write(data[i : i + len(data) // 20])
                time.sleep(0.02)
        else:
            self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    class Threads(socketserver.ThreadingMixIn, http.server.HTTPServer):
        daemon_threads, asked, waiting = True, [], threading.Event()

        def handle_error(self, *args):
            pass  # of connections that the other side has given up

    server = Threads(("127.0.0.1", 0), Server)
    server.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.waiting.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fetch(script, address, cache):
    script.fetch_dataset(f"{address}/{NAME}", cache / NAME, 39, 28, 200)


@pytest.mark.parametrize("kind", ["good", "moved", "drip"])
def test_what_arrives_whole(script, server, cache, capsys, kind):
    """Also after a redirect, and slowly; nothing but the file is left, and no progress bar in a redirected log."""
    fetch(script, f"{server.address}/{kind}", cache)
    assert (cache / NAME).read_bytes() == DEMO.read_bytes()
    assert [path.name for path in cache.iterdir()] == [NAME]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "kind, says",
    [
        ("missing", "404"),
        ("cut", "IncompleteRead"),
        ("unannounced", "cannot be read"),
        ("html", "cannot be read"),
        ("stalled", "timed out"),
    ],
)
def test_what_does_not_arrive(script, server, cache, monkeypatch, kind, says):
    """One line that names address, folder and what needs no network; nothing is left, and what was there stays."""
    monkeypatch.setattr(pooch.downloaders, "DEFAULT_TIMEOUT", 0.5)
    cache.mkdir()
    (cache / "other.hdf5").touch()
    with pytest.raises(script.InputError, match=says) as error:
        fetch(script, f"{server.address}/{kind}", cache)
    message = str(error.value)
    assert f"{server.address}/{kind}/{NAME}" in message and str(cache) in message
    assert "--env-id door-demo" in message and "\n" not in message
    assert [path.name for path in cache.iterdir()] == ["other.hdf5"]


def test_a_file_of_another_task_does_not_count(script, server, cache):
    """A whole file, but not this environment's sizes."""
    with pytest.raises(script.InputError, match=r"observations has shape \(5000, 39\)"):
        script.fetch_dataset(f"{server.address}/good/{NAME}", cache / NAME, 45, 24, 100)
    assert not list(cache.iterdir())


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/x", "nonsense://x", "x"])
def test_no_server_at_all(script, cache, address):
    with pytest.raises(script.InputError, match=f"{address}/{NAME} .*door-demo") as error:
        fetch(script, address, cache)
    assert "\n" not in str(error.value)


def test_a_run_downloads_what_is_missing(script, server, cache):
    """The first run asks the server, the second finds the file; the result tells where it is."""
    words = [*WORDS.split(), "--dataset-url", f"{server.address}/good/{NAME}", *PASSES[script]]
    results = [script.main(script.parse_args(words, {})) for _ in range(2)]
    assert server.asked == [f"/good/{NAME}"]
    assert [result["dataset"] for result in results] == [str(cache / NAME)] * 2
    assert results[0]["transitions"] == 4975


def test_the_address_is_d4rls_unless_told(script, cache, monkeypatch):
    """By the rule of the file names, with what `find_dataset` says of the place."""
    asked = []
    monkeypatch.setattr(script, "fetch_dataset", lambda *args: asked.append(args) or (_ for _ in ()).throw(KeyError))
    for url, expected in ((None, f"http://rail.eecs.berkeley.edu/datasets/offline_rl/hand_dapg/{NAME}"), ("u", "u")):
        with pytest.raises(KeyError):
            script.main(script.Args(env_id="door-human", dataset_url=url))
        assert asked.pop() == (expected, cache / NAME, 39, 28, 200)


def test_two_processes_at_once(server, cache):
    """Both begin without the file and end with one good file and no rest."""
    words = [*WORDS.split(), "--dataset-url", f"{server.address}/drip/{NAME}"]
    commands = [[sys.executable, script.__file__, *words, *PASSES[script]] for script in (bear, uwac)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    for process in both:
        _, error = process.communicate()
        assert process.returncode == 0, error
    assert [path.name for path in cache.iterdir()] == [NAME]
    assert (cache / NAME).read_bytes() == DEMO.read_bytes()


# --- Minari


def random_episodes(minari, name, lengths, silent=False):
    """A Minari data set of hopper episodes under random actions, which fall or are truncated at the given lengths,
    `silent` without saying so."""
    buffers, rng = [], np.random.default_rng(0)
    env = gym.make("Hopper-v4")
    for seed, length in enumerate(lengths):
        steps, observations = [], [env.reset(seed=seed)[0]]
        while not steps or not any(steps[-1][2:]):
            action = rng.uniform(-1, 1, 3).astype(np.float32)
            obs, reward, terminated, _, _ = env.step(action)
            observations.append(obs)
            steps.append((action, reward, terminated, len(steps) == length - 1))
        actions, rewards, terminations, truncations = map(list, zip(*steps))
        arrays = {"observations": np.array(observations), "actions": np.array(actions), "rewards": rewards}
        ends = {"terminations": terminations, "truncations": [False] * len(rewards) if silent else truncations}
        buffers.append(minari.data_collector.EpisodeBuffer(id=seed, **arrays, **ends))
    return minari.create_dataset_from_buffers(name, buffers, env=env)


def test_minari_gives_the_transitions_of_the_same_hdf5_file(script, cache, monkeypatch):
    """Episodes that fall and episodes cut short, of one and of two steps among them."""
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(cache))
    random_episodes(minari, "test/hopper/random-v0", [1000, 3, 1000, 1, 1000, 2])
    episodes = list(minari.load_dataset("test/hopper/random-v0"))
    assert [bool(e.terminations[-1]) for e in episodes] == [True, False] * 3
    assert [bool(e.truncations[-1]) for e in episodes] == [False, True] * 3
    with h5py.File(cache / "same.hdf5", "w") as file:
        file["observations"] = np.concatenate([e.observations[:-1] for e in episodes])
        for name, attribute in (("actions", "actions"), ("rewards", "rewards"), ("terminals", "terminations")):
            file[name] = np.concatenate([getattr(e, attribute) for e in episodes])
        file["timeouts"] = np.concatenate([e.truncations for e in episodes])
    source, _ = script.find_dataset("test/hopper/random-v0", None)
    ours, theirs = (script.load_dataset(where, 11, 3, 1000) for where in (source, cache / "same.hdf5"))
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name].dtype == theirs[name].dtype == np.float32
        np.testing.assert_array_equal(ours[name], theirs[name])
    random_episodes(minari, "test/hopper/silent-v0", [1000, 3, 1000, 1, 1000, 2], silent=True)
    for name, array in script.load_dataset("test/hopper/silent-v0", 11, 3, 1000).items():
        np.testing.assert_array_equal(array, ours[name])
    assert ours["done"].sum() == 3 and len(ours["obs"]) == sum(len(e.rewards) for e in episodes) - 3
    args = script.parse_args([*WORDS.split(), "--env-id", "test/hopper/random-v0", *PASSES[script]], {})
    assert args.mmd_kernel == "laplacian"
    result = script.main(args)
    assert result["dataset"] == "test/hopper/random-v0" and result["transitions"] == len(ours["obs"])


def test_minari_that_cannot(script, cache, monkeypatch):
    """Not installed: how to install it. No such name, no such task: one line."""
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "minari", None)
        with pytest.raises(script.InputError, match=re.escape("pip install 'minari[hdf5,hf]'")):
            script.main(script.Args(env_id="D4RL/door/human-v2"))
    with pytest.raises(script.InputError, match="--env-id D4RL/antmaze/umaze-v1: no such task"):
        script.find_dataset("D4RL/antmaze/umaze-v1", None)
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(cache))
    with pytest.raises(script.InputError, match="--env-id test/door/none-v0") as error:
        script.load_dataset("test/door/none-v0", 39, 28, 200)
    assert "\n" not in str(error.value)
    random_episodes(minari, "test/door/hopper-v0", [5])
    with pytest.raises(script.InputError, match=r"observations has shape \(5, 11\)"):
        script.load_dataset("test/door/hopper-v0", 39, 28, 200)
