"""A bundle is whole, says what it holds, and installs without its sources."""

import hashlib
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from arc_trm import __version__
from arc_trm.checkpoint import read_export, write_export
from data_prep.files import InputError, set_aside, standing_json
from submission import package
from submission.inputs import find_exports
from submission.package import NOTEBOOK, PACKAGES, Bundle, build_wheel, read_bundle
from tests.conftest import REPOSITORY
from tests.submission.tiny import MODEL, make_export, tiny_tasks


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("package")
    make_export(folder / "run" / "export", tiny_tasks())
    assert package.main(["--checkpoint", str(folder / "run"), "--out", str(folder / "bundle")]) == 0
    return read_bundle(folder / "bundle")


# Bundle -----------------------------------------------------------------------------------------------------


def test_a_bundle_is_a_flat_folder_whose_manifest_knows_every_file(bundle: Bundle) -> None:
    names = {"LICENCES.txt", "export.json", "export.safetensors", NOTEBOOK, f"arc_trm-{__version__}-py3-none-any.whl"}
    assert {path.name for path in bundle.folder.iterdir()} == names | {"manifest.json"}
    digests = {name: hashlib.sha256((bundle.folder / name).read_bytes()).hexdigest() for name in names}
    assert bundle.manifest["digests"] == digests
    assert bundle.manifest["package"] == __version__
    assert bundle.digest == hashlib.sha256((bundle.folder / "manifest.json").read_bytes()).hexdigest()


def test_several_checkpoints_are_packed_found_and_read(bundle: Bundle, tmp_path: Path) -> None:
    other = make_export(tmp_path / "other", model=replace(MODEL, hidden=24))
    words = ["--checkpoint", str(bundle.folder), "--out", str(tmp_path / "b"), "--checkpoint"]
    package.main([*words, str(other)])
    assert all(path.is_file() for path in (tmp_path / "b").iterdir()), "Kaggle's datasets are flat"
    found = find_exports(tmp_path / "b")
    digests = [read_export(path).facts["sha256"] for path in (bundle.folder, other)]
    assert [read_export(path).facts["sha256"] for path in found] == digests
    assert read_bundle(tmp_path / "b").manifest["checkpoints"] == digests
    assert all(standing_json(path, "export") for path in found)
    with pytest.raises(InputError, match="has the weights of"):
        package.main([*words, str(bundle.folder)])
    found[1].with_suffix(".safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match=r"export2\.safetensors: truncated or altered"):
        read_export(found[1])


def test_the_next_bundle_replaces_it_and_the_same_sources_make_the_same(bundle: Bundle, tmp_path: Path) -> None:
    words = ["--checkpoint", str(bundle.folder), "--out", str(tmp_path / "b")]
    package.main(words)
    (tmp_path / "b" / "export.json").write_text("{}")
    package.main(words)
    assert read_bundle(tmp_path / "b").digest == bundle.digest
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_packing_leaves_nothing_in_the_checkout(bundle: Bundle) -> None:
    for name in ("build", "dist"):
        assert not (REPOSITORY / name).exists()


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"format": "arc-trm-dataset"}, "not the manifest of a bundle"),
        ({"format": "arc-trm-bundle", "version": 9}, "not the manifest of a bundle, expected arc-trm-bundle 1 as"),
        ([1], "not the manifest of a bundle"),
    ],
)
def test_another_manifest_is_refused(tmp_path: Path, manifest: object, message: str) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=message):
        read_bundle(tmp_path)


def test_only_an_older_bundle_is_replaced(bundle: Bundle, tmp_path: Path) -> None:
    words = ["--checkpoint", str(bundle.folder), "--out", str(tmp_path)]
    (tmp_path / "manifest.json").write_text('{"format": "arc-trm-dataset"}')
    with pytest.raises(InputError, match=r"holds manifest\.json, expected a new folder or an older bundle"):
        package.main(words)
    (tmp_path / "manifest.json").rename(tmp_path / "mine.txt")
    with pytest.raises(InputError, match=r"holds .*, expected a new folder"):
        package.main(words)


def test_a_missing_part_is_named(bundle: Bundle, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "b")]
    with pytest.raises(InputError, match="no checkpoint here"):
        package.main(["--checkpoint", str(tmp_path), *out])
    assert not (tmp_path / "b").exists()


def test_the_licences_name_the_corpora(bundle: Bundle, tmp_path: Path) -> None:
    text = (bundle.folder / "LICENCES.txt").read_text()
    assert "ConceptARC under MIT" in text
    assert (REPOSITORY / "LICENSE").read_text() in text
    export = replace(read_export(bundle.folder), facts={"corpora": [{"name": "mine", "version": "2"}]})
    write_export(tmp_path / "export", export)
    package.main(["--checkpoint", str(tmp_path), "--out", str(tmp_path / "b")])
    assert "\n  mine 2\n" in (tmp_path / "b" / "LICENCES.txt").read_text()


def test_more_supervision_steps_than_in_training_are_refused(bundle: Bundle, tmp_path: Path) -> None:
    words = ["--checkpoint", str(bundle.folder), "--out", str(tmp_path / "b"), "--options"]
    found = (
        r"^--options: 8 supervision steps, .* was trained with 2 and answers worse with more, expected at most 2 \(or"
    )
    with pytest.raises(InputError, match=found):
        package.main([*words, "--halting.max-supervision-steps 8"])
    assert not (tmp_path / "b").exists()
    assert package.main([*words, "--halting.max-supervision-steps 8", "--anyway"]) == 0
    assert package.main([*words, "--halting.max-supervision-steps 2"]) == 0


def test_the_competition_travels_with_the_bundle(bundle: Bundle, tmp_path: Path) -> None:
    package.main(["--checkpoint", str(bundle.folder), "--out", str(tmp_path / "b"), "--competition", "a-prize"])
    assert read_bundle(tmp_path / "b").manifest["competition"] == "a-prize"


def test_options_travel_with_the_bundle(bundle: Bundle, tmp_path: Path) -> None:
    assert bundle.manifest["options"] == []
    package.main(
        ["--checkpoint", str(bundle.folder), "--out", str(tmp_path / "b"), "--options", "--votes 7 --seed '3'"]
    )
    assert read_bundle(tmp_path / "b").manifest["options"] == ["--votes", "7", "--seed", "3"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--vootes 7", "unrecognized arguments: --vootes 7"),
        ("--votes many", "argument --votes: found 'many'"),
        ("--votes '7", "argument --options: invalid"),
        ("--rehearsal-budget soon", "argument --rehearsal-budget: found 'soon'"),
    ],
)
def test_options_that_the_notebook_would_refuse_are_not_packed(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, said: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        package.main(["--checkpoint", str(bundle.folder), "--out", str(tmp_path / "b"), "--options", options])
    assert said in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_an_export_that_a_kill_set_aside_is_packed(bundle: Bundle, tmp_path: Path) -> None:
    folder = make_export(tmp_path / "run" / "export", tiny_tasks())
    folder.rename(set_aside(folder))
    package.main(["--checkpoint", str(tmp_path / "run"), "--out", str(tmp_path / "b")])
    assert read_bundle(tmp_path / "b").digest == bundle.digest


def test_a_checkpoint_for_other_puzzles_is_refused(tmp_path: Path) -> None:
    make_export(tmp_path / "run" / "export", model=replace(MODEL, seq_len=81))
    with pytest.raises(InputError, match="run: a model for 81 tokens of 12 kinds, expected one for ARC"):
        package.main(["--checkpoint", str(tmp_path / "run"), "--out", str(tmp_path / "b")])
    assert not (tmp_path / "b").exists()


# Wheel ------------------------------------------------------------------------------------------------------


def wheel_of(bundle: Bundle) -> Path:
    return bundle.folder / bundle.manifest["wheel"]


def test_the_wheel_holds_the_packages_as_they_are_and_no_litter(bundle: Bundle) -> None:
    with zipfile.ZipFile(wheel_of(bundle)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}, "no clock"
    information = f"arc_trm-{__version__}.dist-info"
    paths = (path for package in PACKAGES for path in (REPOSITORY / package).rglob("*"))
    expected = {
        path.relative_to(REPOSITORY).as_posix(): path.read_bytes()
        for path in paths
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    assert {name: data for name, data in files.items() if not name.startswith(information)} == expected
    assert b"Tag: py3-none-any" in files[f"{information}/WHEEL"]
    assert (REPOSITORY / "LICENSE").read_bytes() in files.values()


def test_pip_installs_it_offline_and_it_runs_without_its_sources(bundle: Bundle, tmp_path: Path) -> None:
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", target, wheel_of(bundle)], check=True, capture_output=True)
    words = ["--checkpoint", str(bundle.folder), "--out", "b"]
    # -I ignores the checkout as the current folder and in the environment.
    code = f"""import sys; sys.path.insert(0, {str(target)!r})
from data_prep.program import run_program
from submission import package
sys.argv = ["package", *{words}]
run_program(package.main)"""
    ran = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stderr == f"error: {target}: no pyproject.toml, expected a checkout of the project\n"
    assert ran.returncode == 2


def test_sources_that_make_no_wheel_are_told_in_one_line(tmp_path: Path) -> None:
    for package_name in PACKAGES:
        (tmp_path / package_name).mkdir()
    for file in ("README.md", "LICENSE"):
        (tmp_path / file).touch()
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 7\n")
    (tmp_path / "scratch").mkdir()
    with pytest.raises(InputError, match=r"no wheel \(.+\)$"):
        build_wheel(tmp_path, tmp_path / "scratch")
