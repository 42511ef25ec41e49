"""The one training loop: supervision steps over batch slots, until enough steps, a deadline, or a request to stop.

`arc_trm/train.py` drives it for training and `submission.solve` for adaptation. What comes out is the same for one
process and for many: the rows offered, the exploration and the refills depend on (seed, step, global slot) alone, a
process is a slice of the slots, and the losses are divided by the size of the whole batch.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from arc_trm.batches import Batch, Source
from arc_trm.config import RunConfig, TrainConfig
from arc_trm.ema import Ema, ema_decay
from arc_trm.evaluate import Predictor
from arc_trm.halting import Carry, initial_carry, supervision_step
from arc_trm.model import RecursiveModel
from arc_trm.optim import AdamAtan2, learning_rate
from arc_trm.puzzle_embedding import PuzzleEmbedding
from data_prep.files import InputError

OPTIMISERS: dict[str, Callable[[list[nn.Parameter], TrainConfig], torch.optim.Optimizer]] = {
    "adam_atan2": lambda parameters, train: AdamAtan2(
        parameters, train.lr, (train.beta1, train.beta2), train.weight_decay
    ),
    "adamw": lambda parameters, train: torch.optim.AdamW(
        parameters, train.lr, (train.beta1, train.beta2), weight_decay=train.weight_decay
    ),
}
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class NonFiniteLoss(RuntimeError):
    """The loss became NaN or infinite; the message says at which step and learning rate."""


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
        pieces = [(0, middle), (middle, self.slots)]
        return [
            Work(self.part, _within(self.local, *piece), _within(self.draws, *piece), _carry_slice(self.carry, *piece))
            for piece in pieces
        ]


def exploration(seed: int, step: int, slots: int, probability: float, max_steps: int) -> np.ndarray:
    """Least supervision steps int32 [slots] before halting counts at `step`: 0, or with `probability` 2..max_steps."""
    generator = np.random.Generator(np.random.Philox(key=[seed, 0x5E7], counter=[step, 0, 0, 0]))
    explores = generator.random(slots) < probability
    minimum = generator.integers(2, max(max_steps, 2) + 1, slots)
    return np.where(explores, minimum, 0).astype(np.int32)


def resolve_precision(name: str, device: torch.device) -> torch.dtype:
    """The arithmetic to use; `auto` is bf16 on a GPU that has it, fp16 on an older GPU, fp32 on a CPU."""
    if name != "auto":
        return PRECISIONS[name]
    if device.type != "cuda":
        return torch.float32
    # Emulated bf16 (before compute capability 8) is reported as supported too, and is slow.
    return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float16


class Trainer:
    """Model, embedding table, optimiser, moving average and carry of one process, and the step that moves them."""

    def __init__(
        self,
        config: RunConfig,
        parts: Sequence[Part],
        accelerator: Accelerator,
        planned_steps: int,
        model: RecursiveModel | None = None,
        compile_model: Callable[[nn.Module], nn.Module] | None = None,
    ) -> None:
        self.config, self.parts, self.accelerator = config, list(parts), accelerator
        self.planned_steps = planned_steps
        self.step = 0
        self.seconds = 0.0
        self.trunk_factor = 1.0  # multiplies the trunk's learning rate: 0 moves the puzzle embedding alone
        if model is None:
            torch.manual_seed(config.seed)
            model = RecursiveModel(config.model)
        device = accelerator.device
        self.model = model.to(device)
        self.embedding = PuzzleEmbedding(parts[0].source.num_puzzles, config.model.puzzle_width, device)
        self.dtype = resolve_precision(config.train.precision, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype == torch.float16)
        # The model as it runs: compiled perhaps; and, for training on several processes, data-parallel around that.
        self.running = compile_model(self.model) if compile_model else self.model
        self.wrapped = accelerator.prepare_model(self.running) if accelerator.num_processes > 1 else self.running
        self.optimiser = OPTIMISERS[config.train.optimiser](list(self.model.parameters()), config.train)
        self.ema = Ema(self.model.parameters()) if config.train.ema else None
        self.work = self._share_out()
        self._sums: dict[str, Tensor] = {}
        self._sum_steps = 0

    def _share_out(self) -> list[Work]:
        """This process's slices of every part, each cut into the micro-batches that are worked through at once."""
        processes, rank = self.accelerator.num_processes, self.accelerator.process_index
        micro = self.config.train.micro_batches
        work, first = [], 0
        for part in self.parts:
            if part.slots % (processes * micro):
                raise InputError(
                    f"train.batch_size: {part.slots} slots cannot be shared evenly by {processes} processes "
                    f"× {micro} micro-batches"
                )
            size = part.slots // (processes * micro)
            for index in range(micro):
                start = (rank * micro + index) * size
                work.append(Work(part, slice(start, start + size), slice(first + start, first + start + size)))
            first += part.slots
        return work

    @property
    def batch_size(self) -> int:
        """Batch slots over all parts and processes."""
        return sum(part.slots for part in self.parts)

    def predictor(self) -> Predictor:
        """What answers questions with the weights as they are now (within `averaged`, their moving average)."""
        return Predictor(self.running, self.model, self.embedding, self.config.halting, self.dtype)

    def rates(self) -> tuple[float, float]:
        """Learning rates of trunk and puzzle embedding at the current step (1, 2, …)."""
        train = self.config.train
        warmup = min(train.warmup_steps, int(train.warmup_share * self.planned_steps))
        schedule = (warmup, self.planned_steps, train.lr_min_ratio)
        trunk_rate = self.trunk_factor * learning_rate(self.step, train.lr, *schedule)
        return trunk_rate, learning_rate(self.step, train.puzzle_lr, *schedule)

    def train_step(self) -> None:
        """One optimiser step: a supervision step of every slot, gradients summed over parts and processes.

        Where memory runs out in a single process, the step is done again in pieces half as large, and so are those
        that follow; among several processes the others would wait for ever, so there it raises OutOfMemoryError.
        """
        while not self._fits_memory():
            self.work = [half for work in self.work for half in work.halves()]
            print(f"note: out of memory, going on with {len(self.work)} pieces of work a step", file=sys.stderr)

    def _fits_memory(self) -> bool:
        """Do the step; False where it ran out of memory and is to be done again."""
        step = self.step
        try:
            self._train_step()
        except torch.OutOfMemoryError:
            if self.accelerator.num_processes > 1 or all(work.slots == 1 for work in self.work):
                raise
        else:
            return True
        # Here the exception is gone, and with it the frames that held on to tensors.
        self.step = step
        self.optimiser.zero_grad(set_to_none=True)
        self._sums, self._sum_steps, self.seconds = {}, 0, 0.0
        torch.cuda.empty_cache()
        return False

    def _train_step(self) -> None:
        started = time.monotonic()
        rule = self.config.halting
        draws = exploration(self.config.seed, self.step, self.batch_size, rule.exploration, rule.max_supervision_steps)
        minimum = torch.from_numpy(draws).to(self.accelerator.device, non_blocking=True)
        self.step += 1
        ids, gradients = [], []
        for index, work in enumerate(self.work):
            with self._sync(last=index == len(self.work) - 1):
                puzzle_ids, gradient = self._supervise(work, minimum[work.draws])
            ids.append(puzzle_ids)
            gradients.append(gradient)
        self._update(torch.cat(ids), torch.cat(gradients))
        self._sum_steps += 1
        self.seconds += time.monotonic() - started

    def _sync(self, last: bool) -> AbstractContextManager[Any]:
        """Gradients are averaged over the processes once a step, in the last backward pass."""
        return nullcontext() if last else self.accelerator.no_sync(self.wrapped)

    def _supervise(self, work: Work, minimum: Tensor) -> tuple[Tensor, Tensor]:
        """Forward and backward of some slots; returns their puzzle ids and the gradient of their embedding rows."""
        offer = work.part.source.offer(self.step - 1, work.local)
        if work.carry is None:
            work.carry = initial_carry(self.model, offer, self.dtype)
        result = supervision_step(
            self.wrapped, self.model, self.embedding, work.carry, offer, self.config.halting, minimum
        )
        # Data parallelism averages gradients over the processes: times their number makes it the sum.
        loss = result.loss * (self.accelerator.num_processes / self.batch_size)
        self.scaler.scale(loss).backward()
        work.carry = result.carry
        for name, value in {"loss": result.loss.detach(), **result.metrics}.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        assert result.puzzle_rows.grad is not None
        return result.carry.current.puzzle_ids, result.puzzle_rows.grad

    def _update(self, puzzle_ids: Tensor, gradients: Tensor) -> None:
        """Move weights, moving average and the embedding rows of the whole batch."""
        trunk_rate, puzzle_rate = self.rates()
        for group in self.optimiser.param_groups:
            group["lr"] = trunk_rate
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad(set_to_none=True)
        if self.scaler.is_enabled():  # a step whose gradients overflowed fp16 must not move the rows either
            gradients = torch.where(gradients.isfinite().all(), gradients, 0)
        if self.accelerator.num_processes > 1:
            puzzle_ids, gradients = self.accelerator.gather((puzzle_ids, gradients))
        self.embedding.update(puzzle_ids, gradients, puzzle_rate, self.config.train.puzzle_weight_decay)
        if self.ema is not None:
            self.ema.update(ema_decay(self.step, self.config.train.ema))

    def read_metrics(self) -> dict[str, float]:
        """Means since the last call, over all processes; the only place where a step waits for the device.

        Raises NonFiniteLoss where the loss is NaN or infinite.
        """
        if not self._sums:
            return {}
        names = sorted(self._sums)
        sums = torch.stack([self._sums[name].double() for name in names])
        sums = self.accelerator.reduce(sums, "sum")
        values = dict(zip(names, sums.tolist(), strict=True))
        count = max(values.pop("count"), 1)
        rows = self._sum_steps * self.batch_size
        per_row = ("loss", "token_loss", "halting_loss", "continue_loss")
        metrics = {name: value / (rows if name in per_row else count) for name, value in values.items()}
        trunk_rate, puzzle_rate = self.rates()
        metrics |= {"lr": trunk_rate, "puzzle_lr": puzzle_rate, "examples_per_second": rows / max(self.seconds, 1e-9)}
        self._sums, self._sum_steps, self.seconds = {}, 0, 0.0
        if not math.isfinite(metrics["loss"]):
            raise NonFiniteLoss(f"step {self.step}: the loss is {metrics['loss']} at learning rate {trunk_rate:.3g}")
        return metrics

    def averaged(self) -> AbstractContextManager[None]:
        """Within this context the model holds the moving average of its weights (where one is kept)."""
        return _swapped(self.ema) if self.ema is not None else nullcontext()

    # --- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The whole training state as named tensors and JSON facts; collective, the carry is in global slot order."""
        tensors: dict[str, Tensor] = {f"model/{name}": t for name, t in self.model.state_dict().items()}
        names = [name for name, _ in self.model.named_parameters()]
        if self.ema is not None:
            tensors |= {f"ema/{name}": t for name, t in zip(names, self.ema.averages, strict=True)}
        state = self.optimiser.state_dict()["state"]
        for index, name in enumerate(names):
            for key, value in state.get(index, {}).items():
                tensors[f"optimiser/{key}/{name}"] = torch.as_tensor(value)
        tensors["puzzle_table"] = self.embedding.table
        for name, value in self._named_carries():
            tensors[f"carry/{name}"] = value
        return tensors, {"scaler": self.scaler.state_dict() if self.scaler.is_enabled() else {}}

    def _named_carries(self) -> Iterator[tuple[str, Tensor]]:
        """The carry of every part over all processes, by global slot."""
        for number, part in enumerate(self.parts):
            carries = [work.carry for work in self.work if work.part is part]
            if any(carry is None for carry in carries):
                return
            columns = [_carry_tensors(carry) for carry in carries if carry is not None]
            for name in columns[0]:
                local = torch.cat([column[name] for column in columns])
                yield (
                    f"{number}/{name}",
                    self.accelerator.gather(local) if self.accelerator.num_processes > 1 else local,
                )

    def load_state_dict(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Restore what `state_dict` gave; the number of processes and micro-batches may differ."""
        self.step = facts["step"]
        self.model.load_state_dict(_below(tensors, "model/"))
        names = [name for name, _ in self.model.named_parameters()]
        if self.ema is not None:
            for name, average in zip(names, self.ema.averages, strict=True):
                average.copy_(tensors[f"ema/{name}"])
        moments = _below(tensors, "optimiser/")
        state: dict[int, dict[str, Tensor]] = {index: {} for index in range(len(names))}
        for key, value in moments.items():
            kind, name = key.split("/", 1)
            state[names.index(name)][kind] = value
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state if moments else {}, "param_groups": groups})
        self.embedding.table.copy_(tensors["puzzle_table"])
        if facts["scaler"]:
            self.scaler.load_state_dict(facts["scaler"])
        for work in self.work:
            number = self.parts.index(work.part)
            work.carry = _carry_from(_below(tensors, f"carry/{number}/"), work.local, self.accelerator.device)


class _swapped(AbstractContextManager[None]):
    def __init__(self, ema: Ema) -> None:
        self.ema = ema

    def __enter__(self) -> None:
        self.ema.swap()

    def __exit__(self, *_: object) -> None:
        self.ema.swap()


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _carry_tensors(carry: Carry) -> dict[str, Tensor]:
    named = {f"state{index}": part for index, part in enumerate(carry.state)}
    current = carry.current
    return named | {
        "steps": carry.steps,
        "halted": carry.halted,
        "inputs": current.inputs,
        "labels": current.labels,
        "puzzle_ids": current.puzzle_ids,
    }


def _within(whole: slice, start: int, stop: int) -> slice:
    """A part of a slice, counted from its start."""
    return slice(whole.start + start, whole.start + stop)


def _carry_slice(carry: Carry | None, start: int, stop: int) -> Carry | None:
    return None if carry is None else _carry_from(_carry_tensors(carry), slice(start, stop), carry.steps.device)


def _carry_from(named: dict[str, Tensor], slots: slice, device: torch.device) -> Carry | None:
    if not named:
        return None
    # A copy, since the slice would keep the whole batch's storage alive.
    local = {name: tensor[slots].to(device, copy=True) for name, tensor in named.items()}
    features = sum(name.startswith("state") for name in local)
    batch = Batch(local["inputs"], local["labels"], local["puzzle_ids"])
    return Carry(tuple(local[f"state{i}"] for i in range(features)), local["steps"], local["halted"], batch)
