"""`--locked` and `--frozen`: a lock that this command may not change."""

from __future__ import annotations

from pkgutil import resolve_name

from day0.cli.rundir import FILES, Freshness
from day0.cli.session import LockMode, Session
from day0.codec import body_hash
from day0.errors import Day0Error
from day0.records import Lock
from day0.registry.lock_diff import LockChange, between_locks

__all__ = ["drift", "hold_lock", "lock_mode"]


def lock_mode(*, locked: bool, frozen: bool) -> LockMode:
    """Return the word for two flags. Raises Day0Error if both are given."""
    if locked and frozen:
        raise Day0Error("--locked --frozen", "they exclude each other", hint="--frozen does not look, --locked does")
    return "locked" if locked else "frozen" if frozen else "update"


def hold_lock(session: Session, found: Freshness) -> Freshness:
    """Say that the lock stays as it is. Raises Day0Error if there is none, or if `--locked` finds that it would change."""
    session.folder.need(Lock)
    if session.lock_mode == "frozen":
        return Freshness(fresh=True, reason="--frozen: taken as it is", held=True)
    if found.fresh:
        return found
    changes = drift(session)
    if not changes:
        return Freshness(fresh=True, reason=f"--locked: {found.reason}, and the choices are the same", held=True)
    where = session.folder.path
    raise Day0Error(
        str(session.folder.file(FILES[Lock][1])),
        f"the lock would change, which --locked forbids ({found.reason})",
        facts=changes,
        hint=f"look at the changes, then lock anew with `day0 register --run {where}`",
    )


def drift(session: Session) -> tuple[str, ...]:
    """Take the inventory and choose anew, without writing anything, and say what differs from the lock."""
    before = session.folder.need(Lock).record
    # Named, not imported: showing a plan does not load torch.
    resolve_name("day0.reference_ops.torch_ops:register_operators")()
    inventory = resolve_name("day0.cli.make:make_inventory")(session)
    after: Lock = resolve_name("day0.cli.make:make_lock")(session, inventory)
    if body_hash(before) == body_hash(after):
        return ()
    changes = tuple(_text(one) for one in between_locks(before, after))
    return changes or ("calls of open gaps, or fields of another day0; no choice is another",)


def _text(one: LockChange) -> str:
    dtypes = f" ({', '.join(dict.fromkeys(one.dtypes))})" if one.dtypes else ""
    sides = f"{one.before or 'nothing'} before, {one.after or 'nothing'} now"
    return f"{one.operator}{dtypes}: {one.what}: {sides}" + (f"; {one.why}" if one.why else "")
