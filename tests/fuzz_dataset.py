"""Fuzz campaign over read_file and to_transitions: damaged, false and hostile HDF5 files.

    python tests/fuzz_dataset.py --cases 2000            # some minutes; exit code 1 after a failure
    python tests/fuzz_dataset.py --seed 0 --case 137     # one case again, with what became of it

A case is a small valid file in D4RL's format, made from (seed, case), and one kind of harm to it.
It must load with what h5py finds in it, or be refused in one line that begins with its path. It
fails if it does not do what its kind expects, raises anything else, kills its process, or takes
more than 10 s. Not on Windows (fork).
"""

import argparse
import collections
import multiprocessing
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import uwac

OBS_DIM, ACTION_DIM, MAX_STEPS = 3, 2, 7
SECONDS = 10  # the most that a file may take
LOADED, REFUSED, EITHER = "loaded", "refused", "either"
KINDS = {  # what must become of a file
    "nothing wrong": LOADED,
    "bits flipped": EITHER,
    "bits flipped at the beginning": EITHER,
    "cut off": EITHER,
    "not HDF5": REFUSED,
    "half precision": LOADED,
    "integers": LOADED,
    "complex": REFUSED,
    "text of one length": REFUSED,
    "text of any length": REFUSED,
    "references": REFUSED,
    "a link": REFUSED,
    "a link to another file": REFUSED,
    "numbers in another file": REFUSED,
    "a view of another array": REFUSED,
    "packed otherwise": REFUSED,
    "rows claimed, none there": REFUSED,
}
TYPES = {"half precision": "f2", "integers": "i8", "complex": "c8", "text of one length": "S32"}


def valid_data(rng):
    """Arrays as D4RL stores them, with or without timeouts."""
    n = int(rng.integers(12, 80))
    data = {
        "observations": rng.normal(size=(n, OBS_DIM)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (n, ACTION_DIM)).astype(np.float32),
        "rewards": rng.normal(size=n).astype(np.float32),
        "terminals": rng.random(n) < 0.1,
    }
    if rng.random() < 0.7:
        data["timeouts"] = rng.random(n) < 0.1
    return data


def damage(kind, rng, content):
    """Change the bytes of a valid file."""
    if kind.startswith("bits flipped"):
        size = 1000 if kind == "bits flipped at the beginning" else len(content)
        for place in rng.integers(size, size=rng.choice([1, 2, 50])):
            content[place] ^= 1 << rng.integers(8)
    elif kind == "cut off":
        del content[rng.integers(len(content)) :]
    elif kind == "not HDF5":
        beginning = [b"", b"<!DOCTYPE html>\n", content[:8]][rng.integers(3)]
        content[:] = beginning + rng.bytes(2000)


def store(kind, rng, file, name, array):
    """Store one array of a valid file in another way."""
    other = Path(f"{file.filename}.other")
    if kind in TYPES:
        file[name] = array.astype(TYPES[kind])
    elif kind == "text of any length":
        file[name] = np.full(array.shape, "1.5", object)
    elif kind == "references":
        file.create_dataset(name, array.shape, h5py.ref_dtype)[...] = file["metadata"].ref
    elif kind == "a link":
        file["elsewhere"] = array
        file[name] = h5py.SoftLink("/elsewhere")
    elif kind == "a link to another file":
        with h5py.File(other, "w") as target:
            target[name] = array
        file[name] = h5py.ExternalLink(other, name)
    elif kind == "numbers in another file":
        other.write_bytes(array.tobytes())
        pieces = [(other, 0, array.nbytes)]
        file.create_dataset(name, array.shape, array.dtype, external=pieces)
    elif kind == "a view of another array":
        file["elsewhere"] = array
        layout = h5py.VirtualLayout(array.shape, array.dtype)
        layout[...] = h5py.VirtualSource(file["elsewhere"])
        file.create_virtual_dataset(name, layout)
    elif kind == "packed otherwise":
        ways = [{"compression": "lzf"}, {"scaleoffset": 0}, {"fletcher32": True}]
        file.create_dataset(name, data=array.astype("i4"), **ways[rng.integers(3)])
    else:  # rows claimed, none there: HDF5 would give the fill value for all of them
        file.create_dataset(name, array.shape, array.dtype, chunks=[None, True][rng.integers(2)])


def make_file(kind, rng, path):
    """A valid file, its arrays in one piece, in chunks or in gzipped chunks, and what is wrong."""
    data = valid_data(rng)
    options = [{}, {"chunks": True}, {"compression": "gzip", "shuffle": True}][rng.integers(3)]
    with h5py.File(path, "w", libver=["earliest", "latest"][rng.integers(2)]) as file:
        for name, array in data.items():
            file.create_dataset(name, data=array, **options)
        # Of fixed length: HDF5 can loop forever in damaged text of any length: not covered here
        file.create_group("metadata").attrs["environment"] = np.bytes_("Door")
        if list(KINDS).index(kind) > list(KINDS).index("not HDF5"):
            name = str(rng.choice(list(data)))
            del file[name]
            store(kind, rng, file, name, data[name])
    content = bytearray(path.read_bytes())
    damage(kind, rng, content)
    path.write_bytes(content)


def same_as_h5py(path, arrays):
    with h5py.File(path) as file:
        for name, array in arrays.items():
            if not np.array_equal(array, file[name], equal_nan=True):
                return False
        return ("timeouts" in file) == ("timeouts" in arrays)


def load(script, path, expected):
    """What becomes of a file, and why."""
    try:
        arrays, _ = script.read_file(path)
        script.to_transitions(arrays, OBS_DIM, ACTION_DIM, MAX_STEPS, str(path))
        outcome, message = LOADED, "no message"
    except script.InputError as error:
        outcome, message = REFUSED, str(error)
    except BaseException as error:  # whatever it is, it is the finding
        return "crash", f"raises {error!r}"
    if expected not in (EITHER, outcome):
        return "wrong", f"{outcome}, should be {expected}: {message}"
    if outcome == LOADED and not same_as_h5py(path, arrays):
        return "wrong", "not what the file holds"
    if outcome == REFUSED and not (message.startswith(f"{path}: ") and message.isprintable()):
        return "wrong", f"not one line that begins with the path: {message}"
    return outcome, message


def work(pipe, script, seed, case, folder):
    path = Path(folder, "case.hdf5")
    kind = list(KINDS)[case % len(KINDS)]
    make_file(kind, np.random.default_rng([seed, case]), path)
    pipe.send(load(script, path, KINDS[kind]))


def run_case(script, seed, case):
    """As `load`, in a process of its own, whatever becomes of it."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        worker = context.Process(target=work, args=(theirs, script, seed, case, folder))
        worker.start()
        worker.join(SECONDS)
        hangs = worker.is_alive()
        worker.kill()
        worker.join()
    if hangs:
        return "hang", f"takes more than {SECONDS} s"
    return mine.recv() if mine.poll() else ("crash", f"exit code {worker.exitcode}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=2000, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="only this one, with its message")
    args = parser.parse_args()
    table = collections.Counter(crash=0, hang=0, wrong=0)
    for case in range(args.cases) if args.case is None else [args.case]:
        outcome, message = run_case(uwac, args.seed, case)
        table[outcome] += 1
        if outcome not in (LOADED, REFUSED) or args.case is not None:
            kind = list(KINDS)[case % len(KINDS)]
            print(f"--seed {args.seed} --case {case}, {kind}: {outcome}, {message}", flush=True)
    counts = [f"{count} {name}" for name, count in table.items()]
    print(f"{len(KINDS)} kinds: {', '.join(counts)}")
    return table["crash"] + table["hang"] + table["wrong"] > 0


if __name__ == "__main__":
    sys.exit(main())
