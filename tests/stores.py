"""Places where the same images may be stored: tar and parquet shards, a web server that drops
connections, object stores."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from shoal.data.collection import Collection


def image_names(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.png"))


def labels_by_name(collection: Collection) -> dict[str, str | None]:
    pairs = zip(collection.names, collection.labels, strict=True)
    return {name: None if label < 0 else collection.classes[label] for name, label in pairs}


def add_member(shard: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    shard.addfile(member, io.BytesIO(data))


def write_tars(folder: Path, labels: Mapping[str, str], out: Path, n_shards: int = 2) -> str:
    """Write the images as WebDataset shards; return the pattern of their names."""
    out.mkdir(parents=True, exist_ok=True)
    for i in range(n_shards):
        with tarfile.open(out / f"photos-{i:03d}.tar", "w") as shard:
            for name in image_names(folder)[i::n_shards]:
                add_member(shard, name, (folder / name).read_bytes())
                if name in labels:
                    add_member(shard, f"{name.removesuffix('.png')}.cls", labels[name].encode())
    return f"{out}/photos-{{000..{n_shards - 1:03d}}}.tar"


def write_parquets(folder: Path, labels: Mapping[str, str], out: Path, n_shards: int = 2) -> Path:
    """Write the images as Hugging Face does: bytes and path, and integer labels whose names are in
    the schema."""
    import pyarrow
    import pyarrow.parquet

    out.mkdir(parents=True, exist_ok=True)
    classes = sorted(set(labels.values()))
    features = {"image": {"_type": "Image"}, "label": {"names": classes, "_type": "ClassLabel"}}
    about = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    for i in range(n_shards):
        rows = [
            {
                "image": {"bytes": (folder / name).read_bytes(), "path": name},
                "label": classes.index(labels[name]) if name in labels else -1,
            }
            for name in image_names(folder)[i::n_shards]
        ]
        table = pyarrow.Table.from_pylist(rows).replace_schema_metadata(about)
        pyarrow.parquet.write_table(
            table, out / f"train-{i:05d}-of-{n_shards:05d}.parquet", row_group_size=8
        )
    return out


@dataclass
class Web:
    """A web server and its request counts; it may close connections without a response."""

    address: str = ""
    # How many requests for each path are dropped before one is answered
    n_drops: int = 0
    # Suffixes of paths whose requests are always dropped
    always: Sequence[str] = ()
    asked: Counter[str] = field(default_factory=Counter)

    def drops(self, path: str) -> bool:
        self.asked[path] += 1
        return self.asked[path] <= self.n_drops or path.partition("?")[0].endswith(
            tuple(self.always) or ("\0",)
        )


def send_file(handler: BaseHTTPRequestHandler, file: Path, *, has_ranges: bool = True) -> None:
    """Send a whole file or the requested range."""
    if not file.is_file():
        handler.send_error(404)
        return
    asked = handler.headers.get("Range", "") if has_ranges else ""
    n_bytes = file.stat().st_size
    start, _, end = asked.removeprefix("bytes=").partition("-")
    with file.open("rb") as whole:
        whole.seek(int(start or 0))
        body = whole.read(int(end) + 1 - int(start) if asked else n_bytes)
    handler.send_response(206 if asked else 200)
    handler.send_header("Content-Length", str(len(body)))
    handler.send_header("ETag", f'"{n_bytes}-{file.stat().st_mtime_ns}"')
    if has_ranges:
        handler.send_header("Accept-Ranges", "bytes")
    handler.end_headers()
    if handler.command == "GET":
        handler.wfile.write(body)


@contextlib.contextmanager
def web_server(
    folder: Path | None = None, *, upstream: str = "", has_ranges: bool = True
) -> Iterator[Web]:
    """Serve the files of a folder, whole or by range, or forward requests to another server."""
    web = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if web.drops(self.path):
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            elif folder is None:
                self.hand_on()
            else:
                send_file(self, Path(f"{folder}{unquote(self.path)}"), has_ranges=has_ranges)

        do_HEAD = do_GET

        def hand_on(self) -> None:
            request = urllib.request.Request(
                upstream + self.path, headers=dict(self.headers), method=self.command
            )
            try:
                with urllib.request.urlopen(request) as found:
                    status = found.status
                    headers = found.headers
                    body = found.read()
            except urllib.error.HTTPError as error:
                status = error.code
                headers = error.headers
                body = error.read()
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("connection", "transfer-encoding", "date", "server"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    ).start()
    web.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def server_process(*words: str, ready: str) -> Iterator[str]:
    """Start a server in a separate process with a free port in place of PORT; yield its address
    once it responds at `ready`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, *(port if word == "PORT" else word for word in words)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ)
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{address}{ready}", timeout=5),
            ):
                break
            if process.poll() is not None:
                pytest.skip(
                    f"{words[1]}: the server could not start (exit code {process.returncode})"
                )
            time.sleep(0.1)
        yield address
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def object_store() -> Iterator[str]:
    """Start the S3 server of moto; yield its address."""
    pytest.importorskip("moto.server", reason="no moto; pip install 'moto[s3]' flask flask-cors")
    with server_process(
        "-m", "moto.server", "-H", "127.0.0.1", "-p", "PORT", ready="/moto-api/"
    ) as address:
        yield address


@contextlib.contextmanager
def google_store(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Copy a folder to a bucket of a Google Cloud Storage emulator; yield its address and the
    environment that clients need."""
    pytest.importorskip("gcsfs", reason="no gcsfs; pip install gcsfs")
    pytest.importorskip(
        "gcp_storage_emulator", reason="no emulator; pip install gcp-storage-emulator"
    )
    words = ["-m", "gcp_storage_emulator", "start", "--in-memory"]
    words += ["--host", "127.0.0.1", "--port", "PORT"]
    with server_process(
        *words, "--default-bucket", "bucket", ready="/storage/v1/b?project=test"
    ) as address:
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            name = quote(f"{folder.name}/{file.relative_to(folder).as_posix()}", safe="")
            where = f"{address}/upload/storage/v1/b/bucket/o?uploadType=media&name={name}"
            with urllib.request.urlopen(
                urllib.request.Request(where, file.read_bytes(), method="POST")
            ):
                pass
        # The emulator supports the HTTP API only; without this, gcsfs asks for the type of the
        # bucket over gRPC.
        alone = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
        yield (
            f"gs://bucket/{folder.name}",
            {"STORAGE_EMULATOR_HOST": address, "FSSPEC_GS_TOKEN": "anon", **alone},
        )


@contextlib.contextmanager
def hub_store(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The same for a dataset repository of a stand-in for the Hugging Face Hub."""
    pytest.importorskip("huggingface_hub", reason="no huggingface_hub; pip install huggingface_hub")
    hub = str(Path(__file__).with_name("hub.py"))
    with server_process(
        hub, str(folder.parent), "someone/set", "PORT", ready="/api/datasets/someone/set"
    ) as address:
        yield (
            f"hf://datasets/someone/set/{folder.name}",
            {"HF_ENDPOINT": address, "HF_HUB_DISABLE_XET": "1"},
        )


def use_store(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use this store from now on, in this process and its child processes."""
    from shoal.data.storage import file_system

    file_system.cache_clear()
    for name, value in (
        ("AWS_ENDPOINT_URL", address),
        ("AWS_ACCESS_KEY_ID", "user"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("SHOAL_TRY_WAIT_S", "0.01"),
    ):
        monkeypatch.setenv(name, value)


def upload(folder: Path, bucket: str) -> str:
    """Upload a folder to a bucket of the current store; return its address."""
    from shoal.data.storage import file_system

    store = file_system("s3")
    if not store.exists(bucket):
        store.mkdir(bucket)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            store.pipe_file(
                f"{bucket}/{folder.name}/{file.relative_to(folder).as_posix()}", file.read_bytes()
            )
    return f"s3://{bucket}/{folder.name}"
