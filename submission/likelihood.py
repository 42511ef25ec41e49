"""How likely the model itself finds each candidate: the summed log-probability of its cells under some augmentations.

The model answers all cells of a canvas at once, so one pass for a test input under one augmentation weighs every
candidate: a grid's log-probability is the sum of the log-probabilities of its tokens, its EOS border among them. The
same first puzzles of a task weigh all its candidates, and the mean over them is what ranks these.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from arc_trm.batches import ArcBatches, Batch
from arc_trm.predict import Predictor, Voter, shared_batches
from arc_trm.sampler import Rows, evaluation_rows
from arc_trm.supervision import TOKEN_SCORES
from arc_trm.vote import Tally, grid_key
from data_prep.canvas import CANVAS_SIDE, IGNORE_LABEL, PAD, encode
from data_prep.grid import Grid


def final_log_probabilities(predictor: Predictor, batch: Batch) -> Tensor:
    """float32 [b, l, v]: log-probabilities of the tokens after the last supervision step."""
    roll_out = predictor.start(batch)
    for _ in range(predictor.halting.max_supervision_steps):
        output = roll_out.step()
    return TOKEN_SCORES[predictor.halting.token_loss](output.logits).log_softmax(-1)


def labelled_sums(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """float64 [b, k]: log-probabilities [b, l, v] summed over the labelled tokens of labels int64 [b, k, l]."""
    at = log_probabilities.gather(2, labels.clamp(min=0).transpose(1, 2))
    return torch.where(labels.transpose(1, 2) == IGNORE_LABEL, 0.0, at).sum(1, dtype=torch.float64)


@dataclass
class Likelihood:
    """Weighs the candidates of a tally by the puzzles of a voter's store."""

    voter: Voter
    puzzles: int = 8  # of each task that weigh, the unaugmented one first
    most: int = 16  # candidates of an output that are weighed, those with most votes

    def weigh(self, predictor: Predictor, tally: Tally, stop: Callable[[], bool] = lambda: False) -> bool:
        """Give the leading candidates of every output their log-probability; False when stopped before the end.

        Collective: all processes hold the same tally and are told the same by `stop`, asked after every batch. An
        output whose puzzles have not all answered keeps what it had, for means over other puzzles cannot be compared.
        """
        rows = evaluation_rows(self.voter.store, augmentations=self.puzzles)
        outputs = self.voter.asked[rows.pairs].tolist()
        grids = {i: [c.grid for c in tally.candidates(i, limit=self.most)] for i in set(outputs) - {-1}}
        rows = rows[np.flatnonzero([bool(grids.get(i)) for i in outputs])]
        sides = {i: self._side(i, held) for i, held in grids.items() if held}
        of_row = np.array([sides[i] for i in self.voter.asked[rows.pairs].tolist()])
        for side in sorted(set(of_row.tolist())):
            if not self._weigh(predictor, tally, rows[np.flatnonzero(of_row == side)], grids, side, stop):
                return False
        return True

    def _side(self, output: int, grids: Sequence[Grid]) -> int:
        """The task's own canvas where every candidate and its EOS border fit on it, else the full one."""
        group = self.voter.store.pair_groups[np.flatnonzero(self.voter.asked == output)[0]]
        side = self.voter.store.groups[group].side
        return side if max(max(grid.shape) for grid in grids) < side else CANVAS_SIDE

    def _weigh(
        self,
        predictor: Predictor,
        tally: Tally,
        rows: Rows,
        grids: dict[int, list[Grid]],
        side: int,
        stop: Callable[[], bool],
    ) -> bool:
        voter = self.voter
        groups = np.unique(voter.store.pair_groups[rows.pairs]).astype(np.int64)
        batches = ArcBatches(voter.store, voter.accelerator.device, side, groups, voter.task_rows)
        expected = Counter(voter.asked[rows.pairs].tolist())
        sums: dict[int, list[NDArray[np.float64]]] = {}
        at_once = voter.at_once(len(rows), side)
        for chunk, mine, valid in shared_batches(rows, at_once, voter.accelerator):
            labels = torch.from_numpy(self._labels(mine, grids, side)).to(voter.accelerator.device)
            found = labelled_sums(final_log_probabilities(predictor, batches.make(mine)), labels)
            if voter.accelerator.num_processes > 1:
                found = voter.accelerator.gather(found)
            outputs = voter.asked[chunk.pairs[:valid]].tolist()
            for output, row in zip(outputs, found[:valid].cpu().numpy(), strict=True):
                sums.setdefault(output, []).append(row)
                if len(sums[output]) == expected[output]:
                    means = np.mean(sums.pop(output), axis=0)
                    keys = [grid_key(grid) for grid in grids[output]]
                    tally.weigh(output, keys, means[: len(keys)].tolist())
            if stop():
                return False
        return True

    def _labels(self, rows: Rows, grids: dict[int, list[Grid]], side: int) -> NDArray[np.int64]:
        """int64 [b, most, l]: every candidate of each row's output under the row's augmentation."""
        labels = np.full((len(rows), self.most, side * side), IGNORE_LABEL, np.int64)
        for i, (puzzle, pair) in enumerate(zip(rows.puzzles.tolist(), rows.pairs.tolist(), strict=True)):
            augmentation = self.voter.store.augmentation(puzzle)
            for j, grid in enumerate(grids[int(self.voter.asked[pair])]):
                tokens = encode(augmentation.apply(grid), side=side).astype(np.int64)
                labels[i, j] = np.where(tokens == PAD, IGNORE_LABEL, tokens)
        return labels
