"""Downloads: local servers play D4RL's and the mirror, with their faults."""

import hashlib
import http.server
import multiprocessing
import runpy
import shutil
import socket
import threading
import time

import pytest
from conftest import ROOT

DEMO = (ROOT / "data" / "door-demo.hdf5").read_bytes()
SHA256 = hashlib.sha256(DEMO).hexdigest()
NAME = "door-v0_demos_clipped.hdf5"
FAULTS = {
    "403": "403 Client Error",
    "404": "404 Client Error",
    "refused": "Connection refused",
    "silent": "read timeout=0.5",
    "cut": "IncompleteRead",
    "wrong": "does not match the known hash",
}


class Handler(http.server.BaseHTTPRequestHandler):
    """GET /KIND/... answers as KIND says."""

    def do_GET(self):
        kind = self.path.split("/")[1]
        self.server.asked.append(self.path)
        if kind == "silent":
            self.server.closing.wait(30)
            return
        self.send_response(int(kind) if kind.isdigit() else 200)
        self.send_header("Content-Length", str(len(DEMO)))
        self.end_headers()
        first, second = DEMO[: len(DEMO) // 2], DEMO[len(DEMO) // 2 :]
        self.wfile.write(first)
        if kind == "stalls":
            self.server.closing.wait(30)
        if kind == "slow":
            time.sleep(0.3)  # so that two downloads overlap
        if kind != "cut":
            self.wfile.write(bytes(len(second)) if kind == "wrong" else second)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(script, tmp_path, monkeypatch):
    """A server, an empty cache folder, and the checksum of what the server has for door-human."""
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(script, "SECONDS", 0.5)
    monkeypatch.setattr(script, "d4rl_checksum", {NAME: SHA256}.get)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.asked, server.closing = [], threading.Event()
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        yield server
        server.closing.set()
        server.shutdown()


def play(script, server, monkeypatch, d4rl, mirror="404"):
    """D4RL's server and the mirror answer as these kinds say."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        ports = {"refused": unused.getsockname()[1]}
    for name, kind in (("D4RL", d4rl), ("MIRROR", mirror)):
        port = ports.get(kind, server.server_port)
        monkeypatch.setattr(script, name, f"http://127.0.0.1:{port}/{kind}/{name}/")


@pytest.mark.parametrize("fault", FAULTS)
def test_the_mirror_has_what_d4rl_does_not_give(script, server, tmp_path, monkeypatch, fault):
    """Kept under D4RL's name, and nothing else is left; the next call asks nobody."""
    play(script, server, monkeypatch, fault, "200")
    path = tmp_path / "cache" / NAME
    assert script.find_dataset("door-human") == path
    asked = len(server.asked)
    assert script.find_dataset("door-human") == path and len(server.asked) == asked
    assert path.read_bytes() == DEMO and list(path.parent.iterdir()) == [path]
    assert script.read_file(path)[1]["d4rl"] is True


@pytest.mark.parametrize("fault", FAULTS)
def test_neither_has_it(script, server, tmp_path, monkeypatch, fault):
    """One line: what each said, the folder to put the file into, what needs no download."""
    for d4rl, mirror in (("403", fault), (fault, "cut")):
        play(script, server, monkeypatch, d4rl, mirror)
        with pytest.raises(script.InputError) as error:
            script.find_dataset("door-human")
        message = str(error.value)
        assert message.startswith(f"{NAME} cannot be had: put it into {tmp_path / 'cache'} by hand")
        assert "--env-id door-demo" in message and "\n" not in message
        assert FAULTS[d4rl] in message and FAULTS[mirror] in message
        assert list((tmp_path / "cache").iterdir()) == []
    monkeypatch.setattr(script, "d4rl_checksum", lambda name: None)
    with pytest.raises(script.InputError, match="benchmark/make_dataset.py --policy hopper-medium"):
        script.find_dataset("hopper-expert-v2")


def test_without_a_checksum_the_mirror_is_not_asked(script, server, tmp_path, monkeypatch):
    """relocate's files, and those of a script that was copied alone."""
    shutil.copy(script.__file__, tmp_path)
    alone = runpy.run_path(str(tmp_path / f"{script.__name__}.py"))
    assert alone["d4rl_checksum"](NAME) is None
    relocate = "relocate-v0_demos_clipped.hdf5"
    play(script, server, monkeypatch, "404", "200")
    with pytest.raises(script.InputError, match="404"):
        script.find_dataset("relocate-human")
    assert not any("MIRROR" in path for path in server.asked)
    play(script, server, monkeypatch, "200", "200")
    path = script.find_dataset("relocate-human")
    assert path.name == relocate and script.read_file(path)[1]["d4rl"] is False


def test_d4rls_checksums():
    """In the form of sha256sum: of all files of the tasks but relocate's."""
    import uwac

    names = {file.rpartition("/")[2] for file in uwac.task_files().values()}
    unknown = {name for name in names if uwac.d4rl_checksum(name) is None}
    assert len(names) == 70 and len(unknown) == 7
    assert unknown == {name for name in names if name.startswith(("relocate", "door-demo."))}
    assert uwac.d4rl_checksum("hopper_expert-v2.hdf5").startswith("01aa219a5f8eea5e")


def test_a_wrong_file_in_the_cache(script, server, tmp_path, monkeypatch):
    """Is refused with the way to train on it, which then is not called D4RL's."""
    path = tmp_path / "cache" / NAME
    path.parent.mkdir()
    path.write_bytes(DEMO + b"x")
    with pytest.raises(script.InputError, match=f"{NAME}: not D4RL's .* --dataset-path {path}"):
        script.find_dataset("door-human")
    assert script.read_file(path)[1]["d4rl"] is False and server.asked == []


def in_a_process(script):
    process = multiprocessing.get_context("fork").Process(
        target=script.find_dataset, args=("door-human",)
    )
    process.start()
    return process


def test_two_runs_at_once_and_one_that_is_killed(script, server, tmp_path, monkeypatch):
    """Half a file is never taken for the file; two that fetch it at once leave a good one."""
    monkeypatch.setattr(script, "SECONDS", 30)
    path = tmp_path / "cache" / NAME
    play(script, server, monkeypatch, "stalls")
    killed = in_a_process(script)
    while not (tmp_path / "cache").exists() or not server.asked:
        time.sleep(0.02)
    killed.kill()
    killed.join()
    assert not path.exists()
    play(script, server, monkeypatch, "slow")
    both = [in_a_process(script), in_a_process(script)]
    assert [process.join() or process.exitcode for process in both] == [0, 0]
    assert path.read_bytes() == DEMO and script.find_dataset("door-human") == path
