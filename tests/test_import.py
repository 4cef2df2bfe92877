"""Importing t2lib is quick and brings neither torch nor Triton."""

import statistics
import subprocess
import sys

import t2lib


def run(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_loads_neither_numpy_nor_torch_nor_triton():
    run("import sys, t2lib; assert not {'numpy', 'torch', 'triton'} & set(sys.modules)")


def test_the_operators_load_neither_torch_nor_triton():
    run("import sys; import t2lib.ops, t2lib.golden; assert not {'torch', 'triton'} & set(sys.modules)")


def test_import_takes_less_than_a_third_of_a_second():
    # CPU time of this process: what else the machine does is no fault of the import.
    code = "import time; a = time.process_time(); import t2lib; print(time.process_time() - a)"
    assert statistics.median(float(run(code)) for _ in range(3)) < 0.3


def test_the_function_and_its_rungs_are_found_under_one_name():
    from t2lib.ops import short_swa
    from t2lib.ops.short_swa import loops

    assert callable(short_swa)
    assert loops.__name__ == "t2lib.ops.short_swa.loops"


def test_version():
    assert t2lib.__version__.count(".") == 2
