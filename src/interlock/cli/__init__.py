"""The commands. Each one reads what a person wrote, calls, and prints."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from interlock import __version__
from interlock.api.local import data_directory
from interlock.cli import devices, doctor, halves, reviews, tasks, tools
from interlock.cli.options import (
    DEFAULT_PORT,
    AgentPath,
    AsJson,
    Data,
    Database,
    DeviceFile,
    Devices,
    Inputs,
    KeepHistory,
    Policy,
    Port,
    QueueDepth,
    QueueTimeout,
    Strategy,
    Tags,
    fleet_settings,
    given_token,
)
from interlock.cli.output import Exit, exit_of, print_error
from interlock.cli.stopping import take_interrupts
from interlock.errors import InterlockError
from interlock.fleet.settings import FleetSettings

EXITS = (
    "Exit codes: 0 done; 1 the task failed or was cancelled, or the check found something; 2 bad input or usage; "
    "3 not found; 4 refused now; 5 the control plane is not reachable, the database is held, or the disk is full; "
    "70 a fault of Interlock; 130 interrupted."
)
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
# What the machine refuses whatever a program does right.
_MACHINE = _NO_ROOM | {errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
# Whichever package the parser comes from, this is the root of its usage errors.
_UsageError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

app = typer.Typer(
    name="interlock",
    epilog=EXITS,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"interlock {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Put agent work on shared devices: once, in order, within bounds, with proof."""
    del version


def up(  # noqa: PLR0913 - one parameter for each option
    *,
    data: Data = None,
    database: Database = None,
    port: Port = DEFAULT_PORT,
    device: Devices = [],  # noqa: B006 - typer copies it
    device_file: DeviceFile = None,
    policy: Policy = None,
    agent_path: AgentPath = None,
    strategy: Strategy = FleetSettings.strategy,
    max_queue_depth: QueueDepth = FleetSettings.max_queue_depth,
    queue_timeout: QueueTimeout = None,
    keep_history: KeepHistory = None,
    as_json: AsJson = False,
) -> None:
    """Run a control plane and a local host.

    Ctrl-C once finishes what is in flight and stops; twice stops at once.
    """
    # These load a server, which no other command waits for.
    from interlock.app.settings import AppSettings  # noqa: PLC0415
    from interlock.cli import working  # noqa: PLC0415
    from interlock.cli.local_host import chosen_devices, chosen_policy  # noqa: PLC0415

    settings = AppSettings(
        data=(data or data_directory()).absolute(),
        devices=chosen_devices(device, device_file),
        policy=chosen_policy(policy),
        agent_path=(agent_path or Path.cwd()).absolute(),
        port=port,
        token=given_token(),
        database=database,
        fleet=fleet_settings(strategy, max_queue_depth, queue_timeout, keep_history),
    )
    asyncio.run(working.run_both(settings, as_json=as_json))


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The workflow.")],
    *,
    inputs: Inputs = [],  # noqa: B006
    tags: Tags = [],  # noqa: B006
    workdir: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--workdir", metavar="DIR", help="Where its shell works; else a fresh temporary directory."),
    ] = None,
    policy: Policy = None,
    as_json: AsJson = False,
) -> None:
    """Run one workflow here and now.

    It takes no server: its database is gone afterwards, its working directory is not.
    """
    from interlock.cli.run import checked_request, run_here  # noqa: PLC0415 - as for `up`

    request = checked_request(file, inputs, tags, workdir, policy)
    asyncio.run(run_here(request, as_json=as_json))


def demo(*, as_json: AsJson = False) -> None:
    """Play it all in a minute: four devices, twelve tasks, two killed workers, and a verdict from the database."""
    from interlock.cli.demo import present  # noqa: PLC0415 - as for `up`

    if not asyncio.run(present(as_json=as_json)):
        raise typer.Exit(Exit.FOUND)


_COMMANDS: tuple[tuple[str, Callable[..., None]], ...] = (
    ("demo", demo),
    ("up", up),
    ("serve", halves.serve),
    ("host", halves.host),
    ("host-token", halves.host_token),
    ("submit", tasks.submit),
    ("tasks", tasks.tasks),
    ("show", tasks.show),
    ("why", tasks.why),
    ("cancel", tasks.cancel),
    ("run", run),
    ("tools", tools.tools),
    ("devices", devices.devices),
    ("drain", devices.drain),
    ("quarantine", devices.quarantine),
    ("return", devices.give_back),
    ("release", devices.release),
    ("forget", devices.forget),
    ("reviews", reviews.reviews),
    ("resolve", reviews.resolve),
    ("doctor", doctor.doctor),
)
for _name, _function in _COMMANDS:
    app.command(_name, epilog=EXITS)(_function)


def main() -> None:
    """Run the command that the program was called with, and exit with its code."""
    take_interrupts()
    try:
        code = call(sys.argv[1:])
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(_flushed(code))


def _flushed(code: int) -> int:
    """The exit code once all that was printed has gone out."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_quietly()
    except OSError as error:
        code = _told(error, as_json=False)
        _leave_quietly()
    return code


def call(arguments: Sequence[str]) -> int:
    """Run one command and give its exit code. Whatever goes wrong is told in a line, or as JSON where it is asked."""
    as_json = "--json" in arguments
    try:
        return int(app(list(arguments), prog_name="interlock", standalone_mode=False) or Exit.OK)
    except InterlockError as error:
        print_error(error.code, str(error), error.facts, as_json=as_json)
        return exit_of(error)
    except _UsageError as error:
        _print_usage(error, as_json=as_json)
        return Exit.INPUT
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - a person gets a line, never a traceback
        return _told(error, as_json=as_json)


def _told(error: Exception, *, as_json: bool) -> Exit:
    """Say what nobody foresaw: what the machine refused, or else a fault of ours."""
    if isinstance(error, BrokenPipeError):
        _leave_quietly()
        return Exit.OK
    if isinstance(error, OSError) and error.errno in _MACHINE:
        _say_refused(error, as_json=as_json)
        return Exit.UNREACHABLE
    place = traceback.extract_tb(error.__traceback__)[-1]
    said = f"a fault of Interlock itself: {type(error).__name__} in {place.name}, line {place.lineno}: report it"
    print_error("fault", said, {}, as_json=as_json)
    return Exit.FAULT


def _say_refused(error: OSError, *, as_json: bool) -> None:
    """Say what the machine refused, and to a person where it does not even take the document for a program."""
    said = _by_machine(error)
    try:
        print_error("machine", said, {}, as_json=as_json)
    except OSError:
        with contextlib.suppress(OSError):
            print_error("machine", said, {}, as_json=False)


def _by_machine(error: OSError) -> str:
    """What the operating system has refused, in its own words, and what to do where that is plain."""
    place = f" ({error.filename})" if isinstance(error.filename, str) else ""
    advice = ": make room, then try again" if error.errno in _NO_ROOM else ""
    return f"the machine says: {error.strerror or type(error).__name__}{place}{advice}"


def _print_usage(error: Any, *, as_json: bool) -> None:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{error.format_message()}\n")
        return
    path = getattr(context, "command_path", "interlock")
    print_error("usage", f"{error.format_message().rstrip('.')}: see `{path} --help`", {}, as_json=as_json)


def _leave_quietly() -> None:
    """Whoever read the output has enough: keep the interpreter from saying so at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
