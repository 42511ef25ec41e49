"""Equality with the published code: everything that the golden folder records."""

import pytest

from data_prep.files import read_json
from tests.golden.comparison import Report
from tests.golden.grids import check_grids
from tests.golden.models import ModelCheck, check_parts, read_tensors
from tests.golden.votes import check_votes

MODELS = ("trm_att", "trm_mlp", "trm_singlez", "trm_hier6", "hrm", "baseline")


@pytest.fixture(scope="module")
def golden(shared_dir):
    return shared_dir / "golden"


def assert_all_ok(report: Report, at_least: int) -> None:
    out = [str(line) for line in report if not line.ok]
    assert not out
    assert not report.notes
    assert len(list(report)) >= at_least


@pytest.mark.parametrize("name", MODELS)
def test_model_computes_what_the_published_one_does(golden, name):
    facts = read_json(golden / "models.json")["models"][name]
    report = ModelCheck.compare(name, read_tensors(golden / f"{name}.safetensors"), facts)
    assert_all_ok(report, 35)


def test_every_golden_model_is_tested_here(golden):
    assert set(read_json(golden / "models.json")["models"]) == set(MODELS)


def test_parts_compute_what_the_published_ones_do(golden):
    assert_all_ok(check_parts(read_tensors(golden / "misc.safetensors"), read_json(golden / "misc.json")), 13)


def test_grids_tokens_and_augmentations_are_the_published_ones(golden):
    assert_all_ok(check_grids(read_json(golden / "arc_data.json")), 14)


def test_votes_are_the_published_ones(golden):
    assert_all_ok(check_votes(read_json(golden / "arc_data.json")), 9)
