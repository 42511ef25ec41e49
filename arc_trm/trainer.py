"""The one training loop: supervision steps over batch slots, until enough steps, a deadline, or a request to stop.

`arc_trm/train.py` drives it for training and `submission.solve` for adaptation. What comes out is the same for one
process and for many: the rows offered, the exploration and the refills depend on (seed, step, global slot) alone, a
process is a slice of the slots, and the losses are divided by the size of the whole batch.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from arc_trm.batches import upload
from arc_trm.config import RunConfig
from arc_trm.memory import peak_memory
from arc_trm.model import RecursiveModel
from arc_trm.naming import PuzzleNaming
from arc_trm.optim import OPTIMISERS, Ema, PuzzleEmbedding, ema_decay, learning_rate
from arc_trm.predict import Predictor
from arc_trm.slots import Part as Part
from arc_trm.slots import Work as Work
from arc_trm.slots import exploration, share_out
from arc_trm.supervision import Carry, initial_carry, supervision_step
from arc_trm.training_state import load_state, state_of

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Metrics that are means over all rows; the others are means over the sequences that ended.
PER_ROW = ("loss", "token_loss", "halting_loss", "continue_loss", "embedding_norm")


class NonFiniteLoss(RuntimeError):
    """The loss or the weights became NaN or infinite; the message says at which step and learning rate."""


class Supervised(NamedTuple):
    """What a piece of work leads to, as long as the step is not yet done."""

    carry: Carry
    puzzle_ids: Tensor  # [b]
    gradient: Tensor  # [b, w] of the embedding rows
    sums: dict[str, Tensor]  # metrics summed over the b rows


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
        """Start at step 0; a `model` with float64 weights makes everything float64, for comparisons."""
        self.config, self.parts, self.accelerator = config, list(parts), accelerator
        self.planned_steps = planned_steps
        self.step = 0
        self.seconds = 0.0
        self.trunk_factor = 1.0  # multiplies the trunk's learning rate: 0 moves the puzzle embedding alone
        self.naming: PuzzleNaming | None = None  # which puzzle each embedding row belongs to, for checkpoints
        self.row_names: tuple[str, ...] = ()  # what names the embedding rows in an export; none: it keeps their mean
        self.saved_step: int | None = None  # whose state the newest checkpoint holds
        self.should_stop: Callable[[], bool] = lambda: False  # whether an evaluation is to end early; collective
        device = accelerator.device
        self.model = (model or initial_model(config)).to(device)
        weights = self.model.token_embedding.dtype
        self.embedding = PuzzleEmbedding(parts[0].source.num_puzzles, config.model.puzzle_width, device)
        self.embedding.table = self.embedding.table.to(weights)
        precision = resolve_precision(config.train.precision, device)
        self.dtype = weights if weights == torch.float64 else precision
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype == torch.float16)
        # The model as it runs: compiled perhaps; and, for training on several processes, data-parallel around that.
        self.running = compile_model(self.model) if compile_model else self.model
        self.wrapped = data_parallel(self.running, accelerator)
        self.optimiser = OPTIMISERS[config.train.optimiser](self.model, config.train)
        self.ema = Ema(self.model.parameters()) if config.train.ema else None
        self.work = share_out(self.parts, accelerator, config.train.micro_batches)
        self._sums: dict[str, Tensor] = {}  # of this process, since metrics were read
        self.metric_steps = 0  # steps since metrics were read

    @property
    def batch_size(self) -> int:
        """Batch slots over all parts and processes."""
        return sum(part.slots for part in self.parts)

    def predictor(self) -> Predictor:
        """What answers questions with the weights as they are now (within `averaged`, their moving average)."""
        early_exit = self.config.log.early_exit
        return Predictor(self.running, self.model, self.embedding, self.config.halting, self.dtype, early_exit)

    def averaged(self) -> AbstractContextManager[None]:
        """Within this context the model holds the moving average of its weights (where one is kept)."""
        return _swapped(self.ema) if self.ema is not None else nullcontext()

    def gathered(self, local: Tensor) -> Tensor:
        """The rows of all processes, by rank; collective."""
        return self.accelerator.gather(local) if self.accelerator.num_processes > 1 else local

    def rates(self) -> tuple[float, float]:
        """Learning rates of trunk and puzzle embedding at the current step (1, 2, …)."""
        train = self.config.train
        warmup = min(train.warmup_steps, int(train.warmup_share * self.planned_steps))
        schedule = (warmup, self.planned_steps, train.lr_min_ratio)
        trunk_rate = self.trunk_factor * learning_rate(self.step, train.lr, *schedule)
        return trunk_rate, learning_rate(self.step, train.puzzle_lr, *schedule)

    # --- the step ------------------------------------------------------------------------------------------------

    def train_step(self) -> None:
        """One optimiser step: a supervision step of every slot, gradients summed over parts and processes.

        Where memory runs out in a single process, the step is done again in pieces half as large, and so are those
        that follow; among several processes the others would wait for ever, so there it raises OutOfMemoryError.
        """
        started = time.monotonic()
        rule = self.config.halting
        draws = exploration(self.config.seed, self.step, self.batch_size, rule.exploration, rule.max_supervision_steps)
        minimum = upload(draws, self.accelerator.device)
        results = self._supervise_within_memory(minimum)
        self.step += 1
        for work, result in zip(self.work, results, strict=True):
            work.carry = result.carry
            for name, value in result.sums.items():
                self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._update(torch.cat([r.puzzle_ids for r in results]), torch.cat([r.gradient for r in results]))
        self.metric_steps += 1
        self.seconds += time.monotonic() - started

    def _supervise_within_memory(self, minimum: Tensor) -> list[Supervised]:
        while True:
            try:
                return [self._supervise(work, minimum[work.draws]) for work in self.work]
            except torch.OutOfMemoryError:
                if self.accelerator.num_processes > 1 or all(work.slots == 1 for work in self.work):
                    raise
            # Here the exception is gone, and with it the frames that held on to tensors. No carry has moved yet.
            self.optimiser.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            self.work = [half for work in self.work for half in work.halves()]
            print(f"note: out of memory, going on with {len(self.work)} pieces of work a step", file=sys.stderr)

    def _supervise(self, work: Work, minimum: Tensor) -> Supervised:
        """Forward and backward of some slots; gradients of the weights add up in place."""
        offer = work.part.source.offer(self.step, work.local)
        carry = initial_carry(self.model, offer, self.dtype) if work.carry is None else work.carry
        # Gradients are averaged over the processes once a step, in the last backward pass.
        last = work is self.work[-1]
        with nullcontext() if last else self.accelerator.no_sync(self.wrapped):
            result = supervision_step(
                self.wrapped, self.model, self.embedding, carry, offer, self.config.halting, minimum
            )
            # Data parallelism averages gradients over the processes: times their number makes it the sum.
            loss = result.loss * (self.accelerator.num_processes / self.batch_size)
            self.scaler.scale(loss).backward()
        rows = result.puzzle_rows
        assert rows.grad is not None
        sums = {"loss": result.loss.detach(), **result.metrics, "embedding_norm": rows.detach().norm(dim=1).sum()}
        # In float64 the order of the sum hardly matters, and a sum that a checkpoint keeps goes on as it was.
        sums = {name: value.double() for name, value in sums.items()}
        return Supervised(result.carry, result.carry.current.puzzle_ids, rows.grad, sums)

    def _update(self, puzzle_ids: Tensor, gradients: Tensor) -> None:
        """Move weights, moving average and the embedding rows of the whole batch."""
        trunk_rate, puzzle_rate = self.rates()
        for group in self.optimiser.param_groups:
            group["lr"] = trunk_rate
        puzzle_ids, gradients = self.gathered(puzzle_ids), self.gathered(gradients)
        rate: float | Tensor = puzzle_rate
        if self.scaler.is_enabled():  # a step whose gradients overflowed fp16 moves neither weights nor rows
            finite = self._all_finite(gradients)
            gradients = torch.where(finite, gradients, 0)
            rate = torch.where(finite, puzzle_rate, 0.0)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad(set_to_none=True)
        self.embedding.update(puzzle_ids, gradients, rate, self.config.train.puzzle_weight_decay)
        if self.ema is not None:
            train = self.config.train
            self.ema.update(ema_decay(self.step, train.ema) if train.ema_warmup else train.ema)

    def _all_finite(self, row_gradients: Tensor) -> Tensor:
        """Whether the gradients of all weights and rows are finite, bool [] on the device."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return torch.stack([gradient.isfinite().all() for gradient in (*gradients, row_gradients)]).all()

    # --- what is seen --------------------------------------------------------------------------------------------

    def read_metrics(self) -> dict[str, float]:
        """Means since the last call, over all processes; the only place where a step waits for the device.

        Accuracies and supervision steps are of the sequences that ended, and missing where none did. Raises
        NonFiniteLoss where the loss is NaN or infinite.
        """
        started = time.monotonic()
        names, sums = self.metric_sums()
        if not names:
            return {}
        values = dict(zip(names, sums.tolist(), strict=True))
        self.seconds += time.monotonic() - started
        ended, rows = values.pop("count"), self.metric_steps * self.batch_size
        metrics = {name: values[name] / rows for name in PER_ROW if name in values}
        if ended:
            metrics |= {name: value / ended for name, value in values.items() if name not in PER_ROW}
        trunk_rate, puzzle_rate = self.rates()
        metrics |= {"lr": trunk_rate, "puzzle_lr": puzzle_rate, "examples_per_second": rows / max(self.seconds, 1e-9)}
        metrics["peak_memory_gb"] = peak_memory(self.accelerator.device)
        self._sums, self.metric_steps, self.seconds = {}, 0, 0.0
        if not math.isfinite(metrics["loss"]):
            raise NonFiniteLoss(f"step {self.step}: the loss is {metrics['loss']} at learning rate {trunk_rate:.3g}")
        return metrics

    def metric_sums(self) -> tuple[list[str], Tensor]:
        """Names and float64 sums over all processes since metrics were read; collective."""
        names = sorted(self._sums)
        if not names:
            return [], torch.zeros(0)
        return names, self.accelerator.reduce(torch.stack([self._sums[name] for name in names]), "sum")

    def load_metric_sums(self, names: Sequence[str], sums: Tensor, steps: int) -> None:
        """Go on with the sums of `steps` steps from a checkpoint; one process takes them, so that they count once."""
        share = sums.to(self.accelerator.device) * self.accelerator.is_main_process
        self._sums, self.metric_steps, self.seconds = dict(zip(names, share, strict=True)), steps, 0.0

    def check_finite(self) -> None:
        """Raise NonFiniteLoss, in all processes alike, unless losses and weights are finite; waits for the device."""
        tensors = [*self.model.parameters(), self.embedding.table, *(self._sums[name] for name in self._sums)]
        # A sum is finite only if its terms are, and needs no memory of their size.
        broken = sum((~tensor.detach().sum().isfinite()).double() for tensor in tensors)
        assert isinstance(broken, Tensor)
        if self.accelerator.reduce(broken, "sum").item():
            rate = self.rates()[0]
            raise NonFiniteLoss(f"step {self.step}: loss or weights are not finite at learning rate {rate:.3g}")

    # --- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The whole training state as named tensors and JSON facts; collective, the carry is in global slot order."""
        return state_of(self)

    def load_state_dict(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; the number of processes and micro-batches may differ."""
        load_state(self, tensors, facts)


def data_parallel(model: nn.Module, accelerator: Accelerator) -> nn.Module:
    """`model` so wrapped that backward passes average gradients over the processes; itself in a single process."""
    if accelerator.num_processes == 1:
        return model
    wrapped: nn.parallel.DistributedDataParallel = accelerator.prepare_model(model)
    # The model's buffers are constants; sending them again at every step would only cost time.
    wrapped.broadcast_buffers = False
    return wrapped


def initial_model(config: RunConfig) -> RecursiveModel:
    """The model that a run with this seed starts from; the global random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return RecursiveModel(config.model)


class _swapped(AbstractContextManager[None]):
    def __init__(self, ema: Ema) -> None:
        self.ema = ema

    def __enter__(self) -> None:
        self.ema.swap()

    def __exit__(self, *_: object) -> None:
        self.ema.swap()
