"""The state of a solving run on disk: any number of processes go on from it, whenever and however the last ones ended.

Beside `submission.json` stands the folder `submission.state`: the trainer's state (weights, averages, table, optimiser,
carry), the schedule with its speeds, and the votes so far. It is written whole or not at all.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from arc_trm.checkpoint import STATE, Export, Tensors, below, read_folder, write_folder
from arc_trm.vote import Columns
from data_prep.files import InputError, set_aside, sha256_hex
from data_prep.tasks import Task, task_digest
from submission.settings import Settings
from submission.submission_file import SubmissionFile

VOTES = "votes/"
LAYOUT = 6  # of what a state holds: another number for another layout


@dataclass(frozen=True)
class Saved:
    """What `read_state` found."""

    tensors: Tensors
    facts: Mapping[str, Any]

    def restore_votes(self, file: SubmissionFile) -> None:
        """Let the file hold the votes of then, and its summary what had gone wrong."""
        with file.tally.lock:
            file.tally.restore({name: tensor.numpy() for name, tensor in below(self.tensors, VOTES).items()})
            file.troubles[:0] = self.facts["troubles"]


def state_folder(out: Path) -> Path:
    """`submission.state` beside `submission.json`."""
    return out.with_name(f"{out.stem}.state")


def identity(tasks: Sequence[Task], exports: Sequence[Export], settings: Settings) -> dict[str, Any]:
    """What a state must agree on with the run that goes on from it; the number of its layout first."""
    digest = sha256_hex("\n".join(f"{task.task_id} {task_digest(task)}" for task in tasks).encode())
    checkpoints = [export.facts["sha256"] for export in exports]
    chosen = {name: getattr(settings, name) for name in ("augmentations", "seed", "forget")}
    return {"layout": LAYOUT, "tasks": digest, "checkpoints": checkpoints, **chosen}


def write_state(file: SubmissionFile, tensors: Tensors, facts: Mapping[str, Any], votes: Columns) -> None:
    """Write the state of the main process with some votes of its file; where that fails the last state stays."""
    if not file.writes:
        return
    with file.tolerated("saving the state; the last one stays"):
        columns = {VOTES + name: torch.from_numpy(array.copy()) for name, array in votes.items()}
        write_folder(state_folder(file.path), STATE, {**tensors, **columns}, {**facts, "troubles": file.troubles})


def read_state(file: SubmissionFile, wanted: Mapping[str, Any]) -> Saved | None:
    """The state beside the file, None (with a note) where there is none that is whole and of this version.

    Raises InputError where it is of other tasks, checkpoints or settings, or the votes of the file are.
    """
    folder = state_folder(file.path)
    if file.least_votes and file.kept_checkpoint not in (None, " + ".join(wanted["checkpoints"])):
        raise InputError(f"{file.path}: has votes of other checkpoints, expected the run to go on with")
    try:
        tensors, facts = read_folder(folder, STATE)
        run = facts.get("run", {})
        if run.get("layout") != LAYOUT:
            found = f"of another version of this program (layout {run.get('layout')}, expected {LAYOUT})"
            raise InputError(f"{folder}: {found}")
    except InputError as error:
        if file.writes:
            print(f"note: starting anew, for there is no state to go on from ({error})", file=sys.stderr)
        return None
    differing = [name for name, value in wanted.items() if run.get(name) != value]
    if differing:
        raise InputError(f"{folder}: of a run with other {', '.join(differing)}, expected the run to go on with")
    return Saved(tensors, facts)


def forget_state(file: SubmissionFile) -> None:
    """Delete what an earlier run, or this one that is done, has left."""
    if file.writes:
        for folder in (state_folder(file.path), set_aside(state_folder(file.path))):
            if (folder / f"{STATE}.json").is_file():  # not a folder that happens to have this name
                shutil.rmtree(folder, ignore_errors=True)
