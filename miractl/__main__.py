"""`python -m miractl`."""

from miractl.cli.main import main

if __name__ == "__main__":
    main()
