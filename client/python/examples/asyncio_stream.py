"""Several streams on one event loop: each prompt of the command line is continued, all at the same
time, and every piece is printed as it comes.

    python3 asyncio_stream.py llmd:default "The sea is" "The sky is" "The sun is"

The same with a server: http://127.0.0.1:8000/v1 in place of llmd:default.
"""

import asyncio
import sys

import llmclient


async def follow(client: llmclient.AsyncClient, number: int, prompt: str) -> None:
    async for chunk in client.agenerate(prompt, max_tokens=24):
        print(f"{number}: {chunk.text!r}", flush=True)


async def main(target: str, prompts: list[str]) -> None:
    async with await llmclient.aconnect(target) as client:
        await asyncio.gather(*(follow(client, i, p) for i, p in enumerate(prompts, 1)))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(f"usage: {sys.argv[0]} TARGET PROMPT...")
    try:
        asyncio.run(main(sys.argv[1], sys.argv[2:]))
    except llmclient.Error as error:
        sys.exit(f"{sys.argv[0]}: {error}")
