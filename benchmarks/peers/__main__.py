"""python -m benchmarks.peers --data data"""

from benchmarks import peers
from benchmarks.command import run

if __name__ == "__main__":
    run("peers", peers.__doc__, peers.measure, peers.report)
