"""The closed forms of the costs, against counting pair by pair and against the worked numbers."""

import itertools

import pytest

from t2lib.ops.short_swa import Mask, cost


def counted(n_q, mask):
    positions = range(mask.query_start, mask.query_start + n_q)
    return sum(bool(mask.sees(i, j)) for i in positions for j in range(positions.stop))


@pytest.mark.parametrize(("n", "k", "pairs"), [(12, 4, 42), (32, 4, 122), (48, 8, 356), (3, 9, 6), (0, 2, 0)])
def test_worked_numbers(n, k, pairs):
    assert cost.tri(n, k) == pairs


def test_pairs_by_counting():
    for n_q, window, start in itertools.product((1, 2, 5, 11), (1, 2, 3, 7, 20), (0, 1, 6)):
        assert cost.pairs(n_q, window, query_start=start) == counted(n_q, Mask(window, query_start=start))
        for back in (0, 1, 2, 5):
            mask = Mask(window, "chunk", back, start)
            chunk = cost.pairs(n_q, window, window_type="chunk", lookback=back, query_start=start)
            assert chunk == counted(n_q, mask), mask


def test_what_a_mask_says_of_itself_by_counting():
    for mask in (Mask(1), Mask(5), Mask(3, "chunk", 0), Mask(3, "chunk", 2)):
        seen = [[j for j in range(30) if mask.sees(i, j)] for i in range(30)]
        assert [row[0] for row in seen] == [mask.first_seen(i) for i in range(30)]
        assert max(map(len, seen)) == mask.reach


def test_flops():
    # One head, 5 queries, window 2: 9 pairs, each a product and a sum over D = 3 and D_v = 4.
    assert cost.forward_flops(5, 2, 3, value_width=4) == 2 * 9 * 7
    # ShortSWA in a model with T = 1024, d = 768, w = 128 and 12 layers: 4.43 MFLOP a token.
    a_token = 12 * cost.forward_flops(1024, 128, 64, sequences=12) / 1024
    assert round(a_token / 1e6, 2) == 4.43


def test_bytes_and_re_reads():
    # Blocks of 4 queries with a window of 3 load 4, 6 and 3 rows of k and v for 9 queries.
    assert cost.forward_bytes(9, 3, 8, itemsize=2, block=4) == 2 * (9 + 4 + 6 + 3) * 16
    assert cost.forward_bytes(9, 3, 8, itemsize=2, block=1) == 2 * (9 + cost.tri(9, 3)) * 16
    assert cost.re_read_factor(128, 128) == pytest.approx(2, abs=0.01)
    assert cost.re_read_factor(8, 1) == 8
    # A long sequence approaches the factor.
    loads = cost.forward_bytes(64 * 1000, 64, 1, itemsize=1, block=64, value_width=1) / 2 - 64000
    assert loads / 64000 == pytest.approx(cost.re_read_factor(64, 64), rel=1e-3)


def test_bytes_of_the_kernels():
    # 10 queries, width 8, 2 bytes: q, k, v and the result once, and a log-sum of 4 bytes a query.
    forward, backward = cost.kernel_bytes(10, 3, 8, itemsize=2)
    assert forward == 10 * (4 * 16 + 4)
    # dq from q, k, v, the result, its gradient and the log-sums; dk and dv from all but the result.
    assert backward == 10 * ((6 * 16 + 4 + 4) + (6 * 16 + 4 + 4))
    # dq alone is the first launch without its sums; dv alone needs neither v nor the result.
    assert cost.kernel_bytes(10, 3, 8, itemsize=2, gradients=("q",))[1] == 10 * (6 * 16 + 4)
    assert cost.kernel_bytes(10, 3, 8, itemsize=2, gradients=("v",))[1] == 10 * (4 * 16 + 4)
    # A value of two pieces takes each launch twice.
    pieces = [cost.kernel_bytes(10, 3, 8, itemsize=2, value_width=width) for width in (256, 44)]
    assert cost.kernel_bytes(10, 3, 8, itemsize=2, value_width=300) == tuple(
        map(sum, zip(*pieces, strict=True))
    )
    with pytest.raises(ValueError, match=r"^gradients must be"):
        cost.kernel_bytes(10, 3, 8, itemsize=2, gradients=("out",))


def test_bad_input():
    with pytest.raises(ValueError, match=r"^k must be an integer of at least 1; got 0\.$"):
        cost.tri(3, 0)
    with pytest.raises(TypeError, match=r"^width must be an integer of at least 1; got 1\.5\.$"):
        cost.forward_flops(3, 2, 1.5)
