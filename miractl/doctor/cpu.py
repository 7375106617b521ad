"""Checks of the processors: how many threads, and at which clock."""

from miractl.doctor.check import Check, Finding, Remedy, Status, Subject, ok, unknown
from miractl.probe.facts import Cpu

# Governors under these drivers are hints to hardware that picks the clock itself.
SELF_CLOCKING = ("intel_pstate", "amd-pstate", "amd-pstate-epp", "cppc_cpufreq")


def _quota(cpu: Cpu) -> str:
    return (
        "no quota"
        if cpu.quota == "max"
        else "quota n/a"
        if cpu.quota is None
        else (f"quota {cpu.quota:g}")
    )


def _threads(subject: Subject) -> Finding:
    cpu = subject.cpu
    basis = (
        f"cores {cpu.physical or 'n/a'}, logical processors {cpu.logical} of {cpu.online}, "
        f"{_quota(cpu)}"
    )
    expected = str(cpu.recommended_threads)
    if cpu.physical is None or cpu.quota is None:
        return unknown(f"threads: {cpu.threads}, not certain ({basis})", str(cpu.threads))
    if cpu.omp_num_threads is None:
        return ok(f"threads: {cpu.threads} ({basis})", expected, expected)
    text = f"threads: {cpu.threads} by OMP_NUM_THREADS, recommended {expected} ({basis})"
    status = Status.WARN if cpu.threads > cpu.recommended_threads else Status.OK
    return Finding(status, text, str(cpu.threads), expected)


def _frequency(subject: Subject) -> Finding:
    cpu = subject.cpu
    if cpu.governor is None:
        return unknown("frequency scaling is not shown here, as in most virtual machines")
    if cpu.max_hz and cpu.hardware_max_hz and cpu.max_hz < cpu.hardware_max_hz:
        now, best = f"{cpu.max_hz / 1e9:.2f} GHz", f"{cpu.hardware_max_hz / 1e9:.2f} GHz"
        return Finding(
            Status.WARN, f"clock is capped at {now}, the processor can do {best}", now, best
        )
    told = f"governor {cpu.governor} ({cpu.driver or 'driver n/a'})"
    if cpu.governor == "powersave" and cpu.driver not in SELF_CLOCKING:
        return Finding(Status.WARN, f"{told} holds the lowest clock", cpu.governor, "performance")
    return ok(told, cpu.governor)


def _kernels(subject: Subject) -> Finding:
    why_not = subject.software.kernels
    if why_not is None:
        return unknown("whether the CPU kernels can be used was not asked")
    if not why_not:
        return ok("the CPU kernels are there and pass their self-test", "usable", "usable")
    return Finding(Status.WARN, why_not, "not usable", "usable")


CHECKS = (
    Check(
        id="cpu.threads",
        title="threads to compute with",
        category="cpu",
        severity="warning",
        run=_threads,
        about="Physical cores in the affinity mask, or the quota of the control group rounded down "
        "if that is less. OMP_NUM_THREADS wins and is shown; more than recommended is a warning.",
        source="sched_getaffinity(2); cpu.max, or cpu.cfs_quota_us",
        remedy=Remedy("Let miractl choose:", ("unset OMP_NUM_THREADS",)),
    ),
    Check(
        id="cpu.freq",
        title="clock of the processor",
        category="cpu",
        severity="warning",
        run=_frequency,
        about="A limit below what the processor can do, or the governor powersave where it means "
        "the lowest clock (under intel_pstate and amd-pstate it does not). The clock in "
        "/proc/cpuinfo is only that of the moment.",
        source="linux, Documentation/admin-guide/pm/cpufreq.rst and intel_pstate.rst",
        remedy=Remedy("Let it run:", ("sudo cpupower frequency-set -g performance",)),
    ),
    Check(
        id="native.library",
        title="CPU kernels",
        category="cpu",
        severity="warning",
        run=_kernels,
        about="Packed int8 and int4 experts are computed on the CPU by a compiled library that "
        "comes with miractl. Without it they are turned into numbers for torch, which is correct "
        "and several times slower. The library is tested each time it is loaded.",
        source="docs/formats.md",
        remedy=Remedy(
            "Install a wheel for this platform, or have a C compiler at hand:",
            ("pip install --force-reinstall --no-deps miractl",),
        ),
    ),
)
