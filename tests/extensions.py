"""Objects that tests declare as connectors of another package."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from lake.config import Settings, StorageSettings
from lake.errors import LakeError, Unavailable
from lake.publish.after_publish import AfterPublish
from lake.sources.source import Source, SourceDeclaration, SourceFact, SourceKind
from lake.store.storage import Storage, StorageKind
from tests.store.memory import Bucket


def _open(_: SourceDeclaration) -> Source:
    raise NotImplementedError


MQTT_FACTS = (
    SourceFact("mqtt.topic", "string", "the message's topic"),
    SourceFact("mqtt.property.NAME", "string", "a user property"),
)
MQTT = SourceKind(_open, facts=MQTT_FACTS)
AFTER_PUBLISH = AfterPublish(lambda _, tell, __: tell("fake"))


@click.command()
def hello() -> None:
    click.echo("hello")


@dataclass(frozen=True, kw_only=True)
class MemorySettings(StorageSettings):
    size: int = 0


class MemoryKind(StorageKind):
    scheme = "mem"
    settings = MemorySettings
    folder_url = re.compile(r"mem://\w+/\w+")
    form = '"mem://NAME/FOLDER"'
    jars = Path(os.devnull)
    bucket = Bucket()

    def open(self, settings: Settings, url: str) -> Storage:
        return self.bucket

    def spark_conf(self, settings: Settings, scratch: Path | None) -> Mapping[str, str]:
        return {"spark.hadoop.fs.mem.buffer": str(scratch)}

    def error_of(self, error: BaseException, where: str = "") -> LakeError | None:
        return Unavailable("mem does not answer", where=where) if "mem" in str(error) else None

    def read_error(self, error: BaseException, where: str) -> LakeError | None:
        return None


MEMORY = MemoryKind()
