"""One question, one answer: what holds at a card and at values of settings."""
