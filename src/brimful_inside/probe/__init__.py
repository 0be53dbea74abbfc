"""The probe: watches a training from the inside of its process.

`entry` reports each process and installs the hooks once torch is there; `probe` ties them together;
`report` is what it sends. The probe never disturbs the script: its own errors become notes.
"""
