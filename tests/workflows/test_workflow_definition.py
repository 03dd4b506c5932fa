"""Workflow files: what is taken, what is refused, and with which words."""

from __future__ import annotations

import json

import pytest

from interlock.errors import InvalidInput, InvalidWorkflow
from interlock.guard.bindings import Reference, Text, references
from interlock.guard.tools import Access, Parameter, ToolContract, ValueType
from interlock.workflows import WorkflowDefinition
from interlock.workflows.checks import LISTED

FETCH = ToolContract(
    "tool:example.agent/fetch",
    Access.READ,
    (Parameter("path"), Parameter("count", ValueType.INTEGER, required=False)),
)
SEND = ToolContract(
    "tool:example.agent/send",
    parameters=(
        Parameter("text"),
        Parameter("weight", ValueType.NUMBER, required=False),
        Parameter("tags", ValueType.LIST, required=False),
        Parameter("options", ValueType.OBJECT, required=False),
        Parameter("urgent", ValueType.BOOLEAN, required=False),
    ),
)
TOOLS = {each.id: each for each in (FETCH, SEND)}

WHOLE = """\
name: greet
description: Says hello.
inputs:
  who: {type: string}
  times: {type: integer, default: 2}
limits: {max_concurrency: 4, max_elapsed_seconds: 30, parallel_reads: false}
steps:
  # the two reads may go side by side
  left:
    tool: tool:example.agent/fetch
    with: {path: "a", count: "${inputs.times}"}
  right:
    tool: tool:example.agent/fetch
    with: {path: "${inputs.who}/b"}
    units: 3
  join:
    tool: tool:example.agent/send
    with:
      text: "$${x} ${steps.left.lines.0} and ${steps.right.text}"
      tags: ["${steps.left.tag}", plain]
    needs: [left]
"""

READ_FAULT = (
    "line {line}: '{key}' is no key of step '{step}': only the contract of tool:example.agent/send says whether it is "
    "a read or an effect, never the file; take the line out"
)


def faults_of(text: str) -> tuple[str, ...]:
    with pytest.raises(InvalidWorkflow) as caught:
        WorkflowDefinition.parse(text, TOOLS)
    return caught.value.faults


def in_step(body: str, before: str = "") -> str:
    """A file whose only step, `a`, has this body on line 4 and after."""
    indented = "\n".join(f"    {line}" for line in body.split("\n"))
    return f"name: w\nsteps:{before}\n  a:\n{indented}\n"


def test_a_whole_file_is_taken_apart() -> None:
    found = WorkflowDefinition.parse(WHOLE, TOOLS)
    assert (found.name, found.description) == ("greet", "Says hello.")
    assert [step.name for step in found.steps] == ["join", "left", "right"]
    join, left, right = found.steps
    assert (join.needs, left.needs, right.needs) == (("left", "right"), (), ())
    assert (left.units, right.units) == (1, 3)
    assert found.limits == {"max_concurrency": 4, "max_elapsed_seconds": 30, "parallel_reads": False}


@pytest.mark.contract("G-33")
def test_references_keep_their_place_and_their_type() -> None:
    left = next(step for step in WorkflowDefinition.parse(WHOLE, TOOLS).steps if step.name == "left")
    join = next(step for step in WorkflowDefinition.parse(WHOLE, TOOLS).steps if step.name == "join")
    assert dict(left.arguments.fields)["count"] == Reference("inputs", "times")
    assert dict(join.arguments.fields)["text"] == Text(
        ("${x} ", Reference("steps", "left", ("lines", "0")), " and ", Reference("steps", "right", ("text",)))
    )
    assert {each.name for each in references(join.arguments)} == {"left", "right"}


@pytest.mark.contract("G-30")
def test_every_fault_is_reported_at_once_with_its_line() -> None:
    text = """\
name: w
colour: red
inputs:
  n: {type: number, default: many}
limits: {max_concurrency: 0}
steps:
  a:
    tool: tool:example.agent/fetsh
    with: {path: "${inputs.m}"}
  b:
    tool: tool:example.agent/fetch
    with: {path: 5, paht: x}
    needs: [b, c]
    retries: 3
  -c:
    tool: tool:example.agent/send
    read: true
"""
    assert faults_of(text) == (
        "line 2: 'colour' is no key of a workflow; known: name, description, inputs, limits, steps",
        "line 4: the default of input 'n' is not of type number",
        "line 5: max_concurrency is a whole number from 1 to 1000000000",
        f"line 8: step 'a': there is no tool 'tool:example.agent/fetsh'; known: {FETCH.id}, {SEND.id}: {LISTED}",
        "line 9: ${inputs.m}: there is no input 'm'; known: n",
        "line 12: tool:example.agent/fetch: 'path' must be of type string",
        "line 12: tool:example.agent/fetch: there is no parameter 'paht'; known: path",
        "line 13: step 'b' cannot need itself: take it out",
        "line 13: step 'b': there is no step 'c'; known: -c",
        "line 14: 'retries' is no key of step 'b'; known: tool, with, needs, units",
        "line 15: '-c' is no step id: it is 1 to 128 of A-Z a-z 0-9 _ -, with a letter or digit at both ends",
        "line 15: step '-c': tool:example.agent/send needs 'text' of type string: add it to with",
        READ_FAULT.format(line=17, key="read", step="-c"),
    )


@pytest.mark.contract("G-31")
@pytest.mark.parametrize("key", ["read", "read_only", "readonly", "read-only"])
def test_r28_no_key_makes_an_effect_a_read(key: str) -> None:
    (fault,) = faults_of(in_step(f"tool: tool:example.agent/send\nwith: {{text: x}}\n{key}: true"))
    assert fault == READ_FAULT.format(line=6, key=key, step="a")


@pytest.mark.contract("G-30")
def test_a_circle_is_shown_with_its_way() -> None:
    steps = "".join(
        f"  {name}: {{tool: tool:example.agent/fetch, with: {{path: x}}, needs: [{need}]}}\n"
        for name, need in (("a", "b"), ("b", "c"), ("c", "a"), ("d", "a"), ("x", "y"), ("y", "x"))
    )
    assert faults_of(f"name: w\nsteps:\n{steps}") == (
        "line 3: these steps wait for each other: a -> b -> c -> a; break the circle",
        "line 7: these steps wait for each other: x -> y -> x; break the circle",
    )


@pytest.mark.contract("G-30", "G-33")
def test_a_circle_made_of_references_is_one_too() -> None:
    steps = (
        "  a: {tool: tool:example.agent/fetch, with: {path: '${steps.b.x}'}}\n"
        "  b: {tool: tool:example.agent/fetch, with: {path: '${steps.a.x}'}}\n"
    )
    assert faults_of(f"name: w\nsteps:\n{steps}") == (
        "line 3: these steps wait for each other: a -> b -> a; break the circle",
    )


@pytest.mark.contract("G-32")
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: &x 1\nb: *x", "line 1: &x is an anchor: write each value out where it is used"),
        ("name: w\nname: v", "line 2: 'name' is here twice, first on line 1: keep one"),
        ("name: !!python/object/apply:os.system ['true']", "line 1: the tag tag:yaml.org,2002:python/object/apply"),
        ("name: w\nsteps: [}", "line 2: this is no YAML"),
        ("name: w\n---\nname: v", "line 2: this is no YAML"),
        ("name: \x01", "line 1: this is no YAML"),
        ("[" * 50, "line 1: this is nested more than 32 deep: flatten it"),
        ("x" * 1_100_000, "line 1: the file is over 1048576 bytes: split it"),
        ("", "line 1: the file is empty"),
        ("- a", "line 1: a workflow is a mapping"),
        ("limits: {max_actions: 99999999999999999999999}", "line 1: this is no int"),
        ("limits: {max_elapsed_seconds: 1.0e+999}", "line 1: this is no float"),
        ('description: "\\ud800"', "line 1: this is no "),
        ("[a]: b", "line 1: a key must be a word"),
    ],
)
def test_what_could_do_harm_is_refused(text: str, fault: str) -> None:
    assert any(found.startswith(fault) for found in faults_of(text))


@pytest.mark.contract("G-32")
def test_aliases_cannot_make_a_small_file_large() -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]
    assert any("is an alias" in fault for fault in faults_of("\n".join(lines)))


@pytest.mark.contract("G-32")
def test_plain_words_stay_words() -> None:
    text = in_step(
        "tool: tool:example.agent/send\nwith: {text: no, options: {at: 12:30, on: 2020-01-01, a: 0x1F, b: off}}"
    )
    (step,) = WorkflowDefinition.parse(text, TOOLS).steps
    assert json.loads(WorkflowDefinition.parse(text, TOOLS).document)["steps"]["a"]["with"] == {
        "text": "no",
        "options": {"at": "12:30", "on": "2020-01-01", "a": "0x1F", "b": "off"},
    }
    assert step.tool == SEND.id


@pytest.mark.contract("G-30")
@pytest.mark.parametrize(
    ("argument", "fits"),
    [
        ("text: 5", False),
        ("text: x\nweight: 5", True),
        ("text: x\nweight: true", False),
        ("text: x\nurgent: 1", False),
        ("text: x\ntags: {}", False),
        ("text: x\noptions: []", False),
        ("text: x\nweight: '${inputs.whole}'", True),
        ("text: x\nweight: '${inputs.word}'", False),
        ("text: x\nweight: '${inputs.whole} kg'", False),
        ("text: '${inputs.whole} kg'", True),
        ("text: '${inputs.items}!'", False),
        ("text: '${inputs.items.0}!'", True),
        ("text: '${inputs.whole}'", False),
        ("text: x\ntags: '${inputs.items}'", True),
    ],
)
def test_arguments_are_checked_against_the_contract(argument: str, fits: bool) -> None:  # noqa: FBT001 - a table of cases
    inputs = "inputs: {whole: {type: integer}, word: {type: string}, items: {type: list}}\n"
    body = argument.replace("\n", ", ")
    text = inputs + in_step(f"tool: tool:example.agent/send\nwith: {{{body}}}")
    if fits:
        assert WorkflowDefinition.parse(text, TOOLS).name == "w"
    else:
        assert [fault.partition(":")[0] for fault in faults_of(text)] == ["line 6"]


@pytest.mark.contract("G-30")
@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("${HOME}", "'${HOME}' is no reference"),
        ("${steps.a.x}", "${steps.a.x}: step 'a' cannot use its own output"),
        ("${steps.z.x}", "${steps.z.x}: there is no step 'z'"),
        ("${inputs.z}", "${inputs.z}: there is no input 'z'"),
        ("${steps.a", "'${steps.a' is no reference"),
        ("${steps.a..x}", "'${steps.a..x}' is no reference"),
    ],
)
def test_a_reference_that_leads_nowhere_is_a_fault(value: str, fault: str) -> None:
    (found,) = faults_of(in_step(f"tool: tool:example.agent/send\nwith:\n  text: '{value}'"))
    assert found.startswith(f"line 6: {fault}")


@pytest.mark.contract("G-30")
@pytest.mark.parametrize(
    ("limits", "fault"),
    [
        ("max_actions: 1", "line 1: max_actions is 1, and there are 2 steps: raise it, or set allow_partial"),
        (
            "max_total_units: 5",
            "line 1: max_total_units is 5, and there are 6 units in all steps: raise it, or set allow_partial",
        ),
        (
            "max_inflight_units: 4",
            "line 1: max_inflight_units is 4, and there are 5 units in one step: raise it, or set allow_partial",
        ),
        ("allow_partial: 1", "line 1: allow_partial is true or false"),
        (
            "allow_partial: false, max_actions: 1",
            "line 1: max_actions is 1, and there are 2 steps: raise it, or set allow_partial",
        ),
        ("parallel_reads: 1", "line 1: parallel_reads is true or false"),
        ("max_elapsed_seconds: 0", "line 1: max_elapsed_seconds is a number of seconds over 0, at most 31536000"),
        ("max_reads: 1", "line 1: 'max_reads' is no key of limits"),
    ],
)
def test_limits_that_cannot_hold_are_a_fault(limits: str, fault: str) -> None:
    step = "{tool: tool:example.agent/fetch, with: {path: x}"
    text = f"limits: {{{limits}}}\nname: w\nsteps:\n  a: {step}, units: 5}}\n  b: {step}}}\n"
    assert [found.partition(";")[0] for found in faults_of(text)] == [fault]


@pytest.mark.contract("G-36")
def test_limits_below_what_the_steps_need_are_no_fault_where_the_file_wants_a_part() -> None:
    step = "{tool: tool:example.agent/fetch, with: {path: x}}"
    limits = "{max_actions: 1, max_total_units: 1, allow_partial: true}"
    definition = WorkflowDefinition.parse(f"limits: {limits}\nname: w\nsteps:\n  a: {step}\n  b: {step}\n", TOOLS)
    assert definition.limits["max_actions"] == 1


@pytest.mark.contract("G-30")
@pytest.mark.parametrize(
    "text",
    [
        "name: 5\nsteps: {a: {tool: 'tool:example.agent/fetch', with: {path: x}}}",
        "name: w\nsteps: {}",
        "name: w\nsteps: []",
        "name: w\nsteps: {a: 1}",
        "name: w\nsteps: {a: {}}",
        "name: w\nsteps: {a: {tool: [x]}}",
        "name: w\nsteps: {a: {tool: 'tool:example.agent/fetch', with: [x]}}",
        "name: w\nsteps: {a: {tool: 'tool:example.agent/fetch', with: {path: x}, needs: b}}",
        "name: w\nsteps: {a: {tool: 'tool:example.agent/fetch', with: {path: x}, needs: [[b]]}}",
        "name: w\nsteps: {a: {tool: 'tool:example.agent/fetch', with: {path: x}, units: 0}}",
        "name: w\nsteps: {a.b: {tool: 'tool:example.agent/fetch', with: {path: x}}}",
        "name: w\ninputs: {1x: {type: string}}\nsteps: {a: {tool: 'tool:example.agent/fetch', with: {path: x}}}",
        "name: w\ninputs: {x: string}\nsteps: {a: {tool: 'tool:example.agent/fetch', with: {path: x}}}",
        "name: w\ninputs: {x: {type: text}}\nsteps: {a: {tool: 'tool:example.agent/fetch', with: {path: x}}}",
    ],
)
def test_what_is_of_the_wrong_shape_is_a_fault_and_never_an_error(text: str) -> None:
    assert all(fault.startswith("line ") for fault in faults_of(text))


@pytest.mark.contract("G-34")
def test_comments_order_and_spelling_do_not_change_the_digest() -> None:
    one = """\
name: w
steps:
  a: {tool: "tool:example.agent/fetch", with: {path: x}}
  b: {tool: "tool:example.agent/send", with: {text: y}, needs: [a]}
"""
    other = """\
# again
steps:
  b:
    needs: [a]
    with: {text: y}
    units: 1
    tool: tool:example.agent/send
  a:
    with: {path: 'x'}
    tool: tool:example.agent/fetch
name: w
"""
    assert WorkflowDefinition.parse(one, TOOLS) == WorkflowDefinition.parse(other, TOOLS)
    changed = WorkflowDefinition.parse(one.replace("path: x", "path: z"), TOOLS)
    assert changed.digest != WorkflowDefinition.parse(one, TOOLS).digest


@pytest.mark.contract("G-34")
def test_a_canonical_text_gives_the_same_definition_back() -> None:
    found = WorkflowDefinition.parse(WHOLE, TOOLS)
    again = WorkflowDefinition.from_document(found.document, TOOLS)
    assert (again, again.steps, again.limits, again.inputs) == (found, found.steps, found.limits, found.inputs)
    assert again.document == found.document
    assert found.digest.startswith("sha256:")
    assert WorkflowDefinition.from_document(found.document).steps == found.steps


@pytest.mark.contract("G-34")
def test_a_canonical_text_is_checked_too() -> None:
    with pytest.raises(InvalidWorkflow):
        WorkflowDefinition.from_document("{")
    with pytest.raises(InvalidWorkflow, match="no tool"):
        WorkflowDefinition.from_document(WorkflowDefinition.parse(WHOLE, TOOLS).document, {})


@pytest.mark.contract("G-35")
def test_inputs_are_checked_all_at_once_and_never_shown() -> None:
    found = WorkflowDefinition.parse(WHOLE, TOOLS)
    assert found.checked_inputs({"who": "me"}) == {"who": "me", "times": 2}
    with pytest.raises(InvalidInput) as caught:
        found.checked_inputs({"times": "canary", "hwo": "canary"})
    for part in ("no input 'hwo'; known: who", "'times' must be of type integer", "'who' of type string is missing"):
        assert part in str(caught.value)
    assert "canary" not in str(caught.value)


def test_ten_thousand_steps_are_read_and_one_more_is_a_fault() -> None:
    step = "{tool: 'tool:example.agent/fetch', with: {path: x}}"
    text = "name: w\nsteps:\n" + "".join(f"  s{number}: {step}\n" for number in range(10_000))
    assert len(WorkflowDefinition.parse(text, TOOLS).steps) == 10_000
    (fault,) = faults_of(text + f"  more: {step}\n")
    assert fault.startswith("line 3: there are 10001 steps; at most 10000")
