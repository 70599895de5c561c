"""Settings of a project: `[tool.lake]` in its pyproject.toml, each overridden by a `LAKE_…` environment variable.

Plain dataclasses: pydantic-settings needs fewer lines, but takes 0.1 s of the 0.25 s that `lake sql` takes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

from lake import cost
from lake.connectors import connector, connectors
from lake.errors import DeclarationError, LakeError, did_you_mean
from lake.settings_table import SettingsReader, fault, number, tool_lake, variable
from lake.text import has_password, printable, without_login

UNFIT: Final = re.compile(r"[#?*%\[\]^|\\\x00-\x1f\x7f\ud800-\udfff]")
"""Characters forbidden in paths: delta-rs takes some for parts of a URL, and no control characters or bytes that are
not UTF-8; DuckDB and Spark take others for a pattern.
"""


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """Settings of a Spark session. `remote` (or SPARK_REMOTE) names a Spark Connect server instead.

    With a `master` that is not local, `driver_memory` is that of the driver on this machine, `conf` sets everything of
    the cluster, and `shuffle_partitions` is ignored. `shares_disk`: Spark reads the files of this machine, by default
    if it runs here. Otherwise local files are uploaded to the warehouse until Spark has read them. `keep_warm`:
    commands share a JVM, which ends after so long without one; in containers each has its own.
    """

    master: str = "local[*]"
    remote: str = ""
    shares_disk: bool | None = None
    keep_warm: timedelta = timedelta(0)
    driver_memory: str = "2g"
    shuffle_partitions: int = number(2, least=1)
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
    `query_bytes` bytes. A download of a table is made within `download_seconds`. Answers are stored until they are
    sent, at most `answers_bytes` of all readers; beyond that, the oldest is discarded. Delta Sharing calls the
    project's tables `share`. Its links to files expire after `link_seconds`. Copies of tables made for it, without
    state columns, take at most `copies_bytes`. At most `connections` are open, `connections_per_address` of them from
    one address; at the limit, one without a request in progress is closed for a new one. The head of a request has to
    arrive within `head_seconds`.
    """

    share: str = "lake"
    queries_at_once: int = number(4, least=1)
    query_seconds: float = number(60.0, least=0)
    query_rows: int = number(1_000_000, least=1)
    query_bytes: int = number(256 << 20, least=1)
    query_memory: int = number(512 << 20, least=64 << 20)
    query_disk: int = number(2 << 30, least=0)
    download_seconds: float = number(3600.0, least=0)
    answers_bytes: int = number(10 << 30, least=1)
    link_seconds: float = number(3600.0, least=1)
    copies_bytes: int = number(10 << 30, least=0)
    connections: int = number(1_000, least=1)
    connections_per_address: int = number(500, least=1)
    head_seconds: float = number(10.0, least=0)


@dataclass(frozen=True, kw_only=True)
class StorageSettings:
    """Settings of an object storage in `[tool.lake.storage]`: a kind of storage has a subclass with its settings."""


class StorageAccess(Protocol):
    """Kind of object storage as settings, Spark and messages need it; lake.store.storage.StorageKind adds its client.

    `scheme` is that of its URLs, and `settings` is the class of its settings. `folder_url` matches the URL of a folder,
    and `form` describes it in messages. `jars` lists the jars that Spark needs beside those of Delta.
    """

    scheme: str
    settings: type[StorageSettings]
    folder_url: re.Pattern[str]
    form: str
    jars: Path

    def spark_conf(self, settings: Settings, scratch: Path | None) -> Mapping[str, str]:
        """Return the configuration of a Spark session that reads and writes the project's folders.

        Spark collects data in `scratch` before it uploads them; None if it runs on other machines.
        """

    def error_of(self, error: BaseException, where: str = "") -> LakeError | None:
        """Return the error to raise if `error`, of any library, is the storage's; else None."""

    def read_error(self, error: BaseException, where: str) -> LakeError | None:
        """Return the error to raise if Spark cannot read the storage at all, so that no file is to blame."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Settings:
    """All settings of a project. Relative paths are relative to the project folder.

    - `warehouse`: a folder, readable by its owner and the members of `group`, or the URL of one in an object storage,
      see `storage`.
    - `landing`: its folders, one for each stream, hold events; files in `sources` declare other sources. Landing files
      that were read are moved to `archive`, if set. Either may be in the object storage.
    - `sinks`, `alerts`: files that declare where tables are delivered, and who is notified of changes.
    - `cold`: where `lake archive` moves old batches of logs: a folder, or a URL of the storage that has the warehouse.
    - `keys`: the file with the encryption keys of personal data, by default `keys.sqlite` beside the warehouse; or
      `postgresql://HOST/DATABASE` for several hosts, with libpq's PGPASSWORD and ~/.pgpass.
    - `batch_files`, `batch_bytes`: limits of one batch. `record_bytes`: a longer JSON record is quarantined, and the
      whole file if a line is sixteen times as long.
    - `lease_seconds`: how long a writer waits for another. `in_process_rows`: Spark makes tables of more input rows.
      `client_memory`: bytes of this process that DuckDB may hold; it spills the rest to files in `.lake`.
      `tables_at_once`: tables, and streams, processed in parallel; they share the driver's memory.
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
    batch_files: int = number(1000, least=1)
    batch_bytes: int = number(2 << 30, least=1)
    record_bytes: int = number(1 << 20, least=1)
    lease_seconds: float = number(10.0, least=0)
    keep_editions: int = number(30, least=1)
    keep_days: float = number(2.0, least=0)
    keep_consumer_days: float = number(7.0, least=0)
    maintain_bytes: int = number(4 << 30, least=1)
    maintain_every: int = number(50, least=0)
    in_process_rows: int = number(20_000_000, least=0)
    client_memory: int = number(2 << 30, least=64 << 20)
    tables_at_once: int = number(2, least=1)
    publish: PublishSettings = PublishSettings()
    serve: ServeSettings = ServeSettings()
    spark: SparkSettings = SparkSettings()
    storage: StorageSettings = StorageSettings()

    def path(self, relative: Path | str) -> Path:
        return (self.project / relative).resolve()

    def place(self, where: Path | str | None) -> str:
        """Return the absolute path or the URL of a folder; "" for none."""
        return url_of(where) or ("" if where is None else str(self.path(where)))

    @property
    def collected_rows(self) -> int:
        """Rows of Spark that this process compares and commits itself."""
        return min(self.in_process_rows, cost.COLLECTED_ROWS)

    @property
    def urls(self) -> dict[str, str]:
        """URLs of the folders in an object storage, by setting."""
        return {name: url for name in STORED if (url := url_of(getattr(self, name)))}

    @cached_property
    def object_storage(self) -> StorageAccess | None:
        """The kind of storage of `urls`; None without one."""
        return next((_storage_of(url, f"setting {name!r}") for name, url in self.urls.items()), None)

    @cached_property
    def warehouse_path(self) -> Path:
        """Local folder of the warehouse: its own, or that with the locks of one in an object store."""
        url = url_of(self.warehouse)
        return self.path(f".lake/stores/{url.partition('://')[2]}" if url else self.warehouse)

    @property
    def landing_path(self) -> Path:
        """Local landing folder: its own, or that of `lake serve http` if files land elsewhere."""
        return self.path(".lake/landing" if url_of(self.landing) else self.landing)

    @property
    def keys_url(self) -> str:
        return self.keys if isinstance(self.keys, str) and "://" in self.keys else ""

    @property
    def keys_name(self) -> str:
        """Place of the key store for messages: without the role and the password."""
        return without_login(self.keys_url) if self.keys_url else str(self.keys_path)

    @property
    def keys_path(self) -> Path:
        """File of the key store; for one in a database, where it would be."""
        if self.keys is not None and not self.keys_url:
            return self.path(self.keys)
        return self.path(".lake/keys.sqlite") if url_of(self.warehouse) else self.warehouse_path.parent / "keys.sqlite"


STORED: Final = ("warehouse", "landing", "archive")
"""Settings that may name a folder of an object storage; `cold` is where the warehouse is."""


def url_of(where: Path | str | None) -> str:
    """Return the URL of a folder in an object storage; "" for a local one."""
    return where.rstrip("/") if isinstance(where, str) and "://" in where else ""


GROUPS: Final = (
    (Settings, ""),
    (PublishSettings, "publish."),
    (ServeSettings, "serve."),
    (SparkSettings, "spark."),
)
"""All settings but those of a kind of storage, with the prefix of those in tables."""


def path_fault(path: Path) -> str:
    """Return why tables cannot be in a resolved `path`; "" if they can."""
    characters = sorted({printable(found) for found in UNFIT.findall(str(path))})
    if not characters:
        return ""
    return f"{printable(str(path))} has {' '.join(characters)} in it, which not every engine accepts in a path"


def find_project(start: Path) -> Path:
    """Return the nearest folder at or above `start` whose pyproject.toml has a `[tool.lake]` table.

    Raises DeclarationError if there is none.
    """
    start = start.resolve()
    for folder in (start, *start.parents):
        if tool_lake(folder) is not None:
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
    values = tool_lake(folder)
    if values is None:
        raise DeclarationError(
            "not a project: no pyproject.toml with a [tool.lake] table", where=str(folder), fix=f"lake init {folder}"
        )
    storage = _storage_settings(values, folder)
    reader = SettingsReader(folder, {"storage": storage})
    given = dict(reader.read(Settings, values))
    if faults := [*reader.faults, *_mistyped_variables(storage)]:
        raise DeclarationError.all(faults)
    settings = Settings(project=folder, **given)
    for name, what, fix in _faults(settings, values):
        raise fault(f"setting {name!r}: {what}", name, folder, fix)
    return settings


def _storage_settings(values: Mapping[str, Any], folder: Path) -> type[StorageSettings]:
    """Return the class of `storage`. Raises DeclarationError if places are in several storages, or an unknown one."""
    given = {name: os.environ.get(variable(name), values.get(name)) for name in (*STORED, "cold")}
    for name, where in given.items():
        if has_password(str(where)):
            fix = "leave it out: a storage takes its keys from the environment"
            raise fault(f"setting {name!r}: it has a password", name, folder, fix)
    urls = {name: url for name in STORED if (url := url_of(given[name]))}
    for name, url in urls.items():
        scheme = url.partition(":")[0]
        if scheme not in (installed := connectors("lake.storage")):
            what = f"setting {name!r}: no storage for {scheme}:// is installed, found {url}"
            usable = ", ".join(f"{one}://" for one in installed) or "none"
            fix = f"installed: {usable}; name a path on this machine, or install the package with that storage"
            raise fault(what, name, folder, fix)
    if len({url.partition(":")[0] for url in urls.values()}) > 1:
        what = f"setting {name!r}: folders are in several storages: {', '.join(urls.values())}"
        raise fault(what, name, folder, "name folders of one of them, or paths on this machine")
    return _storage_of(url, f"setting {name!r}").settings if urls else StorageSettings


def _storage_of(url: str, where: str) -> StorageAccess:
    kind: StorageAccess = connector("lake.storage", url.partition(":")[0], where)
    return kind


def _mistyped_variables(storage: type[StorageSettings]) -> Iterator[DeclarationError]:
    given = sorted(name for name in os.environ if name.startswith("LAKE_"))
    if not given:
        return
    groups = (*GROUPS, (storage, "storage."))
    variables = {variable(prefix + setting.name) for group, prefix in groups for setting in fields(group)}
    for name in given:
        if name not in variables and (close := get_close_matches(name, variables, n=1, cutoff=0.9)):
            yield DeclarationError(
                f"no setting has the environment variable {name}",
                where="environment",
                fix=f"did you mean {close[0]}?",
            )


def _faults(settings: Settings, written: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (setting, what, fix) of each setting that is wrong with others, or on this machine."""
    yield from _folder_faults(settings)
    yield from _key_faults(settings, written)
    for name in settings.publish.after:
        if name not in (installed := connectors("lake.after_publish")):
            yield "publish.after", f"no connector {name!r} is installed", did_you_mean(name, installed)


def _folder_faults(settings: Settings) -> Iterator[tuple[str, str, str]]:
    for name, url in settings.urls.items():
        if (kind := settings.object_storage) and not kind.folder_url.fullmatch(url):
            what = f"{url} names no folder of the storage {kind.scheme}"
            yield name, what, f"{name} = {kind.form}, or a path on this machine"
    yield from _archive_faults(settings)
    yield from _cold_faults(settings)
    for name in ("cold", "landing", "warehouse"):
        where = getattr(settings, name)
        if where is None or url_of(where):
            continue
        path = settings.path(where)
        if what := path_fault(path):
            yield name, what, "move the project, or name another folder"
        in_the_way = next((folder for folder in (path, *path.parents) if folder.exists()), path)
        if in_the_way.exists() and not in_the_way.is_dir():
            what = f"expected a folder, found the file {in_the_way}"
            yield name, what, "name another folder, or move the file away"


def _archive_faults(settings: Settings) -> Iterator[tuple[str, str, str]]:
    archive, landing = settings.place(settings.archive), settings.place(settings.landing)
    fix = "name another folder, or leave it out: files then stay where they landed"
    if archive == landing:
        yield "archive", f"{archive} is the landing folder itself", fix
    stream = archive.removeprefix(f"{landing}/").partition("/")[0]
    if archive.startswith(f"{landing}/") and settings.path(f"schemas/{stream}.avsc").is_file():
        yield "archive", f"{archive} is within the landing folder of the stream {stream}", fix


def _cold_faults(settings: Settings) -> Iterator[tuple[str, str, str]]:
    if settings.cold is None:
        return
    cold, warehouse = settings.place(settings.cold), settings.place(settings.warehouse)
    kind = settings.object_storage if url_of(settings.warehouse) else None
    if not kind.folder_url.fullmatch(cold) if kind else "://" in str(settings.cold):
        what = f"{settings.cold} is no place that is reached as the warehouse is, {warehouse}"
        fix = f"cold = {kind.form}" if kind else "name a path on this machine; a URL needs a warehouse in that storage"
        yield "cold", what, fix
    if f"{cold}/".startswith(f"{warehouse}/"):
        what = f"{cold} is within the warehouse"
        yield "cold", what, "name another folder, on a disk that costs less"
    for name in ("landing", "archive"):
        where = getattr(settings, name)
        if where is not None and f"{cold}/".startswith(f"{settings.place(where)}/"):
            what = f"{cold} is within {name!r}, whose files are their owner's to delete"
            yield "cold", what, "name another folder: what is archived is part of the logs"


def _key_faults(settings: Settings, written: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if settings.keys_url and settings.keys_url.partition("://")[0] not in connectors("lake.keys"):
        fix = 'keys = "postgresql://HOST/DATABASE", or a path on this machine'
        yield "keys", f"{settings.keys_name} names no key store", fix
    if settings.keys_url == written.get("keys") and has_password(settings.keys_url):
        fix = "leave it out for libpq to find, in PGPASSWORD or ~/.pgpass; or give all of it in the environment"
        yield "keys", "it has a password", fix
