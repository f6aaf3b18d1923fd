"""The environments of D4RL's tasks: Gymnasium's, with what differs from D4RL's put right."""

import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
from farama_notifications import notifications

try:
    import mujoco
except Exception as error:  # a renderer that is not there
    renderer = f"MUJOCO_GL={os.getenv('MUJOCO_GL', '')}"
    raise ImportError(f"MuJoCo cannot be imported with {renderer}: {error}") from error
from gymnasium.envs.mujoco import half_cheetah_v4, hopper_v4, walker2d_v4

# It prints that the rewards below differ from the papers', which is put right here.
notifications.pop("gymnasium_robotics", None)

from gymnasium_robotics.envs.adroit_hand.adroit_door import AdroitHandDoorEnv
from gymnasium_robotics.envs.adroit_hand.adroit_hammer import AdroitHandHammerEnv
from gymnasium_robotics.envs.adroit_hand.adroit_pen import AdroitHandPenEnv
from gymnasium_robotics.envs.adroit_hand.adroit_relocate import AdroitHandRelocateEnv

from d4rl import DatasetMethods

# Later ones have D4RL's rewards themselves, and other contacts than D4RL's engine.
for package, wanted in {"gymnasium-robotics": "1.4.2", "mujoco": "3.2.6"}.items():
    if version(package) != wanted:
        raise ImportError(f"D4RL's numbers need one version: install {package}=={wanted}")


Step = tuple[np.ndarray, Any, bool, bool, dict[str, Any]]


class SubtractDistance(DatasetMethods):
    """D4RL subtracts 0.1 * |palm - object| from the reward, gymnasium-robotics adds it."""

    palm_to_object: Callable[[np.ndarray], np.ndarray]
    sparse_reward: bool  # gymnasium-robotics' own option, in which there is no distance

    def step(self, action: np.ndarray) -> Step:
        obs, reward, *rest = super().step(action)
        distance = 0.0 if self.sparse_reward else np.linalg.norm(self.palm_to_object(obs))
        return obs, float(reward) - 0.2 * distance, *rest


class DoorEnv(SubtractDistance, AdroitHandDoorEnv):
    palm_to_object = staticmethod(lambda obs: obs[35:38])


class HammerEnv(SubtractDistance, AdroitHandHammerEnv):
    palm_to_object = staticmethod(lambda obs: obs[33:36] - obs[36:39])


class RelocateEnv(SubtractDistance, AdroitHandRelocateEnv):
    palm_to_object = staticmethod(lambda obs: obs[30:33])


class PenEnv(DatasetMethods, AdroitHandPenEnv):
    """In D4RL an episode ends where the pen has fallen below 0.075 m."""

    def step(self, action: np.ndarray) -> Step:
        obs, reward, _, truncated, info = super().step(action)
        height = self.data.xpos[self.obj_body_id][2]
        return obs, reward, bool(height < 0.075), truncated, info


class Walker(DatasetMethods):
    """Actions are clipped before they are charged for, as by D4RL's NormalizedBoxEnv. Masses are as
    in D4RL's MuJoCo, without which Hopper is 3.6% heavier: up to version 2.1.1 a capsule of length
    L and radius r weighed as much as a cylinder of length L + r."""

    fullpath: str
    model: Any
    data: Any

    def __init__(self, *args: Any, **settings: Any):  # a copy gets `args`
        super().__init__(*args, **settings)
        spec = mujoco.MjSpec.from_file(self.fullpath)
        for geom in spec.geoms:
            if geom.type == mujoco.mjtGeom.mjGEOM_CAPSULE:
                capsule = self.model.geom(geom.name)
                radius, half_length, _ = capsule.size
                geom.type = mujoco.mjtGeom.mjGEOM_CYLINDER
                geom.size = [radius, half_length + radius / 2, 0]
                geom.fromto[:] = np.nan  # pos and quat say where it is
                geom.pos = capsule.pos
                geom.quat = capsule.quat
        cylinders = spec.compile()
        for name in ("body_mass", "body_inertia", "body_ipos", "body_iquat"):
            getattr(self.model, name)[:] = getattr(cylinders, name)
        mujoco.mj_setConst(self.model, self.data)

    def step(self, action: np.ndarray) -> Step:
        return super().step(np.clip(action, -1, 1))


class HopperEnv(Walker, hopper_v4.HopperEnv):
    pass


class HalfCheetahEnv(Walker, half_cheetah_v4.HalfCheetahEnv):
    pass


class Walker2dEnv(Walker, walker2d_v4.Walker2dEnv):
    pass
