"""What a file says of Redis and of OpenSearch: every fault at once, each with its fix, and no secret told."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from lake.config import Settings
from lake.errors import DeclarationError
from tests.servers import needed
from tests.sinks.walks import sink

PACKAGES = {"redis": "redis", "opensearch": "opensearchpy"}
TABLE = "[tables.one]\n"
WRONG = [
    ("redis", TABLE, "url is missing", "write url = …"),
    ("redis", f'url = "http://x"\n{TABLE}', "url: it does not begin with redis://", "redis://127.0.0.1:6379/0"),
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
    ("opensearch", f'url = "https://me:a-secret@x"\n{TABLE}', "url: it has a password", 'url = "env:NAME"'),
    ("opensearch", f'url = "http://x"\npassword = "a-secret"\n{TABLE}', "password: it is in the file", '"env:NAME"'),
    ("opensearch", f'url = "http://x"\ncertificates = "a"\n{TABLE}', "the url is not of TLS", "https://"),
    ("opensearch", f'url = "http://x"\nprefix = "A-"\n{TABLE}', "prefix: found 'A-'", "use a-z"),
    ("opensearch", f'url = "http://x"\nprefix = "-a"\n{TABLE}', "prefix: found '-a'", "use a-z"),
    ("opensearch", f'url = "http://x"\nseconds = 0\n{TABLE}', "seconds: found 0", "a number from 1 on"),
    ("opensearch", f'url = "http://x"\n{TABLE}mapping = "a"\n', "mapping: expected a table, found str", "sinks.md"),
]


@pytest.mark.parametrize(("kind", "said", "what", "fix"), WRONG)
def test_a_fault_is_told_with_its_fix(project: Settings, kind: str, said: str, what: str, fix: str) -> None:
    needed(find_spec(PACKAGES[kind]), f"the extra `{kind}` is not installed: make setup")
    with pytest.raises(DeclarationError) as told:
        sink(project, "far", f'kind = "{kind}"\n{said}').open()
    assert what in str(told.value)
    assert fix in str(told.value)
    assert str(Path("sinks/far.toml")) in str(told.value)
    assert "a-secret" not in str(told.value)


@pytest.mark.parametrize("kind", PACKAGES)
def test_all_faults_of_a_file_are_told_at_once(project: Settings, kind: str) -> None:
    needed(find_spec(PACKAGES[kind]), f"the extra `{kind}` is not installed: make setup")
    with pytest.raises(DeclarationError, match="3 faults:"):
        sink(project, "far", f'kind = "{kind}"\nurl = "ftp://x"\npassword = "p"\nseconds = 0\n{TABLE}').open()


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
