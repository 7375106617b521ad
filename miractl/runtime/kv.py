"""Keys and values of a sequence in memory with room for more: a token is written, nothing moved.

transformers' own layer makes new tensors for every token and copies all that were there into them.
"""

import torch
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, DynamicLayer

LEAST_ROOM = 64  # tokens
ROOM_SHARE = 8  # one token of room for so many


class GrowingLayer(DynamicLayer):
    """`keys` and `values` [B, H, tokens, D] are the starts of larger tensors."""

    _rooms: tuple[torch.Tensor, torch.Tensor] | None = None
    _filled: tuple[torch.Tensor, torch.Tensor] | None = None  # what this class made last

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add keys and values [B, H, n, D]; returns all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        length = self.get_seq_length()
        end = length + key_states.shape[-2]
        new = key_states, value_states
        mine = self._filled is not None and self._filled[0] is self.keys
        if self._rooms is None or not mine or end > self._rooms[0].shape[-2]:
            old = (self.keys, self.values) if length else (None, None)
            room = end + max(LEAST_ROOM, end // ROOM_SHARE)
            self._rooms = _room(old[0], new[0], room), _room(old[1], new[1], room)
        for whole, states in zip(self._rooms, new, strict=True):
            whole.narrow(-2, length, end - length).copy_(states)
        self.keys, self.values = (whole.narrow(-2, 0, end) for whole in self._rooms)
        self._filled = self.keys, self.values
        return self.keys, self.values


def install() -> None:
    """Caches that are made from now on have such layers, where they had transformers' own."""
    for name, kind in list(DYNAMIC_LAYER_TYPE_MAPPING.items()):
        if kind is DynamicLayer:
            DYNAMIC_LAYER_TYPE_MAPPING[name] = GrowingLayer


def _room(old: torch.Tensor | None, new: torch.Tensor, tokens: int) -> torch.Tensor:
    """Memory for `tokens`, with the old ones in it."""
    room = new.new_empty(*new.shape[:-2], tokens, new.shape[-1])
    if old is not None:
        room.narrow(-2, 0, old.shape[-2]).copy_(old)
    return room
