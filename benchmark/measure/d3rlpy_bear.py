"""d3rlpy's side of speed.py, for a Python that has it (pip install d3rlpy==2.8.1): prints
milliseconds of a gradient step of its BEAR, the mean of as many as take SECONDS, and peak MB.

    python d3rlpy_bear.py THREADS SECONDS B D A COMPILE_GRAPH

Sizes are the paper's, as in bear.py: hidden layers 256-256, VAE 750-750, 10 candidates, 10 actions
for MMD, gaussian kernel; no warm-up, so that Q is in the actor's loss, as in ours. Its batch of B
is made before.
"""

import contextlib
import resource
import sys

import numpy as np
import torch
from torch.utils.benchmark import Timer

with contextlib.redirect_stdout(sys.stderr):
    from d3rlpy.algos import BEARConfig
    from d3rlpy.dataset import Transition, TransitionMiniBatch
    from d3rlpy.models import VectorEncoderFactory

seconds = float(sys.argv.pop(2))
threads, batch_size, obs_dim, action_dim, compile_graph = map(int, sys.argv[1:])
torch.set_num_threads(threads)
rng = np.random.default_rng(0)


def uniform(*shape: int) -> np.ndarray:
    return rng.uniform(-1, 1, shape).astype(np.float32)


bear = BEARConfig(
    batch_size=batch_size,
    imitator_encoder_factory=VectorEncoderFactory([750, 750]),
    n_target_samples=10,
    n_mmd_action_samples=10,
    mmd_kernel="gaussian",
    warmup_steps=0,
    compile_graph=bool(compile_graph),
).create(device="cuda:0" if torch.cuda.is_available() else "cpu:0")
bear.create_impl((obs_dim,), action_dim)
transitions = [
    Transition(
        observation=uniform(obs_dim),
        action=uniform(action_dim),
        reward=uniform(1),
        next_observation=uniform(obs_dim),
        next_action=uniform(action_dim),
        rewards_to_go=uniform(1, 1),
        terminal=0.0,
        interval=1,
    )
    for _ in range(batch_size)
]
batch = TransitionMiniBatch.from_transitions(transitions)
for _ in range(10):  # compiles, if it is asked to
    bear.update(batch)
timer = Timer("bear.update(batch)", globals={"bear": bear, "batch": batch}, num_threads=threads)
ms = 1000 * timer.blocked_autorange(min_run_time=seconds).mean
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
if torch.cuda.is_available():
    memory = torch.cuda.max_memory_allocated() / 1e6
print(ms, memory)
