"""Does adapting the shipped export to unseen tasks help: all together or each alone, embeddings alone or everything?

    python -m tests.experiments.adaptation --out runs/adaptation
    python -m tests.experiments.adaptation --out runs/adaptation jointly:embeddings:0 alone:everything:0

The tasks are those of ARC-AGI-2 *training* that the demo's rule calls unseen (`submission.demo.unseen_tasks`); the
evaluation tasks are never looked at. A cell is WAY:MOVES:SEED, see WAYS and MOVES. It adapts with the steps of
`submission.solve` and measures, after some of them, the moving average on the test pairs: token loss
and exact answers in float32 under eight rotations and reflections in the task's own colours, and outputs solved by the
votes of VIEWS puzzles of a task, two attempts. OUT/results.jsonl holds a line for every task, cell and number of steps;
what is there is not run again (one program at a time). The table is printed at the end, or at once with --table.
"""

import argparse
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import torch

from arc_trm.checkpoint import Export, RowNames, read_export
from arc_trm.device import make_accelerator
from arc_trm.sampler import evaluation_rows
from arc_trm.scoring import solutions_of
from arc_trm.trainer import Trainer
from arc_trm.vote import score_ranked
from data_prep.files import write_atomic
from data_prep.grid import Grid
from data_prep.store import ArcStore, TaskEntry, build_store
from data_prep.tasks import Task
from submission.adapt import make_trainer
from submission.demo import SHIPPED, unseen_tasks
from submission.session import chosen_precision
from submission.settings import Settings
from tests.experiments import arms, held_out

VIEWS = 16  # puzzles of a task that vote
STEPS = (50, 200, 800)  # of all tasks together, after which a cell is measured


class Way(NamedTuple):
    """How the tasks of one run are chosen, and how many steps of how many examples it does."""

    slots: int
    together: bool
    steps: tuple[int, ...]
    every: int = 1  # takes every so many-th task by id


# `alone` visits a task as often as `jointly`, where each of 48 tasks gets 1/48 of the examples.
WAYS = {
    "untouched": Way(16, True, (0,)),
    "jointly": Way(16, True, STEPS),
    "alone": Way(4, False, (4, 17, 67), every=3),
}
# The first part of the steps, in which embeddings move alone; the trunk's rate after it.
MOVES = {"embeddings": (1.0, 1e-4), "everything": (0.0, 1e-4), "quarter": (0.25, 1e-4), "everything-4e-4": (0.0, 4e-4)}
CELLS = [f"{way}:{moves}:{seed}" for seed in range(3) for way in ("jointly", "alone") for moves in tuple(MOVES)[:2]]


def measured(trainer: Trainer, export: Export, store: ArcStore) -> Iterator[dict[str, Any]]:
    """For every task: its id, token loss, share of exact answers, outputs solved, outputs."""
    with trainer.averaged():
        weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    names = RowNames.of_owners(store.demonstration_digests()).owners
    now = replace(export, weights=weights, puzzle_table=trainer.embedding.table.clone(), puzzle_names=names)
    rows = held_out.views(evaluation_rows(store, augmentations=1), own=True)
    found = np.array(list(held_out.answers(now, store, rows)))
    owners = store.pair_groups[rows.pairs]
    ranked: dict[str, list[list[Grid]]] = defaultdict(list)
    tally = arms.voted(trainer, store, VIEWS)
    for number, output in enumerate(tally.outputs):
        ranked[output.task_id].append(tally.attempts(number))
    scores = {score.task_id: score for score in score_ranked(ranked, solutions_of(store), k=2).per_task}
    for number, group in enumerate(store.groups):
        loss, exact = found[owners == number].mean(0).tolist()
        score = scores[group.name]
        yield {"task": group.task_id, "loss": loss, "exact": exact, "solved": score.solved, "outputs": score.total}


def adapted(
    export: Export, tasks: Sequence[Task], settings: Settings, marks: Sequence[int]
) -> Iterator[tuple[int, float, float | None, list[dict[str, Any]]]]:
    """(step, seconds of the steps so far, token loss on the demonstrations, what is measured) at each of `marks`."""
    store = build_store([TaskEntry.demonstrations_only(task) for task in tasks], VIEWS - 1, seed=0)
    trainer = make_trainer(settings, export, store, make_accelerator("none", Path()))
    spent, loss, alone = 0.0, None, settings.embedding_share * (settings.steps or 0)
    for mark in marks:
        began = time.process_time()
        while trainer.step < mark:
            trainer.trunk_factor = float(trainer.step >= alone)
            trainer.train_step()
        spent += time.process_time() - began
        if trainer.step:
            loss = trainer.read_metrics()["token_loss"]
            trainer.check_finite()
        yield mark, spent, loss, list(measured(trainer, export, store))


Lines = dict[tuple[str, int, str], dict[str, Any]]  # by cell, steps, task


def read_lines(path: Path) -> Lines:
    """What a file of results holds."""
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
    return {(line["cell"], line["steps"], line["task"]): line for line in lines}


def run_cell(cell: str, export: Export, tasks: Sequence[Task], precision: str, path: Path, until: int) -> None:
    """Run what is missing of one cell `until` a number of steps, and write the results anew at each measurement."""
    word, moves, seed = cell.split(":")
    way, (share, rate) = WAYS[word], MOVES[moves]
    chosen, lines, marks = tasks[:: way.every], read_lines(path), [step for step in way.steps if step <= until]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    for part in [chosen] if way.together else [[task] for task in chosen]:
        if all((cell, marks[-1], task.task_id) in lines for task in part):
            continue
        settings = Settings(
            steps=way.steps[-1],
            batch_size=way.slots,
            lr=rate,
            embedding_share=share,
            canvas="strict",
            precision=precision,
            seed=int(seed),
        )
        for step, seconds, shown, found in adapted(export, part, settings, marks):
            facts = {"cell": cell, "commit": commit, "steps": step, "seconds": seconds, "shown": shown}
            lines |= {(cell, step, each["task"]): facts | each for each in found}
            write_atomic(path, b"".join(orjson.dumps(line) + b"\n" for line in lines.values()))
            loss = np.mean([each["loss"] for each in found])
            print(f"{cell} {part[0].task_id} {step}: loss {loss:.3f}", flush=True)


def table(lines: Lines) -> str:
    """The results over seeds; intervals (95 %) are over tasks, of the change from the untouched export."""
    untouched = {line["task"]: line["loss"] for line in lines.values() if not line["steps"]}
    kinds: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for line in lines.values():
        kinds[line["cell"].rpartition(":")[0], line["steps"]].append(line)
    heads = ("cell", "steps", "tasks", "held-out loss", "change", "exact", "solved, by seed", "loss on demonstrations")
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for (kind, steps), some in kinds.items():
        names, cells = ({line[key] for line in some} for key in ("task", "cell"))
        losses = {name: np.mean([line["loss"] for line in some if line["task"] == name]) for name in names}
        change = interval([losses[name] - untouched[name] for name in names])
        solved = ", ".join(str(sum(line["solved"] for line in some if line["cell"] == cell)) for cell in sorted(cells))
        exact, shown = (np.mean([line[key] or 0.0 for line in some]) for key in ("exact", "shown"))
        rows.append(
            f"| {kind} | {steps} | {len(names)} | {np.mean(list(losses.values())):.3f} | {change} | {exact:.1%} | "
            f"{solved} of {sum(line['outputs'] for line in some) // len(cells)} | {shown:.3f} |"
        )
    return "\n".join(rows)


def interval(changes: Sequence[float]) -> str:
    """Mean and 95 % interval."""
    return f"{np.mean(changes):+.3f} ± {1.96 * np.std(changes) / max(1, len(changes) - 1) ** 0.5:.3f}"


def difference(lines: Lines, names: Sequence[str]) -> str:
    """How much more one cell loses than another on the tasks that both have; a name is CELL@STEPS."""
    one, other = (
        {task: line["loss"] for (cell, steps, task), line in lines.items() if f"{cell}@{steps}" == name}
        for name in names
    )
    changes = [one[task] - other[task] for task in one if task in other]
    return f"{' minus '.join(names)}: {interval(changes)} over {len(changes)} tasks"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", help=f"WAY of {', '.join(WAYS)}; MOVES of {', '.join(MOVES)}")
    parser.add_argument("--out", type=Path, default=Path("runs/adaptation"))
    parser.add_argument("--until", metavar="STEPS", type=int, default=STEPS[-1], help="end runs of more steps there")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--compare", nargs=2, metavar="CELL@STEPS", help="run nothing, print a difference of losses")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "results.jsonl"
    if not arguments.table and not arguments.compare:
        export = read_export(SHIPPED)
        tasks = list(unseen_tasks(export.training_tasks))
        print(f"{len(tasks)} tasks, {sum(len(task.tests) for task in tasks)} outputs", flush=True)
        precision = chosen_precision(Settings(), export.model, make_accelerator("none", arguments.out))
        for cell in ("untouched:embeddings:0", *(arguments.cells or CELLS)):
            run_cell(cell, export, tasks, precision, path, arguments.until)
    lines = read_lines(path)
    print(difference(lines, arguments.compare) if arguments.compare else table(lines))


if __name__ == "__main__":
    main()
