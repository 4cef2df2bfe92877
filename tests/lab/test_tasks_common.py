"""What holds for every task: batches, questions, grading, speed, and what bad input is told."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import torch

from t2lib.decoder import Decoder, DecoderConfig
from t2lib.lab import tasks
from t2lib.lab.tasks import TASKS, Grammar, Task, build

BREVO2 = {"name_vocabulary": 4, "shortest_name": 2, "longest_name": 4, "largest": 9}
DEPO2 = {"name_vocabulary": 3, "shortest_name": 5, "longest_name": 7, "largest": 9}
BUILDS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in TASKS),
    ("depo", DEPO2),
    ("brevo", BREVO2),
    ("mano", {"largest": 10, "context": 64}),
    ("lano", {"grammar": Grammar.draw(np.random.default_rng(1), depth=4)}),
    ("mqar", {"pairs": 4, "queries": 2, "fillers": 9}),
]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(params=BUILDS, ids=lambda build: "-".join([build[0], *build[1]]))
def task(request: pytest.FixtureRequest) -> Task:
    name, parameters = request.param
    return build(name, **parameters)


def test_packed_rows_are_full_and_begin_with_a_whole_instance(task: Task) -> None:
    batch = task.batch(rng(), 12)
    assert batch.tokens.shape == (12, task.length)
    assert batch.tokens.dtype == batch.documents.dtype == np.int64
    assert batch.loss_mask.dtype == batch.valid.dtype == bool
    assert batch.valid.all()
    assert (batch.tokens >= 1).all()
    assert (batch.tokens < len(task.vocabulary)).all()
    # The instances of a row are numbered 0, 1, ... and each begins with the same mark.
    steps = np.diff(batch.documents, axis=1)
    assert set(np.unique(steps)) <= {0, 1}
    begins = np.pad(steps == 1, ((0, 0), (1, 0)), constant_values=True)
    assert ((batch.tokens == task.vocabulary.id("<bos>")) == begins).all()
    # The first instance is whole: at least one of its answers is there, in every row.
    assert {q.row for q in batch.questions if q.first == 0} == set(range(12))


def test_rows_of_one_instance_are_padded(task: Task) -> None:
    batch = task.batch(rng(), 12, packed=False)
    assert batch.tokens.shape[1] <= task.longest
    assert batch.valid[:, 0].all()
    assert batch.valid.any(0).all()
    assert ((batch.tokens == 0) == ~batch.valid).all()
    assert ((batch.documents == -1) == ~batch.valid).all()
    assert not (batch.loss_mask & ~batch.valid).any()


def test_targets_can_be_predicted_and_hold_the_answers(task: Task) -> None:
    for packed in (True, False):
        batch = task.batch(rng(), 12, packed=packed)
        assert not batch.loss_mask[:, 0].any()
        for q in batch.questions:
            assert batch.loss_mask[q.row, q.start : q.stop].all()


def test_a_seed_gives_one_batch(task: Task) -> None:
    first, again, other = (task.batch(rng(seed), 4) for seed in (7, 7, 8))
    assert (first.tokens == again.tokens).all()
    assert first.questions == again.questions
    assert (first.tokens != other.tokens).any()


def test_solver_and_generator_agree(task: Task) -> None:
    """The solver sees the prompt alone, and accepts both its own answers and those in the rows."""
    for hardest in (False, True):
        batch = task.batch(rng(3), 5, hardest=hardest)
        assert task.accuracy(batch, batch.references()) == 1
        assert task.accuracy(batch, task.solutions(batch)) == 1


def test_what_is_written_after_the_end_is_not_read(task: Task) -> None:
    batch = task.batch(rng(), 6)
    longer = [[*answer.tolist(), 1, 1] for answer in batch.references()]
    assert task.grade(batch, longer).all()


def test_wrong_answers_are_wrong(task: Task) -> None:
    batch = task.batch(rng(), 6)
    special = task.vocabulary.id("<bos>")
    for bad in ([], [special], [0]):
        assert not task.grade(batch, [bad] * len(batch.questions)).any()
    # An answer cut before its end is not one.
    assert not task.grade(batch, [answer[:-1] for answer in batch.references()]).any()


def test_answers_of_a_single_pass(task: Task) -> None:
    """A decoder that predicts every next token is right everywhere; one that repeats the token is not."""
    batch = task.batch(rng(), 6)
    ahead = np.roll(batch.tokens, -1, axis=1)
    assert task.accuracy(batch, batch.answers_from(ahead)) == 1
    assert task.accuracy(batch, batch.answers_from(batch.tokens)) < 0.5


def test_levels_split_the_accuracy(task: Task) -> None:
    batch = task.batch(rng(), 20)
    levels = [q.level for q in batch.questions]
    # Right at one level, wrong at all others.
    chosen = levels[0]
    answers: list[Any] = [
        a if level == chosen else [] for a, level in zip(batch.references(), levels, strict=True)
    ]
    assert task.accuracy(batch, answers, level=chosen) == 1
    assert task.accuracy(batch, answers) == pytest.approx(levels.count(chosen) / len(levels))
    with pytest.raises(ValueError, match=r"level must be one of those in the batch, \[.*\]; got 999\."):
        task.accuracy(batch, answers, level=999)


def test_no_instance_is_longer_than_it_says(task: Task) -> None:
    batch = task.batch(rng(), 150, hardest=True, packed=False)
    assert batch.tokens.shape[1] <= task.longest


def test_at_least_fifty_thousand_tokens_a_second(task: Task) -> None:
    """CPU time of one core; the best of three, since others may use the caches. Usual is five times that."""
    rates = []
    task.batch(rng(), 4)
    for seed in range(3):
        drawn, started = 0, time.process_time()
        while time.process_time() - started < 0.03:
            drawn += task.batch(rng(seed), 8).tokens.size
        rates.append(drawn / (time.process_time() - started))
    assert max(rates) >= 50_000, rates


def test_every_batch_fits_a_decoder(task: Task) -> None:
    batch = task.batch(rng(), 2)
    shape = DecoderConfig(
        vocabulary=len(task.vocabulary), width=16, blocks=1, heads=2, hidden=16, context=task.length
    )
    tokens, mask = torch.from_numpy(batch.tokens), torch.from_numpy(batch.loss_mask)
    logits = Decoder(shape)(tokens)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1][mask[:, 1:]], tokens[:, 1:][mask[:, 1:]])
    loss.backward()
    assert torch.isfinite(loss)
    assert 0 <= task.accuracy(batch, batch.answers_from(logits.argmax(-1).numpy())) <= 1


def test_the_vocabulary_is_told(task: Task) -> None:
    vocabulary = task.vocabulary
    assert vocabulary.spellings[0] == "<pad>"
    assert len(set(vocabulary.spellings)) == len(vocabulary)
    assert [vocabulary.id(spelling) for spelling in vocabulary.spellings] == list(range(len(vocabulary)))
    for meaning, _ in vocabulary.groups:
        assert meaning in str(vocabulary)
    with pytest.raises(ValueError, match=r"spelling must be one of <pad>, .*; got '<nothing>'"):
        vocabulary.id("<nothing>")
    with pytest.raises(ValueError, match="token must be an integer from 0 to"):
        vocabulary.spell([len(vocabulary)])


def test_tasks_need_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import numpy; from t2lib.lab import tasks; "
        "[tasks.build(name).batch(numpy.random.default_rng(0), 1) for name in tasks.TASKS]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("capo", {}, r"task must be one of 'depo', 'brevo', 'mano', 'lano', 'mqar'; got 'capo'\."),
    ("mano", {"size": 3}, r"parameters of task 'mano' are 'largest', 'modulus', 'context'; got 'size'\."),
    ("depo", {"largest": 2}, r"largest must be an integer of at least 3, got 2\."),
    ("depo", {"largest": True}, r"largest must be an integer of at least 3, got True\."),
    ("depo", {"largest_hop": 0}, r"largest_hop must be an integer of at least 1, got 0\."),
    ("depo", {"queries": 1.5}, r"queries must be an integer of at least 1, got 1\.5\."),
    ("depo", {"name_vocabulary": 0}, r"name_vocabulary must be an integer of at least 1, got 0\."),
    ("depo", {"shortest_name": 3}, r"longest_name must be an integer of at least 3, got 2\."),
    ("depo", {"name_vocabulary": 2, "longest_name": 1}, r"largest must be at most 2, .* got 20"),
    ("depo", {"context": 140}, r"context must hold the longest instance, 141 tokens, got 140\."),
    ("brevo", {"largest": 0}, r"largest must be an integer of at least 3, got 0\."),
    ("brevo", {"longest_name": 2}, r"name_vocabulary must be an integer where names have several tokens"),
    ("brevo", {"name_vocabulary": 4}, r"largest must be at most 4, the number of names"),
    ("brevo", {"context": 10}, r"context must hold the longest instance, 93 tokens, got 10\."),
    ("mano", {"largest": 0}, r"largest must be an integer from 1 to 200, got 0\."),
    ("mano", {"modulus": 1}, r"modulus must be an integer from 2 to 1000000, got 1\."),
    ("mano", {"modulus": np.int64(10**7)}, r"modulus must be an integer from 2 to 1000000, got 10000000\."),
    ("mano", {"modulus": np.bool_(True)}, r"modulus must be an integer from 2 to 1000000, got np\.True_\."),
    ("mano", {"context": 0}, r"context must be an integer of at least 1, got 0\."),
    ("mqar", {"pairs": 0}, r"pairs must be an integer of at least 1, got 0\."),
    ("mqar", {"queries": 9}, r"queries must be an integer from 1 to 8, got 9\."),
    ("mqar", {"keys": 7}, r"keys must be an integer of at least 8, got 7\."),
    ("mqar", {"values": 7}, r"values must be an integer of at least 8, got 7\."),
    ("mqar", {"fillers": -1}, r"fillers must be an integer of at least 0, got -1\."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "parameters", "sentence"), REFUSED)
def test_bad_parameters_get_a_sentence(name: str, parameters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build(name, **parameters)


def test_bad_calls_get_a_sentence() -> None:
    task = build("mano")
    with pytest.raises(TypeError, match=r"rng must be a numpy\.random\.Generator, .*; got int\."):
        task.batch(0, 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"size must be an integer of at least 1, got 0\."):
        task.batch(rng(), 0)
    batch = task.batch(rng(), 2, packed=False)
    with pytest.raises(ValueError, match=r"answers must be one for each of the 2 questions, got 1\."):
        task.grade(batch, [[1]])
    with pytest.raises(
        TypeError, match=r"answer must be one-dimensional and hold integers, got shape \(1,\)"
    ):
        task.grade(batch, [[1.0], [2.0]])
    with pytest.raises(
        TypeError, match=r"prompt must be one-dimensional and hold integers, got uneven rows\."
    ):
        task.solve([[1], [1, 2]])
    with pytest.raises(
        ValueError, match=r"next_tokens must hold integers of shape \(2, \d+\), got shape \(3,\)"
    ):
        batch.answers_from([1, 2, 3])


@pytest.mark.parametrize(
    ("name", "prompt", "sentence"),
    [
        ("depo", "<bos> 60 61 <query_1> 60", "prompt must begin with <bos>, hold a query and end with <ans>"),
        ("depo", "<bos> 60 61 70 <query_1> 60 <ans>", "edges must be pairs of names, got 3 names"),
        ("depo", "<bos> 60 1 <query_1> 60 <ans>", r"the tokens \[1\] begin a name that does not end"),
        (
            "depo",
            "<bos> 1 1 60 61 <query_1> 61 <ans>",
            r"names must have 1 to 2 tokens, got the name \[1, 1, 60\]",
        ),
        ("depo", "<bos> <query_1> 60 <ans>", "edges that form one cycle, got 0 that do not"),
        # A path, a vertex with two successors, a tail into a cycle, two cycles.
        ("depo", "<bos> 60 61 <query_2> 60 <ans>", "edges that form one cycle, got 1 that do not"),
        (
            "depo",
            "<bos> 60 61 61 60 60 60 <query_1> 60 <ans>",
            "edges that form one cycle, got 3 that do not",
        ),
        ("depo", "<bos> 60 61 61 61 <query_1> 60 <ans>", "edges that form one cycle, got 2 that do not"),
        ("depo", "<bos> 60 60 61 61 <query_1> 60 <ans>", "edges that form one cycle, got 2 that do not"),
        ("depo", "<bos> 60 61 61 60 <query_1> <ans>", "one name in every question and answer, got 0"),
        ("depo", "<bos> 60 61 61 60 <query_1> 60 61 <ans>", "one name in every question and answer, got 2"),
        ("depo", "<bos> 60 61 61 60 <query_1> 62 <ans>", r"ask about vertices of its edges, got \(62,\)"),
        ("depo", "<bos> 60 61 61 60 <query_1> 60 <query_1> 61 <ans>", r"token \d+ belongs to no name"),
        ("depo", "<bos> 60 61 61 60 <query_1> 60 <ans> <query_1> 61 <ans>", "question and answer, got 0"),
        ("depo", "<bos> 60 61 61 60 <query_1> 60 <ans> 61 <bos> <query_1> 61 <ans>", r"token \d+ belongs to"),
        ("depo", "<bos> 60 61 61 60 <query_1> 60 <ans> 61 <ans>", "end with the <ans> of its last query"),
        ("brevo", "<bos> 1 2 <ans>", "prompt must begin with <bos>, hold a query and end with <ans>"),
        (
            "brevo",
            "<bos> 1 2 <bos> <query> 2 <ans>",
            "token 13 belongs to no name; those of names are 1 to 12",
        ),
        ("brevo", "<bos>" + 9 * " 1 2", "hold a query and end with <ans>, got <bos> 1 2 1 2 1 ... 2 1 2 1 2"),
        ("brevo", "<bos> 1 2 3 <query> 2 <ans>", "edges must be pairs of names, got 3 names"),
        ("brevo", "<bos> 1 2 <query> <ans>", "one name in every question and answer, got 0"),
        ("brevo", "<bos> 1 2 <query> 1 2 <ans>", "one name in every question and answer, got 2"),
        ("brevo", "<bos> 1 2 <query> 3 <ans>", r"ask about a vertex of its edges, got \(3,\)"),
        ("brevo", "<bos> 1 2 2 1 <query> 1 <ans>", r"edges without a cycle, got one through \(\d,\)"),
        ("brevo", "<bos> 1 1 <query> 1 <ans>", r"edges without a cycle, got one through \(1,\)"),
        # A cycle that the vertex asked about does not depend on.
        ("brevo", "<bos> 1 2 3 4 4 3 <query> 2 <ans>", r"edges without a cycle, got one through \(\d,\)"),
        ("mano", "<bos> <ans>", "prompt must begin with <bos> and its length token and end with <ans>"),
        ("mano", "<bos> <len_1> <ans>", "expression must be one prefix expression"),
        ("mano", "<bos> + 1 2 <ans>", "prompt must begin with <bos> and its length token and end with <ans>"),
        (
            "mano",
            "<bos> <ans> 5 <ans>",
            "prompt must begin with <bos> and its length token and end with <ans>",
        ),
        ("mano", "<bos> <len_3> + 1 2 <ans>", "how many operators it has, 1, after <bos>, got <len_3>"),
        ("mano", "<bos> <len_1> 5 <ans>", "how many operators it has, 0, after <bos>, got <len_1>"),
        ("mano", "<len_1> + 1 2 <ans>", "prompt must begin with <bos>"),
        ("mano", "<bos> <len_1> + 1 <ans>", "expression must be one prefix expression"),
        ("mano", "<bos> <len_1> 1 1 <ans>", "expression must be one prefix expression"),
        ("mano", "<bos> <len_1> + <bos> 1 <ans>", "expression must be one prefix expression"),
        ("lano", "<bos> 1", "prompt must be <bos> alone"),
        ("lano", "", r"prompt must be <bos> alone, got nothing\."),
        ("mqar", "", "prompt must be <bos>, pairs of a key and a value, fillers, and a key at its end"),
        ("mqar", "k1 v1 k1", "prompt must be <bos>, pairs of a key and a value, fillers, and a key"),
        ("mqar", "<bos> v1 k1 v1 k1", "prompt must be <bos>, pairs of a key and a value, fillers, and a key"),
        ("mqar", "<bos> k1 <fill> v1 k1", "prompt must be <bos>, pairs of a key and a value, fillers"),
        ("mqar", "<bos> k1 v1 <bos> k1 v2 k1", "prompt must be <bos>, pairs of a key and a value, fillers"),
        ("mqar", "<bos> k1 v1 <fill> <fill> <fill> <fill>", "a key that it showed before, got <fill>"),
        ("mqar", "<bos> k1 v1 k2 v2", "prompt must end with a key that it showed before, got v2"),
        ("mqar", "<bos>", "prompt must end with a key that it showed before, got <bos>"),
        ("mqar", "<bos> k1 v1 k2", "prompt must end with a key that it showed before, got k2"),
    ],
)
def test_broken_prompts_get_a_sentence(name: str, prompt: str, sentence: str) -> None:
    task = build(name)
    tokens = [task.vocabulary.id(spelling) for spelling in prompt.split()]
    with pytest.raises(ValueError, match=sentence):
        task.solve(tokens)
    with pytest.raises(ValueError, match=sentence):
        task.right(tokens, [1])


def test_prompts_of_other_tokens_get_a_sentence(task: Task) -> None:
    """Above the last token would otherwise lie, say, queries of depo for more steps than there are."""
    prompt = task.batch(rng(), 1).prompts()[0].tolist()
    for token in (-1, len(task.vocabulary)):
        sentence = (
            rf"prompt must hold tokens of the vocabulary, 0 to {len(task.vocabulary) - 1}, got {token}\."
        )
        with pytest.raises(ValueError, match=sentence):
            task.solve([*prompt[:-1], token])


def test_prompts_cut_or_changed_anywhere_are_solved_or_refused(task: Task) -> None:
    """Nothing but a ValueError in one sentence, and what is solved is graded as right."""
    generator = rng(5)
    for prompt in task.batch(rng(), 4).prompts()[:12]:
        for _ in range(20):
            broken = prompt[: generator.integers(len(prompt) + 1)].tolist()
            for place in generator.integers(0, max(1, len(broken)), generator.integers(3)) if broken else []:
                broken[place] = int(generator.integers(len(task.vocabulary)))
            broken += prompt[len(prompt) - generator.integers(3) :].tolist()
            refusal, solution = "", []
            try:
                solution = task.solve(broken)
            except ValueError as error:
                refusal = str(error)
            if refusal:
                assert refusal.endswith(".")
                assert "unpack" not in refusal
            else:
                assert task.right(broken, solution)


def test_any_tokens_are_graded_as_an_answer(task: Task) -> None:
    """What a model wrote is wrong at worst."""
    generator = rng(6)
    batch = task.batch(rng(), 4)
    for _ in range(10):
        answers = [
            generator.integers(-2, len(task.vocabulary) + 2, generator.integers(12)) for _ in batch.questions
        ]
        assert task.grade(batch, answers).mean() < 0.5


def test_integers_of_numpy_are_integers() -> None:
    """And they are kept as those of Python: 50 ** 29 names would overflow."""
    assert (
        build("mano").batch(rng(), np.int64(3)).tokens.tolist()  # type: ignore[arg-type]
        == build("mano").batch(rng(), 3).tokens.tolist()
    )
    for name, parameters in BUILDS:
        given = {
            key: np.int32(value) if isinstance(value, int) else value for key, value in parameters.items()
        }
        assert build(name, **given) == build(name, **parameters)
        assert repr(build(name, **given)) == repr(build(name, **parameters))
    assert build("depo", longest_name=np.int8(30)).names.count == sum(50**n for n in range(1, 31))  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"size must be an integer of at least 1, got 0\."):
        build("mano").batch(rng(), np.int64(0))  # type: ignore[arg-type]


def test_the_registry_names_the_classes() -> None:
    assert list(TASKS) == ["depo", "brevo", "mano", "lano", "mqar"]
    assert all(cls.name == name and cls.source.startswith("arXiv") for name, cls in TASKS.items())
    assert set(tasks.__all__) <= set(dir(tasks))
