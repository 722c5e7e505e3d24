"""Decodes once per input line: `python _uneven_worker.py JOB`, see _llm_worker.

It prints "ready" after warm-up, and for each input line the seconds between tokens.
"""

import itertools
import json
import sys

from _llm_worker import ENGINES, Job

job = Job(**json.loads(sys.argv[1]))
generate = ENGINES[job.engine](job)
prompts = job.prompts[0]
generate(prompts[0], job.new_tokens)
print("ready", flush=True)
for number, _ in enumerate(sys.stdin):
    generate(prompts[1 + number % (len(prompts) - 1)], job.new_tokens)
    print(
        json.dumps([after - before for before, after in itertools.pairwise(generate.times)]),
        flush=True,
    )
