"""Kills runs of both scripts with SIGKILL at random moments, resumes them, and compares what they leave, bit for bit,
with a run that nobody disturbed:

    python tests/kill_and_resume.py --kills 20

A moment is a time after the start, drawn over the whole run, or a place that a random moment hits too rarely: in the
middle of writing a checkpoint, of an evaluation, of the plot. Exits with 1 if a run differs.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
WORDS = "--env-id door-demo --total-steps 160 --eval-every 20 --checkpoint-every 4 --log-every 3 --eval-episodes 2"
WORDS += " --eval-candidates 20 --batch-size 32 --warmup-steps 80"
EXTRA = {"bear.py": "", "uwac.py": " --variance mc --passes 4"}
# Places that a random moment hits too rarely, and how often a run of WORDS comes by: files of tensors (policies and
# checkpoints), steps of evaluations, plots.
PLACES = {"checkpoint": 48, "evaluation": 1600, "plot": 8}
# Runs a script in which the count-th call of a place is begun and never ended.
KILLER = """
import os, runpy, signal, sys, torch
from matplotlib.figure import Figure
import gymnasium
place, count, script, *words = sys.argv[1:]
calls = 0
def kills(function, halfway):
    def wrapped(*args, **kwargs):
        global calls
        calls += 1
        if calls == int(count):
            halfway(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return wrapped
def half_a_file(state, file):
    file.write(b"PK half a checkpoint")
    file.flush()
def half_a_plot(figure, file, **settings):
    file.write(b"half a picture")
if place == "checkpoint":
    torch.save = kills(torch.save, half_a_file)
if place == "evaluation":
    gymnasium.vector.SyncVectorEnv.step = kills(gymnasium.vector.SyncVectorEnv.step, lambda *args: None)
if place == "plot":
    Figure.savefig = kills(Figure.savefig, half_a_plot)
sys.argv = [script, *words]
runpy.run_path(script, run_name="__main__")
"""


def start(script, folder, words, place=None, count=0):
    """The script as a process in `folder`, which kills itself at the count-th call of a place, if one is named."""
    command = [sys.executable, "-c", KILLER, place, str(count)] if place else [sys.executable]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}  # the sums depend on the threads
    with open(folder / "log.txt", "a") as log:
        command += [str(ROOT / script), *words.split()]
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)


def kill(script, folder, words, place, moment):
    """Start a run or go on with the one in `folder`, and kill it `moment` seconds after its start or at the moment-th
    call of `place`; says where. Without a moment it goes on to its end."""
    begun = [path.parent for path in (folder / "runs").glob("*/args.json")]
    process = start(script, folder, f"--resume {begun[0]}" if begun else words, place, moment)
    try:
        process.wait(None if moment is None or place else moment)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    code = process.wait()
    if moment is None and code != 0 or place and code != -signal.SIGKILL:
        raise RuntimeError(f"exit code {code}; {(folder / 'log.txt').read_text()}")
    checkpoints = list((folder / "runs").glob("*/checkpoint.pt"))
    after = f"{torch.load(checkpoints[0], weights_only=True)['progress'][0]} updates" if checkpoints else "nothing"
    when = place or ("end" if moment is None else f"{moment:.2f} s")
    return f"{when}: {'ended before' if code == 0 else 'killed'}, a checkpoint of {after}"


def contents(folder):
    """What the one run in a folder leaves: metrics.csv, result.json but for times, and both files of tensors."""
    (run,) = (path.parent for path in (folder / "runs").glob("*/args.json"))
    result = json.loads((run / "result.json").read_text())
    checkpoint, policy = (torch.load(run / name, weights_only=True) for name in ("checkpoint.pt", "policy.pt"))
    del result["ms_per_update"], checkpoint["progress"][-1]
    picture = (run / "curves.png").read_bytes()
    metrics = (run / "metrics.csv").read_bytes()
    return {"metrics": metrics, "result": result, "checkpoint": checkpoint, "policy": policy, "picture": picture}


def differences(one, two, name=""):
    """Names of the leaves in which two trees of dicts, lists, tensors and plain values differ."""
    if isinstance(one, torch.Tensor):
        return [] if one.dtype == two.dtype and torch.equal(one, two) else [name]
    if isinstance(one, dict) and one.keys() == two.keys():
        return [place for key in one for place in differences(one[key], two[key], f"{name}/{key}")]
    if isinstance(one, list | tuple) and len(one) == len(two):
        return [place for i in range(len(one)) for place in differences(one[i], two[i], f"{name}/{i}")]
    return [] if one == two else [name]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="for each script; every fourth at a place")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, same = random.Random(args.seed), 0
    with tempfile.TemporaryDirectory() as top:
        for script, extra in EXTRA.items():
            (undisturbed := Path(top) / script).mkdir()
            began, process = time.time(), start(script, undisturbed, WORDS + extra)
            while not list((undisturbed / "runs").glob("*/args.json")) and process.poll() is None:
                time.sleep(0.01)
            first, _, last = time.time() - began, process.wait(), time.time() - began
            expected = contents(undisturbed)
            for n in range(args.kills):
                place, where = list(PLACES)[n // 4 % 3] if n % 4 == 3 else None, "ended before"
                while "ended before" in where:  # a machine is not always equally fast
                    folder = Path(tempfile.mkdtemp(dir=top))
                    moment = rng.randint(1, PLACES[place]) if place else rng.uniform(0.9 * first, last)
                    where = kill(script, folder, WORDS + extra, place, moment)
                kill(script, folder, WORDS + extra, None, None)
                differ = differences(expected, contents(folder))
                same += not differ
                print(
                    f"{script} {where}; {f'DIFFERS in {differ}' if differ else 'resumed to the same bits'}", flush=True
                )
    print(f"{same} of {args.kills * len(EXTRA)} ended bit for bit as the undisturbed run")
    return same < args.kills * len(EXTRA)


if __name__ == "__main__":
    sys.exit(main())
