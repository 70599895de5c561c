"""Settings of a project: `[tool.lake]` in its pyproject.toml, each overridden by a `LAKE_…` environment variable.

Plain dataclasses: pydantic-settings needs fewer lines, but takes 0.1 s of the 0.25 s that `lake sql` takes.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from functools import cached_property
from math import inf
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from lake.connectors import connectors
from lake.errors import DeclarationError, did_you_mean

NOUNS: Final = {int: "a whole number", float: "a number", str: "text", Path: "a path", bool: "true or false"}

UNFIT: Final = frozenset("#?*%[]^|\\")
"""Characters forbidden in paths: to delta-rs some are parts of a URL, to DuckDB and Spark others are a pattern."""

STORE: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[A-Za-z0-9_=-][A-Za-z0-9_.=-]*)*")
"""Bucket with the common prefix of all names: `s3://BUCKET/PREFIX`."""

PASSWORD: Final = re.compile(r"://[^/?]*:[^/?]*@|[?&]password=")

SECRET: Final = frozenset({"keys", "spark.conf", "spark.remote"})
"""Settings that may hold a password or a token: messages never show their values."""


def _number(default: float, *, least: float) -> Any:
    return field(default=default, metadata={"least": least})


MOST: Final = 2**63
"""Upper bound of whole numbers, exclusive."""


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """Settings of a Spark session. `remote` (or SPARK_REMOTE) names a Spark Connect server instead.

    With a `master` that is not local, `driver_memory` is that of the driver on this machine, `conf` sets everything of
    the cluster, and `shuffle_partitions` is ignored. `shares_disk`: Spark reads the files of this machine, by default
    if it runs here. Otherwise local files are uploaded to the warehouse until Spark has read them.
    """

    master: str = "local[*]"
    remote: str = ""
    shares_disk: bool | None = None
    driver_memory: str = "2g"
    shuffle_partitions: int = _number(2, least=1)
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PublishSettings:
    """Settings of publishing.

    `groups` are the tables that readers see at one cut, {group: tables}; by default all. `after` names connectors of
    the group `lake.after_publish`, which run after each publication beside Headwater's own.
    """

    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    after: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Limits for readers of `lake serve http`.

    `queries_at_once` queries and downloads run at the same time. A query takes at most `query_seconds`, `query_memory`
    bytes of memory and `query_disk` bytes of disk to spill to. Its answer has at most `query_rows` rows and
    `query_bytes` bytes. A download of a table is made within `download_seconds`. Answers are on the disk until they are
    sent, at most `answers_bytes` of all readers; beyond that, the oldest is discarded. Delta Sharing calls the
    project's tables `share`. Its links to files expire after `link_seconds`. Copies of tables made for it, without
    state columns, take at most `copies_bytes`. At most `connections` are open, `connections_per_address` of them from
    one address; at the limit, one without a request in progress is closed for a new one. The head of a request has to
    arrive within `head_seconds`.
    """

    share: str = "lake"
    queries_at_once: int = _number(4, least=1)
    query_seconds: float = _number(60.0, least=0)
    query_rows: int = _number(1_000_000, least=1)
    query_bytes: int = _number(256 << 20, least=1)
    query_memory: int = _number(512 << 20, least=64 << 20)
    query_disk: int = _number(2 << 30, least=0)
    download_seconds: float = _number(3600.0, least=0)
    answers_bytes: int = _number(10 << 30, least=1)
    link_seconds: float = _number(3600.0, least=1)
    copies_bytes: int = _number(10 << 30, least=0)
    connections: int = _number(1_000, least=1)
    connections_per_address: int = _number(500, least=1)
    head_seconds: float = _number(10.0, least=0)


@dataclass(frozen=True, kw_only=True)
class StorageSettings:
    """Settings of an object store; keys are in the environment, AWS_ACCESS_KEY_ID and others.

    `endpoint` is the URL of a server that is not Amazon's, by default AWS_ENDPOINT_URL; `region` is by default
    AWS_REGION, else us-east-1. With `path_style`, by default if there is an endpoint, a bucket is in the path of a URL
    and not in its host name.
    """

    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a project. Relative paths are relative to the project folder.

    - `warehouse`: a folder, readable by its owner and the members of `group`, or `s3://BUCKET/PREFIX`, see `storage`.
    - `landing`: its folders, one for each stream, hold events; files in `sources` declare other sources. Landing files
      that were read are moved to `archive`, if set. Either may be in a bucket.
    - `sinks`, `alerts`: files that declare where tables are delivered, and who is notified of changes.
    - `cold`: where `lake archive` moves old batches of logs: a folder, or `s3://BUCKET/PREFIX` if the warehouse is in a
      bucket of the same store.
    - `keys`: the file with the encryption keys of personal data, by default `keys.sqlite` beside the warehouse; or
      `postgresql://HOST/DATABASE` for several hosts, with libpq's PGPASSWORD and ~/.pgpass.
    - `batch_files`, `batch_bytes`: limits of one batch. `record_bytes`: a longer JSON record is quarantined, and the
      whole file if a line is sixteen times as long.
    - `lease_seconds`: how long a writer waits for another. `small_diff_rows`: Spark writes larger diffs.
      `client_memory`: bytes of this process that DuckDB may hold; it spills the rest to files in `.lake`.
      `tables_at_once`: tables processed in parallel, sharing the driver's memory.
    - `keep_editions`, `keep_days`: `lake maintain` keeps this number of newest editions, and those of the last days. It
      compacts up to `maintain_bytes` bytes a call. `lake run --follow` calls it every `maintain_every` cycles, never
      for 0. `keep_consumer_days`: the edition of a consumer or a sink is kept until it is so far behind.
    """

    project: Path
    warehouse: Path | str = Path(".lake/warehouse")
    landing: Path | str = Path("landing")
    sources: Path = Path("sources")
    sinks: Path = Path("sinks")
    alerts: Path = Path("alerts")
    group: str = ""
    archive: Path | str | None = None
    cold: Path | str | None = None
    keys: Path | str | None = field(default=None, repr=False)
    jars: Path = Path(sys.prefix) / "share/headwater/jars"
    batch_files: int = _number(1000, least=1)
    batch_bytes: int = _number(2 << 30, least=1)
    record_bytes: int = _number(1 << 20, least=1)
    lease_seconds: float = _number(10.0, least=0)
    keep_editions: int = _number(30, least=1)
    keep_days: float = _number(2.0, least=0)
    keep_consumer_days: float = _number(7.0, least=0)
    maintain_bytes: int = _number(4 << 30, least=1)
    maintain_every: int = _number(50, least=0)
    small_diff_rows: int = _number(500_000, least=0)
    client_memory: int = _number(2 << 30, least=64 << 20)
    tables_at_once: int = _number(2, least=1)
    publish: PublishSettings = PublishSettings()
    serve: ServeSettings = ServeSettings()
    spark: SparkSettings = SparkSettings()
    storage: StorageSettings = StorageSettings()

    def path(self, relative: Path | str) -> Path:
        return (self.project / relative).resolve()

    @property
    def store(self) -> str:
        return in_store(self.warehouse)

    @property
    def stores(self) -> dict[str, str]:
        return {name: url for name in STORED if (url := in_store(getattr(self, name)))}

    @property
    def warehouse_name(self) -> str:
        return self.store or str(self.warehouse_path)

    @cached_property
    def warehouse_path(self) -> Path:
        """Local folder of the warehouse: its own, or that with the locks of one in an object store."""
        return self.path(f".lake/stores/{self.store.partition('://')[2]}" if self.store else self.warehouse)

    @property
    def cold_name(self) -> str:
        """Place of archived batches: an absolute path, or the URL of a folder in a bucket; "" without one."""
        return _full_name(self, self.cold) if self.cold is not None else ""

    @property
    def landing_name(self) -> str:
        return in_store(self.landing) or str(self.landing_path)

    @property
    def landing_path(self) -> Path:
        """Local landing folder: its own, or that of `lake serve http` if files land in a bucket."""
        return self.path(".lake/landing" if in_store(self.landing) else self.landing)

    @property
    def keys_url(self) -> str:
        return self.keys if isinstance(self.keys, str) and "://" in self.keys else ""

    @property
    def keys_name(self) -> str:
        """Place of the key store for messages: without the role and the password."""
        scheme, _, rest = self.keys_url.partition("?")[0].partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}" if self.keys_url else str(self.keys_path)

    @property
    def keys_path(self) -> Path:
        """File of the key store; for one in a database, where it would be."""
        if self.keys is not None and not self.keys_url:
            return self.path(self.keys)
        return self.path(".lake/keys.sqlite") if self.store else self.warehouse_path.parent / "keys.sqlite"


STORED: Final = ("warehouse", "landing", "archive")
"""Settings that may name a folder of an object store."""


def in_store(where: Path | str | None) -> str:
    """Return the URL of a place in an object store; "" for a local one."""
    return where.rstrip("/") if isinstance(where, str) and "://" in where else ""


GROUPS: Final = (
    (Settings, ""),
    (PublishSettings, "publish."),
    (ServeSettings, "serve."),
    (SparkSettings, "spark."),
    (StorageSettings, "storage."),
)
"""All settings, with the prefix of those in tables."""


def find_project(start: Path) -> Path:
    """Return the nearest folder at or above `start` whose pyproject.toml has a `[tool.lake]` table.

    Raises DeclarationError if there is none.
    """
    start = start.resolve()
    for folder in (start, *start.parents):
        if _tool_lake(folder) is not None:
            return folder
    raise DeclarationError(
        "no project here: no pyproject.toml with a [tool.lake] table",
        where=f"looked in {start} and the folders above it",
        fix="run `lake init DIR` to create one, or name one with --project DIR",
    )


def load_settings(project: Path | None = None) -> Settings:
    """Return the settings of `project`, or of the nearest project above the current folder.

    Raises DeclarationError that lists every faulty setting at once.
    """
    folder = find_project(Path.cwd()) if project is None else project.resolve()
    values = _tool_lake(folder)
    if values is None:
        raise DeclarationError(
            "not a project: no pyproject.toml with a [tool.lake] table", where=str(folder), fix=f"lake init {folder}"
        )
    faults: list[DeclarationError] = []
    given = dict(_read(Settings, values, "", folder, faults))
    faults += _mistyped_variables()
    if faults:
        raise DeclarationError.all(faults)
    settings = Settings(project=folder, **given)
    _check_folders(settings)
    _check_keys(settings, values)
    _check_connectors(settings)
    return settings


def _mistyped_variables() -> Iterator[DeclarationError]:
    variables = {_variable(prefix + setting.name) for group, prefix in GROUPS for setting in fields(group)}
    for name in sorted(set(os.environ) - variables):
        if name.startswith("LAKE_") and (close := get_close_matches(name, variables, n=1, cutoff=0.9)):
            yield DeclarationError(
                f"no setting has the environment variable {name}",
                where="environment",
                fix=f"did you mean {close[0]}?",
            )


def _check_folders(settings: Settings) -> None:
    for name, url in settings.stores.items():
        if not STORE.fullmatch(url):
            raise _fault(
                f"setting {name!r}: {url} names no folder of an S3 bucket",
                name,
                settings.project,
                f'{name} = "s3://BUCKET/PREFIX", of letters, digits and . _ = -, or a path on this machine',
            )
    archive = _full_name(settings, settings.archive) if settings.archive is not None else ""
    if archive == _full_name(settings, settings.landing):
        raise _fault(
            f"setting 'archive': {archive} is the landing folder itself",
            "archive",
            settings.project,
            "name another folder, or leave it out: files then stay where they landed",
        )
    _check_cold(settings)
    for name in ("cold", "landing", "warehouse"):
        where = getattr(settings, name)
        if where is None or in_store(where):
            continue
        path = settings.path(where)
        if odd := sorted(set(str(path)) & UNFIT):
            raise _fault(
                f"setting {name!r}: {path} has {' '.join(odd)} in it, which is taken for a pattern or part of a URL",
                name,
                settings.project,
                "move the project, or name another folder",
            )
        in_the_way = next((folder for folder in (path, *path.parents) if folder.exists()), path)
        if in_the_way.exists() and not in_the_way.is_dir():
            raise _fault(
                f"setting {name!r}: expected a folder, found the file {in_the_way}",
                name,
                settings.project,
                "name another folder, or move the file away",
            )


def _check_cold(settings: Settings) -> None:
    if settings.cold is None:
        return
    fix = 'cold = "s3://BUCKET/PREFIX" for a warehouse in a bucket of the same store, else a path on this machine'
    named = str(settings.cold)
    if bool(settings.store) != ("://" in named) or (settings.store and not STORE.fullmatch(settings.cold_name)):
        what = f"setting 'cold': {named} is no place that is reached as the warehouse is, {settings.warehouse_name}"
        raise _fault(what, "cold", settings.project, fix)
    if f"{settings.cold_name}/".startswith(f"{settings.warehouse_name}/"):
        what = f"setting 'cold': {settings.cold_name} is within the warehouse"
        raise _fault(what, "cold", settings.project, "name another folder, on a disk that costs less")
    for name in ("landing", "archive"):
        where = getattr(settings, name)
        if where is not None and f"{settings.cold_name}/".startswith(f"{_full_name(settings, where)}/"):
            what = f"setting 'cold': {settings.cold_name} is within {name!r}, whose files are their owner's to delete"
            raise _fault(what, "cold", settings.project, "name another folder: what is archived is part of the logs")


def _full_name(settings: Settings, where: Path | str) -> str:
    return in_store(where) or str(settings.path(where))


def _check_keys(settings: Settings, written: Mapping[str, Any]) -> None:
    if settings.keys_url and settings.keys_url.partition("://")[0] not in connectors("lake.keys"):
        raise _fault(
            f"setting 'keys': {settings.keys_name} names no key store",
            "keys",
            settings.project,
            'keys = "postgresql://HOST/DATABASE", or a path on this machine',
        )
    if settings.keys_url == written.get("keys") and PASSWORD.search(settings.keys_url):
        raise _fault(
            "setting 'keys': it has a password",
            "keys",
            settings.project,
            "leave it out for libpq to find, in PGPASSWORD or ~/.pgpass; or give all of it in the environment",
        )


def _check_connectors(settings: Settings) -> None:
    """Raise DeclarationError if `publish.after` names a connector that is not installed."""
    for name in settings.publish.after:
        if name not in (installed := connectors("lake.after_publish")):
            what = f"setting 'publish.after': no connector {name!r} is installed"
            raise _fault(what, "publish.after", settings.project, did_you_mean(name, installed))


def _tool_lake(folder: Path) -> dict[str, Any] | None:
    file = folder / "pyproject.toml"
    if not file.is_file():
        return None
    try:
        tool = tomllib.loads(file.read_text("utf-8")).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeclarationError(
            f"not valid TOML: {error}", where=str(file), fix="correct it there: a setting is a line, name = value"
        ) from None
    section = tool.get("lake") if isinstance(tool, dict) else tool
    if section is None or isinstance(section, dict):
        return section
    raise DeclarationError(
        f"[tool.lake] must be a table, found {section!r}",
        where=str(file),
        fix="write [tool.lake], and below it name = value",
    )


def _read(
    group: type, values: Mapping[str, Any], prefix: str, folder: Path, faults: list[DeclarationError]
) -> Iterator[tuple[str, Any]]:
    types = get_type_hints(group)
    settings = {setting.name: setting for setting in fields(group) if setting.name != "project"}
    for name in values:
        if name not in settings:
            faults.append(
                _fault(f"unknown setting {prefix + name!r}", prefix + name, folder, did_you_mean(name, settings))
            )
    for name, setting in settings.items():
        given = os.environ.get(_variable(prefix + name), values.get(name))
        if is_dataclass(types[name]):
            inner = given if isinstance(given, Mapping) else {}
            if given is not None and not isinstance(given, Mapping):
                what = f"setting {prefix + name!r}: expected a table, found {type(given).__name__}"
                faults.append(
                    _fault(what, prefix + name, folder, f"write [tool.lake.{name}], and below it name = value")
                )
            yield name, types[name](**dict(_read(types[name], inner, f"{prefix}{name}.", folder, faults)))
        elif given is not None:
            try:
                yield name, _value(types[name], given, setting)
            except ValueError as error:
                shown = "" if prefix + name in SECRET else f", found {given!r}"
                what = f"setting {prefix + name!r}: expected {error}{shown}"
                faults.append(_fault(what, prefix + name, folder, _example(prefix + name, setting)))


def _value(kind: Any, given: Any, setting: Field[Any]) -> Any:
    """Convert `given` to `kind`. Raises ValueError with the expected form."""
    if get_origin(kind) is tuple:
        return _names(given)
    if get_origin(kind) is Mapping:
        return _texts(given) if get_args(kind)[1] is str else _lists(given)
    if get_origin(kind) is UnionType:
        if str in get_args(kind) and isinstance(given, str) and "://" in given:
            return given
        kind = get_args(kind)[0]
    if kind is bool:
        if isinstance(given, bool) or given in ("true", "false"):
            return given in (True, "true")
        raise ValueError(NOUNS[bool])
    if kind is Path and given == "":
        raise ValueError(NOUNS[Path])
    least = setting.metadata.get("least")
    noun = NOUNS[kind] if least is None else f"{NOUNS[kind]} of at least {least:g}"
    try:
        value = kind(given)
    except (TypeError, ValueError):
        raise ValueError(noun) from None
    exact = isinstance(given, str) or (kind in {int, float} and value == given and not isinstance(given, bool))
    if not exact or (least is not None and not least <= value < (MOST if kind is int else inf)):
        raise ValueError(noun)
    return value


def _example(name: str, setting: Field[Any]) -> str:
    last, default = name.rpartition(".")[2], setting.default
    if isinstance(default, str | int | float) and default != "":
        return f"for example {last} = {json.dumps(default)}, which is its default"
    if name == "storage.path_style":
        return "for example path_style = true, or leave it out"
    if name == "spark.conf":
        return 'for example conf = {"spark.sql.shuffle.partitions" = "4"}; in the environment, as JSON'
    if name == "publish.groups":
        return 'for example groups = {sales = ["customer_daily"]}; in the environment, as JSON'
    if name == "publish.after":
        return 'for example after = ["name"]; in the environment, as JSON'
    return f'for example {last} = "{default or last}", or leave it out'


def _texts(given: Any) -> dict[str, str]:
    texts = _table(given)
    if texts is None or not all(isinstance(value, str) for value in texts.values()):
        raise ValueError("a table of strings")
    return dict(texts)


def _names(given: Any) -> tuple[str, ...]:
    names = _json(given)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("a list of names")
    return tuple(names)


def _lists(given: Any) -> dict[str, list[str]]:
    lists = _table(given)
    if lists is None or not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists.values()
    ):
        raise ValueError("a table of lists of names")
    return dict(lists)


def _table(given: Any) -> Mapping[str, Any] | None:
    table = _json(given)
    return table if isinstance(table, Mapping) else None


def _json(given: Any) -> Any:
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return None


def _fault(what: str, name: str, folder: Path, fix: str = "") -> DeclarationError:
    where = f"[tool.lake] in {folder / 'pyproject.toml'}, or {_variable(name)}"
    return DeclarationError(what, where=where, fix=fix)


def _variable(name: str) -> str:
    """Return the environment variable of a setting: `spark.master` is LAKE_SPARK__MASTER."""
    return f"LAKE_{name.upper().replace('.', '__')}"
