"""D4RL's Gym-MuJoCo and Adroit tasks (Fu et al., 2020) on packages that still install.

    import gymnasium as gym
    import d4rl                                      # registers the tasks

    env = gym.make("door-human-v0")
    data = d4rl.qlearning_dataset(env)               # downloaded once, and verified
    score = 100 * d4rl.get_normalized_score("door-human-v0", episode_return)

The original needs gym and mujoco-py, which nobody maintains. This port keeps the original's names
for what offline algorithms use of it, and knows of no algorithm. Its environments (envs.py) give
D4RL's reference returns to six decimals. datasets.csv has the address of every task's file
(d4rl/infos.py of the original), and its SHA-256 as TensorFlow Datasets publishes it. Those of
relocate are not known. `door-demo-v0` is not D4RL's: it is a small data set that lies here.
"""

import csv
import hashlib
import os
import warnings
from pathlib import Path

import gymnasium as gym
import h5py
import numpy as np
from pooch import HTTPDownloader, file_hash, retrieve

TASKS = {  # class in envs.py, step limit, and the returns that score 0 (random) and 100 (expert)
    "hopper": ("HopperEnv", 1000, -20.272305, 3234.3),
    "halfcheetah": ("HalfCheetahEnv", 1000, -280.178953, 12135.0),
    "walker2d": ("Walker2dEnv", 1000, 1.629008, 4592.3),
    "pen": ("PenEnv", 100, 96.262799, 3076.8331017826877),
    "hammer": ("HammerEnv", 200, -274.856578, 12794.134825156867),
    "door": ("DoorEnv", 200, -56.512833, 2880.5693087298737),
    "relocate": ("RelocateEnv", 200, -6.425911, 4233.877797728884),
}
HERE = Path(__file__).parent
DEMO = "door-demo.hdf5"
SERVER = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
MIRROR = "https://huggingface.co/datasets/imone/D4RL/resolve/"
MIRROR += "b9e1985fe28a0d67418c99473874d6a837d6cf94/"
SERVER_TIMEOUT = 20  # seconds
FLOAT32_MAX = np.finfo(np.float32).max

with open(HERE / "datasets.csv") as table:
    DATASETS = {row["task"]: (row["file"], row["sha256"]) for row in csv.DictReader(table)}

TASK_OF = {}  # environment id: key of TASKS
for env_id in (*DATASETS, *(f"{task}-v0" for task in TASKS)):
    TASK_OF[env_id] = env_id.split("-")[0]
    class_name, step_limit, *_ = TASKS[TASK_OF[env_id]]
    gym.register(env_id, f"d4rl.envs:{class_name}", max_episode_steps=step_limit)
# Version 0 is the paper's, whatever newer one there is.
warnings.filterwarnings("ignore", f".*The environment ({'|'.join(TASKS)})-.* is out of date")


def full_id(env_id: str) -> str:
    """The id with its version, which is 0 for D4RL's tasks unless it is given."""
    return f"{env_id}-v0" if f"{env_id}-v0" in TASK_OF else env_id


class UnitActions(gym.ActionWrapper):
    """An environment with actions in [-1, 1], as policies that end in a tanh give them."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.own = env.action_space
        self.center = (self.own.high.astype(float) + self.own.low) / 2
        self.radius = (self.own.high.astype(float) - self.own.low) / 2
        self.action_space = gym.spaces.Box(-1, 1, self.own.shape)

    def action(self, action: np.ndarray) -> np.ndarray:
        """Actions (..., A) in the environment's own units and type, within its bounds."""
        action = self.center + self.radius * action
        if self.own.dtype.kind in "iu":
            action = action.round()
        return action.clip(self.own.low, self.own.high).astype(self.own.dtype)


def make(env_id: str, **kwargs) -> UnitActions:
    """`gym.make` for environments of which D4RL's format can hold data: with vectors of numbers,
    bounded actions, here scaled to [-1, 1], and a step limit. The version may be missing:
    `door-human`. Raises ValueError, and what the environment itself raises."""
    try:
        env = gym.make(full_id(env_id), **kwargs)
    except gym.error.Error as error:
        tasks = ", ".join(TASKS)
        raise ValueError(f"{env_id}: {error} Of D4RL's tasks, this port has {tasks}") from None
    for space in (env.observation_space, env.action_space):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise ValueError(f"{env_id}: must have vectors of numbers, not {space}")
    width = env.action_space.high.astype(float) - env.action_space.low
    if not ((0 < width) & (width < FLOAT32_MAX)).all():
        raise ValueError(f"{env_id}: needs finite bounds of each action, not {env.action_space}")
    if env.spec.max_episode_steps is None:
        raise ValueError(f"{env_id}: needs a step limit: register it with max_episode_steps")
    return UnitActions(env)


def get_normalized_score(env_id: str, score: np.ndarray) -> np.ndarray:
    """0 for a random policy's return, 1 for an expert's. Raises KeyError outside D4RL's tasks."""
    _, _, random_return, expert_return = TASKS[TASK_OF[full_id(env_id)]]
    return (score - random_return) / (expert_return - random_return)


def normalized_score(env_id: str, returns: np.ndarray) -> np.ndarray:
    """The score in percent, as papers print it; outside D4RL's tasks the return itself."""
    if full_id(env_id) not in TASK_OF:
        return returns
    return 100 * get_normalized_score(env_id, returns)


def download(env_id: str) -> Path:
    """The task's file: from this folder, from D4RL's cache folder (D4RL_DATASET_DIR, or
    ~/.d4rl/datasets), as TASK-rebuilt.hdf5 from there (what benchmark/make_dataset.py makes), from
    D4RL's server, or from a mirror, some of whose files are cut off: so it is asked only where the
    SHA-256 is known. Raises ValueError for a wrong file, OSError where none can be had."""
    if full_id(env_id) not in DATASETS:
        raise ValueError(f"{env_id}: no data of it here; name a file of yours (--dataset-path)")
    file, sha256 = DATASETS[full_id(env_id)]
    cache = Path(os.getenv("D4RL_DATASET_DIR") or "~/.d4rl/datasets").expanduser()
    path = (HERE if file == DEMO else cache) / Path(file).name
    if path.is_file():
        if sha256 and file_hash(path) != sha256:
            problem = "not D4RL's file of this name, by its SHA-256"
            raise ValueError(f"{path}: {problem}; move it away, or name it (--dataset-path)")
        return path
    rebuilt = cache / f"{full_id(env_id).removesuffix('-v0')}-rebuilt.hdf5"
    if rebuilt.is_file():
        return rebuilt
    http = HTTPDownloader(progressbar=True, timeout=SERVER_TIMEOUT)
    reasons = []
    for url in [SERVER + file, MIRROR + path.name] if sha256 else [SERVER + file]:
        try:
            retrieve(url, sha256 or None, path.name, cache, downloader=http)
            if h5py.is_hdf5(path):
                return path
            path.unlink()
            reasons.append(f"{url}: not HDF5")
        except (OSError, ValueError) as error:  # of the network, the disk, the SHA-256
            reasons.append(f"{url}: {error}")
    instead = f"put it into {cache} (D4RL_DATASET_DIR), or make a substitute (benchmark/README.md)"
    raise OSError(f"{path.name} could not be downloaded: {instead}. {'; '.join(reasons)}")


def describe(dataset: str | Path | dict[str, np.ndarray]) -> dict[str, str | bool]:
    """Where a data set lies, its SHA-256, and whether it is a file of D4RL's own."""
    if isinstance(dataset, dict):
        content = b"".join(np.asarray(array).tobytes() for _, array in sorted(dataset.items()))
        sha256 = hashlib.sha256(content).hexdigest()
        return {"path": "arrays from Python", "sha256": sha256, "d4rl": False}
    path = Path(dataset).expanduser()
    sha256 = file_hash(path)
    originals = {known for file, known in DATASETS.values() if file != DEMO}
    return {"path": str(path), "sha256": sha256, "d4rl": sha256 in originals}


def read(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of a file in D4RL's format. Raises ValueError."""
    try:
        with h5py.File(Path(path).expanduser()) as file:
            return {name: array[()] for name, array in file.items() if hasattr(array, "dtype")}
    except Exception as error:  # damage shows in many ways
        raise ValueError(f"{path}: cannot be read as HDF5 ({error})") from error


def qlearning_dataset(
    env: gym.Env, dataset: str | Path | dict[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Transitions of the task's file, of another file, or of arrays of n steps, for an environment
    that `make` or `gym.make` made: observations (n, D), actions (n, A) in the environment's own
    units, rewards (n,), terminals (n,) and, if there are any, timeouts (n,) and next_observations
    (n, D). Returns observations, actions (for `make`'s environment scaled like its own), rewards,
    next_observations and terminals, in this order, float32. Raises as `download` and `read`, and
    ValueError for arrays that cannot be steps of the environment.

    With next_observations each step is a transition. Without, the next step has them, so the last
    step of an episode that the time limit ends is dropped. Without timeouts that limit is the
    environment's. A terminal step is always kept, whatever row follows it. A file of D4RL's
    own gives what the original makes of it: next_observations are not used, the file's last step
    and steps both terminal and at the limit are dropped, and where the file has no timeouts, the
    limit after a terminal step comes one step early.
    """
    where, original = "dataset", False
    if not isinstance(dataset, dict):
        where = dataset or download(env.spec.id)
        original = describe(where)["d4rl"]
        dataset = read(where)
    data = checked(dataset, env, where)
    done = data["terminals"] != 0
    if "timeouts" in data:
        timeout = data["timeouts"] != 0
        if done.any() and (timeout == done).all():
            warnings.warn(f"{where}: timeouts equal terminals, which must be 0 where time ran out")
    else:
        timeout = timeouts_by_limit(done, env.spec.max_episode_steps, original)
    if "next_observations" in data and not original:
        next_obs = data["next_observations"]
        kept = np.ones(len(done), bool)
    else:
        next_obs = np.roll(data["observations"], -1, axis=0)
        timeout[-1:] = True
        kept = ~timeout if original else ~timeout | done
    if not kept.any():
        raise ValueError(f"{where}: no transition among {len(done)} steps")
    return {
        "observations": data["observations"][kept],
        "actions": data["actions"][kept],
        "rewards": data["rewards"][kept],
        "next_observations": next_obs[kept],
        "terminals": done[kept].astype(np.float32),
    }


def timeouts_by_limit(done: np.ndarray, step_limit: int, original: bool) -> np.ndarray:
    """Whether each step (n,) is an episode's last by the time limit."""
    timeout = np.zeros(len(done), bool)
    steps = 0
    for i in range(len(done)):
        steps += 1
        if steps == step_limit:
            timeout[i] = True
            steps = 0
        elif done[i]:
            steps = 1 if original else 0
    return timeout


def checked(dataset: dict, env: gym.Env, where: str | Path) -> dict[str, np.ndarray]:
    """The arrays as float32, if they can be steps of this environment. Raises ValueError."""
    if {"terminations", "truncations"} & set(dataset):
        raise ValueError(f"{where}: terminations, truncations must be named terminals, timeouts")
    missing = {"observations", "actions", "rewards", "terminals"} - set(dataset)
    if missing:
        raise ValueError(f"{where}: {', '.join(sorted(missing))} missing")
    n = np.size(dataset["rewards"])
    shapes = {
        "observations": (n, *env.observation_space.shape),
        "actions": (n, *env.action_space.shape),
        "rewards": (n,),
        "terminals": (n,),
        "timeouts": (n,),
        "next_observations": (n, *env.observation_space.shape),
    }
    data = {}
    for name in [name for name in shapes if name in dataset]:
        array = np.asarray(dataset[name])
        shape = shapes[name]
        if array.dtype.kind not in "biuf" or array.shape not in (shape, (*shape, 1)):
            found = f"{array.dtype} of shape {array.shape} beside {n} rewards"
            raise ValueError(f"{where}: {name} must be numbers of shape {shape}, not {found}")
        bad = np.argwhere(~(np.abs(array) < FLOAT32_MAX))
        if len(bad):
            problem = f"{name} has {len(bad)} NaN or infinite numbers"
            raise ValueError(f"{where}: {problem}, the first in row {bad[0, 0]}")
        data[name] = array.astype(np.float32).reshape(shape)
    own = env.own if isinstance(env, UnitActions) else env.action_space
    if env.spec.id not in TASK_OF:  # some of D4RL's demonstrations are out of bounds
        low = own.low.astype(float)
        high = own.high.astype(float)
        excess = np.maximum(low - data["actions"], data["actions"] - high)
        beyond = np.flatnonzero((excess > 1e-5 * (high - low)).any(1))  # by more than rounding
        if len(beyond):
            problem = f"{len(beyond)} actions are out of {own}"
            raise ValueError(f"{where}: {problem}, the first in row {beyond[0]}")
    if isinstance(env, UnitActions):
        unit = (data["actions"] - env.center) / env.radius
        data["actions"] = unit.astype(np.float32)
    return data
