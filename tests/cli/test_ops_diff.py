"""`day0 ops diff`: each kind of change is said with its why, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from day0.cli.app import app
from day0.codec import encode
from day0.records import Decision, Gap, Identity, Lock, LockEntry
from day0.registry.collect import collect

SHIPPED = {str(one.identity): one for one in collect()}
TOPK = "aten::topk@1 base:stable_sort==1.0"


def day0(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "120", "NO_COLOR": "1"})


def entry(shipped: str = TOPK, **changes: Any) -> LockEntry:
    """An entry as `day0 register` writes it for something that ships."""
    one = SHIPPED[shipped]
    fields = {
        "operator": one.operator,
        "dtypes": ("float32",),
        "signatures": ("0" * 16,),
        "identity": one.identity,
        "kind": one.kind,
        "source_hash": one.source_hash,
        "origin": one.origin,
        "decisions": (Decision(candidate=shipped, accepted=True, reason=one.why),),
    }
    return LockEntry.model_validate({**fields, **changes})


def other(**changes: Any) -> Identity:
    return SHIPPED[TOPK].identity.model_copy(update=changes)


def lock(*entries: LockEntry, **changes: Any) -> Lock:
    return Lock.model_validate(
        {"device": "sim", "namespace": "base", "model": "sha256:1", "entries": entries, **changes}
    )


def written(path: Path, record: Lock) -> Path:
    path.write_text(encode(record, inputs={}, environment={}))
    return path


@pytest.fixture
def compare(tmp_path: Path) -> Any:
    def run(before: Lock, after: Lock | None = None, *more: object) -> tuple[int, list[dict[str, Any]], str]:
        paths = [written(tmp_path / "old.lock", before)]
        if after is not None:
            paths.append(written(tmp_path / "new.lock", after))
        plain, asked = day0("ops", "diff", *paths, *more), day0("ops", "diff", *paths, *more, "--json")
        assert plain.exit_code == asked.exit_code, plain.output
        told = json.loads(asked.stdout)
        assert told["same"] == (not told["changes"]) == (plain.exit_code == 0)
        return plain.exit_code, told["changes"], plain.stdout

    return run


def test_the_same_lock_says_so(compare: Any) -> None:
    code, changes, text = compare(lock(entry()), lock(entry()))
    assert (code, changes) == (0, []) and "say the same" in text


GAP = Gap(
    operator="aten::topk",
    dtypes=("float32",),
    signatures=("0" * 16,),
    calls=3,
    module="m",
    reason="no kernel",
    decisions=(Decision(candidate=TOPK, accepted=False, reason="takes float16, not float32"),),
)
BETTER = entry(
    identity=other(id="better"),
    decisions=(
        Decision(candidate="aten::topk@1 base:better==1.0", accepted=True, reason="it is quicker"),
        Decision(candidate=TOPK, accepted=False, reason="aten::topk@1 base:better==1.0 comes first"),
    ),
)


@pytest.mark.parametrize(
    ("before", "after", "what", "texts"),
    [
        (lock(), lock(entry()), "added", ("", TOPK, SHIPPED[TOPK].why)),
        (lock(entry()), lock(), "removed", (TOPK, "", "no call needs it any more")),
        (lock(entry()), lock(BETTER), "implementation", (TOPK, "aten::topk@1 base:better==1.0", "comes first")),
        (lock(BETTER), lock(entry()), "implementation", ("base:better", TOPK, SHIPPED[TOPK].why)),
        (lock(entry()), lock(entry(source_hash="sha256:" + "0" * 64)), "source", ("sha256:", "sha256:0000", "from ")),
        (lock(entry()), lock(gaps=(GAP,)), "gap opened", (TOPK, "", "takes float16, not float32")),
        (lock(gaps=(GAP,)), lock(entry()), "gap closed", ("", TOPK, SHIPPED[TOPK].why)),
        (lock(entry()), lock(entry(signatures=("0" * 16, "1" * 16))), "calls", ("", "", "1 signatures more, 0 fewer")),
        (lock(entry()), lock(entry(), device="cuda"), "lock", ("sim", "cuda", "")),
    ],
)
def test_each_change_is_named_once_with_its_why(
    compare: Any, before: Lock, after: Lock, what: str, texts: tuple[str, str, str]
) -> None:
    code, (change,), text = compare(before, after)
    assert code == 1 and change["what"] == what, change
    for field, expected in zip(("before", "after", "why"), texts, strict=True):
        assert expected in change[field] and bool(expected) == bool(change[field]), change
        assert change[field] in text.replace("\n", " ") or len(change[field]) > 60
    assert "1 difference between" in text


def test_another_contract_version_is_said_beside_the_new_choice(compare: Any) -> None:
    _, changes, _ = compare(lock(entry()), lock(entry(identity=other(contract=2))))
    assert [one["what"] for one in changes] == ["contract", "implementation"]
    assert (changes[0]["before"], changes[0]["after"]) == ("contract 1", "contract 2")


def test_what_is_installed_is_as_it_was_locked(compare: Any) -> None:
    assert compare(lock(*map(entry, sorted(SHIPPED))))[:2] == (0, [])


@pytest.mark.parametrize(
    ("locked", "what", "why"),
    [
        (entry(source_hash="sha256:" + "0" * 64), "source", "has changed since it was locked"),
        (entry(identity=other(version="0.9")), "removed", "version 0.9 is gone; there is 1.0"),
        (entry(identity=other(id="gone"), origin="mine.py:3"), "removed", "it came from mine.py:3"),
        (entry(identity=other(contract=7)), "contract", "version 1.0 is gone"),
        (
            entry(identity=other(id="gone"), distribution="zz-kernels==1.2", origin="zz"),
            "removed",
            "the package zz-kernels==1.2, which brought it, is not installed",
        ),
    ],
)
def test_what_is_not_installed_as_it_was_locked_is_said(compare: Any, locked: LockEntry, what: str, why: str) -> None:
    code, (change,), _ = compare(lock(locked))
    assert code == 1 and change["what"] == what and (why in change["why"] or what == "contract"), change


def test_two_contracts_are_compared_field_by_field(tmp_path: Path) -> None:
    shown = json.loads(day0("ops", "show", "day0::rms_norm", "--json").stdout)
    (tmp_path / "now.json").write_text(json.dumps(shown))
    assert day0("ops", "diff", tmp_path / "now.json").exit_code == 0
    shown["version"] += 1
    shown["tolerance"]["ulps"] = 9
    (tmp_path / "next.json").write_text(json.dumps(shown))
    done = day0("ops", "diff", tmp_path / "now.json", tmp_path / "next.json", "--json")
    assert done.exit_code == 1
    assert [one["why"] for one in json.loads(done.stdout)["changes"]] == ["version differs", "tolerance differs"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "there is no such run folder or lock"),
        ("", "no lock, or it is cut off"),
        ("[" * 100_000, "no lock, or it is cut off"),
        ("[]", "neither a lock nor a contract"),
        ('{"schema": "day0.trace/1"}', "neither a lock nor a contract"),
        ('{"schema": "day0.lock/9", "body": {}}', "it has schema day0.lock/9"),
        ('{"schema": "day0.lock/1", "body": {}}', "ops.lock"),
        ('{"name": "day0::gone", "mathematics": ""}', "there is no 'day0::gone'"),
    ],
)
def test_what_is_no_lock_is_refused(text: str | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "ops.lock"
    if text is not None:
        path.write_text(text)
    done = day0("ops", "diff", path)
    assert done.exit_code == 2 and says in done.stderr, done.output


def test_a_lock_and_a_contract_are_not_compared(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"name": "day0::rms_norm", "mathematics": ""}')
    done = day0("ops", "diff", tmp_path / "c.json", written(tmp_path / "ops.lock", lock()))
    assert done.exit_code == 2 and "one side is a lock and the other a contract" in done.stderr
