"""Kills runs of both scripts with SIGKILL, resumes them, and compares what they leave, bit for bit,
with a run that nobody disturbed:

    python tests/kill_and_resume.py --kills 20

A run is killed after a time drawn from its whole length, or, every other one, at a place that a
random moment hits too rarely: half through a file, in an evaluation. Exits with 1 if a run differs.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from gymnasium.vector import SyncVectorEnv
from matplotlib.figure import Figure

import bear
import uwac

ARGS = {"env_id": "door-demo", "total_steps": 24, "eval_every": 8, "checkpoint_every": 3}
ARGS |= {"eval_episodes": 1, "eval_candidates": 3, "batch_size": 8, "warmup_steps": 12}
ARGS |= {"num_candidates": 2, "num_mmd_samples": 2, "log_every": 2}
EXTRA = {bear: {}, uwac: {"passes": 2}}
# Methods, and how often a run calls them: the checkpoint's; args.json and result.json; ...
PLACES = [(Path, "write_bytes", 11), (Path, "write_text", 4), (Figure, "savefig", 3)]
PLACES += [(SyncVectorEnv, "step", 600)]


def die_in(owner, method, count):
    """Have the count-th call of a method done by half, and end this process as SIGKILL does."""
    whole, calls = getattr(owner, method), []

    def half(self, content, *rest, **settings):
        calls.append(content)
        if len(calls) < count:
            return whole(self, content, *rest, **settings)
        if owner is Path:
            whole(self, content[: len(content) // 2])
        if owner is Figure:
            content.write_text("half a picture")
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, method, half)


def go(script, run, place=None, seconds=None):
    """Start the run, or go on with it, in a process that is killed at a place, (owner, method,
    count), or after so many seconds, if it is not finished. Returns its exit code."""

    def child():
        sys.stdout = sys.stderr = open(os.devnull, "w")
        if place:
            die_in(*place)
        if (run / "checkpoint.pt").exists():
            script.main(script.Args(resume=str(run)))
        else:
            shutil.rmtree(run, ignore_errors=True)
            script.main(script.Args(**ARGS, **EXTRA[script], run_dir=str(run)))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode


def left(run):
    """What a run leaves, but for times and its own place."""
    result = json.loads((run / "result.json").read_text())
    checkpoint = torch.load(run / "checkpoint.pt", weights_only=True)
    own = json.loads((run / "args.json").read_text())
    for args in (own, result["args"], checkpoint["args"]):
        del args["run_dir"]
    for rows in (result["history"], checkpoint["history"], [result], [checkpoint]):
        for row in rows:
            del row["seconds"]
    del result["ms_per_update"], result["commit"]
    picture = (run / "curves.png").read_bytes()
    return {"result": result, "checkpoint": checkpoint, "args": own, "picture": picture}


def differences(one, two, name=""):
    """Names of the leaves in which two trees of dicts, lists, tensors and plain values differ."""
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, two) else [name]
    if isinstance(one, list) and len(one) == len(two):
        one, two = dict(enumerate(one)), dict(enumerate(two))
    if isinstance(one, dict) and one.keys() == two.keys():
        found = []
        for key in one:
            found += differences(one[key], two[key], f"{name}/{key}")
        return found
    return [] if one == two else [name]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="for each script")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)  # the sums depend on the threads
    rng = random.Random(args.seed)
    all_same = True
    for script in EXTRA:
        same = 0
        with tempfile.TemporaryDirectory() as top:
            runs = [Path(top, str(n), "run") for n in range(args.kills + 1)]
            began = time.time()
            assert go(script, runs[0]) == 0
            length = time.time() - began
            expected = left(runs[0])
            for n, run in enumerate(runs[1:]):
                place = seconds = None
                if n % 2 == 0:
                    seconds = rng.uniform(0, 0.9 * length)  # a machine is not always as fast
                    when = f"after {seconds:.2f} s"
                else:
                    owner, method, count = PLACES[n // 2 % len(PLACES)]
                    place = (owner, method, rng.randint(1, count))
                    when = f"in {method} {place[2]}"
                code = go(script, run, place, seconds)
                killed = "killed" if code == -signal.SIGKILL else "ended before"
                assert go(script, run) == 0
                differ = differences(expected, left(run))
                same += not differ
                verdict = f"DIFFERS in {differ}" if differ else "the same bits"
                print(f"{script.SCRIPT} {killed} {when}: {verdict}", flush=True)
        print(f"{script.SCRIPT}: {same} of {args.kills} ended as the undisturbed run", flush=True)
        all_same &= same == args.kills
    return not all_same


if __name__ == "__main__":
    sys.exit(main())
