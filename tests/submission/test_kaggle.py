"""Pushing, watching, fetching and submitting, with Kaggle's own client against a server on loopback."""

import importlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from data_prep.files import InputError, save_arrays
from submission import kaggle
from submission.attempts import Attempts
from submission.kaggle import NO_CREDENTIALS, Pushed, dataset_state, sign_in
from submission.package import FORMAT, NOTEBOOK, VERSION, Bundle, read_bundle
from submission.submission_file import write_submission
from tests.conftest import REPOSITORY, run_module
from tests.submission.fake_kaggle import COMPETITION, USER, Failure, FakeKaggle, serve
from tests.submission.test_attempts import GRIDS

MACHINE = "NvidiaL4"
DATASET, KERNEL = f"{USER}/arc-trm-bundle", f"{USER}/arc-trm-submission"


# What the notebook says about itself where all went well.
PROVED = {"device": "cuda:0", "processes": 4, "outputs_without_candidates": 0, "troubles": []}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without credentials, and an environment without Kaggle's variables."""
    for name in list(os.environ):
        if name.startswith("KAGGLE") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KAGGLE_CONFIG_DIR", str(tmp_path / ".kaggle"))
    monkeypatch.setenv("KAGGLE_API_ENVIRONMENT", "LOCALHOST")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the client remembers its uploads
    return tmp_path


@pytest.fixture
def site(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKaggle]:
    """A server that Kaggle's client takes for Kaggle, with a token that is good there."""
    fake = FakeKaggle()
    server = serve(fake)
    environment = importlib.import_module("kagglesdk.kaggle_env")
    monkeypatch.setitem(environment._env_to_endpoint, environment.KaggleEnv.LOCAL, fake.url)
    extended = importlib.import_module("kaggle.api.kaggle_api_extended")
    monkeypatch.setattr(extended.KaggleApi, "args", ["--local"])
    # The real client waits seconds between its own attempts.
    monkeypatch.setattr(extended.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("KAGGLE_API_TOKEN", "good")
    yield fake
    server.shutdown()
    server.server_close()


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    notebook = (REPOSITORY / "notebooks" / NOTEBOOK).read_bytes()
    files = {
        NOTEBOOK: notebook,
        "arc_trm-0.1.0-py3-none-any.whl": b"wheel",
        "export.json": b"{}",
        "LICENCES.txt": b"MIT",
    }
    save_arrays(tmp_path / "bundle", {"format": FORMAT, "version": VERSION}, {}, files)
    return read_bundle(tmp_path / "bundle")


@pytest.fixture
def ran(site: FakeKaggle, bundle: Bundle, tmp_path: Path) -> FakeKaggle:
    """The site, on which the notebook leaves a good output."""
    write_submission(tmp_path / "s.json", {"a": (Attempts(GRIDS[1], GRIDS[2]),)})
    site.output = {
        "submission.json": (tmp_path / "s.json").read_bytes(),
        "submission.summary.json": json.dumps(PROVED).encode(),
        "bundle.json": json.dumps({"bundle": bundle.digest}).encode(),
        "rehearsal/submission.json": b"{}",
    }
    site.log = json.dumps([{"stream_name": "stdout", "time": 1, "data": f"line {i}\n"} for i in range(30)])
    return site


class Clock:
    """Sleeping moves it; nothing else does."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def monotonic(self) -> float:
        return self.time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(kaggle, "time", made)
    return made


@pytest.fixture
def call(tmp_path: Path, clock: Clock) -> Callable[..., int]:
    def run(command: str, *words: str) -> int:
        folders = ["--out", str(tmp_path / "out")]
        if command == "push":
            folders += ["--bundle", str(tmp_path / "bundle"), "--competition", COMPETITION]
        return kaggle.main([command, *folders, *words])

    return run


# The way it should go ---------------------------------------------------------------------------------------


def test_a_first_push_uploads_runs_and_fetches(
    ran: FakeKaggle, bundle: Bundle, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran.processing = 3
    assert call("push") == 0
    [created] = ran.asked("CreateDataset")
    assert (created["slug"], created["licenseName"], created["isPrivate"]) == ("arc-trm-bundle", "other", True)
    names = {path.name for path in bundle.files} | {f"bundle-{bundle.digest[:12]}.txt"}
    assert set(ran.datasets[DATASET][0]) == names
    contents = {ran.names[token]: data for token, data in ran.blobs.items()}
    assert all(contents[path.name] == path.read_bytes() for path in bundle.files)
    [pushed] = ran.asked("SaveKernel")
    # The client leaves out what is false; what it does not say about internet is "no" then.
    assert pushed["datasetDataSources"] == [DATASET]
    assert pushed["competitionDataSources"] == [COMPETITION]
    assert (pushed["machineShape"], pushed["isPrivate"], pushed["enableGpu"]) == (MACHINE, True, True)
    assert pushed["enableInternet"] is False
    assert [cell["cell_type"] for cell in json.loads(pushed["text"])["cells"]] == ["markdown", "code", "code"]
    output = tmp_path / "out" / "output"
    assert {p.relative_to(output).as_posix() for p in output.rglob("*") if p.is_file()} == {
        *ran.output,
        "arc-trm-submission.log",
    }
    record = json.loads((tmp_path / "out" / "push.json").read_text())
    assert record == asdict(Pushed(DATASET, KERNEL, COMPETITION, bundle.digest, MACHINE, 4, 1))
    printed = capsys.readouterr().out.splitlines()
    assert [line.rsplit(": ")[1] for line in printed if line.startswith("kernel")] == ["queued", "running", "complete"]
    assert printed[-1] == f"fetched {output}: 1 tasks in submission.json"


def test_a_second_push_makes_a_new_version_of_what_changed(
    ran: FakeKaggle, bundle: Bundle, call: Callable[..., int], tmp_path: Path
) -> None:
    call("push", "--no-wait")
    assert call("push", "--no-wait") == 0
    assert not ran.asked("CreateDatasetVersion"), "the dataset has this bundle already"
    files = {path.name: path.read_bytes() for path in bundle.files if path.name != "manifest.json"}
    save_arrays(tmp_path / "bundle", {"format": FORMAT, "version": VERSION}, {}, {**files, "export.json": b"[]"})
    ran.processing = 4  # for some looks the site still shows the old version as ready
    assert call("push", "--no-wait") == 0
    [version] = ran.asked("CreateDatasetVersion")
    assert version["body"]["versionNotes"].startswith("bundle ")
    assert len(ran.datasets[DATASET]) == 2
    assert ran.waiting == 0
    assert len(ran.asked("SaveKernel")) == 3


def test_submit_hands_the_pushed_version_in(
    ran: FakeKaggle, call: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    call("push")
    assert call("submit") == 0
    [submitted] = ran.asked("CreateCodeSubmission")
    assert submitted["competitionName"] == COMPETITION
    assert (submitted["kernelOwner"], submitted["kernelSlug"]) == (USER, "arc-trm-submission")
    assert (submitted["kernelVersion"], submitted["fileName"]) == (1, "submission.json")
    assert submitted["submissionDescription"].startswith("bundle ")
    assert "Successfully submitted" in capsys.readouterr().out


DOUBTS = {
    "machine": ({"device": "cpu", "processes": 1}, "0 GPUs worked of the 4 of NvidiaL4"),
    "processes": ({"processes": 1}, "1 GPUs worked of the 4 of NvidiaL4"),
    "votes": ({"outputs_without_candidates": 3}, "outputs without votes: 3"),
    "trouble": ({"troubles": ["adaptation: it broke"]}, "trouble: adaptation: it broke"),
}


@pytest.mark.parametrize("case", DOUBTS)
def test_what_the_public_run_did_not_prove_is_not_handed_in(
    ran: FakeKaggle, call: Callable[..., int], case: str
) -> None:
    changes, doubt = DOUBTS[case]
    ran.output["submission.summary.json"] = json.dumps(PROVED | changes).encode()
    call("push")
    with pytest.raises(InputError, match=rf"output: {doubt}; expected a run without such doubts \(or --anyway\)$"):
        call("submit")
    assert not ran.asked("CreateCodeSubmission")
    assert call("submit", "--anyway") == 0
    assert len(ran.asked("CreateCodeSubmission")) == 1


def test_what_the_rerun_does_beyond_the_public_run_is_said(
    ran: FakeKaggle, call: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    ran.output["submission.summary.json"] = json.dumps({**PROVED, "rerun": ["time: 11h45m; here 20m00s"]}).encode()
    call("push")
    assert "the rerun differs: time: 11h45m; here 20m00s" in capsys.readouterr().out.splitlines()


def test_output_can_be_fetched_later(ran: FakeKaggle, call: Callable[..., int], tmp_path: Path) -> None:
    call("push", "--no-wait")
    assert not (tmp_path / "out" / "output").exists()
    assert call("output") == 0
    assert (tmp_path / "out" / "output" / "submission.json").is_file()


def test_what_was_fetched_stays_until_all_is_fetched_again(
    ran: FakeKaggle, call: Callable[..., int], tmp_path: Path
) -> None:
    call("push")
    ran.output["bundle.json"] = b"{}"
    ran.always["ListKernelSessionOutput"] = Failure(500)
    with pytest.raises(InputError, match=r"output of .*: status 500, "):
        call("output")
    assert call("submit") == 0
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")] == []


def test_owner_names_and_machine_can_be_chosen(ran: FakeKaggle, call: Callable[..., int]) -> None:
    assert call("push", "--owner", "team", "--dataset", "other-name", "--machine", "NvidiaTeslaT4", "--no-wait") == 0
    assert "team/other-name" in ran.datasets
    assert ran.asked("SaveKernel")[0]["machineShape"] == "NvidiaTeslaT4"


def test_another_machine_needs_its_number_of_gpus(ran: FakeKaggle, call: Callable[..., int]) -> None:
    with pytest.raises(InputError, match=r"^--machine NvidiaB300: unknown here, expected --gpus N too, or NvidiaL4, "):
        call("push", "--machine", "NvidiaB300")
    assert not ran.datasets
    assert (
        call("push", "--machine", "NvidiaB300", "--gpus", "2", "--docker-image", "gcr.io/kaggle/python@sha256:1") == 0
    )
    [asked] = ran.asked("SaveKernel")
    assert (asked["machineShape"], asked["dockerImage"]) == ("NvidiaB300", "gcr.io/kaggle/python@sha256:1")
    with pytest.raises(InputError, match=r"output: 4 GPUs worked of the 2 of NvidiaB300; expected"):
        call("submit")


def test_slow_processing_is_waited_for_but_not_for_ever(
    ran: FakeKaggle, call: Callable[..., int], clock: Clock
) -> None:
    ran.processing = 40
    call("push", "--no-wait")
    assert clock.slept == [15.0] * 40
    ran.datasets.clear()
    ran.processing = 10**6
    with pytest.raises(InputError, match=rf"^dataset {DATASET}, this bundle: still not there after 60 minutes$"):
        call("push")


def test_the_notebook_is_waited_for_as_long_as_it_takes(
    ran: FakeKaggle, call: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    ran.kernel_states = [*["QUEUED"] * (3 * 240), "RUNNING", "COMPLETE"]
    assert call("push") == 0
    waiting = [line for line in capsys.readouterr().out.splitlines() if "its end: waiting for " in line]
    assert len(waiting) == 3 * 6
    assert waiting[0] == f"kernel {KERNEL}, its end: waiting for 10m00s"


def test_an_interrupted_wait_can_be_taken_up_again(
    ran: FakeKaggle, call: Callable[..., int], tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(clock, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            call("push")
    last = capsys.readouterr().out.splitlines()[-1]
    assert (
        last
        == f"note: the notebook goes on; python -m submission.kaggle output --out {tmp_path / 'out'} waits and fetches"
    )
    assert call("output") == 0
    assert (tmp_path / "out" / "output" / "submission.json").is_file()


# Competition and quota --------------------------------------------------------------------------------------


def test_push_says_deadline_and_quota_before_it_uploads(
    ran: FakeKaggle, call: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    ran.competitions[f"{COMPETITION}-more"] = {"deadline": "2001-01-01T00:00:00Z"}
    assert call("push", "--no-wait") == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"competition {COMPETITION}: deadline 2099-11-02 23:59 UTC",
        "GPU quota: 21.5 of 30.0 hours left, renewed 2026-11-28 00:00 UTC",
    ]
    methods = [method for method, _ in ran.requests]
    assert methods.index("GetAcceleratorQuotaStatistics") < methods.index("GetDatasetStatus")


@pytest.mark.parametrize("facts", [{"deadline": "2026-11-02T23:59:00Z"}, {"submissionsDisabled": True}])
def test_a_closed_competition_is_refused_before_the_upload(
    ran: FakeKaggle, call: Callable[..., int], facts: dict[str, object]
) -> None:
    ran.competitions[COMPETITION] = facts
    with pytest.raises(
        InputError, match=rf"^competition {COMPETITION}: closed, .*deadline.*; expected an open one, or --"
    ):
        call("push")
    assert not ran.datasets
    assert not ran.kernels
    assert call("push", "--anyway") == 0
    with pytest.raises(InputError, match="closed, "):
        call("submit")
    assert call("submit", "--anyway") == 0


def test_a_competition_that_kaggle_does_not_list_is_refused(ran: FakeKaggle, call: Callable[..., int]) -> None:
    ran.competitions = {f"{COMPETITION}-more": {}}
    with pytest.raises(InputError, match=rf"^competition {COMPETITION}: Kaggle lists none of that name, expected"):
        call("push")
    assert not ran.datasets


def test_the_competition_is_asked_for_unless_the_bundle_names_one(
    ran: FakeKaggle, bundle: Bundle, tmp_path: Path
) -> None:
    folders = ["--bundle", str(bundle.folder), "--out", str(tmp_path / "out"), "--no-wait"]
    with pytest.raises(InputError, match=r"^--competition: not given, and the bundle names none, expected"):
        kaggle.main(["push", *folders])
    files = {path.name: path.read_bytes() for path in bundle.files if path.name != "manifest.json"}
    save_arrays(bundle.folder, {**bundle.manifest, "competition": COMPETITION}, {}, files)
    assert kaggle.main(["push", *folders]) == 0
    assert ran.asked("SaveKernel")[0]["competitionDataSources"] == [COMPETITION]


# Failures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_failure_that_may_pass_does_not_end_the_waiting(
    ran: FakeKaggle, call: Callable[..., int], clock: Clock, status: int
) -> None:
    call("push", "--no-wait")
    ran.failures["GetKernelSessionStatus"] = [Failure(status), Failure(status)]
    ran.kernel_states = ["COMPLETE"]
    assert call("output") == 0
    assert clock.slept == [15, 15]


def test_waiting_for_a_site_that_never_comes_back_has_an_end(ran: FakeKaggle, call: Callable[..., int]) -> None:
    call("push", "--no-wait")
    ran.always["GetKernelSessionStatus"] = Failure(503)
    with pytest.raises(InputError, match=r"still not there after 60 minutes \(kernel .*: status 503, .+\)$"):
        call("output")


def test_a_push_is_not_repeated_when_nobody_knows_what_it_did(ran: FakeKaggle, call: Callable[..., int]) -> None:
    ran.failures["SaveKernel"] = [Failure(503)]
    with pytest.raises(InputError, match=rf"^kernel {KERNEL}: status 503, .+$"):
        call("push")
    assert len(ran.asked("SaveKernel")) == 1


@pytest.mark.parametrize(
    ("method", "status", "what"),
    [
        ("GetDatasetStatus", 401, f"dataset {DATASET}"),
        ("GetDatasetStatus", 429, f"dataset {DATASET}"),
        ("GetDatasetStatus", 500, f"dataset {DATASET}"),
        ("CreateDataset", 403, f"uploading to {DATASET}"),
        ("StartBlobUpload", 401, f"uploading to {DATASET}"),
        ("SaveKernel", 404, f"kernel {KERNEL}"),
        ("GetKernelSessionStatus", 401, f"kernel {KERNEL}"),
        ("ListKernelSessionOutput", 502, f"output of {KERNEL}"),
    ],
)
def test_a_lasting_failure_is_one_line(
    ran: FakeKaggle, call: Callable[..., int], method: str, status: int, what: str
) -> None:
    ran.always[method] = Failure(status)
    with pytest.raises(InputError, match=rf"^{what}: status {status}, .+$") as caught:
        call("push")
    assert "\n" not in str(caught.value)


def test_what_kaggle_says_itself_is_told(ran: FakeKaggle, call: Callable[..., int]) -> None:
    ran.always["SaveKernel"] = Failure(403, text='{"code": 403, "message": "accept the rules"}')
    with pytest.raises(InputError, match=rf"^kernel {KERNEL}: status 403, accept the rules$"):
        call("push")


@pytest.mark.parametrize("status", [403, 404])
def test_a_dataset_that_cannot_be_seen_is_made(ran: FakeKaggle, call: Callable[..., int], status: int) -> None:
    # Once for us, and once for the client, which looks itself before it makes a dataset.
    ran.failures["GetDatasetStatus"] = [Failure(status), Failure(status)]
    assert call("push", "--no-wait") == 0
    assert len(ran.asked("CreateDataset")) == 1


def test_an_answer_that_is_no_json_is_one_line(ran: FakeKaggle, call: Callable[..., int]) -> None:
    ran.always["SaveKernel"] = Failure(200, text="<html>come back later</html>")
    with pytest.raises(InputError, match=rf"^kernel {KERNEL}: Expecting value: line 1 column 1 \(char 0\)$"):
        call("push")


def test_a_refused_connection_is_one_line(
    site: FakeKaggle, call: Callable[..., int], bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = importlib.import_module("kagglesdk.kaggle_env")
    client = sign_in()
    monkeypatch.setitem(environment._env_to_endpoint, environment.KaggleEnv.LOCAL, "http://127.0.0.1:9")
    with pytest.raises(InputError, match=rf"^dataset {DATASET}: .*Connection refused.*$") as caught:
        dataset_state(client, DATASET)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "source"),
    [
        ("invalidDatasetSources", DATASET),
        ("invalidCompetitionSources", "arc-prize-2026-arc-agi-2"),
        ("invalidModelSources", "x/y"),
    ],
)
def test_a_dropped_source_is_a_failure(
    ran: FakeKaggle, call: Callable[..., int], tmp_path: Path, answer: str, source: str
) -> None:
    ran.dropped = {answer: [source]}
    void = rf"^kernel {KERNEL}: Kaggle dropped the source {source}, version 1 is void, stop it at https://.*/{KERNEL}$"
    with pytest.raises(InputError, match=void):
        call("push")
    for command in ("output", "submit"):
        with pytest.raises(InputError, match=r"push.json: version 0 of the notebook is void, expected 1 or more"):
            call(command)


def test_a_push_without_a_version_is_refused(ran: FakeKaggle, call: Callable[..., int]) -> None:
    ran.first_version = 0
    with pytest.raises(InputError, match=rf"^kernel {KERNEL}: version 0 of the notebook is void, expected 1 or more"):
        call("push")


def test_an_error_in_the_answer_is_a_failure(ran: FakeKaggle, call: Callable[..., int]) -> None:
    ran.dropped = {"error": "Maximum batch GPU session count of 2 reached."}  # type: ignore[dict-item]
    with pytest.raises(InputError, match=rf"^kernel {KERNEL}: Maximum batch GPU session count of 2 reached.$"):
        call("push")


def test_a_file_that_the_client_silently_skips_is_a_failure(ran: FakeKaggle, call: Callable[..., int]) -> None:
    ran.always["PUT export.json"] = Failure(400)
    with pytest.raises(InputError, match=rf"^dataset {DATASET}: lacks export.json, the upload dropped it; push again$"):
        call("push")
    assert not ran.asked("SaveKernel")


def test_a_dataset_that_fails_is_a_failure(ran: FakeKaggle, call: Callable[..., int]) -> None:
    ran.dataset_end = "FAILED"
    with pytest.raises(InputError, match=rf"^dataset {DATASET}: failed while Kaggle processed it, expected ready$"):
        call("push")


def test_a_kernel_that_fails_says_where_its_log_is(ran: FakeKaggle, call: Callable[..., int], tmp_path: Path) -> None:
    ran.kernel_states, ran.failure_message = ["RUNNING", "ERROR"], "out of time"
    with pytest.raises(InputError, match=rf"^kernel {KERNEL}: error \(out of time\), log in .*arc-trm-submission.log$"):
        call("push")
    assert "line 29" in (tmp_path / "out" / "output" / "arc-trm-submission.log").read_text()


def test_the_output_of_another_bundle_is_refused(ran: FakeKaggle, call: Callable[..., int]) -> None:
    ran.output["bundle.json"] = b'{"bundle": "0123456789abcdef"}'
    with pytest.raises(InputError, match="made by bundle 0123456789ab, expected"):
        call("push")
    with pytest.raises(InputError, match="made by bundle 0123456789ab, expected"):
        call("submit")
    assert not ran.asked("CreateCodeSubmission")


def test_an_invalid_submission_is_refused(ran: FakeKaggle, call: Callable[..., int]) -> None:
    ran.output["submission.json"] = b'{"a": [{"attempt_1": [[0]]}]}'
    with pytest.raises(
        InputError, match=r"task a, output 0: found fields \['attempt_1'\], expected attempt_1 and attempt_2"
    ):
        call("push")


def test_the_record_of_a_push_without_its_machine_is_read(
    ran: FakeKaggle, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("push")
    path = tmp_path / "out" / "push.json"
    record = json.loads(path.read_bytes())
    assert record.pop("machine") == MACHINE
    path.write_text(json.dumps(record))
    assert call("submit") == 0
    assert len(ran.asked("CreateCodeSubmission")) == 1
    path.write_text(json.dumps({**record, "other": 1}))
    with pytest.raises(InputError, match=r"push.json: not what a push writes \(.*other"):
        call("submit")


def test_output_and_submit_need_the_record_of_a_push(site: FakeKaggle, call: Callable[..., int]) -> None:
    for command in ("output", "submit"):
        with pytest.raises(InputError, match=r"push.json: cannot read \(No such file or directory\)"):
            call(command)


# Credentials ------------------------------------------------------------------------------------------------


def test_without_credentials_there_is_one_line(
    site: FakeKaggle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KAGGLE_API_TOKEN")
    with pytest.raises(InputError) as caught:
        sign_in()
    assert str(caught.value) == NO_CREDENTIALS
    assert capsys.readouterr().out == ""


def test_a_token_that_expired_is_no_credential(site: FakeKaggle) -> None:
    site.bad_token = True
    with pytest.raises(InputError, match=r"^no Kaggle credentials that work"):
        sign_in()


@pytest.mark.parametrize("status", [401, 503])
def test_a_failure_to_sign_in_is_one_line(site: FakeKaggle, status: int) -> None:
    site.always["IntrospectToken"] = Failure(status)
    with pytest.raises(InputError, match=rf"^signing in: status {status}, .+$"):
        kaggle.main(["output"])


def test_the_program_without_credentials_ends_with_one_line(home: Path) -> None:
    """The real program in a process of its own, whose client prints help and exits while it is imported."""
    ran = run_module("submission.kaggle", "output")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"error: {NO_CREDENTIALS}\n"
