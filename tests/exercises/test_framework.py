"""The framework behind the exercises, on exercises of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from t2lib import exercises as framework
from t2lib.exercises import Exercise, Mistake, attempted, check, close, judge, matches, register, same


def check_double(double: Any) -> None:
    for number in (0, 3):
        same(double(number), 2 * number, f"double({number})")


def check_counter(counter: Any) -> None:
    thing = counter()
    attempted(thing.add(2))
    same(thing.add(3), 5, "the count after 2 and 3")


class Counter:
    total = 0

    def add(self, number: int) -> int:
        self.total += number
        return self.total


class CounterStub:
    def add(self, number: int) -> int: ...  # type: ignore[empty-body]


@pytest.fixture(autouse=True)
def practice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framework, "_registered", dict(framework._registered))
    monkeypatch.setattr(framework, "chapters", lambda: ["ch00"])
    register(
        Exercise("ch00.double", "Twice", check_double, lambda n: 2 * n, "twice is twice"),
        Exercise("ch00.seven", "Seven", lambda got: same(got, 7), 7, "it is prime"),
        Exercise("ch00.counter", "Count", check_counter, Counter, "state adds up", stub=CounterStub),
    )


def test_check_prints_one_line_and_returns_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("ch00.double", lambda n: n + n) is None
    assert capsys.readouterr().out == "✓ right: twice is twice\n"


def test_a_wrong_answer_is_named() -> None:
    assert str(judge("ch00.double", lambda n: n)) == "✗ double(3) is 3, expected 6"
    assert str(judge("ch00.seven", 8)) == "✗ the result is 8, expected 7"


@pytest.mark.parametrize("stub", [..., None, lambda n: None, lambda n: ...])
def test_a_stub_is_not_attempted(stub: Any) -> None:
    assert str(judge("ch00.double", stub)) == "○ not attempted yet"


def test_not_implemented_is_not_attempted() -> None:
    def later(n: int) -> int:
        raise NotImplementedError

    assert judge("ch00.double", later).mark == "○"


def test_an_error_names_the_arguments() -> None:
    assert judge("ch00.double", lambda n: 1 // n).sentence == (
        "your function raised ZeroDivisionError: integer division or modulo by zero for n=0"
    )


def test_wrong_number_of_arguments_is_the_readers_error() -> None:
    assert "raised TypeError" in judge("ch00.double", lambda: 1).sentence


def test_nothing_returned_for_a_later_call_is_a_mistake() -> None:
    verdict = judge("ch00.double", lambda n: 0 if n == 0 else None)
    assert str(verdict) == "✗ your function returned nothing for n=3"


def test_function_and_value_are_told_apart() -> None:
    assert "a function is asked for" in judge("ch00.double", 6).sentence
    assert "a value is asked for" in judge("ch00.seven", lambda: 7).sentence


def test_a_class_can_be_an_answer() -> None:
    assert judge("ch00.counter", Counter).mark == "✓"
    assert judge("ch00.counter", CounterStub).mark == "○"
    assert judge("ch00.counter", int).sentence.startswith("your answer could not be used: AttributeError")


def test_the_answer_cannot_change_the_checkers_arrays() -> None:
    held = np.ones(3)

    def checker(answer: Any) -> None:
        answer(held)
        close(held, np.ones(3))

    def spoil(x: Any) -> Any:
        x[:] = 0
        return x

    register(Exercise("ch00.array", "Array", checker, lambda x: x, "it stays"))
    assert judge("ch00.array", spoil).mark == "✓"


def test_an_unknown_id_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"ch00\.double, ch00\.seven.*'ch00\.nine'"):
        check("ch00.nine", 9)


def test_ids_are_unique() -> None:
    one = Exercise("ch00.a", "A", check_double, 1, "so")
    with pytest.raises(ValueError, match=r"ch00\.a more than once"):
        register(one, one)


@pytest.mark.parametrize(
    ("got", "want", "sentence"),
    [
        ([1.0, 2.0], [1.0, 2.0, 3.0], "the result has shape (2,), expected (3,)"),
        (1.0, [1.0], "the result has shape () (one number), expected (1,)"),
        ([[1.0, 2.0]], [[1.0, 2.5]], "the result at [0, 1] is 2, expected 2.5 (1 of 2 entries differ)"),
        (np.nan, 1.0, "the result is nan, expected 1"),
        (2, 3, "the result is 2, expected 3"),
        ("two", 2.0, "the result must be numbers, got str"),
        ([[1.0], [1.0, 2.0]], [1.0], "the result must be numbers, got list"),
    ],
)
def test_close_says_where(got: Any, want: Any, sentence: str) -> None:
    with pytest.raises(Mistake) as caught:
        close(got, want)
    assert str(caught.value) == sentence
    assert not matches(got, want)


def test_close_accepts_what_is_near() -> None:
    close(1.0 + 1e-9, 1.0)
    close([np.nan, np.inf], [np.nan, np.inf])
    close(1e9 + 1, 1e9)
    close(True, 1)
    with pytest.raises(Mistake, match="expected inf"):
        close(-np.inf, np.inf)


def test_close_takes_tensors() -> None:
    torch = pytest.importorskip("torch")
    close(torch.ones(2, requires_grad=True), [1.0, 1.0])
    close(torch.ones(2, dtype=torch.bfloat16), [1.0, 1.0])
    with pytest.raises(Mistake, match=r"z at \[0\] is 1, expected 2 \(2 of 2 entries differ\): scale it"):
        close(torch.ones(2), [2.0, 2.0], "z", hint="scale it")


@pytest.mark.parametrize(
    ("got", "want", "sentence"),
    [
        ([1, 2], [1, 3], "rows at [1] is 2, expected 3"),
        ([1, 2, 3], [1, 2], "rows has 3 entries, expected 2"),
        ("12", [1, 2], "rows is '12', expected [1, 2]"),
        (3.5, 3, "rows is 3.5, expected 3"),
    ],
)
def test_same_says_where(got: Any, want: Any, sentence: str) -> None:
    with pytest.raises(Mistake) as caught:
        same(got, want, "rows")
    assert str(caught.value) == sentence


def test_same_takes_what_numpy_returns() -> None:
    same(np.arange(3), [0, 1, 2])
    same((0, 1), [0, 1])
    same(np.int64(3), 3)


def test_the_framework_needs_neither_torch_nor_matplotlib() -> None:
    code = "import sys, t2lib.exercises; print({'torch', 'matplotlib', 'triton'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
