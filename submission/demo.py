"""Run everything on two CPU cores: from real tasks to a scored submission.json and a report.

    make demo          or: python -m submission.demo [--out demo]

THE RULE, fixed before any result was seen: the demo's tasks are all of ARC-AGI-1 evaluation whose visible grids
(demonstrations and test inputs), and the output sizes that the demonstrations imply, fit the smallest canvas. No test
output takes part in the choice. The export that ships with the package (`submission/checkpoint`, whose README says how
it was trained) knows their demonstrations, as in the paper's protocol, and no test output of theirs. It answers every
test input under VOTES augmentations, and the answers vote.

Then it is adapted to an unseen task: the first by id of ARC-AGI-2 training that fits the canvas and shares no pair, in
any rotation, reflection or colouring, with the training pairs.

The amount of work is fixed and everything is computed in float32, so the score does not depend on the speed of the
machine; another order of additions may tip a close vote.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from arc_trm.checkpoint import read_export
from arc_trm.vote import Scores, score_ranked
from data_prep.canvas import CANVAS_SIDES, choose_side
from data_prep.corpus import pinned_corpus
from data_prep.files import make_folder, write_atomic
from data_prep.overlap import pair_digest, training_labels
from data_prep.program import command_line, run_program
from data_prep.progress import duration_text
from data_prep.store import TaskEntry
from data_prep.tasks import Task, read_solutions, write_tasks
from submission import film, solve
from submission.attempts import predictions
from submission.report import show_attempts, write_report
from submission.submission_file import read_submission, read_summary

SHIPPED = Path(__file__).parent / "checkpoint"
ALL_OUTPUTS = 419  # test outputs of ARC-AGI-1 evaluation
VOTES = 64  # answers to every test input: 88 of them take less than 15 TFLOP
STEPS = 100  # of the adaptation to the unseen task
FIXED_WORK = ("--canvas=strict", "--train.precision=fp32", f"--augmentations={VOTES - 1}", "--time-budget=1000h")


def fits(task: Task) -> bool:
    """Return whether the visible part of a task fits the smallest canvas."""
    return choose_side(TaskEntry.demonstrations_only(task).visible) == CANVAS_SIDES[0]


def demo_tasks() -> list[Task]:
    """Return the tasks that the rule above chooses, with their outputs."""
    return [task for task in pinned_corpus("arc1-evaluation").tasks if fits(task)]


def unseen_tasks(training: Sequence[str]) -> Iterator[Task]:
    """Yield the unseen tasks, by id, given the lines about training tasks of an export."""
    seen = {digest.pair for line in training for digest in training_labels(line)}
    tasks = sorted(pinned_corpus("arc2-training").tasks, key=lambda task: task.task_id)
    known = {task.task_id for task in demo_tasks()}
    for task in tasks:
        if fits(task) and task.task_id not in known and not seen & {pair_digest(pair).pair for pair in task.pairs}:
            yield task


def solve_by_command(tasks: Sequence[Task], out: Path, checkpoint: Path, *options: str) -> Path:
    """Write the tasks, solve them, and return the path of the submission."""
    challenges, _ = write_tasks(tasks, out)
    submission = out / "submission.json"
    files = [f"--challenges={challenges}", f"--checkpoint={checkpoint}", f"--candidates={out / 'candidates.npz'}"]
    solve.main([*files, f"--out={submission}", *FIXED_WORK, *options], watched=False)
    return submission


def by_model(submission: Path) -> Scores:
    """Return the scores of the model's predictions; guesses that fill up do not count."""
    known = read_solutions(submission.with_name("solutions.json"))
    counts = read_summary(submission)["predicted_attempts"]
    return score_ranked(predictions(read_submission(submission), counts), known, k=2)


def show_one(tasks: Sequence[Task], submission: Path, checkpoint: Path, solved: Scores) -> None:
    """Print the attempts and the film of the first solved task, or of the first task if none is solved."""
    names = [task.task_id for task in solved.per_task if task.solved]
    chosen = next((task for task in tasks if task.task_id in names), tasks[0])
    print(f"\n{show_attempts([chosen], read_submission(submission))}\n")
    challenges = submission.with_name("challenges.json")
    film.main([f"--checkpoint={checkpoint}", f"--challenges={challenges}", f"--task={chosen.task_id}"])


def main(argv: Sequence[str] | None = None) -> int:
    """Solve, score and show, and return the exit status."""
    began = time.monotonic()
    made = command_line("submission.demo", __doc__)
    made.add_argument("--out", metavar="DIR", type=Path, default=Path("demo"), help="where everything goes (demo)")
    made.add_argument("--checkpoint", metavar="DIR", type=Path, default=SHIPPED, help="another export than the shipped")
    arguments = made.parse_args(argv)
    out, checkpoint = arguments.out, arguments.checkpoint
    tasks, unseen = demo_tasks(), next(unseen_tasks(read_export(checkpoint).training_tasks))
    make_folder(out / "unseen")
    print(f"{len(tasks)} tasks of ARC-AGI-1 evaluation fit the smallest canvas; the model knows their demonstrations")
    submission = solve_by_command(tasks, out, checkpoint, "--train.steps=0")
    solved = by_model(submission)
    lines = [f"{task.task_id}  {task.solved}/{task.total}" for task in solved.per_task] + solved.lines()
    write_atomic(out / "score.txt", ("\n".join(lines) + "\n").encode())
    challenges, solutions, page = out / "challenges.json", out / "solutions.json", out / "report.html"
    title = f"The demo: {len(tasks)} tasks of ARC-AGI-1"
    write_report(submission, challenges, solutions, out / "candidates.npz", page, title)
    show_one(tasks, submission, checkpoint, solved)
    print(f"\na task that the model has seen nothing of, {unseen.name}: adapting for {STEPS} steps")
    adaptation = f"--train.steps={STEPS}", "--train.lr=4e-4"
    other = by_model(solve_by_command([unseen], out / "unseen", checkpoint, *adaptation))
    print(f"unseen task {unseen.task_id}: solved {other.outputs_solved} of {other.outputs_total} test outputs")
    print(
        f"solved {solved.outputs_solved} of {solved.outputs_total} test outputs by the model's votes, "
        f"{solved.outputs_solved / ALL_OUTPUTS:.1%} of all {ALL_OUTPUTS} of ARC-AGI-1 evaluation, "
        f"in {duration_text(time.monotonic() - began)}"
    )
    print(f"every task: {out / 'score.txt'}; scored file: {submission}; page: {page}")
    return 0


if __name__ == "__main__":
    run_program(main)
