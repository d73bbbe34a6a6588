"""An image without a registry: a tar archive in the OCI image layout that engines import."""

import gzip
import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import Any

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LINKS = ("sh", "sleep", "cat", "ls", "true", "id")


def make(
    archive: Path, name: str, busybox: Path, opens: Path, *, annotations: "dict[str, str] | None" = None
) -> None:
    """Write *archive*: an image *name* of a static busybox and the prober; *annotations* are the image's own."""
    layer = _layer(busybox, opens)
    blobs: dict[str, bytes] = {}

    def blob(data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"digest": f"sha256:{digest}", "size": len(data)}

    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sleep", "3600"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            **blob(json.dumps(config).encode()),
        },
        "layers": [
            {
                "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
                **blob(gzip.compress(layer, mtime=0)),
            }
        ],
    }
    if annotations:
        manifest["annotations"] = annotations
    entry = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        **blob(json.dumps(manifest).encode()),
        "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name},
    }
    with tarfile.open(archive, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}', 0o644)
        _add(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode(), 0o644)
        for digest, data in blobs.items():
            _add(tar, f"blobs/sha256/{digest}", data, 0o644)


def root_file_system(archive: Path, busybox: Path, opens: Path) -> None:
    """Write *archive*: the bare file system, for `docker import` and `podman import`."""
    archive.write_bytes(_layer(busybox, opens))


def _layer(busybox: Path, opens: Path) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for directory in ("bin", "dev", "etc", "proc", "run", "sys", "tmp"):
            info = tarfile.TarInfo(directory)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        _add(tar, "bin/busybox", busybox.read_bytes())
        _add(tar, "opens", opens.read_bytes())
        for name in LINKS:
            info = tarfile.TarInfo(f"bin/{name}")
            info.type, info.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(info)
    return raw.getvalue()


def _add(tar: tarfile.TarFile, path: str, data: bytes, mode: int = 0o755) -> None:
    info = tarfile.TarInfo(path)
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))
