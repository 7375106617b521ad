"""docs/reproduction.md: the tables of two articles as simulations.

    python -m bench.reproduce > docs/reproduction.md

Nothing is measured and no clock is read: the page is the same on every machine.
"""

from bench.articles import collaborative, kernels, mira

_INTRO = """\
# Two articles' tables, simulated

<!-- Generated: python -m bench.reproduce > docs/reproduction.md -->

miractl began with two articles: one on caching and staging experts ("Mira"), one on computing
missed experts on the CPU. Neither came with code or raw data. This page asks of every table whether
it *can* be so: what follows from the articles' own assumptions, and what bandwidth, capacity or
arithmetic rule out. **Everything here is simulated; nothing was measured**, neither by us nor on
these cards. The models are the package's own: `miractl/plan` for memory and
`miractl/simulate/timing.py` for time. Routing of Mixtral or Phi-3.5-MoE was not at hand, so it is
drawn at random with a stated locality (`miractl/simulate/synthetic.py`).

"""


def page() -> str:
    """The whole page."""
    parts = (kernels.section(), collaborative.section(), mira.section())
    return _INTRO + "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
