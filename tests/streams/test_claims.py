"""The tables of `python -m t2lib.verify streams` and `delta`, a test a cell; wrong streams are red."""

import pytest
import sublayers  # noqa: F401  one thread
import torch

from t2lib import golden, verify
from t2lib.streams import _claims, _claims_delta, _golden
from t2lib.streams._variants import DELTA, VARIANTS
from t2lib.streams.deep_delta import DeepDelta
from t2lib.streams.denseformer import DenseFormer
from t2lib.streams.stream import Stream


def cells(claims, section, columns):
    """Every cell that is no skip, named for the report of a failure."""
    found = []
    for column in columns:
        for variant, (tolerance, measure) in claims.checks(section, column).items():
            if not isinstance(measure, str):
                found.append(pytest.param(tolerance, measure, id=f"{column}: {variant}"))
    return found


# What `streams` has of a variant is not measured a second time, compiling has tests of its own, and the
# decoder, which takes longest, is trained with some variants below.
STREAMS = [column for column in _claims.COLUMNS if column not in ("compile", "decoder")]
DELTAS = [column for column in _claims_delta.COLUMNS if column not in ("outputs", "gradients", "matrix")]


@pytest.mark.parametrize(("tolerance", "measure"), cells(_claims, "streams", STREAMS))
def test_streams(tolerance, measure):
    assert measure() <= tolerance


@pytest.mark.parametrize(("tolerance", "measure"), cells(_claims_delta, "delta", DELTAS))
def test_delta(tolerance, measure):
    assert measure() <= tolerance


# One variant a design: in bfloat16 a decoder of each trains as it does in float32.
DESIGNS = list({variant.design: name for name, variant in reversed(VARIANTS.items())}.values())


TRAINED = [
    *DESIGNS,
    "elc_bert normalized",
    "hc",
    "dca k=1",
    "mudd prepost paper",
    "ddl tc + ec",
    "ddl cc rewind",
]


@pytest.mark.parametrize("variant", TRAINED)
def test_the_decoder_trains(variant):
    assert _claims.decoder(variant) == 0


@pytest.mark.parametrize("variant", DESIGNS)
def test_the_decoder_in_bfloat16(variant):
    assert _claims.decoder(variant, torch.bfloat16) == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_stays_near_float64(variant):
    assert _claims.narrow(variant, torch.float32) < 5e-6


@pytest.mark.parametrize("variant", ["dca k=1"])
def test_a_walk_is_one_graph(variant):
    """Forward and backward through the whole depth, traced without a break."""
    assert _claims.compile_walk(variant, backend="aot_eager") < 1e-4


def test_every_vector_of_a_stream_is_replayed(monkeypatch):
    class Seen(Exception):
        pass

    found = set()

    def load(name):
        found.add(name)
        raise Seen

    monkeypatch.setattr(golden, "load", load)
    for case in (case for cases in _golden.cases().values() for case in cases):
        with pytest.raises(Seen):
            case()
    prefixes = ("prenorm", "elc_bert_", "denseformer_", "vertical", "dual_depth_read_", "hc_", "mhc", "dca")
    prefixes += ("muddformer", "attnres", "ddl_")
    assert {name for prefix in prefixes for name in golden.names(prefix)} == found


def test_what_has_no_vectors_says_so():
    without = {name for name in VARIANTS if name not in _golden.cases()}
    assert without == {
        "vertical from the last", "window 3 replace", "hc no tanh", "mhc no spread", "attnres input query",
        "ddl tc a sublayer", "ddl cc near identity",
    }  # fmt: skip
    for variant in without:
        assert _claims.checks("streams", "outputs")[variant][1] == _claims.NO_VECTORS
    assert set(DELTA) <= set(VARIANTS)


def red(section, *columns):
    """The names of the checks of a section that are red, in fresh replays."""
    _golden._replayed.cache_clear()
    module = {"streams": _claims, "delta": _claims_delta}[section]
    found = set()
    for column in columns:
        for variant, (tolerance, measure) in module.checks(section, column).items():
            if not isinstance(measure, str) and variant.startswith(("denseformer", "ddl cc write")):
                cell = verify.cell(section, variant, column, tolerance, measure)
                found |= {(variant, column)} if cell.red else set()
    _golden._replayed.cache_clear()
    return found


def test_the_sources_of_the_experiments_code_are_red(monkeypatch):
    """Which stores every p-th output only, so that a period changes what a dilation reaches."""
    right = DenseFormer.sources

    def sources(self, i):
        return range(i, -1, -self.dilation * self.period)[::-1] if self.period > 1 else right(self, i)

    monkeypatch.setattr(DenseFormer, "sources", sources)
    found = red("streams", "outputs", "gradients", "cost")
    assert ("denseformer 2x3", "outputs") in found or ("denseformer 4x5", "outputs") in found
    assert ("denseformer 1x1", "outputs") not in found


def test_an_erase_where_none_belongs_is_red(monkeypatch):
    right = DeepDelta.__init__

    def erases(self, *sizes, **options):
        right(self, *sizes, **{**options, "erase": True})

    monkeypatch.setattr(DeepDelta, "__init__", erases)
    assert ("ddl cc write-only", "outputs") in red("delta", "outputs")


def test_weights_that_are_not_held_are_red(monkeypatch):
    """The derivative of a weight is no part of the mixing matrix."""
    monkeypatch.setattr(Stream, "held", lambda self, coefficient: coefficient)
    measures = _claims.checks("streams", "mixing")
    assert measures["hc"][1]() > 1e-6
    assert measures["prenorm"][1]() < 1e-10
