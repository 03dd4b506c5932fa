"""`python -m interlock` is `interlock`."""

from __future__ import annotations

from interlock.cli import main

main()
