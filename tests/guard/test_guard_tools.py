"""Contracts, arguments and the registry."""

from __future__ import annotations

import math

import pytest

from interlock.errors import InvalidInput, UnknownTool
from interlock.guard.tools import Access, Parameter, ToolContract, ToolRegistry, ValueType, contracts_of
from interlock.testing.tools import ScriptedTool

PARAMETERS = (
    Parameter("text"),
    Parameter("count", ValueType.INTEGER, required=False),
    Parameter("share", ValueType.NUMBER, required=False),
    Parameter("flag", ValueType.BOOLEAN, required=False),
    Parameter("items", ValueType.LIST, required=False),
    Parameter("fields", ValueType.OBJECT, required=False),
)
SEND = ToolContract("tool:example.agent/send", parameters=PARAMETERS)


@pytest.mark.contract("G-01")
def test_r28_a_tool_that_says_nothing_is_an_effect() -> None:
    assert SEND.access is Access.EFFECT
    assert not SEND.is_read
    assert ToolContract("tool:example.agent/get", Access.READ).is_read


@pytest.mark.parametrize(
    "name", ["send", "tool:send", "tool:example/send", "tool:example.agent/send@1", "", "tool:a.b/C"]
)
def test_what_is_no_tool_id_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not a tool id"):
        ToolContract(name)


def test_a_contract_names_each_parameter_once() -> None:
    with pytest.raises(InvalidInput, match="twice"):
        ToolContract("tool:example.agent/send", parameters=(Parameter("a"), Parameter("a")))
    with pytest.raises(InvalidInput, match="parameter name"):
        Parameter("1a")
    with pytest.raises(InvalidInput, match="settles"):
        ToolContract("tool:example.agent/send", settle_seconds=math.nan)


@pytest.mark.contract("G-02")
def test_arguments_that_fit_have_no_fault() -> None:
    assert SEND.faults({"text": ""}) == ()
    assert SEND.faults({"text": "x", "count": 1, "share": 0.5, "flag": False, "items": [], "fields": {}}) == ()
    assert SEND.faults({"text": "x", "share": 3}) == ()


@pytest.mark.contract("G-02")
@pytest.mark.parametrize(
    "value",
    [{"count": True}, {"count": 1.0}, {"share": True}, {"share": math.inf}, {"flag": 1}, {"items": ()}, {"fields": []}],
)
def test_an_argument_of_another_type_is_a_fault(value: dict[str, object]) -> None:
    (fault,) = SEND.faults({"text": "x", **value})
    assert "must be of type" in fault


@pytest.mark.contract("G-02")
def test_r60_faults_name_every_argument_and_show_no_value() -> None:
    faults = SEND.faults({"count": "canary", "canary_name": "canary value"})
    assert faults == ("'canary_name' is not a parameter", "'text' is missing", "'count' must be of type integer")


def test_a_registry_knows_its_tools_and_says_so() -> None:
    registry = ToolRegistry([ScriptedTool(SEND)])
    assert registry.named(SEND.id).contract is SEND
    assert contracts_of(registry) == {SEND.id: SEND}
    assert "tool:example.agent/other" not in registry
    with pytest.raises(UnknownTool, match=r"known: tool:example\.agent/send"):
        registry.named("tool:example.agent/sand")
    with pytest.raises(InvalidInput, match="twice"):
        ToolRegistry([ScriptedTool(SEND), ScriptedTool(SEND)])
