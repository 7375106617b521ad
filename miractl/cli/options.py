"""Options that several commands share, generated from the parameters and the settings.

Environment, configuration file and profile are resolved by `miractl.config`, which also names them
in errors; click only shows the variables in the help.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from miractl import units
from miractl.config import SETTINGS, resolve_settings
from miractl.errors import UsageError
from miractl.parameters import PARAMETERS, RUNTIME, Parameter
from miractl.profiles import list_profiles
from miractl.suggest import nearest

F = TypeVar("F", bound=Callable[..., Any])
_GIVEN = "miractl.parameters"  # in ctx.meta: the parameters given on the command line
_MEANING = {"kv_memory": units.parse_bytes}  # of a setting's text, where it is one quantity


class ParameterType(click.ParamType[Any]):
    """Words of the command line as a parameter's value."""

    def __init__(self, parameter: Parameter) -> None:
        self.parameter = parameter
        self.name = parameter.kind

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """`MS`, `MB`, `lookahead|markov`, `NUMBER`, `N` or `TEXT`."""
        p = self.parameter
        kinds = {"float": "NUMBER", "int": "N"}
        return p.unit.upper() or "|".join(p.choices) or kinds.get(p.kind, "TEXT")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The checked value; fails with what is expected."""
        try:
            return self.parameter.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The choices, where there are some."""
        return [CompletionItem(c) for c in self.parameter.choices if c.startswith(incomplete)]


class LayeredOption(click.Option):
    """An option whose variable click shows but does not read."""

    def resolve_envvar_value(self, ctx: click.Context) -> None:
        """Nothing: `miractl.config` reads the environment."""


def json_option(f: F) -> F:
    """`--json`, passed as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(f)


def policy_option(f: F) -> F:
    """`--policy NAME`, checked; None for the default."""
    return click.option(
        "--policy",
        metavar="NAME",
        callback=_check_policy,
        help="Which experts stay: learned, learned-bypass, learned-layer, heat, heat-shift, lru,"
        " lfu, lru-shift, lfu-shift, lru-pool, random, or static with --warm-heat; miractl replay"
        " compares them."
        "  [default: learned]",
    )(f)


def setting_option(*names: str) -> Callable[[F], F]:
    """Options for entries of SETTINGS, each passed under its name and resolved from all layers."""

    def decorate(f: F) -> F:
        for name in reversed(names):
            f = _option(SETTINGS[name], callback=_resolved)(f)
        return f

    return decorate


def runtime_option(*names: str) -> Callable[[F], F]:
    """Options for entries of RUNTIME, passed as given on the command line, else as None."""

    def decorate(f: F) -> F:
        for name in reversed(names):
            f = _option(RUNTIME[name])(f)
        return f

    return decorate


def unresolved_settings(f: F) -> F:
    """An option for every entry of SETTINGS, passed as given on the command line, else as None."""
    for setting in reversed(SETTINGS.values()):
        f = _option(setting)(f)
    return f


runtime_options = runtime_option(*RUNTIME)
url_option = setting_option("url")
profile_option = setting_option("profile")
log_options = setting_option("log_level", "log_format")


def parameter_options(f: F) -> F:
    """One option a parameter and `--set NAME=VALUE`.

    The command gets `parameters`: a dict of those given on the command line, for
    `resolve_parameters`.
    """

    @functools.wraps(f)
    def command(*args: Any, **kwargs: Any) -> Any:
        given = click.get_current_context().meta.get(_GIVEN, {})
        return f(*args, parameters=dict(given), **kwargs)

    click.option(
        *("--set", "assignments"),
        metavar="NAME=VALUE",
        multiple=True,
        expose_value=False,
        callback=_assign,
        help="Set a parameter by its name; may be repeated.",
        shell_complete=_complete_assignment,
    )(command)
    for parameter in reversed(PARAMETERS.values()):
        _option(parameter, callback=_remember, expose_value=False)(command)
    return command  # type: ignore[return-value]


def _option(parameter: Parameter, **how: Any) -> Callable[[F], F]:
    is_flag = parameter.kind == "bool"
    return click.option(
        parameter.option,
        parameter.name,
        cls=LayeredOption,
        type=None if is_flag else ParameterType(parameter),
        default=None,
        envvar=parameter.env,
        show_envvar=True,
        help=_help(parameter),
        shell_complete=_COMPLETIONS.get(parameter.name),
        **how,
    )


def _help(parameter: Parameter) -> str:
    extra = [parameter.range] if parameter.range else []
    if parameter.default is not None:
        extra.append(f"default: {parameter.show(parameter.default)}")
    return f"{parameter.help}  [{'; '.join(extra)}]" if extra else parameter.help


def _check_policy(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    from miractl.policy.registry import RUNNABLE

    if value not in RUNNABLE:
        raise UsageError(
            f"--policy: no policy {value!r}{nearest(value, RUNNABLE)}",
            hint=f"one of: {', '.join(RUNNABLE)}",
        )
    return value


def _resolved(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    name = str(param.name)
    setting = resolve_settings({} if value is None else {name: value})[name]
    if name not in _MEANING or setting.value is None:
        return setting.value
    try:
        return _MEANING[name](setting.value)
    except ValueError as error:
        raise UsageError(f"{name.replace('_', ' ')} ({setting.origin}): {error}") from None


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None:
        _give(ctx, str(param.name), value)


def _assign(ctx: click.Context, param: click.Parameter, assignments: tuple[str, ...]) -> None:
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise click.BadParameter(f"got {assignment!r} but expected NAME=VALUE")
        if name not in PARAMETERS:
            raise click.BadParameter(f"no parameter {name!r}{nearest(name, PARAMETERS)}")
        try:
            _give(ctx, name, PARAMETERS[name].parse(text.strip()))
        except ValueError as error:
            raise click.BadParameter(f"{name}: {error}") from None


def _give(ctx: click.Context, name: str, value: Any) -> None:
    given = ctx.meta.setdefault(_GIVEN, {})
    if name in given:
        raise click.UsageError(f"{name} is given twice", ctx)
    given[name] = value


def complete_profile(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of bundled profiles, for shell completion."""
    return [name for name in list_profiles() if name.startswith(incomplete)]


def complete_model(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Folders, and the models whose facts come with miractl."""
    from miractl.plan.catalog import CONFIGS

    names = [name for name in CONFIGS if name.lower().startswith(incomplete.lower())]
    # The shell's own completion of folders comes first: it starts its list anew.
    return [CompletionItem(incomplete, type="dir"), *map(CompletionItem, names)]


def _complete_device(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in ("auto", "cpu", "cuda:0") if name.startswith(incomplete)]


def _complete_assignment(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """`cache_threshold=`; after it the words that a parameter takes, if it takes words."""
    name, equals, begun = incomplete.partition("=")
    if not equals:
        return [f"{known}=" for known in PARAMETERS if known.startswith(name)]
    parameter = PARAMETERS.get(name)
    if parameter is None:
        return []
    words = ("true", "false") if parameter.kind == "bool" else parameter.choices
    return [f"{name}={word}" for word in words if word.startswith(begun)]


_COMPLETIONS: dict[str, Callable[[click.Context, click.Parameter, str], list[str]]] = {
    "profile": complete_profile,
    "device": _complete_device,
}
