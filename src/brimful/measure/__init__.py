"""What is: trials launched and gathered, this machine from outside, the catalogue of cards."""
