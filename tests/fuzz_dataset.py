"""Fuzz campaign over read_file and to_transitions: HDF5 files damaged or of wrong contents.

    python tests/fuzz_dataset.py --cases 2000            # some minutes; exit code 1 after a failure
    python tests/fuzz_dataset.py --seed 0 --case 137     # one case again, and how it is refused

A case is a small valid file in D4RL's format, made from (seed, case), with one kind of harm done to
it. It must load, or be refused in one line that begins with its path, as its kind expects. Anything
else fails. Where bits are flipped HDF5's own library may crash, or take more than 10 s, as it does
under h5py 3.16 with --seed 11 --case 47773 and --case 16993: such cases are named and counted. Not
on Windows (fork).
"""

import argparse
import collections
import functools
import multiprocessing
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import uwac

SECONDS = 10  # the most that a case may take
LOADED, REFUSED = 0, 2  # exit codes of a case that went well
KINDS = {  # what may become of a file
    "nothing wrong": {LOADED},
    "bits flipped": {LOADED, REFUSED},
    "bits flipped at the beginning": {LOADED, REFUSED},
    "cut off": {LOADED, REFUSED},
    "not HDF5": {REFUSED},
    "f2": {LOADED},  # numpy's names of types: float16, int64, complex64, text
    "i8": {LOADED},
    "c8": {REFUSED},
    "S32": {REFUSED},
    "another shape": {REFUSED},
    "missing": {REFUSED},
    "a group": {REFUSED},
}


def make_file(kind, rng, path):
    """A valid file, its arrays in one piece, in chunks or in gzipped chunks; what is wrong is wrong
    with one of them, or with the bytes."""
    n = int(rng.integers(12, 80))
    random = functools.partial(rng.random, dtype=np.float32)
    data = {"observations": random((n, 3)), "actions": random((n, 2)), "rewards": random(n)}
    data["terminals"] = random(n) < 0.1
    name = str(rng.choice(list(data)))
    if rng.random() < 0.7:
        data["timeouts"] = random(n) < 0.1
    if kind in ("f2", "i8", "c8", "S32"):
        data[name] = data[name].astype(kind)
    elif kind == "another shape":
        data[name] = np.stack([data[name], data[name]])
    elif kind in ("missing", "a group"):
        del data[name]
    options = [{}, {"chunks": True}, {"compression": "gzip", "shuffle": True}][rng.integers(3)]
    with h5py.File(path, "w", libver=["earliest", "latest"][rng.integers(2)]) as file:
        file.create_group("metadata").attrs["environment"] = "AdroitHandDoor-v1"
        for column, array in data.items():
            file.create_dataset(column, data=array, **options)
        if kind == "a group":
            file.create_group(name)

    content = bytearray(path.read_bytes())
    if kind.startswith("bits flipped"):
        size = 1000 if kind == "bits flipped at the beginning" else len(content)
        for place in rng.integers(size, size=rng.choice([1, 2, 50])):
            content[place] ^= 1 << rng.integers(8)
    elif kind == "cut off":
        del content[rng.integers(len(content)) :]
    elif kind == "not HDF5":
        content = [b"", b"<!DOCTYPE html>\n", content[:8]][rng.integers(3)] + rng.bytes(2000)
    path.write_bytes(content)


def load(script, seed, case, folder):
    """Whether a case is LOADED or REFUSED. Raises AssertionError where it should not be."""
    path = Path(folder, "case.hdf5")
    kind = list(KINDS)[case % len(KINDS)]
    make_file(kind, np.random.default_rng([seed, case]), path)
    outcome, message = LOADED, "loaded"
    try:
        arrays, _ = script.read_file(path)
        script.to_transitions(arrays, 3, 2, 7, str(path))
    except script.InputError as error:
        outcome, message = REFUSED, str(error)
        assert message.startswith(f"{path}: ") and message.isprintable(), message
    assert outcome in KINDS[kind], message
    return outcome, message


def run_case(script, seed, case, show=False):
    """The exit code of `load` in a process of its own; None where it takes too long."""

    def child():
        outcome, message = load(script, seed, case, folder)
        if show:
            print(message, flush=True)
        sys.exit(outcome)

    with tempfile.TemporaryDirectory() as folder:
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(SECONDS)
        code = process.exitcode
        process.kill()
        process.join()
    return code


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=2000, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="only this one, with its message")
    args = parser.parse_args()
    names = {LOADED: "loaded", REFUSED: "refused", 1: "wrong", None: "too slow"}
    table = collections.Counter()
    failed = False
    for case in range(args.cases) if args.case is None else [args.case]:
        code = run_case(uwac, args.seed, case, show=args.case is not None)
        outcome = names.get(code, f"killed by signal {code}")
        table[outcome] += 1
        if code not in (LOADED, REFUSED):
            kind = list(KINDS)[case % len(KINDS)]
            failed |= code == 1 or not kind.startswith("bits flipped")
            print(f"--seed {args.seed} --case {case}, {kind}: {outcome}", flush=True)
    print(f"{len(KINDS)} kinds: {', '.join(f'{n} {outcome}' for outcome, n in table.items())}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
