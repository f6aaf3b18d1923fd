"""Data sets that arrive over a network: from a real server, which does all that servers do."""

import http.server
import multiprocessing
import socketserver
import threading
import time
from pathlib import Path

import pooch
import pytest

import bear

DEMO = Path(bear.__file__).parent / "data" / "door-demo.hdf5"
FOLDER = "hand_dapg"
NAME = "door-v0_demos_clipped.hdf5"


class Server(http.server.BaseHTTPRequestHandler):
    """GET /good/... and its misbehaving kin."""

    def do_GET(self):
        data, kind = DEMO.read_bytes(), self.path.split("/")[1]
        self.server.asked.append(self.path)
        if kind == "missing":
            return self.send_error(404)
        if kind == "html":
            data = b"<html><body>Please sign in to the wireless network</body></html>"
        self.send_response(200)
        if kind != "unannounced":  # a connection that is closed early is then no error for HTTP
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if kind in ("cut", "unannounced"):
            data = data[: len(data) // 2]
        if kind == "stalled":
            self.wfile.write(data[:1000])
            self.server.waiting.wait(20)
        elif kind == "slow":
            for i in range(0, len(data), len(data) // 20):
                self.wfile.write(data[i : i + len(data) // 20])
                time.sleep(0.02)
        else:
            self.wfile.write(data)

    def log_message(self, *args):
        pass


class Threads(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

    def handle_error(self, *args):
        pass  # of connections that the other side has given up


@pytest.fixture
def server():
    server = Threads(("127.0.0.1", 0), Server)
    server.asked, server.waiting = [], threading.Event()
    server.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.waiting.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_file_is_downloaded_once(script, server, cache, monkeypatch, capsys):
    """By D4RL's name for it; nothing but the file is left, and no bar in a redirected log."""
    monkeypatch.setattr(script, "D4RL", f"{server.address}/good/")
    for _ in range(2):
        assert script.find_dataset("door-human", None) == cache / NAME
    assert server.asked == [f"/good/{FOLDER}/{NAME}"]
    assert (cache / NAME).read_bytes() == DEMO.read_bytes()
    assert [path.name for path in cache.iterdir()] == [NAME]
    assert capsys.readouterr() == ("", "")


def test_the_address_is_d4rls(script):
    assert script.D4RL == "http://rail.eecs.berkeley.edu/datasets/offline_rl/"


@pytest.mark.parametrize(
    "kind, says",
    [
        ("missing", "404"),
        ("cut", "IncompleteRead"),
        ("unannounced", "not an HDF5 file"),
        ("html", "not an HDF5 file"),
        ("stalled", "timed out"),
    ],
)
def test_what_does_not_arrive(script, server, cache, monkeypatch, kind, says):
    """One line names address, folder and what needs no network; what was there stays, alone."""
    monkeypatch.setattr(pooch.downloaders, "DEFAULT_TIMEOUT", 0.5)
    monkeypatch.setattr(script, "D4RL", f"{server.address}/{kind}/")
    cache.mkdir()
    (cache / "other.hdf5").touch()
    with pytest.raises(script.InputError, match=says) as error:
        script.find_dataset("door-human", None)
    message = str(error.value)
    assert f"{server.address}/{kind}/{FOLDER}/{NAME}" in message and str(cache) in message
    assert "--env-id door-demo" in message and "\n" not in message
    assert [path.name for path in cache.iterdir()] == ["other.hdf5"]


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/x/", "nonsense://x/", "x/"])
def test_no_server_at_all(script, cache, monkeypatch, address):
    monkeypatch.setattr(script, "D4RL", address)
    with pytest.raises(script.InputError, match=f"{address}{FOLDER}/{NAME} .*door-demo") as error:
        script.find_dataset("door-human", None)
    assert "\n" not in str(error.value)


def test_a_cache_folder_that_cannot_be(script, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(script.InputError, match="cannot be fetched into .*file/cache"):
        script.find_dataset("door-human", None)


def test_two_processes_at_once(script, server, cache, monkeypatch):
    """Both begin without the file and end with one good file and no rest."""
    monkeypatch.setattr(script, "D4RL", f"{server.address}/slow/")
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=script.find_dataset, args=("door-human", None)) for _ in "ab"]
    for process in both:
        process.start()
    for process in both:
        process.join()
        assert process.exitcode == 0
    assert len(server.asked) == 2
    assert [path.name for path in cache.iterdir()] == [NAME]
    assert (cache / NAME).read_bytes() == DEMO.read_bytes()
