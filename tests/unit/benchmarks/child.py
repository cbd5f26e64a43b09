"""A child of a benchmark that does as it is told."""

from __future__ import annotations

import json
import sys
import time

from benchmarks.rounds import print_result

if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    time.sleep(request["rest_s"])
    if request["fails"]:
        sys.exit("this child fails")
    print_result({"gives": request["gives"]})
