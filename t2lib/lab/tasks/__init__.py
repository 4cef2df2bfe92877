"""Synthetic tasks, small, from a seed: what a decoder has to read from far, from near, or work out.

A batch is drawn from a generator, and answers are graded by an exact solver::

    task = build("depo", largest=20, largest_hop=4)
    batch = task.batch(numpy.random.default_rng(0), 32)   # tokens, loss_mask, documents, questions
    answers = batch.answers_from(logits.argmax(-1))       # or let a model continue batch.prompts()
    task.accuracy(batch, answers), task.chance

All five share one interface, `Task`: `batch` draws, `solve` answers exactly, `grade` decides from the tokens
of the prompt, `accuracy` is the share of right answers and `chance` what blind answers reach.
`print(task.vocabulary)` lists the tokens. NumPy only; the same seed gives the same batch.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from t2lib.lab.tasks._batch import Batch, Question
from t2lib.lab.tasks._grammar import Grammar
from t2lib.lab.tasks._task import Task, Vocabulary
from t2lib.lab.tasks.brevo import Brevo
from t2lib.lab.tasks.depo import Depo
from t2lib.lab.tasks.lano import Lano
from t2lib.lab.tasks.mano import Mano
from t2lib.lab.tasks.mqar import MQAR

__all__ = ["TASKS", "Batch", "Grammar", "Question", "Task", "Vocabulary", "build"]

TASKS: dict[str, type[Task]] = {task.name: task for task in (Depo, Brevo, Mano, Lano, MQAR)}


def build(name: str, **parameters: Any) -> Task:
    """The task of that name; `parameters` are the fields of its class, each with a default.

    An unknown name or parameter is a ValueError that lists the known ones.
    """
    if not isinstance(name, str) or name not in TASKS:
        raise ValueError(f"task must be one of {', '.join(map(repr, TASKS))}; got {name!r}.")
    known = [field.name for field in fields(TASKS[name])]  # type: ignore[arg-type]
    for parameter in parameters:
        if parameter not in known:
            listed = ", ".join(map(repr, known))
            raise ValueError(f"parameters of task {name!r} are {listed}; got {parameter!r}.")
    return TASKS[name](**parameters)
