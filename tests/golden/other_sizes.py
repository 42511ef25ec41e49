"""Writes golden folders of any size, with numbers from the plain reference instead of the published code."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.arc_trm.reference import STATES, bce, forward, inner_width, prefix_of, rms, row_losses, stablemax_loss, turn

INNER = "model.inner."
BASE = {
    "halt_max_steps": 3,
    "halt_exploration_prob": 0.0,
    "H_layers": 0,
    "expansion": 1.5,
    "pos_encodings": "rope",
    "forward_dtype": "float32",
    "num_puzzle_identifiers": 7,
    "batch_size": 5,
}
# Other sizes than those of any golden folder we were given; primes where the architecture allows them.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "att": (
        "trm",
        {"hidden_size": 42, "num_heads": 3, "L_layers": 1, "H_cycles": 2, "L_cycles": 3, "seq_len": 9}
        | {"vocab_size": 11, "puzzle_emb_ndim": 53, "puzzle_emb_len": 2, "no_ACT_continue": True, "halt_max_steps": 2},
    ),
    "mixer": (
        "trm",
        {"hidden_size": 19, "num_heads": 1, "L_layers": 2, "H_cycles": 1, "L_cycles": 2, "seq_len": 11}
        | {"vocab_size": 7, "puzzle_emb_ndim": 23, "puzzle_emb_len": 3, "no_ACT_continue": True, "mlp_t": True}
        | {"pos_encodings": "none"},
    ),
    "one": (
        "trm_singlez",
        {"hidden_size": 22, "num_heads": 1, "L_layers": 1, "H_cycles": 3, "L_cycles": 2, "seq_len": 10}
        | {"vocab_size": 5, "puzzle_emb_ndim": 22, "puzzle_emb_len": 0, "no_ACT_continue": True},
    ),
    "many": (
        "trm_hier6",
        {"hidden_size": 26, "num_heads": 1, "L_layers": 1, "H_cycles": 2, "L_cycles": 4, "seq_len": 7}
        | {"vocab_size": 13, "puzzle_emb_ndim": 30, "puzzle_emb_len": 5, "no_ACT_continue": True},
    ),
    "two_networks": (
        "hrm",
        {"hidden_size": 28, "num_heads": 2, "L_layers": 1, "H_layers": 2, "H_cycles": 3, "L_cycles": 1, "seq_len": 12}
        | {"vocab_size": 6, "puzzle_emb_ndim": 37},
    ),
    "direct": (
        "transformers_baseline",
        # Four heads do not divide the width; each then has the floor, 6. Cycles mean nothing here: one pass.
        {"hidden_size": 26, "num_heads": 4, "H_layers": 3, "H_cycles": 2, "seq_len": 8}
        | {"vocab_size": 9, "puzzle_emb_ndim": 29},
    ),
}

# Weights with which training halts some rows early and keeps others.
SEEDS = {"att": 5, "mixer": 5, "one": 0, "many": 1, "two_networks": 6, "direct": 3}


def random_weights(arch: str, config: Mapping[str, Any], generator: torch.Generator) -> dict[str, Tensor]:
    """Published tensors of that configuration, exact in float16, at the usual scales."""
    d, v, e = config["hidden_size"], config["vocab_size"], config["expansion"]
    head_width = d // config["num_heads"] * config["num_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.embedding_weight": (v, d),
        "lm_head.weight": (v, d),
        "q_head.weight": (2, d),
        "q_head.bias": (2,),
        "puzzle_emb.weights": (config["num_puzzle_identifiers"], config["puzzle_emb_ndim"]),
    }
    shapes |= {f"{name.removeprefix('z_')}_init": (d,) for name in STATES[arch]}
    for network, layers in (("H_level", config.get("H_layers", 0)), ("L_level", config.get("L_layers", 0))):
        for layer in range(layers):
            block, inner = f"{network}.layers.{layer}", inner_width(d, e)
            shapes[f"{block}.mlp.gate_up_proj.weight"] = (2 * inner, d)
            shapes[f"{block}.mlp.down_proj.weight"] = (d, inner)
            if config.get("mlp_t"):
                length = config["seq_len"] + prefix_of(config)
                shapes[f"{block}.mlp_t.gate_up_proj.weight"] = (2 * inner_width(length, e), length)
                shapes[f"{block}.mlp_t.down_proj.weight"] = (length, inner_width(length, e))
            else:
                shapes[f"{block}.self_attn.qkv_proj.weight"] = (3 * head_width, d)
                shapes[f"{block}.self_attn.o_proj.weight"] = (d, head_width)
    return {
        name: (torch.randn(shape, generator=generator) * (1 if "init" in name else shape[-1] ** -0.5)).half()
        for name, shape in shapes.items()
    }


def random_batch(config: Mapping[str, Any], step: int, generator: torch.Generator) -> dict[str, Tensor]:
    """A batch with ignored labels, a row without any, and the same puzzle twice."""
    shape = (config["batch_size"], config["seq_len"])
    inputs = torch.randint(0, config["vocab_size"], shape, generator=generator, dtype=torch.int32)
    labels = torch.randint(0, config["vocab_size"], shape, generator=generator, dtype=torch.int32)
    labels[torch.rand(shape, generator=generator) < 0.25] = -100
    labels[3 % shape[0]] = -100
    puzzles = torch.tensor([(i * step) % (config["num_puzzle_identifiers"] - 2) for i in range(shape[0])])
    puzzles[-1] = puzzles[0]
    return {"inputs": inputs, "labels": labels, "puzzle_identifiers": puzzles.int()}


@dataclass
class Row:
    """What one batch slot works on."""

    inputs: Tensor
    labels: Tensor
    puzzle: int
    state: list[Tensor]
    steps: int = 0
    halted: bool = True


class Supervisor:
    """Deep supervision over a batch by plain loops, recording what a golden file records."""

    def __init__(self, arch: str, config: Mapping[str, Any], weights: dict[str, Tensor], training: bool) -> None:
        self.arch, self.config, self.training = arch, config, training
        self.weights = {name: weight.double().requires_grad_() for name, weight in weights.items()}
        self.rows: list[Row | None] = [None] * config["batch_size"]
        self.record: dict[str, Tensor] = {}

    def step(self, batch: Mapping[str, Tensor], prefix: str) -> tuple[Tensor, Tensor]:
        """One supervision step; returns the loss and the puzzle rows that it was computed from."""
        config, length = self.config, self.config["seq_len"] + prefix_of(self.config)
        starts = [self.weights[f"{name.removeprefix('z_')}_init"].detach() for name in STATES[self.arch]]
        for i, row in enumerate(self.rows):
            if row is None or row.halted:
                state = [start.expand(length, -1) for start in starts]
                puzzle = int(batch["puzzle_identifiers"][i])
                self.rows[i] = Row(batch["inputs"][i], batch["labels"][i], puzzle, state)
        rows = [row for row in self.rows if row is not None]
        inputs = torch.stack([row.inputs for row in rows])
        puzzles = self.weights["puzzle_emb.weights"][[row.puzzle for row in rows]].detach().requires_grad_()
        state = [torch.stack(parts) for parts in zip(*(row.state for row in rows), strict=True)]
        state, logits, q = forward(self.arch, state, inputs, puzzles, self.weights, config)
        target = None
        if self.arch == "hrm" and self.training:
            with torch.no_grad():
                _, _, following = forward(self.arch, state, inputs, puzzles, self.weights, config)
            last = torch.tensor([row.steps + 1 >= config["halt_max_steps"] for row in rows])
            target = torch.where(last, following[:, 0], following.max(1).values).sigmoid()
            self.record[f"{prefix}target_q_continue"] = target
        loss = self._judge(rows, logits, q, target, prefix)
        for i, row in enumerate(rows):
            row.state = [part[i].detach() for part in state]
        for name, part in zip(STATES[self.arch], state, strict=True):
            self.record[f"{prefix}carry/{name}"] = part
        self.record[f"{prefix}current/puzzle_identifiers"] = torch.tensor([row.puzzle for row in rows])
        return loss, puzzles

    def _judge(self, rows: list[Row], logits: Tensor, q: Tensor, target: Tensor | None, prefix: str) -> Tensor:
        """Halt rows, add up losses and metrics, record them."""
        names = ("count", "accuracy", "exact_accuracy", "q_halt_accuracy", "steps", "lm_loss", "q_halt_loss")
        sums = dict.fromkeys(names, torch.zeros((), dtype=torch.float64))
        if target is not None:
            sums["q_continue_loss"] = torch.zeros((), dtype=torch.float64)
        for i, row in enumerate(rows):
            row.steps += 1
            row.halted = row.steps >= self.config["halt_max_steps"]
            if self.training:
                row.halted |= bool(q[i, 0] > (0 if self.config.get("no_ACT_continue") else q[i, 1]))
            token_loss, share, right, labelled = row_losses(logits[i], row.labels)
            sums["lm_loss"] = sums["lm_loss"] + token_loss
            sums["q_halt_loss"] = sums["q_halt_loss"] + bce(q[i, 0], torch.tensor(float(right)))
            if target is not None:
                sums["q_continue_loss"] = sums["q_continue_loss"] + bce(q[i, 1], target[i])
            if row.halted and labelled:
                found = (1, share, right, bool(q[i, 0] >= 0) == right, row.steps)
                for name, value in zip(names, found, strict=False):
                    sums[name] = sums[name] + value
        self.record |= {
            f"{prefix}logits": logits,
            f"{prefix}q_halt_logits": q[:, 0],
            f"{prefix}q_continue_logits": q[:, 1],
            f"{prefix}halted": torch.tensor([row.halted for row in rows]).to(torch.uint8),
            f"{prefix}steps": torch.tensor([row.steps for row in rows]),
        }
        losses = [sums["lm_loss"]] + [0.5 * sums[name] for name in ("q_halt_loss", "q_continue_loss") if name in sums]
        loss = torch.stack(losses).sum()
        if self.training:
            self.record |= {f"{prefix}metrics/{name}": value for name, value in sums.items()}
            self.record[f"{prefix}loss"] = loss
        return loss


def golden_tensors(arch: str, config: Mapping[str, Any], seed: int, shake: float = 0.0) -> dict[str, Tensor]:
    """A whole golden model file; `shake` moves the weights by that share of themselves."""
    generator = torch.Generator().manual_seed(seed)
    weights = random_weights(arch, config, generator)
    batches = [random_batch(config, step, generator) for step in (1, 2, 3)]
    tensors = {f"param/{INNER}{name}": weight for name, weight in weights.items()}
    if shake:
        shaken = torch.Generator().manual_seed(seed)
        weights = {n: w.double() * (1 + shake * torch.randn(w.shape, generator=shaken)) for n, w in weights.items()}
    for step, batch in enumerate(batches, 1):
        tensors |= {f"batch{step}/{name}": value for name, value in batch.items()}
    quiet = weights | {"q_head.weight": torch.zeros_like(weights["q_head.weight"]), "q_head.bias": torch.full((2,), -5)}
    for mode, start in (("train", weights), ("eval", weights), ("nohalt", quiet)):
        supervisor = Supervisor(arch, config, start, training=mode != "eval")
        for step, batch in enumerate(batches, 1):
            loss, puzzles = supervisor.step(batch, f"{mode}/step{step}/")
            if mode == "train" and step == 1:
                tensors |= _gradients(supervisor, loss, puzzles, batch)
        tensors |= supervisor.record
    exact = (torch.int32, torch.int64, torch.uint8, torch.float16)
    return {
        name: value.detach().to(value.dtype if value.dtype in exact or not value.dim() else torch.float32, copy=True)
        for name, value in tensors.items()
    }


KINDS = {"logits": "/logits", "q": "/q_", "carry": "/carry/", "grad": "grad/", "loss": "loss"}


def measured_noise(tensors: Mapping[str, Tensor], arch: str, config: Mapping[str, Any], seed: int) -> dict[str, float]:
    """How far every kind of quantity moves when the weights move by the last bit of a float32."""
    shaken = golden_tensors(arch, config, seed, shake=6e-8)
    return {
        kind: max(float((tensors[n].double() - shaken[n].double()).abs().max()) for n in tensors if part in n)
        for kind, part in KINDS.items()
    }


def _gradients(supervisor: Supervisor, loss: Tensor, puzzles: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of the mean loss, and the table after the sparse update, row by row."""
    (loss / len(puzzles)).backward(retain_graph=True)
    result = {f"grad/{INNER}puzzle_emb.local_weights": puzzles.grad}
    for name, weight in supervisor.weights.items():
        if weight.grad is not None:
            result[f"grad/{INNER}{name}"] = weight.grad
    table = supervisor.weights["puzzle_emb.weights"].detach().clone()
    sums: dict[int, Tensor] = {}
    for identifier, gradient in zip(batch["puzzle_identifiers"].tolist(), puzzles.grad, strict=True):
        sums[identifier] = sums.get(identifier, torch.zeros_like(gradient)) + gradient
    for identifier, gradient in sums.items():
        table[identifier] = table[identifier] * (1 - 1e-2 * 0.1) - 1e-2 * gradient.sign()
    return result | {"signsgd/puzzle_emb_weights_after": table}


def golden_parts(seed: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A golden `misc` file and its JSON."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    logits = random(5, 7, 11) * torch.tensor([0.01, 1, 30, 1e8, 1e30])[:, None, None]
    labels = torch.randint(0, 11, (5, 7), generator=generator)
    labels[:, 0] = -100
    exact = logits.double().requires_grad_()
    rows = [[_masked(exact[i, j], int(labels[i, j])) for j in range(7)] for i in range(5)]
    loss = torch.stack([torch.stack(row) for row in rows])
    loss.sum().backward()
    half = logits[:3].bfloat16()
    half_loss = torch.stack(
        [torch.stack([_masked(half[i, j].double(), int(labels[i, j])) for j in range(7)]) for i in range(3)]
    )
    plain = torch.nn.functional.cross_entropy(logits[:2].double().flatten(0, 1), labels[:2].flatten(), reduction="none")
    x, q = random(3, 2, 13), random(1, 5, 2, 6)
    tensors = {
        "stablemax/logits": logits,
        "stablemax/labels": labels,
        "stablemax/loss_f64": loss.detach(),
        "stablemax/grad_f32": exact.grad.float(),
        "stablemax/bf16_logits": half,
        "stablemax/bf16_loss_f64": half_loss,
        "softmax/loss_f32": plain.view(2, 7).float(),
        "rms/x": x,
        "rms/y": rms(x),
        "rope/q": q,
        "rope/k": -q,
        "rope/q_out": torch.stack([turn(q[0, :, head]) for head in range(2)], 1)[None],
        "rope/k_out": torch.stack([turn(-q[0, :, head]) for head in range(2)], 1)[None],
    }
    weight, shadow, table = random(3, 5), None, random(6, 4)
    tensors |= {"ema/init/w": weight, "sparse/weights0": table}
    shadow = weight.clone()
    for step in (1, 2):
        weight, ids, gradient = weight + random(3, 5), torch.tensor([4, 1, 4]), random(3, 4)
        shadow = 0.9 * shadow + 0.1 * weight
        table = table.clone()
        out = table[ids].clone()
        for i in (1, 4):
            total = gradient[ids == i].sum(0)
            table[i] = table[i] * (1 - 0.02 * 0.5) - 0.02 * total.sign()
        tensors |= {f"ema/weights{step}/w": weight, f"ema/shadow{step}/w": shadow, f"sparse/ids{step}": ids.int()}
        tensors |= {f"sparse/grad{step}": gradient, f"sparse/out{step}": out, f"sparse/weights{step}": table}
    rate = {"step": 75, "base_lr": 3e-3, "warmup": 50, "total": 150, "min_ratio": 0.2}
    facts = {
        "ema": {"mu": 0.9, "trainable": ["w"]},
        "sparse": {"lr": 0.02, "weight_decay": 0.5},
        "lr": [rate | {"lr": 3e-3 * (0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)}, rate | {"step": 5, "lr": 3e-4}],
        "trunc_normal": [{"std": 0.5, "sample_std": 0.5, "abs_max": 0.5 * 2.27368, "n": 200_000}],
        "swiglu_inner": [{"hidden": 97, "expansion": 4, "inner": 512}],
    }
    return tensors, facts


def _masked(logits: Tensor, label: int) -> Tensor:
    return logits.sum() * 0 if label == -100 else stablemax_loss(logits, label)


def write_golden_folder(folder: Path) -> None:
    """A golden folder with every architecture and the small parts, at other sizes than the given ones."""
    folder.mkdir(parents=True, exist_ok=True)
    models = {}
    for name, (arch, changes) in MODELS.items():
        config, seed = BASE | changes, SEEDS[name]
        tensors = golden_tensors(arch, config, seed)
        save_file(tensors, folder / f"{name}.safetensors")
        noise = measured_noise(tensors, arch, config, seed)
        models[name] = {"config": config, "reference_arch": arch, "noise_max_abs": noise}
    (folder / "models.json").write_text(json.dumps({"models": models}))
    tensors, facts = golden_parts(0)
    save_file(tensors, folder / "misc.safetensors")
    (folder / "misc.json").write_text(json.dumps(facts))
