"""What the programs of this folder leave: files that are whole, and on which hardware."""

import json
import subprocess
from pathlib import Path

import torch


def write(path: Path, content: str | bytes) -> None:
    """Renamed when whole: a full disk leaves what was there. Raises OSError."""
    part = path.with_name(f"{path.name}.tmp")
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    part.replace(path)


def write_json(path: Path, content: dict | list) -> None:
    write(path, json.dumps(content, indent=1))


def read_json(path: Path) -> dict | list:
    """Raises OSError, and ValueError that names a damaged file."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: damaged, move it away ({error})") from error


def hardware() -> str:
    """The GPU, or the CPU and how many of its threads torch uses."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    cpu = subprocess.getoutput("lscpu 2>/dev/null | sed -n 's/^ *Model name: *//p'")
    return f"{cpu}, {torch.get_num_threads()} threads"
