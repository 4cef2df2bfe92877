"""The instances that the released generators drew: read, solved, graded and written again."""

from __future__ import annotations

import pytest

from t2lib.golden import replay_tasks

COUNTS = {"depo": 16, "brevo": 10, "mano": 12, "lano": 16}


@pytest.mark.parametrize("name", COUNTS)
def test_every_instance_is_reproduced(name: str) -> None:
    cases = replay_tasks.cases(name)
    assert len(cases) == COUNTS[name]
    for number, case in enumerate(cases):
        for what, got, want in replay_tasks.replay(name, case):
            assert got == want, (number, what)


def test_the_strings_of_the_grammar_are_of_both_kinds() -> None:
    assert sum(case["valid"] for case in replay_tasks.cases("lano")) == 9


def test_unknown_names_say_what_there_is() -> None:
    with pytest.raises(
        ValueError, match=r"name must be one of 'depo', 'brevo', 'mano', 'lano'; got 'capo'\."
    ):
        replay_tasks.cases("capo")
