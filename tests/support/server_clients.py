"""CHILD SIDE: a client that opens a trial, calls its tool, and is killed in the middle of it.

Nothing but the standard library's http.client: it is started with ``python -S``, in some 30 ms.
It prints a line when its trial is open and its tool has answered, and then calls on: for ever (``calls``), or in a call
that does not end (``hangs``).
"""

import http.client
import json
import sys
from typing import Any


def _post(connection: http.client.HTTPConnection, path: str, body: Any) -> Any:
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    data = json.loads(answer.read())
    assert answer.status == 200, data
    return data


def main(port: str, number: str, manner: str) -> None:
    """One client's life."""
    connection = http.client.HTTPConnection("127.0.0.1", int(port))
    task_id = "abcd"[int(number) % 4]
    opened = _post(connection, f"/tasks/{task_id}/trials", {"benchmark_run_id": f"doomed-{number}"})
    path = f"/trials/{opened['trial_runtime_id']}/tools/execute"
    lines = {"calls": "import time; time.sleep(0.05)", "hangs": "import time; time.sleep(600)"}
    _post(connection, path, {"tool_name": "python", "arguments": {"code": lines["calls"]}})
    print(opened["trial_runtime_id"], flush=True)
    while True:
        _post(connection, path, {"tool_name": "python", "arguments": {"code": lines[manner]}})


if __name__ == "__main__":
    main(*sys.argv[1:])
