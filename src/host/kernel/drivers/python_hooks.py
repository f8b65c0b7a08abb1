"""What becomes of a few modules when a cell imports them: asyncio, threading, multiprocessing, Pillow.

Compiled by the Python driver when the first of them is imported; `core` is the driver.
"""
import io
import sys
import _thread

LATE_MAX = 64 << 10  # characters that are kept of what is printed too late

# ---------------------------------------------------------------- asyncio: a loop for cells that do not await


def cell_loop():
    """The loop of all cells. It runs while a cell awaits, and between cells while tasks are left."""
    import asyncio

    State = core.State
    if State.loop is None or State.loop.is_closed():
        State.loop = asyncio.new_event_loop()
    asyncio.set_event_loop(State.loop)
    return State.loop


def adopt_asyncio(asyncio):
    """Lets a cell make tasks without awaiting anything, as in a notebook. `asyncio.run` still works: no loop runs."""
    events = asyncio.events

    def outside():
        return events._get_running_loop() is None and core.State.busy and _thread.get_ident() == core.MAIN

    def in_cells_loop(make):
        def made(*positional, **named):
            if outside():
                cell_loop()
            return make(*positional, **named)

        made.__name__, made.__doc__, made.__wrapped__ = make.__name__, make.__doc__, make
        return made

    def create_task(coro, **named):
        return cell_loop().create_task(coro, **named) if outside() else events_create_task(coro, **named)

    def get_running_loop():
        return cell_loop() if outside() and core.is_cells(sys._getframe(1)) else events.get_running_loop()

    events_create_task = asyncio.create_task
    asyncio.create_task, asyncio.get_running_loop = create_task, get_running_loop
    for name in ("ensure_future", "gather", "get_event_loop", "shield"):
        setattr(asyncio, name, in_cells_loop(getattr(asyncio, name)))


def tasks():
    loop, asyncio = core.State.loop, sys.modules.get("asyncio")
    if loop is None or asyncio is None or loop.is_closed():
        return []
    return [task for task in asyncio.all_tasks(loop) if not task.done()]


known = set()  # tasks that were spoken of


def advance():
    """At a cell's end: lets each task run up to its first real wait, and says which are left."""
    loop = core.State.loop
    for _ in range(100):
        if not tasks() or not getattr(loop, "_ready", None):
            break
        loop.call_soon(loop.stop)
        loop.run_forever()
    new = [task for task in tasks() if task not in known]
    known.clear()
    known.update(tasks())
    if new:
        core.note("asyncio tasks of this cell that are still running: %d. A later cell can `await` them" % len(new))


def run_between_cells():
    """Lets tasks go on until the host speaks."""
    loop = core.State.loop
    while tasks():
        mark_late_output()
        loop.add_reader(core.CONTROL, loop.stop)
        try:
            loop.run_forever()
            if core.is_asked():
                return
        except BaseException as error:  # a task's `SystemExit` or the like
            sys.stderr.write("%s: %s\n" % (type(error).__name__, error))
        finally:
            loop.remove_reader(core.CONTROL)


# ---------------------------------------------------------------- threads that print after their cell

late = []  # (cell's number, text)


def adopt_threading(threading):
    start = threading.Thread.start

    def start_of_cell(self):
        mark_late_output()
        parent = threading._active.get(_thread.get_ident())
        self._pathbox_cell = getattr(parent, "_pathbox_cell", core.State.count)
        start(self)

    threading.Thread.start = start_of_cell


def mark_late_output():
    """From now on a stream looks at who writes. What comes too late is kept for the end of the next cell."""
    if "write" in core.Stream.__dict__:
        return
    State, write_now = core.State, io.TextIOWrapper.write

    def write(self, text):
        number = State.count
        if _thread.get_ident() != core.MAIN:
            threading = sys.modules.get("threading")
            thread = threading and threading._active.get(_thread.get_ident())
            number = getattr(thread, "_pathbox_cell", number)
        if core._getpid() != core.PID or number == State.count and State.id is not None:
            return write_now(self, text)
        if sum(len(kept) for _, kept in late) < LATE_MAX:
            late.append((number, str(text)))
        return len(text)

    core.Stream.write = write


def tell_late():
    """Says what earlier cells' threads and tasks have printed since their end."""
    by_cell = {}
    while late:
        number, text = late.pop(0)
        by_cell[number] = by_cell.get(number, "") + text
    for number, text in by_cell.items():
        core.note("printed late, by what cell %d left running:\n%s" % (number, text.rstrip("\n")))


def adopt_traceback(module):
    """A stack that a cell prints begins with the cell."""
    walk = module.walk_stack

    def walk_stack(frame):
        for here, line in walk(frame):
            if frame is not None and here.f_code.co_filename.startswith(core.FILE[:-1]):
                return
            yield here, line

    module.walk_stack = walk_stack


# ---------------------------------------------------------------- processes


def adopt_processes(context):
    """A fresh interpreter could not find what cells define, and a pool would start one after the other for ever. So a
    process is always a fork here, whichever way of starting it was asked for."""

    def fork(process):
        from multiprocessing.popen_fork import Popen

        return Popen(process)

    for name in ("SpawnProcess", "ForkServerProcess"):
        if hasattr(context, name):
            getattr(context, name)._Popen = staticmethod(fork)


# ---------------------------------------------------------------- Pillow

SAVED_MAX = 10  # saved pictures of one cell that are shown


def adopt_pillow(module):
    """As at E2B, a picture that is saved is shown as well."""
    save = module.Image.save

    def save_and_show(self, fp, format=None, **options):
        save(self, fp, format, **options)
        if isinstance(fp, str) or hasattr(fp, "__fspath__"):
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if core.State.id and core.is_own_process() and not caller.startswith(("matplotlib", "PIL.")):
                show_saved(self)

    module.Image.save = save_and_show
    module.Image.show = lambda self, *_, **__: core.emit(self)


def show_saved(picture):
    core.State.saved += 1
    if core.State.saved <= SAVED_MAX and picture.width * picture.height <= 64 << 20:
        core.emit(picture)
    elif core.State.saved == SAVED_MAX + 1:
        core.note("more than %d pictures were saved; those after them are not shown" % SAVED_MAX)
