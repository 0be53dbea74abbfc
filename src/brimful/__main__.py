from brimful.cli import main

main()
