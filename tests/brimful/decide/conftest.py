import sys
from pathlib import Path

# builders.py stands beside the tests; they are imported by path, without packages
sys.path.insert(0, str(Path(__file__).parent))
