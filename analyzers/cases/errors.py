"""What is raised where arguments cannot be made, or a call is no valid one."""

from __future__ import annotations

from day0.errors import USER_ERRORS, Day0Error

__all__ = ["MAKE_ERRORS"]

MAKE_ERRORS: tuple[type[BaseException], ...] = (*USER_ERRORS, Day0Error, TypeError, ValueError)
