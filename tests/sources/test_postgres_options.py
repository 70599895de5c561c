"""Options of a PostgreSQL source file: all faults are reported at once, without a connection."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lake.connect.postgres.source.options import postgres_options
from lake.connect.postgres.source.reader import PostgresSource
from lake.contracts.declared_files import FromEnvironment
from lake.errors import DeclarationError
from tests.sources.shop import contract

CONTRACTS = {
    "orders": contract("orders", ["id"], {"id": "int"}, table="public.orders"),
    "other": contract("other", ["id"], {"id": "int"}, table="db.public.orders"),
    "plain": contract("plain", ["id"], {"id": "int"}),
}
WELL: dict[str, Any] = {"dsn": "service=shop", "publication": "lake", "streams": {"orders": "public.orders"}}
SECRET = "s3cret"


def test_postgres_options_have_defaults() -> None:
    source = PostgresSource(postgres_options("my_shop", WELL, CONTRACTS, "sources/my_shop.toml"))
    options = source.options
    assert (options.slot, options.snapshot, options.changes) == ("lake_my_shop", True, 100_000)
    assert source.streams == ("orders",)
    source.close()
    postgres_options("my_shop", WELL | {"streams": {"other": "public.orders"}}, CONTRACTS, "sources/my_shop.toml")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"publicaton": "x"}, "unknown key 'publicaton'"),
        ({"dsn": None}, "dsn is missing"),
        ({"publication": ""}, "publication: found an empty text"),
        ({"dsn": f"host=x password={SECRET}"}, "dsn has a password"),
        ({"dsn": f"host=x password = '{SECRET}'"}, "dsn has a password"),
        *(({"dsn": f"postgresql://me:{SECRET}{sign}@host/db"}, "dsn has a password") for sign in ("", *"/?#[]@:%& ")),
        ({"dsn": f"postgresql://host/db?password={SECRET}"}, "dsn has a password"),
        ({"dsn": f"host=x sslpassword={SECRET}"}, "dsn has a password"),
        ({"slot": "With-Dash"}, "invalid slot 'With-Dash'"),
        ({"snapshot": 1}, "snapshot: expected true or false, found int"),
        ({"changes": 0}, "changes: found 0"),
        ({"changes": True}, "changes: expected a whole number, found bool"),
        ({"streams": {}}, "no streams"),
        ({"streams": {"order": "public.orders"}}, "no stream 'order'"),
        ({"streams": {"orders": "orders"}}, "invalid table 'orders'"),
        ({"streams": {"orders": "public.people"}}, "its contract is of the table 'public.orders'"),
        ({"streams": {"orders": "public.orders", "plain": "public.orders"}}, "both read the table"),
    ],
)
def test_postgres_options_report_a_fault(change: dict[str, Any], told: str) -> None:
    with pytest.raises(DeclarationError) as error:
        postgres_options("shop", WELL | change, CONTRACTS, "sources/shop.toml")
    assert told in str(error.value)
    assert error.value.where == "sources/shop.toml"
    assert error.value.fix
    assert SECRET not in str(error.value)


def test_postgres_options_report_all_faults_at_once() -> None:
    for change, count in (
        ({"dsn": None, "publication": 3, "slot": "", "changes": -1}, 4),
        ({"dsn": f"password={SECRET}", "slot": "A-B", "streams": {"order": "o"}}, 4),
    ):
        with pytest.raises(DeclarationError, match=f"{count} faults"):
            postgres_options("shop", WELL | change, CONTRACTS, "sources/shop.toml")


def test_postgres_password_comes_from_the_environment() -> None:
    dsn = FromEnvironment(f"host=x password={SECRET}")
    postgres_options("shop", WELL | {"dsn": dsn}, CONTRACTS, "sources/shop.toml")


def test_postgres_options_reject_a_contract_without_changes() -> None:
    plain = replace(CONTRACTS["orders"], envelope=None)
    with pytest.raises(DeclarationError, match="reads no changes"):
        postgres_options("shop", WELL, {"orders": plain}, "sources/shop.toml")
