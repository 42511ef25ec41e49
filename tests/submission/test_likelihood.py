"""The log-probability of a candidate is what a plain loop over puzzles and cells makes it."""

import math

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from arc_trm.batches import ArcBatches
from arc_trm.config import HaltingConfig, ModelConfig
from arc_trm.model import RecursiveModel
from arc_trm.optim import PuzzleEmbedding
from arc_trm.predict import Predictor, Voter, outputs_of_store
from arc_trm.sampler import Rows
from arc_trm.supervision import token_loss
from arc_trm.vote import Tally, grid_key
from data_prep.grid import Grid
from data_prep.store import ArcStore, TaskEntry, build_store
from data_prep.tasks import Pair, Task
from submission.likelihood import Likelihood, final_log_probabilities, labelled_sums
from tests.arc_trm.plain_vote import votes_for
from tests.data_prep.material import encode_example


def grid(height: int, width: int, seed: int) -> Grid:
    return np.random.default_rng(seed).integers(0, 10, (height, width), dtype=np.uint8)


def task(name: str, side: int, tests: int) -> Task:
    demonstration = Pair(grid(side, 3, 1), grid(side, 3, 2))
    return Task(name, "own", (demonstration,), tuple(Pair(grid(side, 3, 5 + i), None) for i in range(tests)))


@pytest.fixture(scope="module")
def store() -> ArcStore:
    tasks = [task("small", 5, 2), task("large", 13, 1), task("silent", 7, 1)]
    return build_store([TaskEntry.demonstrations_only(t) for t in tasks], 10, 3)


@pytest.fixture(scope="module")
def predictor(store: ArcStore) -> Predictor:
    torch.manual_seed(7)
    model = RecursiveModel(ModelConfig(hidden=16, heads=2, layers=1, prefix=3, puzzle_width=16)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(3)  # else a fresh model finds all tokens about equally likely
    embedding = PuzzleEmbedding(len(store.puzzle_groups), 16)
    embedding.table.normal_()
    return Predictor(model, model, embedding, HaltingConfig(max_supervision_steps=2), torch.float32)


# Per output of the store (small 0, small 1, large 0, silent 0): candidates with falling numbers of votes.
CANDIDATES = {
    0: [grid(5, 3, 20), grid(5, 3, 21), grid(4, 2, 22)],
    1: [grid(5, 3, 23), grid(15, 3, 24)],
    2: [grid(13, 3, 25)],
}


def voted(store: ArcStore) -> Tally:
    tally = Tally(outputs_of_store(store)[0])
    for output, grids in CANDIDATES.items():
        for place, candidate in enumerate(grids):
            tally.add(votes_for([(output, candidate, 0.5)] * (5 - place)))
    return tally


def likelihood(store: ArcStore, batch_size: int = 3, puzzles: int = 4, most: int = 16) -> Likelihood:
    return Likelihood(Voter(store, outputs_of_store(store)[1], batch_size, Accelerator(cpu=True)), puzzles, most)


def plain(store: ArcStore, predictor: Predictor, output: int, candidate: Grid, puzzles: int) -> float:
    """One forward pass on the full canvas and one sum at a time."""
    pair = int(np.flatnonzero(outputs_of_store(store)[1] == output)[0])
    group = int(store.pair_groups[pair])
    first = int(store.group_puzzles[group])
    sums = []
    for puzzle in range(first, first + puzzles):
        tokens, labels = encode_example(store.input(pair), candidate, store.augmentation(puzzle))
        state = predictor.model.initial_state(1, 900, torch.float32)
        row = predictor.embedding.table[[puzzle]]
        with torch.no_grad():
            for _ in range(2):
                answer = predictor.model(state, torch.from_numpy(tokens.astype(np.int32))[None], row)
                state = answer.state
        sums.append(-float(token_loss(answer.logits, torch.from_numpy(labels)[None]).sum(dtype=torch.float64)))
    return sum(sums) / puzzles


def weighed(tally: Tally, output: int) -> dict[bytes, float]:
    return {candidate.key: candidate.log_probability for candidate in tally.candidates(output)}


def test_a_candidate_has_the_log_probability_of_a_plain_loop(store: ArcStore, predictor: Predictor) -> None:
    """Output 1 has a candidate that the canvas of its task cannot hold, so the full one weighs."""
    tally = voted(store)
    assert likelihood(store).weigh(predictor, tally)
    found = weighed(tally, 1)
    for candidate in CANDIDATES[1]:
        assert found[grid_key(candidate)] == pytest.approx(plain(store, predictor, 1, candidate, 4), rel=1e-5)


def test_windows_weigh_on_the_canvas_of_the_task(store: ArcStore, predictor: Predictor) -> None:
    """Output 0 fits its window of 11 cells: the batch that weighs it is one of that window."""
    tally = voted(store)
    assert likelihood(store, puzzles=1).weigh(predictor, tally)
    [candidate, *_] = CANDIDATES[0]
    pair = np.flatnonzero(outputs_of_store(store)[1] == 0)
    none = np.zeros(1, np.int64)
    batch = ArcBatches(store, "cpu", 11, np.array([0])).make(
        Rows.of_puzzles(store, store.group_puzzles[:1].astype(np.int64), pair, none, none)
    )
    _, labels = encode_example(store.input(int(pair[0])), candidate, store.augmentation(0), side=11)
    expected = labelled_sums(final_log_probabilities(predictor, batch), torch.from_numpy(labels)[None, None].long())
    assert weighed(tally, 0)[grid_key(candidate)] == pytest.approx(float(expected), rel=1e-5)


def test_the_batch_size_does_not_matter(store: ArcStore, predictor: Predictor) -> None:
    one, many = voted(store), voted(store)
    likelihood(store, batch_size=1).weigh(predictor, one)
    likelihood(store, batch_size=3).weigh(predictor, many)
    for output in CANDIDATES:
        assert weighed(one, output) == pytest.approx(weighed(many, output), rel=1e-5)


def test_only_the_leading_candidates_are_weighed(store: ArcStore, predictor: Predictor) -> None:
    tally = voted(store)
    likelihood(store, most=2).weigh(predictor, tally)
    found = weighed(tally, 0)
    assert [found[grid_key(c)] == -math.inf for c in CANDIDATES[0]] == [False, False, True]
    assert np.array_equal(tally.candidates(0)[-1].grid, CANDIDATES[0][2])
    assert not tally.candidates(3)


def test_a_stop_leaves_no_half_weighed_output(store: ArcStore, predictor: Predictor) -> None:
    tally = voted(store)
    calls = iter([False, True])
    # Batches of one full canvas hold seven windows of 11 cells: the second ends within output 1 or after it.
    assert not likelihood(store, batch_size=1).weigh(predictor, tally, lambda: next(calls))
    plainly = voted(store)
    likelihood(store, batch_size=1).weigh(predictor, plainly)
    for output in CANDIDATES:
        values = weighed(tally, output)
        assert set(values.values()) == {-math.inf} or values == pytest.approx(weighed(plainly, output), rel=1e-5)
    assert any(set(weighed(tally, output).values()) == {-math.inf} for output in CANDIDATES)


def test_sums_leave_unlabelled_cells_out() -> None:
    log_probabilities = torch.log_softmax(torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1)), -1)
    labels = torch.tensor([[[0, 1, 2, -100, -100], [2, -100, 0, 1, 1]], [[-100] * 5, [1, 1, 1, 1, 1]]])
    found = labelled_sums(log_probabilities, labels)
    for b in range(2):
        for k in range(2):
            expected = sum(log_probabilities[b, i, t].item() for i, t in enumerate(labels[b, k].tolist()) if t >= 0)
            assert found[b, k].item() == pytest.approx(expected, abs=1e-6)
