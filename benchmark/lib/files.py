import subprocess

from benchmark.files import *  # until the report's room is built

MODEL = {  # the commands that name a device
    "cpu": "lscpu 2>/dev/null | sed -n 's/^ *Model name: *//p'",
    "cuda": "nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1",
}


def hardware(line: str) -> str:
    """With a model's name, of a script's result: "cpu, 1 threads" -> "AMD EPYC, 1 threads"."""
    device, threads = line.split(", ")
    return f"{subprocess.getoutput(MODEL[device]) or device}, {threads}"
