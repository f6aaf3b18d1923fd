"""Downloads: local servers play D4RL's and the mirror, with their faults."""

import hashlib
import http.server
import importlib.util
import json
import multiprocessing
import shutil
import threading

import pytest
from conftest import ROOT, short

import uwac

DEMO = (ROOT / "data" / "door-demo.hdf5").read_bytes()
HALF = len(DEMO) // 2
NAME = "door-v0_demos_clipped.hdf5"
CHECKSUM = hashlib.sha256(DEMO).hexdigest()
SECONDS = 60  # that a test waits for a process, which has torch to import
FAULTS = {
    "403": "403 Client Error",
    "404": "404 Client Error",
    "refused": "Connection refused",
    "silent": "read timeout=1",
    "stalls": "Read timed out",
    "cut": "IncompleteRead",
    "wrong": "does not match the known hash",
}


class Handler(http.server.BaseHTTPRequestHandler):
    """GET /KIND/... answers as KIND says."""

    def do_GET(self):
        kind = self.path.split("/")[1]
        self.server.asked.append(self.path)
        if kind == "silent":
            self.server.closing.wait(SECONDS)
            return
        self.send_response(int(kind) if kind.isdigit() else 200)
        self.send_header("Content-Length", str(len(DEMO)))
        self.end_headers()
        self.wfile.write(DEMO[:HALF])
        if kind == "stalls":
            self.server.stalling.set()
            self.server.closing.wait(SECONDS)
        if kind == "together":
            self.server.two.wait(SECONDS)
        if kind != "cut":
            self.wfile.write(bytes(len(DEMO) - HALF) if kind == "wrong" else DEMO[HALF:])

    def log_message(self, *args):
        pass


@pytest.fixture
def server(script, tmp_path, monkeypatch):
    """A server, an empty cache folder, and the checksum of what the server has for door-human."""
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(script, "d4rl_checksum", {NAME: CHECKSUM}.get)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.asked, server.two = [], threading.Barrier(2)
        server.closing, server.stalling = threading.Event(), threading.Event()
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        yield server
        server.closing.set()
        server.shutdown()


def play(script, server, monkeypatch, d4rl, mirror="404"):
    """D4RL's server and the mirror answer as these kinds say; nobody listens on port 1."""
    for name, kind in (("D4RL", d4rl), ("MIRROR", mirror)):
        port = 1 if kind == "refused" else server.server_port
        monkeypatch.setattr(script, name, f"http://127.0.0.1:{port}/{kind}/{name}/")
    if {d4rl, mirror} & {"silent", "stalls"}:
        monkeypatch.setattr(script, "SECONDS", 1)
    server.asked.clear()


def refusal(script, task):
    with pytest.raises(script.InputError) as error:
        script.find_dataset(task)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_d4rls_server_is_asked_first_and_once(script, server, tmp_path, monkeypatch, capsys):
    """Nothing but the file is left in the cache. The run says that the file is D4RL's."""
    play(script, server, monkeypatch, "200", "200")
    run = tmp_path / "run"
    options = {"env_id": "door-human", "dataset_path": None, "total_steps": 1}
    script.main(short(script, run_dir=str(run), **options))
    path = script.find_dataset("door-human")
    assert server.asked == [f"/200/D4RL/hand_dapg/{NAME}"]
    assert path == tmp_path / "cache" / NAME and path.read_bytes() == DEMO
    assert list(path.parent.iterdir()) == [path]
    assert f"{path} (D4RL's own file)" in capsys.readouterr().out.splitlines()[0]
    assert json.loads((run / "result.json").read_text())["data"]["d4rl"] is True


@pytest.mark.parametrize("fault", FAULTS)
def test_the_mirror_has_what_d4rl_does_not_give(script, server, monkeypatch, fault):
    play(script, server, monkeypatch, fault, "200")
    path = script.find_dataset("door-human")
    assert path.read_bytes() == DEMO and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("fault", FAULTS)
def test_neither_has_it(script, server, tmp_path, monkeypatch, fault):
    """One line: what each said, and the folder to put the file into. Nothing is left."""
    for d4rl, mirror in (("403", fault), (fault, "cut")):
        play(script, server, monkeypatch, d4rl, mirror)
        line = refusal(script, "door-human")
        by_hand = f"put it into {tmp_path}/cache by hand, or "
        assert line.startswith(f"{NAME} could not be downloaded: {by_hand}")
        assert f"{script.D4RL}hand_dapg/{NAME} says: " in line and FAULTS[d4rl] in line
        assert f"{script.MIRROR}{NAME} says: " in line and FAULTS[mirror] in line
        assert list((tmp_path / "cache").iterdir()) == []


def test_what_needs_no_download_fits_the_task(script):
    """make_dataset.py names what it makes without a version."""
    make = "python benchmark/make_dataset.py"
    both = f"{make} --policy walker2d-medium walker2d-expert, then --env-id walker2d-medium-expert"
    replay = f"{make} --env Hopper-v4, then --env-id hopper-medium-replay"
    ways = {"walker2d-medium-expert-v2": both, "hopper-medium-replay": replay}
    ways["hopper-random-v0"] = f"{make} --policy hopper-random, then --env-id hopper-random"
    ways["pen-cloned-v1"] = "--env-id door-demo, which needs no download"
    assert {task: script.without_download(task) for task in ways} == ways


def test_without_a_checksum_only_d4rl_is_asked(script, server, tmp_path, monkeypatch):
    """For relocate, and by a script that was copied alone. What cannot be read is not kept."""
    spec = importlib.util.spec_from_file_location("alone", shutil.copy(script.__file__, tmp_path))
    alone = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alone)
    for module, task in ((script, "relocate-human"), (alone, "door-human")):
        for kind, says in (("404", "404"), ("cut", "IncompleteRead"), ("wrong", "cannot be read")):
            play(module, server, monkeypatch, kind, "200")
            assert says in refusal(module, task)
            assert not any("MIRROR" in asked for asked in server.asked)
            assert list((tmp_path / "cache").iterdir()) == []
        play(module, server, monkeypatch, "200")
        path = module.find_dataset(task)
        assert path.read_bytes() == DEMO and module.read_file(path)[1]["d4rl"] is False
        path.unlink()


def test_d4rls_checksums():
    """In the form of sha256sum: of all files of the tasks but relocate's."""
    names = {file.rpartition("/")[2] for file in uwac.task_files().values()}
    unknown = {name for name in names if uwac.d4rl_checksum(name) is None}
    assert len(names) == 70 and len(unknown) == 7
    assert unknown == {name for name in names if name.startswith(("relocate", "door-demo."))}
    assert uwac.d4rl_checksum("hopper_expert-v2.hdf5").startswith("01aa219a5f8eea5e")


def test_a_wrong_file_in_the_cache(script, server, tmp_path):
    """Is refused with the way to train on it, which is not called D4RL's then. A rebuilt set is
    neither refused nor D4RL's."""
    rebuilt = tmp_path / "cache" / "door-human-rebuilt.hdf5"
    rebuilt.parent.mkdir()
    rebuilt.write_bytes(DEMO + b"x")
    assert script.find_dataset("door-human") == rebuilt
    wrong = rebuilt.replace(tmp_path / "cache" / NAME)
    line = refusal(script, "door-human")
    assert line.startswith(f"{wrong}: not D4RL's file") and f"--dataset-path {wrong}" in line
    assert script.read_file(wrong)[1]["d4rl"] is False and server.asked == []


def test_a_cache_that_cannot_be_written(script, server, tmp_path):
    (tmp_path / "cache").touch()
    assert "set D4RL_DATASET_DIR to another folder ([Errno 17]" in refusal(script, "door-human")


def fetch(name, address):
    script = importlib.import_module(name)
    script.D4RL, script.SECONDS = address, SECONDS
    script.d4rl_checksum = {NAME: CHECKSUM}.get
    script.find_dataset("door-human")


def in_a_process(script, server, kind):
    """Spawned: a fork would hold for good what the server's thread holds at that moment."""
    address = f"http://127.0.0.1:{server.server_port}/{kind}/"
    arguments = script.__name__, address
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=fetch, args=arguments, daemon=True)  # ends with the tests
    process.start()
    return process


@pytest.mark.parametrize("script", [uwac])  # whose download() is bear.py's; an import takes seconds
def test_two_runs_at_once_and_one_that_is_killed(script, server, tmp_path):
    """Half a file is never taken for the file; two that fetch it at once leave a good one."""
    path = tmp_path / "cache" / NAME
    killed = in_a_process(script, server, "stalls")
    assert server.stalling.wait(SECONDS)
    killed.kill()
    killed.join()
    assert not path.exists()
    server.asked.clear()
    both = [in_a_process(script, server, "together") for _ in range(2)]  # each waits for the other
    assert [process.join(2 * SECONDS) or process.exitcode for process in both] == [0, 0]
    assert path.read_bytes() == DEMO and script.find_dataset("door-human") == path
    assert len(server.asked) == 2
