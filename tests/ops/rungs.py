"""The rungs of short_swa that run on every machine, as functions from NumPy arrays to a NumPy array."""

from functools import partial

from t2lib.ops import short_swa

# `compiled` compiles for seconds at every new kind of shape: it has a file of its own, as the kernels have.
CPU_RUNGS = ("loops", "arrays", "eager")


def read_with(rung):
    return partial(short_swa, rung=rung)
