"""Frames: what a model answers after every supervision step, as tokens and in the terminal."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from arc_trm.checkpoint import Export
from arc_trm.model import RecursiveModel
from arc_trm.predict import roll_out
from arc_trm.supervision import TOKEN_SCORES
from data_prep.boards import BoardStore
from data_prep.canvas import COLOUR_OFFSET, PAD
from data_prep.files import InputError
from data_prep.grid import COLOURS
from data_prep.show import BOARD_SYMBOLS, beside, show_board

# The identity augmentation, for models that see it: its dihedral element, then the tokens of the ten colours.
VIEW = [[0, *range(COLOUR_OFFSET, COLOUR_OFFSET + COLOURS)]]
LEGEND = "left the answer y; right of it the latent z through the output head"
BOARD_LEGENDS = {
    "sudoku": f"? a cell of which no digit is likelier than all others together\n{LEGEND}",
    "maze": f"# wall, S start, G goal, o path, ? a cell of which nothing is likelier than all else together\n{LEGEND}",
}


class Frame(NamedTuple):
    """The model's output after one supervision step."""

    canvases: NDArray[np.uint8]  # tokens [1 + latents, height, width]: the answer, then the latents
    halting: float  # probability


@torch.no_grad()
def film(
    exported: Export, embedding: Tensor, question: NDArray[np.uint8], steps: int, hide_unsure: bool = False
) -> list[Frame]:
    """Return a frame for every supervision step; `embedding` is float32 [w], `question` tokens [height, width].

    With `hide_unsure`, PAD stands in the cells whose likeliest token has at most half of the probability.
    """
    model = RecursiveModel(exported.model).eval()
    model.load_state_dict(exported.weights)
    inputs = torch.from_numpy(question.astype(np.int32)).flatten()[None]
    state = model.initial_state(1, inputs.shape[1], torch.float32)
    frames = []
    for output in islice(roll_out(model, state, inputs, embedding[None], torch.tensor(VIEW)), steps):
        latents = (model.answer(z[:, model.config.prefix :], inputs.shape[1]) for z in output.state[1:])
        scores = TOKEN_SCORES[exported.halting.token_loss](torch.cat((output.logits, *latents)))
        chances, tokens = scores.softmax(-1).max(-1)  # [1 + latents, height * width]
        tokens = torch.where(chances > 0.5, tokens, PAD) if hide_unsure else tokens
        canvases = tokens.to(torch.uint8).numpy().reshape(-1, *question.shape)
        frames.append(Frame(canvases, float(output.halt_logits.sigmoid())))
    return frames


def film_board(exported: Export, store: BoardStore, name: str, steps: int) -> list[Frame]:
    """Return the frames of one Sudoku or maze; `name` is split and number, as in "test/0".

    Raises InputError if there is no such puzzle or the model is for other puzzles.
    """
    show_board(store, name)
    found, expected = ((of.seq_len, of.vocab_size) for of in (exported.model, store))
    if found != expected:
        raise InputError("a model for {} tokens of {} kinds, expected {} of {}".format(*found, *expected))
    split, _, number = name.partition("/")
    question = {"train": store.train, "test": store.test}[split].questions[int(number)]
    return film(exported, exported.puzzle_mean, question.reshape(store.side, -1), steps, hide_unsure=True)


def show_board_film(exported: Export, store: BoardStore, name: str, steps: int) -> Iterator[str]:
    """Yield the puzzle with its answer, a legend and the steps; raises InputError as `film_board` does."""
    frames, alphabet = film_board(exported, store, name, steps), np.array(list(BOARD_SYMBOLS[store.kind]))
    yield from (show_board(store, name), f"\n{BOARD_LEGENDS[store.kind]}")
    yield from show_steps(frames, lambda tokens: "\n".join(map(" ".join, alphabet[tokens])))


def show_steps(frames: Sequence[Frame], draw: Callable[[NDArray[np.uint8]], str]) -> Iterator[str]:
    """Yield answer and latents of every step side by side; a step that changes neither is one line.

    `draw` turns tokens [height, width] into text.
    """
    for i, (canvases, halting) in enumerate(frames):
        line = f"step {i + 1} of {len(frames)}: halting probability {halting:.1%}"
        if i and np.array_equal(canvases, frames[i - 1].canvases):
            yield f"{line}, nothing changed"
            continue
        if i:
            line += f", cells of the answer that changed: {(canvases[0] != frames[i - 1].canvases[0]).sum()}"
        yield f"\n{line}"
        yield beside([draw(tokens) for tokens in canvases])
