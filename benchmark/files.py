"""What all programs need: files that are whole, errors in one line, arguments of several words."""

import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from argparse import ArgumentTypeError
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field
from pydantic_core import to_json

T = TypeVar("T")
OneOrMore = Annotated[tuple[T, ...], Field(min_length=1)]  # of an argument


@contextmanager
def errors_in_one_line():
    """What a user can mend, or the disk does, ends the program with one line and exit code 1."""
    if sys.stderr is None:  # as of a daemon, where tqdm would fail
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stdout:
        sys.stdout.reconfigure(errors="replace")  # of ± and α in a terminal that lacks them
    try:
        yield
    except KeyboardInterrupt:
        sys.exit("stopped")
    except (ArgumentTypeError, ValueError, ArithmeticError, OSError, ImportError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")


def try_to_write(folder: Path) -> None:
    """Raises OSError now, and not after hours."""
    tempfile.TemporaryFile(dir=folder).close()


def new_path(path: Path) -> Path:
    """For what a program finds, in a folder that can be written. Raises ValueError where something
    is there, and OSError."""
    path = path.expanduser()
    if path.exists():
        raise ValueError(f"{path} exists: move it away")
    path.parent.mkdir(parents=True, exist_ok=True)
    try_to_write(path.parent)
    return path


def write(path: Path, content: bytes) -> None:
    """Renamed when whole: a full disk leaves what was there. Raises OSError."""
    part = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    part.write_bytes(content)
    part.replace(path)


def write_json(path: Path, content: dict | list) -> None:
    """In UTF-8, and null where a number is NaN or infinite, which JSON has not."""
    write(path, to_json(content, indent=1, inf_nan_mode="null"))


def read_json(path: Path) -> dict | list:
    """Raises OSError, and ValueError that names a damaged file."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: damaged, move it away ({error})") from error


def checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@contextmanager
def new_files(folder: Path, program: str):
    """A temporary folder for a program's files, which at the end replace those that it left in
    `folder` before. Raises ValueError, and changes nothing, where it did not write a file that is
    in the way, or somebody changed it since: FOLDER/written_by_PROGRAM.json tells."""
    folder = folder.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    listing = folder / f"written_by_{program}.json"
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        yield Path(temporary)
        new = sorted(Path(temporary).iterdir())
        sums = read_json(listing) if listing.exists() else {}
        own = [folder / name for name in sums if (folder / name).is_file()]
        own = [file for file in own if checksum(file) == sums[file.name]]
        for file in (folder / one.name for one in new):
            if file.exists() and file not in own:
                problem = f"not as {program}.py left it, or not its own"
                raise ValueError(f"{file}: {problem}; move it away, or choose another --folder")
        for file in own:
            file.unlink()
        write_json(listing, {file.name: checksum(file) for file in new})
        for file in new:
            file.replace(folder / file.name)


def commit(checkout: Path) -> str:
    """Empty where there is no git, or the folder is no checkout of it."""
    git = f"git -C {shlex.quote(str(checkout))} describe --always --dirty 2>/dev/null"
    return subprocess.getoutput(git)
