"""Arguments that cannot be are refused with one line, wherever they come from."""

import pytest

import bear
import uwac

WRONG = [
    ({"mmd_kernel": "rbf"}, "--mmd-kernel 'rbf': must be Literal"),
    ({"gamma": "0.99"}, "--gamma '0.99': must be float"),
    ({"batch_size": 2.5}, "--batch-size 2.5: must be int"),
    ({"gamma": 1.01}, "--gamma 1.01: must be from 0 to 1"),
    ({"lmbda": float("nan")}, "--lmbda nan: must be from 0 to 1"),
    ({"mmd_sigma": 0.0}, "--mmd-sigma 0.0: must be from 0.001 to"),
    ({"seed": -1}, "--seed -1: must be from 0 to 4294967295"),
    ({"batch_size": 0}, "--batch-size 0: must be from 1 to"),
    ({"warmup_steps": -1}, "--warmup-steps -1: must be from 0 to"),
    ({"total_steps": 0}, "--total-steps 0: must be from 1 to"),
]
WRONG_OF_UWAC = [
    ({"weighting": "var"}, "--weighting 'var': must be Literal"),
    ({"spectral_norm": "on"}, "--spectral-norm 'on': must be Union"),
    ({"dropout": 1.0}, "--dropout 1.0: must be from 0 to 0.99"),
    ({"passes": 1}, "--passes 1: must be from 2 to"),
    ({"beta": -1.0}, "--beta -1.0: must be from 0 to"),
]


@pytest.mark.parametrize("wrong, message", WRONG + WRONG_OF_UWAC, ids=str)
def test_wrong_arguments(script, wrong, message):
    if script is uwac or (wrong, message) in WRONG:
        with pytest.raises(script.InputError) as error:
            script.Args(**wrong)
        assert str(error.value).startswith(message)
        assert "\n" not in str(error.value)


def test_whole_numbers_serve_as_floats(script):
    args = script.Args(mmd_threshold=0, gamma=1, tau=0, mmd_sigma=20)
    assert (args.mmd_threshold, args.gamma, args.tau, args.mmd_sigma) == (0, 1, 0, 20)


def test_auto_is_by_the_task():
    """Laplacian on hopper and walker2d (BEAR's author), spectral norm on Adroit (paper)."""
    for task in ("pen-human", "hammer-cloned-v1", "door-demo", "relocate-expert", "halfcheetah-v0"):
        assert bear.Args(task).mmd_kernel == uwac.Args(task).mmd_kernel == "gaussian"
        assert uwac.Args(task).spectral_norm is (task != "halfcheetah-v0")
    for task in ("hopper-expert", "walker2d-medium-v2"):
        assert bear.Args(task).mmd_kernel == uwac.Args(task).mmd_kernel == "laplacian"
        assert uwac.Args(task).spectral_norm is False
    assert uwac.Args("hopper-expert", spectral_norm=True).spectral_norm is True
