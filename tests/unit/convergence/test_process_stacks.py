"""The call in which a process hangs, from the output of py-spy and faulthandler."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from harness.convergence.trainer.supervision.process_stacks import of_handler, of_py_spy, where
from harness.convergence.trainer.supervision.processes import Process

RUNNER = Process(pid=7, command="ray::TaskRunnerV1.run")
DRIVER = Process(pid=5, command="/cell/bin/python -m verl.trainer.main_ppo")
SITE = "/cell/lib/python3.11/site-packages"


def dump(*frames):
    found = [{"name": name, "filename": f"{SITE}/{file}", "line": line} for name, file, line in frames]
    return json.dumps([{"thread_name": "MainThread", "frames": found}])


def test_the_actors_own_code_is_named_not_what_it_waits_with():
    waiting = of_py_spy(
        RUNNER,
        dump(
            ("wait", "ray/_private/worker.py", 9),
            ("_init_storage", "transfer_queue/interface.py", 123),
            ("run", "verl/trainer/main_ppo.py", 150),
        ),
    )
    driver = of_py_spy(DRIVER, dump(("get", "ray/worker.py", 1), ("main", "verl/trainer/main_ppo.py", 9)))

    assert where([*driver, *waiting]) == (
        "ray::TaskRunnerV1.run hangs in _init_storage (transfer_queue/interface.py:123)"
    )


def test_who_waits_for_another_actor_is_not_who_hangs():
    runner = of_py_spy(
        RUNNER, dump(("get", "ray/worker.py", 1), ("fit", "verl/trainer/ppo/ray_trainer.py", 9))
    )
    worker = of_py_spy(
        Process(pid=9, command="ray::WorkerDict.actor_rollout_update_actor"),
        dump(("wait", "threading.py", 2), ("backward", "torch/autograd/graph.py", 8)),
    )

    assert where([*runner, *worker]).startswith(
        "ray::WorkerDict.actor_rollout_update_actor hangs in backward"
    )


def test_an_actor_without_a_task_is_not_who_hangs():
    """verl 0.9.1 with more storage units than processors: the units that run wait for requests."""
    runner = of_py_spy(
        RUNNER,
        dump(
            ("get", "ray/_private/worker.py", 1),
            ("process_zmq_server_info", "transfer_queue/utils/zmq_utils.py", 674),
        ),
    )
    unit = of_py_spy(
        Process(pid=6, command="ray::SimpleStorageUnit"),
        dump(("poll", "zmq/sugar/poll.py", 106), ("_serve", "transfer_queue/storage/simple_storage.py", 9)),
    )

    assert where([*unit, *runner]) == (
        "ray::TaskRunnerV1.run hangs in process_zmq_server_info (transfer_queue/utils/zmq_utils.py:674)"
    )
    assert where(unit).startswith("ray::SimpleStorageUnit hangs in _serve")


def test_every_thread_of_who_hangs_is_named():
    worker = Process(pid=9, command="ray::WorkerDict.actor_rollout_update_actor")
    main = of_py_spy(worker, dump(("_engine_run_backward", "torch/autograd/graph.py", 979)))
    device = of_py_spy(
        worker, dump(("wait", "threading.py", 2), ("_hang", "harness/devices/sim/faults/fault_kinds.py", 70))
    )

    assert where([*main, *device]).endswith(
        "_engine_run_backward (torch/autograd/graph.py:979) and in _hang (harness/devices/sim/faults/fault_kinds.py:70)"
    )


def test_without_stacks_nothing_is_said():
    assert where([]) == ""
    assert where(of_py_spy(RUNNER, dump(("wait", "ray/_private/worker.py", 9)))) == ""


def test_faulthandlers_text_is_read():
    text = (
        "Thread 0x00007f (most recent call first):\n"
        f'  File "{SITE}/ray/worker.py", line 5 in get\n\n'
        "Current thread 0x00008a (most recent call first):\n"
        f'  File "{SITE}/verl/trainer/ppo/ray_trainer.py", line 77 in fit\n'
    )

    found = of_handler(RUNNER, text)

    assert [stack.thread for stack in found] == ["0x00007f", "0x00008a"]
    assert where(found) == "ray::TaskRunnerV1.run hangs in fit (verl/trainer/ppo/ray_trainer.py:77)"


@given(st.text())
def test_anything_else_gives_no_stack_and_no_error(text):
    assert all(stack.pid == RUNNER.pid for stack in of_py_spy(RUNNER, text))
    assert all(stack.pid == RUNNER.pid for stack in of_handler(RUNNER, text))
