"""The tokenizer beside the weights, and transformers' words kept off the terminal."""

from pathlib import Path

import transformers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from miractl.errors import MiractlError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer beside the weights. Raises MiractlError in one line."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # broken files surface as whatever their parser trips over
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise MiractlError(f"{folder} has no tokenizer that can be loaded ({reason})") from error
    if not any(path.name in TOKENIZER_FILES for path in folder.iterdir()):
        raise MiractlError(
            f"{folder} has no tokenizer files", hint="download tokenizer.json beside the weights"
        )
    return tokenizer


def quiet_transformers() -> None:
    """Keep transformers' advice and progress bars off the terminal; errors still come through."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
