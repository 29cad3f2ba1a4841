"""What a forked child does before anything else."""

from mmreplay.system import forks


def test_children_call_their_objects_in_the_order_of_registration_and_know_their_number(child):
    code = """
import gc, os, weakref
import importlib.util, sys
spec = importlib.util.spec_from_file_location("forks", sys.argv[1])
forks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(forks)

class Thing:
    pass

def say(name):
    return lambda thing: print(name, forks.lineage(), flush=True)

first, second = Thing(), Thing()
forks.after_fork_in_child(weakref.WeakSet([first]), say("first"))
forks.after_fork_in_child(weakref.WeakSet([second]), say("second"))
dropped = Thing()
forks.after_fork_in_child(weakref.WeakSet([dropped]), say("dropped"))
del dropped
gc.collect()
for _ in range(2):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        os._exit(0)
    os.wait()
print(forks.lineage())
"""
    expected = [
        f"{name} {line}"
        for line in ("(1,)", "(1, 1)", "(2,)", "(2, 1)")
        for name in ("first", "second")
    ]
    assert child(code, forks.__file__).splitlines() == [*expected, "()"]
