"""d4rl.download: a local server plays D4RL's and the mirror, with their faults."""

import hashlib
import http.server
import threading
import time

import pytest
from conftest import ROOT

import d4rl

DEMO = (ROOT / "d4rl" / "door-demo.hdf5").read_bytes()
SHA256 = hashlib.sha256(DEMO).hexdigest()
FILE = "hand_dapg/door-v0_demos_clipped.hdf5"
NAME = "door-v0_demos_clipped.hdf5"
FAULTS = {
    "404": "404",
    "stalls": "ConnectionError",
    "cut": "ChunkedEncodingError",
    "wrong": "wrong SHA-256",
}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        kind = self.path.split("/")[1]
        self.server.asked.append(self.path)
        self.send_response(404 if kind == "404" else 200)
        self.send_header("Content-Length", str(len(DEMO)))
        self.end_headers()
        self.wfile.write(bytes(1000) if kind == "wrong" else DEMO[:1000])
        if kind == "stalls":
            time.sleep(2)
        if kind != "cut":
            self.wfile.write(DEMO[1000:])

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Has the demo as every file, which is right for door-human. Nothing is shipped."""
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    monkeypatch.setattr(d4rl, "HERE", tmp_path)
    monkeypatch.setattr(d4rl, "SERVER_TIMEOUT", 1)
    monkeypatch.setitem(d4rl.DATASETS, "door-human-v0", (FILE, SHA256))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.handle_error = lambda *error: None  # where a client was killed
        server.asked = []
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        yield server
        server.shutdown()


def play(server, monkeypatch, of_d4rl, of_mirror):
    """D4RL's server and the mirror answer as these kinds say."""
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(d4rl, "SERVER", f"{address}/{of_d4rl}/d4rl/")
    monkeypatch.setattr(d4rl, "MIRROR", f"{address}/{of_mirror}/mirror/")


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(server, tmp_path, monkeypatch, fault):
    """Where neither has the file, two lines say why and what to do; else the mirror has it."""
    play(server, monkeypatch, fault, fault)
    host = f"127.0.0.1:{server.server_port}"
    with pytest.raises(OSError) as error:
        d4rl.download("door-human")
    why = f"{host}: {FAULTS[fault]}"
    put = f"Put {NAME}, or a substitute as door-human-rebuilt.hdf5, into {tmp_path}"
    lines = [f"door-human: no {NAME} ({why}, {why}).", f"{put} (D4RL_DATASET_DIR)."]
    assert str(error.value).splitlines() == lines
    assert list(tmp_path.iterdir()) == []
    play(server, monkeypatch, fault, "200")
    path = d4rl.download("door-human")
    assert path.read_bytes() == DEMO and list(tmp_path.iterdir()) == [path]


def test_without_a_checksum_only_d4rls_server_is_asked(server, tmp_path, monkeypatch):
    """What is not HDF5 is not kept."""
    play(server, monkeypatch, "wrong", "200")
    with pytest.raises(OSError, match="not HDF5"):
        d4rl.download("relocate-human")
    assert len(server.asked) == 1 and list(tmp_path.iterdir()) == []


def test_where_a_file_is_looked_for(server, tmp_path, monkeypatch, capsys):
    """From the last place to the first: shipped, the server, the user's substitute, the cache."""
    shipped = tmp_path / "door-human-rebuilt.hdf5"
    shipped.write_bytes(DEMO)
    cache = tmp_path / ".d4rl" / "datasets"
    monkeypatch.delenv("D4RL_DATASET_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    play(server, monkeypatch, "404", "404")
    for env_id in ("door-human", "door-human-longhorizon"):
        assert d4rl.download(env_id) == shipped
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith(f"{env_id}: no door-v0_") and line.endswith(f"instead: {shipped}")
    server.asked.clear()
    play(server, monkeypatch, "200", "200")
    for env_id in ("door-human", "door-human-v0"):
        assert d4rl.download(env_id) == cache / NAME
    assert server.asked == [f"/200/d4rl/{FILE}"]
    assert d4rl.describe(cache / NAME)["d4rl"] is True
    (cache / NAME).unlink()
    rebuilt = cache / "door-human-rebuilt.hdf5"
    rebuilt.write_bytes(DEMO + b"x")
    assert d4rl.download("door-human") == rebuilt
    for path, env_id in ((cache / NAME, "door-human"), (tmp_path / d4rl.DEMO, "door-demo")):
        path.write_bytes(DEMO)
        assert d4rl.download(env_id) == path
        path.write_bytes(DEMO + b"x")
        with pytest.raises(ValueError, match=f"^{path}: not D4RL's file .*; move it away$"):
            d4rl.download(env_id)
    with pytest.raises(ValueError, match="^door: no data of it; give --dataset-path. Sets: "):
        d4rl.download("door")
    assert len(server.asked) == 1 and capsys.readouterr().out == ""
    monkeypatch.setenv("D4RL_DATASET_DIR", str(rebuilt))
    with pytest.raises(OSError, match=r"Not a directory.*\n.*rebuilt.hdf5 \(D4RL_DATASET_DIR\)"):
        d4rl.download("hammer-human")
