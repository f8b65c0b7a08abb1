"""Checkpoints: after each cell a copy of the interpreter, which goes on should the next cell kill the original.

Compiled by the Python driver after its first cell; `core` is the driver. The copy is made between cells, while
no one waits, and the cell runs in the original: its process number, children and open files are what they were.
The copy sleeps until the original has died. It then says nothing before the host has spoken to it, because the
host alone knows that it took over.

Two system calls make it cheap. `clone` with the flag that makes the new process a child of the original's parent spares
a second fork, and waiting for its parent to go; no function of Python's or of the C library knows that flag, so what
`os.fork` does around the call is done here. And no one waits for the copy before it has to be in place, which is when
the next cell runs: until then the host is notified, and answers.

It is made only where it can be a whole one and where no one can tell that it is there: no second thread (a copy
has only one), no children (they would not be the copy's), no pipe or socket of the cell's own (the other end would
not see it close), memory below a limit (what the cell then changes exists twice). Otherwise there is none, and a
death takes the variables with it. Never part of a checkpoint: files, and what other processes hold.
"""
import _signal
import os
import select
import stat
import sys

SETTLE_MS = 10000  # more than a busy machine takes to start a process

successor = 0  # the copy's process number
placed = -1  # where a copy that was just made says that it is in place


def take():
    """Makes a new copy in place of the last one. Returns the kind of frame to send and the copy's process number, 0
    for none: at once in the original, and again in the copy when its turn has come."""
    global successor
    kind = "rest"
    while True:
        discard()
        successor = copy() if is_safe() else 0
        if successor is not None:
            return kind, successor
        kind = "ready"


def discard():
    global successor
    if successor:
        try:
            os.kill(successor, _signal.SIGKILL)
        except OSError:
            pass  # the cell was quicker
    successor = 0


def settle():
    """Waits until the copy is in place: before, what a cell does to its process group would reach it, too."""
    global placed
    if placed >= 0:
        waiting = select.poll()
        waiting.register(placed, select.POLLIN)
        if not waiting.poll(SETTLE_MS):
            discard()
        os.close(placed)
        placed = -1


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
            if core.hooks.tasks():
                return False  # they go on between cells, and a copy would share what they wait for
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
    """Whether no one notices that a second process has it open, too."""
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
    global placed
    placed, tell = os.pipe()
    watch = -1
    try:
        watch = os.pidfd_open(os.getpid())
        random = sys.modules.get("random")
        randomness = random.getstate() if random else None  # a fork gives `random` a new seed
        core.State.copying = True
        made = fork_sibling() if fork_sibling else fork_orphan()
        if made:
            return made
        os.close(placed)
        placed = -1
        live_on(watch, tell)
        try:
            if randomness:
                random.setstate(randomness)
        except Exception:
            pass  # the cells put something else in its place
        return None
    except (OSError, AttributeError):  # no process to be had, or a Python without `pidfd_open`
        return 0
    finally:
        core.State.copying = False
        for fd in (tell, watch):
            if fd >= 0:
                os.close(fd)


def sibling_maker():
    """A function like `os.fork` whose child is our parent's and not ours; `None` where it cannot be had."""
    # For each machine: the number of `clone`, whether its pointer to a thread's data stands last, and where in that data
    # the C library remembers the thread's number. There the kernel writes the copy's, as it does for the library's `fork`.
    known = {"x86_64": (56, False, 720), "aarch64": (220, True, 208)}
    try:
        number, data_first, offset = known[os.uname().machine]
        if not os.confstr("CS_GNU_LIBC_VERSION").startswith("glibc"):
            return None
        import ctypes

        here = ctypes.PyDLL(None)
        here.pthread_self.restype = ctypes.c_void_p
        own = here.pthread_self() + offset
        if ctypes.c_int.from_address(own).value != os.getpid():
            return None
        clone = here.syscall
        clone.restype, clone.argtypes = ctypes.c_long, [ctypes.c_long] * 6
        before, in_parent, in_child = here.PyOS_BeforeFork, here.PyOS_AfterFork_Parent, here.PyOS_AfterFork_Child
    except Exception:  # another C library, or a Python without `ctypes`
        return None
    parent, clear_number, set_number = 0x8000, 0x200000, 0x1000000
    flags = parent | clear_number | set_number | _signal.SIGCHLD
    pointers = (0, own) if data_first else (own, 0)

    def fork_sibling():
        before()
        made = clone(number, flags, 0, 0, *pointers)
        (in_child if made == 0 else in_parent)()
        if made < 0:
            raise OSError("no process could be made")
        return made

    return fork_sibling


def fork_orphan():
    """The same anywhere: a child's child, whose parent is gone."""
    number, say = os.pipe()
    try:
        child = os.fork()
        if not child:
            try:
                orphan = os.fork()
            except OSError:
                core._exit(1)
            if orphan:
                os.write(say, orphan.to_bytes(8, "little"))
                core._exit(0)
            return 0
        os.close(say)
        say = -1
        made = int.from_bytes(os.read(number, 8), "little")
        os.waitpid(child, 0)
        if not made:  # or who came would take itself for the copy
            raise OSError("no process could be made")
        return made
    finally:
        for fd in (number, say):
            if fd >= 0:
                os.close(fd)


def live_on(watch, tell):
    """In the child: leaves the original's process group, sleeps until that is dead, and waits for the host."""
    try:
        os.setpgid(0, 0)  # what is sent to the cell's group is not for the copy
        mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        os.write(tell, b".")
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


fork_sibling = sibling_maker() if core.State.checkpoint_max else None
