"""Halting-aware evaluation: a row's answer is that of the step at which it halts, whatever it is packed with."""

import torch

from arc_trm.batches import Batch
from arc_trm.config import HaltingConfig, ModelConfig
from arc_trm.model import RecursiveModel
from arc_trm.optim import PuzzleEmbedding
from arc_trm.predict import Predictor

STEPS, TOKENS, ROWS = 7, 11, 13


def wavering_model() -> RecursiveModel:
    """A random model whose rows halt at steps 1 to 7."""
    torch.manual_seed(2)
    model = RecursiveModel(
        ModelConfig(
            vocab_size=5, seq_len=TOKENS, hidden=6, heads=3, latent_steps=1, deep_steps=1, prefix=2, puzzle_width=6
        )
    ).double()
    with torch.no_grad():
        model.halting_head.weight.normal_(std=3)
        model.halting_head.bias.fill_(-4.0)
        for parameter in model.net.parameters():
            parameter.mul_(2)
    return model


def questions() -> tuple[Batch, PuzzleEmbedding]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randint(0, 5, (ROWS, TOKENS), generator=generator, dtype=torch.int32)
    embedding = PuzzleEmbedding(ROWS, 6)
    embedding.table = torch.randn(ROWS, 6, generator=generator, dtype=torch.float64)
    return Batch(inputs, inputs.clone(), torch.arange(ROWS)), embedding


def one_by_one(model: RecursiveModel, batch: Batch, embedding: PuzzleEmbedding) -> tuple[list, list, list]:
    """The plain path: every row alone, stopped where it halts."""
    answers, halting, steps = [], [], []
    for row in range(ROWS):
        state = model.initial_state(1, TOKENS, torch.float64)
        for step in range(1, STEPS + 1):
            with torch.no_grad():
                output = model(state, batch.inputs[row : row + 1], embedding.table[row : row + 1])
            state = output.state
            if output.halt_logits.item() > 0 or step == STEPS:
                break
        answers.append(output.logits[0].argmax(-1).tolist())
        halting.append(output.halt_logits.sigmoid().item())
        steps.append(step)
    return answers, halting, steps


def test_rows_leave_with_the_answer_of_the_step_at_which_they_halt():
    model, (batch, embedding) = wavering_model(), questions()
    answers, halting, steps = one_by_one(model, batch, embedding)
    assert len(set(steps)) > 2, "the rows of this test must halt at different steps"
    sizes = []

    def forward(state, inputs, puzzle, views):
        sizes.append(len(inputs))
        return model(state, inputs, puzzle, views)

    predictor = Predictor(forward, model, embedding, HaltingConfig(max_supervision_steps=STEPS), torch.float64, True)
    got, probability, taken = predictor.answer(batch)
    assert got.tolist() == answers
    assert taken.tolist() == steps
    torch.testing.assert_close(probability.double(), torch.tensor(halting, dtype=torch.float64), atol=1e-6, rtol=0)
    assert sum(sizes) < ROWS * max(steps)
    assert set(sizes) <= {13, 6, 3, 1}


def test_off_by_default_every_row_takes_all_steps():
    model, (batch, embedding) = wavering_model(), questions()
    calls = []

    def forward(state, inputs, puzzle, views):
        calls.append(len(inputs))
        return model(state, inputs, puzzle, views)

    plain = Predictor(forward, model, embedding, HaltingConfig(max_supervision_steps=STEPS), torch.float64)
    assert plain.answer(batch).steps.tolist() == one_by_one(model, batch, embedding)[2]
    assert calls == [ROWS] * STEPS
