"""benchmark/run.py: what a grid is, that nothing is run twice, that what fails is tried again, and two nodes, one lost."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import uwac

if importlib.util.find_spec("ray") is None:
    pytest.skip("benchmark/requirements.txt is not installed", allow_module_level=True)
import ray
import torch

ROOT = Path(uwac.__file__).parent
sys.path.insert(0, str(ROOT / "benchmark"))
import run
from run import Args, Job

ray.cloudpickle.register_pickle_by_value(run)  # its workers cannot import it from here
DEMO = {"tasks": ("door-demo",), "total_steps": 6, "eval_every": 3, "eval_episodes": 1}


def demo(tmp_path, **changes):
    return Args(**DEMO | {"out": tmp_path / "out", "work": tmp_path / "work"} | changes)


def test_grid(tmp_path):
    """Every task with every method and seed, seeds outermost; a method's arguments are its own, the rest is shared."""
    args = demo(tmp_path, tasks=("door-demo", "hopper-random"), methods=("bear", "uwac-code"), seeds=2)
    jobs = run.grid(args)
    assert [job.name for job in jobs] == [
        f"{task}__{method}__{seed}" for seed in (0, 1) for task in args.tasks for method in args.methods
    ]
    given = json.loads(jobs[-1].arguments)
    assert given["weighting"] == "exp" and given["seed"] == 1 and given["total_steps"] == 6
    assert "weighting" not in json.loads(jobs[-2].arguments) and Path(jobs[-2].script).name == "bear.py"
    pairs = [(json.loads(job.arguments)["seed"], json.loads(job.arguments)["num_seeds"]) for job in run.grid(
        demo(tmp_path, methods=("bear",), seeds=5, seeds_a_run=2))]  # fmt: skip
    assert pairs == [(0, 2), (2, 2), (4, 1)]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"methods": ("bear", "uwca")}, "--methods uwca: not among bear, uwac"),
        ({"tasks": ("dor-human",)}, "no such task; nearest: door-human"),
        ({"total_steps": 0}, "--total-steps 0: must be from 1"),
        ({"seeds_a_run": 0}, "--seeds-a-run"),
    ],
)
def test_wrong_grids_are_refused_before_anything_runs(changes, message, tmp_path):
    with pytest.raises(SystemExit, match=message):
        run.main(demo(tmp_path, **changes))


DEFAULT = {
    "variance": "mc",
    "weighting": "variance",
    "beta": 1.6,
    "weight_clip": 1.5,
    "dropout": 0.1,
    "critic": "dropout",
}
DEFAULT |= {"spectral_norm": True, "passes": 100, "num_mmd_samples": 10}


@pytest.mark.parametrize(
    "method, differing",
    {
        "uwac": {},
        "uwac-analytic": {"variance": "analytic"},
        "uwac-code": {"weighting": "exp", "beta": 0.5, "weight_clip": 1.0, "num_mmd_samples": 4},
        "uwac-std": {"weighting": "std"},
        "bear+sn": {"weighting": "none", "dropout": 0.0, "variance": "analytic"},
        "bear+dropout+sn": {"weighting": "none", "variance": "analytic"},
        "uwac-unweighted": {"weighting": "none", "variance": "analytic"},
        "uwac-no-sn": {"spectral_norm": False, "variance": "analytic"},
        "uwac-ensemble": {"critic": "ensemble", "dropout": 0.0},
        "uwac-rem": {"critic": "rem", "dropout": 0.0},
    }.items(),
)
def test_methods_are_what_their_names_say(method, differing, tmp_path):
    """On Adroit, where spectral norm is UWAC's default."""
    (job,) = run.grid(demo(tmp_path, tasks=("door-human",), methods=(method,), seeds=1))
    args = vars(run.load(job.script).Args(**json.loads(job.arguments)))
    assert {name: args[name] for name in DEFAULT} == DEFAULT | differing


def test_on_walkers_spectral_norm_is_the_names(tmp_path):
    jobs = run.grid(demo(tmp_path, tasks=("hopper-random",), methods=tuple(run.METHODS)[1:], seeds=1))
    found = {job.method: run.load(job.script).Args(**json.loads(job.arguments)).spectral_norm for job in jobs}
    assert {name for name in found if found[name]} == {"uwac-code", "bear+sn", "bear+dropout+sn"}


def test_finished_means_the_same_arguments(tmp_path):
    (job,) = run.grid(demo(tmp_path, methods=("uwac",), seeds=1))
    args = json.loads(json.dumps(vars(uwac.Args(**json.loads(job.arguments)))))
    file = tmp_path / f"{job.name}.json"
    assert not run.finished(job, tmp_path)
    file.write_text(json.dumps({"args": args}))
    assert run.finished(job, tmp_path)
    file.write_text(json.dumps({"args": args | {"beta": 0.8}}))
    assert not run.finished(job, tmp_path)
    file.write_text("{half")
    assert not run.finished(job, tmp_path)


def test_a_run_that_was_stopped_goes_on(tmp_path, monkeypatch):
    """From its checkpoint, to the same result as an undisturbed one; a finished one is read, not made again."""
    (job,) = run.grid(demo(tmp_path, methods=("bear",), seeds=1))
    whole = run.train(job, tmp_path / "whole", 1, True)
    script, calls = run.load(job.script), []
    update = script.Agent.update

    def killed(self):
        calls.append(0)
        if len(calls) == 5:
            raise MemoryError
        update(self)

    monkeypatch.setattr(script.Agent, "update", killed)
    with pytest.raises(MemoryError):
        run.train(job, tmp_path / "killed", 1, True)
    assert run.train(job, tmp_path / "killed", 1, True)["history"] == whole["history"]
    assert len(calls) == 5 + 3  # the last three after the checkpoint
    assert run.train(job, tmp_path / "killed", 1, True)["history"] == whole["history"] and len(calls) == 8


FAKE = """
import os, pathlib, signal
from dataclasses import dataclass
@dataclass
class Args:
    name: str; failures: int; resume: str | None = None
def main(args):
    much = b"x" * (600 << 20 if args.name == "good" else 0)
    tries = pathlib.Path("tries")
    tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
    if len(tries.read_text()) <= args.failures:
        if args.name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise FloatingPointError("critic_loss: not finite")
    found = {"tries": len(tries.read_text()), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
    return {"args": vars(args), "dataset": "/somewhere/else/a.hdf5", "last": {"mean": 1.0}} | found
"""


@pytest.fixture(scope="module")
def local_ray():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=10**8)
    yield
    ray.shutdown()


def test_failed_runs_are_tried_again_and_reported(local_ray, tmp_path, capsys):
    (tmp_path / "fake.py").write_text(FAKE)
    jobs = [
        Job("a", name, 0, str(tmp_path / "fake.py"), json.dumps({"name": name, "failures": failures}))
        for name, failures in (("good", 0), ("shaky", 1), ("hopeless", 9), ("killed", 9))
    ]
    args = Args(out=tmp_path / "out", work=tmp_path / "work", retries=2)
    failed = {job.method: why for job, why in run.run(jobs, args).items()}
    assert failed.pop("hopeless") == "FloatingPointError: critic_loss: not finite"
    assert failed.pop("killed").startswith("WorkerCrashedError") and not failed
    results = {file.stem: json.loads(file.read_text()) for file in (tmp_path / "out").glob("*.json")}
    assert {name: result["tries"] for name, result in results.items()} == {"a__good__0": 1, "a__shaky__0": 2}
    good = results["a__good__0"]
    assert good["method"] == "good" and good["dataset"] == "a.hdf5" and good["gpus"] == ""
    assert 500 < good["peak_mb"] - results["a__shaky__0"]["peak_mb"] < 700 and "peak_gpu_mb" not in good
    for name in ("hopeless", "killed"):
        assert (tmp_path / "work" / f"a__{name}__0" / "tries").read_text() == "xxx"
    capsys.readouterr()
    assert not run.run(jobs[:2], args)  # all there: nothing is tried once more
    assert (tmp_path / "work" / "a__good__0" / "tries").read_text() == "x"
    assert capsys.readouterr().out.startswith("2 runs, 2 of them finished before")
    with pytest.raises(SystemExit, match="--cpus 64 --gpus 0.0: more than any node of local has"):
        run.run(jobs, Args(cpus=64))


def test_dry_run_prints_the_grid_and_runs_nothing(tmp_path, capsys):
    assert run.main(demo(tmp_path, methods=("bear", "uwac-analytic"), seeds=2, total_steps=10**6, dry_run=True)) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    hours = {line.split(": ")[0]: float(line.split(": ")[1].removesuffix(" h")) for line in lines}
    assert list(hours) == [f"door-demo__{method}__{seed}" for seed in (0, 1) for method in ("bear", "uwac-analytic")]
    assert all(1 < value < 1000 for value in hours.values())
    assert last.startswith("4 runs, ") and float(last.split()[2]) == pytest.approx(sum(hours.values()), abs=0.2)
    at_once = int(last.split("the ")[1].split()[0])
    assert at_once == os.cpu_count()
    assert float(last.split(", ")[2].split()[0]) == pytest.approx(sum(hours.values()) / at_once, abs=0.2)
    assert not (tmp_path / "out").exists() and not (tmp_path / "work").exists()


def test_dry_run_of_few_runs_takes_as_long_as_the_longest(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run, "hours", lambda job, args: {"bear": 1.0, "uwac": 3.0}[job.method])
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert run.main(demo(tmp_path, methods=("bear", "uwac"), seeds=1, dry_run=True)) == 0
    assert "2 runs, 4.0 hours one after another, 3.0 with the 16 at once" in capsys.readouterr().out
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit, match="--gpus 0.5: torch finds no GPU here"):
            run.main(demo(tmp_path, seeds=1, gpus=0.5, dry_run=True))


def test_two_nodes_of_which_one_is_lost(tmp_path):
    """Four runs on a real cluster of two nodes; one is killed while it trains. Every run ends, none twice, and the lost one
    with the same numbers as if nothing had happened."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    try:
        words = "--tasks door-demo --methods bear --seeds 4 --total-steps 40 --eval-every 10 --eval-episodes 1"
        folders = ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work"), "--address", cluster.address]
        command = [sys.executable, run.__file__, *words.split(), *folders]
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        end = time.time() + 240
        while len(at_work(tmp_path)) < 2 and time.time() < end and driver.poll() is None:
            time.sleep(0.1)
        cluster.remove_node(second, allow_graceful=False)
        out, _ = driver.communicate(timeout=400)
    finally:
        driver.kill()
        cluster.shutdown()
    assert driver.returncode == 0, out
    results = {file.stem: json.loads(file.read_text()) for file in tmp_path.glob("out/*.json")}
    assert sorted(results) == [f"door-demo__bear__{seed}" for seed in range(4)]
    assert out.count(": score ") == 4
    writers = {name: len([*tmp_path.glob(f"work/{name}/runs/*/events*")]) for name in results}
    (lost,) = (name for name in writers if writers[name] > 1)  # one began again where it was
    assert all(len([*tmp_path.glob(f"work/{name}/runs/*")]) == 1 for name in results)
    assert results[lost]["history"] == alone(lost, tmp_path)["history"]


def at_work(tmp_path):
    """Runs that have a checkpoint and no result."""
    runs = [file.parent for file in tmp_path.glob("work/*/runs/*/checkpoint.pt")]
    return [folder for folder in runs if not (folder / "result.json").exists()]


def alone(name, tmp_path):
    """The same run, undisturbed, in a process of its own."""
    words = f"--env-id door-demo --seed {name[-1]} --total-steps 40 --eval-every 10 --eval-episodes 1".split()
    folder = tmp_path / "alone" / name
    folder.mkdir(parents=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, ROOT / "bear.py", *words], check=True, cwd=folder, env=environment)
    return json.loads(next(folder.glob("runs/*/result.json")).read_text())
