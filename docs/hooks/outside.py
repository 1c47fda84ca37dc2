"""Pages of the site whose source stands elsewhere in the repository, and links to files that are no pages.

The Markdown of this repository is read in three places: in an editor, in a web view of the repository, and on the site.
Links are written for the first two. Here they are turned into links that work on the third.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

__all__ = ["on_files", "on_page_markdown", "page_of", "rewritten"]

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages by where they stand in the repository: where they stand on the site. Folders are in `page_of`."""
GUIDES = "playbooks/guides/"
EXAMPLES = "playbooks/examples/"
LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".json": "json", ".md": "markdown"}


def page_of(path: str) -> str:
    """Return where a file of the repository stands on the site, both as paths from the top; "" if it is no page."""
    if (ROOT / path).is_dir():
        return "decisions/index.md" if path == "docs/decisions" else ""
    if path.startswith("docs/") and not path.startswith("docs/hooks/"):
        return path.removeprefix("docs/")
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if path.startswith(GUIDES):
        return f"guides/{path.removeprefix(GUIDES)}"
    if path.startswith(EXAMPLES) and path.endswith("README.md"):
        return f"examples/{path.removeprefix(EXAMPLES).removesuffix('/README.md')}.md"
    return ""


def _elsewhere() -> Iterable[str]:
    """Name the pages that stand outside docs/."""
    yield from ELSEWHERE
    yield from (str(path.relative_to(ROOT)) for path in sorted((ROOT / GUIDES).glob("*.md")))
    yield from (str(path.relative_to(ROOT)) for path in sorted((ROOT / EXAMPLES).glob("*/README.md")))


def _sources(files: Files) -> dict[str, str]:
    """Return the source of every page that was written by hand, by its place on the site."""
    found = {page.src_uri: f"docs/{page.src_uri}" for page in files.documentation_pages() if not page.generated_by}
    return found | {page_of(path): path for path in _elsewhere()}


def _linked(text: str, source: str) -> Iterable[str]:
    """Name what a page links to, as paths from the top of the repository."""
    for one in LINK.finditer(text):
        yield posixpath.normpath(posixpath.join(posixpath.dirname(source), one["target"]))


def _as_list(path: str) -> str:
    """Return a page that names the files of a folder; those that are on the site are links."""
    names = sorted(one.name for one in (ROOT / path).iterdir() if one.is_file())
    top = "../" * len(Path(path).parts)
    rows = [f"- [{one}]({top}{page})" if (page := page_of(f"{path}/{one}")) else f"- `{one}`" for one in names]
    return "\n".join([f"# {path}\n", *rows, ""])


def _as_page(path: str) -> str:
    """Return a page that shows one file."""
    file = ROOT / path
    if file.is_dir():
        return _as_list(path)
    if not file.is_file():
        raise PluginError(f"docs/hooks/outside.py: a page links to {path}, which is no file")
    kind = LANGUAGES.get(file.suffix, "text")
    return f"# {path}\n\n`````` {kind}\n{file.read_text(encoding='utf-8')}``````\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from elsewhere, and a page for every other file that some page links to."""
    for path in _elsewhere():
        files.append(File.generated(config, page_of(path), abs_src_path=str(ROOT / path)))
    shown: set[str] = set()
    for source in _sources(files).values():
        text = (ROOT / source).read_text(encoding="utf-8")
        shown.update(path for path in _linked(text, source) if not page_of(path))
    for path in sorted(shown):
        files.append(File.generated(config, f"source/{path}.md", content=_as_page(path)))
    return files


def rewritten(text: str, source: str, page: str) -> str:
    """Return the Markdown of `source` with links that work from `page`; paths from the top of repository and site."""

    def there(one: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), one["target"]))
        target = posixpath.relpath(page_of(path) or f"source/{path}.md", posixpath.dirname(page) or ".")
        return f"{one['before']}{target}{one['anchor'] or ''})"

    return LINK.sub(there, text)


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of a page that was written by hand."""
    source = _sources(files).get(page.file.src_uri)
    return rewritten(markdown, source, page.file.src_uri) if source else markdown
