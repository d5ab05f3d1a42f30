"""The command line read by click, as ``llmb-run`` reads its own. ``by_argparse`` is for the first stage, without click.

Both make their parser of ``options``, show the same help, and refuse in the same words; a test compares them.
"""

from __future__ import annotations

from typing import Any

import click

import llmb_common
from llmb_install import options, refusing
from llmb_install.options import Argument, Call, Option


class _Command(click.Command):
    """A click command for one command of the installer, whose help has the same sections as with argparse.

    It is made from the command line that it is to read, a ``Call``, and parses only: it has no callback. What it has
    read is in the context that click's ``make_context`` returns: values by name in ``params``, words left over in
    ``args``. That raises click's own errors, and click's ``Exit`` after ``-h``, ``--help`` and ``--version``, which
    it prints. click calls the methods here while it writes the help: ``collect_usage_pieces`` returns the words of
    the usage line behind the command's name as a list, ``format_options`` writes all sections to the ``formatter``,
    and ``format_arguments`` writes nothing, as one of those sections has the positional arguments.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        parameters: list[click.Parameter] = [_option(option) for option in call.command.options]
        if call.command.argument:
            parameters.append(_argument(call.command.argument))
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "allow_extra_args": True}
        text = "\n\n".join(options.text_of(call))
        super().__init__(call.command.name, params=parameters, help=text, context_settings=settings)
        click.version_option(llmb_common.__version__, message=options.version(call.program))(self)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the words behind the command's name in its usage line, such as ``[OPTIONS]`` and ``IMAGE``.

        ``ctx`` is ignored.
        """
        return [*options.usage_of(self.call.command)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write every section of the help to ``formatter``: options, positional arguments and other commands.

        ``ctx`` is ignored.
        """
        for title, rows in options.sections(self.call).items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write nothing: the positional arguments are a section that ``format_options`` writes."""


def _option(option: Option) -> click.Option:
    """Return ``option`` as click's: a switch, one whose value may be left out, or one with one value or several.

    One whose value is left out is ``true``. Several values are a flag that is repeated before each; they come as a
    tuple. The last two kinds are required where ``option`` says so. Values are not checked against its choices.
    """
    names = [option.flag, option.name]
    if not option.metavar:
        return click.Option(names, is_flag=True)
    if option.alone:
        return click.Option(names, is_flag=False, flag_value="true")
    return click.Option(names, multiple=option.several, required=option.required)


def _argument(argument: Argument) -> click.Argument:
    """Return the positional ``argument`` as click's: of one word, a text, or of several, a tuple; always required."""
    return click.Argument([argument.name], metavar=argument.metavar, nargs=-1 if argument.several else 1, required=True)


def read(call: Call) -> dict[str, Any]:
    """Read a command line with click: return the unchecked value of each option and argument of the command by name.

    Values are text, a tuple of texts where several may be given, or True for a switch. What was not given is None,
    an empty tuple, or False for a switch. Of an option that is given twice the last value holds, but one of several
    values keeps them all, in order. ``-h``, ``--help`` and ``--version`` print to standard output. ``call`` is the
    command line; its words are read.

    Raises:
        RequestError: an option is unknown, lacks its value or has one too many, something required is missing, or a
            word is left over
        SystemExit: with status 0, after ``--help`` or ``--version``
        OSError: the help cannot be printed
    """
    command = _Command(call)
    try:
        with command.make_context(call.name, _repeat_flags(call)) as context:
            refusing.refuse_extra_words(call, context.args)
            return context.params
    except click.exceptions.Exit as done:
        raise SystemExit(done.exit_code) from None
    except click.NoSuchOption as error:
        raise refusing.unknown_option_error(call, error.option_name) from error
    except click.MissingParameter as error:
        raise refusing.missing_argument_error(call, _term_of(error.param)) from error
    except click.BadOptionUsage as error:
        # click has one exception for a value too many and for a missing one.
        wrong = refusing.unwanted_value_error if "does not take" in error.message else refusing.missing_value_error
        raise wrong(call, error.option_name) from error
    except click.UsageError as error:
        message = error.format_message().rstrip(".")
        raise refusing.usage_error(call, message[:1].lower() + message[1:]) from error


def _term_of(parameter: click.Parameter | None) -> str:
    """Return how messages call ``parameter``: by its ``metavar``, else its flag; ``an argument`` for None."""
    if parameter is None:
        return "an argument"
    return parameter.metavar or parameter.opts[0]


def _repeat_flags(call: Call) -> list[str]:
    """Return the words of a command line with a flag of several values repeated before each, as click wants it.

    ``--python 3.11 3.12`` becomes ``--python 3.11 --python 3.12``. Its values end at the next word that begins with
    ``-``. A flag with its value behind ``=`` is not repeated.
    """
    written: list[str] = []
    flag = ""
    for word in call.words:
        if word.startswith("-"):
            option = call.command.option(word)
            flag = word if option and option.several else ""
        elif flag and written[-1] != flag:
            written.append(flag)
        written.append(word)
    return written
