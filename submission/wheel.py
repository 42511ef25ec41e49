"""The project as a wheel: a zip file of its packages, the same bytes for the same sources.

Written directly from the packages, wherever they are (a checkout or site-packages), so that neither a build tool nor
the network is needed and nothing is left behind.
"""

import base64
import hashlib
import importlib.metadata
import io
import re
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from arc_trm import __version__
from data_prep.files import InputError
from submission.runtime import PACKAGES

NAME = "arc-trm"
# What a zip file says about the time of its entries when that shall not depend on the clock.
EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Project:
    """Where the project's packages are, and what it says about itself."""

    root: Path  # the folder that holds the packages
    requirements: dict[str, str]  # version range of each package it needs, such as ">=2.10,<3"
    licence: str  # the text


def find_project() -> Project:
    """The project that is running: a checkout, or an installation; raises InputError when its facts are missing."""
    root = Path(__file__).resolve().parents[1]
    if (root / "pyproject.toml").is_file():
        described = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        lines, licence = described["dependencies"], (root / "LICENSE").read_text(encoding="utf-8")
    else:
        try:
            installed = importlib.metadata.distribution(NAME)
        except importlib.metadata.PackageNotFoundError as error:
            raise InputError(f"{root}: found neither pyproject.toml nor an installed {NAME}") from error
        lines = [line for line in installed.requires or [] if ";" not in line]
        licence = installed.read_text("licenses/LICENSE") or ""
    return Project(root, dict(map(_requirement, lines)), licence)


def _requirement(line: str) -> tuple[str, str]:
    name, bounds = re.fullmatch(r"\s*([\w.-]+)\s*(.*?)\s*", line.split(";")[0]).groups()  # type: ignore[union-attr]
    return name, bounds


def wheel_name() -> str:
    """The file name that tells pip: pure Python, any platform."""
    return f"{NAME.replace('-', '_')}-{__version__}-py3-none-any.whl"


def build_wheel(project: Project) -> bytes:
    """The bytes of the wheel."""
    information = f"{NAME.replace('-', '_')}-{__version__}.dist-info"
    files = dict(package_files(project.root)) | {
        f"{information}/METADATA": _metadata(project).encode(),
        f"{information}/WHEEL": b"Wheel-Version: 1.0\nGenerator: arc-trm\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{information}/licenses/LICENSE": project.licence.encode(),
    }
    record = [f"{name},sha256={_record_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{information}/RECORD"] = "\n".join([*record, f"{information}/RECORD,,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return buffer.getvalue()


def package_files(root: Path) -> Iterator[tuple[str, bytes]]:
    """(name in the wheel, content) of every file of the packages, sorted; no caches, nothing hidden."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*")):
            name = path.relative_to(root)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in name.parts)
            if path.is_file() and not hidden:
                yield name.as_posix(), path.read_bytes()


def _metadata(project: Project) -> str:
    needs = [f"Requires-Dist: {name}{bounds}" for name, bounds in sorted(project.requirements.items())]
    lines = ["Metadata-Version: 2.1", f"Name: {NAME}", f"Version: {__version__}", "License: MIT"]
    return "\n".join([*lines, "Requires-Python: >=3.11", *needs, ""])


def _record_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
