"""The competition's twelve hours in a minute: 240 tasks, two processes, a full disk, a kill; what a log says of it."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from arc_trm.checkpoint import STATE, below, read_folder
from arc_trm.vote import Tally, outputs_of
from data_prep.tasks import Task
from submission import launch
from submission.attempts import draft_submission
from submission.inputs import RERUN_VARIABLE
from submission.launch import Launch, run_printing
from submission.resume import VOTES, state_folder
from submission.submission_file import read_submission
from tests.conftest import HANG, REPOSITORY
from tests.submission.tiny import assert_valid, make_export, tiny_task, write_challenges

OPTIONS = (
    "--augmentations 7 --train.batch-size 8 --predict-batch 64 --model.deep-steps 1 "
    "--halting.max-supervision-steps 2 --canvas strict --train.precision fp32 --train.no-compile"
)

# What the log says, in this order.
TOLD = (
    "rerun, GPUs that work: 2",
    "solving for 11h45m, processes: 2, ",
    "challenges  240 tasks, 336 outputs, 40% of the tasks with several",
    "\nfirst votes: ",
    "\nplan      first votes: ",
    "\nadapting: 2 of ",
    "\nnote: saving the state; the last one stays: ",
    "\nvotes up to 1 of 8: ",
    "\nnote: writing; the last good file stays: ",
    "\nRuntimeError: ",
    "\nnote: solving failed with status 1; going on from the saved state",
    "\ngoing on at step ",
    "\nplan / fact: ",
    "\ntrouble: saving the state",
    "\nwrote ",
    "submission.json: valid, 240 tasks, 336 outputs",
)


def competition_tasks() -> list[Task]:
    """240 tasks, 40 % of them with two outputs; of every size, but small for the most part, which takes less time."""
    rng = np.random.default_rng(0)
    sides = [3 + i % (23 if i % 16 == 0 else 7) for i in range(240)]
    return [tiny_task(f"{i:08x}", rng, tests=1 + (i % 5 in (0, 2)), side=side) for i, side in enumerate(sides)]


class Machine:
    """Starts solving in two processes by a clock of its own, and keeps the votes of every state that a start left."""

    def __init__(self, folder: Path, tasks: Sequence[Task]) -> None:
        self.clock, self.tasks, self.left = folder / "clock", tasks, list[Tally]()

    def now(self) -> float:
        return float(np.fromfile(self.clock)[0]) if self.clock.exists() else 0.0

    def run(self, words: Sequence[str], environment: Mapping[str, str], seconds: float) -> int:
        if launch.COLLECTIVE[-1] in words:
            return 0
        assert words[words.index("--num_processes") + 1] == "2"
        options = words[words.index("submission.solve") + 1 :]
        several = ["-W", "ignore", "-m", "tests.several_processes", "2", "tests.submission.twelve_hours"]
        own = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(REPOSITORY)}
        status = run_printing([sys.executable, *several, str(self.clock), *options], {**environment, **own}, HANG)
        state = state_folder(Path(words[words.index("--out") + 1]))
        if state.exists():
            votes = below(read_folder(state, STATE)[0], VOTES)
            self.left.append(Tally(outputs_of(self.tasks)))
            self.left[-1].restore({name: tensor.numpy() for name, tensor in votes.items()})
        return status


def counts(tally: Tally) -> list[dict[bytes, int]]:
    """Of every output, the votes of each candidate."""
    outputs = range(len(tally.outputs))
    return [{c.grid.tobytes() + bytes(c.grid.shape): c.votes for c in tally.candidates(i)} for i in outputs]


@pytest.mark.slow
def test_twelve_hours_with_trouble_hand_in_the_votes_of_both_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks, folder = competition_tasks(), tmp_path / "input" / "competitions" / "arc-prize"
    folder.mkdir(parents=True)
    write_challenges(folder / "arc-agi_test_challenges.json", tasks)
    make_export(tmp_path / "input" / "datasets" / "somebody" / "bundle")
    out = tmp_path / "working" / "submission.json"
    machine = Machine(tmp_path, tasks)
    monkeypatch.setenv(RERUN_VARIABLE, "1")
    monkeypatch.setenv(launch.ROOT_VARIABLE, str(tmp_path))
    monkeypatch.setattr(launch, "working_gpus", lambda: (0, 1))
    monkeypatch.setattr(launch, "Launch", partial(Launch, run=machine.run, probe=lambda: (0, 1), now=machine.now))
    assert launch.main([*OPTIONS.split(), f"--candidates={out.with_name('votes.npz')}"]) == 0
    assert_valid(out, tasks)
    tally = Tally.load(out.with_name("votes.npz"))
    handed_in = read_submission(out)
    for task_id, outputs in draft_submission(tasks, tally).submission.items():
        for one, other in zip(outputs, handed_in[task_id], strict=True):
            assert [grid.tolist() for grid in one] == [grid.tolist() for grid in other]
    [left] = machine.left
    for before, after in zip(counts(left), counts(tally), strict=True):
        assert 0 < sum(before.values()) < sum(after.values()), "the second half has voted, too"
        assert all(after.get(grid, 0) >= votes for grid, votes in before.items()), "the votes of the first half stay"
    assert 0.9 * 11.75 * 3600 < machine.now() <= 11.75 * 3600
    said = capsys.readouterr().out
    print(said)  # to be read
    places = [said.index(line) for line in TOLD]
    assert places == sorted(places)
    assert said.count("\nplan      prediction: ") == 2, "after a failure the rest is planned anew"
