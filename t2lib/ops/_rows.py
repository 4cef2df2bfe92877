"""Blocks of rows that stay in a core's own cache while a whole list of states passes over them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import EllipsisType

Block = tuple[slice | EllipsisType, ...]


def row_blocks(shape: tuple[int, ...], itemsize: int, budget: int) -> Iterator[Block]:
    """Indices that cut an array (..., d) along its longest leading axis into blocks of about `budget` bytes.

    A block indexes the leading axes only, so it fits an array with other axes behind them as well. Cutting
    an axis, rather than flattening the leading ones, keeps every block a view whatever the strides.
    """
    leading = shape[:-1]
    if not leading:
        yield (...,)
        return
    longest = max(range(len(leading)), key=leading.__getitem__)
    others = math.prod(leading) // max(1, leading[longest]) * shape[-1] * itemsize
    step = max(1, budget // max(1, others))
    for start in range(0, leading[longest], step):
        yield (*(slice(None),) * longest, slice(start, start + step))
