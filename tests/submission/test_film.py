"""Films: the frames end with the answer of prediction, use the task's own embedding, and print in the terminal."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch

from arc_trm.batches import Batch
from arc_trm.checkpoint import Export, write_export
from arc_trm.config import HaltingConfig, ModelConfig
from arc_trm.model import RecursiveModel
from arc_trm.optim import PuzzleEmbedding
from arc_trm.predict import Predictor
from data_prep.canvas import PAD, encode
from data_prep.files import InputError
from data_prep.tasks import pairs_digest
from submission.film import Frame, film, find_embedding, main, show_steps, symbols, used_corner
from tests.data_prep.material import as_json, grid, pair, task

STEPS = 3
CONFIG = ModelConfig(hidden=16, heads=2, layers=1, prefix=2, puzzle_width=7, latent_steps=2, deep_steps=1)
TASK = task("abc", [pair(["12", "34"], ["43", "21"])], [pair(["15", "34"], None), pair(["1"], None)])


def exported(config: ModelConfig = CONFIG) -> Export:
    torch.manual_seed(0)
    weights = {name: tensor.clone() for name, tensor in RecursiveModel(config).state_dict().items()}
    halting = HaltingConfig(max_supervision_steps=STEPS)
    return Export(config, halting, weights, torch.randn(config.puzzle_width), facts={"sha256": "c0ffee"})


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    write_export(tmp_path / "export", exported())
    (tmp_path / "tasks.json").write_bytes(orjson.dumps({"abc": as_json(TASK)}))
    return ["--checkpoint", str(tmp_path), "--challenges", str(tmp_path / "tasks.json"), "--task", "abc"]


@pytest.mark.parametrize("side", [11, 30])
@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, embedding_rows="task", prefix=13)])
def test_the_last_step_is_what_prediction_answers(side: int, config: ModelConfig) -> None:
    made = exported(config)
    model = RecursiveModel(config).eval()
    model.load_state_dict(made.weights)
    question = TASK.tests[0].input
    frames = film(made, made.puzzle_mean, question, side)
    embedding = PuzzleEmbedding(1, CONFIG.puzzle_width, torch.device("cpu"))
    embedding.table.copy_(made.puzzle_mean[None])
    inputs = torch.from_numpy(encode(question, side=side).astype(np.int32))[None]
    as_given = torch.tensor([[0, *(2 + colour for colour in range(10))]])
    batch = Batch(inputs, inputs, torch.zeros(1, dtype=torch.int64), as_given)
    tokens, halting, *_ = Predictor(model, embedding, made.halting, torch.float32).answer(batch)
    answer = tokens[0].numpy().reshape(side, side)
    height, width = used_corner(answer, question)
    assert len(frames) == STEPS
    assert frames[-1].canvases[0] == symbols(answer[:height, :width])
    assert frames[-1].halting == pytest.approx(float(halting[0]), abs=1e-6)
    assert all(len(frame.canvases) == 2 for frame in frames)


@pytest.mark.parametrize(("recursion", "latents"), [("single_latent", 0), ("multi_scale_latent", 2)])
def test_every_latent_is_read(recursion: str, latents: int) -> None:
    made = exported(replace(CONFIG, recursion=recursion))  # type: ignore[arg-type]
    frames = film(made, made.puzzle_mean, TASK.tests[0].input, 30)
    assert [len(frame.canvases) for frame in frames] == [1 + latents] * STEPS


def test_a_puzzle_keeps_its_own_embedding() -> None:
    made, table = exported(), torch.randn(6, CONFIG.puzzle_width)
    row, source = find_embedding(made, TASK)
    assert row is made.puzzle_mean
    assert source.startswith("the mean of all puzzles")
    named = replace(made, puzzle_table=table, puzzle_names=("own/x", "own/abc|||t1|||0123456789", "own/abc"))
    assert torch.equal(find_embedding(named, TASK)[0], table[2])
    by_digest = replace(made, puzzle_table=table, puzzle_names=("x", "y", "z", pairs_digest(TASK.demonstrations)))
    assert torch.equal(find_embedding(by_digest, TASK)[0], table[3])


def test_a_film_shows_the_corner_that_is_used() -> None:
    answer = encode(grid(["123", "456"]), side=11).reshape(11, 11)
    assert used_corner(answer, grid(["1", "2", "3"])) == (4, 4)
    assert symbols(answer[:4, :4]) == ["123e", "456e", "eee.", "...."]
    noise = np.where(answer == PAD, 7, answer).astype(np.uint8)  # beyond its border a model says anything
    assert used_corner(noise, grid(["1", "2", "3"])) == (4, 4)
    assert symbols(noise[:4, :4]) == ["123e", "456e", "eee5", "5555"]
    assert used_corner(answer, np.zeros((11, 7), np.uint8)) == (11, 8)


def test_the_terminal_shows_changes_and_skips_what_stays() -> None:
    frames = [Frame([[answer], ["1.2"]], halting) for answer, halting in (("12e", 0.25), ("13e", 0.5), ("13e", 0.75))]
    assert "\n".join(show_steps(frames)).split("\n") == [
        "",
        "step 1 of 3: halting probability 25.0%",
        "1 2 e    1 . 2",
        "",
        "step 2 of 3: halting probability 50.0%, cells of the answer that changed: 1",
        "1 3 e    1 . 2",
        "step 3 of 3: halting probability 75.0%, nothing changed",
    ]


def test_the_command_shows_every_step(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*files, "--test", "1"]) == 0
    said = capsys.readouterr().out
    assert "task abc, test 1: 3 supervision steps on a canvas of side" in said
    assert "puzzle embedding: the mean" in said
    assert "step 3 of 3: halting probability" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--test", "2"], "--test 2: task abc has test inputs 0 to 1"),
        (["--task", "abd"], r"no task abd among its 1 task; near it: abc"),
    ],
)
def test_wrong_choices_are_said_in_one_line(files: list[str], options: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        main([*files, *options])


def test_a_model_for_other_puzzles_is_refused(files: list[str], tmp_path: Path) -> None:
    write_export(tmp_path / "export", exported(replace(CONFIG, seq_len=81)))
    with pytest.raises(InputError, match="a model for 81 tokens of 12 kinds, expected one for ARC"):
        main(files)
