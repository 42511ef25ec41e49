"""The download, from a server of our own: nothing here reaches the network."""

import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from data_prep.corpus import CONCEPTARC_COMMIT, CONCEPTARC_DIGEST, CONCEPTARC_URL, content_digest
from data_prep.corpus import download_conceptarc as download
from data_prep.files import InputError


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """(address, the folder that is served)."""
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}", folder
        running.shutdown()
        thread.join()


def pack(archive: Path, corpus: Path) -> None:
    with zipfile.ZipFile(archive, "w") as packed:
        for file in sorted(corpus.rglob("*.json"))[::-1]:
            packed.write(file, f"ConceptARC-x/corpus/{file.relative_to(corpus)}")
        packed.writestr("ConceptARC-x/README.md", "more than tasks")
        packed.writestr("ConceptARC-x/corpus/../../escaped.json", "{}")
        packed.writestr("ConceptARC-x/corpus/../escaped.json", "{}")


def test_the_content_digest_is_the_published_one(conceptarc_dir: Path) -> None:
    assert content_digest(conceptarc_dir) == CONCEPTARC_DIGEST


def test_a_download_is_checked_and_kept(conceptarc_dir: Path, server: tuple[str, Path], tmp_path: Path) -> None:
    address, served = server
    pack(served / "archive.zip", conceptarc_dir)
    cache = tmp_path / "cache"
    folder = download(cache, f"{address}/archive.zip")
    assert content_digest(folder) == CONCEPTARC_DIGEST
    assert [entry.name for entry in cache.iterdir()] == [folder.name]
    assert not list(tmp_path.rglob("escaped.json"))
    # The second time nothing is fetched; a damaged copy is fetched again.
    (served / "archive.zip").rename(served / "elsewhere.zip")
    assert download(cache, f"{address}/archive.zip") == folder
    next(folder.rglob("*.json")).write_text("{}")
    assert download(cache, f"{address}/elsewhere.zip") == folder
    assert content_digest(folder) == CONCEPTARC_DIGEST


def test_other_content_is_refused(server: tuple[str, Path], tmp_path: Path) -> None:
    address, served = server
    corpus = tmp_path / "other"
    (corpus / "Copy").mkdir(parents=True)
    (corpus / "Copy" / "Copy1.json").write_text("{}")
    pack(served / "archive.zip", corpus)
    with pytest.raises(InputError, match=f"expected {CONCEPTARC_DIGEST}"):
        download(tmp_path / "cache", f"{address}/archive.zip")
    (served / "archive.zip").write_bytes(b"not an archive")
    with pytest.raises(InputError, match="not a zip file"):
        download(tmp_path / "cache", f"{address}/archive.zip")
    with pytest.raises(InputError, match="404"):
        download(tmp_path / "cache", f"{address}/missing.zip")
    assert not list((tmp_path / "cache").glob("*"))


def test_being_offline_ends_in_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        download(tmp_path / "cache", "http://127.0.0.1:9/archive.zip")  # nothing listens on port 9
    assert "cannot download ConceptARC from http://127.0.0.1:9/archive.zip" in str(caught.value)
    assert "name a folder instead" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_address_is_pinned() -> None:
    assert CONCEPTARC_COMMIT in CONCEPTARC_URL
