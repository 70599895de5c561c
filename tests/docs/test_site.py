"""Site: a strict build, working links, pages without a network, complete reference."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest

import lake
from lake.cli import command_names
from lake.kinds.kind import Kind
from tests.intake import LAKE
from tests.processes import make

ROOT = Path(__file__).parents[2]
pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")


class Page(HTMLParser):
    """Ids, links and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if "src" in found:
            self.loads.append(found["src"])
        if tag == "link" and found.get("rel") not in {"canonical", "prev", "next"}:
            self.loads.append(found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = make("docs", f"SITE={folder}")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"{folder}/index.html"), done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file.read_text("utf-8")) for file in site.rglob("*.html")}


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "infra"))
    return importlib.import_module("reference")


@pytest.mark.slow
def test_site_links_lead_to_a_page_and_a_heading(pages: dict[Path, Page]) -> None:
    for file, page in pages.items():
        if file.name == "404.html":  # Its links begin at the root of a server
            continue
        for link in map(urlsplit, page.links):
            if link.scheme:
                continue
            target = (file.parent / unquote(link.path)).resolve() if link.path else file
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{file.name}: {link.geturl()}"
            if link.fragment and link.fragment != "__skip" and target in pages:
                assert unquote(link.fragment) in pages[target].ids, f"{file.name}: {link.geturl()}"


@pytest.mark.slow
def test_page_loads_nothing_from_a_network(pages: dict[Path, Page], site: Path) -> None:
    for file, page in pages.items():
        assert [load for load in page.loads if urlsplit(load).scheme or load.startswith("//")] == [], file.name
    styles = "".join(file.read_text("utf-8") for file in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import )['\"]?(?:https?:)?//[^)]+", styles) == []


def test_reference_names_every_command_and_option(reference: ModuleType) -> None:
    commands = reference.pages()["reference/commands.md"]
    for command in command_names():
        assert f"`lake {command}" in commands
    assert "`--drop-retired`" in commands


def test_public_names_are_in_a_page(reference: ModuleType) -> None:
    written = {str(file): file.read_text("utf-8") for file in (ROOT / "docs").rglob("*.md")}
    text = "".join((written | reference.pages()).values())
    assert [name for name in lake.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_kind_page_lists_its_options(reference: ModuleType) -> None:
    kinds = [
        name for name in lake.__all__ if isinstance(found := getattr(lake, name), type) and issubclass(found, Kind)
    ]
    assert len(kinds) == 9
    for name in kinds:
        text = reference.filled((ROOT / f"docs/kinds/{name.lower()}.md").read_text("utf-8"))
        assert "| `key` |" in text or "| `id` |" in text
        assert "<!-- " not in text


@pytest.mark.slow
def test_json_shapes_have_keys_of_the_code(reference: ModuleType) -> None:
    source = "".join(file.read_text("utf-8") for file in (ROOT / "lake").rglob("*.py"))
    keys = set(re.findall(r'"(\w+)":', reference.shapes.SHAPES.read_text("utf-8")))
    assert {key for key in keys if not re.search(rf'"{key}"|^    {key}: ', source, re.MULTILINE)} == set()
    assert len(keys) > 60


def test_reference_reports_a_name_known_to_one_side_only(
    reference: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = reference.words.WORDS
    monkeypatch.setitem(words, "settings", {**words["settings"], "gone": "It was."})
    with pytest.raises(reference.words.Drift, match="gone"):
        list(reference.settings.settings())


def test_architecture_lists_the_layers_in_order() -> None:
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    [layers] = [each["layers"] for each in tables if each["type"] == "layers"]
    names = [name.strip() for layer in layers for name in layer.split("|")]
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    section = text.partition("## Folders and layers")[2].partition("## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    shown = [name.rstrip("/") for row in rows for name in re.findall(r"`([\w/]+)`", row)]
    assert set(shown) == set(names)
    order = {name: number for number, layer in enumerate(layers) for name in map(str.strip, layer.split("|"))}
    assert [order[name] for name in shown] == sorted(order[name] for name in shown)


def test_links_of_repository_pages_lead_to_files() -> None:
    for file in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / file).read_text("utf-8")):
            assert (ROOT / link).exists(), f"{file}: {link}"


def test_readme_has_at_most_two_pages() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120


@pytest.mark.slow
def test_search_works_without_server_and_network(site: Path, pages: dict[Path, Page]) -> None:
    assert (site / "search/search_index.js").read_text("utf-8").startswith("var __index = {")
    for file, page in pages.items():
        scripts = [load for load in page.loads if load.endswith(".js")]
        assert scripts[0].endswith("assets/iframe-worker.js"), f"{file.name}: {scripts}"


@pytest.mark.long
def test_browser_search_finds_a_word_in_a_site_opened_from_a_folder(site: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed")
    offline = ["--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]
    line = [
        browser,
        *offline,
        "--virtual-time-budget=20000",
        "--dump-dom",
        f"{(site / 'index.html').as_uri()}?q=revoke",
    ]
    page = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert re.search(r'md-search-result__meta">[1-9][0-9]* matching documents<', page)


def test_shells_complete_commands_as_the_page_shows() -> None:
    lines = re.findall(r"_LAKE_COMPLETE=(\w+)_source", (ROOT / "docs/index.md").read_text("utf-8"))
    assert lines == ["bash", "zsh", "fish"]
    for shell in lines:
        script = completion(_LAKE_COMPLETE=f"{shell}_source")
        assert f"_LAKE_COMPLETE={shell}_complete" in script
    found = completion(_LAKE_COMPLETE="bash_complete", COMP_WORDS="lake reader ", COMP_CWORD="2")
    assert found.split() == ["plain,add", "plain,list", "plain,revoke"]


def completion(**environment: str) -> str:
    done = subprocess.run([LAKE], env=os.environ | environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_pages_install_no_unpublished_package_from_an_index() -> None:
    places = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", *ROOT.glob("lake/templates/**/*.md")]
    wrong = [
        file.name for file in places if re.search(r"pip install [^`\n]*(?<!/)headwater\b", file.read_text("utf-8"))
    ]
    assert wrong == []


def test_table_of_folders_lists_every_connector() -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    [row] = [line for line in text.splitlines() if line.startswith("| `connect/`")]
    folders = [file.parent.name for file in (ROOT / "lake/connect").glob("*/__init__.py")]
    assert folders
    assert [name for name in folders if f"{name}/`" not in row] == []
