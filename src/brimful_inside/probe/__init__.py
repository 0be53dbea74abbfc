"""The probe: what a training does, watched from the inside of its process.

`entry` opens the door and says hello; `install` puts the watchers in place once torch is there; `probe` ties them together.
Nothing here may disturb the script: errors of ours become notes (`hub.guarded`), and nothing draws from its random states.
"""
