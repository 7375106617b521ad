"""Choosing the next token, for one request at a time.

A row of logits is replaced by its choice (0 there, -inf elsewhere), so that an arg-max after it
takes it. Requests in a batch therefore never share sampling settings or random numbers, a seed
gives the same tokens whoever else is served, and greedy is the plain arg-max, ties included.
"""

import torch

from miractl.server.job import Sampling

MIN_TEMPERATURE = 1e-6


class Sampler:
    """The choices of one request: its random stream, and the tokens it has chosen."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._generator: torch.Generator | None = None
        self._counts: dict[int, int] = {}
        self.error: str | None = None

    def choose_in(self, row: torch.Tensor) -> None:
        """Replace `row` [vocabulary] float32 by its choice. A failure lands in `error`."""
        try:
            token = self._choose(row)
        except (RuntimeError, ValueError, IndexError) as error:
            # Raising here would end the batch, and with it the requests of others.
            self.error = f"no token could be sampled: {error}"
            return
        row.fill_(-torch.inf)
        row[token] = 0.0

    def _choose(self, row: torch.Tensor) -> int:
        scores = self._adjusted(row)
        greedy = self._sampling.temperature == 0
        token = int(scores.argmax()) if greedy else self._draw(scores)
        if self._sampling.presence_penalty or self._sampling.frequency_penalty:
            self._counts[token] = self._counts.get(token, 0) + 1
        return token

    def _adjusted(self, row: torch.Tensor) -> torch.Tensor:
        """Scores with bias and penalties. Raises ValueError where the model gave no numbers."""
        sampling, scores = self._sampling, row.clone()
        if not bool(torch.isfinite(scores.max())):
            raise ValueError("the model's scores are not finite")
        for token, bias in sampling.logit_bias.items():
            scores[token] += bias
        for token, count in self._counts.items():
            scores[token] -= sampling.presence_penalty + count * sampling.frequency_penalty
        return scores

    def _draw(self, scores: torch.Tensor) -> int:
        sampling = self._sampling
        # From the largest down, so that no division overflows; float32 has no 1e-300.
        scores = (scores - scores.max()) / max(sampling.temperature, MIN_TEMPERATURE)
        if sampling.top_k is None and sampling.top_p == 1:
            return self._pick(torch.softmax(scores, dim=-1))
        size = min(sampling.top_k or scores.numel(), scores.numel())
        ordered, tokens = torch.topk(scores, size)
        probabilities = torch.softmax(ordered, dim=-1)
        # A token is kept while those before it have less than top_p; the first one always.
        keep = probabilities.cumsum(-1) - probabilities < sampling.top_p
        keep[0] = True
        return int(tokens[self._pick(torch.where(keep, probabilities, 0.0))])

    def _pick(self, probabilities: torch.Tensor) -> int:
        random = self._random(probabilities.device)
        return int(torch.multinomial(probabilities, 1, generator=random))

    def _random(self, device: torch.device) -> torch.Generator:
        if self._generator is None:
            self._generator = torch.Generator(device=device)
            if self._sampling.seed is None:
                self._generator.seed()
            else:
                self._generator.manual_seed(self._sampling.seed)
        return self._generator
