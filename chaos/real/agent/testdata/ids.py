"""Draws 5 IDs in a process of gunicorn, as ids.php does in one of PHP-FPM."""

import os
import time

import redis

agent = redis.Redis(unix_socket_path=os.environ["AGENT"], socket_timeout=5)


def app(environ, start_response):
    lines, retries, until = [], 0, time.monotonic() + 10
    while len(lines) < 5:
        try:
            lines.append(agent.execute_command("ID.NEXT").decode())
        except redis.RedisError as e:
            if time.monotonic() > until:
                lines.append(f"ERROR {e}")
                break
            retries += 1
            time.sleep(0.02)
    lines.append(f"RETRIES {retries}")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return ["\n".join(lines).encode() + b"\n"]
