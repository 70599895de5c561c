"""Faults of a sink's file: each is reported with its place and no secret, some with a fix, all of a file at once."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from lake.config import Settings
from lake.errors import DeclarationError
from tests.servers import needed
from tests.servers.webhook import SECRET, VARIABLE
from tests.sinks.walks import sink

INVALID = ["[::1", "[zz]", "x:99999", "x:-1", "x:0", "x:abc", "x:²", "x y", "x..y", ".x", "%zz", "xn--zz", "x/\\u007f"]
"""Rests of URLs that clients cannot read."""
PACKAGES = {"redis": "redis", "opensearch": "opensearchpy"}
TABLE = "[tables.one]\n"
WRONG = [
    ("redis", TABLE, "url is missing", "write url = …"),
    ("redis", f'url = "http://x"\n{TABLE}', "url: it does not begin with redis://", "redis://127.0.0.1:6379/0"),
    *(("redis", f'url = "redis://{rest}"\n{TABLE}', "url: it cannot be read", "redis://127") for rest in INVALID),
    ("redis", f'url = "redis://x?db=a-secret"\n{TABLE}', "url: it cannot be read", "redis://127"),
    ("redis", f'url = "unix:///x?nothing=1"\n{TABLE}', "url: it cannot be read", "redis://127"),
    ("redis", f'url = "redis://:a-secret@x"\n{TABLE}', "url: it has a password", 'url = "env:NAME"'),
    ("redis", f'url = "redis://x"\npassword = "a-secret"\n{TABLE}', "password: it is in the file", '"env:NAME"'),
    ("redis", f'url = "redis://x"\ncertificates = "a.pem"\n{TABLE}', "the url is not of TLS", "rediss://"),
    ("redis", f'url = "redis://x"\nat_once = 0\n{TABLE}', "at_once: found 0", "a number from 1 on"),
    ("redis", f'url = "redis://x"\nseconds = -1\n{TABLE}', "seconds: found -1", "a number from 1 on"),
    ("redis", f'url = "redis://x"\nprefx = "a"\n{TABLE}', "unknown key 'prefx'", "did you mean 'prefix'?"),
    ("redis", f'url = "redis://x"\n{TABLE}mode = "append"\n', "mode: found 'append'", "mirror"),
    ("redis", f'url = "redis://x"\n{TABLE}form = 3\n', "form: expected a text, found int", "sinks.md"),
    ("opensearch", TABLE, "url is missing", "write url = …"),
    ("opensearch", f'url = "redis://x"\n{TABLE}', "url: it does not begin with http://", "http://127.0.0.1:9200"),
    *(("opensearch", f'url = "http://{rest}"\n{TABLE}', "url: it cannot be read", "http://127") for rest in INVALID),
    ("opensearch", f'url = "https:///x"\n{TABLE}', "url: it cannot be read", "http://127"),
    ("opensearch", f'url = "https://me:a-secret@x"\n{TABLE}', "url: it has a password", 'url = "env:NAME"'),
    ("opensearch", f'url = "http://x"\npassword = "a-secret"\n{TABLE}', "password: it is in the file", '"env:NAME"'),
    ("opensearch", f'url = "http://x"\ncertificates = "a"\n{TABLE}', "the url is not of TLS", "https://"),
    ("opensearch", f'url = "http://x"\nprefix = "A-"\n{TABLE}', "prefix: found 'A-'", "use a-z"),
    ("opensearch", f'url = "http://x"\nprefix = "-a"\n{TABLE}', "prefix: found '-a'", "use a-z"),
    ("opensearch", f'url = "http://x"\nseconds = 0\n{TABLE}', "seconds: found 0", "a number from 1 on"),
    ("opensearch", f'url = "http://x"\n{TABLE}mapping = "a"\n', "mapping: expected a table, found str", "sinks.md"),
]


@pytest.mark.parametrize(("kind", "said", "what", "fix"), WRONG)
def test_fault_is_reported_with_its_file_and_fix(project: Settings, kind: str, said: str, what: str, fix: str) -> None:
    needed(find_spec(PACKAGES[kind]), f"the extra `{kind}` is not installed: make setup")
    with pytest.raises(DeclarationError) as fault:
        sink(project, "far", f'kind = "{kind}"\n{said}').open()
    assert what in str(fault.value)
    assert fix in str(fault.value)
    assert str(Path("sinks/far.toml")) in str(fault.value)
    assert "a-secret" not in str(fault.value)


@pytest.mark.parametrize("kind", PACKAGES)
def test_faults_of_one_file_are_reported_together(project: Settings, kind: str) -> None:
    needed(find_spec(PACKAGES[kind]), f"the extra `{kind}` is not installed: make setup")
    with pytest.raises(DeclarationError, match="3 faults:"):
        sink(project, "far", f'kind = "{kind}"\nurl = "ftp://x"\npassword = "p"\ncertificates = "c"\n{TABLE}').open()


@pytest.mark.parametrize("kind", PACKAGES)
def test_secrets_come_from_the_environment(project: Settings, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needed(find_spec(PACKAGES[kind]), f"the extra `{kind}` is not installed: make setup")
    scheme = "rediss" if kind == "redis" else "https"
    monkeypatch.setenv("FAR_URL", f"{scheme}://me:a-secret@127.0.0.1:1")
    monkeypatch.setenv("FAR_PASSWORD", "a-secret")
    target = sink(
        project, "far", f'kind = "{kind}"\nurl = "env:FAR_URL"\npassword = "env:FAR_PASSWORD"\n{TABLE}'
    ).open()
    assert "a-secret" not in repr(target)
    target.close()


GOOD = f'url = "http://127.0.0.1:1/"\nsecret = "env:{VARIABLE}"\n'
BAD = [
    ("kafka", "", "", "bootstrap is missing"),
    ("kafka", "bootstrap = 7", "", "bootstrap: expected a text, found int"),
    ("kafka", 'bootstrap = "b"\nseconds = 0', "", "seconds: found 0"),
    ("kafka", 'bootstrap = "b"\ntransaction_seconds = -1', "", "transaction_seconds: found -1"),
    ("kafka", 'bootstrap = "b"\ncreate = "yes"', "", "create: expected true or false, found str"),
    ("kafka", 'bootstrap = "b"\ntopic = "x"', "", "unknown key 'topic'"),
    ("kafka", 'bootstrap = "b"\n[client]\n"transactional.id" = "x"', "", "'transactional.id' cannot be set"),
    (
        "kafka",
        'bootstrap = "b"\n[client]\n"isolation.level" = "read_uncommitted"',
        "",
        "'isolation.level' cannot be set",
    ),
    (
        "kafka",
        'bootstrap = "b"\n[client]\n"sasl.password" = "x"',
        "",
        "is a secret, and must come from the environment",
    ),
    (
        "kafka",
        'bootstrap = "b"\n[client]\n"sasl.password" = "env:NOT_SET_AT_ALL"',
        "",
        "NOT_SET_AT_ALL, which is not set",
    ),
    ("kafka", 'bootstrap = "b"\n[client]\nlinger = [1]', "", "must be text, a number, true or false"),
    ("webhook", "", "", "url is missing"),
    ("webhook", 'url = "ftp://x/y"\n' + GOOD.partition("\n")[2], "", "url is no http or https URL"),
    *(
        ("webhook", f'url = "http://{rest}"\n' + GOOD.partition("\n")[2], "", "url is no http or https URL")
        for rest in INVALID
    ),
    ("webhook", f'url = "http://x/"\nsecret = "{SECRET}"', "", "secret must come from the environment"),
    ("webhook", 'url = "http://x/"\nsecret = "env:NO_SECRET_AT_ALL"', "", "secret: found an empty text"),
    ("webhook", f"{GOOD}batch = 0", "", "batch: found 0"),
    ("webhook", f"{GOOD}parallel = -1", "", "parallel: found -1"),
    ("webhook", f"{GOOD}attempts = true", "", "attempts: expected a whole number, found bool"),
    ("webhook", f"{GOOD}retries = 1", "", "unknown key 'retries'"),
    ("webhook", f'{GOOD}[headers]\nAuthorization = "Bearer x"', "", "is a secret, and must come from the environment"),
    ("webhook", f'{GOOD}[headers]\nwebhook-id = "x"', "", "cannot be set"),
    *(
        ("webhook", f'{GOOD}[headers]\nX = "{value}"', "", "'X' must be a line of ASCII without spaces around it")
        for value in ("a\\nb", "ü", " a", "a ", "\\t", "\\u007f")
    ),
    *(
        ("webhook", f'{GOOD}[headers]\n"{name}" = "a"', "", "is no name of a header")
        for name in ("", "a b", "ü", "a:", "a\\nb")
    ),
    ("kafka", 'bootstrap = "b"', "partitions = 0", "partitions: found 0"),
    ("kafka", 'bootstrap = "b"\nreplication = -2', "", "replication: found -2"),
    ("kafka", 'bootstrap = "b"\nbegin = "later"', "", "begin: found 'later'"),
    ("redis", 'url = "redis://x"', 'form = "jsn"', "form: found 'jsn'"),
    ("webhook", GOOD, 'mode = "mirror"', "mode: found 'mirror'"),
    ("webhook", GOOD, 'on = ["upsert"]', "no change is called 'upsert'"),
    *(
        ("webhook", GOOD, f'on = [{value}]\nwhen = "true"', "on: no change is called ")
        for value in ("1", "1.5", "true", '""', '["insert"]', "{insert = true}", "2024-01-31")
    ),
    *(("webhook", GOOD, f"on = {value}", "on: expected a list") for value in ("1", "true", '"insert"', "2024-01-31")),
    *(("webhook", GOOD, f"when = {value}", "when: expected a text") for value in ("1", "true", "[]", "2024-01-31")),
    ("webhook", GOOD, 'when = "after.x >"', "when: syntax error"),
    ("webhook", GOOD, 'when = "true; select 1"', "it is more than one condition"),
    ("webhook", GOOD, 'when = "true); select (1"', "syntax error"),
    ("webhook", GOOD, 'on = ["insert"]\nwhen = "true) or (true"', "syntax error"),
]


@pytest.mark.parametrize("case", BAD)
def test_fault_is_reported_with_its_place(
    project: Settings, monkeypatch: pytest.MonkeyPatch, case: tuple[str, str, str, str]
) -> None:
    kind, options, table, found = case
    monkeypatch.setenv(VARIABLE, SECRET)
    monkeypatch.setenv("NO_SECRET_AT_ALL", "")
    with pytest.raises(DeclarationError) as fault:
        sink(project, "crm", f'kind = "{kind}"\n{options}\n[tables.thing]\n{table}\n').open()
    assert found in str(fault.value)
    assert "sinks/crm.toml" in str(fault.value)
    assert SECRET not in str(fault.value)


@pytest.mark.parametrize("url", ["postgresql://[::1", "host=x connect_timeout=a-secret", "host=x nothing=a-secret"])
def test_connection_string_that_cannot_be_read_is_reported_without_it(project: Settings, url: str) -> None:
    needed(find_spec("psycopg"), "the extra `postgres` is not installed: make setup")
    target = sink(project, "crm", f'kind = "postgres"\nurl = "{url}"\n[tables.thing]\n').open()
    with pytest.raises(DeclarationError, match=r"the connection string cannot be read \(sinks/crm.toml\)") as fault:
        target.position()
    assert "a-secret" not in str(fault.value)
