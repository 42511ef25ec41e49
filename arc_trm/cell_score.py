"""How many test puzzles of a Sudoku or maze dataset a model solves.

    python -m arc_trm.cell_score runs/sudoku --data data/sudoku

Four figures: `exact_accuracy` (every cell equals the label), `valid` (right by the rules, whatever the label says: a
maze has many shortest paths), `cell_accuracy`, and `supervision_steps` (mean number of steps until a row would halt).
The program also prints `puzzles_per_second`, the first batch's start-up included.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path

import torch
from accelerate import Accelerator

from arc_trm.cells import CHECKS, evaluation_batches
from arc_trm.checkpoint import read_export
from arc_trm.config import LogConfig
from arc_trm.evaluate import Predictor
from arc_trm.model import RecursiveModel
from arc_trm.optim import PuzzleEmbedding
from arc_trm.trainer import PRECISIONS, Trainer, resolve_precision
from data_prep.cell_store import CellStore
from data_prep.files import InputError, run_program
from data_prep.progress import Progress
from data_prep.store import open_store


@torch.no_grad()
def score_cells(
    predictor: Predictor,
    store: CellStore,
    batch_size: int,
    accelerator: Accelerator,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, float]:
    """The four figures over all test puzzles, which the processes share; none if `stop`, collective, asks to end."""
    processes = accelerator.num_processes
    mine = store.test[accelerator.process_index :: processes]
    share = -(-batch_size // processes)
    rounds = range(-(-len(store.test) // (share * processes)))  # another process may have one batch more
    sums = torch.zeros(5, dtype=torch.float64)
    with Progress("evaluating", len(mine), unit="puzzles", quiet=not accelerator.is_main_process) as bar:
        for _, work in zip_longest(rounds, evaluation_batches(mine, share, accelerator.device)):
            if stop():
                return {}
            if work is None:
                continue
            batch, valid = work
            answers, _, steps = (part[:valid] for part in predictor.answer(batch))
            right = (answers == batch.labels[:valid]).double().cpu()
            questions = batch.inputs[:valid].to(torch.uint8).cpu().numpy()
            obeys = torch.from_numpy(CHECKS[store.kind](questions, answers.cpu().numpy()))
            exact = right.min(-1).values
            parts = (exact, obeys.double(), right.mean(-1), steps.double().cpu(), torch.ones(valid))
            sums += torch.stack([part.sum().double() for part in parts])
            bar.update(valid)
    exact_sum, valid_sum, cell_sum, step_sum, count = accelerator.reduce(sums.to(accelerator.device), "sum").tolist()
    return {
        "exact_accuracy": exact_sum / count,
        "valid": valid_sum / count,
        "cell_accuracy": cell_sum / count,
        "supervision_steps": step_sum / count,
    }


def cell_evaluation(store: CellStore, log: LogConfig) -> Callable[[Trainer], dict[str, float]]:
    """What evaluates a trainer on the test puzzles of `store`; one that it asks to stop has no scores."""

    def evaluate(trainer: Trainer) -> dict[str, float]:
        with trainer.averaged():
            figures = score_cells(
                trainer.predictor(), store, log.evaluation_batch, trainer.accelerator, trainer.should_stop
            )
        return {f"evaluation/{name}": value for name, value in figures.items()}

    return evaluate


def score_export(
    checkpoint: Path, data: Path, batch_size: int, precision: str, early_exit: bool = False
) -> dict[str, float]:
    """The figures of a finished run or export on a dataset's test puzzles, and how many it answered a second.

    Raises InputError where they do not fit.
    """
    store = open_store(data)
    if not isinstance(store, CellStore):
        raise InputError(f"{data}: an ARC dataset, expected one of sudoku or maze")
    exported = read_export(checkpoint)
    model = exported.model
    if (model.vocab_size, model.seq_len) != (store.vocab_size, store.seq_len):
        raise InputError(
            f"{checkpoint}: a model of {model.seq_len} tokens of {model.vocab_size} kinds, "
            f"{data} has {store.seq_len} of {store.vocab_size}"
        )
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    net = RecursiveModel(model)
    net.load_state_dict(exported.weights)
    net.to(accelerator.device)
    embedding = PuzzleEmbedding(1, model.puzzle_width, accelerator.device)
    embedding.table.copy_(exported.puzzle_mean)
    dtype = resolve_precision(precision, accelerator.device)
    predictor = Predictor(net, net, embedding, exported.halting, dtype, early_exit)
    started = time.perf_counter()
    figures = score_cells(predictor, store, batch_size, accelerator)
    return figures | {"puzzles_per_second": len(store.test) / (time.perf_counter() - started)}


def main(argv: Sequence[str] | None = None) -> int:
    """Score a finished run or export on the test puzzles of a dataset."""
    parser = argparse.ArgumentParser(
        prog="python -m arc_trm.cell_score",
        description="Score a model on the test puzzles of a Sudoku or maze dataset.",
    )
    parser.add_argument("checkpoint", type=Path, help="run folder or export")
    parser.add_argument("--data", type=Path, required=True, help="dataset folder of data_prep.build sudoku or maze")
    parser.add_argument("--batch-size", type=int, default=256, metavar="N", help="puzzles at once (256)")
    parser.add_argument("--precision", default="auto", choices=("auto", *PRECISIONS), help="arithmetic (auto)")
    parser.add_argument("--early-exit", action="store_true", help="take an answer as soon as the model wants to halt")
    arguments = parser.parse_args(argv)
    figures = score_export(
        arguments.checkpoint, arguments.data, arguments.batch_size, arguments.precision, arguments.early_exit
    )
    print(", ".join(f"{name} {value:.4f}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    run_program(main)
