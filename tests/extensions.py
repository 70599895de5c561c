"""Objects that tests declare as connectors of another package."""

from __future__ import annotations

import click

from lake.publish.after_publish import AfterPublish

AFTER_PUBLISH = AfterPublish(lambda _, tell, __: tell("fake"))


@click.command()
def hello() -> None:
    click.echo("hello")
