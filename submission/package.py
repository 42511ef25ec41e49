"""Pack all that a notebook without internet needs into one folder, to be uploaded as a Kaggle dataset.

    python -m submission.package --checkpoint runs/arc1 --out bundle

The folder, a bundle, is flat: this project as a wheel, the exported checkpoint, the notebook, licences, and
manifest.json with the SHA-256 of every file. Packing needs a checkout of the project; reading a bundle does not.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arc_trm import __version__
from data_prep.canvas import CANVAS_SIDE, VOCAB_SIZE
from data_prep.files import (
    MANIFEST,
    InputError,
    file_digest,
    read_json,
    run_program,
    save_arrays,
    verify_digests,
)

FORMAT, VERSION = "arc-trm-bundle", 1
NOTEBOOK = "kaggle_submission.ipynb"
ROOT = Path(__file__).resolve().parents[1]
# What the wheel is built from.
PACKAGES = ("arc_trm", "data_prep", "submission")
DESCRIPTION = ("pyproject.toml", "README.md", "LICENSE")
BUILD = "from setuptools import build_meta; build_meta.build_wheel('dist')"
# The time of every file in the wheel, in seconds since 1970: 1980, the first that a zip file can hold.
EPOCH = "315532800"
# Licences of the corpora that a checkpoint may have been trained on, by the first part of their names.
CORPUS_LICENCES = {"arc1": "Apache-2.0", "arc2": "Apache-2.0", "kaggle2025": "Apache-2.0", "conceptarc": "MIT"}


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
    """The bundle in `folder`; raises InputError when there is none, or a file in it is not what was written."""
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(f"{folder / MANIFEST}: not the manifest of a bundle, expected what submission.package wrote")
    if manifest.get("version") != VERSION:
        raise InputError(f"{folder / MANIFEST}: bundle version {manifest.get('version')}, expected {VERSION}")
    verify_digests(folder, manifest)
    return Bundle(folder, manifest)


def write_bundle(checkpoint: Path, notebook: Path, folder: Path) -> Bundle:
    """Write the bundle atomically; raises InputError where a part is missing or the checkpoint is not one for ARC."""
    # Here, because it takes torch, which reading a bundle does not need.
    from arc_trm.checkpoint import read_export

    export = read_export(checkpoint)
    if (export.model.seq_len, export.model.vocab_size) != (CANVAS_SIDE**2, VOCAB_SIZE):
        found = f"{export.model.seq_len} tokens of {export.model.vocab_size} kinds"
        raise InputError(f"{checkpoint}: a model for {found}, expected one for ARC")
    cells = read_json(notebook)
    if not isinstance(cells, dict) or "cells" not in cells:
        raise InputError(f"{notebook}: not a notebook, expected a file with cells")
    source = checkpoint if (checkpoint / "export.json").is_file() else checkpoint / "export"
    wheel, content = build_wheel(ROOT)
    files = {
        "export.json": (source / "export.json").read_bytes(),
        "export.safetensors": (source / "export.safetensors").read_bytes(),
        wheel: content,
        NOTEBOOK: notebook.read_bytes(),
        "LICENCES.txt": f"{licences(export.facts.get('corpora') or [])}\n{(ROOT / 'LICENSE').read_text()}".encode(),
    }
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "package": __version__,
        "wheel": wheel,
        "checkpoint": {"sha256": export.facts["sha256"], "training_tasks": len(export.training_tasks)},
    }
    save_arrays(folder, manifest, {}, files)
    return read_bundle(folder)


def build_wheel(root: Path) -> tuple[str, bytes]:
    """(file name, content) of the project at `root` as a wheel; the same sources give the same bytes.

    Works without a network. Raises InputError where `root` is no checkout, or setuptools fails.
    """
    if not (root / "pyproject.toml").is_file():
        raise InputError(f"{root}: no pyproject.toml, expected a checkout of the project")
    # On a copy, because setuptools leaves folders beside what it builds.
    with tempfile.TemporaryDirectory(prefix="arc-trm-wheel.") as name:
        copy = Path(name)
        for package in PACKAGES:
            shutil.copytree(root / package, copy / package, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        for file in DESCRIPTION:
            shutil.copy(root / file, copy)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
        run = subprocess.run([sys.executable, "-c", BUILD], cwd=copy, env=environment, capture_output=True, text=True)
        if run.returncode:
            raise InputError(f"{root}: no wheel ({(run.stderr.splitlines() or ['setuptools failed'])[-1]})")
        [wheel] = (copy / "dist").glob("*.whl")
        return wheel.name, wheel.read_bytes()


def licences(corpora: Sequence[object]) -> str:
    """What the licences of the parts are; `corpora` as an export names those that it was trained on."""
    lines = ["The program: MIT, below. The checkpoint was trained on these corpora, which are not part of this folder:"]
    for corpus in corpora:
        if not isinstance(corpus, dict) or not {"name", "version"} <= corpus.keys():
            raise InputError(f"the checkpoint names the corpus {corpus!r:.60}, expected its name and version")
        name = str(corpus["name"])
        lines.append(f"  {name} {corpus['version']}: {CORPUS_LICENCES.get(name.split('-')[0], 'see its source')}")
    return "\n".join([*(lines if corpora else [*lines, "  (it does not name any)"]), ""])


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m submission.package", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    notebook = ROOT / "notebooks" / NOTEBOOK
    parser.add_argument("--checkpoint", metavar="DIR", type=Path, required=True, help="a run folder or an export")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("bundle"), help="the folder to write (bundle)")
    parser.add_argument("--notebook", metavar="FILE", type=Path, default=notebook, help="notebooks/" + NOTEBOOK)
    arguments = parser.parse_args(argv)
    bundle = write_bundle(arguments.checkpoint, arguments.notebook, arguments.out)
    size = sum(path.stat().st_size for path in bundle.files) / 1e6
    print(f"wrote {bundle.folder}: {len(bundle.files)} files, {size:.1f} MB, digest {bundle.digest[:12]}")
    return 0


if __name__ == "__main__":
    run_program(main)
