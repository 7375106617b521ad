"""Checks of what the user sets and names: configuration, profile, port, running server."""

from miractl.doctor.check import Check, Finding, Remedy, Status, Subject, ok, skip, unknown


def _configuration(subject: Subject) -> Finding:
    configuration = subject.configuration
    if configuration is None:
        return skip("not read")
    if configuration.error:
        remedy = Remedy("Correct it, then see what holds:", ("miractl config show --origin",))
        return Finding(Status.FAIL, configuration.error, "an error", "none", remedy)
    file = configuration.file or "no configuration file"
    return ok(f"{file}; profile {configuration.profile} ({configuration.origin})")


def _profile(subject: Subject) -> Finding:
    profile = subject.profile
    if profile is None:
        return skip("no profile given")
    names = " or ".join(profile.hardware.gpu_names)
    if not names:
        return ok(f"profile {profile.name} asks for no particular GPU")
    found = sorted({gpu.name for gpu in subject.nvml.gpus if gpu.name})
    if not subject.nvml.gpus:
        text = f"profile {profile.name} is for {names}; there is no GPU, so it only sets the values"
        return Finding(Status.WARN, text, "no GPU", names, _better(subject, None))
    if not found:
        return unknown("the GPU does not tell its name")
    if any(profile.hardware.matches(name) for name in found):
        return ok(f"profile {profile.name} is for {names}", ", ".join(found), names)
    text = f"profile {profile.name} is for {names}; this is {', '.join(found)}"
    return Finding(Status.WARN, text, ", ".join(found), names, _better(subject, found[0]))


def _better(subject: Subject, gpu: str | None) -> Remedy:
    """The profile made for this GPU, or the one for any machine."""
    fits = [p.name for p in subject.profiles if gpu and p.hardware.matches(gpu)]
    name = fits[0] if fits else "default" if gpu else "cpu"
    return Remedy("A profile that fits better:", (f"miractl serve --profile {name}",))


def _port(subject: Subject) -> Finding:
    port = subject.port
    if port is None:
        return skip("no port given")
    if port.error is None:
        return ok(f"port {port.port} is free", "free", "free")
    text = f"port {port.port} cannot be had: {port.error}"
    if port.free is None:
        return Finding(Status.FAIL, text, port.error, "free")
    remedy = Remedy("Take another one:", (f"miractl serve --port {port.free}",))
    return Finding(Status.FAIL, text, port.error, "free", remedy)


def _server(subject: Subject) -> Finding:
    server = subject.server
    if server is None:
        return skip("no server given")
    if server.status is None:
        text = f"no answer from {server.url}: {server.error}"
        return Finding(Status.FAIL, text, server.error, "200")
    told = f"{server.url}/health says {server.status}"
    if server.status == 200:
        return ok(told, "200", "200")
    if server.status == 503 and "loading" in server.body:
        return unknown(f"{told}: the model is loading", "503 loading")
    return Finding(Status.FAIL, told, str(server.status), "200")


CHECKS = (
    Check(
        id="config.keys",
        title="the settings parse",
        category="config",
        severity="failure",
        run=_configuration,
        about="The configuration file, the variables MIRACTL_* and the profile that they choose "
        "are read as `serve` reads them. An unknown key or a value out of range is a failure, "
        "told with its line and the nearest key that there is.",
        source="`miractl config show --origin`",
        remedy=Remedy("Correct it."),
    ),
    Check(
        id="profile.match",
        title="the profile fits the GPU",
        category="profile",
        severity="warning",
        run=_profile,
        only_with="profile",
        about="Compares the GPUs that a profile is made for with those found. A profile for "
        "another GPU still works; its values were chosen for other memory and another link.",
        source="the profile's `hardware` section",
        remedy=Remedy("See what there is:", ("miractl profiles list",)),
    ),
    Check(
        id="server.port",
        title="the port is free",
        category="server",
        severity="failure",
        run=_port,
        only_with="port",
        about="Whether a server could listen on 127.0.0.1 at the port given with --port. It is "
        "taken for a moment, and given back.",
        source="bind(2)",
        remedy=Remedy("See who has it:", ("ss -ltnp",)),
    ),
    Check(
        id="server.health",
        title="the server answers",
        category="server",
        severity="failure",
        run=_server,
        only_with="server",
        about="GET /health of the server given with --server: 200 is well, 503 while the model "
        "loads is unknown, everything else is a failure.",
        source="the server's HTTP interface",
        remedy=Remedy("Start it, or read its log:", ("miractl serve",)),
    ),
)
