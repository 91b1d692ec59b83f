"""What users of a chat do, for locust: streamed and whole answers, and clients that leave midway.

Run by `bench/long.py`; with `locust -f bench/locustfile.py --host URL` it runs against any router.
"""

import json
import os
import time

from locust import HttpUser, between, task
from locust.clients import ResponseContextManager

MODEL = os.environ.get("BENCH_MODEL", "bench-model")
PATH = "/v1/chat/completions"
DONE = "data: [DONE]"


class Chatting(HttpUser):
    """Thinks for a moment between two questions."""

    wait_time = between(0.1, 1.0)

    def body(self, tokens: int, **more: object) -> dict[str, object]:
        messages = [{"role": "user", "content": f"Question {time.monotonic_ns()}: say something."}]
        return {"model": MODEL, "messages": messages, "max_tokens": tokens, **more}

    def stream(self, name: str, tokens: int) -> ResponseContextManager:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        return self.client.post(
            PATH, json=self.body(tokens, **options), stream=True, name=name, catch_response=True
        )

    @task(6)
    def reads_a_stream(self) -> None:
        wanted = 120
        with self.stream("stream", wanted) as answer:
            if answer.status_code != 200:
                answer.failure(f"status {answer.status_code}")
                return
            lines = [line for line in answer.iter_lines(decode_unicode=True) if line]
            if lines[-1:] != [DONE] or any('"error"' in line for line in lines):
                answer.failure("no clean end")
                return
            usage = json.loads(lines[-2].removeprefix("data: "))["usage"]
            if usage["completion_tokens"] != wanted:
                answer.failure(f"{usage['completion_tokens']} tokens")

    @task(2)
    def leaves_midway(self) -> None:
        with self.stream("left midway", 2000) as answer:
            if answer.status_code != 200:
                answer.failure(f"status {answer.status_code}")
                return
            for number, _ in enumerate(answer.iter_lines()):
                if number == 20:
                    break
            answer.success()

    @task(2)
    def waits_for_the_whole(self) -> None:
        with self.client.post(PATH, json=self.body(40), name="whole", catch_response=True) as answer:
            if answer.status_code != 200:
                answer.failure(f"status {answer.status_code}")
            elif answer.json()["usage"]["completion_tokens"] != 40:
                answer.failure("another number of tokens")
