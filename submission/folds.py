"""Sum up several rehearsals on tasks of their own: one score of a few tasks says little.

for k in 1 2 3 4 5; do
    python -m submission.solve --rehearse --fold $k/5 --seed $k --checkpoint runs/arc2 --out fold$k/submission.json
done
python -m submission.folds fold*/submission.json
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.files import InputError
from data_prep.program import command_line, run_program
from submission.submission_file import read_summary, remarks

# Of Student's t with so many folds less one: half the width of a 95 % interval, in standard errors.
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
NORMAL = 1.96


def fold_lines(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """What must be known of the checkpoint, each score as mean and interval over the folds, and all outputs together.

    The interval over folds is Student's, which holds where their scores spread about normally; Wilson's, of the outputs
    as independent ones, also where nothing is solved.
    """
    lines = list(dict.fromkeys(line for summary in summaries for line in remarks(summary)))
    scores = [summary["scores"] for summary in summaries if "scores" in summary]
    if len(scores) < 2:
        raise InputError(f"{len(scores)} of {len(summaries)} folds have scores, expected at least 2")
    for name in ("outputs", "task_mean", "tasks"):
        values = [score[name]["score"] for score in scores]
        mean, half = statistics.fmean(values), STUDENT[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
        interval = f"95 % interval {max(0.0, mean - half):.1%} to {min(1.0, mean + half):.1%}"
        said = interval if half else "the same in each: that says nothing of an interval"
        lines.append(f"{name:9}  {mean:7.2%}  mean over {len(values)} folds, {said}")
    solved, total = (sum(score["outputs"][name] for score in scores) for name in ("solved", "total"))
    low, high = wilson(solved, total)
    return [*lines, f"all folds: {solved} of {total} outputs solved, 95 % interval {low:.1%} to {high:.1%}"]


def wilson(solved: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share that was found as `solved` of `total` (Wilson 1927)."""
    share, spread = solved / total, NORMAL**2 / total
    centre = share + spread / 2
    half = math.sqrt(spread * (share * (1 - share) + spread / 4))
    return (centre - half) / (1 + spread), (centre + half) / (1 + spread)


def main(argv: Sequence[str] | None = None) -> int:
    """Print mean and interval of the folds' scores; the exit status."""
    parser = command_line("submission.folds", __doc__)
    parser.add_argument("submission", type=Path, nargs="+", help="the submission of a fold, its summary beside it")
    print("\n".join(fold_lines([read_summary(path) for path in parser.parse_args(argv).submission])))
    return 0


if __name__ == "__main__":
    run_program(main)
