"""The film of one puzzle as a file: what the model answers after every supervision step, and what its latent reads.

A canvas is one text: rows parted by "/", a digit for a colour, "." for PAD, "e" for EOS; it is cut to the corner that
the question and the last answer use.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from data_prep.files import InputError, read_json, write_atomic

FILE_FORMAT = "arc-trm film 1"
CANVAS = re.compile(r"[0-9.e]{1,30}(/[0-9.e]{1,30}){0,29}")
FIELDS: dict[str, type] = {"task_id": str, "test": int, "steps": list, "embedding": str, "checkpoint": str}


def write_film(path: Path | str, film: Mapping[str, Any]) -> None:
    """Write a film, atomically."""
    write_atomic(path, orjson.dumps({"format": FILE_FORMAT, **film}))


def read_film(path: Path | str) -> dict[str, Any]:
    """Read and check a film; raises InputError naming the file and what is wrong with it."""
    film = read_json(path)
    if not isinstance(film, dict) or film.get("format") != FILE_FORMAT:
        raise InputError(f"{path}: no film, expected format {FILE_FORMAT!r}")
    for name, kind in FIELDS.items():
        if not isinstance(film.get(name), kind):
            raise InputError(f"{path}: field {name} is {film.get(name)!r:.40}, expected a {kind.__name__}")
    if not film["steps"]:
        raise InputError(f"{path}: a film without steps")
    for number, step in enumerate(film["steps"]):
        if not _is_step(step):
            raise InputError(f"{path}: step {number} is {step!r:.40}, expected answer, latents and halting")
    return film


def _is_step(step: object) -> bool:
    if not isinstance(step, dict) or not isinstance(step.get("latents"), list):
        return False
    texts = [step.get("answer"), *step["latents"]]
    canvases = all(isinstance(text, str) and CANVAS.fullmatch(text) for text in texts)
    return canvases and isinstance(step.get("halting"), (int, float)) and 0 <= step["halting"] <= 1
