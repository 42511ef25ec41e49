"""Predict test outputs under augmentations and turn the answers into votes.

Every puzzle of a task answers in its own colours and orientation; the votes are counted after undoing both. A task may
be answered in a small window of the canvas, chosen from what is visible; an answer that its window does not close with
EOS may go on beyond it and is repeated on the full canvas.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from accelerate import Accelerator
from numpy.typing import NDArray

from arc_trm.batches import ArcBatches
from arc_trm.evaluate import Predicted, Predictor, predict
from arc_trm.sampler import Rows
from arc_trm.vote import AskedOutput, Predictions, Tally
from data_prep.canvas import CANVAS_SIDE, closed, largest_rectangles
from data_prep.store import ArcStore


def outputs_of_store(store: ArcStore) -> tuple[tuple[AskedOutput, ...], NDArray[np.int32]]:
    """The asked outputs of the scored groups by name, and int32[P]: which of them each pair asks for, -1 none."""
    outputs: list[AskedOutput] = []
    asked = np.full(len(store.pair_groups), -1, np.int32)
    for number, group in enumerate(store.groups):
        if group.scored:
            pairs = np.arange(store.group_pairs[number], store.group_pairs[number + 1])
            for pair in pairs[store.pair_tests[pairs] >= 0].tolist():
                asked[pair] = len(outputs)
                outputs.append(AskedOutput(group.name, int(store.pair_tests[pair])))
    return tuple(outputs), asked


@dataclass
class Voter:
    """Answers rows of a store and counts the votes; the tables that batches are cut from are made once."""

    store: ArcStore
    asked: NDArray[np.int32]  # [P] index of the output that a pair asks for
    batch_size: int
    accelerator: Accelerator
    windows: bool = False  # answer each task in the window that its visible grids need
    repeats: bool = True  # repeat what a window does not close on the full canvas
    task_rows: bool = False  # embedding rows belong to tasks, not to puzzles
    _batches: dict[int, ArcBatches] = field(default_factory=dict)

    def vote(
        self,
        predictor: Predictor,
        rows: Rows,
        tally: Tally,
        progress: Callable[[int], object],
        stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Answer `rows` and add the votes to `tally`; `progress` hears how many rows each batch has settled.

        `stop` is asked after every batch, equally often by all processes, and must tell them all the same. Returns
        whether everything was answered; where it was not, answers vote that should have been repeated.
        """
        waiting: list[Predicted] = []
        for side, part in self._by_side(rows):
            for predicted in self._answers(predictor, part, side):
                settled = _settled(predicted, side if self.repeats else CANVAS_SIDE)
                self._count(predicted[np.flatnonzero(settled)], tally)
                waiting.append(predicted[np.flatnonzero(~settled)])
                progress(int(settled.sum()))
                if stop():
                    return self._give_up(waiting, 0, tally)
        repeated = 0
        for predicted in self._answers(
            predictor, Rows.joined([rows[:0], *(part.rows for part in waiting)]), CANVAS_SIDE
        ):
            self._count(predicted, tally)
            progress(len(predicted.rows))
            repeated += len(predicted.rows)
            if stop():
                return self._give_up(waiting, repeated, tally)
        return True

    def _give_up(self, waiting: Sequence[Predicted], repeated: int, tally: Tally) -> bool:
        """Let the answers vote that wait to be repeated, but for the first `repeated` ones; False."""
        for predicted in waiting:
            skipped = min(repeated, len(predicted.rows))
            self._count(predicted[np.arange(skipped, len(predicted.rows))], tally)
            repeated -= skipped
        return False

    def _answers(self, predictor: Predictor, rows: Rows, side: int) -> Iterator[Predicted]:
        """Answers to `rows` in windows of `side`; as many at once as have the tokens of `batch_size` full canvases."""
        at_once = max(1, self.batch_size * CANVAS_SIDE**2 // side**2)
        # A few rows need no full batch; powers of two keep the number of compiled shapes small.
        at_once = min(at_once, 1 << max(0, len(rows) - 1).bit_length())
        return predict(predictor, self._made(side), rows, at_once, self.accelerator)

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

    def _count(self, predicted: Predicted, tally: Tally) -> None:
        """Add the votes of a batch."""
        predictions = Predictions(
            predicted.tokens,
            predicted.halting,
            self.asked[predicted.rows.pairs],
            predicted.rows.dihedrals,
            predicted.rows.permutations,
        )
        tally.add(predictions)


def _settled(predicted: Predicted, side: int) -> NDArray[np.bool_]:
    """Which answers bool [n] need not be repeated: those closed in their window, and all on the full canvas."""
    if side == CANVAS_SIDE:
        return np.ones(len(predicted.rows), bool)
    heights, widths = largest_rectangles(predicted.tokens, side)
    return closed(predicted.tokens, heights, widths, side)
