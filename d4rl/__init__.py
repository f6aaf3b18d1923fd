"""D4RL's Gym-MuJoCo and Adroit tasks (Fu et al., 2020) on packages that still install.

README.md beside this file has an example, and says how far it is D4RL.
"""

import csv
import difflib
import hashlib
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

import gymnasium as gym
import h5py
import numpy as np
from gymnasium.envs.registration import EnvSpec, WrapperSpec
from gymnasium.spaces import Box
from gymnasium.utils import RecordConstructorArgs
from pooch import HTTPDownloader, file_hash, get_logger, retrieve

from d4rl.doubts import doubts

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
ENDS = ["episode_terminals", "timeout", "truncated", "done", "dones", "is_last"]  # d3rlpy's, RLDS's
ENDS += ["terminations", "truncations"]  # Minari's
MAKE = "python benchmark/make_dataset.py"
HERE = Path(__file__).parent
DEMO = "door-demo.hdf5"
# SHA-256 of door-human-rebuilt.hdf5 here, replayed in D4RL's door under Gymnasium's name for it.
REPLAYED = "e318d814e391fbb60bd26329500dab2f5f857f9b2559252dfa8940ccfb00cd24"
SERVER = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
MIRROR = "https://huggingface.co/datasets/imone/D4RL/resolve/"
MIRROR += "b9e1985fe28a0d67418c99473874d6a837d6cf94/"  # has files that are cut off
SERVER_TIMEOUT = (5, 20)  # seconds until it must be connected, and between two parts of a file
FLOAT32_MAX = np.finfo(np.float32).max
ROUNDING = 1e-5  # of an action, as a part of the distance of its bounds


class Origin(NamedTuple):
    """What is known of arrays."""

    original: bool  # a file of D4RL's own
    made_in: str | None  # environment
    names: tuple[str, ...]  # all that the file has


READ: dict[str, Origin] = {}  # of what `read` returned, by the SHA-256 of the arrays

with open(HERE / "datasets.csv") as table:
    DATASETS = {row["task"]: (row["file"], row["sha256"]) for row in csv.DictReader(table)}

TASK_OF = {}  # environment id: key of TASKS
methods = (WrapperSpec("OfflineEnv", "d4rl:OfflineEnv", {}),)
for env_id in (*DATASETS, *(f"{task}-v0" for task in TASKS)):
    task = TASK_OF[env_id] = env_id.split("-")[0]
    name, limit, *_ = TASKS[task]
    limit = LONG_HORIZON[task] if "longhorizon" in env_id else limit
    gym.register(env_id, f"d4rl.envs:{name}", max_episode_steps=limit, additional_wrappers=methods)
ENTRY_POINTS = {env_id: gym.registry[env_id].entry_point for env_id in TASK_OF}
# Version 0 is the paper's, whatever newer one there is. (Gymnasium's Hopper has a capital.)
warnings.filterwarnings("ignore", f".*The environment (?-i:{'|'.join(TASKS)})-.* is out of date")


def full_id(env_id: str) -> str:
    """The id of D4RL's task with its version, which is 0 unless it is given, and without `d4rl:`;
    another id as it is, and one with another module. Raises ValueError without a version 0."""
    name = env_id.removeprefix("d4rl:")
    known = name if name in TASK_OF else f"{name}-v0"
    if known not in TASK_OF and f"{name}-v1" in TASK_OF:
        raise ValueError(f"{env_id}: has no version 0; choose {name}-v1 or {name}-v2")
    return known if known in TASK_OF else env_id


def task_of(env_id: str) -> str | None:
    """The key of TASKS, whose environment all of D4RL's versions and data sets of it share: "door"
    of door-human-v1. None for an id that is not D4RL's."""
    name = env_id.removeprefix("d4rl:")
    return next((TASK_OF[name + v] for v in ("", "-v0", "-v1") if name + v in TASK_OF), None)


def not_here(**settings: Any) -> NoReturn:
    raise ValueError(f"{settings['env_id']}: of D4RL's tasks, this port has {', '.join(TASKS)}")


for env_id in (HERE / "elsewhere.txt").read_text().split():
    gym.register(env_id, not_here, kwargs={"env_id": env_id})


def spec_of(env: gym.Env) -> EnvSpec:
    """Raises ValueError where there is none."""
    if env.spec is None:
        raise ValueError(f"{env}: has no id; register it, and make it with gym.make")
    return env.spec


def id_of(env: gym.Env) -> str:
    """The environment's id, with its module if D4RL's own has that id. Raises ValueError."""
    spec = spec_of(env)
    own = spec.entry_point == ENTRY_POINTS.get(spec.id, spec.entry_point)
    return spec.id if own else f"{type(env.unwrapped).__module__}:{spec.id}"


class UnitActions(gym.ActionWrapper):
    """An environment with actions in [-1, 1], as policies that end in a tanh give them."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.own = cast(Box, env.action_space)
        self.center = (self.own.high.astype(float) + self.own.low) / 2
        self.radius = (self.own.high.astype(float) - self.own.low) / 2
        self.action_space = Box(-1, 1, self.own.shape)

    def action(self, action: np.ndarray) -> np.ndarray:
        """Actions (..., A) in the environment's own units and type, within its bounds."""
        action = self.center + self.radius * action
        if self.own.low.dtype.kind in "iu":
            action = action.round()
        return action.clip(self.own.low, self.own.high).astype(self.own.low.dtype)

    def unit(self, action: np.ndarray) -> np.ndarray:
        """The inverse: actions (n, A) in the environment's units -> scaled and clipped to [-1, 1],
        float32. Warns of those that are out of bounds."""
        unit = (action - self.center) / self.radius
        far = (abs(unit) > 1 + 2 * ROUNDING).any(1).sum()
        if far:
            warnings.warn(f"{far} actions are out of bounds and were clipped")
        return unit.clip(-1, 1).astype(np.float32)


def make(env_id: str, **settings: Any) -> UnitActions:
    """`gym.make` for environments of which D4RL's format can hold data: with vectors of numbers,
    bounded actions, here scaled to [-1, 1], and a step limit. The version may be missing:
    `door-human`. Raises ValueError, and what the environment itself raises."""
    name = full_id(env_id)
    try:
        env = gym.make(name, **settings)
    except gym.error.Error as error:
        raise ValueError(f"{env_id}: {error}") from None
    if (name in TASK_OF) != (id_of(env) in TASK_OF):  # whoever is imported last has an id
        taken = f"{spec_of(env).id} is {spec_of(env).entry_point} here"
        raise ValueError(f"{env_id}: {taken}; give yours an id that D4RL does not have")
    for space in (env.observation_space, env.action_space):
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise ValueError(f"{env_id}: must have vectors of numbers, not {space}")
    own = cast(Box, env.action_space)
    width = own.high.astype(float) - own.low
    if not ((0 < width) & (width < FLOAT32_MAX)).all():
        raise ValueError(f"{env_id}: needs finite bounds of each action, not {own}")
    if spec_of(env).max_episode_steps is None:
        raise ValueError(f"{env_id}: needs a step limit: register it with max_episode_steps")
    try:
        first, _ = env.reset(seed=0)  # what fails here would after hours of training
    except Exception as error:
        raise ValueError(f"{env_id}: reset(seed=0) fails: {error!r}") from error
    if np.shape(first) != env.observation_space.shape:
        raise ValueError(f"{env_id}: reset gives {np.shape(first)} of {env.observation_space}")
    if not np.array_equal(env.reset(seed=0)[0], first):
        warnings.warn(f"{env_id}: reset(seed=0) gives two observations: no evaluation is repeated")
    return UnitActions(env)


def step_limit_of(env: gym.Env) -> int:
    """The environment's, or without its wrappers the one of its id. Raises ValueError."""
    env_id = id_of(env)
    for spec in (spec_of(env), gym.registry.get(spec_of(env).id)):
        if spec and spec.max_episode_steps:
            return spec.max_episode_steps
    raise ValueError(f"{env_id}: has no step limit, and the data no timeouts")


class DatasetMethods(gym.Env):
    """The methods of D4RL's environments: of `gym.make(env_id)`, and of its `unwrapped`."""

    _max_episode_steps = property(step_limit_of)
    ref_min_score = property(lambda self: reference_returns(id_of(self))[0])
    ref_max_score = property(lambda self: reference_returns(id_of(self))[1])

    def get_dataset(self, h5path: str | Path | None = None) -> dict[str, np.ndarray]:
        """The arrays of the task's file, or of another, for `qlearning_dataset`."""
        return read(download(id_of(self)) if h5path is None else h5path)

    def get_normalized_score(self, score: np.ndarray) -> np.ndarray:
        return get_normalized_score(id_of(self), score)


class OfflineEnv(DatasetMethods, gym.Wrapper, RecordConstructorArgs):
    """Outermost in `gym.make`, as Gymnasium's wrappers hide the methods of what they wrap."""

    def __init__(self, env: gym.Env):
        RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)


def reference_returns(env_id: str) -> tuple[float, float]:
    """Those of a random policy and of an expert. Raises ValueError outside D4RL's tasks."""
    task = task_of(env_id) or not_here(env_id=env_id)
    _, _, random_return, expert_return = TASKS[task]
    return random_return, expert_return


def get_normalized_score(env_id: str, score: np.ndarray) -> np.ndarray:
    """0 for a random policy's return, 1 for an expert's. Raises ValueError outside D4RL's tasks."""
    random_return, expert_return = reference_returns(env_id)
    return (score - random_return) / (expert_return - random_return)


def normalized_score(env_id: str, returns: np.ndarray) -> np.ndarray:
    """The score in percent, as papers print it; outside D4RL's tasks the return itself."""
    return 100 * get_normalized_score(env_id, returns) if task_of(env_id) else returns


def download(env_id: str) -> Path:
    """The task's file from the first place that has it: D4RL's cache folder (D4RL_DATASET_DIR, or
    ~/.d4rl/datasets) under its own name, or there as TASK-rebuilt.hdf5; D4RL's server; a mirror;
    TASK-rebuilt.hdf5 in this folder. Says if it is a substitute. Raises ValueError for a wrong
    file, else OSError."""
    if full_id(env_id) not in DATASETS:
        near = difflib.get_close_matches(env_id, DATASETS, cutoff=0.8)
        hint = f"did you mean {near[0]}? " if near and env_id not in gym.registry else ""
        problem = f"no data of it; give --dataset-path; {hint}tasks: {', '.join(TASKS)}"
        raise ValueError(f"{env_id}: {problem}")
    file, sha256 = DATASETS[full_id(env_id)]
    cache = Path(os.path.expanduser(os.getenv("D4RL_DATASET_DIR") or "~/.d4rl/datasets"))
    if str(cache)[0] == "~" and file != DEMO:
        raise OSError(f"{cache}: there is no such home; D4RL_DATASET_DIR names another folder")
    path = (HERE if file == DEMO else cache) / Path(file).name
    rebuilt = full_id(env_id).removesuffix("-v0").replace("-longhorizon", "") + "-rebuilt.hdf5"
    if path.is_file() and sha256 and file_hash(path) != sha256:
        raise ValueError(f"{path}: not D4RL's file of this name, by its SHA-256; move it away")
    if path.is_file():
        return path
    if (cache / rebuilt).is_file():
        print(f"{env_id}: a substitute: {cache / rebuilt}")
        return cache / rebuilt
    if file == DEMO:
        raise OSError(f"{path}: missing; the project has it, and door-human-rebuilt.hdf5, in d4rl/")
    problem = fetch(file, sha256, path)
    if not problem:
        return path
    if not (HERE / rebuilt).is_file():
        put = f"Put {path.name}, or a substitute as {rebuilt}, into {cache} (D4RL_DATASET_DIR)"
        task, *kinds, _ = full_id(env_id).split("-")
        policies = " ".join(f"{task}-{kind}" for kind in kinds)
        played = {*kinds} <= {"random", "medium", "expert"}
        words = f"--policy {policies} --out {cache / rebuilt}" if played else "--help"
        raise OSError(f"{env_id}: {problem}.\n{put}.\nTo make one: {MAKE} {words}")
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
            path.unlink(missing_ok=True)  # another process may be faster
            problem = "not HDF5"
        except (ValueError, OSError) as error:  # the network's have long texts, and may be both
            if not isinstance(error, OSError):
                problem = "wrong SHA-256"
            elif not hasattr(error, "response"):
                raise OSError(f"{path}: {error}; D4RL_DATASET_DIR names another folder") from error
            else:
                problem = getattr(error.response, "status_code", type(error).__name__)
        problems.append(f"{address.split('/')[2]}: {problem}")
    return f"no {path.name} ({', '.join(problems)})"


def describe(dataset: str | Path | Mapping) -> dict[str, str | bool]:
    """Where a data set lies, its SHA-256, and whether it is a file of D4RL's own."""
    if isinstance(dataset, Mapping):
        original = origin_of(dataset).original
        return {"path": "arrays from Python", "sha256": sha256_of(dataset), "d4rl": original}
    path = Path(os.path.expanduser(dataset))
    sha256 = file_hash(path)
    originals = {known for file, known in DATASETS.values() if file != DEMO}
    return {"path": str(path), "sha256": sha256, "d4rl": sha256 in originals}


def sha256_of(arrays: Mapping) -> str:
    present = [np.asarray(arrays[name]) for name in sorted(ARRAYS) if name in arrays]
    return hashlib.sha256(b"".join(array.tobytes() for array in present)).hexdigest()


def origin_of(dataset: Mapping) -> Origin:
    """Of a file's arrays, and of copies of them in this process, while nothing changes them."""
    with suppress(Exception):  # of what is no array, or was not read
        if isinstance(dataset, h5py.File):
            read(dataset.filename)
        return READ[sha256_of(dataset)]
    return Origin(False, None, ())


def read(path: str | Path) -> dict[str, np.ndarray]:
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
                    convert = f"{MAKE} --minari converts its sets"
                    raise ValueError(f"{name} is a group, as in Minari's files: {convert}")
            sizes = {file[name].size for name in ("rewards", "observations") if name in file}
            beside = [name for name in file if getattr(file.get(name), "size", None) in sizes]
            names = {*beside, *(name for name in ARRAYS if name in file)}
            if any(x.is_virtual or x.external or x.file != file for x in map(file.get, names)):
                raise ValueError("its arrays lie in other files: copy them into one")
            arrays = {name: file[name][()] for name in sorted(names)}
            if not arrays:
                raise ValueError(f"none of {', '.join(ARRAYS)} among {', '.join(file)}")
            all_names = tuple(file)
            environment = file["metadata"].attrs.get("environment") if "metadata" in file else None
            if isinstance(environment, bytes):
                environment = environment.decode()
    except Exception as error:  # damage shows in many ways
        problem = f"cannot be read as HDF5 in D4RL's format ({error})"
        if "unable to lock" in str(error):
            free = "if nobody writes it, set HDF5_USE_FILE_LOCKING=FALSE"
            problem = f"cannot be locked; {free} ({error})"
        raise ValueError(f"{path}: {problem}") from error
    for name in {"rewards", "terminals", "timeouts"} & arrays.keys():
        if arrays[name].shape[1:] == (1,):  # as the original
            arrays[name] = arrays[name][:, 0]
    known = describe(path)
    tasks = {sha256: task for task, (_, sha256) in DATASETS.items()}  # D4RL's own do not say
    tasks[REPLAYED] = "door"
    made_in = tasks.get(str(known["sha256"]), environment)
    READ[sha256_of(arrays)] = Origin(known["d4rl"] is True, made_in, all_names)
    return arrays


def qlearning_dataset(
    env: gym.Env, dataset: str | Path | Mapping | None = None, terminate_on_end: bool = False
) -> dict[str, np.ndarray]:
    """Transitions of the task's file, of another file, of what `get_dataset` returned, or of arrays
    of n steps in any mapping: observations (n, D), actions (n, A) in the environment's own units,
    rewards (n,), terminals (n,) and, if there are any, timeouts (n,) and next_observations (n, D).
    Returns observations, actions (in the same units: `UnitActions.unit` scales them), rewards,
    next_observations and terminals, in this order, float32; given again, they stay as they are.
    Raises as `download` and `read`, and ValueError for arrays that cannot be steps of the
    environment. Warns of what may be wrong with those that can (`doubts`).

    With next_observations each step is a transition. Without, the next step has them, so the last
    step of an episode that time ends is dropped, or with `terminate_on_end` kept as terminal. A
    terminal step is always kept. Without timeouts, time ends at the environment's step limit. A
    file of D4RL's own, and its arrays while nothing changes them, give what the original makes of
    it (README.md).
    """
    env_id = id_of(env)
    if dataset is None:
        dataset = download(env_id)
    where = "dataset"
    if not isinstance(dataset, Mapping):
        path, dataset = dataset, read(dataset)
        where = os.path.expanduser(path)
    original, made_in, _ = origin_of(dataset)
    if isinstance(made_in, str) and not alike(made_in, env_id, original):
        warnings.warn(f"{where}: made in {made_in}, and used for {env_id}")
    data = checked(dataset, env, where)
    by_itself = "next_observations" in data and not original  # each row, in any order
    done = data["terminals"] != 0
    if "timeouts" in data:
        timeout = data["timeouts"] != 0
    elif by_itself:
        timeout = np.zeros_like(done)
        if terminate_on_end:
            raise ValueError(f"{where}: terminate_on_end needs timeouts beside next_observations")
    else:
        # In D4RL's own files the original ends an episode one step early.
        early = original and not terminate_on_end
        timeout = timeouts_by_limit(done, step_limit_of(env), early)
    terminal = done | timeout if terminate_on_end else done
    kept = np.ones_like(done) if by_itself or terminate_on_end else ~timeout
    if not by_itself:
        data["next_observations"] = np.roll(data["observations"], -1, axis=0)
        kept[-1:] = False
    if not original:
        kept |= terminal
    if not kept.any():
        raise ValueError(f"{where}: no transition among {len(done)} steps")
    if not original:
        # D4RL's demonstrations may be longer than an environment's episodes.
        steps_at_most = spec_of(env).max_episode_steps or np.inf
        limit = max(steps_at_most, LONG_HORIZON.get(task_of(env_id) or "", 0))
        high = own_actions(env).high
        for doubt in doubts(dataset, data, done, timeout, not by_itself, limit, high):
            warnings.warn(f"{where}: {doubt}")
    data["terminals"] = terminal.astype(np.float32)
    names = ("observations", "actions", "rewards", "next_observations", "terminals")
    return {name: data[name][kept] for name in names}


def alike(made_in: str, env_id: str, original: bool) -> bool:
    """Whether it is the same environment, and a file of D4RL's own the same data set."""
    if original and env_id in DATASETS:
        return DATASETS.get(made_in) == DATASETS[env_id]
    made, used = (task_of(name) or name.split(":")[-1] for name in (made_in, env_id))
    return made == used


def timeouts_by_limit(done: np.ndarray, step_limit: int, early: bool) -> np.ndarray:
    """Whether each step (n,) is an episode's last by the time limit; `early`, one before the last
    where a terminal step ended the episode before."""
    timeout = np.zeros(len(done), bool)
    steps = 0
    for i in range(len(done)):
        steps += 1
        if steps == step_limit:
            timeout[i] = True
            steps = 0
        elif done[i]:
            steps = 1 if early else 0
    return timeout


def checked(dataset: Mapping, env: gym.Env, where: str) -> dict:
    """The arrays as float32, if they can be steps of this environment. Raises ValueError."""
    ends = [name for name in ENDS if name in dataset]
    if ends and "timeouts" not in dataset and "next_observations" not in dataset:
        names = "terminals where the environment ended an episode, and timeouts where time did"
        raise ValueError(f"{where}: {', '.join(ends)}: D4RL's names are {names}")
    needed = ("actions", "observations", "rewards", "terminals")
    missing = [name for name in needed if name not in dataset]
    if missing:
        in_file = origin_of(dataset).names
        there = f" among {', '.join(in_file)}" if in_file else ""
        raise ValueError(f"{where}: {', '.join(missing)} missing{there}")
    try:
        given = {name: dataset[name] for name in ARRAYS if name in dataset}
        masked = [name for name, array in given.items() if np.ma.is_masked(array)]
        given = {name: np.asarray(array) for name, array in given.items()}
    except Exception as error:  # lists of several lengths, pickles, arrays on a GPU
        raise ValueError(f"{where}: must be arrays ({error})") from error
    if masked:
        raise ValueError(f"{where}: {', '.join(masked)} have masked numbers: fill them")
    n = given["rewards"].size
    row: dict[str, Any] = {"actions": env.action_space.shape}
    row["observations"] = row["next_observations"] = env.observation_space.shape
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
    own = own_actions(env)
    low, high = own.low.astype(float), own.high.astype(float)
    excess = np.maximum(low - data["actions"], data["actions"] - high)
    far = np.flatnonzero((excess > ROUNDING * (high - low)).any(1))
    if len(far) and id_of(env) not in TASK_OF:  # some of D4RL's demonstrations are, too
        raise ValueError(f"{where}: {len(far)} actions are out of {own}, the first in row {far[0]}")
    return data


def own_actions(env: gym.Env) -> Box:
    """The environment's own space of actions, within `make`'s wrapper. Raises ValueError for
    another wrapper that changes it."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, UnitActions):
            return env.own
        if env.action_space != env.env.action_space:
            raise ValueError(f"{type(env).__name__} changes the actions: give what it wraps")
        env = env.env
    return cast(Box, env.action_space)


def play(act: Callable[[np.ndarray], np.ndarray], envs: list[UnitActions], seed: int) -> np.ndarray:
    """Returns, (n,), of an episode in each of n environments of `make`, the i-th begun with seed
    + i. `act` takes observations, (n, D), and gives actions, (n, A), also where one has ended."""
    returns = np.zeros(len(envs))
    running = list(range(len(envs)))
    obs = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(envs)])
    obs = obs.astype(float)  # some environments say integers, or begin with them
    while True:
        for env, one in zip(envs, obs):
            if not np.isfinite(one).all():
                raise FloatingPointError(f"{env}: an observation is not finite: {one}")
        if not running:
            return returns
        actions = act(obs)
        for i in list(running):
            obs[i], reward, terminal, truncated, _ = envs[i].step(actions[i])
            returns[i] += np.asarray(reward).item()  # a number, or an array of one
            if not np.isfinite(returns[i]):
                raise FloatingPointError(f"{envs[i]}: a reward is not finite: {reward}")
            if terminal or truncated:
                running.remove(i)
