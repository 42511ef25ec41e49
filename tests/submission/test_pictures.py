"""Pictures for notebooks, and the tour that shows them: it runs as it is and every step of it ends in a picture."""

import base64
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image

from arc_trm.frames import Frame
from data_prep.files import InputError
from submission import pictures
from submission.pictures import Picture, show_answers, show_scores, show_task, show_views, train_live
from tests.conftest import HANG, REPOSITORY
from tests.data_prep.material import pair, task
from tests.submission.test_notebook import EXECUTE

TOUR = REPOSITORY / "notebooks" / "tour.ipynb"
TASK = task("abc", [pair(["12", "34"], ["43", "21"])], [pair(["15", "34"], None)])


def pixels(picture: Picture) -> np.ndarray:
    return (image.imread(io.BytesIO(picture._repr_png_()))[..., :3] * 255).round().astype(int)


def share_of(picture: Picture, colour: str) -> float:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return float((pixels(picture) == wanted).all(-1).mean())


def test_a_task_shows_its_colours_and_leaves_out_hidden_grids() -> None:
    drawn = show_task(TASK)
    assert all(share_of(drawn, pictures.PALETTE[colour]) > 0.01 for colour in (1, 2, 3, 4, 5))
    assert share_of(drawn, pictures.PALETTE[6]) == 0
    assert pixels(drawn).shape[1] > pixels(drawn).shape[0]  # three squares in one row


def test_views_change_colours_and_keep_black() -> None:
    plain = task("abc", [pair(["01", "11"], ["1"])], [])
    shares = [share_of(show_views(plain), colour) for colour in pictures.PALETTE]
    assert shares[1:9] == pytest.approx([shares[1]] * 8, rel=0.2)  # each in one view
    assert shares[0] == pytest.approx(8 * shares[1] / 3, rel=0.2)
    assert shares[9] == 0


def test_answers_are_drawn_step_by_step() -> None:
    steps = [np.full((1, 3, 3), token, np.uint8) for token in (0, 3, 7)]
    drawn = show_answers([Frame(tokens, 0.5) for tokens in steps])
    assert share_of(drawn, pictures.COLOURS[3]) == pytest.approx(share_of(drawn, pictures.COLOURS[7]), rel=0.2)
    assert share_of(drawn, pictures.COLOURS[3]) > 0.01
    assert share_of(drawn, pictures.COLOURS[5]) == 0


def test_scores_are_bars_of_their_height() -> None:
    low, high = (share_of(show_scores({1: score}), "#1f77b4") for score in (0.2, 0.8))
    assert high == pytest.approx(4 * low, rel=0.1)


def test_a_training_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"training failed: error: .*nowhere"):
        train_live(["sudoku6", f"--data={tmp_path / 'nowhere'}"], tmp_path / "run")


def cells() -> list[dict[str, Any]]:
    return json.loads(TOUR.read_text(encoding="utf-8"))["cells"]


def test_the_tour_is_short_clean_and_only_calls() -> None:
    assert len(cells()) <= 15
    for cell in cells():
        assert len(cell["source"]) <= 10
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    code = "".join("".join(cell["source"]) + "\n" for cell in cells() if cell["cell_type"] == "code")
    assert not set(code.split()) & {"if", "while", "def", "class", "try:", "lambda"}


@pytest.mark.slow
def test_the_tour_shows_a_picture_at_every_step(tmp_path: Path) -> None:
    executed = tmp_path / "executed.ipynb"
    words = [sys.executable, "-W", "ignore", "-c", EXECUTE, str(TOUR), str(tmp_path), str(executed)]
    environment = {**os.environ, "ARC_TRM_TOUR_MINUTES": "0.1", "TMPDIR": str(tmp_path)}
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=HANG)
    assert ran.returncode == 0, ran.stderr
    outputs = {cell["id"]: cell.get("outputs", []) for cell in json.loads(executed.read_text())["cells"]}
    for name in ("task", "views", "train", "grow", "depths"):
        [png] = [output["data"]["image/png"] for output in outputs[name] if "image/png" in output.get("data", {})]
        assert pixels(Picture(base64.b64decode(png))).std() > 10, name  # not blank
    assert "<iframe" in "".join(outputs["report"][0]["data"]["text/html"])
    assert "stream" not in {output["output_type"] for several in outputs.values() for output in several}  # no logs
    assert not [output for several in outputs.values() for output in several if output["output_type"] == "error"]
