"""Policy: what may be called."""

from __future__ import annotations

import pytest

from interlock.errors import InvalidInput
from interlock.guard.policy import Policy, Verdict

RUN = "tool:interlock.shell/run"
READ = "tool:interlock.shell/read"


@pytest.mark.contract("G-03")
def test_what_no_rule_allows_is_refused() -> None:
    assert Policy().decide(RUN) is Verdict.DENY
    assert not Policy().allows(RUN)
    assert Policy.parse({}).decide(RUN) is Verdict.DENY


@pytest.mark.contract("G-03")
def test_the_strictest_of_the_matching_rules_counts() -> None:
    rules = {"tool:interlock.shell/*": "allow", "tool:interlock.*/run": "ask", "tool:*/rm": "deny", "tool:*/*": "allow"}
    for order in (rules.items(), reversed(rules.items())):
        policy = Policy.parse({"tools": dict(order)})
        assert policy.decide(READ) is Verdict.ALLOW
        assert policy.decide(RUN) is Verdict.ASK
        assert policy.decide("tool:interlock.shell/rm") is Verdict.DENY


@pytest.mark.contract("G-03")
def test_ask_is_refused_while_nobody_can_be_asked() -> None:
    assert not Policy.parse({"tools": {RUN: "ask"}}).allows(RUN)


@pytest.mark.contract("G-03")
def test_a_namespace_is_allowed_and_nothing_beside_it() -> None:
    policy = Policy.allowing(["interlock.shell"])
    assert policy.allows(RUN)
    assert policy.allows(f"{RUN}@1.2.3")
    assert not policy.allows("tool:interlock.shell.more/run")
    assert not policy.allows("tool:interlock.shells/run")
    assert not policy.allows("tool:interlockxshell/run")


@pytest.mark.contract("G-05")
def test_only_agents_that_are_named_may_run() -> None:
    policy = Policy.allowing([], ["examples.agents:*", "mine:agent"])
    assert policy.allows_agent("examples.agents:explorer")
    assert policy.allows_agent("mine:agent")
    assert not policy.allows_agent("mine:agents")
    assert not policy.allows_agent("os:system")
    assert not Policy().allows_agent("mine:agent")


@pytest.mark.contract("G-04")
def test_every_fault_of_a_policy_is_named() -> None:
    document = {"tools": {"run": "allow", RUN: "yes", 5: "deny"}, "agents": ["x", 5], "tool": {}}
    with pytest.raises(InvalidInput) as caught:
        Policy.parse(document)
    for part in ("'run' is not a tool pattern", f"{RUN!r} has no verdict", "5 is not a tool pattern"):
        assert part in str(caught.value)
    for part in ("'x' is not an agent pattern", "5 is not an agent pattern", "'tool' is not a key"):
        assert part in str(caught.value)


@pytest.mark.contract("G-04")
@pytest.mark.parametrize("document", [None, [], {"tools": []}, {"agents": {"a": 1}}, {"tools": {RUN: None}}])
def test_what_is_no_policy_is_refused(document: object) -> None:
    with pytest.raises(InvalidInput):
        Policy.parse(document)


@pytest.mark.contract("G-04")
def test_the_digest_is_of_the_rules_and_not_of_their_order() -> None:
    one = Policy.parse({"tools": {RUN: "allow", READ: "deny"}, "agents": ["b:c", "a:b"]})
    other = Policy.parse({"agents": ["a:b", "b:c"], "tools": {READ: "deny", RUN: "allow"}})
    assert one.digest == other.digest
    assert Policy.parse(one.to_dict()) == one
    assert Policy.parse({"tools": {RUN: "ask", READ: "deny"}, "agents": ["b:c", "a:b"]}).digest != one.digest
