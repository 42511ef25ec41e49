"""The sparse table and its sign-SGD, against a plain loop over a dict."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from arc_trm.puzzle_embedding import PuzzleEmbedding

N, W = 7, 3


def plain_update(table, ids, gradients, learning_rate, decay):
    """The same update by a loop: gradients of a row added up, then one signed step."""
    sums: dict[int, np.ndarray] = {}
    for identifier, gradient in zip(ids, gradients, strict=True):
        sums[identifier] = sums.get(identifier, np.zeros(W)) + gradient
    result = table.copy()
    for identifier, gradient in sums.items():
        result[identifier] = result[identifier] * (1 - learning_rate * decay) - learning_rate * np.sign(gradient)
    return result


# Small integers add up exactly in any order, and often cancel.
BATCHES = st.lists(
    st.tuples(st.integers(0, N - 1), st.lists(st.integers(-2, 2), min_size=W, max_size=W)), min_size=1, max_size=13
)


@given(BATCHES, st.sampled_from([1e-2, 0.5]), st.sampled_from([0.0, 0.1, 1.0]), st.integers(0, 99))
def test_update_equals_a_plain_loop(batch, learning_rate, decay, seed):
    ids, gradients = [i for i, _ in batch], np.array([g for _, g in batch], dtype=np.float32)
    embedding = PuzzleEmbedding(N, W)
    start = np.random.default_rng(seed).normal(size=(N, W)).astype(np.float32)
    embedding.table.copy_(torch.from_numpy(start))
    embedding.update(torch.tensor(ids), torch.from_numpy(gradients), learning_rate, decay)
    expected = plain_update(start, ids, gradients, learning_rate, decay)
    np.testing.assert_allclose(embedding.table.numpy(), expected, atol=1e-6)
    untouched = sorted(set(range(N)) - set(ids))
    np.testing.assert_array_equal(embedding.table.numpy()[untouched], start[untouched])


def test_cancelling_gradients_leave_only_the_decay():
    embedding = PuzzleEmbedding(N, W)
    embedding.table.fill_(2.0)
    gradients = torch.tensor([[1.0, -3.0, 0.5]])
    embedding.update(torch.tensor([4, 4]), torch.cat((gradients, -gradients)), 0.1, 0.5)
    assert torch.allclose(embedding.table[4], torch.full((W,), 2.0 * (1 - 0.1 * 0.5)))
    assert (embedding.table[[0, 1, 2, 3, 5, 6]] == 2.0).all()


def test_rows_are_leaves_that_collect_one_gradient_a_batch_row():
    embedding = PuzzleEmbedding(N, W)
    rows = embedding.rows(torch.tensor([5, 2, 5]))
    (rows * torch.tensor([[1.0], [2.0], [4.0]])).sum().backward()
    assert rows.grad is not None
    assert rows.grad[:, 0].tolist() == [1.0, 2.0, 4.0]
    assert not embedding.table.requires_grad
