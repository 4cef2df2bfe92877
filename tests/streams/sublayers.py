"""What the tests of the streams share."""

import torch

from t2lib.streams._golden import error, load, rms_norm

__all__ = ["close", "load", "rms_norm"]

torch.set_num_threads(1)


def close(got, want, tolerance=1e-10):
    """Equal to what is wanted, relative to the largest of it."""
    assert error(got, want) <= tolerance, f"relative error {error(got, want):.2e}"
