"""miractl: run, see and plan Mixture-of-Experts language models that do not fit their GPU."""

__version__ = "0.1.0"
