"""Programs that fail print one line and exit with status 2, whatever the names and the state of stdout."""

import subprocess
import sys
from pathlib import Path

import pytest

from data_prep import check_python

ROOT = Path(__file__).parents[2]


def run(body: str, shell: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program whose main is `body`, in a shell that adds a redirection."""
    code = f"from data_prep.program import *\ndef main(argv):\n    {body}\n    return 0\nrun_program(main)"
    command = ["sh", "-c", f'"$0" -c "$1" {shell}', sys.executable, code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise InputError('task a\\nb: wrong')", "error: task a\\nb: wrong\n"),
        ("open('/tmp/' + 300 * 'a')", f"error: /tmp/{300 * 'a'}: File name too long\n"),
        ("raise InputError('\\udcff.json: missing')", "error: \\udcff.json: missing\n"),
    ],
)
def test_wrong_input_is_one_line(body: str, said: str) -> None:
    found = run(body)
    assert (found.returncode, found.stdout, found.stderr) == (2, "", said)


def test_names_that_the_terminal_cannot_show_are_escaped() -> None:
    found = run("print('wrote \\udcff')")
    assert (found.returncode, found.stdout, found.stderr) == (0, "wrote \\udcff\n", "")


def test_a_closed_stdout_is_no_failure() -> None:
    found = run("print('unheard', sys.stdout.isatty())", ">&-")
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_one_line() -> None:
    found = run("print('lost')", ">/dev/full")
    assert (found.returncode, found.stderr) == (2, "error: No space left on device\n")


@pytest.mark.parametrize("module", ["data_prep.show", "arc_trm.plot", "submission.score"])
def test_a_program_says_what_its_python_lacks(module: str) -> None:
    # -S leaves out installed packages.
    found = subprocess.run([sys.executable, "-S", "-m", module], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith(f"error: {sys.executable} lacks numpy, orjson, ")
    assert found.stderr.endswith("install the project: `make install`, then .venv/bin/python\n")
    assert found.stderr.count("\n") == 1


def test_an_old_python_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "hexversion", 0x030A0CF0)
    monkeypatch.setattr(sys, "version", "3.10.12 (main)")
    with pytest.raises(ImportError, match=r"^found Python 3\.10\.12, expected 3\.11 or newer$"):
        check_python()
    monkeypatch.setattr(sys, "argv", ["-m"])
    with pytest.raises(SystemExit, match="2"):
        check_python()
    assert capsys.readouterr().err == "error: found Python 3.10.12, expected 3.11 or newer\n"
