"""What a solving run is going to do with its time: the schedule itself, on a clock that its own estimates move."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from arc_trm.trainer import Trainer
from data_prep.progress import duration_text
from submission.plan import Kind, Schedule

# Compiling is taken to last so many seconds, where it has them.
COMPILING = 300.0
FASTEST = 1e-4  # seconds of a step; a forecast must come to an end
# Numbers that are kept for the backward pass, in units of tokens × width, by a layer in one pass of the network: as
# counted for the paper's model.
SAVED_BY_LAYER = 22
# Copies of the weights: themselves, gradients, two moments, the average; weights and averages when last finite.
COPIES = 7
NAMES = {
    Kind.EARLY_VOTE: "first votes",
    Kind.COMPILE: "compiling",
    Kind.ADAPT: "adaptation",
    Kind.VOTE: "prediction",
    Kind.SAVE: "saving",
}


@dataclass
class Forecast:
    """Seconds of each phase, optimiser steps in all, and votes of an output."""

    seconds: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    votes: int = 0


def forecast(schedule: Schedule) -> Forecast:
    """What `schedule` will have done in the end, if everything takes as long as it was measured or guessed."""
    clock = _Clock(schedule.clock.now())
    plan = replace(schedule.clock, now=clock, phases={})
    copy = replace(schedule, clock=plan, answers=schedule.answers.copy(), stepping=schedule.stepping.copy())
    spent = schedule.clock.phases
    found = Forecast({name: spent[name] for name in NAMES.values() if name in spent}, votes=schedule.voted)
    while (unit := copy.next()).kind != Kind.END:
        began = clock.time
        if unit.kind == Kind.ADAPT:
            pace = max(copy.step_seconds(), FASTEST)
            # Many at once: what an estimate changes from look to look does not matter here.
            fitting = int(unit.seconds / pace)
            count = max(1, min(fitting, max(unit.steps, fitting // 50)))
            count = min(count, copy.steps - copy.step) if copy.steps else count
            clock.time += count * pace
            copy.stepped(count, count * pace)
        elif unit.kind in (Kind.VOTE, Kind.EARLY_VOTE):
            clock.time += min(copy.pass_seconds(unit.start, unit.stop), unit.seconds)
            if unit.kind == Kind.VOTE:
                found.votes += unit.stop - unit.start
                copy.passed(unit.stop, True)
            else:
                copy.early_voted(True)
        elif unit.kind == Kind.COMPILE:
            clock.time += min(COMPILING, unit.seconds)
            copy.compiled()
        else:
            copy.saved()
        name = NAMES[unit.kind]
        found.seconds[name] = found.seconds.get(name, 0.0) + clock.time - began
    found.steps = copy.step
    return found


@dataclass
class _Clock:
    time: float

    def __call__(self) -> float:
        return self.time


def plan_lines(planned: Forecast, schedule: Schedule, trainer: Trainer, processes: int) -> list[str]:
    """The forecast for a reader, with what it means for the rows of the embedding table and for memory."""
    batch, rows = trainer.batch_size, len(trainer.embedding.table)
    pace, visits = schedule.step_seconds(), round(planned.steps * batch / rows, 1)
    figures = {
        "adaptation": f"{planned.steps} steps of {batch} examples, {batch / pace:.4g} examples/s, "
        f"{visits:g} supervision steps for each of {rows} embedding rows" if pace else "",
        "prediction": f"{planned.votes} votes an output",
    }  # fmt: skip
    lines = [
        f"plan      {name}: {duration_text(seconds)}" + (f", {figures[name]}" if figures.get(name) else "")
        for name, seconds in planned.seconds.items()
        if seconds
    ]
    state, activations = memory(trainer, batch // processes)
    lines.append(
        f"plan      memory a process: {state / 1e9:.2g} GB of state, about {activations / 1e9:.2g} GB for a step "
        f"of {batch // processes} examples at once"
    )
    return lines


def memory(trainer: Trainer, examples: int) -> tuple[float, float]:
    """Bytes of a process's state, and about as many as `examples` at once take in a step."""
    weights = sum(parameter.numel() for parameter in trainer.model.parameters())
    state = 4.0 * (COPIES * weights + 2 * trainer.embedding.table.numel())
    model = trainer.config.model
    tokens = sum(part.slots * (part.source.seq_len + model.prefix) for part in trainer.parts) / trainer.batch_size
    passes = model.layers * (model.latent_steps + 1)
    kept = SAVED_BY_LAYER * tokens * model.hidden * passes * trainer.dtype.itemsize
    return state, kept * examples


def against_fact(planned: Forecast, phases: Mapping[str, float], steps: int, votes: float) -> Sequence[str]:
    """Plan beside fact, a line."""
    spent = ((name, seconds, phases.get(name, 0.0)) for name, seconds in planned.seconds.items())
    parts = [f"{name} {duration_text(seconds)} / {duration_text(fact)}" for name, seconds, fact in spent]
    parts += [f"steps {planned.steps} / {steps}", f"votes an output {planned.votes} / {math.floor(votes)}"]
    return [f"plan / fact: {', '.join(parts)}"]
