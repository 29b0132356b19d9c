"""Other libraries for the same job, one a file. None is needed: what is not there is said to be missing."""

from pathaware.bench.peers.base import Peer
from pathaware.bench.peers.with_higher import Higher
from pathaware.bench.peers.with_learn2learn import Learn2Learn
from pathaware.bench.peers.with_torchopt import TorchOpt

PEERS: tuple[Peer, ...] = (Higher(), TorchOpt(), Learn2Learn())

__all__ = ["PEERS", "Higher", "Learn2Learn", "Peer", "TorchOpt"]
