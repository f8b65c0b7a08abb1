"""Checkpoints: after each cell a copy of the interpreter, which goes on should the next cell kill the original.

Compiled by the Python driver after its first cell; `core` is the driver. The copy is made between cells, while
nobody waits, and the cell runs in the original: its process number, children and open files are what they were.
The copy sleeps until the original has died. It then says nothing before the host has spoken to it, because the
host alone knows that it took over.

It is made only where it can be a whole one and where nobody can tell that it is there: no second thread (a copy
has only one), no children (they would not be the copy's), no pipe or socket of the cell's own (the other end would
not see it close), memory below a limit (what the cell then changes exists twice). Otherwise there is none, and a
death takes the variables with it. Never part of a checkpoint: files, and what other processes hold.
"""
import _signal
import os
import select
import stat
import sys

heir = 0  # the copy's process number


def take():
    """Makes a new copy in place of the last one. Returns the kind of frame to send and the copy's process number, 0
    for none: at once in the original, and again in the copy when its turn has come."""
    global heir
    kind = "rest"
    while True:
        discard()
        heir = copy() if is_safe() else 0
        if heir is not None:
            return kind, heir
        kind = "ready"


def discard():
    if heir:
        try:
            os.kill(heir, _signal.SIGKILL)
        except OSError:
            pass  # the cell was quicker


def is_safe():
    try:
        if not core.State.checkpoint_max or has_threads():
            return False
        with open("/proc/self/statm") as file:
            if int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") > core.State.checkpoint_max:
                return False
        if _signal.getsignal(_signal.SIGCHLD) != _signal.SIG_DFL or has_children():
            return False
        loop, own = core.State.loop, set()
        if loop is not None and not loop.is_closed():
            own = {loop._selector.fileno(), loop._ssock.fileno(), loop._csock.fileno()}
        return all(fd in own or is_harmless(fd) for fd in map(int, os.listdir("/proc/self/fd")))
    except Exception:  # no /proc, or another kind of event loop
        return False


def has_threads():
    for wait in (0.001, 0.002, 0):  # one that was joined may take a moment to be gone
        if len(os.listdir("/proc/self/task")) == 1:
            return False
        select.select([], [], [], wait)
    return True


def has_children():
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except ChildProcessError:
        return False


def is_harmless(fd):
    """Whether nobody can tell that a second process has it open, too."""
    try:
        status = os.fstat(fd)
    except OSError:
        return True  # it was the list's own
    kind = stat.S_IFMT(status.st_mode)
    return (
        kind in (stat.S_IFREG, stat.S_IFDIR)
        or (kind == stat.S_IFCHR and os.major(status.st_rdev) == 1)  # /dev/null and the like
        or (status.st_dev, status.st_ino) in core.CHANNELS
    )


def copy():
    """The copy's process number, 0 when there is none. In the copy: `None`, after the original's death."""
    ours, theirs = os.pipe()
    watch = -1
    try:
        watch = os.pidfd_open(os.getpid())
        random = sys.modules.get("random")
        randomness = random.getstate() if random else None  # a fork gives `random` a new seed
        core.State.copying = True
        child = os.fork()
        if not child:
            live_on(watch, theirs)
            try:
                if randomness:
                    random.setstate(randomness)
            except Exception:
                pass  # the cells put something else in its place
            return None
        os.close(theirs)
        theirs = -1
        number = os.read(ours, 8)
        os.waitpid(child, 0)
        return int.from_bytes(number, "little")
    except (OSError, AttributeError):  # no process to be had, or a Python without `pidfd_open`
        return 0
    finally:
        core.State.copying = False
        for fd in (ours, theirs, watch):
            if fd >= 0:
                os.close(fd)


def live_on(watch, told):
    """In the child: becomes a process that is no child of the original, sleeps until that is dead, and waits for the
    host."""
    try:
        if os.fork():
            core._exit(0)
        os.setpgid(0, 0)  # what is sent to the cell's group is not for the copy
        mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        os.write(told, os.getpid().to_bytes(8, "little"))
        waiting = select.poll()
        waiting.register(watch, select.POLLIN)
        waiting.poll()
        os.set_blocking(core.CONTROL, True)  # shared with the cell, which may have changed it
        word, seen = core.State.resume, b""
        while seen != word:  # before it stands what the original did not read; after it comes nothing
            chunk = core._read(core.CONTROL, 65536)
            if not chunk:
                core._exit(0)
            seen = (seen + chunk)[-len(word) :]
        core.PID = os.getpid()
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    except BaseException:
        core._exit(1)
