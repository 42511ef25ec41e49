"""The whole state of a trainer as named tensors and JSON facts, and back again.

Nothing in it knows how many processes or pieces of work there were: the carry lies in the order of the global slots.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from arc_trm.batches import Batch
from arc_trm.model import RecursiveModel
from arc_trm.naming import PuzzleNaming
from arc_trm.supervision import Carry
from data_prep.files import InputError

if TYPE_CHECKING:
    from arc_trm.trainer import Trainer

Tensors = dict[str, Tensor]

MODEL, EMA, OPTIMISER, CARRY, NAMING = "model/", "ema/", "optimiser/", "carry/", "puzzles/"
TABLE, SUMS = "puzzle_table", "metric_sums"


def state_of(trainer: "Trainer") -> tuple[Tensors, dict[str, Any]]:
    """The state as tensors (not copied: they move with the next step) and JSON facts; collective."""
    tensors: Tensors = {MODEL + name: tensor for name, tensor in trainer.model.state_dict().items()}
    names = [name for name, _ in trainer.model.named_parameters()]
    if trainer.ema is not None:
        tensors |= {EMA + name: average for name, average in zip(names, trainer.ema.averages, strict=True)}
    for name, parameter in trainer.model.named_parameters():
        for key, value in trainer.optimiser.state.get(parameter, {}).items():
            tensors[f"{OPTIMISER}{key}/{name}"] = torch.as_tensor(value)
    tensors[TABLE] = trainer.embedding.table
    tensors |= {CARRY + name: value for name, value in _carries(trainer)}
    if trainer.naming is not None:
        tensors |= {NAMING + name: tensor for name, tensor in trainer.naming.tensors().items()}
    metrics, tensors[SUMS] = trainer.metric_sums()
    return tensors, {
        "step": trainer.step,
        "planned_steps": trainer.planned_steps,
        "parts": _layout(trainer),
        "puzzle_groups": None if trainer.naming is None else list(trainer.naming.groups),
        "metrics": metrics,
        "metric_steps": trainer.metric_steps,
        "scaler": trainer.scaler.state_dict(),
    }


def load_state(trainer: "Trainer", tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Put a trainer into the state that `state_of` gave; processes, micro-batches and precision may differ.

    Where canvas sizes or their slots differ (or the tensors hold no carry), all slots start anew. Raises InputError
    for a model of other sizes.
    """
    load_weights(trainer.model, below(tensors, MODEL))
    _load_averages(trainer, below(tensors, EMA))
    _load_moments(trainer, below(tensors, OPTIMISER))
    trainer.embedding.table.copy_(tensors[TABLE])
    trainer.scaler.load_state_dict(facts["scaler"] or trainer.scaler.state_dict())
    trainer.step = facts["step"]
    trainer.load_metric_sums(facts["metrics"], tensors[SUMS], facts["metric_steps"])
    same_slots = facts["parts"] == _layout(trainer)
    for work in trainer.work:
        number = trainer.parts.index(work.part)
        named = below(tensors, f"{CARRY}{number}/") if same_slots else {}
        work.carry = carry_from(named, work.local, trainer.accelerator.device, trainer.dtype) if named else None


def saved_naming(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> PuzzleNaming | None:
    """Which puzzle each row of a checkpoint's embedding table belongs to; None where there is nothing to tell apart."""
    groups = facts["puzzle_groups"]
    return None if groups is None else PuzzleNaming.from_tensors(below(tensors, NAMING), groups)


def load_weights(model: RecursiveModel, weights: Mapping[str, Tensor]) -> None:
    """Copy `weights` into `model`; raises InputError naming the first tensor that is missing, unknown or misshapen."""
    own = model.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        sizes = [list(tensors[name].shape) if name in tensors else "none" for tensors in (weights, own)]
        if sizes[0] != sizes[1]:
            raise InputError(f"the checkpoint's {name} has the shape {sizes[0]}, this model's has {sizes[1]}")
    model.load_state_dict(dict(weights))


def below(tensors: Mapping[str, Tensor], prefix: str) -> Tensors:
    """The tensors whose names begin with `prefix`, under the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _load_averages(trainer: "Trainer", averages: Tensors) -> None:
    """Set the moving average; a checkpoint that kept none starts it at the weights."""
    if trainer.ema is not None:
        for (name, parameter), average in zip(trainer.model.named_parameters(), trainer.ema.averages, strict=True):
            average.copy_(averages.get(name, parameter.detach()))


def _load_moments(trainer: "Trainer", moments: Tensors) -> None:
    # The optimiser numbers its parameters group by group.
    number = {p: i for i, p in enumerate(p for group in trainer.optimiser.param_groups for p in group["params"])}
    index = {name: number[parameter] for name, parameter in trainer.model.named_parameters()}
    state: dict[int, Tensors] = {}
    for key, value in moments.items():
        kind, name = key.split("/", 1)
        # A copy: what was read is a map of its file, and would keep a deleted checkpoint on the disk.
        state.setdefault(index[name], {})[kind] = value.clone()
    groups = trainer.optimiser.state_dict()["param_groups"]
    trainer.optimiser.load_state_dict({"state": state, "param_groups": groups})


# The carry ----------------------------------------------------------------------------------------------------------


def _layout(trainer: "Trainer") -> list[list[int]]:
    """Slots and tokens of every part: a carry fits only the layout it comes from."""
    return [[part.slots, part.source.seq_len] for part in trainer.parts]


def _carries(trainer: "Trainer") -> Iterator[tuple[str, Tensor]]:
    """The carry of every part over all processes, by global slot; nothing before the first step."""
    for number, part in enumerate(trainer.parts):
        carries = [work.carry for work in trainer.work if work.part is part]
        columns = [carry_tensors(carry) for carry in carries if carry is not None]
        if len(columns) < len(carries):
            return
        for name in columns[0]:
            yield f"{number}/{name}", trainer.gathered(torch.cat([column[name] for column in columns]))


def carry_tensors(carry: Carry) -> Tensors:
    """The tensors of a carry, by name."""
    named = {f"state{index}": part for index, part in enumerate(carry.state)}
    return named | {"steps": carry.steps, "halted": carry.halted} | carry.current.columns()


def carry_from(named: Mapping[str, Tensor], slots: slice, device: torch.device, dtype: torch.dtype) -> Carry:
    """The carry of some slots, on `device`, its state in the precision `dtype`."""
    # Copies, since a slice would keep the whole batch's storage alive.
    local = {name: tensor[slots].to(device, copy=True) for name, tensor in named.items()}
    features = sum(name.startswith("state") for name in local)
    state = tuple(local[f"state{index}"].to(dtype) for index in range(features))
    current = Batch(local["inputs"], local["labels"], local["puzzle_ids"], local.get("views"))
    return Carry(state, local["steps"], local["halted"], current)
