# What a process outside of every sandbox can still do. Prints a line for each thing that it cannot.
import array, ctypes, errno, fcntl, os, pty, resource, select, socket, sys, tempfile

libc = ctypes.CDLL(None, use_errno=True)


def call(function, *arguments):
    if function(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def descriptors_in_flight():
    a, b = socket.socketpair()
    socket.send_fds(a, [b"x"], [0, 1])
    socket.recv_fds(b, 1, 2)


def terminal():
    [os.close(fd) for fd in pty.openpty()]


def loopback():
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    served, _ = listener.accept()
    client.sendall(bytes(1 << 16))
    left = 1 << 16
    while left:
        left -= len(served.recv(left))


def file_of_the_system():
    # Another's lease would hold this up, another's lock would refuse it.
    with open(os.__file__, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def full_pipe():
    r, w = os.pipe()
    os.set_blocking(w, False)
    if os.write(w, bytes(4096)) != 4096:
        raise OSError(errno.EAGAIN, "a pipe that takes less than a page")


def child():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def file_in_memory():
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.write(bytes(1 << 16))


def watch():
    # A few, as a session has: an ordinary user shares its own with its sandboxes, which leave it some.
    held = []
    for _ in range(8):
        fd = libc.inotify_init1(0)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        held.append(fd)
    call(libc.inotify_add_watch, held[0], b"/tmp", 0x100)
    [os.close(fd) for fd in held]


def asynchronous_io():
    context = ctypes.c_ulong(0)
    call(libc.syscall, 206 if os.uname().machine == "x86_64" else 0, 64, ctypes.byref(context))


def semaphores():
    number = libc.semget(0, 1, 0o1600)
    if number < 0:
        raise OSError(ctypes.get_errno(), "semget")
    libc.semctl(number, 0, 0)


def epoll():
    poll = select.epoll()
    poll.register(os.pipe()[0], select.EPOLLIN)


soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
for probe in [
    descriptors_in_flight, terminal, loopback, file_of_the_system, full_pipe, child, file_in_memory, watch,
    asynchronous_io, semaphores, epoll,
]:
    try:
        probe()
    except OSError as error:
        print(probe.__name__, errno.errorcode.get(error.errno), error)
print("asked")
