"""Build a dataset on disk from task files: ARC tasks, Sudoku puzzles or mazes.

python -m data_prep.build arc --recipe arc1 --conceptarc ConceptARC/corpus --out data/arc1
python -m data_prep.build arc --source own=tasks.json:solutions.json --out data/own
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from data_prep import conceptarc, maze, sudoku
from data_prep.canvas import CANVAS_SIDE, CANVAS_SIDES, choose_side
from data_prep.corpus import (
    PINNED,
    RECIPES,
    Corpus,
    Merge,
    conceptarc_corpus,
    hold_out,
    merge,
    own_corpus,
    pinned_corpus,
)
from data_prep.files import InputError, refuse_foreign, run_program
from data_prep.store import ArcStore, TaskEntry, build_store, save
from data_prep.tasks import Task

CANVAS_HELP = f"only tasks whose visible grids fit this canvas: {', '.join(map(str, CANVAS_SIDES))} (all)"
HOLD_OUT_HELP = (
    "train on the demonstrations alone of N tasks of the first training corpus that fit the canvas, and score these in "
    "place of what the recipe scores (0: none)"
)
SOURCE_HELP = "a file or folder of tasks (SOLUTIONS: Kaggle's file of outputs), or a corpus: " + ", ".join(PINNED)


def add_arc_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the `arc` command."""
    parser = subparsers.add_parser("arc", help="ARC tasks: a recipe, your own files, or both merged")
    add = parser.add_argument
    add("--recipe", choices=list(RECIPES), help="; ".join(f"{name}: {recipe.help}" for name, recipe in RECIPES.items()))
    add("--conceptarc", metavar="DIR", type=Path, help="ConceptARC's folder of task folders")
    add("--download-conceptarc", action="store_true", help="fetch ConceptARC, pinned and checked, into the cache")
    add("--challenges", metavar="FILE", type=Path, help="the challenges file of recipe competition")
    source = "NAME[=PATH[:SOLUTIONS]]"
    add("--source", metavar=source, action="append", default=[], help=f"train on all pairs of {SOURCE_HELP}")
    add("--scored", metavar=source, action="append", default=[], help="train on its demonstrations, score its tests")
    add("--augmentations", metavar="N", type=count, default=1000, help="puzzles beside each task itself (1000)")
    add("--seed", metavar="N", type=count, default=0, help="which augmentations are drawn (0)")
    add("--canvas", metavar="SIDE", type=int, choices=CANVAS_SIDES, default=CANVAS_SIDE, help=CANVAS_HELP)
    add("--hold-out", metavar="N", type=count, default=0, help=HOLD_OUT_HELP)
    add("--allow-leak", action="store_true", help="build although --source contains test pairs that are scored")
    add("--out", metavar="DIR", type=Path, required=True, help="the dataset's folder, new or to be replaced")
    parser.set_defaults(run=build_arc)


def count(text: str) -> int:
    """A whole number of at least 0, for argparse."""
    if not re.fullmatch(r"\d{1,18}", text):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number of at least 0")
    return int(text)


def build_arc(arguments: argparse.Namespace) -> int:
    """Build, save and report the ARC dataset that the arguments describe."""
    refuse_foreign(arguments.out)
    training, scored, guarded, own = _corpora(arguments)
    described = [corpus.describe() for corpus in (*training, *scored)]
    held_out: set[str] = set()
    if arguments.hold_out:
        if not training:
            raise InputError("--hold-out: there is no training corpus to hold tasks of")
        training[0], held = hold_out(training[0], arguments.hold_out, partial(_fits, arguments.canvas))
        scored.append(held)
        held_out = {task.name for task in held.tasks}
    merged = merge(training, scored, guarded, own, arguments.allow_leak)
    for line in describe_merge(merged):
        print(line)
    entries = fitting(merged.entries, arguments.canvas)
    if held_out:  # they alone are scored; what the recipe scores stays unseen all the same
        entries = tuple(replace(entry, scored=entry.task.name in held_out) for entry in entries)
    store = build_store(
        entries,
        arguments.augmentations,
        arguments.seed,
        {
            "recipe": arguments.recipe,
            "canvas": arguments.canvas,
            "held_out": sorted(held_out),
            "corpora": described,
            **merged.describe(),
        },
    )
    save(store, arguments.out)
    print(summary(store, arguments.out))
    return 0


def _fits(side: int, task: Task) -> bool:
    return choose_side(TaskEntry.demonstrations_only(task).visible) <= side


def fitting(entries: Sequence[TaskEntry], side: int) -> tuple[TaskEntry, ...]:
    """The tasks whose visible grids, and the output sizes these imply, fit a canvas of `side`.

    Raises InputError when none does.
    """
    fit = tuple(entry for entry in entries if choose_side(entry.visible) <= side)
    if not fit:
        raise InputError(f"--canvas {side}: none of {len(entries)} tasks fits, expected a larger canvas")
    if len(fit) < len(entries):
        print(f"took {len(fit)} of {len(entries)} tasks: those whose visible grids fit a canvas of {side}x{side}")
    return fit


def _corpora(arguments: argparse.Namespace) -> tuple[list[Corpus], list[Corpus], list[Corpus], set[str]]:
    """Training, scored and guarded corpora, and the names of those that are the user's own choice."""
    if (arguments.recipe == "competition") != (arguments.challenges is not None):
        raise InputError("--challenges FILE goes with --recipe competition, and that recipe needs it")
    recipe = RECIPES.get(arguments.recipe)
    training, scored, guarded = (
        _recipe_corpora(names, arguments)
        for names in ((recipe.training, recipe.scored, recipe.guarded) if recipe else ((), (), ()))
    )
    if arguments.challenges is not None:
        scored.append(own_corpus("competition", arguments.challenges))
    own_training = [_own_corpus(text, arguments) for text in arguments.source]
    own_scored = [_own_corpus(text, arguments) for text in arguments.scored]
    training, scored = training + own_training, scored + own_scored
    names = [corpus.name for corpus in training + scored]
    if not names:
        raise InputError("nothing to build from, expected --recipe, --source or --scored")
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"corpus {name} is named twice, expected every name once")
    return training, scored, guarded, {corpus.name for corpus in own_training + own_scored}


def _recipe_corpora(names: Sequence[str], arguments: argparse.Namespace) -> list[Corpus]:
    corpora = [pinned_corpus(name) for name in names if name != conceptarc.NAME]
    if conceptarc.NAME in names:
        folder = _conceptarc_folder(arguments)
        if folder is None:
            print("built without ConceptARC: name it with --conceptarc DIR or fetch it with --download-conceptarc")
        else:
            corpora.append(_checked_conceptarc(folder))
    return corpora


def _conceptarc_folder(arguments: argparse.Namespace) -> Path | None:
    folder: Path | None = arguments.conceptarc
    return conceptarc.download() if folder is None and arguments.download_conceptarc else folder


def _checked_conceptarc(folder: Path) -> Corpus:
    corpus = conceptarc_corpus(folder)
    if corpus.version == "unpinned":
        print(f"{folder}: not the pinned content of ConceptARC ({len(corpus.tasks)} tasks), taken as it is")
    return corpus


def _own_corpus(text: str, arguments: argparse.Namespace) -> Corpus:
    """The corpus that NAME or NAME=PATH[:SOLUTIONS] stands for."""
    name, given, path = text.partition("=")
    if not re.fullmatch(r"[\w.-]+", name):
        raise InputError(f"source {text!r}: expected NAME=PATH with a name of letters, digits, '.', '_' and '-'")
    if given:
        whole, (head, colon, tail) = Path(path), path.rpartition(":")
        # A path may itself hold a colon: it is cut only when it does not exist as it stands.
        return own_corpus(name, head, tail) if colon and not whole.exists() else own_corpus(name, whole)
    if name != conceptarc.NAME:
        return pinned_corpus(name)
    folder = _conceptarc_folder(arguments)
    if folder is None:
        raise InputError("source conceptarc: expected --conceptarc DIR or --download-conceptarc with it")
    return _checked_conceptarc(folder)


def describe_merge(merged: Merge) -> list[str]:
    """One line for each finding of the merge that the user should know."""
    lines = []
    if merged.left_out:
        pairs = {(leak.training, leak.pair): leak for leak in merged.left_out}
        named = ", ".join(f"{leak.training} (= {leak.scored})" for leak in pairs.values())
        lines.append(f"left out {len(pairs)} training pairs that equal test pairs to stay unseen: {named}")
    if merged.leaks:
        names = {leak.training for leak in merged.leaks}
        lines.append(f"LEAK allowed: {len(names)} training tasks contain test pairs that are scored")
    if merged.merged:
        lines.append(f"merged {merged.merged} training tasks that occur twice")
    turned = [duplicate for duplicate in merged.duplicates if not duplicate.exact]
    if turned:
        named = ", ".join(f"{duplicate.second} (= {duplicate.first})" for duplicate in turned)
        lines.append(f"kept {len(turned)} tasks that are others turned or recoloured: {named}")
    return lines


def summary(store: ArcStore, folder: Path) -> str:
    """The final line: what was written, in numbers that can be checked."""
    counts = store.manifest["counts"]
    size = sum(file.stat().st_size for file in folder.iterdir())
    return (
        f"wrote {folder}: {counts['groups']} tasks, {counts['training_pairs']} training pairs, "
        f"{counts['scored_outputs']} scored outputs, {counts['puzzles']} puzzles, {size / 1e6:.1f} MB"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Build one dataset; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m data_prep.build",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(title="what to build", required=True)
    add_arc_parser(subparsers)
    sudoku.add_parser(subparsers)
    maze.add_parser(subparsers)
    arguments = parser.parse_args(argv)
    status: int = arguments.run(arguments)
    return status


if __name__ == "__main__":
    run_program(main)
