"""Write public tasks as the two files of a competition: challenges without test outputs, and solutions.

    python -m data_prep.export arc1-evaluation --out evaluation

writes evaluation/challenges.json and evaluation/solutions.json, which solving, scoring and reports read.
"""

from collections.abc import Sequence
from pathlib import Path

from data_prep.corpus import CONCEPTARC, PINNED, find_tasks, pick
from data_prep.files import InputError, make_folder
from data_prep.program import command_line, run_program
from data_prep.tasks import write_tasks


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files; returns the exit status."""
    parser = command_line("data_prep.export", __doc__)
    add, corpora = parser.add_argument, ", ".join([*PINNED, CONCEPTARC])
    add("source", help=f"a corpus ({corpora}), a dataset, or a file or folder of tasks")
    add("task", nargs="*", help="only these tasks, by id")
    add("--conceptarc", metavar="DIR", type=Path, help="ConceptARC's folder of task folders")
    add("--out", metavar="DIR", type=Path, required=True, help="the folder to write to, made if it is missing")
    arguments = parser.parse_args(argv)
    tasks, out = find_tasks(arguments.source, arguments.conceptarc), arguments.out
    if arguments.task:
        tasks = [task for name in arguments.task for task in pick(tasks, name, arguments.source)]
    for name in ("challenges.json", "solutions.json"):
        if (out / name).exists():
            raise InputError(f"{out / name}: exists, expected another --out")
    make_folder(out)
    write_tasks(tasks, out)
    print(f"wrote {out}: challenges.json and solutions.json of {len(tasks)} tasks")
    return 0


if __name__ == "__main__":
    run_program(main)
