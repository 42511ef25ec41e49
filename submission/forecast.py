"""What a solving run is going to do with its time: the schedule itself, on a clock that its own estimates move."""

from copy import deepcopy
from dataclasses import dataclass, replace

from arc_trm.trainer import Trainer
from data_prep.progress import duration_text
from submission.schedule import Kind, Schedule

# Compiling is taken to last so many seconds, where it has them.
COMPILING = 120.0
FASTEST = 1e-4  # seconds of a step; a forecast must come to an end
# Numbers that are kept for the backward pass, in units of tokens × width, by a layer in one pass of the network: as
# counted for the paper's model.
SAVED_BY_LAYER = 22
# Copies of the weights: themselves, gradients, two moments, the average; weights and averages when last finite.
COPIES = 7


@dataclass
class Forecast:
    """Seconds of each kind of work, optimiser steps in all, and votes of an output."""

    seconds: dict[Kind, float]
    steps: int
    votes: int


def forecast(schedule: Schedule) -> Forecast:
    """What `schedule` will have done in the end, if everything takes as long as it was measured or guessed."""
    time = schedule.clock.now()
    clock = replace(schedule.clock, now=lambda: time)
    answers, stepping = deepcopy(schedule.answers), deepcopy(schedule.stepping)
    plan = replace(schedule, clock=clock, answers=answers, stepping=stepping)
    seconds = {kind: clock.phases.get(kind.value, 0.0) for kind in Kind}
    while (unit := plan.next()).kind != Kind.END:
        began = time
        if unit.kind == Kind.ADAPT:
            pace = max(plan.step_seconds(), FASTEST)
            # Many at once: what an estimate changes from look to look does not matter here.
            fitting = int(unit.seconds / pace)
            count = max(1, min(fitting, max(unit.steps, fitting // 50)))
            count = min(count, plan.steps - plan.step) if plan.steps else count
            time += count * pace
            plan.stepped(count, count * pace)
        elif unit.kind in (Kind.VOTE, Kind.EARLY_VOTE):
            time += min(plan.pass_seconds(unit.start, unit.stop), unit.seconds)
            if unit.kind == Kind.VOTE:
                plan.passed(unit.stop, True)
            else:
                plan.early_voted(True)
        elif unit.kind == Kind.COMPILE:
            time += min(COMPILING, unit.seconds)
            plan.compiled()
        else:
            plan.saved()
        seconds[unit.kind] += time - began
    return Forecast(seconds, plan.step, plan.cast)


def plan_lines(planned: Forecast, schedule: Schedule, trainer: Trainer, processes: int) -> list[str]:
    """The forecast for a reader, with what it means for the rows of the embedding table and for memory."""
    batch, rows, pace = trainer.batch_size, len(trainer.embedding.table), schedule.step_seconds()
    figures = {Kind.VOTE: f", {planned.votes} votes an output"}
    if pace:
        figures[Kind.ADAPT] = (
            f", {planned.steps} steps of {batch} examples, {batch / pace:.4g} examples/s, "
            f"{round(planned.steps * batch / rows, 1):g} supervision steps for each of {rows} embedding rows"
        )
    lines = [
        f"plan      {kind.value}: {duration_text(seconds)}{figures.get(kind, '')}"
        for kind, seconds in planned.seconds.items()
        if seconds
    ]
    share = batch // processes
    state, activations = memory(trainer, share)
    held = f"{state / 1e9:.2g} GB of state, about {activations / 1e9:.2g} GB for a step of {share} examples at once"
    return [*lines, f"plan      memory a process: {held}"]


def memory(trainer: Trainer, examples: int) -> tuple[float, float]:
    """Bytes of a process's state, and about as many as `examples` at once take in a step."""
    weights = sum(parameter.numel() for parameter in trainer.model.parameters())
    state = 4.0 * (COPIES * weights + 2 * trainer.embedding.table.numel())
    model = trainer.config.model
    tokens = sum(part.slots * (part.source.seq_len + model.prefix) for part in trainer.parts) / trainer.batch_size
    passes = model.layers * (model.latent_steps + 1)
    kept = SAVED_BY_LAYER * tokens * model.hidden * passes * trainer.dtype.itemsize
    return state, kept * examples


def plan_beside_fact(planned: Forecast, schedule: Schedule) -> str:
    """What was planned and what came of it, in a line."""
    phases = schedule.clock.phases
    parts = [
        f"{kind.value} {duration_text(seconds)} / {duration_text(phases.get(kind.value, 0.0))}"
        for kind, seconds in planned.seconds.items()
        if seconds
    ]
    parts += [f"steps {planned.steps} / {schedule.step}", f"votes an output {planned.votes} / {schedule.cast}"]
    return f"plan / fact: {', '.join(parts)}"
