"""A server on loopback that answers the requests of Kaggle's own client, and fails as Kaggle does."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = dict[str, Any]
USER = "alice"
COMPETITION = "arc-prize-2026-arc-agi-2"


@dataclass
class Failure:
    """An answer that a method gives instead of the right one."""

    status: int
    text: str = '{"message": "no"}'


@dataclass
class FakeKaggle:
    """What the site holds. Methods are named as in the requests, such as `SaveKernel`."""

    requests: list[tuple[str, Answer]] = field(default_factory=list)
    failures: dict[str, list[Failure]] = field(default_factory=dict)  # of a method, served first, one a request
    always: dict[str, Failure] = field(default_factory=dict)  # of a method, served every time
    blobs: dict[str, bytes] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # of the blobs
    datasets: dict[str, list[list[str]]] = field(default_factory=dict)  # ref -> versions -> file names
    processing: int = 0  # looks at the status of a dataset until a new version is there
    dataset_end: str = "READY"
    kernels: dict[str, list[Answer]] = field(default_factory=dict)  # ref -> versions as they were pushed
    kernel_states: list[str] = field(default_factory=lambda: ["QUEUED", "RUNNING", "COMPLETE"])
    failure_message: str = ""
    dropped: dict[str, list[str]] = field(default_factory=dict)  # field of the answer to a push -> sources
    output: dict[str, bytes] = field(default_factory=dict)
    log: str = ""
    page: int = 2  # files on a page of a listing
    competitions: dict[str, Answer] = field(default_factory=lambda: {COMPETITION: {"deadline": "2099-11-02T23:59:00Z"}})
    quota: Answer = field(default_factory=lambda: {"timeUsed": "30600s", "totalTimeAllowed": "108000s"})
    first_version: int = 1
    bad_token: bool = False
    url: str = ""
    waiting: int = 0

    def answer(self, method: str, body: Answer) -> Answer:
        return METHODS[method](self, body)

    def asked(self, method: str) -> list[Answer]:
        return [body for name, body in self.requests if name == method]


def introspect(site: FakeKaggle, body: Answer) -> Answer:
    return {"active": not site.bad_token, "username": USER}


def dataset_of(site: FakeKaggle, body: Answer) -> list[list[str]]:
    ref = f"{body['ownerSlug']}/{body['datasetSlug']}"
    if ref not in site.datasets:
        raise Refused(404)
    return site.datasets[ref]


def get_dataset_status(site: FakeKaggle, body: Answer) -> Answer:
    versions = dataset_of(site, body)
    if site.waiting:
        site.waiting -= 1
        # At first the site still speaks of the version before, where there is one.
        return {"status": "READY" if len(versions) > 1 and site.waiting else "BLOBS_RECEIVED"}
    return {"status": site.dataset_end}


def list_dataset_files(site: FakeKaggle, body: Answer) -> Answer:
    versions = dataset_of(site, body)
    files = versions[-2 if site.waiting and len(versions) > 1 else -1]
    shown = [{"name": name, "totalBytes": 1, "creationDate": "2026-01-02T03:04:05Z"} for name in files]
    return {"datasetFiles": shown[: int(body["pageSize"])]}


def start_blob_upload(site: FakeKaggle, body: Answer) -> Answer:
    token = f"token{len(site.names)}"
    site.names[token] = body["name"]
    return {"token": token, "createUrl": f"{site.url}/upload/{token}"}


def create_dataset(site: FakeKaggle, body: Answer) -> Answer:
    ref = f"{body['ownerSlug']}/{body['slug']}"
    site.datasets[ref] = [[site.names[file["token"]] for file in body["files"]]]
    site.waiting = site.processing
    return {"ref": ref, "status": "ok", "url": "x"}


def create_dataset_version(site: FakeKaggle, body: Answer) -> Answer:
    dataset_of(site, body).append([site.names[file["token"]] for file in body["body"]["files"]])
    site.waiting = site.processing
    return {"status": "ok"}


def save_kernel(site: FakeKaggle, body: Answer) -> Answer:
    versions = site.kernels.setdefault(body["slug"], [])
    versions.append(body)
    number = site.first_version + len(versions) - 1
    return {"ref": body["slug"], "url": "x", "versionNumber": number, **site.dropped}


def get_kernel_session_status(site: FakeKaggle, body: Answer) -> Answer:
    state = site.kernel_states.pop(0) if len(site.kernel_states) > 1 else site.kernel_states[0]
    return {"status": state, "failureMessage": site.failure_message}


def list_kernel_session_output(site: FakeKaggle, body: Answer) -> Answer:
    start = int(body.get("pageToken") or 0)
    files = [{"fileName": name, "url": f"{site.url}/files/{name}"} for name in site.output]
    following = {"nextPageToken": str(start + site.page)} if start + site.page < len(files) else {}
    return {"files": files[start : start + site.page], "log": site.log, **following}


def create_code_submission(site: FakeKaggle, body: Answer) -> Answer:
    return {"message": "Successfully submitted", "ref": 100}


def list_competitions(site: FakeKaggle, body: Answer) -> Answer:
    """Answer as the site's search does: with all whose names hold the text."""
    address = "https://www.kaggle.com/competitions"
    found = {name: facts for name, facts in site.competitions.items() if body.get("search", "") in name}
    return {"competitions": [{"ref": f"{address}/{name}", **facts} for name, facts in found.items()]}


def get_accelerator_quota_statistics(site: FakeKaggle, body: Answer) -> Answer:
    return {"quotaRefreshTime": "2026-11-28T00:00:00Z", "gpuQuota": site.quota}


METHODS: dict[str, Callable[[FakeKaggle, Answer], Answer]] = {
    "IntrospectToken": introspect,
    "GetDatasetStatus": get_dataset_status,
    "ListDatasetFiles": list_dataset_files,
    "StartBlobUpload": start_blob_upload,
    "CreateDataset": create_dataset,
    "CreateDatasetVersion": create_dataset_version,
    "SaveKernel": save_kernel,
    "GetKernelSessionStatus": get_kernel_session_status,
    "ListKernelSessionOutput": list_kernel_session_output,
    "CreateCodeSubmission": create_code_submission,
    "ListCompetitions": list_competitions,
    "GetAcceleratorQuotaStatistics": get_accelerator_quota_statistics,
}


class Refused(Exception):
    """The site answers with this status."""

    def __init__(self, status: int) -> None:
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """POST /api/v1/<service>/<method> with a signature, PUT /upload/<token>, GET /files/<name>."""

    site: FakeKaggle

    def do_POST(self) -> None:
        body = json.loads(self._body() or b"{}")
        method = self.path.rsplit("/", 1)[1]
        self.site.requests.append((method, body))
        waiting = self.site.failures.get(method)
        failure = waiting.pop(0) if waiting else self.site.always.get(method)
        if not self.path.startswith("/api/v1/") or method not in METHODS:
            failure = Failure(404)
        elif not self.headers.get("Authorization") and method != "IntrospectToken":
            failure = Failure(401)
        if failure is None:
            try:
                self._reply(200, json.dumps(self.site.answer(method, body)).encode())
                return
            except Refused as refused:
                failure = Failure(refused.status)
        self._reply(failure.status, failure.text.encode())

    def do_PUT(self) -> None:
        token, data = self.path.rsplit("/", 1)[1], self._body()
        failure = self.site.always.get(f"PUT {self.site.names[token]}")
        if failure is None:
            self.site.blobs[token] = data
        self._reply(200 if failure is None else failure.status, b"{}")

    def do_GET(self) -> None:
        name = self.path.removeprefix("/files/")
        self._reply(200 if name in self.site.output else 404, self.site.output.get(name, b"gone"))

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _reply(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def serve(site: FakeKaggle) -> ThreadingHTTPServer:
    """Serve the site on a free port of 127.0.0.1, until shut down."""
    handler = type("SiteHandler", (Handler,), {"site": site})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server
