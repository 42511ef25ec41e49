"""Every row is answered after all supervision steps, whenever it wants to halt."""

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


def one_by_one(model: RecursiveModel, batch: Batch, embedding: PuzzleEmbedding) -> tuple[list, list]:
    """The plain path: every row alone, its last answer, and when it first wanted to halt."""
    answers, steps = [], []
    for row in range(ROWS):
        state = model.initial_state(1, TOKENS, torch.float64)
        wants = []
        for _ in range(STEPS):
            with torch.no_grad():
                output = model(state, batch.inputs[row : row + 1], embedding.table[row : row + 1])
            state = output.state
            wants.append(output.halt_logits.item() > 0)
        answers.append(output.logits[0].argmax(-1).tolist())
        steps.append(wants.index(True) + 1 if any(wants) else STEPS)
    return answers, steps


def test_every_row_takes_all_steps():
    model, (batch, embedding) = wavering_model(), questions()
    answers, steps = one_by_one(model, batch, embedding)
    assert len(set(steps)) > 2, "the rows of this test must halt at different steps"
    calls, forward = [], model.forward

    def counted(state, inputs, puzzle, views):
        calls.append(len(inputs))
        return forward(state, inputs, puzzle, views)

    model.forward = counted
    predictor = Predictor(model, embedding, HaltingConfig(max_supervision_steps=STEPS), torch.float64)
    found = predictor.answer(batch)
    assert found.tokens.tolist() == answers
    assert found.steps.tolist() == steps
    assert calls == [ROWS] * STEPS
