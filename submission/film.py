"""Show how the answer to one puzzle changes from supervision step to supervision step.

    python -m submission.film --checkpoint runs/arc1 --challenges challenges.json --task 00576224

Prints the answer y and, beside it, the latent z read through the output head.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from arc_trm.checkpoint import Export
from arc_trm.model import RecursiveModel
from arc_trm.predict import roll_out
from data_prep.canvas import CANVAS_SIDE, COLOUR_OFFSET, choose_side, encode, largest_rectangles
from data_prep.corpus import pick
from data_prep.files import InputError
from data_prep.grid import COLOURS, Grid
from data_prep.program import command_line, run_program
from data_prep.show import EOS_SYMBOL, PAD_SYMBOL, beside, render_symbols
from data_prep.tasks import Task, pairs_digest, read_tasks
from submission.session import read_exports

# The identity augmentation, for models that see it: its dihedral element, then the tokens of the ten colours.
VIEW = [[0, *range(COLOUR_OFFSET, COLOUR_OFFSET + COLOURS)]]
SYMBOLS = PAD_SYMBOL + EOS_SYMBOL + "0123456789"  # by token


class Frame(NamedTuple):
    """The model's output after one supervision step."""

    canvases: list[list[str]]  # the answer, then the latents: rows of symbols
    halting: float  # probability


@torch.no_grad()
def film(exported: Export, embedding: Tensor, question: Grid, side: int) -> list[Frame]:
    """Return a frame for every supervision step; `embedding` is float32 [w], `side` that of the canvas.

    Canvases are cut to the corner that the question and the last answer use.
    """
    model = RecursiveModel(exported.model).eval()
    model.load_state_dict(exported.weights)
    inputs = torch.from_numpy(encode(question, side=side).astype(np.int32))[None]
    state = model.initial_state(1, inputs.shape[1], torch.float32)
    said = []
    steps = exported.halting.max_supervision_steps
    for output in islice(roll_out(model, state, inputs, embedding[None], torch.tensor(VIEW)), steps):
        logits = [
            output.logits,
            *(model.answer(z[:, model.config.prefix :], inputs.shape[1]) for z in output.state[1:]),
        ]
        canvases = torch.cat(logits).argmax(-1).to(torch.uint8).numpy()  # [1 + latents, side * side]
        said.append((canvases.reshape(-1, side, side), float(output.halt_logits.sigmoid())))
    height, width = used_corner(said[-1][0][0], question)
    return [Frame([symbols(c[:height, :width]) for c in canvases], halting) for canvases, halting in said]


def used_corner(answer: NDArray[np.uint8], question: Grid) -> tuple[int, int]:
    """Return height and width of the corner that question and answer, uint8 [side, side], use with their EOS borders.

    Tokens beyond the EOS border are not trained and mean nothing.
    """
    side = len(answer)
    [height], [width] = largest_rectangles(answer.reshape(1, -1), side)
    return min(side, 1 + max(question.shape[0], int(height))), min(side, 1 + max(question.shape[1], int(width)))


def symbols(canvas: NDArray[np.uint8]) -> list[str]:
    """Return tokens, uint8 [height, width], as rows of symbols."""
    return ["".join(SYMBOLS[token] for token in row) for row in canvas.tolist()]


def find_embedding(exported: Export, task: Task) -> tuple[Tensor, str]:
    """Return the embedding of the unaugmented task, float32 [w], and its origin: the task's own row, or the mean."""
    owned = {task.task_id, pairs_digest(task.demonstrations)}  # rows have either as name
    for row, name in enumerate(exported.puzzle_names or ()):
        if exported.puzzle_table is not None and name.rpartition("/")[2] in owned:
            return exported.puzzle_table[row].float(), "the task's own"
    return exported.puzzle_mean, "the mean of all puzzles, as the export keeps none for this task"


def show_steps(frames: Sequence[Frame]) -> Iterator[str]:
    """Yield answer and latents of every step side by side; a step that changes neither is one line."""
    for i, (canvases, halting) in enumerate(frames):
        line = f"step {i + 1} of {len(frames)}: halting probability {halting:.1%}"
        if i and canvases == frames[i - 1].canvases:
            yield f"{line}, nothing changed"
            continue
        if i:
            cells = zip("".join(canvases[0]), "".join(frames[i - 1].canvases[0]), strict=True)
            line += f", cells of the answer that changed: {sum(new != old for new, old in cells)}"
        yield f"\n{line}"
        yield beside([render_symbols(rows) for rows in canvases])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the film of one puzzle and return the exit status."""
    parser = command_line("submission.film", __doc__)
    add = parser.add_argument
    add("--checkpoint", metavar="DIR", type=Path, required=True, help="a run folder or an export")
    add("--challenges", metavar="FILE", type=Path, required=True, help="the tasks: a file or a folder")
    add("--task", metavar="TASK_ID", required=True, help="the task to film")
    add("--test", metavar="N", type=int, default=0, help="which of its test inputs, from 0 (0)")
    arguments = parser.parse_args(argv)
    [task] = pick(read_tasks(arguments.challenges), arguments.task, str(arguments.challenges))
    if not 0 <= arguments.test < len(task.tests):
        raise InputError(f"--test {arguments.test}: task {task.task_id} has test inputs 0 to {len(task.tests) - 1}")
    [exported] = read_exports([arguments.checkpoint])
    embedding, source = find_embedding(exported, task)
    side = choose_side(task) if exported.model.mixer == "attention" else CANVAS_SIDE
    frames = film(exported, embedding, task.tests[arguments.test].input, side)
    steps = f"{len(frames)} supervision step{'s' if len(frames) > 1 else ''}"
    print(f"task {task.task_id}, test {arguments.test}: {steps} on a canvas of side {side}")
    print(f"puzzle embedding: {source}\nleft the answer y; right of it the latent z through the output head")
    print("\n".join(show_steps(frames)))
    return 0


if __name__ == "__main__":
    run_program(main)
