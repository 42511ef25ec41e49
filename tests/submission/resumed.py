"""Kill solving before its writes and go on from what is there: python -m tests.submission.resumed FOLDER

Saves its state after every unit of work. A run that nobody kills is counted out first, then others are killed before
every other write that follows a state in the adaptation, or one among the votes, and before some of all others; each is
resumed, and must end with the very votes of the run that nobody killed. Prints, per run, what was found.
"""

import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import orjson
import torch

from submission import budget, solver
from submission.resume import state_folder
from tests import kills
from tests.submission.killed import run
from tests.submission.tiny import assert_valid, make_export, tiny_tasks, write_challenges

WRITES = ((os, "fsync"), (os, "replace"), (os, "rename"))
TASKS = tiny_tasks(2)
OPTIONS = ["--augmentations", "4", "--train.steps", "4", "--resume"]


def counted_out(folder: Path, out: Path) -> dict[int, str]:
    """Of every write of a run that nobody kills: which state was the newest before it."""
    found: dict[int, str] = {}

    def look(number: int) -> None:
        state = state_folder(out) / "state.json"
        kept = orjson.loads(state.read_bytes()) if state.exists() else {}
        found[number] = f"step {kept['step']}, voted {kept['schedule']['voted']}" if kept else "none"
        out.with_name("writes").write_bytes(orjson.dumps(list(found.values())))

    assert run(folder, out, OPTIONS, kills.events(WRITES, before=look)) == 0
    return dict(enumerate(orjson.loads(out.with_name("writes").read_bytes()), start=1))


def dying_before(number: int) -> AbstractContextManager[None]:
    """Within this context the process dies before its write of that number."""
    return kills.events(WRITES, before=lambda event: kills.die() if event == number else None)


def chosen(states: dict[int, str]) -> list[int]:
    """Every other write with a state in the adaptation and with one among the votes, and every eleventh of all."""
    near = [number for number, state in states.items() if state in ("step 2, voted 0", "step 4, voted 2")]
    return sorted({*near[::2], *(number for number in states if number % 11 == 0)})


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    write_challenges(folder / "challenges.json", TASKS)
    make_export(folder / "export")
    solver.SAVE_EVERY = 0.0
    budget.LARGEST_PASS = 1
    (folder / "whole").mkdir()
    whole = folder / "whole" / "submission.json"
    states = counted_out(folder, whole)
    for number in chosen(states):
        out = folder / str(number) / "submission.json"
        out.parent.mkdir()
        status = run(folder, out, OPTIONS, dying_before(number))
        assert status in kills.KILLED, status
        assert run(folder, out, OPTIONS, kills.events(())) == 0, (folder / f"{number}.log").read_text()
        assert_valid(out, TASKS)
        pairs = [[path.with_name(name).read_bytes() for path in (out, whole)] for name in ("votes.npz", whole.name)]
        found = "the same votes" if all(one == other for one, other in pairs) else "OTHER VOTES"
        print(f"killed before write {number} with state {states[number]}: {found}", flush=True)
        assert not state_folder(out).exists()


if __name__ == "__main__":
    main()
