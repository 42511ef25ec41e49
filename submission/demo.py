"""The whole road on two CPU cores in less than ten minutes: real tasks in, a scored submission.json out.

    make demo          or: python -m submission.demo [--out demo] [--time 7m] [--from-scratch]

THE RULE, fixed before any result was seen: the demo's tasks are the first 20 by id of ARC-AGI-1 evaluation whose
visible grids (demonstrations and test inputs), and the output sizes that the demonstrations imply, fit the smallest
canvas. No test output takes part in the choice. The export that ships with the package (`submission/checkpoint`, whose
README says how it was trained) is adapted to them; it has seen ARC-AGI-1 training tasks and ConceptARC, and none that
gives a test pair of ARC-AGI-1 evaluation away. With --from-scratch, half of the time trains a new model instead.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from arc_trm import run
from arc_trm.config import RunConfig
from arc_trm.datasets import arc_data
from arc_trm.device import make_accelerator
from arc_trm.presets import PRESETS, override
from arc_trm.trainer import Trainer
from arc_trm.vote import score_ranked
from data_prep.canvas import CANVAS_SIDES, choose_side
from data_prep.corpus import Corpus, merge, pinned_corpus
from data_prep.files import run_program, write_atomic
from data_prep.progress import duration_text
from data_prep.store import ArcStore, TaskEntry, build_store
from data_prep.tasks import Pair, Task, read_solutions, write_tasks
from submission import report, score, solve
from submission.attempts import predictions, read_submission
from submission.hardware import try_arithmetic
from submission.plan import duration
from submission.submission_file import make_folder, read_summary

TASKS = 20
SIDE = CANVAS_SIDES[0]
SHIPPED = Path(__file__).parent / "checkpoint"
CONFIG: RunConfig = override(
    PRESETS["arc1-small"],
    {
        "halting": {"max_supervision_steps": 8},
        "train": {"steps": 100_000, "warmup_steps": 30},
        "log": {"track": "none", "checkpoint_every": 100_000},
    },
)
# The demo's tasks are small, and so are their answers: an unfinished model's are not repeated on the full canvas.
SOLVE_OPTIONS = (
    "--canvas=strict", "--augmentations=8", "--batch-size=64", "--lr=4e-4", "--embedding-share=0.1", "--compile",
    "--likelihood",
)  # fmt: skip


def hidden(task: Task) -> Task:
    """The task as the competition hands it out: without test outputs."""
    return Task(task.task_id, task.corpus, task.demonstrations, tuple(Pair(pair.input, None) for pair in task.tests))


def demo_tasks() -> list[Task]:
    """The tasks that the rule above chooses, with their outputs."""
    tasks = sorted(pinned_corpus("arc1-evaluation").tasks, key=lambda task: task.task_id)
    return [task for task in tasks if choose_side(hidden(task)) == SIDE][:TASKS]


def training_store(augmentations: int = 100) -> ArcStore:
    """ARC-AGI-1 training tasks on the smallest canvas, guarded against ARC-AGI-1 evaluation."""
    corpus, guarded = pinned_corpus("arc1-training"), pinned_corpus("arc1-evaluation")
    small = tuple(task for task in corpus.tasks if choose_side(TaskEntry.all_pairs(task).visible) == SIDE)
    merged = merge([Corpus(corpus.name, corpus.version, small)], guarded=[guarded])
    return build_store(merged.entries, augmentations, 0, {"recipe": "demo", **merged.describe()})


def train(out: Path, seconds: float) -> Path:
    """Train from scratch for so long; returns the run folder with its export."""
    store = training_store()
    accelerator = make_accelerator("none", out)
    # bf16 is twice as fast on some CPUs and many times slower on others.
    config = override(CONFIG, {"train": {"precision": try_arithmetic(accelerator.device).precision}})
    data = arc_data(store, config, accelerator.device)
    trainer = Trainer(config, data.parts, accelerator, data.planned_steps(config))
    trainer.names = data.names
    run.begin(trainer, run.Start(out), "demo")
    log = run.MetricLog(accelerator, out, config, 0)
    reason = run.train(trainer, out, data.facts | {"data_digest": "demo"}, None, log, time.monotonic() + seconds)
    run.export(trainer, out / "export", data.training_tasks, data.facts)
    print(f"trained on {len(store.groups)} tasks, {trainer.step} steps, {reason}")
    return out


def scored(submission: Path, solutions: Path, log: Path) -> str:
    """Score the submission, every task a line in `log`; returns the line that says how many outputs it solved."""
    attempts, known = read_submission(submission), read_solutions(solutions)
    scores = score.score(attempts, known)
    lines = [f"{task.task_id}  {task.solved}/{task.total}" for task in scores.per_task] + scores.lines()
    write_atomic(log, ("\n".join(lines) + "\n").encode())
    print("\n".join(scores.lines()))
    # Simple guesses stand where the model predicted nothing; what these solve, the model did not solve.
    predicted = predictions(attempts, (read_summary(submission) or {})["predicted_attempts"])
    by_model = score_ranked(predicted, known, k=2).outputs_solved
    return f"solved {scores.outputs_solved} of {scores.outputs_total} test outputs, {by_model} of them by the model"


def main(argv: Sequence[str] | None = None) -> int:
    """Train, solve, score; the exit status."""
    began = time.monotonic()
    made = argparse.ArgumentParser(
        prog="python -m submission.demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--out", metavar="DIR", type=Path, default=Path("demo"), help="where everything goes (demo)")
    made.add_argument("--time", metavar="TIME", type=duration, default=420.0, help="adapting and predicting (7m)")
    made.add_argument("--from-scratch", action="store_true", help="half of the time trains a new model")
    arguments = made.parse_args(argv)
    out: Path = arguments.out
    make_folder(out)
    tasks = demo_tasks()
    challenges, solutions = write_tasks(tasks, out)
    print(f"the first {len(tasks)} tasks of ARC-AGI-1 evaluation that fit the smallest canvas: {challenges}")
    files = {"--challenges": challenges, "--candidates": out / "candidates.npz"}
    submission = out / "submission.json"
    with tempfile.TemporaryDirectory(dir=out, prefix=".run.") as folder:
        seconds = arguments.time / 2 if arguments.from_scratch else arguments.time
        checkpoint = train(Path(folder), seconds) if arguments.from_scratch else SHIPPED
        places = _options(files | {"--checkpoint": checkpoint, "--out": submission})
        solve.main([*places, "--time-budget", f"{seconds}s", *SOLVE_OPTIONS], watched=False)
    solved = scored(submission, solutions, out / "score.txt")
    page = {"--solutions": solutions, "--out": out / "report.html"}
    report.main([str(submission), *_options(files | page), "--title", "The demo: 20 tasks of ARC-AGI-1"])
    print(f"{solved} in {duration_text(time.monotonic() - began)}")
    print(f"every task: {out / 'score.txt'}; scored file: {submission}")
    return 0


def _options(paths: Mapping[str, Path]) -> list[str]:
    return [word for name, path in paths.items() for word in (name, str(path))]


if __name__ == "__main__":
    run_program(main)
