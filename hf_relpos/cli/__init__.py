"""The command line: `hf-relpos <command>`. The package itself imports nothing of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hf_relpos.version import __version__


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands. A command's file adds its options and names the function that runs it."""
    from hf_relpos.cli import demo_options

    parser = argparse.ArgumentParser(
        prog="hf-relpos", description="Relative positions for pretrained Transformers models."
    )
    parser.add_argument("--version", action="version", version=f"hf_relpos {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    demo_options.add_command(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments after the program's name; those of the process by default.

    Returns:
        The exit status: 0, 1 if a check failed, 2 if the command could not do what it was asked to.
    """
    args = build_parser().parse_args(argv)
    from hf_relpos.cli.errors import CheckFailed
    from hf_relpos.errors import RelPosError

    try:
        return args.run(args)
    except CheckFailed as error:
        print(f"\nhf-relpos {args.command}: CHECK FAILED: {error}", file=sys.stderr)
        return 1
    except RelPosError as error:
        print(f"\nhf-relpos {args.command}: error: {error}", file=sys.stderr)
        return 2
