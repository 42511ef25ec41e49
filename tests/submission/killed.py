"""Kill solving at random moments and look at the file: python -m tests.submission.killed FOLDER TIMES SEED

Imports everything once and forks a child per run, so that a kill costs a second and not the import of torch. Prints,
per run, when it was killed and what was found.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch

from submission import session, solve
from tests.submission.tiny import QUICK, assert_valid, make_export, tiny_tasks, write_challenges

LONGEST = 1.7  # seconds after the first write; an undisturbed run takes a little longer


def run_child(words: list[str], log: Path) -> None:
    """Solve in this forked process, and leave it."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        os._exit(solve.main(words))


def main() -> None:
    folder, times, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = np.random.default_rng(seed)
    tasks = tiny_tasks(5)
    challenges = write_challenges(folder / "challenges.json", tasks)
    export = make_export(folder / "export")
    torch.set_num_threads(1)
    # A pass per puzzle: the file is written all the time, so that some kills fall into a write.
    session.LARGEST_PASS = 1
    for number in range(times):
        out = folder / str(number) / "submission.json"
        words = ["--challenges", str(challenges), "--checkpoint", str(export), "--out", str(out), *QUICK]
        words += ["--augmentations", "64", "--steps", "10", "--precision", "fp32", "--time-budget", "60s"]
        words += ["--candidates", str(out.with_name("votes.npz"))]
        child = os.fork()
        if child == 0:
            run_child(words, folder / f"{number}.log")
        while not out.exists():
            time.sleep(0.001)
        after = float(rng.uniform(0, LONGEST))
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert_valid(out, tasks)
        died = os.WIFSIGNALED(status)
        votes = "with" if out.with_name("votes.npz").exists() else "without"
        print(f"run {number}: {'killed' if died else 'had ended'} after {after:.2f} s, a valid file {votes} votes")


if __name__ == "__main__":
    main()
