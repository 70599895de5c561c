"""Pages without a token, for this machine only and under one of its own names."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests import intake
from tests.servers.http import Http, installed, shop

pytestmark = pytest.mark.http
PAGES = ("/", "/problems", "/openapi.json")
OWN = ("localhost", "LOCALHOST:1", "127.0.0.1", "127.9.9.9:80", "[::1]", "[::1]:9", "shop.localhost:8480")
FOREIGN = (
    "evil.example",
    "evil.example:8480",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "192.0.2.7",
    "0.0.0.0",
)
INVALID = (
    "[",
    "[::1",
    "a b",
    "",
    "evil.example/localhost",
    "evil.example#localhost",
    "é",
    "localhost@evil.example",
    "my_evil.example",
    "127.0.0.1_.evil.example",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    installed()
    settings = shop(tmp_path_factory.mktemp("hosts") / "shop")
    with intake.serving(settings.project) as serving:
        yield Http(settings, serving)


@pytest.mark.parametrize("host", OWN)
def test_pages_are_shown_by_a_name_of_this_machine(site: Http, host: str) -> None:
    assert [site.get(page, host=host).status_code for page in PAGES] == [200] * 3


@pytest.mark.parametrize("host", [*FOREIGN, *INVALID])
def test_pages_need_a_token_by_another_name(site: Http, host: str) -> None:
    with httpx.Client(base_url=site.serving.url) as client:
        for page in PAGES:
            answer = client.get(page, headers=[(b"host", host.encode())])
            assert answer.status_code in {400, 401}, answer.text
            for secret in ("readings", "station", str(site.settings.project)):
                assert secret not in answer.text
            if host in FOREIGN:
                assert answer.status_code == 401
                allowed = client.get(
                    page,
                    headers=[(b"host", host.encode()), (b"authorization", f"Bearer {site.serving.token}".encode())],
                )
                assert allowed.status_code == 200
                assert str(site.settings.project) not in allowed.text
    assert site.get("/health").json() == {"status": "ok"}
