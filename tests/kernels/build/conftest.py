"""Compile the kernels for chips that are not here, in a process of its own: `pytest tests/kernels/build`."""

from __future__ import annotations

import os
import tempfile

if os.environ.get("TRITON_INTERPRET") == "1":
    raise RuntimeError("a process with TRITON_INTERPRET=1 cannot compile; unset it for tests/kernels/build.")

# A cache of its own: an old build in a shared one would hide both a failure and the time it takes.
_cache = tempfile.TemporaryDirectory(prefix="t2lib-triton-")
os.environ["TRITON_CACHE_DIR"] = _cache.name
