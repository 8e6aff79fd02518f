"""Addresses as paths, and names that must not become names of images."""

from pathlib import Path

import pytest

from shoal.data.storage import as_address, why_unfit


@pytest.mark.parametrize("given", ["s3://birds/all", Path("s3://birds/all"), "S3://birds/all"])
def test_an_address_keeps_both_slashes_whatever_it_was_given_as(given):
    address = as_address(given)
    assert str(address) == "s3://birds/all"
    assert str(address / "x.csv") == "s3://birds/all/x.csv"
    assert str((address / "x.csv").parent) == "s3://birds/all"


def test_a_local_folder_that_looks_like_an_address_is_a_folder(tmp_path, monkeypatch):
    (tmp_path / "s3:" / "birds").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert as_address("s3:/birds") is None


@pytest.mark.parametrize(
    "name",
    [
        "../x.png",
        "a/../../x.png",
        "/etc/x.png",
        "a//x.png",
        "./x.png",
        "a\nb.png",
        "a\x1b[2J.png",
        "\udcff.png",
    ],
)
def test_a_name_that_leads_out_or_cannot_be_seen_is_unfit(name):
    assert why_unfit(name) is not None
