"""Where the tutorial's broker, database and files are. `make services` prints the line that sets them."""

import os

BROKERS = os.environ.get("BROKERS", "localhost:9092")
DATABASE = os.environ.get("DATABASE", "postgresql://localhost:5432/postgres")
PLACE = os.environ.get("PLACE", "/tmp/barrier/tutorial")
