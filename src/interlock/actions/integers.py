"""What counts as an integer here: an `int` and nothing that merely resembles one, within 63 bits."""

from __future__ import annotations

from typing import Final, TypeGuard

# What a store's integer column and a reader of JSON in another language can both hold.
MAX_INTEGER: Final = 2**63 - 1


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is 0 or more. A `bool` is no integer."""
    return type(value) is int and 0 <= value <= MAX_INTEGER


def is_positive(value: object) -> TypeGuard[int]:
    """Whether it is 1 or more. A `bool` is no integer."""
    return is_count(value) and value > 0
