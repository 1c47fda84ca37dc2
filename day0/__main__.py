"""`python -m day0`."""

from __future__ import annotations

from day0.cli.app import main

main()
