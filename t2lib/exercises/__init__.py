"""Checkers behind the book's exercises.

    from t2lib.exercises import check
    check("ch03.rows_affected", rows_affected)

prints one line: ``○ not attempted yet``, ``✓ right: ...`` with the reason why it matters, or ``✗ ...`` with
the mistake named. Each chapter has a module ``t2lib.exercises.chNN`` that registers its exercises; it is
imported when one of its ids is first asked for.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from t2lib.exercises._compare import Mistake, close, matches, same

__all__ = [
    "Exercise",
    "Mistake",
    "NotAttempted",
    "Verdict",
    "attempted",
    "chapters",
    "check",
    "close",
    "exercises",
    "judge",
    "matches",
    "register",
    "same",
]


class NotAttempted(Exception):
    """The answer is still the stub."""


@dataclass(frozen=True)
class Exercise:
    """One exercise, with everything a test needs to prove that its checker is fair.

    ``checker(answer)`` raises `Mistake` with one sentence, or returns. ``answer`` is what the reader passed:
    a value, a class, or a function; a function arrives wrapped, so that an error inside it, or a missing
    return value, becomes a sentence that names the arguments of the call. ``why`` is the sentence printed
    after "right: ".

    ``wrong`` maps the name of a typical mistake to an answer that makes it and to a fragment that the message
    must contain. At least two are needed.
    """

    id: str
    title: str
    checker: Callable[[Any], None]
    reference: Any
    why: str
    wrong: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    stub: Any = ...


@dataclass(frozen=True)
class Verdict:
    """What a check found: a mark (○ not attempted, ✓ right, ✗ wrong) and one sentence."""

    mark: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.mark} {self.sentence}"


def check(exercise_id: str, answer: Any) -> None:
    """Print one line about ``answer``: not attempted, right and why it matters, or the mistake by name.

    Errors: ValueError for an id that no chapter has; the sentence lists the ids there are.
    """
    print(judge(exercise_id, answer))


def judge(exercise_id: str, answer: Any) -> Verdict:
    """As `check`, but returns the `Verdict` instead of printing it."""
    exercise = _find(exercise_id)
    try:
        exercise.checker(_prepare(answer, exercise.reference))
    except NotAttempted:
        return Verdict("○", "not attempted yet")
    except Mistake as mistake:
        return Verdict("✗", str(mistake))
    except Exception as error:
        return Verdict("✗", f"your answer could not be used: {type(error).__name__}: {error}")
    return Verdict("✓", f"right: {exercise.why}")


def attempted(value: Any) -> Any:
    """``value``, unless it is None or ``...``: then the answer counts as not attempted."""
    if value is None or value is ...:
        raise NotAttempted
    return value


_registered: dict[str, dict[str, Exercise]] = {}


def register(*found: Exercise) -> None:
    """Register all exercises of one chapter; called once, at the end of its module."""
    ids = [exercise.id for exercise in found]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise ValueError(f"exercise ids must be unique, got {', '.join(twice)} more than once")
    for chapter in {name.split(".")[0] for name in ids}:
        _registered[chapter] = {e.id: e for e in found if e.id.split(".")[0] == chapter}


def chapters() -> list[str]:
    """The chapters that have exercises, in order: ``["ch01", ...]``."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name.startswith("ch"))


def exercises(chapter: str | None = None) -> list[Exercise]:
    """The exercises of one chapter (``"ch03"``), or of all of them."""
    if chapter is None:
        return [exercise for name in chapters() for exercise in exercises(name)]
    if chapter not in chapters():
        raise ValueError(f"chapter must be one of {', '.join(chapters()) or '(none yet)'}, got {chapter!r}")
    if chapter not in _registered:
        importlib.import_module(f"{__name__}.{chapter}")
    return list(_registered.get(chapter, {}).values())


def _find(exercise_id: str) -> Exercise:
    chapter = str(exercise_id).split(".")[0]
    known = exercises(chapter) if chapter in chapters() else exercises()
    for exercise in known:
        if exercise.id == exercise_id:
            return exercise
    names = ", ".join(exercise.id for exercise in known) or "(none yet)"
    raise ValueError(f"exercise must be one of {names}, got {exercise_id!r}")


def _prepare(answer: Any, reference: Any) -> Any:
    attempted(answer)
    if callable(reference) and not callable(answer):
        raise Mistake(f"a function is asked for, got the value {answer!r}: pass its name, without calling it")
    if callable(answer) and not callable(reference):
        raise Mistake("a value is asked for, got a function: pass what it returns")
    return _watched(answer) if callable(answer) and not inspect.isclass(answer) else answer


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    returned_before = False

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal returned_before
        where = _describe_call(function, args, kwargs)
        try:
            # The reader's code may write into its arguments; the checker still needs its own.
            result = function(*map(_copied, args), **{name: _copied(value) for name, value in kwargs.items()})
        except NotImplementedError:
            raise NotAttempted from None
        except Exception as error:
            raise Mistake(f"your function raised {type(error).__name__}: {error}{where}") from error
        if result is None or result is ...:
            if not returned_before:
                raise NotAttempted
            raise Mistake(f"your function returned nothing{where}")
        returned_before = True
        return result

    return call


def _copied(value: Any) -> Any:
    return value.copy(order="K") if type(value).__name__ == "ndarray" else value


def _describe_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    try:
        bound: Mapping[str, Any] = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {f"argument {i + 1}": value for i, value in enumerate(args)} | kwargs
    shown = ", ".join(f"{name}={_shorten(value)}" for name, value in bound.items())
    return f" for {shown}" if shown else ""


def _shorten(value: Any) -> str:
    if hasattr(value, "shape") and getattr(value, "ndim", 0) > 0:
        return f"<array of shape {tuple(value.shape)}>"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
