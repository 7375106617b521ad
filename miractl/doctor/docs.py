"""docs/checks.md, generated from the checks: `python -m miractl.doctor.docs > docs/checks.md`."""

from itertools import groupby

from miractl.doctor.check import Check
from miractl.doctor.registry import CHECKS

_INTRO = """\
# Checks

<!-- Generated from the checks themselves: python -m miractl.doctor.docs > docs/checks.md -->

What `miractl doctor` asks, how it judges, and what to do. A verdict is one of: **ok**; **warn**, it
works and could be better; **fail**, it will not work; **unknown**, it cannot be told from here,
which is neither good nor bad; **skip**, the question does not arise. Only failures end with exit
code 1, unless `--fail-on` says otherwise. Nothing that is suggested is ever run by the doctor.

"""
_WORST = {"info": "never more than ok or unknown", "warning": "warn", "failure": "fail"}


def _section(check: Check) -> str:
    needs = f"Needs: {', '.join(f'`{need}`' for need in check.needs)}. " if check.needs else ""
    option = f"Only with `--{check.only_with}`. " if check.only_with else ""
    lines = [
        f'<a id="{check.id.replace(".", "-")}"></a>',
        "",
        f"### {check.id}",
        "",
        f"*{check.title[0].upper()}{check.title[1:]}.* {check.about}",
        "",
        f"At worst: {_WORST[check.severity]}. {needs}{option}Source: {check.source}.",
        "",
    ]
    if check.remedy is not None:
        lines += [check.remedy.text, ""]
        if check.remedy.commands:
            lines += ["```sh", *check.remedy.commands, "```", ""]
    return "\n".join(lines)


def checks_page() -> str:
    """The whole page."""
    parts = [_INTRO]
    for category, checks in groupby(CHECKS, key=lambda check: check.category):
        parts.append(f"## {category}\n\n")
        parts += [_section(check) + "\n" for check in checks]
    return "".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    print(checks_page(), end="")
