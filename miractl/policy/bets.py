"""What bets are told of time: how long a layer computes, and how long a transfer takes."""

RATE = 0.05  # of the averages, a layer's step


class Pace:
    """Seconds from the routing of a layer to that of the next, waiting left out, by layer.

    Prompts have a pace of their own: theirs follows the number of tokens.
    """

    def __init__(self, layers: int) -> None:
        self._seconds: dict[bool, list[float | None]] = {
            prompt: [None] * layers for prompt in (False, True)
        }
        self._last: tuple[int, float, float] | None = None

    def mark(self, layer: int, now: float, waited: float, prompt: bool) -> None:
        """A layer is routed; `waited` seconds in all have been spent on transfers so far."""
        last, self._last = self._last, (layer, now, waited)
        if last is None or last[0] != layer - 1:
            return
        seconds, old = max(0.0, now - last[1] - (waited - last[2])), self._seconds[prompt][layer]
        self._seconds[prompt][layer] = seconds if old is None else old + RATE * (seconds - old)

    def until(self, layer: int, prompt: bool) -> float | None:
        """Seconds from the layer before to this one; None while that is not known."""
        return self._seconds[prompt][layer]
