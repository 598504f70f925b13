"""A server that speaks just enough of MCP over stdio to start at once: `tiny_mcp.py NOTES`.

It writes its process id to the file NOTES, and "ended" when its input ends.
"""

import json
import os
import sys
import time

TOOLS = ["add", "refuse", "break", "hang", "crash", "rich", "stay"]
total = 0


def result_of(method: str, params: dict) -> dict | None:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "tiny", "version": "1"},
        }
    if method == "tools/list":  # a page for each tool
        place = int(params.get("cursor") or 0)
        page = {"tools": [{"name": TOOLS[place], "inputSchema": {"type": "object"}}]}
        return page if place + 1 == len(TOOLS) else {**page, "nextCursor": str(place + 1)}
    if method == "tools/call":
        return called(params["name"], params.get("arguments") or {})
    return {}


def called(name: str, arguments: dict) -> dict | None:
    global total
    if name == "add":
        total += arguments["amount"]
        return {"content": [{"type": "text", "text": str(total)}]}
    if name == "break":
        return {"content": [{"type": "text", "text": "it broke"}], "isError": True}
    if name == "rich":
        return {
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image", "data": "AAAA", "mimeType": "image/png"},
                {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
                {"type": "resource_link", "name": "b", "uri": "file:///b"},
            ]
        }
    if name == "crash":
        print("the disk is on fire", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "stay":
        while True:
            time.sleep(60)
    if name == "refuse":
        raise ValueError
    return None  # hang


def main() -> None:
    notes = sys.argv[1]
    with open(notes, "a") as file:
        print(os.getpid(), file=file)
    if os.environ.get("TINY_MCP_DIES"):
        sys.exit("no licence")
    if os.environ.get("TINY_MCP_SLEEPS"):
        time.sleep(1000)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        try:
            answer: dict = {"result": result_of(request["method"], request.get("params") or {})}
        except ValueError:
            answer = {"error": {"code": -32602, "message": "these arguments are refused"}}
        if answer.get("result", {}) is not None:
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
    with open(notes, "a") as file:
        print("ended", file=file)


main()
