"""ConceptARC: 160 tasks from a folder that the user names, or from a pinned download checked by content."""

import sys
import tempfile
import zipfile
from pathlib import Path

from data_prep.files import InputError, file_digest, sha256_hex

NAME = "conceptarc"
COMMIT = "b22ef526b4656679816b7811e78f55cc24d736d7"
URL = f"https://github.com/victorvikram/ConceptARC/archive/{COMMIT}.zip"
# SHA-256 over the lines "sha256  corpus/Concept/Task.json" of all task files in byte order. A code host may pack
# the same commit into other archive bytes tomorrow, so the content is pinned and not the archive.
CONTENT_DIGEST = "85dd82b5e43aa75ee7ef26cd843538e4bcae297c04f00da37e327e1a8dc68209"


def content_digest(folder: Path) -> str:
    """The content digest of a corpus folder: names and bytes of all JSON files in it."""
    names = sorted(f"corpus/{file.relative_to(folder).as_posix()}" for file in folder.rglob("*.json"))
    lines = (f"{file_digest(folder.parent / folder.name / name.removeprefix('corpus/'))}  {name}\n" for name in names)
    return sha256_hex("".join(lines).encode(errors="surrogateescape"))


def corpus_folder(folder: Path | str) -> Path:
    """The folder of task folders, given it or the repository around it; raises InputError when there is none."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder, expected ConceptARC's folder 'corpus'")
    return folder / "corpus" if (folder / "corpus").is_dir() else folder


def download(cache: Path | None = None, url: str = URL) -> Path:
    """The corpus folder in the cache, fetched with a progress bar when it is not there yet.

    Raises InputError when the network, the archive or the content digest fails; the cache then stays as it was.
    """
    import pooch  # here, because only this function needs it and it takes time to import

    cache = Path(pooch.os_cache("arc-trm")) if cache is None else cache
    target = cache / f"{NAME}-{COMMIT[:8]}"
    if target.is_dir() and content_digest(target) == CONTENT_DIGEST:
        return target
    pooch.get_logger().setLevel("WARNING")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            show = sys.stderr.isatty()
            archive = pooch.retrieve(url, known_hash=None, fname="archive.zip", path=folder, progressbar=show)
            found = _unpack(Path(archive), Path(folder) / "corpus")
            if found != CONTENT_DIGEST:
                raise InputError(f"{url}: content digest {found}, expected {CONTENT_DIGEST}")
            if target.exists():
                target.rename(Path(folder) / "damaged")
            (Path(folder) / "corpus").rename(target)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"cannot download ConceptARC from {url} ({reason}); name a folder instead") from error
    return target


def _unpack(archive: Path, target: Path) -> str:
    """Unpack the task files `*/corpus/Concept/Task.json` into `target`; returns their content digest."""
    target.mkdir()
    with zipfile.ZipFile(archive) as packed:
        for name in packed.namelist():
            parts = name.split("/")
            # Only known shapes of names are written, so that no archive can reach outside the target.
            if len(parts) == 4 and parts[1] == "corpus" and ".." not in parts and parts[3].endswith(".json"):
                (target / parts[2]).mkdir(exist_ok=True)
                (target / parts[2] / parts[3]).write_bytes(packed.read(name))
    return content_digest(target)
