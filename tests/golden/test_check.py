"""The program that compares with a golden folder: other sizes pass, a wrong number is found, a bad file is named."""

import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from data_prep.files import InputError
from data_prep.program import run_program
from tests.golden.__main__ import main
from tests.golden.other_sizes import MODELS, write_golden_folder


@pytest.fixture(scope="session")
def other_sizes(tmp_path_factory):
    """A golden folder of other sizes, computed by the plain reference."""
    folder = tmp_path_factory.mktemp("golden")
    write_golden_folder(folder)
    return folder


@pytest.fixture
def folder(other_sizes, tmp_path):
    """A copy of it to spoil."""
    return shutil.copytree(other_sizes, tmp_path / "golden")


def test_golden_numbers_of_other_sizes_pass(other_sizes, capsys):
    assert main([str(other_sizes)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("compared ")
    assert lines[-1].endswith("all within tolerance")
    assert not any(line.startswith("note") for line in lines)
    for name in MODELS:
        assert sum(line.startswith(f"{name} ") for line in lines) >= 35


def test_the_other_sizes_halt_some_rows_early_and_keep_others(other_sizes):
    for name in MODELS:
        tensors = load_file(other_sizes / f"{name}.safetensors")
        halted = torch.stack([tensors[f"train/step{step}/halted"] for step in (1, 2)])
        assert 0 < halted.sum() < halted.numel(), name


def spoil(folder, file, name, change):
    tensors = load_file(folder / file)
    change(tensors[name])
    save_file(tensors, folder / file)


def nudge(tensor):
    """Move one number by a hundredth."""
    tensor.view(-1)[tensor.numel() // 2] += 1e-2


def flip(tensor):
    """Change one whole number."""
    tensor.view(-1)[0] = 1 - tensor.view(-1)[0]


SPOILS = [
    ("att", "train/step1/logits", nudge, "att train: logits"),
    ("att", "train/step3/carry/z_L", nudge, "att train: carry"),
    ("att", "grad/model.inner.L_level.layers.0.self_attn.qkv_proj.weight", nudge, "att gradients"),
    ("att", "grad/model.inner.puzzle_emb.local_weights", nudge, "att puzzle gradients"),
    ("att", "signsgd/puzzle_emb_weights_after", nudge, "att sign-SGD of the golden gradient"),
    ("mixer", "eval/step2/q_halt_logits", nudge, "mixer eval: halting logits"),
    ("mixer", "train/step2/steps", flip, "mixer train: steps taken"),
    ("one", "train/step2/halted", flip, "one train: halted rows"),
    ("many", "nohalt/step2/metrics/lm_loss", nudge, "many nohalt: metric token_loss"),
    ("two_networks", "train/step2/target_q_continue", nudge, "two_networks train: continue target"),
    ("two_networks", "train/step1/metrics/q_continue_loss", nudge, "two_networks train: metric continue_loss"),
    ("direct", "train/step3/current/puzzle_identifiers", flip, "direct train: puzzles at work"),
    ("direct", "train/step3/loss", nudge, "direct train: loss"),
    ("misc", "stablemax/grad_f32", nudge, "misc stable-max gradient"),
    ("misc", "ema/shadow2/w", nudge, "misc moving average"),
    ("misc", "sparse/weights2", nudge, "misc sign-SGD"),
    ("misc", "rope/q_out", nudge, "misc rotary embedding"),
]


@pytest.mark.parametrize(("file", "name", "change", "quantity"), SPOILS)
def test_one_wrong_number_is_found_and_named(other_sizes, tmp_path, capsys, file, name, change, quantity):
    models = json.loads((other_sizes / "models.json").read_text())["models"]
    (tmp_path / "models.json").write_text(json.dumps({"models": {k: v for k, v in models.items() if k == file}}))
    for path in [other_sizes / f"{file}.safetensors", *other_sizes.glob(f"{file}.json")]:
        shutil.copy(path, tmp_path)
    spoil(tmp_path, f"{file}.safetensors", name, change)
    assert main([str(tmp_path)]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert f" out: {quantity}" in last
    line = next(line for line in lines if line.startswith(quantity + " "))
    assert line.endswith(f"OUT at {name}")


@pytest.mark.parametrize(
    ("section", "spoiled", "quantity"),
    [
        ("vote", lambda one: one["results"][0]["attempts"][0].update(attempt_1=[[1]]), "ranked attempts"),
        ("vote", lambda one: one["metrics"].update({"ARC/pass@1": 0.9}), "pass@K"),
        ("vote", lambda one: one["predictions"][0].update(pred_grid=["1"]), "inverted predictions"),
        ("vote", lambda one: one["state"][0]["preds"].reverse(), "digests of predictions"),
        ("dihedral", lambda one: one["transforms"].reverse(), "dihedral elements"),
        ("tokenise", lambda one: one[3].update(pad_r=0, input_seq="1" + one[3]["input_seq"][1:]), "tokens"),
        ("crop", lambda one: one[0].update(grid=["1"]), "grids cut out"),
        ("hashes", lambda one: one["puzzles"][0].update(hash="0"), "task digests"),
        ("augmentation", lambda one: one[0].update(inverse_of_grid=["1"]), "augmentations undone"),
    ],
)
def test_one_wrong_grid_is_found_and_named(shared_dir, tmp_path, capsys, section, spoiled, quantity):
    facts = json.loads((shared_dir / "golden" / "arc_data.json").read_text())
    try:
        spoiled(facts[section])
    except (KeyError, TypeError) as error:
        pytest.fail(f"the golden file has another form: {error}")
    (tmp_path / "arc_data.json").write_text(json.dumps(facts))
    assert main([str(tmp_path)]) == 1
    assert f"arc_data {quantity}" in capsys.readouterr().out.splitlines()[-1]


def unusable(folder, change):
    change(folder)
    with pytest.raises(InputError) as caught:
        main([str(folder)])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def drop_tensor(folder, name):
    tensors = load_file(folder / "att.safetensors")
    save_file({key: value for key, value in tensors.items() if key != name}, folder / "att.safetensors")


def edit_models(folder, change):
    models = json.loads((folder / "models.json").read_text())
    change(models["models"]["att"])
    (folder / "models.json").write_text(json.dumps(models))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: drop_tensor(f, "param/model.inner.lm_head.weight"), "att: lm_head.weight has shape none"),
        (lambda f: drop_tensor(f, "batch1/labels"), "KeyError: 'labels'"),
        (lambda f: (f / "att.safetensors").write_bytes(b"short"), "cannot read as safetensors"),
        (lambda f: (f / "misc.safetensors").unlink(), "misc.safetensors: cannot read"),
        (lambda f: (f / "models.json").write_text("{}"), "models.json: not golden numbers of the known format"),
        (lambda f: (f / "models.json").write_text("{"), "models.json: not JSON"),
        (lambda f: edit_models(f, lambda m: m.update(reference_arch="lstm")), "architecture 'lstm', expected one of"),
        (lambda f: edit_models(f, lambda m: m["config"].pop("L_cycles")), "no setting 'L_cycles'"),
        (lambda f: edit_models(f, lambda m: m["config"].update(pos_encodings="learned")), "'learned', expected 'rope'"),
        (lambda f: edit_models(f, lambda m: m["config"].update(vocab_size=12)), "has shape [11, 42]"),
        (shutil.rmtree, "no such folder"),
        (lambda f: [path.unlink() for path in f.iterdir()], "nothing to compare"),
    ],
)
def test_unusable_input_is_named_in_one_line(folder, change, message):
    assert message in unusable(folder, change)


def test_unusable_input_ends_with_status_2(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["golden", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit) as caught:
        run_program(main)
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_files_without_description_and_descriptions_without_file_are_noted(folder, capsys):
    (folder / "att.safetensors").rename(folder / "stranger.safetensors")
    assert main([str(folder)]) == 0
    out = capsys.readouterr().out
    assert "note: stranger: not compared" in out
    assert "note: att: not compared" in out
