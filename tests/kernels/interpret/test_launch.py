"""What becomes of a launch that the chip cannot do, whichever operator it is of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from t2lib.ops import RungUnavailable
from t2lib.ops._triton import MOST_PROGRAMS, launch, unfit


class Refused:
    """A kernel whose launch the driver answers with these words."""

    arg_names = ()

    def __init__(self, words: str = "") -> None:
        self.words = words

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def refuse(**arguments: Any) -> None:
            raise RuntimeError(self.words)

        return refuse


def start(kernel: Any, programs: int) -> None:
    launch("depth_mix", kernel, programs, {}, device=torch.device("cpu"), warps=4)


def test_what_the_driver_refuses_is_a_sentence() -> None:
    sentence = (
        r"failed to launch 7 programs of 4 warps on cpu, with 'Triton Error \[CUDA\]: invalid argument'"
    )
    with pytest.raises(RungUnavailable, match=sentence):
        start(Refused("Triton Error [CUDA]: invalid argument"), 7)


def test_another_error_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="a fault of ours") as caught:
        start(Refused("a fault of ours"), 7)
    assert type(caught.value) is RuntimeError


def test_more_programs_than_a_grid_has() -> None:
    with pytest.raises(RungUnavailable, match=r"needs 2147483648 programs .* at most 2147483647"):
        start(Refused(), MOST_PROGRAMS + 1)


@pytest.mark.parametrize(
    ("versions", "fits"),
    [
        (("3.6.0", "2.3.5"), True),
        (("3.6.0", "2.4.0"), False),
        (("3.7.1", "2.4.6"), True),
        (("3.10.0+git1", "3.0.0rc1"), True),
    ],
)
def test_an_interpreter_that_does_not_fit_numpy_says_so(versions: tuple[str, str], fits: bool) -> None:
    reason = unfit(*versions)
    assert (reason is None) == fits
    if reason is not None:
        assert reason == "takes Triton 3.7 or NumPy before 2.4, got 3.6.0 and 2.4.0"
