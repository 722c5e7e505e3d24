"""One rank dies before a collective; the others must get an error within the timeout.

Started by test_distributed.py, one process per rank, with RANK, WORLD_SIZE and DIRECTORY.
"""

import datetime
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
TIMEOUT_S = 1


def main() -> None:
    torch.set_num_threads(1)
    directory = Path(os.environ["DIRECTORY"])
    dist.init_process_group(
        init_method=f"file://{directory}/rendezvous",
        rank=RANK,
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=datetime.timedelta(seconds=TIMEOUT_S),
    )
    tensor = torch.ones(8).to("npu")
    dist.all_reduce(tensor)
    if RANK == 1:
        if os.environ["HOW"] == "exits":
            os._exit(0)
        time.sleep(3 * TIMEOUT_S)  # alive, but it never comes
        return
    start_s = time.monotonic()
    try:
        dist.all_reduce(tensor)
    except RuntimeError as error:
        took_s = time.monotonic() - start_s
        (directory / f"rank{RANK}.txt").write_text(f"{took_s}\n{error}")
    # The device goes on working.
    assert torch.ones(2).to("npu").sum().item() == 2


if __name__ == "__main__":
    main()
