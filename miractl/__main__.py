"""`python -m miractl`, and the `miractl` command: quiet on Ctrl-C even while it is imported."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from miractl.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
