"""A serial as the name of a file: told apart from every other, and never a way out of its directory."""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.pools import ref
from interlock.errors import InvalidInput
from interlock.fleet.model import DeviceRef

SERIALS = st.from_regex(r"[A-Za-z0-9_.:/-]{1,128}", fullmatch=True).filter(
    lambda serial: not {".", ".."} & set(serial.split("/"))
)


@given(serial=SERIALS)
def test_the_file_of_a_serial_lies_in_its_directory_and_gives_the_serial_back(serial: str) -> None:
    name = ref("h1", serial).file_name
    assert PurePosixPath("records", name).parts == ("records", name)
    assert name not in {".", ".."}
    assert not name.startswith(".")
    assert unquote(name) == serial


@given(serial=SERIALS)
def test_a_device_is_read_as_it_is_shown(serial: str) -> None:
    assert DeviceRef.parse(str(ref("h1", serial))) == ref("h1", serial)


@pytest.mark.parametrize(
    "text", ["", "h1", "h1/", "/s", "H/s", "h1/a b", "h1/" + "x" * 129, "h1/..", "h1/a/./b", "h1/../a"]
)
def test_what_is_no_device_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        DeviceRef.parse(text)
