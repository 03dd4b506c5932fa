"""Where the control plane of this user is: `interlock up` writes its address and its token into its data directory."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from interlock.errors import Unavailable

VARIABLE = "INTERLOCK_DATA_DIR"


def data_directory() -> Path:
    """`INTERLOCK_DATA_DIR`, else the user's data directory."""
    return Path(os.environ.get(VARIABLE) or platformdirs.user_data_dir("interlock"))


def local_address(data: Path | None = None) -> tuple[str, str]:
    """The address and the token of the control plane that has this data directory. Raises `Unavailable`."""
    directory = data or data_directory()
    try:
        address = (directory / "control" / "address").read_text("utf-8").strip()
        token = (directory / "control" / "token").read_text("utf-8").strip()
    except OSError:
        message = f"no control plane runs on {directory}: start one with `interlock up`"
        raise Unavailable(message) from None
    return address, token
