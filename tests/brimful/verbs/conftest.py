import sys
from pathlib import Path

# world.py stands beside the tests; it is imported by path, without packages
sys.path.insert(0, str(Path(__file__).parent))
