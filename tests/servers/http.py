"""A `lake serve http` over a project of two streams, as its people start it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from lake.config import Settings
from lake.contracts.contract import load_contracts
from lake.serve import PACKAGES
from lake.serve.source import HttpSource
from lake.sources.declared import sound_sources
from lake.sources.source import Progress, SourceRecord
from tests import intake
from tests.servers import needed
from tests.shop import contract, declare, empty
from tests.spool import Kept

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
FIELDS = {"station": "string", "number": "long", "value": "double?"}


@dataclass
class Http:
    """A server, and the project that it is of."""

    settings: Settings
    serving: intake.Serving

    def post(self, body: Any, stream: str = "readings", query: str = "", **headers: str) -> httpx.Response:
        """A request with the token; `content_type` is a header."""
        told = self.serving.allowed | {name.replace("_", "-"): value for name, value in headers.items()}
        content = {"content": body} if isinstance(body, bytes | str) else {"json": body}
        return httpx.post(f"{self.serving.url}/streams/{stream}{query}", headers=told, **content)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"{self.serving.url}{path}", headers=headers)

    @property
    def source(self) -> HttpSource:
        """What `lake ingest` reads."""
        sources, faults = sound_sources(self.settings, load_contracts(self.settings))
        assert not faults
        source = sources["web"].open()
        assert isinstance(source, HttpSource)
        return source

    def take(self, after: Progress | None) -> tuple[list[tuple[str, SourceRecord]], Progress | None]:
        """What a delivery has, and where the source stands behind it."""
        taken = Kept()
        progress = self.source.read(after, taken)
        return taken.records, progress


def installed() -> None:
    """Skips a test where the extra is not installed."""
    for package in PACKAGES:
        needed(find_spec(package), "the extra `serve` is not installed: make setup")


def shop(folder: Path, options: str = "", lines: str = "") -> Settings:
    """A project of two streams with a source of kind http; `readings` has an id, `notes` has none."""
    settings = empty(folder, lines)
    about = {"number": "long", "text": "string?"}
    declare(settings, contract("readings", FIELDS, id=["station", "number"]), contract("notes", about))
    settings.path("sources").mkdir()
    settings.path("sources/web.toml").write_text(f'kind = "http"\n{options}')
    return settings


@pytest.fixture(scope="session")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    """The server of the run."""
    installed()
    settings = shop(tmp_path_factory.mktemp("http") / "shop", "secret.notes = 'env:NOTES_SECRET'\n")
    with intake.serving(settings.project, NOTES_SECRET=SECRET) as serving:
        yield Http(settings, serving)
