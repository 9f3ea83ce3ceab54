import os
import signal
import subprocess
import sys

import psutil
import pytest

from data_pipelines import workers

# Fresh processes compute `eval` of texts: a function of this file would bring all of pytest.


def ordered_map(function, items, *, num_workers):
    with workers.Pool(num_workers) as pool:
        yield from pool.map(function, items)


def counted(items, taken):
    for item in items:
        taken.append(item)
        yield item


def test_one_worker_is_this_process_and_takes_one_item_at_a_time():
    taken = []
    found = ordered_map(lambda n: (n, os.getpid()), counted(range(5), taken), num_workers=1)
    for number in range(5):
        assert next(found) == (number, os.getpid())
        assert taken == list(range(number + 1))
    assert list(found) == []


def test_results_come_in_order_from_other_processes_and_few_items_are_under_way(tmp_path):
    taken = []
    # Each even item waits for the next one, so that later items are finished first.
    texts = [
        f"({n}, any(os.path.exists('{tmp_path}/{n + 1}') for _ in range(10**8)), os.getpid())"
        if n % 2 == 0
        else f"({n}, open('{tmp_path}/{n}', 'w').close() is None, os.getpid())"
        for n in range(20)
    ]
    texts = [text.replace("os.", "__import__('os').") for text in texts]
    numbers, processes = [], set()
    for number, is_right, process in ordered_map(eval, counted(texts, taken), num_workers=2):
        assert is_right
        numbers.append(number)
        processes.add(process)
        assert len(taken) - len(numbers) < 2 * workers.ITEMS_PER_WORKER
    assert numbers == list(range(20))
    assert os.getpid() not in processes and len(processes) == 2


def test_errors_come_with_their_type_and_message_and_end_the_processes():
    taken, texts = [], ["1", "2", "int('not a number')", *["0"] * 50]
    found = ordered_map(eval, counted(texts, taken), num_workers=2)
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(ValueError, match="'not a number'"):
        next(found)
    assert len(taken) < 10
    assert not [one for one in psutil.Process().children(recursive=True) if is_worker(one)]

    def items():
        yield 1
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(ordered_map(abs, items(), num_workers=2))


def is_worker(process):
    return "spawn_main" in " ".join(process.cmdline())


def test_a_killed_process_is_an_error_that_says_what_to_do():
    with pytest.raises(RuntimeError, match="ran out of memory.*--num_workers"):
        list(ordered_map(signal.raise_signal, [signal.SIGKILL], num_workers=2))


def test_workers_do_not_outlive_a_killed_parent():
    # Else they would wait for ever, and write while the workers of the next build do.
    script = (
        "import time; from data_pipelines import workers\n"
        "for _ in workers.Pool(2).map(time.sleep, [0] * 4 + [600] * 4):\n"
        "    print('ready', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout and parent.stdout.readline() == b"ready\n"
        children = psutil.Process(parent.pid).children(recursive=True)
        assert sum(map(is_worker, children)) >= 1
        parent.kill()
    _, alive = psutil.wait_procs(children, timeout=300)
    for one in alive:
        one.kill()
    assert not alive
