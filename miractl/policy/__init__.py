"""The brain: which experts to keep and what to bring next. No torch."""
