"""Objects that tests declare as connectors of another package."""

from __future__ import annotations

import click

from lake.publish.after_publish import AfterPublish
from lake.sources.source import Source, SourceDeclaration, SourceFact, SourceKind


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
