"""Fuzz campaign over read_file and to_transitions: damaged, false and hostile HDF5 files.

    python tests/fuzz_dataset.py --cases 2000            # some minutes; exit code 1 after a failure
    python tests/fuzz_dataset.py --seed 0 --case 137     # one case again, with what became of it

A case is a small valid file in D4RL's format, made from (seed, case), and one mutation of it. It
must load with the content that is known or that a second reading finds, or be refused in one line
that begins with the path. It fails if it raises anything else, kills the interpreter, takes more
than 10 s, or opens a file beside its own; it may take 1 GB. Linux only (/proc, inotify).
"""

import argparse
import collections
import contextlib
import ctypes
import importlib
import io
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
import zlib
from pathlib import Path

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

D, A, MAX_STEPS = 3, 2, 7
WIDTHS = {"observations": (D,), "actions": (A,), "rewards": (), "terminals": (), "timeouts": ()}
SECONDS, BYTES = 10, 10**9  # the most that a file may take
REFUSED = "refused"  # what a case can expect, beside the arrays that its file holds,
REREAD = "reread"  # or that it loads as a second reading says, or is refused
GZIP, FLETCHER32 = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_FLETCHER32
KINDS = {}  # name of a mutation: function (rng, path, outside) that writes the file


# --- Valid files


def valid_data(rng):
    """Arrays as D4RL stores them, some without timeouts, as columns or in double precision."""
    n = int(rng.integers(12, 80))
    real = rng.choice(["f4", "f8"])
    data = {
        "observations": rng.normal(size=(n, D)).astype(real),
        "actions": rng.uniform(-1.2, 1.2, (n, A)).astype(real),
        "rewards": rng.normal(size=n).astype(real),
        "terminals": rng.random(n) < 0.1,
    }
    if rng.random() < 0.7:
        data["timeouts"] = rng.random(n) < 0.1
    if rng.random() < 0.2:
        data["rewards"] = data["rewards"][:, None]
    return data


def write(path, rng, data):
    """The file, open, its arrays in one piece or in chunks, plain or through filters."""
    rows = int(rng.integers(5, len(data["rewards"]) + 1))
    filters = [None, None, {}, {"compression": "gzip"}, {"compression": "gzip", "shuffle": True}]
    options = filters[rng.integers(len(filters))]
    file = h5py.File(path, "w", libver=["earliest", "latest"][rng.integers(2)])
    for name, array in data.items():
        chunks = {} if options is None else {"chunks": (rows, *array.shape[1:]), **options}
        file.create_dataset(name, data=array, **chunks)
    # Of fixed length: HDF5 can loop forever in damaged text of any length, which is not covered
    file.create_group("metadata").attrs["environment"] = np.bytes_("Door")
    return file


# --- Mutations of the stored bytes


def pieces(path):
    """(offset, length) of all numbers in the file."""
    with h5py.File(path) as file:
        for name in WIDTHS.keys() & file.keys():
            stored = file[name].id
            if file[name].chunks is None:
                yield stored.get_offset(), stored.get_storage_size()
            else:
                for i in range(stored.get_num_chunks()):
                    yield stored.get_chunk_info(i)[2:]


def flip(rng, content, at):
    for place in rng.choice(at, rng.choice([1, 1, 2, 8, 50])):
        content[place] ^= 1 << rng.integers(8)


def overwrite(rng, content, at):
    """A field of 1 to 8 bytes gets a value at some edge."""
    size, place = int(rng.choice([1, 2, 4, 8])), int(rng.choice(at))
    edges = [0, 1, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1, len(content), place, 10**9]
    value = edges[rng.integers(len(edges))] % 256**size
    content[place : place + size] = value.to_bytes(size, "little")


def add(rng, content, at):
    """One byte becomes a bit more or less: counts, sizes and addresses that are nearly right."""
    place = rng.choice(at)
    content[place] = (content[place] + int(rng.integers(-9, 10))) % 256


def cut(rng, content, at):
    """The end, or some bytes in the middle."""
    place = rng.choice(at)
    del content[place : [None, place + rng.integers(1, 64)][rng.integers(2)]]


def insert(rng, content, at):
    place = rng.choice(at)
    content[place:place] = rng.bytes(rng.integers(1, 64))


def stored_bytes(change, where):
    """A mutation of the numbers, of all else (structure), or of any place in the file."""

    def make(rng, path, outside):
        write(path, rng, valid_data(rng)).close()
        content = bytearray(path.read_bytes())
        inside = np.zeros(len(content), bool)
        for offset, length in pieces(path):
            inside[offset : offset + length] = True
        masks = {"header": np.arange(len(content)) < 96, "numbers": inside, "file": inside | True}
        change(rng, content, np.flatnonzero(masks.get(where, ~inside)))
        path.write_bytes(content)
        return REREAD

    return make


for change in (flip, overwrite, add):
    for where in ("header", "structure", "structure again", "structure once more"):
        KINDS[f"{change.__name__} in {where}"] = stored_bytes(change, where)
for change, where in ((flip, "numbers"), (cut, "file"), (insert, "file")):
    KINDS[f"{change.__name__} in {where}"] = stored_bytes(change, where)


# --- One array stored in another way


def array_as(kind):
    """Registers a function (rng, file, name, array, outside) that stores an array and returns what
    must become of the file: REFUSED, REREAD, or the array that it now holds."""

    def register(store):
        def make(rng, path, outside):
            data = valid_data(rng)
            name = list(data)[rng.integers(len(data))]
            with write(path, rng, data) as file:
                del file[name]
                held = store(rng, file, name, data[name], outside)
            return held if isinstance(held, str) else data | {name: held}

        KINDS[kind] = make

    return register


def as_type(kind, cast, accepted, dtype=None):
    @array_as(kind)
    def _(rng, file, name, array, outside):
        new = cast(array)
        file.create_dataset(name, data=new, dtype=dtype)
        return new if accepted else REFUSED


TEXT = h5py.string_dtype()
as_type("text", lambda a: a.astype(str).astype(object), False, TEXT)
as_type("text that is a number", lambda a: np.full(a.shape, "1.5", object), False, TEXT)
as_type("digits of fixed length", lambda a: np.full(a.shape, b"1"), False)
as_type("complex", lambda a: a.astype("c8"), False)
as_type("compound", lambda a: a.astype([("x", "f4"), ("y", "i8")]), False)
as_type("half precision", lambda a: a.astype("f2"), True)
as_type("big-endian", lambda a: a.astype(">f8"), True)
as_type("large integers", lambda a: (a * 2**60).astype("i8"), True)
as_type("flags below zero", lambda a: -(a > 0).astype("i1"), True)


@array_as("references")
def _(rng, file, name, array, outside):
    target = file.create_dataset("elsewhere", data=array)
    if rng.random() < 0.5:
        file.create_dataset(name, array.shape, h5py.ref_dtype)[...] = target.ref
    else:
        file.create_dataset(name, array.shape, h5py.regionref_dtype)[...] = target.regionref[...]
    return REFUSED


@array_as("lists, a group or a type")
def _(rng, file, name, array, outside):
    kind = rng.integers(3)
    if kind == 0:
        file.create_dataset(name, array.shape, h5py.vlen_dtype(np.float32))[0] = [1, 2]
    elif kind == 1:
        file.create_group(name)[name] = array
    else:
        file[name] = np.dtype("f4")
    return REFUSED


@array_as("another shape")
def _(rng, file, name, array, outside):
    shapes = [array[:-1], np.concatenate([array, array[:1]]), array[..., None, None], array[:0]]
    shapes += [array[None], np.stack([array, array], 1), np.float32(1), h5py.Empty("f4")]
    file[name] = shapes[rng.integers(len(shapes))]
    return REFUSED


@array_as("missing")
def _(rng, file, name, array, outside):
    return REREAD if name == "timeouts" else REFUSED


@array_as("NaN or infinity")
def _(rng, file, name, array, outside):
    new = array.astype("f8")
    new.flat[rng.integers(new.size)] = rng.choice([np.nan, np.inf, -np.inf, 1e300, -1e39])
    file[name] = new
    return REFUSED


# --- Links and storage that lead elsewhere


@array_as("link")
def _(rng, file, name, array, outside):
    """To another file, directly or not, to another array, to nothing, or to itself."""
    file["infos/out"] = h5py.ExternalLink(str(outside / "outside.hdf5"), "/")
    file["infos/in"] = array
    targets = [f"/infos/out/{name}", "/infos/in", "/nowhere", f"/{name}"]
    links = [h5py.SoftLink(target) for target in targets]
    links.append(h5py.ExternalLink(str(outside / "outside.hdf5"), name))
    file[name] = links[rng.integers(len(links))]
    return REREAD if name == "timeouts" else REFUSED


@array_as("metadata of all kinds, and an array with two names")
def _(rng, file, name, array, outside):
    attributes = file["metadata"].attrs
    attributes["text"], attributes["many"] = "a\nb", np.zeros(5000)
    attributes["reference"], attributes["empty"] = file["metadata"].ref, h5py.Empty("f4")
    if rng.random() < 0.5:
        del file["metadata"]
        file["metadata"] = h5py.ExternalLink(str(outside / "outside.hdf5"), "/")
    file["elsewhere"] = array
    file[name] = file["elsewhere"]
    return array


@array_as("stored outside")
def _(rng, file, name, array, outside):
    if rng.random() < 0.5:
        raw = [(str(outside / "outside.raw"), 0, array.nbytes)]
        file.create_dataset(name, array.shape, array.dtype, external=raw)
    else:
        layout = h5py.VirtualLayout(array.shape, array.dtype)
        shape = (100, *array.shape[1:])
        source = h5py.VirtualSource(str(outside / "outside.hdf5"), name, shape)
        layout[...] = source[: len(array)]
        file.create_virtual_dataset(name, layout)
    return REFUSED


# --- Sizes


@array_as("rows claimed, none there")
def _(rng, file, name, array, outside):
    """HDF5 would give the fill value for all of them."""
    n = int(10 ** rng.uniform(1, 17))
    for other, width in WIDTHS.items():
        if other in file:
            del file[other]
        options = {"chunks": (min(n, 1000), *width)} if rng.random() < 0.5 else {}
        file.create_dataset(other, (n, *width), "f4", **options)
    return REFUSED


@array_as("chunks claimed, few there")
def _(rng, file, name, array, outside):
    """HDF5 takes 4 KB to read a chunk, and without a fill value what lies in memory."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    plist.set_chunk((1, *array.shape[1:]))
    n = [len(array), 10**4, 10**6, 10**7][rng.integers(4)]
    space, kind = h5py.h5s.create_simple((n, *array.shape[1:])), h5py.h5t.IEEE_F32LE
    stored = h5py.Dataset(h5py.h5d.create(file.id, name.encode(), kind, space, plist))
    stored[: len(array) - 1] = 0
    return REFUSED


@array_as("zeros, a thousand times their bytes")
def _(rng, file, name, array, outside):
    shape = (2**22, *array.shape[1:])
    chunks = (shape[0] // int(rng.choice([1, 16, 256])), *shape[1:])
    zeros = np.zeros(shape, "f4")
    file.create_dataset(name, data=zeros, chunks=chunks, compression="gzip")
    return REFUSED


# --- Filters


def as_chunk(kind, pack, filters, held=REFUSED, mask=0):
    """An array in one chunk, whose content need not be what the filters would give."""

    @array_as(kind)
    def _(rng, file, name, array, outside):
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk(array.shape)
        for code in filters:
            plist.set_filter(code, h5py.h5z.FLAG_OPTIONAL, (4,) if code == GZIP else ())
        space, dtype = h5py.h5s.create_simple(array.shape), h5py.h5t.py_create(array.dtype, True)
        stored = h5py.h5d.create(file.id, name.encode(), dtype, space, plist)
        stored.write_direct_chunk((0,) * array.ndim, pack(array.tobytes()), mask)
        return array if held is None else held


ZEROS = zlib.compress(bytes(10**7))
as_chunk("gzip by hand", zlib.compress, [GZIP], None)
as_chunk("gzip with a wrong checksum", lambda b: zlib.compress(b)[:-1] + b"?", [GZIP], REREAD)
as_chunk("gzip that falls short of its chunk", lambda b: zlib.compress(b[:-8]), [GZIP])
as_chunk("gzip that grows beyond its chunk", lambda b: ZEROS, [GZIP])
as_chunk("gzip left out for a chunk", lambda b: b, [GZIP], None, mask=1)
as_chunk("gzip taken for numbers", zlib.compress, [GZIP], mask=1)
as_chunk("gzip in gzip", lambda b: zlib.compress(zlib.compress(b)), [GZIP, GZIP])
as_chunk("checksum that fails", lambda b: b + b"1234", [FLETCHER32])
as_chunk("less than a checksum", lambda b: b[:3], [FLETCHER32])
as_chunk("filter that is missing", lambda b: b, [299])


@array_as("packed otherwise")
def _(rng, file, name, array, outside):
    ways = [{"compression": "lzf"}, {"scaleoffset": 0}, {"fletcher32": True}]
    new = array.astype("i4")
    file.create_dataset(name, data=new, chunks=new.shape, **ways[rng.integers(3)])
    return REFUSED


# --- Whole files


def whole(rng, path, outside):
    """Nothing wrong; HDF5 files may begin with a block of the user's own."""
    data = valid_data(rng)
    write(path, rng, data).close()
    if rng.random() < 0.5:
        path.write_bytes(rng.bytes(512 * 2 ** int(rng.integers(4))) + path.read_bytes())
    return data


def not_hdf5(rng, path, outside):
    signature = b"\x89HDF\r\n\x1a\n"
    contents = [b"<!DOCTYPE html>\n", b"", signature, rng.bytes(5000), b"PK\x03\x04" + bytes(99)]
    contents += [signature + rng.bytes(2000), signature + bytes(2000)]
    path.write_bytes(contents[rng.integers(len(contents))])
    return REFUSED


KINDS |= {"nothing wrong": whole, "not HDF5": not_hdf5}


# --- What must become of a file


def reference(data):
    """The contract of to_transitions, a step at a time; None for arrays that cannot be used."""
    with np.errstate(all="ignore"):
        data = {name: np.asarray(array).astype(np.float32) for name, array in data.items()}
    n = len(data["rewards"])
    for name, array in data.items():
        if WIDTHS[name] == () and array.shape == (n, 1):
            data[name] = array = array[:, 0]
        if array.shape != (n, *WIDTHS[name]) or not np.isfinite(array).all():
            return None
    rows, steps = [], 0
    for i in range(n - 1):
        timeout = data["timeouts"][i] if "timeouts" in data else steps == MAX_STEPS - 1
        if timeout:
            steps = 0
        else:
            rows.append(i)
            steps = 1 if data["terminals"][i] else steps + 1
    if len(rows) == 0:
        return None
    rows = np.array(rows)
    return {
        "obs": data["observations"][rows],
        "action": np.minimum(np.maximum(data["actions"][rows], -1), 1),
        "reward": data["rewards"][rows],
        "next_obs": data["observations"][rows + 1],
        "done": (data["terminals"][rows] != 0).astype(np.float32),
    }


def second_reading(path):
    with h5py.File(path) as file:
        return {name: file[name][()] for name in WIDTHS if name != "timeouts" or name in file}


def verdict(path, expected, loaded, message):
    """What is wrong with the outcome of a case, or ''."""
    if loaded is None:
        if not message.startswith(f"{path}: ") or not message.isprintable():
            return f"message: {message!r}"
        if isinstance(expected, str) or reference(expected) is None:
            return ""
        return f"refused, though valid: {message}"
    if expected is REFUSED:
        return "wrong load: should have been refused"
    LIBC.mallopt(PERTURB, 0xA5)  # memory that nobody has written to holds another number now
    wanted = reference(second_reading(path) if expected is REREAD else expected)
    if wanted is None:
        return "wrong load: its numbers are of no use"
    for name in wanted:
        if loaded[name].dtype != np.float32 or not np.array_equal(loaded[name], wanted[name]):
            return f"wrong load: {name} is not what the file holds"
    return ""


# --- Running cases


LIBC = ctypes.CDLL(None)
PERTURB = -6  # M_PERTURB in malloc.h: what memory is filled with when it is asked for


def was_opened(descriptor):
    """Whether anything in the folder that inotify watches was opened since the last call."""
    with contextlib.suppress(BlockingIOError):
        return bool(os.read(descriptor, 2**16))
    return False


def attempt(script, path, expected, descriptor):
    """Load one file: (loaded or refused, failure or '', message, seconds)."""
    loaded, message, failure = None, "", ""
    was_opened(descriptor)
    LIBC.mallopt(PERTURB, 0x5A)
    start = time.monotonic()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + BYTES  # more is refused: a MemoryError
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            arrays, _ = script.read_file(path)
            loaded = script.to_transitions(arrays, D, A, MAX_STEPS, str(path))
    except script.InputError as error:
        message = str(error)
    except BaseException as error:  # whatever it is, it is the finding
        failure = f"crash: raises {error!r}"
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    seconds = time.monotonic() - start
    if was_opened(descriptor):
        failure = failure or "wrong load: opens a file beside its own"
    if seconds > SECONDS:
        failure = failure or f"hang: takes {seconds:.1f} s"
    failure = failure or verdict(path, expected, loaded, message)
    return "refused" if loaded is None else "loaded", failure, message, seconds


def work(pipe, script, seed, cases, folder):
    """A process that does cases, and tells before each that its file is there."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    outside = folder / "outside"  # holds a valid file that links lead to, and raw numbers
    outside.mkdir()
    with h5py.File(outside / "outside.hdf5", "w") as file:
        for name, width in WIDTHS.items():
            file[name] = np.full((100, *width), 0.75)
    (outside / "outside.raw").write_bytes(np.full(1000, 0.75).tobytes())
    descriptor = LIBC.inotify_init1(os.O_NONBLOCK)
    LIBC.inotify_add_watch(descriptor, bytes(outside), 0x20)  # IN_OPEN
    for case in cases:
        rng, path = np.random.default_rng([seed, case]), folder / f"case{case}.hdf5"
        expected = KINDS[list(KINDS)[case % len(KINDS)]](rng, path, outside)
        pipe.send("written")
        pipe.send(attempt(script, path, expected, descriptor))
        path.unlink()


def campaign(script, seed, cases, patience=2 * SECONDS):
    """Yield (case, kind, outcome, failure, message, seconds) for each, whatever becomes of it."""
    context, cases = multiprocessing.get_context("fork"), list(cases)
    while cases:
        with tempfile.TemporaryDirectory() as folder:
            mine, theirs = context.Pipe()
            worker = context.Process(target=work, args=(theirs, script, seed, cases, Path(folder)))
            worker.start()
            theirs.close()
            outcome = ""
            while cases and outcome != "died":
                try:
                    mine.recv()
                    result = mine.recv() if mine.poll(patience) else ("died", "hang", "", patience)
                except EOFError:
                    worker.join()
                    result = ("died", f"crash: {signal.Signals(-worker.exitcode).name}", "", 0)
                outcome = result[0]
                kind = list(KINDS)[cases[0] % len(KINDS)]
                yield cases.pop(0), kind, *result
            worker.kill()
            worker.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=2000, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="only this one, with its message")
    parser.add_argument("--script", default="uwac", help="uwac or bear")
    args = parser.parse_args()
    script = importlib.import_module(args.script)
    cases = range(args.cases) if args.case is None else [args.case]
    table, slowest = collections.Counter(), 0.0
    for case, kind, outcome, failure, message, seconds in campaign(script, args.seed, cases):
        table[failure.split(":")[0] or outcome] += 1
        slowest = max(slowest, seconds)
        if failure:
            print(f"{kind}: {failure} (--seed {args.seed} --case {case})", flush=True)
        if args.case is not None:
            print(f"{kind}: {outcome}, {message or 'no message'}")
    print(f"{len(KINDS)} kinds:", ", ".join(f"{count} {name}" for name, count in table.items()))
    print(f"slowest file: {slowest:.1f} s")
    sys.exit(1 if table.keys() - {"loaded", "refused"} else 0)


if __name__ == "__main__":
    main()
