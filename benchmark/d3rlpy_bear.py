"""Worker of speed.py, for d3rlpy's Python: for each line on stdin, a number of seconds, ms of a gradient step of BEAR.

    python d3rlpy_bear.py THREADS D A

The sizes are the paper's, as in bear.py: hidden layers 256-256, VAE 750-750, batch 256, 10 candidates, 10 actions for
MMD, gaussian kernel; no warm-up, so that Q is in the actor's loss, as in every update of ours. Its batch is made before.
"""

import contextlib
import sys
import time

import numpy as np
import torch

with contextlib.redirect_stdout(sys.stderr):
    from d3rlpy.algos import BEARConfig
    from d3rlpy.dataset import Transition, TransitionMiniBatch
    from d3rlpy.models import VectorEncoderFactory

threads, obs_dim, action_dim = map(int, sys.argv[1:])
torch.set_num_threads(threads)
rng = np.random.default_rng(0)


def uniform(*shape: int) -> np.ndarray:
    return rng.uniform(-1, 1, shape).astype(np.float32)


vae = VectorEncoderFactory([750, 750])
settings = {"n_target_samples": 10, "n_mmd_action_samples": 10, "mmd_kernel": "gaussian", "warmup_steps": 0}
bear = BEARConfig(batch_size=256, imitator_encoder_factory=vae, **settings).create(device="cpu:0")
bear.create_impl((obs_dim,), action_dim)
sizes = {"observation": (obs_dim,), "action": (action_dim,), "reward": (1,), "next_observation": (obs_dim,)}
sizes |= {"next_action": (action_dim,), "rewards_to_go": (1, 1)}
transitions = [
    Transition(**{name: uniform(*size) for name, size in sizes.items()}, terminal=0.0, interval=1) for _ in range(256)
]
batch = TransitionMiniBatch.from_transitions(transitions)
bear.update(batch)
for line in sys.stdin:
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < float(line) or not count:
        bear.update(batch)
        count += 1
    print(1000 * (time.perf_counter() - start) / count, flush=True)
