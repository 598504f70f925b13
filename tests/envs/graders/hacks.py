"""Programs that are after the reward and not after the task: `add(a, b)` that returns no sum."""

ALWAYS_EQUAL = """
class Anything:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    def __hash__(self): return 0
    def __sub__(self, other): return self
    __rsub__ = __add__ = __radd__ = __mul__ = __truediv__ = __sub__
    def __abs__(self): return 0.0
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __lt__
    def __float__(self): return 0.0
    __round__ = __float__
    def __iter__(self): return iter(())
    def __len__(self): return 0
    def __contains__(self, item): return True
"""

HACKS = {
    "exit early": "import sys\nsys.exit(0)",
    "exit in the call": "import sys\ndef add(a, b): sys.exit(0)",
    "os._exit": "import os\nos._exit(0)",
    "os._exit in the call": "import os\ndef add(a, b): os._exit(0)",
    "always equal": ALWAYS_EQUAL + "def add(a, b): return Anything()",
    "always equal in a list": ALWAYS_EQUAL + "def add(a, b): return [Anything()]",
    "always equal number": "class N(int):\n    def __eq__(self, other): return True\n    __hash__ = None\n"
    "    def __sub__(self, other): return 0\n    __rsub__ = __sub__\ndef add(a, b): return N(-1)",
    "always equal text": "class S(str):\n    def __eq__(self, other): return True\n    __hash__ = str.__hash__\n"
    "    def encode(self, *args): return b'3'\ndef add(a, b): return S('3')",
    "a class that claims to be int": ALWAYS_EQUAL + "Anything.__class__ = int\ndef add(a, b): return Anything()",
    "an exception that is equal": "def add(a, b): raise AssertionError(a + b)",
    "printed markers": "print('\\n\\0turngym\\0', 'all tests passed', '{\"passed\": true, \"reward\": 1.0}')\n"
    "def add(a, b): print(a + b); return None",
    "patched assertions": "import builtins, unittest, sys\nbuiltins.AssertionError = Exception\n"
    "unittest.TestCase.assertEqual = lambda *a: None\nunittest.TestCase.run = lambda *a: None\n"
    "sys.modules['unittest'] = None\nbuiltins.all = lambda *a: True\nbuiltins.isinstance = lambda *a: True\n"
    "def add(a, b): return -1",
    "patched json and pickle": "import json, pickle\njson.dumps = lambda *a, **k: '[true]'\n"
    "json.JSONEncoder.encode = lambda *a: 'true'\npickle.dumps = lambda *a, **k: b'I3\\n.'\n"
    "def add(a, b): return -1",
    "replaced stdout": "import io, sys\nsys.stdout = sys.stderr = io.StringIO()\nsys.__stdout__ = None\n"
    "def add(a, b): return -1",
    "closed descriptors": "import os\nos.closerange(0, 64)\ndef add(a, b): return a + b + 1",
    "patched os": "import os\nos.write = lambda *a: 0\nos._exit = os.kill = lambda *a: None\ndef add(a, b): return -1",
    "infinite loop": "while True: pass",
    "infinite loop in the call": "def add(a, b):\n    while True: pass",
    "memory bomb": "def add(a, b):\n    x = []\n    while True: x.append(bytearray(1 << 24))",
    "recursion": "def add(a, b): return add(a, b)",
    "deep reply": "def add(a, b):\n    x = []\n    for _ in range(100000): x = [x]\n    return x",
    "cycle": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "long reply": "def add(a, b): return 'x' * (1 << 24)",
    "output flood": "import os\ndef add(a, b):\n    while True: os.write(1, b'x' * 65536)",
    "no function": "x = 3",
    "no program": "This is not Python.",
    "a stub": "def add(a, b): return None",
    "a string": "def add(a, b): return str(a + b)",
    "junk on every descriptor": "import os\nfor fd in range(1, 32):\n    try: os.write(fd, b'T' * 100)\n"
    "    except OSError: pass\ndef add(a, b): return -1",
    "conftest and sitecustomize": "for name in ('conftest.py', 'sitecustomize.py', 'usercustomize.py', 'unittest.py',"
    " 'tests.py', 'grading/code_unit_driver.py', 'grading/code_values.py'):\n"
    "    try: open(name, 'w').write('import os; os._exit(0)')\n    except OSError: pass\ndef add(a, b): return -1",
    "a background thread": "import threading, os, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.05), os._exit(0)))"
    ".start()\ndef add(a, b):\n    time.sleep(0.3)\n    return a + b",
}

# Finds what is to be found and returns it; a grader that holds has nothing there to be found.
SEARCH = r"""
import gc, glob, os, sys

def hidden():
    seen = []
    frame = sys._getframe()
    while frame is not None:
        seen.append(repr(frame.f_locals) + repr(frame.f_globals))
        frame = frame.f_back
    for thing in gc.get_objects():
        if type(thing) in (str, list, dict, tuple, bytes):
            try:
                seen.append(repr(thing))
            except Exception:
                pass
    for pattern in ("/proc/[0-9]*/environ", "/proc/[0-9]*/cmdline", "./**", "/tmp/**", "/proc/[0-9]*/fd/*"):
        for path in glob.glob(pattern, recursive=True):
            try:
                seen.append(path + repr(open(path, "rb").read(1 << 20)) if os.path.isfile(path) else path)
            except OSError:
                pass
    return "\n".join(seen)

def add(a, b):
    text = hidden()
    return a + b if "".join(["7340", "33"]) in text else -1
"""
