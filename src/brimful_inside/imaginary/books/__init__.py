"""What is written down of each allocation and each kernel: the ledger, what it is for and who asked for it, and the clock."""
