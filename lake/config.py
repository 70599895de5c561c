"""Settings of a project: `[tool.lake]` in its pyproject.toml, each overridden by a `LAKE_…` environment variable."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from lake.errors import DeclarationError, did_you_mean


class SparkSettings(BaseModel):
    """How a Spark session is started. `remote` (or SPARK_REMOTE) names a Spark Connect server instead."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    master: str = "local[*]"
    remote: str = ""
    driver_memory: str = "2g"
    shuffle_partitions: int = Field(default=2, ge=1)
    conf: dict[str, str] = Field(default_factory=dict)


class Settings(BaseSettings):
    """Everything a project can set. Relative paths are relative to the project folder."""

    model_config = SettingsConfigDict(env_prefix="LAKE_", env_nested_delimiter="__", extra="forbid", frozen=True)

    project: Path
    warehouse: Path = Path(".lake/warehouse")
    landing: Path = Path("landing")
    archive: Path | None = None
    jars: Path = Path(sys.prefix) / "share/headwater/jars"
    batch_files: int = Field(default=1000, ge=1, description="files taken into one batch at most")
    batch_bytes: int = Field(default=2 << 30, ge=1, description="bytes of files taken into one batch at most")
    record_bytes: int = Field(default=1 << 20, ge=1, description="a longer record goes to quarantine")
    lease_seconds: float = Field(default=10.0, ge=0, description="how long a writer waits for another")
    committer: Literal["auto", "delta-rs", "spark"] = "auto"
    small_diff_rows: int = Field(default=500_000, ge=0, description="a larger diff is committed by Spark")
    spark: SparkSettings = SparkSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over pyproject.toml, which arrives as constructor arguments."""
        return env_settings, init_settings

    def path(self, relative: Path | str) -> Path:
        """`relative` as an absolute path under the project folder."""
        return (self.project / relative).resolve()

    @property
    def warehouse_path(self) -> Path:
        return self.path(self.warehouse)

    def log_path(self, stream: str) -> Path:
        return self.warehouse_path / "logs" / stream

    def quarantine_path(self, stream: str) -> Path:
        return self.warehouse_path / "quarantine" / stream

    def table_path(self, layer: str, table: str) -> Path:
        """`layer` is the folder of the table's job: silver or gold."""
        return self.warehouse_path / layer / table

    def meta_path(self, name: str) -> Path:
        return self.warehouse_path / "meta" / name


def find_project(start: Path) -> Path:
    """The nearest folder at or above `start` whose pyproject.toml has a `[tool.lake]` table.

    Raises DeclarationError where there is none.
    """
    start = start.resolve()
    for folder in (start, *start.parents):
        if _tool_lake(folder) is not None:
            return folder
    raise DeclarationError(
        "no project here: no pyproject.toml with a [tool.lake] table",
        where=f"looked in {start} and the folders above it",
        fix="run `lake init DIR` to make one, or name one with --project DIR",
    )


def load_settings(project: Path | None = None) -> Settings:
    """The settings of `project`, or of the nearest project above the current folder.

    Raises DeclarationError that tells every faulty setting at once.
    """
    folder = find_project(Path.cwd()) if project is None else project.resolve()
    values = _tool_lake(folder)
    if values is None:
        raise DeclarationError(
            "not a project: no pyproject.toml with a [tool.lake] table", where=str(folder), fix=f"lake init {folder}"
        )
    try:
        return Settings(project=folder, **values)
    except ValidationError as error:
        raise DeclarationError.all(_fault(fault, folder) for fault in error.errors()) from None


def _tool_lake(folder: Path) -> dict[str, Any] | None:
    file = folder / "pyproject.toml"
    if not file.is_file():
        return None
    try:
        tool = tomllib.loads(file.read_text("utf-8")).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeclarationError(f"not valid TOML: {error}", where=str(file)) from None
    table: dict[str, Any] | None = tool.get("lake")
    return table


def _fault(fault: Any, folder: Path) -> DeclarationError:
    name = ".".join(str(part) for part in fault["loc"])
    known = SparkSettings.model_fields if name.startswith("spark.") else Settings.model_fields
    extra = fault["type"] == "extra_forbidden"
    return DeclarationError(
        f"unknown setting {name!r}" if extra else f"setting {name!r}: {fault['msg']}, found {fault['input']!r}",
        where=f"[tool.lake] in {folder / 'pyproject.toml'}, or LAKE_{name.upper().replace('.', '__')}",
        fix=did_you_mean(name.rpartition(".")[2], known) if extra else "",
    )
