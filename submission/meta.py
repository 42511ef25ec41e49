"""What stands beside a submission: which checkpoint made it, and whether its score can be trusted."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from data_prep.files import InputError, read_json, write_atomic
from data_prep.grid import describe


@dataclass(frozen=True)
class SubmissionMeta:
    """The content of `submission.meta.json`."""

    checkpoint: str  # its digest
    leak: bool  # the checkpoint's dataset was built with --allow-leak
    trained_on: tuple[str, ...]  # tasks of the submission that were among the checkpoint's training tasks

    def lines(self) -> list[str]:
        """What a reader of the score must know, one statement a line."""
        lines = [f"checkpoint {self.checkpoint}"]
        if self.leak:
            lines.append("LEAK: the checkpoint was trained on a dataset built with --allow-leak")
        if self.trained_on:
            names = ", ".join(self.trained_on[:5]) + (", ..." if len(self.trained_on) > 5 else "")
            lines.append(f"CONTAMINATED: the checkpoint was trained on {len(self.trained_on)} of its tasks: {names}")
        else:
            lines.append("none of its test outputs was a training label of the checkpoint")
        return lines


def meta_path(submission: Path | str) -> Path:
    """`submission.meta.json` beside `submission.json`."""
    path = Path(submission)
    return path.with_name(f"{path.stem}.meta.json")


def write_meta(submission: Path | str, meta: SubmissionMeta) -> None:
    """Write the meta file of the submission at that path, atomically."""
    write_atomic(meta_path(submission), orjson.dumps(asdict(meta), option=orjson.OPT_INDENT_2) + b"\n")


def read_meta(submission: Path | str) -> SubmissionMeta | None:
    """The meta of the submission at that path, None when it has none; raises InputError when it is malformed."""
    path = meta_path(submission)
    if not path.exists():
        return None
    value = read_json(path)
    if not isinstance(value, Mapping):
        raise InputError(f"{path}: found {describe(value)}, expected an object")
    checkpoint, leak, trained_on = (value.get(name) for name in ("checkpoint", "leak", "trained_on"))
    if not isinstance(checkpoint, str) or not isinstance(leak, bool) or not _is_names(trained_on):
        raise InputError(f"{path}: fields {sorted(value)}, expected checkpoint (text), leak (bool), trained_on (ids)")
    return SubmissionMeta(checkpoint, leak, tuple(value["trained_on"]))


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
