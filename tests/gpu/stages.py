"""The stages of `make gpu`: each is a function of a `Setting` that returns its figures.

The default `Setting` has the sizes for a data-centre GPU; `tiny` has those for a CPU, on which the tests rehearse every
stage. A stage runs in its own process. Its figure `ok`, if it has one, decides whether it passed.
"""

import json
import math
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from accelerate.state import AcceleratorState
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from arc_trm import sanity, train
from arc_trm.batches import ArcSource, sources_by_side
from arc_trm.checkpoint import Export, bit_digest, write_export
from arc_trm.config import RunConfig
from arc_trm.device import PRECISIONS, compiled_graphs, first_line, free_memory, peak_memory, run_eagerly
from arc_trm.layers import attend, swiglu_width
from arc_trm.model import RecursiveModel
from arc_trm.optim import AdamAtan2
from arc_trm.presets import PRESETS, override
from arc_trm.supervision import initial_carry, supervision_step, token_loss
from arc_trm.trainer import Trainer, Work
from data_prep.files import read_json
from data_prep.store import ArcStore, open_store
from submission import solve
from submission.budget import Speed
from tests.benchmarks.bench_members import example_flops
from tests.benchmarks.bench_training import FixedSource, rate, trainer_of
from tests.golden.models import ModelCheck, read_tensors
from tests.kills import events

Facts = dict[str, Any]
Compile = Callable[[Trainer], object]
DRIVER = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
# Float32 on a GPU may be off by this many tolerances of the golden check, which were measured on a CPU.
GOLDEN_FACTOR = 10
# How far bf16 may be off from float32, see half_errors.
BF16_TOLERANCE = 2e-2
# How far the published code in bf16 is off in its own logits where that is as much (on a CPU, at e7b6871). These models
# of random weights enlarge every rounding, so there twice as much is tolerated: another order is another draw.
PUBLISHED_BF16 = {"trm_mlp": 0.0195, "trm_hier6": 0.0216}
# The least cosine between a gradient in bf16 and the float32 one of the same batch.
LEAST_COSINE = 0.9


@dataclass(frozen=True)
class Setting:
    """Sizes, and where things lie."""

    device: torch.device
    kit: Path  # what tests.gpu.kit wrote
    work: Path  # a folder for this stage's files
    published: Path | None = None  # a checkout of the published code
    gpus: int = field(default_factory=torch.cuda.device_count)
    arc: RunConfig = PRESETS["arc1"]
    precision: str = "bf16"
    training: tuple[str, ...] = ("--train.steps=20",)
    solving: tuple[str, ...] = ("--augmentations=64", "--train.steps=30", "--time-budget=10m")
    late: float = 60.0  # seconds that a rank compiles longer than the one before it
    batches: tuple[int, ...] = (96, 384, 768)
    steps: int = 10  # that are timed
    backend: str = "inductor"
    side: int = 8192  # of the matrices, and of the square of what is copied
    check: sanity.Check = sanity.CHECKS[0]
    sudoku: tuple[str, ...] = ("--train.steps=300",)  # options of the training that is killed
    share: float = 0.15  # of the memory, to see that training fits itself

    @property
    def cuda(self) -> bool:
        """The device is a GPU."""
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


def tiny(kit: Path, work: Path, gpus: int = 1) -> Setting:
    """Sizes for the tests."""
    model = {"hidden": 8, "heads": 2, "puzzle_width": 5, "expansion": 1.0, "layers": 1, "latent_steps": 1}
    arc = override(PRESETS["arc1"], {"model": model | {"deep_steps": 1, "prefix": 2}, "train": {"warmup_steps": 2}})
    words = [f"--model.{name.replace('_', '-')}={value}" for name, value in (model | {"deep_steps": 1}).items()]
    check = replace(sanity.CHECKS[0], generate=("sudoku", "--side", "4", "--train-rows", "7", "--test-rows", "3"))
    return Setting(
        torch.device("cpu"),
        kit,
        work,
        gpus=gpus,
        arc=arc,
        training=(*words, "--train.steps=2", "--train.batch-size=16", "--log.every=1"),
        solving=(
            "--augmentations=3",
            "--train.batch-size=4",
            "--predict-batch=2",
            "--canvas=strict",
            "--train.steps=1",
        ),
        late=0.0,
        batches=(2, 4, 16),
        steps=1,
        backend="eager",
        side=64,
        check=replace(check, preset="sudoku4", goal=0.0),
        sudoku=("--train.steps=20", "--train.batch-size=3", "--model.hidden=8", "--model.puzzle-width=8"),
    )


# Measuring -----------------------------------------------------------------------------------------------------------


def driver() -> str:
    """The version of the GPU's driver; a word that says why there is none."""
    try:
        said = subprocess.run(DRIVER, capture_output=True, text=True, check=True).stdout
        return said.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "not found"


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
    free_memory(s.device)
    if s.cuda:
        torch.cuda.reset_peak_memory_stats()
    yield


def measured(s: Setting, trainer: Trainer, compile_it: Compile | None = None) -> Facts:
    """Examples a second of a trainer that fits its memory, and what it took."""
    trainer.fit_memory()
    if compile_it is not None:
        compile_it(trainer)
    figure = rate(trainer, s.steps)
    return {
        "examples_per_second": rounded(figure),
        "TFLOPs": rounded(figure * example_flops(trainer.config.model) / 1e12),
        "pieces": len(trainer.work),
        "memory_gb": rounded(peak_memory(s.device)),
    }


@dataclass
class Compiling:
    """The one compilation of a run: its trainer, and what was to be compiled and was."""

    trainer: Trainer
    wanted: int  # pieces of work, and batches to answer
    succeeded: bool
    graphs: int
    seconds: float

    def facts(self) -> Facts:
        """Figures; not ok unless there are graphs."""
        return {
            "compiled": f"{self.wanted * self.succeeded} of {self.wanted}",
            "graphs": self.graphs,
            "compile_seconds": rounded(self.seconds, 3),
            "seconds_a_graph": rounded(self.seconds / max(self.graphs, 1), 3),
            "ok": self.succeeded and self.graphs > 0,
        }


@contextmanager
def compilations() -> Iterator[list[Compiling]]:
    """Within this context, trainers that compile are recorded."""
    compile_it, seen = Trainer.compile, []

    def recorded(trainer: Trainer, *arguments: Any, more: Sequence[Any] = (), **options: Any) -> bool:
        began, graphs = time.perf_counter(), compiled_graphs()
        succeeded = compile_it(trainer, *arguments, more=more, **options)
        made, seconds = compiled_graphs() - graphs, time.perf_counter() - began
        seen.append(Compiling(trainer, len(trainer.work) + len(more), succeeded, made, seconds))
        return succeeded

    with patch.object(Trainer, "compile", recorded):
        yield seen


def seconds_by_kernel(s: Setting, call: Callable[[], object]) -> tuple[dict[str, float], Facts]:
    """Seconds of each kernel that `call` runs, the longest first; kernels in all, and the share of time without one."""
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if s.cuda else [ProfilerActivity.CPU]
    with profile(activities=kinds) as record:
        call()
        wait_for(s.device)
    wanted = torch.autograd.DeviceType.CUDA if s.cuda else torch.autograd.DeviceType.CPU
    # On a GPU's time line lie names of passages too, such as that of an optimiser's step, which span idle time.
    kernels = [event for event in record.events() if event.device_type == wanted and not event.is_user_annotation]
    busy, end, seconds = 0.0, -math.inf, defaultdict[str, float](float)
    for kernel in sorted(kernels, key=lambda event: event.time_range.start):
        start, stop = kernel.time_range.start, kernel.time_range.end
        busy, end = busy + max(0.0, stop - max(start, end)), max(end, stop)
        seconds[kernel.name] += (stop - start) / 1e6
    whole = end - min(kernel.time_range.start for kernel in kernels)
    longest = dict(sorted(seconds.items(), key=lambda item: -item[1]))
    return longest, {"launches": len(kernels), "idle": rounded(1 - busy / whole, 2)}


def attention_inputs(s: Setting) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries, keys and values [b, h, l, c] in bf16; in memory, as in the model, positions before heads."""
    model = s.arc.model
    shape = (3, s.batches[0], model.prefix + model.seq_len, model.heads, model.hidden // model.heads)
    q, k, v = torch.randn(shape, device=s.device).bfloat16().transpose(2, 3)
    return q, k, v


def machine(s: Setting) -> Facts:
    """What ran: device, driver, libraries, and the kernel that attention takes."""
    kernels, _ = seconds_by_kernel(s, lambda: attend(*attention_inputs(s)))
    # On a GPU, next to attention, only the inputs' making takes kernels, which PyTorch names `at::native::…`.
    own = [name for name in kernels if "at::native" not in name and not name.startswith("Mem")]
    return {
        "device": torch.cuda.get_device_name() if s.cuda else "CPU",
        "driver": driver(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "attention": (own or ["unknown"])[0][:60],
    }


# 1. What decides: training, solving, several GPUs --------------------------------------------------------------------


def training(s: Setting, preset: str) -> Facts:
    """Train a preset at its published size for a few steps on real data, compiled, by the command itself."""
    words = [preset, f"--data={s.kit / 'arc1'}", f"--out={s.work / 'run'}", f"--train.precision={s.precision}"]
    words += ["--train.compile", "--log.track=none", "--log.evaluation-augmentations=1"]
    with compilations() as seen:
        train.main([*words, *s.training])
    logged = map(json.loads, (s.work / "run" / "metrics.jsonl").read_text().splitlines())
    *_, newest = (line for line in logged if "train/loss" in line)
    facts = {name: rounded(newest[f"train/{name}"]) for name in ("examples_per_second", "peak_memory_gb", "loss")}
    facts |= {"machine": machine(s), "pieces": len(seen[0].trainer.work)} | seen[0].facts()
    facts |= agreement(seen[0].trainer)
    return facts | {"ok": facts["ok"] and min(facts["cosines"].values()) >= LEAST_COSINE}


def agreement(trainer: Trainer) -> Facts:
    """Loss and gradient of one piece of work, compiled and then eager, beside those in float32.

    The trainer stays eager and in float32, which works in smaller pieces to fit the memory.
    """
    piece = trainer.work[0]
    fresh = Work(piece.part, piece.local, piece.first)
    found = {"compiled": loss_and_gradient(trainer, [fresh])}
    run_eagerly(trainer.model)
    found["eager"] = loss_and_gradient(trainer, [fresh])
    trainer.dtype = torch.float32
    loss, gradient = loss_and_gradient(trainer, [quarter for half in fresh.halves() for quarter in half.halves()])
    return {
        "losses_off_by": {name: rounded(abs(own / loss - 1), 2) for name, (own, _) in found.items()},
        "cosines": {
            name: rounded(F.cosine_similarity(own, gradient, dim=0).item(), 6) for name, (_, own) in found.items()
        },
    }


def loss_and_gradient(trainer: Trainer, work: Sequence[Work]) -> tuple[float, Tensor]:
    """The loss over pieces of work, and the weights' gradient in one vector; moves nothing."""
    with trainer._rehearsal(work):
        loss = sum(trainer._supervise(piece).sums["loss"].item() for piece in work)
        return loss, torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


def solving(s: Setting) -> Facts:
    """Solve tasks of every canvas size with random weights of the published size, by the command and its profile."""
    model = RecursiveModel(s.arc.model)
    mean = torch.zeros(s.arc.model.puzzle_width)
    write_export(s.work / "export", Export(s.arc.model, s.arc.halting, model.state_dict(), mean))
    files = [f"--challenges={s.kit / 'tasks' / 'challenges.json'}", f"--checkpoint={s.work / 'export'}"]
    began = time.perf_counter()
    with compilations() as seen, answers_by_side(seen) as answers:
        words = [*files, f"--out={s.work / 'submission.json'}", "--profile=competition", "--train.compile", *s.solving]
        solve.main(words, watched=False)
    facts = {"seconds": rounded(time.perf_counter() - began, 3)}
    for when, sides in answers.items():
        facts[f"answers_per_second_{when}"] = {str(side): rounded(n / spent, 3) for side, (n, spent) in sides.items()}
    return facts | (seen[0].facts() if seen else {"ok": False})


Answers = dict[str, dict[int, tuple[int, float]]]


@contextmanager
def answers_by_side(seen: Sequence[Compiling]) -> Iterator[Answers]:
    """Within this context, count answers and their seconds by canvas side, before and after compiling.

    The first batch of a shape is left out: it warms up.
    """
    answers: Answers = {"eager": {}, "compiled": {}}
    add = Speed.add

    def counted(speed: Speed, shape: Any, amount: float, seconds: float) -> None:
        if shape != "step" and shape in speed._known:
            side, size = shape
            sides = answers["compiled" if seen else "eager"]
            count, spent = sides.get(side, (0, 0.0))
            sides[side] = count + size, spent + seconds
        add(speed, shape, amount, seconds)

    with patch.object(Speed, "add", counted):
        yield answers


def processes(s: Setting) -> Facts:
    """Two processes or more, one a GPU, of which the last compiles longest; then one of them is killed.

    Equal digests say that the weights are equal to the bit. After the kill the others must end when they are told to,
    as a launcher tells them.
    """
    codes, _ = replicas(s, kill=False)
    digests = [path.read_text() for path in sorted(s.work.glob("digest*"))]
    killed, seconds = replicas(s, kill=True)
    equal = len(set(digests)) == 1 and codes == [0] * len(digests)
    ended = killed.count(-signal.SIGKILL) == 1 and 0 not in killed
    return {"digests": digests, "exit": codes, "exit_killed": killed, "end_seconds": rounded(seconds, 3)} | {
        "ok": equal and ended
    }


def replicas(s: Setting, kill: bool) -> tuple[list[int | None], float]:
    """Exit statuses of processes that train together, and seconds from the first failure to the end of all."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started_ones = [started(s, replica, rank, port, kill) for rank in range(s.gpus)]
    alive = list(started_ones)
    while alive and not any(process.exitcode for process in started_ones):
        wait([process.sentinel for process in alive])
        alive = [process for process in alive if process.exitcode is None]
    failed = time.perf_counter()
    for process in alive:
        process.terminate()
    for process in alive:
        process.join(30)
        process.kill()
        process.join()
    return [process.exitcode for process in started_ones], time.perf_counter() - failed


def replica(s: Setting, rank: int, port: int, kill: bool) -> None:
    """One of the processes; the last kills itself if asked to."""
    count = str(s.gpus)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    os.environ |= where | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    AcceleratorState._reset_state(reset_partial_state=True)  # where the tests had one process
    trainer = trainer_of(s.config(s.batches[0] // s.gpus * s.gpus))
    assert trainer.accelerator.num_processes == s.gpus
    if not kill:
        trainer.compile(s.backend, more=[lambda: time.sleep(s.late * rank)])
    for step in range(5 if s.cuda else 2):
        if kill and step and rank == s.gpus - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.train_step()
    trainer.check_replicas()
    digest = bit_digest([*trainer.model.parameters(), trainer.embedding.table])
    (s.work / f"digest{rank}").write_text(str(digest.item()))
    trainer.accelerator.end_training()


def profiled(s: Setting) -> Facts:
    """Profile two compiled steps: how long the GPU is idle, and which kernels take most time."""
    trainer = trainer_of(s.config(s.batches[-2]))
    trainer.fit_memory()
    trainer.compile(s.backend)

    def steps() -> None:
        for _ in range(2):
            trainer.train_step()
        trainer.read_metrics()

    steps()
    kernels, facts = seconds_by_kernel(s, steps)
    whole = sum(kernels.values())
    return facts | {"shares": {name[:60]: rounded(spent / whole, 2) for name, spent in list(kernels.items())[:12]}}


def processes_or_profile(s: Setting) -> Facts:
    """With two GPUs or more, several processes; else a profile."""
    return processes(s) if s.gpus > 1 else profiled(s)


# 2. Right, robust ----------------------------------------------------------------------------------------------------


def golden(s: Setting) -> Facts:
    """Compare golden numbers on this device: float32 by the CPU's tolerances, bf16 by its own."""
    folder = s.kit / "golden"
    if not (folder / "models.json").is_file():
        return {"note": "not compared: there were no golden numbers where make gpu-kit ran (--golden)"}
    ratios, halves, far = {}, {}, []
    for name, facts in read_json(folder / "models.json")["models"].items():
        tensors = {key: value.to(s.device) for key, value in read_tensors(folder / f"{name}.safetensors").items()}
        for line in ModelCheck.compare(name, tensors, facts):
            # What must be equal has no tolerance, and an error of 0 or 1.
            ratios[line.quantity] = line.error / line.tolerance if line.tolerance else line.error * math.inf
        halves[name] = half_errors(ModelCheck(name, tensors, facts))
        far += [f"{name} {figure}" for figure, error in halves[name].items() if not error <= tolerance(name, figure)]
    worst = max(ratios, key=lambda quantity: ratios[quantity])
    out = [quantity for quantity, ratio in ratios.items() if not ratio <= GOLDEN_FACTOR]
    facts = {"quantities": len(ratios), "worst_ratio": rounded(ratios[worst], 3), "worst": worst}
    return facts | {"out": out, "bf16": halves, "bf16_out": far, "ok": not out and not far}


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


# 3. Speed, and what comes next ---------------------------------------------------------------------------------------


def compiled(s: Setting) -> Facts:
    """Examples a second of `arc1` eager, with its networks compiled, and with the whole model compiled."""
    kinds: dict[str, Compile | None] = {
        "eager": None,
        "networks": lambda trainer: trainer.compile(s.backend),
        "whole_model": lambda trainer: trainer.model.compile(dynamic=False, fullgraph=True, backend=s.backend),
    }
    facts = {}
    for name, compile_it in kinds.items():
        with fresh_memory(s):
            facts[name] = measured(s, trainer_of(s.config(s.batches[-2])), compile_it)
    return facts


def canvas(s: Setting) -> Facts:
    """Real examples on the full canvas and on the sizes that their tasks need, compiled."""
    store, batch = s.store(), s.batches[-1]
    settings = {"seed": 0, "batch_size": batch, "device": s.device}
    figures = {}
    for name, sources in (
        ("full", [ArcSource(store, **settings)]),
        ("sizes", sources_by_side(store, **settings, multiple=4)),
    ):
        with fresh_memory(s):
            figures[name] = measured(
                s, trainer_of(s.config(batch), sources), lambda trainer: trainer.compile(s.backend)
            )["examples_per_second"]
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


def ceilings(s: Setting) -> Facts:
    """The card's own limits: a copy, counting bytes read and written, and a product of two bf16 matrices."""
    values = torch.randn(s.side, s.side * 16, device=s.device).bfloat16()
    other = torch.empty_like(values)
    copy = seconds_of(lambda: other.copy_(values), s.device)
    square = values[:, : s.side].contiguous()
    product = seconds_of(lambda: square @ square, s.device)
    return {
        "copy_TB_per_s": rounded(2 * values.nbytes / copy / 1e12),
        "bf16_TFLOPs": rounded(2 * s.side**3 / product / 1e12),
    }


def embedding(s: Setting) -> Facts:
    """Milliseconds, forward and backward, of the tokens' embedding as a look-up and as a product with one-hot rows."""
    model, batch = s.arc.model, s.batches[-1]
    table = torch.randn(model.vocab_size, model.hidden, device=s.device, requires_grad=True)
    inputs = torch.randint(model.vocab_size, (batch, model.seq_len), device=s.device)
    tokens = torch.arange(model.vocab_size, device=s.device)
    gradient = torch.randn(batch, model.seq_len, model.hidden, device=s.device)
    ways: dict[str, Callable[[], Tensor]] = {
        "look_up": lambda: F.embedding(inputs, table),
        "one_hot": lambda: (inputs[..., None] == tokens).to(table.dtype) @ table,
    }
    return {
        f"{name}_ms": rounded(1e3 * seconds_of(lambda: torch.autograd.grad(way(), table, gradient), s.device), 3)  # noqa: B023
        for name, way in ways.items()
    }


def attention(s: Setting) -> Facts:
    """PyTorch's attention kernels at the model's shape, forward and backward, in TFLOP/s."""
    q, k, v = attention_inputs(s)
    facts: Facts = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        name = backend.name.lower().removesuffix("_attention")
        try:
            with sdpa_kernel(backend):
                forward = seconds_of(lambda: F.scaled_dot_product_attention(q, k, v), s.device)
                inputs = [part.detach().requires_grad_() for part in (q, k, v)]
                both = seconds_of(lambda: attend_and_back(inputs, v), s.device)  # noqa: B023
        except RuntimeError as error:
            facts[name] = first_line(error)
            continue
        flops = 4 * q.numel() * q.shape[2]
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
