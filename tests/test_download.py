"""Data sets that arrive over a network, from a real server with a server's faults."""

import http.server
import threading

import pytest
from conftest import ROOT

DEMO = (ROOT / "data" / "door-demo.hdf5").read_bytes()
FILE = "hand_dapg/door-v0_demos_clipped.hdf5"
FAULTS = [("missing", "404"), ("cut", "IncompleteRead"), ("html", "not an HDF5 file")]


class Handler(http.server.BaseHTTPRequestHandler):
    """GET /good/... and its misbehaving kin."""

    def do_GET(self):
        kind = self.path.split("/")[1]
        data = b"<html>Please sign in</html>" if kind == "html" else DEMO
        self.send_response(404 if kind == "missing" else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if kind == "cut" else data)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_file_is_downloaded_once(script, server, cache, monkeypatch):
    """By D4RL's name for it; nothing but the file is left."""
    for kind in ("good", "missing"):
        monkeypatch.setattr(script, "D4RL", f"{server}/{kind}/")
        path = script.find_dataset("door-human")
        assert path == cache / "door-v0_demos_clipped.hdf5"
    assert path.read_bytes() == DEMO
    assert list(cache.iterdir()) == [path]


@pytest.mark.parametrize("kind, says", FAULTS)
def test_what_does_not_arrive(script, server, cache, monkeypatch, kind, says):
    """One line names address, folder and what needs no network; nothing is left."""
    monkeypatch.setattr(script, "D4RL", f"{server}/{kind}/")
    with pytest.raises(script.InputError, match=says) as error:
        script.find_dataset("door-human")
    message = str(error.value)
    assert f"{server}/{kind}/{FILE} cannot be fetched into {cache}" in message
    assert "door-demo needs no download" in message and "\n" not in message
    assert list(cache.iterdir()) == []
