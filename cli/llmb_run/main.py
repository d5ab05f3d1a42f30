"""``llmb-run``: runs one command and ends the process with its status."""

from __future__ import annotations

import os
import sys

from llmb_common.errors import Interrupted, LLMBError, RecordError, RequestError
from llmb_common.interruption import interruptible
from llmb_common.printable import printable_output


def main(arguments: list[str] | None = None) -> int:
    """Run the command in ``arguments`` (default: the process's own); the exit status."""
    with printable_output():
        return _main(arguments)


def _main(arguments: list[str] | None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        # A file name need not fit the terminal's encoding.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        with interruptible():
            status = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, less) has gone; let the interpreter's last flush go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return _failed(arguments, Interrupted("interrupted"))
    except LLMBError as error:
        return _failed(arguments, error)
    except OSError as error:
        # A file or program that vanished or is not ours to read: a reader wants its name, not where we stood.
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return _failed(arguments, RecordError(what, remedy="check that it exists, and whose it is"))
    return status


def _run(arguments: list[str]) -> int:
    from typer.exceptions import TyperException

    from llmb_run.app import app
    from llmb_run.terminal import forget_notices

    forget_notices()
    try:
        status = app(args=arguments, prog_name="llmb-run", standalone_mode=False)
    except TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return 0
        raise _usage(error, arguments) from error
    return status if isinstance(status, int) else 0


def _usage(error: Exception, arguments: list[str]) -> RequestError:
    """Typer's complaint about the command line in our words."""
    import re

    from llmb_common.errors import did_you_mean

    message = error.format_message()  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "llmb-run"
    if context is None and arguments and not arguments[0].startswith("-"):
        command += f" {arguments[0]}"  # the parser's own complaints know no command
    # Its list of options is cut by its own rule; the nearest one is what helps.
    message = re.sub(r" \(Possible options: .*\)\Z", "", message)
    option = getattr(error, "option_name", None)
    if option and context and message.startswith("No such option"):
        known = [name for parameter in context.command.get_params(context) for name in parameter.opts]
        message = f"no such option: {option}{did_you_mean(option, known)}"
    if unknown := re.match(r"No such command '(.*)'", message):
        from llmb_run.app import LazyGroup

        known = LazyGroup().list_commands(context) if context else []
        message = f"no such command: {unknown[1]}{did_you_mean(unknown[1], known)}"
    message = message[:1].lower() + message[1:].rstrip(".")
    return RequestError(message, remedy=f"{command} --help shows what it takes", code="usage")


def _failed(arguments: list[str], error: LLMBError) -> int:
    from llmb_run.terminal import print_json

    try:
        if "--json" in arguments:
            print_json(next((a for a in arguments if not a.startswith("-")), ""), None, error)
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    print(f"error: {error}", file=sys.stderr)
    return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
