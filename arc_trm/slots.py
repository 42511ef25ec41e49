"""The batch slots: who fills them, which process works on them in which pieces, and which explore."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from accelerate import Accelerator
from numpy.typing import NDArray

from arc_trm.batches import Source
from arc_trm.supervision import Carry
from arc_trm.training_state import carry_from, carry_tensors
from data_prep.files import InputError

# Sets the exploration's random numbers apart from the sampler's, which has the same seed.
EXPLORATION_KEY = 0x5E7


@dataclass(frozen=True)
class Part:
    """A share of the batch slots that one source fills: all of them, or those of one canvas size."""

    source: Source
    slots: int


@dataclass
class Work:
    """The slots of one part that this process works through at once, and what they carry."""

    part: Part
    local: slice  # of the part's slots
    draws: slice  # of the whole batch's slots: which exploration draws are theirs
    carry: Carry | None = None

    @property
    def slots(self) -> int:
        """How many slots it is."""
        return self.local.stop - self.local.start

    def halves(self) -> "list[Work]":
        """The same slots as two pieces of work; a single slot stays as it is."""
        if self.slots == 1:
            return [self]
        middle = self.slots // 2
        return [self._piece(0, middle), self._piece(middle, self.slots)]

    def _piece(self, start: int, stop: int) -> "Work":
        carry = None
        if self.carry is not None:
            steps, state = self.carry.steps, self.carry.state
            carry = carry_from(carry_tensors(self.carry), slice(start, stop), steps.device, state[0].dtype)
        return Work(self.part, _within(self.local, start, stop), _within(self.draws, start, stop), carry)


def _within(whole: slice, start: int, stop: int) -> slice:
    """A part of a slice, counted from its start."""
    return slice(whole.start + start, whole.start + stop)


def share_out(parts: Sequence[Part], accelerator: Accelerator, micro_batches: int) -> list[Work]:
    """This process's slices of every part, each cut into the micro-batches that are worked through at once.

    Raises InputError where the slots cannot be shared evenly.
    """
    processes, rank = accelerator.num_processes, accelerator.process_index
    work, first = [], 0
    for part in parts:
        if part.slots % (processes * micro_batches):
            raise InputError(
                f"train.batch_size: {part.slots} slots cannot be shared evenly by {processes} processes "
                f"× {micro_batches} micro-batches"
            )
        size = part.slots // (processes * micro_batches)
        for index in range(micro_batches):
            start = (rank * micro_batches + index) * size
            work.append(Work(part, slice(start, start + size), slice(first + start, first + start + size)))
        first += part.slots
    return work


def exploration(seed: int, step: int, slots: int, probability: float, max_steps: int) -> NDArray[np.int32]:
    """Least supervision steps int32 [slots] before halting counts at `step`: 0, or with `probability` 2..max_steps."""
    # The low word of the counter counts the draws of a step, so steps must differ in a higher one. Raw bits are all
    # that numpy promises for every version.
    philox = np.random.Philox(key=np.array([seed, EXPLORATION_KEY], np.uint64), counter=[0, step, 0, 0])
    bits = philox.random_raw(2 * slots).reshape(2, slots)
    explores = (bits[0] >> np.uint64(11)) * 2.0**-53 < probability
    spread = (bits[1] >> np.uint64(32)) * np.uint64(max(max_steps - 1, 1)) >> np.uint64(32)
    return np.where(explores, np.minimum(spread + np.uint64(2), max_steps), 0).astype(np.int32)
