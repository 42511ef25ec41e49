"""Build a dataset on disk from task files: ARC tasks, Sudoku puzzles or mazes.

python -m data_prep.build arc --recipe arc1 --conceptarc ConceptARC/corpus --out data/arc1
python -m data_prep.build arc --source own=tasks.json:solutions.json --out data/own
python -m data_prep.build sudoku --csv train.csv test.csv --out data/sudoku
python -m data_prep.build sudoku --generate --guesses 20 --out data/sudoku
python -m data_prep.build maze --generate --out data/maze
"""

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_prep import boards, maze, sudoku
from data_prep.boards import BoardRows, BoardStore, board_store, make_boards, read_csv
from data_prep.canvas import CANVAS_SIDE, CANVAS_SIDES
from data_prep.corpus import (
    CONCEPTARC,
    PINNED,
    RECIPES,
    Corpus,
    Merge,
    Recipe,
    merge,
    pinned_corpus,
    ruler,
    ruler_corpus,
    without,
)
from data_prep.files import InputError, file_digest, megabytes, refuse_foreign
from data_prep.generated import join, read_generated
from data_prep.program import command_line, run_program, whole
from data_prep.store import ArcStore, TaskEntry, build_store, save
from data_prep.tasks import Task, read_tasks

CANVAS_HELP = f"only tasks whose visible grids fit this canvas: {', '.join(map(str, CANVAS_SIDES))} (all)"
HOLD_OUT_HELP = "train only on the demonstrations of a list of the ruler, and score it in place of the recipe's tasks: "
EXCLUDE_HELP = "train on nothing of a list of the ruler, nor on tasks that share a pair with one of it"
SOURCE_HELP = "a file or folder of tasks (SOLUTIONS: Kaggle's file of outputs), or a corpus: " + ", ".join(PINNED)


def build_arc(
    out: Path,
    *,
    recipe: str | None = None,
    source: Sequence[str] = (),
    scored: Sequence[str] = (),
    conceptarc: Path | None = None,
    augmentations: int = 1000,
    seed: int = 0,
    canvas: int = CANVAS_SIDE,
    hold_out: Sequence[str] = (),
    exclude: Sequence[str] = (),
    generated: Path | None = None,
    allow_leak: bool = False,
) -> ArcStore:
    """Build an ARC dataset, write it to the folder `out`, and print what was found.

    The arguments are the options of `python -m data_prep.build arc`; `conceptarc` is ConceptARC's folder. Raises
    InputError for wrong input.
    """
    refuse_foreign(out)
    training, asked, guarded, own = _corpora(recipe, source, scored, conceptarc)
    described = [corpus.describe() for corpus in training + asked]
    held, excluded = ([ruler_corpus(name) for name in names] for names in (hold_out, exclude))
    if held or excluded:
        listed = [task for corpus in held + excluded for task in corpus.tasks]
        training = [without(corpus, listed) for corpus in training]
    asked += held
    held_out = {task.name for corpus in held for task in corpus.tasks}
    merged = merge(training, asked, guarded, own, allow_leak)
    print_findings(merged)
    facts: dict[str, Any] = {"recipe": recipe, "canvas": canvas, "corpora": described}
    facts |= {"held_out": sorted(hold_out), "excluded": sorted(exclude)}
    if generated is None:
        entries = _fitting(merged.entries, canvas)
    else:
        unseen = [task for corpus in (*asked, *guarded, *excluded) for task in corpus.tasks]
        entries, facts["generated"] = _with_generated(merged.entries, generated, unseen, held_out, canvas)
    if held_out:  # only these are scored; what the recipe scores stays unseen
        entries = tuple(replace(entry, scored=entry.task.name in held_out) for entry in entries)
    leaks = {"leak": list(map(asdict, merged.leaks)), "left_out": list(map(asdict, merged.left_out))}
    store = build_store(entries, augmentations, seed, {**facts, **leaks})
    save(store, out)
    print(summary(store, out))
    return store


def _corpora(
    recipe: str | None, source: Sequence[str], scored: Sequence[str], conceptarc: Path | None
) -> tuple[list[Corpus], list[Corpus], list[Corpus], set[str]]:
    """Read the training, scored and guarded corpora; also returns the names of those that the user chose."""
    parts = Recipe("") if recipe is None else RECIPES[recipe]
    named = [name for name in parts.training if name != CONCEPTARC or conceptarc is not None]
    if len(named) < len(parts.training):
        print("built without ConceptARC: name its folder with --conceptarc DIR")
    training, asked, guarded, own, own_scored = (
        [_corpus(text, conceptarc) for text in texts] for texts in (named, parts.scored, parts.guarded, source, scored)
    )
    training, asked = training + own, asked + own_scored
    names = [corpus.name for corpus in training + asked]
    if not names:
        raise InputError("nothing to build from, expected --recipe, --source or --scored")
    for name in set(names):
        if names.count(name) > 1:
            raise InputError(f"corpus {name} is named twice, expected every name once")
    return training, asked, guarded, {corpus.name for corpus in own + own_scored}


def _corpus(text: str, conceptarc: Path | None) -> Corpus:
    """Read the corpus that NAME or NAME=PATH[:SOLUTIONS] stands for."""
    name, given, path = text.partition("=")
    if not re.fullmatch(r"[\w.-]+", name):
        raise InputError(f"source {text!r}: expected NAME=PATH with a name of letters, digits, '.', '_' and '-'")
    if given:
        # A path that exists may hold a colon itself.
        head, colon, tail = path.rpartition(":")
        split = colon and not Path(path).exists()
        tasks = read_tasks(head, tail, name) if split else read_tasks(path, corpus=name)
        return Corpus(name, "own", tuple(tasks))
    corpus = pinned_corpus(name, conceptarc)
    if corpus.version == "unpinned":
        print(f"{conceptarc}: not the pinned content of ConceptARC ({len(corpus.tasks)} tasks), taken as it is")
    return corpus


def _fitting(entries: Sequence[TaskEntry], side: int) -> tuple[TaskEntry, ...]:
    """Select the tasks that fit a canvas of `side`, or whose generated pairs do; raises InputError if none does."""
    placed = [entry.on_canvas(side) for entry in entries]
    fit = tuple(entry for entry in placed if entry is not None)
    if not fit:
        raise InputError(f"--canvas {side}: none of {len(entries)} tasks fits, expected a larger canvas")
    whole_tasks = sum(bool(entry.own) for entry in fit)
    if whole_tasks < len(entries):
        print(f"took {whole_tasks} of {len(entries)} tasks: those whose visible grids fit a canvas of {side}x{side}")
    if whole_tasks < len(fit):
        print(f"took the generated pairs of {len(fit) - whole_tasks} larger tasks")
    too_large = sum(len(entry.generated) for entry in entries) - sum(len(entry.generated) for entry in fit)
    if too_large:
        print(f"left out {too_large} generated pairs larger than the canvas of their task")
    return fit


def _with_generated(
    entries: Sequence[TaskEntry], folder: Path, unseen: Sequence[Task], held_out: set[str], side: int
) -> tuple[tuple[TaskEntry, ...], dict[str, Any]]:
    """Select the entries that fit a canvas of `side`, with a folder's generated pairs; also returns facts on these."""
    tasks, facts = read_generated(folder)
    joined = join(entries, tasks, unseen, held_out)
    for line in joined.findings():
        print(line)
    fitting = _fitting(joined.entries, side)
    counts = [len(entry.generated) for entry in fitting if entry.generated]
    return fitting, {**facts, "tasks": len(counts), "count": sum(counts), "dropped": sum(joined.dropped.values())}


def print_findings(merged: Merge) -> None:
    """Print a line for each kind of leaks and repeats that the merge found."""
    if merged.left_out:
        pairs = {(leak.training, leak.pair): leak for leak in merged.left_out}
        named = ", ".join(f"{leak.training} (= {leak.scored})" for leak in pairs.values())
        print(f"left out {len(pairs)} training pairs that equal test pairs to stay unseen: {named}")
    if merged.leaks:
        names = {leak.training for leak in merged.leaks}
        print(f"LEAK allowed: {len(names)} training tasks contain test pairs that are scored")
    if merged.merged:
        print(f"merged {merged.merged} training tasks that occur twice")


def summary(store: ArcStore, folder: Path) -> str:
    """Return the final line: the folder, numbers of tasks, pairs and puzzles, and the size."""
    counts = store.manifest["counts"]
    generated = f" ({counts['generated_pairs']} generated)" if counts["generated_pairs"] else ""
    return (
        f"wrote {folder}: {counts['groups']} tasks, {counts['training_pairs']} training pairs{generated}, "
        f"{counts['scored_outputs']} scored outputs, {counts['puzzles']} puzzles, {megabytes(folder)}"
    )


# Sudokus and mazes --------------------------------------------------------------------------------------------------

KINDS = {"sudoku": sudoku, "maze": maze}  # each has parse, make and class_digests
DEFAULT_ROWS = 1000
# Training rows drawn beyond those asked for, to replace rows that the test file holds as well.
SPARE_ROWS = 100


def build_boards(
    kind: str,
    out: Path,
    *,
    csv: Sequence[Path] | None = None,
    train_rows: int = DEFAULT_ROWS,
    test_rows: int | None = None,
    seed: int = 0,
    **wish: int | None,
) -> BoardStore:
    """Build a dataset of `sudoku` or `maze`, write it to the folder `out`, and print what was found.

    The boards come from two CSV files as published (train, test), or are generated; only then `wish` is allowed: the
    `side`, and for Sudokus the least `guesses`. Raises InputError if files are malformed or boards as wished do not
    seem to exist.
    """
    refuse_foreign(out)
    given = {name: value for name, value in wish.items() if value is not None}
    facts: dict[str, Any]
    if csv is not None:
        if given:
            raise InputError(f"--{next(iter(given))} goes with --generate, found it without")
        train, test, left_out = _read(kind, csv, train_rows, test_rows, seed)
        read = [{"name": path.name, "digest": file_digest(path)} for path in csv]
        facts = {"source": "csv", "files": read, "left_out": left_out}
    else:
        of, test_rows = KINDS[kind], test_rows or DEFAULT_ROWS
        rows = make_boards(partial(of.make, **given), of.class_digests, test_rows + train_rows, seed)
        # The test boards come first: they do not depend on how many train.
        train, test, facts = rows[test_rows:], rows[:test_rows], {"source": "generated", "generator": given}
    side = math.isqrt(train.questions.shape[1])
    vocabulary = sudoku.vocab_size(side) if kind == "sudoku" else maze.VOCAB_SIZE
    store = board_store(kind, vocabulary, train, test, {"seed": seed, **facts})
    boards.save(store, out)
    print(
        f"wrote {out}: {len(train)} training and {len(test)} test puzzles of {side} x {side}, "
        f"mean rating {train.ratings.mean():.1f} and {test.ratings.mean():.1f}, {megabytes(out)}"
    )
    return store


def _read(
    kind: str, files: Sequence[Path], train_rows: int, test_rows: int | None, seed: int
) -> tuple[BoardRows, BoardRows, int]:
    """Draw training and test rows; leave out and count training rows that equal a test row up to symmetry."""
    parse, class_digests = KINDS[kind].parse, KINDS[kind].class_digests
    train, test = read_csv(files[0], parse, train_rows + SPARE_ROWS, seed), read_csv(files[1], parse, test_rows, seed)
    sizes = [rows.questions.shape[1] for rows in (train, test)]
    if sizes[0] != sizes[1]:
        raise InputError(f"training puzzles of {sizes[0]} cells and test puzzles of {sizes[1]}, expected one size")
    shared = np.isin(class_digests(train), class_digests(test))
    if shared.any():
        print(f"left out {int(shared.sum())} drawn training puzzles that equal test puzzles up to symmetry")
    if shared.all():
        raise InputError(f"{files[0]}: every puzzle drawn equals a test puzzle up to symmetry")
    return train[~shared][:train_rows], test, int(shared.sum())


# The command --------------------------------------------------------------------------------------------------------


def _add_arc_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--recipe", choices=list(RECIPES), help="; ".join(f"{name}: {recipe.help}" for name, recipe in RECIPES.items()))
    add("--conceptarc", metavar="DIR", type=Path, help="ConceptARC's folder of task folders")
    source = "NAME[=PATH[:SOLUTIONS]]"
    add("--source", metavar=source, action="append", default=[], help=f"train on all pairs of {SOURCE_HELP}")
    add("--scored", metavar=source, action="append", default=[], help="train on its demonstrations, score its tests")
    add("--augmentations", metavar="N", type=whole(), default=1000, help="puzzles beside each task itself (1000)")
    add("--seed", metavar="N", type=whole(), default=0, help="which augmentations are drawn (0)")
    add("--canvas", metavar="SIDE", type=int, choices=CANVAS_SIDES, default=CANVAS_SIDE, help=CANVAS_HELP)
    add("--hold-out", metavar="LIST", nargs="+", default=[], help=HOLD_OUT_HELP + ", ".join(ruler()))
    add("--exclude", metavar="LIST", nargs="+", default=[], help=EXCLUDE_HELP)
    add("--generated", metavar="DIR", type=Path, help="a folder of task files with generated pairs")
    add("--allow-leak", action="store_true", help="build although --source contains test pairs that are scored")
    add("--out", metavar="DIR", type=Path, required=True, help="the dataset's folder, new or to be replaced")


def _add_board_options(parser: argparse.ArgumentParser, kind: str) -> None:
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--csv", nargs=2, metavar=("TRAIN", "TEST"), type=Path, help="the two published files")
    source.add_argument("--generate", dest="csv", action="store_const", const=None, help="make puzzles here")
    add("--train-rows", metavar="N", type=whole(1), default=DEFAULT_ROWS, help="training puzzles, drawn (1000)")
    add("--test-rows", metavar="N", type=whole(1), help="test puzzles, drawn (published files: all, generated: 1000)")
    add("--seed", metavar="N", type=whole(), default=0, help="which rows are drawn, which puzzles are made (0)")
    add("--out", metavar="DIR", type=Path, required=True, help="the dataset's folder, new or to be replaced")
    add = parser.add_argument_group("with --generate").add_argument
    if kind == "sudoku":
        add("--side", type=int, choices=list(sudoku.BOXES), help="cells of a row (9); smaller train in minutes")
        add("--guesses", metavar="N", type=whole(), help="least guesses our solver needs (0); 20: extreme-like")
    else:
        sides = whole(maze.SMALLEST_SIDE, maze.LARGEST_SIDE)
        add("--side", metavar="N", type=sides, help="cells of a row (30)")


def main(argv: Sequence[str] | None = None) -> int:
    """Build one dataset; returns the exit status."""
    parser = command_line("data_prep.build", __doc__)
    commands = parser.add_subparsers(title="what to build", required=True)
    arc = commands.add_parser("arc", help="ARC tasks: a recipe, your own files, or both merged")
    _add_arc_options(arc)
    arc.set_defaults(run=build_arc)
    for kind, name in (("sudoku", "Sudokus"), ("maze", "mazes")):
        board = commands.add_parser(kind, help=f"{name} from the published files or made here")
        _add_board_options(board, kind)
        board.set_defaults(run=build_boards, kind=kind)
    options = vars(parser.parse_args(argv))
    run = options.pop("run")
    run(**options)
    return 0


if __name__ == "__main__":
    run_program(main)
