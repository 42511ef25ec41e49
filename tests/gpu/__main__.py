"""Measure in half an hour how this program works on a GPU: python -m tests.gpu [--call N]

    make gpu-kit                            once, with network: gather what a machine without network needs (gpu-kit/)
    make gpu                                run all stages; or three calls of at most nine minutes: ARGS="--call 1"
    python -m tests.gpu --table             write the results into docs/results.md

Every stage runs in its own process and writes a line of JSON when it ends; a stage that has passed is skipped. Exit
status 1: no GPU works, a stage failed, or one of its figures is not as it must be.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import torch

from arc_trm.device import gpu_failure, own_gpu
from data_prep.files import InputError, write_atomic
from data_prep.program import run_program
from tests.gpu import stages
from tests.gpu.stages import Facts, Setting

KIT = Path("gpu-kit")
RESULTS = Path("results.jsonl")
PAGE = Path(__file__).parents[2] / "docs" / "results.md"
HEADING = "## On a GPU\n"
MINUTES = 9.0


@dataclass(frozen=True)
class Stage:
    """One thing to find out."""

    call: int
    seconds: int  # at most, of which starting takes ten to fifteen
    run: Callable[[Setting], Facts]
    expected: str


STAGES: dict[str, Stage] = {
    "arc1": Stage(1, 300, partial(stages.training, preset="arc1"), "H200: 850 examples/s; gradients agree"),
    "solving": Stage(1, 300, stages.solving, "all compiled; faster than eager"),
    "processes or profile": Stage(1, 180, stages.processes_or_profile, "equal to the bit, all end; or idle under 3 %"),
    "arc1-fast": Stage(1, 300, partial(stages.training, preset="arc1-fast"), "at least 2 × arc1"),
    "golden": Stage(2, 60, stages.golden, "worst ratio under 10; bf16 within 2e-2, or as near as the published code"),
    "synchronisation": Stage(2, 60, stages.synchronisation, "none in three steps"),
    "learns": Stage(2, 90, stages.learns, "sudoku6: at least 95 % exact"),
    "killed": Stage(2, 120, stages.killed, "goes on from its checkpoint each time"),
    "fp16": Stage(2, 60, stages.fp16, "losses stay finite"),
    "memory": Stage(2, 60, stages.memory, "fits itself into 15 %"),
    "compiled": Stage(3, 300, stages.compiled, "H200: 520 eager, 850 compiled; networks within 5 % of the whole model"),
    "canvas sizes": Stage(3, 240, stages.canvas, "at least 2 × the full canvas"),
    "published code": Stage(3, 90, stages.published, "about half of ours"),
    "embedding": Stage(3, 45, stages.embedding, "decides between look-up and product"),
    "attention": Stage(3, 45, stages.attention, "H200: 330 forward, 250 backward"),
    "ceilings": Stage(3, 45, stages.ceilings, "H200: copy 4.3 TB/s, bf16 790 TFLOP/s"),
    "products": Stage(3, 45, stages.products, "H200: 600 TFLOP/s"),
}


def failing_gpu() -> str | None:
    """One line that says why no GPU works here, and with which driver and wheel; None if one works."""
    gpu = own_gpu()
    failure = "torch finds none" if gpu is None else gpu_failure(gpu)
    if failure is None:
        return None
    return (
        f"no working GPU ({failure}): found driver {stages.driver()} and torch {torch.__version__}, built for CUDA "
        f"{torch.version.cuda}; expected a torch wheel from the index of a CUDA that this driver has, such as whl/cu126"
    )


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """The latest line of every stage."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return {line["stage"]: line for line in map(orjson.loads, filter(None, lines))}


def add_result(path: Path, line: Mapping[str, Any]) -> None:
    """Append a line, and make sure that it stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(orjson.dumps(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def perform(name: str, setting: Setting, results: Path) -> None:
    """Run a stage in this process, and write its line."""
    began = time.monotonic()
    facts = STAGES[name].run(setting)
    add_result(results, {"stage": name, "seconds": round(time.monotonic() - began, 1), "facts": facts})


def perform_apart(name: str, words: Sequence[str], seconds: float) -> str | None:
    """Run a stage in a process of its own, for at most so long; what went wrong, None if nothing did."""
    command = [sys.executable, "-u", "-m", "tests.gpu", "--stage", name, *words]
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status: int | None = child.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)  # and what it has started
                child.wait()
        said.seek(0)
        text = said.read().decode(errors="replace")
    if status == 0:
        return None
    print(text[-3000:], file=sys.stderr)
    if status is None:
        return f"not done in {seconds:.0f} s"
    return f"exit status {status}: {(text.strip().splitlines() or ['nothing said'])[-1][:200]}"


def call(names: Sequence[str], options: argparse.Namespace) -> int:
    """Run the stages that have no result yet, as long as there is time; 1 if any failed or is not as it must be."""
    deadline = time.monotonic() + 60 * options.minutes
    words = ["--kit", str(options.kit), "--results", str(options.results)]
    words += ["--published", str(options.published)] if options.published else []
    for name in names:
        if passed(read_results(options.results).get(name, {})):
            print(f"{name}: known", flush=True)
            continue
        left = deadline - time.monotonic()
        if left < 15:
            print(f"{name}: no time left in this call", flush=True)
            continue
        if failure := perform_apart(name, words, min(left, STAGES[name].seconds)):
            add_result(options.results, {"stage": name, "error": failure})
        print(shown(name, read_results(options.results)[name]), flush=True)
    found = read_results(options.results)
    bad = [name for name in names if not passed(found.get(name, {}))]
    print(f"{len(names) - len(bad)} of {len(names)} stages are as they must be" + "".join(f"; {name}" for name in bad))
    return 1 if bad else 0


def passed(line: Mapping[str, Any]) -> bool:
    """The line of a stage holds figures, and they are as they must be."""
    return "facts" in line and bool(line["facts"].get("ok", True))


def shown(name: str, line: Mapping[str, Any]) -> str:
    """A stage's result in a line."""
    return f"{name}: {line.get('error') or figures(line['facts'])}"


def figures(facts: Mapping[str, Any]) -> str:
    """Figures as text: names without underscores, figures within figures in brackets."""
    parts = []
    for name, value in facts.items():
        text = f"({figures(value)})" if isinstance(value, dict) else str(value)
        parts.append(f"{name.replace('_', ' ')} {text}")
    return ", ".join(parts)


# The page ------------------------------------------------------------------------------------------------------------


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Results beside what was expected, as a section of a page."""
    lines = [HEADING, "| stage | found | expected |", "|---|---|---|"]
    for name, stage in STAGES.items():
        if name in found:
            lines.append(f"| {name} | {shown(name, found[name]).removeprefix(f'{name}: ')} | {stage.expected} |")
    return "\n".join([*lines, "", "Command: `make gpu`.", ""])


def with_section(text: str, section: str) -> str:
    """The page with this section in place of the one of its heading, or at its end."""
    heading = section.splitlines()[0] + "\n"
    before, found, after = text.partition(heading)
    if not found:
        return f"{text.rstrip()}\n\n{section}"
    rest = after.find("\n## ")
    return before + section + (after[rest:] if rest >= 0 else "")


def main(argv: Sequence[str] | None = None, page: Path = PAGE) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--call", type=int, choices=(1, 2, 3), help="a third of the stages; all by default")
    parser.add_argument("--minutes", type=float, help=f"begin no stage after so long (a call: {MINUTES:.0f})")
    parser.add_argument("--kit", type=Path, default=KIT, help=f"what make gpu-kit wrote ({KIT})")
    parser.add_argument("--results", type=Path, help=f"where results are and go (KIT/{RESULTS})")
    parser.add_argument("--published", type=Path, metavar="DIR", help="a checkout of the published code, to compare")
    parser.add_argument("--table", action="store_true", help="write the results into docs/results.md and end")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    options.results = options.results or options.kit / RESULTS
    options.minutes = options.minutes or MINUTES * (1 if options.call else 3)
    if options.table:
        found = read_results(options.results)
        if not found:
            raise InputError(f"{options.results}: no results there, expected those of make gpu")
        write_atomic(page, with_section(page.read_text(encoding="utf-8"), table(found)).encode())
        print(f"wrote {page.name}: {len(found)} of {len(STAGES)} stages")
        return 0
    if options.stage:
        with tempfile.TemporaryDirectory() as work:
            setting = Setting(torch.device("cuda"), options.kit, Path(work), options.published)
            perform(options.stage, setting, options.results)
        return 0
    if failure := failing_gpu():
        print(f"error: {failure}", file=sys.stderr)
        return 1
    if not (options.kit / "arc1").is_dir():
        raise InputError(f"{options.kit}: no datasets there; make gpu-kit writes them")
    carried = options.kit / RESULTS
    if carried.exists() and not options.results.exists():
        write_atomic(options.results, carried.read_bytes())
    return call([name for name, stage in STAGES.items() if options.call in (None, stage.call)], options)


if __name__ == "__main__":
    run_program(main)
