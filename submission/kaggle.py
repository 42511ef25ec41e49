"""Upload a bundle to Kaggle, run its notebook there, fetch the output, submit it.

    python -m submission.kaggle push --competition NAME    upload, run, wait, fetch output and log
    python -m submission.kaggle output                     wait for the pushed notebook, and fetch
    python -m submission.kaggle submit                     hand in the pushed version for the scored rerun

Kaggle reports success even if it dropped a source or skipped a file, and replaces a machine whose name it does not
know. Each costs a day, so the result is compared with the request: files and sources at once, the machine by the GPUs
that worked there.
"""

import argparse
import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_prep.files import InputError, make_folder, new_folder, read_json, write_json
from data_prep.program import command_line, run_program
from data_prep.progress import duration_text
from submission.package import NOTEBOOK, Bundle, read_bundle
from submission.settings import positive
from submission.submission_file import read_submission, read_summary

# Kaggle's names of machines, and their numbers of GPUs; Kaggle silently replaces an unknown one.
MACHINES = {
    "NvidiaL4": 4,
    "NvidiaL4X1": 1,
    "NvidiaTeslaT4": 2,
    "NvidiaTeslaA100": 1,
    "NvidiaH100": 1,
    "NvidiaRtxPro6000": 1,
}
RECORD = "push.json"
ENDS = ("COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED")  # last states of a notebook's run, success first
# In seconds: the pause between two requests while waiting, the time between two lines about it, the longest wait.
POLL, SAY, LONGEST_WAIT = 15.0, 600.0, 3600.0
NO_CREDENTIALS = "no Kaggle credentials that work: make a token at kaggle.com/settings, and set KAGGLE_API_TOKEN"


@dataclass(frozen=True)
class Pushed:
    """The bundle that is pushed, and its places on Kaggle; push.json records the last push."""

    dataset: str  # owner/slug
    kernel: str  # owner/slug of the notebook
    competition: str
    bundle: str  # its digest
    machine: str = next(iter(MACHINES))
    gpus: int = next(iter(MACHINES.values()))
    version: int = 0  # of the notebook, as Kaggle counts from 1; 0: void


# Kaggle's client ------------------------------------------------------------------------------------------


class Refused(InputError):
    """Kaggle refused a request; `status` is the HTTP status, None if there was no answer."""

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


def sign_in() -> Any:
    """Return Kaggle's client, a KaggleApi; raises InputError without credentials that work.

    Importing the client signs in. If that fails, it prints help and exits.
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            from kaggle.api.kaggle_api_extended import KaggleApi  # type: ignore[import-untyped]

            client = KaggleApi()
            client.authenticate()
    except SystemExit as error:
        raise InputError(NO_CREDENTIALS) from error
    return client


def ask(what: str, request: Callable[..., Any], *words: Any, **options: Any) -> Any:
    """Return `request(*words, **options)`, a call of the client; raises Refused, in one line, if it fails."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the client prints, too
            return request(*words, **options)
    except (OSError, ValueError) as error:
        # The client turns some answers into ValueErrors of its own.
        answers = (getattr(candidate, "response", None) for candidate in (error, error.__context__))
        status = next((int(answer.status_code) for answer in answers if answer is not None), None)
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Refused(f"{what}: {'' if status is None else f'status {status}, '}{said}", status) from error


def wait(what: str, look: Callable[[], Any], patient: bool = False) -> Any:
    """Call `look` until it returns a result, also after failures that may pass; prints a line every ten minutes.

    Raises InputError after LONGEST_WAIT seconds; a `patient` wait lasts as long as answers come.
    """
    began = limited = said = time.monotonic()
    while True:
        failure = ""
        try:
            if (result := look()) is not None:
                return result
        except Refused as error:
            if error.status is not None and error.status < 429:
                raise
            failure = f" ({error})"
        now = time.monotonic()
        if patient and not failure:
            limited = now
        if now - limited >= LONGEST_WAIT:
            raise InputError(f"{what}: still not there after {(now - began) / 60:.0f} minutes{failure}")
        if now - said >= SAY:
            said = now
            print(f"{what}: waiting for {duration_text(now - began)}{failure}", flush=True)
        time.sleep(POLL)


# Competition and quota ------------------------------------------------------------------------------------


def say_terms(client: Any, competition: str, late: bool) -> None:
    """Print the competition's deadline and the GPU quota that is left, as Kaggle knows them.

    Raises InputError if Kaggle does not list the competition, or if it takes no submissions, unless it may be `late`.
    """
    what, place = f"competition {competition}", f"see https://www.kaggle.com/competitions/{competition}"
    page = ask(what, client.competitions_list, search=competition)
    found = next((entry for entry in page.competitions if entry.ref.rsplit("/", 1)[-1] == competition), None)
    if found is None:
        raise InputError(f"{what}: Kaggle lists none of that name, expected the last part of its page's address")
    deadline = "no deadline" if found.deadline is None else f"deadline {found.deadline:%Y-%m-%d %H:%M} UTC"
    closed = found.deadline is not None and found.deadline < datetime.now(UTC).replace(tzinfo=None)
    if (closed or found.submissions_disabled) and not late:
        raise InputError(
            f"{what}: closed, {deadline}; expected an open one, or --anyway if late ones are scored, {place}"
        )
    print(f"{what}: {'closed, ' if closed else ''}{deadline}")
    quota = ask("GPU quota", client.quota_view)
    if (gpu := quota.gpu_quota) is None or gpu.total_time_allowed is None:
        print("GPU quota: Kaggle does not say")
        return
    total, used = (part.total_seconds() / 3600 if part else 0.0 for part in (gpu.total_time_allowed, gpu.time_used))
    until = f", renewed {quota.quota_refresh_time:%Y-%m-%d %H:%M} UTC" if quota.quota_refresh_time else ""
    print(f"GPU quota: {max(0.0, total - used):.1f} of {total:.1f} hours left{until}", flush=True)


# Dataset --------------------------------------------------------------------------------------------------


def upload(client: Any, pushed: Pushed, bundle: Bundle) -> None:
    """Make the bundle the newest version of the dataset, unless it is already, and wait until Kaggle has it."""
    # Uploaded with the bundle, so that a listing shows which bundle it is.
    marker = f"bundle-{pushed.bundle[:12]}.txt"
    wanted = {marker, *(path.name for path in bundle.files)}
    status, files = dataset_state(client, pushed.dataset)
    if wanted <= files:
        print(f"dataset {pushed.dataset} has this bundle already")
        return
    with tempfile.TemporaryDirectory(prefix="arc-trm-dataset.") as folder:
        for path in bundle.files:
            Path(folder, path.name).symlink_to(path.resolve())
        Path(folder, marker).write_text(f"{pushed.bundle}\n", encoding="utf-8")
        # The licences of the parts are in a file of the bundle.
        metadata = {"id": pushed.dataset, "title": pushed.dataset.split("/")[1], "licenses": [{"name": "other"}]}
        write_json(Path(folder, "dataset-metadata.json"), metadata)
        request = client.dataset_create_version if status else client.dataset_create_new
        notes = [f"bundle {pushed.bundle[:12]}"] if status else []
        answer = ask(f"uploading to {pushed.dataset}", request, folder, *notes, quiet=True)
    if answer.error:
        raise InputError(f"uploading to {pushed.dataset}: {answer.error}")
    print(f"uploaded {len(wanted)} files to {pushed.dataset}, waiting for Kaggle to process them", flush=True)

    def processed() -> set[str] | None:
        status, files = dataset_state(client, pushed.dataset)
        if status in ("failed", "deleted"):
            raise InputError(f"dataset {pushed.dataset}: {status} while Kaggle processed it, expected ready")
        # For a while, "ready" is the state of the version before.
        return files if marker in files else None

    if missing := wanted - wait(f"dataset {pushed.dataset}, this bundle", processed):
        names = ", ".join(sorted(missing))
        raise InputError(f"dataset {pushed.dataset}: lacks {names}, the upload dropped it; push again")


def dataset_state(client: Any, dataset: str) -> tuple[str, set[str]]:
    """Return Kaggle's name of the dataset's state, empty if we may see none, and its files if it is ready."""
    try:
        status = str(ask(f"dataset {dataset}", client.dataset_status, dataset))
    except Refused as error:
        if error.status in (403, 404):
            return "", set()
        raise
    if status != "ready":
        return status, set()
    page = ask(f"files of {dataset}", client.dataset_list_files, dataset, page_size=200)  # far more than a bundle has
    return status, {str(file.name) for file in page.files or []}


# Notebook -------------------------------------------------------------------------------------------------


def push_kernel(client: Any, pushed: Pushed, bundle: Bundle, image: str | None) -> tuple[int, list[str]]:
    """Push the bundle's notebook, which starts it; returns its version and the sources that Kaggle dropped.

    `image` is the container image to run in, None the newest. Raises InputError if Kaggle refuses the notebook.
    """
    what = f"kernel {pushed.kernel}"
    metadata = {
        "id": pushed.kernel,
        "title": pushed.kernel.split("/")[1],  # so that Kaggle derives the same slug from it
        "code_file": str((bundle.folder / NOTEBOOK).resolve()),
        "language": "python",
        "kernel_type": "notebook",
        "is_private": True,
        "enable_gpu": True,
        "enable_internet": False,
        "machine_shape": pushed.machine,
        "dataset_sources": [pushed.dataset],
        "competition_sources": [pushed.competition],
        **({} if image is None else {"docker_image": image}),
    }
    with tempfile.TemporaryDirectory(prefix="arc-trm-kernel.") as folder:
        write_json(Path(folder, "kernel-metadata.json"), metadata)
        answer = ask(what, client.kernels_push, folder)
    if answer.error:
        raise InputError(f"{what}: {answer.error}")
    kinds = ("dataset", "competition", "kernel", "model")
    dropped = [source for kind in kinds for source in getattr(answer, f"invalid_{kind}_sources", None) or []]
    return int(answer.version_number or 0), dropped


def fetch(client: Any, pushed: Pushed, out: Path) -> None:
    """Wait for the end of the notebook, fetch log and output into `out`/output and check them.

    Raises InputError if the notebook failed, or if its output is not that of the pushed bundle.
    """
    said = ""

    def ended() -> Any:
        nonlocal said
        answer = ask(f"kernel {pushed.kernel}", client.kernels_status, pushed.kernel)
        if answer.status.name != said:
            said = answer.status.name
            print(f"kernel {pushed.kernel}: {said.lower()}", flush=True)
        return answer if said in ENDS else None

    try:
        message = wait(f"kernel {pushed.kernel}, its end", ended, patient=True).failure_message
    except KeyboardInterrupt:
        print(
            f"note: the notebook goes on; python -m submission.kaggle output --out {out} waits and fetches", flush=True
        )
        raise
    folder = out / "output"
    with new_folder(folder) as fresh:
        ask(f"output of {pushed.kernel}", client.kernels_output, pushed.kernel, str(fresh), force=True, quiet=True)
    log = folder / f"{pushed.kernel.split('/')[1]}.log"
    if said != ENDS[0]:
        raise InputError(f"kernel {pushed.kernel}: {said.lower()}{f' ({message})' if message else ''}, log in {log}")
    differences = read_summary(folder / "submission.json").get("rerun", [])
    print(*(f"the rerun differs: {line}" for line in differences), sep="\n", end="\n" if differences else "")
    print(f"fetched {folder}: {check_output(folder, pushed)} tasks in submission.json")


def check_output(folder: Path, pushed: Pushed) -> int:
    """Return the number of tasks in the submission; raises InputError unless it is valid and of the pushed bundle."""
    if (made_by := str(read_json(folder / "bundle.json").get("bundle"))) != pushed.bundle:
        found = f"made by bundle {made_by[:12]}, expected {pushed.bundle[:12]}"
        raise InputError(f"{folder}: {found}; is it an older run's?")
    return len(read_submission(folder / "submission.json"))


def doubts(folder: Path, pushed: Pushed) -> list[str]:
    """Return the reasons not to submit: the scored rerun can do only what the fetched run has proved."""
    summary = read_summary(folder / "submission.json")
    gpus = summary.get("processes", 0) if str(summary.get("device")).startswith("cuda") else 0
    found = [] if gpus == pushed.gpus else [f"{gpus} GPUs worked of the {pushed.gpus} of {pushed.machine}"]
    without = summary.get("outputs_without_candidates", "unknown")
    found += [f"outputs without votes: {without}"] if without else []
    return found + [f"trouble: {trouble}" for trouble in summary.get("troubles", [])]


# Commands -------------------------------------------------------------------------------------------------


def push(client: Any, arguments: argparse.Namespace) -> None:
    """upload the bundle, run its notebook, wait, fetch output and log"""
    bundle = read_bundle(arguments.bundle)
    competition = arguments.competition or bundle.manifest.get("competition")
    if not competition:
        raise InputError("--competition: not given, and the bundle names none, expected the name in its page's address")
    gpus = arguments.gpus or MACHINES.get(arguments.machine)
    if gpus is None:
        raise InputError(
            f"--machine {arguments.machine}: unknown here, expected --gpus N too, or {', '.join(MACHINES)}"
        )
    owner = arguments.owner or client.config_values["username"]
    names = f"{owner}/{arguments.dataset}", f"{owner}/{arguments.kernel}"
    pushed = Pushed(*names, competition, bundle.digest, arguments.machine, gpus)
    make_folder(arguments.out)  # before anything that cannot be undone
    say_terms(client, competition, arguments.anyway)
    upload(client, pushed, bundle)
    version, dropped = push_kernel(client, pushed, bundle, arguments.docker_image)
    # A version without its sources is void; the record says so to `output` and `submit`.
    pushed = replace(pushed, version=0 if dropped else version)
    write_json(arguments.out / RECORD, asdict(pushed))
    page = f"https://www.kaggle.com/code/{pushed.kernel}"
    if dropped:
        void = f"version {version} is void, stop it at {page}"
        raise InputError(f"kernel {pushed.kernel}: Kaggle dropped the source {', '.join(dropped)}, {void}")
    refuse_void(pushed, f"kernel {pushed.kernel}")
    print(f"pushed version {version} of {page}", flush=True)
    if not arguments.no_wait:
        fetch(client, pushed, arguments.out)


def output(client: Any, arguments: argparse.Namespace) -> None:
    """wait for the pushed notebook, fetch output and log"""
    fetch(client, read_pushed(arguments.out), arguments.out)


def submit(client: Any, arguments: argparse.Namespace) -> None:
    """hand in the pushed version, whose output was fetched and is good, for the scored rerun: one try a day"""
    pushed = read_pushed(arguments.out)
    folder = arguments.out / "output"
    check_output(folder, pushed)
    if not arguments.anyway and (found := doubts(folder, pushed)):
        raise InputError(f"{folder}: {'; '.join(found)}; expected a run without such doubts (or --anyway)")
    say_terms(client, pushed.competition, arguments.anyway)
    words = ("submission.json", f"bundle {pushed.bundle[:12]}", pushed.competition, pushed.kernel, pushed.version)
    answer = ask(f"submitting to {pushed.competition}", client.competition_submit_code, *words, quiet=True)
    print(f"submitted version {pushed.version} of {pushed.kernel} to {pushed.competition}: {answer.message}")


def read_pushed(out: Path) -> Pushed:
    """Read the record of the last push; raises InputError if there is none, or if its version is void."""
    try:
        pushed = Pushed(**read_json(out / RECORD))
    except TypeError as error:
        raise InputError(f"{out / RECORD}: not what a push writes ({error})") from error
    refuse_void(pushed, str(out / RECORD))
    return pushed


def refuse_void(pushed: Pushed, where: str) -> None:
    """Raise InputError unless the notebook has a version that can run and be submitted."""
    if pushed.version < 1:
        raise InputError(f"{where}: version {pushed.version} of the notebook is void, expected 1 or more; push again")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    made = command_line("submission.kaggle", __doc__)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    adders = {}
    for command in (push, output, submit):
        own = commands.add_parser(command.__name__, help=command.__doc__, description=command.__doc__)
        own.set_defaults(run=command)
        add = adders[command] = own.add_argument
        add("--out", metavar="DIR", type=Path, default=Path("kaggle-output"), help="folder to fetch to (kaggle-output)")
    add = adders[push]
    add("--bundle", metavar="DIR", type=Path, default=Path("bundle"), help="what to push (bundle)")
    add("--owner", metavar="NAME", help="user or organisation that owns dataset and notebook (you)")
    add("--dataset", metavar="SLUG", default="arc-trm-bundle", help="name of the dataset (arc-trm-bundle)")
    add("--kernel", metavar="SLUG", default="arc-trm-submission", help="of the notebook (arc-trm-submission)")
    add("--competition", metavar="SLUG", help="its name in the address of its page (the one that the bundle names)")
    known = ", ".join(f"{name} {count}" for name, count in MACHINES.items())
    add("--machine", metavar="NAME", default=Pushed.machine, help=f"GPUs of {known}; others take --gpus (NvidiaL4)")
    add("--gpus", metavar="N", type=positive, help="GPUs of the machine (those known of it)")
    add("--docker-image", metavar="IMAGE", help="pins the image that the notebook runs in (Kaggle's newest)")
    add("--no-wait", action="store_true", help="do not wait for the notebook to end")
    add("--anyway", action="store_true", help="even if the competition is closed")
    doubtful = "even if the public run has not proved all, or the competition is closed"
    adders[submit]("--anyway", action="store_true", help=doubtful)
    arguments = made.parse_args(argv)
    arguments.run(ask("signing in", sign_in), arguments)
    return 0


if __name__ == "__main__":
    run_program(main)
