"""What a push does on Kaggle: datasets and notebooks made, watched, fetched and checked.

Kaggle answers a push with success though it dropped a source, skips a file that could not be uploaded, and gives
another machine for a name that it does not know; so everything is compared with what was asked for.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from data_prep.files import InputError, read_json, write_atomic
from submission.attempts import read_submission
from submission.kaggle_client import Patience, explained, status_of
from submission.package import NOTEBOOK, Bundle

# Kaggle's name for four L4; a name that it does not know silently gets a P100.
MACHINE = "NvidiaL4"
DATASET_WAIT, KERNEL_WAIT = 3600.0, 13 * 3600.0  # seconds
LOG_LINES = 20
# What a kernel comes to in the end, and whether that is well.
ENDS = {"COMPLETE": True, "ERROR": False, "CANCEL_ACKNOWLEDGED": False}


@dataclass(frozen=True)
class Target:
    """Where things go on Kaggle: `owner/slug` names, the competition, the machine."""

    dataset: str
    kernel: str
    competition: str
    machine: str = MACHINE


@dataclass(frozen=True)
class Pushed:
    """What the last push did, kept in push.json."""

    dataset: str
    kernel: str
    version: int
    competition: str
    bundle: str  # its digest


# Generated metadata ---------------------------------------------------------------------------------------


def dataset_metadata(target: Target) -> dict[str, Any]:
    """dataset-metadata.json: the licences of the parts are in a file of the bundle."""
    slug = target.dataset.split("/")[1]
    return {"id": target.dataset, "title": slug, "licenses": [{"name": "other"}]}


def kernel_metadata(target: Target) -> dict[str, Any]:
    """kernel-metadata.json; the title is the slug, so that Kaggle derives the same slug from it."""
    return {
        "id": target.kernel,
        "title": target.kernel.split("/")[1],
        "code_file": NOTEBOOK,
        "language": "python",
        "kernel_type": "notebook",
        "is_private": True,
        "enable_gpu": True,
        "enable_tpu": False,
        "enable_internet": False,
        "machine_shape": target.machine,
        "dataset_sources": [target.dataset],
        "competition_sources": [target.competition],
        "kernel_sources": [],
        "model_sources": [],
    }


def marker(bundle: Bundle) -> str:
    """A file that goes up with the bundle: the listing of a dataset version that has it is that of this bundle."""
    return f"bundle-{bundle.digest[:12]}.txt"


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON."""
    write_atomic(path, orjson.dumps(value, option=orjson.OPT_INDENT_2))


# Dataset --------------------------------------------------------------------------------------------------


def upload(client: Any, target: Target, bundle: Bundle, patience: Patience) -> None:
    """Make the bundle the newest version of the dataset, unless it is that already; wait until Kaggle has it."""
    wanted = {path.name for path in bundle.files} | {marker(bundle)}
    before = dataset_status(client, target.dataset, patience)
    if before == "ready" and wanted <= listed(client, target.dataset, patience):
        print(f"dataset {target.dataset} has this bundle already")
    else:
        with tempfile.TemporaryDirectory(prefix="arc-trm-dataset.") as name:
            fill_dataset_folder(Path(name), target, bundle)
            what = f"dataset {target.dataset}, new version" if before else f"new dataset {target.dataset}"
            with explained(what):  # the client itself asks again after passing failures
                if before:
                    answer = client.dataset_create_version(name, f"bundle {bundle.digest[:12]}", quiet=True)
                else:
                    answer = client.dataset_create_new(name, quiet=True)
            if answer.error:
                raise InputError(f"{what}: {answer.error}")
        print(f"uploaded {len(wanted)} files to {target.dataset}, waiting for Kaggle to process them", flush=True)

    def processed() -> bool | None:
        status = dataset_status(client, target.dataset, patience)
        if status in ("failed", "deleted"):
            raise InputError(f"dataset {target.dataset}: {status} while Kaggle processed it, expected ready")
        # A new version is not the newest at once: "ready" may still speak of the one before.
        return True if status == "ready" and marker(bundle) in listed(client, target.dataset, patience) else None

    patience.wait(f"dataset {target.dataset}, this bundle", processed, DATASET_WAIT)
    missing = sorted(wanted - listed(client, target.dataset, patience))
    if missing:
        raise InputError(f"dataset {target.dataset}: lacks {', '.join(missing)}, the upload dropped it; push again")


def fill_dataset_folder(folder: Path, target: Target, bundle: Bundle) -> None:
    """What is uploaded: links to the bundle's files, the marker, the metadata."""
    for path in bundle.files:
        (folder / path.name).symlink_to(path.resolve())
    (folder / marker(bundle)).write_text(f"{bundle.digest}\n", encoding="utf-8")
    write_json(folder / "dataset-metadata.json", dataset_metadata(target))


def dataset_status(client: Any, dataset: str, patience: Patience) -> str | None:
    """What Kaggle says about the dataset ("ready" …), None when there is none (Kaggle forbids to look then)."""
    try:
        return str(patience.ask(f"dataset {dataset}", lambda: client.dataset_status(dataset)))
    except InputError as error:
        if error.__cause__ is not None and status_of(error.__cause__) in (403, 404):
            return None
        raise


def listed(client: Any, dataset: str, patience: Patience) -> set[str]:
    """The files of the dataset's newest version."""
    names: set[str] = set()
    token: str | None = None
    while True:
        page = patience.ask(f"files of {dataset}", lambda: client.dataset_list_files(dataset, token, 200))  # noqa: B023
        names |= {str(file.name) for file in page.files or []}
        token = page.next_page_token
        if not token:
            return names


# Kernel ---------------------------------------------------------------------------------------------------


def push_kernel(client: Any, target: Target, bundle: Bundle, patience: Patience) -> int:
    """Push the bundle's notebook, which starts it; the version. Raises InputError when a source was dropped."""
    what = f"kernel {target.kernel}"
    with tempfile.TemporaryDirectory(prefix="arc-trm-kernel.") as name:
        shutil.copy(bundle.folder / NOTEBOOK, name)
        write_json(Path(name) / "kernel-metadata.json", kernel_metadata(target))
        answer = patience.ask(what, lambda: client.kernels_push(name), twice=False)
    if answer.error:
        raise InputError(f"{what}: {answer.error}")
    kinds = ("dataset", "competition", "kernel", "model")
    dropped = [source for kind in kinds for source in getattr(answer, f"invalid_{kind}_sources", None) or []]
    if dropped:
        raise InputError(
            f"{what}: Kaggle dropped the source {', '.join(dropped)}, version {answer.version_number} is void"
        )
    check_kernel(client, target, patience)
    return int(answer.version_number or 0)


def check_kernel(client: Any, target: Target, patience: Patience) -> None:
    """Compare what Kaggle says about the kernel with what it was told; InputError on the first difference."""
    with tempfile.TemporaryDirectory(prefix="arc-trm-kernel.") as name:
        patience.ask(f"kernel {target.kernel}", lambda: client.kernels_pull(target.kernel, name, metadata=True))
        found = read_json(Path(name) / "kernel-metadata.json")
    wanted = kernel_metadata(target)
    for field in ("dataset_sources", "competition_sources", "enable_internet", "machine_shape"):
        value = found.get(field)
        if value is None and field == "machine_shape":
            print("note: Kaggle does not say which machine the kernel gets")
        elif value != wanted[field]:
            raise InputError(f"kernel {target.kernel}: {field} is {value}, expected {wanted[field]}")


def kernel_state(client: Any, kernel: str, patience: Patience) -> tuple[str, str]:
    """(status, failure message) of the kernel's latest run."""
    answer = patience.ask(f"kernel {kernel}", lambda: client.kernels_status(kernel))
    return str(answer.status.name), str(answer.failure_message or "")


def wait_for_kernel(client: Any, kernel: str, patience: Patience) -> tuple[str, str]:
    """Wait until the kernel's latest run has ended, telling every change; (status, failure message)."""
    seen = ""

    def ended() -> tuple[str, str] | None:
        nonlocal seen
        state = kernel_state(client, kernel, patience)
        if state[0] != seen:
            seen = state[0]
            print(f"kernel {kernel}: {seen.lower()}", flush=True)
        return state if seen in ENDS else None

    return patience.wait(f"kernel {kernel}, its end", ended, KERNEL_WAIT)


def fetch(client: Any, pushed: Pushed, out: Path, patience: Patience) -> None:
    """Wait for the kernel, fetch log and output into `out`/output, and check them; InputError when it failed."""
    status, message = wait_for_kernel(client, pushed.kernel, patience)
    folder = out / "output"
    with tempfile.TemporaryDirectory(dir=out, prefix=".output.") as name:
        patience.ask(
            f"output of {pushed.kernel}",
            lambda: client.kernels_output(pushed.kernel, str(Path(name) / "output"), force=True, quiet=True),
        )
        shutil.rmtree(folder, ignore_errors=True)
        (Path(name) / "output").rename(folder)
    log = folder / f"{pushed.kernel.split('/')[1]}.log"
    if not ENDS[status]:
        print("\n".join(log_lines(log)[-LOG_LINES:]))
        raise InputError(f"kernel {pushed.kernel}: {status.lower()}{f' ({message})' if message else ''}, log in {log}")
    check_output(folder, pushed)
    print(f"fetched {folder}: {len(read_submission(folder / 'submission.json'))} tasks in submission.json")


def check_output(folder: Path, pushed: Pushed) -> None:
    """Raise InputError unless the pushed bundle made the output, and it holds a valid submission."""
    made_by = read_json(folder / "bundle.json").get("bundle")
    if made_by != pushed.bundle:
        raise InputError(
            f"{folder}: made by bundle {str(made_by)[:12]}, expected {pushed.bundle[:12]}; is it an older run's?"
        )
    read_submission(folder / "submission.json")


def log_lines(path: Path) -> list[str]:
    """The lines of a kernel's log, which is a JSON list of pieces of its streams."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    try:
        return "".join(str(piece["data"]) for piece in orjson.loads(text)).splitlines()
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return text.splitlines()
