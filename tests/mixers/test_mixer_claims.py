"""The table of `python -m t2lib.verify mixers`: every stream with three mixers; the rest is in test_cache."""

import pytest
import torch

from t2lib.mixers import _claims
from t2lib.mixers._variants import STREAMS, VARIANTS
from t2lib.streams import STREAMS as DESIGNS
from t2lib.token_pass import Pass

torch.set_num_threads(1)


def test_every_design_and_every_mixer_is_there():
    assert {design for design, _ in STREAMS.values()} == set(DESIGNS)
    assert len(_claims.checks("mixers", "decode")) == len(STREAMS) * len(VARIANTS)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(
    ("mixer", "column"),
    [("canon ABCD", "decode"), ("canon ABCD", "packed"), ("short_swa chunk", "chunked"),
     ("short_swa chunk", "padded"), ("short_swa", "prefill")],
)  # fmt: skip
def test_cells(stream, mixer, column):
    tolerance, measure = _claims.checks("mixers", column)[f"{mixer}, {stream}"]
    assert measure() <= tolerance


def test_a_pass_that_forgets_is_red(monkeypatch):
    monkeypatch.setattr(Pass, "_earlier", lambda self, key, count: None)
    for mixer in ("none", "short_conv", "canon ABCD", "short_swa"):
        assert _claims.decode(mixer, "prenorm") > 1e-3
    assert _claims.decode("none", "ddl tc + ec") > 1e-3
