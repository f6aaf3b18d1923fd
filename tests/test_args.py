"""Wrong arguments are refused by the option's name; "auto" is by the task."""

import dataclasses
from argparse import ArgumentTypeError

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
    ("resume", "", "String should have at least 1 character"),
]


@pytest.mark.parametrize("name, value, problem", WRONG)
def test_wrong_arguments(name, value, problem):
    for script in (bear, uwac):
        if hasattr(script.Args, name):
            with pytest.raises(ArgumentTypeError) as error:
                script.Args(**{name: value})
            assert str(error.value) == f"--{name.replace('_', '-')} {value}: {problem}"


def test_every_argument_has_a_type_that_is_checked(script):
    for field in dataclasses.fields(script.Args):
        with pytest.raises(ArgumentTypeError, match=field.name.replace("_", "-")):
            script.Args(**{field.name: object()})


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
        assert args.resolved() == vars(args) | auto
    agent = uwac.Agent(args, 3, 1)
    assert (agent.mmd_kernel, agent.critic.spectral_norm) == (kernel, spectral_norm)
    assert bear.Agent(bear.Args(task), 3, 1).mmd_kernel == kernel
    given = uwac.Args(task, spectral_norm=False, mmd_kernel="gaussian")
    assert given.resolved() == vars(given)
