"""What to do, from values alone: no torch, no clock, and no files but the errors of benches in
`evidence/`.
"""
