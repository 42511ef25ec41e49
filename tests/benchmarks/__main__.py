"""Run the benchmarks and print one table: python -m tests.benchmarks [NAME ...]

Every module tests/benchmarks/bench_NAME.py has a function `run() -> list[Row]`. Each runs in a process of its
own, so that memory, threads and caches of one do not colour the figures of the next. A benchmark that fails
is reported, the others are still measured, and the exit status is 1.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from data_prep.files import InputError
from data_prep.program import run_program
from tests.benchmarks.table import Row, format_table

PREFIX = "bench_"


def find(folder: Path) -> dict[str, str]:
    """Modules of the benchmarks in `folder` (a package that can be imported) by short name, sorted."""
    package = "tests.benchmarks" if folder == Path(__file__).parent else folder.name
    paths = sorted(folder.glob(f"{PREFIX}*.py"))
    return {path.stem.removeprefix(PREFIX): f"{package}.{path.stem}" for path in paths}


def choose(available: dict[str, str], names: Sequence[str]) -> dict[str, str]:
    """The benchmarks asked for, all when none is named; InputError lists the valid names."""
    unknown = [name for name in names if name not in available]
    if unknown:
        raise InputError(f"no benchmark {', '.join(unknown)}; there are: {', '.join(available)}")
    return {name: available[name] for name in names or available}


def measure_here(module: str, rows_path: Path) -> None:
    """Run one benchmark in this process and leave its rows as JSON in `rows_path`."""
    rows: list[Row] = importlib.import_module(module).run()
    rows_path.write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")


def measure(name: str, module: str) -> list[Row] | None:
    """The rows of one benchmark, run in a process of its own; None when it failed (it has said why)."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        rows_path = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "tests.benchmarks", "--rows", str(rows_path), module]
        status = subprocess.run(command, check=False).returncode
        seconds = time.perf_counter() - start
        if status != 0 or not rows_path.exists():
            print(f"{name} FAILED after {seconds:.0f} s (exit status {status})", file=sys.stderr, flush=True)
            return None
        print(f"{name} done in {seconds:.0f} s", file=sys.stderr, flush=True)
        return [Row(**row) for row in json.loads(rows_path.read_text(encoding="utf-8"))]


def main(arguments: Sequence[str] | None = None, folder: Path = Path(__file__).parent) -> int:
    """Measure the benchmarks of `folder` that are named and print their table; 1 when one of them failed."""
    available = find(folder)
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(available)}; all by default")
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rows is not None:
        measure_here(options.names[0], options.rows)
        return 0
    results = {name: measure(name, module) for name, module in choose(available, options.names).items()}
    print(format_table([row for rows in results.values() if rows is not None for row in rows]))
    failed = [name for name, rows in results.items() if rows is None]
    print(f"{len(results) - len(failed)} benchmarks measured, {len(failed)} failed {' '.join(failed)}".rstrip())
    return 1 if failed else 0


if __name__ == "__main__":
    run_program(main)
