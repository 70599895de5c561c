"""Location of a bucket in settings and environment: invalid places are reported without a request. No server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lake.config import Settings
from lake.connect.s3.bucket import Bucket
from lake.connect.s3.place import BucketLocation, S3Settings, bucket_location
from lake.errors import DeclarationError


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)


def settings(endpoint: str = "", path_style: bool | None = None) -> Settings:
    storage = S3Settings(endpoint=endpoint, path_style=path_style)
    return Settings(project=Path("/shop"), warehouse=URL, storage=storage)


URL = "s3://acme/shop"
NO_URLS = ("127.0.0.1:9000", "s3.example.org", "ftp://s3.example.org", "s3://acme", "http://", "http:/h", " http://h")
NO_HOSTS = ("http://my host", "http://h..org", "http://[::1", "https://:9000", "http://u:hush@h", "http://h?x=1")
NO_PORTS = ("http://h:99999", "http://h:0", "http://h:x", "http://h:", "http://[::1]:")


@pytest.mark.parametrize("endpoint", [*NO_URLS, *NO_HOSTS, "http://h#x", *NO_PORTS])
def test_invalid_endpoint_is_reported(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for told in (settings(endpoint), settings()):
        with pytest.raises(DeclarationError, match="is not the URL of a server") as raised:
            bucket_location(told, URL)
        assert "hush" not in str(raised.value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)


URLS = ("http://127.0.0.1:9000", "https://s3.example.org", "https://h.example.org/storage/v1/s3", "http://[::1]:9000")


@pytest.mark.parametrize("endpoint", [*URLS, "http://s3:9000/", "http://my_store"])
def test_valid_endpoint_is_used_unchanged(endpoint: str) -> None:
    assert bucket_location(settings(endpoint), URL) == BucketLocation("acme", endpoint.rstrip("/"), "us-east-1", True)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9000", "https://10.0.0.1", "http://[::1]:9000"])
def test_virtual_host_style_is_rejected_for_an_ip_address(endpoint: str) -> None:
    with pytest.raises(DeclarationError, match="the name of a bucket cannot be put before it"):
        bucket_location(settings(endpoint, path_style=False), URL)


def test_amazon_s3_has_no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Bucket(BucketLocation("acme", "", "eu-central-1", path_style=False))
    assert "endpoint" not in store._client.config
    assert store._client.config["region"] == "eu-central-1"
    monkeypatch.setenv("AWS_REGION", "to be as it was when this test ends")
    monkeypatch.delenv("AWS_REGION")
    assert "aws_endpoint" not in store.options
    assert os.environ["AWS_REGION"] == "eu-central-1"  # Otherwise delta-rs asks the machine for it, for every table
