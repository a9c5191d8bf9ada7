"""The build backend of this package (PEP 517, PEP 660), as there is nothing to compile: it packs
the Python files and writes their metadata. Formats: the Python packaging guide's "Binary
distribution format", "Source distribution format" and "Core metadata specifications".
"""

import base64
import hashlib
import io
import re
import tarfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TAG = "py3-none-any"


def _project():
    """The one-line texts of pyproject.toml's [project] table."""
    text = (HERE / "pyproject.toml").read_text(encoding="utf-8")
    table = text.split("[project]", 1)[1].split("\n[", 1)[0]
    return dict(re.findall(r'^([a-z-]+) = "(.*)"$', table, re.MULTILINE))


PROJECT = _project()
NAME = f"{PROJECT['name']}-{PROJECT['version']}"


def _metadata():
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {PROJECT['name']}",
        f"Version: {PROJECT['version']}",
        f"Summary: {PROJECT['description']}",
        "License: Apache-2.0",
        f"Requires-Python: {PROJECT['requires-python']}",
        "Description-Content-Type: text/markdown",
        "",
        (HERE / PROJECT["readme"]).read_text(encoding="utf-8"),
    ]
    return "\n".join(lines).encode()


def _info():
    wheel = f"Wheel-Version: 1.0\nGenerator: llmclient\nRoot-Is-Purelib: true\nTag: {TAG}\n"
    return {f"{NAME}.dist-info/METADATA": _metadata(), f"{NAME}.dist-info/WHEEL": wheel.encode()}


def _package():
    files = sorted((HERE / "llmclient").glob("*.py")) + [HERE / "llmclient" / "py.typed"]
    return {f"llmclient/{path.name}": path.read_bytes() for path in files}


def _write_wheel(directory, files):
    record = f"{NAME}.dist-info/RECORD"
    rows = []
    path = Path(directory) / f"{NAME}-{TAG}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}")
            _put(wheel, name, data)
        rows.append(f"{record},,")
        _put(wheel, record, ("\n".join(rows) + "\n").encode())
    return path.name


def _put(wheel, name, data):
    """With the same time and mode for everybody: the same sources give the same wheel."""
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.external_attr = 0o100644 << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(entry, data)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _write_wheel(wheel_directory, {**_package(), **_info()})


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _write_wheel(wheel_directory, {"llmclient.pth": f"{HERE}\n".encode(), **_info()})


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    for name, data in _info().items():
        path = Path(metadata_directory) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return f"{NAME}.dist-info"


def build_sdist(sdist_directory, config_settings=None):
    files = {"PKG-INFO": _metadata(), **_package()}
    for name in ("pyproject.toml", "build_wheel.py", "README.md"):
        files[name] = (HERE / name).read_bytes()
    path = Path(sdist_directory) / f"{NAME}.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"{NAME}/{name}")
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return path.name
