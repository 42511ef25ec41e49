"""Pack everything that a notebook without internet needs into one folder, to upload as a Kaggle dataset.

    python -m submission.package --checkpoint runs/arc1 --out bundle [--options "--votes 64"]

The folder, a bundle, is flat: this project as a wheel, the exported checkpoints, the notebook, licences, and
manifest.json with the SHA-256 of every file. `--checkpoint` may be given several times. Packing needs a checkout of
the project; reading a bundle does not.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arc_trm import __version__
from data_prep.files import MANIFEST, InputError, file_digest, read_json, save_arrays, standing_json, verify_digests
from data_prep.program import command_line, run_program
from submission.settings import read_launch_arguments, read_solve_arguments

FORMAT, VERSION = "arc-trm-bundle", 1
NOTEBOOK = "kaggle_submission.ipynb"
ROOT = Path(__file__).resolve().parents[1]
# The sources of the wheel.
PACKAGES = ("arc_trm", "data_prep", "submission")
DESCRIPTION = ("pyproject.toml", "README.md", "LICENSE")
# The time of every file in the wheel in seconds since 1970: 1980, the earliest that a zip file can hold.
EPOCH = "315532800"
LICENCES = """The program: MIT, below. The tasks that the checkpoint was trained on are not part of this folder;
ARC-AGI-1, ARC-AGI-2 and the 2025 competition's are under Apache-2.0, ConceptARC under MIT, others under their own:
"""


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def digest(self) -> str:
        """The SHA-256 of the manifest, which holds those of all other files."""
        return file_digest(self.folder / MANIFEST)

    @property
    def files(self) -> list[Path]:
        """All files, the manifest included."""
        return [self.folder / name for name in sorted([*self.manifest["digests"], MANIFEST])]


def read_bundle(folder: Path) -> Bundle:
    """Read the bundle in `folder`; raises InputError if there is none, or if a file differs from its digest."""
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or (manifest.get("format"), manifest.get("version")) != (FORMAT, VERSION):
        expected = f"expected {FORMAT} {VERSION} as submission.package writes it"
        raise InputError(f"{folder / MANIFEST}: not the manifest of a bundle, {expected}")
    verify_digests(folder, manifest)
    return Bundle(folder, manifest)


def write_bundle(
    checkpoints: Sequence[Path],
    folder: Path,
    options: Sequence[str] = (),
    competition: str | None = None,
    anyway: bool = False,
) -> Bundle:
    """Write a bundle atomically; raises InputError if a part is missing, or as `read_exports` does.

    Unless `anyway`, also if the options ask for more supervision steps than a checkpoint was trained with.

    The exports become export.json, export2.json, …; `options` are words that `submission.launch` passes to
    submission.solve; `competition` is the name of the one that the bundle is for.
    """
    # Here, because it imports torch, which reading a bundle does not need.
    from submission.session import read_exports

    exports, files = read_exports(checkpoints), dict[str, bytes]()
    asked = read_solve_arguments(read_launch_arguments(options)[1]).supervision_steps
    for checkpoint, export in zip(checkpoints, exports, strict=True):
        if asked > (trained := export.halting.max_supervision_steps) and not anyway:
            found = f"--options: {asked} supervision steps, {checkpoint} was trained with {trained}"
            raise InputError(f"{found} and answers worse with more, expected at most {trained} (or --anyway)")
    for number, checkpoint in enumerate(checkpoints, start=1):
        source, stem = standing_json(checkpoint, "export"), f"export{number if number > 1 else ''}"
        assert source is not None
        files |= {f"{stem}{kind}": source.with_suffix(kind).read_bytes() for kind in (".json", ".safetensors")}
    with tempfile.TemporaryDirectory(prefix="arc-trm-bundle.") as name:
        wheel = build_wheel(ROOT, Path(name))
        files |= {path.name: path.read_bytes() for path in (wheel, ROOT / "notebooks" / NOTEBOOK)}
    corpora = [corpus for export in exports for corpus in export.facts.get("corpora") or []]
    lines = dict.fromkeys(f"  {corpus['name']} {corpus['version']}" for corpus in corpora)
    files["LICENCES.txt"] = "\n".join([LICENCES, *lines, "", (ROOT / "LICENSE").read_text()]).encode()
    manifest = {"format": FORMAT, "version": VERSION, "package": __version__, "wheel": wheel.name}
    manifest |= {"options": list(options), "checkpoints": [export.facts["sha256"] for export in exports]}
    manifest |= {"competition": competition} if competition else {}
    save_arrays(folder, manifest, {}, files)
    return read_bundle(folder)


def build_wheel(root: Path, scratch: Path) -> Path:
    """Build the project at `root` as a wheel in the folder `scratch`; the same sources give the same bytes.

    Needs no network. Raises InputError if `root` is no checkout, or if pip fails.
    """
    if not (root / "pyproject.toml").is_file():
        raise InputError(f"{root}: no pyproject.toml, expected a checkout of the project")
    # From a copy, because setuptools leaves folders beside the sources, and packs what it finds in them.
    copy = scratch / "source"
    for package in PACKAGES:
        shutil.copytree(root / package, copy / package, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for file in DESCRIPTION:
        shutil.copy(root / file, copy)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-build-isolation"]
    words = [*pip, "--no-index", "--no-deps", "--wheel-dir", str(scratch), str(copy)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    run = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise InputError(f"{root}: no wheel ({(run.stderr.splitlines() or ['pip failed'])[-1].strip()})")
    [wheel] = scratch.glob("*.whl")
    return wheel


def options_of_solving(text: str) -> list[str]:
    """Split `text` into words, for argparse; exits with status 2 if the notebook would refuse them."""
    words = shlex.split(text)
    read_launch_arguments(words)
    return words


def main(argv: Sequence[str] | None = None) -> int:
    """Write a bundle and return the exit status."""
    parser = command_line("submission.package", __doc__)
    add, several = parser.add_argument, "a run folder or an export; may be given several times"
    add("--checkpoint", metavar="DIR", type=Path, required=True, action="append", help=several)
    add("--out", metavar="DIR", type=Path, default=Path("bundle"), help="the folder to write (bundle)")
    add("--options", metavar="WORDS", type=options_of_solving, default=[], help="for submission.solve in the notebook")
    add("--competition", metavar="SLUG", help="the one that the bundle is for, its name in the address of its page")
    add("--anyway", action="store_true", help="even with more supervision steps than in training")
    arguments = parser.parse_args(argv)
    words = arguments.options, arguments.competition, arguments.anyway
    bundle = write_bundle(arguments.checkpoint, arguments.out, *words)
    size = sum(path.stat().st_size for path in bundle.files) / 1e6
    print(f"wrote {bundle.folder}: {len(bundle.files)} files, {size:.1f} MB, digest {bundle.digest[:12]}")
    return 0


if __name__ == "__main__":
    run_program(main)
