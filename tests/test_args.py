"""Wrong arguments are refused by the option's name; "auto" is by the task."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import bear
import uwac

WRONG = [
    ("gamma", 1.01, "Input should be less than or equal to 1"),
    ("lmbda", float("nan"), "Input should be a finite number"),
    ("seed", -1, "Input should be greater than or equal to 0"),
    ("seed", 2**64, f"Input should be less than {2**63}"),
    ("batch_size", 2.5, "Input should be a valid integer"),
    ("beta", 0.0, "Input should be greater than 0"),
    ("dropout", 1.0, "Input should be less than 1"),
    ("passes", 1, "Input should be greater than or equal to 2"),
    ("spectral_norm", 2.5, "Input should be 'auto', True or False"),
    ("mmd_kernel", "rbf", "Input should be 'auto', 'gaussian' or 'laplacian'"),
]


@pytest.mark.parametrize("name, value, problem", WRONG)
def test_wrong_arguments(name, value, problem):
    for script in (bear, uwac):
        if hasattr(script.Args, name):
            with pytest.raises(ValueError) as error:
                script.Args(**{name: value})
            assert f"\n{name}\n  {problem}" in str(error.value)


def test_every_argument_has_a_type_that_is_checked_and_there_are_no_others(script):
    names = [field.name for field in dataclasses.fields(script.Args)]
    for name in [*names, "clip"]:
        with pytest.raises(ValueError, match=f"\n{name}\n"):
            script.Args(**{name: object()})


def test_numbers_of_numpy_and_paths_are_taken(script):
    args = script.Args(seed=np.int64(3), gamma=np.float32(0.5), dataset_path="a", run_dir=Path("b"))
    assert (type(args.seed), type(args.gamma)) == (int, float)
    assert (args.seed, args.gamma, args.dataset_path) == (3, 0.5, Path("a"))


@pytest.mark.parametrize("task, kernel, spectral_norm", [
    ("hammer-cloned-v1", "gaussian", True),  # on Adroit (paper)
    ("gymnasium_robotics:AdroitHandPen-v1", "gaussian", True),
    ("Pendulum-v1", "gaussian", False),
    ("halfcheetah-expert", "gaussian", False),
    ("hopper-medium", "laplacian", False),  # BEAR's author
    ("module:ns/Walker2d-v4", "laplacian", False),
])  # fmt: skip
def test_auto_is_by_the_task(task, kernel, spectral_norm):
    """Also where another task is put into the arguments of one."""
    auto = {"mmd_kernel": kernel, "spectral_norm": spectral_norm}
    for args in (uwac.Args(task), dataclasses.replace(uwac.Args("door-human"), env_id=task)):
        assert args.resolved() == dataclasses.replace(args, **auto)
    agent = uwac.Agent(args, 3, 1)
    assert (agent.args.mmd_kernel, agent.critic.spectral_norm) == (kernel, spectral_norm)
    assert bear.Agent(bear.Args(task), 3, 1).args.mmd_kernel == kernel
    given = uwac.Args(task, spectral_norm=False, mmd_kernel="gaussian")
    assert given.resolved() == given
