"""Bring a bundle to Kaggle, run its notebook there, fetch what it made, submit it.

    python -m submission.kaggle push --bundle bundle       upload, run, wait, fetch output and log
    python -m submission.kaggle status                     the notebook, the dataset, the latest submissions
    python -m submission.kaggle output                     wait for the notebook that was pushed, and fetch
    python -m submission.kaggle submit                     hand in the pushed version for the scored rerun

Kaggle answers a push with success though it dropped a source, skips a file that could not be uploaded, and gives
another machine for a name that it does not know. Each costs a day, so all is compared with what was asked for.
"""

import argparse
import contextlib
import io
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import orjson

from data_prep.files import InputError, read_json, run_program, write_atomic
from submission.attempts import read_submission
from submission.package import NOTEBOOK, Bundle, read_bundle
from submission.submission_file import make_folder

COMPETITION = "arc-prize-2026-arc-agi-2"
# Kaggle's name for four L4; a name that it does not know silently gets a P100.
MACHINE = "NvidiaL4"
RECORD = "push.json"
# How a notebook's run can end, and whether that is well.
ENDS = {"COMPLETE": True, "ERROR": False, "CANCEL_ACKNOWLEDGED": False}

# All in seconds: between attempts, between two looks at something that takes its time, and when to give up on it.
PAUSES = (2.0, 4.0, 8.0, 16.0, 32.0)
POLL, DATASET_WAIT, KERNEL_WAIT = 15.0, 3600.0, 13 * 3600.0
# HTTP statuses after which a request may be sent again; after the first, even one that must not be done twice.
REFUSED = 429
PASSING = (REFUSED, 500, 502, 503, 504)
EXPLAINED = {
    401: "Kaggle refused the credentials (401); make a new token at https://www.kaggle.com/settings",
    403: "Kaggle does not allow it (403); is the name right, and are the competition's rules accepted?",
    404: "Kaggle does not know it (404); is the name right?",
    429: "too many requests (429); try again later",
}
NO_CREDENTIALS = (
    "no Kaggle credentials that work: make a token at https://www.kaggle.com/settings and set KAGGLE_API_TOKEN, "
    "or save it as ~/.kaggle/access_token"
)

Result = TypeVar("Result")


@dataclass(frozen=True)
class Pushed:
    """What is pushed, and where; that of the last push is kept in push.json."""

    dataset: str  # owner/slug
    kernel: str  # owner/slug of the notebook
    competition: str
    bundle: str  # its digest
    machine: str = MACHINE
    version: int = 0  # of the notebook, as Kaggle counts


# Kaggle's client ------------------------------------------------------------------------------------------


class Site:
    """Kaggle's own client, signed in; its failures become InputErrors of one line."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep, now: Callable[[], float] = time.monotonic) -> None:
        self._sleep, self._now = sleep, now
        self.client = self.ask("signing in", sign_in, twice=False)

    def ask(self, what: str, request: Callable[..., Any], *words: Any, twice: bool = True, **options: Any) -> Any:
        """What `request(*words, **options)` returns; it is sent again after failures that may pass.

        What must not be done twice (`twice` is false) is only sent again where the server refused to do it (429).
        """
        for pause in (*PAUSES, None):
            try:
                with contextlib.redirect_stdout(sys.stderr):  # what the client prints is not our output
                    return request(*words, **options)
            except (OSError, ValueError) as error:
                status = status_of(error)
                unanswered = status is None and isinstance(error, OSError)
                may_pass = status == REFUSED or (twice and (unanswered or status in PASSING))
                if pause is None or not may_pass:
                    raise InputError(f"{what}: {_reason(error, status)}") from error
                asked = getattr(getattr(error, "response", None), "headers", {}).get("Retry-After", "")
                self._sleep(float(asked) if asked.isdecimal() else pause)
        raise AssertionError("the last attempt returns or raises")

    def wait(self, what: str, look: Callable[[], Result | None], seconds: float) -> Result:
        """Look until there is a result; raises InputError when there is none after `seconds`."""
        end = self._now() + seconds
        while (result := look()) is None:
            if self._now() >= end:
                raise InputError(f"{what}: still not there after {seconds / 60:.0f} minutes")
            self._sleep(POLL)
        return result


def sign_in() -> Any:
    """Kaggle's client (kaggle.api.kaggle_api_extended.KaggleApi); InputError without credentials that work.

    Importing it prints help, tries to sign in, and ends the program where it cannot.
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            from kaggle.api.kaggle_api_extended import KaggleApi  # type: ignore[import-untyped]

            client = KaggleApi()
            client.authenticate()
    except SystemExit as error:
        raise InputError(NO_CREDENTIALS) from error
    except ImportError as error:
        raise InputError(f"Kaggle's client cannot be imported ({error}): pip install 'kaggle>=2.2,<3' six") from error
    return client


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status behind a failure, None where there was no answer; the client hides some in its ValueErrors."""
    for candidate in (error, getattr(error, "__context__", None)):
        response = getattr(candidate, "response", None)
        if response is not None:
            return int(response.status_code)
    return None


def _reason(error: Exception, status: int | None) -> str:
    if status is not None:
        return EXPLAINED.get(status, f"Kaggle's servers failed ({status})")
    if isinstance(error, json.JSONDecodeError):
        return "Kaggle's answer was no JSON"
    lines = [] if isinstance(error, OSError) else str(error).strip().splitlines()
    return lines[0] if lines else f"no answer ({type(error).__name__})"


# Dataset --------------------------------------------------------------------------------------------------


def upload(site: Site, pushed: Pushed, bundle: Bundle) -> None:
    """Make the bundle the newest version of the dataset, unless it is that already; wait until Kaggle has it."""
    # Goes up with the bundle, so that a listing tells which bundle's it is.
    marker = f"bundle-{pushed.bundle[:12]}.txt"
    wanted = {marker, *(path.name for path in bundle.files)}
    before = dataset_status(site, pushed.dataset)
    if before == "ready" and wanted <= listed(site, pushed.dataset):
        print(f"dataset {pushed.dataset} has this bundle already")
    else:
        with tempfile.TemporaryDirectory(prefix="arc-trm-dataset.") as folder:
            for path in bundle.files:
                Path(folder, path.name).symlink_to(path.resolve())
            Path(folder, marker).write_text(f"{pushed.bundle}\n", encoding="utf-8")
            # The licences of the parts are in a file of the bundle.
            metadata = {"id": pushed.dataset, "title": slug(pushed.dataset), "licenses": [{"name": "other"}]}
            write_json(Path(folder, "dataset-metadata.json"), metadata)
            if before:
                what, request = f"dataset {pushed.dataset}, new version", site.client.dataset_create_version
                answer = site.ask(what, request, folder, f"bundle {pushed.bundle[:12]}", quiet=True, twice=False)
            else:
                what, request = f"new dataset {pushed.dataset}", site.client.dataset_create_new
                answer = site.ask(what, request, folder, quiet=True, twice=False)
        if answer.error:
            raise InputError(f"{what}: {answer.error}")
        print(f"uploaded {len(wanted)} files to {pushed.dataset}, waiting for Kaggle to process them", flush=True)

    def processed() -> set[str] | None:
        status = dataset_status(site, pushed.dataset)
        if status in ("failed", "deleted"):
            raise InputError(f"dataset {pushed.dataset}: {status} while Kaggle processed it, expected ready")
        # A new version is not the newest at once: "ready" may still speak of the one before.
        files = listed(site, pushed.dataset) if status == "ready" else set()
        return files if marker in files else None

    missing = wanted - site.wait(f"dataset {pushed.dataset}, this bundle", processed, DATASET_WAIT)
    if missing:
        raise InputError(
            f"dataset {pushed.dataset}: lacks {', '.join(sorted(missing))}, the upload dropped it; push again"
        )


def dataset_status(site: Site, dataset: str) -> str | None:
    """What Kaggle says about the dataset ("ready" …), None when it does not exist or may not be looked at."""
    try:
        return str(site.ask(f"dataset {dataset}", site.client.dataset_status, dataset))
    except InputError as error:
        if status_of(error.__cause__) in (403, 404):
            return None
        raise


def listed(site: Site, dataset: str) -> set[str]:
    """The files of the dataset's newest version, of which a bundle has far fewer than fit on a page."""
    page = site.ask(f"files of {dataset}", site.client.dataset_list_files, dataset, page_size=200)
    return {str(file.name) for file in page.files or []}


# Notebook -------------------------------------------------------------------------------------------------


def kernel_metadata(pushed: Pushed) -> dict[str, Any]:
    """kernel-metadata.json; the title is the slug, so that Kaggle derives the same slug from it."""
    return {
        "id": pushed.kernel,
        "title": slug(pushed.kernel),
        "code_file": NOTEBOOK,
        "language": "python",
        "kernel_type": "notebook",
        "is_private": True,
        "enable_gpu": True,
        "enable_internet": False,
        "machine_shape": pushed.machine,
        "dataset_sources": [pushed.dataset],
        "competition_sources": [pushed.competition],
    }


def push_kernel(site: Site, pushed: Pushed, bundle: Bundle) -> int:
    """Push the bundle's notebook, which starts it; its version. InputError where Kaggle does not do what is asked."""
    what = f"kernel {pushed.kernel}"
    metadata = kernel_metadata(pushed)
    with tempfile.TemporaryDirectory(prefix="arc-trm-kernel.") as folder:
        shutil.copy(bundle.folder / NOTEBOOK, folder)
        write_json(Path(folder, "kernel-metadata.json"), metadata)
        answer = site.ask(what, site.client.kernels_push, folder, twice=False)
    if answer.error:
        raise InputError(f"{what}: {answer.error}")
    kinds = ("dataset", "competition", "kernel", "model")
    dropped = [source for kind in kinds for source in getattr(answer, f"invalid_{kind}_sources", None) or []]
    if dropped:
        raise InputError(
            f"{what}: Kaggle dropped the source {', '.join(dropped)}, version {answer.version_number} is void"
        )
    with tempfile.TemporaryDirectory(prefix="arc-trm-kernel.") as folder:
        site.ask(what, site.client.kernels_pull, pushed.kernel, folder, metadata=True)
        found = read_json(Path(folder, "kernel-metadata.json"))
    for field in ("dataset_sources", "competition_sources", "enable_internet", "machine_shape"):
        if found.get(field) is None and field == "machine_shape":
            print("note: Kaggle does not say which machine the kernel gets")
        elif found.get(field) != metadata[field]:
            raise InputError(f"{what}: {field} is {found.get(field)}, expected {metadata[field]}")
    return int(answer.version_number or 0)


def kernel_state(site: Site, kernel: str) -> tuple[str, str]:
    """(status, failure message) of the notebook's latest run."""
    answer = site.ask(f"kernel {kernel}", site.client.kernels_status, kernel)
    return str(answer.status.name), str(answer.failure_message or "")


def fetch(site: Site, pushed: Pushed, out: Path) -> None:
    """Wait for the notebook's end, fetch log and output into `out`/output, check them; InputError when it failed."""
    seen = [""]

    def ended() -> tuple[str, str] | None:
        state = kernel_state(site, pushed.kernel)
        if state[0] != seen[-1]:
            seen.append(state[0])
            print(f"kernel {pushed.kernel}: {state[0].lower()}", flush=True)
        return state if state[0] in ENDS else None

    status, message = site.wait(f"kernel {pushed.kernel}, its end", ended, KERNEL_WAIT)
    folder = out / "output"
    what, request = f"output of {pushed.kernel}", site.client.kernels_output
    with tempfile.TemporaryDirectory(dir=out, prefix=".output.") as name:
        site.ask(what, request, pushed.kernel, f"{name}/output", force=True, quiet=True)
        shutil.rmtree(folder, ignore_errors=True)
        Path(name, "output").rename(folder)
    log = folder / f"{slug(pushed.kernel)}.log"
    if not ENDS[status]:
        print("\n".join(log_lines(log)[-20:]))
        raise InputError(f"kernel {pushed.kernel}: {status.lower()}{f' ({message})' if message else ''}, log in {log}")
    print(f"fetched {folder}: {check_output(folder, pushed)} tasks in submission.json")


def check_output(folder: Path, pushed: Pushed) -> int:
    """The number of tasks in the valid submission that the pushed bundle made; else raises InputError."""
    made_by = read_json(folder / "bundle.json").get("bundle")
    if made_by != pushed.bundle:
        raise InputError(
            f"{folder}: made by bundle {str(made_by)[:12]}, expected {pushed.bundle[:12]}; is it an older run's?"
        )
    return len(read_submission(folder / "submission.json"))


def log_lines(path: Path) -> list[str]:
    """The lines of a notebook's log, which is a JSON list of pieces of its streams."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    try:
        return "".join(str(piece["data"]) for piece in orjson.loads(text)).splitlines()
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return text.splitlines()


def slug(name: str) -> str:
    """The second part of `owner/slug`."""
    return name.split("/")[1]


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON."""
    write_atomic(path, orjson.dumps(value, option=orjson.OPT_INDENT_2))


# Commands -------------------------------------------------------------------------------------------------


def push(site: Site, arguments: argparse.Namespace) -> None:
    """upload the bundle, run its notebook, wait, fetch output and log"""
    bundle = read_bundle(arguments.bundle)
    owner = arguments.owner or site.client.config_values["username"]
    names = f"{owner}/{arguments.dataset}", f"{owner}/{arguments.kernel}"
    pushed = Pushed(*names, arguments.competition, bundle.digest, arguments.machine)
    make_folder(arguments.out)  # before anything that cannot be undone
    upload(site, pushed, bundle)
    pushed = replace(pushed, version=push_kernel(site, pushed, bundle))
    write_json(arguments.out / RECORD, asdict(pushed))
    print(f"pushed version {pushed.version} of https://www.kaggle.com/code/{pushed.kernel}", flush=True)
    if not arguments.no_wait:
        fetch(site, pushed, arguments.out)


def status(site: Site, arguments: argparse.Namespace) -> None:
    """where the notebook, the dataset and the submissions stand"""
    pushed = read_pushed(arguments.out)
    state, message = kernel_state(site, pushed.kernel)
    print(f"kernel {pushed.kernel} version {pushed.version}: {state.lower()} {message}".rstrip())
    print(f"dataset {pushed.dataset}: {dataset_status(site, pushed.dataset)}")
    found = site.ask(pushed.competition, site.client.competition_submissions, pushed.competition)
    for item in [item for item in found or [] if item is not None][:5]:
        score = f"score {item.public_score}" if item.public_score else item.error_description or "no score yet"
        print(f"submission {item.ref} of {item.date}: {item.status.name.lower()}, {score}")


def output(site: Site, arguments: argparse.Namespace) -> None:
    """wait for the pushed notebook, fetch output and log"""
    fetch(site, read_pushed(arguments.out), arguments.out)


def submit(site: Site, arguments: argparse.Namespace) -> None:
    """hand in the pushed version, whose output was fetched and found good, for the scored rerun: one try a day"""
    pushed = read_pushed(arguments.out)
    check_output(arguments.out / "output", pushed)
    message = arguments.message or f"bundle {pushed.bundle[:12]}"
    words = ("submission.json", message, pushed.competition, pushed.kernel, pushed.version)
    request = site.client.competition_submit_code
    answer = site.ask(f"submitting to {pushed.competition}", request, *words, quiet=True, twice=False)
    print(f"submitted version {pushed.version} of {pushed.kernel} to {pushed.competition}: {answer.message}")


def read_pushed(out: Path) -> Pushed:
    """What the last push did; raises InputError when there was none."""
    path = out / RECORD
    if not path.is_file():
        raise InputError(f"{path}: missing, expected a push before")
    try:
        return Pushed(**read_json(path))
    except TypeError as error:
        raise InputError(f"{path}: not what a push writes ({error})") from error


COMMANDS = {command.__name__: command for command in (push, status, output, submit)}


def main(argv: Sequence[str] | None = None, connect: Callable[[], Site] = Site) -> int:
    """The command line; returns the exit status."""
    arguments = parser().parse_args(argv)
    COMMANDS[arguments.command](connect(), arguments)
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m submission.kaggle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        add = commands.add_parser(name, help=command.__doc__, description=command.__doc__).add_argument
        add("--out", metavar="DIR", type=Path, default=Path("kaggle-output"), help="what is fetched (kaggle-output)")
        if command is push:
            add("--bundle", metavar="DIR", type=Path, default=Path("bundle"), help="what to push (bundle)")
            add("--owner", metavar="NAME", help="user or organisation that owns dataset and notebook (you)")
            add("--dataset", metavar="SLUG", default="arc-trm-bundle", help="name of the dataset (arc-trm-bundle)")
            add("--kernel", metavar="SLUG", default="arc-trm-submission", help="of the notebook (arc-trm-submission)")
            add("--competition", metavar="SLUG", default=COMPETITION, help=f"the competition ({COMPETITION})")
            add("--machine", metavar="NAME", default=MACHINE, help=f"Kaggle's name of the machine ({MACHINE}: four L4)")
            add("--no-wait", action="store_true", help="do not wait for the notebook to end")
        if command is submit:
            add("--message", metavar="TEXT", help="a description (the digest of the bundle)")
    return made


if __name__ == "__main__":
    run_program(main)
