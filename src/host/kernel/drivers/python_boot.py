import os, sys


def read(count):
    data = b""
    while len(data) < count:
        chunk = os.read(3, count - len(data))
        if not chunk:
            os._exit(0)
        data += chunk
    return data


module = sys.modules["pathbox_driver"] = type(sys)("pathbox_driver")
exec(compile(read(int.from_bytes(read(4), "little")), "<pathbox>", "exec"), module.__dict__)
