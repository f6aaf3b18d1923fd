"""Fuzz campaign over load_dataset: damaged, false and hostile HDF5 files.

    python tests/fuzz_dataset.py --cases 2000            # some minutes; exit code 1 after a failure
    python tests/fuzz_dataset.py --seed 0 --case 137     # one case again, with what became of it

A case is a small valid D4RL file, made from (seed, case), and one mutation of it. It must load with the content that is
known or that a second reading finds, or be refused in one line that begins with the path. It fails if it raises anything
else, kills the interpreter, takes more than 10 s or 1 GB, or opens a file beside its own. Linux only: memory is read from
/proc, and inotify tells of opened files.
"""

import argparse
import collections
import contextlib
import ctypes
import io
import multiprocessing
import os
import resource
import signal
import struct
import sys
import tempfile
import time
import warnings
import zlib
from pathlib import Path

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

D, A, MAX_STEPS = 3, 2, 7
NAMES = ("observations", "actions", "rewards", "terminals", "timeouts")
SECONDS, BYTES = 10, 10**9  # the most that a file may take
REFUSED = object()  # what a case can expect, beside the arrays that its file holds,
REREAD = object()  # or that it loads as a second reading says, or is refused


# --- Valid files


def valid_data(rng):
    """Arrays as D4RL stores them, with or without timeouts, sometimes as columns or in double precision."""
    n = int(rng.integers(12, 80))
    real = rng.choice(["f4", "f8"])
    data = {
        "observations": rng.normal(size=(n, D)).astype(real),
        "actions": rng.uniform(-1.2, 1.2, (n, A)).astype(real),
    }
    data |= {"rewards": rng.normal(size=n).astype(real), "terminals": rng.random(n) < 0.1}
    if rng.random() < 0.7:
        data["timeouts"] = rng.random(n) < 0.1
    if rng.random() < 0.2:
        data |= {name: data[name][:, None] for name in data if data[name].ndim == 1}
    return data


def storage(rng, n):
    """How create_dataset stores n rows: in one piece or in chunks, plain or through filters."""
    rows = int(rng.integers(5, n + 1))
    filters = [{}, {"compression": "gzip"}, {"compression": "gzip", "shuffle": True}]
    return [None, None, (rows, {}), *((rows, kind) for kind in filters[1:])][rng.integers(5)]


def store(file, name, array, how):
    options = {"chunks": (how[0], *array.shape[1:]), **how[1]} if how else {}
    return file.create_dataset(name, data=array, **options)


def write(path, rng, data, skip=None, how=None):
    """The file, without array `skip`; returns it open, and how its arrays are stored."""
    how = how or storage(rng, len(data["rewards"]))
    file = h5py.File(path, "w", libver=["earliest", "latest"][rng.integers(2)])
    file.attrs["version"] = "1.0"
    for name, array in data.items():
        if name != skip:
            store(file, name, array, how)
    file["infos/qpos"] = np.arange(12.0)
    file["metadata/algorithm"] = "SAC"
    return file, how


def name_of(rng, data):
    return list(data)[rng.integers(len(data))]


# --- Mutations of the stored bytes


def pieces(path):
    """(array, offset, length) of all numbers in the file."""
    found = []
    with h5py.File(path) as file:
        for name in NAMES:
            if (array := file.get(name)) is None:
                continue
            if array.chunks:
                array.id.chunk_iter(lambda chunk, name=name: found.append((name, chunk.byte_offset, chunk.size)))
            elif array.id.get_offset():
                found.append((name, array.id.get_offset(), array.id.get_storage_size()))
    return found


def places(rng, content, found, where):
    """Offsets of the header, of the numbers, of all else, or of the whole file."""
    inside = np.zeros(len(content), bool)
    for _, offset, length in found:
        inside[offset : offset + length] = True
    head = np.arange(len(content)) < 96
    return np.flatnonzero({"header": head, "numbers": inside, "structure": ~inside, "file": inside | True}[where])


def flip(rng, content, at):
    for place in rng.choice(at, rng.choice([1, 1, 2, 8, 50])):
        content[place] ^= 1 << rng.integers(8)


def overwrite(rng, content, at):
    """A field of 1 to 8 bytes gets a value at some edge."""
    size, place = int(rng.choice([1, 2, 4, 8])), int(rng.choice(at))
    edges = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1, len(content), place, 96]
    edges += [int(rng.integers(2**63)), 10**9]
    content[place : place + size] = (edges[rng.integers(len(edges))] % 256**size).to_bytes(size, "little")


def add(rng, content, at):
    """One byte becomes a bit more or less: counts, sizes and addresses that are nearly right."""
    place = int(rng.choice(at))
    content[place] = (content[place] + int(rng.integers(-9, 10))) % 256


def swap(rng, content, at):
    length = int(rng.integers(1, 64))
    one, two = sorted(map(int, rng.choice(at, 2)))
    if one + length <= two and two + length <= len(content):
        content[one : one + length], content[two : two + length] = (
            content[two : two + length],
            content[one : one + length],
        )


def blank(rng, content, at):
    place, length = int(rng.choice(at)), int(rng.integers(1, 200))
    content[place : place + length] = bytes([rng.choice([0, 255])]) * len(content[place : place + length])


def insert(rng, content, at):
    place = int(rng.choice(at))
    content[place:place] = rng.bytes(rng.integers(1, 64))


def remove(rng, content, at):
    place = int(rng.choice(at))
    del content[place : place + int(rng.integers(1, 64))]


def truncate(rng, content, at):
    del content[int(rng.choice(at)) :]


def append(rng, content, at):
    content += rng.bytes(rng.integers(1, 5000))


def stored_bytes(change, where):
    """A mutation of a written file; numbers in one piece are read back from the bytes without HDF5."""

    def make(rng, path, outside):
        data = valid_data(rng)
        file, how = write(path, rng, data)
        file.close()
        found, content = pieces(path), bytearray(path.read_bytes())
        at = places(rng, content, found, where)
        for _ in range(rng.choice([1, 1, 1, 3])):
            change(rng, content, at[at < len(content)] if len(content) > at[0] else np.zeros(1, int))
        path.write_bytes(content)
        if where != "numbers" or how:
            return REREAD
        held = {name: np.frombuffer(content, data[name].dtype, data[name].size, offset) for name, offset, _ in found}
        return {name: array.reshape(data[name].shape) for name, array in held.items()}

    return make


CHANGES = (flip, overwrite, add, swap, blank)
KINDS = {f"{c.__name__} in {where}": stored_bytes(c, where) for where in ("header", "structure") for c in CHANGES}
KINDS |= {"flip in numbers": stored_bytes(flip, "numbers"), "flip in file": stored_bytes(flip, "file")}
KINDS |= {f"{c.__name__} in file": stored_bytes(c, "file") for c in (insert, remove, truncate, append)}
KINDS |= {f"{c.__name__} in structure again": stored_bytes(c, "structure") for c in (flip, overwrite, add)}


# --- One array stored in another way


def array_as(kind):
    """Registers a function (rng, file, name, array, outside) that stores an array and returns what must become of it:
    REFUSED, REREAD, or the array that the file now holds."""

    def register(change):
        def make(rng, path, outside):
            data = valid_data(rng)
            name = name_of(rng, data)
            file, _ = write(path, rng, data, skip=name)
            with file:
                held = change(rng, file, name, data[name], outside)
            if held is REFUSED or held is REREAD:
                return held
            return data | {name: held}

        KINDS[kind] = make
        return change

    return register


def as_type(kind, cast, held=REFUSED, h5_type=None):
    def change(rng, file, name, array, outside):
        new = cast(array)
        file.create_dataset(name, data=new, dtype=h5_type)
        return held if held is REFUSED else new

    array_as(kind)(change)


as_type("text of fixed length", lambda a: a.astype("S8"))
as_type("text", lambda a: a.astype(str).astype(object), h5_type=h5py.string_dtype())
as_type("text that is a number", lambda a: np.full(a.shape, b"1.5", object), h5_type=h5py.string_dtype())
as_type("digits of fixed length", lambda a: np.full(a.shape, b"1"))
as_type("complex", lambda a: a.astype("c8"))
as_type("compound", lambda a: a.astype([("x", "f4")]))
as_type("compound of two", lambda a: a.astype([("x", "f4"), ("y", "i8")]))
as_type("long double", lambda a: a.astype("g"))
as_type("opaque", lambda a: np.ascontiguousarray(a.astype("f4")).view("V4"))
as_type("half precision", lambda a: a.astype("f2"), True)
as_type("big-endian", lambda a: a.astype(">f8"), True)
as_type("int64", lambda a: (a * 2).astype("i8"), True)
as_type("uint8", lambda a: (a > 0).astype("u1"), True)
as_type("bool", lambda a: a > 0, True)
as_type("column of single numbers", lambda a: a.reshape(len(a), -1)[:, :1] if a.ndim < 2 else a, True)


@array_as("enum")
def _(rng, file, name, array, outside):
    file.create_dataset(name, data=array > 0, dtype=h5py.enum_dtype({"NO": 0, "YES": 1}, basetype="i2"))
    return array > 0


@array_as("array type")
def _(rng, file, name, array, outside):
    kind = h5py.h5t.array_create(h5py.h5t.IEEE_F32LE, array.shape[1:] or (1,))
    h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple(array.shape[:1]))
    return REFUSED


@array_as("lists of numbers")
def _(rng, file, name, array, outside):
    file.create_dataset(name, array.shape, h5py.vlen_dtype(np.float32))[0] = [1, 2]
    return REFUSED


@array_as("bit field, time or odd float")
def _(rng, file, name, array, outside):
    odd = h5py.h5t.IEEE_F32LE.copy()
    odd.set_ebias(int(rng.integers(2**30)))
    kind = [h5py.h5t.STD_B8LE, h5py.h5t.UNIX_D32LE, odd][rng.integers(3)]
    h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple(array.shape))
    return REREAD


@array_as("references to objects")
def _(rng, file, name, array, outside):
    store(file, "elsewhere", array, None)
    file.create_dataset(name, array.shape, h5py.ref_dtype)[...] = file["elsewhere"].ref
    return REFUSED


@array_as("references to regions")
def _(rng, file, name, array, outside):
    store(file, "elsewhere", array, None)
    file.create_dataset(name, array.shape, h5py.regionref_dtype)[...] = file["elsewhere"].regionref[...]
    return REFUSED


@array_as("reference to an array")
def _(rng, file, name, array, outside):
    store(file, "elsewhere", array, None)
    file.create_dataset(name, (), h5py.ref_dtype)[()] = file["elsewhere"].ref
    return REFUSED


@array_as("group")
def _(rng, file, name, array, outside):
    file.create_group(name)[name] = array
    return REFUSED


@array_as("named type")
def _(rng, file, name, array, outside):
    file[name] = np.dtype("f4")
    return REFUSED


@array_as("another shape")
def _(rng, file, name, array, outside):
    row = array[0]
    shapes = [array[()][0], array[:-1], np.concatenate([array, array[:1]]), array[..., None, None], array[:0], array.T]
    shapes += [array.reshape(-1), np.float32(1), array[None], np.stack([array, array], 1), h5py.Empty("f4"), row]
    new = shapes[rng.integers(len(shapes))]
    while np.shape(new) == array.shape or (
        array.size == len(array) and np.shape(new) in (array[:, None].shape, (len(array),))
    ):
        new = shapes[rng.integers(len(shapes))]
    file[name] = new
    return REFUSED


@array_as("as many dimensions as there can be")
def _(rng, file, name, array, outside):
    file.create_dataset(name, (len(array), *[1] * 31), "f4")
    return REFUSED


# --- Links and storage that lead elsewhere


@array_as("external link")
def _(rng, file, name, array, outside):
    target = [outside / "outside.hdf5", Path("..") / outside.name / "outside.hdf5"][rng.integers(2)]
    file[name] = h5py.ExternalLink(str(target), name)
    return REFUSED


@array_as("soft link through an external one")
def _(rng, file, name, array, outside):
    file["elsewhere"] = h5py.ExternalLink(str(outside / "outside.hdf5"), "/")
    file[name] = h5py.SoftLink(f"/elsewhere/{name}")
    return REFUSED


@array_as("soft link")
def _(rng, file, name, array, outside):
    """To an array of this file, to nothing, or to itself: all refused, for where one ends is known only by following."""
    store(file, "elsewhere", array, None)
    file[name] = h5py.SoftLink(["/elsewhere", "/nowhere", f"/{name}"][rng.integers(3)])
    return REFUSED


@array_as("two hard links")
def _(rng, file, name, array, outside):
    file[name] = store(file, "elsewhere", array, None)
    return array


@array_as("external storage")
def _(rng, file, name, array, outside):
    raw = str(outside / "outside.raw")
    file.create_dataset(name, array.shape, array.dtype, external=[(raw, 0, array.nbytes)])
    return REFUSED


@array_as("virtual")
def _(rng, file, name, array, outside):
    """Views of another file of a known size, of unknown size, and of a series of files."""
    space = h5py.h5s.create_simple(array.shape, (h5py.h5s.UNLIMITED, *array.shape[1:]))
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    kind, rest = rng.integers(3), array.shape[1:]
    if kind == 0:
        mine, target = h5py.h5s.create_simple(array.shape), "outside.hdf5"
        theirs, space = mine, mine
    else:
        mine, theirs = space.copy(), space.copy()
        blocks = {1: (h5py.h5s.UNLIMITED, 1), 2: (1, h5py.h5s.UNLIMITED)}[int(kind)]
        mine.select_hyperslab((0,) * array.ndim, (blocks[1], *[1] * len(rest)), (1, *[1] * len(rest)), (1, *rest))
        theirs = mine
        target = "outside.hdf5"
    plist.set_virtual(mine, str(outside / target).encode(), name.encode(), theirs)
    h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(array.dtype), space, plist)
    return REFUSED


# --- Sizes


def blank_array(file, name, shape, value=0.0, **options):
    file.create_dataset(name, shape, "f4", fillvalue=value, **options)


def claimed_rows(chunked):
    """A set of any number of rows of which none is written: HDF5 gives the fill value for all of them."""

    def make(rng, path, outside):
        n = int(10 ** rng.uniform(3, 14))
        value = float(rng.choice([0.0, 0.0, 0.5, np.nan]))
        chunks = {"chunks": True} if chunked and n < 10**9 else {}
        with h5py.File(path, "w") as file:
            for name in NAMES[: 4 + (n > 10**6 or int(rng.integers(2)))]:
                width = {"observations": (D,), "actions": (A,)}.get(name, ())
                filled = value if width or name == "rewards" else 0.0
                chunks = {"chunks": (min(n, 2**20), *width), "compression": "gzip"} if chunked else {}
                blank_array(file, name, (n, *width), filled, **chunks)
        return REREAD if n < 10**7 and np.isfinite(value) and not chunked else REFUSED

    return make


KINDS["rows claimed, none there"] = claimed_rows(False)
KINDS["chunks claimed, none there"] = claimed_rows(True)


@array_as("one huge array")
def _(rng, file, name, array, outside):
    n = int(10 ** rng.uniform(3, 17))
    blank_array(
        file, name, (n, *array.shape[1:]), **({"chunks": (1000, *array.shape[1:])} if rng.random() < 0.5 else {})
    )
    return REFUSED


def zeros_deflated(size):
    """A zlib stream of that many MiB of zeros, a thousandth as long: one block again and again."""
    packer = zlib.compressobj(9)
    head, block = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH), bytes(2**20)
    first = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    check = struct.pack(">I", (size * 2**20 % 65521) << 16 | 1)
    return head + first + again * (size - 1) + b"\x03\x00" + check


@array_as("a chunk for each row")
def _(rng, file, name, array, outside):
    """HDF5 takes 4 KB to read a chunk, even where nothing was written."""
    rest, wide = array.shape[1:], rng.random() < 0.5
    options = {"chunks": (1, *[10**6 if wide else 1] * len(rest)), "maxshape": (None,) * array.ndim}
    n = int(10 ** rng.uniform(6, 7))
    for other in NAMES:
        width = {"observations": (D,), "actions": (A,)}.get(other, ())
        if other in file:
            del file[other]
        if other != name:
            blank_array(file, other, (n, *width))
    blank_array(file, name, (n, *rest), **options)
    return REFUSED


@array_as("gigabytes of zeros in kilobytes")
def _(rng, file, name, array, outside):
    """4 GiB that are really there, compressed."""
    chunk, count = (2**20, *array.shape[1:]), 2**10 // max(1, array[0].size)
    stored = file.create_dataset(name, (2**20 * count, *array.shape[1:]), "f4", chunks=chunk, compression="gzip")
    content = zeros_deflated(4 * array[0].size)
    for i in range(count):
        stored.id.write_direct_chunk((i * 2**20, *[0] * (array.ndim - 1)), content)
    return REFUSED


@array_as("huge chunks")
def _(rng, file, name, array, outside):
    """The rows are few, but HDF5 unpacks a whole chunk to read one."""
    rest = array.shape[1:]
    chunk = (int(10 ** rng.uniform(8.5, 8.9)) // array[0].size, *rest)
    stored = file.create_dataset(name, array.shape, "f4", chunks=chunk, maxshape=(None, *rest), compression="gzip")
    stored.id.write_direct_chunk((0,) * array.ndim, zeros_deflated(4 * chunk[0] * array[0].size // 2**20))
    return REFUSED


# --- Filters


def raw_chunk(file, name, array, content, *filters):
    """The array in one chunk that holds `content`, which need not be what the filters would give."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk(array.shape)
    for code, *values in filters:
        plist.set_filter(code, h5py.h5z.FLAG_OPTIONAL, tuple(values))
    space, kind = h5py.h5s.create_simple(array.shape), h5py.h5t.py_create(array.dtype, logical=True)
    stored = h5py.h5d.create(file.id, name.encode(), kind, space, plist)
    stored.write_direct_chunk((0,) * array.ndim, content)


@array_as("gzip by hand")
def _(rng, file, name, array, outside):
    raw_chunk(file, name, array, zlib.compress(array.tobytes()), (h5py.h5z.FILTER_DEFLATE, 4))
    return array


@array_as("gzip that fails")
def _(rng, file, name, array, outside):
    content = bytearray(zlib.compress(array.tobytes()))
    content[int(rng.integers(len(content) - 4, len(content)))] ^= 1 << rng.integers(8)  # its checksum
    raw_chunk(file, name, array, bytes(content), (h5py.h5z.FILTER_DEFLATE, 4))
    return REFUSED


@array_as("checksum that fails")
def _(rng, file, name, array, outside):
    content = array.tobytes() + (zlib.crc32(array.tobytes()) | 1).to_bytes(4, "little")
    raw_chunk(file, name, array, content, (h5py.h5z.FILTER_FLETCHER32,))
    return REFUSED


@array_as("filter that is missing")
def _(rng, file, name, array, outside):
    raw_chunk(file, name, array, array.tobytes(), (int(rng.choice([299, 305, 32008, 32015, 65535])), 1, 2))
    return REFUSED


@array_as("gzip that grows beyond its chunk")
def _(rng, file, name, array, outside):
    raw_chunk(file, name, array, zeros_deflated(2000), (h5py.h5z.FILTER_DEFLATE, 4))
    return REFUSED


@array_as("gzip that falls short of its chunk")
def _(rng, file, name, array, outside):
    raw_chunk(
        file, name, array, zlib.compress(array.tobytes()[: -int(rng.integers(1, 9))]), (h5py.h5z.FILTER_DEFLATE, 4)
    )
    return REFUSED


@array_as("gzip in gzip")
def _(rng, file, name, array, outside):
    content = zlib.compress(zeros_deflated(int(rng.choice([500, 2000, 3000]))), 9)
    raw_chunk(file, name, array, content, (h5py.h5z.FILTER_DEFLATE, 4), (h5py.h5z.FILTER_DEFLATE, 4))
    return REFUSED


@array_as("many chunks that grow")
def _(rng, file, name, array, outside):
    stored = file.create_dataset(name, array.shape, array.dtype, chunks=(1, *array.shape[1:]), compression="gzip")
    for i in range(len(array)):
        stored.id.write_direct_chunk((i, *[0] * (array.ndim - 1)), zeros_deflated(150))
    return REFUSED


@array_as("lzf")
def _(rng, file, name, array, outside):
    file.create_dataset(name, data=array, chunks=array.shape, compression="lzf")
    return REFUSED


@array_as("checksums")
def _(rng, file, name, array, outside):
    """Refused whole: HDF5 crashes where a chunk is shorter than its checksum."""
    content = array.tobytes()[: int(rng.integers(1, 4))]
    raw_chunk(file, name, array, content, (h5py.h5z.FILTER_FLETCHER32,))
    return REFUSED


@array_as("never written, never filled")
def _(rng, file, name, array, outside):
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    chunked = rng.random() < 0.5
    if chunked:
        plist.set_chunk(array.shape)
    space, kind = h5py.h5s.create_simple(array.shape), h5py.h5t.py_create(array.dtype, logical=True)
    h5py.h5d.create(file.id, name.encode(), kind, space, plist)
    return REFUSED if chunked else np.zeros(array.shape)


@array_as("scale and offset")
def _(rng, file, name, array, outside):
    file.create_dataset(name, data=array.astype("i4"), chunks=array.shape, scaleoffset=0)
    return REFUSED


# --- Values


@array_as("NaN or infinity")
def _(rng, file, name, array, outside):
    new = array.astype("f8")
    new.flat[rng.integers(new.size)] = rng.choice([np.nan, np.inf, -np.inf, 1e300, -1e39])
    file[name] = new
    return REFUSED


@array_as("values at the edge")
def _(rng, file, name, array, outside):
    new = array.astype("f8")
    new.flat[rng.integers(new.size, size=3)] = rng.choice([-0.0, 3.4e38, -3.4e38, 1e-45, 1e-300, -1, 2**53 + 1], 3)
    file[name] = new
    return new


@array_as("large integers")
def _(rng, file, name, array, outside):
    new = rng.integers(-(2**63), 2**63 - 1, array.shape)
    file[name] = new
    return new


@array_as("attributes of all kinds")
def _(rng, file, name, array, outside):
    attributes = store(file, name, array, None).attrs
    attributes["text"], attributes["reference"], attributes["many"] = "a\nb", file["infos"].ref, np.zeros(5000)
    attributes["empty"] = h5py.Empty("f4")
    return array


# --- Whole files


def whole(kind):
    def register(make):
        KINDS[kind] = make
        return make

    return register


@whole("nothing wrong")
def _(rng, path, outside):
    data = valid_data(rng)
    write(path, rng, data)[0].close()
    return data


@whole("array missing")
def _(rng, path, outside):
    data = valid_data(rng)
    name = name_of(rng, data)
    write(path, rng, data, skip=name)[0].close()
    return REFUSED if name != "timeouts" else {k: array for k, array in data.items() if k != name}


@whole("arrays swapped")
def _(rng, path, outside):
    data = valid_data(rng)
    names = list(data)
    swapped = dict(zip(names, (data[name] for name in rng.permutation(names))))
    write(path, rng, swapped)[0].close()
    shapes = {name: (len(data["rewards"]), *{"observations": (D,), "actions": (A,)}.get(name, ())) for name in names}
    fits = all(swapped[n].shape in (shapes[n], (*shapes[n], 1)[: 2 + (len(shapes[n]) > 1)]) for n in names)
    return swapped if fits else REFUSED


@whole("too few rows")
def _(rng, path, outside):
    n = int(rng.integers(3))
    data = {name: array[:n] for name, array in valid_data(rng).items()}
    with h5py.File(path, "w") as file:
        for name, array in data.items():
            file[name] = array
    return data


@whole("flags below zero")
def _(rng, path, outside):
    """D4RL takes a flag by bool(), so -1 is set, too."""
    data = valid_data(rng)
    data |= {name: -data[name].astype("i1") for name in data if name in ("terminals", "timeouts")}
    data["terminals"][::3] = -1
    write(path, rng, data)[0].close()
    return data


@whole("text in front")
def _(rng, path, outside):
    """HDF5 files may begin with a block of the user's own."""
    data = valid_data(rng)
    write(path, rng, data)[0].close()
    path.write_bytes(rng.bytes(512 * 2 ** int(rng.integers(4))) + path.read_bytes())
    return data


@whole("filter with a name of two lines")
def _(rng, path, outside):
    data = valid_data(rng)
    with h5py.File(path, "w") as file:
        for name, array in data.items():
            store(file, name, array, (len(array), {"compression": "gzip"}))
    content = path.read_bytes()
    path.write_bytes(
        content.replace(b"\x01\x00\x08\x00\x01\x00\x01\x00deflate", b"\x2c\x01\x08\x00\x01\x00\x01\x00a\nb\x1b[1m")
    )
    return REFUSED


@whole("not HDF5")
def _(rng, path, outside):
    html = b"<!DOCTYPE html><html><body>404 Not Found</body></html>\n"
    contents = [html, b"", b"\x89HDF\r\n\x1a\n", b"observations,actions\n1,2\n", rng.bytes(5000), bytes(5000)]
    contents += [
        b"\x89HDF\r\n\x1a\n" + rng.bytes(2000),
        b"\x89HDF\r\n\x1a\n" + bytes(2000),
        b"PK\x03\x04" + rng.bytes(99),
    ]
    path.write_bytes(contents[rng.integers(len(contents))])
    return REFUSED


@whole("folder or nothing")
def _(rng, path, outside):
    if rng.random() < 0.5:
        path.mkdir()
    return REFUSED


# --- What must become of a file


def reference(data):
    """load_dataset's contract; None for arrays that cannot be used."""
    with np.errstate(all="ignore"):
        data = {name: np.asarray(array).astype(np.float32) for name, array in data.items()}
    n = len(data["rewards"])
    if not all(np.isfinite(array).all() for array in data.values()):
        return None
    ends = data["terminals"].reshape(n) != 0
    if "timeouts" in data:
        timeouts = data["timeouts"].reshape(n) != 0
    else:
        timeouts, step = np.zeros(n, bool), 0
        for i, terminal in enumerate(ends.tolist()):
            if step == MAX_STEPS - 1:
                timeouts[i], step = True, 0
            else:
                step = 1 if terminal else step + 1
    rows = np.flatnonzero(~timeouts[:-1])
    if not len(rows):
        return None
    obs, action = data["observations"], np.minimum(np.maximum(data["actions"], -1), 1)
    loaded = {"obs": obs[rows], "action": action[rows], "reward": data["rewards"].reshape(n)[rows]}
    return loaded | {"next_obs": obs[rows + 1], "done": ends[rows].astype(np.float32)}


def second_reading(path):
    """The file's arrays through HDF5's own functions and conversions, and proof that they are arrays of this file."""
    file, data = h5py.h5f.open(bytes(path), h5py.h5f.ACC_RDONLY), {}
    for name in NAMES:
        if name == "timeouts" and not file.links.exists(name.encode()):
            continue
        assert file.links.get_info(name.encode()).type == h5py.h5l.TYPE_HARD
        stored = h5py.h5d.open(file, name.encode())
        plist, kind = stored.get_create_plist(), stored.get_type()
        assert plist.get_layout() != h5py.h5d.VIRTUAL and plist.get_external_count() == 0
        assert kind.get_class() in (h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.ENUM, h5py.h5t.BITFIELD)
        assert stored.shape[1:] in {"observations": [(D,)], "actions": [(A,)]}.get(name, [(), (1,)])
        if kind.get_class() == h5py.h5t.FLOAT:
            data[name], memory = np.zeros(stored.shape), h5py.h5t.NATIVE_DOUBLE
        else:
            data[name] = np.zeros(stored.shape, kind.dtype)
            memory = h5py.h5t.py_create(data[name].dtype) if kind.get_class() == h5py.h5t.INTEGER else kind
        stored.read(h5py.h5s.ALL, h5py.h5s.ALL, data[name], memory)
    return data


def verdict(path, expected, loaded, message):
    """What is wrong with the outcome of a case, or ''."""
    if loaded is None:
        if not message.startswith(f"{path}: ") or not message.isprintable() or len(message) < len(f"{path}: ") + 10:
            return f"message {message!r}"
        if expected is REFUSED or expected is REREAD or reference(expected) is None:
            return ""
        return f"refused, though valid: {message}"
    if expected is REFUSED:
        return "loaded, and should have been refused"
    LIBC.mallopt(PERTURB, 0xA5)  # of another number
    wanted = reference(second_reading(path) if expected is REREAD else expected)
    if wanted is None:
        return "loaded, though its numbers are of no use"
    if [*loaded] != [*wanted]:
        return f"loaded {[*loaded]}"
    for name in wanted:
        if loaded[name].dtype != np.float32 or not np.array_equal(loaded[name], wanted[name]):
            return f"{name} is not what the file holds"
    return ""


# --- Running cases


LIBC = ctypes.CDLL(None)
PERTURB = -6  # M_PERTURB in malloc.h


def watch(folder):
    """A descriptor that becomes readable when anything in the folder is opened."""
    descriptor = LIBC.inotify_init1(os.O_NONBLOCK)
    assert LIBC.inotify_add_watch(descriptor, bytes(folder), 0x20) >= 0  # IN_OPEN
    return descriptor


def was_opened(descriptor):
    try:
        return bool(os.read(descriptor, 2**16))
    except BlockingIOError:
        return False


def memory(field):
    """Bytes, by the kernel: VmRSS now, VmHWM at the most since reset_peak, VmSize of address space."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def reset_peak():
    Path("/proc/self/clear_refs").write_text("5")


def build(seed, case, folder, outside):
    kinds = list(KINDS)
    rng = np.random.default_rng([seed, case])
    path = folder / f"case{case}.hdf5"
    return kinds[case % len(kinds)], path, KINDS[kinds[case % len(kinds)]](rng, path, outside)


def load_within(script, path, cap):
    """One call of the loader with at most `cap` more bytes of address space: (arrays or None, message, class of the
    error, failure or '', seconds, bytes at the most)."""
    loaded, message, cause, failure = None, "", "", ""
    LIBC.mallopt(PERTURB, 0x5A)  # memory that nobody has written to is full of a number, here and in the second reading
    reset_peak()
    before, start = memory("VmRSS"), time.monotonic()
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + cap, resource.RLIM_INFINITY))
    try:
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            loaded = script.load_dataset(path, D, A, MAX_STEPS)
        message = stderr.getvalue()
    except script.InputError as error:
        message, cause = str(error), type(error.__cause__).__name__ if error.__cause__ else "InputError"
    except BaseException as error:  # noqa: BLE001 (whatever it is, it is the finding)
        failure = f"raises {error!r}"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return loaded, message, cause, failure, time.monotonic() - start, memory("VmHWM") - before


def attempt(script, path, expected, descriptor):
    """Load one file: (loaded or refused, failure or '', class of the error, message, seconds, bytes at the most)."""
    was_opened(descriptor)
    loaded, message, cause, failure, seconds, peak = load_within(script, path, BYTES)
    if loaded is None and cause != "InputError" and not failure:
        # HDF5 failed: because it had no more memory than that?
        loaded, *again, seconds, peak = load_within(script, path, 8 * BYTES)
        failure = f"takes more than 1 GB: {message}" if loaded or again != [message, cause, ""] else ""
    if was_opened(descriptor):
        failure = failure or "opens a file beside its own"
    if peak > BYTES:
        failure = failure or f"takes {peak / 1e6:.0f} MB"
    failure = failure or verdict(path, expected, loaded, message)
    return "refused" if loaded is None else "loaded", failure, cause, message, seconds, peak


def make_outside(folder):
    """A valid file in all shapes that a link may ask for, and its numbers as raw bytes."""
    folder.mkdir()
    with h5py.File(folder / "outside.hdf5", "w") as file:
        for name in NAMES:
            shape = (100, *{"observations": (D,), "actions": (A,)}.get(name, ()))
            file[name] = np.full(shape, 0.75)
    (folder / "outside.raw").write_bytes(np.full(1000, 0.75).tobytes())


def work(connection, script, seed, cases, folder, outside):
    """A process that does cases one after the other, and tells before each what it is about to do."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("error")  # a warning is a second line
    descriptor = watch(outside)
    h5py.File(outside / "outside.hdf5").close()
    assert was_opened(descriptor), "inotify does not tell of opened files here"
    for case in cases:
        connection.send(("makes", case, "?"))
        kind, path, expected = build(seed, case, folder, outside)
        connection.send(("loads", case, kind))
        result = attempt(script, path, expected, descriptor)
        connection.send(("ends", case, kind, *result))
        if path.is_file():
            path.unlink()
    connection.send(("leaves",))


def campaign(script, seed, cases, seconds=SECONDS, patience=20, renew=250):
    """Yield (case, kind, outcome, failure, cause, message, seconds, bytes) for each case, whatever happens to it."""
    context, cases = multiprocessing.get_context("fork"), list(cases)
    with tempfile.TemporaryDirectory() as folder:
        outside, inside = Path(folder) / "outside", Path(folder) / "cases"
        make_outside(outside)
        inside.mkdir()
        while cases:
            mine, theirs = context.Pipe()
            worker = context.Process(target=work, args=(theirs, script, seed, cases[:renew], inside, outside))
            worker.start()
            theirs.close()
            stage, kind = "starts", "?"
            while stage != "leaves":
                # The verdict comes after loading, so a hang is told from a slow check by what the worker measures
                if not mine.poll(seconds + patience if stage == "loads" else 100):
                    worker.kill()
                    yield cases.pop(0), kind, "died", f"hangs while it {stage}", "", "", float(seconds), 0
                    break
                try:
                    stage, *rest = mine.recv()
                except EOFError:
                    worker.join()
                    name = signal.Signals(-worker.exitcode).name if worker.exitcode < 0 else worker.exitcode
                    yield cases.pop(0), kind, "died", f"kills the interpreter while it {stage}: {name}", "", "", 0.0, 0
                    break
                kind = rest[1] if rest else kind
                if stage == "ends":
                    case, kind, outcome, failure, *figures = rest
                    if figures[2] > seconds:
                        failure = f"takes {figures[2]:.1f} s; {failure}"
                    cases.pop(0)
                    yield case, kind, outcome, failure, *figures
            worker.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=2000, help="how many, from case --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="only this one, with its message")
    parser.add_argument("--script", default="uwac", help="uwac or bear")
    args = parser.parse_args()
    script, start = __import__(args.script), time.monotonic()
    cases = range(args.first, args.first + args.cases) if args.case is None else [args.case]
    table, causes, worst, failures = collections.defaultdict(collections.Counter), collections.Counter(), [0, 0], []
    for case, kind, outcome, failure, cause, message, seconds, peak in campaign(script, args.seed, cases):
        table[kind].update(["cases", outcome, *(["failures"] if failure else [])])
        causes.update([cause] if cause else [])
        worst = [max(worst[0], seconds), max(worst[1], peak)]
        if failure:
            failures.append(case)
            print(
                f"FAILURE {kind}: {failure}\n    python tests/fuzz_dataset.py --seed {args.seed} --case {case}",
                flush=True,
            )
        if args.case is not None:
            print(f"{kind}: {outcome}, {message or 'no message'} ({seconds:.2f} s, {peak / 1e6:.0f} MB)")
    columns = ["cases", "loaded", "refused", "died", "failures"]
    print(f"{'kind':40}" + "".join(f"{column:>10}" for column in columns))
    for kind, row in [*table.items(), ("all", sum(table.values(), collections.Counter()))]:
        print(f"{kind:40}" + "".join(f"{row[column]:10}" for column in columns))
    print("refusals by error:", ", ".join(f"{name} {count}" for name, count in causes.most_common()))
    print(f"at most {worst[0]:.1f} s and {worst[1] / 1e6:.0f} MB a file; {time.monotonic() - start:.0f} s in all")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
