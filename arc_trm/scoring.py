"""Scores of a model in training, on ARC tasks or on Sudokus and mazes; as a program, of an export on the latter.

    python -m arc_trm.scoring runs/sudoku --data data/sudoku

It prints four figures of the test puzzles: `exact_accuracy` (every cell equals the label), `valid` (right by the rules,
whatever the label says: a maze has many shortest paths), `cell_accuracy`, and `supervision_steps` (mean number of steps
until a row would halt); and `puzzles_per_second`, the first batch's start-up included.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator

from arc_trm.batches import RULES, board_batch
from arc_trm.checkpoint import read_export
from arc_trm.device import PRECISIONS, make_accelerator, resolve_precision
from arc_trm.predict import Predictor, Voter, outputs_of_store, shared_batches
from arc_trm.sampler import evaluation_rows
from arc_trm.trainer import Evaluate, Trainer
from arc_trm.vote import Tally, score_ranked
from data_prep.boards import BoardStore
from data_prep.files import InputError
from data_prep.grid import Grid
from data_prep.program import command_line, run_program, whole
from data_prep.progress import Progress
from data_prep.store import ArcStore, open_store

# Numbers of candidates for which the share of solved outputs is given.
PASSES = (1, 2, 5, 10, 100, 1000)


def evaluation(store: ArcStore | BoardStore) -> Evaluate | None:
    """Return the function that scores a trainer's averaged weights on its dataset, or None if nothing can be scored.

    An evaluation that the trainer asks to stop returns no scores.
    """
    if isinstance(store, BoardStore):
        return partial(evaluate_boards, store)
    solutions = solutions_of(store)
    return partial(evaluate_arc, store, solutions) if solutions else None


# ARC ------------------------------------------------------------------------------------------------------------------


def solutions_of(store: ArcStore) -> dict[str, list[Grid]]:
    """Return the outputs of the scored tasks by group name, without tasks that hide an output."""
    solutions: dict[str, list[Grid]] = {}
    for group, task in zip(store.groups, store.tasks(), strict=True):
        known = [pair.output for pair in task.tests if pair.output is not None]
        if group.scored and 0 < len(known) == len(task.tests):
            solutions[task.name] = known
    return solutions


def evaluate_arc(store: ArcStore, solutions: dict[str, list[Grid]], trainer: Trainer) -> dict[str, float]:
    """Vote on the scored tasks of `store` as in a competition and score the votes."""
    config, quiet = trainer.config, not trainer.accelerator.is_main_process
    outputs, asked = outputs_of_store(store)
    rows = evaluation_rows(store, augmentations=config.log.evaluation_augmentations)
    windows, task_rows = config.train.canvas != "full", config.model.embedding_rows == "task"
    voter = Voter(store, asked, config.train.batch_size, trainer.accelerator, windows, task_rows=task_rows)
    tally = Tally(outputs)
    with trainer.averaged(), Progress("evaluating", len(rows), unit="answers", quiet=quiet) as bar:
        complete = voter.vote(trainer.predictor(), rows, tally, bar.update, trainer.should_stop)
    return tally_scores(tally, solutions) if complete else {}


def tally_scores(tally: Tally, solutions: dict[str, list[Grid]]) -> dict[str, float]:
    """Return the three scores of the attempts, and for each k the share of outputs among the first k candidates."""
    ranked: dict[str, list[list[Grid]]] = {name: [] for name in solutions}
    attempts: dict[str, list[list[Grid]]] = {name: [] for name in solutions}
    for number, output in enumerate(tally.outputs):
        if output.task_id in ranked:
            ranked[output.task_id].append([c.grid for c in tally.candidates(number, limit=max(PASSES))])
            attempts[output.task_id].append(tally.attempts(number))
    scores = score_ranked(attempts, solutions, k=2)
    figures = {"outputs": scores.outputs, "task_mean": scores.task_mean, "tasks": scores.tasks}
    figures |= {f"pass@{k}": score_ranked(ranked, solutions, k).outputs for k in PASSES}
    return {f"evaluation/{name}": value for name, value in figures.items()}


# Sudokus and mazes ----------------------------------------------------------------------------------------------------


def score_boards(
    predictor: Predictor,
    store: BoardStore,
    batch_size: int,
    accelerator: Accelerator,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, float]:
    """Return the four figures over all test puzzles, shared by the processes; none if `stop` (collective) is true."""
    names = ("exact_accuracy", "valid", "cell_accuracy", "supervision_steps")
    sums = torch.zeros(len(names), dtype=torch.float64)
    quiet = not accelerator.is_main_process
    with Progress("evaluating", len(store.test), unit="puzzles", quiet=quiet) as bar:
        for _, mine, valid in shared_batches(store.test, batch_size, accelerator):
            if stop():
                return {}
            counted = max(0, valid - accelerator.process_index * len(mine))  # the others fill up the last batch
            batch = board_batch(mine, accelerator.device)
            answers, _, steps, _ = (part[:counted] for part in predictor.answer(batch))
            right = (answers == batch.labels[:counted]).double().cpu()
            obeys = RULES[store.kind](mine[:counted].questions, answers.cpu().numpy())
            parts = (right.min(-1).values, torch.from_numpy(obeys), right.mean(-1), steps.cpu())
            sums += torch.stack([part.double().sum() for part in parts])
            bar.update(valid)
    totals = accelerator.reduce(sums.to(accelerator.device), "sum").tolist()
    return {name: total / len(store.test) for name, total in zip(names, totals, strict=True)}


def evaluate_boards(store: BoardStore, trainer: Trainer) -> dict[str, float]:
    """Score a trainer on the test puzzles of `store`."""
    size = trainer.config.train.batch_size
    with trainer.averaged():
        figures = score_boards(trainer.predictor(), store, size, trainer.accelerator, trainer.should_stop)
    return {f"evaluation/{name}": value for name, value in figures.items()}


# The program ----------------------------------------------------------------------------------------------------------


def score_export(checkpoint: Path, data: Path, batch_size: int, precision: str) -> dict[str, float]:
    """Score an export on the test puzzles of a dataset; `puzzles_per_second` is measured too.

    Raises InputError if the model does not fit the dataset.
    """
    store = open_store(data)
    if not isinstance(store, BoardStore):
        raise InputError(f"{data}: an ARC dataset, expected one of sudoku or maze")
    exported = read_export(checkpoint)
    model = exported.model
    if (model.vocab_size, model.seq_len) != (store.vocab_size, store.seq_len):
        raise InputError(
            f"{checkpoint}: a model of {model.seq_len} tokens of {model.vocab_size} kinds, "
            f"{data} has {store.seq_len} of {store.vocab_size}"
        )
    accelerator = make_accelerator("none", checkpoint)
    dtype = resolve_precision(precision, model, accelerator)
    predictor = Predictor.of_export(exported, accelerator.device, dtype)
    started = time.perf_counter()
    figures = score_boards(predictor, store, batch_size, accelerator)
    return figures | {"puzzles_per_second": len(store.test) / (time.perf_counter() - started)}


def main(argv: Sequence[str] | None = None) -> int:
    """Score a finished run or export on the test puzzles of a dataset."""
    parser = command_line("arc_trm.scoring", __doc__)
    parser.add_argument("checkpoint", type=Path, help="run folder or export")
    parser.add_argument("--data", type=Path, required=True, help="dataset folder of data_prep.build sudoku or maze")
    parser.add_argument("--batch-size", type=whole(1), default=256, metavar="N", help="puzzles at once (256)")
    parser.add_argument("--precision", default="auto", choices=("auto", *PRECISIONS), help="arithmetic (auto)")
    arguments = parser.parse_args(argv)
    figures = score_export(arguments.checkpoint, arguments.data, arguments.batch_size, arguments.precision)
    print(", ".join(f"{name} {value:.4f}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    run_program(main)
