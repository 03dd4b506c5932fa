"""Where the control plane of this user is: as the environment says, or as it wrote into its data directory itself."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from interlock.errors import InvalidInput, Unavailable

VARIABLE = "INTERLOCK_DATA_DIR"
SERVER_VARIABLE = "INTERLOCK_SERVER"
TOKEN_VARIABLE = "INTERLOCK_TOKEN"  # noqa: S105 - its name, not its value


def data_directory() -> Path:
    """`INTERLOCK_DATA_DIR`, else the user's data directory."""
    return Path(os.environ.get(VARIABLE) or platformdirs.user_data_dir("interlock"))


def local_address(data: Path | None = None) -> tuple[str, str]:
    """The address and the token of the control plane that has this data directory.

    Where no directory is named, `INTERLOCK_SERVER` and `INTERLOCK_TOKEN` go before that of this user.

    Raises:
        Unavailable: none runs there.
        InvalidInput: a server is named without a token.
    """
    server, known = os.environ.get(SERVER_VARIABLE), os.environ.get(TOKEN_VARIABLE)
    if data is None and server:
        if not known:
            message = f"{SERVER_VARIABLE} names a control plane: set {TOKEN_VARIABLE} to a token of it too"
            raise InvalidInput(message)
        return server, known
    directory = data or data_directory()
    try:
        address = (directory / "control" / "address").read_text("utf-8").strip()
        token = (directory / "control" / "token").read_text("utf-8").strip()
    except OSError:
        message = f"no control plane runs on {directory}: start one with `interlock up`"
        raise Unavailable(message) from None
    return address, token
