"""Logging: one configuration, on stderr, as text or as JSON lines. Importing configures nothing."""

import json
import logging
import logging.config
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message and, if any, the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure(level: str = "info", format: str = "text") -> None:
    """Send everything from `level` up to stderr, `format` being text or json."""
    formatters = {
        "text": {
            "format": "%(asctime)s %(levelname)-7s %(name)s: %(message)s",
            "datefmt": "%Y-%m-%d %H:%M:%S",
        },
        "json": {"()": JsonFormatter},
    }
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {format: formatters[format]},
            "handlers": {
                "stderr": {
                    "class": "logging.StreamHandler",
                    "stream": "ext://sys.stderr",
                    "formatter": format,
                }
            },
            "root": {"level": level.upper(), "handlers": ["stderr"]},
        }
    )
