#!/usr/bin/env python3
"""A client of Limpet that needs nothing but Python 3.

It speaks the NATS protocol over the unix socket of `limpet up`, and JSON, as
subjects/PROTOCOL.md tells. Start `limpet up`, then: python3 client.py [STATE]
"""

import base64
import json
import os
import socket
import sys
import uuid


class Refused(Exception):
    """What Limpet answered instead of a result: a stable code, and a text for people."""

    def __init__(self, code, message, field="", details=None):
        super().__init__(message)
        self.code, self.field, self.details = code, field, details or {}


class Limpet:
    """One connection, for one request at a time."""

    def __init__(self, state):
        with open(os.path.join(state, "limpet.json"), encoding="utf-8") as file:
            found = json.load(file)
        self.tenant, self.count = found["tenant"], 0
        self.inbox = f"_INBOX_tenant_{self.tenant}.{uuid.uuid4().hex}"
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)  # longer than any wait that we ask for
        # The path may be longer than the 107 bytes that an address of the kernel takes.
        folder, name = os.path.split(found["socket"])
        fd = os.open(folder, os.O_PATH)
        self.socket.connect(f"/proc/self/fd/{fd}/{name}")
        os.close(fd)
        self.stream = self.socket.makefile("rb")
        self.line()  # INFO {...}
        options = {"user": found["user"], "pass": found["password"], "headers": True,
                   "no_responders": True, "verbose": False, "lang": "python", "version": "1"}
        self.send(f"CONNECT {json.dumps(options)}\r\nSUB {self.inbox}.* 1\r\nPING\r\n".encode())
        while self.line() != "PONG":
            pass

    def send(self, data):
        self.socket.sendall(data)

    def line(self):
        """The next line of the server, which is never a PING or an error."""
        while True:
            line = self.stream.readline().decode().rstrip("\r\n")
            if line == "PING":
                self.send(b"PONG\r\n")
            elif not line or line.startswith("-ERR"):
                raise ConnectionError(line or "limpet up has closed the connection")
            else:
                return line

    def message(self):
        """The next message: its subject, the first line of its headers, its body."""
        while True:
            # MSG subject sid [reply] size, HMSG subject sid [reply] headers size
            kind, *words = self.line().split()
            if kind in ("MSG", "HMSG"):
                break
        size = int(words[-1])
        head = int(words[-2]) if kind == "HMSG" else 0
        data = self.stream.read(size + 2)[:-2]
        return words[0], data[:head].decode().split("\r\n")[0], data[head:]

    def call(self, verb, **request):
        """Sends a request and returns its result; see PROTOCOL.md, section 8."""
        self.count += 1
        reply = f"{self.inbox}.{self.count}"
        head = b"NATS/1.0\r\nContent-Type: application/json\r\n\r\n"
        body = json.dumps(request).encode()
        to = f"limpet.v1.t.{self.tenant}.api.{verb}"
        self.send(f"HPUB {to} {reply} {len(head)} {len(head) + len(body)}\r\n".encode() + head + body + b"\r\n")
        while True:
            subject, status, body = self.message()
            if subject == reply:
                break
        if " 503" in status:
            raise Refused("unreachable", "nobody serves this; is limpet up?")
        answer = json.loads(body)
        if "error" in answer:
            raise Refused(**answer["error"])
        return answer["result"]

    def follow(self, process):
        """Yields all that a process prints, from its first byte until its end."""
        cursor = 0
        while True:
            page = self.call("read", process=process, cursor=cursor, wait_ms=20_000, view="base64")
            for gap in page.get("gaps") or []:
                print(f"  {gap['bytes']} bytes are gone: {gap['reason']}")
            for chunk in page.get("chunks") or []:
                yield chunk["stream"], base64.b64decode(chunk["data"])
            cursor = page["next_cursor"]
            if page["end"]:
                return


def report(receipt):
    print(f"  {receipt['state']}, reason {receipt.get('reason', '-')}, exit code {receipt['exit_code']}")


def main():
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    state = os.environ.get("LIMPET_STATE") or os.path.join(state, "limpet")
    limpet = Limpet(sys.argv[1] if len(sys.argv) > 1 else state)
    session = limpet.call("open", cwd="/tmp")["session"]
    try:
        print("follow one to its end:")
        text = "for i in 1 2 3; do echo line $i; sleep 0.2; done; echo oops >&2; exit 3"
        # With an execution id of ours it could be sent again: it would not run twice.
        started = limpet.call("start", session=session, execution_id=uuid.uuid4().hex, command={"text": text})
        for stream, data in limpet.follow(started["process"]):
            for line in data.decode(errors="replace").splitlines():
                print(f"  {stream}: {line}")
        report(limpet.call("wait", process=started["process"], wait_ms=10_000))

        print("write to one:")
        reader = limpet.call("start", session=session, command={"argv": ["cat", "-n"], "stdin": "pipe"})["process"]
        written = limpet.call("write", process=reader, text="first\n", offset=0)["stdin_bytes"]
        limpet.call("write", process=reader, text="second\n", offset=written, close=True)
        print(b"".join(data for _, data in limpet.follow(reader)).decode(), end="")

        print("stop one:")
        sleeper = limpet.call("start", session=session, command={"text": "sleep 300 & sleep 300"})["process"]
        report(limpet.call("terminate", process=sleeper, by="client.py"))

        print("be refused:")
        for verb, request in (("start", {"session": session, "command": {"text": "true", "timeoutMs": 5}}),
                              ("status", {"process": "A" * 22}), ("write", {"process": sleeper, "text": "x"})):
            try:
                limpet.call(verb, **request)
            except Refused as e:
                print(f"  {verb}: {e.code}, field {e.field or '-'}, nearest {e.details.get('nearest', '-')}: {e}")
    finally:
        limpet.call("close", session=session)


if __name__ == "__main__":
    try:
        main()
    except (OSError, Refused) as problem:
        sys.exit(f"client.py: {problem}")
