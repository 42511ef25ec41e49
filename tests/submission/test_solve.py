"""The program: what it prints, writes and refuses."""

import argparse
import itertools
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from arc_trm.checkpoint import UNKNOWN_TRAINING, read_export, write_export
from arc_trm.config import RunConfig, flat
from arc_trm.metrics import MetricLog
from arc_trm.predict import Predictor
from arc_trm.trainer import Trainer
from arc_trm.vote import Tally
from data_prep.files import InputError, read_json, set_aside, standing_json
from submission import resume, score, session, solve
from submission.adapt import recursion, run_config
from submission.attempts import draft_submission
from submission.budget import Unit
from submission.session import describe_recursion
from submission.settings import IF_DEEP, Settings, add_settings, read_solve_arguments, solve_parser
from submission.solver import Solver
from submission.submission_file import read_submission
from tests.conftest import ENDLESS
from tests.data_prep.material import as_json
from tests.kills import full_disk
from tests.submission.tiny import (
    MODEL,
    QUICK,
    assert_valid,
    make_export,
    tiny_tasks,
    write_challenges,
    write_solutions,
)

TASKS = tiny_tasks()
SOON = [*QUICK, "--train.steps", "1", "--time-budget", ENDLESS, "--train.precision", "fp32"]


def run(arguments: list[str]) -> int:
    """The program without its watchdog, which would end the tests with it."""
    return solve.main(arguments, watched=False)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    return {
        "challenges": str(write_challenges(tmp_path / "challenges.json", TASKS)),
        "checkpoint": str(make_export(tmp_path / "run" / "export")),
        "out": str(tmp_path / "out" / "submission.json"),
    }


def words(files: dict[str, str], *more: str) -> list[str]:
    return [word for name, value in files.items() for word in (f"--{name}", value)] + SOON + list(more)


def summary(files: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = read_json(Path(files["out"]).with_name("submission.summary.json"))
    return found


def test_a_submission_comes_out(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    votes = str(Path(files["out"]).with_name("votes.npz"))
    assert run(words(files, "--candidates", votes, "--canvas", "sizes")) == 0
    out = Path(files["out"])
    assert_valid(out, TASKS)
    lines = capsys.readouterr().out.splitlines()
    facts = summary(files)
    assert lines[-1] == f"wrote {out}: 3 tasks, 4 outputs, {facts['fallback_attempts']} fallback attempts"
    assert any(line.startswith("challenges") and "3 tasks, 4 outputs" in line for line in lines)
    assert "none of its test outputs was a training label of the checkpoint" in lines
    assert not any(line.startswith("trouble") for line in lines)
    assert {"set-up", "first votes", "adaptation", "saving", "prediction", "writing"} == set(facts["seconds"])
    assert (facts["tasks"], facts["outputs"], facts["processes"]) == (3, 4, 1)
    assert (facts["adaptation_steps"], facts["device"], facts["precision"]) == (1, "cpu", "fp32")
    assert facts["checkpoint"] == read_json(Path(files["checkpoint"]) / "export.json")["sha256"]
    assert 0 <= facts["agreement"] <= 1
    assert facts["votes"] == 44
    assert "scores" not in facts
    # The stored votes lead to the same attempts.
    again = draft_submission(TASKS, Tally.load(votes)).submission
    for task_id, outputs in read_submission(out).items():
        for one, other in zip(outputs, again[task_id], strict=True):
            assert [grid.tolist() for grid in one] == [grid.tolist() for grid in other]


def test_several_checkpoints_share_the_time_and_add_their_votes(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_export(tmp_path / "other", trained=TASKS[:1], leak=True)
    export = read_export(other)
    write_export(other, replace(export, puzzle_mean=export.puzzle_mean + 1e-6))  # another one, with as many votes
    assert run(words(files, "--checkpoint", str(other))) == 0
    said = capsys.readouterr().out
    assert re.findall(r"plan / fact: .* votes an output (\d+) / (\d+)$", said, re.MULTILINE) == [
        ("11", "11"),
        ("11", "11"),
    ]
    facts = summary(files)
    assert facts["votes"] == 88
    steps = [line["step"] for line in figures(files)]
    assert steps == sorted(steps), "those of the second follow those of the first"
    assert (steps[0], steps[-1]) == (0, 2)
    both = [read_export(path).facts["sha256"] for path in (Path(files["checkpoint"]), other)]
    assert (facts["checkpoint"], facts["leak"]) == (" + ".join(both), True)


@pytest.mark.parametrize("option", [(), ("--plan", "--rate", "9")])
def test_a_checkpoint_has_no_second_share(files: dict[str, str], option: tuple[str, ...]) -> None:
    again = str(Path(files["checkpoint"]).parent)
    with pytest.raises(InputError, match=r"run: has the weights of .*export, expected another checkpoint"):
        run(words(files, "--checkpoint", again, *option))


def test_a_signal_ends_the_work_of_all_checkpoints_and_leaves_the_state(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_export(tmp_path / "other", model=replace(MODEL, hidden=24))
    begun = []
    real = Solver.run

    def running(self: Solver) -> None:
        begun.append(self.number)
        real(self)
        # As another process would, to which alone the signal was sent.
        monkeypatch.setattr(self.trainer, "agreed", lambda mine: True)

    monkeypatch.setattr(Solver, "run", running)
    assert run(words(files, "--checkpoint", str(other))) == session.STOPPED_BY_SIGNAL
    assert begun == [0]
    assert Path(files["out"]).with_name("submission.state").exists()


def test_figures_are_written_beside_the_submission(files: dict[str, str]) -> None:
    assert run(words(files)) == 0
    lines = figures(files)
    assert [line["step"] for line in lines] == [0, 1, *[1] * (len(lines) - 2)]
    assert lines[1]["loss"] > 0
    assert lines[1]["steps_per_second"] == pytest.approx(lines[1]["examples_per_second"] / 4)
    learned = summary(files)["demonstrations"]
    assert set(learned) <= {"a", "b", "c"}
    shares = [found["loss"] for found in learned.values()]
    assert min(shares) - 1e-4 <= lines[1]["loss"] <= max(shares) + 1e-4, "a mean over the tasks of the one step"
    assert (lines[-1]["votes"], lines[-1]["agreement"]) == (44, pytest.approx(summary(files)["agreement"], abs=1e-4))


def figures(files: dict[str, str]) -> list[dict[str, Any]]:
    path = Path(files["out"]).with_name("submission.metrics.jsonl")
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's own
def test_figures_go_to_the_trackers_of_training(files: dict[str, str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert run(words(files, "--log.track", "tensorboard")) == 0
    events = EventAccumulator(str(Path(files["out"]).with_name("submission.logs")))
    events.Reload()
    for name in ("loss", "agreement"):
        lines = [(line["step"], pytest.approx(line[name])) for line in figures(files) if name in line]
        assert [(event.step, event.value) for event in events.Scalars(name)] == lines
    with pytest.raises(InputError, match=r"^track: found 'wanbd', expected none or one of .*tensorboard"):
        run(words(files, "--log.track", "wanbd"))


def test_figures_that_cannot_be_written_are_one_trouble(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    add = MetricLog.add

    def adding(log: MetricLog, values: dict[str, float], step: int) -> None:
        with full_disk():
            add(log, values, step)

    monkeypatch.setattr(MetricLog, "add", adding)
    assert run(words(files)) == 0
    [trouble] = summary(files)["troubles"]
    assert re.fullmatch(r"figures of the run: .*submission\.metrics\.jsonl: cannot write \(File too large\)", trouble)
    assert summary(files)["votes"] == 44


@pytest.mark.parametrize(
    ("owner", "name", "calls", "step"), [(Trainer, "train_step", 3, 3), (Predictor, "answer", 6, 4)]
)
def test_a_signal_keeps_the_work_up_to_the_moment(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: int, step: int
) -> None:
    """In the adaptation, and within a pass of votes: those of the pass are cast anew, none twice."""
    votes = tmp_path / "votes.npz"
    longer = words(files, "--train.steps", "4", "--candidates", str(votes))
    assert run(longer) == 0
    whole = votes.read_bytes(), Path(files["out"]).read_bytes()
    real, count = getattr(owner, name), itertools.count(1)

    def signalled(*arguments: Any) -> Any:
        if next(count) == calls:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, signalled)
        assert run(longer) == session.STOPPED_BY_SIGNAL
    state = read_json(Path(files["out"]).with_name("submission.state") / "state.json")
    assert (state["step"], state["schedule"]["voted"]) == (step, 4 if step == 4 else 0)
    assert step == 3 or 16 < summary(files)["votes"] < 32, "the pass was cut short"
    assert run([*longer, "--resume"]) == 0
    assert (votes.read_bytes(), Path(files["out"]).read_bytes()) == whole
    steps = [line["step"] for line in figures(files)]
    assert steps == sorted(steps)


def kept_state(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that leaves the state before its votes."""
    with monkeypatch.context() as patched:
        patched.setattr(session, "forget_state", lambda file: None)
        assert run(words(files)) == 0
    return Path(files["out"]).with_name("submission.state")


def test_a_run_goes_on_only_with_what_it_began_with(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept_state(files, monkeypatch)
    for option, value in (("seed", "3"), ("augmentations", "5")):
        with pytest.raises(InputError, match=rf"submission\.state: of a run with other {option}, expected the run"):
            run(words(files, "--resume", f"--{option}", value))
    other = make_export(Path(files["checkpoint"]).with_name("other"), model=replace(MODEL, hidden=24))
    with pytest.raises(InputError, match=r"submission\.json: has votes of other checkpoints, expected the run"):
        run(words(files | {"checkpoint": str(other)}, "--resume"))
    assert "fallbacks alone" not in capsys.readouterr().err
    write_challenges(Path(files["challenges"]), TASKS[:2])
    with pytest.raises(InputError, match=r"of a run with other tasks"):
        run(words(files, "--resume"))


def test_going_on_keeps_what_had_gone_wrong_and_heeds_new_options(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Solver.vote_early

    def trouble(running: Solver, unit: Unit) -> None:
        real(running, unit)
        running.file.troubles.append("a trouble")

    with monkeypatch.context() as patched:
        patched.setattr(Solver, "vote_early", trouble)
        for option in (["--votes", "3"], ["--train.steps", "0"]):
            kept_state(files, monkeypatch)
            capsys.readouterr()
            assert run(words(files, "--resume", *option)) == 0
            assert capsys.readouterr().out.splitlines()[-1].startswith("kept " if "3" in option else "wrote ")
            facts = summary(files)
            assert (facts["adaptation_steps"], facts["votes"], facts["troubles"]) == (1, 44, ["a trouble"])


def test_a_folder_that_is_no_state_stays(files: dict[str, str]) -> None:
    folder = Path(files["out"]).with_name("submission.state")
    folder.mkdir(parents=True)
    (folder / "notes").write_text("mine")
    assert run(words(files)) == 0
    assert (folder / "notes").read_text() == "mine"
    [trouble] = summary(files)["troubles"]
    assert trouble.startswith("saving the state; the last one stays: ")


def test_a_state_that_is_altered_is_none(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = kept_state(files, monkeypatch)
    assert run(words(files, "--resume")) == 0
    assert "going on at step 1 with 4 votes" in capsys.readouterr().out
    assert not state.exists()
    kept_state(files, monkeypatch)
    (state / "state.safetensors").write_bytes(b"x")
    assert run(words(files, "--resume")) == 0
    assert "note: starting anew, for there is no state to go on from (" in capsys.readouterr().err
    assert summary(files)["votes"] == 44


def test_a_state_of_another_version_is_none(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(resume, "LAYOUT", resume.LAYOUT - 1)
        kept_state(files, monkeypatch)
    assert run(words(files, "--resume")) == 0
    said = capsys.readouterr().err
    assert f"of another version of this program (layout {resume.LAYOUT - 1}, expected {resume.LAYOUT})" in said
    assert summary(files)["votes"] == 44


def test_a_new_run_forgets_the_state_of_an_older_one(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    state = kept_state(files, monkeypatch)
    monkeypatch.setattr(Solver, "run", lambda running: refuse("other canvas"))
    with pytest.raises(InputError, match="other canvas"):
        run(words(files))
    assert not state.exists()


def refuse(message: str) -> None:
    raise InputError(message)


def test_a_plan_is_printed_and_nothing_is_done(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--plan", "--rate", "200", "--gpus", "4", "--profile", "competition"]
    assert solve.main([*words({n: files[n] for n in ("challenges", "checkpoint")})[:4], *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "plan      3 tasks, 4 outputs, 33% of the tasks with several; 11h45m for each checkpoint"
    [adaptation] = [line for line in lines if line.startswith("plan      adaptation: ")]
    found = re.search(
        r", (\d+) steps of 256 examples, 200 examples/s, [\d.]+ supervision steps for each of (\d+) embedding rows$",
        adaptation,
    )
    assert found is not None
    steps, rows = found.groups()
    assert int(rows) == 3 * 129
    assert 0.5 < int(steps) * 256 / 200 / (11.75 * 3600) < 1
    assert any(re.fullmatch(r"plan      prediction: \S+, \d+ votes an output", line) for line in lines)
    assert lines[1] == "recursion n = 1, T = 1, 2 supervision steps, as trained"
    assert "for a step of 64 examples at once" in lines[-1]
    assert not Path("submission.json").exists()


def test_a_plan_of_the_rerun_takes_public_tasks_of_its_shape(
    files: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    options = ["--plan", "--rate", "200", "--gpus", "4", "--profile", "competition", "--rehearse"]
    assert solve.main([*options, "--checkpoint", files["checkpoint"], "--input", "."]) == 0
    found = re.match(r"plan      240 tasks, (\d+) outputs, 41% of the tasks with several;", capsys.readouterr().out)
    assert found is not None
    assert 330 <= int(found[1]) <= 350
    assert not list(Path().iterdir())


def test_a_profile_changes_what_is_not_said() -> None:
    plain, profile = read_solve_arguments([]), read_solve_arguments(["--profile", "competition"])
    assert (plain.deep_steps, plain.supervision_steps, plain.compile, plain.time_budget) == (0, 0, False, 600)
    assert (profile.deep_steps, profile.supervision_steps, profile.compile) == (IF_DEEP, IF_DEEP, True)
    assert profile.time_budget == 11.75 * 3600
    options = ["--model.deep-steps", "2", "--train.no-compile", "--time-budget", "5m"]
    said = read_solve_arguments([*options, "--profile", "competition"])
    assert (said.deep_steps, said.supervision_steps, said.compile, said.time_budget) == (2, IF_DEEP, False, 300)


@pytest.mark.parametrize(
    ("trained", "options", "said"),
    [
        ((1, 1), [], "T = 1, 1 supervision step, as trained"),
        ((2, 16), [], "T = 2, 16 supervision steps, as trained"),
        ((3, 7), [], "T = 3, 7 supervision steps, as trained"),
        ((3, 16), [], "T = 4, 10 supervision steps, trained with T = 3, 16 supervision steps"),
        ((4, 10), [], "T = 4, 10 supervision steps, as trained"),
        (
            (3, 16),
            ["--model.deep-steps", "0", "--halting.max-supervision-steps", "0"],
            "T = 3, 16 supervision steps, as trained",
        ),
        ((3, 16), ["--model.deep-steps", "2"], "T = 2, 10 supervision steps, trained with T = 3, 16 supervision steps"),
        ((1, 2), ["--halting.max-supervision-steps", "5"], "T = 1, 5 supervision steps, trained with T = 1, 2"),
    ],
)
def test_the_profile_deepens_only_what_was_trained_deep(
    tmp_path: Path, trained: tuple[int, int], options: list[str], said: str
) -> None:
    export = read_export(make_export(tmp_path / "e", model=replace(MODEL, deep_steps=trained[0])))
    export = replace(export, halting=replace(export.halting, max_supervision_steps=trained[1]))
    settings = Settings.read(read_solve_arguments(["--profile", "competition", *options]))
    assert describe_recursion(export, settings).startswith(f"n = 1, {said}")
    config = run_config(settings, export, torch.device("cpu"), 1)
    assert (config.model.deep_steps, config.halting.max_supervision_steps) == recursion(settings, export)


def test_an_export_that_a_kill_set_aside_is_a_checkpoint(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, checkpoint = Path(files["out"]), Path(files["checkpoint"])
    run(words(files))
    older = out.read_bytes()
    checkpoint.rename(set_aside(checkpoint))
    monkeypatch.chdir(checkpoint.parent)
    for given in (checkpoint, checkpoint.parent, Path()):
        assert standing_json(given, "export")
    assert run(words(files, "--seed", "3")) == 0
    assert out.with_name("submission.previous.json").read_bytes() == older
    assert "note: the older submission.json is kept as submission.previous.json" in capsys.readouterr().err


def test_what_the_checkpoint_was_trained_on_is_said(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = make_export(tmp_path / "seen", trained=TASKS[1:2], leak=True)
    # With known outputs only a task whose test pairs were labels counts.
    write_challenges(Path(files["challenges"]), TASKS, hidden=False)
    assert run(words(files | {"checkpoint": str(checkpoint)})) == 0
    printed = capsys.readouterr().out
    assert "CONTAMINATED: the checkpoint was trained on 1 of its tasks: b" in printed
    assert "LEAK" in printed
    facts = summary(files)
    assert facts["checkpoint"] == read_export(checkpoint).facts["sha256"]
    assert (facts["trained_on"], facts["leak"]) == (["b"], True)


def test_what_an_imported_checkpoint_has_seen_is_unknown(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    export = read_export(Path(files["checkpoint"]))
    facts = {"training_tasks": UNKNOWN_TRAINING, "canvas": 2}
    write_export(Path(files["checkpoint"]), replace(export, training_tasks=(), facts=facts))
    assert run(words(files)) == 0
    printed = capsys.readouterr().out
    assert "UNKNOWN: the checkpoint does not say what it was trained on" in printed
    assert "3 of its tasks need a larger canvas than the checkpoint trained on: a, b, c" in printed
    assert (summary(files)["training_known"], summary(files)["trained_on"]) == (False, [])
    assert not read_export(Path(files["checkpoint"])).training_known


def test_known_outputs_are_scored(files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_challenges(Path(files["challenges"]), TASKS, hidden=False)
    assert run(words(files)) == 0
    printed = capsys.readouterr().out
    solutions = write_solutions(tmp_path / "solutions.json", TASKS)
    assert score.main([files["out"], "--solutions", str(solutions), "--json"]) == 0
    assert summary(files)["scores"] == orjson.loads(capsys.readouterr().out)
    assert "of 4 outputs solved" in printed


@pytest.mark.parametrize("folder", [False, True])
def test_own_tasks_are_shown(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: bool
) -> None:
    place = tmp_path / "mine"
    place.mkdir()
    for task in TASKS if folder else TASKS[:1]:
        (place / f"{task.task_id}.json").write_bytes(orjson.dumps(as_json(task)))
    path = place if folder else place / "a.json"
    assert run(words(files | {"challenges": str(path)})) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = lines.index("a, test 0")
    for number in (1, 2):
        assert re.match(
            rf"attempt {number}: (\d+% of \d+ votes|put together from \d+ of \d+ votes|a guess), ",
            lines[shown + number],
        )
    assert re.split(r" {4,}", lines[shown + 3]) == ["input", "attempt 1", "attempt 2", "truth"]
    assert [line.split(" ")[0] for line in lines[shown + 4 :][:3]] == [str(row[0]) for row in TASKS[0].tests[0].input]
    assert ("b, test 1" in lines) == folder
    assert lines[-1].startswith("wrote ")


def test_the_rerun_is_told_from_a_rehearsal(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KAGGLE_IS_COMPETITION_RERUN", "1")
    assert run(words(files)) == 0
    assert "the competition rerun, solving" in capsys.readouterr().out.splitlines()[0]
    # A rehearsal would hand in the wrong tasks.
    assert run(words(files, "--rehearse")) == 0
    assert_valid(Path(files["out"]), TASKS)


BAD = {
    "missing challenges": ({"challenges": "nowhere.json"}, "nowhere.json: cannot read"),
    "missing checkpoint": ({"checkpoint": "nowhere"}, "nowhere: no checkpoint here"),
    "unwritable output": ({"out": "/proc/no/submission.json"}, "/proc/no: cannot make this folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_input_is_refused(files: dict[str, str], case: str) -> None:
    changes, message = BAD[case]
    with pytest.raises(InputError, match=message):
        run(words(files | changes))


def test_challenges_without_a_test_are_refused(files: dict[str, str]) -> None:
    Path(files["challenges"]).write_bytes(orjson.dumps({"a": {"train": as_json(TASKS[0])["train"]}}))
    with pytest.raises(InputError, match="task a: found fields"):
        run(words(files))
    assert not Path(files["out"]).exists()


@pytest.mark.parametrize("option", ["out", "candidates"])
def test_the_challenges_are_never_written_over(files: dict[str, str], option: str) -> None:
    before = Path(files["challenges"]).read_bytes()
    with pytest.raises(InputError, match="is read by this very command"):
        run(words(files | {option: files["challenges"]}))
    assert Path(files["challenges"]).read_bytes() == before


def test_no_two_outputs_share_a_file(files: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"--candidates .* is the file of --out too"):
        run(words(files | {"candidates": files["out"]}))
    assert not Path(files["out"]).exists()


def test_a_missing_checkpoint_leaves_fallbacks_but_no_older_file_is_lost(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(files["out"])
    for said in (True, False):
        with pytest.raises(InputError, match="no checkpoint here"):
            run(words(files | {"checkpoint": "nowhere"}))
        assert ("holds fallbacks alone" in capsys.readouterr().err) == said
        assert_valid(out, TASKS)
    out.write_text("precious")
    with pytest.raises(InputError, match="no checkpoint here"):
        run(words(files | {"checkpoint": "nowhere"}))
    assert out.read_text() == "precious"


def test_a_damaged_checkpoint_leaves_fallbacks(files: dict[str, str]) -> None:
    data = Path(files["checkpoint"]) / "export.safetensors"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(InputError, match="truncated or altered"):
        run(words(files))
    assert_valid(Path(files["out"]), TASKS)


def test_rehearsing_chooses_its_own_tasks(files: dict[str, str]) -> None:
    with pytest.raises(InputError, match="expected no --challenges"):
        run(words(files, "--rehearse", "5"))


@pytest.mark.parametrize(
    "option",
    [
        "--train.lr=fast", "--train.lr=nan", "--train.lr=-1", "--augmentations=-1", "--augmentations=1.5",
        "--embedding-share=2", "--canvas=small", "--train.precision=int8", "--time-budget=10", "--rehearse=0",
        "--typo=1", "--train.steps=9999999999", "--fold=2", "--fold=0/3", "--fold=3/2", "--fold=1/11",
    ],
)  # fmt: skip
def test_wrong_options_are_refused(files: dict[str, str], option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(words(files, option))
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rate=5"], "--rate: is for --plan, expected that too"),
        (["--gpus=4"], "--gpus: is for --rate, expected that too"),
        (["--plan", "--gpus=4"], "--gpus: is for --rate, expected that too"),
        (["--allow-seen"], "--allow-seen: is for --rehearse, expected that too"),
        (["--fold=2/5"], "--fold: is for --rehearse, expected that too"),
        (["--plan", "--resume"], "--plan: is for a run from its beginning, expected no --resume"),
    ],
)
def test_options_that_would_do_nothing_are_refused(files: dict[str, str], options: list[str], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        run(words(files, *options))


def test_what_is_training_has_the_name_that_it_has_there_and_twenty_options_are_its_own() -> None:
    training = {f"--{name.replace('_', '-')}" for name in flat(RunConfig())} | {"--train.no-compile"}
    actions = solve_parser(None)._actions
    own = {name for action in actions for name in action.option_strings} - {"-h", "--help"} - training
    assert len(own) == 20
    assert not any("." in name for name in own)


def test_every_setting_is_an_option() -> None:
    parser = argparse.ArgumentParser()
    add_settings(parser)
    assert Settings.read(parser.parse_args([])) == Settings()
    options = ["--train.lr=0.5", "--train.compile", "--canvas=full", "--votes=7", "--embedding-share=0", "--forget"]
    wanted = Settings(lr=0.5, compile=True, canvas="full", votes=7, embedding_share=0, forget=True)
    assert Settings.read(parser.parse_args(options)) == wanted


def test_a_file_that_is_no_submission_is_not_replaced(files: dict[str, str]) -> None:
    files["out"] = str(write_solutions(Path(files["challenges"]).with_name("solutions.json"), TASKS))
    before = Path(files["out"]).read_bytes()
    with pytest.raises(InputError, match=r"solutions\.json: holds no submission, expected one or no file there"):
        run(words(files))
    assert Path(files["out"]).read_bytes() == before
