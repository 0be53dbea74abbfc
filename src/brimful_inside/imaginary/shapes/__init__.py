"""What comes out of an operation whose data does not exist: its shape, and what little is known of its values."""
