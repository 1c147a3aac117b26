"""The command line: `hf-relpos <command>`. The package itself imports nothing of it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from hf_relpos.version import __version__


class Parser(argparse.ArgumentParser):
    """A parser, and those of its commands, whose errors are one line, like all others that a command ends with."""

    def error(self, message: str) -> NoReturn:
        """End with the line and status 2."""
        self.exit(2, f"{self.prog}: error: {message.rstrip('.')}. {self.prog} --help shows all options.\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands. A command's file adds its options and names the function that runs it."""
    from hf_relpos.cli import (
        compare_options,
        convert_options,
        demo_options,
        inspect_options,
        patch_options,
        recommend_options,
        sweep_options,
    )

    parser = Parser(prog="hf-relpos", description="Relative positions for pretrained Transformers models.")
    parser.add_argument("--version", action="version", version=f"hf_relpos {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    demo_options.add_command(commands)
    recommend_options.add_command(commands)
    patch_options.add_command(commands)
    convert_options.add_command(commands)
    inspect_options.add_command(commands)
    compare_options.add_command(commands)
    sweep_options.add_command(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments after the program's name; those of the process by default.

    Returns:
        The exit status; see :func:`hf_relpos.cli.errors.exit_status`.
    """
    args, unknown = build_parser().parse_known_args(argv)
    if unknown:  # said by the command, whose options they are not
        Parser(prog=f"hf-relpos {args.command}").error(f"unrecognized arguments: {' '.join(unknown)}")
    from hf_relpos.cli.errors import exit_status

    return exit_status(f"hf-relpos {args.command}", lambda: args.run(args), _options(args))


def _options(args: argparse.Namespace) -> dict[str, str]:
    """What the command has as options, and by which names; `called` has those of other names than the arguments'."""
    given = {name: f"--{name.replace('_', '-')}" for name in vars(args)}
    return {**given, **getattr(args, "called", {})}
