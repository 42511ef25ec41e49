"""The launcher starts as many processes as GPUs work, gives a failed start another try, and ends what hangs."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson
import pytest

from data_prep.files import InputError
from submission import launch
from submission.inputs import RERUN_VARIABLE
from submission.launch import Launch, command, note_bundle, run_printing, working_gpus
from submission.settings import read_launch_arguments
from submission.submission_file import read_summary, summary_path
from tests.conftest import HANG
from tests.submission.kaggle_layout import make_layout
from tests.submission.tiny import tiny_tasks


@pytest.fixture(autouse=True)
def all_gpus_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(launch.VISIBLE, raising=False)


@pytest.mark.parametrize(("gpus", "visible"), [((0,), "3"), ((0, 1), "3,GPU-5e1f"), ((1, 2), "GPU-5e1f,7")])
def test_a_mask_of_gpus_is_honoured(monkeypatch: pytest.MonkeyPatch, gpus: tuple[int, ...], visible: str) -> None:
    monkeypatch.setenv(launch.VISIBLE, "3, GPU-5e1f,7")
    assert command(gpus)[1][launch.VISIBLE] == visible


def test_the_driver_does_not_widen_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PROBE", "import sys; sys.exit(3)")
    monkeypatch.setattr(launch, "LISTING", [sys.executable, "-c", "print(0, 1, 2, 3)"])
    monkeypatch.setenv(RERUN_VARIABLE, "1")
    for mask, expected in (("2,3", (0, 1)), ("", ())):
        monkeypatch.setenv(launch.VISIBLE, mask)
        assert working_gpus() == expected


@pytest.mark.parametrize(
    ("mask", "asked", "visible"),
    [(None, "2", "0,1"), (None, "0,2", "0,2"), ("3,5,7", "2", "3,5"), ("3,5,7", "0,2", "3,7")],
)
def test_gpus_can_be_left_to_another_solver(
    monkeypatch: pytest.MonkeyPatch, mask: str | None, asked: str, visible: str
) -> None:
    monkeypatch.setenv(launch.VISIBLE, mask or "")
    if mask is None:
        monkeypatch.delenv(launch.VISIBLE)
    launch.restrict_gpus(read_launch_arguments(["--gpus", asked])[0].gpus)
    assert os.environ[launch.VISIBLE] == visible


def test_gpus_that_are_not_visible_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launch.VISIBLE, "3,5")
    with pytest.raises(
        InputError, match=r"^--gpus: GPU 2, numbered from 0, expected one of the 2 in CUDA_VISIBLE_DEVI"
    ):
        launch.restrict_gpus((0, 2))
    for text in ("0", "1,1", "a", "1,", "-1"):
        with pytest.raises(SystemExit):
            read_launch_arguments([f"--gpus={text}"])


def test_several_gpus_get_a_process_each() -> None:
    words, environment = command((0, 1, 3))
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1,3"
    assert words[:3] == [sys.executable, "-m", "accelerate.commands.launch"]
    assert words[words.index("--num_processes") + 1] == "3"
    assert words[-3:] == [sys.executable, "-m", "submission.solve"]


@pytest.mark.parametrize(("gpus", "visible"), [((), ""), ((2,), "2")])
def test_one_gpu_or_none_needs_no_launcher(gpus: tuple[int, ...], visible: str) -> None:
    words, environment = command(gpus)
    assert words == [sys.executable, "-m", "submission.solve"]
    assert environment["CUDA_VISIBLE_DEVICES"] == visible


def test_gpus_that_cannot_be_tried_do_not_count(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "PROBE", "print('a library says hello'); print('0 2')")
    assert working_gpus() == (0, 2)
    for probe in ("import sys; sys.exit(3)", "import os; os.abort()", "print('nonsense')", "pass"):
        monkeypatch.setattr(launch, "PROBE", probe)
        assert working_gpus() == ()
    monkeypatch.setattr(launch, "PROBE", f"import time; time.sleep({HANG})")
    monkeypatch.setattr(launch, "PROBE_SECONDS", 0.5)
    assert working_gpus() == ()
    assert capfd.readouterr().out.count("note: GPUs could not be tried") == 10


def test_gpus_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try fails, as on a GPU that another program has just left."""
    mark = str(tmp_path / "tried")
    probe = f"import os, sys; os.path.exists({mark!r}) or (open({mark!r}, 'w'), sys.exit(1)); print('0 1')"
    monkeypatch.setattr(launch, "PROBE", probe)
    assert working_gpus() == (0, 1)


def test_in_the_rerun_the_driver_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PROBE", "import sys; sys.exit(3)")
    monkeypatch.setattr(launch, "LISTING", [sys.executable, "-c", "print(0, 1, 2, 3)"])
    monkeypatch.delenv(RERUN_VARIABLE, raising=False)
    assert working_gpus() == ()
    monkeypatch.setenv(RERUN_VARIABLE, "1")
    assert working_gpus() == (0, 1, 2, 3)
    monkeypatch.setattr(launch, "PROBE", "print()")  # they were tried, and do not work
    assert working_gpus() == ()
    monkeypatch.setattr(launch, "PROBE", "import sys; sys.exit(3)")
    monkeypatch.setattr(launch, "LISTING", ["no-such-program"])
    assert working_gpus() == ()


class Runs:
    """Pretends to run commands: each takes so many seconds and ends with a status, and may write its file."""

    def __init__(self, *results: tuple[float, int, bytes | None], collectives: Sequence[int] = ()) -> None:
        self.results, self.collectives = list(results), list(collectives)
        self.time = 0.0
        self.words: list[Sequence[str]] = []
        self.environments: list[Mapping[str, str]] = []
        self.limits: list[float] = []

    def run(self, words: Sequence[str], environment: Mapping[str, str], seconds: float) -> int:
        if launch.COLLECTIVE[-1] in words:
            status = self.collectives.pop(0) if self.collectives else 0
            self.time += seconds if status else 0.0
            return status
        self.words.append(words)
        self.environments.append(environment)
        self.limits.append(seconds)
        took, status, written = self.results.pop(0)
        self.time += took
        if written is not None:
            out = Path(words[words.index("--out") + 1])
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_bytes(written)
        return status

    def budgets(self) -> list[str]:
        return [words[words.index("--time-budget") + 1] for words in self.words]


WORKING = (1, 3)  # the GPUs that work when they are tried anew


def start(runs: Runs, out: Path, gpus: Sequence[int] = (0, 1, 2, 3), budget: float = 10_000) -> int:
    made = Launch(gpus, ["--seed", "5"], runs.run, lambda: WORKING, lambda: runs.time)
    return made.solve(out, budget, ["--votes", "7"])


def test_a_good_run_is_the_only_one(tmp_path: Path) -> None:
    runs = Runs((90, 0, b"good"))
    assert start(runs, tmp_path / "s.json") == 0
    [words] = runs.words
    assert {"--seed", "--votes"} <= set(words)
    assert "--resume" not in words
    assert (runs.budgets(), runs.limits) == (["10000.000s"], [10_000 + launch.GRACE])


def processes(runs: Runs) -> list[int]:
    """How many processes each start had."""
    counts = [words[words.index("--num_processes") + 1] if "--num_processes" in words else "1" for words in runs.words]
    return list(map(int, counts))


class Saving(Runs):
    """Every start but the last saves a state, or casts votes."""

    def run(self, words: Sequence[str], environment: Mapping[str, str], seconds: float) -> int:
        status = super().run(words, environment, seconds)
        if "--out" in words and self.results:
            out, number = Path(words[words.index("--out") + 1]), len(self.words)
            if number % 2:
                state = out.with_name("s.state") / "state.json"
                state.parent.mkdir(exist_ok=True)
                state.touch()
                os.utime(state, (number, number))
            else:
                out.with_name("s.summary.json").write_text(f'{{"votes": {number}}}')
        return status


def test_after_a_failure_with_newer_state_or_votes_all_gpus_that_still_work_go_on(tmp_path: Path) -> None:
    results = [(5000, 1, None), (30, -signal.SIGKILL, None), (30, 1, None), (30, 1, None), (900, 0, b"good")]
    runs = Saving(*results)
    assert start(runs, tmp_path / "s.json") == 0
    assert runs.budgets() == ["10000.000s", "5000.000s", "4970.000s", "4940.000s", "4910.000s"]
    assert processes(runs) == [4, 2, 2, 2, 2]
    assert ["--resume" in words for words in runs.words] == [False, True, True, True, True]
    assert not any("--train.no-compile" in words for words in runs.words)


@pytest.mark.parametrize("took", [30.0, 10_800.0])
def test_a_start_that_leaves_nothing_new_is_followed_by_one_without_compiling_on_fewer_gpus(
    tmp_path: Path, took: float
) -> None:
    runs = Runs((took, 1, None), (took, 1, None), (70, 0, b"good"))
    made = Launch(range(8), ["--seed", "5"], runs.run, lambda: range(8), lambda: runs.time)
    assert made.solve(tmp_path / "s.json", 42_300) == 0
    assert processes(runs) == [8, 4, 1]
    assert [{"--resume", "--train.no-compile"} <= set(words) for words in runs.words] == [False, True, True]


@pytest.mark.parametrize(("collectives", "gpus", "own"), [
    ([0], 4, {}), ([1, 0], 4, {"NCCL_P2P_DISABLE": "1"}), ([-9, -9], 1, {"NCCL_P2P_DISABLE": "1"}),
])  # fmt: skip
def test_processes_that_cannot_talk_try_without_peer_to_peer_and_then_are_one(
    tmp_path: Path, collectives: list[int], gpus: int, own: dict[str, str]
) -> None:
    runs = Runs((90, 0, b"good"), (90, 0, b"good"), collectives=collectives)
    made = Launch((0, 1, 2, 3), [], runs.run, lambda: (0, 1, 2, 3), lambda: runs.time)
    assert made.solve(tmp_path / "s.json", 10_000) == 0
    assert processes(runs) == [gpus]
    assert own.items() <= runs.environments[0].items()
    assert runs.environments[0].get("NCCL_P2P_DISABLE") == own.get("NCCL_P2P_DISABLE")
    assert runs.budgets() == [f"{10_000 - 120 * sum(status != 0 for status in collectives):.3f}s"], "trying takes time"
    made.solve(tmp_path / "t.json", 10_000)
    assert processes(runs) == [gpus, gpus], "tried once"


@pytest.mark.slow
def test_a_collective_that_works_ends_well() -> None:
    torchrun = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--no-python", sys.executable]
    environment = {"ACCELERATE_USE_CPU": "true", "PYTHONWARNINGS": "ignore"}
    assert run_printing([sys.executable, "-m", *torchrun, *launch.COLLECTIVE], environment, HANG) == 0
    assert launch.try_collective.__name__ in launch.COLLECTIVE[-1]


def test_no_time_is_left_after_gpus_that_take_long_to_try(tmp_path: Path) -> None:
    runs = Runs((30, 1, None))

    def probe() -> Sequence[int]:
        runs.time += 300
        return WORKING

    assert Launch((0, 1), [], runs.run, probe, lambda: runs.time).solve(tmp_path / "s.json", 350) == 1
    assert len(runs.words) == 1


def test_what_always_fails_is_not_started_for_ever(tmp_path: Path) -> None:
    runs = Runs(*[(30, 2, None)] * 3)
    assert start(runs, tmp_path / "s.json") == 2
    assert len(runs.words) == 3


@pytest.mark.parametrize(("took", "status"), [(99, 1), (10, 143), (10, -signal.SIGTERM)])
def test_no_further_try_at_the_end_or_on_request(tmp_path: Path, took: float, status: int) -> None:
    runs = Runs((took, status, None))
    assert start(runs, tmp_path / "s.json", budget=100) == status
    assert len(runs.words) == 1


# Real processes ---------------------------------------------------------------------------------------------


def test_a_run_is_heard_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import os, sys; print(os.environ['X'], flush=True); print('bad', file=sys.stderr); sys.exit(7)"
    assert run_printing([sys.executable, "-c", code], {"X": "hello"}, HANG) == 7
    assert capsys.readouterr().out.splitlines() == ["hello", "bad"]


def test_what_hangs_is_ended_with_all_it_started() -> None:
    # The grandchild holds the pipe open: only its end lets the run end.
    code = f"import subprocess, time; subprocess.Popen(['sleep', '{HANG}']); time.sleep({HANG})"
    assert run_printing([sys.executable, "-c", code], {}, 1.5) == -signal.SIGKILL


def test_output_that_is_no_text_does_no_harm(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys; sys.stdout.buffer.write(b'a\\xff\\n')"
    assert run_printing([sys.executable, "-c", code], {}, HANG) == 0
    assert capsys.readouterr().out.startswith("a")


# The program ------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Solving that only pretends, without GPUs."""
    submission = {t.task_id: [{"attempt_1": [[1]], "attempt_2": [[2]]} for _ in t.tests] for t in tiny_tasks(3)}
    made = Runs((1, 0, orjson.dumps(submission)), (1, 0, b"{}"))
    monkeypatch.setattr(launch, "working_gpus", lambda: ())
    monkeypatch.setattr(
        launch, "Launch", lambda gpus, options: Launch(gpus, options, made.run, lambda: (), lambda: made.time)
    )
    monkeypatch.delenv(RERUN_VARIABLE, raising=False)
    return made


def test_a_rehearsal_solves_and_then_scores_itself(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_layout(tmp_path, "2025", tiny_tasks(3))
    monkeypatch.setenv(launch.ROOT_VARIABLE, str(tmp_path))
    monkeypatch.setenv(launch.OPTIONS_VARIABLE, "--rehearsal-budget 30s --seed 9")
    assert launch.main(["--rehearsal-budget", "5m", "--votes", "3"]) == 0
    solving, rehearsing = runs.words
    assert runs.budgets() == ["30.000s", "30.000s"]
    for words in (solving, rehearsing):
        assert {"--votes", "--seed", "--input", str(tmp_path / "input")} <= set(words)
    assert "--rehearse" not in solving
    assert rehearsing[rehearsing.index("--rehearse") + 1] == "1", "as many as get the time of the rerun"
    said = capsys.readouterr().out
    assert "valid, 3 tasks, 4 outputs" in said
    assert "note: no report page (" in said, "a rehearsal that fails does not hide what was handed in"
    assert orjson.loads((tmp_path / "working" / "bundle.json").read_bytes())["format"] == "arc-trm-bundle"


def test_a_public_run_says_what_the_rerun_does_beyond_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "submission.json"
    answer = {"attempt_1": [[1]], "attempt_2": [[2]]}
    out.write_bytes(orjson.dumps({"a": [answer], "b": [answer] * 2, "c": [answer], "d": [answer]}))
    summary = {
        "adaptation_steps": 7,
        "troubles": [],
        "seconds": {"set-up": 5.0, "adaptation": 600.0, "prediction": 95.0},
    }
    summary_path(out).write_bytes(orjson.dumps(summary))
    launch.say_rerun(out, 6 * 3600)
    lines = [
        "time: 6h00m; here 11m40s",
        "tasks: 240 hidden ones, about 41% with several outputs; here 4, 25%",
        "compiling: unless options forbid it; here none",
        "adaptation: most of the time; here 7 steps, 10m00s",
        "not exercised here: first votes, compiling, saving, going on after a failure",
    ]
    assert capsys.readouterr().out.splitlines() == ["the rerun differs:", *(f"  {line}" for line in lines)]
    assert read_summary(out) == {**summary, "rerun": lines}


def test_the_rerun_solves_alone_and_has_all_the_time(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_layout(tmp_path, "2026", tiny_tasks(3))
    monkeypatch.setenv(RERUN_VARIABLE, "1")
    monkeypatch.setenv(launch.ROOT_VARIABLE, str(tmp_path))
    assert launch.main([]) == 0
    assert runs.budgets() == [f"{11.75 * 3600:.3f}s"]
    [words] = runs.words
    assert words[words.index("--profile") + 1] == "competition"


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [("--votes '7", InputError, "ARC_TRM_OPTIONS: found"), ("--vootes 7", SystemExit, "2")],
)
def test_options_that_solving_would_refuse_end_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, error: type[BaseException], said: str
) -> None:
    monkeypatch.setenv("ARC_TRM_KAGGLE_ROOT", str(tmp_path))
    monkeypatch.setenv("ARC_TRM_OPTIONS", text)
    with pytest.raises(error, match=said):
        launch.main([])
    assert not list(tmp_path.iterdir())


def test_an_invalid_file_is_told(tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    make_layout(tmp_path, "2025", tiny_tasks(2))
    monkeypatch.setenv(launch.ROOT_VARIABLE, str(tmp_path))
    with pytest.raises(InputError, match="unknown task c"):
        launch.main([])


def test_an_altered_bundle_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_layout(tmp_path, "2025", tiny_tasks(2))
    with (tmp_path / "input" / "arc-trm-bundle" / "LICENCES.txt").open("a") as file:
        file.write("x")
    note_bundle(tmp_path)
    assert "LICENCES.txt: the content differs from the manifest's digest" in capsys.readouterr().out
    assert not (tmp_path / "working" / "bundle.json").exists()


def test_the_probe_is_the_function_it_names() -> None:
    assert launch.print_working_gpus.__name__ in launch.PROBE
    launch.print_working_gpus()
