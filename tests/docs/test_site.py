"""The site is built strictly, without a network, and every page of it asks for nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import json
import re
import socket
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import typer
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from day0.cli.app import app
from tests.docs.pages import GUIDES, ROOT


def _hook(name: str) -> Any:
    """Return a module that only the build of the site imports, by its file: docs is no package."""
    spec = importlib.util.spec_from_file_location(f"hook_{name}", ROOT / "docs" / "hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


commands, decisions, outside, python_api = map(_hook, ("commands", "decisions", "outside", "python_api"))

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class _Assets(HTMLParser):
    """What a page loads by itself; what a reader may click on is no part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        value = dict(attrs).get(LOADS.get(tag, ""))
        if value:
            self.found.append(value)


def _build(to: Path, **more: Any) -> None:
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(to), strict=True, **more))


def _no_network(*_: object, **__: object) -> None:
    raise OSError("no network while the site is built")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with every connection refused."""
    to = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        patch.setattr(socket.socket, "connect", _no_network)
        _build(to)
    return to


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        assets = _Assets()
        assets.feed(page.read_text(encoding="utf-8"))
        assert assets.found
        for one in assets.found:
            assert not re.match(r"(https?:)?//", one), f"{page.relative_to(site)} loads {one}"
            if one.startswith("data:"):
                continue  # it lies in the page itself, as the empty icon of a report does
            # The page for a missing address is served from anywhere, so its links begin at the top.
            if page.name != "404.html":
                assert (page.parent / one.partition("?")[0]).exists(), f"{page.relative_to(site)} has no {one}"
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text(encoding="utf-8"), style


def test_every_page_of_documentation_is_reached_from_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    for path in (*(ROOT / "docs").rglob("*.md"), *(ROOT / one for one in GUIDES)):
        page = outside.page_of(str(path.relative_to(ROOT)))
        target = re.sub(r"README\.md$", "index.md", page).removesuffix(".md") + ".html"
        assert (site / target).exists(), page
        assert f'href="{target}"' in home, page


def test_every_command_has_its_section(site: Path) -> None:
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        text = (site / "reference" / "commands" / f"{name}.html").read_text(encoding="utf-8")
        for below in getattr(command, "commands", {}):
            assert f"day0 {name} {below}" in text
        for option in (flag for one in command.params if not one.hidden for flag in one.opts if one.name != "help"):
            assert option in text, (name, option)


def test_docstrings_reach_the_site(site: Path) -> None:
    text = (site / "reference" / "python" / "day0.html").read_text(encoding="utf-8")
    assert "A mistake that the user can repair" in text
    assert 'id="constraints"' in text


def test_the_search_finds_words_of_pages(site: Path) -> None:
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    places = {one["location"].partition("#")[0] for one in found["docs"] if "yardstick" in one["text"]}
    assert {"explain/judgement.html", "glossary.html", "numerics.html"} <= places


@pytest.mark.parametrize("planted", ["[there](nowhere.md)", "[there](check.md#no-such-heading)", "[there](/check.md)"])
def test_a_link_that_leads_nowhere_ends_the_build(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "check.md").write_text("# Check\n", encoding="utf-8")
    (folder / "index.md").write_text(f"# Home\n\n{planted}\n", encoding="utf-8")
    nav = [{"Home": "index.md"}, {"Check": "check.md"}]
    with pytest.raises(Abort):
        _build(tmp_path / "site", docs_dir=str(folder), hooks=[], plugins=[], nav=nav, not_in_nav="", exclude_docs="")


def test_links_are_rewritten_for_the_place_of_the_page() -> None:
    text = "[a](../../docs/check.md#known-failures) [b](tokens_differ.md) [c](../../CONTRIBUTING.md) [d](https://x.org)"
    said = outside.rewritten(text, "playbooks/guides/README.md", "guides/README.md")
    assert said == "[a](../check.md#known-failures) [b](tokens_differ.md) [c](../contributing.md) [d](https://x.org)"
    code = outside.rewritten("[a](../playbooks/toy-on-sim.yaml)", "docs/diff.md", "diff.md")
    assert code == "[a](source/playbooks/toy-on-sim.yaml.md)"


def test_what_a_command_says_cannot_become_markup() -> None:
    assert "<" not in commands._inline("<script> | *x* _y_ [z](http://x)").replace("&#60;", "")
    assert "|" not in commands._inline("a | b")


def test_private_modules_and_names_stay_out() -> None:
    pages = python_api.pages()
    assert "## day0.reference_ops._load" not in pages["reference/python/reference_ops.md"]
    assert "### Day0Error" in pages["reference/python/day0.md"]
    assert set(pages) == {f"reference/python/{name}.md" for name in python_api.FOLDERS}


def test_a_decision_without_a_title_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0001-no-title.md").write_text("no heading\n", encoding="utf-8")
    with pytest.raises(Exception, match="a decision begins with a heading"):
        decisions.titles(tmp_path)
