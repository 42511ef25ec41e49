"""Every command block in README.md and docs/ can be run: programs, targets, files and options exist."""

import ast
import json
import re
import runpy
import shlex
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from arc_trm import model, supervision
from tests.conftest import REPOSITORY
from tests.test_project import makefile_targets, text_of

MODULE = re.compile(r"`(?:python -m )?((?:data_prep|arc_trm|submission|tests)(?:\.[a-z_]+)+)(?:`|\s)")
FILE = re.compile(r"`((?:data_prep|arc_trm|submission|tests|configs|notebooks)/[\w/.]+)`")
LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#]*)(?:#(?P<heading>[^)]*))?\)")
FENCE = re.compile(r"^ *```(?P<language>\S*) *\n(?P<body>.*?)^ *```", re.MULTILINE | re.DOTALL)
# How each kind of block is checked; a block of another kind is refused, so that none goes unchecked.
LANGUAGES = {"sh": "commands", "python": "python", "json": "json", "text": "output, not checked"}
PYTHONS = {"python", "python3", ".venv/bin/python"}
LAUNCHERS = {"torchrun", "accelerate"}
OTHER_PROGRAMS = {"apt-get", "cd", "git", "pip", "source", "tensorboard"}


class Broken(Exception):
    """A documented command that cannot work; the message says why."""


@dataclass(frozen=True)
class Program:
    """A program of this project as it is called: a module or a script, and the words after it."""

    module: str
    words: tuple[str, ...]

    @property
    def leading(self) -> tuple[str, ...]:
        """Words before the first option: sub-commands and presets."""
        return next((self.words[:i] for i, word in enumerate(self.words) if word.startswith("-")), self.words)

    @property
    def options(self) -> set[str]:
        return {word.split("=")[0] for word in self.words if word.startswith("--")}


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """(language, body) of every fenced block of a Markdown text."""
    for match in FENCE.finditer(text):
        yield match["language"], match["body"]


def commands(body: str) -> Iterator[list[str]]:
    """The commands of a shell block as words: lines joined, comments and variable settings dropped, pipes cut."""
    for line in body.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
        lexer.commenters = "#"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;"):
                if words:
                    yield words
                words = []
            elif words or not re.match(r"[A-Z_]+=", word):
                words.append(word)


def module_of_script(path: str) -> str:
    if not (REPOSITORY / path).is_file():
        raise Broken(f"no file {path}")
    return path.removesuffix(".py").replace("/", ".")


def checked_module(name: str) -> str:
    """`name` when such a module can be run, else Broken."""
    try:
        found = find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise Broken(f"no module {name}")
    return name


def interpreted(words: list[str]) -> Program:
    """What a Python interpreter or a launcher runs, given the words after it (its own options first)."""
    for i, word in enumerate(words):
        if word == "-m":
            return Program(checked_module(words[i + 1]), tuple(words[i + 2 :]))
        if word.endswith(".py"):
            return Program(module_of_script(word), tuple(words[i + 1 :]))
        if word == "--config_file" and not (REPOSITORY / words[i + 1]).is_file():
            raise Broken(f"no file {words[i + 1]}")
    raise Broken("neither a script nor a module")


def check_command(words: list[str]) -> Program | None:
    """The program of this project that the command runs, None for another program; Broken when it cannot."""
    program, rest = words[0], words[1:]
    if program == "make":
        goals = {word for word in rest if "=" not in word and not word.startswith("-")}
        unknown = goals - makefile_targets(text_of("Makefile"))
        if unknown:
            raise Broken(f"no target {', '.join(sorted(unknown))}")
        return None
    if program == "accelerate" and rest[:1] != ["launch"]:
        return None
    if program in PYTHONS | LAUNCHERS:
        found = interpreted(rest)
        ours = found.module.split(".")[0] in {"data_prep", "arc_trm", "submission", "tests"}
        return found if ours else None
    if program in OTHER_PROGRAMS:
        return None
    raise Broken(f"unknown program {program}")


def what_is_broken(words: list[str]) -> str | None:
    """Why the command cannot be run, None when it can."""
    try:
        check_command(words)
    except Broken as error:
        return str(error)
    return None


def documents() -> list[Path]:
    of_the_export = REPOSITORY / "submission" / "checkpoint" / "README.md"
    return [REPOSITORY / "README.md", of_the_export, *sorted((REPOSITORY / "docs").rglob("*.md"))]


def documented_commands() -> list[list[str]]:
    texts = [path.read_text(encoding="utf-8") for path in documents()]
    return [words for text in texts for kind, body in blocks(text) if kind == "sh" for words in commands(body)]


def documented_programs() -> dict[tuple[str, tuple[str, ...]], set[str]]:
    """Options by (module, leading words) of every documented call of a program of ours that can work."""
    found: dict[tuple[str, tuple[str, ...]], set[str]] = {}
    for words in documented_commands():
        try:
            program = check_command(words)
        except Broken:  # reported by the test of that command
            continue
        if program is not None:
            found.setdefault((program.module, program.leading), set()).update(program.options)
    return found


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_every_block_is_of_a_kind_that_is_checked(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("```") % 2 == 0
    for language, body in blocks(text):
        assert language in LANGUAGES, f"```{language} above: {body[:80]}"
        if language == "python":
            ast.parse(body)
        if language == "json":
            json.loads(body)


@pytest.mark.parametrize("words", documented_commands(), ids=shlex.join)
def test_a_documented_command_can_be_run(words: list[str]) -> None:
    assert what_is_broken(words) is None


@pytest.mark.parametrize(
    ("module", "leading"), documented_programs(), ids=lambda value: value if isinstance(value, str) else None
)
def test_documented_options_exist(
    module: str, leading: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [module, *leading, "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    with warnings.catch_warnings():
        # Run here, since a process of its own would import torch anew; other tests may have imported the module.
        warnings.filterwarnings("ignore", message=".*found in sys.modules", category=RuntimeWarning)
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    known = {option.replace("_", "-") for option in re.findall(r"(?<![\w-])--[\w.-]+", printed.out)}
    options = {option.replace("_", "-") for option in documented_programs()[module, leading]}
    assert options <= known, f"{module} {shlex.join(leading)} --help does not name {options - known}"


def test_the_examples_of_changing_the_model_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "TOKEN_SCORES", dict(supervision.TOKEN_SCORES))
    monkeypatch.setattr(model, "LATENT_RECURSIONS", dict(model.LATENT_RECURSIONS))
    examples = [body for kind, body in blocks(text_of("docs/change-the-model.md")) if kind == "python"]
    assert len(examples) == 4
    for example in examples:
        exec(compile(example, "docs/change-the-model.md", "exec"), {})


def test_the_readme_names_both_commands() -> None:
    assert {("make", "demo"), ("make", "test")} <= {tuple(words) for words in documented_commands()}


def test_the_readme_is_a_page() -> None:
    assert len(text_of("README.md").splitlines()) <= 150


def test_the_readme_links_every_page() -> None:
    linked = {link["path"] for link in LINK.finditer(text_of("README.md"))}
    assert {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "docs").rglob("*.md")} - linked == set()


def drawn_files(layout: str) -> list[Path]:
    """The Python files of a layout in text: below the folder that stands at the margin last."""
    files, folder = [], REPOSITORY
    for line in layout.splitlines():
        if not line.startswith(" "):
            folder = REPOSITORY / line.split()[0]
        files += [folder / name for name in re.findall(r"\w+\.py", line)]
    return files


def test_the_readme_draws_files_that_exist() -> None:
    [layout] = [body for kind, body in blocks(text_of("README.md")) if kind == "text" and "data_prep/" in body]
    files = drawn_files(layout)
    assert len(files) > 30
    assert [file for file in files if not file.is_file()] == []


def test_files_are_looked_for_in_their_folder() -> None:
    layout = "arc_trm/  models\n    model.py (first)  nonsense.py\ntests/  conftest.py\n"
    names = [file.relative_to(REPOSITORY).as_posix() for file in drawn_files(layout)]
    assert names == ["arc_trm/model.py", "arc_trm/nonsense.py", "tests/conftest.py"]


def wrong_names(text: str) -> set[str]:
    """Modules and files of this project that the text names and that do not exist; what solving writes is none."""
    modules = {name for name in MODULE.findall(text) if not name.endswith((".json", ".jsonl", ".state", ".logs"))}
    wrong = {name for name in modules if what_is_broken(["python", "-m", name]) is not None}
    return wrong | {name for name in FILE.findall(text) if not (REPOSITORY / name).exists()}


def wrong_links(path: Path, text: str) -> set[str]:
    """Links of a document to files or headings that do not exist."""
    wrong = set()
    for link in LINK.finditer(text):
        target = path.parent / link["path"] if link["path"] else path
        if not target.exists() or (link["heading"] and link["heading"] not in headings(target)):
            wrong.add(link[0])
    return wrong


def headings(path: Path) -> set[str]:
    """What links call the headings of a document."""
    lines = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_a_document_names_what_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert wrong_names(text) == set()
    assert wrong_links(path, text) == set()


def test_a_wrong_name_or_link_is_found() -> None:
    text = "`python -m arc_trm.nonsense x`, `arc_trm.vote`, `submission.json`, `tests/no.py`: "
    assert wrong_names(text) == {"arc_trm.nonsense", "tests/no.py"}
    text += "[a](no.md), [b](#limits), [c](docs/data.md#nothing)"
    assert wrong_links(REPOSITORY / "README.md", text) == {"](no.md)", "](docs/data.md#nothing)"}


def test_a_block_becomes_commands() -> None:
    body = "# a comment\n$ make test  # more\nA=1 python -m x \\\n    --y 2 | tee log && cd z\n"
    assert list(commands(body)) == [
        ["make", "test"],
        ["python", "-m", "x", "--y", "2"],
        ["tee", "log"],
        ["cd", "z"],
    ]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("make everything", "no target everything"),
        ("python -m submission.nonsense --out x", "no module submission.nonsense"),
        ("python -m no_such_room.x", "no module no_such_room.x"),
        ("python arc_trm/no_such_program.py", "no file arc_trm/no_such_program.py"),
        ("accelerate launch --config_file configs/x.yaml tests/conftest.py", "no file configs/x.yaml"),
        ("accelerate launch --cpu arc1", "neither a script nor a module"),
        ("pyhton -m data_prep.files", "unknown program pyhton"),
    ],
)
def test_a_planted_mistake_is_found(command: str, message: str) -> None:
    [words] = commands(command)
    with pytest.raises(Broken, match=re.escape(message)):
        check_command(words)


def test_a_program_knows_its_words() -> None:
    [words] = commands("accelerate launch --num_processes 2 tests/benchmarks/table.py arc1 --data=x --out y -q")
    program = check_command(words)
    assert program == Program("tests.benchmarks.table", ("arc1", "--data=x", "--out", "y", "-q"))
    assert program.leading == ("arc1",)
    assert program.options == {"--data", "--out"}
