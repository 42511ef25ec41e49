"""Golden numbers of the published models and their small parts, and what ours make of the same input.

A golden folder holds facts, no code: weights, batches and what the published code computed from them. Nothing here
assumes a size; every one comes from the folder.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from arc_trm.batches import Batch
from arc_trm.config import HaltingConfig, ModelConfig
from arc_trm.layers import rms_norm, rotary_table, swiglu_width, truncated_normal, turned
from arc_trm.model import HALTING_BIAS, RecursiveModel
from arc_trm.optim import Ema, PuzzleEmbedding, learning_rate
from arc_trm.published import PUZZLE_TABLE, from_published, state_names, tensor_names
from arc_trm.supervision import StepResult, continue_target, initial_carry, supervision_step, token_loss
from data_prep.files import InputError
from tests.golden.comparison import NOISE_FACTOR, Report

INNER = "model.inner."
ARCHITECTURES = {
    "trm": "answer_and_latent",
    "trm_singlez": "single_latent",
    "trm_hier6": "multi_scale_latent",
    "hrm": "answer_and_latent",
    "transformers_baseline": "direct",
}
MULTI_SCALE_LATENTS = 6
PUZZLE_ROWS = "puzzle_emb.local_weights"
# The sparse update that the model files record: learning rate, weight decay.
SIGN_SGD = (1e-2, 0.1)
METRICS = {
    "count": "count",
    "accuracy": "token_accuracy",
    "exact_accuracy": "exact_accuracy",
    "q_halt_accuracy": "halting_accuracy",
    "steps": "supervision_steps",
    "lm_loss": "token_loss",
    "q_halt_loss": "halting_loss",
    "q_continue_loss": "continue_loss",
}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; raises InputError when it is missing or damaged."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot read as safetensors ({error})") from error


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


# Settings -----------------------------------------------------------------------------------------------------------


def from_settings(architecture: str, settings: Mapping[str, Any], where: str) -> tuple[ModelConfig, HaltingConfig]:
    """Our configuration from a published one (`H_cycles`, `hidden_size`, …); raises InputError where it has none."""
    if architecture not in ARCHITECTURES:
        raise InputError(f"{where}: architecture {architecture!r}, expected one of {', '.join(ARCHITECTURES)}")
    hrm, direct = architecture == "hrm", architecture == "transformers_baseline"
    mixer = "mlp" if settings.get("mlp_t") else "attention"
    if mixer == "attention" and settings.get("pos_encodings") != "rope":
        raise InputError(f"{where}: pos_encodings {settings.get('pos_encodings')!r}, expected 'rope' with attention")
    try:
        width, hidden = settings["puzzle_emb_ndim"], settings["hidden_size"]
        sizes: dict[str, Any] = {
            "vocab_size": settings["vocab_size"],
            "seq_len": settings["seq_len"],
            "hidden": hidden,
            "heads": settings["num_heads"],
            "layers": settings["H_layers" if direct else "L_layers"],
            "answer_layers": settings["H_layers"] if hrm else 0,
            "expansion": float(settings["expansion"]),
            # The published direct prediction is one pass whatever its cycles say.
            "latent_steps": 0 if direct else settings["L_cycles"],
            "deep_steps": 1 if direct else settings["H_cycles"],
            "prefix": settings.get("puzzle_emb_len") or math.ceil(width / hidden),
            "puzzle_width": width,
        }
        limits = {"max_supervision_steps": settings["halt_max_steps"]}
    except KeyError as error:
        raise InputError(f"{where}: no setting {error.args[0]!r} in its configuration") from error
    sizes |= {"mixer": mixer, "recursion": ARCHITECTURES[architecture], "gradient_updates": 2 if hrm else 0}
    sizes["latents"] = MULTI_SCALE_LATENTS if architecture == "trm_hier6" else 0
    continues = not settings.get("no_ACT_continue", not hrm)
    rule: dict[str, Any] = {"rule": "q_learning" if continues or direct else "correctness", "continue_loss": continues}
    return ModelConfig(**sizes), HaltingConfig(**limits, **rule)


# Models -------------------------------------------------------------------------------------------------------------


class ModelCheck:
    """What a golden model file records, computed by our model from the same weights and batches, where these lie."""

    def __init__(self, name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.tensors, self.report = tensors, Report(name, facts["noise_max_abs"])
        self.config, self.rule = from_settings(facts["reference_arch"], facts["config"], name)
        device = next(iter(tensors.values())).device
        weights = below(tensors, f"param/{INNER}")
        empty = torch.zeros(facts["config"]["num_puzzle_identifiers"], self.config.puzzle_width)
        table = weights.pop(PUZZLE_TABLE, empty)
        self.model = RecursiveModel(self.config)
        self.model.load_state_dict(from_published(self.config, weights, name))
        self.model.to(device)
        self.embedding = PuzzleEmbedding(len(table), self.config.puzzle_width, device)
        self.embedding.table.copy_(table)
        self.batches = [self._batch(1)]
        while f"batch{len(self.batches) + 1}/inputs" in tensors:
            self.batches.append(self._batch(len(self.batches) + 1))

    @classmethod
    def compare(cls, name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Report:
        """Compare a whole model file."""
        return cls(name, tensors, facts).run()

    def _batch(self, step: int) -> Batch:
        of = below(self.tensors, f"batch{step}/")
        return Batch(of["inputs"], of["labels"], of["puzzle_identifiers"].long())

    def run(self) -> Report:
        """Compare training with halting and refill, evaluation, and training that cannot halt early."""
        never_explore = torch.zeros_like(self.batches[0].inputs[:, 0])
        self._supervise("train", never_explore)
        self._supervise("eval", None)
        for part, table in zip(("cos", "sin"), self.model.rotary_table, strict=True):
            if f"rope/{part}" in self.tensors:
                self.report.add("rotary angles", part, table, self.tensors[f"rope/{part}"])
        nn.init.zeros_(self.model.halting_head.weight)
        nn.init.constant_(self.model.halting_head.bias, HALTING_BIAS)  # type: ignore[arg-type]
        self._supervise("nohalt", never_explore)
        return self.report

    def _supervise(self, mode: str, minimum: Tensor | None) -> None:
        """All supervision steps of one mode, weights frozen."""
        carry = initial_carry(self.model, self.batches[0], torch.float32)
        for step, offer in enumerate(self.batches, 1):
            graded = mode == "train" and step == 1
            with torch.set_grad_enabled(graded):
                result = supervision_step(self.model, self.model, self.embedding, carry, offer, self.rule, minimum)
                self._step(f"{mode}/step{step}/", mode, result)
            if graded:
                self._gradients(result)
            carry = result.carry

    def _step(self, prefix: str, mode: str, result: StepResult) -> None:
        """Compare one supervision step."""
        expected, output, carry = below(self.tensors, prefix), result.output, result.carry
        # Name in the file: quantity, kind of noise, value.
        found: dict[str, tuple[str, str | None, Tensor]] = {
            "logits": ("logits", "logits", output.logits),
            "q_halt_logits": ("halting logits", "q", output.halt_logits),
            "q_continue_logits": ("continue logits", "q", output.continue_logits),
            "halted": ("halted rows", None, carry.halted),
            "steps": ("steps taken", None, carry.steps),
            "current/puzzle_identifiers": ("puzzles at work", None, carry.current.puzzle_ids),
            "loss": ("loss", "loss", result.loss),
        }
        if "target_q_continue" in expected:
            target = continue_target(self.model, carry, result.puzzle_rows, self.rule)
            found["target_q_continue"] = ("continue target", "q", target)
        for name, state in zip(state_names(self.config), carry.state, strict=True):
            found[f"carry/{name}"] = ("carry", "carry", state)
        for name, ours in METRICS.items():
            if ours in result.metrics:
                found[f"metrics/{name}"] = (f"metric {ours}", "loss", result.metrics[ours])
        for name, value in expected.items():
            if name not in found:
                self.report.notes.append(f"{prefix}{name} has no counterpart")
                continue
            quantity, kind, ours_value = found[name]
            self.report.add(f"{mode}: {quantity}", f"{prefix}{name}", ours_value, value, kind)

    def _gradients(self, result: StepResult) -> None:
        """Compare the gradients of the mean loss over the batch, and the sparse update that they make."""
        expected = below(self.tensors, f"grad/{INNER}")
        parameters = dict(self.model.named_parameters())
        torch.autograd.backward(result.loss / len(result.puzzle_rows))
        for ours, theirs in tensor_names(self.config).items():
            gradient = parameters[ours].grad
            found = torch.zeros_like(parameters[ours]) if gradient is None else gradient
            if theirs in expected:
                self.report.add("gradients", f"grad/{INNER}{theirs}", found, expected[theirs], "grad")
        if PUZZLE_ROWS in expected and result.puzzle_rows.grad is not None:
            rows = expected[PUZZLE_ROWS]
            self.report.add("puzzle gradients", f"grad/{INNER}{PUZZLE_ROWS}", result.puzzle_rows.grad, rows, "grad")
            self._sparse_update(result, rows)
        self.model.zero_grad()

    def _sparse_update(self, result: StepResult, golden: Tensor) -> None:
        """Compare the table after the sparse update, by the golden gradient and by ours.

        Where the sum of a row's gradients is within noise of 0 its sign means nothing, so ours is not compared there.
        """
        name, ids = "signsgd/puzzle_emb_weights_after", result.carry.current.puzzle_ids
        if name not in self.tensors or result.puzzle_rows.grad is None:
            return
        after = self.tensors[name]
        start = self.embedding.table.clone()
        sums = torch.zeros_like(start).index_add_(0, ids, golden)
        decided = sums.abs() > NOISE_FACTOR * self.report.noise.get("grad", 0.0)
        decided[torch.isin(torch.arange(len(start), device=ids.device), ids, invert=True)] = True
        for quantity, gradient, where in (
            ("sign-SGD of the golden gradient", golden, torch.ones_like(decided)),
            ("sign-SGD of our gradient", result.puzzle_rows.grad, decided),
        ):
            self.embedding.table.copy_(start)
            self.embedding.update(ids, gradient, *SIGN_SGD)
            self.report.add(quantity, name, self.embedding.table[where], after[where])
        self.embedding.table.copy_(start)


# Small parts --------------------------------------------------------------------------------------------------------


def check_parts(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Report:
    """Compare losses, moving average, sparse update, layers and schedule with a golden `misc` file."""
    report = Report("misc")
    for check in (_stablemax, _ema, _sparse, _layers, _formulas):
        check(report, tensors, facts)
    return report


def _stablemax(report: Report, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    labels = tensors["stablemax/labels"]
    logits = tensors["stablemax/logits"].clone().requires_grad_()
    loss = token_loss(logits, labels)
    torch.autograd.backward(loss.sum())
    report.add("stable-max loss", "stablemax/loss_f64", loss, tensors["stablemax/loss_f64"])
    report.add("stable-max gradient", "stablemax/grad_f32", logits.grad, tensors["stablemax/grad_f32"])
    half = tensors["stablemax/bf16_logits"]
    report.add(
        "stable-max loss of bf16 logits",
        "stablemax/bf16_loss_f64",
        token_loss(half, labels[: len(half)]),
        tensors["stablemax/bf16_loss_f64"],
    )
    expected = tensors["softmax/loss_f32"]
    ours = token_loss(logits[: len(expected)], labels[: len(expected)], "softmax")
    report.add("soft-max loss", "softmax/loss_f32", ours, expected)


def _ema(report: Report, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    names = facts["ema"]["trainable"]
    parameters = [nn.Parameter(tensors[f"ema/init/{name}"].clone()) for name in names]
    ema = Ema(parameters)
    for step in _steps(tensors, "ema/weights{}/" + names[0]):
        for name, parameter in zip(names, parameters, strict=True):
            parameter.data.copy_(tensors[f"ema/weights{step}/{name}"])
        ema.update(facts["ema"]["mu"])
        for name, average in zip(names, ema.averages, strict=True):
            report.add("moving average", f"ema/shadow{step}/{name}", average, tensors[f"ema/shadow{step}/{name}"])


def _sparse(report: Report, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    settings = facts["sparse"]
    embedding = PuzzleEmbedding(*tensors["sparse/weights0"].shape)
    embedding.table.copy_(tensors["sparse/weights0"])
    for step in _steps(tensors, "sparse/ids{}"):
        ids = tensors[f"sparse/ids{step}"].long()
        report.add("puzzle rows", f"sparse/out{step}", embedding.rows(ids), tensors[f"sparse/out{step}"])
        embedding.update(ids, tensors[f"sparse/grad{step}"], settings["lr"], settings["weight_decay"])
        report.add("sign-SGD", f"sparse/weights{step}", embedding.table, tensors[f"sparse/weights{step}"])


def _steps(tensors: Mapping[str, Tensor], pattern: str) -> Iterator[int]:
    step = 1
    while pattern.format(step) in tensors:
        yield step
        step += 1


def _layers(report: Report, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    report.add("RMS norm", "rms/y", rms_norm(tensors["rms/x"]), tensors["rms/y"])
    for name in ("q", "k"):
        x = tensors[f"rope/{name}"]
        found, _, _ = turned(torch.stack((x, x, x), 2), rotary_table(torch.arange(x.shape[1]), x.shape[-1]))
        report.add("rotary embedding", f"rope/{name}_out", found, tensors[f"rope/{name}_out"])


def _formulas(report: Report, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    for one in facts["lr"]:
        rate = learning_rate(one["step"], one["base_lr"], one["warmup"], one["total"], one["min_ratio"])
        # Rates are far below the floor of the tolerance, so they are compared as shares of the base rate.
        where = f"lr step {one['step']}, warm-up {one['warmup']}, total {one['total']}"
        report.add("learning rate / base rate", where, rate / one["base_lr"], one["lr"] / one["base_lr"])
    for one in facts["swiglu_inner"]:
        where = f"swiglu_inner hidden {one['hidden']}"
        report.same("SwiGLU width", where, swiglu_width(one["hidden"], one["expansion"]), one["inner"])
    for one in facts["trunc_normal"]:
        _truncated_normal(report, one)


def _truncated_normal(report: Report, golden: Mapping[str, Any]) -> None:
    """Compare two random samples: six standard errors for the spread, the thin edge of the cut for the extreme."""
    std, n, where = golden["std"], golden["n"], f"trunc_normal std {golden['std']}"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sample = truncated_normal((n,), std).double()
    spread_error = abs(float(sample.std()) - golden["sample_std"])
    report.put("truncated normal, standard deviation", where, spread_error, 6 * std / n**0.5)
    report.put("truncated normal, extreme", where, abs(float(sample.abs().max()) - golden["abs_max"]), 400 * std / n)
