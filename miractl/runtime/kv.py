"""Keys and values of a sequence in memory with room for more: a token is written, nothing moved.

transformers' own layer makes new tensors for every token and copies all that were there into them.
"""

from typing import Any

import torch
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, DynamicLayer

from miractl.native.attention import Kept

LEAST_ROOM = 64  # tokens
ROOM_SHARE = 8  # one token of room for so many

Pair = tuple[torch.Tensor, torch.Tensor]


class GrowingLayer(DynamicLayer):
    """`keys` and `values` [B, H, tokens, D] are the starts of larger tensors.

    They are made when somebody asks: a token that the library writes needs none. Whoever sets them
    decides what is kept from then on.
    """

    _rooms: Pair | None = None  # None: what is kept was set from outside
    _kept: Kept | None = None  # the rooms as the library takes them; it counts their tokens
    _is_usual = False  # whether it can

    def __init__(self, **kwargs: Any) -> None:
        self._set: list[torch.Tensor | None] = [None, None]
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]

    @property
    def keys(self) -> torch.Tensor | None:
        """[B, H, tokens, D]; None before there are any."""
        return self._get(0)

    @keys.setter
    def keys(self, keys: torch.Tensor | None) -> None:
        self._take(0, keys)

    @property
    def values(self) -> torch.Tensor | None:
        """[B, H, tokens, D]; None before there are any."""
        return self._get(1)

    @values.setter
    def values(self, values: torch.Tensor | None) -> None:
        self._take(1, values)

    def _get(self, which: int) -> torch.Tensor | None:
        if self._rooms is None or self._kept is None:
            return self._set[which]
        return self._rooms[which].narrow(-2, 0, self._kept.tokens)

    def _take(self, which: int, states: torch.Tensor | None) -> None:
        if self._rooms is not None:
            self._set, self._rooms, self._kept = [self.keys, self.values], None, None
        self._set[which] = states

    def get_seq_length(self) -> int:
        """Tokens that are kept."""
        kept = self._kept
        return int(super().get_seq_length() if kept is None else kept.tokens)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> Pair:
        """Add keys and values [B, H, n, D]; returns all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        begin = self.get_seq_length()
        end = begin + key_states.shape[-2]
        rooms = self._rooms_for(end, (key_states, value_states))
        for room, states in zip(rooms, (key_states, value_states), strict=True):
            room.narrow(-2, begin, end - begin).copy_(states)
        assert self._kept is not None
        self._kept.tokens = end
        return rooms[0].narrow(-2, 0, end), rooms[1].narrow(-2, 0, end)

    @property
    def kept(self) -> Kept | None:
        """Where the library finds all tokens and writes the next of each sequence, if it can.

        None where nothing is kept yet, or something else than float32 on the CPU. There may be no
        room for the next token before `make_room`.
        """
        return self._kept if self._is_usual else None

    def make_room(self) -> None:
        """Have room for one more token, if there is one already."""
        keys, values = self.keys, self.values
        if keys is not None and values is not None and self.get_seq_length():
            self._rooms_for(keys.shape[-2] + 1, (keys, values))

    def _rooms_for(self, tokens: int, like: Pair) -> Pair:
        """Rooms for so many tokens, and some more, with all that is kept in them."""
        rooms = self._rooms
        if rooms is None or tokens > rooms[0].shape[-2]:
            length, room = self.get_seq_length(), tokens + max(LEAST_ROOM, tokens // ROOM_SHARE)
            old = (self.keys, self.values) if length else (None, None)
            rooms = _room(old[0], like[0], room), _room(old[1], like[1], room)
            self._rooms, self._set, self._kept = rooms, [None, None], _kept_in(rooms, length)
            self._is_usual = _is_usual(*rooms)
        return rooms

    def __deepcopy__(self, memo: dict[int, Any]) -> "GrowingLayer":
        other = type(self)()
        vars(other).update(vars(self))
        other._set = [None if states is None else states.clone() for states in self._set]
        if self._rooms is not None and self._kept is not None:
            other._rooms = self._rooms[0].clone(), self._rooms[1].clone()
            other._kept = _kept_in(other._rooms, self._kept.tokens)
        return other


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


def _kept_in(rooms: Pair, tokens: int) -> Kept:
    keys, values = rooms
    batch, heads, room, dim = keys.shape
    where = keys.data_ptr(), values.data_ptr()
    return Kept(*where, batch, heads, dim, room, *keys.stride()[:3], tokens)


def _is_usual(keys: torch.Tensor, values: torch.Tensor) -> bool:
    floats = keys.dtype is values.dtype is torch.float32
    return floats and keys.device.type == "cpu" and keys.shape == values.shape
