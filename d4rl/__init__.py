"""D4RL's Gym-MuJoCo and Adroit tasks (Fu et al., 2020) on packages that still install.

README.md beside this file has an example, and says how far it is D4RL.
"""

import csv
import hashlib
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import gymnasium as gym
import h5py
import numpy as np
from gymnasium.envs.registration import WrapperSpec
from gymnasium.utils import RecordConstructorArgs
from pooch import HTTPDownloader, file_hash, get_logger, retrieve

TASKS = {  # class in envs.py, step limit, and the returns that score 0 (random) and 100 (expert)
    "hopper": ("HopperEnv", 1000, -20.272305, 3234.3),
    "halfcheetah": ("HalfCheetahEnv", 1000, -280.178953, 12135.0),
    "walker2d": ("Walker2dEnv", 1000, 1.629008, 4592.3),
    "pen": ("PenEnv", 100, 96.262799, 3076.8331017826877),
    "hammer": ("HammerEnv", 200, -274.856578, 12794.134825156867),
    "door": ("DoorEnv", 200, -56.512833, 2880.5693087298737),
    "relocate": ("RelocateEnv", 200, -6.425911, 4233.877797728884),
}
LONG_HORIZON = {"pen": 200, "hammer": 600, "door": 300, "relocate": 500}  # human-longhorizon's
ARRAYS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
MINARI = ("terminations", "truncations")  # its names for terminals and timeouts
CONVERT = "python benchmark/make_dataset.py --minari converts Minari's sets"
HERE = Path(__file__).parent
DEMO = "door-demo.hdf5"
SERVER = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
MIRROR = "https://huggingface.co/datasets/imone/D4RL/resolve/"
MIRROR += "b9e1985fe28a0d67418c99473874d6a837d6cf94/"  # has files that are cut off
SERVER_TIMEOUT = (5, 20)  # seconds until it must be connected, and between two parts of a file
FLOAT32_MAX = np.finfo(np.float32).max


class Arrays(dict):
    """The arrays of a file by their names there, with what was known of it when they were read."""


class UnitTransitions(dict):
    """`qlearning_dataset`'s for `make`'s environments: their actions are scaled already."""


with open(HERE / "datasets.csv") as table:
    DATASETS = {row["task"]: (row["file"], row["sha256"]) for row in csv.DictReader(table)}

TASK_OF = {}  # environment id: key of TASKS
methods = (WrapperSpec("OfflineEnv", "d4rl:OfflineEnv", {}),)
for env_id in (*DATASETS, *(f"{task}-v0" for task in TASKS)):
    task = TASK_OF[env_id] = env_id.split("-")[0]
    name, limit, *_ = TASKS[task]
    limit = LONG_HORIZON[task] if "longhorizon" in env_id else limit
    gym.register(env_id, f"d4rl.envs:{name}", max_episode_steps=limit, additional_wrappers=methods)
for env_id in (HERE / "elsewhere.txt").read_text().split():
    gym.register(env_id, lambda task, **_: task_of(task), kwargs={"task": env_id})
ENTRY_POINTS = {env_id: gym.registry[env_id].entry_point for env_id in TASK_OF}
# Version 0 is the paper's, whatever newer one there is.
warnings.filterwarnings("ignore", f".*The environment ({'|'.join(TASKS)})-.* is out of date")


def full_id(env_id: str) -> str:
    """The id of D4RL's task with its version, which is 0 unless it is given, and without `d4rl:`;
    another id as it is, and one with another module. Raises ValueError without a version 0."""
    name = env_id.removeprefix("d4rl:")
    known = name if name in TASK_OF else f"{name}-v0"
    if known not in TASK_OF and f"{name}-v1" in TASK_OF:
        raise ValueError(f"{env_id}: has no version 0; choose {name}-v1 or {name}-v2")
    return known if known in TASK_OF else env_id


def task_of(env_id: str) -> str:
    """The key of TASKS. Raises ValueError outside D4RL's tasks, which says those that are here."""
    if full_id(env_id) not in TASK_OF:
        raise ValueError(f"{env_id}: of D4RL's tasks, this port has {', '.join(TASKS)}")
    return TASK_OF[full_id(env_id)]


def kind_of(env_id: str) -> str:
    """What all versions and data sets share: "door" of door-human-v0 and of AdroitHandDoor-v1."""
    name = re.sub(r"^.*[:/]|-v\d+$", "", env_id)
    task = name.lower().removeprefix("adroithand").split("-")[0]
    return task if task in TASKS else name


def id_of(env: gym.Env) -> str:
    """The environment's id, with its module if D4RL's own has that id. Raises ValueError."""
    if env.spec is None:
        raise ValueError(f"{env}: has no id; register it, and make it with gym.make")
    own = env.spec.entry_point == ENTRY_POINTS.get(env.spec.id, env.spec.entry_point)
    return env.spec.id if own else f"{type(env.unwrapped).__module__}:{env.spec.id}"


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


def make(env_id: str, **settings) -> UnitActions:
    """`gym.make` for environments of which D4RL's format can hold data: with vectors of numbers,
    bounded actions, here scaled to [-1, 1], and a step limit. The version may be missing:
    `door-human`. Raises ValueError, and what the environment itself raises."""
    name = full_id(env_id)
    try:
        env = gym.make(name, **settings)
    except gym.error.Error as error:
        raise ValueError(f"{env_id}: {error}") from None
    if (name in TASK_OF) != (id_of(env) in TASK_OF):  # whoever is imported last has an id
        taken = f"{env.spec.id} is {env.spec.entry_point} here"
        raise ValueError(f"{env_id}: {taken}; give yours an id that D4RL does not have")
    for space in (env.observation_space, env.action_space):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise ValueError(f"{env_id}: must have vectors of numbers, not {space}")
    width = env.action_space.high.astype(float) - env.action_space.low
    if not ((0 < width) & (width < FLOAT32_MAX)).all():
        raise ValueError(f"{env_id}: needs finite bounds of each action, not {env.action_space}")
    if env.spec.max_episode_steps is None:
        raise ValueError(f"{env_id}: needs a step limit: register it with max_episode_steps")
    try:
        first, _ = env.reset(seed=0)  # what fails here would after hours of training
    except Exception as error:
        raise ValueError(f"{env_id}: reset(seed=0) fails: {error!r}") from error
    if np.shape(first) != env.observation_space.shape:
        raise ValueError(f"{env_id}: reset gives {np.shape(first)} of {env.observation_space}")
    return UnitActions(env)


def step_limit_of(env: gym.Env) -> int:
    """The environment's, or without its wrappers the one of its id. Raises ValueError."""
    env_id = id_of(env)
    for spec in (env.spec, gym.registry.get(env.spec.id)):
        if spec and spec.max_episode_steps:
            return spec.max_episode_steps
    raise ValueError(f"{env_id}: has no step limit, and the data no timeouts")


class DatasetMethods:
    """The methods of D4RL's environments: of `gym.make(env_id)`, and of its `unwrapped`."""

    _max_episode_steps = property(step_limit_of)
    ref_min_score = property(lambda self: TASKS[task_of(id_of(self))][2])
    ref_max_score = property(lambda self: TASKS[task_of(id_of(self))][3])

    def get_dataset(self, h5path: str | Path | None = None) -> Arrays:
        """The arrays of the task's file, or of another, for `qlearning_dataset`."""
        return read(download(id_of(self)) if h5path is None else h5path)

    def get_normalized_score(self, score: np.ndarray) -> np.ndarray:
        return get_normalized_score(id_of(self), score)


class OfflineEnv(DatasetMethods, gym.Wrapper, RecordConstructorArgs):
    """Outermost in `gym.make`, as Gymnasium's wrappers hide the methods of what they wrap."""

    def __init__(self, env: gym.Env):
        RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)


def get_normalized_score(env_id: str, score: np.ndarray) -> np.ndarray:
    """0 for a random policy's return, 1 for an expert's. Raises ValueError outside D4RL's tasks."""
    _, _, random_return, expert_return = TASKS[task_of(env_id)]
    return (score - random_return) / (expert_return - random_return)


def normalized_score(env_id: str, returns: np.ndarray) -> np.ndarray:
    """The score in percent, as papers print it; outside D4RL's tasks the return itself."""
    return 100 * get_normalized_score(env_id, returns) if full_id(env_id) in TASK_OF else returns


def download(env_id: str) -> Path:
    """The task's file from the first place that has it: D4RL's cache folder (D4RL_DATASET_DIR, or
    ~/.d4rl/datasets) under its own name, or there as TASK-rebuilt.hdf5; D4RL's server; a mirror;
    TASK-rebuilt.hdf5 in this folder, said so. Raises ValueError for a wrong file, else OSError."""
    if full_id(env_id) not in DATASETS:
        raise ValueError(f"{env_id}: no data of it; give --dataset-path. Sets: {', '.join(TASKS)}")
    file, sha256 = DATASETS[full_id(env_id)]
    cache = Path(os.path.expanduser(os.getenv("D4RL_DATASET_DIR") or "~/.d4rl/datasets"))
    if str(cache)[0] == "~" and file != DEMO:
        raise OSError(f"{cache}: there is no such home; D4RL_DATASET_DIR names another folder")
    path = (HERE if file == DEMO else cache) / Path(file).name
    rebuilt = full_id(env_id).removesuffix("-v0").replace("-longhorizon", "") + "-rebuilt.hdf5"
    if path.is_file() and sha256 and file_hash(path) != sha256:
        raise ValueError(f"{path}: not D4RL's file of this name, by its SHA-256; move it away")
    for place in (path, cache / rebuilt):
        if place.is_file():
            return place
    problem = fetch(file, sha256, path)
    if not problem:
        return path
    if not (HERE / rebuilt).is_file():
        put = f"Put {path.name}, or a substitute as {rebuilt}, into {cache} (D4RL_DATASET_DIR)"
        raise OSError(f"{env_id}: {problem}.\n{put}.")
    print(f"{env_id}: {problem}. A substitute instead: {HERE / rebuilt}")
    return HERE / rebuilt


def fetch(file: str, sha256: str, path: Path) -> str:
    """Downloads D4RL's `file` to `path`, verified. Returns what is wrong with the servers; raises
    OSError for what is wrong here, where no server and no substitute helps."""
    get_logger().setLevel("WARNING")  # pooch would print long lines
    http = HTTPDownloader(progressbar=True, timeout=SERVER_TIMEOUT)
    problems = []
    for address in [SERVER + file, MIRROR + path.name] if sha256 else [SERVER + file]:
        try:
            retrieve(address, sha256 or None, path.name, path.parent, downloader=http)
            if h5py.is_hdf5(path):
                return ""
            path.unlink()
            problem = "not HDF5"
        except ValueError:
            problem = "wrong SHA-256"
        except OSError as error:  # the network's have long texts
            if not hasattr(error, "response"):
                raise OSError(f"{path}: {error}; D4RL_DATASET_DIR names another folder") from error
            problem = getattr(error.response, "status_code", type(error).__name__)
        problems.append(f"{address.split('/')[2]}: {problem}")
    return f"no {path.name} ({', '.join(problems)})"


def describe(dataset: str | Path | Mapping) -> dict[str, str | bool]:
    """Where a data set lies, its SHA-256, and whether it is a file of D4RL's own."""
    if isinstance(dataset, Mapping):
        _, original, _ = about(dataset)
        return {"path": "arrays from Python", "sha256": sha256_of(dataset), "d4rl": original}
    path = Path(os.path.expanduser(dataset))
    sha256 = file_hash(path)
    originals = {known for file, known in DATASETS.values() if file != DEMO}
    return {"path": str(path), "sha256": sha256, "d4rl": sha256 in originals}


def sha256_of(arrays: Mapping) -> str:
    present = [np.asarray(arrays[name]) for name in sorted(ARRAYS) if name in arrays]
    return hashlib.sha256(b"".join(array.tobytes() for array in present)).hexdigest()


def about(dataset: Mapping) -> tuple[str, bool, str | None]:
    """Where the arrays are from, whether D4RL made them, and in which environment: known of a
    file's, unless they have changed since."""
    if isinstance(dataset, Arrays) and dataset.sha256 == sha256_of(dataset):
        return dataset.about
    return "dataset", False, None


def read(path: str | Path) -> Arrays:
    """The arrays of D4RL's format in a file. Raises ValueError."""
    try:
        path = Path(os.path.expanduser(path))
    except TypeError as error:
        raise ValueError(f"dataset: must be a path or a dict of arrays ({error})") from error
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        with h5py.File(path) as file:
            for name in (*ARRAYS, "episode_0"):
                if file.get(name, getclass=True) is h5py.Group:
                    raise ValueError(f"{name} is a group, as in Minari's files: {CONVERT}")
            names = [name for name in (*ARRAYS, *MINARI) if name in file]
            arrays = Arrays({name: file[name][()] for name in names})
            environment = file["metadata"].attrs.get("environment") if "metadata" in file else None
            if isinstance(environment, bytes):
                environment = environment.decode()
    except Exception as error:  # damage shows in many ways
        problem = f"cannot be read as HDF5 in D4RL's format ({error})"
        if "unable to lock" in str(error):
            free = "if nobody writes it, set HDF5_USE_FILE_LOCKING=FALSE"
            problem = f"cannot be locked; {free} ({error})"
        raise ValueError(f"{path}: {problem}") from error
    known = describe(path)
    tasks = {sha256: task for task, (_, sha256) in DATASETS.items()}  # D4RL's own do not say
    arrays.about = known["path"], known["d4rl"], tasks.get(known["sha256"], environment)
    arrays.sha256 = sha256_of(arrays)
    return arrays


def qlearning_dataset(
    env: gym.Env, dataset: str | Path | Mapping | None = None, terminate_on_end: bool = False
) -> dict[str, np.ndarray]:
    """Transitions of the task's file, of another file, of what `get_dataset` returned, or of arrays
    of n steps in any mapping: observations (n, D), actions (n, A) in the environment's own units,
    rewards (n,), terminals (n,) and, if there are any, timeouts (n,) and next_observations (n, D);
    or its own transitions, whose actions keep their scale. Returns observations, actions (for
    `make`'s environment scaled and clipped to [-1, 1]), rewards, next_observations and terminals,
    in this order, float32. Raises as `download` and `read`, and ValueError for arrays that cannot
    be steps of the environment. Warns of a file that names another one, and where `timeouts` are
    all 0 and an episode exceeds the step limit.

    With next_observations each step is a transition. Without, the next step has them, so the last
    step of an episode that time ends is dropped, or with `terminate_on_end` kept as terminal. A
    terminal step is always kept. Without timeouts, time ends at the environment's step limit. A
    file of D4RL's own, and its arrays while nothing changes them, give what the original makes of
    it (README.md).
    """
    env_id = id_of(env)
    if dataset is None:
        dataset = download(env_id)
    if not isinstance(dataset, Mapping):
        dataset = read(dataset)
    where, original, environment = about(dataset)
    data = checked(dataset, env, where)
    if isinstance(environment, str) and kind_of(environment) != kind_of(env_id):
        warnings.warn(f"{where}: made in {environment}, and used for {env_id}")
    done = data["terminals"] != 0
    if "timeouts" in data:
        timeout = data["timeouts"] != 0
        if done.any() and (timeout == done).all():
            warnings.warn(f"{where}: timeouts equal terminals, which must be 0 where time ran out")
    else:
        timeout = timeouts_by_limit(done, step_limit_of(env), original)
    if terminate_on_end:
        done |= timeout
        timeout[:] = False
    if "next_observations" in data and not original:
        kept = np.ones(len(done), bool)
    else:
        data["next_observations"] = np.roll(data["observations"], -1, axis=0)
        timeout[-1:] = True
        kept = ~timeout if original else ~timeout | done
        marked = original or "timeouts" not in data or data["timeouts"].any()
        longest = np.diff(np.flatnonzero(done | timeout), prepend=-1).max(initial=0)
        if not marked and longest > (env.spec.max_episode_steps or np.inf):
            warnings.warn(f"{where}: {longest} steps without a timeout, more than {env_id} has")
    if not kept.any():
        raise ValueError(f"{where}: no transition among {len(done)} steps")
    data["terminals"] = done.astype(np.float32)
    names = ("observations", "actions", "rewards", "next_observations", "terminals")
    kind = UnitTransitions if scale_of(env) else dict
    return kind({name: data[name][kept] for name in names})


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


def checked(dataset: Mapping, env: gym.Env, where: str) -> dict:
    """The arrays as float32, if they can be steps of this environment. Raises ValueError."""
    if any(name in dataset for name in MINARI):
        names = "terminations, truncations must be named terminals, timeouts"
        raise ValueError(f"{where}: {names}; {CONVERT}")
    needed = ("actions", "observations", "rewards", "terminals")
    missing = [name for name in needed if name not in dataset]
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} missing")
    try:
        given = {name: np.asarray(dataset[name]) for name in ARRAYS if name in dataset}
    except Exception as error:  # lists of several lengths, pickles, arrays on a GPU
        raise ValueError(f"{where}: must be arrays ({error})") from error
    n = given["rewards"].size
    row = {"observations": env.observation_space.shape, "actions": env.action_space.shape}
    row["next_observations"] = row["observations"]
    data = {}
    for name, array in given.items():
        shape = (n, *row.get(name, ()))
        if array.dtype.kind not in "biuf" or array.shape not in (shape, (*shape, 1)):
            found = f"{array.dtype} of shape {array.shape} beside {n} rewards"
            raise ValueError(f"{where}: {name} must be numbers of shape {shape}, not {found}")
        bad = np.argwhere(~(np.abs(array) < FLOAT32_MAX))
        if len(bad):
            problem = f"{name} has {len(bad)} NaN or infinite numbers"
            raise ValueError(f"{where}: {problem}, the first in row {bad[0, 0]}")
        data[name] = array.astype(np.float32).reshape(shape)
    for name in {"terminals", "timeouts"} & set(data):
        if not np.isin(data[name], (0, 1)).all():
            raise ValueError(f"{where}: {name} must be 0 or 1 in each step")
    scale = scale_of(env)
    if isinstance(dataset, UnitTransitions):
        if not scale:
            raise ValueError(f"{where}: scaled for an environment of d4rl.make, and {env} is not")
        scale = None
    own = scale.own if scale else env.action_space
    low, high = own.low.astype(float), own.high.astype(float)
    excess = np.maximum(low - data["actions"], data["actions"] - high)
    far = np.flatnonzero((excess > 1e-5 * (high - low)).any(1))  # by more than rounding
    if len(far) and id_of(env) not in TASK_OF:  # some of D4RL's demonstrations are, too
        raise ValueError(f"{where}: {len(far)} actions are out of {own}, the first in row {far[0]}")
    if scale and len(far):
        warnings.warn(f"{where}: {len(far)} actions are out of bounds and were clipped")
    if scale:
        unit = (data["actions"] - scale.center) / scale.radius
        data["actions"] = unit.clip(-1, 1).astype(np.float32)
    return data


def scale_of(env: gym.Env) -> UnitActions | None:
    """The wrapper of `make`, if it is there. Raises ValueError for another with other actions."""
    while isinstance(env, gym.Wrapper) and not isinstance(env, UnitActions):
        if env.action_space != env.env.action_space:
            raise ValueError(f"{type(env).__name__} changes the actions: give what it wraps")
        env = env.env
    return env if isinstance(env, UnitActions) else None


def play(act, envs: list[UnitActions], seed: int) -> np.ndarray:
    """Returns, (n,), of an episode in each of n environments of `make`, the i-th begun with seed
    + i. `act` takes observations, (n, D), and gives actions, (n, A), also where one has ended."""
    returns = np.zeros(len(envs))
    running = list(range(len(envs)))
    obs = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(envs)])
    obs = obs.astype(envs[0].observation_space.dtype)  # some environments begin with integers
    while running:
        actions = act(obs)
        for i in list(running):
            obs[i], reward, terminal, truncated, _ = envs[i].step(actions[i])
            if not np.isfinite(obs[i]).all():
                raise FloatingPointError(f"{envs[i]}: an observation is not finite: {obs[i]}")
            returns[i] += np.asarray(reward).item()  # a number, or an array of one
            if not np.isfinite(returns[i]):
                raise FloatingPointError(f"{envs[i]}: a reward is not finite: {reward}")
            if terminal or truncated:
                running.remove(i)
    return returns
