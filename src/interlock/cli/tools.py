"""The command that lists what the installed drivers can do."""

from __future__ import annotations

from collections.abc import Iterator

from interlock.cli.options import AsJson
from interlock.cli.output import print_json, table, to_person
from interlock.drivers.driver import driver_names, load_driver
from interlock.guard.tools import ToolContract


def tools(*, as_json: AsJson = False) -> None:
    """List the tools of the installed drivers, with their arguments."""
    found = list(_contracts())
    if as_json:
        print_json({"tools": [{"driver": driver, **_document(contract)} for driver, contract in found]})
        return
    console = to_person()
    for driver, contract in found:
        console.print(f"{contract.id}  {contract.access.value}, driver {driver}")
        console.print(f"  {contract.summary}")
        shown = table("ARGUMENT", "TYPE", "", "WHY")
        for each in contract.parameters:
            shown.add_row(f"  {each.name}", each.type.value, "" if each.required else "optional", each.summary)
        console.print(shown)
        console.print()


def _contracts() -> Iterator[tuple[str, ToolContract]]:
    for driver in driver_names():
        for _, contract in sorted(load_driver(driver).contracts.items()):
            yield driver, contract


def _document(contract: ToolContract) -> dict[str, object]:
    return {
        "id": contract.id,
        "access": contract.access.value,
        "summary": contract.summary,
        "arguments": [
            {"name": each.name, "type": each.type.value, "required": each.required, "summary": each.summary}
            for each in contract.parameters
        ],
    }
