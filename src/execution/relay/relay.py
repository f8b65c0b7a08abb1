"""The relay: carries tool calls of the programs in this sandbox to the server, and the answers back.

Programs write lines to one named pipe and read from a pipe of their own; the server is at standard input and output. Named
pipes and no sockets, because a sandbox may have none. A line of a program is at most 4,096 bytes, so that lines of several
programs do not mix. Nothing here protects anybody: the server believes a line for the secret in it, and for nothing else.

To the server, each line has a number and is kept until it is acknowledged; what was lost with a connection is sent again.
It never waits for a program: what one does not take is kept for it, and the server sends no more than it has reported taken.

Standard library only, Python 3.8 and later.
"""
import errno
import json
import os
import re
import select
import shutil
import sys
import time

KEPT_MAX = 4 << 20  # bytes to the server that are not acknowledged; beyond, programs wait
IDLE_MAX = 1800  # seconds without a word of the server, then it is gone
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}$")
PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,120}$")

try:
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: its streams are nobody else's through /proc
except Exception:
    pass


class Relay:
    def __init__(self, home):
        self.home = home
        self.library = os.path.join(home, "lib")
        os.makedirs(self.library, 0o700, exist_ok=True)
        self.calls_path = os.path.join(home, "calls")
        os.mkfifo(self.calls_path, 0o600)
        with open(os.path.join(home, "pid"), "w") as file:
            file.write(str(os.getpid()))
        # Both ways, so that it neither waits for a writer nor ends with one.
        self.calls = os.open(self.calls_path, os.O_RDWR | os.O_NONBLOCK)
        try:
            import fcntl

            fcntl.fcntl(self.calls, 1031, 1 << 20)  # F_SETPIPE_SZ
        except Exception:
            pass
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self.number = 0
        self.kept = []  # (number, line), oldest first
        self.kept_bytes = 0
        self.out = bytearray()
        self.is_within_line = False
        self.from_server = bytearray()
        self.from_programs = bytearray()
        self.programs = {}  # name -> [descriptor, waiting bytes, [(call, bytes)]]

    def tell(self, line):
        self.number += 1
        line = b"%d %s\n" % (self.number, line)
        self.kept.append((self.number, line))
        self.kept_bytes += len(line)
        self.out += line

    def run(self):
        self.tell(b"! ready " + json.dumps({"home": self.home, "library": self.library}).encode())
        heard = time.monotonic()
        while time.monotonic() - heard < IDLE_MAX:
            poll = select.poll()
            poll.register(0, select.POLLIN)
            if self.kept_bytes < KEPT_MAX:
                poll.register(self.calls, select.POLLIN)
            if self.out:
                poll.register(1, select.POLLOUT)
            by_descriptor = {}
            for name, program in self.programs.items():
                if program[1]:
                    poll.register(program[0], select.POLLOUT)
                    by_descriptor[program[0]] = name
            for fd, _ in poll.poll(10000):
                if fd == 0:
                    heard = time.monotonic()
                    data = read(0)
                    if data == b"":
                        return
                    self.from_server += data or b""
                    for line in lines(self.from_server):
                        if not self.obey(line):
                            return
                elif fd == self.calls:
                    self.from_programs += read(self.calls) or b""
                    for line in lines(self.from_programs):
                        self.tell(line)
                elif fd == 1:
                    taken = write(1, self.out)
                    if taken:
                        self.is_within_line = self.out[taken - 1 : taken] != b"\n"
                        del self.out[:taken]
                else:
                    self.serve(by_descriptor[fd])
            if not os.path.exists(self.calls_path):
                return  # a program took it away; the next run starts another relay

    def obey(self, line):
        word, _, rest = line.partition(b" ")
        if word == b"to":
            name, call, piece = rest.split(b" ", 2)
            self.hand(name.decode(), call, piece)
        elif word == b"ack":
            upto = int(rest)
            while self.kept and self.kept[0][0] <= upto:
                self.kept_bytes -= len(self.kept.pop(0)[1])
        elif word == b"again":
            # A line whose beginning is out already is finished first: else the next one would become a part of it.
            end = self.out.find(b"\n") + 1 if self.is_within_line else 0
            self.out = self.out[:end] + b"".join(text for number, text in self.kept if number >= int(rest))
        elif word == b"file":
            path, _, text = rest.partition(b" ")
            self.keep_file(path.decode(), json.loads(text))
        elif word == b"ping":
            self.tell(b"! pong " + rest)
        elif word == b"quit":
            return False
        return True

    def keep_file(self, path, text):
        if not PATH.match(path) or ".." in path:
            return
        path = os.path.join(self.library, path)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        with open(path + ".new", "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
        if "/bin/" in path:
            os.chmod(path + ".new", 0o755)
        os.replace(path + ".new", path)
        if path.endswith("tools/index.js"):
            self.link_node()

    def link_node(self):
        """Where Node looks for packages: beside the working directory of programs."""
        modules = os.path.join(os.path.expanduser("~"), "node_modules")
        link = os.path.join(modules, "tools")
        try:
            os.makedirs(modules, exist_ok=True)
            if os.path.islink(link):
                os.unlink(link)
            os.symlink(os.path.join(self.library, "tools"), link)
        except OSError:
            pass  # a package of that name is the program's own

    def hand(self, name, call, piece):
        program = self.programs.get(name)
        if program is None:
            if not NAME.match(name):
                return
            try:
                fd = os.open(os.path.join(self.home, "c-" + name), os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                self.tell(b"! gone " + name.encode())
                return
            if len(self.programs) >= 128:
                idle = [other for other, state in self.programs.items() if not state[1]]
                if idle:
                    os.close(self.programs.pop(idle[0])[0])
            program = self.programs[name] = [fd, bytearray(), []]
        line = call + b" " + piece + b"\n"
        program[1] += line
        program[2].append((call, len(line)))
        self.serve(name)

    def serve(self, name):
        program = self.programs[name]
        try:
            taken = write(program[0], program[1])
        except OSError:
            os.close(program[0])
            del self.programs[name]
            self.tell(b"! gone " + name.encode())
            return
        del program[1][:taken]
        while taken and program[2]:
            call, size = program[2][0]
            if size > taken:
                program[2][0] = (call, size - taken)
                self.tell(b"! taken %s %s %d" % (name.encode(), call, taken))
                break
            taken -= size
            program[2].pop(0)
            self.tell(b"! taken %s %s %d" % (name.encode(), call, size))


def lines(buffer):
    """Takes the whole lines out of a buffer."""
    end = buffer.rfind(b"\n") + 1
    whole = bytes(buffer[:end])
    del buffer[:end]
    return whole.split(b"\n")[:-1]


def read(fd):
    try:
        return os.read(fd, 1 << 18)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EINTR):
            return None
        raise


def write(fd, data):
    try:
        return os.write(fd, data[: 1 << 18])
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EINTR):
            return 0
        raise


def main():
    home = os.path.join(os.path.expanduser("~"), ".pathbox", "tools-" + sys.argv[1])
    os.makedirs(home, 0o700)
    try:
        Relay(home).run()
    finally:
        shutil.rmtree(home, ignore_errors=True)


main()
