"""Records what OpenAI's own parser makes of the texts in gpt-oss's format, which the crates do not read.

`python harmony.py TEXTS RECORDED TOKENIZER`: fills in what is null in RECORDED. TOKENIZER is gpt-oss's
tokenizer.json, out of which the vocabulary is made that `openai_harmony` would download.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFILL = "<|channel|>analysis<|message|>"


def byte_of() -> dict[str, int]:
    """The bytes that byte-level vocabularies' characters stand for."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + at): byte for at, byte in enumerate(hidden)}


def vocabulary(tokenizer: Path) -> Iterator[bytes]:
    """Lines of the tiktoken format: base64 of a token's bytes, and its rank."""
    table = byte_of()
    vocab: dict[str, int] = json.loads(tokenizer.read_text("utf-8"))["model"]["vocab"]
    for token, rank in sorted(vocab.items(), key=lambda pair: pair[1]):
        yield base64.b64encode(bytes(table[char] for char in token)) + b" %d\n" % rank


def main() -> None:
    texts, recorded, tokenizer = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "o200k_base.tiktoken").write_bytes(b"".join(vocabulary(tokenizer)))
        os.environ["TIKTOKEN_ENCODINGS_BASE"] = folder
        import openai_harmony as harmony

        encoding = harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)

    def read(text: str) -> dict[str, object]:
        parser = harmony.StreamableParser(encoding, harmony.Role.ASSISTANT)
        try:
            for token in encoding.encode(text, allowed_special="all"):
                parser.process(token)
        except harmony.HarmonyError as error:
            return {"error": str(error)}
        messages = [
            (message.channel, message.recipient, message.content[0].text) for message in parser.messages
        ]
        messages.append((parser.current_channel, parser.current_recipient, parser.current_content))
        answer = {"content": "", "reasoning": ""}
        calls = []
        for channel, recipient, content in messages:
            if recipient and recipient.startswith("functions."):
                calls.append([recipient.removeprefix("functions."), content])
            elif not recipient:
                answer["reasoning" if channel == "analysis" else "content"] += content
        return {**answer, "calls": calls}

    answers = json.loads(recorded.read_text("utf-8"))
    for row in json.loads(texts.read_text("utf-8"))["texts"]:
        if answers[row["id"]] is None:
            answers[row["id"]] = read(PREFILL + row["text"] if row.get("inside") else row["text"])
    lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in answers.items())
    recorded.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
