"""The probe: what a training does, watched from the inside of its process.

`entry` reports each process; `install` puts the hooks in once torch is there; `probe` ties them together.
Nothing here may disturb the script: errors of ours become notes (`context.guarded`), and nothing draws from its random states.
"""
