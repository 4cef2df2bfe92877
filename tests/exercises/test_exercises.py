"""Every registered exercise has a fair checker: it accepts the reference and names typical mistakes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from t2lib.exercises import Exercise, chapters, exercises, judge

ALL = exercises()


def ids(exercise: Exercise) -> str:
    return exercise.id


def seconds(exercise: Exercise, answer: Any) -> float:
    """Processor time of one check, imports not counted: the first check of an exercise may load torch."""
    start = time.process_time()
    judge(exercise.id, answer)
    return time.process_time() - start


def test_every_chapter_of_part_one_has_at_least_four_exercises() -> None:
    assert {name: len(exercises(name)) >= 4 for name in chapters()} == {f"ch0{n}": True for n in range(1, 7)}


@pytest.mark.parametrize("exercise", ALL, ids=ids)
def test_the_reference_is_accepted_within_two_seconds(exercise: Exercise) -> None:
    verdict = judge(exercise.id, exercise.reference)
    assert verdict.mark == "✓", verdict
    assert verdict.sentence == f"right: {exercise.why}"
    assert seconds(exercise, exercise.reference) < 2.0


@pytest.mark.parametrize("exercise", ALL, ids=ids)
def test_the_stub_is_not_attempted(exercise: Exercise) -> None:
    stubs = [..., None, exercise.stub]
    if callable(exercise.reference) and not isinstance(exercise.reference, type):
        stubs += [lambda *args, **kwargs: None, lambda *args, **kwargs: ...]
    for stub in stubs:
        assert str(judge(exercise.id, stub)) == "○ not attempted yet"


@pytest.mark.parametrize("exercise", ALL, ids=ids)
def test_two_typical_mistakes_are_named(exercise: Exercise) -> None:
    assert len(exercise.wrong) >= 2
    for name, (answer, fragment) in exercise.wrong.items():
        verdict = judge(exercise.id, answer)
        assert verdict.mark == "✗", f"{name}: {verdict}"
        assert fragment in verdict.sentence, f"{name}: {verdict}"
        assert "\n" not in verdict.sentence
        assert seconds(exercise, answer) < 2.0
    sentences = {judge(exercise.id, answer).sentence for answer, _ in exercise.wrong.values()}
    assert len(sentences) >= 2, "different mistakes need different sentences"


@pytest.mark.parametrize("exercise", ALL, ids=ids)
def test_an_answer_nobody_thought_of_is_refused(exercise: Exercise) -> None:
    answers = [lambda *args, **kwargs: -987654.25, lambda *args, **kwargs: "seven", -987654.25, "seven", [[]]]
    for answer in answers:
        assert judge(exercise.id, answer).mark == "✗", answer


@pytest.mark.parametrize("exercise", [e for e in ALL if callable(e.reference)], ids=ids)
def test_an_error_in_the_answer_becomes_a_sentence(exercise: Exercise) -> None:
    def broken(*args: object, **kwargs: object) -> object:
        raise ZeroDivisionError("division by zero")

    verdict = judge(exercise.id, broken)
    assert verdict.mark == "✗"
    assert "ZeroDivisionError" in verdict.sentence
