"""What a stream costs: closed forms for one token over the whole depth.

L blocks, R = 2L sublayers, width d; one multiply-add is 2 FLOPs, forward only. The FLOPs of a stream are
those beyond the plain residual adds. The residual path is all that is moved to carry, mix and update the
stream, counted in vectors of width d: a plain add reads the state, reads the branch and writes the state, 3 a
sublayer. A branch's writing of its own output, and the norm's reading of its input, are common to all and
left out. Kernels are taken to be fused: each state that an operation needs is read once by it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """The cost of one stream in one decoder.

    flops       extra forward FLOPs a token
    parameters  extra parameters
    vectors     vectors of width d that the residual path moves, a token
    live        vectors of width d that are alive for one token at the end of the network
    cache       numbers that a sequence keeps from token to token in decoding
    boundary    vectors of width d that cross to the next pipeline stage, a token, if the network is cut after
                block 1, 2, ..., L - 1
    """

    flops: float
    parameters: int
    vectors: float
    live: int
    cache: int
    boundary: tuple[int, ...]


def triangle(n: int, k: int) -> int:
    """min(k, 1) + min(k, 2) + ... + min(k, n): how many states n reads see through a window of k."""
    full = min(n, k)
    return full * (full + 1) // 2 + (n - full) * k


def constant(blocks: int, states: int) -> tuple[int, ...]:
    """The boundaries of a design that carries equally many vectors everywhere."""
    return (states,) * (blocks - 1)


def growing(blocks: int, per_block: int = 1, most: int | None = None) -> tuple[int, ...]:
    """The boundaries of a design that carries the embedding and what each block adds, `most` at the most."""
    counts = (per_block * block + 1 for block in range(1, blocks))
    return tuple(count if most is None else min(count, most) for count in counts)


def plain(width: int, blocks: int) -> Cost:
    """The pre-norm stream: 3R vectors, nothing else."""
    return Cost(0, 0, 6 * blocks, 1, 0, constant(blocks, 1))


def short_swa(width: int, blocks: int, *, window: int, length: int, query_block: int) -> Cost:
    """ShortSWA on the tokens with its own Q, K, V and O, as one more sublayer a block.

    L (8d² + 4d w̄) FLOPs with w̄ = triangle(T, w)/T; 3R + L (11 + 2r) vectors, r = 1 + (w-1)/query_block the
    loads of a key; 4d²L parameters; 2wdL numbers in the cache.
    """
    mean = triangle(length, window) / length
    loads = 1 + (window - 1) / query_block
    return Cost(
        flops=blocks * (8 * width**2 + 4 * width * mean),
        parameters=4 * width**2 * blocks,
        vectors=6 * blocks + blocks * (11 + 2 * loads),
        live=1,
        cache=2 * window * width * blocks,
        boundary=constant(blocks, 1),
    )


def depth_read(width: int, blocks: int, *, window: int) -> Cost:
    """One read a block of the last K levels, by pseudo-query and without projections; K > L reads all.

    6d triangle(L, K) FLOPs, 3R + triangle(L, K) + L vectors, 2dL parameters.
    """
    seen = triangle(blocks, window)
    live = min(window, blocks + 1)
    return Cost(
        flops=6 * width * seen,
        parameters=2 * width * blocks,
        vectors=6 * blocks + seen + blocks,
        live=live,
        cache=0,
        boundary=growing(blocks, most=live),
    )


def depth_window(width: int, blocks: int, *, window: int, shared: bool) -> Cost:
    """The literal read of the paper: scaled dot products of states, with Q, K, V and O.

    Shared by all levels, so that each level's key and value are computed once:
        8d²L + 4d triangle(L, K) FLOPs, 3R + 11L + 2 triangle(L, K) vectors, 4d² parameters.
    Owned by the reading level, which projects its window anew (its vectors are a lower bound):
        4d²L + (4d² + 4d) triangle(L, K) FLOPs, 3R + triangle(L, K) + L vectors, 4d²L parameters.
    """
    seen = triangle(blocks, window)
    if not shared:
        return Cost(
            flops=4 * width**2 * blocks + (4 * width**2 + 4 * width) * seen,
            parameters=4 * width**2 * blocks,
            vectors=6 * blocks + seen + blocks,
            live=min(window, blocks + 1),
            cache=0,
            boundary=growing(blocks, most=window),
        )
    # A key and a value of the K - 1 levels before, and the state itself.
    return Cost(
        flops=8 * width**2 * blocks + 4 * width * seen,
        parameters=4 * width**2,
        vectors=6 * blocks + 11 * blocks + 2 * seen,
        live=2 * min(window - 1, blocks) + 1,
        cache=0,
        boundary=growing(blocks, per_block=2, most=2 * (window - 1) + 1),
    )


def attention_residuals(width: int, blocks: int) -> Cost:
    """A read a sublayer of the embedding and every branch output, in place of the add.

    6d R(R+1)/2 FLOPs, R(R+1)/2 + R vectors, 2dR parameters. A last read of the output is not counted.
    """
    reads = 2 * blocks
    seen = reads * (reads + 1) // 2
    return Cost(6 * width * seen, 2 * width * reads, seen + reads, reads + 1, 0, growing(blocks, per_block=2))


def block_attention_residuals(width: int, blocks: int, *, groups: int) -> Cost:
    """The same over N groups of S = R/N sublayers in two phases; N must divide R.

    6d (NS(N+1)/2 + N(S-1)) FLOPs, N(N-1)/2 + 4NS + 3N(S-1) vectors, 2dR parameters.
    """
    reads = 2 * blocks
    size = reads // groups
    # A stage holds the embedding, the groups that are complete, and the running sum of the one that is not.
    boundary = tuple(-(-2 * block // size) + 1 for block in range(1, blocks))
    return Cost(
        flops=6 * width * (groups * size * (groups + 1) / 2 + groups * (size - 1)),
        parameters=2 * width * reads,
        vectors=groups * (groups - 1) // 2 + 4 * groups * size + 3 * groups * (size - 1),
        live=groups + 1,
        cache=0,
        boundary=boundary,
    )


def elc_bert(width: int, blocks: int, *, output: bool = False) -> Cost:
    """d L(L+1) FLOPs, L(L+1)/2 + 4L vectors, L(L+1)/2 parameters; `output` adds a read of all L + 1."""
    seen, last = blocks * (blocks + 1) // 2, (blocks + 1) * output
    return Cost(
        flops=2 * width * (seen + last),
        parameters=seen + last,
        vectors=seen + 4 * blocks + last,
        live=blocks + 1,
        cache=0,
        boundary=growing(blocks),
    )


def vertical_attention(width: int, blocks: int, *, norm: bool = True, output: bool = False) -> Cost:
    """d L(L+1) FLOPs for the mix and 3d a source for its norm, if any; `output` adds a read of all L + 1.

    Vectors as DenseFormer's: each read takes its sources and writes one. The norm of a level is taken where
    the level is written, so it moves nothing of its own.
    """
    reads = blocks + output
    seen = reads * (reads + 1) // 2
    return Cost(
        flops=2 * width * seen + 3 * width * reads * norm,
        parameters=seen,
        vectors=6 * blocks + seen + reads,
        live=blocks + 1,
        cache=0,
        boundary=growing(blocks),
    )


def hyper_connections(width: int, blocks: int, *, streams: int, dynamic: bool) -> Cost:
    """2nd(n+2) FLOPs a sublayer, and dynamic as many again with 3nd for the norm; (3n+2) vectors.

    n(n+2) parameters a sublayer, and dynamic d(n+2) + 2 more; a gain of the norm is not counted.
    """
    sublayers, n = 2 * blocks, streams
    flops = 2 * n * width * (n + 2)
    parameters = n * (n + 2)
    if dynamic:
        flops += 2 * n * width * (n + 2) + 3 * n * width
        parameters += width * (n + 2) + 2
    return Cost(flops * sublayers, parameters * sublayers, (3 * n + 2) * sublayers, n, 0, constant(blocks, n))


def manifold_hyper_connections(width: int, blocks: int, *, streams: int) -> Cost:
    """2nd(n²+2n) FLOPs a sublayer for the coefficients and 2nd(n+2) for read, mix and write.

    nd(n²+2n) + n² + 2n + 3 parameters a sublayer; (3n+2) vectors, fused. Sinkhorn is independent of d and not
    counted.
    """
    sublayers, n = 2 * blocks, streams
    flops = 2 * n * width * (n**2 + 2 * n) + 2 * n * width * (n + 2)
    parameters = n * width * (n**2 + 2 * n) + n**2 + 2 * n + 3
    return Cost(flops * sublayers, parameters * sublayers, (3 * n + 2) * sublayers, n, 0, constant(blocks, n))


def deep_delta(
    width: int, blocks: int, *, channels: int, compressor: str | None = None, kernel: int = 4
) -> Cost:
    """Deep Delta with d_v channels; the compressor is None for d_v = 1, else "cc" or "tc".

    11d, (8d_v + 5) d or (8d_v + 2k d_v + 5) d FLOPs a sublayer; 4 or 3d_v + 4 vectors; heads of
    (d_v + 1)(d + 1) parameters a sublayer; a compressor a block and one at the end, of k d + d_v or
    k d d_v + d_v. A token compressor keeps k - 1 states for every call of it.
    """
    d, sublayers = width, 2 * blocks
    heads = sublayers * (channels + 1) * (d + 1)
    if compressor is None:
        return Cost(11 * d * sublayers, heads, 4 * sublayers, 1, 0, constant(blocks, 1))
    tokens = compressor == "tc"
    flops = (8 * channels + 2 * kernel * channels * tokens + 5) * d
    size = kernel * d * (channels if tokens else 1) + channels
    return Cost(
        flops=flops * sublayers,
        parameters=heads + (blocks + 1) * size,
        vectors=(3 * channels + 4) * sublayers,
        live=channels,
        cache=(kernel - 1) * d * channels * (sublayers + 1) * tokens,
        boundary=constant(blocks, channels),
    )


def denseformer(width: int, blocks: int, *, dilation: int = 1, period: int = 1) -> Cost:
    """2d a source and average, 3R vectors and one more a source and a result, one parameter a source.

    For dilation and period 1: d L(L+3) FLOPs, 3R + L(L+3)/2 + L vectors, L(L+3)/2 parameters. A boundary
    carries what later averages can still reach; the average of the last block before it may be taken on
    either side.
    """
    averages = range(period, blocks + 1, period)
    seen = sum(i // dilation + 1 for i in averages)

    def reached(block: int, first: int) -> set[int]:
        """Outputs of blocks up to `block` that an average from `first` on can reach."""
        reads = {j for i in averages if i >= first for j in range(i % dilation, i + 1, dilation)}
        return {j for j in reads if j <= block}

    def states(block: int) -> int:
        before = reached(block, block) | {block}
        # The average itself crosses, and block's own output if it is still wanted.
        after = len(reached(block, block + 1)) + 1 if block % period == 0 else len(before)
        return min(len(before), after)

    return Cost(
        flops=2 * width * seen,
        parameters=seen,
        vectors=6 * blocks + seen + len(averages),
        live=len(reached(blocks, blocks) | {blocks}),
        cache=0,
        boundary=tuple(states(block) for block in range(1, blocks)),
    )
