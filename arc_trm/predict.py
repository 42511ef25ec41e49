"""Prediction: all supervision steps for every example, in batches that the processes share, and voting.

Every puzzle of a task is answered in its own colours and orientation; the votes are counted after undoing both. A task
may be answered in a small window of the canvas, chosen by its visible grids. An answer that is not closed by EOS in its
window may go on beyond it and is repeated on the full canvas.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor

from arc_trm.batches import ArcBatches, Batch
from arc_trm.checkpoint import Export
from arc_trm.config import HaltingConfig
from arc_trm.device import MOST_ELEMENTS, free_memory, out_of_memory, rows_at_once
from arc_trm.model import Output, RecursiveModel, State
from arc_trm.optim import PuzzleEmbedding
from arc_trm.sampler import Indexed, Rows, fixed_batches
from arc_trm.supervision import HALTING_RULES, TOKEN_SCORES, Forward
from arc_trm.vote import COST_UNITS, MOST_COST, AskedOutput, Predictions, Tally
from data_prep.canvas import CANVAS_SIDE, COLOUR_OFFSET, PAD, closed, largest_rectangles
from data_prep.grid import Scalar
from data_prep.store import ArcStore


class Answers(NamedTuple):
    """Answers to a batch of b rows."""

    tokens: Tensor  # uint8 [b, l], most likely tokens
    halting: Tensor  # float32 [b], halting probability
    steps: Tensor  # int64 [b], the first supervision step at which the row wanted to halt, else the last
    costs: Tensor  # int16 [b, l, v], -log probability of every token in units of 1 / COST_UNITS, at most MOST_COST


@torch.no_grad()
def roll_out(
    forward: Forward, state: State, inputs: Tensor, puzzle: Tensor, views: Tensor | None = None
) -> Iterator[Output]:
    """Yield the output of every supervision step; all prediction goes through here.

    `inputs` [b, l], `puzzle` [b, w] embeddings, `views` [b, 11] for models whose rows belong to tasks.
    """
    while True:
        output = forward(state, inputs, puzzle, views)
        state = output.state
        yield output


@dataclass(frozen=True)
class Predictor:
    """Answer batches with a model, its embedding table and its halting settings."""

    model: RecursiveModel
    embedding: PuzzleEmbedding
    halting: HaltingConfig
    dtype: torch.dtype

    @classmethod
    def of_export(cls, export: Export, device: torch.device, dtype: torch.dtype = torch.float32) -> "Predictor":
        """Make the predictor of an export; its one embedding row, 0, is the export's mean."""
        model = RecursiveModel(export.model)
        model.load_state_dict(export.weights)
        embedding = PuzzleEmbedding(1, export.model.puzzle_width, device)
        embedding.table.copy_(export.puzzle_mean)
        return cls(model.to(device), embedding, export.halting, dtype)

    def answer(self, batch: Batch) -> Answers:
        """Return the answers after the last supervision step."""
        last, (size, tokens) = self.halting.max_supervision_steps, batch.inputs.shape
        state = tuple(part.contiguous() for part in self.model.initial_state(size, tokens, self.dtype))
        puzzle = self.embedding.table[batch.puzzle_ids]
        outputs = roll_out(self.model, state, batch.inputs, puzzle, batch.views)
        steps = torch.full((size,), last, device=batch.inputs.device)
        for step, output in enumerate(islice(outputs, last), start=1):
            steps = torch.where(HALTING_RULES[self.halting.rule](output), steps.clamp(max=step), steps)
        costs = -COST_UNITS * TOKEN_SCORES[self.halting.token_loss](output.logits).log_softmax(-1)
        costs = costs.nan_to_num(nan=MOST_COST).clamp(0, MOST_COST).round().to(torch.int16)
        return Answers(output.logits.argmax(-1).to(torch.uint8), output.halt_logits.sigmoid(), steps, costs)


@dataclass
class MemoryLimit:
    """Number of rows answered at once; halved for good whenever memory runs out."""

    at_once: int = MOST_ELEMENTS

    def answer(self, predictor: Predictor, batch: Batch) -> Answers:
        """Call `predictor.answer` in pieces that fit; raises OutOfMemoryError if a single row does not."""
        self.at_once = min(self.at_once, rows_at_once(predictor.model.config, batch.inputs.shape[1]))
        while True:
            try:
                parts = [predictor.answer(part) for part in _pieces(batch, self.at_once)]
            except (MemoryError, RuntimeError) as error:
                tried = min(self.at_once, len(batch.inputs))
                if not out_of_memory(error) or tried == 1:
                    raise
            else:
                return Answers(*map(torch.cat, zip(*parts, strict=True)))
            self.at_once = -(-tried // 2)
            free_memory(batch.inputs.device)
            print(f"note: out of memory, going on with {self.at_once} rows at once", file=sys.stderr)


def _pieces(batch: Batch, size: int) -> list[Batch]:
    columns = batch.columns()
    pieces = zip(*(torch.split(column, size) for column in columns.values()), strict=True)
    return [Batch(**dict(zip(columns, piece, strict=True))) for piece in pieces]


def shared_batches(rows: Indexed, batch_size: int, accelerator: Accelerator) -> Iterator[tuple[Indexed, Indexed, int]]:
    """Yield batches of equal size: rows of all processes, rows of this one, and how many of all are no filling."""
    share = -(-batch_size // accelerator.num_processes)
    first = accelerator.process_index * share
    for chunk, valid in fixed_batches(rows, share * accelerator.num_processes):
        yield chunk, chunk[np.arange(first, first + share)], valid


# Votes ----------------------------------------------------------------------------------------------------------------


def outputs_of_store(store: ArcStore) -> tuple[tuple[AskedOutput, ...], NDArray[np.int32]]:
    """Return the asked outputs of the scored groups, and for each pair the index of its output, int32 [P], or -1."""
    scored = np.array([group.scored for group in store.groups])
    pairs = np.flatnonzero(scored[store.pair_groups] & (store.pair_tests >= 0))
    asked = np.full(len(store.pair_groups), -1, np.int32)
    asked[pairs] = np.arange(len(pairs))
    names = [store.groups[group].name for group in store.pair_groups[pairs]]
    return tuple(map(AskedOutput, names, store.pair_tests[pairs].tolist())), asked


@dataclass
class Voter:
    """Answer rows of a store and count the votes; makes the tables that batches are cut from only once."""

    store: ArcStore
    asked: NDArray[np.int32]  # [P] index of the output that a pair asks for, -1 none
    batch_size: int  # full canvases at once, over all processes
    accelerator: Accelerator
    windows: bool = False  # answer each task in the window that its visible grids need, not on the full canvas
    repeats: bool = True  # repeat answers that their window does not close on the full canvas
    task_rows: bool = False  # embedding rows belong to tasks, not to puzzles
    unclosed: int = 0  # answers so far that a window did not close
    _batches: dict[int, ArcBatches] = field(default_factory=dict)
    _limits: dict[int, MemoryLimit] = field(default_factory=lambda: defaultdict(MemoryLimit))  # found in earlier passes

    def vote(
        self,
        predictor: Predictor,
        rows: Rows,
        tally: Tally,
        progress: Callable[[int], object],
        stop: Callable[[], bool] = lambda: False,
        answered: Callable[[int, int], object] = lambda side, rows: None,
    ) -> bool:
        """Answer `rows` and add the votes to `tally`; return True if all were answered.

        After every batch `progress` gets the number of settled rows, `answered` the side of the canvas and the number
        of computed rows, filling included. `stop` is called equally often in all processes and must return the same in
        all of them; if it ends the pass, answers that should have been repeated vote as they are.
        """
        waiting: list[tuple[Rows, Predictions]] = []
        for side, part in self._by_side(rows):
            for own, predictions in self.answers(predictor, part, side):
                answered(side, self.at_once(len(part), side))
                settled = _settled(predictions)
                self.unclosed += int((~settled).sum())
                settled |= not self.repeats
                tally.add(predictions[settled])
                waiting.append((own[~settled], replace(predictions[~settled], costs=None)))  # these take much memory
                progress(int(settled.sum()))
                if stop():
                    return _give_up(waiting, 0, tally)
        repeated = 0
        rows = Rows.joined([rows[:0], *(own for own, _ in waiting)])
        for own, predictions in self.answers(predictor, rows, CANVAS_SIDE):
            answered(CANVAS_SIDE, self.at_once(len(rows), CANVAS_SIDE))
            tally.add(predictions)
            progress(len(own))
            repeated += len(own)
            if stop():
                return _give_up(waiting, repeated, tally)
        return True

    def at_once(self, rows: int, side: int) -> int:
        """Return the batch size for so many rows in windows of `side`: the tokens of `batch_size` full canvases."""
        most = max(1, self.batch_size * CANVAS_SIDE**2 // side**2)
        # A few rows need no full batch; powers of two keep the number of compiled shapes small.
        wanted = min(most, 1 << max(0, rows - 1).bit_length())
        processes = self.accelerator.num_processes
        return -(-wanted // processes) * processes

    def tokens(self, rows: Rows) -> int:
        """Return the number of tokens to compute for `rows`, filling included."""
        sizes = ((side, len(part), self.at_once(len(part), side)) for side, part in self._by_side(rows))
        return sum(-(-count // at_once) * at_once * side**2 for side, count, at_once in sizes)

    def samples(self, rows: Rows) -> Iterator[Batch]:
        """Yield this process's share of one batch of every shape in which `rows` are answered."""
        for side, part in self._by_side(rows):
            share = self.at_once(len(part), side) // self.accelerator.num_processes
            yield self._made(side).make(part[np.arange(share) % len(part)])

    def answers(self, predictor: Predictor, rows: Rows, side: int) -> Iterator[tuple[Rows, Predictions]]:
        """Yield some of `rows` and their predictions, in order, in windows of `side`; the same in every process."""
        for chunk, mine, valid in shared_batches(rows, self.at_once(len(rows), side), self.accelerator):
            tokens, halting, _, costs = self._limits[side].answer(predictor, self._made(side).make(mine))
            costs = costs[..., COLOUR_OFFSET:]  # of colours
            if self.accelerator.num_processes > 1:  # which cannot gather int16
                tokens, halting, costs = self.accelerator.gather((tokens, halting, costs.int()))
            own = chunk[:valid]
            moved, paid = (_at_origin(part[:valid].cpu().numpy(), own, side) for part in (tokens, costs.short()))
            probabilities, asked = halting[:valid].float().cpu().numpy(), self.asked[own.pairs]
            yield own, Predictions(moved, probabilities, asked, own.augmentations, paid)

    def _by_side(self, rows: Rows) -> Iterator[tuple[int, Rows]]:
        if not self.windows:
            yield CANVAS_SIDE, rows
            return
        sides = np.array([group.side for group in self.store.groups])[self.store.pair_groups[rows.pairs]]
        for side in np.unique(sides).tolist():
            yield side, rows[np.flatnonzero(sides == side)]

    def _made(self, side: int) -> ArcBatches:
        if side not in self._batches:
            sides = np.array([group.side for group in self.store.groups])
            asking = np.unique(self.store.pair_groups[self.asked >= 0]).astype(np.int64)
            groups = asking if side == CANVAS_SIDE else asking[sides[asking] == side]
            self._batches[side] = ArcBatches(self.store, self.accelerator.device, side, groups, self.task_rows)
        return self._batches[side]


def _give_up(waiting: Sequence[tuple[Rows, Predictions]], repeated: int, tally: Tally) -> bool:
    """Add the votes of answers that wait to be repeated, except the first `repeated` ones; return False."""
    for own, predictions in waiting:
        tally.add(predictions[repeated:])
        repeated = max(0, repeated - len(own))
    return False


def _at_origin(values: NDArray[Scalar], rows: Rows, side: int) -> NDArray[Scalar]:
    """Shift the cells [n, l, …] of answers to `rows` so that every grid begins at (0, 0); PAD follows."""
    if not (rows.top.any() or rows.left.any()):
        return values
    padded = np.full((len(rows), 2 * side, 2 * side, *values.shape[2:]), PAD, values.dtype)
    padded[:, :side, :side] = values.reshape(-1, side, side, *values.shape[2:])
    from_rows, from_columns = (first[:, None] + np.arange(side) for first in (rows.top, rows.left))
    numbers = np.arange(len(rows))[:, None, None]
    return padded[numbers, from_rows[:, :, None], from_columns[:, None]].reshape(values.shape)


def _settled(predictions: Predictions) -> NDArray[np.bool_]:
    """Return the answers, bool [n], that need no repetition: closed in their window, or on the full canvas."""
    tokens, side = predictions.tokens, predictions.side
    if side == CANVAS_SIDE:
        return np.ones(len(tokens), bool)
    return closed(tokens, *largest_rectangles(tokens, side), side)
