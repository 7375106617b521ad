"""The command line: options and words only, one file a command."""
