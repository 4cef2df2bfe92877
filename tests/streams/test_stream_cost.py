"""Costs: the worked numbers of the model, and brute force."""

import pytest

from t2lib.streams import cost

# Blocks, width and tokens of the three worked models.
MODELS = {"A": (12, 768, 1024), "B": (32, 4096, 4096), "C": (48, 5120, 8192)}


def rows(blocks, width, length):
    """Every mechanism of the worked tables, by name."""
    return {
        "plain": cost.plain(width, blocks),
        "short_swa": cost.short_swa(width, blocks, window=128, length=length, query_block=128),
        "free 4": cost.depth_read(width, blocks, window=4),
        "free 8": cost.depth_read(width, blocks, window=8),
        "literal 4": cost.depth_window(width, blocks, window=4, shared=True),
        "owned 4": cost.depth_window(width, blocks, window=4, shared=False),
        "full block": cost.depth_read(width, blocks, window=blocks + 1),
        "full sublayer": cost.attention_residuals(width, blocks),
        "groups 8": cost.block_attention_residuals(width, blocks, groups=8),
        "elc": cost.elc_bert(width, blocks),
        "dense": cost.denseformer(width, blocks),
        "ddl 1": cost.deep_delta(width, blocks, channels=1),
        "ddl cc": cost.deep_delta(width, blocks, channels=4, compressor="cc"),
        "ddl tc": cost.deep_delta(width, blocks, channels=4, compressor="tc"),
        "hc": cost.hyper_connections(width, blocks, streams=4, dynamic=True),
    }


# Extra FLOPs, residual bytes in bf16, extra parameters, cache bytes in bf16, live vectors.
WORKED = {
    "A": {
        "plain": (0, 111e3, 0, 0, 1),
        "short_swa": (61e6, 387e3, 28.3e6, 4.72e6, 1),
        "free 4": (194e3, 194e3, 18.4e3, 0, 4),
        "free 8": (313e3, 233e3, 18.4e3, 0, 8),
        "literal 4": (56.8e6, 442e3, 2.36e6, 0, 7),
        "owned 4": (128e6, 194e3, 28.3e6, 0, 4),
        "full block": (359e3, 249e3, 18.4e3, 0, 13),
        "full sublayer": (1.38e6, 498e3, 36.9e3, 0, 25),
        "groups 8": (571e3, 264e3, 36.9e3, 0, 9),
        "elc": (120e3, 194e3, 78, 0, 13),
        "dense": (138e3, 267e3, 90, 0, 13),
        "ddl 1": (203e3, 147e3, 36.9e3, 0, 1),
        "ddl cc": (682e3, 590e3, 132e3, 0, 4),
        "ddl tc": (1.27e6, 590e3, 252e3, 461e3, 4),
        "hc": (1.99e6, 516e3, 111e3, 0, 4),
    },
    "B": {
        "plain": (0, 1.57e6, 0, 0, 1),
        "short_swa": (4.36e9, 5.5e6, 2.15e9, 67.1e6, 1),
        "free 4": (3e6, 2.83e6, 262e3, 0, 4),
        "free 8": (5.6e6, 3.7e6, 262e3, 0, 8),
        "literal 4": (4.3e9, 6.46e6, 67.1e6, 0, 7),
        "owned 4": (10.3e9, 2.83e6, 2.15e9, 0, 4),
        "full block": (13e6, 6.16e6, 262e3, 0, 33),
        "full sublayer": (51.1e6, 17.6e6, 524e3, 0, 65),
        "groups 8": (8.45e6, 3.7e6, 524e3, 0, 9),
        "elc": (4.33e6, 5.37e6, 528, 0, 33),
        "dense": (4.59e6, 6.42e6, 560, 0, 33),
        "ddl 1": (2.88e6, 2.1e6, 524e3, 0, 1),
        "ddl cc": (9.7e6, 8.39e6, 1.85e6, 0, 4),
        "ddl tc": (18.1e6, 8.39e6, 3.47e6, 6.39e6, 4),
        "hc": (28.3e6, 7.34e6, 1.57e6, 0, 4),
    },
    "C": {
        "plain": (0, 2.95e6, 0, 0, 1),
        "short_swa": (10.2e9, 10.3e6, 5.03e9, 126e6, 1),
        "free 4": (5.71e6, 5.35e6, 492e3, 0, 4),
        "free 8": (10.9e6, 7.09e6, 492e3, 0, 8),
        "literal 4": (10.1e9, 12.2e6, 105e6, 0, 7),
        "owned 4": (24.5e9, 5.35e6, 5.03e9, 0, 4),
        "full block": (36.1e6, 15.5e6, 492e3, 0, 49),
        "full sublayer": (143e6, 48.7e6, 983e3, 0, 97),
        "groups 8": (16e6, 6.92e6, 983e3, 0, 9),
        "elc": (12e6, 14e6, 1.18e3, 0, 49),
        "dense": (12.5e6, 16e6, 1.22e3, 0, 49),
        "ddl 1": (5.41e6, 3.93e6, 983e3, 0, 1),
        "ddl cc": (18.2e6, 15.7e6, 3.46e6, 0, 4),
        "ddl tc": (33.9e6, 15.7e6, 6.47e6, 11.9e6, 4),
        "hc": (53.1e6, 13.8e6, 2.95e6, 0, 4),
    },
}


@pytest.mark.parametrize("model", MODELS)
def test_worked_numbers(model):
    """All of them agree to the three digits that are given."""
    blocks, width, length = MODELS[model]
    for name, closed in rows(blocks, width, length).items():
        got = (closed.flops, closed.vectors * width * 2, closed.parameters, closed.cache * 2, closed.live)
        assert got == pytest.approx(WORKED[model][name], rel=5e-3), name


def test_triangle():
    assert (cost.triangle(12, 4), cost.triangle(32, 4), cost.triangle(48, 8)) == (42, 122, 356)
    for n in range(1, 9):
        for k in range(1, 12):
            assert cost.triangle(n, k) == sum(min(k, i) for i in range(1, n + 1))


def test_counts_by_hand():
    """300 visits of full reads a sublayer at 12 blocks, 172 vectors of 8 groups of 3."""
    assert cost.attention_residuals(1, 12).flops == 6 * 300
    assert cost.block_attention_residuals(1, 12, groups=8).vectors == 172


BOUNDARIES = {"plain": 7, "ddl 1": 7, "free 4": 28, "hc": 28, "ddl cc": 28, "free 8": 55, "full block": 175,
              "elc": 175, "dense": 175, "full sublayer": 343, "groups 8": 35}  # fmt: skip


def test_states_across_eight_stages():
    """Model C on 8 stages of 6 blocks: the states of the seven boundaries, one by one and in sum."""
    found = {name: closed.boundary[5::6] for name, closed in rows(*MODELS["C"]).items()}
    assert {name: sum(found[name]) for name in BOUNDARIES} == BOUNDARIES
    assert found["full block"] == (7, 13, 19, 25, 31, 37, 43)
    assert found["free 8"] == (7, 8, 8, 8, 8, 8, 8)
    assert found["groups 8"] == (2, 3, 4, 5, 6, 7, 8)
    assert found["full sublayer"][-1] == 85
    assert all(len(closed.boundary) == 47 for closed in rows(*MODELS["C"]).values())


def test_dilation_does_not_shrink_the_state_but_a_shared_period_does():
    assert cost.denseformer(8, 48, dilation=4).boundary[5::6] == (7, 13, 19, 25, 31, 37, 43)
    shared = cost.denseformer(8, 48, dilation=4, period=4)
    assert max(shared.boundary) < 20
    assert cost.denseformer(8, 48, dilation=4, period=5).parameters == 62
