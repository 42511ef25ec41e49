"""The one training loop: supervision steps over batch slots, until enough steps, a deadline, or a request to stop.

`arc_trm/train.py` drives it for training and `submission.solve` for adaptation. What comes out is the same for one
process and for many: the rows offered, the exploration and the refills depend on (seed, step, global slot) alone, a
process is a slice of the slots, all of the same size, whose gradients are averaged. The weights are shared over all
recursions, so their gradients are final only when the backward pass ends: they are averaged then, in one piece.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import Tensor

from arc_trm.batches import Part, upload
from arc_trm.checkpoint import RowNames, Tensors, below, bit_digest, load_weights
from arc_trm.config import ModelConfig, RunConfig
from arc_trm.device import (
    COMPILER_ERRORS,
    compile_error,
    compile_networks,
    compiled_graphs,
    free_memory,
    out_of_memory,
    peak_memory,
    resolve_precision,
    rows_at_once,
    run_eagerly,
)
from arc_trm.model import RecursiveModel
from arc_trm.optim import OPTIMISERS, Ema, PuzzleEmbedding, ema_decay, learning_rate
from arc_trm.predict import Predictor
from arc_trm.sampler import exploration
from arc_trm.supervision import Carry, carry_from, carry_tensors, initial_carry, supervision_step
from data_prep.files import InputError

# The warm-up takes at most this share of all steps, for short runs.
WARMUP_SHARE = 0.1
# Compiled loss and gradient norm may differ from the eager ones by this share; in bf16 and fp16 by HALF_AGREEMENT.
AGREEMENT = {torch.float32: 1e-4, torch.float64: 1e-4}
HALF_AGREEMENT = 0.02
SPARE = 512 * 2**20  # bytes of a GPU's memory that fitting leaves alone
# Metrics that are means over all rows; the others are means over the sequences that ended.
PER_ROW = ("loss", "token_loss", "halting_loss", "continue_loss", "embedding_norm")
# Names of the tensors of a training state.
MODEL, EMA, OPTIMISER, CARRY, ROWS = "model/", "ema/", "optimiser/", "carry/", "puzzles/"
TABLE, SUMS = "puzzle_table", "metric_sums"


class NonFiniteLoss(RuntimeError):
    """The loss or the weights became NaN or infinite; the message says at which step and learning rate."""


class UnequalReplicas(RuntimeError):
    """Processes hold other weights than the first; the message says which, and at which step that was seen."""


@dataclass
class Work:
    """The slots of one part that this process works through at once, and what they carry."""

    part: Part
    local: slice  # of the part's slots
    first: int  # which of the whole batch's slots is the part's first
    carry: Carry | None = None

    @property
    def draws(self) -> slice:
        """The same slots among those of the whole batch, which say what exploration draws for them."""
        return slice(self.first + self.local.start, self.first + self.local.stop)

    def halves(self) -> "list[Work]":
        """The same slots as two pieces of work that carry nothing yet; a single slot stays as it is."""
        start, stop = self.local.start, self.local.stop
        cuts = sorted({start, (start + stop) // 2, stop})
        return [Work(self.part, slice(*cut), self.first) for cut in pairwise(cuts)]


def share_out(parts: Sequence[Part], accelerator: Accelerator, model: ModelConfig) -> list[Work]:
    """Cut this process's slice of every part into pieces of at most `rows_at_once` slots.

    Raises InputError if the slots cannot be shared evenly.
    """
    processes, rank = accelerator.num_processes, accelerator.process_index
    work: list[Work] = []
    first = 0
    for part in parts:
        size, rest = divmod(part.slots, processes)
        if rest:
            raise InputError(f"train.batch_size: {part.slots} slots cannot be shared evenly by {processes} processes")
        pieces = [Work(part, slice(rank * size, (rank + 1) * size), first)]
        while size and -(-size // len(pieces)) > rows_at_once(model, part.source.seq_len):
            pieces = [half for piece in pieces for half in piece.halves()]
        work += pieces
        first += part.slots
    return work


class Supervised(NamedTuple):
    """What a piece of work leads to beside its carry, as long as the step is not yet done."""

    puzzle_ids: Tensor  # [b]
    gradient: Tensor  # [b, w] of the embedding rows
    sums: dict[str, Tensor]  # metrics summed over the b rows
    rows: dict[str, Tensor]  # the same of every row [b]


class Trainer:
    """Model, embedding table, optimiser, moving average and carry of one process, and the step that moves them."""

    def __init__(
        self,
        config: RunConfig,
        parts: Sequence[Part],
        accelerator: Accelerator,
        planned_steps: int,
        model: RecursiveModel | None = None,
    ) -> None:
        """Start at step 0; a `model` with float64 weights makes everything float64, for comparisons."""
        self.config, self.parts, self.accelerator = config, list(parts), accelerator
        self.planned_steps = planned_steps
        self.step = 0
        self.trunk_factor = 1.0  # multiplies the trunk's learning rate: 0 moves the puzzle embedding alone
        self.names: RowNames | None = None  # what the embedding rows stand for, so that other runs find them again
        self.saved_step: int | None = None  # whose state the newest checkpoint holds
        self.should_stop: Callable[[], bool] = lambda: False  # whether an evaluation is to end early; collective
        self.watch: Callable[[Sequence[Supervised]], object] = lambda results: None  # hears of every step
        device = accelerator.device
        self.model = (model or initial_model(config)).to(device)
        weights = self.model.token_embedding.dtype
        self.embedding = PuzzleEmbedding(parts[0].source.num_puzzles, config.model.puzzle_width, device)
        self.embedding.table = self.embedding.table.to(weights)
        double = weights == torch.float64
        self.dtype = weights if double else resolve_precision(config.train.precision, config.model, accelerator)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype == torch.float16)
        if accelerator.num_processes > 1:
            broadcast(list(self.model.state_dict().values()))
        self.optimiser = OPTIMISERS[config.train.optimiser](self.model, config.train)
        self.ema = Ema(self.model.parameters()) if config.train.ema else None
        self.work = share_out(self.parts, accelerator, config.model)
        self._sums: dict[str, Tensor] = {}  # of this process, since metrics were read
        self.metric_steps = 0  # steps since metrics were read
        self.timed_steps, self._began = 0, 0.0  # those of them that this process did, and when the first began

    @property
    def batch_size(self) -> int:
        """Batch slots over all parts and processes."""
        return sum(part.slots for part in self.parts)

    def predictor(self) -> Predictor:
        """What answers questions with the weights as they are now (within `averaged`, their moving average)."""
        return Predictor(self.model, self.model, self.embedding, self.config.halting, self.dtype)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within this context the model holds the moving average of its weights (where one is kept)."""
        if self.ema is None:
            yield
            return
        self.ema.swap()
        try:
            yield
        finally:
            self.ema.swap()

    def gathered(self, local: Tensor) -> Tensor:
        """The rows of all processes, by rank; collective."""
        return self.accelerator.gather(local) if self.accelerator.num_processes > 1 else local

    def agreed(self, mine: bool) -> bool:
        """Whether any process says so; all of them learn it in the same step."""
        return self.each_agreed(mine)[0]

    def each_agreed(self, *mine: bool) -> tuple[bool, ...]:
        """Which of these any process says."""
        if self.accelerator.num_processes == 1:
            return mine
        wishes = torch.tensor([float(wish) for wish in mine], device=self.accelerator.device)
        return tuple(count > 0 for count in self.accelerator.reduce(wishes, "sum").tolist())

    def rates(self) -> tuple[float, float]:
        """Learning rates of trunk and puzzle embedding at the current step (1, 2, …)."""
        train = self.config.train
        warmup = min(train.warmup_steps, int(WARMUP_SHARE * self.planned_steps))
        schedule = (warmup, self.planned_steps, train.lr_min_ratio)
        trunk_rate = self.trunk_factor * learning_rate(self.step, train.lr, *schedule)
        return trunk_rate, learning_rate(self.step, train.puzzle_lr, *schedule)

    # --- the step ------------------------------------------------------------------------------------------------

    def fit_memory(self) -> None:
        """Halve the pieces of work that are too large for the memory of any process.

        Call before the first step, and before compiling; moves nothing; collective. Only pieces of the canvas size that
        did not fit are halved. Raises OutOfMemoryError if a single slot is too much.
        """
        device = self.accelerator.device
        # The optimiser makes its two moments in the first step; here something of their size stands for them.
        moments = [torch.empty_like(p) for p in self.model.parameters() for _ in range(2)]
        # And what libraries of a GPU take later for themselves, such as those that several processes talk through.
        spare = torch.empty(SPARE if device.type == "cuda" else 0, dtype=torch.uint8, device=device)
        while any(too_large := self._too_large()):
            pieces = [work.halves() if too_large[self.parts.index(work.part)] else [work] for work in self.work]
            halves = [piece for group in pieces for piece in group]
            if len(halves) == len(self.work):
                raise torch.OutOfMemoryError(f"a single example does not fit into {device}'s memory")
            self.work = halves
            if self.accelerator.is_main_process:
                print(f"note: out of memory, going on with {len(halves)} pieces of work a step", file=sys.stderr)
        del moments, spare

    def _too_large(self) -> tuple[bool, ...]:
        """For each part: a piece of it ran out of memory, in any process."""
        failed: Part | None = None
        piece = self.work[0]
        try:
            with self._rehearsal(self.work):
                for piece in [*self.work, *self.work]:  # the second time beside the carries of the first
                    self._supervise(piece).sums["loss"].item()
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            failed = piece.part
        # Here the exception is gone, whose traceback holds the tensors of the piece.
        free_memory(self.accelerator.device)
        return self.each_agreed(*(part is failed for part in self.parts))

    @contextmanager
    def _rehearsal(self, work: Sequence[Work]) -> Iterator[None]:
        """Within this context, forward and backward passes of `work` leave no carry and no gradient behind."""
        carries = [piece.carry for piece in work]
        try:
            yield
        finally:
            for piece, carry in zip(work, carries, strict=True):
                piece.carry = carry
            self.optimiser.zero_grad(set_to_none=True)

    def rehearse(self, work: Sequence[Work]) -> tuple[float, float]:
        """Loss and gradient norm of the forward and backward passes of `work`, which move nothing."""
        with self._rehearsal(work):
            losses = torch.stack([self._supervise(piece).sums["loss"] for piece in work])
            norms = [p.grad.float().norm() for p in self.model.parameters() if p.grad is not None]
            return losses.sum().item(), torch.stack(norms).norm().item()

    def compile(self, backend: str = "inductor", more: Sequence[Callable[[], object]] = ()) -> bool:
        """Compile the networks for all pieces of work, and for what calls of `more` run; collective.

        Loss and gradient norm of the first piece must agree with the eager ones within AGREEMENT. Where they do not, or
        where compiling fails in any process, all run eager; a line on stderr says why. Moves nothing.
        """
        began, graphs, failure = time.monotonic(), compiled_graphs(), ""
        eager = self.rehearse(self.work[:1])
        try:
            compile_networks(self.model, backend)
            compiled, tolerance = self.rehearse(self.work[:1]), AGREEMENT.get(self.dtype, HALF_AGREEMENT)
            if not all(math.isclose(*pair, rel_tol=tolerance) for pair in zip(compiled, eager, strict=True)):
                failure = "loss {:.6g}, gradient norm {:.6g}".format(*compiled)
                failure += ", eager {:.6g} and {:.6g}".format(*eager)
            else:
                for piece in self.work[1:]:
                    self.rehearse([piece])
                for call in more:
                    call()
        except COMPILER_ERRORS as error:
            failure = compile_error(error)
        if self.agreed(failure != ""):
            run_eagerly(self.model)
            if failure or self.accelerator.is_main_process:
                reason = failure or "it failed in another process"
                print(f"note: running without torch.compile: {reason}", file=sys.stderr)
            return False
        if self.accelerator.is_main_process:
            seconds = time.monotonic() - began
            print(f"note: compiled {compiled_graphs() - graphs} graphs in {seconds:.0f} s", file=sys.stderr)
        return True

    def train_step(self) -> None:
        """One optimiser step: a supervision step of every slot, gradients summed over parts and processes."""
        if self.timed_steps == 0:
            self._began = time.monotonic()
        rule = self.config.halting
        draws = exploration(self.config.seed, self.step, self.batch_size, rule.exploration, rule.max_supervision_steps)
        minimum = upload(draws, self.accelerator.device)
        results = [self._supervise(work, minimum[work.draws]) for work in self.work]
        self.step += 1
        for result in results:
            for name, value in result.sums.items():
                self._sums[name] = self._sums[name] + value if name in self._sums else value
        self.watch(results)
        self._average_gradients()
        self._update(torch.cat([r.puzzle_ids for r in results]), torch.cat([r.gradient for r in results]))
        self.metric_steps, self.timed_steps = self.metric_steps + 1, self.timed_steps + 1

    def _supervise(self, work: Work, minimum: Tensor | None = None) -> Supervised:
        """Forward and backward of some slots, which go on; gradients of the weights add up in place.

        `minimum` int32 [b] is the least number of supervision steps before halting counts; None: zeros.
        """
        offer = work.part.source.offer(self.step, work.local)
        carry = initial_carry(self.model, offer, self.dtype) if work.carry is None else work.carry
        minimum = torch.zeros_like(carry.steps) if minimum is None else minimum
        result = supervision_step(self.model, self.model, self.embedding, carry, offer, self.config.halting, minimum)
        loss = result.loss * (self.accelerator.num_processes / self.batch_size)  # mean over this process's slots
        self.scaler.scale(loss).backward()
        rows = result.puzzle_rows
        assert rows.grad is not None
        sums = {"loss": result.loss.detach(), **result.metrics, "embedding_norm": rows.detach().norm(dim=1).sum()}
        # In float64 the order of the sum hardly matters, and a sum that a checkpoint keeps goes on as it was.
        sums = dict(zip(sums, torch.stack(list(sums.values())).double().unbind(), strict=True))
        work.carry = result.carry
        return Supervised(work.carry.current.puzzle_ids, rows.grad, sums, result.rows)

    def _average_gradients(self) -> None:
        """Average the weights' gradients over the processes, in one flat buffer."""
        if self.accelerator.num_processes == 1:
            return
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = self.accelerator.reduce(torch.cat([gradient.flatten() for gradient in gradients]), "mean")
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def _update(self, puzzle_ids: Tensor, gradients: Tensor) -> None:
        """Move weights, moving average and the embedding rows of the whole batch."""
        trunk_rate, puzzle_rate = self.rates()
        for group in self.optimiser.param_groups:
            group["lr"] = trunk_rate
        puzzle_ids, gradients = self.gathered(puzzle_ids), self.gathered(gradients)
        rate: float | Tensor = puzzle_rate
        if self.scaler.is_enabled():  # a step whose gradients overflowed fp16 moves neither weights nor rows
            weights = [p.grad for p in self.model.parameters() if p.grad is not None]
            finite = torch.stack([gradient.isfinite().all() for gradient in (*weights, gradients)]).all()
            gradients = torch.where(finite, gradients, 0)
            rate = torch.where(finite, puzzle_rate, 0.0)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad(set_to_none=True)
        self.embedding.update(puzzle_ids, gradients, rate, self.config.train.puzzle_weight_decay)
        if self.ema is not None:
            self.ema.update(ema_decay(self.step, self.config.train.ema))

    # --- what is seen --------------------------------------------------------------------------------------------

    def read_metrics(self) -> dict[str, float]:
        """Means since the last call, over all processes; the only place where a step waits for the device.

        Accuracies and supervision steps are of the sequences that ended, and missing where none did. Raises
        NonFiniteLoss where the loss is NaN or infinite.
        """
        names, sums = self.metric_sums()
        if not names:
            return {}
        values = dict(zip(names, sums.tolist(), strict=True))
        # By the wall: with several processes, steps also wait for the others.
        seconds = time.monotonic() - self._began
        ended, rows = values.pop("count"), self.metric_steps * self.batch_size
        metrics = {name: values[name] / rows for name in PER_ROW if name in values}
        if ended:
            metrics |= {name: value / ended for name, value in values.items() if name not in PER_ROW}
        trunk_rate, puzzle_rate = self.rates()
        speed = self.timed_steps * self.batch_size / max(seconds, 1e-9)
        metrics |= {"lr": trunk_rate, "puzzle_lr": puzzle_rate, "examples_per_second": speed}
        metrics["peak_memory_gb"] = peak_memory(self.accelerator.device)
        self._sums, self.metric_steps, self.timed_steps = {}, 0, 0
        if not math.isfinite(metrics["loss"]):
            raise NonFiniteLoss(f"step {self.step}: the loss is {metrics['loss']} at learning rate {trunk_rate:.3g}")
        return metrics

    def metric_sums(self) -> tuple[list[str], Tensor]:
        """Names and float64 sums over all processes since metrics were read; collective."""
        names = sorted(self._sums)
        if not names:
            return [], torch.zeros(0)
        return names, self.accelerator.reduce(torch.stack([self._sums[name] for name in names]), "sum")

    def check_finite(self) -> None:
        """Raise NonFiniteLoss, in all processes alike, unless losses and weights are finite; waits for the device."""
        tensors = [*self.model.parameters(), self.embedding.table, *self._sums.values()]
        # A sum is finite only if its terms are, and needs no memory of their size.
        broken = torch.stack([~tensor.detach().sum().isfinite() for tensor in tensors]).sum().double()
        if self.accelerator.reduce(broken, "sum").item():
            rate = self.rates()[0]
            raise NonFiniteLoss(f"step {self.step}: loss or weights are not finite at learning rate {rate:.3g}")

    def check_replicas(self) -> None:
        """Raise UnequalReplicas, in all processes alike, unless all hold the same weights and table, bit by bit."""
        if self.accelerator.num_processes == 1:
            return
        digests = self.gathered(bit_digest([*self.model.parameters(), self.embedding.table])[None]).tolist()
        others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if others:
            raise UnequalReplicas(
                f"step {self.step}: weights or puzzle embeddings of process {', '.join(map(str, others))} "
                "are not those of process 0"
            )

    # --- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> tuple[Tensors, dict[str, Any]]:
        """The whole training state as tensors (not copied: they move with the next step) and JSON facts; collective.

        Nothing in it knows how many processes or pieces of work there are: the carry is in global slot order.
        """
        tensors: Tensors = {MODEL + name: tensor for name, tensor in self.model.state_dict().items()}
        parameters = dict(self.model.named_parameters())
        if self.ema is not None:
            tensors |= {EMA + name: average for name, average in zip(parameters, self.ema.averages, strict=True)}
        for name, parameter in parameters.items():
            for key, value in self.optimiser.state.get(parameter, {}).items():
                tensors[f"{OPTIMISER}{key}/{name}"] = torch.as_tensor(value)
        tensors |= {TABLE: self.embedding.table, **self._carries()}
        if self.names is not None:
            tensors |= {ROWS + name: tensor for name, tensor in self.names.tensors().items()}
        metrics, tensors[SUMS] = self.metric_sums()
        return tensors, {
            "step": self.step,
            "planned_steps": self.planned_steps,
            "parts": self._layout(),
            "puzzle_groups": None if self.names is None else list(self.names.owners),
            "metrics": metrics,
            "metric_steps": self.metric_steps,
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; processes, pieces of work and precision may differ.

        A precision that was measured stays that of the state, so that a run goes on in the same arithmetic. Where
        canvas sizes or their slots differ (or the tensors hold no carry), all slots start anew.
        Raises InputError for a model of other sizes.
        """
        measured = self.config.train.precision == "auto" and self.accelerator.device.type == "cpu"
        carried = tensors.get(f"{CARRY}0/state0")
        if measured and carried is not None and carried.dtype in (torch.float32, torch.bfloat16):
            self.dtype = carried.dtype
        load_weights(self.model, below(tensors, MODEL))
        parameters = dict(self.model.named_parameters())
        if self.ema is not None:  # a checkpoint that kept no average starts it at the weights
            averages = below(tensors, EMA)
            for (name, parameter), average in zip(parameters.items(), self.ema.averages, strict=True):
                average.copy_(averages.get(name, parameter.detach()))
        self.optimiser.state.clear()
        for key, value in below(tensors, OPTIMISER).items():
            kind, name = key.split("/", 1)
            # A copy: what was read is a map of its file, and would keep a deleted checkpoint on the disk.
            copy = value.clone() if kind == "step" else value.to(parameters[name], copy=True)
            self.optimiser.state[parameters[name]][kind] = copy
        self.embedding.table = tensors[TABLE].to(self.embedding.table, copy=True)
        self.scaler.load_state_dict(facts["scaler"] or self.scaler.state_dict())
        self.step, self.metric_steps, self.timed_steps = facts["step"], facts["metric_steps"], 0
        # One process goes on with the sums of all, so that they count once.
        sums = tensors[SUMS].to(self.accelerator.device) * self.accelerator.is_main_process
        self._sums = dict(zip(facts["metrics"], sums, strict=True))
        for work in self.work:
            named = below(tensors, f"{CARRY}{self.parts.index(work.part)}/") if facts["parts"] == self._layout() else {}
            work.carry = carry_from(named, work.local, self.accelerator.device, self.dtype) if named else None

    def forget_momentum(self) -> None:
        """Go on as a trainer that has just got its weights: without moments, carries and sums of metrics."""
        self.optimiser.state.clear()
        self._sums, self.metric_steps, self.timed_steps = {}, 0, 0
        for work in self.work:
            work.carry = None

    def _layout(self) -> list[list[int]]:
        """Slots and tokens of every part: a carry fits only the layout it comes from."""
        return [[part.slots, part.source.seq_len] for part in self.parts]

    def _carries(self) -> Tensors:
        """The carry of every part over all processes, by global slot; none before the first step."""
        gathered: Tensors = {}
        for number, part in enumerate(self.parts):
            carries = [work.carry for work in self.work if work.part is part]
            columns = [carry_tensors(carry) for carry in carries if carry is not None]
            if len(columns) < len(carries):
                return {}
            for name in columns[0]:
                gathered[f"{CARRY}{number}/{name}"] = self.gathered(torch.cat([column[name] for column in columns]))
        return gathered


def initial_model(config: RunConfig) -> RecursiveModel:
    """The model that a run with this seed starts from; the global random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return RecursiveModel(config.model)
