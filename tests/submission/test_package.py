"""A bundle is whole, says what it holds, installs without its sources, and needs nothing that Kaggle lacks."""

import ast
import base64
import hashlib
import json
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from arc_trm import __version__
from arc_trm.checkpoint import read_export
from data_prep.files import InputError
from submission import package
from submission.bundle import NOTEBOOK, Bundle, read_bundle
from submission.mounts import find_export
from submission.package import CORPUS_LICENCES, licences
from submission.runtime import IMAGE, PACKAGES, PROGRAMS, Import, admits, outside_imports, problems, source_file
from submission.wheel import Project, build_wheel, find_project, package_files, wheel_name
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
    names = {"LICENCES.txt", "export.json", "export.safetensors", NOTEBOOK, wheel_name()}
    assert {path.name for path in bundle.folder.iterdir()} == names | {"manifest.json"}
    digests = {name: hashlib.sha256((bundle.folder / name).read_bytes()).hexdigest() for name in names}
    assert bundle.manifest["digests"] == digests
    assert bundle.manifest["package"] == __version__
    assert bundle.manifest["checkpoint"]["training_tasks"] == 3
    assert bundle.digest == hashlib.sha256((bundle.folder / "manifest.json").read_bytes()).hexdigest()


def test_its_checkpoint_can_be_found_and_read(bundle: Bundle) -> None:
    assert find_export(bundle.folder.parent / "bundle") == bundle.folder
    assert read_export(bundle.folder).facts["sha256"] == bundle.manifest["checkpoint"]["sha256"]


def test_the_same_sources_make_the_same_bundle(bundle: Bundle, tmp_path: Path) -> None:
    package.main(["--checkpoint", str(bundle.folder), "--out", str(tmp_path / "again")])
    assert read_bundle(tmp_path / "again").digest == bundle.digest


def test_a_bundle_is_replaced_by_the_next_one(bundle: Bundle, tmp_path: Path) -> None:
    words = ["--checkpoint", str(bundle.folder), "--out", str(tmp_path / "b")]
    package.main(words)
    (tmp_path / "b" / "export.json").write_text("{}")
    package.main(words)
    assert read_bundle(tmp_path / "b").digest == bundle.digest
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_packing_leaves_nothing_in_the_checkout(bundle: Bundle) -> None:
    for name in ("build", "dist"):
        assert not (REPOSITORY / name).exists()


def test_an_altered_file_is_noticed(bundle: Bundle, tmp_path: Path) -> None:
    package.main(["--checkpoint", str(bundle.folder), "--out", str(tmp_path / "b")])
    (tmp_path / "b" / "LICENCES.txt").write_text("other")
    with pytest.raises(InputError, match=r"LICENCES.txt: the content differs from the manifest's digest"):
        read_bundle(tmp_path / "b")


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"format": "arc-trm-dataset"}, "not the manifest of a bundle"),
        ({"format": "arc-trm-bundle", "version": 9}, "bundle version 9, expected 1"),
        ([1], "not the manifest of a bundle"),
    ],
)
def test_what_is_no_bundle_is_refused(tmp_path: Path, manifest: object, message: str) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=message):
        read_bundle(tmp_path)


def test_nothing_else_is_replaced(bundle: Bundle, tmp_path: Path) -> None:
    words = ["--checkpoint", str(bundle.folder), "--out", str(tmp_path)]
    (tmp_path / "manifest.json").write_text('{"format": "arc-trm-dataset"}')
    with pytest.raises(InputError, match="holds something else, expected a new folder or an older bundle"):
        package.main(words)
    (tmp_path / "manifest.json").rename(tmp_path / "mine.txt")
    with pytest.raises(InputError, match="holds other files"):
        package.main(words)


def test_a_missing_part_is_named(bundle: Bundle, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "b")]
    with pytest.raises(InputError, match="no checkpoint here"):
        package.main(["--checkpoint", str(tmp_path), *out])
    (tmp_path / "x.ipynb").write_text("{}")
    with pytest.raises(InputError, match=r"x.ipynb: not a notebook, expected a file with cells"):
        package.main(["--checkpoint", str(bundle.folder), "--notebook", str(tmp_path / "x.ipynb"), *out])
    assert not (tmp_path / "b").exists()


def test_the_licences_name_the_corpora(bundle: Bundle) -> None:
    text = (bundle.folder / "LICENCES.txt").read_text()
    assert "it does not name any" in text
    assert (REPOSITORY / "LICENSE").read_text() in text
    export = read_export(bundle.folder)
    corpora = [{"name": f"{name}-training", "version": "1"} for name in CORPUS_LICENCES]
    told = licences(replace(export, facts={"corpora": [*corpora, {"name": "mine", "version": "2"}]}))
    assert "arc1-training 1: Apache-2.0" in told
    assert "mine 2: see its source" in told


def test_a_checkpoint_for_other_puzzles_is_refused(tmp_path: Path) -> None:
    make_export(tmp_path / "run" / "export", model=replace(MODEL, seq_len=81))
    with pytest.raises(InputError, match="run: a model for 81 tokens of 12 kinds, expected one for ARC"):
        package.main(["--checkpoint", str(tmp_path / "run"), "--out", str(tmp_path / "b")])
    assert not (tmp_path / "b").exists()


# Wheel ------------------------------------------------------------------------------------------------------


def test_the_wheel_is_one(bundle: Bundle) -> None:
    with zipfile.ZipFile(bundle.folder / wheel_name()) as archive:
        assert archive.testzip() is None
        files = {name: archive.read(name) for name in archive.namelist()}
    information = f"arc_trm-{__version__}.dist-info"
    assert {name.split("/")[0] for name in files} == {*PACKAGES, information}
    assert b"Tag: py3-none-any" in files[f"{information}/WHEEL"]
    assert f"Name: arc-trm\nVersion: {__version__}\n".encode() in files[f"{information}/METADATA"]
    assert b"Requires-Dist: torch>=2.10,<3\n" in files[f"{information}/METADATA"]
    rows = [row.rsplit(",", 2) for row in files[f"{information}/RECORD"].decode().splitlines()]
    assert {name for name, _, _ in rows} == set(files)
    for name, digest, size in rows[:-1]:
        found = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={found}", len(files[name]))


def test_the_wheel_has_all_files_of_the_packages_and_no_litter(bundle: Bundle, tmp_path: Path) -> None:
    for package_name in PACKAGES:
        (tmp_path / package_name / "__pycache__").mkdir(parents=True)
        (tmp_path / package_name / "__init__.py").touch()
        (tmp_path / package_name / "__pycache__" / "x.pyc").touch()
        (tmp_path / package_name / ".hidden").touch()
    (tmp_path / "submission" / "page").mkdir()
    (tmp_path / "submission" / "page" / "page.css").write_text("x")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").touch()
    names = [name for name, _ in package_files(tmp_path)]
    expected = ["arc_trm/__init__.py", "data_prep/__init__.py", "submission/__init__.py", "submission/page/page.css"]
    assert names == expected


def test_pip_installs_it_offline_and_what_is_installed_can_pack_itself(bundle: Bundle, tmp_path: Path) -> None:
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", target, bundle.folder / wheel_name()], check=True, capture_output=True)
    words = ["--checkpoint", str(bundle.folder), "--notebook", str(bundle.folder / NOTEBOOK), "--out", "b"]
    # -I ignores the checkout as the current folder and in the environment.
    code = f"import sys; sys.path.insert(0, {str(target)!r}); from submission import package; package.main({words})"
    ran = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert read_bundle(tmp_path / "b").manifest["digests"].keys() == bundle.manifest["digests"].keys()
    with (
        zipfile.ZipFile(tmp_path / "b" / wheel_name()) as again,
        zipfile.ZipFile(bundle.folder / wheel_name()) as first,
    ):
        assert [name for name in again.namelist() if name.endswith(".py")] == [
            name for name in first.namelist() if name.endswith(".py")
        ]


def test_a_project_without_facts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("submission.wheel.__file__", str(tmp_path / "submission" / "wheel.py"))
    monkeypatch.setattr("submission.wheel.NAME", "no-such-project")
    with pytest.raises(InputError, match=r"found neither pyproject.toml nor an installed no-such-project"):
        find_project()


# What Kaggle's image has ------------------------------------------------------------------------------------


def test_a_submission_needs_what_the_image_has() -> None:
    found = outside_imports(REPOSITORY)
    assert problems(found, find_project().requirements) == []
    assert {"torch", "numpy", "accelerate", "orjson", "safetensors", "tqdm"} <= {item.name for item in found}


def test_the_image_is_what_the_project_admits() -> None:
    described = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert admits(described["requires-python"], IMAGE["python"])
    requirements = find_project().requirements
    assert requirements["torch"] == ">=2.10,<3"
    assert all(admits(requirements[name], version) for name, version in IMAGE.items() if name != "python")


def write_project(root: Path, **files: str) -> Path:
    for package_name in PACKAGES:
        (root / package_name).mkdir()
        (root / package_name / "__init__.py").touch()
    for program in PROGRAMS:
        root.joinpath(*program.split(".")).with_suffix(".py").touch()
    for name, text in files.items():
        root.joinpath(*name.split("__")).with_suffix(".py").write_text(text)
    return root


@pytest.mark.parametrize(
    ("source", "at_load"),
    [
        ("import rich.console", True),
        ("from rich import print", True),
        ("try:\n    import rich\nexcept ImportError:\n    rich = None", True),
        ("class A:\n    import rich", True),
        ("def f():\n    import rich", False),
        ("def f():\n    class A:\n        import rich", False),
        ("async def f():\n    from rich.x import y", False),
    ],
)
def test_a_package_that_kaggle_lacks_is_found(tmp_path: Path, source: str, at_load: bool) -> None:
    root = write_project(tmp_path, submission__solve="from arc_trm import deep", arc_trm__deep=source)
    assert outside_imports(root) == [Import("rich", "arc_trm.deep", at_load)]
    assert problems(outside_imports(root), {}) == ["arc_trm.deep: imports rich, which Kaggle's image lacks"]


def test_what_is_only_for_type_checkers_or_out_of_reach_does_not_count(tmp_path: Path) -> None:
    checked = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import rich\nelse:\n    import tqdm"
    root = write_project(tmp_path, submission__solve=checked, submission__show="import rich")
    assert [item.name for item in outside_imports(root)] == ["tqdm"]


def test_a_package_of_another_version_is_found() -> None:
    [line] = problems([Import("torch", "arc_trm.x", True)], {"torch": ">=2.11,<3"})
    assert line == f"arc_trm.x: needs torch >=2.11,<3, Kaggle's image has {IMAGE['torch']}"


def test_a_package_for_other_uses_may_be_imported_late_only() -> None:
    assert problems([Import("pooch", "data_prep.x", False)], {}) == []
    assert problems([Import("pooch", "data_prep.x", True)], {}) != []


def test_a_lacking_package_stops_the_packing(bundle: Bundle, tmp_path: Path) -> None:
    root = write_project(tmp_path, submission__score="import rich")
    with pytest.raises(InputError, match=r"this cannot run on Kaggle: submission.score: imports rich"):
        package.write_bundle(Project(root, {}, ""), bundle.folder, bundle.folder / NOTEBOOK, tmp_path / "b")


def test_a_program_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no module submission.launch in"):
        outside_imports(tmp_path, ["submission.launch"])


@pytest.mark.parametrize(
    ("bounds", "version", "expected"),
    [
        (">=2.10,<3", "2.10", True),
        (">=2.10,<3", "2.9", False),
        (">=2.0,<3", "2", True),
        ("<3", "3.0", False),
        ("", "1", True),
        (">=1.13, <2", "1.13.1", True),
    ],
)
def test_a_range_admits_versions(bounds: str, version: str, expected: bool) -> None:
    assert admits(bounds, version) is expected


def test_a_bound_of_another_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="bound '~=2'"):
        admits("~=2", "2.1")


def test_every_source_is_python_of_the_image() -> None:
    """No syntax newer than the oldest Python that the project promises."""
    paths = [path for name in PACKAGES for path in (REPOSITORY / name).rglob("*.py")]
    assert len(paths) > 50
    for path in paths:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 11))


def test_modules_are_found_by_name() -> None:
    assert source_file(REPOSITORY, "submission") == REPOSITORY / "submission" / "__init__.py"
    assert source_file(REPOSITORY, "submission.solve") == REPOSITORY / "submission" / "solve.py"
    assert source_file(REPOSITORY, "submission.solve.main") is None


def test_the_wheel_does_not_depend_on_the_clock() -> None:
    assert build_wheel(find_project()) == build_wheel(find_project())
