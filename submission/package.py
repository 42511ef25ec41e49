"""Pack all that a notebook without internet needs into one folder, to be uploaded as a Kaggle dataset.

    python -m submission.package --checkpoint runs/arc1 --out bundle

The folder is flat: this project as a wheel, the exported checkpoint, the notebook, licences, and manifest.json with the
SHA-256 of every file. Nothing is packed that would need a package which Kaggle's image lacks.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from arc_trm import __version__
from arc_trm.checkpoint import Export, read_export
from data_prep.canvas import CANVAS_SIDE, VOCAB_SIZE
from data_prep.files import InputError, read_json, run_program
from data_prep.folder import MANIFEST, save_arrays
from submission.bundle import FORMAT, NOTEBOOK, VERSION, Bundle, read_bundle
from submission.runtime import IMAGE, outside_imports, problems
from submission.wheel import Project, build_wheel, find_project, wheel_name

# Licences of the corpora that a checkpoint may have been trained on, by the first part of their names.
CORPUS_LICENCES = {"arc1": "Apache-2.0", "arc2": "Apache-2.0", "kaggle2025": "Apache-2.0", "conceptarc": "MIT"}


def write_bundle(project: Project, checkpoint: Path, notebook: Path, folder: Path) -> Bundle:
    """Write the bundle atomically; raises InputError where something is missing or cannot run on Kaggle."""
    refuse_other_folder(folder)
    lacking = problems(outside_imports(project.root), project.requirements)
    if lacking:
        raise InputError(f"this cannot run on Kaggle: {'; '.join(lacking)}")
    export = read_export(checkpoint)
    if (export.model.seq_len, export.model.vocab_size) != (CANVAS_SIDE**2, VOCAB_SIZE):
        found = f"{export.model.seq_len} tokens of {export.model.vocab_size} kinds"
        raise InputError(f"{checkpoint}: a model for {found}, expected one for ARC")
    source = checkpoint if (checkpoint / "export.json").is_file() else checkpoint / "export"
    files = {name: (source / name).read_bytes() for name in ("export.json", "export.safetensors")}
    files[wheel_name()] = build_wheel(project)
    files[NOTEBOOK] = read_notebook(notebook)
    files["LICENCES.txt"] = f"{licences(export)}\n{project.licence}".encode()
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "package": __version__,
        "wheel": wheel_name(),
        "checkpoint": {"sha256": export.facts["sha256"], "training_tasks": len(export.training_tasks)},
        "image": IMAGE,
    }
    save_arrays(folder, manifest, {}, files)
    return read_bundle(folder)


def refuse_other_folder(folder: Path) -> None:
    """Raise InputError when `folder` holds a manifest, but not that of a bundle; no dataset shall be replaced."""
    if (folder / MANIFEST).is_file():
        found = read_json(folder / MANIFEST)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise InputError(f"{folder}: holds something else, expected a new folder or an older bundle")


def read_notebook(path: Path) -> bytes:
    """The notebook's file; raises InputError when it is none."""
    notebook = read_json(path)
    if not isinstance(notebook, dict) or "cells" not in notebook:
        raise InputError(f"{path}: not a notebook, expected a file with cells")
    return path.read_bytes()


def licences(export: Export) -> str:
    """What the licences of the parts are."""
    lines = ["The program: MIT, below. The checkpoint was trained on these corpora, which are not part of this folder:"]
    for corpus in export.facts.get("corpora") or []:
        if not isinstance(corpus, dict) or not {"name", "version"} <= corpus.keys():
            raise InputError(f"the checkpoint names the corpus {corpus!r:.60}, expected its name and version")
        name = str(corpus["name"])
        lines.append(f"  {name} {corpus['version']}: {CORPUS_LICENCES.get(name.split('-')[0], 'see its source')}")
    return "\n".join([*(lines if len(lines) > 1 else [*lines, "  (it does not name any)"]), ""])


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m submission.package", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    project = find_project()
    notebook = project.root / "notebooks" / NOTEBOOK
    parser.add_argument("--checkpoint", metavar="DIR", type=Path, required=True, help="a run folder or an export")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("bundle"), help="the folder to write (bundle)")
    parser.add_argument("--notebook", metavar="FILE", type=Path, default=notebook, help="notebooks/" + NOTEBOOK)
    arguments = parser.parse_args(argv)
    bundle = write_bundle(project, arguments.checkpoint, arguments.notebook, arguments.out)
    size = sum(path.stat().st_size for path in bundle.files) / 1e6
    print(f"wrote {bundle.folder}: {len(bundle.files)} files, {size:.1f} MB, digest {bundle.digest[:12]}")
    return 0


if __name__ == "__main__":
    run_program(main)
