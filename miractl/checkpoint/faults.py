"""What is wrong with a checkpoint, as data: a code for programs, a line and a remedy for people."""

from dataclasses import asdict, dataclass
from typing import Any

from miractl.errors import MiractlError


@dataclass(frozen=True, slots=True)
class Fault:
    """One finding. `fatal`: the checkpoint cannot be used as it is; otherwise it is worth knowing.

    `names` are all the files or tensors that it is about; the text names the first.
    """

    code: str
    text: str
    remedy: str | None = None
    fatal: bool = True
    names: tuple[str, ...] = ()

    def error(self) -> MiractlError:
        """The fault as an error that ends a command."""
        return MiractlError(self.text, hint=self.remedy)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "names": list(self.names)}


class FileFaultError(MiractlError):
    """An error that is one file's fault; `code` is the fault's."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code

    def fault(self, name: str) -> Fault:
        """The same as data, about the file `name`."""
        return Fault(self.code, self.message, self.hint, names=(name,))
