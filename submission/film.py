"""Show how the answer to one puzzle changes from supervision step to supervision step.

    python -m submission.film --checkpoint runs/arc1 --challenges challenges.json --task 00576224
    python -m submission.film --checkpoint runs/arc1 --challenges challenges.json --task 00576224 --adapt 200
    python -m submission.film --checkpoint runs/sudoku6 --challenges data/sudoku6 --task test/0

Prints the answer y and, beside it, the latent z read through the output head.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from arc_trm.checkpoint import Export, read_export
from arc_trm.device import make_accelerator
from arc_trm.frames import LEGEND, Frame, film, show_board_film, show_steps
from data_prep.boards import BoardStore
from data_prep.canvas import CANVAS_SIDE, choose_side, encode, largest_rectangles
from data_prep.corpus import pick
from data_prep.files import MANIFEST, InputError
from data_prep.grid import Grid
from data_prep.program import command_line, run_program, whole
from data_prep.progress import Progress
from data_prep.show import EOS_SYMBOL, PAD_SYMBOL, render_symbols
from data_prep.store import TaskEntry, build_store, open_store
from data_prep.tasks import Task, pairs_digest, read_tasks
from submission.adapt import make_trainer
from submission.session import read_exports
from submission.settings import Settings

SYMBOLS = PAD_SYMBOL + EOS_SYMBOL + "0123456789"  # by token
AUGMENTATIONS = 31  # of the task that a film adapts to


def film_task(exported: Export, embedding: Tensor, question: Grid, side: int) -> list[Frame]:
    """Return the frames of a grid on a canvas of `side`, cut to the corner that it and the last answer use."""
    steps = exported.halting.max_supervision_steps
    frames = film(exported, embedding, encode(question, side=side).reshape(side, side), steps)
    height, width = used_corner(frames[-1].canvases[0], question)
    return [Frame(frame.canvases[:, :height, :width], frame.halting) for frame in frames]


def used_corner(answer: NDArray[np.uint8], question: Grid) -> tuple[int, int]:
    """Return height and width of the corner that question and answer, uint8 [side, side], use with their EOS borders.

    Tokens beyond the EOS border are not trained and mean nothing.
    """
    side = len(answer)
    [height], [width] = largest_rectangles(answer.reshape(1, -1), side)
    return min(side, 1 + max(question.shape[0], int(height))), min(side, 1 + max(question.shape[1], int(width)))


def draw_canvas(tokens: NDArray[np.uint8]) -> str:
    """Draw a canvas of ARC, tokens [height, width], as text."""
    return render_symbols(["".join(SYMBOLS[token] for token in row) for row in tokens.tolist()])


def find_embedding(exported: Export, task: Task) -> tuple[Tensor, str]:
    """Return the embedding of the unaugmented task, float32 [w], and its origin: the task's own row, or the mean."""
    owned = {task.task_id, pairs_digest(task.demonstrations)}  # rows have either as name
    for row, name in enumerate(exported.puzzle_names or ()):
        if exported.puzzle_table is not None and name.rpartition("/")[2] in owned:
            return exported.puzzle_table[row].float(), "the task's own"
    return exported.puzzle_mean, "the mean of all puzzles, as the export keeps none for this task"


def adapt(exported: Export, task: Task, steps: int) -> tuple[Export, Tensor]:
    """Return the export after `steps` of adaptation to the demonstrations of a task, and the task's own row [w]."""
    settings = Settings(steps=steps, ema=0.0)  # an average of few steps would hardly move
    store = build_store([TaskEntry.demonstrations_only(task)], AUGMENTATIONS, settings.seed)
    trainer = make_trainer(settings, exported, store, make_accelerator("none", Path()))
    with Progress("adapting", steps) as bar:
        while trainer.step < steps:
            trainer.train_step()
            bar.update(1)
    weights = {name: tensor.detach().cpu() for name, tensor in trainer.model.state_dict().items()}
    return replace(exported, weights=weights), trainer.embedding.table[0].cpu()


def show_task_film(exported: Export, task: Task, test: int, adapt_steps: int) -> Iterator[str]:
    """Yield what the film of a test input is of, a legend, and the steps."""
    embedding, source = find_embedding(exported, task)
    if adapt_steps:
        exported, embedding = adapt(exported, task, adapt_steps)
        source = f"the task's own after {adapt_steps} steps of adaptation"
    side = choose_side(task) if exported.model.mixer == "attention" else CANVAS_SIDE
    frames = film_task(exported, embedding, task.tests[test].input, side)
    steps = f"{len(frames)} supervision step{'s' if len(frames) > 1 else ''}"
    yield f"task {task.task_id}, test {test}: {steps} on a canvas of side {side}\npuzzle embedding: {source}"
    yield f"0 to 9 colours, {EOS_SYMBOL} (grey) border of the grid, {PAD_SYMBOL} (empty) outside it; {LEGEND}"
    yield from show_steps(frames, draw_canvas)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the film of one puzzle and return the exit status."""
    parser = command_line("submission.film", __doc__)
    add = parser.add_argument
    add("--checkpoint", metavar="DIR", type=Path, required=True, help="a run folder or an export")
    tasks = "the tasks: a file or a folder; or a dataset of Sudokus or mazes"
    add("--challenges", metavar="PATH", type=Path, required=True, help=tasks)
    add("--task", metavar="TASK_ID", required=True, help="the task to film; of Sudokus and mazes as in test/0")
    add("--test", metavar="N", type=int, default=0, help="which of its test inputs, from 0 (0)")
    of_checkpoint = "supervision steps (those of the checkpoint)"
    add("--supervision-steps", metavar="N", type=whole(1, 10**4), help=of_checkpoint)
    add("--adapt", metavar="N", type=whole(0, 10**6), default=0, help="steps of adaptation to the task first (0)")
    arguments = parser.parse_args(argv)
    path = arguments.challenges
    store = open_store(path) if (path / MANIFEST).is_file() else None
    if isinstance(store, BoardStore):
        if arguments.adapt:
            raise InputError(f"--adapt {arguments.adapt}: a {store.kind} has no demonstrations, expected none")
        exported = read_export(arguments.checkpoint)
        steps = arguments.supervision_steps or exported.halting.max_supervision_steps
        print("\n".join(show_board_film(exported, store, arguments.task, steps)))
        return 0
    [task] = pick(read_tasks(path), arguments.task, str(path))
    if not 0 <= arguments.test < len(task.tests):
        raise InputError(f"--test {arguments.test}: task {task.task_id} has test inputs 0 to {len(task.tests) - 1}")
    [exported] = read_exports([arguments.checkpoint])
    steps = arguments.supervision_steps or exported.halting.max_supervision_steps
    exported = replace(exported, halting=replace(exported.halting, max_supervision_steps=steps))
    print("\n".join(show_task_film(exported, task, arguments.test, arguments.adapt)))
    return 0


if __name__ == "__main__":
    run_program(main)
