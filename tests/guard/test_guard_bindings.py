"""Templates: how strings refer to values, and that values stay values."""

from __future__ import annotations

import pytest

from interlock.errors import InvalidInput
from interlock.guard.bindings import Reference, Text, literal, parse_text, references, resolve, template, with_inputs

OUTPUTS = {"a": {"list": [10, {"x": "deep"}], "text": "words", "flag": True, "none": None, "0": "zero"}}


async def lookup(reference: Reference) -> object:
    return OUTPUTS[reference.name]


async def value_of(text: str) -> object:
    return await resolve(template(text), lookup)


@pytest.mark.contract("G-33")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("", ""),
        ("${steps.a.list}", [10, {"x": "deep"}]),
        ("${steps.a.list.0}", 10),
        ("${steps.a.list.1.x}", "deep"),
        ("${steps.a.flag}", True),
        ("${steps.a.none}", None),
        ("${steps.a.0}", "zero"),
        ("${steps.a}", OUTPUTS["a"]),
        ("<${steps.a.list.0}|${steps.a.text}>", "<10|words>"),
        ("$${steps.a.text} $x {y} $", "${steps.a.text} $x {y} $"),
        ("$$${steps.a.text}", "$${steps.a.text}"),
        ("$${", "${"),
    ],
)
async def test_a_reference_takes_the_value_it_names(text: str, value: object) -> None:
    assert await value_of(text) == value


@pytest.mark.contract("G-33")
@pytest.mark.parametrize("text", ["x ${steps.a.flag}", "x ${steps.a.list}", "x ${steps.a.none}", "x ${steps.a}"])
async def test_only_strings_and_numbers_stand_inside_a_text(text: str) -> None:
    with pytest.raises(InvalidInput, match="stands inside a text"):
        await value_of(text)


@pytest.mark.contract("G-33")
@pytest.mark.parametrize(
    "text", ["${steps.a.z}", "${steps.a.list.2}", "${steps.a.list.-1}", "${steps.a.text.0}", "${steps.a.list.x}"]
)
async def test_a_path_that_leads_nowhere_is_an_error(text: str) -> None:
    with pytest.raises(InvalidInput, match="leads nowhere"):
        await value_of(text)


@pytest.mark.parametrize("text", ["${", "${x}", "${steps}", "${steps.}", "${steps.a b}", "${env.HOME}", "a ${inputs.x"])
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is no reference"):
        parse_text(text)


@pytest.mark.contract("G-17")
async def test_what_is_put_in_is_never_read_as_a_reference() -> None:
    hostile = "${steps.a.text}"
    assert await resolve(with_inputs(template("${inputs.x}"), {"x": hostile}), lookup) == hostile
    assert await resolve(with_inputs(template("<${inputs.x}>"), {"x": hostile}), lookup) == f"<{hostile}>"
    assert await resolve(with_inputs(template("${inputs.x.y.0}"), {"x": {"y": [hostile]}}), lookup) == hostile
    assert await resolve(literal({"k": [hostile]}), lookup) == {"k": [hostile]}

    async def hostile_lookup(_: Reference) -> object:
        return hostile

    assert await resolve(template("${steps.b}!"), hostile_lookup) == f"{hostile}!"


def test_inputs_are_replaced_and_steps_stay() -> None:
    mixed = with_inputs(template({"a": "${inputs.n}-${steps.a.text}", "b": ["${inputs.n}"]}), {"n": 5})
    assert list(references(mixed)) == [Reference("steps", "a", ("text",))]
    assert with_inputs(template("${inputs.n}-${steps.a.text}"), {"n": 5}) == Text(
        ("5-", Reference("steps", "a", ("text",)))
    )
    with pytest.raises(InvalidInput, match="has no value"):
        with_inputs(template("${inputs.z}"), {"n": 5})


async def test_what_is_resolved_is_new_each_time() -> None:
    bound = literal({"list": [1]})
    first = await resolve(bound, lookup)
    first["list"].append(2)
    assert await resolve(bound, lookup) == {"list": [1]}
