"""The trainer: the training loop, one optimiser step, metrics, checkpoints, and the state that they save.

Training calls `train`; adaptation calls `train_step` from a schedule of its own. One process and many give the same
result: offered rows, exploration and refills depend only on (seed, step, global slot), and every process holds an equal
slice of the slots. Gradients are averaged over the processes. The weights are shared by all recursions, so their
gradients are final only when the backward pass ends: they are averaged then, in one piece.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import Tensor

from arc_trm.batches import Part, upload
from arc_trm.checkpoint import (
    Export,
    RowNames,
    Tensors,
    below,
    bit_digest,
    carry_over,
    load_weights,
    with_rows_of_others,
    write_checkpoint,
)
from arc_trm.config import ModelConfig, RunConfig, model_differences
from arc_trm.device import (
    COMPILER_ERRORS,
    compile_error,
    compile_networks,
    compiled_graphs,
    free_memory,
    out_of_memory,
    peak_memory,
    resolve_precision,
    return_freed_memory,
    rows_at_once,
    run_eagerly,
)
from arc_trm.metrics import MetricLog
from arc_trm.model import RecursiveModel
from arc_trm.optim import OPTIMISERS, Ema, PuzzleEmbedding, ema_decay, learning_rate
from arc_trm.predict import Predictor
from arc_trm.sampler import exploration
from arc_trm.signals import stop_on_signal
from arc_trm.supervision import Carry, carry_from, carry_tensors, initial_carry, supervision_step
from data_prep.files import InputError
from data_prep.progress import Progress

# Upper limit of the warm-up as a share of all steps, for short runs.
WARMUP_SHARE = 0.1
SLOW_STEP = 0.5  # seconds; a step that takes longer is not slowed noticeably by waiting for the device
# Relative tolerance of compiled loss and gradient norm against the eager ones; HALF_AGREEMENT for bf16 and fp16.
AGREEMENT = {torch.float32: 1e-4, torch.float64: 1e-4}
HALF_AGREEMENT = 0.02
SPARE = 512 * 2**20  # bytes of a GPU's memory that fit_memory leaves free
# Metrics that are means over all rows; the others are means over the sequences that ended.
PER_ROW = ("loss", "token_loss", "halting_loss", "continue_loss", "embedding_norm")
# Names of the tensors of a training state.
MODEL, EMA, OPTIMISER, CARRY, ROWS = "model/", "ema/", "optimiser/", "carry/", "puzzles/"
TABLE, SUMS = "puzzle_table", "metric_sums"


# Scores of a trainer by name; none if `should_stop` ended the evaluation early.
Evaluate = Callable[["Trainer"], dict[str, float]]


class NonFiniteLoss(RuntimeError):
    """The loss or the weights became NaN or infinite; the message says at which step and learning rate."""


class UnequalReplicas(RuntimeError):
    """The weights of some processes differ from those of the first; the message names them and the step."""


@dataclass
class Work:
    """A micro-batch: the slots of one part that this process computes at once, and their carry."""

    part: Part
    local: slice  # of the part's slots
    first: int  # index of the part's first slot in the whole batch
    carry: Carry | None = None

    @property
    def draws(self) -> slice:
        """The same slots as indices into the whole batch, for which exploration is drawn."""
        return slice(self.first + self.local.start, self.first + self.local.stop)

    def halves(self) -> "list[Work]":
        """Split into two micro-batches without a carry; a single slot stays whole."""
        start, stop = self.local.start, self.local.stop
        cuts = sorted({start, (start + stop) // 2, stop})
        return [Work(self.part, slice(*cut), self.first) for cut in pairwise(cuts)]


def share_out(parts: Sequence[Part], accelerator: Accelerator, model: ModelConfig) -> list[Work]:
    """Cut this process's slice of every part into micro-batches of at most `rows_at_once` slots.

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
    """Row ids, row gradients and metrics of one micro-batch."""

    puzzle_ids: Tensor  # int64 [b]
    gradient: Tensor  # [b, w] of the embedding rows
    sums: dict[str, Tensor]  # metrics summed over the b rows, float64 []
    rows: dict[str, Tensor]  # metrics of every row, [b]


class Trainer:
    """Model, puzzle embedding, optimiser, moving average and carry of one process, and the loop that trains them."""

    def __init__(
        self,
        config: RunConfig,
        parts: Sequence[Part],
        accelerator: Accelerator,
        planned_steps: int,
        model: RecursiveModel | None = None,
        names: RowNames | None = None,
    ) -> None:
        """Start at step 0; a `model` with float64 weights makes everything float64, for comparisons.

        `names` says what the embedding rows stand for, so that checkpoints and exports are matched by name.
        """
        self.config, self.parts, self.accelerator = config, list(parts), accelerator
        self.planned_steps, self.names = planned_steps, names
        self.step = 0
        self.trunk_factor = 1.0  # multiplies the trunk's learning rate: 0 trains only the puzzle embedding
        self.saved_step: int | None = None  # the step of the newest checkpoint
        self.should_stop: Callable[[], bool] = lambda: False  # tells an evaluation to end early; collective
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
        self._sums: dict[str, Tensor] = {}  # metrics of this process since they were last read
        self.metric_steps = 0  # steps since then, those before a resumption included
        self.timed_steps, self._began = 0, 0.0  # steps since then in this process; when the first began

    @property
    def batch_size(self) -> int:
        """Batch slots over all parts and processes."""
        return sum(part.slots for part in self.parts)

    def predictor(self) -> Predictor:
        """Return a predictor that uses the current weights (inside `averaged`, their moving average)."""
        return Predictor(self.model, self.embedding, self.config.halting, self.dtype)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the model hold the moving average of its weights, if one is kept, within this context."""
        if self.ema is None:
            yield
            return
        self.ema.swap()
        try:
            yield
        finally:
            self.ema.swap()

    def rates(self) -> tuple[float, float]:
        """Return the learning rates of trunk and puzzle embedding at the current step (1, 2, …)."""
        train = self.config.train
        warmup = min(train.warmup_steps, int(WARMUP_SHARE * self.planned_steps))
        schedule = (warmup, self.planned_steps, train.lr_min_ratio)
        trunk_rate = self.trunk_factor * learning_rate(self.step, train.lr, *schedule)
        return trunk_rate, learning_rate(self.step, train.puzzle_lr, *schedule)

    # --- training ------------------------------------------------------------------------------------------------

    def train(
        self,
        out: Path,
        facts: dict[str, Any],
        evaluate: Evaluate | None,
        log: MetricLog,
        deadline: float = math.inf,
        now: Callable[[], float] = time.monotonic,
    ) -> str:
        """Train until the planned steps, `deadline` (seconds of the clock `now`) or a signal; return why it ended.

        Writes checkpoints, which hold `facts`, into `out`. Evaluates as the settings say and at the end; resuming
        repeats an evaluation that a kill or a signal interrupted.
        """
        settings, quiet = self.config.log, not self.accelerator.is_main_process
        every, saved, asked, signalled = 1, now(), now(), False
        with stop_on_signal() as stop, Progress("training", self.planned_steps, self.step, quiet=quiet) as bar:
            self.should_stop = lambda: self.agreed(stop() or now() >= deadline)
            self._evaluate_if_due(out, facts, evaluate, log)
            while self.step < self.planned_steps:
                self.train_step()
                bar.update(1, self._report_if_due(log))
                if self._evaluate_if_due(out, facts, evaluate, log):
                    saved = now()
                if self.step % every == 0:
                    due, slow = now() >= saved + 60 * settings.checkpoint_minutes, now() - asked > SLOW_STEP * every
                    signalled, over, due, slow = self.each_agreed(stop(), now() >= deadline, due, slow)
                    every, asked = settings.every if self.asking_waits and not slow else 1, now()
                    if due:
                        self.save(out, facts)
                        saved = now()
                    if signalled or over:
                        break
            self.save(out, facts)
        if signalled:
            return "stopped by a signal"
        return "finished" if self.step >= self.planned_steps else "out of time"

    def _report_if_due(self, log: MetricLog) -> str | None:
        """Read and log the metrics every `log.every` steps; return the few figures that fit beside a progress bar."""
        if self.step < self.planned_steps and self.step % self.config.log.every:
            return None
        metrics = self.read_metrics()
        log.add({f"train/{name}": value for name, value in metrics.items()}, self.step)
        exact = f"exact {metrics['exact_accuracy']:.1%}, " if "exact_accuracy" in metrics else ""
        return f"loss {metrics['loss']:.3f}, {exact}{metrics['examples_per_second']:.1f} examples/s"

    def _evaluate_if_due(self, out: Path, facts: dict[str, Any], evaluate: Evaluate | None, log: MetricLog) -> bool:
        """Save and evaluate if the settings ask for it at this step; tell if they do.

        Evaluates only if the log lacks the scores of this step.
        """
        every = self.config.log.evaluate_every
        planned = self.step == self.planned_steps or (every and self.step and self.step % every == 0)
        if evaluate is None or not planned:
            return False
        self.save(out, facts)
        if self.agreed(self.accelerator.is_main_process and log.scores.get("step") != self.step):
            log.add(evaluate(self), self.step)
            return_freed_memory()
        return True

    def save(self, out: Path, facts: dict[str, Any]) -> None:
        """Write a checkpoint with `facts` into the run folder `out` unless this step has one; collective.

        Raises NonFiniteLoss or UnequalReplicas instead of saving a broken state, InputError if it cannot be written.
        """
        if self.saved_step == self.step:
            return
        self.check_finite()
        self.check_replicas()
        tensors, state = self.state_dict()
        keep = self.config.log.keep_checkpoints
        state = {"config": asdict(self.config), **facts, **state}
        self.in_main_process(lambda: write_checkpoint(out, self.step, tensors, state, keep))
        self.saved_step = self.step
        tensors.clear()  # what was gathered and copied for the file
        return_freed_memory()

    # --- one step ------------------------------------------------------------------------------------------------

    def train_step(self) -> list[Supervised]:
        """Take one optimiser step: a supervision step in every slot, then one update of all weights and rows.

        Returns what this process found in each of its micro-batches.
        """
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
        self._average_gradients()
        self._update(torch.cat([r.puzzle_ids for r in results]), torch.cat([r.gradient for r in results]))
        self.metric_steps, self.timed_steps = self.metric_steps + 1, self.timed_steps + 1
        return results

    def _supervise(self, work: Work, minimum: Tensor | None = None) -> Supervised:
        """Run forward and backward passes of one micro-batch; advance its carry and accumulate the gradients.

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
        # In float64 the order of summation hardly matters, and sums that a checkpoint keeps go on exactly.
        sums = dict(zip(sums, torch.stack(list(sums.values())).double().unbind(), strict=True))
        work.carry = result.carry
        return Supervised(work.carry.current.puzzle_ids, rows.grad, sums, result.rows)

    def _average_gradients(self) -> None:
        """Average the gradients of the weights over the processes, in one flat buffer."""
        if self.accelerator.num_processes == 1:
            return
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = self.accelerator.reduce(torch.cat([gradient.flatten() for gradient in gradients]), "mean")
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def _update(self, puzzle_ids: Tensor, gradients: Tensor) -> None:
        """Update weights, moving average and the embedding rows of the whole batch.

        `puzzle_ids` int64 [b] and `gradients` [b, w] are those of this process.
        """
        trunk_rate, puzzle_rate = self.rates()
        for group in self.optimiser.param_groups:
            group["lr"] = trunk_rate
        puzzle_ids, gradients = self.gathered(puzzle_ids), self.gathered(gradients)
        rate: float | Tensor = puzzle_rate
        if self.scaler.is_enabled():  # gradients that overflow fp16 update neither weights nor rows
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

    # --- before the first step -----------------------------------------------------------------------------------

    def fit_memory(self) -> None:
        """Halve the micro-batches until a step fits into the memory of every process; collective.

        Call it before the first step and before compiling; the training state stays as it is. Only micro-batches of
        the canvas size that did not fit are halved. Raises OutOfMemoryError if a single slot does not fit.
        """
        device = self.accelerator.device
        # Stand-ins for the optimiser's two moments, which the first step allocates.
        moments = [torch.empty_like(p) for p in self.model.parameters() for _ in range(2)]
        # Libraries of a GPU allocate memory of their own later, such as those through which processes communicate.
        spare = torch.empty(SPARE if device.type == "cuda" else 0, dtype=torch.uint8, device=device)
        while any(too_large := self._too_large()):
            pieces = [work.halves() if too_large[self.parts.index(work.part)] else [work] for work in self.work]
            halves = [piece for group in pieces for piece in group]
            if len(halves) == len(self.work):
                raise torch.OutOfMemoryError(f"a single example does not fit into {device}'s memory")
            self.work = halves
            if self.accelerator.is_main_process:
                print(f"note: out of memory, going on with {len(halves)} micro-batches a step", file=sys.stderr)
        del moments, spare

    def _too_large(self) -> tuple[bool, ...]:
        """Tell for each part if one of its micro-batches ran out of memory in any process."""
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
        # The traceback of the exception held the tensors of the micro-batch; it is gone here.
        free_memory(self.accelerator.device)
        return self.each_agreed(*(part is failed for part in self.parts))

    @contextmanager
    def _rehearsal(self, work: Sequence[Work]) -> Iterator[None]:
        """Restore the carries and drop the gradients of `work` at the end of this context."""
        carries = [piece.carry for piece in work]
        try:
            yield
        finally:
            for piece, carry in zip(work, carries, strict=True):
                piece.carry = carry
            self.optimiser.zero_grad(set_to_none=True)

    def rehearse(self, work: Sequence[Work]) -> tuple[float, float]:
        """Return loss and gradient norm of `work` after forward and backward passes that change no state."""
        with self._rehearsal(work):
            losses = torch.stack([self._supervise(piece).sums["loss"] for piece in work])
            norms = [p.grad.float().norm() for p in self.model.parameters() if p.grad is not None]
            return losses.sum().item(), torch.stack(norms).norm().item()

    def compile(self, backend: str = "inductor", more: Sequence[Callable[[], object]] = ()) -> bool:
        """Compile the networks for all micro-batches and for the calls in `more`; tell if it worked; collective.

        All processes run eagerly, and a line on stderr says why, if compiling fails in any of them or if loss or
        gradient norm of the first micro-batch differ from the eager ones by more than AGREEMENT. Changes no state.
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

    # --- agreement of processes ----------------------------------------------------------------------------------

    @property
    def asking_waits(self) -> bool:
        """True if asking the other processes makes the device wait.

        They are then asked only when metrics are read, which waits anyway, or at every step if steps are slow: a
        launcher that was told to end does not wait long.
        """
        return self.accelerator.num_processes > 1 and self.accelerator.device.type != "cpu"

    def gathered(self, local: Tensor) -> Tensor:
        """Concatenate the rows of all processes, by rank; collective."""
        return self.accelerator.gather(local) if self.accelerator.num_processes > 1 else local

    def agreed(self, mine: bool) -> bool:
        """Tell every process if `mine` is true in any; collective."""
        return self.each_agreed(mine)[0]

    def each_agreed(self, *mine: bool) -> tuple[bool, ...]:
        """Tell every process which of these are true in any; collective."""
        if self.accelerator.num_processes == 1:
            return mine
        wishes = torch.tensor([float(wish) for wish in mine], device=self.accelerator.device)
        return tuple(count > 0 for count in self.accelerator.reduce(wishes, "sum").tolist())

    def in_main_process(self, write: Callable[[], object]) -> None:
        """Let the main process write while the others wait; if it fails, InputError or SystemExit ends all of them."""
        failure: InputError | None = None
        if self.accelerator.is_main_process:
            try:
                write()
            except InputError as error:
                failure = error
        if self.agreed(failure is not None):
            raise failure or SystemExit(2)

    # --- metrics ---------------------------------------------------------------------------------------------------

    def read_metrics(self) -> dict[str, float]:
        """Return the means since the last call over all processes; waits for the device, as no other part of a step.

        Accuracies and supervision steps are means over the sequences that ended, and missing if none did. Raises
        NonFiniteLoss if the loss is NaN or infinite.
        """
        names, sums = self.metric_sums()
        if not names:
            return {}
        values = dict(zip(names, sums.tolist(), strict=True))
        # Wall-clock time, because steps also wait for the other processes.
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
        """Return names and float64 sums [n] over all processes since metrics were read; collective."""
        names = sorted(self._sums)
        if not names:
            return [], torch.zeros(0)
        return names, self.accelerator.reduce(torch.stack([self._sums[name] for name in names]), "sum")

    def check_finite(self) -> None:
        """Raise NonFiniteLoss in all processes unless losses and weights are finite; waits for the device."""
        tensors = [*self.model.parameters(), self.embedding.table, *self._sums.values()]
        # A sum is finite only if all its terms are, and takes no memory of their size.
        broken = torch.stack([~tensor.detach().sum().isfinite() for tensor in tensors]).sum().double()
        if self.accelerator.reduce(broken, "sum").item():
            rate = self.rates()[0]
            raise NonFiniteLoss(f"step {self.step}: loss or weights are not finite at learning rate {rate:.3g}")

    def check_replicas(self) -> None:
        """Raise UnequalReplicas in all processes unless all hold bitwise equal weights and tables."""
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
        """Return the whole training state as tensors (not copied: the next step changes them) and JSON facts.

        Collective. It does not depend on the number of processes or micro-batches: the carry is in global slot order.
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

    def load_state_dict(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> int | None:
        """Restore what `state_dict` returned; the number of processes and micro-batches may differ.

        Embedding rows are matched by name if both sides have names; returns how many are known, else None. On a CPU,
        `auto` precision becomes that of the state, so that a run goes on in the same arithmetic. All slots start anew
        if canvas sizes or their slots differ. Raises InputError for a model of other sizes.
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
        owners = facts["puzzle_groups"]
        names = None if owners is None else RowNames.from_tensors(below(tensors, ROWS), owners)
        known = self._load_rows(names, tensors[TABLE], tensors[TABLE].mean(0))
        self.scaler.load_state_dict(facts["scaler"] or self.scaler.state_dict())
        self.step, self.metric_steps, self.timed_steps = facts["step"], facts["metric_steps"], 0
        # One process goes on with the sums of all, so that they count once.
        sums = tensors[SUMS].to(self.accelerator.device) * self.accelerator.is_main_process
        self._sums = dict(zip(facts["metrics"], sums, strict=True))
        for work in self.work:
            named = below(tensors, f"{CARRY}{self.parts.index(work.part)}/") if facts["parts"] == self._layout() else {}
            work.carry = carry_from(named, work.local, self.accelerator.device, self.dtype) if named else None
        return known

    def load_export(self, exported: Export) -> int:
        """Take the weights of an export, and its embedding rows by name; return how many rows are known.

        The other rows start from its mean embedding. A convolution that it lacks starts from zeros, which changes no
        answer. Raises InputError if sizes differ.
        """
        asked = self.config.model
        grown = replace(exported.model, convolution=exported.model.convolution or asked.convolution)
        if changes := model_differences(grown, asked):
            raise InputError(f"the export's model differs: {'; '.join(changes)}")
        weights = dict(exported.weights)
        if grown != exported.model:
            own = self.model.state_dict()
            weights |= {name: torch.zeros_like(own[name]) for name in own if ".mix_neighbours." in name}
        load_weights(self.model, weights)
        if self.ema is not None:
            self.ema.update(0.0)  # the averages are the weights
        mean = exported.puzzle_mean.to(self.embedding.table)
        self.embedding.table = mean.repeat(len(self.embedding.table), 1)
        if exported.puzzle_table is None or not exported.puzzle_names or self.names is None:
            return 0
        return self._load_rows(RowNames.of_owners(exported.puzzle_names), exported.puzzle_table, mean) or 0

    def _load_rows(self, names: RowNames | None, table: Tensor, fresh: Tensor) -> int | None:
        """Take rows of `table` [n, w] by name, or `fresh` [w] for an unknown name; return how many are known.

        Rows of tasks that this run lacks follow its own, so that its export still knows them. Without names on both
        sides the whole table is taken as it is.
        """
        rows, known = table, None
        if names is not None and self.names is not None:
            rows, known = carry_over(names, table, self.names, fresh)
            if self.config.model.embedding_rows == "task":
                self.names, rows = with_rows_of_others(self.names, rows, names, table)
        self.embedding.table = rows.to(self.embedding.table, copy=True)
        return known

    def forget_momentum(self) -> None:
        """Drop optimiser moments, carries and sums of metrics; keep weights and step."""
        self.optimiser.state.clear()
        self._sums, self.metric_steps, self.timed_steps = {}, 0, 0
        for work in self.work:
            work.carry = None

    def _layout(self) -> list[list[int]]:
        """Return slots and tokens of every part; a carry fits only the layout it comes from."""
        return [[part.slots, part.source.seq_len] for part in self.parts]

    def _carries(self) -> Tensors:
        """Return the carry of every part by global slot, over all processes; empty before the first step."""
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
    """Build the model that a run with this seed starts from; the global random state does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return RecursiveModel(config.model)
