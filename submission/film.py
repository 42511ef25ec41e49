"""How a model's answer to one puzzle changes from supervision step to supervision step.

    python -m submission.film --checkpoint runs/arc1 --challenges challenges.json --task 00576224

Beside the answer y stands what the latent z says when it is read through the output head. In the terminal, and with
--out as a file that `python -m submission.report --film FILE` puts into its page.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from arc_trm.checkpoint import Export, read_export, read_newest_checkpoint
from arc_trm.model import RecursiveModel
from arc_trm.naming import PuzzleNaming
from arc_trm.training_state import TABLE, saved_naming
from data_prep.canvas import CANVAS_SIDE, COLOUR_OFFSET, EOS, PAD, choose_side, closed, encode, largest_rectangles
from data_prep.files import InputError, refuse_input, run_program
from data_prep.grid import COLOURS, IDENTITY
from data_prep.show import pick
from data_prep.tasks import read_tasks
from data_prep.terminal import EOS_SYMBOL, PAD_SYMBOL, beside, fitting_style, render_symbols
from submission.film_file import write_film

Tokens = NDArray[np.uint8]
SYMBOLS = {PAD: PAD_SYMBOL, EOS: EOS_SYMBOL, **{COLOUR_OFFSET + colour: str(colour) for colour in range(COLOURS)}}


@dataclass(frozen=True, eq=False)
class Step:
    """What the model says after one supervision step."""

    answer: Tokens  # [side * side]
    latents: tuple[Tokens, ...]  # every z read through the output head; none where y is the only feature
    halting: float  # probability


@torch.no_grad()
def supervision_steps(model: RecursiveModel, inputs: Tensor, puzzle: Tensor, count: int) -> Iterator[Step]:
    """`count` steps on one question, inputs int32 [1, l] and puzzle embedding [1, w]."""
    state = model.initial_state(1, inputs.shape[1], torch.float32)
    for _ in range(count):
        output = model(state, inputs, puzzle)
        state = output.state
        latents = tuple(_tokens(model.answer(z[:, model.config.prefix :])) for z in state[1:])
        yield Step(_tokens(output.logits), latents, float(output.halt_logits.sigmoid()))


def _tokens(logits: Tensor) -> Tokens:
    """Most likely tokens [l] of logits [1, l, v]."""
    tokens: Tokens = logits[0].argmax(-1).to(torch.uint8).cpu().numpy()
    return tokens


def film(
    exported: Export, row: Tensor, question: NDArray[np.uint8], side: int, count: int | None
) -> tuple[int, list[Step]]:
    """(side, steps) of one question; an answer that its window does not close is given anew on the full canvas."""
    model = RecursiveModel(exported.model).eval()
    model.load_state_dict(exported.weights)
    inputs = torch.from_numpy(encode(question, side=side).astype(np.int32))[None]
    steps = list(supervision_steps(model, inputs, row[None], count or exported.halting.max_supervision_steps))
    last = steps[-1].answer[None]
    if side != CANVAS_SIDE and not closed(last, *largest_rectangles(last, side), side)[0]:
        return film(exported, row, question, CANVAS_SIDE, count)
    return side, steps


def find_embedding(checkpoint: Path, exported: Export, task_id: str) -> tuple[Tensor, str]:
    """The embedding of the unaugmented task and words that say where it is from: the task's own row, or the mean."""
    names = [name.rpartition("/")[2] for name in exported.puzzle_names or ()]
    if exported.puzzle_table is not None and task_id in names:
        return exported.puzzle_table[names.index(task_id)], "the task's own"
    found = read_newest_checkpoint(checkpoint, lambda line: None)
    naming = None if found is None else saved_naming(*found)
    row = None if naming is None else _row_of_task(naming, task_id)
    if found is not None and row is not None:
        return found[0][TABLE][row], "the task's own"
    return exported.puzzle_mean, "the mean of all puzzles, as the checkpoint keeps none for this task"


def _row_of_task(naming: PuzzleNaming, task_id: str) -> int | None:
    """Row of the unaugmented task in the embedding table of a run, None where the run does not know the task."""
    groups = [number for number, name in enumerate(naming.groups) if name.rpartition("/")[2] == task_id]
    plain = (naming.dihedrals == IDENTITY.dihedral) & (naming.permutations == IDENTITY.permutation).all(axis=1)
    rows = np.flatnonzero(plain & np.isin(naming.puzzle_groups, groups))
    return int(rows[0]) if len(rows) else None


# Showing ------------------------------------------------------------------------------------------------------------


def canvas_texts(steps: Sequence[Step], side: int, question: NDArray[np.uint8]) -> list[dict[str, Any]]:
    """The steps as a film file has them: the corner of the canvas that question and last answer use, with borders.

    Beyond its EOS border a model is never told what to say, and says anything.
    """
    heights, widths = largest_rectangles(steps[-1].answer[None], side)
    height = min(side, 1 + max(question.shape[0], int(heights[0])))
    width = min(side, 1 + max(question.shape[1], int(widths[0])))

    def text(tokens: Tokens) -> str:
        rows = tokens.reshape(side, side)[:height, :width].tolist()
        return "/".join("".join(SYMBOLS[token] for token in row) for row in rows)

    return [
        {"answer": text(step.answer), "latents": [text(z) for z in step.latents], "halting": round(step.halting, 4)}
        for step in steps
    ]


def show_steps(frames: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Answer and latents of every step side by side; a step that changes neither is one line."""
    before: dict[str, Any] = {"answer": "", "latents": []}
    for number, frame in enumerate(frames, start=1):
        texts = [frame["answer"], *frame["latents"]]
        said = f"step {number} of {len(frames)}: halting probability {frame['halting']:.1%}"
        if texts == [before["answer"], *before["latents"]]:
            yield f"{said}, nothing changed"
        else:
            style = fitting_style([len(text.split("/")[0]) for text in texts])
            changed = sum(a != b for a, b in zip(before["answer"], frame["answer"], strict=False))
            yield f"\n{said}" + (f", cells of the answer that changed: {changed}" if number > 1 else "")
            yield beside([render_symbols(text.split("/"), style) for text in texts], gap="    ")
        before = frame


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m submission.film", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--checkpoint", metavar="DIR", type=Path, required=True, help="a run folder (knows its puzzles) or an export")
    add("--challenges", metavar="FILE", type=Path, required=True, help="the tasks: a file or a folder")
    add("--task", metavar="TASK_ID", required=True, help="the task to film")
    add("--test", metavar="N", type=int, default=0, help="which of its test inputs, from 0 (0)")
    add("--steps", metavar="N", type=int, help="supervision steps (default: as many as the checkpoint was trained for)")
    add("--out", metavar="FILE", type=Path, help="also write the film, for --film of submission.report")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Film one puzzle; the exit status."""
    arguments = _parser().parse_args(argv)
    if arguments.out is not None:
        refuse_input(arguments.out, [arguments.challenges, arguments.checkpoint])
    [task] = pick(read_tasks(arguments.challenges), arguments.task, str(arguments.challenges))
    if not 0 <= arguments.test < len(task.tests):
        raise InputError(f"--test {arguments.test}: task {task.task_id} has test inputs 0 to {len(task.tests) - 1}")
    if arguments.steps is not None and arguments.steps < 1:
        raise InputError(f"--steps {arguments.steps}: expected at least 1")
    exported = read_export(arguments.checkpoint)
    if exported.model.seq_len != CANVAS_SIDE**2:
        raise InputError(f"{arguments.checkpoint}: a model for {exported.model.seq_len} tokens, expected one for ARC")
    row, source = find_embedding(arguments.checkpoint, exported, task.task_id)
    question = task.tests[arguments.test].input
    window = choose_side(task) if exported.model.mixer == "attention" else CANVAS_SIDE
    side, steps = film(exported, row, question, window, arguments.steps)
    frames = canvas_texts(steps, side, question)
    print(f"task {task.task_id}, test {arguments.test}: {len(steps)} supervision steps on a canvas of side {side}")
    print(f"puzzle embedding: {source}\nleft the answer y; right of it the latent z through the output head")
    for line in show_steps(frames):
        print(line)
    if arguments.out is not None:
        facts = {"task_id": task.task_id, "test": arguments.test, "embedding": source}
        write_film(arguments.out, {**facts, "checkpoint": str(exported.facts["sha256"]), "side": side, "steps": frames})
        print(f"wrote {arguments.out}: {len(frames)} steps of task {task.task_id}")
    return 0


if __name__ == "__main__":
    run_program(main)
