"""Put a playbook together from the files that it includes: deep merge, what stands later wins, lists are replaced."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from day0 import playbooks
from day0.errors import Day0Error, near_names
from day0.yamlfile import KeyPath, YamlDocument, read_yaml

__all__ = ["playbook_path", "put_together", "shipped_playbooks"]

MAX_DEPTH = 8
MAX_FILES = 64
MAX_BYTES = 4 << 20
SCHEMA = "day0.playbook/1"
_WORDS = ("include", "remove")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reading:
    """One way down: the files from the playbook to the one that is read, and the folder that none of them may leave."""

    chain: tuple[str, ...]
    """`file:line` of each include that led here."""
    open: tuple[Path, ...]
    """Files that are being read, resolved: one that comes again is a cycle."""
    root: Path
    read: list[int] = field(default_factory=list)
    """Bytes of every file so far, shared by all ways."""


def put_together(path: Path) -> YamlDocument:
    """Read a playbook with everything it includes; the result has no `include` any more.

    Raises Day0Error, naming the chain of files: a file that is missing or malformed, one outside of the folder of the
    playbook, a cycle, more than 8 levels, 64 files or 4 MiB.
    """
    document = read_yaml(path)
    reading = _Reading(chain=(), open=(path.resolve(),), root=path.resolve().parent)
    return _with_includes(document, reading)


def playbook_path(asked: Path) -> Path:
    """Find a playbook: a file, or the name of one that ships with day0."""
    if asked.exists():
        return asked
    shipped = shipped_playbooks()
    own = shipped.get(asked.name.removesuffix(".yaml"))
    # Only a bare name, or the path as it stands in the repository: anything else was meant as a file.
    if str(asked.parent) in (".", "playbooks") and own is not None:
        return own
    hint = near_names(asked.stem, tuple(shipped)) or f"playbooks that ship with day0: {', '.join(shipped)}"
    raise Day0Error(str(asked), "there is no such playbook", hint=hint)


def shipped_playbooks() -> dict[str, Path]:
    """Return the playbooks that ship with day0 by name."""
    return {path.stem: path for path in sorted(Path(playbooks.__path__[0]).glob("*.yaml"))}


def _with_includes(document: YamlDocument, reading: _Reading) -> YamlDocument:
    if not isinstance(document.data, dict):
        facts = _chain_facts(reading.chain)
        raise Day0Error(document.place_of(()), "a playbook is a mapping of fields", facts=facts, hint="`key: value`")
    own = {key: value for key, value in document.data.items() if key not in _WORDS}
    found = YamlDocument(path=document.path, data={}, lines={}, text=document.text)
    for name, place in _names(document, reading):
        found = _merged(found, _included(name, place, document, reading))
    found = _removed(found, document)
    lines = {key: line for key, line in document.lines.items() if key[:1] not in {(word,) for word in _WORDS}}
    files = dict.fromkeys(lines, document.path)
    return _merged(found, YamlDocument(path=document.path, data=own, lines=lines, text=document.text, files=files))


def _names(document: YamlDocument, reading: _Reading) -> list[tuple[str, str]]:
    """Return what is included, each with its place."""
    assert isinstance(document.data, dict)  # noqa: S101 - looked at by the caller
    asked = document.data.get("include", [])
    listed = asked if isinstance(asked, list) else [asked]
    keys: list[KeyPath] = [
        ("include", number) if isinstance(asked, list) else ("include",) for number in range(len(listed))
    ]
    for key, one in zip(keys, listed, strict=True):
        if not isinstance(one, str) or not one.strip() or "\0" in one or "${" in one:
            what = f"include takes names of files and of playbooks, without variables, got {one!r}"
            raise Day0Error(
                document.place_of(key), what, facts=_chain_facts(reading.chain), hint="include: [common.yaml]"
            )
    return [(one, document.place_of(key)) for key, one in zip(keys, listed, strict=True)]


def _included(name: str, place: str, document: YamlDocument, reading: _Reading) -> YamlDocument:
    chain = (*reading.chain, place)
    path, root = _find(name, chain, document.path.parent, reading.root)
    resolved = path.resolve()
    if resolved in reading.open:
        raise Day0Error(place, f"'{name}' includes itself", facts=_chain_facts(chain), hint="break the cycle")
    if len(chain) > MAX_DEPTH:
        raise Day0Error(
            place, f"includes are nested deeper than {MAX_DEPTH}", facts=_chain_facts(chain), hint="fewer files"
        )
    try:
        read = read_yaml(path)
    except Day0Error as error:
        raise Day0Error(error.where, error.what, facts=(*error.facts, *_chain_facts(chain)), hint=error.hint) from None
    reading.read.append(len(read.text))
    if len(reading.read) > MAX_FILES or sum(reading.read) > MAX_BYTES:
        what = f"more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB are included"
        raise Day0Error(place, what, facts=_chain_facts(chain), hint="include fewer or smaller files")
    _refuse_other_schema(read, chain)
    below = _Reading(chain=chain, open=(*reading.open, resolved), root=root, read=reading.read)
    return _with_includes(read, below)


def _find(name: str, chain: tuple[str, ...], folder: Path, root: Path) -> tuple[Path, Path]:
    """Return the file that a name in `include` means, and the folder that its own includes may not leave."""
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        shipped = shipped_playbooks()
        if name in shipped:
            return shipped[name], shipped[name].resolve().parent
        hint = near_names(name, tuple(shipped)) or f"playbooks that ship with day0: {', '.join(shipped)}"
        what = f"no playbook '{name}' ships with day0"
        raise Day0Error(chain[-1], what, facts=_chain_facts(chain), hint=f"{hint}; a file ends with .yaml")
    path = folder / name
    if Path(name).is_absolute() or not path.resolve().is_relative_to(root):
        what = f"'{name}' lies outside of the playbook's folder"
        raise Day0Error(chain[-1], what, facts=_chain_facts(chain), hint="put it below that folder")
    if not path.is_file():
        what = f"there is no file '{name}' beside {folder / ''}" if str(folder) != "." else f"there is no file '{name}'"
        near = near_names(name, tuple(sorted(one.name for one in folder.glob("*.yaml"))))
        raise Day0Error(
            chain[-1], what, facts=_chain_facts(chain), hint=near or "check the path; it is relative to this file"
        )
    return path, root


def _refuse_other_schema(read: YamlDocument, chain: tuple[str, ...]) -> None:
    """A part of a playbook needs no schema; one that has another is something else."""
    if isinstance(read.data, dict) and (schema := read.data.get("schema", SCHEMA)) != SCHEMA:
        what = f"it has schema {schema!r}, and what is included is {SCHEMA}"
        raise Day0Error(read.place_of(("schema",)), what, facts=_chain_facts(chain), hint="include playbooks only")


def _chain_facts(chain: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"included at {place}" for place in chain)


def _merged(base: YamlDocument, over: YamlDocument) -> YamlDocument:
    """Lay one document over another. A key that both have is merged where both hold mappings, else replaced."""
    replaced: list[KeyPath] = []
    data = _laid_over(base.data, over.data, (), replaced)
    gone = set(replaced)
    kept = [key for key in base.lines if not any(key[:length] in gone for length in range(1, len(key) + 1))]
    return YamlDocument(
        path=over.path,
        data=data,
        lines={**{key: base.lines[key] for key in kept}, **over.lines},
        text=over.text,
        files={**{key: base.files[key] for key in kept if key in base.files}, **over.files},
    )


def _removed(found: YamlDocument, document: YamlDocument) -> YamlDocument:
    """Take away the fields of included files that `remove` names."""
    assert isinstance(document.data, dict)  # noqa: S101 - looked at by the caller
    asked = document.data.get("remove", [])
    if not isinstance(asked, list) or not all(isinstance(one, str) for one in asked):
        what = f"remove takes a list of fields, got {asked!r:.80}"
        raise Day0Error(document.place_of(("remove",)), what, hint="remove: [workload.phases]")
    gone = [tuple(one.split(".")) for one in asked]
    for number, key in enumerate(gone):
        if key not in found.lines:
            known = tuple(".".join(map(str, one)) for one in found.lines if one)
            what = f"no included file has the field '{asked[number]}'"
            hint = near_names(asked[number], known) or "remove takes fields of included files"
            raise Day0Error(document.place_of(("remove", number)), what, hint=hint)
    kept = {key: line for key, line in found.lines.items() if not any(key[: len(one)] == one for one in gone)}
    return replace(found, data=_without(found.data, (), set(gone)), lines=kept)


def _without(data: object, key: KeyPath, gone: set[KeyPath]) -> object:
    if not isinstance(data, dict):
        return data
    kept = {name: value for name, value in data.items() if (*key, name) not in gone}
    return {name: _without(value, (*key, name), gone) for name, value in kept.items()}


def _laid_over(base: object, over: object, key: KeyPath, replaced: list[KeyPath]) -> object:
    if not isinstance(base, dict) or not isinstance(over, dict):
        replaced.append(key)
        return over
    found = dict(base)
    for name, value in over.items():
        found[name] = _laid_over(base[name], value, (*key, name), replaced) if name in base else value
    return found
