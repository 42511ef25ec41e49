"""Published weights: import and export bit for bit, and the files that import refuses."""

import json
from dataclasses import asdict, replace

import pytest
import torch

from arc_trm import published as published_weights
from arc_trm.checkpoint import Export, read_export, write_export
from arc_trm.config import HaltingConfig, RunConfig
from arc_trm.model import RecursiveModel
from arc_trm.presets import PRESETS
from arc_trm.published import PUZZLE_TABLE, from_published, main
from data_prep.files import InputError, standing_json
from data_prep.store import TaskEntry, build_store, save
from tests.data_prep.material import random_task
from tests.golden.models import from_settings
from tests.golden.other_sizes import BASE, MODELS, SEEDS, golden_tensors, random_weights


def published(name, seed=3):
    """Bare tensors of a published checkpoint, its fixed states in bf16 as a bf16 run leaves them."""
    arch, changes = MODELS[name]
    config = BASE | changes
    weights = random_weights(arch, config, torch.Generator().manual_seed(seed))
    noisy = {key: value.float() + 1e-3 * torch.rand_like(value.float()) for key, value in weights.items()}
    return {key: value.bfloat16() if "_init" in key else value for key, value in noisy.items()}


@pytest.fixture(autouse=True)
def small_presets(monkeypatch):
    """The small models as presets."""
    for name, (arch, changes) in MODELS.items():
        model, halting = from_settings(arch, BASE | changes, name)
        model = replace(model, latents=0, latent_steps=max(1, model.latent_steps))  # of direct prediction it is 0
        monkeypatch.setitem(PRESETS, name, RunConfig(model=model, halting=halting))


@pytest.mark.parametrize("prefix", ["_orig_mod.model.inner.", "model.inner.", "inner.", ""])
@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_goes_through_our_export_bit_for_bit(tmp_path, name, prefix):
    tensors = published(name)
    names = ["<blank>", *(f"task|||t{i}|||0123456789" for i in range(1, BASE["num_puzzle_identifiers"]))]
    torch.save({prefix + key: value for key, value in tensors.items()}, tmp_path / "step_7")
    (tmp_path / "identifiers.json").write_text(json.dumps(names))
    given = ["--identifiers", str(tmp_path / "identifiers.json")]
    assert main(["import", str(tmp_path / "step_7"), name, "--out", str(tmp_path / "ours"), *given]) == 0

    export = read_export(tmp_path / "ours")
    assert export.puzzle_names == tuple(names)
    assert torch.allclose(export.puzzle_mean, tensors[PUZZLE_TABLE][1:].mean(0))
    assert all(tensor.dtype == torch.float32 for tensor in export.weights.values())
    RecursiveModel(export.model).load_state_dict(export.weights)

    back = ["--out", str(tmp_path / "back"), "--identifiers", str(tmp_path / "names.json")]
    assert main(["export", str(tmp_path / "ours"), *back]) == 0
    found = torch.load(tmp_path / "back", weights_only=True)
    assert found.keys() == {prefix + key for key in tensors}
    for key, value in tensors.items():
        assert found[prefix + key].dtype == value.dtype
        assert torch.equal(found[prefix + key], value)
    assert json.loads((tmp_path / "names.json").read_text()) == names


@pytest.mark.parametrize("name", MODELS)
def test_an_imported_model_computes_the_golden_logits(tmp_path, name):
    arch, changes = MODELS[name]
    golden = golden_tensors(arch, BASE | changes, SEEDS[name])
    bare = {k.removeprefix("param/"): v.float() for k, v in golden.items() if k.startswith("param/")}
    torch.save(bare, tmp_path / "step_1")
    (tmp_path / "names.json").write_text(json.dumps([f"puzzle {i}" for i in range(BASE["num_puzzle_identifiers"])]))
    given = ["--identifiers", str(tmp_path / "names.json"), "--out", str(tmp_path / "ours")]
    assert main(["import", str(tmp_path / "step_1"), name, *given]) == 0
    export = read_export(tmp_path / "ours")
    model = RecursiveModel(export.model)
    model.load_state_dict(export.weights)
    inputs = golden["batch1/inputs"]
    puzzle = export.puzzle_table[golden["batch1/puzzle_identifiers"].long()]
    with torch.no_grad():
        output = model(model.initial_state(*inputs.shape, torch.float32), inputs, puzzle)
    assert torch.allclose(output.logits, golden["train/step1/logits"], atol=2e-4)


def import_error(tmp_path, tensors, *arguments, preset="att"):
    torch.save(tensors, tmp_path / "step_7")
    with pytest.raises(InputError) as caught:
        main(["import", str(tmp_path / "step_7"), preset, "--out", str(tmp_path / "ours"), *arguments])
    assert not (tmp_path / "ours").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("preset", "message"),
    [
        ("one", "puzzle_emb.weights has shape [7, 53], the asked model has [7, 22]"),
        ("arc1", "puzzle_emb.weights has shape [7, 53], the asked model has [7, 512]"),
        ("arc1", "step_7: H_init has shape [42], the asked model has [512]; L_init has shape [42], the asked"),
        ("arc1-fast", "preset arc1-fast: model.positions grid, the published code has only sequence"),
        ("at", "found 'at', expected a preset: did you mean att? DATA or DATA-VARIANT"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(tmp_path, preset, message):
    assert message in import_error(tmp_path, published("att"), preset=preset)


def test_identifiers_must_be_one_name_for_each_row_of_the_table(tmp_path):
    (tmp_path / "names.json").write_text('["<blank>", "a"]')
    message = import_error(tmp_path, published("att"), "--identifiers", str(tmp_path / "names.json"))
    assert "2 names for a puzzle table of 7 rows" in message
    (tmp_path / "names.json").write_text('{"a": 1}')
    assert "expected a list" in import_error(tmp_path, published("att"), "--identifiers", str(tmp_path / "names.json"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t | {"extra": torch.zeros(3)}, "extra has shape [3], the asked model has none"),
        (
            lambda t: {k: v for k, v in t.items() if k != "q_head.bias"},
            "q_head.bias has shape none, the asked model has [2]",
        ),
        (
            lambda t: {k: v for k, v in t.items() if "level" not in k},
            "L_level.layers.0.mlp.down_proj.weight has shape none",
        ),
        (lambda t: {k: v for k, v in t.items() if "embed" not in k}, "no published TRM or HRM"),
        (lambda t: {("" if "q_head" in k else "inner.") + k: v for k, v in t.items()}, "does not begin with 'inner.'"),
        (lambda t: t | {"lm_head.weight": t["lm_head.weight"].double()}, "lm_head.weight is torch.float64"),
        (lambda t: [1, 2], "expected a torch file of named tensors, found list"),
        (lambda t: {"model": t}, "expected a torch file of named tensors"),
        (lambda t: {}, "no published TRM or HRM"),
    ],
)
def test_a_file_with_other_tensors_is_refused(tmp_path, change, message):
    assert message in import_error(tmp_path, change(published("att")))


class Payload:
    """Would run code when unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("the checkpoint was unpickled",))


def test_nothing_is_unpickled(tmp_path):
    message = import_error(tmp_path, {"embed_tokens.embedding_weight": Payload()})
    assert "cannot read as a torch file of named tensors" in message


@pytest.mark.parametrize("content", [{"a": torch.nn.Linear(2, 3)}, "text"])
def test_content_other_than_tensors_is_refused_without_advice_to_load_it(tmp_path, content):
    path = tmp_path / "step_7"
    path.write_text(content) if content == "text" else torch.save(content, path)
    reason = "File is not a zip file" if content == "text" else "other content"
    with pytest.raises(InputError, match=rf"step_7: cannot read as a torch file of named tensors \({reason}\)$"):
        main(["import", str(path), "att", "--out", str(tmp_path / "ours")])


def test_a_torch_file_given_as_a_checkpoint_is_to_be_imported(tmp_path):
    torch.save(published("att"), tmp_path / "step_7")
    with pytest.raises(InputError, match=r"a torch file, .* `python -m arc_trm\.published import .*/step_7 PRESET"):
        read_export(tmp_path / "step_7")
    assert standing_json(tmp_path / "step_7", "export") is None  # so that solving leaves an older submission alone


def test_a_damaged_or_missing_file_is_named(tmp_path):
    (tmp_path / "step_7").write_bytes(b"no zip file")
    for name in ("step_7", "nowhere"):
        with pytest.raises(InputError, match=f"{name}: cannot read as a torch file"):
            main(["import", str(tmp_path / name), "att", "--out", str(tmp_path / "ours")])


@pytest.mark.parametrize("words", [["--no-table"], []])
def test_only_the_mean_of_a_table_is_kept_if_asked_or_without_names(tmp_path, capsys, monkeypatch, words):
    monkeypatch.setattr(published_weights, "ROWS_AT_ONCE", 4)
    tensors = published("mixer")
    torch.save(tensors, tmp_path / "step_7")
    assert main(["import", str(tmp_path / "step_7"), "mixer", "--out", str(tmp_path / "ours"), *words]) == 0
    said = capsys.readouterr().out
    assert said.endswith("0 puzzle embeddings\n")
    note = "note: the 7 puzzle embeddings have no names (--identifiers), so only their mean is kept\n"
    assert said.startswith(note) == (not words)
    export = read_export(tmp_path / "ours")
    assert export.puzzle_table is None
    assert export.puzzle_names is None
    assert export.facts["preset"] == "mixer"
    assert (export.training_tasks, export.training_known) == ((), False)
    assert torch.allclose(export.puzzle_mean, tensors[PUZZLE_TABLE][1:].mean(0))


def test_dotted_settings_change_the_preset(tmp_path, capsys):
    tensors = published("att") | {PUZZLE_TABLE: torch.randn(1, 53)}
    torch.save(tensors, tmp_path / "step_7")
    words = ["import", str(tmp_path / "step_7"), "arc1", "--out", str(tmp_path / "ours")]
    asked = asdict(PRESETS["att"].model)
    changes = {name: value for name, value in asked.items() if value != getattr(PRESETS["arc1"].model, name)}
    dotted = [word for name, value in changes.items() for word in (f"--model.{name.replace('_', '-')}", str(value))]
    assert "--model.hidden" in dotted
    assert main([*words, *dotted, "--no-table", "--halting.max-supervision-steps", "7"]) == 0
    export = read_export(tmp_path / "ours")
    assert replace(export.model, latents=0) == PRESETS["att"].model
    assert export.halting.max_supervision_steps == 7
    for wrong in (["--model.hiden", "3"], ["--train.lr", "1"], ["--model.hidden", "wide"]):
        with pytest.raises(SystemExit, match="2"):
            main([*words, *wrong])
        assert wrong[0] in capsys.readouterr().err
    with pytest.raises(InputError, match=r"model\.latent_steps: found 0, expected at least 1"):
        main([*words, "--model.latent-steps", "0"])
    with pytest.raises(SystemExit, match="2"):
        main(["export", str(tmp_path / "ours"), "--out", str(tmp_path / "x"), "--model.hidden", "3"])


def test_a_dataset_says_what_a_checkpoint_was_trained_on(tmp_path):
    store = build_store([TaskEntry.all_pairs(random_task(seed, str(seed))) for seed in range(3)], 0, 0)
    save(store, tmp_path / "data")
    torch.save(published("mixer"), tmp_path / "step_7")
    said = ["--training-tasks", str(tmp_path / "data")]
    assert main(["import", str(tmp_path / "step_7"), "mixer", "--out", str(tmp_path / "ours"), *said]) == 0
    export = read_export(tmp_path / "ours")
    assert (export.training_tasks, export.training_known) == (store.training_digests(), True)


def test_an_export_of_our_own_becomes_a_published_checkpoint(tmp_path):
    model = replace(PRESETS["arc1-tied"].model, hidden=24, heads=2, puzzle_width=31, seq_len=9, layers=1, prefix=2)
    torch.manual_seed(0)
    weights = dict(RecursiveModel(model).state_dict())
    write_export(tmp_path / "ours", Export(model, HaltingConfig(), weights, torch.arange(31.0)))
    out = ["--out", str(tmp_path / "step_1")]
    assert main(["export", str(tmp_path / "ours"), *out]) == 0
    found = torch.load(tmp_path / "step_1", weights_only=True)
    bare = {key.removeprefix("_orig_mod.model.inner."): value for key, value in found.items()}
    assert torch.equal(bare.pop(PUZZLE_TABLE), torch.arange(31.0)[None])
    assert torch.equal(bare["lm_head.weight"], bare["embed_tokens.embedding_weight"])
    again = from_published(model, bare, "here")
    assert again.keys() == weights.keys()
    assert all(torch.equal(again[key], value) for key, value in weights.items())
    with pytest.raises(InputError, match="holds no puzzle names"):
        main(["export", str(tmp_path / "ours"), *out, "--identifiers", str(tmp_path / "names.json")])


@pytest.mark.parametrize(
    ("setting", "value"), [("embedding_rows", "task"), ("positions", "grid"), ("convolution", True)]
)
def test_export_refuses_a_model_that_the_published_code_lacks(tmp_path, setting, value):
    model = replace(PRESETS["arc1"].model, hidden=24, heads=2, puzzle_width=7, seq_len=9, layers=1, **{setting: value})
    write_export(
        tmp_path / "ours", Export(model, HaltingConfig(), dict(RecursiveModel(model).state_dict()), torch.ones(7))
    )
    with pytest.raises(InputError, match=f"model.{setting} {value}, the published code has only"):
        main(["export", str(tmp_path / "ours"), "--out", str(tmp_path / "step_1")])
    assert not (tmp_path / "step_1").exists()
