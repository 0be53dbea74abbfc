"""`make card`: a quarter of an hour on any card, or a rehearsal on an imaginary one."""
