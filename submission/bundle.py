"""What `submission.package` packs: a flat folder with all that a notebook without internet needs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.files import InputError, file_digest, read_json
from data_prep.folder import MANIFEST, verify_digests

FORMAT = "arc-trm-bundle"
VERSION = 1
NOTEBOOK = "kaggle_submission.ipynb"


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def digest(self) -> str:
        """The SHA-256 of the manifest, and so of everything."""
        return file_digest(self.folder / MANIFEST)

    @property
    def files(self) -> list[Path]:
        """All files, the manifest among them."""
        return [self.folder / name for name in sorted([*self.manifest["digests"], MANIFEST])]


def read_bundle(folder: Path) -> Bundle:
    """The bundle in `folder`; raises InputError when it is none, or a file in it is not what was written."""
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(f"{folder / MANIFEST}: not the manifest of a bundle, expected what submission.package wrote")
    if manifest.get("version") != VERSION:
        raise InputError(f"{folder / MANIFEST}: bundle version {manifest.get('version')}, expected {VERSION}")
    verify_digests(folder, manifest)
    return Bundle(folder, manifest)
