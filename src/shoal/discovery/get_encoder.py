"""Download an encoder's weights because somebody asked for them: `shoal encoders get`."""

from dataclasses import dataclass

from shoal.discovery.reporter import Reporter
from shoal.encoders.catalog import get_info, how_to_get, is_available, load_encoder
from shoal.encoders.hub import download, download_size, is_told_offline, remove_download
from shoal.encoders.weights import weights_folder
from shoal.errors import MissingError
from shoal.runs import locked_file

MB = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Downloaded:
    """An encoder that is available now."""

    encoder: str
    path: str | None
    """Its folder; None where it was available before."""
    n_bytes: int = 0
    sha256: str | None = None
    """Of the weights."""


def get_encoder(name: str, reporter: Reporter | None = None) -> Downloaded:
    """Download the weights of an encoder of the catalog, unless they are here, after its size.

    They go where `load_encoder` looks for them, and are kept if they make the encoder they should.
    """
    reporter = reporter or Reporter()
    info = get_info(name)
    if is_available(name):
        reporter.say(f"{name} is here already")
        return Downloaded(encoder=name, path=None)
    if info.origin == "package":
        raise MissingError(how_to_get(name, info))
    if is_told_offline():
        raise MissingError(
            f"encoder {name!r}: HF_HUB_OFFLINE is set, so nothing is downloaded; unset it"
        )
    folder = weights_folder() / name
    with locked_file(folder):
        n_bytes = download_size(info.location)
        reporter.say(f"{name}: {n_bytes / MB:,.0f} MB from {info.location} into {folder}")
        with reporter.progress("downloading", "MB") as progress:
            sha256 = download(
                info.location, folder, lambda done, total: progress(done // MB, max(1, total // MB))
            )
        try:
            load_encoder(name)
        except MissingError:
            remove_download(folder)
            raise
    return Downloaded(encoder=name, path=str(folder), n_bytes=n_bytes, sha256=sha256)
