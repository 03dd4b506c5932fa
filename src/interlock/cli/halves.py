"""The two halves on different machines: a control plane alone, and a host with a token of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Optional

import typer

from interlock.api.client import Client
from interlock.api.local import SERVER_VARIABLE, data_directory
from interlock.cli.options import (
    DEFAULT_PORT,
    AgentPath,
    AsJson,
    Data,
    Database,
    DeviceFile,
    Devices,
    KeepHistory,
    Policy,
    Port,
    QueueDepth,
    QueueTimeout,
    Strategy,
    fleet_settings,
    given_token,
    read_text,
)
from interlock.cli.output import print_json, tell, to_person
from interlock.clock import new_secret
from interlock.errors import Conflict, InvalidInput
from interlock.fleet.settings import FleetSettings

TOKEN_VARIABLE = "INTERLOCK_HOST_TOKEN"  # noqa: S105 - its name, not its value
MEET_SECONDS = 10.0
OWN_HOST = "local"


def serve(  # noqa: PLR0913 - one parameter for each option
    *,
    data: Data = None,
    database: Database = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDRESS", help="The address of this machine that others may reach.")
    ] = "127.0.0.1",
    port: Port = DEFAULT_PORT,
    strategy: Strategy = FleetSettings.strategy,
    max_queue_depth: QueueDepth = FleetSettings.max_queue_depth,
    queue_timeout: QueueTimeout = None,
    keep_history: KeepHistory = None,
    as_json: AsJson = False,
) -> None:
    """Run a control plane without a host of its own.

    Hosts on this and other machines join it with `interlock host`. Several may share one PostgreSQL database.
    """
    from interlock.app.settings import ControlSettings  # noqa: PLC0415 - as for `up`
    from interlock.cli import working  # noqa: PLC0415

    settings = ControlSettings(
        data=(data or data_directory()).absolute(),
        listen=listen,
        port=port,
        token=given_token(),
        database=database,
        fleet=fleet_settings(strategy, max_queue_depth, queue_timeout, keep_history),
    )
    asyncio.run(working.run_control(settings, as_json=as_json))


def host(  # noqa: PLR0913 - one parameter for each option
    *,
    server: Annotated[
        str,
        typer.Option(
            "--server", metavar="URL", envvar=SERVER_VARIABLE, show_envvar=True, help="The control plane's address."
        ),
    ],
    token: Annotated[
        Optional[str],  # noqa: UP045 - typer reads this at run time
        typer.Option(
            "--token",
            metavar="TOKEN",
            envvar=TOKEN_VARIABLE,
            show_envvar=True,
            help="The host's own token; others on this machine can see it here, so rather name a file.",
        ),
    ] = None,
    token_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--token-file", metavar="FILE", help="A file that holds the host's token."),
    ] = None,
    data: Data = None,
    device: Devices = [],  # noqa: B006 - typer copies it
    device_file: DeviceFile = None,
    policy: Policy = None,
    agent_path: AgentPath = None,
    as_json: AsJson = False,
) -> None:
    """Run a host: it registers its devices with a control plane and runs the tasks that come to them.

    Ctrl-C once finishes what is in flight and stops; twice stops at once.
    """
    from interlock.app.settings import HostSettings, Server  # noqa: PLC0415 - as for `up`
    from interlock.cli import working  # noqa: PLC0415
    from interlock.cli.local_host import chosen_devices, chosen_policy  # noqa: PLC0415
    from interlock.fleet.agent import AgentSettings  # noqa: PLC0415

    settings = HostSettings(
        data=(data or data_directory()).absolute(),
        devices=chosen_devices(device, device_file),
        policy=chosen_policy(policy),
        agent_path=(agent_path or Path.cwd()).absolute(),
        agent=AgentSettings(meet_seconds=MEET_SECONDS),
    )
    asyncio.run(working.run_host(settings, Server(server, _credential(token, token_file)), as_json=as_json))


def _credential(token: str | None, path: Path | None) -> str:
    # A file that is named outright goes before a variable that may be left over.
    found = token if path is None else read_text(path)
    if found is None or not found.strip():
        message = (
            f"a host takes a token: get one with `interlock host-token NAME`, and give --token-file or {TOKEN_VARIABLE}"
        )
        raise InvalidInput(message)
    return found.strip()


def host_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The host's name, as its devices will show it.")],
    *,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Make a token for a host, and print it this once. A token that the host had before is good no more."""
    if name == OWN_HOST:
        message = f"{OWN_HOST} is the host of `interlock up`: choose another name"
        raise Conflict(message)
    token = new_secret()
    with Client.local(data) as client:
        client.register_host(name, token)
    if as_json:
        print_json({"host": name, "token": token})
        return
    tell(f"keep it in a file for `interlock host --token-file`: it is not shown again, and stands for {name}")
    to_person().print(token)
