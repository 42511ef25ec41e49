"""Reading and writing files: what is refused, and what survives a failure."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from data_prep.files import InputError, read_json, refuse_input, save_arrays, write_atomic
from tests.kills import full_disk


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tasks.json"
    file.write_text('{"a": 1, "b": {"c": 1, "c": 2}}')
    with pytest.raises(InputError, match=r"tasks\.json: c occurs twice"):
        read_json(file)


def test_long_numbers_and_deep_lists_end_in_no_error_of_python(tmp_path: Path) -> None:
    file = tmp_path / "tasks.json"
    file.write_text(f"[0.{5000 * '9'}]")
    assert read_json(file) == [1.0]
    file.write_text(1020 * "[" + 1020 * "]")
    with suppress(InputError):  # which depth is too deep depends on the version of Python
        read_json(file)


def test_an_input_is_not_written_over(tmp_path: Path) -> None:
    for name in ("tasks.json", "link", "curves.png", "other.json"):
        (tmp_path / name).write_text(name)
    (tmp_path / "same.json").hardlink_to(tmp_path / "other.json")
    for out, given in (("tasks.json", tmp_path), ("other.json", tmp_path / "same.json")):
        with pytest.raises(InputError, match="is read by this very command"):
            refuse_input(tmp_path / out, [None, given])
    refuse_input(tmp_path / "curves.png", [tmp_path])
    refuse_input(tmp_path / "new.json", [tmp_path, tmp_path / "missing"])
    refuse_input(tmp_path / "other.json", [tmp_path / "tasks.json"])


def test_a_full_disk_under_an_array_is_named(tmp_path: Path) -> None:
    arrays = {"cells": np.zeros(100_003, np.uint8)}
    save_arrays(tmp_path / "data", {"format": "arc-trm-dataset"}, {"old": arrays["cells"]})
    with full_disk(1009), pytest.raises(InputError, match=r"data: cannot write \(the disk seems to be full: \d+ "):
        save_arrays(tmp_path / "data", {"format": "arc-trm-dataset"}, arrays)
    assert {path.name for path in tmp_path.rglob("*")} == {"data", "old.npy", "manifest.json"}


@pytest.mark.parametrize("out", ["/dev/null", "."])
def test_a_device_or_a_folder_is_not_replaced_by_a_file(out: str) -> None:
    for refuse in (lambda: refuse_input(Path(out), []), lambda: write_atomic(out, b"lost")):
        with pytest.raises(InputError, match=rf"^{out}: cannot write \(is no regular file\), expected a file$"):
            refuse()
