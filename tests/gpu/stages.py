"""What `make gpu` finds out, stage by stage: each a function of its sizes and folders that returns its figures.

A `Setting` has the sizes for one GPU of a data centre, `tiny` those for a CPU in the tests, so that the first contact
with a GPU finds no typing errors. A stage runs in a process of its own; its figure `ok` says whether all is well.
"""

import gc
import json
import math
import multiprocessing
import os
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import PartialState
from accelerate.state import AcceleratorState
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from arc_trm import sanity, train
from arc_trm.batches import ArcSource, sources_by_side
from arc_trm.checkpoint import bit_digest
from arc_trm.config import RunConfig
from arc_trm.device import PRECISIONS, peak_memory
from arc_trm.layers import gated, rms_norm, rotary_table, swiglu_width, turned
from arc_trm.optim import AdamAtan2
from arc_trm.presets import PRESETS, override
from arc_trm.supervision import initial_carry, supervision_step, token_loss
from arc_trm.trainer import Trainer
from data_prep.files import InputError, read_json
from data_prep.store import ArcStore, open_store
from submission import solve
from tests.benchmarks.bench_members import example_flops
from tests.benchmarks.bench_training import FixedSource, rate, trainer_of
from tests.golden.models import ModelCheck, read_tensors
from tests.kills import events

Facts = dict[str, Any]
Compile = Callable[[Trainer, "Setting"], None]
# How far bf16 may be off from float32, see half_errors.
BF16_TOLERANCE = 2e-2
# How far the published code in bf16 is off in its own logits where that is as much (on a CPU, at e7b6871). These models
# of random weights enlarge every rounding, so there twice as much is tolerated: another order is another draw.
PUBLISHED_BF16 = {"trm_mlp": 0.0195, "trm_hier6": 0.0216}
GB = 1e9
GRAPHS = 16  # of a run on a few tasks, at most: every canvas size in training and voting, with and without gradient
SHIPPED = Path(solve.__file__).parent / "checkpoint"


@dataclass(frozen=True)
class Setting:
    """Sizes, and where things lie."""

    device: torch.device
    kit: Path  # what tests.gpu.kit wrote
    work: Path  # a folder for this stage's files
    published: Path | None = None  # a checkout of the published code
    arc: RunConfig = PRESETS["arc1"]
    precision: str = "bf16"
    batches: tuple[int, ...] = (96, 384, 768)
    steps: int = 10  # that are timed
    backend: str = "inductor"
    side: int = 8192  # of the matrices, and of the square of what is copied
    puzzles: int = 1_200_000
    check: sanity.Check = sanity.CHECKS[0]
    sudoku: tuple[str, ...] = ("--train.steps=300",)  # options of the training that is killed
    share: float = 0.15  # of the memory, to see that training fits itself
    checkpoint: Path = SHIPPED
    solving: tuple[str, ...] = ("--augmentations=64", "--train.steps=30", "--time-budget=10m")

    @property
    def cuda(self) -> bool:
        """Whether this is a GPU."""
        return self.device.type == "cuda"

    def config(self, batch: int, precision: str = "", **model: Any) -> RunConfig:
        """The ARC run with so many slots."""
        train = {"batch_size": batch, "precision": precision or self.precision}
        return override(self.arc, {"train": train, "model": model})

    def store(self) -> ArcStore:
        """The dataset of the kit."""
        store = open_store(self.kit / "arc1")
        assert isinstance(store, ArcStore)
        return store


def tiny(kit: Path, work: Path, export: Path) -> Setting:
    """Sizes for the tests."""
    model = {"hidden": 8, "heads": 2, "puzzle_width": 5, "expansion": 1.0, "layers": 1, "latent_steps": 1}
    arc = override(PRESETS["arc1"], {"model": model | {"deep_steps": 1, "prefix": 2}, "train": {"warmup_steps": 2}})
    words = ("--train.steps=20", "--train.batch-size=3", "--model.hidden=8", "--model.puzzle-width=8")
    check = replace(sanity.CHECKS[0], generate=("sudoku", "--side", "4", "--train-rows", "7", "--test-rows", "3"))
    return Setting(
        torch.device("cpu"),
        kit,
        work,
        None,
        arc,
        batches=(4, 16, 20),
        steps=1,
        backend="eager",
        side=64,
        puzzles=1009,
        check=replace(check, preset="sudoku4", goal=0.0),
        sudoku=words,
        checkpoint=export,
        solving=(
            "--augmentations=3",
            "--train.batch-size=4",
            "--predict-batch=2",
            "--canvas=strict",
            "--train.steps=1",
        ),
    )


# Measuring -----------------------------------------------------------------------------------------------------------


def wait_for(device: torch.device) -> None:
    """Let the device finish."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(call: Callable[[], object], device: torch.device, repeats: int = 5, inner: int = 5) -> float:
    """Median seconds of a call: `inner` calls at a time, after one time that warms up."""
    times = []
    for _ in range(repeats + 1):
        wait_for(device)
        began = time.perf_counter()
        for _ in range(inner):
            call()
        wait_for(device)
        times.append((time.perf_counter() - began) / inner)
    return statistics.median(times[1:])


def rounded(value: float, digits: int = 4) -> float:
    """To so many significant digits."""
    return float(f"{value:.{digits}g}")


@contextmanager
def fresh_memory(s: Setting) -> Iterator[None]:
    """Begin with free memory and a peak of nothing."""
    gc.collect()
    if s.cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    yield


def measured(s: Setting, trainer: Trainer, compile_it: Compile | None = None) -> Facts:
    """Examples a second of a trainer that fits its memory, and what it took."""
    trainer.fit_memory()
    if compile_it is not None:
        compile_it(trainer, s)
    figure = rate(trainer, s.steps)
    return {
        "examples_per_second": rounded(figure),
        "TFLOPs": rounded(figure * example_flops(trainer.config.model) / 1e12),
        "pieces": len(trainer.work),
        "memory_gb": rounded(peak_memory(s.device)),
    }


def compile_network(trainer: Trainer, s: Setting) -> None:
    """Compile the networks, as training and solving do."""
    trainer.compile(s.backend)


def compile_model(trainer: Trainer, s: Setting) -> None:
    """Compile the whole model, the recursion unrolled."""
    trainer.model.compile(dynamic=False, fullgraph=True, backend=s.backend)


# 1. Is it right, and how fast is the card ----------------------------------------------------------------------------


def golden(s: Setting) -> Facts:
    """The golden numbers on this device: float32 within the tolerance of a CPU, bf16 within its own."""
    folder = s.kit / "golden"
    if not (folder / "models.json").is_file():
        return {"note": "not compared: there were no golden numbers where make gpu-kit ran (--golden)"}
    count, out, halves, far = 0, [], {}, []
    for name, facts in read_json(folder / "models.json")["models"].items():
        tensors = {key: value.to(s.device) for key, value in read_tensors(folder / f"{name}.safetensors").items()}
        for line in ModelCheck.compare(name, tensors, facts):
            count += 1
            out += [] if line.ok else [str(line)]
        halves[name] = half_errors(ModelCheck(name, tensors, facts))
        far += [f"{name} {figure}" for figure, error in halves[name].items() if not error <= tolerance(name, figure)]
    return {"quantities": count, "out": out, "bf16": halves, "bf16_out": far, "ok": not out and not far}


def tolerance(name: str, figure: str) -> float:
    """How large a figure of half_errors may be for a model."""
    return max(BF16_TOLERANCE, 2 * PUBLISHED_BF16.get(name, 0.0)) if figure == "logits" else BF16_TOLERANCE


def half_errors(check: ModelCheck) -> dict[str, float]:
    """How far bf16 is off after one supervision step: logits, by norm; and in what decides, mean token loss by share,
    the probability that answers lose by being others, and halting probability.
    """
    carry = initial_carry(check.model, check.batches[0], torch.bfloat16)
    with torch.no_grad():
        found = supervision_step(
            check.model, check.model, check.embedding, carry, check.batches[0], check.rule, None
        ).output
    wanted, labels = check.tensors["eval/step1/logits"], check.batches[0].labels
    losses = [token_loss(logits, labels).sum() for logits in (found.logits, wanted)]
    odds = wanted.softmax(-1)
    answered = odds.gather(-1, found.logits.argmax(-1, keepdim=True)).squeeze(-1)
    halting = [logits.sigmoid() for logits in (found.halt_logits, check.tensors["eval/step1/q_halt_logits"])]
    errors = {
        "logits": (found.logits.float() - wanted).norm() / wanted.norm(),
        "token_loss": (losses[0] / losses[1] - 1).abs(),
        "answers": (odds.amax(-1) - answered).max(),
        "halting": (halting[0] - halting[1]).abs().max(),
    }
    return {name: rounded(float(error), 2) for name, error in errors.items()}


def synchronisation(s: Setting) -> Facts:
    """Three training steps on real examples in which anything that waits for the GPU raises an error."""
    batch = s.batches[0]
    source = ArcSource(s.store(), seed=0, batch_size=batch, device=s.device)
    trainer = trainer_of(s.config(batch), [source])
    trainer.train_step()
    if s.cuda:
        torch.cuda.set_sync_debug_mode("error")
    for _ in range(3):
        trainer.train_step()
    if s.cuda:
        torch.cuda.set_sync_debug_mode("default")
    return {"steps": 3, "loss": rounded(trainer.read_metrics()["loss"])}


def ceilings(s: Setting) -> Facts:
    """What the card can do: a copy, counting bytes read and written, and a product of two bf16 matrices."""
    values = torch.randn(s.side, s.side * 16, device=s.device).bfloat16()
    other = torch.empty_like(values)
    copy = seconds_of(lambda: other.copy_(values), s.device)
    square = values[:, : s.side].contiguous()
    product = seconds_of(lambda: square @ square, s.device)
    name = torch.cuda.get_device_name() if s.cuda else "CPU"
    return {
        "device": name,
        "torch": torch.__version__,
        "copy_TB_per_s": rounded(2 * values.nbytes / copy / 1e12),
        "bf16_TFLOPs": rounded(2 * s.side**3 / product / 1e12),
    }


# 2. arc1 -------------------------------------------------------------------------------------------------------------


def eager(s: Setting) -> Facts:
    """`arc1` as it is, at several batches."""
    facts = {}
    for batch in s.batches:
        with fresh_memory(s):
            facts[str(batch)] = measured(s, trainer_of(s.config(batch)))
    return facts


def profiled(s: Setting) -> Facts:
    """Two steps under the profiler: how long the GPU is idle, and which kernels take most time."""
    trainer = trainer_of(s.config(s.batches[-2]))
    for _ in range(2):
        trainer.train_step()
    trainer.read_metrics()
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if s.cuda else [ProfilerActivity.CPU]
    with profile(activities=kinds) as record:
        for _ in range(2):
            trainer.train_step()
        trainer.read_metrics()
    wanted = torch.autograd.DeviceType.CUDA if s.cuda else torch.autograd.DeviceType.CPU
    # On a GPU's time line lie names of passages too, such as that of an optimiser's step, which span idle time.
    events = [event for event in record.events() if event.device_type == wanted and not event.is_user_annotation]
    spans = sorted((event.time_range.start, event.time_range.end) for event in events)
    busy, end = 0.0, -math.inf
    for start, stop in spans:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    whole = end - spans[0][0]
    by_name: dict[str, float] = {}
    for event in events:
        by_name[event.name[:60]] = by_name.get(event.name[:60], 0.0) + event.time_range.end - event.time_range.start
    longest = sorted(by_name.items(), key=lambda item: -item[1])[:12]
    shares = {name: rounded(spent / whole, 2) for name, spent in longest}
    return {"idle": rounded(1 - busy / whole, 2), "launches_a_step": len(events) // 2, "shares": shares}


def compiled(s: Setting, compile_it: Compile) -> Facts:
    """`arc1` compiled in one of two ways; not ok unless something was compiled."""
    trainer = trainer_of(s.config(s.batches[-2]))
    counters.clear()
    began = time.perf_counter()
    facts = measured(s, trainer, compile_it)
    graphs = counters["stats"]["unique_graphs"]
    return facts | {"graphs": graphs, "seconds_in_all": rounded(time.perf_counter() - began, 2), "ok": graphs > 0}


# 3. Canvas sizes, and the published code -----------------------------------------------------------------------------


def canvas(s: Setting, compile_it: Compile | None) -> Facts:
    """Real examples on the full canvas and on the sizes that their tasks need."""
    store, batch = s.store(), s.batches[-2]
    settings = {"seed": 0, "batch_size": batch, "device": s.device}
    figures = {}
    for name, sources in (
        ("full", [ArcSource(store, **settings)]),
        ("sizes", sources_by_side(store, **settings, multiple=4)),
    ):
        with fresh_memory(s):
            figures[name] = measured(s, trainer_of(s.config(batch), sources), compile_it)["examples_per_second"]
    return figures | {"ratio": rounded(figures["sizes"] / figures["full"], 3)}


def published(s: Setting) -> Facts:
    """Steps of the published code beside ours, the same batch and optimiser, in one process."""
    if s.published is None:
        return {"note": "no checkout was named (--published)"}
    batch, config = s.batches[0], s.config(s.batches[0])
    ours = measured(s, trainer_of(config))["examples_per_second"]
    step = published_step(s, config.model, batch)
    theirs = batch / seconds_of(step, s.device, inner=s.steps)
    return {"ours": ours, "published": rounded(theirs), "ratio": rounded(ours / theirs, 3)}


def published_step(s: Setting, model: Any, batch: int) -> Callable[[], None]:
    """A function that takes one training step of the published code, as it is in the folder."""
    sys.path.insert(0, str(s.published))
    from models.losses import ACTLossHead
    from models.recursive_reasoning.trm import (
        TinyRecursiveReasoningModel_ACTV1 as Published,
    )

    settings = {
        "batch_size": batch, "seq_len": model.seq_len, "vocab_size": model.vocab_size, "num_puzzle_identifiers": 1000,
        "puzzle_emb_ndim": model.puzzle_width, "puzzle_emb_len": model.prefix, "H_cycles": model.deep_steps,
        "L_cycles": model.latent_steps, "H_layers": 0, "L_layers": model.layers, "hidden_size": model.hidden,
        "expansion": model.expansion, "num_heads": model.heads, "pos_encodings": "rope", "halt_max_steps": 16,
        "halt_exploration_prob": 0.1, "no_ACT_continue": True, "mlp_t": False,
        "forward_dtype": str(PRECISIONS[s.precision]).removeprefix("torch."),
    }  # fmt: skip
    offered = FixedSource(s.config(batch), s.device).batch
    given = {"inputs": offered.inputs, "labels": offered.labels, "puzzle_identifiers": offered.puzzle_ids.int()}
    with torch.device(s.device):
        head = ACTLossHead(Published(settings), "stablemax_cross_entropy")
        carry = head.initial_carry(given)
    optimiser = AdamAtan2(head.parameters(), 1e-4, 0.1)

    def step() -> None:
        nonlocal carry
        carry, loss, *_ = head(return_keys=[], carry=carry, batch=given)
        (loss / batch).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


# 4. Learning, kills, memory ------------------------------------------------------------------------------------------


def learns(s: Setting) -> Facts:
    """A small model from scratch to its score."""
    extra = ["--train.steps=2"] if not s.cuda else []
    began = time.perf_counter()
    said, status = sanity.perform(s.check, s.work, extra, math.inf)
    return {"said": said, "ok": status == 0, "seconds": rounded(time.perf_counter() - began, 3)}


def killed(s: Setting) -> Facts:
    """A training run that is asked to stop after 7 steps, goes on, is killed 5 later, and goes on to its end."""
    codes = [alone(s, one_life, number, steps).exitcode for number, steps in ((signal.SIGTERM, 7), (signal.SIGKILL, 5))]
    codes.append(alone(s, one_life, 0, 0).exitcode)
    lines = (s.work / "run" / "metrics.jsonl").read_text().splitlines()
    ended, planned = json.loads(lines[-1])["step"], read_json(s.work / "run" / "config.json")["train"]["steps"]
    return {"exit": codes, "ended_at": ended, "ok": codes == [0, -signal.SIGKILL, 0] and ended == planned}


def one_life(s: Setting, number: int, steps: int) -> None:
    """Train from where the run stands, and send oneself a signal after so many steps."""
    words = ["sudoku4", "--data", str(s.kit / "sudoku4"), "--out", str(s.work / "run"), "--log.track", "none"]

    def signalled(step: int) -> None:
        if step == steps:
            os.kill(os.getpid(), number)

    with events([(Trainer, "train_step")], after=signalled):
        train.main([*words, "--resume", *s.sudoku])


def started(s: Setting, function: Callable[..., None], *arguments: Any) -> BaseProcess:
    """The function in a process of its own; CUDA works in none that was forked."""
    process = multiprocessing.get_context("spawn" if s.cuda else "fork").Process(target=function, args=(s, *arguments))
    process.start()
    return process


def alone(s: Setting, function: Callable[..., None], *arguments: Any) -> BaseProcess:
    """The same, when it has ended."""
    process = started(s, function, *arguments)
    process.join()
    return process


class ManyPuzzles(FixedSource):
    """As many embedding rows as a published run has."""

    def __init__(self, config: RunConfig, device: torch.device, puzzles: int) -> None:
        super().__init__(config, device)
        self.num_puzzles = puzzles
        self.batch_size = config.train.batch_size


def checkpoint(s: Setting) -> Facts:
    """How long training stands still for a checkpoint with all puzzles of a published run."""
    config = s.config(s.batches[-1])
    trainer = trainer_of(config, [ManyPuzzles(config, s.device, s.puzzles)])
    trainer.fit_memory()
    trainer.train_step()
    wait_for(s.device)
    began = time.perf_counter()
    trainer.save(s.work / "run", {"data_digest": ""})
    stall = time.perf_counter() - began
    size = sum(path.stat().st_size for path in (s.work / "run").rglob("*") if path.is_file())
    return {"seconds": rounded(stall, 3), "gb": rounded(size / GB, 3), "share_of_20_minutes": rounded(stall / 1200, 2)}


def fp16(s: Setting) -> Facts:
    """Fifty steps with loss scaling, as older GPUs need it."""
    trainer = trainer_of(s.config(s.batches[0], "fp16"))
    trainer.fit_memory()
    losses = []
    for step in range(50 if s.cuda else 2):
        trainer.train_step()
        if step % 10 == 0:
            losses.append(rounded(trainer.read_metrics()["loss"]))
    return {"losses": losses, "scale": trainer.scaler.get_scale(), "ok": all(map(math.isfinite, losses))}


def memory(s: Setting) -> Facts:
    """A small share of the memory: training makes its pieces of work smaller until they fit."""
    if s.cuda:
        torch.cuda.set_per_process_memory_fraction(s.share)
    trainer = trainer_of(s.config(s.batches[-1]))
    trainer.fit_memory()
    for _ in range(2):
        trainer.train_step()
    loss = trainer.read_metrics()["loss"]
    return {"pieces": len(trainer.work), "memory_gb": rounded(peak_memory(s.device)), "ok": math.isfinite(loss)}


# 5. Several processes, solving ---------------------------------------------------------------------------------------


def replicas(s: Setting) -> Facts:
    """Two processes on one device, by gloo: the bits of weights and embedding rows after five steps are the same."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [started(s, replica, rank, port) for rank in range(2)]
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise InputError(f"two processes: found exit statuses {[process.exitcode for process in processes]}")
    digests = [int((s.work / f"digest{rank}").read_text()) for rank in range(2)]
    return {"digests": digests, "ok": digests[0] == digests[1]}


def replica(s: Setting, rank: int, port: int) -> None:
    """One of the two."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    os.environ |= where | {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    AcceleratorState._reset_state(reset_partial_state=True)  # where the tests had one process
    PartialState(cpu=not s.cuda, backend="gloo")
    trainer = trainer_of(s.config(s.batches[0]))
    assert trainer.accelerator.num_processes == 2
    for _ in range(5 if s.cuda else 2):
        trainer.train_step()
    trainer.check_replicas()
    digest = bit_digest([*trainer.model.parameters(), trainer.embedding.table])
    (s.work / f"digest{rank}").write_text(str(digest.item()))
    trainer.accelerator.end_training()


def solving(s: Setting) -> Facts:
    """`solve` on a few tasks, compiled and not; compiled, how many graphs it takes."""
    facts = {}
    for name, options in (("eager", []), ("compiled", ["--train.compile"])):
        counters.clear()
        began = time.perf_counter()
        files = {"--challenges": s.kit / "tasks" / "challenges.json", "--checkpoint": s.checkpoint}
        files |= {"--out": s.work / f"{name}.json"}
        solve.main([*(str(word) for pair in files.items() for word in pair), *s.solving, *options], watched=False)
        facts[f"{name}_seconds"] = rounded(time.perf_counter() - began, 3)
        facts[f"{name}_graphs"] = counters["stats"]["unique_graphs"]
    return facts | {"ok": 0 < facts["compiled_graphs"] <= GRAPHS}


# 6. What comes next --------------------------------------------------------------------------------------------------


def attention(s: Setting) -> Facts:
    """PyTorch's attention kernels at the model's shape, forward and backward, in TFLOP/s."""
    model, batch = s.arc.model, s.batches[0]
    length, size = model.prefix + model.seq_len, model.hidden // model.heads
    # As the model lays them out: positions before heads.
    q, k, v = torch.randn(3, batch, length, model.heads, size, device=s.device).bfloat16().transpose(2, 3)
    facts: Facts = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        name = backend.name.lower().removesuffix("_attention")
        try:
            with sdpa_kernel(backend):
                forward = seconds_of(lambda: F.scaled_dot_product_attention(q, k, v), s.device)
                inputs = [part.detach().requires_grad_() for part in (q, k, v)]
                both = seconds_of(lambda: attend_and_back(inputs, v), s.device)  # noqa: B023
        except RuntimeError as error:
            facts[name] = str(error).splitlines()[0][:60]
            continue
        flops = 4 * q.numel() * length
        figures = {"forward": flops / forward, "backward": 2.5 * flops / max(both - forward, 1e-9)}
        facts[name] = {which: rounded(figure / 1e12, 3) for which, figure in figures.items()}
    return facts


def attend_and_back(inputs: Sequence[Tensor], gradient: Tensor) -> None:
    """Attention and its gradients, from a gradient in memory: some kernels take no expanded one."""
    F.scaled_dot_product_attention(*inputs).backward(gradient)
    for part in inputs:
        part.grad = None


def products(s: Setting) -> Facts:
    """The model's own matrix products in TFLOP/s; those of the MLP over tokens also with lengths of a multiple of 8,
    and with positions first, where rows of any length are aligned (docs/gpu.md).
    """
    model, batch = s.arc.model, s.batches[-2]
    rows, d, width = batch * (model.prefix + model.seq_len), model.hidden, swiglu_width(model.hidden, model.expansion)
    sudoku = PRESETS["sudoku"].model
    length = sudoku.prefix + sudoku.seq_len  # 97: rows of 194 bytes
    padded, mixed = -(-length // 8) * 8, 2 * swiglu_width(length, sudoku.expansion)
    shapes = {
        "qkv": (rows, d, 3 * d), "out": (rows, d, d), "gate_up": (rows, d, 2 * width), "down": (rows, width, d),
        f"tokens_{length}": (batch * d, length, mixed), f"tokens_{padded}": (batch * d, padded, mixed),
    }  # fmt: skip
    facts = {}
    for name, (m, k, n) in shapes.items():
        left, right = (torch.randn(*shape, device=s.device).bfloat16() for shape in ((m, k), (n, k)))
        pairs = {name: (left, right)}
        if k == length:
            pairs[f"{name}_first"] = left.T.contiguous().T, right.T.contiguous().T
        for which, pair in pairs.items():
            seconds = seconds_of(lambda: F.linear(*pair), s.device)  # noqa: B023
            facts[which] = rounded(2 * m * k * n / seconds / 1e12, 3)
    return facts


def passes(s: Setting) -> Facts:
    """What stands between products: bytes a second as it is uncompiled, and milliseconds against compiled."""
    model, batch = s.arc.model, s.batches[0]
    length, size = model.prefix + model.seq_len, model.hidden // model.heads
    qkv = torch.randn(batch, length, 3, model.heads, size, device=s.device).bfloat16()
    rotary = rotary_table(torch.arange(length, device=s.device), size).bfloat16()
    gate_up = torch.randn(batch, length, 2 * swiglu_width(model.hidden, model.expansion), device=s.device).bfloat16()
    facts: Facts = {}
    # Bytes that one pass would move: queries and keys, gate and up and their product, a state.
    for name, call, moved in (
        ("rotary", lambda: turned(qkv, rotary), qkv.nbytes * 4 // 3),
        ("swiglu", lambda: gated(gate_up), gate_up.nbytes * 3 // 2),
        ("norm", lambda: rms_norm(qkv.flatten(2)), qkv.nbytes * 2),
    ):
        plain = seconds_of(call, s.device)
        faster = torch.compile(call, backend=s.backend, dynamic=False)
        figures = {"eager_ms": plain * 1e3, "eager_TB_per_s": moved / plain / 1e12}
        if s.cuda:
            figures["compiled_ms"] = seconds_of(faster, s.device) * 1e3
        facts[name] = {which: rounded(figure, 3) for which, figure in figures.items()}
    return facts
