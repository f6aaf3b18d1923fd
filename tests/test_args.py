"""Wrong arguments are refused by the option's name; "auto" is by the task."""

import dataclasses
from argparse import ArgumentTypeError

import pytest

import bear
import uwac

WRONG = [
    ("gamma", 1.01, "--gamma 1.01: Input should be less than or equal to 1"),
    ("lmbda", float("nan"), "--lmbda nan: Input should be a finite number"),
    ("weight_clip", float("inf"), "--weight-clip inf: Input should be a finite number"),
    ("actor_lr", -1e-4, "--actor-lr -0.0001: Input should be greater than or equal to 0"),
    ("seed", -1, "--seed -1: Input should be greater than or equal to 0"),
    ("batch_size", 0, "--batch-size 0: Input should be greater than 0"),
    ("batch_size", 2.5, "--batch-size 2.5: Input should be a valid integer"),
    ("beta", 0.0, "--beta 0.0: Input should be greater than 0"),
    ("dropout", 1.0, "--dropout 1.0: Input should be less than 1"),
    ("dropout", 0.0, "--dropout 0: no variance to weigh by; add --weighting none"),
    ("passes", 1, "--passes 1: Input should be greater than or equal to 2"),
    ("weighting", "var", "--weighting var: Input should be 'variance', 'std', 'exp' or 'none'"),
    ("spectral_norm", 2.5, "--spectral-norm 2.5: Input should be 'auto', True or False"),
    ("mmd_kernel", "rbf", "--mmd-kernel rbf: Input should be 'auto', 'gaussian' or 'laplacian'"),
    ("run_dir", 3, "--run-dir 3: Input should be a valid string"),
    ("resume", "", "--resume : String should have at least 1 character"),
]


@pytest.mark.parametrize("name, value, problem", WRONG)
def test_wrong_arguments(name, value, problem):
    for script in (bear, uwac):
        if hasattr(script.Args, name):
            with pytest.raises(ArgumentTypeError) as error:
                script.Args(**{name: value})
            assert str(error.value).startswith(problem)


def test_every_argument_has_a_type_that_is_checked(script):
    for field in dataclasses.fields(script.Args):
        with pytest.raises(ArgumentTypeError, match=field.name.replace("_", "-")):
            script.Args(**{field.name: object()})


def test_auto_is_by_the_task():
    """Laplacian on hopper and walker2d (BEAR's author), spectral norm on Adroit (paper); also where
    another task is put into the arguments of one."""
    adroit = ("pen-human", "hammer-cloned-v1", "door-demo", "relocate-v0")
    adroit += ("gymnasium_robotics:AdroitHandPen-v1",)
    for task in (*adroit, "Pendulum-v1", "halfcheetah-expert", "hopper-medium", "Walker2d-v4"):
        kernel = "laplacian" if task in ("hopper-medium", "Walker2d-v4") else "gaussian"
        assert bear.Args(task).resolved()["mmd_kernel"] == kernel
        for args in (uwac.Args(task), dataclasses.replace(uwac.Args("door-human"), env_id=task)):
            resolved = args.resolved()
            assert resolved["mmd_kernel"] == kernel
            assert resolved["spectral_norm"] is (task in adroit)
    given = uwac.Args("hopper-expert", spectral_norm=True, mmd_kernel="gaussian")
    assert given.resolved() == vars(given)


def test_an_agent_has_what_the_task_wants(script):
    agent = script.Agent(script.Args("hopper-medium"), 3, 1)
    assert agent.mmd_kernel == "laplacian"
    if script is uwac:
        assert not agent.critic.spectral_norm
        assert uwac.Agent(uwac.Args("door-human"), 3, 1).critic.spectral_norm
