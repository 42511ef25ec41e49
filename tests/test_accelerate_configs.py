"""The launch configurations in configs/accelerate, read by Accelerate's own loader; test_train launches one of them."""

from pathlib import Path

import pytest
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file

from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "configs" / "accelerate"
# name: (distributed_type, machines, processes, use_cpu)
EXPECTED = {
    "cpu_2_processes": ("MULTI_GPU", 1, 2, True),
    "one_gpu": ("NO", 1, 1, False),
    "four_gpus": ("MULTI_GPU", 1, 4, False),
    "two_nodes_of_four_gpus": ("MULTI_GPU", 2, 8, False),
}


def config(name: str) -> ClusterConfig:
    loaded = load_config_from_file(str(FOLDER / f"{name}.yaml"))
    assert isinstance(loaded, ClusterConfig)
    return loaded


def test_every_configuration_is_expected() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_accelerate_reads_it(name: str) -> None:
    distributed_type, machines, processes, use_cpu = EXPECTED[name]
    loaded = config(name)
    assert loaded.distributed_type.value == distributed_type
    assert loaded.num_machines == machines
    assert loaded.num_processes == processes
    assert loaded.use_cpu is use_cpu
    assert loaded.mixed_precision == "no", "a quoted no, not YAML's false; the run's own setting decides"
    assert loaded.machine_rank == 0


def test_two_nodes_meet_at_an_address_from_the_command_line() -> None:
    loaded = config("two_nodes_of_four_gpus")
    assert loaded.main_process_ip is None
    assert loaded.main_process_port == 29500
    assert loaded.same_network is True


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "typo.yaml"
    path.write_text((FOLDER / "one_gpu.yaml").read_text() + "num_proceses: 3\n")
    with pytest.raises(ValueError, match="num_proceses"):
        load_config_from_file(str(path))
