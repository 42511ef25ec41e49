"""Kill a training run at many moments and resume it: `python -m tests.arc_trm.kill_runs FOLDER events|moments SEED`.

One process does everything once and then forks a child for every life of a run, so that a life costs a fraction of a
second. `events` kills a run before and after every single call that changes a file; `moments` kills it at random
times. Whatever a run leaves at its end must equal, bit by bit, what the run that nobody killed leaves.
"""

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import torch

from arc_trm import checkpoint, run
from arc_trm.config import RunConfig
from arc_trm.trainer import Trainer
from tests.arc_trm.training import TINY, tiny_trainer, with_settings

SHORT = with_settings(
    TINY, train={"steps": 5}, log={"every": 2, "checkpoint_every": 2, "evaluate_every": 3, "keep_checkpoints": 1}
)
LONG = with_settings(
    TINY, train={"steps": 60}, log={"every": 4, "checkpoint_every": 3, "evaluate_every": 7, "keep_checkpoints": 2}
)
SIDES = (3, 5)
# What a clock or the memory has to say differs from run to run.
UNEQUAL = ("train/examples_per_second", "train/peak_memory_gb")
# Every call with which a run changes files.
EVENTS = ((os, "fsync"), (os, "rename"), (os, "replace"), (shutil, "rmtree"), (checkpoint, "save_file"))


def evaluate(trainer: Trainer) -> dict[str, float]:
    """Scores that depend on every weight of the average."""
    with trainer.averaged():
        total = sum(float(parameter.detach().double().abs().sum()) for parameter in trainer.model.parameters())
    time.sleep(0.01)  # an evaluation takes a while, in which it can be killed
    return {"evaluation/outputs": total}


def life(out: Path, config: RunConfig) -> None:
    """One life of a run, from wherever the last one was killed."""
    accelerator = run.make_accelerator("none", out)
    trainer = tiny_trainer(config, SIDES, accelerator=accelerator)
    run.begin(trainer, run.Start(out, resume=True), None, "data")
    log = run.MetricLog(accelerator, out, config, trainer.step)
    facts = {"data_digest": "data"}
    run.train(trainer, out, facts, evaluate, log)
    run.export(trainer, out / "export", (), facts)


def fork(work: Callable[[], object]) -> int:
    """Do `work` in a child; returns its process id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        work()
        status = 0
    finally:
        os._exit(status)


def wait(child: int) -> int:
    """Exit status of a child, negative for the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at(event: int, after: bool) -> None:
    """Let this process kill itself before or after its event number `event`."""
    seen = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            nonlocal seen
            seen += 1
            mine = seen == event
            if mine and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*arguments, **options)
            if mine:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapper

    for owner, name in EVENTS:
        setattr(owner, name, counted(getattr(owner, name)))


def remains(out: Path) -> dict[str, Any]:
    """Everything that a run leaves, for comparison."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        name = str(path.relative_to(out))
        found[name] = path.read_bytes()
        if path.suffix == ".jsonl":
            lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
            found[name] = [{key: value for key, value in line.items() if key not in UNEQUAL} for line in lines]
    return found


def compare(out: Path, whole: dict[str, Any], what: str) -> None:
    """Say what differs from the run that nobody killed, and stop."""
    mine = remains(out)
    different = [name for name in sorted(mine.keys() | whole.keys()) if mine.get(name) != whole.get(name)]
    if different:
        print(f"{what}: {', '.join(different)} differ")
        raise SystemExit(1)


def finish(out: Path, config: RunConfig, what: str) -> None:
    status = wait(fork(lambda: life(out, config)))
    if status:
        print(f"{what}: a resumed run ended with status {status}")
        raise SystemExit(1)


def kill_at_every_event(folder: Path) -> int:
    """Kill before and after each event of a short run; returns the number of kills."""
    life(folder / "whole", SHORT)
    whole = remains(folder / "whole")
    kills = 0
    for event in range(1, 1000):
        for after in (False, True):
            out = folder / f"event{event}{after}"

            def doomed(out: Path = out, event: int = event, after: bool = after) -> None:
                die_at(event, after)
                life(out, SHORT)

            status = wait(fork(doomed))
            if status != -signal.SIGKILL:
                print(f"killed at {kills} events, each run went on to the same end")
                return status
            kills += 1
            finish(out, SHORT, f"killed {'after' if after else 'before'} event {event}")
            compare(out, whole, f"killed {'after' if after else 'before'} event {event}")
            shutil.rmtree(out)
    return 1


def kill_at_random_moments(folder: Path, seed: int) -> int:
    """Kill longer runs again and again; returns an exit status."""
    life(folder / "warm-up", LONG)
    began = time.monotonic()
    life(folder / "whole", LONG)
    seconds = time.monotonic() - began
    whole = remains(folder / "whole")
    draws, kills = random.Random(seed), 0
    for number in range(3):
        out = folder / f"run{number}"
        for _ in range(8):
            child = fork(partial(life, out, LONG))
            time.sleep(draws.uniform(0, seconds * 0.4))
            os.kill(child, signal.SIGKILL)
            kills += wait(child) == -signal.SIGKILL
        finish(out, LONG, f"run {number}")
        compare(out, whole, f"run {number}")
    print(f"killed {kills} times, each run went on to the same end")
    return 0 if kills >= 6 else 1


def main() -> int:
    torch.set_num_threads(1)
    folder, how, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    return kill_at_every_event(folder) if how == "events" else kill_at_random_moments(folder, seed)


if __name__ == "__main__":
    sys.exit(main())
