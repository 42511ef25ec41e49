"""The training program: its command line, a whole run on tasks, and one line for whatever is wrong."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch

from arc_trm import train
from arc_trm.checkpoint import (
    UNKNOWN_TRAINING,
    checkpoint_folders,
    read_export,
    read_newest_checkpoint,
    write_export,
)
from arc_trm.config import check_config, flat, settings
from arc_trm.presets import DATA, PRESETS, VARIANTS
from arc_trm.trainer import Trainer, UnequalReplicas
from data_prep.files import InputError
from data_prep.program import run_program
from data_prep.store import ArcStore, TaskEntry, build_store, save
from tests.arc_trm.arc_stores import puzzle_names, random_task
from tests.arc_trm.kill_runs import remains
from tests.conftest import HANG, REPOSITORY

SMALL = ((3, 5), (2, 7))
DEVICE = "1 process on cpu\n"
TINY = (
    "--model.hidden", "8", "--model.heads", "2", "--model.layers", "1", "--model.latent-steps", "1",
    "--model.deep-steps", "1", "--model.puzzle-width", "8", "--model.prefix", "2", "--model.expansion", "1",
    "--halting.max-supervision-steps", "2", "--train.batch-size", "8", "--train.steps", "6", "--log.every", "2",
    "--train.precision", "fp32", "--log.evaluation-augmentations", "2", "--log.track", "none",
)  # fmt: skip


def small_store(tasks: int, augmentations: int) -> ArcStore:
    """Tasks of small grids; the first is scored."""
    rng = np.random.default_rng(1)
    made = [random_task(rng, f"t{number}", [SMALL, SMALL], [SMALL]) for number in range(tasks)]
    entries = [TaskEntry.demonstrations_only(made[0]), *map(TaskEntry.all_pairs, made[1:])]
    return build_store(entries, augmentations, seed=3, manifest={"recipe": f"{tasks} tasks"})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "small"
    save(small_store(3, 4), folder)
    return folder


def words(data: Path, out: Path, *more: str, preset: str = "arc1-small") -> list[str]:
    return [preset, "--data", str(data), "--out", str(out), *TINY, *more]


def main(data: Path, out: Path, *more: str) -> int:
    return train.main(words(data, out, *more))


def refused(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What the program says on stderr when it ends with status 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        run_program(lambda _: train.main(argv))
    assert end.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.removeprefix(DEVICE)


def lines(out: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (out / "metrics.jsonl").read_bytes().splitlines()]


# Help and typing errors ---------------------------------------------------------------------------------------------


def test_help_fits_a_screen_and_names_every_preset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        train.main(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert all(re.search(rf"^  {name}\s", said, re.MULTILINE) for name in (*DATA, *VARIANTS))
    assert max(map(len, said.splitlines())) <= 110
    assert len(said.splitlines()) < 80
    assert "usage: arc_trm.train PRESET --data FOLDER --out FOLDER" in said


def test_help_of_a_preset_explains_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        train.main(["arc1", "--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    options = [f"--{name.replace('_', '-')}" for name in flat(PRESETS["arc1"])]
    assert [option for option in options if option not in said.replace("--log.no-", "--log.")] == []
    for option in ("--data", "--out", "--resume", "--init-from", "--allow-changes", "--minutes"):
        assert option in said
    assert "(default: 768)" in said
    assert "dummy" not in said


def test_without_a_word_the_help_is_printed_and_the_status_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        train.main([])
    assert end.value.code == 2
    assert "usage:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["arc1-smal", "--data", "x", "--out", "y"], "did you mean arc1-small"),
        (["--data", "x", "arc1"], "found '--data', expected a preset: .*DATA of arc1, arc2, sudoku, maze"),
        (["arc1", "--data", "x", "--out", "y", "--log.every", "0"], "log.every: found 0, expected at least 1"),
        (["arc1", "--data", "x", "--out", "y", "--train.ema", "1.5"], "train.ema: found 1.5, expected 0 to 1"),
        (["arc1", "--data", "x", "--out", "y", "--train.lr", "nan"], "train.lr: found nan, expected at least 0"),
        (["arc1", "--data", "x", "--out", "y", "--seed", "-1"], "seed: found -1, expected 0 to 18446744073709551615"),
        (["arc1", "--data", "x", "--out", "y", "--model.heads", "512"], "model.heads: 512 heads of 1 numbers"),
        (["arc1", "--data", "x", "--out", "y", "--log.track", "wanbd"], "track: found 'wanbd', .*tensorboard.*wandb"),
        (["arc1", "--data", "nowhere", "--out", "y"], "nowhere: no dataset, expected a folder that"),
        (["arc1", "--data", "x", "--out", "y", "--minutes", "-1"], "error: minutes: found -1.0, expected at least 0"),
        (["arc1", "--data", "x", "--out", "./x"], "--out x: is the dataset of --data too, expected another folder"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(argv, capsys)
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert re.search(said, message)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--train.stepz", "3"], r"--train\.steps"),
        (["--train.precision", "fp8"], "{auto,fp32,bf16,fp16}|fp16"),
        (["--train.batch-size", "many"], r"--train\.batch-size"),
        (["--model.puzzle-width", "9000"], "puzzle_width 9000 does not fit"),
        ([], "--out"),
    ],
)
def test_typing_errors_are_refused_with_the_valid_names(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", "y"] if more else []
    message = refused(["arc1", "--data", "x", *out, *more], capsys)
    assert re.search(said, message)
    assert "Traceback" not in message


def test_every_setting_that_is_a_number_has_a_range() -> None:
    for name, value, field in settings(PRESETS["arc1"]):
        assert (type(value) in (int, float)) == ("range" in field.metadata), name


def test_every_preset_is_within_the_ranges() -> None:
    refusals = {}
    for name, config in PRESETS.items():
        try:
            check_config(config)
        except InputError as error:
            refusals[name] = str(error)
    assert refusals == {}


# What does not fit the data -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "more", "said"),
    [
        ("sudoku-small", ["--train.canvas", "full"], "the dataset (arc) has 900 tokens of 12 kinds"),
        ("arc1-mlp", ["--train.canvas", "sizes"], "train.canvas sizes with model.mixer mlp: windows need attention"),
        ("arc1-small", ["--train.batch-size", "6"], "6 slots cannot be shared among 1 canvas sizes in multiples of 4"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], preset: str, more: list[str], said: str
) -> None:
    message = refused(words(dataset, tmp_path / "run", *more, preset=preset), capsys)
    assert said in message
    assert message.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_full_disk_ends_in_one_line_and_keeps_the_last_good_checkpoint(
    dataset: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = words(dataset, small_disk / "run", "--log.keep-checkpoints", "9", "--log.checkpoint-minutes", "0")
    message = refused(argv, capsys)
    assert message.splitlines()[0].startswith("starting a new run")
    assert re.fullmatch(
        r"error: .*/step-0000000\d: cannot write \(.*No space left on device.*\)", message.splitlines()[1]
    )
    assert len(message.splitlines()) == 2
    found = read_newest_checkpoint(small_disk / "run", print)
    assert found is not None
    assert found[1]["step"] == len(checkpoint_folders(small_disk / "run")) >= 1


# Whole runs ---------------------------------------------------------------------------------------------------------


def test_a_run_ends_in_a_line_with_the_three_scores(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(dataset, tmp_path, "--log.evaluate-every", "4", "--log.track", "tensorboard") == 0
    said = capsys.readouterr()
    assert said.err == f"{DEVICE}starting a new run, in float32\n"
    figure = r"evaluation/{} \d\.\d{{4}}"
    figures = ", ".join(map(figure.format, ("outputs", "task_mean", "tasks")))
    assert re.fullmatch(rf"wrote {tmp_path}/export: 6 steps, finished, {figures}\n", said.out)
    assert [line["step"] for line in lines(tmp_path)] == [2, 4, 4, 6, 6]
    scores = [line for line in lines(tmp_path) if "evaluation/tasks" in line]
    assert [line["step"] for line in scores] == [4, 6]
    passes = {f"evaluation/pass@{k}" for k in (1, 2, 5, 10, 100, 1000)}
    assert scores[0].keys() == {"step", "evaluation/outputs", "evaluation/task_mean", "evaluation/tasks"} | passes
    assert list((tmp_path / "logs").glob("events.out.tfevents.*"))
    export = read_export(tmp_path)
    assert export.training_tasks == small_store(3, 4).training_digests()
    assert (export.facts["recipe"], export.facts["leak"], export.facts["steps"]) == ("3 tasks", [], 6)


def test_minutes_stop_a_run_and_resuming_finishes_it(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(dataset, tmp_path / "whole")
    capsys.readouterr()
    main(dataset, tmp_path / "run", "--minutes", "1e-6")
    assert capsys.readouterr().out == f"wrote {tmp_path}/run/export: 1 steps, out of time\n"
    main(dataset, tmp_path / "run", "--resume")
    assert capsys.readouterr().err == f"{DEVICE}resuming at step 1, in float32\n"
    whole, run = remains(tmp_path / "whole"), remains(tmp_path / "run")
    assert whole["export/export.safetensors"] == run["export/export.safetensors"]
    assert whole["metrics.jsonl"] == run["metrics.jsonl"]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_runs_on_a_cpu(dataset: Path, tmp_path: Path, precision: str) -> None:
    main(dataset, tmp_path, "--train.precision", precision)
    assert all(np.isfinite(line["train/loss"]) for line in lines(tmp_path) if "train/loss" in line)
    assert all(tensor.isfinite().all() for tensor in read_export(tmp_path).weights.values())


def test_a_loss_that_is_no_number_ends_in_one_line(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["arc1-small", "--data", str(dataset), "--out", str(tmp_path), *TINY, "--log.checkpoint-minutes", "0"]
    said = refused([*argv, "--train.lr", "1e38", "--train.warmup-steps", "0"], capsys).splitlines()[1]
    assert re.fullmatch(
        r"error: step \d: (the loss is nan|loss or weights are not finite) at learning rate 1e\+38; "
        r"(no checkpoint was written before|the last good checkpoint is .*step-0000000\d); go on with a lower train.lr",
        said,
    )


def test_memory_that_runs_out_later_ends_in_one_line_that_names_the_last_checkpoint(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train_step = Trainer.train_step

    def limited(trainer: Trainer) -> None:
        if trainer.step == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        train_step(trainer)

    monkeypatch.setattr(Trainer, "train_step", limited)
    argv = ["arc1-small", "--data", str(dataset), "--out", str(tmp_path), *TINY, "--log.checkpoint-minutes", "0"]
    said = refused(argv, capsys).splitlines()[-1]
    assert said.startswith("error: out of memory on cpu: switch model.activation_checkpointing on or lower ")
    assert said.endswith(f"; the last good checkpoint is {tmp_path}/checkpoints/step-00000002")


def test_replicas_that_differ_end_the_run_in_one_line(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def differ(trainer: Trainer) -> None:
        if trainer.step == 3:
            raise UnequalReplicas("step 3: weights or puzzle embeddings of process 1 are not those of process 0")

    monkeypatch.setattr(Trainer, "check_replicas", differ)
    argv = ["arc1-small", "--data", str(dataset), "--out", str(tmp_path), *TINY, "--log.checkpoint-minutes", "0"]
    said = refused(argv, capsys).splitlines()[-1]
    assert said.startswith("error: step 3: weights or puzzle embeddings of process 1 are not those of process 0; ")
    assert said.endswith(f"; the last good checkpoint is {tmp_path}/checkpoints/step-00000002")


def test_another_export_is_started_from(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(dataset, tmp_path / "first")
    capsys.readouterr()
    main(dataset, tmp_path / "second", "--init-from", str(tmp_path / "first"), "--train.lr", "0", "--train.steps", "1")
    assert capsys.readouterr().err == f"{DEVICE}starting from {tmp_path}/first, in float32\n"
    first, second = read_export(tmp_path / "first"), read_export(tmp_path / "second")
    assert all(torch.equal(first.weights[name], tensor) for name, tensor in second.weights.items())


def test_an_export_says_all_that_its_weights_were_trained_on(dataset: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    leaks = [{"training": name, "pair": 0, "scored": "y"} for name in ("other", "x")]
    entry = TaskEntry.all_pairs(random_task(rng, "other", [SMALL], [SMALL]))
    other = build_store([entry], 2, 3, {"leak": leaks[:1]})
    save(other, tmp_path / "other")
    main(dataset, tmp_path / "first")
    first = tmp_path / "first" / "export"
    export = read_export(first)
    facts = {"training_tasks": UNKNOWN_TRAINING, "leak": leaks[1:]}
    write_export(tmp_path / "unknown", replace(export, facts=facts))
    both = {*export.training_tasks, *other.training_digests()}
    for source, known in ((first, True), (tmp_path / "unknown", False)):
        out = tmp_path / f"known {known}"
        main(tmp_path / "other", out, "--init-from", str(source), "--train.steps", "1")
        main(tmp_path / "other", out, "--resume", "--allow-changes", "--train.steps", "2")
        found = read_export(out)
        assert found.facts["steps"] == 2
        assert set(found.training_tasks) == both
        assert (found.training_known, found.facts["leak"]) == (known, leaks[:1] if known else leaks[::-1])
    main(dataset, tmp_path / "known True", "--resume", "--allow-changes", "--train.steps", "3")
    found = read_export(tmp_path / "known True")
    assert (set(found.training_tasks), found.facts["leak"]) == (both, leaks[:1]), "also after a change of data"
    hidden = [f"{number:064x} {line.partition(' ')[2]}" for number, line in enumerate(export.training_tasks)]
    write_export(tmp_path / "hidden", replace(export, training_tasks=tuple(hidden)))
    main(dataset, tmp_path / "once", "--init-from", str(tmp_path / "hidden"), "--train.steps", "1")
    assert len(read_export(tmp_path / "once").training_tasks) == len(hidden), "the same pairs under another digest"


def test_grown_data_are_named_refused_and_then_keep_their_rows(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(dataset, tmp_path / "run")
    small, large = small_store(3, 4), small_store(5, 9)
    save(large, tmp_path / "large")
    argv = ["arc1-small", "--data", str(tmp_path / "large"), "--out", str(tmp_path / "run"), *TINY, "--resume"]
    assert refused(argv, capsys) == (
        f"error: {tmp_path}/run: differs from the run to resume (the dataset (augmentations: 4, now 9, "
        "recipe: '3 tasks', now '5 tasks')); add --allow-changes to go on\n"
    )
    before = read_newest_checkpoint(tmp_path / "run", print)
    main(
        tmp_path / "large",
        tmp_path / "run",
        "--resume",
        "--allow-changes",
        "--train.steps",
        "7",
        "--train.puzzle-lr",
        "0",
    )
    said = capsys.readouterr().err
    old, new = map(puzzle_names, (small, large))
    known = set(old) & set(new)
    assert f"with other data: {len(known)} of {len(new)} puzzles are known" in said
    after = read_newest_checkpoint(tmp_path / "run", print)
    assert before is not None
    assert after is not None
    assert after[1]["step"] == 7
    for name in known:
        assert torch.equal(after[0]["puzzle_table"][new.index(name)], before[0]["puzzle_table"][old.index(name)])


# As a program -------------------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}


def test_preemption_saves_and_ends_with_status_0(dataset: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "arc_trm.train", *words(dataset, tmp_path, "--train.steps", "100000")]
    with subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        deadline = time.monotonic() + HANG
        while not (tmp_path / "metrics.jsonl").exists() or not lines(tmp_path):
            assert running.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=HANG)
    assert running.returncode == 0, err
    found = read_newest_checkpoint(tmp_path, print)
    assert found is not None
    assert out == f"wrote {tmp_path}/export: {found[1]['step']} steps, stopped by a signal\n"
    assert err.startswith(f"{DEVICE}starting a new run, in float32\n")


@pytest.mark.slow
def test_the_launcher_starts_the_script_on_two_processes_from_another_folder(dataset: Path, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file"]
    config = REPOSITORY / "configs" / "accelerate" / "cpu_2_processes.yaml"
    script = [config, REPOSITORY / "arc_trm" / "train.py", "arc1-small", "--data", dataset, "--out", "run", *TINY]
    launched = subprocess.run(
        [*launcher, *map(str, script)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert launched.returncode == 0, launched.stderr
    assert "2 processes on cpu\nstarting a new run, in float32\n" in launched.stderr
    assert "Warning: " not in launched.stderr
    assert launched.stdout.startswith("wrote run/export: 6 steps, finished, evaluation/outputs")
    main(dataset, tmp_path / "one")
    one, two = lines(tmp_path / "one"), lines(tmp_path / "run")
    assert [line["step"] for line in two] == [line["step"] for line in one]
    for mine, theirs in zip(one, two, strict=True):
        if "train/loss" in mine:
            assert theirs["train/loss"] == pytest.approx(mine["train/loss"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [0, 1])
def test_two_launches_act_as_two_machines_and_a_signal_to_either_ends_both_with_a_checkpoint(
    dataset: Path, tmp_path: Path, signalled: int
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = ["--main_process_ip", "127.0.0.1", "--main_process_port", str(free.getsockname()[1])]
    config = REPOSITORY / "configs" / "accelerate" / "cpu_2_processes.yaml"
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config), *address]
    script = [REPOSITORY / "arc_trm" / "train.py", "arc1-small", "--data", dataset, "--out", tmp_path / "run", *TINY]
    machines = []
    with ExitStack() as stack:
        for rank in (0, 1):
            place = ["--num_machines", "2", "--num_processes", "2", "--machine_rank", str(rank)]
            said = stack.enter_context((tmp_path / f"machine{rank}").open("w+"))
            command = [*launcher, *place, *map(str, script), "--train.steps", "100000"]
            machines.append(subprocess.Popen(command, env=environment(), stdout=said, stderr=subprocess.STDOUT))
            stack.callback(machines[-1].kill)

        def wait_for(happened: Callable[[], bool]) -> None:
            deadline = time.monotonic() + HANG
            while not happened():
                assert time.monotonic() < deadline, told()
                time.sleep(0.05)

        def told() -> str:
            return "".join((tmp_path / f"machine{rank}").read_text() for rank in (0, 1))

        wait_for(lambda: (tmp_path / "run" / "metrics.jsonl").exists() and bool(lines(tmp_path / "run")))
        machines[signalled].terminate()
        wait_for(lambda: "stopped by a signal" in told())
        machines[signalled].wait(HANG)
        # The other machine's launcher waits minutes for a word of this one's, though its training process is done.
        machines[1 - signalled].kill()
        machines[1 - signalled].wait(HANG)
    found = read_newest_checkpoint(tmp_path / "run", print)
    assert found is not None
    assert told().count("2 processes on cpu\n") == 1
    assert f"wrote {tmp_path}/run/export: {found[1]['step']} steps, stopped by a signal\n" in told()
