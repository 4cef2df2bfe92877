"""The ladder on a machine with a CUDA device, whose look-ups are stand-ins here."""

import os
import subprocess
import sys

TRACED = """
import types
import torch
from t2lib.ops import _registry

chip = types.SimpleNamespace(name="A chip", major=9, minor=0)
torch.cuda.get_device_properties = lambda device=None: chip
torch.cuda.is_available = lambda: True
# What dynamo itself asks a machine with a device.
torch.cuda.current_device = lambda: 0
torch.cuda.device_count = lambda: 1
torch.cuda.get_rng_state = lambda *a: torch.zeros(1)
torch.cuda.set_rng_state = lambda *a: None
q = types.SimpleNamespace(device=types.SimpleNamespace(type="cuda"), dtype=torch.float16, is_cuda=True)

for name in _registry.OPERATORS:
    assert _registry.ladder(name)[4] == ("kernels", True, "Triton, on A chip")
    assert _registry.load(name, "kernels").__name__.endswith(f"{name}.kernels")

def looked_up(x, name):
    return x + 1, _registry.load(name, "kernels") is not None, _registry._kernels(), _registry.choose(name, q)

compiled = torch.compile(looked_up, fullgraph=True, backend="eager", dynamic=False)
_, loaded, (runs_here, _), chosen = compiled(torch.ones(2), "short_conv")
assert loaded and runs_here and chosen == "kernels", (loaded, runs_here, chosen)
"""


def test_a_compiled_function_can_look_up_the_kernels_of_a_cuda_device():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", TRACED], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
