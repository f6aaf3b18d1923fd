"""Wrong arguments are refused: by pydantic's error in Python, by one line at the command line."""

import dataclasses

import pytest
from conftest import command_line
from pydantic import ValidationError

import bear
import lunarlander_uncertainty as lunar
import uwac

SCRIPTS = [bear, uwac, lunar]
WRONG = [
    ("gamma", 1.01, "Input should be less than or equal to 1"),
    ("lmbda", float("nan"), "Input should be a finite number"),
    ("seed", -1, "Input should be greater than or equal to 0"),
    ("batch_size", 0, "Input should be greater than 0"),
    ("batch_size", 2.5, "Input should be a valid integer"),
    ("beta", 0.0, "Input should be greater than 0"),
    ("dropout", 1.0, "Input should be less than 1"),
    ("passes", 1, "Input should be greater than or equal to 2"),
    ("weighting", "var", "Input should be 'variance', 'std', 'exp' or 'none'"),
    ("spectral_norm", 2.5, "Input should be 'auto'"),
    ("mmd_kernel", "rbf", "Input should be 'auto', 'gaussian' or 'laplacian'"),
    ("resume", "", "String should have at least 1 character"),
    ("no_such", 3, "Unexpected keyword argument"),
]


@pytest.mark.parametrize("name, value, problem", WRONG)
def test_wrong_arguments(name, value, problem):
    """In each of the three scripts that has the argument."""
    scripts = [script for script in SCRIPTS if hasattr(script.Args, name)]
    for script in scripts or SCRIPTS:
        with pytest.raises(ValidationError) as error:
            script.Args(**{name: value})
        first = error.value.errors()[0]
        assert first["loc"][0] == name and first["msg"].startswith(problem)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_argument_has_a_type_that_is_checked(script):
    for field in dataclasses.fields(script.Args):
        with pytest.raises(ValidationError, match=field.name):
            script.Args(**{field.name: object()})


@pytest.mark.parametrize("script", SCRIPTS)
def test_one_line_names_the_option_as_it_is_typed(script, monkeypatch, capsys):
    assert command_line(script, "--batch-size 0", monkeypatch) == 2
    line = "error: --batch-size 0: Input should be greater than 0\n"
    assert capsys.readouterr().err == line


def test_no_variance_to_weigh_by():
    with pytest.raises(uwac.InputError, match="--dropout 0 .* add --weighting none"):
        uwac.Args(dropout=0.0)
    assert uwac.Args(dropout=0.0, weighting="none").dropout == 0


def test_auto_is_by_the_task():
    """Laplacian on hopper and walker2d (BEAR's author), spectral norm on Adroit (paper)."""
    for task in ("pen-human", "hammer-cloned-v1", "door-demo", "AdroitHandPen-v1", "pendulum-mine"):
        assert bear.Args(task).mmd_kernel == uwac.Args(task).mmd_kernel == "gaussian"
        assert uwac.Args(task).spectral_norm is (task != "pendulum-mine")
    for task in ("hopper-expert", "walker2d-medium-v2", "Hopper-v4"):
        assert bear.Args(task).mmd_kernel == uwac.Args(task).mmd_kernel == "laplacian"
        assert uwac.Args(task).spectral_norm is False
    assert uwac.Args("hopper-expert", spectral_norm=True).spectral_norm is True
