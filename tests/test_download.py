"""d4rl.download: a local server plays D4RL's and the mirror, with their faults."""

import hashlib
import http.server
import subprocess
import sys
import threading
import time

import pytest
from conftest import ROOT

import d4rl

DEMO = (ROOT / "d4rl" / "door-demo.hdf5").read_bytes()
SHA256 = hashlib.sha256(DEMO).hexdigest()
FILE = "hand_dapg/door-v0_demos_clipped.hdf5"
NAME = "door-v0_demos_clipped.hdf5"
SECONDS = 60  # that a test waits for a process
FAULTS = {
    "404": "404 Client Error",
    "stalls": "Read timed out",
    "cut": "IncompleteRead",
    "wrong": "does not match the known hash",
}


class Handler(http.server.BaseHTTPRequestHandler):
    """GET /KIND/... answers as KIND says."""

    def do_GET(self):
        kind = self.path.split("/")[1]
        self.server.asked.append(self.path)
        self.send_response(404 if kind == "404" else 200)
        self.send_header("Content-Length", str(len(DEMO)))
        self.end_headers()
        self.wfile.write(bytes(1000) if kind == "wrong" else DEMO[:1000])
        if kind == "stalls":
            self.server.stalling.set()
            time.sleep(SECONDS)
        if kind == "together":
            self.server.two.wait(SECONDS)
        if kind != "cut":
            self.wfile.write(DEMO[1000:])

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Has the demo as every file, which is right for door-human. tmp_path is the cache folder."""
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    monkeypatch.setattr(d4rl, "SERVER_TIMEOUT", 1)
    monkeypatch.setitem(d4rl.DATASETS, "door-human-v0", (FILE, SHA256))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.handle_error = lambda *error: None  # where a client was killed
        server.asked = []
        server.two = threading.Barrier(2)
        server.stalling = threading.Event()
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        yield server
        server.shutdown()


def play(server, monkeypatch, of_d4rl, of_mirror):
    """D4RL's server and the mirror answer as these kinds say."""
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(d4rl, "SERVER", f"{address}/{of_d4rl}/d4rl/")
    monkeypatch.setattr(d4rl, "MIRROR", f"{address}/{of_mirror}/mirror/")


def test_d4rls_server_is_asked_first_and_once(server, tmp_path, monkeypatch):
    play(server, monkeypatch, "200", "200")
    path = tmp_path / NAME
    assert [d4rl.download("door-human"), d4rl.download("door-human-v0")] == [path, path]
    assert path.read_bytes() == DEMO and list(tmp_path.iterdir()) == [path]
    assert server.asked == [f"/200/d4rl/{FILE}"]
    assert d4rl.describe(path)["d4rl"] is True


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(server, tmp_path, monkeypatch, fault):
    """Where neither has the file, an error says why and what to do, and nothing is left; else the
    mirror has it."""
    play(server, monkeypatch, fault, fault)
    problem = f"^{NAME} could not be downloaded: put it into {tmp_path} "
    problem += f".* {d4rl.SERVER}{FILE}: .*{FAULTS[fault]}.* {d4rl.MIRROR}{NAME}: .*{FAULTS[fault]}"
    with pytest.raises(OSError, match=problem):
        d4rl.download("door-human")
    assert list(tmp_path.iterdir()) == []
    play(server, monkeypatch, fault, "200")
    path = d4rl.download("door-human")
    assert path.read_bytes() == DEMO and list(tmp_path.iterdir()) == [path]


def test_without_a_checksum_only_d4rls_server_is_asked(server, tmp_path, monkeypatch):
    """For relocate. What is not HDF5 is not kept."""
    play(server, monkeypatch, "wrong", "200")
    with pytest.raises(OSError, match="not HDF5"):
        d4rl.download("relocate-human")
    assert len(server.asked) == 1 and list(tmp_path.iterdir()) == []


def test_where_a_file_is_looked_for(server, tmp_path, monkeypatch):
    """From the last place to the first. A wrong file is refused in all but a substitute's, and a
    cache folder that cannot be written is told."""
    play(server, monkeypatch, "200", "200")
    monkeypatch.delenv("D4RL_DATASET_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(d4rl, "HERE", tmp_path)
    cache = tmp_path / ".d4rl" / "datasets"
    cache.mkdir(parents=True)
    rebuilt = cache / "door-human-rebuilt.hdf5"
    rebuilt.write_bytes(DEMO + b"x")
    assert d4rl.download("door-human") == rebuilt
    for path, env_id in ((cache / NAME, "door-human"), (tmp_path / d4rl.DEMO, "door-demo")):
        path.write_bytes(DEMO)
        assert d4rl.download(env_id) == path
        path.write_bytes(DEMO + b"x")
        with pytest.raises(ValueError, match=f"^{path}: not D4RL's file .*--dataset-path"):
            d4rl.download(env_id)
    with pytest.raises(ValueError, match="^antmaze-umaze-v0: no data of it here; .*--dataset-path"):
        d4rl.download("antmaze-umaze-v0")
    monkeypatch.setenv("D4RL_DATASET_DIR", str(rebuilt))
    with pytest.raises(OSError, match=r"rebuilt.hdf5 \(D4RL_DATASET_DIR\), .*Not a directory"):
        d4rl.download("door-human")
    assert server.asked == []


def process(server, kind):
    program = f"""
import d4rl
d4rl.SERVER = "http://127.0.0.1:{server.server_port}/{kind}/"
d4rl.DATASETS["door-human-v0"] = ("{FILE}", "{SHA256}")
d4rl.download("door-human")
"""
    return subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)


def test_two_runs_at_once_and_one_that_is_killed(server, tmp_path):
    """Half a file is never taken for the file; two that fetch it at once leave a good one."""
    path = tmp_path / NAME
    killed = process(server, "stalls")
    assert server.stalling.wait(SECONDS)
    killed.kill()
    killed.wait()
    assert not path.exists()
    both = [process(server, "together") for _ in range(2)]  # each waits for the other
    assert [run.wait(SECONDS) for run in both] == [0, 0]
    assert path.read_bytes() == DEMO and d4rl.download("door-human") == path
    assert len(server.asked) == 3
