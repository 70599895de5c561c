from __future__ import annotations

from pathlib import Path

import pytest

from lake.config import Settings, load_settings
from lake.errors import DeclarationError


def settings(folder: Path, text: str) -> Settings:
    (folder / "pyproject.toml").write_text(f"[tool.lake]\n{text}\n")
    return load_settings(folder)


def test_settings_come_from_the_file_and_the_environment_overrides_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_BATCH_FILES", "7")
    monkeypatch.setenv("LAKE_SPARK__MASTER", "local[1]")
    monkeypatch.setenv("LAKE_SPARK__CONF", '{"a": "b"}')
    text = 'batch_files = 5\nlease_seconds = 1\nwarehouse = "/data"\n[tool.lake.spark]\ndriver_memory = "1g"'
    found = settings(tmp_path, text)
    assert (found.batch_files, found.lease_seconds, found.warehouse_path) == (7, 1.0, Path("/data"))
    assert (found.spark.master, found.spark.driver_memory, found.spark.conf) == ("local[1]", "1g", {"a": "b"})
    assert found.archive is None


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("publish.after", '"name"', "a list of names"),
        ("publish.after", "[1]", "a list of names"),
        ("spark.conf", '["a"]', "a table of strings"),
        ("spark.conf", '{"a": 1}', "a table of strings"),
        ("publish.groups", '{"a": "b"}', "a table of lists of names"),
        ("publish.groups", '{"a": [1]}', "a table of lists of names"),
        ("publish.groups", "[", "a table of lists of names"),
    ],
)
def test_collection_of_another_form_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, value: str, expected: str
) -> None:
    with pytest.raises(DeclarationError, match=f"setting '{setting}': expected {expected}"):
        settings(tmp_path, f"{setting} = {value.replace(':', ' =') if value != '[' else 0}")
    monkeypatch.setenv(f"LAKE_{setting.upper().replace('.', '__')}", value)
    with pytest.raises(DeclarationError, match=f"setting '{setting}': expected {expected}"):
        settings(tmp_path, "")


def test_settings_report_all_faults_at_once(tmp_path: Path) -> None:
    text = """
    warehous = "x"
    batch_files = 0
    batch_bytes = 1.5
    record_bytes = true
    landing = 3
    spark.master = 4
    spark.conf = {a = 1}
    """
    with pytest.raises(DeclarationError) as found:
        settings(tmp_path, text)
    told = str(found.value)
    assert told.startswith("7 faults:")
    for each in (
        "unknown setting 'warehous'",
        "did you mean 'warehouse'?",
        "setting 'batch_files': expected a whole number of at least 1, found 0",
        "setting 'batch_bytes': expected a whole number of at least 1, found 1.5",
        "setting 'record_bytes': expected a whole number of at least 1, found True",
        "setting 'landing': expected a path, found 3",
        "setting 'spark.master': expected text, found 4",
        "LAKE_SPARK__MASTER",
        "setting 'spark.conf': expected a table of strings (",
    ):
        assert each in told
