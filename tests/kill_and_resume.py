"""Kills runs of both scripts with SIGKILL, resumes them, and compares what they leave, bit for bit,
with a run that nobody disturbed:

    python tests/kill_and_resume.py --kills 20

A run is killed at a random one of its updates or of its evaluations' steps, or half through one of
its files. Exits with 1 if a run differs.
"""

import dataclasses
import hashlib
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import tyro
from gymnasium.vector import SyncVectorEnv

import bear
import uwac

SETTINGS = {"env_id": "door-demo", "total_steps": 24, "eval_every": 6, "log_every": 2}
SETTINGS |= {"eval_episodes": 1, "eval_candidates": 3, "batch_size": 8, "warmup_steps": 12}
SETTINGS |= {"num_candidates": 2, "num_mmd_samples": 2}


def places(script):
    """Functions, and how often a run calls them: the last ones write checkpoint and result.json."""
    files = [(torch, "save", 5), (Path, "write_text", 5)]
    return [(script.Agent, "minimize", 96), (SyncVectorEnv, "step", 800), *files]


def die_in(owner, method, count):
    """Have the count-th call of a method done by half, and end this process as SIGKILL does."""
    whole = getattr(owner, method)
    calls = []

    def half(self, content, *rest, **settings):
        calls.append(content)
        if len(calls) < count:
            return whole(self, content, *rest, **settings)
        if method == "write_text":
            whole(self, content[: len(content) // 2])
        if method == "save":
            content.write(b"half of it")
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, method, half)


def go(script, settings, place=None):
    """Start the run, or go on with it, in a process that is killed at a place, (owner, method,
    count). Returns its exit code."""
    run = Path(settings["run_dir"])

    def child():
        sys.stdout = sys.stderr = open(os.devnull, "w")
        if place:
            die_in(*place)
        if (run / "checkpoint.pt").exists():
            agent, _ = script.load_checkpoint(run)
            script.main(dataclasses.replace(agent.args, resume=str(run)))
        else:
            if run.exists():  # killed before its first checkpoint was whole
                run.rename(f"{run}-aside")
            script.main(script.Args(**settings))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    return process.exitcode


def left(run):
    """What a run leaves, but for times, commit and its own place, as text, with checksums of
    tensors."""
    result = json.loads(Path(run, "result.json").read_text())
    checkpoint = torch.load(Path(run, "checkpoint.pt"), weights_only=True)
    for part in (result, checkpoint):
        del part["args"]["run_dir"], part["args"]["resume"], part["commit"]
        for row in part["history"]:
            del row["seconds"]

    def checksum(tensor):
        return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()

    return json.dumps([result, checkpoint], default=checksum)


def main(kills: int = 20, seed: int = 0):
    """Of each script."""
    torch.set_num_threads(1)  # the sums depend on the threads
    rng = random.Random(seed)
    same = 0
    for script, extra in ((bear, {}), (uwac, {"passes": 2})):
        with tempfile.TemporaryDirectory() as top:
            settings = SETTINGS | extra | {"run_dir": f"{top}/undisturbed"}
            assert go(script, settings) == 0
            expected = left(settings["run_dir"])
            for n in range(kills):
                owner, method, calls = places(script)[n % 4]
                count = rng.randint(1, calls)
                settings["run_dir"] = f"{top}/{n}"
                assert go(script, settings, (owner, method, count)) == -signal.SIGKILL
                assert go(script, settings) == 0
                agrees = left(settings["run_dir"]) == expected
                same += agrees
                verdict = "the same bits" if agrees else "DIFFERS"
                print(f"{script.__name__} killed in {method} {count}: {verdict}", flush=True)
    print(f"{same} of {2 * kills} ended as the undisturbed run")
    return same != 2 * kills


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
