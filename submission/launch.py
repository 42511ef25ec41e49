"""Solve inside a Kaggle notebook: as many processes as there are GPUs that work, all the time there is, a checked file.

    python -m submission.launch [--time-budget 11h45m] [--rehearsal-budget 20m] [any option of submission.solve]

In the competition's rerun the hidden tasks get the whole time budget. Otherwise the visible test file gets the
rehearsal budget, and so does a rehearsal: public tasks that the checkpoint has not seen, solved and scored. Challenges
and checkpoints are found by content below ROOT/input; ROOT is /kaggle, or what ARC_TRM_KAGGLE_ROOT names. Solving has
the profile `competition`; the options of the bundle, those given here and the words in ARC_TRM_OPTIONS change it.
Beside another solver, --gpus and --time-budget leave it its share, and CUDA_VISIBLE_DEVICES is honoured.
"""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.files import MANIFEST, InputError, write_json
from data_prep.program import run_program
from data_prep.progress import duration_text
from submission import score
from submission.budget import Kind
from submission.inputs import RERUN_TASKS, SEVERAL_SHARE, affordable, find_challenges, is_rerun
from submission.package import read_bundle
from submission.report import write_report
from submission.settings import read_launch_arguments
from submission.submission_file import read_submission, read_summary, summary_path

ROOT_VARIABLE = "ARC_TRM_KAGGLE_ROOT"
OPTIONS_VARIABLE = "ARC_TRM_OPTIONS"
VISIBLE = "CUDA_VISIBLE_DEVICES"
# Solving ends itself in time, also where it hangs; if that fails it is killed this many seconds later.
GRACE = 60.0
PROBE_SECONDS = 300.0
PROBE = "from submission.launch import print_working_gpus; print_working_gpus()"
# What the driver says, without torch; one line of numbers.
LISTING = ["bash", "-c", "nvidia-smi --query-gpu=index --format=csv,noheader | xargs"]
COLLECTIVE_SECONDS = 120.0
SOLVE = ["-m", "submission.solve"]
COLLECTIVE = ["-c", "from submission.launch import try_collective; try_collective()"]
# After so many failures in a row there is no further start, nor with fewer seconds left.
MOST_FAILURES, LEAST = 3, 60.0
STOPPED = (130, 143, -signal.SIGINT, -signal.SIGTERM)

# Runs a command with further environment variables for so many seconds at most; returns its status.
Runner = Callable[[Sequence[str], Mapping[str, str], float], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Solve, check, rehearse; the status of solving. What it does not know itself goes to submission.solve."""
    root = Path(os.environ.get(ROOT_VARIABLE, "/kaggle"))
    text = os.environ.get(OPTIONS_VARIABLE, "")
    try:
        added = shlex.split(text)
    except ValueError as error:
        raise InputError(f"{OPTIONS_VARIABLE}: found {text!r} ({error}), expected words as in a shell") from None
    words = [*note_bundle(root), *(sys.argv[1:] if argv is None else argv), *added]
    arguments, options = read_launch_arguments(words, __doc__)
    if arguments.rehearsal_tasks is None:
        arguments.rehearsal_tasks = affordable(arguments.rehearsal_budget)
    if arguments.gpus is not None:
        restrict_gpus(arguments.gpus)
    gpus = working_gpus()
    print(f"{'rerun' if is_rerun() else 'not the rerun'}, GPUs that work: {len(gpus)}", flush=True)
    launch = Launch(gpus, ["--input", str(root / "input"), *options])
    out = root / "working" / "submission.json"
    status = launch.solve(out, arguments.time_budget if is_rerun() else arguments.rehearsal_budget)
    score.main([str(out), "--check", "--challenges", str(find_challenges(root / "input"))])
    if not is_rerun():
        say_rerun(out, arguments.time_budget)
    if not is_rerun() and arguments.rehearsal_tasks:
        rehearsal = root / "working" / "rehearsal" / "submission.json"
        votes = rehearsal.with_name("candidates.npz")
        # A checkpoint for hidden tasks may have seen all public ones: then this proves that all works, and no more.
        asked = ["--allow-seen", "--rehearse", str(arguments.rehearsal_tasks), "--candidates", str(votes)]
        launch.solve(rehearsal, arguments.rehearsal_budget, asked)
        show_rehearsal(rehearsal, votes)
    return status


def say_rerun(out: Path, budget: float) -> None:
    """Print what the rerun, whose log is hidden, does beyond this run, and add it to the summary beside `out`."""
    summary = read_summary(out)
    seconds, steps = summary.get("seconds", {}), summary.get("adaptation_steps", 0)
    submission = read_submission(out)
    several = sum(len(outputs) > 1 for outputs in submission.values()) / len(submission)
    done = {kind: duration_text(seconds[kind.value]) for kind in Kind if seconds.get(kind.value)}
    lines = [
        f"time: {duration_text(budget)}; here {duration_text(sum(seconds.values()))}",
        f"tasks: {RERUN_TASKS} hidden ones, about {SEVERAL_SHARE:.0%} with several outputs; here {len(submission)}, "
        f"{several:.0%}",
        f"compiling: unless options forbid it; here {done.get(Kind.COMPILE, 'none')}",
        f"adaptation: most of the time; here {steps} steps, {done.get(Kind.ADAPT, 'none')}",
    ]
    missing = [kind.value for kind in Kind if kind not in (*done, Kind.END)]
    missing += [] if summary.get("troubles") else ["going on after a failure"]
    lines.append(f"not exercised here: {', '.join(missing) or 'nothing'}")
    print("\n".join(["the rerun differs:", *(f"  {line}" for line in lines)]), flush=True)
    if summary:
        write_json(summary_path(out), {**summary, "rerun": lines})


def show_rehearsal(submission: Path, candidates: Path) -> None:
    """Write the report page of a rehearsal beside its submission; a note where there is nothing to show."""
    challenges, solutions = (submission.with_suffix(f".{name}.json") for name in ("challenges", "solutions"))
    try:
        write_report(submission, challenges, solutions, candidates, submission.with_name("report.html"), "Rehearsal")
    except InputError as error:
        print(f"note: no report page ({error})", flush=True)


def note_bundle(root: Path) -> list[str]:
    """Write the digest of the mounted bundle to ROOT/working/bundle.json: which one made this output; its options."""
    options: list[str] = []
    for manifest in sorted((root / "input").rglob(MANIFEST)):
        try:
            bundle = read_bundle(manifest.parent)
        except InputError as error:
            print(f"note: {error}", flush=True)
            continue
        write_json(root / "working" / "bundle.json", {"bundle": bundle.digest, **bundle.manifest})
        options = bundle.manifest.get("options", [])
        print(f"bundle {bundle.digest[:12]} in {bundle.folder}, options: {shlex.join(options) or 'none'}", flush=True)
    return options


# Processes ------------------------------------------------------------------------------------------------


def working_gpus() -> tuple[int, ...]:
    """The GPUs on which a real operation works; tried in another process, so that their memory is free afterwards.

    Where trying fails twice, the rerun takes those that the driver lists: a CPU would hardly solve anything.
    """
    trial, visible = [sys.executable, "-c", PROBE], visible_gpus()
    for words in (trial, trial, LISTING) if is_rerun() else (trial, trial):
        try:
            ran = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PROBE_SECONDS)
            # The numbers are on the last line, because libraries may greet before it.
            found = tuple(map(int, ran.stdout.splitlines()[-1].split()))
            # The driver lists GPUs that are not visible, too.
            return found if words is trial or visible is None else tuple(range(len(visible)))
        except (subprocess.SubprocessError, ValueError, IndexError, OSError) as error:
            print(f"note: GPUs could not be tried ({error})", flush=True)
    return ()


def visible_gpus() -> list[str] | None:
    """Return the names of the GPUs in CUDA_VISIBLE_DEVICES, or None if it is not set."""
    text = os.environ.get(VISIBLE)
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def restrict_gpus(numbers: Sequence[int]) -> None:
    """Leave these of the visible GPUs visible; raises InputError if there are fewer."""
    visible = visible_gpus()
    if visible is not None and max(numbers) >= len(visible):
        found = f"GPU {max(numbers)}, numbered from 0"
        raise InputError(f"--gpus: {found}, expected one of the {len(visible)} in {VISIBLE}")
    os.environ[VISIBLE] = ",".join(str(number) if visible is None else visible[number] for number in numbers)


def print_working_gpus() -> None:
    """Print the numbers of the visible GPUs that work."""
    # Here, because the notebook's own process needs no torch.
    import torch

    from arc_trm.device import gpu_failure

    print(*(i for i in range(torch.cuda.device_count()) if gpu_failure(torch.device("cuda", i)) is None))


def try_collective() -> None:
    """Add up a tensor over all processes, each on its GPU; fails, or hangs, if they cannot talk."""
    import torch  # here, because the notebook's own process needs no torch

    from arc_trm.device import make_accelerator

    accelerator = make_accelerator("none", Path())
    total = accelerator.reduce(torch.ones(1 << 20, device=accelerator.device), "sum").sum().item()
    assert total == accelerator.num_processes << 20, f"a sum over all processes is {total}"
    accelerator.end_training()


def command(gpus: Sequence[int], program: Sequence[str] = SOLVE) -> tuple[list[str], dict[str, str]]:
    """Words and environment variables that start `program` on these of the visible GPUs (none: on the CPU)."""
    visible = visible_gpus()
    names = [str(gpu) if visible is None else visible[gpu] for gpu in gpus]
    environment = {VISIBLE: ",".join(names), "PYTHONUNBUFFERED": "1"}
    if len(gpus) < 2:
        return [sys.executable, *program], environment
    launcher = ["accelerate.commands.launch", "--multi_gpu", "--num_machines", "1", "--num_processes", str(len(gpus))]
    settings = ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0", "--no_python"]
    return [sys.executable, "-m", *launcher, *settings, sys.executable, *program], environment


def run_printing(words: Sequence[str], environment: Mapping[str, str], seconds: float) -> int:
    """Run a command and print its output line by line, as a notebook shows it; returns its status.

    After `seconds`, or when this process is interrupted, the command and all it started are ended.
    """
    with subprocess.Popen(
        words,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        timer = threading.Timer(seconds, end, (process, signal.SIGKILL))
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
            return process.wait()
        finally:
            timer.cancel()
            end(process, signal.SIGTERM)


def end(process: subprocess.Popen[str], number: int) -> None:
    """Send a signal to the process and all it started, unless it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, number)


def progress(out: Path) -> tuple[int, int]:
    """When the newest state of a run was saved, in nanoseconds, and how many votes its file holds."""
    state = out.with_name(f"{out.stem}.state") / "state.json"
    votes = read_summary(out).get("votes", 0)
    return state.stat().st_mtime_ns if state.is_file() else 0, int(votes)


@dataclass
class Launch:
    """Starts submission.solve, and again after every failure: from the state that it saved, on what still works."""

    gpus: Sequence[int]
    options: Sequence[str]
    run: Runner = run_printing
    probe: Callable[[], Sequence[int]] = working_gpus
    now: Callable[[], float] = time.monotonic
    environment: dict[str, str] | None = None  # with which processes can talk; None: not tried yet

    def solve(self, out: Path, budget: float, options: Sequence[str] = ()) -> int:
        """Solve within `budget` seconds; the status of the last start.

        Several processes end together if one of their GPUs is lost. A start has failed if it ends with an error and
        leaves neither a newer state nor more votes, however long it took. The next one compiles nothing and has half
        the GPUs; the last try is of a single process. A file with fewer votes replaces none with more.
        """
        began, failures, added = self.now(), 0, list(options)

        def over() -> bool:
            return budget - (self.now() - began) < LEAST

        if self.environment is None:
            self._find_environment()
        while True:
            before = progress(out)
            status = self._start(out, budget - (self.now() - began), added)
            after = progress(out)
            failures = failures + 1 if after[0] <= before[0] and after[1] <= before[1] else 0
            if status in (0, *STOPPED) or over() or failures == MOST_FAILURES:
                return status
            most = max(1, len(self.gpus) // 2 if failures else len(self.gpus))
            self.gpus, added = self.probe()[: 1 if failures == MOST_FAILURES - 1 else most], [*options, "--resume"]
            if over():  # trying GPUs takes minutes where they hang
                return status
            if failures:
                added.append("--train.no-compile")
            print(f"note: solving failed with status {status}; going on from the saved state", flush=True)

    def _find_environment(self) -> None:
        """Try a collective on all GPUs, then without peer-to-peer; if neither ends well, take one GPU."""
        for environment in ({}, {"NCCL_P2P_DISABLE": "1"}):
            self.environment = environment
            words, own = command(self.gpus, COLLECTIVE)
            if len(self.gpus) < 2 or self.run(words, {**own, **environment}, COLLECTIVE_SECONDS) == 0:
                return
            print(
                f"note: {len(self.gpus)} processes cannot talk to each other, with {environment or 'all'}", flush=True
            )
        self.gpus = self.gpus[:1]

    def _start(self, out: Path, budget: float, options: Sequence[str]) -> int:
        words, environment = command(self.gpus)
        chosen = ["--out", str(out), "--time-budget", f"{budget:.3f}s"]
        print(f"solving for {duration_text(budget)}, processes: {max(1, len(self.gpus))}, {out}", flush=True)
        environment |= self.environment or {}
        return self.run([*words, *self.options, *options, *chosen], environment, budget + GRACE)


if __name__ == "__main__":
    run_program(main)
