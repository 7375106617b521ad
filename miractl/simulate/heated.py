"""A recording as the table of experts that a server would have shown at its end."""

import numpy as np

from miractl.policy.heat import HeatTable
from miractl.simulate.driving import Clock
from miractl.simulate.study import routing_of
from miractl.telemetry.experts import ExpertTable
from miractl.telemetry.snapshot import ExpertRow
from miractl.telemetry.trace import Trace


def heated(trace: Trace, timestamp: float, token_seconds: float) -> ExpertTable:
    """Heat and activations of every expert when the recording ends, at unix `timestamp`.

    Heat goes by the recorded times; without them a step takes `token_seconds`, and without steps a
    token is one. What only a cache knows, such as hits, is None. Raises UsageError as `routing_of`.
    """
    routing, clock = routing_of(trace), Clock()
    heat = HeatTable(routing.layers, routing.experts, routing.top, clock=clock)
    steps = np.arange(routing.tokens) if trace.steps is None else trace.steps
    total = np.zeros((routing.layers, routing.experts), np.int64)
    order = np.argsort(steps, kind="stable")
    edges = np.flatnonzero(np.diff(steps[order])) + 1
    for number, tokens in enumerate(np.split(order, edges)):
        seconds = None if trace.gate_seconds is None else trace.gate_seconds[steps[tokens[0]]]
        for layer in range(routing.layers):
            clock.now = number * token_seconds if seconds is None else float(seconds[layer])
            counts = np.bincount(trace.ids[tokens, layer].ravel(), minlength=routing.experts)
            heat.activate(layer, counts, len(tokens))
            total[layer] += counts
    indices = trace.layer_indices or range(routing.layers)
    rows = (
        ExpertRow(index, expert, score, None, count, None, None, None, None)
        for index, scores, counts in zip(
            indices, heat.scores().tolist(), total.tolist(), strict=True
        )
        for expert, (score, count) in enumerate(zip(scores, counts, strict=True))
    )
    return ExpertTable(timestamp, trace.model or trace.name, tuple(rows))
