"""Bring a bundle to Kaggle, run its notebook there, fetch what it made, submit it.

    python -m submission.kaggle push --bundle bundle       upload, run, wait, fetch output and log
    python -m submission.kaggle status                     the notebook, the dataset, the latest submissions
    python -m submission.kaggle output                     wait for the notebook that was pushed, and fetch
    python -m submission.kaggle submit                     hand in the pushed version for the scored rerun

Metadata files are generated from the options. A source that Kaggle drops, a GPU or internet setting that it changes,
and an output that another bundle made are failures, for each of them costs a day.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_prep.files import InputError, read_json, run_program
from submission.kaggle_client import Patience, connect
from submission.kaggle_site import (
    MACHINE,
    Pushed,
    Target,
    check_output,
    dataset_status,
    fetch,
    kernel_state,
    push_kernel,
    upload,
    write_json,
)
from submission.package import read_bundle

COMPETITION = "arc-prize-2026-arc-agi-2"
RECORD = "push.json"


def push(client: Any, arguments: argparse.Namespace, patience: Patience) -> None:
    """Upload the bundle, start the notebook, wait, fetch."""
    bundle = read_bundle(arguments.bundle)
    owner = arguments.owner or client.config_values["username"]
    target = Target(
        f"{owner}/{arguments.dataset}", f"{owner}/{arguments.kernel}", arguments.competition, arguments.machine
    )
    upload(client, target, bundle, patience)
    version = push_kernel(client, target, bundle, patience)
    pushed = Pushed(target.dataset, target.kernel, version, target.competition, bundle.digest)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out / RECORD, asdict(pushed))
    print(f"pushed version {version} of https://www.kaggle.com/code/{target.kernel}", flush=True)
    if not arguments.no_wait:
        fetch(client, pushed, arguments.out, patience)


def read_pushed(out: Path) -> Pushed:
    """What the last push did; raises InputError when there was none."""
    path = out / RECORD
    if not path.is_file():
        raise InputError(f"{path}: missing, expected a push before")
    try:
        return Pushed(**read_json(path))
    except TypeError as error:
        raise InputError(f"{path}: not what a push writes ({error})") from error


def status(client: Any, arguments: argparse.Namespace, patience: Patience) -> None:
    """Print where everything stands."""
    pushed = read_pushed(arguments.out)
    state, message = kernel_state(client, pushed.kernel, patience)
    print(f"kernel {pushed.kernel} version {pushed.version}: {state.lower()} {message}".rstrip())
    print(f"dataset {pushed.dataset}: {dataset_status(client, pushed.dataset, patience)}")
    found = patience.ask(pushed.competition, lambda: client.competition_submissions(pushed.competition))
    for item in [item for item in found or [] if item is not None][:5]:
        score = f"score {item.public_score}" if item.public_score else item.error_description or "no score yet"
        print(f"submission {item.ref} of {item.date}: {item.status.name.lower()}, {score}")


def output(client: Any, arguments: argparse.Namespace, patience: Patience) -> None:
    """Wait for the pushed notebook and fetch what it made."""
    fetch(client, read_pushed(arguments.out), arguments.out, patience)


def submit(client: Any, arguments: argparse.Namespace, patience: Patience) -> None:
    """Hand in the pushed version, whose output must have been fetched and found good: there is one try a day."""
    pushed = read_pushed(arguments.out)
    check_output(arguments.out / "output", pushed)
    message = arguments.message or f"bundle {pushed.bundle[:12]}"
    answer = patience.ask(
        f"submitting to {pushed.competition}",
        lambda: client.competition_submit_code(
            "submission.json", message, pushed.competition, pushed.kernel, pushed.version, quiet=True
        ),
        twice=False,
    )
    print(f"submitted version {pushed.version} of {pushed.kernel} to {pushed.competition}: {answer.message}")


COMMANDS: Mapping[str, tuple[Callable[[Any, argparse.Namespace, Patience], None], str]] = {
    "push": (push, "upload the bundle, run its notebook, wait, fetch output and log"),
    "status": (status, "where the notebook, the dataset and the submissions stand"),
    "output": (output, "wait for the pushed notebook, fetch output and log"),
    "submit": (submit, "hand in the pushed version for the scored rerun"),
}


def main(argv: Sequence[str] | None = None, make: Callable[[], Any] = connect, patience: Patience | None = None) -> int:
    """The command line; returns the exit status."""
    arguments = parser().parse_args(argv)
    command, _ = COMMANDS[arguments.command]
    command(make(), arguments, patience or Patience())
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m submission.kaggle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers = {name: commands.add_parser(name, help=text, description=text) for name, (_, text) in COMMANDS.items()}
    for each in parsers.values():
        each.add_argument(
            "--out", metavar="DIR", type=Path, default=Path("kaggle-output"), help="what is fetched (kaggle-output)"
        )
    add = parsers["push"].add_argument
    add("--bundle", metavar="DIR", type=Path, default=Path("bundle"), help="what submission.package wrote (bundle)")
    add("--owner", metavar="NAME", help="user or organisation that owns dataset and notebook (you)")
    add("--dataset", metavar="SLUG", default="arc-trm-bundle", help="name of the dataset (arc-trm-bundle)")
    add("--kernel", metavar="SLUG", default="arc-trm-submission", help="name of the notebook (arc-trm-submission)")
    add("--competition", metavar="SLUG", default=COMPETITION, help=f"the competition ({COMPETITION})")
    add("--machine", metavar="NAME", default=MACHINE, help=f"Kaggle's name of the machine ({MACHINE}: four L4)")
    add("--no-wait", action="store_true", help="do not wait for the notebook to end")
    parsers["submit"].add_argument("--message", metavar="TEXT", help="a description (the digest of the bundle)")
    return made


if __name__ == "__main__":
    run_program(main)
